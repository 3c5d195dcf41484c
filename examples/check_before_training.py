"""Will my network pack? All obstacles with their remedies in a second, before any training.

python examples/check_before_training.py
"""

from __future__ import annotations

import torch
from torch import nn

import xnorpp


class Net(nn.Module):
    def __init__(self, track: bool) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, 1, 1), nn.BatchNorm2d(32, track_running_stats=track))
        self.body = nn.Sequential(nn.Conv2d(32, 64, 3, 2, 1), nn.BatchNorm2d(64, track_running_stats=track))
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.stem(x).relu()).relu().mean((2, 3)))


def main() -> None:
    first = xnorpp.check_packable(Net(track=False), (3, 32, 32))
    print(first, "\n")
    for obstacle in first.obstacles:  # the same, for a program
        print(f"{obstacle.path}: {obstacle.operation} -> {obstacle.remedy}")

    second = xnorpp.check_packable(Net(track=True), (3, 32, 32))
    print("\nafter the remedies,", second)
    if not second:
        raise SystemExit("the network still does not pack")


if __name__ == "__main__":
    main()
