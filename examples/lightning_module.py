"""Binary layers in a Lightning module: `pip install lightning`.

python examples/lightning_module.py
"""

from __future__ import annotations

import lightning
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import xnorpp
from xnorpp import BinaryConv2d


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32),
            BinaryConv2d(32, 64, 3, padding=1, scale="channel"), nn.PReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
        )  # fmt: skip

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


images, labels = load_digits(return_X_y=True)
x = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
data = TensorDataset(x, torch.tensor(labels))
classifier = Classifier()
trainer = lightning.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False)
trainer.fit(classifier, DataLoader(data, 64, shuffle=True))
print(xnorpp.evaluate(classifier.net, data))
