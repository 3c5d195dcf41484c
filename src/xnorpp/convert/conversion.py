"""binarize(model): swaps the layers of any nn.Module for binary ones, and says what it did."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from xnorpp.nn.controls import evaluating
from xnorpp.nn.layers import METHOD_SCALES, BinaryConv2d, BinaryLayer, BinaryLinear, resolve_scale
from xnorpp.nn.scales import SCALES, LearnedScale

InputSize = int | tuple[int, int]

_WEIGHTED = (nn.modules.conv._ConvNd, nn.Linear, nn.Bilinear)


@dataclass(frozen=True)
class ReportRow:
    """One layer with weights: where it is, what it was, whether it was changed, and why (not)."""

    path: str
    kind: str
    changed: bool
    reason: str


@dataclass(frozen=True)
class Report:
    """What `binarize` changed and what it left, in the order the layers run."""

    rows: tuple[ReportRow, ...] = field(default_factory=tuple)

    @property
    def changed(self) -> tuple[str, ...]:
        return tuple(row.path for row in self.rows if row.changed)

    @property
    def left(self) -> tuple[str, ...]:
        return tuple(row.path for row in self.rows if not row.changed)

    def __str__(self) -> str:
        paths = max((len(row.path) for row in self.rows), default=0)
        kinds = max((len(row.kind) for row in self.rows), default=0)
        lines = [
            f"{row.path:<{paths}}  {row.kind:<{kinds}}  {'binary' if row.changed else 'left  '}  {row.reason}"
            for row in self.rows
        ]
        return "\n".join(
            [*lines, f"{len(self.changed)} layers made binary, {len(self.left)} left as they were"]
        )


def binarize(
    model: nn.Module,
    *,
    method: str = "xnor++",
    scale: str | None = None,
    input_size: InputSize | None = None,
    example_input: Any = None,
    keep: Iterable[str] = (),
    keep_first: bool = True,
    keep_last: bool = True,
    scale_init: str = "analytic",
    padding_value: int = 0,
    surrogate: str = "ste",
    weight_surrogate: str = "ste",
    clip_weights: bool = False,
    center_weights: bool = False,
) -> Report:
    """Turns the convolutions and linears inside `model` into binary ones, in place, and reports on every one.

    The first and the last of them stay real (`keep_first`, `keep_last`), as do the paths named in `keep` (a
    path keeps everything below it). Weights and biases are taken over as they are, the same parameter
    objects. First and last are found, and the output sizes that a spatial scale needs, by one dry run in eval
    mode on zeros of `input_size` (a side or (height, width); the channels are the first convolution's) or on
    `example_input` (a tensor, or a tuple of arguments). Without either, layers count in the order the model
    lists them and `scale` must not be spatial.

    A learned scale of a linear layer is `channel`, whatever the convolutions use. The layer takes the sign of
    its input, so an activation such as ReLU right before it would make the input constant: put a batch norm
    there.
    """
    scale = resolve_scale(method, scale)
    if method == "real":
        raise ValueError("`method` (='real') must be a binary one: " + ", ".join(list(METHOD_SCALES)[1:]))
    run = _dry_run(model, _example(model, input_size, example_input))
    if run is None and scale in SCALES and SCALES[scale].spatial:
        raise ValueError(
            f"`input_size` (=None) must be given for scale={scale!r}, to find each layer's output size; "
            "scale='channel' needs none"
        )
    settings = _Settings(
        method, scale, scale_init, padding_value, surrogate, weight_surrogate, clip_weights, center_weights
    )
    paths = _paths_by_module(model)
    ordered = _in_running_order(paths, run)
    reasons = _reasons_to_leave(paths, ordered, run, settings, tuple(keep), keep_first, keep_last)
    rows = []
    for module in ordered:
        kind, (path, *aliases) = type(module).__name__, paths[module]
        reason = reasons.get(module)
        if reason is None:
            new = _replacement(
                module, settings, run.sizes[module][0] if run and run.sizes.get(module) else None
            )
            for name in paths[module]:
                _set_module(model, name, new)
            reason = f"method {method}" + (f", scale {new.scale_name}" if new.scale_name else "")
            rows.append(ReportRow(path, kind, True, reason + _alias_note(aliases)))
        else:
            rows.append(ReportRow(path, kind, False, reason + _alias_note(aliases)))
    return Report(tuple(rows))


def resize_scales(
    model: nn.Module, input_size: InputSize, example_input: Any = None
) -> dict[str, tuple[int, int]]:
    """Resizes every learned spatial scale for pictures of another size; returns path -> new output size.

    One dry run on `input_size` finds what each layer will see. Parameters that change size are replaced, so
    make the optimiser, the wrapping and the compilation afterwards. The `config` of a listed network gets the
    new size too: its checkpoints are then of that size, and are packed for it. A size that the model cannot
    run on is a `ValueError`, and every scale stays as it was.
    """
    arguments = _example(model, input_size, example_input)
    assert arguments is not None
    resized: dict[str, tuple[int, int]] = {}
    before: list[tuple[LearnedScale, dict[str, nn.Parameter], tuple[int, int] | None]] = []
    hooks = []
    for path, layer in model.named_modules():
        if isinstance(layer, BinaryConv2d) and isinstance(layer.scale, LearnedScale) and layer.scale.spatial:

            def resize(module: nn.Module, inputs: tuple[Tensor, ...], path: str = path) -> None:
                assert isinstance(module, BinaryConv2d)
                assert isinstance(module.scale, LearnedScale)
                size = module.output_size_for((inputs[0].shape[-2], inputs[0].shape[-1]))
                if size != module.scale.output_size:
                    scale = module.scale
                    before.append((scale, dict(scale.named_parameters()), scale.output_size))
                    scale.resize(size)
                    resized[path] = size

            hooks.append(layer.register_forward_pre_hook(resize))
    try:
        with evaluating(model), torch.no_grad():
            model(*arguments)
    except BaseException as error:
        for scale, parameters, size in reversed(before):
            for name, parameter in parameters.items():
                setattr(scale, name, parameter)
            scale.output_size = size
        if not isinstance(error, (RuntimeError, ValueError)):
            raise
        given = f"`input_size` (={input_size!r})" if example_input is None else "`example_input`"
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(f"{given} must be a size that the model can run on ({reason})") from error
    finally:
        for hook in hooks:
            hook.remove()
    config = getattr(model, "config", None)
    if isinstance(config, dict) and "input_size" in config:
        config["input_size"] = list(arguments[0].shape[-2:])
    return resized


@dataclass(frozen=True)
class _Settings:
    method: str
    scale: str | None
    scale_init: str
    padding_value: int
    surrogate: str
    weight_surrogate: str
    clip_weights: bool
    center_weights: bool


@dataclass
class _DryRun:
    """What one pass through the model showed: the order of the layers and the output sizes of each."""

    order: list[nn.Module] = field(default_factory=list)
    sizes: dict[nn.Module, list[tuple[int, int]]] = field(default_factory=dict)


def _example(model: nn.Module, input_size: InputSize | None, example_input: Any) -> tuple[Any, ...] | None:
    if example_input is not None:
        return tuple(example_input) if isinstance(example_input, (tuple, list)) else (example_input,)
    if input_size is None:
        return None
    sides = (input_size, input_size) if isinstance(input_size, int) else input_size
    if not isinstance(sides, Sequence) or len(sides) != 2 or not all(type(n) is int and n > 0 for n in sides):
        raise ValueError(f"`input_size` (={input_size!r}) must be a positive side or (height, width)")
    height, width = sides
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            return (module.weight.new_zeros(1, module.in_channels, height, width),)
    raise ValueError(
        "`input_size` needs a model with a Conv2d to know the channels; give `example_input` instead"
    )


def _dry_run(model: nn.Module, arguments: tuple[Any, ...] | None) -> _DryRun | None:
    if arguments is None:
        return None
    run = _DryRun()

    def record(module: nn.Module, inputs: Any, output: Any) -> None:
        if module not in run.sizes:
            run.order.append(module)
        sizes = run.sizes.setdefault(module, [])
        if isinstance(output, Tensor) and output.dim() >= 3:
            size = (output.shape[-2], output.shape[-1])
            if size not in sizes:
                sizes.append(size)

    hooks = [m.register_forward_hook(record) for m in model.modules() if isinstance(m, _WEIGHTED)]
    try:
        with evaluating(model), torch.no_grad():
            model(*arguments)
    finally:
        for hook in hooks:
            hook.remove()
    return run


def _paths_by_module(model: nn.Module) -> dict[nn.Module, list[str]]:
    """Every layer with weights and all the paths it is reachable by (a tied module has several)."""
    paths: dict[nn.Module, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, _WEIGHTED):
            paths.setdefault(module, []).append(path)
    return paths


def _in_running_order(paths: dict[nn.Module, list[str]], run: _DryRun | None) -> list[nn.Module]:
    seen = [module for module in run.order if module in paths] if run else []
    return seen + [module for module in paths if module not in seen]


def _reasons_to_leave(
    paths: dict[nn.Module, list[str]],
    ordered: list[nn.Module],
    run: _DryRun | None,
    settings: _Settings,
    keep: tuple[str, ...],
    keep_first: bool,
    keep_last: bool,
) -> dict[nn.Module, str]:
    known = {path for names in paths.values() for path in names}
    for name in keep:
        if not any(path == name or path.startswith(name + ".") for path in known):
            raise ValueError(
                f"`keep` (={name!r}) must name a convolution or linear of the model, or a parent of one"
            )
    reached = [module for module in ordered if run is None or module in run.sizes]
    reasons: dict[nn.Module, str] = {}
    for module in ordered:
        names = paths[module]
        if "" in names:
            reasons[module] = "the model itself, which cannot be replaced inside itself"
        elif keep_first and reached and module is reached[0]:
            reasons[module] = "first layer, kept real"
        elif keep_last and reached and module is reached[-1]:
            reasons[module] = "last layer, kept real"
        elif any(path == name or path.startswith(name + ".") for path in names for name in keep):
            reasons[module] = "kept on request"
        else:
            unsupported = _unsupported(module, run, settings)
            if unsupported is not None:
                reasons[module] = unsupported
    _leave_partners_of_kept_weights(paths, reasons)
    return reasons


def _unsupported(module: nn.Module, run: _DryRun | None, settings: _Settings) -> str | None:
    """Why this layer cannot be made binary, or None."""
    kind = type(module).__name__
    if isinstance(module, BinaryLayer):
        return f"already a {kind} of method {module.method}"
    if type(module) not in (nn.Conv2d, nn.Linear):
        parents = [cls.__name__ for cls in (nn.Conv2d, nn.Linear) if isinstance(module, cls)]
        if parents:
            return f"{kind} is a subclass of {parents[0]}, whose forward may differ"
        return f"{kind} has no binary twin"
    if run is not None and module not in run.sizes:
        return "not reached in the dry run"
    if isinstance(module, nn.Conv2d):
        if module.padding_mode != "zeros":
            return f"padding_mode {module.padding_mode!r} has no binary form"
        if module.groups > 1 and module.in_channels == module.groups:
            return "depthwise: one input channel a filter is too little for a binary dot product"
        spatial = settings.scale in SCALES and SCALES[str(settings.scale)].spatial
        if spatial and run is not None and len(run.sizes[module]) > 1:
            sizes = " and ".join(str(size) for size in run.sizes[module])
            return f"runs at several output sizes, {sizes}, which scale {settings.scale!r} cannot hold"
    return None


def _leave_partners_of_kept_weights(paths: dict[nn.Module, list[str]], reasons: dict[nn.Module, str]) -> None:
    """A weight shared with a layer that stays real stays real everywhere."""
    kept = {id(p): paths[module][0] for module in reasons for p in module.parameters(recurse=False)}
    for module, names in paths.items():
        weight = getattr(module, "weight", None)
        if module not in reasons and id(weight) in kept:
            reasons[module] = f"shares its weight with {kept[id(weight)]!r}, which stays real"
            assert names


def _replacement(module: nn.Module, settings: _Settings, output_size: tuple[int, int] | None) -> BinaryLayer:
    shared: dict[str, Any] = {
        "method": settings.method,
        "scale_init": settings.scale_init,
        "surrogate": settings.surrogate,
        "weight_surrogate": settings.weight_surrogate,
        "clip_weights": settings.clip_weights,
        "center_weights": settings.center_weights,
        "device": "meta",  # the parameters are taken over below
    }
    new: BinaryConv2d | BinaryLinear
    if isinstance(module, nn.Conv2d):
        new = BinaryConv2d(
            module.in_channels,
            module.out_channels,
            (module.kernel_size[0], module.kernel_size[1]),
            (module.stride[0], module.stride[1]),
            module.padding if isinstance(module.padding, str) else (module.padding[0], module.padding[1]),
            (module.dilation[0], module.dilation[1]),
            module.groups,
            module.bias is not None,
            padding_value=settings.padding_value if settings.method != "binaryconnect" else 0,
            scale=settings.scale,
            output_size=output_size,
            **shared,
        )
    else:
        assert isinstance(module, nn.Linear)
        scale = "channel" if settings.scale in SCALES else settings.scale
        new = BinaryLinear(
            module.in_features, module.out_features, module.bias is not None, scale=scale, **shared
        )
    new.to_empty(device=module.weight.device)
    new.to(module.weight.dtype)
    new.weight, new.bias = module.weight, module.bias
    new.progress.zero_()
    new.reset_scale()
    new.train(module.training)
    return new


def _set_module(model: nn.Module, path: str, new: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, new)


def _alias_note(aliases: list[str]) -> str:
    return f" (also reachable as {', '.join(aliases)})" if aliases else ""
