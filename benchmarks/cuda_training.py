"""The training step on a CUDA GPU, checked and timed: binary ResNet-18 (Case 4) and its real-valued baseline.

    python benchmarks/cuda_training.py [--parts check,speed,...] [--sizes 224,64] [--budget S] [--out DIR]

Parts, in the order they run:
    kernels   each fused kernel on the largest activation of the trunk: milliseconds and TB/s
    convs     (only if named) the convolutions of the four stages: forward, and the two backward products
    check     gradients of fused blocks and ends against plain float32; gradients of the network from the same
              state at three moments of a training run; mean loss over each 20 steps, against plain eager
    speed     images/s and peak memory of a step for every variant; a step is forward, loss, backward, Adam,
              under autocast bfloat16 in channels_last
    profile   where the time of the fused step goes, by kernel, at each size

Every variant is built, run and discarded alone; one that fails prints its error and the rest continues. A
variant is skipped when less than its expected time is left of the budget. Everything is written to
DIR/cuda_training.json, and one row a variant, as results/ keeps them, to DIR/cuda_training.jsonl.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cuda_checks import BLOCK_ERROR, check_blocks, check_ends, check_training
from cuda_variants import (
    CUDA,
    DEVICE,
    SHORT,
    VARIANTS,
    Step,
    clean,
    guarded,
    settings,
    synchronize,
    tweaked,
)
from xnorpp.training.records.record import describe_hardware, source_commit, today

START = time.monotonic()


class Budget:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def allows(self, name: str, need: float) -> bool:
        left = self.seconds - (time.monotonic() - START)
        if left < need:
            print(f"-- {name}: skipped, {left:.0f} s left of the budget and {need:.0f} s needed", flush=True)
        return left >= need


def milliseconds(function: Callable[[], object], repeats: int = 20) -> float:
    """Median device time of a call, each timed by its own pair of events."""
    for _ in range(3):
        function()
    if not CUDA:
        begin = time.perf_counter()
        function()
        return (time.perf_counter() - begin) * 1e3
    events = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)
    ]
    for first, last in events:
        first.record()
        function()
        last.record()
    torch.cuda.synchronize()
    return statistics.median(first.elapsed_time(last) for first, last in events)


def measure_step(variant: str, size: int, batch: int, model_name: str) -> dict[str, Any]:
    """images/s (median of five windows) and the peak of allocated memory of a variant on random images."""
    clean()
    base = torch.cuda.memory_allocated() if CUDA else 0
    step = Step(variant, size, 1000 if size >= 96 else 200, model_name)
    x = torch.randn(batch, 3, size, size, device=DEVICE).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 200, (batch,), device=DEVICE)
    begin = time.monotonic()
    first = float(step.plain(x, labels))
    for _ in range(4):
        step.plain(x, labels)
    if step.graph and CUDA:
        step.capture(x, labels)
    elif CUDA:
        torch.cuda.reset_peak_memory_stats()
    call: Callable[[], object] = step.replay or (lambda: step.plain(x, labels))
    for _ in range(5):
        call()
    synchronize()
    warm = time.monotonic() - begin
    windows = []
    count = 10 if CUDA else 1
    for _ in range(5 if CUDA else 1):
        begin = time.perf_counter()
        for _ in range(count):
            call()
        synchronize()
        windows.append((time.perf_counter() - begin) / count)
    peak = (torch.cuda.max_memory_allocated() - base) if CUDA else 0
    last = float(step.captured_loss) if step.graph and CUDA else float(step.plain(x, labels))
    return {
        "variant": variant,
        "size": size,
        "batch": batch,
        "milliseconds": statistics.median(windows) * 1e3,
        "spread": (max(windows) - min(windows)) / statistics.median(windows),
        "images_per_second": batch / statistics.median(windows),
        "peak_bytes": peak,
        "warm_up_seconds": warm,
        "first_loss": first,
        "last_loss": last,
    }


def run_speed(args: argparse.Namespace, budget: Budget, errors: dict[str, str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name in args.variants.split(","):
        for size in args.sizes:
            if not budget.allows(f"{name} at {size}", settings(name)[-1]):
                continue
            with guarded(f"{name} {size}", errors), tweaked(name):
                row = measure_step(name, size, args.batch, args.model)
                rows.append(row)
                print(
                    f"{name:26s} {size:4d} px {row['milliseconds']:8.2f} ms "
                    f"{row['images_per_second']:9.0f} img/s {row['peak_bytes'] / 2**20:8.0f} MiB  "
                    f"loss {row['first_loss']:.3f} -> {row['last_loss']:.3f}  "
                    f"warm-up {row['warm_up_seconds']:.0f} s",
                    flush=True,
                )
    return rows


def print_ratios(rows: list[dict[str, Any]]) -> None:
    for size in sorted({row["size"] for row in rows}, reverse=True):
        here = {row["variant"]: row for row in rows if row["size"] == size}
        real = [row for name, row in here.items() if name.startswith("real")]
        if not real:
            continue
        twin = max(real, key=lambda row: row["images_per_second"])
        print(f"-- {size} px, against the fastest real-valued variant ({twin['variant']}):")
        for name, row in here.items():
            if not name.startswith("real"):
                speed = row["images_per_second"] / twin["images_per_second"]
                memory = row["peak_bytes"] / max(1, twin["peak_bytes"])
                print(f"   {name:26s} speed {speed:5.2f} x   memory {memory:5.2f} x")


# -------------------------------------------------------------------------------------------- where time goes


def kernel_cases(
    ops: Any, dots: Tensor, grad: Tensor, rescale: Any, norm: nn.BatchNorm2d
) -> dict[str, tuple[Callable[[], object], float]]:
    """Calls of the fused kernels, and how many times each must move a tensor of the activation's size."""
    moments = ops.moments(dots, rescale)
    mean, inverse, _ = ops.statistics(moments, norm, None)
    _, sign_bits, mask_bits, _ = ops.normalize_sign(
        dots, rescale, mean, inverse, norm.weight, norm.bias, torch.float16
    )
    _, sums = ops.finish_backward(grad, dots, rescale)
    partial = ops.norm_backward_sums(grad, mask_bits, dots, rescale, mean, inverse)
    found = ops.collect(partial, sums)
    work = grad.clone(memory_format=torch.preserve_format)
    common = (mean, inverse)
    return {
        "moments": (lambda: ops.moments(dots, rescale), 1),
        "statistics": (lambda: ops.statistics(moments, norm, None), 0),
        "normalize+sign": (
            lambda: ops.normalize_sign(dots, rescale, *common, norm.weight, norm.bias, torch.float16),
            2.125,
        ),
        "unpack": (lambda: ops.unpack_signs(sign_bits, dots.shape, torch.bfloat16), 1.0625),
        "finish": (lambda: ops.finish(dots, rescale, grad, None, torch.bfloat16), 3),
        "finish back": (lambda: ops.finish_backward(grad, dots, rescale), 3),
        "norm sums": (lambda: ops.norm_backward_sums(grad, mask_bits, dots, rescale, *common), 2.0625),
        "collect": (lambda: ops.collect(partial, sums), 0),
        "norm back": (
            lambda: ops.norm_backward(work, mask_bits, dots, rescale, *common, norm.weight, found.norm),
            3.0625,
        ),
        "norm back real": (
            lambda: ops.norm_backward(work, mask_bits, grad, None, *common, norm.weight, found.norm, grad),
            4.0625,
        ),
    }


def time_kernels() -> list[dict[str, Any]]:
    """Every fused kernel on (256, 64, 56, 56), with the bytes it must move, for a few tilings."""
    ops: Any = importlib.import_module("xnorpp.nn.fused.ops")
    shape = (256, 64, 56, 56) if CUDA else (8, 8, 4, 4)
    torch.manual_seed(0)
    make: dict[str, Any] = {"device": DEVICE, "memory_format": torch.channels_last}
    dots = torch.empty(shape, dtype=torch.float16, **make).normal_(0, 20).round_()
    grad = torch.empty(shape, dtype=torch.bfloat16, **make).normal_()
    norm = nn.BatchNorm2d(shape[1]).to(DEVICE)
    factors = tuple(
        torch.rand(*size, device=DEVICE) * 0.2
        for size in ((shape[1], 1, 1), (1, shape[2], 1), (1, 1, shape[3]))
    )
    rescale = ops.Rescale(factors, 3, ops.PRELU, torch.full((shape[1],), 0.25, device=DEVICE))
    size = dots.numel() * 2
    rows: list[dict[str, Any]] = []
    kept = (ops.TILE_ELEMENTS, ops.TILE_WARPS, ops.PROGRAMS)
    for elements, warps, programs in (
        (1024, 4, 1600),
        (1024, 4, 800),
        (1024, 4, 3200),
        (512, 4, 1600),
        (512, 4, 3200),
        (1024, 8, 1600),
    ):
        ops.TILE_ELEMENTS, ops.TILE_WARPS, ops.PROGRAMS = elements, warps, programs
        cases = kernel_cases(ops, dots, grad, rescale, norm)
        line = f"{elements}/{warps}/{programs}: "
        for name, (call, passes) in cases.items():
            time_ms = milliseconds(call)
            rows.append(
                {"kernel": name, "tiling": [elements, warps, programs], "ms": time_ms, "bytes": passes * size}
            )
            line += f"{name} {time_ms * 1e3:.0f} us {passes * size / time_ms / 1e9:.2f} TB/s; "
        print(line, flush=True)
    ops.TILE_ELEMENTS, ops.TILE_WARPS, ops.PROGRAMS = kept
    return rows


def time_convolutions(batch: int) -> list[dict[str, Any]]:
    """cuDNN's forward product in float16 and bfloat16 and the two backward ones in bfloat16, a stage."""
    rows = []
    stages = [(64, 56), (128, 28), (256, 14), (512, 7)] if CUDA else [(8, 4)]
    for channels, size in stages:
        flops = 2 * batch * size * size * channels * channels * 9
        for dtype in (torch.float16, torch.bfloat16):
            a = torch.randn(batch, channels, size, size, device=DEVICE).sign().to(dtype)
            a = a.to(memory_format=torch.channels_last)
            w = torch.randn(channels, channels, 3, 3, device=DEVICE).sign().to(dtype)
            w = w.to(memory_format=torch.channels_last)
            calls: dict[str, Callable[[], object]] = {"forward": lambda a=a, w=w: F.conv2d(a, w, padding=1)}
            if dtype == torch.bfloat16:
                g = torch.randn_like(a)
                for name, mask in (("dgrad", (True, False, False)), ("wgrad", (False, True, False))):
                    calls[name] = lambda a=a, w=w, g=g, mask=mask: torch.ops.aten.convolution_backward(
                        g, a, w, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1, mask
                    )
            for name, call in calls.items():
                time_ms = milliseconds(call)
                rows.append(
                    {"conv": f"{channels}@{size}", "what": f"{name} {dtype}", "ms": time_ms, "flops": flops}
                )
                rate = flops / time_ms / 1e9
                print(
                    f"{channels}@{size} {name} {str(dtype)[6:]} {time_ms * 1e3:.0f} us {rate:.0f} TFLOP/s; ",
                    end="",
                )
        print(flush=True)
    return rows


def profile_step(
    variant: str, size: int, batch: int, model_name: str, out: Path
) -> list[tuple[str, float, int]]:
    """Device time a step by kernel, largest first."""
    clean()
    step = Step(variant, size, 200, model_name)
    step.graph = False
    x = torch.randn(batch, 3, size, size, device=DEVICE).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 200, (batch,), device=DEVICE)
    for _ in range(5):
        step.plain(x, labels)
    synchronize()
    kinds = [torch.profiler.ProfilerActivity.CPU, *([torch.profiler.ProfilerActivity.CUDA] if CUDA else [])]
    with torch.profiler.profile(activities=kinds) as profiler:
        for _ in range(3):
            step.plain(x, labels)
        synchronize()
    totals: dict[str, list[float]] = {}
    for event in profiler.events():
        if CUDA and event.device_type != torch.autograd.DeviceType.CUDA:
            continue
        spent = event.device_time if CUDA else event.cpu_time
        entry = totals.setdefault(event.name, [0.0, 0.0])
        entry[0] += spent / 3e3
        entry[1] += 1 / 3
    rows = sorted(((name, ms, round(count)) for name, (ms, count) in totals.items()), key=lambda row: -row[1])
    total = sum(ms for _, ms, _ in rows)
    print(f"-- {variant} at {size} px: {total:.2f} ms of kernels a step, {sum(r[2] for r in rows)} launches")
    for name, ms, count in rows[:18]:
        print(f"   {ms:7.3f} ms {count:4d} x  {name[:90]}")
    (out / f"profile_{variant.replace(' ', '_')}_{size}.json").write_text(json.dumps(rows, indent=1))
    return rows


def result_rows(result: dict[str, Any], args: argparse.Namespace) -> list[dict[str, Any]]:
    """One row a measured variant, and one of the checks, with what every row of results/ carries."""
    common = {
        "kind": "cuda training",
        "recipe": None,
        "seed": 0,
        "commit": args.commit or source_commit(),
        "hardware": describe_hardware(DEVICE),
        "date": today(),
        "model": args.model,
    }
    rows = [{**common, "what": "step", **row} for row in result.get("speed", [])]
    if "training" in result:
        rows.append({**common, "what": "check", "blocks": result.get("blocks"), **result["training"]})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default="kernels,check,speed,profile")
    parser.add_argument("--sizes", default="224,64", help="image sizes of the speed part")
    parser.add_argument(
        "--variants", default=SHORT, help="of: " + ", ".join(VARIANTS) + "; a slash adds a tweak"
    )
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--check-size", type=int, default=64)
    parser.add_argument("--check-steps", type=int, default=300)
    parser.add_argument("--check-batch", type=int, default=128)
    parser.add_argument("--check-variants", default="fused eager,fused graph,recompute graph,binary compiled")
    parser.add_argument("--profile-variants", default="fused eager")
    parser.add_argument(
        "--budget", type=float, default=230, help="seconds after which no further variant starts"
    )
    parser.add_argument("--commit", default="", help="the source's commit, where git cannot tell")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    args.sizes = [int(size) for size in args.sizes.split(",")]
    torch.backends.cudnn.benchmark = True
    torch.backends.mkldnn.enabled = (
        CUDA  # without a GPU this is a rehearsal, and not every CPU has bfloat16 products
    )
    budget, errors = Budget(args.budget), {}
    result: dict[str, Any] = {
        "benchmark": "cuda_training",
        "device": torch.cuda.get_device_name() if CUDA else "cpu",
        "torch": torch.__version__,
        "argv": sys.argv[1:],
        "errors": errors,
    }
    parts = args.parts.split(",")
    if "kernels" in parts:
        with guarded("kernels", errors):
            result["kernels"] = time_kernels()
    if "convs" in parts:
        with guarded("convs", errors):
            result["convs"] = time_convolutions(args.batch)
    if "check" in parts:
        with guarded("blocks", errors):
            result["blocks"] = {**check_blocks(), **check_ends()}
            for name, value in result["blocks"].items():
                if not value <= BLOCK_ERROR:
                    errors[f"error of {name}"] = f"{value} is above {BLOCK_ERROR}"
            print(
                "fused block against float32, worst relative error: " + json.dumps(result["blocks"]),
                flush=True,
            )
        with guarded("training", errors):
            result["training"] = check_training(args, args.check_variants.split(","), errors)
    if "speed" in parts:
        result["speed"] = run_speed(args, budget, errors)
    if "profile" in parts:
        for variant in args.profile_variants.split(","):
            for size in args.sizes:
                if budget.allows(f"profile {variant}", 5):
                    with guarded(f"profile {variant}", errors):
                        profile_step(variant, size, args.batch, args.model, args.out)
    if "speed" in parts:
        print_ratios(result["speed"])
    print(f"{len(errors)} errors: {', '.join(errors)}   {time.monotonic() - START:.0f} s in all")
    (args.out / "cuda_training.json").write_text(json.dumps(result, indent=1))
    with (args.out / "cuda_training.jsonl").open("w", encoding="utf-8") as file:
        for row in result_rows(result, args):
            file.write(json.dumps(row, sort_keys=True) + "\n")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
