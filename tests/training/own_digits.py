"""A user's script: own network, own data set with random augmentation. Arguments: the run's folder, the
number of parts that a process takes of a batch, and what the training data is given as.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from xnorpp.data import load_dataset
from xnorpp.nn import BinaryConv2d
from xnorpp.training import train

DIGITS = load_dataset("digits")


class Augmented(Dataset[Any]):
    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = torch.from_numpy(DIGITS.images[index].astype(np.float32) / 255).permute(2, 0, 1)
        image = image.roll(random.randint(-1, 1), 2) + 0.1 * torch.randn(image.shape)
        return image * np.random.uniform(0.8, 1.2), int(DIGITS.labels[index])  # noqa: NPY002


def network(num_classes: int = 10) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16),
        BinaryConv2d(16, 16, 3, padding=1, scale="channel"),
        nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, num_classes),
    )  # fmt: skip


def main(out: str, accumulate: int, kind: str) -> None:
    torch.set_num_threads(1)
    data: Any = Augmented()
    if kind == "loader":
        data = DataLoader(data, 32, shuffle=True)
    elif kind == "sampler":
        data = DataLoader(data, 32, sampler=DistributedSampler(data, 2, int(os.environ["RANK"])))
    train(
        {
            "schedule": {"epochs": 3}, "data": {"batch_size": 64}, "optimizer": {"lr": 0.01},
            "run": {"accumulate": accumulate, "save_steps": 0 if kind != "data" else 3, "log_steps": 1,
                    "tensorboard": False, "threads": 1},
        },
        model=network, train_data=data, test_data=(DIGITS.images[512:640], DIGITS.labels[512:640]), out=out,
        resume=True, quiet=True, device="cpu",
    )  # fmt: skip
    names = [(entry / "comm").read_text().strip() for entry in Path("/proc/self/task").glob("*")]
    assert not any("gloo" in name for name in names), f"threads outlive the process group: {names}"


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
