from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import xnorpp.data
from xnorpp.data import DatasetError, DatasetNotFoundError, dataset_info, list_datasets, load_dataset


def test_every_public_name_exists() -> None:
    for name in xnorpp.data.__all__:
        assert getattr(xnorpp.data, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        xnorpp.data.no_such_name  # noqa: B018


@pytest.mark.parametrize("name", list_datasets())
def test_card_is_consistent(name: str) -> None:
    info = dataset_info(name)
    assert info.name == name
    assert len(info.mean) == len(info.std) == info.channels
    preprocess = info.preprocess()
    assert preprocess.crop == info.image_size <= preprocess.resize
    assert info.default_augment.pad < info.image_size


@pytest.mark.parametrize("name", [name for name in list_datasets() if name != "digits"])
def test_missing_says_how_to_get_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError) as caught:
        load_dataset(name, tmp_path)
    message = str(caught.value)
    assert name in message
    assert dataset_info(name).how_to_get in message
    assert "\n" not in message


def test_unknown_name_lists_nearest_first() -> None:
    with pytest.raises(ValueError, match=r'`dataset` \(="cifar-10"\) must be one of cifar10, cifar100'):
        load_dataset("cifar-10")


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r'`split` \(="val"\)'):
        load_dataset("digits", split="val")
    with pytest.raises(ValueError, match=r"`holdout` \(=0.1\) and `part` \(=None\)"):
        load_dataset("digits", holdout=0.1)
    with pytest.raises(ValueError, match=r'`part` \(="left"\)'):
        load_dataset("digits", holdout=0.1, part="left")
    with pytest.raises(ValueError, match="test set is not split"):
        load_dataset("digits", split="test", holdout=0.1, part="fit")
    with pytest.raises(TypeError, match='data set "digits" has no option `labels`; it has none'):
        load_dataset("digits", labels="x")
    with pytest.raises(TypeError, match="it has labels"):
        load_dataset("imagenet", colour="x")


def test_holdout_is_stratified_disjoint_and_repeatable() -> None:
    whole = load_dataset("digits")
    fit = load_dataset("digits", holdout=0.1, part="fit")
    held = load_dataset("digits", holdout=0.1, part="held")
    assert len(fit) + len(held) == len(whole)
    for label in range(10):
        members = int((whole.labels == label).sum())
        assert int((held.labels == label).sum()) == int(members * 0.1 + 0.5)
    again = load_dataset("digits", holdout=0.1, part="held")
    np.testing.assert_array_equal(held.images, again.images)
    rows = {image.tobytes() for image in fit.images}
    shared = [image for image in held.images if image.tobytes() in rows]
    assert len(shared) <= 2  # equal drawings, if the set has any
    with pytest.raises(ValueError, match=r"`holdout` \(=1.5\)"):
        load_dataset("digits", holdout=1.5, part="fit")


def test_digits_split() -> None:
    train, test = load_dataset("digits"), load_dataset("digits", split="test")
    info = dataset_info("digits")
    assert (len(train), len(test)) == (info.train_size, info.test_size)
    assert train.images.shape[1:] == (8, 8, 1)
    assert train.images.max() == 255
    scaled = train.images / 255.0
    assert scaled.mean() == pytest.approx(info.mean[0], abs=1e-4)
    assert scaled.std() == pytest.approx(info.std[0], abs=1e-4)


def test_digits_reports_a_broken_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "digits.csv.gz").write_bytes(b"not gzip")
    with pytest.raises(DatasetError, match="not scikit-learn's table"):
        load_dataset("digits", tmp_path)
    import gzip

    (tmp_path / "digits.csv.gz").write_bytes(gzip.compress(b"1,2,3\n"))
    with pytest.raises(DatasetError, match="64 grey levels"):
        load_dataset("digits", tmp_path)
    monkeypatch.setattr("xnorpp.data.formats.digits.importlib.util.find_spec", lambda _: None)
    with pytest.raises(DatasetNotFoundError, match="install scikit-learn"):
        load_dataset("digits")


def test_reading_and_preprocessing_need_no_torch() -> None:
    code = """
import sys
sys.modules["torch"] = None
import io, numpy as np
from PIL import Image
from xnorpp.data import Preprocess, dataset_info, load_dataset
from xnorpp.runtime.decode import decode
data = load_dataset("digits", split="test")
x = dataset_info("digits").preprocess().normalise(data.images[:2])
assert x.shape == (2, 1, 8, 8) and x.dtype == np.float32
file = io.BytesIO()
Image.new("L", (50, 40), 200).save(file, "JPEG")
pre = dataset_info("imagenet").preprocess()
pixels = pre.apply(Image.open(file))
assert pixels.shape == (224, 224, 3), pixels.shape
assert (decode(file.getvalue(), 256, 224, 16, 16, 3) == pixels).all()
try:
    from xnorpp.data import make_loader
except ImportError:
    print("blocked")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "blocked\n"
