"""A start of the learned scales calibrated on data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from xnorpp.nn.controls import binary_layers, evaluating
from xnorpp.nn.functional import binary_conv2d, binary_linear
from xnorpp.nn.layers import BinaryConv1d, BinaryConv2d, BinaryLayer
from xnorpp.nn.linear import BinaryLinear
from xnorpp.nn.scales import LearnedScale
from xnorpp.nn.transposed import BinaryConvTranspose2d


@torch.no_grad()
def calibrate_scales(model: nn.Module, batch: Tensor) -> dict[str, Any]:
    """Sets each learned scale's channel factor by least squares on a batch; returns a record of it.

    With R = I * W the real convolution a layer stands for and D = sign(I) * sign(W) its binary one, each
    channel gets

        alpha_o = sum(R_o . D_o) / sum(D_o . D_o)

    over the batch and all positions, and the other factors ones: the best constant for the stated
    approximation. Layers are set in the order they run, each seeing the calibrated ones before it. Batch
    norms use the batch's statistics meanwhile and get their own back; dropout is off; so the result depends
    on the model and batch alone. With an initialised process group the sums are added over all processes,
    which makes the factors equal on all of them. Call it before wrapping (DistributedDataParallel) or
    compiling the model.

    Example:
        >>> import torch
        >>> from xnorpp.nn import BinaryConv2d, calibrate_scales
        >>> record = calibrate_scales(BinaryConv2d(16, 32, 3), torch.randn(4, 16, 8, 8))
        >>> record["method"], record["samples"]
        ('least_squares', 4)
    """
    if isinstance(model, nn.parallel.DistributedDataParallel) or hasattr(model, "_orig_mod"):
        raise ValueError("`model` must be calibrated before it is wrapped or compiled; pass the inner module")
    if not batch.numel() or not bool(batch.isfinite().all()):
        what = "numbers that are not finite" if batch.numel() else f"shape {tuple(batch.shape)}"
        raise ValueError(f"`batch` has {what}; finite inputs, at least one, are needed to fit the scales to")
    record: dict[str, Any] = {"method": "least_squares", "samples": int(batch.shape[0]), "layers": {}}
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    hooks = [
        layer.register_forward_pre_hook(_calibrating_hook(path, record))
        for path, layer in binary_layers(model)
        if isinstance(layer.scale, LearnedScale)
    ]
    try:
        with evaluating(model):
            for module in model.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.train()
            model(batch)
    finally:
        for hook in hooks:
            hook.remove()
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
    record["processes"] = dist.get_world_size() if dist.is_initialized() else 1
    return record


def _calibrating_hook(path: str, record: dict[str, Any]) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(module, BinaryLayer)
        assert isinstance(module.scale, LearnedScale)
        if path in record["layers"]:  # a module that runs twice keeps its first calibration
            return
        if isinstance(module, (BinaryConv1d, BinaryConv2d, BinaryConvTranspose2d)):
            height = 1 if isinstance(module, BinaryConv1d) else inputs[0].shape[-2]
            module.fit_scale((height, inputs[0].shape[-1]))
        sums = _channel_sums(module, inputs[0])
        if dist.is_initialized():
            dist.all_reduce(sums)
        before = module.scale.factors()[0].mean().item()
        alpha = sums[0] / sums[1].clamp_min(torch.finfo(sums.dtype).tiny)
        module.scale.start_(alpha.to(module.weight.dtype))
        record["layers"][path] = {"mean_before": before, "mean_after": alpha.mean().item()}

    return hook


def _channel_sums(layer: BinaryLayer, x: Tensor) -> Tensor:
    """(2, o) in float64: the sums over batch and positions of R . D and of D . D."""
    weight = layer.latent_weight() if layer.sets is None else layer.weight
    quantizers: dict[str, Any] = {"inputs": layer.binarization.inputs, "weights": layer.binarization.weights}
    if isinstance(layer, (BinaryConv1d, BinaryConv2d)):
        if isinstance(layer, BinaryConv1d):
            x, weight = x.unsqueeze(-2), weight.unsqueeze(-2)
        _, stride, pads, dilation = layer._window()
        real = F.conv2d(F.pad(x, pads), weight, None, stride, 0, dilation, layer.groups)
        dot = (
            layer.product_of_sets(x)
            if layer.sets is not None
            else binary_conv2d(
                x,
                weight,
                stride=stride,
                pads=pads,
                dilation=dilation,
                groups=layer.groups,
                padding_value=layer.padding_value,
                progress=layer.progress,
                **quantizers,
            )
        )
        dims: tuple[int, ...] = (0, 2, 3)
    elif isinstance(layer, BinaryConvTranspose2d):
        binary_x, binary = (quantizers[k](v, layer.progress) for k, v in (("inputs", x), ("weights", weight)))
        real, dot = layer.spread(x, weight), layer.spread(binary_x, binary)
        dims = (0, 2, 3)
    elif isinstance(layer, BinaryLinear) and layer.sets is not None:
        real, dot = F.linear(x, weight), layer.product_of_sets(x)
        dims = tuple(range(x.dim() - 1))
    else:
        real, dot = F.linear(x, weight), binary_linear(x, weight, progress=layer.progress, **quantizers)
        dims = tuple(range(x.dim() - 1))
    real, dot = real.double(), dot.double()
    return torch.stack(((real * dot).sum(dims), (dot * dot).sum(dims)))
