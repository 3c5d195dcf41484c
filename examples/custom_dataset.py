"""A data set from outside the package, by name and from a recipe file.

python examples/custom_dataset.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import xnorpp
from xnorpp.data import register_dataset


@register_dataset("stripes", classes=["rows", "columns"])
def stripes(split: str, count: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Its parameters: `root` (--data) and `split` where they are wanted, then options of its own."""
    rng = np.random.default_rng(split == "test")
    labels = np.arange(count) % 2
    waves = np.sin(np.arange(12) * rng.uniform(0.8, 2.0, (count, 1)) + rng.uniform(0, 6, (count, 1)))
    rows = np.broadcast_to(waves[:, :, None], (count, 12, 12))
    images = np.where(labels[:, None, None], rows.transpose(0, 2, 1), rows)
    return (127 + 60 * images + rng.normal(0, 30, images.shape)).clip(0, 255).astype(np.uint8), labels


if __name__ == "__main__":
    print(xnorpp.load_dataset("stripes", count=10).images.shape)
    out = Path(tempfile.mkdtemp())
    (out / "stripes.toml").write_text(
        """
        extends = "digits-small-case4"
        data = { dataset = "stripes", options = { count = 600 } }  # elsewhere: "custom_dataset:stripes"
        model = { options = { width = 8 } }
        schedule = { epochs = 6 }
        run = { tensorboard = false }
        """
    )
    print(xnorpp.train(out / "stripes.toml", out=out / "run")["metrics"])
