"""Augmentation on the device: what each operation does to known images, and that draws repeat."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from xnorpp.data import ArrayDataset, Augment, dataset_info, make_loader
from xnorpp.data.loading.augmented import OPERATIONS, BatchAugment, cut_out, mix, recolour
from xnorpp.data.loading.order import Share
from xnorpp.data.own import BatchesDataset, IndexedDataset

INFO = dataset_info("cifar10")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def images() -> ArrayDataset:
    pixels = np.random.default_rng(0).integers(0, 256, (64, 32, 32, 3), dtype=np.uint8)
    return ArrayDataset(INFO, "train", tuple("0123456789"), pixels, np.arange(64, dtype=np.int64) % 10)


def looks(augment: Augment, count: int = 16) -> BatchAugment:
    return BatchAugment(augment, Share(count, count, True), 0, 10, CPU)


def everything(dataset: ArrayDataset, **settings: object) -> list[tuple[torch.Tensor, torch.Tensor]]:
    strong = {"area": 0.3, "operations": 2, "magnitude": 0.8, "cutout": 8, "mixup": 0.5}
    loader = make_loader(dataset, batch_size=16, train=True, seed=1, augment=strong, **settings)  # type: ignore[arg-type]
    return list(loader.epoch(2))


def test_batches_repeat_and_start_anywhere(images: ArrayDataset) -> None:
    first, again = everything(images), everything(images)
    assert all(torch.equal(a, b) for one, two in zip(first, again, strict=True) for a, b in zip(one, two))
    loader = make_loader(images, batch_size=16, train=True, seed=1, augment={"area": 0.3, "mixup": 0.5})
    whole, rest = list(loader.epoch(0)), list(loader.epoch(0, start_step=2))
    assert all(torch.equal(a, b) for one, two in zip(whole[2:], rest, strict=True) for a, b in zip(one, two))
    assert not torch.equal(whole[0][0], next(iter(loader.epoch(1)))[0])


def test_two_processes_see_the_batch_of_one(images: ArrayDataset) -> None:
    whole = make_loader(images, batch_size=16, train=True, augment={"area": 0.5, "cutout": 9, "mixup": 1.0})
    parts = [
        make_loader(
            images, batch_size=8, train=True, rank=rank, world_size=2,
            augment={"area": 0.5, "cutout": 9, "mixup": 1.0},
        )
        for rank in (0, 1)
    ]  # fmt: skip
    for one, two, three in zip(whole.epoch(0), parts[0].epoch(0), parts[1].epoch(0), strict=True):
        for kind in (0, 1):
            torch.testing.assert_close(one[kind], torch.cat([two[kind], three[kind]]))


def test_test_images_are_left_alone(images: ArrayDataset) -> None:
    plain = make_loader(images, batch_size=64, train=False)
    strong = make_loader(images, batch_size=64, train=False, augment={"mixup": 1.0, "cutout": 16})
    for one, two in zip(plain.epoch(0), strong.epoch(0), strict=True):
        assert torch.equal(one[0], two[0])
        assert torch.equal(one[1], two[1])


def test_a_resized_crop_of_a_ramp_is_a_part_of_it() -> None:
    """On a horizontal ramp each row stays a ramp; its slope is the width of the crop, its ends lie inside."""
    ramp = torch.arange(32.0)[None, None, :, None].expand(200, 32, 32, 1) * 8
    cropped = looks(Augment(area=0.25), 200).pixels(ramp, 0, 0)[:, 16, 1:-1, 0]
    slopes = cropped.diff(dim=1)
    assert torch.allclose(slopes, slopes.mean(1, keepdim=True).expand_as(slopes), atol=1e-2)
    widths = slopes.mean(1) / 8
    assert widths.min() > math.sqrt(0.25 * 3 / 4) - 0.01
    assert widths.max() <= 1.001
    assert widths.std() > 0.1
    assert cropped.min() >= 0
    assert cropped.max() <= 31 * 8


def test_the_share_of_the_area_is_the_one_asked_for() -> None:
    rows = looks(Augment(area=0.9), 100)
    maps = rows._maps(rows.share.uniform(0, 0, 0, 26), None)
    areas = maps[:, 0, 0] * maps[:, 1, 1]
    assert areas.min() > 0.75  # where one side is cut off at the whole, the other keeps its ratio
    assert (np.abs(maps[:, 0, 2]) <= 1 - maps[:, 0, 0] + 1e-6).all()


def test_resized_crops_of_another_side_show_the_same_part() -> None:
    """On a ramp of 32 pixels, a crop of 16 has every second value of the crop of 32: the mean of two."""
    ramp = torch.arange(32.0)[None, None, :, None].expand(50, 32, 32, 1) * 8
    whole = looks(Augment(area=0.25), 50).pixels(ramp, 0, 0)
    small = looks(Augment(area=0.25, side=16), 50).pixels(ramp, 0, 0)
    assert small.shape == (50, 16, 16, 1)
    pairs = whole[:, 8, :, 0].unflatten(1, (16, 2)).mean(2)
    torch.testing.assert_close(small[:, 4, 1:-1, 0], pairs[:, 1:-1], atol=1e-2, rtol=0)


def test_only_training_images_get_another_side(images: ArrayDataset) -> None:
    settings = {"area": 0.5, "side": 20}
    train = make_loader(images, batch_size=16, train=True, augment=settings)
    test = make_loader(images, batch_size=16, train=False, augment=settings)
    assert next(iter(train.epoch(0)))[0].shape == (16, 3, 20, 20)
    assert next(iter(test.epoch(0)))[0].shape == (16, 3, 32, 32)


def test_each_image_gets_so_many_operations() -> None:
    made = looks(Augment(operations=3, magnitude=0.5), 256)
    strengths = made._strengths(made.share.uniform(0, 0, 0, 26))
    assert strengths is not None
    chosen = np.stack([strengths[name] != 0 for name in OPERATIONS])
    assert (chosen.sum(0) == 3).all()
    assert (chosen.mean(1) > 0.15).all()
    assert np.abs(strengths["rotate"]).max() <= math.pi / 12
    assert strengths["solarize"].min() >= 0
    doubled = looks(Augment(operations=3, magnitude=1.0), 256)._strengths(made.share.uniform(0, 0, 0, 26))
    assert doubled is not None
    np.testing.assert_allclose(doubled["shear_x"], 2 * strengths["shear_x"])


def test_colours() -> None:
    values = torch.tensor([[40.0, 80.0, 120.0], [200.0, 100.0, 0.0]])
    planes = values[:, :, None, None].expand(2, 3, 4, 4)

    def changed(operation: int, strength: float) -> torch.Tensor:
        strengths = torch.zeros(5, 2)
        strengths[operation, 0] = strength
        result = recolour(planes, strengths)
        assert torch.equal(result[1], planes[1])  # an image for which nothing was drawn
        return result[0, :, 0, 0]

    torch.testing.assert_close(changed(0, 0.5), torch.tensor([60.0, 120.0, 180.0]))
    torch.testing.assert_close(changed(1, -0.5), torch.tensor([60.0, 80.0, 100.0]))
    torch.testing.assert_close(changed(2, -1.0), torch.tensor([80.0, 80.0, 80.0]))
    torch.testing.assert_close(changed(3, 5.0), torch.tensor([32.0, 64.0, 96.0]))
    torch.testing.assert_close(changed(4, 156.0), torch.tensor([40.0, 80.0, 135.0]))


def test_cutout_is_a_square_that_may_reach_over_the_border() -> None:
    centres = torch.tensor([[0.5, 0.25], [0.0, 0.0]])
    cut = cut_out(torch.ones(2, 3, 8, 8), centres, 4)
    assert (cut[0] == 0).sum() == 3 * 16
    assert (cut[0, :, 2:6, 0:4] == 0).all()
    assert (cut[1] == 0).sum() == 3 * 4
    assert (cut[1, :, :2, :2] == 0).all()


def test_mixup_mixes_neighbours_and_their_labels() -> None:
    images = torch.arange(5.0)[:, None, None, None].expand(5, 1, 2, 2)
    shares = torch.tensor([0.75, 1.0, 0.0, 0.5, 0.3])
    mixed, labels = mix(images, torch.tensor([0, 1, 2, 2, 1]), shares, 3)
    torch.testing.assert_close(mixed[:, 0, 0, 0], torch.tensor([0.25, 1.0, 3.0, 2.5, 4.0]))
    torch.testing.assert_close(labels[0], torch.tensor([0.75, 0.25, 0.0]))
    torch.testing.assert_close(labels[3], torch.tensor([0.0, 0.0, 1.0]))
    torch.testing.assert_close(labels.sum(1), torch.ones(5))


def test_streamed_images_are_augmented_too(tmp_path: Path) -> None:
    from PIL import Image

    from xnorpp.data import load_dataset

    for name in "ab":
        (tmp_path / "train" / name).mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (24, 24), (200, 60 * number, 10)).save(
                tmp_path / "train" / name / f"{number}.png"
            )
    dataset = load_dataset("folder", tmp_path / "train", "train", size=16, stream=True)
    plain = make_loader(dataset, batch_size=8, train=True, size=16)
    strong = make_loader(dataset, batch_size=8, train=True, size=16, augment={"cutout": 8, "mixup": 1.0})
    images, labels = next(iter(strong.epoch(0)))
    before, _ = next(iter(plain.epoch(0)))
    assert labels.shape == (8, 2)
    assert images.shape == before.shape
    assert not torch.equal(images, before)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"area": 1.5}, r"`area` \(=1.5\) must be at most 1"),
        ({"mixup": -0.1}, r"`mixup` \(=-0.1\) must be at least 0"),
        ({"cutout": 2.5}, r"`cutout` \(=2.5\) must be a whole number"),
        ({"operations": 11}, r"`operations` \(=11\) must be at most 10"),
        ({"magnitude": "big"}, r"`magnitude` \(='big'\) must be a number"),
        ({"area": 0.5, "side": -1}, r"`side` \(=-1\) must be at least 0"),
        ({"side": 24}, r"`side` \(=24\) is that of random resized crops and needs `area`"),
    ],
)
def test_values_out_of_range_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Augment.parse(settings, Augment())


def test_own_samples_keep_their_own_augmentation() -> None:
    pairs = [(np.zeros((4, 4, 3), np.uint8), 0), (np.ones((4, 4, 3), np.uint8), 1)]
    from xnorpp.data import as_dataset

    dataset = as_dataset(pairs)
    assert isinstance(dataset, (IndexedDataset, BatchesDataset))
    with pytest.raises(ValueError, match="augments its own samples"):
        make_loader(dataset, batch_size=2, train=True, augment={"mixup": 1.0})
