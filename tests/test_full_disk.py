"""A disk that is really full: a small file system in memory, filled to the last byte.

Mounting needs the rights of root; without them these tests are skipped, loudly.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import warm
from PIL import Image

from xnorpp.data import load_dataset, write_shards
from xnorpp.runtime import load
from xnorpp.training import load_checkpoint
from xnorpp.training.state.checkpoint import list_checkpoints

FULL = "No space left on device"
SETTINGS = (
    "schedule.epochs=2", "model.options.width=4", "data.batch_size=256", "run.save_steps=2", "run.keep=9",
    "run.log_steps=1", "run.threads=1",
)  # fmt: skip


class Disk:
    """A mounted file system of `kib` KiB."""

    def __init__(self, path: Path, kib: int) -> None:
        self.path = path
        path.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(path)], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"A FULL DISK IS NOT TESTED: mounting one is not permitted ({done.stderr.strip()})")

    def resize(self, kib: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={kib}k", str(self.path)], check=True)

    def fill(self) -> None:
        with (self.path / "filler").open("wb", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError:
                    continue
        assert os.statvfs(self.path).f_bavail == 0

    def close(self) -> None:
        subprocess.run(["umount", "-l", str(self.path)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if sys.platform != "linux":
        pytest.skip("A FULL DISK IS NOT TESTED: the test mounts a tmpfs, which only Linux has")
    made = Disk(tmp_path / "disk", 4096)
    yield made
    made.close()


def xnorpp(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return warm.run([sys.executable, "-m", "xnorpp", *arguments], env={**os.environ, **environment})


def check_refused(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 1, done.stderr
    assert FULL in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def train(out: Path, *more: object) -> subprocess.CompletedProcess[str]:
    chosen = [part for setting in SETTINGS for part in ("--set", setting)]
    return xnorpp("train", "digits-small-case4", "--out", out, "--device", "cpu", "--resume", *chosen, *more)


@pytest.mark.slow
def test_training_stops_with_a_sentence_and_goes_on_with_more_room(disk: Disk, tmp_path: Path) -> None:
    whole = train(tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    run = disk.path / "run"
    one = list_checkpoints(tmp_path / "whole")[0].stat().st_size >> 10
    for kib in (4, 12, one // 2, one + 60, 2 * one + 80):  # a lock, metrics, half a checkpoint, one, two
        disk.resize(kib)
        check_refused(train(run))
        left = list(run.rglob("*")) if run.exists() else []
        assert not [path for path in left if path.suffix == ".tmp" or path.name == ".lock"]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for path in list_checkpoints(run):
                load_checkpoint(path)
    assert list_checkpoints(run)  # the last sizes leave room for one
    disk.resize(4096)
    done = train(run)
    assert done.returncode == 0, done.stderr
    assert "Resuming" in done.stdout
    mine, other = load_checkpoint(run / "model.safetensors"), load_checkpoint(tmp_path / "whole")
    assert mine.meta["metrics"] == other.meta["metrics"]
    assert all(bool((mine.weights[name] == other.weights[name]).all()) for name in other.weights)


def test_packing_leaves_the_old_file(disk: Disk, tmp_path: Path) -> None:
    assert train(tmp_path / "run", "--set", "run.save_steps=0").returncode == 0
    target = disk.path / "model.xnor"
    assert xnorpp("pack", tmp_path / "run", "-o", target).returncode == 0
    before = target.read_bytes()
    disk.fill()
    check_refused(xnorpp("pack", tmp_path / "run", "-o", target))
    assert target.read_bytes() == before
    assert sorted(path.name for path in disk.path.iterdir()) == ["filler", "model.xnor"]
    check_refused(xnorpp("pack", tmp_path / "run", "-o", disk.path / "other.xnor"))
    assert not (disk.path / "other.xnor").exists()
    assert load(target)(np.zeros((1, 1, 8, 8), np.float32)).shape == (1, 10)


def test_results_leave_the_old_file(disk: Disk, tmp_path: Path) -> None:
    assert train(tmp_path / "run", "--set", "run.save_steps=0").returncode == 0
    table = disk.path / "result.json"
    assert xnorpp("eval", tmp_path / "run", "--json", table).returncode == 0
    before = table.read_bytes()
    disk.fill()
    check_refused(xnorpp("eval", tmp_path / "run", "--json", table))
    assert table.read_bytes() == before
    assert json.loads(before)


def _images(root: Path) -> None:
    rng = np.random.default_rng(0)
    for wnid in ("n01", "n02"):
        for split in ("train", "val"):
            folder = root / split / wnid
            folder.mkdir(parents=True)
            for i in range(3):
                Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(folder / f"{i}.png")


def test_data_is_read_without_room_for_its_caches(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XNORPP_CACHE", str(disk.path / "cache"))
    _images(disk.path / "tree")
    source = load_dataset("imagenet", disk.path / "tree")
    shards = disk.path / "shards"
    write_shards(source, shards, resize=8, format="npy")
    disk.fill()
    assert len(load_dataset("shards", shards)) == 6
    assert list((shards / ".xnorpp").glob("*.npz")) == []


def test_shards_are_written_whole_or_not_at_all(disk: Disk) -> None:
    _images(disk.path / "tree")
    source = load_dataset("imagenet", disk.path / "tree")
    shards = disk.path / "shards"
    (path,) = write_shards(source, shards, resize=8, format="npy")
    before = {file.name: file.read_bytes() for file in shards.iterdir() if file.is_file()}
    disk.fill()
    with pytest.raises(OSError, match=FULL):
        write_shards(source, shards, resize=64, format="npy")
    assert {file.name: file.read_bytes() for file in shards.iterdir() if file.is_file()} == before
    assert path.name in before


def test_decoded_images_need_no_cache(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    from xnorpp.data.loading.cache import load_decoded

    monkeypatch.setenv("XNORPP_CACHE", str(disk.path / "cache"))
    _images(disk.path / "tree")
    source = load_dataset("imagenet", disk.path / "tree")
    disk.fill()
    first = load_decoded(source, 8)  # type: ignore[arg-type]
    np.testing.assert_array_equal(load_decoded(source, 8).images, first.images)  # type: ignore[arg-type]
