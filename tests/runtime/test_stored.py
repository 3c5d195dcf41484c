"""A file's large filters leave memory once an engine has packed them, and come back for whoever asks."""

from __future__ import annotations

import os
import pickle
import sys
import threading
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from xnorpp.runtime import Limits, Op, PackedModel, Program, load, read, write
from xnorpp.runtime.cpu import available_isas
from xnorpp.runtime.format.bits import pack_conv_weight, pack_linear_weight
from xnorpp.runtime.format.program import encode

ISAS = available_isas()
CHANNELS = 260
releases = pytest.mark.skipif(sys.platform != "linux", reason="memory is given back on Linux alone")


def _conv(op: str, name: str, source: str, **attrs: object) -> Op:
    geometry = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1, **attrs}
    return Op(op, name, (source,), name, geometry, {"weight": f"{name}.w"})


@cache
def network() -> Program:
    """Filters of every layout: real ones by groups and without, bits in chains of words and not, tails."""
    rng = np.random.default_rng(5)
    c = CHANNELS
    shapes = {
        "real": (c, 3, 9, 9), "three": (c, c, 3, 3), "wide": (280, c, 5, 1), "parts": (280, 140, 3, 3),
        "single": (560, 280, 1, 1), "grouped": (560, 8, 3, 3), "out": (1001, 560), "bits_out": (1003, 560),
    }  # fmt: skip
    tensors = {}
    for name, shape in shapes.items():
        weight = rng.standard_normal(shape).astype(np.float32)
        real = name in ("real", "grouped", "out")
        if not real:
            weight = pack_conv_weight(weight) if weight.ndim == 4 else pack_linear_weight(weight)
        tensors[f"{name}.w"] = weight
    tensors["out.w"].view(np.uint32)[0, :3] = (0x80000000, 1, 0x807FFFFF)  # -0, subnormal numbers
    bits = {"pad_value": 0}
    ops = (
        _conv("conv2d", "real", "input", stride=[2, 2], padding=[4, 4]),
        Op("sign", "s1", ("real",), "s1"),
        _conv("binary_conv2d", "three", "s1", **bits),
        Op("sign", "s2", ("three",), "s2"),
        _conv("binary_conv2d", "wide", "s2", stride=[2, 2], padding=[2, 0], pad_value=1),
        Op("sign", "s3", ("wide",), "s3"),
        _conv("binary_conv2d", "parts", "s3", groups=2, **bits),
        Op("sign", "s4", ("parts",), "s4"),
        _conv("binary_conv2d", "single", "s4", padding=[0, 0], **bits),
        Op("affine", "real_again", ("single",), "real_again", {}, {"mult": "mult"}),
        _conv("bitweight_conv2d", "plain", "real_again", padding=[0, 0]),
        _conv("conv2d", "grouped", "plain", groups=70),
        Op("global_avg_pool", "mean", ("grouped",), "mean"),
        Op("flatten", "flat", ("mean",), "flat"),
        Op("linear", "out", ("flat",), "out", {}, {"weight": "out.w"}),
        Op("sign", "s5", ("flat",), "s5"),
        Op("binary_linear", "bits_out", ("s5",), "bits_out", {}, {"weight": "bits_out.w"}),
        Op("affine", "second", ("bits_out",), "second", {}, {"mult": "second.mult"}),
    )
    tensors["second.mult"] = np.ones(1003, np.float32)
    tensors["mult"] = rng.standard_normal(560).astype(np.float32)
    tensors["plain.w"] = pack_conv_weight(rng.standard_normal((560, 560, 1, 1)))
    used = {name for op in ops for name in op.tensors.values()}
    assert used == set(tensors)
    return Program((3, 17, 15), ops, "out", tensors, more_outputs={"more": "second"})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write(network(), tmp_path / "model.xnor")
    return tmp_path / "model.xnor"


def _image() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((1, 3, 17, 15)).astype(np.float32)


def _answers(model: PackedModel, whole: PackedModel) -> None:
    expected = whole(_image())
    for name, got in model(_image()).items():
        np.testing.assert_array_equal(got, expected[name])


def _same(program: Program) -> None:
    for name, tensor in network().tensors.items():
        assert program.tensors[name].tobytes() == tensor.tobytes(), name


@pytest.mark.parametrize("isa", ISAS)
def test_every_layout_comes_back(path: Path, isa: str) -> None:
    model = load(path, threads=1, isa=isa)
    path.unlink()  # it comes from the engine
    if sys.platform == "linux":
        assert model.program.native.released >= 7
    _same(model.program)
    assert model.program.native.released == 0
    assert pickle.loads(pickle.dumps(model.program)).tensors.keys() == network().tensors.keys()


@pytest.mark.parametrize("isa", ISAS)
def test_answers_are_those_of_a_model_that_keeps_its_bytes(path: Path, isa: str) -> None:
    whole = load(path.read_bytes(), threads=1, isa=isa)
    model = load(path, threads=2, isa=isa)
    _answers(model, whole)
    _answers(pickle.loads(pickle.dumps(model)), whole)


@releases
def test_running_asks_for_no_tensor(path: Path) -> None:
    model = load(path, threads=1, isa=ISAS[-1])
    before = model.program.native.released
    model(_image())
    assert repr(model).startswith("PackedModel")
    assert model.memory > 0
    assert model.program.native.released == before > 0


@releases
def test_a_view_that_somebody_has_stays(path: Path) -> None:
    program = read(path)
    view = program.tensors["three.w"]
    content = view.tobytes()
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 0
    load(program, threads=1)
    assert program.native.released > 0
    assert view.tobytes() == content
    assert program.tensors["three.w"] is view


@pytest.mark.parametrize("isa", ISAS)
def test_one_program_has_several_engines(path: Path, isa: str) -> None:
    program = read(path)
    first = load(program, threads=1, isa=isa)
    second = load(program, threads=1, isa=ISAS[0])
    for model, name in ((first, isa), (second, ISAS[0])):
        _answers(model, load(path.read_bytes(), threads=1, isa=name))
    del first, second  # the panels outlive their engines
    _same(program)


def test_an_engine_that_does_not_start_takes_nothing_away(path: Path) -> None:
    program = read(path)
    with pytest.raises(ValueError, match="memory_bytes"):
        load(program, threads=1, limits=Limits(memory_bytes=1 << 20))
    _same(program)


def test_a_tensor_with_two_uses_stays(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).standard_normal((200, 200)).astype(np.float32)
    first = Op("linear", "l0", ("input",), "l0", {}, {"weight": "w"})
    second = Op("linear", "l1", ("l0",), "l1", {}, {"weight": "w"})
    write(Program((200,), (first, second), "l1", {"w": weight}), tmp_path / "twice.xnor")
    model = load(tmp_path / "twice.xnor")
    assert model.program.native.released == 0
    assert model.program.tensors["w"].tobytes() == weight.tobytes()


def test_any_size_packs_again(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).standard_normal((64, 3, 11, 11)).astype(np.float32)
    op = _conv("conv2d", "c", "input")
    op = replace(op, tensors={"weight": "w"})
    write(Program((3, 20, 20), (op,), "c", {"w": weight}, free_axes=(1, 2)), tmp_path / "any.xnor")
    model, whole = load(tmp_path / "any.xnor"), load((tmp_path / "any.xnor").read_bytes())
    for size in (20, 23, 20, 25):
        x = np.random.default_rng(size).standard_normal((1, 3, size, size)).astype(np.float32)
        np.testing.assert_array_equal(model(x), whole(x))


def test_threads_ask_while_an_engine_is_made(path: Path) -> None:
    program = read(path)
    content = {name: tensor.tobytes() for name, tensor in network().tensors.items()}
    wrong = []

    def ask() -> None:
        for name in list(content) * 3:
            own = read(path).tensors[name]
            if own.tobytes() != content[name] or program.tensors[name].tobytes() != content[name]:
                wrong.append(name)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        load(program, threads=1)
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_file_that_grows_or_shrinks_while_it_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = path.read_bytes()
    stat = os.fstat
    for more in (-100, 100):

        def other(descriptor: int, more: int = more) -> SimpleNamespace:
            found = stat(descriptor)
            return SimpleNamespace(st_mode=found.st_mode, st_size=found.st_size + more)

        monkeypatch.setattr("xnorpp.runtime.format.program.os.fstat", other)
        assert encode(read(path)) == whole
