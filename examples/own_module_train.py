"""My own module and data set, trained by `xnorpp.train`: schedules, checkpoints and resuming for free.

python examples/own_module_train.py
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import Dataset

import xnorpp
from xnorpp import BinaryConv2d


class Digits(Dataset[tuple[Tensor, int]]):
    """Any torch Dataset; what its augmentation draws is seeded by seed, epoch and index."""

    def __init__(self, first: int, last: int, augment: bool) -> None:
        images, labels = load_digits(return_X_y=True)
        self.images = torch.tensor(images[first:last], dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
        self.labels, self.augment = labels[first:last], augment

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        shift = int(torch.randint(-1, 2, ())) if self.augment else 0
        return self.images[index].roll(shift, 2), self.labels[index]


net = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), BinaryConv2d(32, 64, 3, padding=1, scale="channel"),
    nn.PReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
)  # fmt: skip
recipe = {"schedule": {"name": "cosine", "epochs": 4}, "optimizer.lr": 0.01, "run.tensorboard": False}
data = {"train_data": Digits(0, 1400, True), "test_data": Digits(1400, 1797, False)}
print(xnorpp.train(recipe, model=net, **data, out="runs/mine", resume=True)["metrics"])
model, meta = xnorpp.load_model("runs/mine", model=net)  # the checkpoint has the weights, the module is mine
