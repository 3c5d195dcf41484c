"""Forms with unusual arguments, composed functions, single numbers, constants from outside, mixed images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from networks import Lambda
from torch import Tensor, nn

import xnorpp
from xnorpp.packing import PackError, pack_program, verify
from xnorpp.packing.composed import COMPOSED
from xnorpp.runtime.cpu import CpuModel

SHAPE = (6, 7, 9)
torch.manual_seed(0)
VECTOR, MATRIX = torch.randn(6), torch.randn(5, 6)  # tensors of the module around the model
CHANNELS = torch.rand(6, 1, 1) + 0.5


def mean(x: Tensor) -> Tensor:
    return x.mean((2, 3))


def coordinates(x: Tensor) -> Tensor:
    """As CoordConv writes it: constants that take the value's type and shape."""
    n, _, h, w = x.shape
    rows = torch.arange(h).repeat(1, w, 1).transpose(1, 2).float() / (h - 1)
    columns = torch.linspace(-1, 1, w).expand(h, w)[None]
    return torch.cat([x, rows.repeat(n, 1, 1, 1).type_as(x), columns.repeat(n, 1, 1, 1).to(x)], 1)


def in_place(x: Tensor) -> Tensor:
    y = x * 2
    y.lerp_(x.relu(), 0.3)
    return y + 1


FORMS: dict[str, Callable[[Tensor], Any]] = {
    "mT": lambda x: x.mT @ x,
    "T": lambda x: (mean(x).T * 2).T,
    "lerp": lambda x: torch.lerp(x, x.relu(), 0.3),
    "lerp in place": in_place,
    "addcdiv": lambda x: torch.addcdiv(x, x.relu(), x.abs() + 1, value=0.5),
    "addmm": lambda x: torch.addmm(MATRIX[:, 0], mean(x), MATRIX.t(), alpha=0.5),
    "baddbmm": lambda x: torch.baddbmm(x.mean(1)[:, :, :7], x[:, 0], x[:, 1].mT, beta=2),
    "vector": lambda x: x.permute(0, 2, 3, 1) @ VECTOR,
    "inner": lambda x: torch.inner(mean(x), MATRIX),
    "vecdot": lambda x: torch.linalg.vecdot(x, x.relu(), dim=1),
    "tensordot": lambda x: torch.tensordot(x.permute(0, 2, 3, 1), MATRIX, dims=([3], [1])),
    "bilinear": lambda x: F.bilinear(mean(x), x.amax((2, 3)), torch.ones(3, 6, 6).cumsum(2), VECTOR[:3]),
    "var_mean": lambda x: torch.cat(torch.var_mean(x, (2, 3)), 1),
    "std_mean": lambda x: torch.std_mean(x, 1, correction=0, keepdim=True)[0] * x,
    "aminmax": lambda x: sum(torch.aminmax(x, dim=3)),
    "cosine": lambda x: F.cosine_similarity(x, x.relu(), dim=1),
    "hstack": lambda x: torch.hstack([x, x.relu()]),
    "broadcast": lambda x: sum(torch.broadcast_tensors(x, x.amax((2, 3), keepdim=True))),
    "diff": lambda x: torch.diff(x, n=2, dim=2),
    "cumsum": lambda x: x.cumsum(2),
    "triangles": lambda x: x.tril(1) - x.triu(),
    "rot90": lambda x: torch.rot90(x, 1, (2, 3)) + torch.rot90(x, 3, (2, 3)),
    "rot180": lambda x: torch.rot90(x, 2, (2, 3)),
    "tile": lambda x: x.tile(2, 1),
    "lp_pool2d": lambda x: F.lp_pool2d(x, 2, (2, 3), ceil_mode=True),
    "lp_pool1d": lambda x: F.lp_pool1d(x.flatten(2), 2, 4),
    "threshold": lambda x: F.threshold(x, 0.1, -0.4),
    "rrelu": lambda x: F.rrelu(x, 0.1, 0.3),
    "softmin": lambda x: F.softmin(x, 1),
    "softplus": lambda x: F.softplus(x, beta=3, threshold=1),
    "exp2": torch.exp2,
    "number to a power": lambda x: 2**x + torch.pow(3.0, x),
    "learned power": lambda x: x.abs().clamp(min=1e-6).pow(VECTOR[:1] ** 2 + 2).mean((2, 3)),
    "power for each channel": lambda x: (x.abs() + 0.1) ** CHANNELS,
    "whole powers": lambda x: x**5 + (x.abs() + 1) ** -3,
    "norms": lambda x: x.norm(p=1, dim=1) + torch.linalg.vector_norm(x, ord=float("inf"), dim=1),
    "l1": lambda x: F.normalize(x, p=1, dim=1),
    "norm with windows": lambda x: F.normalize(x.reshape(-1, 7, 9), 2, 1).view(-1, 6, 7, 9),
    "layer norm with windows": lambda x: F.layer_norm(x.reshape(-1, 7, 9), [9]).view(-1, 6, 7, 9),
    "shared heads": lambda x: F.scaled_dot_product_attention(x, x[:, :3], x[:, :3].relu(), enable_gqa=True),
    "outside": lambda x: x * CHANNELS + torch.ones(6, 1, 1),
    "coordinates": coordinates,
    # unusual arguments
    "uneven chunks": lambda x: torch.cat([part * i for i, part in enumerate(x.chunk(4, -1))], -1),
    "more chunks than channels": lambda x: x.chunk(20, 1)[5] - x.chunk(4, 1)[-1],
    "split by sizes": lambda x: torch.cat(x.split([1, 4, 2], dim=-2)[::-1], 2),
    "negative steps": lambda x: x[:, 1:-1:3, ::2, -5:],
    "constant around": lambda x: F.pad(x, (1, 2, 3, 0, 1, 2), value=-1.5),
    "less around": lambda x: F.pad(x, (-1, -2, 1, 0)),
    "reflected": lambda x: F.pad(x, (1, 2, 3, 0), mode="reflect"),
    "replicated": lambda x: F.pad(x, (5, 6, 7, 8), mode="replicate"),
    "sequence reflected": lambda x: F.pad(x.flatten(2), (3, 4), mode="reflect"),
    "shuffled to pixels": lambda x: F.pixel_shuffle(x[:, :4], 2),
    "nearest of a fraction": lambda x: F.interpolate(x, scale_factor=(1.5, 2.3)),
    **{
        f"{mode} that adds nothing": lambda x, mode=mode: (
            F.interpolate(x, scale_factor=(2.0, 1.1), mode=mode) + 1
        )
        for mode in ("nearest", "nearest-exact", "bilinear", "bicubic")
    },
    **{
        f"{mode} of rows that adds nothing": lambda x, mode=mode: (
            F.interpolate(x[:, 0], scale_factor=1.1, mode=mode) + 1
        )
        for mode in ("nearest", "nearest-exact", "linear")
    },
    "bilinear to a size": lambda x: F.interpolate(x, size=(13, 5), mode="bilinear", align_corners=True),
    "bilinear, recomputed": lambda x: F.interpolate(
        x, scale_factor=1.7, mode="bilinear", recompute_scale_factor=True
    ),
    "sequence enlarged": lambda x: F.interpolate(x.flatten(2), scale_factor=2, mode="linear"),
    "dilated maxima": lambda x: F.max_pool2d(x, 3, 2, 1, dilation=2, ceil_mode=True),
    "means at the edge": lambda x: F.avg_pool2d(x, 4, 3, 2, ceil_mode=True, count_include_pad=False),
    "means over another number": lambda x: F.avg_pool2d(x, 2, divisor_override=3),
    "adaptive, larger": lambda x: F.adaptive_avg_pool2d(x, (8, 4)),
    "adaptive maxima": lambda x: F.adaptive_max_pool2d(x, (None, 4)),
    "maximum of all": lambda x: torch.amax(x, (-1, -3)) + F.adaptive_max_pool2d(x, 1).flatten(1)[:, :1],
    "log softmax of rows": lambda x: F.log_softmax(x, dim=-2),
    "groups of channels": lambda x: F.group_norm(x, 3, VECTOR, VECTOR),
    "each channel": lambda x: F.instance_norm(x, weight=VECTOR),
    "pixels together": lambda x: F.layer_norm(x, (7, 9)),
    "mean squares": lambda x: F.rms_norm(x, (9,), eps=1e-5),
    # one number for each image, (n,)
    "squeezed": lambda x: (mean(x) @ MATRIX.T[:, :1]).squeeze(1).sigmoid(),
    "dot product": lambda x: (mean(x) * x.amax((2, 3))).sum(-1),
    "flat": lambda x: x.mean((1, 2, 3), keepdim=True).flatten(),
    "its own length": lambda x: x / x.flatten(1).norm(dim=1).view(-1, 1, 1, 1),
    "minus its mean": lambda x: x - x.mean((1, 2, 3))[:, None, None, None],
    "stacked": lambda x: torch.stack([x.mean((1, 2, 3)), x.amax((1, 2, 3)), mean(x)[:, 2]], 1),
    "chosen": lambda x: torch.where(mean(x)[:, 0] > 0, mean(x)[:, 1], mean(x)[:, 2]),
    "repeated": lambda x: mean(x)[:, 0].unsqueeze(-1).repeat(1, 4),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_form_gives_torchs_numbers(name: str) -> None:
    model = Lambda(FORMS[name])
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((3, *SHAPE)).astype(np.float32))
    with torch.no_grad():
        wanted = model(x.clone()).numpy()
    packed = xnorpp.pack(model, SHAPE)
    for isa in (None, "reference"):
        found = xnorpp.PackedModel(packed.program, isa=isa)(x.numpy())
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
    assert verify(model, x.numpy()).holds


def test_every_composed_function_is_in_the_docs() -> None:
    from pathlib import Path

    page = (Path(__file__).resolve().parents[2] / "docs/packing.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith("| composed |")]
    assert row.split("| ")[2].rstrip(" |") == ", ".join(f"`{name}`" for name in sorted(COMPOSED))


def test_outputs_of_one_number_have_torchs_shape(tmp_path: Any) -> None:
    """Also after saving, in a dict beside others, for one image, and as a classifier of one class."""
    model = Lambda(lambda x: {"score": mean(x)[:, 0] * 2, "all": mean(x)[:, :1], "map": x.relu()})
    packed = xnorpp.pack(model, (3, 8, 8), any_size=False)
    packed.save(tmp_path / "m.xnor")
    again = xnorpp.load(tmp_path / "m.xnor")
    x = np.random.default_rng(0).standard_normal((4, 3, 8, 8)).astype(np.float32)
    found = again(x)
    assert {name: y.shape for name, y in found.items()} == {"score": (4,), "all": (4, 1), "map": (4, 3, 8, 8)}
    np.testing.assert_array_equal(found["score"], 2 * found["all"][:, 0])
    assert again(x[0])["score"] == found["score"][0]
    assert again(x[:0])["score"].shape == (0,)
    single = xnorpp.pack(nn.Sequential(nn.Conv2d(3, 1, 8), nn.Flatten(0)), (3, 8, 8))
    assert single(x).shape == (4,)
    assert single.engine(x).shape == (4, 1)
    assert len(single.classify(np.zeros((8, 8, 3), np.uint8))) == 1


def test_a_strange_record_of_scalars_changes_nothing() -> None:
    for meta in ({"scalars": 3}, {"scalars": ["other", 1]}, {"scalars": ["output"]}):
        packed = xnorpp.pack(nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), (3, 2, 2), meta=meta)
        assert packed(np.zeros((2, 3, 2, 2), np.float32)).shape == (2, 2)


MIXED: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax of images and channels": lambda x: x.reshape(-1, 7, 9).softmax(0).view(x.shape),
    "softmax from the last": lambda x: x.reshape(-1, 7, 9).log_softmax(-3).view(x.shape),
    "normalised together": lambda x: F.normalize(x.reshape(-1, 7, 9), dim=0).view(x.shape),
    "layer norm of the batch": lambda x: F.layer_norm(x, list(x.shape)),
    "layer norm of a turned batch": lambda x: F.layer_norm(mean(x).T, [x.shape[0]]).T,
    "layer norm of numbers": lambda x: F.layer_norm(mean(x)[:, 0], [x.shape[0]]),
    "linear over the batch": lambda x: F.linear(mean(x).T[:2], torch.ones(2, 2)).T,
    "attention over the batch": lambda x: F.scaled_dot_product_attention(
        *[mean(x).view(-1, 3, 2).transpose(0, 1)] * 3
    ).transpose(0, 1),
    "softmax of numbers": lambda x: mean(x)[:, 0].softmax(0),
    "every number with every other": lambda x: mean(x)[:, 0] * mean(x)[:, :1],
    "cumsum of images": lambda x: mean(x).cumsum(0),
}


@pytest.mark.parametrize("name", MIXED)
def test_what_mixes_images_is_refused(name: str) -> None:
    with pytest.raises(PackError, match=r"batch axis|mixes images|is merged"):
        pack_program(Lambda(MIXED[name]), SHAPE)


def test_an_axis_of_windows_is_no_batch() -> None:
    """A width that the number of axes divides was once taken for an axis."""
    model = nn.Sequential(Lambda(lambda x: x.reshape(-1, 4, 12)), nn.LayerNorm(12))
    model.append(Lambda(lambda x: x.reshape(-1, 5, 4, 12)))
    x = np.random.default_rng(0).standard_normal((2, 20, 12)).astype(np.float32)
    with torch.no_grad():
        wanted = model(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(CpuModel(pack_program(model, example=x))(x), wanted, rtol=1e-5, atol=1e-5)


def test_what_is_expanded_to_a_value_takes_images_of_any_size() -> None:
    """Squeeze-excitation as often written; the factors are not repeated for each pixel either."""
    model = Lambda(lambda x: x * x.mean((2, 3), keepdim=True).sigmoid().expand_as(x))
    program = pack_program(model, SHAPE, any_size=True)
    assert "expand" not in {op.op for op in program.ops}
    x = torch.randn(2, 6, 5, 12)
    with torch.no_grad():
        np.testing.assert_allclose(CpuModel(program)(x.numpy()), model(x).numpy(), rtol=1e-5, atol=1e-6)


GEOMETRIES: list[dict[str, Any]] = [
    {"kernel_size": 3, "stride": 2, "dilation": 2, "padding": 1},
    {"kernel_size": 3, "dilation": 2, "padding": 1, "output_padding": 1},
    {"kernel_size": 3, "stride": 2, "dilation": 3, "padding": 2, "output_padding": 1},
    {"kernel_size": 4, "stride": 3, "dilation": 2, "groups": 2},
    {"kernel_size": 3, "stride": (2, 3), "dilation": (2, 1), "padding": (1, 0)},
    {"kernel_size": 3, "stride": 6, "dilation": 4, "padding": 2, "output_padding": 1},
    {"kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1},
    {"kernel_size": (2, 5), "stride": (1, 4), "groups": 2, "bias": False},
    {"kernel_size": 2, "stride": 3, "output_padding": 1},
]


@pytest.mark.parametrize("kind", [xnorpp.nn.BinaryConvTranspose2d, nn.ConvTranspose2d])
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_transposed_convolutions_of_every_geometry(kind: Any, geometry: dict[str, Any]) -> None:
    torch.manual_seed(0)
    layer = kind(6, 8, **geometry)
    model = nn.Sequential(nn.BatchNorm2d(6), layer, nn.BatchNorm2d(8)).eval()
    if kind is not nn.ConvTranspose2d:  # whose signs rounding decides
        model.append(xnorpp.BinaryConv2d(8, 5, 3))
    x = torch.randn(3, *SHAPE)
    with torch.no_grad():
        wanted = model(x).numpy()
    program = pack_program(model, SHAPE)
    for isa in (None, "reference"):
        found = xnorpp.PackedModel(program, isa=isa)(x.numpy())
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert verify(model, x.numpy()).holds
