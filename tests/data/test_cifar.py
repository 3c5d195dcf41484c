from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xnorpp.data import ArrayDataset, DatasetError, load_dataset

RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.integers(0, 256, (60, 3072), np.uint8)
FINE = RANDOM.integers(0, 100, 60)
TEN = RANDOM.integers(0, 10, 60)


def write_binary(root: Path, name: str) -> None:
    if name == "cifar10":
        folder = root / "cifar-10-batches-bin"
        folder.mkdir(parents=True)
        rows = np.concatenate([TEN[:, None].astype(np.uint8), PIXELS], 1)
        for i in range(5):
            (folder / f"data_batch_{i + 1}.bin").write_bytes(rows[10 * i : 10 * i + 10].tobytes())
        (folder / "test_batch.bin").write_bytes(rows[50:].tobytes())
    else:
        folder = root / "cifar-100-binary"
        folder.mkdir(parents=True)
        heads = np.stack([FINE // 5, FINE], 1).astype(np.uint8)
        rows = np.concatenate([heads, PIXELS], 1)
        (folder / "train.bin").write_bytes(rows[:50].tobytes())
        (folder / "test.bin").write_bytes(rows[50:].tobytes())
        (folder / "fine_label_names.txt").write_text("\n".join(f"class{i}" for i in range(100)))


def old_array(values: np.ndarray) -> bytes:
    """The official batches were pickled by Python 2: byte strings, numpy's old module path."""
    shape = b"(K" + bytes([values.shape[0]]) + b"M" + values.shape[1].to_bytes(2, "little") + b"t"
    raw = values.tobytes()
    text = b"T" + len(raw).to_bytes(4, "little") + raw
    dtype = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
    return made + b"(K\x01" + shape + dtype + b"\x89" + text + b"tb"


def old_batch(values: np.ndarray, labels: np.ndarray, key: bytes) -> bytes:
    listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    data = b"U\x04data" + old_array(values)
    return b"\x80\x02}(" + data + b"U" + bytes([len(key)]) + key + listed + b"u."


def write_python(root: Path, name: str, old: bool, protocol: int = 2) -> None:
    def dump(values: np.ndarray, labels: np.ndarray, key: bytes) -> bytes:
        if old:
            return old_batch(values, labels, key)
        plain: dict[Any, Any] = {b"data": values, key: [int(label) for label in labels]}
        return pickle.dumps(plain, protocol=protocol)

    if name == "cifar10":
        folder = root / "cifar-10-batches-py"
        folder.mkdir(parents=True)
        for i in range(5):
            part = slice(10 * i, 10 * i + 10)
            (folder / f"data_batch_{i + 1}").write_bytes(dump(PIXELS[part], TEN[part], b"labels"))
        (folder / "test_batch").write_bytes(dump(PIXELS[50:], TEN[50:], b"labels"))
    else:
        folder = root / "cifar-100-python"
        folder.mkdir(parents=True)
        (folder / "train").write_bytes(dump(PIXELS[:50], FINE[:50], b"fine_labels"))
        (folder / "test").write_bytes(dump(PIXELS[50:], FINE[50:], b"fine_labels"))
        names = [f"class{i}".encode() for i in range(100)]
        (folder / "meta").write_bytes(pickle.dumps({b"fine_label_names": names}, protocol=protocol))


def check(dataset: object, name: str, part: slice) -> None:
    assert isinstance(dataset, ArrayDataset)
    labels = TEN if name == "cifar10" else FINE
    np.testing.assert_array_equal(dataset.labels, labels[part])
    planes = PIXELS[part].reshape(-1, 3, 32, 32)
    for channel in range(3):
        np.testing.assert_array_equal(dataset.images[..., channel], planes[:, channel])


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize("form", ["binary", "python 2", "protocol 2", "protocol 4"])
def test_official_forms(name: str, form: str, tmp_path: Path) -> None:
    if form == "binary":
        write_binary(tmp_path, name)
    else:
        write_python(tmp_path, name, form == "python 2", 4 if form == "protocol 4" else 2)
    train = load_dataset(name, tmp_path)
    check(train, name, slice(0, 50))
    check(load_dataset(name, tmp_path, "test"), name, slice(50, 60))
    assert train.classes[7] == ("horse" if name == "cifar10" else "class7")


def test_class_numbers_where_no_names_are_given(tmp_path: Path) -> None:
    write_binary(tmp_path, "cifar100")
    (tmp_path / "cifar-100-binary" / "fine_label_names.txt").unlink()
    assert load_dataset("cifar100", tmp_path).classes[42] == "42"


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("echo executed > executed.txt",)


def test_a_pickle_that_runs_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_python(tmp_path, "cifar100", old=False)
    monkeypatch.chdir(tmp_path)
    target = tmp_path / "cifar-100-python" / "train"
    target.write_bytes(pickle.dumps({b"data": Evil(), b"fine_labels": []}))
    with pytest.raises(DatasetError, match=r"it asks for posix.system, which no CIFAR batch needs"):
        load_dataset("cifar100", tmp_path)
    assert not (tmp_path / "executed.txt").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps([1]), "it holds a list"),
        (pickle.dumps({b"data": np.zeros((2, 3072), np.float32), b"fine_labels": [0, 1]}), "not uint8"),
        (
            pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": [0]}),
            "not a cifar100 python",
        ),
        (pickle.dumps({b"fine_labels": [0]}), "not a cifar100 python"),
        (b"garbage", "not a plain CIFAR python batch"),
    ],
)
def test_broken_python_batches(content: bytes, message: str, tmp_path: Path) -> None:
    write_python(tmp_path, "cifar100", old=False)
    (tmp_path / "cifar-100-python" / "train").write_bytes(content)
    with pytest.raises(DatasetError, match=message):
        load_dataset("cifar100", tmp_path)


def test_truncated_binary_batch(tmp_path: Path) -> None:
    write_binary(tmp_path, "cifar10")
    path = tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DatasetError, match=r"data_batch_3.bin has 30729 bytes, not a multiple"):
        load_dataset("cifar10", tmp_path)


def test_an_incomplete_set_counts_as_missing(tmp_path: Path) -> None:
    write_binary(tmp_path, "cifar10")
    (tmp_path / "cifar-10-batches-bin" / "data_batch_5.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"looked for data_batch_1.bin"):
        load_dataset("cifar10", tmp_path)
