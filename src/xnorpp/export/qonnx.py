"""`export_qonnx`: a packed model as QONNX, its signs as `BipolarQuant`, for FPGA tools.

`BipolarQuant` gives +1 at 0 and our sign gives -1, so the activations are stored negated: BipolarQuant(t - v)
is -sign(v - t), also at v = t. The weights of binary layers are negated as well: same products.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from xnorpp.export.one_size import check_program
from xnorpp.export.onnx.graph import Graph
from xnorpp.export.onnx.model import make_input, make_outputs, metadata
from xnorpp.export.onnx.operations import Translator
from xnorpp.runtime.format.program import Op, Program

QUANT_DOMAIN = "qonnx.custom_op.general"


def export_qonnx(program: Program) -> Any:
    """A program as a QONNX model for normalised float32 images `(n, c, h, w)`.

    Args:
        program: what to export.

    Returns:
        The `onnx.ModelProto`; weights are float32 numbers -1 and +1, as QONNX stores them.

    Raises:
        ExportError: a layer that cannot be expressed, or the package onnx is missing.

    Example:
        >>> import xnorpp
        >>> from xnorpp.export import export_qonnx
        >>> model = export_qonnx(xnorpp.load("cifar10-resnet20").program)
        >>> any(node.op_type == "BipolarQuant" for node in model.graph.node)
        True
    """
    check_program(program)
    graph = Graph()
    translator = _Bipolar(program, graph)
    source = make_input(translator, from_bytes=False)
    translator.run()
    domains = [(QUANT_DOMAIN, 1)] if any(node.domain == QUANT_DOMAIN for node in graph.nodes) else []
    return graph.model([source], make_outputs(translator), (), metadata(program), domains)


class _Bipolar(Translator):
    """Bits are stored negated: every operation that reads them turns them round."""

    target = "qonnx"

    def quant(self, x: str) -> str:
        return self.graph.node("BipolarQuant", x, self.graph.scalar(1.0), domain=QUANT_DOMAIN)

    def sign(self, op: Op, x: str) -> str:
        v, threshold = self.compared(op, x)
        return self.quant(self.graph.node("Sub", threshold, v))

    def from_bits(self, x: str) -> str:
        return self.graph.node("Neg", x)

    def one_bit(self, op: Op, x: str) -> str:
        binary = op.op.startswith("binary_")
        window = self.window(op) if "stride" in op.attrs else {}
        if op.attrs.get("pad_value", 0):
            x = self.padded(x, window, -float(op.attrs["pad_value"]))
        signs = self.signs(op, x).astype(np.float32)
        values = -signs if binary else signs
        if not window:
            values = values.T  # FPGA tools read (inputs, outputs) of a MatMul
        weight = self.quant(
            self.graph.constant(f"{op.tensors['weight']}.{'minus' if binary else 'plus'}", values)
        )
        if window:
            return self.graph.node("Conv", x, weight, kernel_shape=list(signs.shape[2:]), **window)
        return self.graph.node("MatMul", x, weight)
