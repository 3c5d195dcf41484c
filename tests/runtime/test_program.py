"""The packed file: round trips, plain safetensors, atomic writing, and a clear error for each broken rule."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_programs import Builder, random_program
from safetensors import safe_open
from safetensors.numpy import load as load_safetensors

from xnorpp.runtime import load
from xnorpp.runtime.format import program as files
from xnorpp.runtime.format.ops import operations
from xnorpp.runtime.format.program import Op, Program, ProgramError, encode, read, write
from xnorpp.runtime.reference import run


def image(program: Program, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((2, *program.input_shape)).astype(np.float32)


@pytest.mark.parametrize("seed", range(20))
def test_round_trip(seed: int) -> None:
    program = random_program(seed)
    blob = encode(program)
    again = read(blob)
    assert again.ops == program.ops
    assert again.values == program.values
    assert set(again.tensors) == set(program.tensors)
    for name, tensor in program.tensors.items():
        assert again.tensors[name].dtype == tensor.dtype
        assert np.array_equal(again.tensors[name], tensor)
    assert encode(again) == blob
    assert np.array_equal(run(again, image(program)), run(program, image(program)), equal_nan=True)


def test_plain_safetensors_reads_it(tmp_path: Path) -> None:
    program = random_program(3)
    tensors = load_safetensors(encode(program))
    assert {name: tensor.shape for name, tensor in tensors.items()} == {
        name: tensor.shape for name, tensor in program.tensors.items()
    }
    path = tmp_path / "model.xnor"
    assert write(program, path) == path.stat().st_size
    with safe_open(path, "numpy") as file:
        assert file.metadata()["format"] == "xnorpp"
        outputs = json.loads(file.metadata()["program"])["outputs"]
        assert outputs == [{"name": "output", "value": program.output}]


def test_writing_is_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.xnor"
    write(random_program(1), path)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        write(random_program(2), path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.xnor"]


def test_tensors_are_aligned_to_their_width() -> None:
    blob = encode(random_program(7, length=20))
    length = int.from_bytes(blob[:8], "little")
    assert (8 + length) % 8 == 0
    header = json.loads(blob[8 : 8 + length])
    width = {"F32": 4, "F16": 2, "U8": 1}
    rows = [row for name, row in header.items() if name != "__metadata__"]
    assert len({row["dtype"] for row in rows}) > 1
    assert all(row["data_offsets"][0] % width[row["dtype"]] == 0 for row in rows)


def remake(blob: bytes, change: Any) -> bytes:
    """A file after `change(header, program)` with its checksum made right again."""
    length = int.from_bytes(blob[:8], "little")
    header, data = json.loads(blob[8 : 8 + length]), blob[8 + length :]
    program = json.loads(header["__metadata__"]["program"])
    change(header, program)
    header["__metadata__"]["program"] = json.dumps(program)
    rows = sorted(
        ((n, r) for n, r in header.items() if n != "__metadata__"), key=lambda item: item[1]["data_offsets"]
    )
    table = [(name, row["dtype"], tuple(row["shape"])) for name, row in rows]
    header["__metadata__"]["checksum"] = files._checksum(header["__metadata__"]["program"], table, data)
    raw = json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + data


def base(version: int = 2) -> bytes:
    b = Builder((3, 6, 6))
    bits = b.emit("sign", "input", tensors={"threshold": np.zeros(3, np.float32)})
    attrs = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1, "pad_value": 0}
    dot = b.emit("binary_conv2d", bits, attrs=attrs, tensors={"weight": np.full((4, 3, 3, 1), 5, np.uint8)})
    y = b.emit("affine", dot, tensors={"mult": np.ones(4, np.float32)})
    pool = {"kernel": [2, 2], "stride": [2, 2], "padding": [0, 0], "ceil_mode": False}
    labels = ("a", "b", "c", "d")
    return encode(b.program(b.emit("max_pool2d", y, attrs=pool), labels=labels, version=version))


def _set(index: int, key: str, value: Any) -> Any:
    return lambda header, program: program["ops"][index].__setitem__(key, value)


def _attr(index: int, key: str, value: Any) -> Any:
    return lambda header, program: program["ops"][index]["attrs"].__setitem__(key, value)


def _give(program: dict[str, Any], value: str) -> None:
    """Another value as the output, in both versions."""
    if "output" in program:
        program["output"] = value
    else:
        program["outputs"][0]["value"] = value


BROKEN: dict[str, tuple[Any, str]] = {
    "unknown operation": (_set(0, "op", "fft"), "unknown"),
    "read before made": (_set(0, "inputs", ["v2"]), "read before it is made"),
    "made twice": (_set(1, "output", "v0"), "made twice"),
    "too many inputs": (_set(0, "inputs", ["input", "input"]), "inputs given"),
    "wrong kind": (_set(3, "inputs", ["v1"]), "is int; f32 is needed"),
    "zero stride": (_attr(1, "stride", [0, 1]), "`stride`"),
    "huge dilation": (_attr(1, "dilation", [1 << 20, 1]), "`dilation`"),
    "negative padding": (_attr(1, "padding", [-1, 0]), "`padding`"),
    "bad groups": (_attr(1, "groups", 2), "`groups`"),
    "bad pad value": (_attr(1, "pad_value", 2), "`pad_value`"),
    "true is no number": (_attr(1, "groups", True), "`groups`"),
    "window too large": (_attr(3, "kernel", [9, 9]), "does not fit"),
    "missing attribute": (lambda h, p: p["ops"][3]["attrs"].pop("kernel"), "attributes"),
    "missing tensor": (_set(1, "tensors", {}), "tensors"),
    "unknown tensor": (_set(1, "tensors", {"weight": "nothing"}), "not in the file"),
    "wrong tensor": (_set(1, "tensors", {"weight": "v2.mult"}), "U8 is needed"),
    "unused tensor": (_set(2, "tensors", {}), "used by no operation"),
    "no output": (lambda h, p: _give(p, "v9"), "never made"),
    "bits out": (lambda h, p: _give(p, "v0"), "f32 is needed"),
    "labels": (lambda h, p: p.__setitem__("labels", ["a"]), "1 labels for 4 outputs"),
    "huge input": (lambda h, p: p["input"].__setitem__("shape", [3, 1 << 20, 1 << 20]), "out of range"),
    "text shape": (lambda h, p: p["input"].__setitem__("shape", ["3", 6, 6]), "`shape`"),
    "mean": (lambda h, p: p["input"].__setitem__("mean", [0.0]), "`mean`"),
    "std": (lambda h, p: p["input"].__setitem__("std", [1.0, 0.0, 1.0]), "`std`"),
    "empty mean": (lambda h, p: p["input"].__setitem__("mean", []), "`mean` must be 3 finite numbers"),
    "empty std": (lambda h, p: p["input"].__setitem__("std", []), "`std` must be 3 finite numbers"),
    "no operations": (lambda h, p: p.__setitem__("ops", []), "operations"),
    "version": (lambda h, p: h["__metadata__"].__setitem__("version", "3"), "version '3' is unknown"),
    "format": (lambda h, p: h["__metadata__"].__setitem__("format", "other"), "something else"),
    "dtype": (lambda h, p: h["v2.mult"].__setitem__("dtype", "F64"), "dtype"),
    "shape": (lambda h, p: h["v2.mult"].__setitem__("shape", [5]), "not its shape's size"),
    "gap": (lambda h, p: h["v2.mult"].__setitem__("data_offsets", [8, 24]), "begins at|ends at|end at"),
}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_say_what_is_wrong(name: str, version: int) -> None:
    change, reason = BROKEN[name]
    with pytest.raises(ProgramError, match=reason) as error:
        read(remake(base(version), change))
    assert "\n" not in str(error.value)


def test_damage_is_noticed() -> None:
    blob = bytearray(base())
    read(bytes(blob))
    blob[-1] ^= 1
    with pytest.raises(ProgramError, match="checksum"):
        read(bytes(blob))
    for content in (b"", b"1234567", b"\x02\0\0\0\0\0\0\0{}", b"\xff" * 64, b'\x10\0\0\0\0\0\0\0{"a":1'):
        with pytest.raises(ProgramError):
            read(content)


@pytest.mark.parametrize(
    "text", ['{"a":1,"a":2}', '{"a":NaN}', "[" * 100000, '{"__metadata__":[]}', "{", "\xff", '{"x":1e999999}']
)
def test_hostile_json(text: str) -> None:
    raw = text.encode("latin-1")
    with pytest.raises(ProgramError):
        read(len(raw).to_bytes(8, "little") + raw)


def test_tail_bits_and_numbers_are_checked() -> None:
    b = Builder((3, 2, 2))
    attrs = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1, "pad_value": 0}
    bits = b.emit("sign", "input")
    with pytest.raises(ProgramError, match="tail bits"):
        b.emit("binary_conv2d", bits, attrs=attrs, tensors={"weight": np.full((1, 1, 1, 1), 8, np.uint8)})
    with pytest.raises(ProgramError, match="NaN"):
        b.emit("affine", "input", tensors={"mult": np.full(3, np.nan, np.float32)})
    with pytest.raises(ProgramError, match="NaN"):
        b.emit("sign", "input", tensors={"threshold": np.full(3, np.nan, np.float32)})
    with pytest.raises(ProgramError, match="flip"):
        b.emit("sign", "input", tensors={"flip": np.full(3, 2, np.uint8)})
    with pytest.raises(ProgramError, match="spatial"):
        b.emit("sign", "input", tensors={"row": np.ones(2, np.float32)})
    assert b.emit("sign", "input", tensors={"threshold": np.full(3, np.inf, np.float32)}) == "v1"


def test_a_program_cannot_ask_for_too_much() -> None:
    weight = {"w": np.zeros((1024, 1, 1, 128), np.uint8)}
    attrs = {"stride": [1, 1], "padding": [1024, 1024], "dilation": [1, 1], "groups": 1, "pad_value": 0}
    ops = [Op("sign", "", ("input",), "b"), Op("binary_conv2d", "", ("b",), "y", attrs, {"weight": "w"})]
    with pytest.raises(ProgramError, match="out of range"):
        Program((1024, 8, 8), (*ops, Op("affine", "", ("y",), "z")), "z", weight)


def test_every_operation_has_a_definition() -> None:
    from xnorpp.runtime.reference import ROWS

    assert set(ROWS) == set(operations())


def test_loading_without_torch(tmp_path: Path) -> None:
    """`import xnorpp.runtime`, load and answer with torch blocked."""
    path = tmp_path / "model.xnor"
    write(random_program(4), path)
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import numpy as np, xnorpp.runtime as r\n"
        f"m = r.load({str(path)!r}, isa='reference')\n"
        "print(m(np.zeros((1, *m.program.input_shape), np.float32)).shape, m.isa, m.threads, m.labels)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "reference 1 None" in done.stdout


def test_an_error_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.xnor"
    size = write(random_program(4), path)
    content = path.read_bytes()
    for kept, what in ((5, "before its header"), (size // 8, "it is cut off"), (size - 3, "it is cut off")):
        path.write_bytes(content[:kept])
        with pytest.raises(ProgramError, match=rf"^{re.escape(str(path))}: .*{what}$"):
            read(path)
        with pytest.raises(ProgramError, match=rf"^t.*{what}$"):
            read(content[:kept])


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_of_any_kind_are_read(kind: Any) -> None:
    program = random_program(4)
    assert encode(load(kind(encode(program)), isa="reference").program) == encode(program)


def test_a_checkpoint_is_no_packed_model(tmp_path: Path) -> None:
    from xnorpp.training import save_checkpoint

    path = save_checkpoint(tmp_path / "model.safetensors", {}, {"model": {}})
    with pytest.raises(ProgramError, match="this is an xnorpp checkpoint; pack it first with `xnorpp pack`"):
        load(path)


def test_load_checks_its_arguments(tmp_path: Path) -> None:
    program = random_program(4)
    with pytest.raises(ValueError, match="`threads`"):
        load(program, threads=0)
    with pytest.raises(ValueError, match="`device`"):
        load(program, device="tpu")
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.xnor")
    with pytest.raises(IsADirectoryError, match="a packed file is needed; `xnorpp pack` makes one of a run"):
        load(tmp_path)


@pytest.mark.parametrize("op", ["binary_linear", "binary_conv2d"])
def test_too_many_inputs_of_a_filter_are_named(op: str) -> None:
    """The message of a linear layer was about the shape of the weight, which was right."""
    channels = (1 << 22) + 8
    attrs = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1, "pad_value": 0}
    if op == "binary_linear":
        shape, attrs = (1, channels // 8), {}
        source = [Op("flatten", "", ("input",), "f"), Op("sign", "", ("f",), "b")]
    else:
        shape, source = (1, 1, 1, channels // 8), [Op("sign", "", ("input",), "b")]
    ops = (*source, Op(op, "", ("b",), "y", attrs, {"weight": "w"}), Op("affine", "", ("y",), "z"))
    with pytest.raises(ProgramError, match=r"4194312 channels.* 4194304"):
        Program((channels, 1, 1), ops, "z", {"w": np.zeros(shape, np.uint8)})
