"""A graph of standard ONNX operators under construction: nodes, constants, functions for one-bit layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from xnorpp.export.errors import ExportError

Array = npt.NDArray[Any]

OPSET = 18  # BitwiseAnd is new in it
IR_VERSION = 8  # functions
DOMAIN = "xnorpp"


def onnx() -> Any:
    """The onnx package, which is an extra."""
    try:
        import onnx as package
        import onnx.helper
        import onnx.numpy_helper
    except ModuleNotFoundError as error:
        raise ExportError(
            "this export needs the package onnx; install it with `pip install 'xnorpp[onnx]'`"
        ) from error
    return package


class Graph:
    """Nodes in order and constants by name. `node` adds one operator and returns the name of its result."""

    def __init__(self) -> None:
        self.onnx = onnx()
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self._count = 0

    def constant(self, name: str, values: Array) -> str:
        """An initializer; one of the same name must have the same values."""
        if name not in self.constants:
            self.constants[name] = self.onnx.numpy_helper.from_array(
                np.require(values, requirements="C"), name
            )
        return name

    def numbers(self, *values: int) -> str:
        """Whole numbers, such as axes or a shape."""
        return self.constant("ints." + "_".join(map(str, values)), np.asarray(values, np.int64))

    def scalar(self, value: float) -> str:
        return self.constant(f"float.{value!r}", np.asarray(value, np.float32))

    def node(self, op: str, *inputs: str, to: str | None = None, domain: str = "", **attributes: Any) -> str:
        """Add an operator; `to` names its result."""
        self._count += 1
        result = to if to is not None else f"{op.lower()}.{self._count}"
        made = self.onnx.helper.make_node(op, inputs, [result], name=result, domain=domain, **attributes)
        self.nodes.append(made)
        return result

    def cast(self, x: str, kind: int) -> str:
        """Numbers of another type, one of `TensorProto`'s."""
        self._count += 1
        result = f"cast.{self._count}"
        self.nodes.append(self.onnx.helper.make_node("Cast", [x], [result], name=result, to=kind))
        return result

    def model(
        self,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        functions: Sequence[Any] = (),
        metadata: dict[str, str] | None = None,
        domains: Sequence[tuple[str, int]] = (),
    ) -> Any:
        """The checked model."""
        helper = self.onnx.helper
        graph = helper.make_graph(self.nodes, "xnorpp", inputs, outputs, list(self.constants.values()))
        opsets = [helper.make_opsetid("", OPSET), *(helper.make_opsetid(*domain) for domain in domains)]
        model = helper.make_model(
            graph, opset_imports=opsets, functions=functions, ir_version=IR_VERSION, producer_name="xnorpp"
        )
        helper.set_model_props(model, metadata or {})
        if all(node.domain in ("", DOMAIN) for node in self.nodes):  # the checker knows no other domains
            self.onnx.checker.check_model(model)
        return model


def binary_functions() -> list[Any]:
    """The functions of one-bit layers, in standard operators: an engine may replace them by bit operations.

    `BinaryConv2d(x, weight)` is the convolution of x with one-bit filters, `BinaryLinear(x, weight)` the
    product: `weight` holds eight weights in each byte along its last axis, lowest bit first, bit 1 for +1;
    its attribute `channels` is the number of weights along that axis.
    """
    helper = onnx().helper
    opsets = [helper.make_opsetid("", OPSET)]
    attribute = onnx().AttributeProto

    def reference(node: Any, **names: tuple[str, int]) -> Any:
        for name, (source, kind) in names.items():
            node.attribute.append(attribute(name=name, ref_attr_name=source, type=kind))
        return node

    def ints(name: str, *values: int) -> Any:
        return helper.make_node("Constant", [], [name], value_ints=list(values))

    def unpack() -> list[Any]:
        steps = np.arange(8, dtype=np.uint8)
        shifts = onnx().numpy_helper.from_array(steps)
        one = onnx().numpy_helper.from_array(np.asarray(1, np.uint8))
        channels = reference(
            helper.make_node("Constant", [], ["channels_"]), value_ints=("channels", attribute.INTS)
        )
        return [
            helper.make_node("Constant", [], ["shifts"], value=shifts),
            helper.make_node("Constant", [], ["one"], value=one),
            ints("last", -1),
            ints("zero", 0),
            channels,
            helper.make_node("Unsqueeze", ["weight", "last"], ["bytes"]),
            helper.make_node("BitShift", ["bytes", "shifts"], ["shifted"], direction="RIGHT"),
            helper.make_node("BitwiseAnd", ["shifted", "one"], ["bits"]),
        ]

    def signs(source: str, to: str) -> list[Any]:
        two, minus = (onnx().numpy_helper.from_array(np.asarray(v, np.float32)) for v in (2.0, -1.0))
        return [
            helper.make_node("Cast", [source], ["numbers"], to=onnx().TensorProto.FLOAT),
            helper.make_node("Constant", [], ["two"], value=two),
            helper.make_node("Constant", [], ["minus"], value=minus),
            helper.make_node("Mul", ["numbers", "two"], ["doubled"]),
            helper.make_node("Add", ["doubled", "minus"], [to]),
        ]

    kinds = {name: (name, attribute.INTS) for name in ("strides", "pads", "dilations")}
    conv = reference(
        helper.make_node("Conv", ["x", "filters"], ["y"]), **kinds, group=("group", attribute.INT)
    )
    conv_nodes = [
        *unpack(),
        ints("flat", 0, 0, 0, -1),
        helper.make_node("Reshape", ["bits", "flat"], ["rows"]),
        ints("three", 3),
        helper.make_node("Slice", ["rows", "zero", "channels_", "three"], ["cut"]),
        *signs("cut", "last_signs"),
        helper.make_node("Transpose", ["last_signs"], ["filters"], perm=[0, 3, 1, 2]),
        conv,
    ]
    linear_nodes = [
        *unpack(),
        ints("flat", 0, -1),
        helper.make_node("Reshape", ["bits", "flat"], ["rows"]),
        ints("axis", 1),
        helper.make_node("Slice", ["rows", "zero", "channels_", "axis"], ["cut"]),
        *signs("cut", "filters"),
        helper.make_node("Gemm", ["x", "filters"], ["y"], transB=1),
    ]
    return [
        helper.make_function(
            *(DOMAIN, "BinaryConv2d", ["x", "weight"], ["y"], conv_nodes, opsets),
            ["channels", "strides", "pads", "dilations", "group"],
        ),
        helper.make_function(
            DOMAIN, "BinaryLinear", ["x", "weight"], ["y"], linear_nodes, opsets, ["channels"]
        ),
    ]
