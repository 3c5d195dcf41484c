"""Shards made to harm: every one is refused in one sentence, before memory is taken for what it claims."""

from __future__ import annotations

import io
import json
import resource
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xnorpp.data import DatasetError, load_dataset

DEEP = b"[" * 100_000 + b"]" * 100_000


def write(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as shard:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            shard.addfile(member, io.BytesIO(content))


def refuse(root: Path, message: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DatasetError, match=message) as caught:
        load_dataset("shards", root)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.cls", b"1000000000", r"a.cls has the label 1000000000; labels up to 999999 are supported"),
        ("a.cls", b"1" + b"0" * 25, r"a.cls has the label 1000000"),
        ("a.cls", b"9" * 5000, r"a.cls must hold an integer label"),
        ("a.cls", b"1" + b" " * (1 << 20), r"a.cls must hold an integer label"),
        ("a.json", b'{"label": 1e400}', r"a.json must hold an integer label"),
        ("a.json", b'{"label": 1.5}', r"a.json must hold an integer label"),
        ("a.json", b'{"label": ' + DEEP + b"}", r"a.json must hold an integer label"),
        ("a.json", b"5", r"a.json must hold an integer label"),
    ],
)
def test_labels(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    write(tmp_path / "train-0.tar", {"a.jpg": b"x", name: content})
    refuse(tmp_path, message)


@pytest.mark.parametrize(
    ("card", "message"),
    [
        (DEEP, "nested too deeply"),
        ({"classes": 5}, r'"classes" \(=5\) must be a list of names'),
        ({"classes": [1, 2]}, r'"classes" \(=\[1, 2\]\) must be a list of names'),
        ({"mean": 3}, r'"mean" \(=3\) must be a list of finite numbers, one per channel'),
        ({"channels": 3, "mean": [0.5]}, r'"mean" \(=\[0.5\]\) must be 3 finite numbers'),
        ({"std": [0.0]}, r'"std" \(=\[0.0\]\) must be 1 positive numbers'),
        ({"std": ["nan"]}, r'"std" .* must be 1 positive numbers'),
        (b'{"mean": [NaN]}', r'"mean" .* must be 1 finite numbers'),
        ({"resize": "x"}, r'"resize" \(=\'x\'\) must be a whole number from 1 to 8192'),
        ({"image_size": -5}, r'"image_size" \(=-5\) must be a whole number from 1 to 8192'),
        ({"image_size": 10**9}, r'"image_size" \(=1000000000\) must be'),
        ({"channels": True}, r'"channels" \(=True\) must be a whole number from 1 to 4'),
        ({"channels": 9}, r'"channels" \(=9\) must be a whole number from 1 to 4'),
    ],
)
def test_cards(tmp_path: Path, card: Any, message: str) -> None:
    write(tmp_path / "train-0.tar", {"a.jpg": b"x", "a.cls": b"0"})
    (tmp_path / "dataset.json").write_bytes(card if isinstance(card, bytes) else json.dumps(card).encode())
    refuse(tmp_path, message)


def test_a_number_of_classes_that_fills_the_memory(tmp_path: Path) -> None:
    write(tmp_path / "train-0.tar", {"a.jpg": b"x", "a.cls": b"0"})
    with pytest.raises(DatasetError, match=r"`classes` \(=1000000000\) must be from 1 to 1000000"):
        load_dataset("shards", tmp_path, classes=10**9)


def test_one_long_name_does_not_make_room_for_all_names(tmp_path: Path) -> None:
    members = {f"{i}.{kind}": b"0" for i in range(2000) for kind in ("jpg", "cls")}
    write(tmp_path / "train-0.tar", {**members, "x" * 200_000 + ".jpg": b"0"})
    refuse(tmp_path, "is longer than 1024 characters")


def test_a_sparse_member_is_not_unfolded(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "train-0.tar", "w", format=tarfile.PAX_FORMAT) as shard:
        member = tarfile.TarInfo("a.json")
        member.pax_headers = {
            "GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.map": "0,1",
            "GNU.sparse.size": str(2**40),
        }  # fmt: skip
        member.size = 512
        shard.addfile(member, io.BytesIO(b"1" * 512))
    refuse(tmp_path, "is sparse, which is not supported")


def test_an_index_that_came_with_the_data_is_checked(tmp_path: Path) -> None:
    write(tmp_path / "train-0.tar", {"a.jpg": b"x", "a.cls": b"0"})
    good = load_dataset("shards", tmp_path)
    (stored,) = (tmp_path / ".xnorpp").glob("*.npz")
    for change in ({"sizes": [2**50]}, {"offsets": [-3]}, {"labels": [0, 0]}, {"keys": [7]}):
        with np.load(stored) as arrays:
            index = {**arrays, **{key: np.array(value) for key, value in change.items()}}
        np.savez(stored, **index)
        again = load_dataset("shards", tmp_path)
        assert again.blob(0) == good.blob(0)  # type: ignore[union-attr]
