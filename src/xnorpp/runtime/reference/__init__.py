"""Every operation in plain numpy: the definition that all engines are tested against.

One file for each family of operations; `ROWS` of each has the definitions by the operation's name, and with
each definition its error bound: how far a packed operation may be from the trained one.

Values carry the batch axis in front: `f32` is float32, `int` is int32, and `bits` are int8 -1 or +1 (packing
them is an engine's affair). Real arithmetic is IEEE float32: each operation below rounds once a step, an
affine one's multiply and add together are one step, and engines may sum in another order. Integer dot
products are exact everywhere.

NaN and infinities: a NaN goes through every real operation, max pooling included, and is -1 to `sign`
(`NaN > t` and `NaN < t` are both false). Infinities follow IEEE arithmetic. A tap outside the image adds
nothing, whatever its weight.
"""

from __future__ import annotations

from xnorpp.runtime.format.batch import check_input, shape_of_batch
from xnorpp.runtime.reference.arithmetic import affine, multiply_add, sign_distance, spatial_factor
from xnorpp.runtime.reference.arrays import F32, Array, per_channel
from xnorpp.runtime.reference.convolution import convolve
from xnorpp.runtime.reference.rows import ROWS, Row, apply
from xnorpp.runtime.reference.run import byte_values, normalise, run

__all__ = [
    "F32",
    "ROWS",
    "Array",
    "Row",
    "affine",
    "apply",
    "byte_values",
    "check_input",
    "convolve",
    "multiply_add",
    "normalise",
    "per_channel",
    "run",
    "shape_of_batch",
    "sign_distance",
    "spatial_factor",
]
