"""Data sets from outside the package: registered, or named as package.module:function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xnorpp.data import ArrayDataset, DatasetError, catalog, list_datasets, load_dataset, register_dataset

MODULE = """
import numpy as np

def blocks(root, split, count=6):
    images = np.zeros((count, 4, 4, 1), np.uint8)
    images[:, 0, 0] = 1 if split == "train" else 2
    return images, np.arange(count) % 2

def no_root(split):
    return blocks(None, split)

def tree(root):
    return root

def needs_more(split, mood):
    return None

NUMBER = 3
"""


@pytest.fixture(autouse=True)
def _own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "_DATASETS", dict(catalog._DATASETS))


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    name = f"own_data_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return name


def test_a_registered_function_is_a_data_set() -> None:
    @register_dataset("blocks", classes=["dark", "bright"])
    def blocks(split: str, count: int = 6) -> Any:
        return np.zeros((count, 4, 4, 1), np.uint8), np.arange(count) % 2

    assert "blocks" in list_datasets()
    dataset = load_dataset("blocks", count=8)
    assert isinstance(dataset, ArrayDataset)
    assert (len(dataset), dataset.classes, dataset.name) == (8, ("dark", "bright"), "blocks")
    fit = load_dataset("blocks", holdout=0.5, part="fit")
    assert len(fit) == 2
    with pytest.raises(TypeError, match='data set "blocks" has no option `colour`; it has count'):
        load_dataset("blocks", colour=1)
    with pytest.raises(DatasetError, match="data set 'blocks' does not use `root`"):
        load_dataset("blocks", "somewhere")
    with pytest.raises(DatasetError, match="data set 'blocks' cannot be downloaded"):
        load_dataset("blocks", download=True)


def test_a_name_that_is_taken_or_has_a_colon_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`name` \(='digits'\) is a data set already"):
        register_dataset("digits")(lambda split: None)
    with pytest.raises(ValueError, match="must not have a colon"):
        register_dataset("a:b")


def test_a_function_is_named_by_its_module(module: str) -> None:
    train, test = (load_dataset(f"{module}:blocks", split=split) for split in ("train", "test"))
    assert (train.images[0, 0, 0, 0], test.images[0, 0, 0, 0]) == (1, 2)
    assert len(load_dataset(f"{module}:blocks", count=9)) == 9
    with pytest.raises(DatasetError, match=f"data set '{module}:no_root' does not use `root`"):
        load_dataset(f"{module}:no_root", "somewhere")


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (":nothing", "has no 'nothing'"),
        (":NUMBER", "must be a function or a class, and is not callable"),
        ("_missing:f", "there is no module"),
        (":", "must have the form package.module:function"),
        (":needs_more", "needs `mood`, which is not given"),
    ],
)
def test_a_name_that_leads_nowhere_is_one_sentence(module: str, end: str, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        load_dataset(f"{module}{end}")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_function_may_return_a_folder(module: str, tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "tree" / "a").mkdir(parents=True)
    Image.new("RGB", (9, 9)).save(tmp_path / "tree" / "a" / "0.png")
    assert load_dataset(f"{module}:tree", tmp_path / "tree").classes == ("a",)


def test_digits_refuse_a_folder_that_is_not_theirs(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="are not read from a folder; leave it out"):
        load_dataset("digits", tmp_path)
    with pytest.raises(DatasetError, match="cannot be downloaded"):
        load_dataset("digits", download=True)
