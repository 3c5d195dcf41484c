"""Images in, batches out.

`load_dataset` and `Preprocess` need numpy and Pillow only; `make_loader` needs torch, which is imported when
it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xnorpp.data.catalog import dataset_info, list_datasets, load_dataset, register_dataset
from xnorpp.data.dataset import (
    ArrayDataset,
    Augment,
    Dataset,
    DatasetError,
    DatasetInfo,
    DatasetNotFoundError,
    FolderDataset,
    Skipped,
    StreamDataset,
)
from xnorpp.data.formats.shards import ShardDataset, write_shards
from xnorpp.data.holdout import holdout_split
from xnorpp.data.labels import match_classes
from xnorpp.data.own import BatchesDataset, IndexedDataset, as_dataset
from xnorpp.lazy import names_from
from xnorpp.runtime.format.preprocess import Preprocess

if TYPE_CHECKING:
    from xnorpp.data.loading.loader import Loader, make_loader

__all__ = [
    "ArrayDataset",
    "Augment",
    "BatchesDataset",
    "Dataset",
    "DatasetError",
    "DatasetInfo",
    "DatasetNotFoundError",
    "FolderDataset",
    "IndexedDataset",
    "Loader",
    "Preprocess",
    "ShardDataset",
    "Skipped",
    "StreamDataset",
    "as_dataset",
    "dataset_info",
    "holdout_split",
    "list_datasets",
    "load_dataset",
    "make_loader",
    "match_classes",
    "register_dataset",
    "write_shards",
]


__getattr__ = names_from(__name__, {"Loader": ".loading.loader", "make_loader": ".loading.loader"})
