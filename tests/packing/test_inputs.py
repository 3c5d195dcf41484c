"""Models that take several inputs: the packed model takes them as they are, in the same order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import xnorpp
from xnorpp.packing import verify

COUNT = 5


def numbers(*shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).standard_normal((COUNT, *shape)).astype(np.float32))


def whole(most: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(1).integers(0, most, (COUNT, *shape)))


class ImageAndTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)
        self.table, self.both, self.head = nn.Linear(5, 8), nn.Linear(16, 16), nn.Linear(16, 2)

    def forward(self, image: Tensor, table: Tensor) -> Tensor:
        x = self.body(self.stem(image).relu()).mean((2, 3))
        return self.head(self.both(torch.cat([x, self.table(table)], 1)).relu())


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(2, 8, 3), nn.ReLU(), nn.Conv1d(8, 8, 3), nn.Flatten())

    def forward(self, first: Tensor, second: Tensor) -> dict[str, Tensor]:
        a, b = self.body(first), self.body(second)
        return {"likeness": F.cosine_similarity(a, b), "difference": (a - b).abs()}


class Recommender(nn.Module):
    """Two categories and a number, without an axis of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(20, 8), nn.Embedding(30, 8)
        self.layers = nn.Sequential(nn.Linear(17, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, user: Tensor, item: Tensor, price: Tensor) -> Tensor:
        u, i = self.users(user), self.items(item)
        return (u * i).sum(1) + self.layers(torch.cat([u, i, price[:, None]], 1)).squeeze(1)


class Denoiser(nn.Module):
    """An image and a time, of which sines and cosines are taken."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)
        self.time = nn.Linear(8, 8)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angles = t.float()[:, None] * torch.exp(-torch.arange(4.0))
        shift = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        return self.second(F.silu(self.first(x) + shift[:, :, None, None]))


class Hidden(nn.Module):
    """Words, and which of them are there."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(20, 16), nn.Linear(16, 2)
        self.body = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)

    def forward(self, ids: Tensor, there: Tensor) -> Tensor:
        return self.head(self.body(self.words(ids), src_key_padding_mask=~there)[:, 0])


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)

    def forward(self, pixels: Tensor, gain: Tensor) -> Tensor:
        return self.layer(pixels.float() / 255 * gain[:, :, None, None])


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...]]] = {
    "image and table": (ImageAndTable, (numbers(3, 8, 8), numbers(5))),
    "two of a kind": (Siamese, (numbers(2, 12), numbers(2, 12).flip(0))),
    "categories": (Recommender, (whole(20), whole(30), numbers())),
    "image and time": (Denoiser, (numbers(3, 8, 8), whole(100))),
    "words and truth values": (Hidden, (whole(20, 7), (torch.arange(7) < 5).repeat(COUNT, 1))),
    "bytes and numbers": (Scaled, (whole(256, 3, 8, 8).to(torch.uint8), numbers(1))),
}


@pytest.mark.parametrize("name", MODELS)
def test_several_inputs(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    build, inputs = MODELS[name]
    model = build()
    xnorpp.binarize(model, example=inputs)
    model.eval()
    with torch.no_grad():
        made = model(*inputs)
    wanted = made if isinstance(made, dict) else {"output": made}
    packed = xnorpp.pack(model, example=inputs)
    packed.save(tmp_path / "model.xnor")
    arrays = [x.numpy() for x in inputs]
    for engine in (xnorpp.load(tmp_path / "model.xnor"), xnorpp.PackedModel(packed.program, isa="reference")):
        for number in (None, 1):
            given = arrays if number is None else [a[number] for a in arrays]
            found = engine(*given)
            found = found if isinstance(found, dict) else {"output": found}
            for key, value in wanted.items():
                right = value.numpy() if number is None else value[number].numpy()
                np.testing.assert_allclose(found[key], right, rtol=1e-4, atol=1e-5)
    assert verify(model, inputs).holds
    assert verify(model, tuple(arrays)).output_error < 1e-4


def test_wrong_inputs_are_named() -> None:
    packed = xnorpp.pack(ImageAndTable().eval(), example=MODELS["image and table"][1])
    image, table = (x.numpy() for x in MODELS["image and table"][1])
    for given, message in (
        ((image, table, table), "3 inputs are given; the model takes 2"),
        ((image, table[:, :4]), r"input 1 has shape \(5, 4\); \(n, 5\) with the same n is needed"),
        ((image, table[:3]), r"input 1 has shape \(3, 5\)"),
        ((image, table.astype(str)), "input 1 has dtype <U"),
    ):
        with pytest.raises(ValueError, match=message):
            packed(*given)
    alone = xnorpp.pack(nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 2)), example=torch.zeros(2, 5))
    with pytest.raises(ValueError, match="2 inputs are given; the model takes 1"):
        alone(table, table)


def test_no_other_size_with_several_inputs() -> None:
    with pytest.raises(ValueError, match=r"`any_size`.*the model takes 2"):
        xnorpp.pack(Denoiser(), example=MODELS["image and time"][1], any_size=True)


def test_arguments_by_name() -> None:
    image, table = MODELS["image and table"][1]
    model = ImageAndTable().eval()
    with torch.no_grad():
        wanted = model(image, table).numpy()
    example = {"table": table, "image": image}
    assert xnorpp.check_packable(model, example)
    assert [row.path for row in xnorpp.binarize(ImageAndTable(), example=example).rows][:2] == [
        "stem",
        "body",
    ]
    packed = xnorpp.pack(model, example=example)
    np.testing.assert_allclose(packed(image.numpy(), table.numpy()), wanted, rtol=1e-4, atol=1e-5)
    with pytest.raises(
        ValueError, match="is a dict of table; the first arguments of `forward`, which takes image"
    ):
        xnorpp.pack(model, example={"table": table})
