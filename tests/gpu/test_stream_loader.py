"""The streamed loader on a real GPU. One command on such a machine:

pytest -m gpu tests/gpu/test_stream_loader.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from xnorpp.data import load_dataset, make_loader

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="NOT RUN: a loader that feeds a GPU needs one."),
]


def test_batches_on_a_busy_gpu_are_those_of_the_cpu(tmp_path: Path) -> None:
    """Copies run beside the step that computes; every batch is whole all the same, over epochs too."""
    rng = np.random.default_rng(0)
    for index in range(96):
        path = tmp_path / "train" / f"n{index % 3:08d}" / f"{index:03d}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (80, 90, 3), dtype=np.uint8)).save(path)
    dataset = load_dataset("imagenet", tmp_path)
    plain = make_loader(dataset, batch_size=8, train=True)
    quick = make_loader(dataset, batch_size=8, train=True, workers=4, device="cuda", channels_last=True)
    work = torch.randn(4096, 4096, device="cuda")
    sums = []
    for epoch in range(3):
        for images, labels in quick.epoch(epoch):
            for _ in range(20):
                work = (work @ work).clamp(-1, 1)
            sums.append((images.clone(), labels.clone()))  # after the work, as a step would read it
    expected = [batch for epoch in range(3) for batch in plain.epoch(epoch)]
    quick.close()
    assert len(sums) == len(expected) == 36
    for (images, labels), (other, others) in zip(sums, expected, strict=True):
        torch.testing.assert_close(images.cpu(), other, rtol=0, atol=1e-5)
        assert torch.equal(labels.cpu(), others)
