"""Tiny data sets in the official formats, made of noise: no real image is in the repository."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


def make_smooth(seed: int, width: int, height: int) -> np.ndarray:
    """An image-like uint8 (height, width, 3): soft coloured noise, which JPEG keeps well."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


def make_jpeg(seed: int, width: int = 64, height: int = 64, mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    Image.fromarray(make_smooth(seed, width, height)).convert(mode).save(file, "JPEG", quality=90)
    return file.getvalue()


def make_idx(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes() + values.tobytes()


@pytest.fixture(scope="session")
def smooth() -> Callable[..., np.ndarray]:
    return make_smooth


@pytest.fixture(scope="session")
def jpeg() -> Callable[..., bytes]:
    return make_jpeg


@pytest.fixture(scope="session")
def idx() -> Callable[[np.ndarray], bytes]:
    return make_idx


@pytest.fixture(autouse=True)
def own_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test reads or writes the user's folders."""
    monkeypatch.setenv("XNORPP_DATA", str(tmp_path / "data-home"))
    monkeypatch.setenv("XNORPP_CACHE", str(tmp_path / "cache-home"))


@pytest.fixture
def mnist_folder(tmp_path: Path) -> Callable[..., Path]:
    def make(zipped: bool = True, count: int = 30) -> Path:
        random = np.random.default_rng(0)
        folder = tmp_path / "idx"
        folder.mkdir(exist_ok=True)
        for prefix, n in (("train", count), ("t10k", count // 2)):
            for what, values in (
                ("images-idx3", random.integers(0, 256, (n, 28, 28), np.uint8)),
                ("labels-idx1", (np.arange(n) % 10).astype(np.uint8)),
            ):
                data = make_idx(values)
                name = f"{prefix}-{what}-ubyte" + (".gz" if zipped else "")
                (folder / name).write_bytes(gzip.compress(data) if zipped else data)
        return folder

    return make


@pytest.fixture
def tiny_folder(tmp_path: Path) -> Path:
    """Three classes, four training and two validation images each."""
    root = tmp_path / "tiny-imagenet-200"
    wnids = ["n03", "n01", "n02"]
    (root / "val" / "images").mkdir(parents=True)
    (root / "wnids.txt").write_text("\n".join(wnids) + "\n")
    (root / "words.txt").write_text("n01\tgoldfish, Carassius auratus\nn03\tEgyptian cat\n")
    lines = []
    for label, wnid in enumerate(wnids):
        folder = root / "train" / wnid / "images"
        folder.mkdir(parents=True)
        for i in range(4):
            (folder / f"{wnid}_{i}.JPEG").write_bytes(make_jpeg(10 * label + i))
        for i in range(2):
            name = f"val_{2 * label + i}.JPEG"
            (root / "val" / "images" / name).write_bytes(
                make_jpeg(100 + 10 * label + i, mode="L" if i else "RGB")
            )
            lines.append(f"{name}\t{wnid}\t0\t0\t63\t63")
    (root / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    return root


@pytest.fixture
def imagenet_folder(tmp_path: Path) -> Path:
    """Four classes, ten training images each, of various sizes; validation flat, no label file yet."""
    root = tmp_path / "imagenet"
    for label, wnid in enumerate(("n01", "n02", "n03", "n04")):
        folder = root / "train" / wnid
        folder.mkdir(parents=True)
        for i in range(10):
            (folder / f"{wnid}_{i}.JPEG").write_bytes(make_jpeg(100 * label + i, 80 + 7 * i, 60 + 5 * label))
    (root / "val").mkdir()
    for i in range(8):
        (root / "val" / f"ILSVRC2012_val_{i + 1:08d}.JPEG").write_bytes(make_jpeg(1000 + i, 90, 70))
    return root
