"""Forms that foreign networks are written in: packed, they give torch's numbers, and `verify` holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from agreement import agrees
from networks import Lambda
from torch import Tensor, nn

from xnorpp.packing import PackError, check_packable, verify
from xnorpp.packing import pack_program as pack
from xnorpp.runtime.cpu import CpuModel

Forward = Callable[[Tensor], Tensor]
SHAPE = (6, 7, 9)
torch.manual_seed(0)
MATRIX, KERNEL, DEEP = torch.randn(6, 5), torch.randn(4, 6, 3, 3), torch.randn(7, 9, 6)
PERMUTATION = torch.randperm(63)


def windows(x: Tensor) -> Tensor:
    """(n, 6, 7, 9) as (n*3, 6, 7, 3)."""
    n, c, h, w = x.shape
    return x.view(n, c, h, 3, w // 3).permute(0, 3, 1, 2, 4).reshape(-1, c, h, w // 3)


def together(y: Tensor) -> Tensor:
    return y.reshape(-1, 3, *y.shape[1:]).sum(1)


def put(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 1:3, 2:, :4] = x[:, :2, :5, 5:] * 2
    y[:, 4] = 0.5
    y[..., -1] += 1
    y[:, :, 0] = torch.arange(9.0)
    return y


def put_into_zeros(x: Tensor) -> Tensor:
    y = x.new_zeros(x.shape)
    y[:, ::, 1:, 1:] = x[:, :, :-1, :-1]
    return y + torch.ones_like(x)


def first_of_stack(x: Tensor) -> Tensor:
    q, k = torch.stack([x * 2, x.relu()])
    return q @ k.transpose(-2, -1)


def heads_with_the_batch(x: Tensor) -> Tensor:
    """(3, n*2, tokens, d), as some attentions have them."""
    n = x.shape[0]
    qkv = x.flatten(2).transpose(1, 2).reshape(n, 63, 3, 2, 1).permute(2, 0, 3, 1, 4).reshape(3, n * 2, 63, 1)
    q, k, v = qkv.unbind(0)
    y = ((q * 0.5) @ k.transpose(-2, -1)).softmax(-1) @ v
    return y.view(n, 2, 63, 1).transpose(1, 2).reshape(n, 63, 2)


ATTENTION = nn.MultiheadAttention(6, 2, batch_first=True)
BIAS = torch.randn(63, 63)
CAUSAL = torch.triu(torch.ones(63, 63, dtype=torch.bool), 1)
NORM = nn.BatchNorm2d(6)
with torch.no_grad():
    NORM.running_mean.normal_()
    NORM.running_var.uniform_(0.5, 2)


def attend(mask: Tensor) -> Forward:
    def run(x: Tensor) -> Tensor:
        tokens = x.flatten(2).transpose(1, 2)
        return ATTENTION(tokens, tokens, tokens, attn_mask=mask, need_weights=False)[0]

    return run


def ask(x: Tensor) -> Tensor:
    """Learned queries, the same for every image, as in DETR."""
    tokens = x.flatten(2).transpose(1, 2)
    return ATTENTION(MATRIX.mT[None, :, :6].expand(len(x), -1, -1), tokens, 2 * tokens)[0]


def remember(x: Tensor) -> Tensor:
    """Learned keys and values, as in external attention."""
    return ATTENTION(x.flatten(2).transpose(1, 2), *(MATRIX.mT[None, :, :6].repeat(len(x), 1, 1),) * 2)[0]


FORMS: dict[str, Forward] = {
    # einsum
    "einsum of values": lambda x: torch.einsum("nchw,ncdw->nhdw", x, x * 2),
    "einsum of a matrix": lambda x: torch.einsum("nchw,ck->nkhw", x, MATRIX),
    "einsum by rows": lambda x: torch.einsum("bchw,hwc->bhw", x, DEEP),
    "einsum by rows and columns": lambda x: torch.einsum("bchw,hkc->bhwk", x, DEEP),
    "einsum outer": lambda x: torch.einsum("nc,nd->ncd", x.mean((2, 3)), x.amax((2, 3))),
    "einsum of three": lambda x: torch.einsum("nchw,nc,nhw->nhw", x, x.mean((2, 3)), x.mean(1)),
    "einsum sum": lambda x: torch.einsum("nchw->nc", x),
    "einsum with dots": lambda x: torch.einsum("...hw,...kw->...hk", x, x),
    "einsum without arrow": lambda x: torch.einsum("achw,ck", x, MATRIX),
    "einsum moves the batch": lambda x: torch.einsum("nchw,ck->hnkw", x, MATRIX).permute(1, 0, 2, 3),
    "einsum of windows": lambda x: together(torch.einsum("bchw,bchv->bcwv", windows(x), windows(x))),
    # choices
    "where": lambda x: torch.where(x > 0.25, x, -2 * x),
    "where of numbers": lambda x: torch.where(x.relu() <= 0.5, x, 1.5),
    "where with a mask": lambda x: torch.where(torch.arange(9) % 2 == 0, x, x * x),
    "where constants": lambda x: torch.where(x >= x.mean((2, 3), keepdim=True), torch.ones(7, 9), 0.0),
    "comparisons": lambda x: ((x > 0) & ~(x < 0.5) | (x < -1)).float() * x,
    "masked_fill": lambda x: x.masked_fill(torch.eye(7, 9, dtype=torch.bool), -3.0),
    "masked softmax": lambda x: x.masked_fill(torch.eye(7, 9, dtype=torch.bool), float("-inf")).softmax(-1),
    "maximum": lambda x: torch.maximum(x, 1 - x),
    "minimum of a constant": lambda x: torch.minimum(x, torch.linspace(-1, 1, 9)),
    "max of two": lambda x: torch.max(x, -x),
    "clamp by one number": lambda x: x.clamp(torch.tensor(-0.5), torch.tensor([0.25])),
    "clamp by tensors": lambda x: torch.clamp(x, x.mean((2, 3), keepdim=True), torch.linspace(-1, 1, 9)),
    "clamp without limits": lambda x: x.relu().clamp(-torch.tensor(torch.inf), torch.tensor(torch.inf)),
    "clamp from above by a tensor": lambda x: x.clip(max=torch.linspace(-1, 1, 6)[:, None, None]),
    "max along": lambda x: x.max(1)[0],
    "min along": lambda x: torch.min(x, dim=2, keepdim=True).values,
    # axes
    "put": put,
    "put into zeros": put_into_zeros,
    "list of channels": lambda x: x[:, [4, 0, 5, 5, 1]] * 2,
    "many places": lambda x: x.flatten(2)[:, :, PERMUTATION],
    "index_select": lambda x: x.index_select(3, torch.tensor([8, 7, 0])),
    "stack of branches": lambda x: torch.stack([x.mean((2, 3)), x.amax((2, 3))]).sum(0),
    "stack and unpack": first_of_stack,
    "heads with the batch": heads_with_the_batch,
    "constant repeats": lambda x: x.mean((2, 3), keepdim=True) * torch.eye(7, 9) + torch.ones(1, 6, 7, 9),
    "matmul repeats": lambda x: x @ x.mean(1, keepdim=True).transpose(-2, -1),
    "no tokens apart": lambda x: torch.cat([x[:, :, :0], x[:, :, 0:].relu()], 2),
    "no windows apart": lambda x: together(torch.cat([windows(x)[:, :0], windows(x)], 1)),
    "matrices by constants": lambda x: x @ DEEP[:6, :, :4],
    "constants by matrices": lambda x: DEEP[None, :6, :, :].transpose(-1, -2)[..., :7] @ x,
    "a query that was learned": lambda x: F.scaled_dot_product_attention(
        BIAS[:2, :9].expand(x.shape[0], 6, 2, 9), x, 2 * x
    ),
    "queries of each head": lambda x: F.scaled_dot_product_attention(DEEP[:6].mT[None], x, x),
    # windows
    "unfold": lambda x: F.unfold(x, (3, 2), padding=(1, 0), stride=(2, 1)),
    "fold": lambda x: F.fold(F.unfold(x, 3, padding=1), (7, 9), 3, padding=1),
    "fold with strides": lambda x: F.fold(F.unfold(x, 3, stride=2), (7, 9), 3, stride=2),
    "unfold an axis": lambda x: x.unfold(3, 4, 2).unfold(2, 3, 4),
    "bicubic": lambda x: F.interpolate(x, scale_factor=2.0, mode="bicubic"),
    "bicubic of a size": lambda x: F.interpolate(x, (5, 13), mode="bicubic", align_corners=True),
    "infinite border": lambda x: F.max_pool2d(F.pad(x, (0, 1, 0, 1), value=-float("inf")), 2),
    # a batch that is merged with windows
    "conv of windows": lambda x: together(F.conv2d(windows(x), KERNEL, padding=1)),
    "grouped conv of windows": lambda x: together(F.conv2d(windows(x), KERNEL[:, :3], groups=2, stride=2)),
    "transposed conv of windows": lambda x: together(
        F.conv_transpose2d(windows(x), KERNEL.swapaxes(0, 1), KERNEL[:, 0, 0, 0], 2, 1, output_padding=1)
    ),
    "grouped transposed conv of rows": lambda x: F.conv_transpose1d(
        x.transpose(1, 2).reshape(-1, 6, 9), KERNEL.swapaxes(0, 1)[:, :2, 0], None, 3, 1, 0, 2
    ).reshape(len(x), 7, 4, -1),
    "pool of windows": lambda x: together(F.max_pool2d(windows(x), 3, 2, 1)),
    "batch norm of windows": lambda x: together(NORM(windows(x))),
    "group norm of windows": lambda x: together(F.group_norm(windows(x), 3)),
    "images for windows": lambda x: together(windows(x) * x.mean((2, 3), True).repeat_interleave(3, 0)),
    "rows with the batch": lambda x: (
        (x.permute(2, 0, 3, 1).reshape(7, -1, 6) @ DEEP.mT)
        .reshape(7, x.shape[0], 9, 9)
        .permute(1, 0, 2, 3)
    ),
    "padded windows": lambda x: together(F.pad(windows(x), (1, 0, 2, 1))),
    "joined windows": lambda x: together(torch.cat([windows(x), windows(x).relu()], 1)),
    "slices of windows": lambda x: together(windows(x)[:, 1:4, None, 2]),
    # functions
    "glu": lambda x: F.glu(x, dim=1),
    "log1p": lambda x: torch.log1p(x.abs()),
    "expm1": torch.expm1,
    "log2 and log10": lambda x: torch.log2(x.abs() + 1) - torch.log10(x.abs() + 2),
    "cube": lambda x: x**3 + x.pow(4),
    "a fraction as power": lambda x: x.abs() ** 0.7 + x.relu().pow(1.5),
    "logsumexp": lambda x: torch.logsumexp(4 * x, (1, 3)) + x.logsumexp(2).mean((1, 2), keepdim=True)[:, 0],
    "local response norm": lambda x: F.local_response_norm(3 * x, 4, alpha=0.1, beta=0.75, k=2.0),
    "local response norm of three": nn.LocalResponseNorm(3, alpha=0.5),
    "attention with a mask": attend(CAUSAL),
    "attention with a bias": attend(BIAS),
    "attention with learned queries": ask,
    "attention with learned keys and values": remember,
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_a_form_packs(name: str) -> None:
    x = np.random.default_rng(0).standard_normal((3, *SHAPE)).astype(np.float32)
    model = Lambda(FORMS[name])
    model.used = nn.ModuleList([ATTENTION, NORM])  # so that their weights are the model's
    for i, constant in enumerate((MATRIX, KERNEL, DEEP, PERMUTATION, CAUSAL, BIAS)):
        model.register_buffer(f"constant{i}", constant)
    model.eval()
    with torch.no_grad():
        wanted = model(torch.from_numpy(x.copy())).numpy()
    found = CpuModel(pack(model, SHAPE))(x)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)
    assert verify(model, x).holds


VIDEO = (3, 6, 7, 9)
TAPS = torch.randn(5, 3, 3, 3, 2)
VOLUMES: dict[str, Forward] = {
    "conv3d": lambda x: F.conv3d(x, TAPS, TAPS[:, 0, 0, 0, 0], padding=(1, 0, 1)),
    "strides and dilation": lambda x: F.conv3d(
        x, TAPS, stride=(2, 2, 1), padding=(2, 2, 1), dilation=(1, 2, 2)
    ),
    "long strides": lambda x: F.conv3d(x, TAPS[:, :, :1, :2], stride=(1, 3, 2), padding=(0, 1, 0)),
    "grouped": lambda x: F.conv3d(x, TAPS[:3, :1], groups=3, padding="same" if TAPS.shape[4] % 2 else 1),
    "along the depth": lambda x: F.conv3d(x, TAPS[:, :, :, :1, :1], padding=(1, 0, 0)).relu(),
    "max_pool3d": lambda x: F.max_pool3d(x, (3, 2, 3), (2, 2, 1), (1, 1, 0), ceil_mode=True),
    "avg_pool3d": lambda x: F.avg_pool3d(x, (2, 3, 3), 2, (0, 1, 1), count_include_pad=False),
    "adaptive_avg_pool3d": lambda x: F.adaptive_avg_pool3d(x, (2, 3, 1)),
    "adaptive_max_pool3d": lambda x: F.adaptive_max_pool3d(x, (4, 1, 2)),
    "global mean": lambda x: F.adaptive_avg_pool3d(x, 1).flatten(1),
    "channels with the batch": lambda x: F.conv3d(
        x.reshape(-1, 1, *x.shape[2:]), TAPS[:2, :1], padding=1, stride=(1, 2, 1)
    ).reshape(x.shape[0], 6, 6, 4, 10),
    "pool with the batch": lambda x: F.max_pool3d(x.reshape(-1, 1, *x.shape[2:]), 2).reshape(
        x.shape[0], 3, 3, 3, 4
    ),
}


@pytest.mark.parametrize("name", VOLUMES)
def test_volumes_pack(name: str) -> None:
    x = np.random.default_rng(0).standard_normal((3, *VIDEO)).astype(np.float32)
    model = Lambda(VOLUMES[name]).eval()
    model.register_buffer("taps", TAPS)
    with torch.no_grad():
        wanted = model(torch.from_numpy(x)).numpy()
    found = CpuModel(pack(model, example=x))(x)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)
    assert verify(model, x).holds


REFUSED: dict[str, tuple[Forward, str]] = {
    "einsum over images": (
        lambda x: torch.einsum("nc,mc->nm", x.mean((2, 3)), x.mean((2, 3))),
        "mixes images",
    ),
    "images by images": (lambda x: x.mean((2, 3)) @ x.mean((2, 3)).t(), "each image by every other"),
    "the batch again": (lambda x: x.repeat(2, 1, 1, 1), "first axis is not the batch"),
    "diagonal": (lambda x: torch.einsum("nchh->nch", x[..., :7]), "letter twice"),
    "chosen by values": (lambda x: x[x > 0], "index"),
    "images put in": (lambda x: x.clone().index_fill_(0, torch.tensor([0]), 0.0), "index_fill"),
    "one argument": (lambda x: torch.where(x > 0)[0], "name both values"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_has_a_remedy(name: str) -> None:
    function, message = REFUSED[name]
    model = Lambda(function)
    found = check_packable(model, SHAPE)
    assert not found
    assert all(obstacle.remedy and "\n" not in str(obstacle) for obstacle in found.obstacles)
    with pytest.raises(PackError, match=message):
        pack(model, SHAPE)


def test_a_masked_choice_is_exact() -> None:
    """Not a sum that rounds: the numbers that are not chosen leave no trace."""
    model = Lambda(lambda x: torch.where(x > 0, x * 1e-20, 1e20 * x))
    x = np.random.default_rng(1).standard_normal((2, *SHAPE)).astype(np.float32)
    found = CpuModel(pack(model, SHAPE))(x)
    np.testing.assert_array_equal(found, np.where(x > 0, x * np.float32(1e-20), x * np.float32(1e20)))


def test_bicubic_resampling_takes_images_of_any_size() -> None:
    torch.manual_seed(0)
    up = nn.Upsample(scale_factor=2, mode="bicubic", align_corners=False)
    model = nn.Sequential(nn.Conv2d(3, 5, 3, 2, 1), up, nn.Conv2d(5, 2, 1)).eval()
    program = pack(model, (3, 12, 16))
    assert program.variable
    for size in ((12, 16), (10, 6), (18, 22)):
        x = torch.randn(2, 3, *size)
        with torch.no_grad():
            wanted = model(x).numpy()
        np.testing.assert_allclose(CpuModel(program)(x.numpy()), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pool", [F.avg_pool2d, F.max_pool2d])
@pytest.mark.parametrize("kernel", [9, (3, 50), 2560])
def test_windows_larger_than_the_image(pool: Any, kernel: Any) -> None:
    """With `ceil_mode`, as a pool over whatever is left has it."""
    agrees(lambda x: pool(x, kernel, ceil_mode=True) * 2, torch.randn(3, 4, 7, 6))
