"""Checks that compiled training does what eager training does, on the CPU or, where there is one, on a GPU.

A sign has no useful derivative, so a compiler that loses the stand-in gradient still runs, and learns
nothing. Three checks on scikit-learn's digits, a small network and Adam, from one seed:

1. gradients: from the same state and batch, at steps 0, 50 and 200 of the eager run, the compiled gradients
   equal the eager ones: relative L2 distance over all parameters at most 1e-3. Rounding alone gives 1e-6 to
   1e-5; the rest is room for the sign of a value within rounding of zero, which may flip;
2. losses: trained side by side, the mean loss of each 20 steps differs by at most 3 %;
3. learning: the compiled run's last mean loss is below half of chance, log(10).

    python benchmarks/compiled_matches_eager.py [--device cuda] [--network small] [--method xnor++]
"""

from __future__ import annotations

import argparse
import copy
import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xnorpp.models import Options, create_model
from xnorpp.models.blocks import PreActivationBlock
from xnorpp.nn import parameter_groups

GRADIENT_STEPS = (0, 50, 200)
GRADIENT_BOUND = 1e-3
WINDOW = 20
LOSS_BOUND = 0.03
CHANCE = math.log(10)
LEARNING_RATE = {"small": 3e-4, "block": 6e-4}  # slow enough that losses stay comparable in relative terms


@dataclass
class Outcome:
    """What was measured, and what was wrong with it."""

    gradient_distances: dict[int, float] = field(default_factory=dict)
    eager_losses: list[float] = field(default_factory=list)
    compiled_losses: list[float] = field(default_factory=list)

    def window_means(self) -> list[tuple[float, float]]:
        spans = range(0, len(self.eager_losses) - WINDOW + 1, WINDOW)
        return [
            (_mean(self.eager_losses[i : i + WINDOW]), _mean(self.compiled_losses[i : i + WINDOW]))
            for i in spans
        ]

    def problems(self) -> list[str]:
        found = [
            f"gradients at step {step} differ by {distance:.2e} (bound {GRADIENT_BOUND:.0e})"
            for step, distance in self.gradient_distances.items()
            if not distance <= GRADIENT_BOUND
        ]
        for number, (eager, compiled) in enumerate(self.window_means()):
            if not abs(eager - compiled) <= LOSS_BOUND * eager:
                found.append(
                    f"mean loss of steps from {number * WINDOW}: eager {eager:.4f}, compiled {compiled:.4f}"
                )
        last = self.window_means()[-1][1]
        if not last < CHANCE / 2:
            found.append(f"compiled training ends at loss {last:.3f}, chance is {CHANCE:.3f}")
        return found


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def digits(device: str) -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32)[:, None] / 8 - 1
    return images.to(device), torch.tensor(data.target, dtype=torch.int64).to(device)


def gradients(model: nn.Module, source: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    """The gradients of one batch from `source`'s state, computed by `model`, whose own state comes back."""
    kept = copy.deepcopy(source.state_dict())
    source.zero_grad(set_to_none=True)
    F.cross_entropy(model(x), y).backward()
    found = [p.grad.clone() for p in source.parameters() if p.grad is not None]
    source.zero_grad(set_to_none=True)
    source.load_state_dict(kept)
    return found


def distance(first: list[Tensor], second: list[Tensor]) -> float:
    """|first - second| / |first| over all values of all tensors."""
    assert len(first) == len(second) > 0
    difference = sum(
        float((a.double() - b.double()).square().sum()) for a, b in zip(first, second, strict=True)
    )
    return math.sqrt(difference / sum(float(a.double().square().sum()) for a in first))


def network(name: str, method: str) -> nn.Module:
    """`small`, or `block`: its stem, one block and classifier, which compiles in a third of the time."""
    torch.manual_seed(0)
    if name == "small":
        return create_model("small", method=method, input_size=8, num_classes=10, in_channels=1, width=16)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        PreActivationBlock(Options.of(method=method), 16, 32, 2, (8, 8)),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def check(device: str, name: str, method: str = "xnor++", steps: int = 220, batch: int = 256) -> Outcome:
    """Trains eagerly and compiled side by side and compares."""
    images, labels = digits(device)
    plain = network(name, method).to(device)
    twin = copy.deepcopy(plain)
    compiled = torch.compile(twin)
    eager_optimizer = torch.optim.Adam(parameter_groups(plain, 1e-5), lr=LEARNING_RATE[name])
    compiled_optimizer = torch.optim.Adam(parameter_groups(twin, 1e-5), lr=LEARNING_RATE[name])
    order = torch.Generator().manual_seed(1)
    outcome = Outcome()
    for step in range(steps):
        picked = torch.randint(len(labels), (batch,), generator=order).to(device)
        x, y = images[picked], labels[picked]
        if step in GRADIENT_STEPS:
            own = copy.deepcopy(twin.state_dict())
            expected = gradients(plain, plain, x, y)
            twin.load_state_dict(plain.state_dict())
            outcome.gradient_distances[step] = distance(expected, gradients(compiled, twin, x, y))
            twin.load_state_dict(own)
        for model, optimizer, losses in (
            (plain, eager_optimizer, outcome.eager_losses),
            (compiled, compiled_optimizer, outcome.compiled_losses),
        ):
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--network", default="small", choices=("small", "block"))
    parser.add_argument("--method", default="xnor++")
    parser.add_argument("--steps", type=int, default=220)
    arguments = parser.parse_args()
    outcome = check(arguments.device, arguments.network, arguments.method, arguments.steps)
    print(f"torch {torch.__version__}, {arguments.device}, method {arguments.method}")
    for step, value in outcome.gradient_distances.items():
        print(f"gradients at step {step:3d}: relative distance {value:.2e}")
    for number, (eager, compiled) in enumerate(outcome.window_means()):
        print(f"steps from {number * WINDOW:3d}: mean loss eager {eager:.4f}, compiled {compiled:.4f}")
    problems = outcome.problems()
    print("\n".join(problems) if problems else "compiled training matches eager training")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
