"""The `folder` data set: images of one's own in class folders."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from xnorpp.data import ArrayDataset, DatasetError, FolderDataset, load_dataset, make_loader
from xnorpp.data.formats import folder as folders

Make = Callable[..., Path]


@pytest.fixture
def images(tmp_path: Path, smooth: Callable[..., np.ndarray]) -> Make:
    def make(*trees: str, count: int = 4, side: int = 20, classes: tuple[str, ...] = ("bee", "ant")) -> Path:
        endings = (".png", ".jpg", ".bmp", ".webp", ".JPEG")
        root = tmp_path / "own"
        for tree in trees:
            for label, name in enumerate(classes):
                (root / tree / name / "deeper").mkdir(parents=True)
                for number in range(count):
                    place = root / tree / name / ("deeper" if number == 1 else "")
                    image = Image.fromarray(smooth(100 * label + number, side + 5, side))
                    image.save(place / f"{number}{endings[number % len(endings)]}")
        return root

    return make


def test_train_and_val_are_found_and_classes_are_in_alphabetical_order(images: Make) -> None:
    root = images("train", "val")
    (root / "train" / "bee" / "notes.txt").write_text("no image")
    train, test = (load_dataset("folder", root, split) for split in ("train", "test"))
    assert isinstance(train, ArrayDataset)
    assert train.classes == test.classes == ("ant", "bee")
    assert (len(train), len(test)) == (8, 8)
    assert np.bincount(train.labels).tolist() == [4, 4]
    assert train.images.shape == (8, 20, 20, 3)  # the size of the images themselves
    assert train.info.image_size == 20
    assert train.info.default_augment.pad == 2
    pixels = Image.open(root / "train" / "ant" / "0.png").resize((20, 20), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(train.images[0], np.asarray(pixels))


def test_size_and_channels_are_options(images: Make) -> None:
    root = images("train", "test")
    small = load_dataset("folder", root, "test", size=8, channels=1)
    assert small.images.shape == (8, 8, 8, 1)
    assert len(small.info.mean) == 1
    with pytest.raises(ValueError, match=r"`channels` \(=2\) must be 1"):
        load_dataset("folder", root, channels=2)


def test_a_large_set_is_streamed(images: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "IN_MEMORY_BYTES", 1000)
    root = images("train", "val")
    train = load_dataset("folder", root)
    assert isinstance(train, FolderDataset)
    assert train.info.preprocess().to_dict() | {"mean": 0, "std": 0} == {
        "resize": 23, "crop": 20, "channels": 3, "mean": 0, "std": 0,
    }  # fmt: skip
    batch, _ = next(iter(make_loader(train, batch_size=4, train=True).epoch(0)))
    assert batch.shape == (4, 3, 20, 20)
    assert isinstance(load_dataset("folder", root, size=20, resize=20), FolderDataset)
    monkeypatch.undo()
    assert isinstance(load_dataset("folder", root, size=20, resize=20), ArrayDataset)
    assert isinstance(load_dataset("folder", root, size=20, resize=24), FolderDataset)


def test_one_tree_is_split_by_a_share(images: Make) -> None:
    root = images("", count=10)
    fit, held = (load_dataset("folder", root, holdout=0.2, part=part) for part in ("fit", "held"))
    assert (len(fit), len(held)) == (16, 4)
    assert np.bincount(held.labels).tolist() == [2, 2]
    assert len(load_dataset("folder", root, "test")) == 20  # a test set by itself


def test_a_changed_image_is_decoded_again(images: Make) -> None:
    root = images("train")
    before = load_dataset("folder", root).images[0]
    place = root / "train" / "ant" / "0.png"
    Image.fromarray(np.zeros((20, 20, 3), np.uint8)).save(place)
    os.utime(place, ns=(1, 1))
    after = load_dataset("folder", root).images[0]
    assert before.any()
    assert not after.any()


@pytest.mark.parametrize("stream", [False, True])
def test_how_many_unreadable_images_are_tolerated_is_an_argument(
    images: Make, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    root = images("train", count=5)
    for number in (0, 2, 3):
        next((root / "train" / "ant").glob(f"{number}.*")).write_bytes(b"broken")
    if stream:
        monkeypatch.setattr(folders, "IN_MEMORY_BYTES", 0)
        dataset = load_dataset("folder", root, size=8)
        with pytest.raises(DatasetError, match=r"more than `max_skipped` \(=1\)"):
            list(make_loader(dataset, batch_size=2, train=False).epoch(0))
        loader = make_loader(dataset, batch_size=2, train=False, max_skipped=3)
        assert sum(len(labels) for _, labels in loader.epoch(0)) == 7
        return
    with pytest.raises(DatasetError, match=r"3 images of folder could not be read, more than `max_skipped`"):
        load_dataset("folder", root, size=8)
    dataset = load_dataset("folder", root, size=8, max_skipped=3)
    assert (len(dataset), len(dataset.skipped)) == (7, 3)
    with pytest.raises(DatasetError, match="max_skipped"):  # the decoded copy is no way around the limit
        load_dataset("folder", root, size=8, max_skipped=2)


def test_what_is_wrong_with_a_folder_is_said(images: Make, tmp_path: Path) -> None:
    root = images("train")
    with pytest.raises(DatasetError, match=r"has train/ and none of val/, .* hold a share out"):
        load_dataset("folder", root, "test")
    (root / "val" / "wasp").mkdir(parents=True)
    with pytest.raises(DatasetError, match="has the class folder 'wasp', which"):
        load_dataset("folder", root, "test")
    with pytest.raises(DatasetError, match=r"`root` \(='nowhere', --data\) must be a folder, and does not"):
        load_dataset("folder", "nowhere")
    (tmp_path / "empty" / "train" / "ant").mkdir(parents=True)
    with pytest.raises(DatasetError, match="images in"):
        load_dataset("folder", tmp_path / "empty")
