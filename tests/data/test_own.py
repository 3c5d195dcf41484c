"""A user's own data: what is taken, what it becomes, and what is refused in one sentence."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from xnorpp.data import (
    ArrayDataset,
    BatchesDataset,
    DatasetError,
    IndexedDataset,
    as_dataset,
    make_loader,
    write_shards,
)
from xnorpp.data.own import as_images

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 8, 6, 3), np.uint8)
LABELS = np.arange(12) % 3


class Noisy:
    """Indexable, not a torch Dataset; its augmentation draws from all three global generators."""

    classes = ("a", "b", "c")

    def __init__(self, count: int = 12) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Any, int]:
        drawn = [random.random(), float(np.random.rand()), float(torch.rand(()))]  # noqa: NPY002
        return np.full((1, 2, 3), [drawn], np.float32) + index, index % 3


def epochs(loader: Any, epoch: int = 0, start: int = 0) -> list[torch.Tensor]:
    return [images for images, _ in loader.epoch(epoch, start)]


@pytest.mark.parametrize(
    ("images", "labels"),
    [
        (PIXELS, LABELS),
        (PIXELS.transpose(0, 3, 1, 2), LABELS.astype(np.int32)),
        (torch.from_numpy(PIXELS), torch.from_numpy(LABELS)),
        (torch.from_numpy(PIXELS).permute(0, 3, 1, 2), torch.from_numpy(LABELS)[:, None]),
    ],
    ids=["NHWC", "NCHW", "tensor NHWC", "tensor NCHW"],
)
def test_uint8_arrays_of_any_layout_are_the_same_data_set(images: Any, labels: Any) -> None:
    dataset = as_dataset((images, labels), split="train")
    assert isinstance(dataset, ArrayDataset)
    np.testing.assert_array_equal(dataset.images, PIXELS)
    np.testing.assert_array_equal(dataset.labels, LABELS)
    assert dataset.classes == ("0", "1", "2")
    batch, _ = next(iter(make_loader(dataset, batch_size=12, train=False).epoch(0)))
    np.testing.assert_allclose(batch, PIXELS.transpose(0, 3, 1, 2) / 255, rtol=1e-6)


def test_grey_and_float_arrays() -> None:
    grey = as_dataset((PIXELS[..., 0], LABELS), classes=["x", "y", "z"])
    assert grey.images.shape == (12, 8, 6, 1)
    assert grey.classes == ("x", "y", "z")
    vectors = as_dataset((np.ones((12, 5)), LABELS))
    assert isinstance(vectors, IndexedDataset)
    assert vectors.shape == (5,)
    planes = as_dataset((PIXELS / 255, LABELS))
    assert planes.shape == (3, 8, 6)
    batch, labels = next(iter(make_loader(planes, batch_size=4, train=False).epoch(0)))
    assert batch.dtype == torch.float32
    np.testing.assert_allclose(batch, (PIXELS / 255).transpose(0, 3, 1, 2)[:4], rtol=1e-6)
    assert labels.tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize(
    "make",
    [
        lambda pixels: Image.fromarray(pixels),
        lambda pixels: pixels,
        lambda pixels: torch.from_numpy(pixels.transpose(2, 0, 1).copy()),
        lambda pixels: torch.from_numpy(pixels),
    ],
    ids=["Pillow", "array", "tensor CHW", "tensor HWC"],
)
@pytest.mark.parametrize("label", [int, np.int16, torch.tensor, lambda n: torch.tensor([n])])
def test_samples_of_every_kind_are_the_same_image(make: Any, label: Any) -> None:
    dataset = as_dataset([(make(pixels), label(int(n))) for pixels, n in zip(PIXELS, LABELS)])
    assert isinstance(dataset, IndexedDataset)
    batch, labels = next(iter(make_loader(dataset, batch_size=12, train=False).epoch(0)))
    np.testing.assert_allclose(batch, PIXELS.transpose(0, 3, 1, 2) / 255, rtol=1e-6)
    assert labels.tolist() == LABELS.tolist()
    images = as_images(dataset)
    assert isinstance(images, ArrayDataset)
    np.testing.assert_array_equal(images.images, PIXELS)


def test_pillow_modes() -> None:
    image = Image.fromarray(PIXELS[0])
    for mode, channels in (("L", 1), ("RGB", 3), ("P", 3), ("RGBA", 3), ("1", 1), ("F", 1)):
        assert as_dataset([(image.convert(mode), 0)]).shape == (channels, 8, 6)


def test_names_and_labels_are_taken_from_torch_data_sets() -> None:
    tensors = TensorDataset(torch.zeros(6, 1, 4, 4), torch.tensor([0, 1, 2, 3, 0, 1]))
    whole = as_dataset(tensors)
    assert whole.classes == ("0", "1", "2", "3")
    part = as_dataset(Subset(tensors, [0, 1, 4]))
    assert part.labels is not None
    assert part.labels.tolist() == [0, 1, 0]
    assert as_dataset(Noisy()).classes == ("a", "b", "c")
    assert as_dataset(Subset(Noisy(), [1, 2])).classes == ("a", "b", "c")  # type: ignore[arg-type]
    assert as_dataset([(PIXELS[0], 1)]).classes == ()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sample_is_a_function_of_seed_epoch_and_index(workers: int) -> None:
    def load(**more: Any) -> Any:
        arguments = {"batch_size": 4, "train": True, "seed": 3, **more}
        return make_loader(as_dataset(Noisy(), split="train"), **arguments)

    torch.manual_seed(9)
    before = torch.random.get_rng_state(), random.getstate()
    one = load()
    first, second = epochs(one, 0), epochs(one, 1)
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert before[1] == random.getstate()
    assert not torch.equal(torch.cat(first).sort(0).values, torch.cat(second).sort(0).values)
    other = load(workers=workers)
    try:
        assert all(map(torch.equal, first, epochs(other, 0)))
        assert all(map(torch.equal, second[1:], epochs(other, 1, 1)))
        abandoned = iter(other.epoch(0))
        next(abandoned)
        assert all(map(torch.equal, second, epochs(other, 1)))
    finally:
        other.close()
    halves = [epochs(load(batch_size=2, rank=rank, world_size=2)) for rank in (0, 1)]
    assert all(torch.equal(whole, torch.cat(parts)) for whole, *parts in zip(first, *halves))


def test_a_part_is_held_out_of_anything_indexable() -> None:
    dataset = as_dataset(Noisy(), split="train")
    held = dataset.subset(np.array([3, 5]))
    images, labels = next(iter(make_loader(held, batch_size=2, train=False).epoch(0)))
    assert (images[:, 0, 0, 0].floor().tolist(), labels.tolist()) == ([3, 5], [0, 2])


def test_a_loader_gives_its_own_batches() -> None:
    inner = TensorDataset(torch.from_numpy(PIXELS).permute(0, 3, 1, 2), torch.from_numpy(LABELS))
    dataset = as_dataset(DataLoader(inner, batch_size=5))
    assert isinstance(dataset, BatchesDataset)
    assert (len(dataset), dataset.shape, dataset.batch_size) == (12, (3, 8, 6), 5)
    loader = make_loader(dataset, batch_size=1, train=False)
    assert loader.steps_per_epoch == 3
    batches = list(loader.epoch(0))
    assert [len(images) for images, _ in batches] == [5, 5, 2]
    np.testing.assert_allclose(batches[0][0], PIXELS[:5].transpose(0, 3, 1, 2) / 255, rtol=1e-6)


def test_a_shuffling_loader_repeats_an_epoch() -> None:
    inner = TensorDataset(torch.arange(12.0)[:, None], torch.zeros(12, dtype=torch.int64))
    shuffled = as_dataset(DataLoader(inner, batch_size=4, shuffle=True), split="train")
    loader = make_loader(shuffled, batch_size=4, train=True, seed=1)
    first, second = epochs(loader, 0), epochs(loader, 1)
    assert not all(map(torch.equal, first, second))
    assert all(map(torch.equal, second, epochs(loader, 1)))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([(torch.zeros(1), 0)])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (3, "`train_data` is int; give a torch Dataset or DataLoader, a pair of arrays"),
        ({"image": PIXELS}, "`train_data` is a dictionary"),
        ([{"image": PIXELS[0], "label": 1}], "sample 0 of `train_data` is a dictionary ('image', 'label')"),
        ([PIXELS[0]], "sample 0 of `train_data` is ndarray; it must be a pair (image, label)"),
        ([(PIXELS[0], 0, 1)], "sample 0 of `train_data` is tuple of 3"),
        ([("a.jpg", 0)], "sample 0 of `train_data` is str; it must be a Pillow image"),
        ([(PIXELS[0].astype(np.int64), 0)], "sample 0 of `train_data` is of type int64"),
        ([(PIXELS[0, :, :, :2].repeat(3, 2), 0)], "with C from 1 to 4"),
        ([(PIXELS[0, 0, 0], 0)], "has the shape (3,)"),
        ([(PIXELS[0], 0.5)], "the label of sample 0 of `train_data` is 0.5"),
        ([(PIXELS[0], torch.zeros(3))], "is float32 of shape (3,); it must be one whole number"),
        ([], "`train_data` has no samples"),
        ((PIXELS, LABELS[:5]), "the labels of `train_data` are int64 of shape (5,); they must be 12"),
        ((PIXELS, LABELS - 1), "start at -1"),
        ((PIXELS, LABELS / 2), "the labels of `train_data` are float64"),
        ((PIXELS.astype(np.int32), LABELS), "the images of `train_data` are int32"),
        (Stream(), "`train_data` is the IterableDataset Stream; give a DataLoader"),
        (DataLoader(Stream()), "`train_data` is DataLoader without a length"),
        (
            DataLoader([{"image": torch.zeros(1), "label": 0}]),  # type: ignore[arg-type]
            "a batch of `train_data` is a dictionary ('image', 'label')",
        ),
        (DataLoader([torch.zeros(1)]), "a batch of `train_data` is Tensor"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_used_is_named_in_one_sentence(data: Any, words: str) -> None:
    with pytest.raises((DatasetError, TypeError)) as caught:
        as_dataset(data, split="train")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_that_differ_are_named(workers: int) -> None:
    uneven = [(PIXELS[0], 0), (PIXELS[1, :4], 1), (PIXELS[2], 2)]
    with pytest.raises(
        DatasetError, match=r"sample 1 of `test_data` has the shape \(3, 4, 6\) \(uint8\) and"
    ):
        list(make_loader(as_dataset(uneven), batch_size=3, train=False, workers=workers).epoch(0))
    with pytest.raises(DatasetError, match=r"sample 1 of `test_data` has the shape \(3, 4, 6\) and sample 0"):
        list(make_loader(as_dataset(uneven), batch_size=1, train=False, workers=workers).epoch(0))


def test_a_label_without_an_output_is_named() -> None:
    for data in (Noisy(), DataLoader(Noisy())):  # type: ignore[arg-type]
        dataset = as_dataset(data)
        dataset.limit = 2
        with pytest.raises(DatasetError, match="has the label 2; the network has 2 outputs, from 0 to 1"):
            list(make_loader(dataset, batch_size=12, train=False).epoch(0))


def test_augmentation_and_size_are_not_for_data_that_makes_its_own_samples() -> None:
    dataset = as_dataset(Noisy(), split="train")
    with pytest.raises(DatasetError, match="`train_data` augments its own samples"):
        make_loader(dataset, batch_size=2, train=True, augment={"flip": True})
    with pytest.raises(DatasetError, match=r"`size` \(=9\) is for image files"):
        make_loader(dataset, batch_size=2, train=True, size=9)


def test_own_images_become_shards_and_floats_do_not(tmp_path: Any) -> None:
    pixels = as_dataset([(pixels, int(n)) for pixels, n in zip(PIXELS[:, :6], LABELS)], split="train")
    assert write_shards(as_images(pixels), tmp_path, format="npy")
    with pytest.raises(DatasetError, match="must give single uint8 images here, and gives float ones"):
        as_images(as_dataset(Noisy()))
