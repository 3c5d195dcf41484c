"""binarize(model): replaces the layers of any nn.Module by binary ones and reports on each; and back."""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from xnorpp.convert.analysis import constant_inputs
from xnorpp.convert.encoders import set_fused_inference, set_nested_sequences
from xnorpp.convert.flow import LAYERS, Flow, flow_of_graph, flow_of_run
from xnorpp.convert.parametrized import computed_weight
from xnorpp.convert.report import Report, ReportRow
from xnorpp.convert.resize import InputSize, zeros_for
from xnorpp.nn import (
    METHODS,
    Binarization,
    BinaryConv1d,
    BinaryConv2d,
    BinaryConvTranspose2d,
    BinaryLayer,
    BinaryLinear,
)
from xnorpp.packing import check_packable
from xnorpp.packing.example import as_weights_are, example_inputs
from xnorpp.packing.runs.failing import failure

Config = Binarization | str | Mapping[str, Any]
Filter = Callable[[str, nn.Module], bool]

_BINARY: dict[type[nn.Module], type[BinaryLayer]] = {
    nn.Conv1d: BinaryConv1d,
    nn.Conv2d: BinaryConv2d,
    nn.ConvTranspose2d: BinaryConvTranspose2d,
    nn.Linear: BinaryLinear,
}


def binarize(
    model: nn.Module,
    config: Config | None = None,
    *,
    example: Any = None,
    filter: Filter | None = None,
    overrides: Mapping[str, Config] | None = None,
    **settings: Any,
) -> Report:
    """Makes the convolutions and linear layers of any module binary, in place, and reports on each of them.

    Weights and biases stay the same parameter objects, so that an optimiser made before still fits. These
    layers stay real: input layers, output layers (all of them), what `filter` and `overrides` exclude,
    depthwise convolutions, subclasses with a forward pass of their own, frozen ones (`requires_grad` False),
    layers whose weight is used outside of them too, and layers that share a weight with one that stays real.
    A layer takes the sign of its input; a batch norm belongs before it.

    Args:
        model: Any module. One that is itself a layer cannot be replaced inside itself.
        config: How the layers are made binary: a `Binarization`, the name of a preset, or None for the
            default, one learned factor per channel. A linear layer gets `config.for_linear()`.
        example: An input batch, a tuple of the model's arguments, or the size of one input. One forward pass
            in evaluation mode then shows the order of the layers, their output sizes and what would not pack.
            Without it the model is traced symbolically, or, where that fails, the layers count in the order
            the model lists them.
        filter: `filter(path, layer)`; layers for which it returns False stay real.
        overrides: Path, parent path or glob pattern -> a binarization for these layers alone, or "real". An
            exact path goes before a pattern, and of several patterns the first one counts. A layer that is
            named here is made binary even if it is an input or output layer.
        **settings: Fields of the `Binarization` that differ from `config`, such as `scale="channel_spatial"`.

    Returns:
        A report; print it.

    Raises:
        ValueError: An argument is not valid.

    Example:
        >>> import torch
        >>> net = nn.Sequential(
        ...     nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8 * 16, 10)
        ... )
        >>> print(binarize(net, example=torch.randn(2, 3, 8, 8)))
        0  Conv2d  left    first layer, stays real-valued
        2  Conv2d  binary  method xnor++, scale channel
        4  Linear  left    last layer, stays real-valued
        1 layer made binary, 2 left as they were
    """
    _check_arguments(model, filter, overrides)
    old = {name: settings.pop(name) for name in _OLD if name in settings}
    if old:
        example, overrides = _old_arguments(model, old, example, overrides)
    binarization = Binarization.of(config, **settings)
    if binarization.is_real:
        raise ValueError("`method` (='real') must be a binary one: " + ", ".join(METHODS[1:]))
    if example is None:
        flow = flow_of_graph(model)
    else:
        given = example_inputs(model, example)
        try:
            flow = flow_of_run(model, as_weights_are(model, given))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever the user's model raises
            raise failure(model, given, given, error) from error
    plan = _Plan(model, flow, binarization, filter, overrides or {}, ran=example is not None)
    plan.keep_ends(first=old.get("keep_first", True), last=old.get("keep_last", True))
    plan.keep_named(constant_inputs(model, example))
    plan.keep_partners()
    rows = []
    for layer in plan.order:
        path, *aliases = plan.paths[layer]
        note = f" (also reachable as {', '.join(aliases)})" if aliases else ""
        reason = plan.reasons.get(layer)
        if reason is None:
            chosen = plan.configs[layer]
            new = binary_layer(layer, chosen, (plan.sizes(layer) or [None])[0])
            for name in plan.paths[layer]:
                _set_module(model, name, new)
            scale = new.binarization.scale_name
            reason = f"method {chosen.method}" + (f", scale {scale}" if scale else "")
        rows.append(ReportRow(path, type(layer).__name__, layer not in plan.reasons, reason + note))
    set_nested_sequences(model)
    obstacles = () if example is None else check_packable(model, example).obstacles
    return Report(tuple(rows), obstacles, _weights_of_others(model))


def _weights_of_others(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """Modules of other classes than torch's and ours that have a matrix called `weight`."""
    found: dict[str, tuple[str, ...]] = {}
    for path, module in model.named_modules():
        weight = module._parameters.get("weight")
        if weight is None or isinstance(module, (*LAYERS, BinaryLayer)):
            continue
        matrix = sum(size > 1 for size in weight.shape) > 1 and weight.is_floating_point()
        if matrix and not type(module).__module__.startswith("torch.nn."):
            kind = type(module).__name__
            found[kind] = (*found.get(kind, ()), path or "the model itself")
    return found


def unbinarize(model: nn.Module) -> Report:
    """Turns every binary layer of a module back into torch's own, in place: the inverse of `binarize`.

    The latent weights and the biases stay as they are, the same parameter objects; scales are dropped.

    Args:
        model: Any module.

    Returns:
        A report with one row per layer that was replaced.

    Raises:
        ValueError: The model itself is a binary layer, which cannot be replaced inside itself.

    Example:
        >>> from xnorpp.nn import BinaryLinear
        >>> net = nn.Sequential(nn.Linear(8, 16), BinaryLinear(16, 4))
        >>> report = unbinarize(net)
        >>> net[1]
        Linear(in_features=16, out_features=4, bias=True)
    """
    paths: dict[BinaryLayer, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, BinaryLayer):
            paths.setdefault(module, []).append(path)
    if isinstance(model, BinaryLayer):
        raise ValueError("`model` is a binary layer itself, which cannot be replaced inside itself")
    rows = []
    for layer, names in paths.items():
        new = _real_layer(layer)
        for name in names:
            _set_module(model, name, new)
        rows.append(ReportRow(names[0], type(layer).__name__, True, f"{type(new).__name__}, latent weights"))
    return Report(tuple(rows))


def real_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The `state_dict` of a binarized network without its scales: what the same network loads before
    `binarize`.

    Example:
        >>> from torch import nn
        >>> import xnorpp
        >>> from xnorpp.convert import real_state_dict
        >>> net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3, bias=False), nn.Linear(16, 10))
        >>> report = xnorpp.binarize(net)
        >>> [name for name in net.state_dict() if name.startswith("1.")]
        ['1.weight', '1.scale.alpha']
        >>> [name for name in real_state_dict(net) if name.startswith("1.")]
        ['1.weight']
    """
    state = dict(model.state_dict())
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, BinaryLayer):
            prefix = f"{path}.scale." if path else "scale."
            state = {name: tensor for name, tensor in state.items() if not name.startswith(prefix)}
    return state


def binary_layer(
    layer: nn.Module, config: Binarization, output_size: tuple[int, int] | None = None
) -> BinaryLayer:
    """A binary layer that takes over the geometry and the parameters of a torch layer that has a binary
    form."""
    new: Any
    if isinstance(layer, nn.Linear):
        bias = layer.bias is not None
        new = BinaryLinear(layer.in_features, layer.out_features, bias, "meta", config=config.for_linear())
    else:
        assert isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d))
        kind: Any = _BINARY[type(layer)]
        new = kind(*_geometry(layer), device="meta", config=config, output_size=output_size)
    new.weight, new.bias = layer.weight, layer.bias
    new._set_up(new.binarization, None if isinstance(layer, nn.Linear) else output_size)
    new.train(layer.training)
    _take_over(new, layer)
    return new  # type: ignore[no-any-return]


def _real_layer(layer: BinaryLayer) -> nn.Module:
    new: Any
    if isinstance(layer, BinaryLinear):
        new = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
    else:
        kind: Any = next(real for real, binary in _BINARY.items() if isinstance(layer, binary))
        new = kind(*_geometry(layer), device="meta")
    new.weight, new.bias = layer.weight, layer.bias
    new.train(layer.training)
    _take_over(new, layer)
    return new  # type: ignore[no-any-return]


def _take_over(new: nn.Module, layer: nn.Module) -> None:
    """Hooks that were registered on a layer, and attributes that were set on it, as its user knows them."""
    own = vars(new)
    for name, value in vars(layer).items():
        if name.endswith(("_hooks", "_hooks_with_kwargs", "_hooks_always_called", "_full_backward_hook")):
            own[name] = value  # the same object, so that their handles remove them
        elif name not in own and not name.startswith("_"):
            own[name] = value


def _geometry(layer: Any) -> tuple[Any, ...]:
    """The positional arguments of a convolution, up to `padding_mode`."""
    if isinstance(layer, nn.ConvTranspose2d):
        shape = (layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, layer.padding)
        rest = (layer.output_padding, layer.groups, layer.bias is not None, layer.dilation)
        return (*shape, *rest, layer.padding_mode)
    return (
        *(
            layer.in_channels,
            layer.out_channels,
            layer.kernel_size,
            layer.stride,
            layer.padding,
            layer.dilation,
        ),
        *(layer.groups, layer.bias is not None, layer.padding_mode),
    )


def _check_arguments(model: Any, filter: Any, overrides: Any) -> None:
    if not isinstance(model, nn.Module):
        what = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise TypeError(f"`model` is {what}; an nn.Module is needed")
    if filter is not None and not callable(filter):
        raise TypeError(f"`filter` is {type(filter).__name__}; a function of (path, layer) is needed")
    if overrides is not None and not isinstance(overrides, Mapping):
        raise TypeError(
            f"`overrides` is {type(overrides).__name__}; a mapping of paths to binarizations is needed, such "
            "as {'layer1.conv': 'real'}"
        )


class _Plan:
    """For every layer either a reason to leave it or the binarization that it gets."""

    def __init__(
        self,
        model: nn.Module,
        flow: Flow | None,
        config: Binarization,
        filter: Filter | None,
        overrides: Mapping[str, Config],
        *,
        ran: bool,
    ) -> None:
        self.paths: dict[nn.Module, list[str]] = {}
        for path, module in model.named_modules(remove_duplicate=False):
            if isinstance(module, LAYERS):
                self.paths.setdefault(module, []).append(path)
        self.flow, self.ran = flow, ran
        seen = [layer for layer in flow.order if layer in self.paths] if flow is not None else []
        self.order = seen + [layer for layer in self.paths if layer not in seen]
        self.reached = set(seen) if flow is not None else set(self.order)
        self.configs: dict[nn.Module, Binarization] = {}
        self.reasons: dict[nn.Module, str] = {}
        self.named: set[nn.Module] = set()
        chosen = {key: Binarization.of(value) for key, value in overrides.items()}
        self._check_patterns(chosen)
        for layer in self.order:
            match = self._override(layer, chosen)
            self.configs[layer] = config if match is None else match
            if "" in self.paths[layer]:
                self.reasons[layer] = "the model itself, which cannot be replaced inside itself"
            elif match is not None and match.is_real:
                self.reasons[layer] = "stays real-valued on request"
            elif match is None and filter is not None and not filter(self.paths[layer][0], layer):
                self.reasons[layer] = "excluded by the filter"
            else:
                if match is not None:
                    self.named.add(layer)
                unsupported = self._unsupported(layer)
                if unsupported is not None:
                    self.reasons[layer] = unsupported

    def sizes(self, layer: nn.Module) -> list[Any]:
        """The output sizes that the run showed."""
        return list(self.flow.sizes.get(layer, [])) if self.flow is not None else []

    def _check_patterns(self, overrides: Mapping[str, Binarization]) -> None:
        known = [path for names in self.paths.values() for path in names]
        for pattern in overrides:
            if not any(_matches(path, pattern) for path in known):
                raise ValueError(
                    f"`overrides` (={pattern!r}) must name a convolution or linear of the model, a parent of "
                    "one, or be a pattern that matches one"
                )

    def _override(self, layer: nn.Module, overrides: Mapping[str, Binarization]) -> Binarization | None:
        for path in self.paths[layer]:
            if path in overrides:
                return overrides[path]
        for pattern, value in overrides.items():
            if any(_matches(path, pattern) for path in self.paths[layer]):
                return value
        return None

    def keep_ends(self, *, first: bool, last: bool) -> None:
        """Input and output layers stay real, unless an override names them."""
        ends: dict[nn.Module, str] = {}
        if self.flow is not None:
            inputs, outputs = self.flow.inputs, self.flow.outputs
        else:
            inputs, outputs = set(self.order[:1]), set(self.order[-1:])
        for layer in self.order:
            if last and layer in outputs:
                ends[layer] = "output layer" if len(outputs) > 1 else "last layer"
            if first and layer in inputs:
                ends[layer] = "input layer" if len(inputs) > 1 else "first layer"
        for layer, what in ends.items():
            if layer not in self.named and layer not in self.reasons:
                self.reasons[layer] = f"{what}, stays real-valued"

    def keep_named(self, reasons: Mapping[str, str]) -> None:
        """Layers that an analysis of their inputs found unfit, by path."""
        for layer in self.order:
            for path in self.paths[layer]:
                if path in reasons and layer not in self.named:
                    self.reasons.setdefault(layer, reasons[path])

    def keep_partners(self) -> None:
        """A weight shared with a layer that stays real stays real everywhere."""
        kept = {
            id(parameter): self.paths[layer][0]
            for layer in self.reasons
            for parameter in layer.parameters(recurse=False)
        }
        for layer in self.order:
            weight = getattr(layer, "weight", None)
            if layer not in self.reasons and id(weight) in kept:
                self.reasons[layer] = f"shares its weight with {kept[id(weight)]!r}, which stays real"

    def _unsupported(self, layer: nn.Module) -> str | None:
        """Why this layer cannot be made binary, or None."""
        kind = type(layer).__name__
        if isinstance(layer, BinaryLayer):
            return f"already a {kind} of method {layer.method}"
        computed = computed_weight(layer)
        if computed is not None:
            return computed
        if type(layer) not in _BINARY:
            parents = [cls.__name__ for cls in _BINARY if isinstance(layer, cls)]
            if parents:
                return f"{kind} is a subclass of {parents[0]}, whose forward may differ"
            return f"{kind} has no binary form"
        outside = self.flow.outside.get(layer) if self.flow is not None else None
        if outside is not None and layer not in self.reached:
            return f"never called itself; {outside} uses its weight"
        if outside is not None and layer not in self.named:
            return f"its weight is used outside of it too, by {outside}, and stays real-valued there"
        if self.ran and layer not in self.reached:
            return "not reached in the dry run"
        if not layer.weight.requires_grad and layer not in self.named:
            return "frozen (requires_grad=False): its weight would not learn to be binary"
        if isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d)):
            if layer.padding_mode != "zeros":
                return f"padding_mode {layer.padding_mode!r} has no binary form"
            if layer.groups > 1 and layer.in_channels == layer.groups and layer not in self.named:
                return "depthwise: one input channel per filter is too little for a binary dot product"
            scale = self.configs[layer].scale
            if isinstance(layer, nn.ConvTranspose2d) and scale is not None and scale.uses_input:
                return f"scale {self.configs[layer].scale_name!r} is not defined for a transposed convolution"
            if scale is not None and scale.spatial and len(self.sizes(layer)) > 1:
                sizes = " and ".join(str(size) for size in self.sizes(layer))
                name = self.configs[layer].scale_name
                return f"runs at several output sizes, {sizes}, which scale {name!r} cannot hold"
        return None


def _matches(path: str, pattern: str) -> bool:
    return path == pattern or path.startswith(pattern + ".") or fnmatch.fnmatchcase(path, pattern)


def _set_module(model: nn.Module, path: str, new: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    owner = model.get_submodule(parent)
    setattr(owner, name, new)
    if isinstance(owner, nn.TransformerEncoderLayer):
        set_fused_inference(owner)


_OLD = {
    "input_size": "`example=torch.zeros(1, 3, height, width)`",
    "example_input": "`example`",
    "keep": '`overrides={path: "real"}`',
    "keep_first": "`overrides={path: Binarization()}`",
    "keep_last": "`overrides={path: Binarization()}`",
}


def _old_arguments(
    model: nn.Module, old: Mapping[str, Any], example: Any, overrides: Mapping[str, Config] | None
) -> tuple[Any, Mapping[str, Config] | None]:
    """The arguments of 0.1.0, with a warning that names what to write instead."""
    for name in old:
        warnings.warn(
            f"`{name}` of binarize is deprecated; write {_OLD[name]}", DeprecationWarning, stacklevel=3
        )
    size: InputSize | None = old.get("input_size")
    if example is None:
        example = old.get("example_input")
    if example is None and size is not None:
        example = zeros_for(model, size)
    keep: Iterable[str] = old.get("keep", ())
    return example, {**(overrides or {}), **dict.fromkeys(keep, "real")}
