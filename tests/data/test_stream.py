from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from xnorpp.data import DatasetError, FolderDataset, load_dataset, make_loader
from xnorpp.data.loading.stream import StreamLoader
from xnorpp.data.loading.worker import Geometry, Item, Task
from xnorpp.data.loading.workers import WorkerDiedError, WorkerPool

Batches = list[tuple[torch.Tensor, torch.Tensor]]


def stream(dataset: object, **options: Any) -> StreamLoader:
    loader = make_loader(dataset, **{"batch_size": 6, "train": True, "size": 56, **options})  # type: ignore[arg-type]
    assert isinstance(loader, StreamLoader)
    return loader


def run(dataset: object, epoch: int = 0, start_step: int = 0, **options: Any) -> Batches:
    loader = stream(dataset, **options)
    try:
        return list(loader.epoch(epoch, start_step))
    finally:
        loader.close()


def same(left: Batches, right: Batches) -> bool:
    return len(left) == len(right) and all(
        torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(left, right, strict=True)
    )


@pytest.fixture
def train(imagenet_folder: Path) -> FolderDataset:
    dataset = load_dataset("imagenet", imagenet_folder)
    assert isinstance(dataset, FolderDataset)
    return dataset


def spoil(dataset: FolderDataset, *indices: int) -> None:
    for index in indices:
        path = Path(dataset.sample_name(index))
        path.write_bytes(path.read_bytes()[:-300])


def test_batches_do_not_depend_on_the_number_of_workers(train: FolderDataset) -> None:
    alone = run(train)
    assert len(alone) == 6
    assert alone[0][0].shape == (6, 3, 56, 56)
    assert same(alone, run(train, workers=1, prefetch=1))
    assert same(alone, run(train, workers=3, prefetch=2))
    assert not same(alone, run(train, epoch=1))


def test_resuming_decodes_only_what_is_left(train: FolderDataset) -> None:
    whole = run(train, epoch=2)
    spoil(train, *range(len(train)))  # whatever is decoded from here on fails
    loader = stream(train, max_skipped=0)
    assert list(loader.epoch(2, start_step=6)) == []
    with pytest.raises(DatasetError):
        list(loader.epoch(2, start_step=5))
    assert len(whole) == 6


def test_resumed_batches_are_the_same(train: FolderDataset) -> None:
    assert same(run(train, epoch=2)[4:], run(train, epoch=2, start_step=4, workers=2))


def test_ranks_together_see_one_process_s_batch(train: FolderDataset) -> None:
    whole = run(train, batch_size=8)
    ranks = [run(train, batch_size=4, rank=rank, world_size=2) for rank in range(2)]
    joined = [(torch.cat([a, c]), torch.cat([b, d])) for (a, b), (c, d) in zip(*ranks, strict=True)]
    assert same(whole, joined)


def test_testing_is_what_prediction_does(train: FolderDataset) -> None:
    from PIL import Image

    batches = run(train, train=False, batch_size=16, workers=2, rank=0, world_size=1)
    assert [len(labels) for _, labels in batches] == [16, 16, 8]
    np.testing.assert_array_equal(torch.cat([labels for _, labels in batches]).numpy(), train.labels)
    preprocess = train.info.preprocess(56)
    for index in (0, 39):
        image = preprocess.apply(Image.open(train.sample_name(index)))
        expected = preprocess.normalise(image[None])[0]
        images = torch.cat([images for images, _ in batches])
        np.testing.assert_allclose(images[index].numpy(), expected, rtol=1e-6, atol=1e-6)


def test_training_crops_and_mirrors(train: FolderDataset) -> None:
    centre = run(train, augment="none")
    cropped = run(train, augment={"flip": False})
    both = run(train)
    assert torch.equal(centre[0][1], cropped[0][1])
    assert not torch.equal(centre[0][0], cropped[0][0])
    mirrored = [
        bool(torch.equal(a, b.flip(2))) and not bool(torch.equal(a, b))
        for (images, _), (plain, _) in zip(both, cropped, strict=True)
        for a, b in zip(images, plain, strict=True)
    ]
    assert 5 < sum(mirrored) < 31


def test_fast_decoding_is_passed_on(imagenet_folder: Path, jpeg: Any) -> None:
    for path in (imagenet_folder / "train").rglob("*.JPEG"):
        path.write_bytes(jpeg(len(path.name), 400, 300))
    dataset = load_dataset("imagenet", imagenet_folder)
    exact, fast = run(dataset), run(dataset, fast_decode=True)
    assert not same(exact, fast)
    assert float((exact[0][0] - fast[0][0]).abs().mean()) < 0.1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_corrupt_image_is_named_and_the_next_takes_its_place(train: FolderDataset, workers: int) -> None:
    sound = run(train)
    spoil(train, 7, 8)
    loader = stream(train, workers=workers, max_skipped=2)
    first, again = list(loader.epoch(0)), list(loader.epoch(0))
    loader.close()
    assert same(first, again)  # found while running, then known: the same batches
    assert {entry.name for entry in loader.skipped} <= {train.sample_name(7), train.sample_name(8)}
    assert loader.skipped
    assert all("truncated" in entry.reason for entry in loader.skipped)
    assert all(len(labels) == 6 for _, labels in first)
    changed = sum(
        not torch.equal(a, b) for (x, _), (y, _) in zip(sound, first, strict=True) for a, b in zip(x, y)
    )
    assert changed == 2


def test_the_replacement_wraps_round_and_brings_its_label(train: FolderDataset) -> None:
    last = len(train) - 1
    spoil(train, last)
    batches = run(train, batch_size=40, augment="none", max_skipped=1)
    labels = batches[0][1]
    np.testing.assert_array_equal(np.bincount(labels.numpy()), [11, 10, 10, 9])


def test_in_testing_a_corrupt_image_is_left_out(train: FolderDataset) -> None:
    spoil(train, 3)
    loader = stream(train, train=False, batch_size=10, workers=1)
    for _ in range(2):
        assert [len(labels) for _, labels in loader.epoch(0)] == [9, 10, 10, 10]
    assert [entry.name for entry in loader.skipped] == [train.sample_name(3)]
    loader.close()


def test_too_many_corrupt_images_end_the_run(train: FolderDataset) -> None:
    spoil(train, *range(10))
    with pytest.raises(
        DatasetError, match=r"6 images of imagenet could not be read, .* \(=5\); the last are .*n01_"
    ):
        run(train, max_skipped=5, workers=2)
    spoil(train, *range(10, 40))
    with pytest.raises(DatasetError, match="no image of imagenet can be read"):
        run(train, max_skipped=100)


def test_an_abandoned_epoch_leaves_the_loader_usable(train: FolderDataset) -> None:
    loader = stream(train, workers=2)
    epoch = loader.epoch(0)
    next(epoch)
    again = next(loader.epoch(0, start_step=3))  # a look at one batch, as a training loop does to find a NaN
    assert same([again], run(train, start_step=3)[:1])
    with pytest.raises(RuntimeError, match="another one of the same loader was started"):
        next(epoch)
    assert same(list(loader.epoch(1)), run(train, epoch=1))
    loader.close()
    assert same(list(loader.epoch(1, 5)), run(train, epoch=1, start_step=5))
    loader.close()


def test_a_worker_that_dies_ends_the_epoch_with_an_error(train: FolderDataset) -> None:
    loader = stream(train, workers=2, prefetch=1)
    epoch = loader.epoch(0)
    next(epoch)
    assert loader._pool is not None
    os.kill(loader._pool._processes[0].pid, signal.SIGKILL)
    with pytest.raises(WorkerDiedError, match="decoding process 0 of 2 was ended by signal 9"):
        list(epoch)
    assert len(list(loader.epoch(0))) == 6  # new processes
    loader.close()


def test_workers_end_when_their_parent_is_killed(train: FolderDataset) -> None:
    code = """
import time
from xnorpp.data.loading.workers import WorkerPool
pool = WorkerPool(2, 4096)
print(*(process.pid for process in pool._processes), flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(workers) == 2
        parent.kill()
    deadline = time.monotonic() + 20
    while any(alive(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in workers)


def alive(pid: int) -> bool:
    """Running, that is neither gone nor a zombie nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_broken_task_shows_as_a_dead_worker(train: FolderDataset) -> None:
    with WorkerPool(1, 64) as pool:
        pool.send(Task(0, 0, Geometry(8, 8, 7), [Item(train.blob(0), 0, 0)]))
        with pytest.raises(WorkerDiedError, match="ended with status 1"):
            pool.receive()
        assert pool.closed


def test_wrong_arguments_are_named(train: FolderDataset) -> None:
    with pytest.raises(ValueError, match=r"`prefetch` \(=0\)"):
        stream(train, prefetch=0)
    with pytest.raises(ValueError, match=r"`max_skipped` \(=-1\)"):
        stream(train, max_skipped=-1)
    with pytest.raises(ValueError, match=r"`workers` \(=-1\)"):
        list(stream(train, workers=-1).epoch(0))
