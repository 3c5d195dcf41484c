"""Images kept decoded: the same pixels as from the folders, written once, and only for what streams."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from xnorpp.data import DatasetError, load_dataset, make_loader
from xnorpp.data.loading.prepare import prepare
from xnorpp.training import load_recipe, train


@pytest.fixture
def labelled(imagenet_folder: Path) -> Path:
    """The folder with labels for its flat validation images."""
    (imagenet_folder / "val.txt").write_text(
        "".join(f"ILSVRC2012_val_{i + 1:08d}.JPEG {i % 4}\n" for i in range(8))
    )
    return imagenet_folder


def _test_batch(name: str, root: Path) -> tuple[np.ndarray, np.ndarray]:
    loader = make_loader(load_dataset(name, root, "test"), batch_size=8, train=False)
    images, labels = next(iter(loader.epoch(0)))
    return images.numpy(), labels.numpy()


def test_the_prepared_images_are_the_folders_own(labelled: Path, tmp_path: Path) -> None:
    out = prepare("imagenet", labelled, tmp_path / "kept", workers=0)
    assert len(load_dataset("shards", out, "train")) == 40
    images, labels = _test_batch("imagenet", labelled)
    kept, kept_labels = _test_batch("shards", out)
    order = [next(j for j in range(8) if np.array_equal(kept[j], image)) for image in images]
    assert sorted(order) == list(range(8)), "every image is there, bit for bit, in another order"
    assert np.array_equal(kept_labels[order], labels)


def test_a_finished_folder_is_used_and_an_unfinished_one_done_again(labelled: Path, tmp_path: Path) -> None:
    out = prepare("imagenet", labelled, tmp_path / "kept", workers=0)
    shard = out / "train-000000.tar"
    before = shard.stat().st_mtime_ns
    prepare("imagenet", labelled, out, workers=0)
    assert shard.stat().st_mtime_ns == before
    (out / "prepared.json").unlink()
    prepare("imagenet", labelled, out, workers=0)
    assert shard.stat().st_mtime_ns > before


def test_another_data_set_and_one_in_memory_are_refused(labelled: Path, tmp_path: Path) -> None:
    out = prepare("imagenet", labelled, tmp_path / "kept", workers=0)
    with pytest.raises(DatasetError, match="holds images of imagenet, not of digits"):
        prepare("digits", None, out)
    with pytest.raises(DatasetError, match="digits is held in memory"):
        prepare("digits", None, tmp_path / "other")


def test_a_run_prepares_its_data_and_trains_from_it(labelled: Path, tmp_path: Path) -> None:
    settings = [
        f"data.prepare={tmp_path / 'kept'}", "data.size=64", "data.batch_size=8", "data.workers=0",
        "schedule.max_steps=1", "run.tensorboard=false", "model.name=small",
    ]  # fmt: skip
    summary = train(
        load_recipe("imagenet-resnet18-case1", settings), data=labelled, out=tmp_path / "run", device="cpu",
        quiet=True,
    )  # fmt: skip
    assert (tmp_path / "kept" / "prepared.json").is_file()
    assert summary["dataset"] == "imagenet"
    assert summary["classes"] == ["n01", "n02", "n03", "n04"]
    assert summary["preprocess"]["resize"] == 73
