"""Batch inference over a folder of images with Ray Data: `pip install 'xnorpp[ray]'`.

    python examples/ray_data_folder.py FOLDER [MODEL] [OUT]

Writes one row per image (path, label) as Parquet files into OUT.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import ray

import xnorpp


class Classifier:
    """One copy of the model per Ray worker; Ray pickles it into the cluster once."""

    def __init__(self, model: xnorpp.PackedModel) -> None:
        self.model = model

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        images = np.stack([self.model.preprocess.apply(image) for image in batch["image"]])
        classes = self.model(images).argmax(1)
        return {"path": batch["path"], "label": [self.model.labels[index] for index in classes]}


def main(folder: str, name: str = "cifar10-resnet20", out: str = "runs/predictions") -> None:
    model = xnorpp.load(name, threads=1)
    images = ray.data.read_images(folder, mode="RGB", include_paths=True)
    found = images.map_batches(Classifier, fn_constructor_args=(model,), batch_size=64, concurrency=(1, 8))
    found.write_parquet(out)
    print(f"{ray.data.read_parquet(out).count()} images classified into {out}")


if __name__ == "__main__":
    main(*sys.argv[1:])
