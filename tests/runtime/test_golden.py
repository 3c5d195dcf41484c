"""The golden file of every format version loads for ever and gives the output stored with it."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

import numpy as np
import pytest

from xnorpp.runtime.format.bits import unpack_conv_weight
from xnorpp.runtime.format.ops import OPS
from xnorpp.runtime.format.program import VERSION, encode, read
from xnorpp.runtime.reference import run

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("version", range(1, int(VERSION) + 1))
def test_golden_file(version: int) -> None:
    path = GOLDEN / f"v{version}.xnor"
    program = read(path)
    stored = np.load(GOLDEN / f"v{version}.npz")
    assert np.allclose(run(program, stored["pictures"]), stored["output"], atol=1e-5)
    assert program.labels == ("ant", "bée", "cat", "dog", "elk")
    assert program.meta == {"golden": str(version)}
    assert encode(program) == path.read_bytes()


def test_the_golden_file_of_version_1_has_every_operation_of_it() -> None:
    assert {op.op for op in read(GOLDEN / "v1.xnor").ops} == set(OPS)


def test_the_documented_layout_is_enough_to_read_it() -> None:
    """Header, offsets, checksum and bits by docs/format.md alone, without our reader."""
    blob = (GOLDEN / "v1.xnor").read_bytes()
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
    signs = np.empty((o, fan, kh, kw), np.int8)
    for f, c, a, b in np.ndindex(signs.shape):
        byte = raw[((f * kh + a) * kw + b) * width + c // 8]
        signs[f, c, a, b] = 1 if byte >> (c % 8) & 1 else -1
    assert np.array_equal(signs, unpack_conv_weight(read(blob).tensors[conv["tensors"]["weight"]], fan))
