"""What the shipped models answer, by every instruction set of an installed package: for check_wheels.py.

    python answers.py OUT.npz

Runs wherever the wheel was installed, on an emulated processor too, and knows nothing of the source tree.
"""

from __future__ import annotations

import sys

import numpy as np

import xnorpp
from xnorpp.runtime.cpu import available_isas
from xnorpp.shipped import list_shipped, shipped_path

IMAGES = 3


def main(out: str) -> None:
    """Outputs of each model and instruction set, for bytes; the names that `available_isas` gives."""
    answers: dict[str, np.ndarray] = {}
    for name in list_shipped():
        for isa in available_isas():
            model = xnorpp.load(shipped_path(name), isa=isa, threads=1)
            channels, height, width = model.input_shape
            coarse = np.random.default_rng(0).integers(0, 256, (IMAGES, 8, 8, channels), np.uint8)
            images = coarse.repeat(-(-height // 8), 1).repeat(-(-width // 8), 2)[:, :height, :width]
            answers[f"{name}/{isa}"] = model(np.ascontiguousarray(images))
    assert answers, "the package has no native core"
    np.savez(out, **answers)
    assert "torch" not in sys.modules
    version = f"xnorpp {xnorpp.__version__}, Python {sys.version.split()[0]}"
    print(f"{version}: {', '.join(available_isas())}")


if __name__ == "__main__":
    main(sys.argv[1])
