"""A network of your own under a name: `create_model` and recipes (`model.name`) then know it."""

import torch
from torch import nn

from xnorpp import BinaryConv2d, create_model, list_models, register_model


@register_model("tiny", input_size=8, num_classes=10)
def tiny(num_classes, in_channels, options, width=16):
    """Two convolutions, the second one binary as the options state."""
    return nn.Sequential(
        nn.Conv2d(in_channels, width, 3, padding=1),
        nn.BatchNorm2d(width),
        BinaryConv2d(width, width, 3, padding=1, config=options.binarization),
        nn.PReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, num_classes),
    )


print(list_models())
model = create_model("tiny", method="xnor", width=32, in_channels=1)
print(model.config)
print(model(torch.randn(2, 1, 8, 8)).shape)
