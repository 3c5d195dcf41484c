"""The training step of a CIFAR ResNet written outside this package, binarized, against the same real network.

    python benchmarks/foreign_training.py [--networks resnet18,resnet20] [--budget S] [--profile] [--out FILE]

The networks are plain PyTorch in the usual post-activation form (convolution, batch norm, ReLU, twice, and a
shortcut), once with ResNet-18's widths (64 to 512 channels), once with ResNet-20's (16 to 64). `binarize`
replaces their inner convolutions, `fuse_for_training` finds the chains that train on the fused kernels. Each
side runs in its fastest way: the real network as a CUDA graph with and without torch.compile, the binary one
as a CUDA graph fused and compiled. The fused one has variants: all on one stream; "no branch", the shortcut's
convolution not on a stream of its own; "not late", weight gradients waited for in every node instead of once,
at the end of the backward pass; "two streams", both.
A step is forward, loss, backward and Adam, in bfloat16 autocast and channels_last, on a batch that lies on
the device. Variants take turns in the timed windows; each counts with its median.

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
import torch.nn.functional as F
from torch import Tensor, nn

from cuda_variants import CUDA, DEVICE, Step, clean, guarded, settings, synchronize, tweaked
from xnorpp import binarize
from xnorpp.nn import fuse_for_training
from xnorpp.training.records.record import append_rows, describe_hardware, source_commit, today

START = time.monotonic()
REAL = ("real graph", "real compiled graph")
STREAMS = ("fused/one stream", "fused/two streams", "fused/no branch", "fused/not late")
BINARY = ("fused", *STREAMS, "binary graph", "binary compiled graph")
# What is measured without --variants, in the order of what the budget should be spent on.
MEASURED = {
    "resnet18": ("real compiled graph", "fused", *STREAMS, "binary compiled graph", "real graph"),
    "resnet20": ("real compiled graph", "fused", *STREAMS[1:], "real graph", "binary compiled graph"),
}


class Basic(nn.Module):
    """The post-activation block of most public CIFAR networks."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return F.relu(out)


class CifarResNet(nn.Module):
    def __init__(self, widths: tuple[int, ...], depth: int, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        blocks: list[nn.Module] = []
        before = widths[0]
        for index, width in enumerate(widths):
            for place in range(depth):
                blocks.append(Basic(before, width, 2 if index > 0 and place == 0 else 1))
                before = width
        self.layers = nn.Sequential(*blocks)
        self.linear = nn.Linear(before, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(F.relu(self.bn1(self.conv1(x))))
        return self.linear(F.adaptive_avg_pool2d(x, 1).flatten(1))


# widths, blocks per width
NETWORKS = {"resnet18": ((64, 128, 256, 512), 2), "resnet20": ((16, 32, 64), 3)}
MINIATURE = {"resnet18": ((8, 16), 1), "resnet20": ((4, 8), 1)}


def builder(network: str, fuse: bool) -> Callable[[str], nn.Module]:
    """Makes the network, real or binarized, for `cuda_variants.Step`."""

    def build(method: str) -> nn.Module:
        widths, depth = (NETWORKS if CUDA else MINIATURE)[network]
        model = CifarResNet(widths, depth)
        if method != "real":
            report = binarize(model)  # no example: packing is not checked, so that no native core is needed
            chains = fuse_for_training(model) if fuse else ()
            binary = len(report.changed)
            if fuse:
                print(f"-- {network}: {binary} layers became binary, {len(chains)} chains fuse", flush=True)
        return model

    return build


def prepare(variant: str, network: str, batch: int, size: int) -> Callable[[], object]:
    """A call that runs one step, warmed up and recorded as a CUDA graph."""
    step = Step(variant, size, 10, "", build=builder(network, variant.startswith("fused")))
    torch.manual_seed(1)
    x = torch.randn(batch, 3, size, size, device=DEVICE).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (batch,), device=DEVICE)
    if CUDA:
        step.plain(x, labels)  # compilation and the choice of algorithms
        step.capture(x, labels)
        assert step.replay is not None
        replay = step.replay
        # The graph reads memory that the step, the batch and the labels own.
        return lambda: (replay(), step, x, labels)
    return lambda: step.plain(x, labels)


def windows(calls: dict[str, Callable[[], object]], rounds: int, count: int) -> dict[str, list[float]]:
    """Milliseconds per step in each window; the variants take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            synchronize()
            begin = time.perf_counter()
            for _ in range(count):
                call()
            synchronize()
            times[name].append((time.perf_counter() - begin) / count * 1e3)
    return times


def profile(name: str, call: Callable[[], object]) -> None:
    """Prints where the device time of a step goes, by kernel."""
    kinds = [torch.profiler.ProfilerActivity.CPU, *([torch.profiler.ProfilerActivity.CUDA] if CUDA else [])]
    with torch.profiler.profile(activities=kinds) as profiler:
        for _ in range(3):
            call()
        synchronize()
    totals: dict[str, list[float]] = {}
    for event in profiler.events():
        if CUDA and event.device_type != torch.autograd.DeviceType.CUDA:
            continue
        entry = totals.setdefault(event.name, [0.0, 0.0])
        entry[0] += (event.device_time if CUDA else event.cpu_time) / 3e3
        entry[1] += 1 / 3
    rows = sorted(totals.items(), key=lambda row: -row[1][0])
    print(f"-- {name}: {sum(ms for _, (ms, _) in rows):.2f} ms of kernels per step")
    for kernel, (ms, launches) in rows[:22]:
        print(f"   {ms:7.3f} ms {round(launches):4d} x  {kernel[:100]}")


def measure(network: str, args: argparse.Namespace, errors: dict[str, str]) -> dict[str, dict[str, Any]]:
    """The median step of every variant that could be prepared within the budget."""
    calls: dict[str, Callable[[], object]] = {}
    for variant in args.variants.split(",") if args.variants else MEASURED[network]:
        left = args.budget - (time.monotonic() - START)
        if left < settings(variant)[-1]:
            print(f"-- {network} {variant}: skipped, {left:.0f} s are left of the budget", flush=True)
            continue
        begin = time.monotonic()
        with guarded(f"{network} {variant}", errors):
            with tweaked(variant):
                calls[variant] = prepare(variant, network, args.batch, args.size)
            print(f"-- {network} {variant}: ready in {time.monotonic() - begin:.1f} s", flush=True)
    times = windows(calls, 7 if CUDA else 1, 20 if CUDA else 1)
    if args.profile:
        for name, call in calls.items():
            profile(f"{network} {name}", call)
    rows = {}
    for name, values in times.items():
        middle = statistics.median(values)
        rows[name] = {
            "milliseconds": middle,
            "spread": (max(values) - min(values)) / middle,
            "images_per_second": args.batch / middle * 1e3,
        }
        print(f"{network:9s} {name:22s} {middle:8.3f} ms  {rows[name]['images_per_second']:9.0f} images/s")
    calls.clear()
    clean()
    return rows


def facts(kind: str, commit: str | None) -> dict[str, Any]:
    """What every row of results/ has; `commit` where the tree has no history."""
    return {
        "kind": kind,
        "recipe": None,
        "seed": 0,
        "commit": commit or source_commit(),
        "hardware": describe_hardware(DEVICE),
        "date": today(),
    }


def summary(network: str, rows: dict[str, dict[str, Any]], args: argparse.Namespace) -> dict[str, Any]:
    """The row of results/: both sides in their fastest way, and the ratio."""
    real = min((rows[n]["milliseconds"], n) for n in rows if n in REAL)
    binary = min((rows[n]["milliseconds"], n) for n in rows if n in BINARY)
    return {
        **facts("foreign training", args.commit),
        "network": network,
        "widths": list((NETWORKS if CUDA else MINIATURE)[network][0]),
        "batch": args.batch,
        "size": args.size,
        "fastest_real": real[1],
        "fastest_binary": binary[1],
        "speed": real[0] / binary[0],
        "variants": rows,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", default="resnet18,resnet20")
    parser.add_argument("--variants", help="of: " + ", ".join((*REAL, *BINARY)))
    parser.add_argument("--batch", type=int, default=256 if CUDA else 4)
    parser.add_argument("--size", type=int, default=32 if CUDA else 8)
    parser.add_argument("--budget", type=float, default=120.0, help="seconds after which no variant starts")
    parser.add_argument("--profile", action="store_true", help="where the time goes, by kernel")
    parser.add_argument("--commit", help="for a copy of the tree without its history")
    parser.add_argument("--out", type=Path, help="append one row per network to this file")
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    errors: dict[str, str] = {}
    rows = []
    for network in args.networks.split(","):
        found = measure(network, args, errors)
        if any(n in REAL for n in found) and any(n in BINARY for n in found):
            rows.append(summary(network, found, args))
            print(
                f"{network}: {rows[-1]['speed']:.2f} times the real-valued network "
                f"({rows[-1]['fastest_binary']} against {rows[-1]['fastest_real']})",
                flush=True,
            )
    if args.out is not None and rows:
        append_rows(args.out, rows)
    print(f"-- {time.monotonic() - START:.0f} s in all, {len(errors)} variants failed")
    return 1 if errors or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
