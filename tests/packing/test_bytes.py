"""Models that take bytes and scale them themselves, and models that change their input in place."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from agreement import images
from torch import Tensor, nn

import xnorpp
from xnorpp.packing import verify

SHAPE = (4, 3, 8, 9)


def some_bytes(*shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, shape, np.uint8))


class Scaled(nn.Module):
    def __init__(self, scale: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.scale = scale
        self.stem, self.body, self.head = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.stem(self.scale(x)).relu()).mean((2, 3)))


def by_kind(x: Tensor) -> Tensor:
    return x.float() / 100 + 1 if x.dtype == torch.uint8 else x


def in_place(x: Tensor) -> Tensor:
    x = x.to(torch.float32)
    x /= 255
    x[:, 0] -= 0.5
    return x


SCALES: dict[str, Callable[[Tensor], Tensor]] = {
    "float": lambda x: x.float() / 255,
    "true division": lambda x: (x / 255 - 0.45) / 0.22,
    "by kind": by_kind,
    "in place": in_place,
    "channels last": lambda x: x.permute(0, 3, 1, 2).float() / 128 - 1,
    "channels last, scaled before": lambda x: (x.float() / 128 - torch.tensor([1.0, 0.9, 0.8])).movedim(
        -1, 1
    ),
}


@pytest.mark.parametrize("name", SCALES)
def test_bytes_reach_the_model_as_they_are(name: str) -> None:
    torch.manual_seed(0)
    pixels = some_bytes(4, 8, 9, 3)
    given = pixels if "last" in name else pixels.permute(0, 3, 1, 2).contiguous()
    before, model = given.clone(), Scaled(SCALES[name])
    xnorpp.binarize(model, example=given)
    model.eval()
    with torch.no_grad():
        wanted = model(given.clone()).numpy()
    packed = xnorpp.pack(model, example=given)
    assert packed.program.input_shape == (3, 8, 9)
    for isa in (None, "reference"):
        engine = xnorpp.PackedModel(packed.program, isa=isa)
        np.testing.assert_allclose(engine(pixels.numpy()), wanted, rtol=1e-4, atol=1e-5)
        floats = pixels.permute(0, 3, 1, 2).float().numpy()
        np.testing.assert_allclose(engine(floats), wanted, rtol=1e-4, atol=1e-5)
    assert verify(model, given).holds
    assert verify(model, given.numpy()).output_error < 1e-4
    assert torch.equal(given, before)


def test_dense_outputs_of_any_size_and_vectors_from_bytes() -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 3, padding=1)]
    for last in (False, True):
        model = nn.Sequential(Bytes(last), *layers).eval()
        pixels, larger = some_bytes(2, 8, 9, 3), some_bytes(2, 20, 12, 3)
        packed = xnorpp.pack(model, example=pixels if last else pixels.movedim(-1, 1))
        with torch.no_grad():
            wanted = model(larger if last else larger.movedim(-1, 1))
        np.testing.assert_allclose(packed(larger.numpy()), wanted.numpy(), rtol=1e-4, atol=1e-5)
    vectors = some_bytes(3, 6)
    model = nn.Sequential(Bytes(False), nn.Linear(6, 4)).eval()
    with torch.no_grad():
        wanted = model(vectors)
    np.testing.assert_allclose(
        xnorpp.pack(model, example=vectors)(vectors.numpy()), wanted, rtol=1e-4, atol=1e-5
    )


class Bytes(nn.Module):
    def __init__(self, last: bool) -> None:
        super().__init__()
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        return (x.movedim(-1, 1) if self.last else x).float() / 255


def test_bytes_are_numbers_for_a_model_that_takes_none() -> None:
    """As before: p / 255 at the packed model, which `preprocess` may change."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)).eval()
    pixels = some_bytes(2, 8, 9, 3)
    with torch.no_grad():
        wanted = model(pixels.movedim(-1, 1) / 255)
    packed = xnorpp.pack(model, example=pixels.movedim(-1, 1))
    np.testing.assert_allclose(packed(pixels.numpy()), wanted.numpy(), rtol=1e-4, atol=1e-5)


def test_a_normalisation_before_a_model_that_takes_bytes_is_refused() -> None:
    model = Scaled(SCALES["float"])
    example = some_bytes(*SHAPE)
    with pytest.raises(ValueError, match=r"takes bytes, which it scales itself; give a mapping without them"):
        xnorpp.pack(model, example=example, preprocess={"mean": [0.5] * 3, "std": [0.5] * 3})
    packed = xnorpp.pack(model, example=example, preprocess={"resize": [8, 9]})
    assert packed.preprocess.std == (1 / 255,) * 3


def test_arithmetic_in_bytes_is_refused() -> None:
    found = xnorpp.check_packable(Scaled(lambda x: (x - 100).float()), some_bytes(*SHAPE))
    assert "numbers wrap around" in str(found.obstacles[0])


def test_an_example_stays_what_it_was() -> None:
    torch.manual_seed(0)
    model = Scaled(in_place).eval()
    x = images(3, 8, 9)
    before, array = x.clone(), x.numpy()
    xnorpp.binarize(model, example=x)
    xnorpp.check_packable(model, x)
    with torch.no_grad():
        wanted = model(x.clone()).numpy()
    np.testing.assert_allclose(xnorpp.pack(model, example=x)(array), wanted, rtol=1e-4, atol=1e-5)
    assert verify(model, array).holds
    assert torch.equal(x, before)
