"""Learned scales with rows and columns, resized on purpose for images of another size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from xnorpp.nn import BinaryConv1d, BinaryConv2d, BinaryConvTranspose2d, LearnedScale
from xnorpp.nn.controls import evaluating
from xnorpp.packing.runs.state import unchanged

InputSize = int | tuple[int, int]


def zeros_for(model: nn.Module, input_size: InputSize) -> Tensor:
    """One image of zeros of this size, with the channels of the model's first convolution.

    Raises:
        ValueError: The size is not one, or the model has no convolution.
    """
    sides = (input_size, input_size) if isinstance(input_size, int) else input_size
    if not isinstance(sides, Sequence) or len(sides) != 2 or not all(type(n) is int and n > 0 for n in sides):
        raise ValueError(f"`input_size` (={input_size!r}) must be a positive side or (height, width)")
    height, width = sides
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            return module.weight.new_zeros(1, module.in_channels, height, width)
    raise ValueError("`input_size` needs a model with a Conv2d to know the channels; give `example` instead")


def resize_scales(
    model: nn.Module, input_size: InputSize | None = None, example: Any = None
) -> dict[str, tuple[int, int]]:
    """Resizes every learned spatial scale for images of another size.

    One dry run finds what each layer will see. Parameters that change size are replaced, so make the
    optimiser, the wrapping and the compilation afterwards. The `config` of a network from `create_model` gets
    the new size too: its checkpoints are then of that size, and are packed for it.

    Args:
        model: Any module.
        input_size: A side or (height, width).
        example: An input batch or a tuple of arguments, in place of `input_size`.

    Returns:
        Path -> new output size, of the layers whose scale changed.

    Raises:
        ValueError: The model cannot run on that size; every scale is then as it was before.

    Example:
        >>> from xnorpp.convert import resize_scales
        >>> from xnorpp.models import create_model
        >>> model = create_model("small", input_size=8, in_channels=1)
        >>> sizes = resize_scales(model, 16)
        >>> sizes["blocks.0.conv1"]
        (16, 16)
    """
    if example is None:
        if input_size is None:
            raise ValueError("`input_size` (=None) must be a positive side or (height, width)")
        example = zeros_for(model, input_size)
    arguments = tuple(example) if isinstance(example, (tuple, list)) else (example,)
    resized: dict[str, tuple[int, int]] = {}
    before: list[tuple[LearnedScale, dict[str, nn.Parameter], tuple[int, int] | None]] = []
    hooks = []
    for path, layer in model.named_modules():
        if not isinstance(layer, (BinaryConv1d, BinaryConv2d, BinaryConvTranspose2d)):
            continue
        if isinstance(layer.scale, LearnedScale) and layer.scale.spatial:

            def resize(module: Any, inputs: tuple[Tensor, ...], path: str = path) -> None:
                height = 1 if isinstance(module, BinaryConv1d) else inputs[0].shape[-2]
                size = module.output_size_for((height, inputs[0].shape[-1]))
                scale: LearnedScale = module.scale
                if scale.is_lazy:
                    module.fit_scale((height, inputs[0].shape[-1]))
                    resized[path] = size
                elif size != scale.output_size:
                    before.append((scale, dict(scale.named_parameters()), scale.output_size))
                    scale.resize(size)
                    resized[path] = size

            hooks.append(layer.register_forward_pre_hook(resize))
    try:
        with unchanged(model), evaluating(model), torch.no_grad():
            model(*arguments)
    except BaseException as error:
        for scale, parameters, size in reversed(before):
            for name, parameter in parameters.items():
                setattr(scale, name, parameter)
            scale.output_size = size
        if not isinstance(error, (RuntimeError, ValueError)):
            raise
        given = "`example`" if input_size is None else f"`input_size` (={input_size!r})"
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(f"{given} must be a size that the model can run on ({reason})") from error
    finally:
        for hook in hooks:
            hook.remove()
    config = getattr(model, "config", None)
    if isinstance(config, dict) and "input_size" in config:
        config["input_size"] = list(arguments[0].shape[-2:])
    return resized
