"""Checks that the fused and compiled training steps do what plain eager PyTorch does; used by
`cuda_training.py`."""

from __future__ import annotations

import argparse
import copy
import math
import statistics
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cuda_variants import CUDA, DEVICE, Step, clean, guarded
from xnorpp.nn import BinaryConv2d
from xnorpp.nn.fused import dispatch as fused
from xnorpp.nn.fused import ends as fused_pool

LOSS_GAP = 0.03  # how far mean losses over 20 steps may lie from plain eager's
BLOCK_ERROR = 0.02  # and a fused block's output or gradient, from float32 with the same input


def or_infinite(value: float) -> float:
    """`max` forgets a NaN; infinity it keeps."""
    return float("inf") if math.isnan(value) else value


def error(a: Tensor, b: Tensor) -> float:
    return or_infinite(float((a - b).norm() / b.norm().clamp_min(1e-20)))


def check_blocks() -> dict[str, float]:
    """Worst relative error of a fused block's output and gradients against plain float32, a shape."""
    found = {}
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    shapes = [(64, 64, 56, 1), (128, 256, 28, 2), (512, 512, 7, 1)] if CUDA else [(8, 16, 6, 2)]
    for inputs, outputs, size, stride in shapes:
        for recompute in (False, True):
            torch.manual_seed(size)
            out = (size - 1) // stride + 1
            norm, act = nn.BatchNorm2d(inputs).to(DEVICE), nn.PReLU(outputs).to(DEVICE)
            conv = BinaryConv2d(
                inputs,
                outputs,
                3,
                stride,
                1,
                bias=False,
                scale="channel_height_width",
                output_size=(out, out),
            ).to(DEVICE)
            conv = conv.to(memory_format=torch.channels_last)
            unit = fused.Unit(norm, conv, act)
            x = torch.randn(32 if CUDA else 4, inputs, size, size, device=DEVICE).bfloat16()
            x = x.to(memory_format=torch.channels_last)
            side = x if stride == 1 and inputs == outputs else None
            parameters = [*norm.parameters(), *conv.parameters(), *act.parameters()]
            results = []
            for fuse in (True, False):
                start = (x if fuse else x.float()).clone(memory_format=torch.preserve_format).requires_grad_()
                with fused.backend("fused" if fuse else "reference", recompute):
                    y = fused.chain(start, (unit,), None if side is None else start)
                torch.manual_seed(1)
                weight = torch.randn(y.shape, device=DEVICE).bfloat16().float()
                grads = torch.autograd.grad((y.float() * weight).sum(), [start, *parameters])
                results.append([y.detach().float(), *(g.float() for g in grads)])
            name = f"{inputs}->{outputs}@{size}/{stride}{' recompute' if recompute else ''}"
            found[name] = max(error(a, b) for a, b in zip(*results, strict=True))
    torch.backends.cudnn.allow_tf32 = True
    return found


def check_ends() -> dict[str, float]:
    """The same for the real ends of the network: stem convolution, stem end, head."""
    torch.backends.cudnn.allow_tf32 = False
    images, size, width = (32, 224, 64) if CUDA else (2, 12, 8)
    torch.manual_seed(0)
    conv = nn.Conv2d(3, width, 7, 2, 3, bias=False).to(DEVICE, memory_format=torch.channels_last)
    norm, act = nn.BatchNorm2d(width).to(DEVICE), nn.PReLU(width).to(DEVICE)
    pool, mean = nn.MaxPool2d(3, 2, 1), nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    make: dict[str, Any] = {"device": DEVICE}
    image = torch.randn(images, 3, size, size, **make).bfloat16().to(memory_format=torch.channels_last)
    middle = torch.randn(images, width, size // 2, size // 2, **make).bfloat16()
    middle = middle.to(memory_format=torch.channels_last)
    with torch.no_grad():
        conv.weight.copy_(conv.weight.bfloat16())
    cases: dict[str, tuple[Tensor, list[nn.Module], Any, Any]] = {
        "stem conv": (image, [conv], conv, lambda x: fused_pool.stem_conv(x, conv)),
        "stem end": (
            middle,
            [norm, act],
            lambda x: pool(act(norm(x))),
            lambda x: fused_pool.stem_end(x, norm, act),
        ),
        "head": (middle, [norm, act], lambda x: mean(act(norm(x))), lambda x: fused_pool.head(x, norm, act)),
    }
    found = {}
    for name, (x, modules, plain, quick) in cases.items():
        results = []
        for fuse in (True, False):
            start = (x if fuse else x.float()).clone(memory_format=torch.preserve_format)
            start.requires_grad_(name != "stem conv")
            with fused.backend("fused" if fuse else "reference"):
                y = quick(start) if fuse else plain(start)
            torch.manual_seed(1)
            weight = torch.randn(y.shape, device=DEVICE).bfloat16().float()
            targets = [
                *([start] if start.requires_grad else []),
                *(p for m in modules for p in m.parameters()),
            ]
            grads = torch.autograd.grad((y.float() * weight).sum(), targets)
            results.append([y.detach().float(), *(g.float() for g in grads)])
        found[name] = max(error(a, b) for a, b in zip(*results, strict=True))
    torch.backends.cudnn.allow_tf32 = True
    return found


class Images:
    """Learnable images: a class is a smooth random pattern, shown shifted and under noise; some labels are
    wrong.

    The wrong labels keep the loss away from zero, so that relative differences of losses mean something.
    """

    def __init__(self, size: int, classes: int, wrong: float = 0.25, noise: float = 1.5) -> None:
        generator = torch.Generator().manual_seed(7)
        coarse = torch.randn(classes, 3, 8, 8, generator=generator)
        self.patterns = F.interpolate(coarse, size=(size, size), mode="bicubic", align_corners=False).to(
            DEVICE
        )
        self.size, self.classes, self.wrong, self.noise = size, classes, wrong, noise

    def batch(self, number: int, count: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator(DEVICE).manual_seed(1000 + number)
        labels = torch.randint(0, self.classes, (count,), device=DEVICE, generator=generator)
        shift = torch.randint(0, self.size // 4, (2,), device=DEVICE, generator=generator).tolist()
        x = torch.roll(self.patterns[labels], shift, (2, 3))
        x = x + self.noise * torch.randn(x.shape, device=DEVICE, generator=generator)
        other = torch.randint(0, self.classes, (count,), device=DEVICE, generator=generator)
        swap = torch.rand(count, device=DEVICE, generator=generator) < self.wrong
        return x.to(memory_format=torch.channels_last), torch.where(swap, other, labels)


def float32_gradients(step: Step, batch: Any, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients of the plain network in float32 (no autocast, no tf32)."""
    step.model.load_state_dict(state)
    torch.backends.cudnn.allow_tf32 = False
    with fused.backend("reference"):
        F.cross_entropy(step.model(batch[0]), batch[1]).backward()
    torch.backends.cudnn.allow_tf32 = True
    found = {name: p.grad for name, p in step.model.named_parameters() if p.grad is not None}
    step.model.zero_grad(set_to_none=True)
    return found


def block_errors(step: Step, batch: Any) -> dict[str, float]:
    """Worst relative errors of gradients of single blocks, fused and plain autocast, against plain float32.

    Each block is fed the network's own input: between whole networks a sign that flips by rounding changes
    everything behind it, a block alone shows the rounding of its arithmetic. Blocks that change the shape
    stand apart: plain autocast rounds their average pooling to bfloat16 before a sign. "random" and "own" are
    the output gradients used; the sums over the network's own nearly cancel, so bfloat16 loses more there,
    fused or not.
    """
    records: list[tuple[nn.Module, Tensor, Tensor]] = []

    def record(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        x = inputs[0].detach().bfloat16()
        output.register_hook(lambda grad: records.append((module, x, grad.detach().bfloat16())))

    blocks = [module for module in step.model.modules() if hasattr(module, "shortcut_per_conv")]
    hooks = [block.register_forward_hook(record) for block in blocks]
    step.gradients(*batch)
    for hook in hooks:
        hook.remove()
    found: dict[str, float] = {}
    torch.backends.cudnn.allow_tf32 = False
    for block, x, own in records:
        place = (
            "shape changes" if isinstance(getattr(block, "downsample", None), nn.Sequential) else "shape kept"
        )
        tensors = [x, *(parameter.detach() for parameter in block.parameters())]
        names = ["input", *(name for name, _ in block.named_parameters())]
        for kind, grad in (("random", torch.randn_like(own)), ("own", own)):
            exact = block_gradients(block, x.float(), grad, "reference", False)
            floors = vanishing(exact, tensors)
            for backend, autocast in (("fused", False), ("reference", True)):
                mine = block_gradients(block, x, grad, backend, autocast)
                worst, tensor = max(
                    (or_infinite(float((a.float() - b).norm()) / max(float(b.norm()), floor, 1e-20)), name)
                    for a, b, floor, name in zip(mine, exact, floors, names, strict=True)
                )
                key = f"{place}, {kind}, {backend}"
                found[key] = max(found.get(key, 0.0), worst)
                if backend == "fused" and worst > 0.02:
                    print(f"   {tuple(x.shape)} {key}: {worst:.3f} in {tensor}")
    torch.backends.cudnn.allow_tf32 = True
    return found


def vanishing(grads: tuple[Tensor, ...], tensors: list[Tensor]) -> list[float]:
    """Norms below which a gradient counts as zero: a thousandth of the block's largest |gradient| |tensor|
    product.

    The channel factor before a batch norm has such a gradient: the batch norm undoes whatever it does.
    """
    largest = max(float(g.norm() * t.float().norm()) for g, t in zip(grads, tensors, strict=True))
    return [1e-3 * largest / max(float(t.float().norm()), 1e-20) for t in tensors]


def block_gradients(
    block: nn.Module, x: Tensor, grad: Tensor, backend: str, autocast: bool
) -> tuple[Tensor, ...]:
    """Gradients of a block's input and parameters; its buffers are put back as they were."""
    kept = copy.deepcopy(block.state_dict())
    start = x.clone(memory_format=torch.preserve_format).requires_grad_()
    with fused.backend(backend), torch.autocast(DEVICE.type, torch.bfloat16, enabled=autocast):
        y = block(start)
    grads = torch.autograd.grad(y, [start, *block.parameters()], grad.to(y.dtype))
    block.load_state_dict(kept)
    return grads


def gradient_distances(
    state: dict[str, Tensor],
    variants: list[str],
    args: argparse.Namespace,
    batch: Any,
    steps: dict[str, Step],
) -> dict[str, float]:
    """From one state: a fused block's worst error, and how far whole gradients lie from plain float32's.

    `steps` keeps the variants' networks from one moment to the next, so that each is compiled once.
    """
    for name in ("binary eager", *variants):
        if name not in steps:
            steps[name] = Step(name, args.check_size, 200, args.model)
    truth = float32_gradients(steps["binary eager"], batch, state)
    moved = {k: v * (1 + 1e-6) if v.is_floating_point() else v for k, v in state.items()}
    everything = torch.cat([g.flatten() for g in truth.values()])
    others = {"float32 moved by 1e-6": float32_gradients(steps["binary eager"], batch, moved)}
    found = {}
    for name in ("binary eager", *variants):
        step = steps[name]
        step.model.load_state_dict(state)
        others[name] = step.gradients(*batch)
        if name == "fused eager":
            found.update(block_errors(step, batch))
    for name, mine in others.items():
        assert mine.keys() == truth.keys()
        found[f"network, {name}"] = error(torch.cat([mine[key].flatten() for key in truth]), everything)
    return found


def check_training(args: argparse.Namespace, variants: list[str], errors: dict[str, str]) -> dict[str, Any]:
    """Mean losses over each 20 steps, plain eager and the variants, and gradients from the same states."""
    images = Images(args.check_size, 200)
    moments = {0, min(50, args.check_steps // 2), args.check_steps}
    losses: dict[str, list[float]] = {}
    steps: dict[str, Step] = {}
    distances: dict[str, dict[str, float]] = {}
    # "again" is plain eager once more from weights moved by one part in a million: the spread of the method
    # itself.
    for name in ("binary eager", "again", *variants):
        if name != "binary eager":
            steps.clear()
        clean()
        with guarded(f"training {name}", errors):
            step = Step(
                "binary eager" if name == "again" else name, args.check_size, 200, args.model, lr=5e-4
            )
            if name == "again":
                with torch.no_grad():
                    for parameter in step.model.parameters():
                        parameter.mul_(1 + 1e-6)
            values = []
            for number in range(args.check_steps + 1):
                batch = images.batch(number, args.check_batch)
                if name == "binary eager" and number in moments:
                    state = {key: value.detach().clone() for key, value in step.model.state_dict().items()}
                    with guarded(f"gradients {number}", errors):
                        plain_ones = [variant for variant in variants if "graph" not in variant]
                        distances[f"step {number}"] = gradient_distances(
                            state, plain_ones, args, batch, steps
                        )
                values.append(step.next(*batch))
            losses[name] = torch.stack(values).float().tolist()
    plain = losses["binary eager"]
    width = 20 if CUDA else 1

    def windows(values: list[float]) -> list[float]:
        return [statistics.fmean(values[i : i + width]) for i in range(0, len(values) - width + 1, width)]

    summary: dict[str, Any] = {"gradients": distances, "windows": {k: windows(v) for k, v in losses.items()}}
    for moment, found in distances.items():
        print(f"gradients, {moment}: " + "; ".join(f"{k} {v:.3g}" for k, v in found.items()))
    print("mean losses, plain eager: " + " ".join(f"{v:.3f}" for v in windows(plain)))
    for name, values in losses.items():
        pairs = zip(windows(values), windows(plain), strict=True)
        gaps = [or_infinite(abs(a / b - 1)) for a, b in pairs]
        summary[f"largest gap {name}"] = max(gaps)
        if not max(gaps) <= LOSS_GAP:
            errors[f"loss {name}"] = f"{max(gaps)} is above {LOSS_GAP}"
        print(
            f"   {name:16s} largest gap {100 * max(gaps):.2f} %   "
            + " ".join(f"{v:.3f}" for v in windows(values))
        )
    return summary
