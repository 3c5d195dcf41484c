from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xnorpp.data import ArrayDataset, DatasetError, load_dataset
from xnorpp.data.formats import mnist

Make = Callable[..., Path]


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_both_forms(name: str, zipped: bool, mnist_folder: Make) -> None:
    folder = mnist_folder(zipped)
    train, test = load_dataset(name, folder), load_dataset(name, folder, "test")
    assert isinstance(train, ArrayDataset)
    assert isinstance(test, ArrayDataset)
    assert train.images.shape == (30, 28, 28, 1)
    assert test.images.shape == (15, 28, 28, 1)
    random = np.random.default_rng(0)
    np.testing.assert_array_equal(train.images[..., 0], random.integers(0, 256, (30, 28, 28), np.uint8))
    np.testing.assert_array_equal(train.labels, np.arange(30) % 10)
    assert len(train.classes) == 10


def test_usual_subfolder_and_debians_place(mnist_folder: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = mnist_folder()
    monkeypatch.setattr(mnist, "_DEBIAN", {"fashion_mnist": folder})
    assert len(load_dataset("fashion_mnist")) == 30
    folder.rename(folder.parent / "fashion-mnist")
    assert len(load_dataset("fashion_mnist", folder.parent)) == 30


def test_broken_files_are_named(mnist_folder: Make, idx: Any) -> None:
    folder = mnist_folder()
    images = folder / "train-images-idx3-ubyte.gz"
    whole = images.read_bytes()
    images.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DatasetError, match=r"train-images-idx3-ubyte.gz is not a complete gzip file"):
        load_dataset("mnist", folder)
    images.write_bytes(gzip.compress(b"\0\0\x0d\x03"))
    with pytest.raises(DatasetError, match="not an idx file of unsigned bytes"):
        load_dataset("mnist", folder)
    images.write_bytes(gzip.compress(idx(np.zeros((30, 28, 28), np.uint8))[:-1]))
    with pytest.raises(DatasetError, match=r"states the shape \(30, 28, 28\) but holds 23519 values"):
        load_dataset("mnist", folder)
    images.write_bytes(gzip.compress(idx(np.zeros((29, 28, 28), np.uint8))))
    with pytest.raises(DatasetError, match="must have one length"):
        load_dataset("mnist", folder)


def test_a_label_out_of_range(mnist_folder: Make, idx: Any) -> None:
    folder = mnist_folder()
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.full(30, 10, np.uint8))))
    with pytest.raises(DatasetError, match="must lie between 0 and 9"):
        load_dataset("mnist", folder)
