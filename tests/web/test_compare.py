"""The real-valued network of the page's comparison is stored in the repository, trained."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import safetensors
import torch

SCRIPT = Path(__file__).resolve().parents[2] / "web" / "compare.py"


def test_the_stored_network_is_complete_and_trained() -> None:
    spec = importlib.util.spec_from_file_location("compare", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    compare = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(compare)
    with safetensors.safe_open(compare.STORED, "pt") as file:
        trained = json.loads(file.metadata()["trained"])
    assert trained["dataset"] == "cifar10"
    assert trained["metrics"]["top1"] > 90
    model = compare.stored()
    means = [module.running_mean for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    assert means
    assert all(float(mean.abs().max()) > 0 for mean in means), "statistics of training"
    with torch.inference_mode():
        assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 10)
