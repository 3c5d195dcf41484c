"""Arrays of images and labels, one of our networks, a packed file that knows its classes.

python examples/arrays.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import xnorpp
from xnorpp.training.packing import pack_checkpoint


def squares_and_discs(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """uint8 images (N, 16, 16) and labels: 0 a square, 1 a disc."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    y, x = np.mgrid[:16, :16]
    top, left = rng.integers(4, 12, (2, count, 1, 1))
    square = np.maximum(abs(y - top), abs(x - left)) <= 3
    disc = np.hypot(y - top, x - left) <= 3.7
    noise = rng.integers(0, 80, (count, 16, 16))
    return (noise + 170 * np.where(labels[:, None, None], disc, square)).astype(np.uint8), labels


recipe = {"extends": "digits-small-case4", "model.options.width": 16, "run.tensorboard": False}
schedule = {"schedule.epochs": 6, "schedule.statistics_batches": 20, "data.batch_size": 32}
shapes = {"train_data": squares_and_discs(600, 0), "test_data": squares_and_discs(200, 1)}
out = Path(tempfile.mkdtemp())
summary = xnorpp.train({**recipe, **schedule}, **shapes, classes=["square", "disc"], out=out / "run")
print(f"trained: {summary['metrics']['top1']:.1f} %")
pack_checkpoint(out / "run", out / "shapes.xnor")
packed = xnorpp.load(out / "shapes.xnor")
images, labels = squares_and_discs(5, 2)
for best, label in zip(packed(images[..., None]).argmax(1), labels):
    print(f"{packed.labels[best]:<6} is {packed.labels[label]}")
