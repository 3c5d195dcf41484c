from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from xnorpp.data import ArrayDataset, Augment, dataset_info, load_dataset, make_loader
from xnorpp.data.loading.loader import crop_and_flip, enlarge_batch
from xnorpp.data.loading.order import SHUFFLE_WINDOW, Share


@pytest.fixture(scope="module")
def numbered() -> ArrayDataset:
    """CIFAR-shaped; sample i has label i % 10 and its number in the pixels."""
    images = np.zeros((103, 32, 32, 3), np.uint8)
    images += np.arange(103, dtype=np.uint8)[:, None, None, None]
    classes = tuple("0123456789")
    return ArrayDataset(
        dataset_info("cifar10"), "train", classes, images, np.arange(103, dtype=np.int64) % 10
    )


def numbers(batch: torch.Tensor) -> list[int]:
    """The sample numbers of a batch of `numbered`, from the centre pixel."""
    info = dataset_info("cifar10")
    grey = (batch[:, 0, 16, 16].double() * info.std[0] + info.mean[0]) * 255
    return [int(value) for value in grey.round()]


def test_one_batch_of_digits() -> None:
    loader = make_loader(load_dataset("digits"), batch_size=64, train=True)
    images, labels = next(iter(loader.epoch(0)))
    assert images.shape == (64, 1, 8, 8)
    assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert images.is_contiguous()
    assert -1.0 < float(images.min()) < 0 < float(images.max()) < 2.0
    assert loader.steps_per_epoch == 1438 // 64
    assert loader.samples == 1438
    assert loader.skipped == []
    loader.close()


def test_epochs_are_repeatable_and_differ() -> None:
    dataset = load_dataset("digits")

    def first(seed: int, epoch: int) -> torch.Tensor:
        return next(iter(make_loader(dataset, batch_size=32, train=True, seed=seed).epoch(epoch)))[0]

    assert torch.equal(first(0, 0), first(0, 0))
    assert not torch.equal(first(0, 0), first(0, 1))
    assert not torch.equal(first(0, 0), first(1, 0))


def test_resuming_in_the_middle_sees_the_same_batches(numbered: ArrayDataset) -> None:
    loader = make_loader(numbered, batch_size=16, train=True, seed=3)
    whole = list(loader.epoch(5))
    rest = list(loader.epoch(5, start_step=4))
    assert len(whole) == loader.steps_per_epoch == 6
    assert len(rest) == 2
    for (a, la), (b, lb) in zip(whole[4:], rest, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(la, lb)


def test_an_epoch_is_a_permutation_without_the_last_incomplete_batch(numbered: ArrayDataset) -> None:
    loader = make_loader(numbered, batch_size=10, train=True, augment={"pad": 2})
    seen = [n for images, _ in loader.epoch(0) for n in numbers(images)]
    assert len(seen) == len(set(seen)) == 100
    assert seen != sorted(seen)


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_together_see_one_process_s_batch(numbered: ArrayDataset, world_size: int) -> None:
    whole = make_loader(numbered, batch_size=4 * world_size, train=True, seed=9)
    ranks = [
        make_loader(numbered, batch_size=4, train=True, seed=9, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    assert {loader.steps_per_epoch for loader in ranks} == {whole.steps_per_epoch}
    for (images, labels), *parts in zip(whole.epoch(1), *(loader.epoch(1) for loader in ranks), strict=True):
        assert torch.equal(images, torch.cat([part[0] for part in parts]))
        assert torch.equal(labels, torch.cat([part[1] for part in parts]))


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_testing_covers_each_sample_once(numbered: ArrayDataset, world_size: int) -> None:
    seen: list[int] = []
    for rank in range(world_size):
        loader = make_loader(numbered, batch_size=16, train=False, rank=rank, world_size=world_size)
        batches = list(loader.epoch(0))
        assert len(batches) == loader.steps_per_epoch
        seen += [n for images, _ in batches for n in numbers(images)]
    assert seen == list(range(103))


def test_testing_is_what_prediction_does(numbered: ArrayDataset) -> None:
    images, _ = next(iter(make_loader(numbered, batch_size=8, train=False).epoch(0)))
    expected = numbered.info.preprocess().normalise(numbered.images[:8])
    np.testing.assert_allclose(images.numpy(), expected, rtol=1e-6, atol=1e-6)


def test_channels_last_holds_the_same_numbers(numbered: ArrayDataset) -> None:
    plain = next(iter(make_loader(numbered, batch_size=8, train=True).epoch(0)))[0]
    last = next(iter(make_loader(numbered, batch_size=8, train=True, channels_last=True).epoch(0)))[0]
    assert torch.equal(plain, last)
    assert last.is_contiguous(memory_format=torch.channels_last)


def test_another_size(numbered: ArrayDataset) -> None:
    images, _ = next(iter(make_loader(numbered, batch_size=8, train=True, size=40).epoch(0)))
    assert images.shape == (8, 3, 40, 40)


@settings(max_examples=40, deadline=None)
@given(
    height=st.integers(1, 6),
    width=st.integers(1, 6),
    top=st.integers(-4, 4),
    left=st.integers(-4, 4),
    flip=st.booleans(),
)
def test_crop_and_flip_against_padding_by_hand(
    height: int, width: int, top: int, left: int, flip: bool
) -> None:
    images = np.random.default_rng(height * 7 + width).integers(1, 256, (3, height, width, 2), np.uint8)
    padded = np.pad(images[2], ((4, 4), (4, 4), (0, 0)))
    expected = padded[4 + top : 4 + top + height, 4 + left : 4 + left + width]
    expected = expected[:, ::-1] if flip else expected
    out = crop_and_flip(
        torch.from_numpy(images),
        torch.tensor([2]),
        torch.tensor([top]),
        torch.tensor([left]),
        torch.tensor([flip]),
    )
    np.testing.assert_array_equal(out[0].numpy(), expected)


def test_draws_cover_the_range_and_half_are_flipped() -> None:
    share = Share(samples=10_000, batch_size=5_000, train=True)
    tops, lefts, flips = share.draw(seed=0, epoch=0, step=0, range_=8)
    assert set(tops.tolist()) == set(lefts.tolist()) == set(range(9))
    assert abs(np.corrcoef(tops, lefts)[0, 1]) < 0.05
    assert 0.45 < flips.mean() < 0.55


def test_augment_choices(numbered: ArrayDataset) -> None:
    default = Augment(crop=True, pad=4, flip=True)
    assert Augment.parse(None, default) is default
    assert Augment.parse({"flip": False}, default) == Augment(crop=True, pad=4, flip=False)
    assert Augment.parse(Augment(pad=1), default).pad == 1
    off = make_loader(numbered, batch_size=8, train=True, augment="none")
    for images, _ in itertools.islice(off.epoch(0), 2):
        assert torch.equal(images, images[:, :, :1, :1].expand_as(images))
    with pytest.raises(ValueError, match=r'`augment` \(="strong"\)'):
        Augment.parse("strong", default)
    with pytest.raises(ValueError, match='no field "padding"'):
        Augment.parse({"padding": 3}, default)
    with pytest.raises(ValueError, match=r"`pad` \(=-1\)"):
        Augment(pad=-1)


def test_wrong_arguments_are_named(numbered: ArrayDataset) -> None:
    with pytest.raises(ValueError, match=r"`batch_size` \(=0\)"):
        make_loader(numbered, batch_size=0, train=True)
    with pytest.raises(ValueError, match=r"`rank` \(=2\) must be at least 0 and below `world_size` \(=2\)"):
        make_loader(numbered, batch_size=1, train=True, rank=2, world_size=2)
    with pytest.raises(
        ValueError, match=r"`batch_size` \(=104\) times .* number of training samples \(=103\)"
    ):
        make_loader(numbered, batch_size=104, train=True)


def test_wrong_arrays_are_named(numbered: ArrayDataset) -> None:
    info: Any = numbered.info
    with pytest.raises(ValueError, match=r"`images` \(=uint8 \(3, 4, 5\)\)"):
        ArrayDataset(info, "train", ("a",), np.zeros((3, 4, 5), np.uint8), np.zeros(3, np.int64))
    with pytest.raises(ValueError, match=r"`labels` \(=int64 \(2,\)\) must be int64 of shape \(3,\)"):
        ArrayDataset(info, "train", ("a",), np.zeros((3, 4, 5, 1), np.uint8), np.zeros(2, np.int64))


def steps(groups: np.ndarray, world_size: int, epoch: int = 0) -> Iterator[np.ndarray]:
    for rank in range(world_size):
        share = Share(len(groups), 50, True, rank, world_size)
        yield np.concatenate(share.order(0, epoch, groups))


def test_grouped_order_keeps_ranks_on_their_own_groups() -> None:
    groups = np.repeat(np.arange(8), SHUFFLE_WINDOW // 2).astype(np.int64)
    parts = list(steps(groups, 4))
    together = np.concatenate(parts)
    assert len(set(together.tolist())) == len(together) == len(groups) // 200 * 200
    for part in parts:
        assert len(np.unique(groups[part])) <= 4  # of 8: its own two, and those at the seams
    assert not np.array_equal(together, np.sort(together))
    assert not np.array_equal(parts[0], next(steps(groups, 4, epoch=1)))


def test_enlarging_on_the_device_gives_pillows_pixels() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (3, 64, 64, 3), dtype=np.uint8)
    ours = enlarge_batch(torch.from_numpy(images), 224).numpy()
    pillow = [Image.fromarray(one).resize((224, 224), Image.Resampling.BILINEAR) for one in images]
    theirs = np.stack([np.asarray(image) for image in pillow])
    assert np.array_equal(ours, theirs)
