"""The measured speed-up of each layer: packed, and as a real convolution of the same shape, in turns.

The packed side is the whole of the paper's layer: the sign of a float input, the convolution on bits, one
scale per filter. A real layer is timed as our engine runs it, so the table shows what is left to gain.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from xnorpp.inspect.layer import Geometry, Inspection, Layer, Measured
from xnorpp.inspect.stopwatch import interleave
from xnorpp.runtime import load
from xnorpp.runtime.format.bits import pack_bits
from xnorpp.runtime.format.program import INPUT, Op, Program

Call = Callable[[], object]


def time_layers(
    found: Inspection,
    *,
    threads: int = 1,
    isa: str | None = None,
    rounds: int = 5,
    repeat: int = 3,
    against: str | None = None,
) -> Inspection:
    """Time every layer at batch 1, packed and as a real convolution of the same shape, in turns.

    Args:
        found: The report of `inspect_network` or `inspect_program`.
        threads: Threads of both sides.
        isa: The CPU kernels; the fastest available by default.
        rounds: How often the two take turns.
        repeat: Timed calls per turn.
        against: Whose real convolution: "torch" (the default where it is installed) or "xnorpp".

    Returns:
        The report with `measured` set for every layer.

    Raises:
        ValueError: `against` or `isa` is unknown.

    Example:
        >>> import xnorpp
        >>> from xnorpp.inspect import inspect_program, time_layers
        >>> report = inspect_program(xnorpp.load("cifar10-resnet20").program)
        >>> timed = time_layers(report, rounds=1, repeat=1, against="xnorpp")
        >>> all(layer.measured for layer in timed.layers)
        True
    """
    if against is None:
        against = "torch" if importlib.util.find_spec("torch") else "xnorpp"
    if against not in ("torch", "xnorpp"):
        raise ValueError(f"`against` (={against!r}) must be 'torch' or 'xnorpp'")
    timed, engine = [], ""
    for layer in found.layers:
        program = one_layer(layer)
        model = load(program, threads=threads, isa=isa)
        engine = model.isa
        x = _input(layer.geometry)
        calls: dict[str, Call] = {
            "packed": _call(model, x),
            **_real_calls(layer.geometry, x, threads, isa, against),
        }
        spread = interleave(calls, rounds=rounds, repeat=repeat, settle=0.001)
        real = min((spread[name] for name in calls if name != "packed"), key=lambda one: one.median)
        timed.append(replace(layer, measured=Measured(spread["packed"], real)))
    other = (
        "torch's float32 convolution (the faster of its two memory layouts)"
        if against == "torch"
        else "our own float32 convolution"
    )
    count = f"{threads} thread{'s'[: threads > 1]}"
    words = f"sign, convolution and scale on {engine} against {other}, batch 1, {count}"
    return replace(found, layers=tuple(timed), timed=words)


def one_layer(layer: Layer, *, real: bool = False) -> Program:
    """A program of one layer with random weights: the layer, or with `real` its float32 counterpart."""
    geometry = layer.geometry
    state = "real" if real else layer.state
    rng = np.random.default_rng(0)
    ops: list[Op] = []
    value = INPUT
    if geometry.linear:
        ops.append(Op("flatten", "flatten", (value,), "flat"))
        value = "flat"
    if state == "binary":
        ops.append(Op("sign", "sign", (value,), "bits"))
        value = "bits"
    prefix = {"binary": "binary_", "one-bit weights": "bitweight_", "real": ""}[state]
    kind = prefix + ("linear" if geometry.linear else "conv2d")
    attrs: dict[str, Any] = {}
    if not geometry.linear:
        attrs = {
            "stride": list(geometry.stride),
            "padding": list(geometry.padding),
            "dilation": list(geometry.dilation),
            "groups": geometry.groups,
        }
        if state == "binary":
            attrs["pad_value"] = geometry.pad_value
    shape: tuple[int, ...] = (geometry.outputs, geometry.fan_in)
    if not geometry.linear:
        shape = (geometry.outputs, *geometry.kernel, geometry.fan_in)
    weight: npt.NDArray[Any] = rng.standard_normal(shape).astype(np.float32)
    if prefix:
        weight = pack_bits(weight > 0)
    elif not geometry.linear:
        weight = np.ascontiguousarray(weight.transpose(0, 3, 1, 2))
    tensors: dict[str, npt.NDArray[Any]] = {"weight": weight}
    ops.append(Op(kind, layer.name, (value,), "dot", attrs, {"weight": "weight"}))
    output = "dot"
    if prefix:
        tensors["scale"] = np.linspace(0.01, 0.02, geometry.outputs, dtype=np.float32)
        ops.append(Op("affine", "scale", ("dot",), "scaled", {}, {"mult": "scale"}))
        output = "scaled"
    return Program((geometry.inputs, *geometry.input_size), tuple(ops), output, tensors)


def _input(geometry: Geometry) -> npt.NDArray[np.float32]:
    shape = (1, geometry.inputs, *geometry.input_size)
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def _call(model: Callable[[Any], object], x: npt.NDArray[np.float32]) -> Call:
    return lambda: model(x)


def _real_calls(
    geometry: Geometry, x: npt.NDArray[np.float32], threads: int, isa: str | None, against: str
) -> dict[str, Call]:
    """The float32 layer of the same shape; torch in both memory layouts, because either may be faster."""
    if against == "xnorpp":
        layer = Layer("real", "real", "", geometry, 32, 32, 0, 0, 0)
        return {"real": _call(load(one_layer(layer, real=True), threads=threads, isa=isa), x)}
    import torch
    from torch.nn import functional

    torch.set_num_threads(threads)
    inputs = torch.from_numpy(x)
    if geometry.linear:
        flat = inputs.flatten(1)
        matrix = torch.randn(geometry.outputs, geometry.inputs)

        def linear() -> object:
            with torch.inference_mode():
                return functional.linear(flat, matrix)

        return {"real": linear}
    weight = torch.randn(geometry.outputs, geometry.fan_in, *geometry.kernel)

    def convolution(image: torch.Tensor, kernel: torch.Tensor) -> Call:
        def run() -> object:
            with torch.inference_mode():
                return functional.conv2d(
                    image,
                    kernel,
                    None,
                    geometry.stride,
                    geometry.padding,
                    geometry.dilation,
                    geometry.groups,
                )

        return run

    last = torch.channels_last
    return {
        "planes": convolution(inputs, weight),
        "channels_last": convolution(
            inputs.contiguous(memory_format=last), weight.contiguous(memory_format=last)
        ),
    }
