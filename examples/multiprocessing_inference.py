"""Classify a folder of images with one process per core: a packed model travels to other processes.

    python examples/multiprocessing_inference.py FOLDER [MODEL]

MODEL is a packed file or the name of a model that ships with the package (`xnorpp models`).
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from functools import partial
from pathlib import Path

import xnorpp


def label(model: xnorpp.PackedModel, path: Path) -> str:
    best = model.classify(path, top=1)[0]
    return f"{path.name}: {best.label} {100 * best.probability:.1f} %"


def main(folder: str, name: str = "cifar10-resnet20") -> None:
    model = xnorpp.load(name, threads=1)  # the processes share the cores: one thread for each
    paths = sorted(path for path in Path(folder).iterdir() if path.suffix in (".jpg", ".png"))
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        for line in pool.imap(partial(label, model), paths, chunksize=16):
            print(line)


if __name__ == "__main__":
    main(*sys.argv[1:])
