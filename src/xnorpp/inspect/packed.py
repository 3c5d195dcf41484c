"""The rows of a packed program, from its operations alone (numpy, no torch)."""

from __future__ import annotations

import math

import numpy as np

from xnorpp.inspect.layer import (
    Geometry,
    Inspection,
    Layer,
    State,
    place_in_network,
    real_shortcut,
    two_valued,
)
from xnorpp.runtime.format.ops import infer
from xnorpp.runtime.format.program import INPUT, Op, Program

WEIGHTED = (
    "conv2d",
    "int_conv2d",
    "linear",
    "binary_conv2d",
    "binary_linear",
    "bitweight_conv2d",
    "bitweight_linear",
)


def inspect_program(
    program: Program, *, title: str = "packed model", file_bytes: int | None = None
) -> Inspection:
    """Inspect a packed program. Scales, thresholds and slopes count for the layer they follow.

    Args:
        program: What `xnorpp.runtime.read` returns.
        title: The heading of the report.
        file_bytes: The size of the file, where there is one.

    Returns:
        The layers with bits, bytes and operations, and warnings about layers that look binary but are not.

    Example:
        >>> import xnorpp
        >>> from xnorpp.inspect import inspect_program
        >>> report = inspect_program(xnorpp.load("cifar10-resnet20").program, title="mine")
        >>> report.title, report.layers[1].state
        ('mine', 'binary')
    """
    owner: dict[str, str] = {}  # value -> the weighted operation it comes from, by that one's output value
    extra_bytes: dict[str, int] = {}
    extra_work: dict[str, int] = {}
    for op in program.ops:
        source = owner.get(op.inputs[0], INPUT)
        if op.op in WEIGHTED:
            owner[op.output] = op.output
            continue
        owner[op.output] = source
        extra_bytes[source] = extra_bytes.get(source, 0) + _tensor_bytes(program, op)
        extra_work[source] = extra_work.get(source, 0) + _real_work(program, op)
    weighted = [op for op in program.ops if op.op in WEIGHTED]
    makers = {op.output: op for op in program.ops}
    layers, warnings = [], []
    for index, op in enumerate(weighted):
        state, why, notes = _judge(program, op, makers, place_in_network(index, len(weighted)))
        warnings.extend(notes)
        geometry = geometry_of(program, op)
        weight = program.tensors[op.tensors["weight"]]
        layers.append(
            Layer(
                name=op.name,
                state=state,
                why=why,
                geometry=geometry,
                weight_bits=1 if program.is_packed(op) else 8 * weight.itemsize,
                input_bits=1 if state == "binary" else 32,
                bytes=_tensor_bytes(program, op) + extra_bytes.get(op.output, 0),
                binary_operations=geometry.multiply_adds if state == "binary" else 0,
                real_operations=(0 if state == "binary" else geometry.multiply_adds)
                + extra_work.get(op.output, 0),
            )
        )
    warnings.extend(_conversions(program))
    if not any(layer.state == "binary" for layer in layers):
        warnings.append("no layer of this file is binary in weights and inputs: nothing runs as XNOR")
    return Inspection(
        title=title,
        layers=tuple(layers),
        warnings=tuple(warnings),
        other_bytes=extra_bytes.get(INPUT, 0),
        other_operations=extra_work.get(INPUT, 0),
        file_bytes=file_bytes,
    )


def geometry_of(program: Program, op: Op) -> Geometry:
    """The shape of a weighted operation."""
    before, after = program.values[op.inputs[0]].shape, program.values[op.output].shape
    if op.op.endswith("linear"):
        return Geometry(before[0], after[0], (1, 1), (1, 1), linear=True)
    kernel = program.window(op)
    stride, padding, dilation = (
        (int(op.attrs[key][0]), int(op.attrs[key][1])) for key in ("stride", "padding", "dilation")
    )
    return Geometry(
        inputs=before[0],
        outputs=after[0],
        input_size=(before[1], before[2]),
        output_size=(after[1], after[2]),
        kernel=(kernel[0], kernel[1]),
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=int(op.attrs["groups"]),
        pad_value=int(op.attrs.get("pad_value", 0)),
    )


def _tensor_bytes(program: Program, op: Op) -> int:
    names = [*op.tensors.values(), *(program.scales[n] for n in op.tensors.values() if n in program.scales)]
    return sum(program.tensors[name].nbytes for name in names)


def _real_work(program: Program, op: Op) -> int:
    """Multiply-adds of an operation without weights; names, comparisons and copies are free."""
    if op.op in ("relu", "hardtanh", "flatten", "sign", "signs", "pad2d", "max_pool2d"):
        return 0
    tensors = {role: program.tensors[name] for role, name in op.tensors.items()}
    return infer(op.op, op.name, tuple(program.values[v] for v in op.inputs), op.attrs, tensors)[1]


def _judge(
    program: Program, op: Op, makers: dict[str, Op], place: str | None
) -> tuple[State, str, list[str]]:
    if op.op in ("binary_conv2d", "binary_linear"):
        pad = op.attrs.get("pad_value", 0)
        padded = op.op == "binary_conv2d" and max(op.attrs["padding"]) > 0
        return "binary", "bits in, bits stored" + (f", padded with {pad:+d}" if padded and pad else ""), []
    if op.op in ("bitweight_conv2d", "bitweight_linear"):
        return (
            "one-bit weights",
            "one-bit weights, real input",
            [f"{op.name}: only its weights are binary; its input stays real, so it adds floats"],
        )
    weight = program.real(op, "weight")
    assert weight is not None
    magnitude = np.abs(weight.reshape(weight.shape[0], -1))
    warnings = []
    if magnitude.shape[1] > 1 and two_valued(list(zip(magnitude.min(1).tolist(), magnitude.max(1).tolist()))):
        warnings.append(
            f"{op.name}: its weights are plus or minus a constant a filter, but they are stored and "
            f"multiplied as {weight.dtype}; it was an ordinary layer when it was packed"
        )
    if _fed_by_signs(op.inputs[0], makers):
        return (
            "real",
            "signs come in, but its weights are real",
            [
                *warnings,
                f"{op.name}: its input is binary and its weights are not, so the bits are made floats",
            ],
        )
    return "real", place or real_shortcut(op.name) or "its weights were real when it was packed", warnings


def _fed_by_signs(value: str, makers: dict[str, Op]) -> bool:
    while value in makers and makers[value].op in ("flatten", "pad2d", "max_pool2d"):
        value = makers[value].inputs[0]
    return value in makers and makers[value].op == "signs"


def _conversions(program: Program) -> list[str]:
    """Places where bits become floats again."""
    found = [op for op in program.ops if op.op == "signs"]
    if not found:
        return []
    elements = sum(math.prod(program.values[op.output].shape) for op in found)
    names = ", ".join(op.name or op.output for op in found[:3]) + (" and more" if len(found) > 3 else "")
    return [f"bits are turned back into {elements:,} floats per image at {names}; what follows is not binary"]
