"""The first layer with products of whole warpgroups (stem_wgmma.cu): its filters, tilings and macros.

Compute capability 9.0 alone has the instruction, and its compiler knows unsigned times signed bytes from
CUDA 12.4 on. It gives what stem.cu gives, bit for bit, in 57 % of the time on an H200 (ResNet-18, batch 256).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

CAPABILITY = (9, 0)
CHANNELS = 64
TILE = 2048  # bytes: 64 channels of 32
# Fastest first: pooled rows a block, rows an epilogue, blocks, column groups of 7 a block, products of both
# rows at once. With three blocks a thread has 168 registers, with two 255.
Tiling = tuple[int, int, int, int, int]
TILINGS: tuple[Tiling, ...] = (
    (20, 4, 3, 4, 0),
    (28, 2, 2, 4, 1),
    (20, 2, 3, 4, 0),
    (20, 1, 3, 4, 1),
)


def pack_filters(whole: npt.NDArray[np.int64]) -> npt.NDArray[np.int8]:
    """16-bit filters (64, kh, 8, 4) as [kh][hi, lo] tiles of 8 x 2 pieces, each eight channels of 16 bytes.

    Column 2t + e%2 of sums 2p + e//2 is channel 16p + 4t + e, as a lane of stem.cu has them.
    """
    low = (whole + 128) % 256 - 128
    parts = np.stack([(whole - low) // 256, low]).astype(np.int8)  # (2, 64, kh, 8, 4)
    kh = whole.shape[1]
    # channel = (p, t, e // 2, e % 2), taps = (half, 16 bytes)
    split = parts.reshape(2, 4, 4, 2, 2, kh, 2, 16)
    return np.ascontiguousarray(split.transpose(5, 0, 1, 3, 6, 2, 4, 7)).reshape(kh, 2, 8, 2, 8, 16)


def tiling_macros(macros: Mapping[str, int | str], tiling: Tiling) -> dict[str, int | str]:
    """stem.cu's macros for another tiling."""
    rows, steps, blocks, across, both = tiling
    numbers = {"R": rows, "STEPS": steps, "BLOCKS": blocks, "XB": across, "BOTH_ROWS": both}
    return {**macros, **numbers, "NP": 4, "HOLD": 0}


def shared_bytes(macros: Mapping[str, int | str]) -> int:
    m = {k: v for k, v in macros.items() if isinstance(v, int)}
    wide = (8 + 28 * m["XB"] + 8 + 3) // 4 * 4
    return 2 * m["KH"] * TILE + m["TABLES"] * m["OC"] * 4 + 16 + (4 * m["R"] + m["KH"]) * wide * 4
