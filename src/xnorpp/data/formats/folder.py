"""Images in class folders: your own images, without a line of code.

    ROOT/train/CLASS/*.jpg           and ROOT/val/CLASS/*.jpg (or validation/, valid/, test/)
    ROOT/CLASS/*.jpg                 one tree; a share of it is held out for testing (`data.holdout`)

A class is a folder with images in it, at any depth below it; classes are numbered in alphabetical order of
their names, which travel into checkpoints and packed files. Images of the formats
`FORMATS` of `runtime.decode` are decoded; a file of another format that Pillow knows counts as unreadable.

Without a `size` the images get the size they have, at most 224: the median of the shorter sides of 64 of
them. A set of up to 512 MiB of decoded pixels is decoded once, stored beside the data (or in XNORPP_CACHE)
and held in memory; a larger one is streamed, resized to 8/7 of the size and cropped, as ImageNet is.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from xnorpp.data.dataset import (
    ArrayDataset,
    Augment,
    DatasetError,
    DatasetInfo,
    FolderDataset,
    Int64Array,
)
from xnorpp.data.loading.cache import load_decoded
from xnorpp.data.places import not_found

FOLDER = DatasetInfo(
    name="folder",
    classes=0,
    channels=3,
    image_size=224,
    resize=256,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    train_size=0,
    test_size=0,
    default_augment=Augment(crop=True, pad=0, flip=True),
    how_to_get="give the folder (--data DIR) that has train/CLASS/*.jpg and val/CLASS/*.jpg, or CLASS/*.jpg "
    "and a share to hold out (--set data.holdout=0.2)",
)
IN_MEMORY_BYTES = 512 << 20
TRAIN_FOLDERS = ("train", "training")
TEST_FOLDERS = ("val", "validation", "valid", "test")
_GREY_MEAN, _GREY_STD = (0.449,), (0.226,)
_SAMPLED = 64
_LARGEST = 224


def load(
    info: DatasetInfo,
    root: str | Path | None,
    split: str,
    *,
    size: int | None = None,
    resize: int | None = None,
    channels: int | None = None,
    workers: int | None = None,
    max_skipped: int | None = None,
    stream: bool = False,
) -> ArrayDataset | FolderDataset:
    """Reads the split of a folder.

    Args:
        info: The card to fill in.
        root: The folder; it has no usual place.
        split: "train" or "test".
        size: The side of the images in pixels; None: see the module's docstring.
        resize: The side that images are resized to before the crop of `size`; None: `size` where the set is
            held in memory, 8/7 of it where it is streamed.
        channels: 3 (colour, the default) or 1 (grey).
        workers: Processes that decode a set that is held in memory (default: one per core).
        max_skipped: How many unreadable images are tolerated in a set that is held in memory (default: 1 %,
            at least 1, at most 100).
        stream: Decode nothing here, however small the set is; who reads the images prepares them.
    """
    place = _place(info, root)
    train, test = (_below(place, names) for names in (TRAIN_FOLDERS, TEST_FOLDERS))
    tree = train if train is not None else place
    if split == "test":
        if test is None and train is None:  # one tree, which may be a test set by itself
            test = place
        if test is None:
            raise DatasetError(
                f"{place} has {tree.name}/ and none of {', '.join(f'{name}/' for name in TEST_FOLDERS)}; "
                "make one, or hold a share out (`data.holdout`)"
            )
        if train is None and test != place:
            tree = test
    listing = _list(info, place, tree if split == "train" else test or place, split, tree)
    measured = listing if split == "train" or tree == test else _list(info, place, tree, "train", tree)
    return _with_size(listing, measured, size, resize, channels, workers, max_skipped, stream)


def is_one_tree(root: str | Path) -> bool:
    """Whether a folder has its classes in itself, and no split into training and testing."""
    place = Path(root).expanduser()
    return place.is_dir() and _below(place, TRAIN_FOLDERS + TEST_FOLDERS) is None


def _place(info: DatasetInfo, root: str | Path | None) -> Path:
    if root is None:
        raise not_found(info, "(no folder given)", "train/CLASS/*.jpg or CLASS/*.jpg")
    place = Path(root).expanduser()
    if not place.is_dir():
        what = "is a file" if place.exists() else "does not exist"
        raise DatasetError(f"`root` (={str(root)!r}, --data) must be a folder, and {what}")
    return place


def _below(place: Path, names: tuple[str, ...]) -> Path | None:
    return next((place / name for name in names if (place / name).is_dir()), None)


def _list(info: DatasetInfo, place: Path, folder: Path, split: str, tree: Path) -> FolderDataset:
    """The images below `folder`; the classes are those of `tree`, the training set."""
    classes = _class_folders(tree)
    present = classes if folder == tree else _class_folders(folder)
    if not present:
        raise not_found(info, place, f"class folders in {folder}")
    unknown = sorted(set(present) - set(classes))
    if unknown:
        raise DatasetError(f"{folder} has the class folder {unknown[0]!r}, which {tree} does not have")
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        files = _images(folder / name) if name in present else []
        paths += [str((folder / name / file).relative_to(place)) for file in files]
        labels += [label] * len(files)
    if not paths:
        raise not_found(info, place, f"images in {folder}/{classes[0]} and the other class folders")
    numbers: Int64Array = np.array(labels, np.int64)
    return FolderDataset(info, split, tuple(classes), numbers, place, paths)


def _class_folders(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _images(folder: Path) -> list[str]:
    """The images at any depth, by their endings, as paths relative to `folder`, sorted."""
    endings = _endings()
    return sorted(
        str((Path(parent) / file).relative_to(folder))
        for parent, _, files in os.walk(folder, onerror=_raise)
        for file in files
        if file.lower().endswith(endings) and not file.startswith(".")
    )


def _raise(error: OSError) -> None:
    """A folder that cannot be read is an error, not one without images."""
    raise error


def _endings() -> tuple[str, ...]:
    """Those of the formats that Pillow can open, and of a raw array."""
    from PIL import Image

    known = Image.registered_extensions()
    return (*(ending for ending, kind in known.items() if kind in Image.OPEN), ".npy")


def _with_size(
    listing: FolderDataset,
    measured: FolderDataset,
    size: int | None,
    resize: int | None,
    channels: int | None,
    workers: int | None,
    max_skipped: int | None,
    stream: bool,
) -> ArrayDataset | FolderDataset:
    info = listing.info
    if channels not in (None, 1, 3):
        raise ValueError(f"`channels` (={channels}) must be 1 (grey) or 3 (colour)")
    count = channels or info.channels
    if size is not None and size < 1:
        raise ValueError(f"`size` (={size}) must be at least 1")
    side = size or _usual_side(measured)
    if resize is not None and resize < side:
        raise ValueError(f"`resize` (={resize}) must be at least `size` (={side})")
    small = len(measured) * side * side * count <= IN_MEMORY_BYTES
    in_memory = small and resize in (None, side) and not stream
    changes: dict[str, Any] = {f"{listing.split}_size": len(listing)}
    if count == 1:
        changes |= {"mean": _GREY_MEAN, "std": _GREY_STD}
    card = replace(
        info,
        classes=len(listing.classes),
        channels=count,
        image_size=side,
        resize=None if in_memory else resize or info.resize_for(side),
        default_augment=replace(info.default_augment, pad=max(1, side // 8) if in_memory else 0),
        **changes,
    )
    listing = replace(listing, info=card)
    if not in_memory:
        return listing
    return load_decoded(listing, side, workers=workers, max_skipped=max_skipped, by_time=True)


def _usual_side(listing: FolderDataset) -> int:
    """The median of the shorter sides of some images, at most 224; unreadable ones are left to the loader."""
    from PIL import Image

    sides: list[int] = []
    for index in np.unique(np.linspace(0, len(listing) - 1, _SAMPLED).astype(np.int64)):
        try:
            with Image.open(listing.blob(int(index)).path) as image:
                sides.append(min(image.size))
        except Exception:  # Pillow raises nearly anything for a damaged file
            continue
    return min(_LARGEST, int(np.median(sides))) if sides else _LARGEST
