"""`export_onnx`: a packed model as an ONNX model of standard operators."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from xnorpp.export.errors import ExportError, refuse
from xnorpp.export.one_size import check_program
from xnorpp.export.onnx.graph import DOMAIN, Graph, binary_functions
from xnorpp.export.onnx.operations import Translator
from xnorpp.runtime.format.program import INPUT, Program

LAYOUTS = ("bits", "qdq")


def export_onnx(program: Program, *, layout: str = "bits", from_bytes: bool = False) -> Any:
    """A program as an ONNX model (opset 18) that every engine of standard operators runs.

    Args:
        program: what to export.
        layout: "bits" stores one-bit weights as bits, which functions of the model unpack; "qdq" stores them
            as 8-bit integers, and has the activations of binary layers so between Q and DQ, for engines that
            are fast there.
        from_bytes: the input is the bytes of images `(n, h, w, c)`; otherwise normalised float32
            `(n, c, h, w)`.

    Returns:
        The checked `onnx.ModelProto`; its metadata holds labels, mean, std and temperature.

    Raises:
        ExportError: a layer that cannot be expressed, or the package onnx is missing.

    Example:
        >>> import xnorpp
        >>> from xnorpp.export import export_onnx
        >>> model = export_onnx(xnorpp.load("cifar10-resnet20").program)
        >>> [one.name for one in model.graph.input]
        ['input']
    """
    check_program(program)
    if layout not in LAYOUTS:
        raise ExportError(f"`layout` (={layout!r}) must be one of {', '.join(LAYOUTS)}")
    graph = Graph()
    translator = Translator(program, graph, layout)
    source = make_input(translator, from_bytes)
    translator.run()
    functions = binary_functions() if any(node.domain == DOMAIN for node in graph.nodes) else []
    used = {node.op_type for node in graph.nodes if node.domain == DOMAIN}
    functions = [function for function in functions if function.name in used]
    domains = [(DOMAIN, 1)] if functions else []
    return graph.model([source], make_outputs(translator), functions, metadata(program), domains)


def make_input(translator: Translator, from_bytes: bool) -> Any:
    """Add the input and, for bytes, what normalises them; the description of the input."""
    graph, program = translator.graph, translator.program
    kinds = graph.onnx.TensorProto
    channels, *sizes = program.input_shape
    shape = [
        name if axis + 1 in program.free_axes else n
        for axis, (n, name) in enumerate(zip(sizes, _axes(sizes)))
    ]
    if not from_bytes:
        translator.names[INPUT] = INPUT
        return graph.onnx.helper.make_tensor_value_info(INPUT, kinds.FLOAT, ["batch", channels, *shape])
    for op in program.ops:
        if "byte_weight" in op.tensors:
            reason = (
                "from bytes it has 16-bit filters, and no standard operator takes them; use --input float"
            )
            raise refuse(op.name, op.op, translator.target, reason)
    wide = translator.cast(INPUT, "input.float32", kinds.FLOAT)
    x = graph.node("Div", wide, graph.scalar(255.0))
    for name, row, operator in (("mean", program.mean, "Sub"), ("std", program.std, "Div")):
        x = graph.node(operator, x, graph.constant(f"input.{name}", np.asarray(row, np.float32)))
    rank = 1 + len(program.input_shape)
    translator.names[INPUT] = graph.node("Transpose", x, perm=[0, rank - 1, *range(1, rank - 1)])
    return graph.onnx.helper.make_tensor_value_info(INPUT, kinds.UINT8, ["batch", *shape, channels])


def _axes(sizes: Any) -> list[str]:
    return ["height", "width"] if len(sizes) == 2 else [f"size{axis}" for axis in range(len(sizes))]


def make_outputs(translator: Translator) -> list[Any]:
    """Name the results; the descriptions of the outputs."""
    graph, program = translator.graph, translator.program
    rows = []
    for name, value in program.outputs.items():
        graph.node("Identity", translator.names[value], to=name)
        shape = program.values[value].shape
        sizes = [f"{name}.{axis}" if axis and program.variable else n for axis, n in enumerate(shape)]
        kind = graph.onnx.TensorProto.FLOAT
        rows.append(graph.onnx.helper.make_tensor_value_info(name, kind, ["batch", *sizes]))
    return rows


def metadata(program: Program) -> dict[str, str]:
    """What a user of the model needs beside the graph, as JSON text."""
    rows: dict[str, Any] = {"mean": program.mean, "std": program.std, "labels": program.labels}
    rows["temperature"] = program.temperature
    return {f"xnorpp.{key}": json.dumps(value) for key, value in rows.items() if value is not None}
