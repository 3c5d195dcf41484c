"""One trunk with two heads, what it is and where: all outputs travel in the file, under their names."""

import torch
from torch import nn

import xnorpp


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)]
        self.trunk = nn.Sequential(*layers, nn.Flatten())
        self.kind, self.place = nn.Linear(32 * 16, 2), nn.Linear(32 * 16, 2)

    def forward(self, x):
        return {"kind": self.kind(x := self.trunk(x)), "place": self.place(x)}


def squares(count):
    kinds, places = torch.randint(0, 2, (count,)), torch.randint(0, 11, (count, 2))
    images = 0.1 * torch.randn(count, 1, 16, 16)
    for image, kind, (y, x) in zip(images, kinds, places):
        image[:, y : y + 5, x : x + 5] += 2 * kind - 1
    return images, kinds, places / 10


xnorpp.binarize(net := Detector(), example=(1, 16, 16))
optimizer = torch.optim.Adam(net.parameters(), 0.005)
for _ in range(40):
    images, kinds, places = squares(64)
    found = net(images)
    optimizer.zero_grad()
    (nn.functional.cross_entropy(found["kind"], kinds) + (found["place"] - places).square().mean()).backward()
    optimizer.step()
images, kinds, places = squares(200)
found = xnorpp.pack(net.eval(), (1, 16, 16))(images.numpy())  # {"kind": (200, 2), "place": (200, 2)}
print(f"{100 * (found['kind'].argmax(1) == kinds.numpy()).mean():.0f} % of the kinds are right")
print(f"the place is {10 * abs(found['place'] - places.numpy()).mean():.1f} pixels off")
