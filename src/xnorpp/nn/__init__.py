"""What the paper adds to PyTorch: quantizers, scale factors, and the layers that use them.

Names are imported when they are first used, so that `xnorpp.nn.methods` can be read without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xnorpp.lazy import names_from

if TYPE_CHECKING:
    from xnorpp.nn.binarization import METHOD_SCALES, Binarization
    from xnorpp.nn.calibrate import calibrate_scales
    from xnorpp.nn.controls import (
        anneals,
        binary_layers,
        clip_latent_weights_,
        parameter_groups,
        reset_scales,
        set_progress,
        set_stage,
    )
    from xnorpp.nn.functional import binary_conv2d, binary_linear
    from xnorpp.nn.fused.dispatch import BACKENDS, get_backend, set_backend, set_recompute
    from xnorpp.nn.fused.graph import fuse_for_training
    from xnorpp.nn.layers import BinaryConv1d, BinaryConv2d, BinaryLayer
    from xnorpp.nn.linear import BinaryLinear
    from xnorpp.nn.methods import METHODS
    from xnorpp.nn.quantizers import (
        QUANTIZERS,
        Identity,
        PolynomialSign,
        Quantizer,
        RectifiedClampSign,
        Sign,
        TanhSign,
        WindowSign,
        hard_sign,
        polynomial_sign,
        register_quantizer,
        sign,
        sign_with_slope,
        tanh_sign,
    )
    from xnorpp.nn.scales import (
        SCALE_INITS,
        SCALES,
        AlphaKScale,
        AlphaScale,
        AnalyticScale,
        ChannelHeightWidthScale,
        ChannelScale,
        ChannelSpatialScale,
        DenseScale,
        LearnedScale,
        Scale,
        register_scale,
    )
    from xnorpp.nn.sets import InputSet
    from xnorpp.nn.shift import ChannelShift, RPReLU
    from xnorpp.nn.transposed import BinaryConvTranspose2d

_NAMES = {
    "binarization": ("METHOD_SCALES", "Binarization"),
    "calibrate": ("calibrate_scales",),
    "controls": (
        *("anneals", "binary_layers", "clip_latent_weights_", "parameter_groups", "reset_scales"),
        *("set_progress", "set_stage"),
    ),
    "functional": ("binary_conv2d", "binary_linear"),
    "fused.dispatch": ("BACKENDS", "get_backend", "set_backend", "set_recompute"),
    "fused.graph": ("fuse_for_training",),
    "layers": ("BinaryConv1d", "BinaryConv2d", "BinaryLayer"),
    "linear": ("BinaryLinear",),
    "methods": ("METHODS",),
    "quantizers": (
        *("QUANTIZERS", "Identity", "PolynomialSign", "Quantizer", "RectifiedClampSign", "Sign", "TanhSign"),
        *("WindowSign", "hard_sign", "polynomial_sign", "register_quantizer", "sign", "sign_with_slope"),
        "tanh_sign",
    ),
    "scales": (
        *("SCALES", "SCALE_INITS", "AlphaKScale", "AlphaScale", "AnalyticScale", "ChannelHeightWidthScale"),
        *("ChannelScale", "ChannelSpatialScale", "DenseScale", "LearnedScale", "Scale", "register_scale"),
    ),
    "sets": ("InputSet",),
    "shift": ("ChannelShift", "RPReLU"),
    "transposed": ("BinaryConvTranspose2d",),
}
_HOME = {name: f"xnorpp.nn.{module}" for module, names in _NAMES.items() for name in names}

__all__ = [
    "BACKENDS",
    "METHODS",
    "METHOD_SCALES",
    "QUANTIZERS",
    "SCALES",
    "SCALE_INITS",
    "AlphaKScale",
    "AlphaScale",
    "AnalyticScale",
    "Binarization",
    "BinaryConv1d",
    "BinaryConv2d",
    "BinaryConvTranspose2d",
    "BinaryLayer",
    "BinaryLinear",
    "ChannelHeightWidthScale",
    "ChannelScale",
    "ChannelShift",
    "ChannelSpatialScale",
    "DenseScale",
    "Identity",
    "InputSet",
    "LearnedScale",
    "PolynomialSign",
    "Quantizer",
    "RPReLU",
    "RectifiedClampSign",
    "Scale",
    "Sign",
    "TanhSign",
    "WindowSign",
    "anneals",
    "binary_conv2d",
    "binary_layers",
    "binary_linear",
    "calibrate_scales",
    "clip_latent_weights_",
    "fuse_for_training",
    "get_backend",
    "hard_sign",
    "parameter_groups",
    "polynomial_sign",
    "register_quantizer",
    "register_scale",
    "reset_scales",
    "set_backend",
    "set_progress",
    "set_recompute",
    "set_stage",
    "sign",
    "sign_with_slope",
    "tanh_sign",
]


__getattr__ = names_from(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
