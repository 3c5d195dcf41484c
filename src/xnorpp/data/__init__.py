"""Images in, batches out.

`load_dataset` and `Preprocess` need numpy and Pillow only; `make_loader` needs torch. What a name needs is
imported when the name is first used: a command that shows a progress bar does not import every data set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xnorpp.lazy import names_from

if TYPE_CHECKING:
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
    from xnorpp.data.loading.loader import Loader, make_loader
    from xnorpp.data.own import BatchesDataset, IndexedDataset, as_dataset
    from xnorpp.runtime.format.preprocess import Preprocess

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

_HOME = {
    "ArrayDataset": ".dataset",
    "Augment": ".dataset",
    "BatchesDataset": ".own",
    "Dataset": ".dataset",
    "DatasetError": ".dataset",
    "DatasetInfo": ".dataset",
    "DatasetNotFoundError": ".dataset",
    "FolderDataset": ".dataset",
    "IndexedDataset": ".own",
    "Loader": ".loading.loader",
    "Preprocess": "xnorpp.runtime.format.preprocess",
    "ShardDataset": ".formats.shards",
    "Skipped": ".dataset",
    "StreamDataset": ".dataset",
    "as_dataset": ".own",
    "dataset_info": ".catalog",
    "holdout_split": ".holdout",
    "list_datasets": ".catalog",
    "load_dataset": ".catalog",
    "make_loader": ".loading.loader",
    "match_classes": ".labels",
    "register_dataset": ".catalog",
    "write_shards": ".formats.shards",
}

__getattr__ = names_from(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
