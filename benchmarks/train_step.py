"""The CPU training step: binary ResNet-18 against its real-valued baseline, each eager or compiled, the best.

Set-up: 64-pixel images, 3x3 stem with max pooling (32x32 trunk), 200 classes, batch 32, Case 4, Adam,
float32, channels_last. A step is forward, loss, backward, optimiser. The four variants take turns, so that a
slow moment of the machine hits all of them, and each counts with its fastest step.

    python benchmarks/train_step.py [--rounds 6] [--results FILE]

The numbers are printed and appended to results/train_step.jsonl.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

from xnorpp.models import PAPER_BLOCK, create_model
from xnorpp.nn import parameter_groups
from xnorpp.training.records.record import append_rows, describe_hardware, source_commit, today

LIMIT = 1.3


def make_step(method: str, compiled: bool, batch: int, size: int) -> Callable[[], float]:
    torch.manual_seed(0)
    model = create_model("resnet18", method=method, input_size=size, num_classes=200, **PAPER_BLOCK)
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(parameter_groups(model, weight_decay=1e-5), lr=1e-3, fused=True)
    x = torch.randn(batch, 3, size, size).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 200, (batch,))
    forward = torch.compile(model) if compiled else model

    def step() -> float:
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(forward(x), labels).backward()
        optimizer.step()
        return time.perf_counter() - begin

    return step


def measure(rounds: int, batch: int, size: int) -> dict[str, object]:
    names = [(method, mode) for method in ("real", "xnor++") for mode in ("eager", "compiled")]
    steps = {name: make_step(name[0], name[1] == "compiled", batch, size) for name in names}
    for step in steps.values():  # compilation and first touches
        step()
        step()
    times: dict[tuple[str, str], list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name, step in steps.items():
            times[name].append(step())
    best = {f"{method} {mode}": min(values) * 1e3 for (method, mode), values in times.items()}
    real = min(best["real eager"], best["real compiled"])
    binary = min(best["xnor++ eager"], best["xnor++ compiled"])
    return {
        "kind": "train step",
        "model": "resnet18",
        "batch": batch,
        "size": size,
        "rounds": rounds,
        "milliseconds": best,
        "ratio": binary / real,
        "limit": LIMIT,
        "commit": source_commit(),
        "date": today(),
        "hardware": describe_hardware(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=6, help="timed steps a variant")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=64)
    kept = Path(__file__).resolve().parents[1] / "results" / "train_step.jsonl"
    parser.add_argument("--results", type=Path, default=kept, help="the result is appended to this file")
    arguments = parser.parse_args()
    result = measure(arguments.rounds, arguments.batch, arguments.size)
    milliseconds = result["milliseconds"]
    assert isinstance(milliseconds, dict)
    for name, value in milliseconds.items():
        print(f"{name:16s} {value:8.1f} ms")
    print(f"binary / real, best of each: {result['ratio']:.2f} (at most {LIMIT} wanted)")
    append_rows(arguments.results, [result])
    return 0 if float(str(result["ratio"])) <= LIMIT else 1


if __name__ == "__main__":
    raise SystemExit(main())
