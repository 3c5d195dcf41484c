"""ImageNet (ILSVRC2012) as people have it: class folders for training; validation as class folders, or flat
with a label file.

    ROOT/train/WNID/*.JPEG           label i is the i-th wnid in alphabetical order
    ROOT/val/WNID/*.JPEG             or
    ROOT/val/*.JPEG and a label file in ROOT or ROOT/val (or given as `labels`; Kaggle's three folders above
    its ILSVRC/Data/CLS-LOC), one of
        file wnid                    one line per image ("val_annotations.txt", "val.txt")
        file number                  from 0 on, in alphabetical order of the wnids (Caffe's "val.txt")
        file,wnid box ...            Kaggle's "LOC_val_solution.csv"
        wnid                         one line per image, in alphabetical order of the files
        number                       "ILSVRC2012_validation_ground_truth.txt" of the development kit, in
                                     alphabetical order of the files

The kit's numbers 1..1000 are NOT in alphabetical order of the wnids: their order comes from "synsets.txt" or
"wnids.txt" beside the file (line k is the wnid of number k), or from the kit's "meta.mat" (needs scipy).

The paper's pre-processing: resize to 256x256, random crop of 224 (227 for AlexNet), the centre crop in
testing. It names no mirroring; "common practices" has it, so it is on in training by default and `augment =
{flip = false}` turns it off.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from xnorpp.data.dataset import Augment, DatasetError, DatasetInfo, FolderDataset
from xnorpp.data.formats.tiny_imagenet import word_names
from xnorpp.data.places import candidates, not_found

IMAGENET = DatasetInfo(
    name="imagenet",
    classes=1000,
    channels=3,
    image_size=224,
    resize=256,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    train_size=1_281_167,
    test_size=50_000,
    default_augment=Augment(crop=True, pad=0, flip=True),
    how_to_get="register at image-net.org, download ILSVRC2012's train and val archives and unpack them to "
    "ROOT/train/WNID and ROOT/val",
)
_ENDINGS = (".jpeg", ".jpg", ".png")
_LABEL_FILES = (
    "val_annotations.txt",
    "val.txt",
    "val_labels.txt",
    "labels.txt",
    "LOC_val_solution.csv",
    "imagenet_2012_validation_synset_labels.txt",
    "ILSVRC2012_validation_ground_truth.txt",
    "data/ILSVRC2012_validation_ground_truth.txt",
)
_CLASS_ORDERS = ("synsets.txt", "wnids.txt")
_NAMES = ("words.txt", "LOC_synset_mapping.txt", "synset_words.txt")


def load(
    info: DatasetInfo,
    root: str | Path | None,
    split: str,
    *,
    labels: str | Path | None = None,
) -> FolderDataset:
    """`labels`: the label file of a flat validation folder, where it is not at one of the usual places."""
    for place in candidates(info, root, ["ILSVRC2012", "ILSVRC/Data/CLS-LOC"]):
        train = place / "train"
        test = next((place / name for name in ("val", "test") if (place / name).is_dir()), None)
        folder = train if split == "train" else test
        if folder is None or not folder.is_dir():
            continue
        wnids = _class_folders(train) if train.is_dir() else []
        if split == "train" or _class_folders(folder):
            return _from_class_folders(info, split, place, folder, wnids)
        return _from_label_file(info, split, place, folder, wnids, labels)
    raise not_found(info, root, "train/WNID/*.JPEG" if split == "train" else "val/")


def _homes(place: Path) -> list[Path]:
    """Where the tables about the images in `place` lie: there, and where Kaggle's archive has them."""
    kaggle = place.resolve().parts[-3:] == ("ILSVRC", "Data", "CLS-LOC")
    return [place, place.resolve().parents[2]] if kaggle else [place]


def _class_folders(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _images(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.name.lower().endswith(_ENDINGS))


def _from_class_folders(
    info: DatasetInfo, split: str, place: Path, folder: Path, wnids: list[str]
) -> FolderDataset:
    present = _class_folders(folder)
    wnids = wnids or present
    unknown = sorted(set(present) - set(wnids))
    if unknown:
        raise DatasetError(
            f"{folder} has the class folder {unknown[0]}, which {place / 'train'} does not have"
        )
    paths: list[str] = []
    labels: list[int] = []
    for label, wnid in enumerate(wnids):
        names = _images(folder / wnid) if (folder / wnid).is_dir() else []
        paths += [f"{folder.name}/{wnid}/{name}" for name in names]
        labels += [label] * len(names)
    return _dataset(info, split, place, paths, labels, wnids)


def _from_label_file(
    info: DatasetInfo, split: str, place: Path, folder: Path, wnids: list[str], given: str | Path | None
) -> FolderDataset:
    usual = [
        where / name
        for name in _LABEL_FILES
        for where in (folder, *_homes(place), place / "ILSVRC2012_devkit_t12")
    ]
    usual_names = dict.fromkeys(Path(name).name for name in _LABEL_FILES)
    file = Path(given) if given is not None else next((path for path in usual if path.is_file()), None)
    if file is None or not file.is_file():
        raise DatasetError(
            f"{folder} has no class folders, so it needs a label file: `labels`, or one of "
            f"{', '.join(usual_names)}"
        )
    rows = [line.replace(",", " ").split() for line in file.read_text().splitlines() if line.strip()]
    if rows and rows[0][0] == "ImageId":
        rows = rows[1:]
    names = _images(folder)
    widths = {min(2, len(row)) for row in rows}
    if len(widths) != 1:
        raise DatasetError(f"{file} must have a label on each line, or a file name and a label on each line")
    if widths == {1}:
        if len(rows) != len(names):
            raise DatasetError(f"{file} has {len(rows)} labels for the {len(names)} images in {folder}")
        values = dict(zip(names, (row[0] for row in rows), strict=True))
        order = None if rows[0][0].startswith("n") else _kit_order(file, place)
    else:
        values = {_with_suffix(row[0], names): row[1] for row in rows}
        if not wnids and all(value.isdigit() for value in values.values()):  # no train folder to name them
            wnids = [str(number) for number in range(max(map(int, values.values())) + 1)]
        order = {str(number): wnid for number, wnid in enumerate(wnids)}
    known = {value if value.startswith("n") else (order or {}).get(value, value) for value in values.values()}
    wnids = wnids or sorted(known)
    label_of = {wnid: label for label, wnid in enumerate(wnids)}
    labels: list[int] = []
    for name in names:
        if name not in values:
            raise DatasetError(f"{file} has no line for the image {name}")
        value = values[name]
        wnid = value if order is None else order.get(value, value)
        if wnid not in label_of:
            raise DatasetError(
                f"{file} gives {name} the class {value}, which is not one of the {len(wnids)} classes"
            )
        labels.append(label_of[wnid])
    return _dataset(info, split, place, [f"{folder.name}/{name}" for name in names], labels, wnids)


def _with_suffix(name: str, names: list[str]) -> str:
    """Kaggle's table leaves the suffix out."""
    return name if name.lower().endswith(_ENDINGS) else f"{name}{Path(names[0]).suffix if names else ''}"


def _kit_order(file: Path, place: Path) -> dict[str, str]:
    """The wnid of each of the development kit's numbers."""
    for folder in dict.fromkeys((file.parent, place)):
        for name in _CLASS_ORDERS:
            if (folder / name).is_file():
                wnids = (folder / name).read_text().split()
                return {str(number): wnid for number, wnid in enumerate(wnids, 1)}
        if (folder / "meta.mat").is_file():
            from scipy.io import loadmat

            synsets = loadmat(folder / "meta.mat", squeeze_me=True)["synsets"]
            return {str(int(row["ILSVRC2012_ID"])): str(row["WNID"]) for row in synsets}
    raise DatasetError(
        f"{file} holds the development kit's numbers, whose order must be given beside it by synsets.txt or "
        "wnids.txt (line k: the wnid of number k) or the kit's meta.mat"
    )


def _dataset(
    info: DatasetInfo, split: str, place: Path, paths: list[str], labels: list[int], wnids: list[str]
) -> FolderDataset:
    if not paths:
        raise DatasetError(f"{place} holds no {split} images")
    tables = [home / name for home in _homes(place) for name in _NAMES]
    words = next((table for table in tables if table.is_file()), tables[0])
    names = word_names(words, wnids)
    return FolderDataset(info, split, names, np.array(labels, np.int64), place, paths)
