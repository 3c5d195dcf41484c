"""What a wheel must do on a bare machine: load a model that ships, with native kernels, and run it."""

from __future__ import annotations

import numpy as np

import xnorpp
from xnorpp.shipped import shipped_path

model = xnorpp.load(shipped_path("cifar10-resnet20"))
images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), np.uint8)
answer = model(images)
assert answer.shape == (3, 10), answer.shape
assert model.isa != "reference", "the wheel has no native core"
reference = xnorpp.load(shipped_path("cifar10-resnet20"), isa="reference")(images)
assert np.allclose(answer, reference, atol=1e-2), np.abs(answer - reference).max()
print(f"{xnorpp.__version__}, {model.isa}: {answer.argmax(1)}")
