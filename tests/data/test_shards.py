from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from xnorpp.data import (
    DatasetError,
    DatasetNotFoundError,
    ShardDataset,
    load_dataset,
    make_loader,
    write_shards,
)
from xnorpp.data.formats import shards
from xnorpp.data.formats.shards import expand_braces
from xnorpp.runtime.decode import decode_blob


def write(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as shard:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            shard.addfile(member, io.BytesIO(content))


def load(root: object, split: str = "train", **options: Any) -> ShardDataset:
    dataset = load_dataset("shards", root, split, **options)  # type: ignore[arg-type]
    assert isinstance(dataset, ShardDataset)
    return dataset


@pytest.fixture
def folder(tmp_path: Path, jpeg: Any) -> Path:
    out = tmp_path / "shards"
    out.mkdir()
    for number in range(3):
        members: dict[str, bytes] = {}
        for i in range(4):
            members[f"part/{number}-{i}.v1.jpg"] = b"not an image extension, so ignored"
            members[f"part/{number}{i}.jpg"] = jpeg(10 * number + i, 70, 50)
            label = (number + i) % 3
            if i % 2:
                members[f"part/{number}{i}.cls"] = f"{label}\n".encode()
            else:
                members[f"part/{number}{i}.json"] = json.dumps({"label": label}).encode()
        write(out / f"train-{number:03d}.tar", members)
    write(out / "val-000.tar", {"a.png": jpeg(1), "a.cls": b"1", "b.jpeg": jpeg(2), "b.json": b'{"cls": 2}'})
    return out


def test_braces() -> None:
    assert expand_braces("a-{08..11}.tar") == ["a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"]
    assert expand_braces("{x,y}/{1..2}.tar") == ["x/1.tar", "x/2.tar", "y/1.tar", "y/2.tar"]
    assert expand_braces("plain.tar") == ["plain.tar"]
    with pytest.raises(ValueError, match=r"empty range \{5..3\}"):
        expand_braces("a-{5..3}.tar")


def test_reading(folder: Path, jpeg: Any) -> None:
    train = load(folder)
    assert len(train) == 12
    assert train.info.classes == 3
    assert train.keys[5] == "part/11"
    np.testing.assert_array_equal(train.labels, [(n + i) % 3 for n in range(3) for i in range(4)])
    np.testing.assert_array_equal(train.groups, np.repeat([0, 1, 2], 4))
    blob = train.blob(5)
    with open(blob.path, "rb") as file:
        file.seek(blob.offset)
        assert file.read(blob.size) == jpeg(11, 70, 50)
    test = load(folder, "test")
    np.testing.assert_array_equal(test.labels, [1, 2])
    part = train.subset(np.array([5, 0]))
    assert part.sample_name(0) == train.sample_name(5)
    assert part.blob(1) == train.blob(0)


@pytest.mark.parametrize("pattern", ["train-{000..002}.tar", "train-*.tar", "train-00[0-2].tar"])
def test_patterns(folder: Path, pattern: str) -> None:
    assert len(load(f"{folder}/{pattern}")) == 12


def test_a_pattern_of_one_split_is_not_the_other_one_too(folder: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="a tar file named val or valid or validation or test"):
        load(f"{folder}/train-*.tar", "test")
    with pytest.raises(DatasetNotFoundError, match="a tar file named train or training"):
        load(f"{folder}/val-000.tar", "train")
    for pattern in ("{train,val}-*.tar", "*.tar"):
        assert (len(load(f"{folder}/{pattern}")), len(load(f"{folder}/{pattern}", "test"))) == (12, 2)
    for path in folder.glob("*.tar"):
        path.rename(folder / f"part{path.name[-5]}{len(path.name)}.tar")  # names that say no split
    assert len(load(f"{folder}/part*.tar", "test")) == len(load(f"{folder}/part*.tar", "train")) == 14


def test_missing_shards_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match=r"looked for .*train-003.tar"):
        load(f"{folder}/train-{{000..003}}.tar")
    with pytest.raises(DatasetNotFoundError, match=r"looked for .*none"):
        load(f"{folder}/none-*.tar")
    with pytest.raises(DatasetNotFoundError, match="no root given"):
        load(None)
    with pytest.raises(DatasetError, match="must be a folder or a pattern of local files"):
        load("https://example.org/train-{0..3}.tar")


def test_the_index_is_kept_and_checked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scanned: list[str] = []
    original = shards._scan

    def counted(path: Path) -> Any:
        scanned.append(path.name)
        return original(path)

    monkeypatch.setattr(shards, "_scan", counted)
    first, second = load(folder), load(folder)
    assert len(scanned) == 3
    np.testing.assert_array_equal(first.offsets, second.offsets)
    assert first.keys == second.keys
    for number, kept in enumerate(sorted((folder / ".xnorpp").glob("train-00[12]-*.npz"))):
        kept.write_bytes(kept.read_bytes()[:60] if number else b"damaged")
    assert load(folder).keys == first.keys
    assert scanned[3:] == ["train-001.tar", "train-002.tar"]


def test_a_label_file_is_enough_beside_json_that_says_other_things(tmp_path: Path) -> None:
    members = {
        "a.jpg": b"x",
        "a.cls": b"2",
        "a.json": b'{"url": "y"}',
        "b.jpg": b"x",
        "b.json": b'{"label": 7}',
    }
    write(tmp_path / "train-0.tar", {**members, "b.cls": b"1"})
    np.testing.assert_array_equal(load(tmp_path).labels, [2, 1])


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"a.jpg": b"x"}, r"the image a has no label \(a.cls or a.json\)"),
        ({"a.jpg": b"x", "a.cls": b"cat"}, r"a.cls must hold an integer label"),
        ({"a.jpg": b"x", "a.json": b'{"name": 3}'}, r"a.json must hold an integer label"),
        ({"readme.txt": b"x"}, "hold no samples"),
        ({"a.jpg": b"x", "a.cls": b"-1"}, r"labels from -1 to -1 do not fit"),
    ],
)
def test_wrong_content_is_named(tmp_path: Path, members: dict[str, bytes], message: str) -> None:
    write(tmp_path / "train-0.tar", members)
    with pytest.raises(DatasetError, match=message):
        load(tmp_path)


def test_broken_tar_and_broken_card(folder: Path) -> None:
    (folder / "dataset.json").write_text("{")
    with pytest.raises(DatasetError, match=r"dataset.json is not JSON"):
        load(folder)
    (folder / "dataset.json").write_text("[]")
    with pytest.raises(DatasetError, match="must hold a JSON object"):
        load(folder)
    (folder / "dataset.json").unlink()
    (folder / "train-001.tar").write_bytes(b"\x1f\x8b compressed" * 100)
    with pytest.raises(DatasetError, match=r"train-001.tar is not a complete, uncompressed tar"):
        load(folder)


def test_classes_can_be_given(folder: Path) -> None:
    assert load(folder, classes=5).classes == ("0", "1", "2", "3", "4")
    with pytest.raises(DatasetError, match=r"labels from 0 to 2 do not fit `classes` \(=2\)"):
        load(folder, classes=2)


@pytest.mark.parametrize("workers", [0, 2])
def test_loading_over_ranks(folder: Path, workers: int) -> None:
    train = load(folder)
    seen = []
    for rank in range(2):
        loader = make_loader(
            train, batch_size=3, train=True, rank=rank, world_size=2, workers=workers, size=28, augment="none"
        )
        batches = list(loader.epoch(0))
        loader.close()
        assert len(batches) == loader.steps_per_epoch == 2
        seen += [image.numpy().tobytes() for images, _ in batches for image in images]
    assert len(set(seen)) == 12


@pytest.mark.parametrize("form", ["jpg", "npy"])
def test_written_shards_hold_the_resized_images(imagenet_folder: Path, tmp_path: Path, form: str) -> None:
    source = load_dataset("imagenet", imagenet_folder)
    Path(source.sample_name(3)).write_bytes(b"corrupt")  # type: ignore[union-attr]
    out = tmp_path / "out"
    with pytest.warns(UserWarning, match=r"n01_3.JPEG cannot be read \(.*\) and is left out"):
        paths = write_shards(source, out, resize=64, format=form, samples_per_shard=16)
    assert [path.name for path in paths] == [f"train-{i:06d}.tar" for i in range(3)]
    copy = load(out)
    assert len(copy) == 39
    assert copy.classes == source.classes
    assert copy.info.resize == 64
    for index in range(0, 39, 7):
        original = int(copy.keys[index])
        assert copy.labels[index] == source.labels[original]
        blob = source.blob(original)  # type: ignore[union-attr]
        expected = decode_blob(blob, 64, 64, 0, 0, 3).astype(int)
        pixels = decode_blob(copy.blob(index), 64, 64, 0, 0, 3)
        assert np.abs(pixels - expected).max() <= (0 if form == "npy" else 12)


def test_shards_of_a_small_set(tmp_path: Path) -> None:
    test = load_dataset("digits", split="test")
    write_shards(test.subset(np.arange(20)), tmp_path, format="npy")
    copy = load(tmp_path, "test")
    assert copy.info.channels == 1
    images = next(iter(make_loader(copy, batch_size=20, train=False).epoch(0)))[0]
    order = [int(key) for key in copy.keys]
    expected = test.info.preprocess().normalise(test.images[order])  # type: ignore[union-attr]
    np.testing.assert_allclose(images.numpy(), expected, atol=1e-6)
    assert torch.isfinite(images).all()
    with pytest.raises(ValueError, match=r'`format` \(="gif"\)'):
        write_shards(test, tmp_path, format="gif")
    with pytest.raises(ValueError, match=r"`samples_per_shard` \(=0\)"):
        write_shards(test, tmp_path, samples_per_shard=0)
