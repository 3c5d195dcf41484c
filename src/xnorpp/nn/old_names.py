"""What was renamed in 0.2.0 and has another form now, as it was before. See `xnorpp.renamed`."""

from __future__ import annotations

from xnorpp.nn.binarization import METHOD_SCALES, Binarization
from xnorpp.nn.quantizers import polynomial_sign, sign, tanh_sign
from xnorpp.renamed import warn_renamed

ANALYTIC_SCALES = METHOD_SCALES["xnor"]
SURROGATES = {"ste": sign, "polynomial": polynomial_sign, "tanh": tanh_sign}


def resolve_scale(method: str, scale: str | None, *, linear: bool = False) -> str | None:
    """The name of the scale that a layer of this method uses; `None` means the method's default.

    Args:
        method: One of `METHODS`.
        scale: The name of a scale that the method has, or None. The default of xnor++ was Case 4.
        linear: Whether the layer is a linear one.

    Raises:
        ValueError: There is no such method, or it has no such scale.
    """
    if method == "xnor++" and scale is None:
        scale = "channel_height_width"
    found = Binarization.preset(method, scale=scale)
    return (found.for_linear() if linear else found).scale_name


class OldAttributes:
    """The attributes of binary layers that are fields of `layer.binarization` now."""

    binarization: Binarization

    @property
    def surrogate(self) -> str:
        warn_renamed("layer.surrogate", "layer.binarization.inputs")
        return str(self.binarization.inputs)

    @property
    def weight_surrogate(self) -> str:
        warn_renamed("layer.weight_surrogate", "layer.binarization.weights")
        return str(self.binarization.weights)

    @property
    def scale_init(self) -> str:
        warn_renamed("layer.scale_init", "layer.binarization.scale_init")
        return self.binarization.scale_init
