"""Normalisation, reductions, attention and token mixing as torch networks call them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from networks import Lambda
from torch import Tensor, nn

from xnorpp.nn import BinaryConv2d, BinaryLinear
from xnorpp.packing import pack_program as pack
from xnorpp.packing import verify
from xnorpp.runtime.cpu import CpuModel
from xnorpp.runtime.plan import make_steps


def images(n: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((n, *shape)).astype(np.float32)


class ChannelsLast(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def random_affine(module: nn.Module) -> nn.Module:
    g = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, tensor in module.named_parameters():
            if tensor.ndim <= 1 or "norm" in name:
                tensor.normal_(0.5, 0.7, generator=g)
    return module.eval()


NORMS: dict[str, Callable[[], nn.Module]] = {
    "group": lambda: nn.GroupNorm(3, 12),
    "one group": lambda: nn.GroupNorm(1, 12),
    "instance": lambda: nn.InstanceNorm2d(12, affine=True),
    "layer of all": lambda: nn.LayerNorm((12, 6, 5)),
    "layer of rows": lambda: nn.LayerNorm((5,)),
    "layer of images": lambda: nn.LayerNorm((6, 5)),
    "channels last": lambda: ChannelsLast(nn.LayerNorm(12)),
    "rms": lambda: ChannelsLast(nn.RMSNorm(12)),
    "normalize": lambda: Lambda(F.normalize),
    "by hand": lambda: Lambda(
        lambda x: (x - x.mean(1, keepdim=True)) / torch.sqrt(x.var(1, unbiased=False, keepdim=True) + 1e-6)
    ),
    "standard": lambda: Lambda(
        lambda x: (x - x.mean((1, 2, 3), keepdim=True)) / x.std((1, 2, 3), keepdim=True)
    ),
}
REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean of channels": lambda x: x.mean(1),
    "mean twice": lambda x: x.mean(3).mean(2),
    "amax": lambda x: x.amax((2, 3)),
    "amin": lambda x: x.amin(1, keepdim=True) + x,
    "sum": lambda x: x.sum(-1),
    "norm": lambda x: x.norm(p=2, dim=(2, 3), keepdim=True) * x,
    "global max": lambda x: F.adaptive_max_pool2d(x, 1).flatten(1),
    "softmax": lambda x: x.softmax(-1) + F.softmax(x, 1),
    "log softmax": lambda x: F.log_softmax(x.mean((2, 3)), 1),
    "log softmax of pixels": lambda x: x.log_softmax(1),
    "matmul": lambda x: x @ x.transpose(-1, -2),
    "flat matmul": lambda x: torch.bmm(x.flatten(2), x.flatten(2).transpose(1, 2)),
}


@pytest.mark.parametrize("name", NORMS)
def test_normalisation(name: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 12, 3), random_affine(NORMS[name]()), nn.Conv2d(12, 4, 1)).eval()
    found = verify(model, images(4, 3, 8, 7))
    assert found.holds
    assert found.output_error < 1e-4


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_and_products(name: str) -> None:
    model, x = Lambda(REDUCTIONS[name]).eval(), images(3, 4, 6, 5)
    with torch.no_grad():
        want = model(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(CpuModel(pack(model, (4, 6, 5)))(x), want, rtol=1e-5, atol=1e-5)
    assert verify(model, x).holds


class Attention(nn.Module):
    """As timm's: one projection for queries, keys and values, whose axes move past the batch."""

    def __init__(self, width: int, heads: int, fused: bool, binary: bool) -> None:
        super().__init__()
        linear = BinaryLinear if binary else nn.Linear
        self.heads, self.fused = heads, fused
        self.qkv, self.proj = linear(width, 3 * width), linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, width = x.shape
        qkv = self.qkv(x).reshape(n, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        if self.fused:
            x = F.scaled_dot_product_attention(q, k, v, dropout_p=0.0)
        else:
            q = q * (width // self.heads) ** -0.5
            x = (q @ k.transpose(-2, -1)).softmax(dim=-1) @ v
        return self.proj(x.transpose(1, 2).reshape(n, tokens, width))


class Transformer(nn.Module):
    def __init__(self, fused: bool = True, binary: bool = True) -> None:
        super().__init__()
        width = 24
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 13, width) * 0.2)
        self.norm1, self.norm2, self.norm = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, 3, fused, binary)
        linear = BinaryLinear if binary else nn.Linear
        self.up, self.down = linear(width, 2 * width), linear(2 * width, width)
        self.scale = nn.Parameter(torch.rand(width) + 0.5)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        x = x + self.scale * self.attention(self.norm1(x))
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return self.head(self.norm(x)[:, 0])


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("binary", [False, True])
def test_a_transformer(fused: bool, binary: bool) -> None:
    torch.manual_seed(0)
    model = random_affine(Transformer(fused, binary))
    x = images(16, 3, 12, 16)
    found = verify(model, x)
    assert found.holds
    assert found.same_class == 1 or binary
    program = pack(model, (3, 12, 16))
    with torch.no_grad():
        want = model(torch.from_numpy(x)).numpy()
    got = CpuModel(program)(x)
    assert np.mean(got.argmax(1) == want.argmax(1)) >= 0.9


def test_a_global_response_norm() -> None:
    class Block(nn.Module):
        """ConvNeXt V2's: channels last, gated by the length of each channel over its mean."""

        def __init__(self) -> None:
            super().__init__()
            self.conv = BinaryConv2d(8, 8, 3, padding=1)
            self.norm = nn.LayerNorm(8)
            self.up, self.down = nn.Linear(8, 16), BinaryLinear(16, 8)
            self.weight, self.bias = nn.Parameter(torch.randn(16)), nn.Parameter(torch.randn(16))

        def forward(self, x: Tensor) -> Tensor:
            y = F.gelu(self.up(self.norm(self.conv(x).permute(0, 2, 3, 1))))
            length = y.norm(p=2, dim=(1, 2), keepdim=True)
            gate = length / (length.mean(dim=-1, keepdim=True) + 1e-6)
            y = y + torch.addcmul(self.bias.view(1, 1, 1, -1), self.weight.view(1, 1, 1, -1), y * gate)
            return x + self.down(y).permute(0, 3, 1, 2)

    torch.manual_seed(0)
    model = random_affine(nn.Sequential(nn.Conv2d(3, 8, 3), Block(), nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    assert verify(model, images(8, 3, 9, 8)).holds


def test_embeddings_of_fixed_numbers_are_constants() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(6, 5)
            self.register_buffer("places", torch.arange(6))

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(x + self.table(self.places))

    model, x = Positions().eval(), images(2, 6, 5)
    with torch.no_grad():
        want = model(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(CpuModel(pack(model, torch.from_numpy(x)))(x), want, rtol=1e-6, atol=1e-6)


def test_queries_of_a_transformer_are_slices_of_channels() -> None:
    """What torch writes as reshapes, permutes and slices moves no number but those of the three slices."""
    program = pack(random_affine(Transformer()), (3, 12, 16))
    kinds = [op.op for op in program.ops]
    assert "permute" not in kinds
    cuts = [op for op in program.ops if op.op == "slice" and program.values[op.output].shape == (24, 1, 13)]
    assert sorted(op.attrs["start"][0] for op in cuts) == [0, 24, 48]
    steps = {step.kind for step in make_steps(program)}
    assert "permute" not in steps
    assert kinds.count("attention") == 1


def test_multi_head_attention() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(12, 3, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.attention(x, x, x, need_weights=False)[0]

    torch.manual_seed(1)
    model, x = Net().eval(), images(3, 7, 12)
    with torch.no_grad():
        want = model(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(CpuModel(pack(model, torch.from_numpy(x)))(x), want, rtol=1e-5, atol=1e-5)
    assert verify(model, x).holds


MASKED: dict[str, Callable[[Tensor], Tensor]] = {
    "causal": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "summand": lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=torch.eye(6) * 2),
    "truth": lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=torch.eye(6, dtype=torch.bool)),
    "one head of keys": lambda x: F.scaled_dot_product_attention(x, x[:, :1], x[:, :1] * 2),
}


@pytest.mark.parametrize("name", MASKED)
def test_attention_with_masks_and_shared_keys(name: str) -> None:
    model, x = Lambda(MASKED[name]).eval(), images(3, 4, 6, 5)
    with torch.no_grad():
        want = model(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(CpuModel(pack(model, (4, 6, 5)))(x), want, rtol=1e-5, atol=1e-5)
    assert verify(model, x).holds


def test_a_layer_on_a_constant_makes_a_constant() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("places", torch.randn(1, 3, 6, 5))
            self.encode = BinaryConv2d(3, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(x + self.encode(self.places))

    model, x = Net().eval(), images(2, 4, 6, 5)
    with torch.no_grad():
        want = model(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(CpuModel(pack(model, (4, 6, 5)))(x), want, rtol=1e-6, atol=1e-6)
