"""The rows of a torch network: one dry run on random numbers shows order, shapes and what layers are fed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from xnorpp.inspect.layer import (
    Geometry,
    Inspection,
    Layer,
    State,
    place_in_network,
    real_shortcut,
    two_valued,
)
from xnorpp.nn import AnalyticScale, BinaryConv2d, BinaryLayer, LearnedScale
from xnorpp.nn.controls import evaluating


@dataclass
class _Seen:
    """One module in the dry run: the shape of its first call, how often it ran, and what its input was."""

    module: nn.Conv2d | nn.Linear
    name: str
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    sign_like: bool
    calls: int = 1


def inspect_network(model: nn.Module, example: Tensor | None = None, *, title: str = "") -> Inspection:
    """Inspect a torch network: one forward pass finds the layers in running order.

    Args:
        model: The network. Its mode and buffers are left as they are.
        example: One input batch; networks of `create_model` need none.
        title: The heading of the report; the class of the network by default.

    Returns:
        The layers with bits, bytes and operations, and warnings about layers that look binary but are not.

    Example:
        >>> from xnorpp.models import create_model
        >>> inspect_network(create_model("small", width=8)).count("binary")
        6
    """
    if example is None:
        example = _example_of(model)
    seen = _dry_run(model, example)
    layers, warnings = [], []
    for index, found in enumerate(seen):
        layer, notes = _row(found, index, len(seen))
        layers.append(layer)
        warnings.extend(notes)
    if layers and not any(layer.state == "binary" for layer in layers):
        warnings.append("no layer of this network is binary in weights and inputs: nothing runs as XNOR")
    counted = {id(found.module.weight) for found in seen}
    scales = {id(p) for found in seen for p in _scale_parameters(found.module)}
    other = [p for p in model.parameters() if id(p) not in counted and id(p) not in scales]
    return Inspection(
        title=title or type(model).__name__,
        layers=tuple(layers),
        warnings=tuple(warnings),
        other_bytes=4 * sum(p.numel() for p in other),
    )


def _example_of(model: nn.Module) -> Tensor:
    config = getattr(model, "config", None)
    if not isinstance(config, Mapping):
        raise ValueError(
            "`example` (=None) must be an input batch for a network that `create_model` did not make"
        )
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, int(config["in_channels"]), *config["input_size"], generator=generator)


def _dry_run(model: nn.Module, example: Tensor) -> list[_Seen]:
    names = {m: name for name, m in model.named_modules() if isinstance(m, (nn.Conv2d, nn.Linear))}
    seen: dict[nn.Module, _Seen] = {}

    def record(module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        x = inputs[0]
        if module in seen:
            seen[module].calls += 1
            return
        magnitude = x.abs()
        low, high = float(magnitude.min()), float(magnitude.max())
        seen[module] = _Seen(
            module, names[module], tuple(x.shape[1:]), tuple(output.shape[1:]), low == high > 0
        )

    hooks = [module.register_forward_hook(record) for module in names]
    try:
        with evaluating(model), torch.no_grad():
            model(example.to(next(model.parameters()).device))
    finally:
        for hook in hooks:
            hook.remove()
    return list(seen.values())


def _geometry(found: _Seen) -> Geometry:
    module = found.module
    if isinstance(module, nn.Conv2d):
        _, h, w = found.input_shape
        o, oh, ow = found.output_shape
        padding = module._reversed_padding_repeated_twice  # (left, right, top, bottom), 'same' resolved too
        return Geometry(
            inputs=module.in_channels,
            outputs=o,
            input_size=(h, w),
            output_size=(oh, ow),
            kernel=_pair(module.kernel_size),
            stride=_pair(module.stride),
            padding=(padding[2], padding[0]),
            dilation=_pair(module.dilation),
            groups=module.groups,
            pad_value=module.padding_value if isinstance(module, BinaryConv2d) else 0,
        )
    return Geometry(module.in_features, module.out_features, (1, 1), (1, 1), linear=True)


def _pair(values: tuple[int, ...]) -> tuple[int, int]:
    return values[0], values[1]


def _scale_parameters(module: nn.Module) -> list[nn.Parameter]:
    bias, scale = getattr(module, "bias", None), getattr(module, "scale", None)
    found = [bias] if isinstance(bias, nn.Parameter) else []
    return [*found, *scale.parameters()] if isinstance(scale, nn.Module) else found


def _row(found: _Seen, index: int, count: int) -> tuple[Layer, list[str]]:
    module, geometry = found.module, _geometry(found)
    state, why, warnings = _judge(found, index, count)
    elements = geometry.outputs * geometry.pixels
    binary_weights = isinstance(module, BinaryLayer) and module.method != "real" and module.binarize_weights
    binary_input = isinstance(module, BinaryLayer) and module.binarizes_input
    work = geometry.multiply_adds
    real = 0 if state == "binary" else work
    if isinstance(module, BinaryLayer) and isinstance(module.scale, (LearnedScale, AnalyticScale)):
        real += elements
        if isinstance(module.scale, AnalyticScale) and module.scale.uses_input:
            # A: mean of |I| over the channels; K: its box filter; and one multiply an output.
            real += geometry.inputs * geometry.input_size[0] * geometry.input_size[1]
            real += geometry.taps * geometry.pixels + elements
    scales = sum(p.numel() for p in _scale_parameters(module))
    if isinstance(module, BinaryLayer) and isinstance(module.scale, AnalyticScale):
        scales += geometry.outputs
    layer = Layer(
        name=found.name,
        state=state,
        why=why + (f", runs {found.calls} times" if found.calls > 1 else ""),
        geometry=geometry,
        weight_bits=1 if binary_weights else 32,
        input_bits=1 if binary_input else 32,
        bytes=(geometry.packed_bytes if binary_weights else 4 * geometry.weights) + 4 * scales,
        binary_operations=work * found.calls if state == "binary" else 0,
        real_operations=real * found.calls,
    )
    return layer, warnings


def _judge(found: _Seen, index: int, count: int) -> tuple[State, str, list[str]]:
    """What a layer is, why, and what its owner might be mistaken about."""
    module, name = found.module, found.name
    kind = type(module).__name__
    if isinstance(module, BinaryLayer) and module.method != "real":
        scale = f", scale {module.scale_name}" if module.scale_name else ""
        if not module.binarize_weights:
            return (
                "real",
                f"{module.method}, but the first of two stages: weights still real",
                [f"{name}: its weights are still real (first training stage); only its input is binary"],
            )
        if not module.binarizes_input:
            return (
                "one-bit weights",
                f"{module.method}: one-bit weights, real input",
                [f"{name}: only its weights are binary (method {module.method!r}); its input stays real"],
            )
        return "binary", f"{module.method}{scale}", []
    if isinstance(module, BinaryLayer):
        return (
            "real",
            f"a {kind} of method 'real': an ordinary layer",
            [f"{name}: it is a {kind}, but of method 'real', so nothing about it is binary"],
        )
    warnings = []
    filters = module.weight.detach().abs().flatten(1)
    constant = two_valued(list(zip(filters.amin(1).tolist(), filters.amax(1).tolist())))
    if constant and filters.shape[1] > 1:
        warnings.append(
            f"{name}: its weights are plus or minus a constant a filter, but it is an ordinary {kind} "
            "that stores and multiplies float32; make it a Binary"
            + ("Conv2d" if kind == "Conv2d" else "Linear")
        )
    if found.sign_like:
        warnings.append(
            f"{name}: it is fed signs (plus or minus a constant), but it is an ordinary {kind} that "
            "multiplies float32; a binary layer takes the sign itself"
        )
    return "real", place_in_network(index, count) or real_shortcut(name) or f"an ordinary {kind}", warnings
