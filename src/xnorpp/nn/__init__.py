"""What the paper adds to PyTorch: sign with its gradients, scale factors, layers, and the conversion."""

from __future__ import annotations

from xnorpp.nn.calibrate import calibrate_scales
from xnorpp.nn.controls import (
    binary_layers,
    clip_latent_weights_,
    parameter_groups,
    reset_scales,
    set_progress,
    set_stage,
)
from xnorpp.nn.functional import binary_conv2d, binary_linear
from xnorpp.nn.fused.dispatch import BACKENDS, get_backend, set_backend, set_recompute
from xnorpp.nn.layers import METHOD_SCALES, METHODS, BinaryConv2d, BinaryLayer, BinaryLinear, resolve_scale
from xnorpp.nn.quantizers import SURROGATES, hard_sign, polynomial_sign, sign, tanh_sign
from xnorpp.nn.scales import (
    ANALYTIC_SCALES,
    SCALE_INITS,
    SCALES,
    AnalyticScale,
    ChannelHeightWidthScale,
    ChannelScale,
    ChannelSpatialScale,
    DenseScale,
    LearnedScale,
)
from xnorpp.nn.shift import ChannelShift, RPReLU

__all__ = [
    "ANALYTIC_SCALES",
    "BACKENDS",
    "METHODS",
    "METHOD_SCALES",
    "SCALES",
    "SCALE_INITS",
    "SURROGATES",
    "AnalyticScale",
    "BinaryConv2d",
    "BinaryLayer",
    "BinaryLinear",
    "ChannelHeightWidthScale",
    "ChannelScale",
    "ChannelShift",
    "ChannelSpatialScale",
    "DenseScale",
    "LearnedScale",
    "RPReLU",
    "binary_conv2d",
    "binary_layers",
    "binary_linear",
    "calibrate_scales",
    "clip_latent_weights_",
    "get_backend",
    "hard_sign",
    "parameter_groups",
    "polynomial_sign",
    "reset_scales",
    "resolve_scale",
    "set_backend",
    "set_progress",
    "set_recompute",
    "set_stage",
    "sign",
    "tanh_sign",
]
