"""What keeps a model from being packed: an `Obstacle`, and the remedies for operations often used."""

from __future__ import annotations

from dataclasses import dataclass

from xnorpp.packing.calls import RANDOM
from xnorpp.packing.graph import PackError


@dataclass(frozen=True)
class Obstacle:
    """One operation that cannot be packed.

    Attributes:
        path: The module whose forward pass calls it, as in `named_modules()`; "" is the model itself.
        operation: The torch function, or the torch.nn module that calls it.
        line: `file:line: source`, or the class of a torch module, which has no line of the model's own.
        reason: Why it cannot be packed; it reads on from `operation`.
        remedy: What to do about it, one sentence.
        calls: How often this line runs in one forward pass.

    Example:
        >>> from torch import nn
        >>> import xnorpp
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.FractionalMaxPool2d(2, 3))
        >>> (obstacle,) = xnorpp.check_packable(net, 8).obstacles
        >>> obstacle.path, obstacle.operation
        ('1', 'nn.FractionalMaxPool2d')
    """

    path: str
    operation: str
    line: str
    reason: str
    remedy: str
    calls: int = 1

    @property
    def message(self) -> str:
        """Module, operation, reason and line in one sentence, without the remedy."""
        return f"{self.path or 'model'}: {self.operation} {self.reason} ({self.line})"

    def __str__(self) -> str:
        return f"{self.message}: {self.remedy}"


class Refusal(PackError):
    """Raised where an operation is recorded; the trace turns it into an obstacle and continues."""

    def __init__(self, obstacle: Obstacle) -> None:
        super().__init__(obstacle.message)
        self.obstacle = obstacle


RANDOM_NUMBERS = "draw random numbers in training alone (if self.training), or make them a buffer"
VALUE_READ = "decide by shapes or settings only, or make the decision outside of the model"
OBSERVERS = (
    "observers of a quantised model are switched off by model.apply(torch.ao.quantization.disable_observer)"
)
_PARTS = "xnorpp.pack_submodules packs the modules around it"

# The remedies of operations that are refused whatever the shape of their input is, ...
_ALWAYS: dict[str, str] = {
    **dict.fromkeys((name.strip("_") for name in RANDOM), RANDOM_NUMBERS),
    **dict.fromkeys(
        ("fractional_max_pool2d", "fractional_max_pool3d"),
        "use nn.MaxPool2d or nn.AdaptiveMaxPool2d, whose windows are fixed",
    ),
    "addbmm": f"use torch.matmul, or F.scaled_dot_product_attention for attention; {_PARTS}",
    "nested_tensor_from_mask_left_aligned": "build nn.TransformerEncoder with enable_nested_tensor=False",
}  # fmt: skip

# ... and of those that are refused for what they do with the axes.
_BY_SHAPE: dict[str, str] = {
    **dict.fromkeys(
        ("transpose", "permute", "movedim", "moveaxis", "swapaxes", "swapdims", "t", "channel_shuffle"),
        f"leave the axes as (n, c, h, w): use a 1x1 or grouped convolution to mix channels; {_PARTS}",
    ),
    **dict.fromkeys(
        ("chunk", "split", "tensor_split", "unbind", "narrow", "select", "index_select"),
        "give each part a layer of its own instead of splitting one value",
    ),
    "grid_sample": f"use fewer places, or nn.functional.interpolate, which stores none; {_PARTS}",
    **dict.fromkeys(("interpolate", "upsample"), f"use mode nearest, bilinear, bicubic or area; {_PARTS}"),
    **dict.fromkeys(("stack", "vstack"), "use torch.cat along dim 1"),
    **dict.fromkeys(("amax", "max"), "name the axes: x.amax((2, 3)), or use nn.AdaptiveMaxPool2d(1)"),
    **dict.fromkeys(
        ("mean", "sum", "std", "var", "norm", "amin", "min"),
        "name the axes of one image, as in x.mean((2, 3)), or use nn.AdaptiveAvgPool2d(1)",
    ),
    **dict.fromkeys(
        ("index_add", "index_copy", "index_fill", "index_reduce", "scatter", "scatter_add", "scatter_reduce"),
        "use an index along one axis that is the same for every image, with each place once where it puts",
    ),
    "fused_moving_avg_obs_fake_quant": OBSERVERS,
    **dict.fromkeys(("any", "all"), "name the axes of one image, as in mask.any((1, 2, 3))"),
    **dict.fromkeys(("prod", "cumprod"), "name one axis of an image, x.prod(1), of at most 64 numbers"),
    **dict.fromkeys(
        ("argmax", "argmin", "argsort", "topk", "sort", "median", "kthvalue", "quantile"),
        "name one axis of an image, of at most 512 numbers, or choose among the scores outside of the model",
    ),
    **dict.fromkeys(
        ("pack_padded_sequence", "pad_packed_sequence"),
        "give the recurrent layer the padded sequence, all steps of a fixed length",
    ),
    **dict.fromkeys(
        ("lgamma", "digamma", "polygamma", "erfinv", "i0", "i1"),
        f"compute it from the packed model's output, or replace it by nn.ReLU or nn.Hardtanh; {_PARTS}",
    ),
}
_OTHERWISE = f"replace it by an operation that docs/packing.md lists, or leave this module unpacked: {_PARTS}"


def remedy_for(name: str) -> str:
    """What to do about a refused torch function, by its plain name."""
    return _ALWAYS.get(name) or _BY_SHAPE.get(name) or _OTHERWISE


def refused_for_any_shape(name: str) -> bool:
    """Whether this function is an obstacle of its own, even on a value that an earlier obstacle reshaped."""
    return name in _ALWAYS
