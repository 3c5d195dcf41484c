"""torchvision beside a torch of another build.

torchvision's compiled operators load only with the torch that they were built for, PyPI's with CUDA. Beside
one without CUDA the import of torchvision fails for want of two operators that its networks and transforms do
not use. Declared, and never called, they let the import pass.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

_declared: list[torch.library.Library] = []  # a library that is collected takes its operators with it


def declare_missing() -> None:
    """Declares torchvision's operators where its own library does not load; call it before the import."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None or _declared:
        return
    try:
        for path in Path(spec.origin).parent.glob("_C*.so"):
            torch.ops.load_library(str(path))
    except OSError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(library)
