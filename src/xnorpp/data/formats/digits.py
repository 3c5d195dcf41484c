"""scikit-learn's 8x8 digits (1797 images, from UCI's optical recognition set): the embedded default.

The table is read from scikit-learn's own file without importing scikit-learn. It has no official split: a
stratified fifth, chosen by a fixed seed, is the test set. Grey levels 0..16 become 0..255.
"""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import numpy as np

from xnorpp.data.dataset import ArrayDataset, Augment, DatasetError, DatasetInfo
from xnorpp.data.holdout import holdout_split
from xnorpp.data.places import not_found

DIGITS = DatasetInfo(
    name="digits",
    classes=10,
    channels=1,
    image_size=8,
    mean=(0.3054,),
    std=(0.3759,),
    train_size=1438,
    test_size=359,
    default_augment=Augment(crop=True, pad=1, flip=False),
    how_to_get="install scikit-learn (it comes with xnorpp[train]), or give the folder of its digits.csv.gz",
)
_FILE = "digits.csv.gz"


def load(info: DatasetInfo, root: str | Path | None, split: str) -> ArrayDataset:
    """`root`: a folder that holds scikit-learn's digits.csv.gz; None: scikit-learn's own.

    Any other folder is refused, because training on the digits instead of what lies there would be silent.
    """
    path = _embedded() if root is None else Path(root).expanduser() / _FILE
    if root is not None and not Path(root).expanduser().is_dir():
        raise DatasetError(f"`root` (={str(root)!r}, --data) must be a folder, and does not exist")
    if root is not None and path is not None and not path.is_file():
        raise DatasetError(
            f"`root` (={str(root)!r}, --data) holds no {_FILE}: the digits come with scikit-learn and are "
            "not read from a folder; leave it out, or name the data set that lies there (`folder` for images "
            "in class folders)"
        )
    if path is None or not path.is_file():
        raise not_found(info, root, _FILE)
    try:
        with gzip.open(path, "rt") as file:
            table = np.loadtxt(file, delimiter=",", ndmin=2)
    except (ValueError, EOFError, OSError) as error:
        raise DatasetError(f"{path} is not scikit-learn's table of digits ({error})") from error
    if table.shape[1] != 65 or table.min() < 0 or table[:, :64].max() > 16:
        raise DatasetError(
            f"{path} (shape {table.shape}) must have 64 grey levels from 0 to 16 and one label per line"
        )
    images = np.rint(table[:, :64] * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    labels = table[:, 64].astype(np.int64)
    train, test = holdout_split(labels, 0.2, seed=0)
    indices = train if split == "train" else test
    return ArrayDataset(info, split, tuple("0123456789"), images[indices], labels[indices])


def _embedded() -> Path | None:
    found = importlib.util.find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        return None
    return Path(found.submodule_search_locations[0]) / "datasets" / "data" / _FILE
