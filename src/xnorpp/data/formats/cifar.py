"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): the official binary batches and the official python batches.

A python batch is a pickle, and a pickle can run code when it is read; `plain_pickle` reads plain data only.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from xnorpp.data.dataset import ArrayDataset, Augment, DatasetError, DatasetInfo, Int64Array, UInt8Array
from xnorpp.data.download import Archive, fetch, unpack
from xnorpp.data.formats.plain_pickle import PlainArray, read_python_batch
from xnorpp.data.places import candidates, data_home, not_found

_HOW = (
    "use --download, or unpack {archive} from www.cs.toronto.edu/~kriz/cifar.html (or the python version) "
    "into the data folder"
)
CIFAR10 = DatasetInfo(
    name="cifar10",
    classes=10,
    channels=3,
    image_size=32,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    train_size=50_000,
    test_size=10_000,
    default_augment=Augment(crop=True, pad=4, flip=True),
    how_to_get=_HOW.format(archive="cifar-10-binary.tar.gz"),
)
CIFAR100 = DatasetInfo(
    name="cifar100",
    classes=100,
    channels=3,
    image_size=32,
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
    train_size=50_000,
    test_size=10_000,
    default_augment=Augment(crop=True, pad=4, flip=True),
    how_to_get=_HOW.format(archive="cifar-100-binary.tar.gz"),
)
_BINARY_FOLDER = {"cifar10": "cifar-10-batches-bin", "cifar100": "cifar-100-binary"}
_PYTHON_FOLDER = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}
_FILES = {
    ("cifar10", "train"): tuple(f"data_batch_{i}" for i in range(1, 6)),
    ("cifar10", "test"): ("test_batch",),
    ("cifar100", "train"): ("train",),
    ("cifar100", "test"): ("test",),
}
_CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_URL = "https://www.cs.toronto.edu/~kriz/"
ARCHIVES = {
    "cifar10": Archive(_URL + "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
    "cifar100": Archive(_URL + "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
}
_PIXELS = 3 * 32 * 32
_MAX_NAMES = 1 << 16  # bytes of the file of class names


def load(info: DatasetInfo, root: str | Path | None, split: str, *, download: bool = False) -> ArrayDataset:
    """Reads the binary batches, or where there are none the python batches."""
    folders = (_BINARY_FOLDER[info.name], _PYTHON_FOLDER[info.name])
    places = candidates(info, root, folders)
    files = _FILES[info.name, split]
    if download and not any(_complete(place, files) for place in places):
        home = (data_home() if root is None else Path(root).expanduser()) / info.name
        unpack(fetch(ARCHIVES[info.name], home), home, _BINARY_FOLDER[info.name])
    for place in places:
        suffix = _complete(place, files)
        if suffix is not None:
            read = _read_binary if suffix == ".bin" else _read_python
            parts = [read(info.name, place / f"{file}{suffix}") for file in files]
            images = np.concatenate([pixels for pixels, _ in parts])
            labels = np.concatenate([numbers for _, numbers in parts])
            return ArrayDataset(info, split, _class_names(info.name, place), images, labels)
    raise not_found(info, root, f"{files[0]}.bin in {folders[0]}, or {files[0]} in {folders[1]}")


def _complete(place: Path, files: tuple[str, ...]) -> str | None:
    for suffix in (".bin", ""):
        if all((place / f"{file}{suffix}").is_file() for file in files):
            return suffix
    return None


def _planes_last(rows: UInt8Array) -> UInt8Array:
    """Rows of red, green, blue planes to (N, 32, 32, 3)."""
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _read_binary(name: str, path: Path) -> tuple[UInt8Array, Int64Array]:
    """A record is 1 label byte (CIFAR-100: coarse, then fine) and 3072 pixel bytes."""
    head = 1 if name == "cifar10" else 2
    data = np.fromfile(path, np.uint8)
    if len(data) == 0 or len(data) % (head + _PIXELS):
        raise DatasetError(
            f"{path} has {len(data)} bytes, not a multiple of the record size {head + _PIXELS}"
        )
    records = data.reshape(-1, head + _PIXELS)
    return _planes_last(records[:, head:]), records[:, head - 1].astype(np.int64)


def _read_python(name: str, path: Path) -> tuple[UInt8Array, Int64Array]:
    batch = read_python_batch(path)
    labels = batch.get(b"labels" if name == "cifar10" else b"fine_labels")
    data = batch.get(b"data")
    pixels = data.array if isinstance(data, PlainArray) else None
    if (
        pixels is None
        or not isinstance(labels, list)
        or pixels.shape != (len(labels), _PIXELS)
        or not all(type(label) is int and 0 <= label < 256 for label in labels)
    ):
        raise DatasetError(
            f"{path} is not a {name} python batch (N labels and a uint8 array of N x {_PIXELS})"
        )
    return _planes_last(pixels), np.array(labels, np.int64)


def _class_names(name: str, place: Path) -> tuple[str, ...]:
    if name == "cifar10":
        return _CIFAR10_CLASSES
    text, meta = place / "fine_label_names.txt", place / "meta"
    names: tuple[str, ...] = ()
    if text.is_file():
        with text.open("rb") as file:
            names = tuple(file.read(_MAX_NAMES).decode("utf-8", "replace").split())
    elif meta.is_file():
        labels = read_python_batch(meta).get(b"fine_label_names")
        if isinstance(labels, list) and all(isinstance(label, (bytes, str)) for label in labels):
            names = tuple(
                label if isinstance(label, str) else label.decode("utf-8", "replace") for label in labels
            )
    return names if len(names) == 100 else tuple(str(i) for i in range(100))
