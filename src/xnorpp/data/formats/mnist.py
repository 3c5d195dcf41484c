"""MNIST and Fashion-MNIST: idx files, gzipped or not (LeCun et al. 1998; Xiao et al. 2017)."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np

from xnorpp.data.dataset import ArrayDataset, Augment, DatasetError, DatasetInfo, Int64Array, UInt8Array
from xnorpp.data.download import Archive, fetch
from xnorpp.data.places import candidates, data_home, not_found

MNIST = DatasetInfo(
    name="mnist",
    classes=10,
    channels=1,
    image_size=28,
    mean=(0.1307,),
    std=(0.3081,),
    train_size=60_000,
    test_size=10_000,
    default_augment=Augment(crop=True, pad=2, flip=False),
    how_to_get="use --download, or put the four idx files (gzipped or not) into the data folder",
)
FASHION_MNIST = DatasetInfo(
    name="fashion_mnist",
    classes=10,
    channels=1,
    image_size=28,
    mean=(0.2860,),
    std=(0.3530,),
    train_size=60_000,
    test_size=10_000,
    default_augment=Augment(crop=True, pad=2, flip=True),
    how_to_get="install Debian's package dataset-fashion-mnist, use --download, or put the four idx files "
    "(gzipped or not) into the data folder",
)
_CLASSES = {
    "mnist": tuple("0123456789"),
    "fashion_mnist": (
        "T-shirt/top", "trouser", "pullover", "dress", "coat",
        "sandal", "shirt", "sneaker", "bag", "ankle boot",
    ),
}  # fmt: skip
_FOLDERS = {
    "mnist": ("MNIST/raw", "MNIST"),
    "fashion_mnist": ("fashion-mnist", "FashionMNIST/raw", "FashionMNIST"),
}
_DEBIAN = {"fashion_mnist": Path("/usr/share/datasets/fashion-mnist")}
_MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
ARCHIVES = {
    "mnist": (
        Archive(_MNIST_URL + "train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        Archive(_MNIST_URL + "train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432"),
        Archive(_MNIST_URL + "t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3"),
        Archive(_MNIST_URL + "t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c"),
    ),
    "fashion_mnist": (
        Archive(_FASHION_URL + "train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        Archive(_FASHION_URL + "train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
        Archive(_FASHION_URL + "t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
        Archive(_FASHION_URL + "t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
    ),
}


def load(info: DatasetInfo, root: str | Path | None, split: str, *, download: bool = False) -> ArrayDataset:
    """Reads `train` or `test` (the files named t10k) from `root`; without a root, from Debian's place too."""
    prefix = "train" if split == "train" else "t10k"
    places = candidates(info, root, _FOLDERS[info.name])
    if root is None and info.name in _DEBIAN:
        places.append(_DEBIAN[info.name])
    if download and not any(_find(place, prefix, "images") for place in places):
        folder = (data_home() if root is None else Path(root).expanduser()) / info.name
        for archive in ARCHIVES[info.name]:
            fetch(archive, folder)
    for place in places:
        images, labels = _find(place, prefix, "images"), _find(place, prefix, "labels")
        if images and labels:
            return _read(info, split, images, labels)
    raise not_found(info, root, f"{prefix}-images-idx3-ubyte[.gz] and {prefix}-labels-idx1-ubyte[.gz]")


def _find(folder: Path, prefix: str, what: str) -> Path | None:
    rank = {"images": 3, "labels": 1}[what]
    for name in (f"{prefix}-{what}-idx{rank}-ubyte", f"{prefix}-{what}.idx{rank}-ubyte"):
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    return None


def _read(info: DatasetInfo, split: str, images: Path, labels: Path) -> ArrayDataset:
    pixels, classes = read_idx(images), read_idx(labels)
    if pixels.ndim != 3 or classes.ndim != 1 or len(pixels) != len(classes):
        raise DatasetError(
            f"{images} (shape {pixels.shape}) and {labels} (shape {classes.shape}) must have one length"
        )
    numbers: Int64Array = classes.astype(np.int64)
    return ArrayDataset(info, split, _CLASSES[info.name], pixels[:, :, :, None], numbers)


def read_idx(path: Path) -> UInt8Array:
    """An idx file of unsigned bytes: magic 0, 0, 8, rank; `rank` big-endian sizes; the values."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            data = bytes(file.read())
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DatasetError(f"{path} is not a complete gzip file ({error})") from error
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise DatasetError(f"{path} is not an idx file of unsigned bytes (it starts with {data[:4].hex()})")
    rank = data[3]
    shape = tuple(int(n) for n in np.frombuffer(data[4 : 4 + 4 * rank], ">u4"))
    values = np.frombuffer(data, np.uint8, offset=min(4 + 4 * rank, len(data)))
    if len(shape) != rank or len(values) != int(np.prod(shape, dtype=np.int64)):
        raise DatasetError(f"{path} states the shape {shape} but holds {len(values)} values")
    pixels: UInt8Array = values.reshape(shape).copy()
    return pixels
