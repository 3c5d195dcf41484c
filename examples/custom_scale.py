"""A scale of your own: one factor per channel times one factor per column, from outside of the package."""

from typing import ClassVar

import torch
from torch import nn

from xnorpp import binarize, register_scale
from xnorpp.nn import LearnedScale, parameter_groups
from xnorpp.packing import pack


@register_scale("channel_width")
class ChannelWidthScale(LearnedScale):
    """What the factors span is all that has to be said; start, sizes, resizing and packing follow."""

    spans: ClassVar = {"alpha": "c", "gamma": "w"}


net = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.BatchNorm2d(16),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(32, 2),
)
torch.manual_seed(0)
labels = torch.arange(64) % 2
images = torch.randn(64, 1, 8, 8) + labels.view(-1, 1, 1, 1) * torch.linspace(-1, 1, 8)
print(binarize(net, scale="channel_width", example=images))
optimizer = torch.optim.Adam(parameter_groups(net, weight_decay=0.0), lr=1e-2)
for _ in range(20):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(images), labels)
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}, columns {net[2].scale.gamma.flatten().tolist()}")
print(len(pack(net.eval(), (1, 8, 8)).program.ops), "packed operations")
