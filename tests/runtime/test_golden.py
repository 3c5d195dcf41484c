"""The golden file of every format version loads for ever and gives the output stored with it."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import struct
from pathlib import Path

import numpy as np
import pytest

from xnorpp.runtime import load
from xnorpp.runtime.cpu import available_isas
from xnorpp.runtime.format.bits import unpack_conv_weight
from xnorpp.runtime.format.ops import operations
from xnorpp.runtime.format.program import VERSION, encode, read

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("version", range(1, VERSION + 1))
def test_golden_file(version: int) -> None:
    path = GOLDEN / f"v{version}.xnor"
    program = read(path)
    stored = np.load(GOLDEN / f"v{version}.npz")
    for isa in ("reference", *available_isas()):
        answers = load(path, isa=isa)(stored["images"])
        outputs = answers if version > 1 else {"output": answers}
        assert list(outputs) == [name for name in stored.files if name != "images"]
        for name, answer in outputs.items():
            assert np.allclose(answer, stored[name], atol=1e-5)
    assert program.labels == ("ant", "bée", "cat", "dog", "elk")
    assert program.meta == {"golden": str(version)}
    assert program.version == version
    assert encode(program) == path.read_bytes()


def test_version_1_is_the_same_bit_for_bit() -> None:
    """The bits of 0.1.0 with AVX2: no later reader or planner may change the output of an old file."""
    if "avx2" not in available_isas():
        pytest.skip("GOLDEN BITS NOT COMPARED: AVX2 is needed")
    stored = np.load(GOLDEN / "v1.npz")
    answer = load(GOLDEN / "v1.xnor", isa="avx2")(stored["images"])
    assert hashlib.sha256(answer.tobytes()).hexdigest()[:16] == "319a2ec2f2d48955"


@pytest.mark.parametrize(("name", "maker"), [("v2", "golden"), ("set2", "golden_set_2")])
def test_golden_files_can_be_made_again(name: str, maker: str) -> None:
    spec = importlib.util.spec_from_file_location("make_golden", GOLDEN / "make_golden.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert encode(getattr(module, maker)()) == (GOLDEN / f"{name}.xnor").read_bytes()


def test_golden_file_of_operation_set_2() -> None:
    """Every operation of the set, in every engine of this machine."""
    path, stored = GOLDEN / "set2.xnor", np.load(GOLDEN / "set2.npz")
    program = read(path)
    assert {op.op for op in program.ops} >= {n for n, rule in operations().items() if rule.since == 2}
    assert encode(program) == path.read_bytes()
    for isa in ("reference", *available_isas()):
        outputs = load(path, isa=isa)(stored["inputs"])
        assert list(outputs) == [name for name in stored.files if name != "inputs"]
        for name, output in outputs.items():
            exact = name not in ("product", "products")  # sums of products, in any order
            np.testing.assert_allclose(
                output, stored[name], rtol=0, atol=0 if exact else 1e-5, err_msg=f"{isa} {name}"
            )


@pytest.mark.parametrize("version", range(1, VERSION + 1))
def test_a_golden_file_has_every_operation(version: int) -> None:
    assert {op.op for op in read(GOLDEN / f"v{version}.xnor").ops} == {
        name for name, rule in operations().items() if rule.since == 1
    }


def test_the_golden_file_of_version_2_has_all_that_is_new_in_it() -> None:
    program = read(GOLDEN / "v2.xnor")
    assert program.outputs.keys() == {"probabilities", "features"}
    assert program.values[program.outputs["features"]].shape == (12, 6, 6)
    assert program.temperature == 1.25
    stated = {encoding.name for encoding in program.encodings.values()}
    assert stated == {"float32", "float16", "bits", "uint8", "int16", "int32"}


@pytest.mark.parametrize("version", range(1, VERSION + 1))
def test_the_documented_layout_is_enough_to_read_it(version: int) -> None:
    """Header, offsets, checksum and bits by docs/format.md alone, without our reader."""
    blob = (GOLDEN / f"v{version}.xnor").read_bytes()
    (length,) = struct.unpack("<Q", blob[:8])
    header, data = json.loads(blob[8 : 8 + length]), blob[8 + length :]
    meta = header.pop("__metadata__")
    rows = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
    text = meta["program"]
    for name, row in rows:
        text += f"\n{name} {row['dtype']} {','.join(str(size) for size in row['shape'])}"
    assert meta["checksum"] == "sha256:" + hashlib.sha256(text.encode() + b"\n" + data).hexdigest()
    program = json.loads(meta["program"])
    conv = next(op for op in program["ops"] if op["op"] == "binary_conv2d")
    row = header[conv["tensors"]["weight"]]
    o, kh, kw, width = row["shape"]
    raw = data[slice(*row["data_offsets"])]
    channels = next(v.shape[0] for n, v in read(blob).values.items() if n == conv["inputs"][0])
    fan = channels // conv["attrs"]["groups"]
    assert width == -(-fan // 8)
    if version > 1:
        assert program["tensors"].keys() == header.keys()
        assert program["tensors"][conv["tensors"]["weight"]] == {
            "encoding": "bits",
            "shape": [o, kh, kw, fan],
        }
    signs = np.empty((o, fan, kh, kw), np.int8)
    for f, c, a, b in np.ndindex(signs.shape):
        byte = raw[((f * kh + a) * kw + b) * width + c // 8]
        signs[f, c, a, b] = 1 if byte >> (c % 8) & 1 else -1
    assert np.array_equal(signs, unpack_conv_weight(read(blob).tensors[conv["tensors"]["weight"]], fan))
