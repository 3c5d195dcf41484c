"""Tiny-ImageNet-200 in its official layout: 200 classes, 500 training and 50 validation images each, 64x64.

    tiny-imagenet-200/wnids.txt                       the class of label i is line i
    tiny-imagenet-200/words.txt                       wnid TAB names
    tiny-imagenet-200/train/WNID/images/*.JPEG
    tiny-imagenet-200/val/images/*.JPEG, val/val_annotations.txt (file TAB wnid TAB box)

The official test set has no labels; as everywhere, the validation set is the test set here. The images are
decoded once and stored (see `cache`).
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from xnorpp.data.dataset import ArrayDataset, Augment, DatasetError, DatasetInfo, FolderDataset
from xnorpp.data.download import Archive, fetch, unpack
from xnorpp.data.loading.cache import load_decoded
from xnorpp.data.places import candidates, data_home, not_found

TINY_IMAGENET = DatasetInfo(
    name="tiny_imagenet",
    classes=200,
    channels=3,
    image_size=64,
    mean=(0.4802, 0.4481, 0.3975),
    std=(0.2764, 0.2689, 0.2816),
    train_size=100_000,
    test_size=10_000,
    default_augment=Augment(crop=True, pad=8, flip=True),
    how_to_get="use --download, or unpack cs231n.stanford.edu/tiny-imagenet-200.zip into the data folder",
)
_FOLDER = "tiny-imagenet-200"
ARCHIVE = Archive("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de")


def load(
    info: DatasetInfo,
    root: str | Path | None,
    split: str,
    *,
    download: bool = False,
    workers: int | None = None,
    max_skipped: int | None = None,
) -> ArrayDataset:
    """`workers`: decoding processes of the first call (default: one per core)."""
    places = candidates(info, root, [_FOLDER])
    if download and not any((place / "wnids.txt").is_file() for place in places):
        home = (data_home() if root is None else Path(root).expanduser()) / info.name
        unpack(fetch(ARCHIVE, home), home, _FOLDER)
    for place in places:
        if (place / "wnids.txt").is_file():
            return load_decoded(
                _listing(info, place, split), info.image_size, workers=workers, max_skipped=max_skipped
            )
    raise not_found(info, root, f"{_FOLDER}/wnids.txt")


def _listing(info: DatasetInfo, place: Path, split: str) -> FolderDataset:
    wnids = (place / "wnids.txt").read_text().split()
    label_of = {wnid: label for label, wnid in enumerate(wnids)}
    paths: list[str] = []
    labels: list[int] = []
    if split == "train":
        for wnid in wnids:
            folder = f"train/{wnid}/images"
            if not (place / folder).is_dir():
                raise DatasetError(f"{place} has no folder {folder}, though wnids.txt names that class")
            files = sorted(
                name for name in os.listdir(place / folder) if name.upper().endswith((".JPEG", ".JPG"))
            )
            paths += [f"{folder}/{name}" for name in files]
            labels += [label_of[wnid]] * len(files)
    else:
        annotations = place / "val" / "val_annotations.txt"
        if not annotations.is_file():
            raise DatasetError(
                f"{place} has no val/val_annotations.txt, which holds the labels of the test images"
            )
        for number, line in enumerate(annotations.read_text().splitlines(), 1):
            fields = line.split()
            if len(fields) < 2 or fields[1] not in label_of:
                raise DatasetError(
                    f'{annotations}, line {number} (="{line}") must be a file name and a wnid of wnids.txt'
                )
            paths.append(f"val/images/{fields[0]}")
            labels.append(label_of[fields[1]])
    names = word_names(place / "words.txt", wnids)
    return FolderDataset(info, split, names, np.array(labels, np.int64), place, paths)


def word_names(words: Path, wnids: list[str]) -> tuple[str, ...]:
    """The first English name of each wnid, from lines of `wnid TAB name, name`.

    The wnid itself where none is known.
    """
    known: dict[str, str] = {}
    if words.is_file():
        for line in words.read_text(encoding="utf-8").splitlines():
            wnid, _, name = line.replace("\t", " ", 1).partition(" ")
            known[wnid] = name.split(",")[0].strip()
    return tuple(known.get(wnid) or wnid for wnid in wnids)
