"""Own data and an own network on a real GPU. One command on such a machine:

pytest -m gpu tests/gpu/test_own_data.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from xnorpp.nn import BinaryConv2d
from xnorpp.training import evaluate, train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="NOT RUN: own data on a GPU needs one."),
]


class Noise(Dataset[Any]):
    classes = ("dark", "bright")

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.rand(3, 8, 8) * 0.5 + 0.4 * (index % 2), index % 2


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16),
        BinaryConv2d(16, 16, 3, padding=1, scale="channel"), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 2),
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["workers", "one process", "loader", "on the device"])
def test_own_data_trains_on_a_gpu(tmp_path: Path, kind: str) -> None:
    """With a recorded step where the batches are all alike, without one where a loader makes them."""
    data: Any = Noise()
    workers = 2 if kind == "workers" else 0
    if kind == "loader":
        data = DataLoader(data, 24, shuffle=True, num_workers=2)  # the last batch is smaller
    elif kind == "on the device":
        pairs = [data[index] for index in range(256)]
        images, labels = torch.stack([pair[0] for pair in pairs]), torch.tensor([pair[1] for pair in pairs])
        data = DataLoader(TensorDataset(images.cuda(), labels.cuda()), 32)
    net = network()
    summary = train(
        {"schedule.epochs": 4, "data": {"batch_size": 32, "workers": workers}, "optimizer.lr": 0.01,
         "run.tensorboard": False},
        model=net, train_data=data, test_data=Noise(), out=tmp_path, device="cuda", quiet=True,
    )  # fmt: skip
    assert summary["metrics"]["top1"] > 90
    assert next(net.parameters()).device.type == "cuda"
    assert evaluate(net, Noise())["top1"] == pytest.approx(summary["metrics"]["top1"], abs=1.0)
