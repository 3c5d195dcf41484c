"""ReCU's standardized weights on the fused path against autograd of the plain path, through Triton's
interpreter on the CPU."""

from __future__ import annotations

import copy
import os

import pytest
import torch
from torch import Tensor, nn

from xnorpp.nn import BinaryConv2d
from xnorpp.nn.quantizers import RectifiedClampSign

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is first imported, here or at first use
pytest.importorskip("triton")

from xnorpp.nn.fused import dispatch as fused
from xnorpp.nn.fused.dispatch import End, Unit
from xnorpp.nn.fused.unit import DTYPES
from xnorpp.nn.fused.weights import Latent, clamp_of, weight_gradient, weight_signs

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROUNDING = 2e-6  # of float32 statistics, relative to the largest value: sums differ in their order alone


def layer(
    outputs: int, inputs: int, kernel: int, channels_last: bool = False, groups: int = 1
) -> BinaryConv2d:
    conv = BinaryConv2d(
        inputs, outputs, kernel, padding=kernel // 2, groups=groups, bias=False,
        weights="recu", standardize_weights=True,
    )  # fmt: skip
    with torch.no_grad():
        laplace = torch.distributions.Laplace(0.0, 0.1).sample(conv.weight.shape)
        conv.weight.copy_(laplace + 0.05 * torch.randn(outputs, 1, 1, 1))
    return conv.to(DEVICE, memory_format=torch.channels_last if channels_last else torch.contiguous_format)


def plain(conv: BinaryConv2d, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Standardized weight, signs, and the gradient of the weight by autograd."""
    latent = conv.latent_weight()
    signs = conv.binarization.weights(latent, conv.progress)
    (found,) = torch.autograd.grad(signs, conv.weight, grad)
    return latent.detach(), signs.detach(), found


@pytest.mark.parametrize("progress", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    ("outputs", "inputs", "kernel", "groups"),
    [(16, 16, 3, 1), (7, 5, 3, 1), (12, 20, 1, 1), (3, 512, 3, 1), (6, 6, 5, 3), (4, 1, 1, 1), (1, 33, 1, 1)],
)
def test_signs_and_gradient_equal_plain(
    outputs: int, inputs: int, kernel: int, groups: int, channels_last: bool, progress: float
) -> None:
    conv = layer(outputs, inputs, kernel, channels_last, groups)
    conv.progress.fill_(progress)
    grad = torch.randn_like(conv.weight)
    x, signs, expected = plain(conv, grad)
    latent = Latent(conv.weight.detach(), clamp_of(conv), conv.progress)
    assert latent.clamp is not None
    found = weight_signs(latent, DTYPES)
    assert (found.half.dtype, found.wide.dtype) == DTYPES
    assert found.half.stride() == conv.weight.stride()
    clear = x.abs() > 1e-5
    assert clear.float().mean() > 0.9 or conv.weight[0].numel() == 1
    for made in (found.half, found.wide):
        assert set(made.unique().tolist()) <= {-1.0, 1.0}
        assert torch.equal(made.float()[clear], signs[clear])
    result = weight_gradient(grad, latent, found.table)
    assert result.stride() == conv.weight.stride()
    assert (result - expected).abs().max() <= ROUNDING * expected.abs().max().clamp_min(1e-3)
    assert torch.equal(weight_gradient(grad, latent, weight_signs(latent, DTYPES).table), result)
    if conv.weight.numel() > 300 and progress < 1:  # the clamp takes some of the gradients away
        assert 0.01 < float((conv.binarization.weights.slope(x, conv.progress) == 0).float().mean()) < 0.35


def test_progress_is_that_of_the_forward_pass() -> None:
    conv = layer(16, 16, 3)
    grad = torch.randn_like(conv.weight)
    latent = Latent(conv.weight.detach(), clamp_of(conv), conv.progress)
    expected = plain(conv, grad)[2]
    table = weight_signs(latent, DTYPES).table
    conv.progress.fill_(1.0)
    later = plain(conv, grad)[2]
    assert torch.allclose(weight_gradient(grad, latent, table), expected, atol=1e-5)
    assert not torch.allclose(later, expected, atol=1e-3)
    table = weight_signs(latent, DTYPES).table
    assert torch.allclose(weight_gradient(grad, latent, table), later, atol=1e-5)


def test_a_filter_whose_weights_are_all_alike() -> None:
    conv = layer(4, 4, 3)
    with torch.no_grad():
        conv.weight[1] = 0.1
    grad = torch.randn_like(conv.weight)
    latent = Latent(conv.weight.detach(), clamp_of(conv), conv.progress)
    result = weight_gradient(grad, latent, weight_signs(latent, DTYPES).table)
    expected = plain(conv, grad)[2]
    assert torch.isfinite(result).all()
    assert torch.allclose(result[[0, 2, 3]], expected[[0, 2, 3]], rtol=1e-4, atol=1e-5)


class OwnClamp(RectifiedClampSign):
    def slope(self, x: Tensor, progress: object) -> Tensor:
        return torch.ones_like(x)


def test_what_is_left_to_autograd() -> None:
    conv = layer(4, 4, 3)
    assert clamp_of(conv) is conv.binarization.weights
    assert clamp_of(BinaryConv2d(4, 4, 3, weights="recu")) is None
    assert clamp_of(BinaryConv2d(4, 4, 3, standardize_weights=True)) is None
    assert clamp_of(BinaryConv2d(4, 4, 3, weights=OwnClamp(), standardize_weights=True)) is None
    conv.weight = nn.Parameter(torch.randn(4, 4, 3, 6)[..., ::2])
    assert clamp_of(conv) is None


class Block(nn.Module):
    """Two convolutions with standardized weights, after a batch norm each, or before one as in others'
    networks."""

    def __init__(self, closes: bool) -> None:
        super().__init__()
        self.closes = closes
        self.conv1, self.conv2, self.side = layer(12, 8, 3), layer(12, 12, 3), layer(12, 8, 1)
        self.norm0, self.norm1, self.norm2 = nn.BatchNorm2d(8), nn.BatchNorm2d(12), nn.BatchNorm2d(12)
        self.norm3, self.relu = nn.BatchNorm2d(12), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        if self.closes:
            units = [Unit(None, self.conv1), Unit(self.norm1, self.conv2)]
            return fused.chain(x, units, end=End(self.norm2, self.relu, Unit(None, self.side), self.norm3))
        return fused.chain(x, [Unit(self.norm0, self.conv1), Unit(self.norm1, self.conv2)])


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
def test_a_block_under_autocast_never_takes_the_plain_way(
    closes: bool, recompute: bool, channels_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Block(closes).to(DEVICE)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
    for conv in (model.conv1, model.conv2, model.side):
        conv.progress.fill_(0.6)
    x = torch.randn(8, 8, 4, 4, device=DEVICE).bfloat16()
    weights = torch.randn(8, 12, 4, 4, device=DEVICE).bfloat16().float()
    found: list[dict[str, Tensor]] = []
    for quick in (False, True):
        network = copy.deepcopy(model)
        start = x.clone() if quick else x.float()
        start.requires_grad_()
        with fused.backend("fused" if quick else "reference", recompute and quick):
            if quick:
                monkeypatch.setattr(RectifiedClampSign, "slope", None)  # to call it would be an error
            with torch.autocast(DEVICE, torch.bfloat16, enabled=quick):
                y = network(start)
            (y.float() * weights).sum().backward()
        gradients = {n: p.grad for n, p in network.named_parameters() if p.grad is not None}
        found.append({"y": y.detach().float(), **gradients})
    assert found[0].keys() == found[1].keys()
    assert {"conv1.weight", "conv2.weight"} <= found[0].keys()
    for name, expected in found[0].items():
        error = (found[1][name] - expected).norm() / expected.norm()
        assert error < 1.5e-2, (name, float(error))  # gradients between layers are bfloat16
