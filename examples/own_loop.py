"""My own module and my own training loop: binary layers are ordinary PyTorch layers.

python examples/own_loop.py
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn

import xnorpp
from xnorpp import BinaryConv2d

images, labels = load_digits(return_X_y=True)
x = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
y = torch.tensor(labels)
net = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32),  # the first layer stays real
    BinaryConv2d(32, 64, 3, padding=1, scale="channel"), nn.PReLU(), nn.BatchNorm2d(64),
    BinaryConv2d(64, 64, 3, padding=1, scale="channel"), nn.PReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
)  # fmt: skip

optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
for epoch in range(4):
    for chosen in torch.randperm(1400).split(64):
        loss = nn.functional.cross_entropy(net(x[chosen]), y[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}")

print(xnorpp.evaluate(net, (x[1400:], y[1400:])))
packed = xnorpp.pack(net.eval(), (1, 8, 8), labels=[str(n) for n in range(10)])
# packed.save("digits.xnor") writes it to a file, which xnorpp.load("digits.xnor") reads without torch.
scores = packed(x[1400:].numpy())
print(f"packed: {100 * (scores.argmax(1) == y[1400:].numpy()).mean():.1f} % right")
