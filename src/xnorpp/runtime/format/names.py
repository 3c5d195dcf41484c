"""Numbers instead of names in a packed file, for a smaller header."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from xnorpp.runtime.format.program import INPUT, Program

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def with_short_names(program: Program) -> Program:
    """The same program with numbers (to base 36) for the names of its tensors and values.

    A tensor's name stands three times in a file, so names such as `layer1.0.conv1.threshold` are some 8 % of
    a small network. Operations keep the names of their modules, and outputs their own: what reports and
    errors show is the same.

    Example:
        >>> import xnorpp
        >>> from xnorpp.runtime.format.program import encode
        >>> program = xnorpp.load("cifar10-resnet20").program
        >>> 7000 < len(encode(program)) - len(encode(with_short_names(program))) < 8000
        True
    """
    used = (name for op in program.ops for name in op.tensors.values())
    with_scales = (one for name in used for one in (name, program.scales.get(name)) if one is not None)
    tensors = _numbered(dict.fromkeys(with_scales))  # in the order of use, which every copy of a file has
    values = {INPUT: INPUT, **_numbered(op.output for op in program.ops)}
    ops = tuple(
        replace(
            op,
            inputs=tuple(values[name] for name in op.inputs),
            output=values[op.output],
            tensors={role: tensors[name] for role, name in op.tensors.items()},
        )
        for op in program.ops
    )
    return replace(
        program,
        ops=ops,
        output=values[program.output],
        more_outputs={name: values[value] for name, value in program.more_outputs.items()},
        tensors={tensors[name]: array for name, array in program.tensors.items()},
        scales={tensors[name]: tensors[scale] for name, scale in program.scales.items()},
    )


def _numbered(names: Iterable[str]) -> dict[str, str]:
    return {name: _base_36(number) for number, name in enumerate(names)}


def _base_36(number: int) -> str:
    """Never `input`, which is reserved: that is number 31,339,685, and a program has at most 2^20 values."""
    text = _DIGITS[number % 36]
    while number := number // 36:
        text = _DIGITS[number % 36] + text
    return text
