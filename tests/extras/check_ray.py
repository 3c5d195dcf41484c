"""The Ray Data example runs. Needs Ray, so it is not part of the suite (no `test_` in its name):

pip install 'xnorpp[ray]' && python -m pytest tests/extras/check_ray.py
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet
from PIL import Image

import xnorpp

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "ray_data_folder.py"


def test_a_folder_of_images(tmp_path: Path) -> None:
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) <= 40
    model = xnorpp.load("cifar10-resnet20", threads=1)
    images = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
    (tmp_path / "images").mkdir()
    for index, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / "images" / f"{index}.png")
    command = [
        sys.executable,
        str(EXAMPLE),
        str(tmp_path / "images"),
        "cifar10-resnet20",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    rows = pyarrow.parquet.read_table(tmp_path / "out").to_pylist()
    assert len(rows) == 20
    for row in rows:
        expected = model(images[int(Path(row["path"]).stem)]).argmax()
        assert row["label"] == model.labels[expected]
