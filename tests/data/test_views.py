"""Views of an image: their numbers name what the loader yields."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from xnorpp.data import Augment, load_dataset, make_loader
from xnorpp.data.dataset import ArrayDataset
from xnorpp.data.loading.views import Views, why_not_counted


def digits(count: int = 70) -> ArrayDataset:
    whole = load_dataset("digits")
    assert isinstance(whole, ArrayDataset)
    return whole.subset(np.arange(count))


@pytest.mark.parametrize(
    ("augment", "views"),
    [
        ({}, 9),
        ({"pad": 2, "flip": True}, 50),
        ({"crop": False, "flip": True}, 2),
        ({"crop": False}, 1),
        ("none", 1),
    ],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_batch_has_the_images_that_its_numbers_name(augment: object, views: int, rank: int) -> None:
    loader = make_loader(
        digits(), batch_size=16, train=True, seed=3, augment=augment, rank=rank, world_size=2
    )  # type: ignore[call-overload, arg-type]
    counted = Views(loader)
    assert counted.per_image == views
    table = torch.empty(70, views, 64)
    for view, part, images in counted.each():
        table[part, view] = images.flatten(1)
    seen = set()
    for epoch in range(30):
        for images, labels, rows in counted.beside(table.flatten(0, 1), epoch):
            assert torch.equal(rows, images.flatten(1))
            assert len(labels) == len(rows) == 16
        seen |= {int(number) for batch in counted.numbers(epoch) for number in batch}
    assert len({number % views for number in seen}) == views, "every view is drawn"


def test_a_resumed_epoch_continues_with_the_same_numbers() -> None:
    counted = Views(make_loader(digits(), batch_size=16, train=True))  # type: ignore[arg-type]
    whole, rest = list(counted.numbers(2)), list(counted.numbers(2, 3))
    assert len(whole) == 4
    assert np.array_equal(whole[3], rest[0])


def test_larger_images_are_views_of_the_larger_size() -> None:
    loader = make_loader(digits(), batch_size=16, train=True, size=20, enlarge="batch")
    counted = Views(loader)  # type: ignore[arg-type]
    table = torch.empty(70, 9, 400)
    for view, part, images in counted.each():
        table[part, view] = images.flatten(1)
    images, _, rows = next(counted.beside(table.flatten(0, 1), 0))
    assert torch.equal(rows, images.flatten(1))


@pytest.mark.parametrize(
    "augment",
    [{"cutout": 2}, {"mixup": 0.2}, {"area": 0.5}, {"operations": 1}],
    ids=lambda one: next(iter(one)),
)
def test_other_changes_cannot_be_counted(augment: dict[str, float]) -> None:
    loader = make_loader(digits(), batch_size=16, train=True, augment=augment)
    assert "more than crop, pad and flip" in str(why_not_counted(loader))
    assert replace(Augment(), **augment).views == 0


def test_only_in_memory_sets_have_views() -> None:
    assert "not an in-memory set" in str(why_not_counted(object()))
    assert why_not_counted(make_loader(digits(), batch_size=16, train=True)) is None
