"""A quantizer of your own: the sign with another gradient, with a parameter, from outside of the package."""

from dataclasses import dataclass

import torch
from torch import nn

from xnorpp import Binarization, BinaryLinear, register_quantizer
from xnorpp.nn import Quantizer


@register_quantizer("swish")
@dataclass(frozen=True)
class SwishSign(Quantizer):
    """SignSwish of BNN+ (Darabi et al. 2018, https://arxiv.org/abs/1812.11800).

    gradient: d/dx = beta * (2 - beta x tanh(beta x / 2)) / (1 + cosh(beta x))
    """

    beta: float = 5.0

    def slope(self, x, progress):
        z = self.beta * x
        return self.beta * (2 - z * torch.tanh(z / 2)) / (1 + torch.cosh(z))


torch.manual_seed(0)
config = Binarization(inputs="swish(beta=2.0)", weights=SwishSign())
hidden = BinaryLinear(16, 32, config=config)
net = nn.Sequential(nn.BatchNorm1d(16), hidden, nn.BatchNorm1d(32), nn.Linear(32, 2))
x = torch.randn(256, 16)
labels = (x[:, :8].sum(1) > 0).long()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for _ in range(100):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(x), labels)
    loss.backward()
    optimizer.step()
print(f"training accuracy {(net(x).argmax(1) == labels).float().mean():.2f}")
