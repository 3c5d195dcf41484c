"""The tiled convolution of real numbers (real_conv.cu): which layers it takes, its pieces and macros.

A sum runs over (row of the window, column, channel), as on the CPU and in plain.cu: a matter of speed alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xnorpp.runtime.cuda.launch import Kernel
from xnorpp.runtime.cuda.source import STAGES

PIXELS, CHANNELS, THREADS = 128, 64, 128  # a block
MOST, LEAST = 48, 8  # taps of a piece
ENTRY = "real_conv_tiled"


def _divisor(number: int, most: int, multiple: int = 1) -> int:
    """The largest divisor of `number` up to `most` that is a multiple of `multiple`; 0 without one."""
    return max((d for d in range(multiple, most + 1, multiple) if number % d == 0), default=0)


def piece(channels: int, columns: int) -> tuple[int, int] | None:
    """How many columns of a window's row and channels are taken at a time; None where those are too few."""
    found = (columns, channels) if columns * channels <= MOST else (1, _divisor(channels, 32))
    return found if found[0] * found[1] >= LEAST else None


def blocks(images: int, shape: tuple[int, int, int]) -> int:
    """Blocks for `images` outputs of a shape (c, h, w)."""
    channels, height, width = shape
    return -(-images * height * width // PIXELS) * -(-channels // CHANNELS)


def shared_bytes(piece: tuple[int, int], planes: bool = False) -> int:
    """Two pieces of inputs and filters; where channels are neighbours, a window a pixel too."""
    return 2 * piece[0] * piece[1] * (PIXELS + CHANNELS) * 4 + (0 if planes else PIXELS * 16)


def kernel(arguments: Mapping[str, Any], stages: Sequence[Mapping[str, Any]]) -> Kernel:
    """The kernel for plain.cu's arguments of a real convolution that has pieces."""
    found = piece(arguments["c"], arguments["kw"])
    assert found is not None
    taps, deep = found
    depth, planes = taps * deep, int(arguments["channel_step"] != 1)
    room = shared_bytes(found, bool(planes))
    line = " ".join(f"STAGE({i}, {STAGES[stage['kind']].upper()})" for i, stage in enumerate(stages))
    sizes = ("oc", "oh", "ow", "kh", "kw", "sy", "sx", "py", "px", "dy", "dx")
    names = {"IC": "c", "IH": "h", "IW": "w", **{name.upper(): name for name in sizes}}
    macros: dict[str, int | str] = {macro: arguments.get(name, 0) for macro, name in names.items()}
    macros |= {
        "SOURCE": 2 if "table" in arguments else arguments.get("half", 0), "PLANES": planes,
        "TAPS": taps, "DEEP": deep, "UNROLL": _divisor(depth, 12, 1 if planes else 4) or depth,
        "BIAS": int("bias" in arguments), "BLOCKS": 4 if planes and 4 * room <= 150_000 else 3,
        "STAGE_LINE": line,
    }  # fmt: skip
    return Kernel("real_conv.cu", tuple(macros.items()), ENTRY, THREADS, room)
