"""Steps as a CUDA graph: when, and the bookkeeping around a recording, which a function stands for here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from xnorpp.nn.fused import dispatch as fused
from xnorpp.training import RecipeError, graph, load_checkpoint, loop, train
from xnorpp.training.graph import WARM_UP, GraphStep, check_graph, why_no_graph
from xnorpp.training.optimizer import make_optimizer, optimizer_tensors, restore_optimizer, set_learning_rate
from xnorpp.training.recipe.config import OptimizerPart, Recipe
from xnorpp.training.records.journal import read_metrics

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
Quick = Callable[..., Recipe]


def losses(out: Path) -> list[float]:
    return [row["loss"] for row in read_metrics(out / "metrics.jsonl") if row["kind"] == "train"]


@pytest.mark.parametrize(
    ("settings", "device", "world", "words"),
    [
        ({}, CUDA, 1, None),
        ({"run__amp": "bf16", "optimizer__clip_norm": 1.0}, CUDA, 1, None),
        ({"run__cuda_graph": "off"}, CUDA, 1, "`run.cuda_graph` is 'off'"),
        ({}, CPU, 1, "the run is on 'cpu'"),
        ({}, CUDA, 2, "2 processes"),
        ({"run__accumulate": 2}, CUDA, 1, "`run.accumulate` (=2)"),
        ({"run__amp": "fp16"}, CUDA, 1, "`run.amp` (='fp16')"),
    ],
)
def test_why_not(settings: dict[str, Any], device: torch.device, world: int, words: str | None) -> None:
    recipe = Recipe().replace(**settings)
    reason = why_no_graph(recipe, device, world)
    assert reason == check_graph(recipe, device, world)
    if words is None:
        assert reason is None
        return
    assert reason is not None
    assert words in reason
    if recipe.run.cuda_graph == "auto":
        insisting = recipe.replace(run__cuda_graph="on")
        with pytest.raises(RecipeError, match=r"`run.cuda_graph` \(='on'\) must be 'auto' or 'off' here"):
            check_graph(insisting, device, world)


def test_a_wrong_word_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"`run.cuda_graph` \(='yes'\) must be one of .*auto"):
        Recipe().replace(run__cuda_graph="yes")
    assert Recipe().run.cuda_graph == "auto"


def test_insisting_on_the_cpu_is_one_sentence_and_leaves_nothing(tmp_path: Path, quick: Quick) -> None:
    with pytest.raises(RecipeError, match="because the run is on 'cpu', and CUDA graphs need a GPU"):
        train(quick("run.cuda_graph=on"), out=tmp_path / "run", device="cpu", quiet=True)
    assert not (tmp_path / "run").exists()


def test_the_cpu_does_not_care(
    tmp_path: Path, quick: Quick, same: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("auto", "off"):
        train(quick("schedule.max_steps=4", f"run.cuda_graph={name}"), out=tmp_path / name, device="cpu")
    assert "graph" not in capsys.readouterr().out
    assert same(load_checkpoint(tmp_path / "auto").weights, load_checkpoint(tmp_path / "off").weights)
    more = quick("schedule.max_steps=4", "run.cuda_graph=off")
    train(more, out=tmp_path / "auto", device="cpu", quiet=True, resume=True)  # may change on the way


@dataclasses.dataclass
class Recorder:
    """Stands for the device: counts, and replays by calling."""

    warm_ups: int = 0
    records: int = 0
    replays: int = 0
    in_graph_mode: bool = True
    fails: bool = False

    def aside(self, call: Callable[[], Tensor], device: torch.device) -> Tensor:
        self.warm_ups += 1
        self.in_graph_mode &= bool(fused._state["graph"])
        return call()

    def record(self, call: Callable[[], Tensor], device: torch.device) -> tuple[Callable[[], None], Tensor]:
        if self.fails:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")
        self.records += 1
        self.in_graph_mode &= bool(fused._state["graph"])
        result = torch.zeros(())

        def replay() -> None:
            self.replays += 1
            result.copy_(call())

        return replay, result


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setattr(graph, "_aside", made.aside)
    monkeypatch.setattr(graph, "_record", made.record)
    return made


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "check_graph", lambda *_: None)


OPTIONS = {
    "adam": ["optimizer.weight_decay=0.001"],
    "adamw": ["optimizer.name=adamw", "optimizer.clip_norm=1.0"],
    "sgd": ["optimizer.name=sgd", "optimizer.lr=0.05", "schedule.name=step", "schedule.step_epochs=1"],
    "two stages": ["schedule.first_stage_epochs=1"],
    "annealed": ["model.options.surrogate=tanh"],
    "channels last": ["run.channels_last=true", "run.amp=bf16"],
}


def make_rounding_optimizer(
    model: torch.nn.Module, part: OptimizerPart, device: torch.device
) -> torch.optim.Optimizer:
    optimizer = make_optimizer(model, part, device)
    graph.make_capturable(optimizer, device)
    return optimizer


@pytest.mark.parametrize("name", OPTIONS)
def test_a_replayed_run_is_the_plain_run(
    name: str, tmp_path: Path, quick: Quick, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, same: Any
) -> None:
    """Batches, learning rate, step and progress reach the replayed step: the two agree bit for bit.

    The one thing that a recorded step rounds is the learning rate, to float32. Left in one run only, that
    last bit may turn a sign next to zero, and with it the losses that follow, so both have it here.
    """
    recipe = quick(*OPTIONS[name])
    monkeypatch.setattr(loop, "make_optimizer", make_rounding_optimizer)
    train(recipe, out=tmp_path / "plain", device="cpu", quiet=True)
    monkeypatch.setattr(loop, "make_optimizer", make_optimizer)
    monkeypatch.setattr(loop, "check_graph", lambda *_: None)
    train(recipe, out=tmp_path / "graph", device="cpu", quiet=True)
    records = 2 if name == "two stages" else 1
    expected = (records * WARM_UP, records, 22 - records * WARM_UP)
    assert (recorder.warm_ups, recorder.records, recorder.replays) == expected
    assert recorder.in_graph_mode
    assert not fused._state["graph"]
    assert losses(tmp_path / "graph") == losses(tmp_path / "plain")
    assert same(load_checkpoint(tmp_path / "graph").weights, load_checkpoint(tmp_path / "plain").weights)


def test_a_replayed_run_is_resumed(
    tmp_path: Path, quick: Quick, recorder: Recorder, anywhere: None, same: Any
) -> None:
    recipe = quick("run.save_steps=8")
    train(recipe, out=tmp_path / "whole", device="cpu", quiet=True)
    train(recipe, out=tmp_path / "parts", device="cpu", quiet=True)
    for path in sorted((tmp_path / "parts" / "checkpoints").iterdir())[1:]:
        path.unlink()
    (tmp_path / "parts" / "model.safetensors").unlink()
    train(recipe, out=tmp_path / "parts", device="cpu", quiet=True, resume=True)
    assert recorder.records == 3
    assert same(load_checkpoint(tmp_path / "whole").weights, load_checkpoint(tmp_path / "parts").weights)


def test_a_recording_that_fails(
    tmp_path: Path,
    quick: Quick,
    recorder: Recorder,
    anywhere: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recorder.fails = True
    train(quick("schedule.max_steps=8"), out=tmp_path / "auto", device="cpu")
    said = capsys.readouterr().out
    assert said.count("recording failed (operation not permitted when stream is capturing)") == 1
    assert len(losses(tmp_path / "auto")) == 8
    with pytest.raises(RecipeError, match="recording the step failed: operation not permitted"):
        train(quick("run.cuda_graph=on"), out=tmp_path / "on", device="cpu", quiet=True)


def test_a_short_batch_is_a_plain_step(recorder: Recorder) -> None:
    seen: list[tuple[int, int]] = []
    model = torch.nn.Linear(2, 2)
    optimizer = make_optimizer(model, Recipe().optimizer, CPU)

    def update(batch: tuple[Tensor, ...], number: Tensor) -> Tensor:
        seen.append((len(batch[0]), int(number)))
        return batch[0].sum()

    step = GraphStep(update, optimizer, CPU, 4)
    sizes = [3, 4, 4, 4, 4, 2, 4]
    found = [float(step((torch.ones(n, 1, 1, 1), torch.zeros(n)), i)) for i, n in enumerate(sizes)]
    assert found == sizes
    assert seen == [(n, i) for i, n in enumerate(sizes)]
    assert (recorder.warm_ups, recorder.replays) == (3, 2)


def test_the_learning_rate_is_one_tensor_and_the_state_travels() -> None:
    """What a run with a tensor for a learning rate saves, one with a number takes up, and the other way."""
    model = torch.nn.Linear(3, 2)
    optimizer = make_optimizer(model, Recipe().optimizer, CPU)
    graph.make_capturable(optimizer, CPU)
    set_learning_rate(optimizer, 0.25)
    rates = [group["lr"] for group in optimizer.param_groups]
    assert all(rate is rates[0] for rate in rates)
    assert float(rates[0]) == 0.25
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    saved = optimizer_tensors(model, optimizer)
    assert float(saved["weight/step"]) == 1
    other = make_optimizer(model, Recipe().optimizer, CPU)
    restore_optimizer(model, other, saved)
    assert other.param_groups[0]["lr"] == Recipe().optimizer.lr
    assert torch.equal(other.state[model.weight]["exp_avg"], saved["weight/exp_avg"])
    set_learning_rate(other, 0.5)
    assert other.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize("enabled", [True, False])
def test_cudnn_may_time_its_algorithms_during_a_run_only(
    enabled: bool, tmp_path: Path, quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", not enabled)
    build = loop.build_model
    monkeypatch.setattr(
        loop, "build_model", lambda *given: (seen.append(torch.backends.cudnn.benchmark), build(*given))[1]
    )
    recipe = quick("schedule.max_steps=1", f"run.cudnn_benchmark={str(enabled).lower()}")
    train(recipe, out=tmp_path / "run", device="cpu", quiet=True)
    assert seen == [enabled]
    assert torch.backends.cudnn.benchmark is not enabled
