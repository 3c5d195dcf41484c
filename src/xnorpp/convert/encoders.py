"""torch's shortcuts through its own transformer encoders, which read the weights of layers and call none."""

from __future__ import annotations

from torch import nn

from xnorpp.nn import BinaryLayer


def set_fused_inference(layer: nn.TransformerEncoderLayer) -> None:
    """torch's fused inference reads the weights of linear layers and never calls these: with binary ones the
    layer would be real-valued in evaluation. The flag that allows it is taken away, and given back."""
    if any(isinstance(part, BinaryLayer) for part in (layer.linear1, layer.linear2)):
        layer.activation_relu_or_gelu = 0
        return
    relu = layer.activation is nn.functional.relu or isinstance(layer.activation, nn.ReLU)
    gelu = layer.activation is nn.functional.gelu or isinstance(layer.activation, nn.GELU)
    layer.activation_relu_or_gelu = 1 if relu else 2 if gelu else 0


def set_nested_sequences(model: nn.Module) -> None:
    """An encoder gives binary layers no nested tensors, which leave out the tokens that a mask hides: they
    take none, and the outputs at those places would differ from those in training."""
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder):
            binary = any(isinstance(part, BinaryLayer) for part in module.modules())
            module.use_nested_tensor = module.use_nested_tensor and not binary
