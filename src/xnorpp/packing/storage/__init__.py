"""How a program's real numbers are stored: float32, float16, or int8 with one factor per output channel.

`store_int8` works on a checked program, so it also makes a packed file smaller without the network that it
came from. What a file holds is exact: engines compute with `float32(q) * scale` and agree as they always do.
"""

from __future__ import annotations

from typing import Any

from xnorpp.packing.storage.calibrated import store_calibrated
from xnorpp.packing.storage.whole import quantise, store_all
from xnorpp.runtime.format.names import with_short_names
from xnorpp.runtime.format.program import Program

__all__ = ["REAL", "TOLERANCE", "check_calibration", "check_real", "quantise", "store_int8"]

REAL = ("float32", "float16", "int8")
TOLERANCE = 0.001
"""The share of answers on calibration images, and on means of two of them, that int8 may change: an accuracy
then stays within a tenth of a point. Answers to images that a network has not seen change a few times less
often than those to such means."""


def check_real(real: str | None, half: bool) -> str:
    """The storage asked for, where `half` is the older way to ask for float16."""
    if real is None:
        return "float16" if half else "float32"
    if real not in REAL:
        raise ValueError(f"`real` (={real!r}) must be one of {', '.join(REAL)}")
    if half and real != "float16":
        raise ValueError(
            f"`half` (=True) means `real='float16'`, and `real` (={real!r}) was given; leave one out"
        )
    return real


def check_calibration(real: str, calibration: Any) -> None:
    """Refuse calibration images that nothing would use."""
    if calibration is not None and real != "int8":
        raise ValueError(
            f"`calibration` is for `real='int8'`, and `real` (={real!r}) was given; leave one out"
        )


def store_int8(
    program: Program, calibration: Any = None, *, tolerance: float = TOLERANCE, short_names: bool = True
) -> Program:
    """The program with the weights of its large real layers in int8, one factor per output channel.

    With calibration images, weights are rounded so that the layer's outputs on these images change least,
    a layer is stored smaller only where the answers stay the same, and convolutions whose input may be
    rounded too (to at most 16 bits, by the largest input seen) are computed with whole numbers, which is
    faster. `meta["int8"]` of the program reports what was chosen and what changed.

    Without them every large layer is rounded by itself. In a binary network the smallest change before a sign
    turns other signs further on. So where no sign depends on a rounded layer, all other numbers stay as they
    are. Where one does, the first layers have their weights in int16, as long as that adds less than one part
    in 128 to the file, and before the first layer in int8 all other numbers stay as they are. After it they
    are stored in float16, a much smaller change than that of the weights; numbers that float16 does not hold
    to its usual precision stay float32. Where the threshold of a sign of the same value gives a layer's mean
    input, weights are rounded so that a filter's error at this mean is small. The whole-numbered filters for
    the bytes of an image stay as they are: only float32 input meets the rounded weights of such a stem.

    Args:
        program: The program; it is left unchanged.
        calibration: Images as the network takes them, or a pair of images and classes, then the accuracy on
            them is reported too. Some hundred images of the training set are enough.
        tolerance: The share of answers on these images that may change.
        short_names: Number the tensors, which makes the file some kB smaller, instead of naming them after
            their modules; operations keep those names.

    Raises:
        ValueError: `calibration` or `tolerance` is wrong.

    Example:
        >>> from xnorpp.models import create_model
        >>> from xnorpp.packing import pack_program, store_int8
        >>> program = pack_program(create_model("small", input_size=8, width=64), 8)
        >>> sum(tensor.nbytes for tensor in store_int8(program).tensors.values()) < sum(
        ...     tensor.nbytes for tensor in program.tensors.values()
        ... )
        True
    """
    stored = store_all(program) if calibration is None else store_calibrated(program, calibration, tolerance)
    return with_short_names(stored) if short_names else stored
