"""A U-Net with binary layers finds bright squares: train, pack, and a mask of an image of another size."""

import numpy as np
import torch
from torch import nn

import xnorpp


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fine = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.coarse = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32))
        self.up = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.merge = nn.Sequential(nn.BatchNorm2d(32), nn.Conv2d(32, 16, 3, padding=1), nn.BatchNorm2d(16))
        self.head = nn.Conv2d(16, 2, 1)

    def forward(self, x):
        fine = self.fine(x)
        return self.head(self.merge(torch.cat([self.up(self.coarse(fine)), fine], 1)))


def square(size=32):
    mask, (y, x) = torch.zeros(size, size, dtype=torch.long), torch.randint(0, size - 10, (2,))
    mask[y : y + 10, x : x + 10] = 1
    return torch.rand(3, size, size) * 0.5 + 0.4 * mask, mask


print(xnorpp.binarize(net := UNet(), example=(3, 32, 32)))
optimizer = torch.optim.Adam(net.parameters(), 0.01)
for _ in range(80):
    images, masks = map(torch.stack, zip(*(square() for _ in range(16))))
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(images), masks).backward()
    optimizer.step()
packed = xnorpp.pack(net.eval(), (3, 32, 32), labels=["background", "square"])  # packed.save("squares.xnor")
image, mask = square(size=48)
found = packed.segment((image.permute(1, 2, 0).numpy() * 255).astype(np.uint8))
print(f"{found.shape}, overlap {100 * (found & mask.numpy()).sum() / (found | mask.numpy()).sum():.0f} %")
