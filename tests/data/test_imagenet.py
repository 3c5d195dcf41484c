from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xnorpp.data import DatasetError, FolderDataset, load_dataset

WNIDS = ["n01", "n02", "n03", "n04"]
LABELS = [3, 0, 1, 1, 2, 3, 0, 2]


def names() -> list[str]:
    return [f"ILSVRC2012_val_{i + 1:08d}" for i in range(8)]


def load(root: Path, split: str = "train", **options: Any) -> FolderDataset:
    dataset = load_dataset("imagenet", root, split, **options)
    assert isinstance(dataset, FolderDataset)
    return dataset


def test_training_folders(imagenet_folder: Path) -> None:
    train = load(imagenet_folder)
    assert len(train) == 40
    np.testing.assert_array_equal(train.labels, np.repeat([0, 1, 2, 3], 10))
    assert train.classes == tuple(WNIDS)
    assert train.sample_name(10) == f"{imagenet_folder}/train/n02/n02_0.JPEG"
    part = train.subset(np.array([10, 39]))
    assert [part.sample_name(i)[-10:] for i in range(2)] == ["n02_0.JPEG", "n04_9.JPEG"]


def test_names_of_the_classes(imagenet_folder: Path) -> None:
    (imagenet_folder / "LOC_synset_mapping.txt").write_text("n01 tench, Tinca tinca\nn04 hammerhead\n")
    assert load(imagenet_folder).classes == ("tench", "n02", "n03", "hammerhead")


def test_validation_folders(imagenet_folder: Path) -> None:
    for name, label in zip(names(), LABELS, strict=True):
        (imagenet_folder / "val" / WNIDS[label]).mkdir(exist_ok=True)
        file = imagenet_folder / "val" / f"{name}.JPEG"
        file.rename(imagenet_folder / "val" / WNIDS[label] / file.name)
    test = load(imagenet_folder, "test")
    np.testing.assert_array_equal(test.labels, sorted(LABELS))
    (imagenet_folder / "val" / "n99").mkdir()
    with pytest.raises(DatasetError, match=r"class folder n99, which .* does not have"):
        load(imagenet_folder, "test")


FORMS = {
    "val_annotations.txt": "\n".join(
        f"{n}.JPEG\t{WNIDS[i]}\t0\t0" for n, i in zip(names(), LABELS, strict=True)
    ),
    "val.txt": "\n".join(f"{n}.JPEG {i}" for n, i in zip(names(), LABELS, strict=True)),
    "LOC_val_solution.csv": "ImageId,PredictionString\n"
    + "\n".join(f"{n},{WNIDS[i]} 1 2 3 4 " for n, i in reversed(list(zip(names(), LABELS, strict=True)))),
    "imagenet_2012_validation_synset_labels.txt": "\n".join(WNIDS[i] for i in LABELS),
}


@pytest.mark.parametrize("where", ["", "val"])
@pytest.mark.parametrize("form", list(FORMS))
def test_label_files(imagenet_folder: Path, form: str, where: str) -> None:
    (imagenet_folder / where / form).write_text(FORMS[form] + "\n")
    test = load(imagenet_folder, "test")
    np.testing.assert_array_equal(test.labels, LABELS)
    assert [Path(path).stem for path in test.paths] == names()


def test_label_file_by_name_and_without_the_training_set(imagenet_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text(FORMS["val_annotations.txt"])
    (imagenet_folder / "train").rename(tmp_path / "elsewhere")
    test = load(imagenet_folder, "test", labels=tmp_path / "mine.txt")
    np.testing.assert_array_equal(test.labels, LABELS)


def test_numbers_are_labels_without_the_training_set(imagenet_folder: Path, tmp_path: Path) -> None:
    """As text 10 comes before 2; the label is the number all the same."""
    (imagenet_folder / "train").rename(tmp_path / "elsewhere")
    numbers = [0, 2, 10, 11, 1, 9, 3, 10]
    lines = [f"{name}.JPEG {number}\n" for name, number in zip(names(), numbers, strict=True)]
    (imagenet_folder / "val.txt").write_text("".join(lines))
    test = load(imagenet_folder, "test")
    np.testing.assert_array_equal(test.labels, numbers)
    assert len(test.classes) == 12


@pytest.mark.parametrize("inside", [False, True])
def test_kaggles_layout(imagenet_folder: Path, tmp_path: Path, inside: bool) -> None:
    root = tmp_path / "kaggle"
    images = root / "ILSVRC" / "Data" / "CLS-LOC"
    images.parent.mkdir(parents=True)
    imagenet_folder.rename(images)
    (root / "LOC_val_solution.csv").write_text(FORMS["LOC_val_solution.csv"])
    (root / "LOC_synset_mapping.txt").write_text("".join(f"{wnid} thing {wnid}, other\n" for wnid in WNIDS))
    test = load(images if inside else root, "test")
    np.testing.assert_array_equal(test.labels, LABELS)
    assert test.classes == tuple(f"thing {wnid}" for wnid in WNIDS)


@pytest.mark.parametrize("order", ["synsets.txt", "meta.mat"])
def test_the_kits_numbers_follow_the_kits_order(imagenet_folder: Path, order: str) -> None:
    kit = ["n03", "n01", "n04", "n02"]
    numbers = [kit.index(WNIDS[label]) + 1 for label in LABELS]
    truth = imagenet_folder / "ILSVRC2012_validation_ground_truth.txt"
    truth.write_text("\n".join(map(str, numbers)) + "\n")
    with pytest.raises(DatasetError, match=r"order must be given beside it by synsets.txt"):
        load(imagenet_folder, "test")
    if order == "synsets.txt":
        (imagenet_folder / order).write_text("\n".join(kit) + "\n")
    else:
        scipy_io = pytest.importorskip("scipy.io")
        rows = np.array(
            [(number, wnid) for number, wnid in enumerate(kit, 1)],
            dtype=[("ILSVRC2012_ID", "O"), ("WNID", "O")],
        )
        scipy_io.savemat(imagenet_folder / order, {"synsets": rows})
    np.testing.assert_array_equal(load(imagenet_folder, "test").labels, LABELS)


def test_wrong_label_files_are_named(imagenet_folder: Path) -> None:
    with pytest.raises(DatasetError, match=r"needs a label file: `labels`, or one of val_annotations.txt"):
        load(imagenet_folder, "test")
    (imagenet_folder / "val.txt").write_text("n01\nn02\n")
    with pytest.raises(DatasetError, match="has 2 labels for the 8 images"):
        load(imagenet_folder, "test")
    (imagenet_folder / "val.txt").write_text(FORMS["val.txt"].replace(" 3", " 7"))
    with pytest.raises(DatasetError, match=r"gives ILSVRC2012_val_00000001.JPEG the class 7"):
        load(imagenet_folder, "test")
    (imagenet_folder / "val.txt").write_text("\n".join(FORMS["val.txt"].splitlines()[1:]))
    with pytest.raises(DatasetError, match=r"has no line for the image ILSVRC2012_val_00000001.JPEG"):
        load(imagenet_folder, "test")
    for content in ("", "ILSVRC2012_val_00000001.JPEG 3\nn01\n"):
        (imagenet_folder / "val.txt").write_text(content)
        with pytest.raises(DatasetError, match=r"val.txt must have a label on each line, or a file name"):
            load(imagenet_folder, "test")


def test_an_empty_training_folder(tmp_path: Path) -> None:
    (tmp_path / "train" / "n01").mkdir(parents=True)
    with pytest.raises(DatasetError, match="holds no train images"):
        load(tmp_path)
