from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from xnorpp.data import ArrayDataset, DatasetError, load_dataset
from xnorpp.data.loading import cache


def load(root: Path, split: str = "train", **options: Any) -> ArrayDataset:
    dataset = load_dataset("tiny_imagenet", root, split, **options)
    assert isinstance(dataset, ArrayDataset)
    return dataset


@pytest.fixture
def decodings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The splits decoded so far, as opposed to read from the kept file."""
    seen: list[str] = []
    original = cache.decode_all

    def counted(source: Any, *args: Any, **options: Any) -> Any:
        seen.append(source.split)
        return original(source, *args, **options)

    monkeypatch.setattr(cache, "decode_all", counted)
    return seen


def test_official_layout(tiny_folder: Path) -> None:
    train, test = load(tiny_folder), load(tiny_folder.parent, "test")
    assert train.images.shape == (12, 64, 64, 3)
    np.testing.assert_array_equal(train.labels, np.repeat([0, 1, 2], 4))
    np.testing.assert_array_equal(test.labels, np.repeat([0, 1, 2], 2))
    assert train.classes == ("Egyptian cat", "goldfish", "n02")
    first = np.asarray(Image.open(tiny_folder / "train" / "n01" / "images" / "n01_2.JPEG"))
    np.testing.assert_array_equal(train.images[6], first)
    assert (test.images[1][..., 0] == test.images[1][..., 2]).all()  # a grey JPEG became RGB


def test_decoded_once_then_read(tiny_folder: Path, decodings: list[str]) -> None:
    first, second = load(tiny_folder), load(tiny_folder)
    assert decodings == ["train"]
    np.testing.assert_array_equal(first.images, second.images)
    np.testing.assert_array_equal(first.labels, second.labels)
    assert (tiny_folder / ".xnorpp" / "train-64.safetensors").is_file()
    assert not list((tiny_folder / ".xnorpp").glob("*.tmp"))


@pytest.mark.parametrize("damage", ["truncate", "flip", "header", "empty", "no metadata"])
def test_a_damaged_kept_file_is_made_anew(tiny_folder: Path, decodings: list[str], damage: str) -> None:
    whole = load(tiny_folder)
    path = tiny_folder / ".xnorpp" / "train-64.safetensors"
    data = bytearray(path.read_bytes())
    if damage == "truncate":
        data = data[: len(data) // 2]
    elif damage == "flip":
        data[-1000] ^= 1
    elif damage == "header":
        data[:8] = b"\xff" * 8
    elif damage == "empty":
        data = bytearray()
    else:
        data = bytearray(b"\x02" + b"\0" * 7 + b"{}")
    path.write_bytes(data)
    np.testing.assert_array_equal(load(tiny_folder).images, whole.images)
    assert decodings == ["train", "train"]


def test_a_changed_list_of_files_is_decoded_again(tiny_folder: Path, decodings: list[str]) -> None:
    load(tiny_folder)
    (tiny_folder / "train" / "n01" / "images" / "n01_3.JPEG").unlink()
    assert len(load(tiny_folder)) == 11
    assert decodings == ["train", "train"]


def test_kept_elsewhere_when_the_folder_cannot_be_written(
    tiny_folder: Path, tmp_path: Path, decodings: list[str]
) -> None:
    (tiny_folder / ".xnorpp").write_text("a file in the way")
    load(tiny_folder)
    load(tiny_folder)
    assert decodings == ["train"]
    assert len(list((tmp_path / "cache-home").rglob("train-64.safetensors"))) == 1


def test_a_full_disk_does_not_stop_the_run(
    tiny_folder: Path, decodings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert len(load(tiny_folder)) == 12
    assert not list((tiny_folder / ".xnorpp").glob("*.tmp"))
    monkeypatch.undo()
    assert len(load(tiny_folder)) == 12


def test_processes_decode_the_same(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = load(tiny_folder)
    (tiny_folder / ".xnorpp" / "train-64.safetensors").unlink()
    monkeypatch.setattr(cache, "_ITEMS_A_TASK", 5)
    np.testing.assert_array_equal(load(tiny_folder, workers=2).images, alone.images)


def test_corrupt_images_are_left_out_and_named(tiny_folder: Path) -> None:
    (tiny_folder / "train" / "n01" / "images" / "n01_1.JPEG").write_bytes(b"rubbish")
    for _ in range(2):  # decoded, then read from the kept file
        dataset = load(tiny_folder)
        assert len(dataset) == 11
        np.testing.assert_array_equal(np.bincount(dataset.labels), [4, 3, 4])
        assert [entry.name for entry in dataset.skipped] == [f"{tiny_folder}/train/n01/images/n01_1.JPEG"]
        assert "not a recognised image format" in dataset.skipped[0].reason


def test_too_many_corrupt_images_end_the_run(tiny_folder: Path) -> None:
    for i in (1, 2):
        (tiny_folder / "train" / "n01" / "images" / f"n01_{i}.JPEG").write_bytes(b"rubbish")
    with pytest.raises(DatasetError, match=r"2 images of tiny_imagenet could not be read, .*\(=1\).*n01_1"):
        load(tiny_folder)
    assert len(load(tiny_folder, max_skipped=2)) == 10


def test_wrong_layouts_are_named(tiny_folder: Path) -> None:
    annotations = tiny_folder / "val" / "val_annotations.txt"
    annotations.write_text("val_0.JPEG\tn99\n")
    with pytest.raises(DatasetError, match=r"line 1 .* must be a file name and a wnid"):
        load(tiny_folder, "test")
    annotations.unlink()
    with pytest.raises(DatasetError, match=r"has no val/val_annotations.txt"):
        load(tiny_folder, "test")
    (tiny_folder / "wnids.txt").write_text("n01 n77")
    with pytest.raises(DatasetError, match="no folder train/n77/images"):
        load(tiny_folder)
