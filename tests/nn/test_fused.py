"""The fused training path against plain PyTorch in float32, on the CPU through Triton's interpreter."""

from __future__ import annotations

import copy
import itertools
import os

import pytest
import torch
from torch import Tensor, nn

from xnorpp.nn import SCALES, BinaryConv2d

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is first imported, here or at first use
pytest.importorskip("triton")

from xnorpp.nn import fused, fused_pool
from xnorpp.nn.fused import Unit

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Chain(nn.Module):
    """One or two units with a shortcut, as the models build them."""

    def __init__(
        self, channels: list[int], size: int, stride: int = 1, activation: str = "prelu", **options: object
    ):
        super().__init__()
        self.norms, self.convs, self.activations = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for index, (a, b) in enumerate(itertools.pairwise(channels)):
            step = stride if index == 0 else 1
            out = (size + 2 - 3) // step + 1
            self.norms.append(nn.BatchNorm2d(a))
            conv = BinaryConv2d(a, b, 3, step, 1, output_size=(out, out), **options)  # type: ignore[arg-type]
            self.convs.append(conv)
            self.activations.append(
                {"prelu": nn.PReLU(b), "one": nn.PReLU(), "relu": nn.ReLU(), "none": nn.Identity()}[
                    activation
                ]
            )
            size = out
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if "norms" in name or "scale" in name:
                    parameter.add_(0.2 * torch.randn_like(parameter))
                if "convs" in name and name.endswith("weight"):
                    parameter.mul_(8)  # so that some weights lie outside the clip of their sign's gradient

    def units(self) -> list[Unit]:
        return [Unit(*parts) for parts in zip(self.norms, self.convs, self.activations, strict=True)]

    def forward(self, x: Tensor, shortcut: Tensor | None) -> Tensor:
        with fused.backend("reference"):
            return fused.chain(x, self.units(), shortcut)


def run_both(
    model: Chain, x: Tensor, shortcut: Tensor | str | None, recompute: bool
) -> tuple[dict[str, Tensor], ...]:
    """Outputs, gradients and buffers of the plain float32 version and of the fused one."""
    torch.manual_seed(5)
    weights: Tensor | None = None
    results = []
    for fuse in (False, True):
        chain = copy.deepcopy(model).to(DEVICE, memory_format=torch.channels_last)
        dtype = torch.bfloat16 if fuse else torch.float32
        start = x.to(DEVICE, dtype).requires_grad_()
        side = start if shortcut == "x" else None
        if isinstance(shortcut, Tensor):
            side = shortcut.to(DEVICE, dtype).requires_grad_()
        if fuse:
            with fused.backend("fused", recompute):
                assert fused.use_fused(start, chain.units())
                y = fused.chain(start, chain.units(), side)
        else:
            y = chain(start, side)
        if weights is None:
            weights = torch.randn_like(y)
        (y.float() * weights.to(torch.bfloat16).float()).sum().backward()
        assert start.grad is not None
        found = {"y": y.detach().float(), "x": start.grad.float()}
        if isinstance(shortcut, Tensor):
            assert side is not None
            assert side.grad is not None
            found["shortcut"] = side.grad.float()
        for name, parameter in chain.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.shape == parameter.shape
            found[name] = parameter.grad.float()
        found.update({name: value.float() for name, value in chain.named_buffers() if "progress" not in name})
        results.append(found)
    return results[0], results[1]


def error(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm().clamp_min(1e-12))


def assert_close(plain: dict[str, Tensor], quick: dict[str, Tensor]) -> None:
    assert plain.keys() == quick.keys()
    worst = {name: error(quick[name], plain[name]) for name in plain}
    # bfloat16 keeps 8 bits: 2^-9 a rounding, a few roundings a chain; buffers are computed in float32.
    bad = {name: e for name, e in worst.items() if not e < (1e-5 if "running" in name else 1.5e-2)}
    assert not bad, bad


@pytest.mark.parametrize("scale", list(SCALES))
@pytest.mark.parametrize("recompute", [False, True])
def test_block_equals_plain(scale: str, recompute: bool) -> None:
    torch.manual_seed(1)
    model = Chain([20, 24, 20], 5, scale=scale)
    x = torch.randn(10, 20, 5, 5).bfloat16().to(memory_format=torch.channels_last)
    assert_close(*run_both(model, x, "x", recompute))


@pytest.mark.parametrize("activation", ["one", "relu", "none"])
def test_activations_and_stride(activation: str) -> None:
    torch.manual_seed(2)
    model = Chain([8, 16, 16], 7, stride=2, activation=activation, groups=2)
    x = torch.randn(9, 8, 7, 7).bfloat16() * 3 + 1
    assert_close(*run_both(model, x, torch.randn(9, 16, 4, 4).bfloat16(), False))


@pytest.mark.parametrize("method", ["bnn", "xnor"])
def test_other_methods_without_shortcut(method: str) -> None:
    torch.manual_seed(3)
    model = Chain([8, 12], 6, activation="none", method=method, center_weights=True)
    x = torch.randn(8, 8, 6, 6).bfloat16()
    assert_close(*run_both(model, x, None, False))


@pytest.mark.parametrize("activation", ["prelu", "one", "relu"])
@pytest.mark.parametrize("window", [(3, 2, 1), (2, 2, 0), (3, 1, 1)])
def test_stem_pooling_equals_plain(activation: str, window: tuple[int, int, int]) -> None:
    torch.manual_seed(4)
    act = {"prelu": nn.PReLU(12), "one": nn.PReLU(), "relu": nn.ReLU()}[activation]
    model = nn.Sequential(nn.BatchNorm2d(12), act, nn.MaxPool2d(*window))
    with torch.no_grad():
        model[0].weight.normal_()  # type: ignore[union-attr, operator]
        model[0].bias.normal_()  # type: ignore[union-attr, operator]
    x = (torch.randn(3, 12, 7, 6) * 2 + 1).bfloat16()
    found = []
    for fuse in (False, True):
        copied: nn.Sequential = copy.deepcopy(model).to(DEVICE)
        start = x.to(DEVICE, torch.bfloat16 if fuse else torch.float32).requires_grad_()
        assert not fuse or fused_pool.use_fused_pool(start, *copied)
        with fused.backend("fused" if fuse else "reference"):
            y = fused_pool.stem_end(start, *copied)
        torch.manual_seed(6)
        (y.float() * torch.randn(y.shape).bfloat16().float().to(DEVICE)).sum().backward()
        assert start.grad is not None
        result = {"y": y.detach().float(), "x": start.grad.float()}
        result.update({name: p.grad for name, p in copied.named_parameters() if p.grad is not None})
        result.update({name: b.float() for name, b in copied.named_buffers()})
        found.append(result)
    assert_close(*found)


def test_what_is_not_supported_says_why() -> None:
    model = Chain([4, 4], 3)
    x = torch.randn(2, 4, 3, 3, device=DEVICE)
    with fused.backend("fused"), pytest.raises(RuntimeError, match=r"working dtype is torch.float32"):
        fused.use_fused(x, model.units())
    with fused.backend("auto"):
        assert not fused.use_fused(x, model.units())
    half = x.bfloat16()
    assert fused.why_not_chain(half, model.units()) is None
    with torch.no_grad():
        assert fused.why_not_chain(half, model.units()) is not None
    with fused.backend("reference"):
        assert not fused.use_fused(half, model.units())
    assert fused.get_backend() == "auto"
    model.eval()
    assert "training mode" in (fused.why_not_chain(half, model.units()) or "")
    biased = Chain([4, 4], 3, bias=True)
    assert fused.why_not_chain(half, biased.units()) == "the convolution has a bias"


def test_unknown_backend() -> None:
    with pytest.raises(ValueError, match="`name`"):
        fused.set_backend("fast")
