"""The training step of our networks with ReCU's standardized weights against the default quantizer.

    python benchmarks/recu_training.py [--networks resnet20,resnet18] [--batches 128,256] [--out FILE]

Three variants of one step, each recorded as a CUDA graph: the default quantizer of weights (straight-through
gradient), ReCU's clamp with standardized filters operation by operation, and the same inside of the fused
kernels. A step is forward, loss, backward and Adam, in bfloat16 autocast and channels_last, on a batch of
CIFAR's size that lies on the device. Variants take turns in the timed windows; each counts with its median.
With --check, gradients of the two ReCU variants from one state are compared as well.

Without a GPU a miniature runs, which shows that the script works and times nothing.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cuda_variants import CUDA, DEVICE, Step, clean, guarded, tweaked
from foreign_training import facts, profile, windows
from xnorpp.models import create_model
from xnorpp.nn import set_progress
from xnorpp.training.records.record import append_rows

START = time.monotonic()
RECU = {"weights": "recu", "standardize_weights": True}
# name: (the variant of `cuda_variants`, options of the network)
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "default": ("fused", {}),
    "recu plain": ("fused/plain weights", RECU),
    "recu fused": ("fused", RECU),
}


def make_step(name: str, network: str, size: int) -> Step:
    """The step of a variant, in the middle of a training run."""
    variant, options = VARIANTS[name]

    def build(method: str) -> nn.Module:
        model = create_model(network, method=method, input_size=size, num_classes=10, **options)
        set_progress(model, 0.5)
        return model

    return Step(variant, size, 10, network, build=build)


def batch_of(batch: int, size: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    x = torch.randn(batch, 3, size, size, device=DEVICE).to(memory_format=torch.channels_last)
    return x, torch.randint(0, 10, (batch,), device=DEVICE)


def prepare(name: str, network: str, batch: int, size: int) -> Callable[[], object]:
    """A call that runs one step, warmed up and recorded as a CUDA graph."""
    step = make_step(name, network, size)
    x, labels = batch_of(batch, size)
    if not CUDA:
        return lambda: step.plain(x, labels)
    step.plain(x, labels)
    step.capture(x, labels)
    assert step.replay is not None
    replay = step.replay
    # The graph reads memory that the step, the batch and the labels own.
    return lambda: (replay(), step, x, labels)


def largest_difference(network: str, size: int) -> float:
    """Of the weights' gradients of the two ReCU variants from one state, relative to their norm."""
    found = []
    for name in ("recu plain", "recu fused"):
        with tweaked(VARIANTS[name][0]):
            step = make_step(name, network, size)
            step.backend = "fused" if CUDA else "auto"
            found.append(step.gradients(*batch_of(64 if CUDA else 4, size)))
    plain, quick = found
    return max(float((quick[key] - plain[key]).norm() / plain[key].norm().clamp_min(1e-12)) for key in plain)


def measure(network: str, batch: int, args: argparse.Namespace, errors: dict[str, str]) -> dict[str, Any]:
    """The row of results/ for a network and a batch."""
    calls: dict[str, Callable[[], object]] = {}
    for name, (variant, _) in VARIANTS.items():
        begin = time.monotonic()
        with guarded(f"{network} {name}", errors):
            with tweaked(variant):
                calls[name] = prepare(name, network, batch, args.size)
            print(f"-- {network} {batch} {name}: ready in {time.monotonic() - begin:.1f} s", flush=True)
    times = windows(calls, 7 if CUDA else 1, 30 if CUDA else 1)
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, middle in medians.items():
        of_default = f"{middle / medians['default']:.2f} of the default" if "default" in medians else ""
        print(
            f"{network:9s} {batch:4d} {name:12s} {middle:8.3f} ms  {batch / middle * 1e3:9.0f} images/s  ",
            end="",
        )
        print(of_default, flush=True)
    if args.profile:
        for name, call in calls.items():
            profile(f"{network} {batch} {name}", call)
    calls.clear()
    clean()
    return {
        **facts("recu training", args.commit),
        "network": network,
        "batch": batch,
        "size": args.size,
        "milliseconds": medians,
        "images_per_second": {name: batch / middle * 1e3 for name, middle in medians.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", default="resnet20,resnet18" if CUDA else "resnet20")
    parser.add_argument("--batches", default="128,256" if CUDA else "4")
    parser.add_argument("--size", type=int, default=32 if CUDA else 8)
    parser.add_argument("--check", action="store_true", help="compare gradients of the two ReCU variants")
    parser.add_argument("--profile", action="store_true", help="where the time goes, by kernel")
    parser.add_argument("--commit", help="for a copy of the tree without its history")
    parser.add_argument("--out", type=Path, help="append one row per network and batch to this file")
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    errors: dict[str, str] = {}
    rows = []
    for network in args.networks.split(","):
        for batch in map(int, args.batches.split(",")):
            rows.append(measure(network, batch, args, errors))
        if args.check:
            with guarded(f"{network} check", errors):
                rows[-1]["largest_difference"] = largest_difference(network, args.size)
                print(
                    f"{network}: gradients differ by at most {rows[-1]['largest_difference']:.1e}", flush=True
                )
    if args.out is not None:
        append_rows(args.out, rows)
    print(f"-- {time.monotonic() - START:.0f} s in all, {len(errors)} parts failed")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
