"""Training steps as a CUDA graph on a real GPU. One command on such a machine:

pytest -m gpu tests/gpu/test_training_graph.py
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from xnorpp.nn.fused import dispatch as fused
from xnorpp.training import NonFiniteLoss, graph, load_checkpoint, load_recipe, loop, train
from xnorpp.training.records.journal import read_metrics
from xnorpp.training.state.checkpoint import Checkpoint, list_checkpoints

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="NOT RUN: CUDA graphs of training steps need a GPU."
    ),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images that can be learned in part: a pattern a class, noise, and a third of the labels drawn anew.

    As CIFAR-10 (2,560 to train on) and as the digits (about 1,440).
    """
    home, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)

    def make(count: int, size: int, values: int) -> tuple[np.ndarray, np.ndarray]:
        patterns = np.random.default_rng(1).random((10, size))
        labels = rng.integers(0, 10, count)
        images = 0.5 * patterns[labels] + 0.5 * rng.random((count, size))
        shown = np.where(rng.random(count) < 0.3, rng.integers(0, 10, count), labels)
        return np.rint(images * values), shown

    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        images, labels = make(512, 3 * 32 * 32, 255)
        np.hstack([labels[:, None], images]).astype(np.uint8).tofile(home / f"{name}.bin")
    images, labels = make(1797, 64, 16)
    with gzip.open(home / "digits.csv.gz", "wt") as file:
        np.savetxt(file, np.hstack([images, labels[:, None]]), fmt="%d", delimiter=",")
    return home


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each recording."""
    found: list[int] = []
    real = graph._record

    def record(call: Callable[[], Tensor], device: torch.device) -> Any:
        result = real(call, device)
        found.append(1)
        return result

    monkeypatch.setattr(graph, "_record", record)
    return found


QUICK = ["run.log_steps=1", "run.tensorboard=false", "data.batch_size=128", "run.cudnn_benchmark=false"]
RESNET = ["cifar10-resnet20-case4", "run.amp=bf16", "run.channels_last=true", "schedule.epochs=3"]
RUNS = {
    "digits": ["digits-small-case4", "schedule.epochs=6"],
    "digits, SGD": ["digits-small-case4", "schedule.epochs=6", "optimizer.name=sgd", "optimizer.lr=0.05"],
    "digits, two stages": ["digits-small-case4", "schedule.epochs=6", "schedule.first_stage_epochs=2"],
    "digits, annealed": ["digits-small-case4", "schedule.epochs=6", "model.options.surrogate=tanh"],
    "resnet20": RESNET,
    "resnet20, AdamW": [*RESNET, "optimizer.name=adamw", "optimizer.clip_norm=1.0"],
    "resnet20, average and augmentation": [
        *RESNET,
        "optimizer.ema_decay=0.9",
        "data.augment.mixup=0.4",
        "data.augment.cutout=8",
        "data.augment.area=0.5",
        "data.augment.operations=1",
    ],
    "resnet20, ReCU and OvSW": [
        *RESNET,
        "optimizer.name=sgd",
        "optimizer.lr=0.05",
        "optimizer.scale_gradients=0.04",
        "model.options.standardize_weights=true",
        "model.options.weights=recu",
    ],
    "digits, Bop": [
        "digits-small-case4",
        "schedule.epochs=6",
        "optimizer.name=bop",
        "optimizer.flip_rate=0.01",
    ],
}


def run(out: Path, data: Path, settings: list[str], device: str = "cuda", **more: Any) -> dict[str, Any]:
    recipe = load_recipe(settings[0], [*QUICK, *settings[1:]])
    with fused.for_graph():  # the same kernels with and without a graph
        return train(recipe, out=out, data=data, device=device, quiet=True, **more)


def means(out: Path) -> list[float]:
    """Of the loss over each 20 steps."""
    rows = [row["loss"] for row in read_metrics(out / "metrics.jsonl") if row["kind"] == "train"]
    assert len(rows) >= 60
    return [sum(rows[i : i + 20]) / 20 for i in range(0, len(rows) - 19, 20)]


@pytest.mark.parametrize("name", RUNS)
def test_a_run_learns_the_same(name: str, tmp_path: Path, data: Path, records: list[int]) -> None:
    run(tmp_path / "off", data, [*RUNS[name], "run.cuda_graph=off"])
    assert not records
    run(tmp_path / "on", data, [*RUNS[name], "run.cuda_graph=on"])
    assert len(records) == (2 if "stages" in name else 1)
    plain, replayed = means(tmp_path / "off"), means(tmp_path / "on")
    assert replayed == pytest.approx(plain, rel=0.03)
    assert replayed[-1] < replayed[0]


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_the_learning_rate_reaches_the_replayed_step(
    optimizer: str, tmp_path: Path, data: Path, records: list[int]
) -> None:
    """At a learning rate of zero the second epoch leaves every parameter alone, and still sees images."""
    schedule = ["schedule.name=step", "schedule.step_epochs=1", "schedule.factor=0.0", "schedule.epochs=2"]
    run(tmp_path, data, ["digits-small-case4", "run.cuda_graph=on", f"optimizer.name={optimizer}", *schedule])
    assert records
    late, early = (load_checkpoint(path) for path in list_checkpoints(tmp_path))
    parameters = {name.rpartition("/")[0] for name in early.optimizer}
    assert parameters
    for name in parameters:
        assert torch.equal(early.weights[name], late.weights[name]), name
    moved = [name for name in early.weights if not torch.equal(early.weights[name], late.weights[name])]
    assert any(name.endswith("running_mean") for name in moved)
    if optimizer != "sgd":
        steps = {int(late.optimizer[f"{name}/step"]) for name in parameters}
        assert steps == {late.meta["step"]}


def forget(out: Path, step: int) -> Checkpoint:
    """As if the run had been killed after `step`; its checkpoint."""
    (out / "model.safetensors").unlink()
    for path in list_checkpoints(out):
        if load_checkpoint(path).meta["step"] > step:
            path.unlink()
    return load_checkpoint(out)


@pytest.mark.parametrize(("first", "second"), [("cuda", "cuda"), ("cpu", "cuda"), ("cuda", "cpu")])
def test_a_run_is_resumed(first: str, second: str, tmp_path: Path, data: Path, records: list[int]) -> None:
    settings = ["digits-small-case4", "schedule.epochs=6", "run.keep=9", "run.threads=4"]
    run(tmp_path / "whole", data, settings)
    run(tmp_path / "parts", data, settings, device=first)
    found = forget(tmp_path / "parts", 22)
    assert found.meta["step"] == 22
    assert {int(t) for name, t in found.optimizer.items() if name.endswith("/step")} == {22}
    summary = run(tmp_path / "parts", data, settings, device=second, resume=True)
    assert summary["step"] == 66
    assert len(records) == 1 + (first == "cuda") + (second == "cuda")
    assert means(tmp_path / "parts") == pytest.approx(means(tmp_path / "whole"), rel=0.05)


def test_a_loss_that_is_not_finite_is_seen_in_the_replayed_step(
    tmp_path: Path, data: Path, records: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, real = torch.zeros((), device="cuda"), loop.training_loss

    def loss(*tensors: Tensor, **more: Any) -> Tensor:
        calls.add_(1)  # recorded too: counts steps on the device
        return torch.where(calls == 11, float("nan"), real(*tensors, **more))

    monkeypatch.setattr(loop, "training_loss", loss)
    with pytest.raises(NonFiniteLoss, match="step 10"):
        run(tmp_path, data, ["digits-small-case4", "run.cuda_graph=on"])
    assert records


def test_a_network_that_cannot_be_recorded_trains_step_by_step(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = loop.training_loss

    def waits(*tensors: Tensor, **more: Any) -> Tensor:
        value = real(*tensors, **more)
        return value + 0 * float(value.detach())

    monkeypatch.setattr(loop, "training_loss", waits)
    summary = run(tmp_path, data, ["digits-small-case4", "schedule.max_steps=12"])
    assert summary["step"] == 12
