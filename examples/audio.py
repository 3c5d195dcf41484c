"""Raw samples: a 1-D network with binary layers distinguishes tones, trained, packed and run on sequences."""

import math

import torch
from torch import nn

import xnorpp

RATE, LENGTH = 8000, 2000


def tones(count):
    """A quarter of a second of a tone in noise; the class is its third of the range from 200 to 2,000 Hz."""
    pitch = 200 + 1800 * torch.rand(count, 1)
    time = torch.arange(LENGTH) / RATE
    sound = torch.sin(2 * math.pi * (pitch * time + torch.rand(count, 1))) + 0.3 * torch.randn(count, LENGTH)
    return sound[:, None], ((pitch[:, 0] - 200) // 600).long().clamp(max=2)


def block(channels):
    layers = [nn.Conv1d(channels, channels, 5, padding=2), nn.BatchNorm1d(channels), nn.ReLU()]
    return nn.Sequential(*layers, nn.MaxPool1d(4))


net = nn.Sequential(
    nn.Conv1d(1, 32, 32, stride=4), nn.BatchNorm1d(32), nn.ReLU(), block(32), block(32),
    nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 3),
)  # fmt: skip
print(xnorpp.binarize(net, example=torch.randn(2, 1, LENGTH)))
optimizer = torch.optim.Adam(net.parameters(), 0.003)
for _ in range(40):
    sounds, classes = tones(32)
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(sounds), classes).backward()
    optimizer.step()
packed = xnorpp.pack(net.eval(), example=torch.randn(2, 1, LENGTH), labels=["low", "middle", "high"])
# packed.save("tones.xnor") writes it to a file.
sounds, classes = tones(200)
print(f"{100 * (packed(sounds.numpy()).argmax(1) == classes.numpy()).mean():.0f} % right")
