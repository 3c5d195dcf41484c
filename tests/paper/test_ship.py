"""From a checkpoint to a model that ships, over a CIFAR-10 of a few noisy images in the official format."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xnorpp import load, shipped
from xnorpp.cli import main as cli
from xnorpp.data import load_dataset
from xnorpp.data.own import as_images
from xnorpp.inspect.calibration import (
    calibrate,
    expected_calibration_error,
    logits_of,
    with_temperature,
)
from xnorpp.paper.shipping import ship as shipping
from xnorpp.paper.shipping.calibrated import _seen_by_teacher
from xnorpp.paper.shipping.ship import Refused, read_baseline, sample_images, ship, without_places
from xnorpp.paper.shipping.transfer import transfer_temperature
from xnorpp.runtime.format.program import read, write

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place: Path = tmp_path_factory.mktemp("cifar")
    random = np.random.default_rng(0)
    for name, count in [*((f"data_batch_{i}", 8) for i in range(1, 6)), ("test_batch", 60)]:
        rows = random.integers(0, 256, (count, 3073), dtype=np.uint8)
        rows[:, 0] = np.arange(count) % 10
        (place / f"{name}.bin").write_bytes(rows.tobytes())
    return place


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps as `xnorpp train` leaves it."""
    from xnorpp.training import load_recipe, train

    out: Path = tmp_path_factory.mktemp("runs") / "tiny"
    settings = (
        "schedule.max_steps=2", "data.batch_size=16", "run.tensorboard=false", "run.threads=1",
        "model.name=small", "model.options.width=8",
    )  # fmt: skip
    recipe = load_recipe("cifar10-resnet20-case4", settings)
    train(recipe, data=data, out=out, device="cpu", quiet=True)
    return out


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_whole_way(
    run: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, record = tmp_path / "shipped", tmp_path / "results" / "shipped.jsonl"
    arguments = [str(run), "--name", "cifar10-tiny", "--data", str(data), "--folder", str(folder)]
    monkeypatch.setattr(shipping, "ROUNDS", 1)
    assert (
        cli.main(["paper", "ship", *arguments, "--record", str(record), "--twin", str(run), "--verify", "4"])
        == 0
    )
    out, err = capsys.readouterr()
    assert "packed:" in err
    assert "shipped:" in err
    card = shipped.shipped_card("cifar10-tiny", folder)
    assert out == shipped.render_card(card) + "\n"
    assert card["data"]["classes"] == CLASSES
    assert card["accuracy"]["images"] == 60
    assert card["accuracy"]["same_class"] == 100
    assert (
        card["accuracy"]["packed_top1"]
        == card["accuracy"]["torch_top1"]
        == card["trained"]["metrics"]["top1"]
    )
    assert card["baseline"]["top1"] == card["trained"]["metrics"]["top1"]
    assert card["recipe"]["seed"] == 0
    assert card["recipe"]["changed"]["schedule.max_steps"] == 2
    (row,) = rows_of(record)
    assert row["kind"] == "shipped"
    assert row["refused"] is None
    assert row["accuracy"] == card["accuracy"]
    assert str(tmp_path) not in json.dumps(card) + json.dumps(row)

    monkeypatch.setattr(shipped, "FOLDER", folder)
    assert cli.main(["eval", "--model", "cifar10-tiny", "--data", str(data)]) == 0
    assert f"60 images, {card['accuracy']['isa']}): top-1 {card['accuracy']['packed_top1']:.2f} %" in (
        capsys.readouterr().out
    )


def test_statistics_and_output_layer_once_more(run: Path, data: Path, tmp_path: Path) -> None:
    said: list[str] = []
    common = {"rounds": 1, "verify_images": 1, "record": tmp_path / "rows.jsonl"}
    before = ship(run, "as-it-was", data, tmp_path, say=_silent, **common)
    after = ship(run, "again", data, tmp_path, statistics=2, output=1, say=said.append, **common)
    assert "batch norm's statistics re-estimated on 32 training images" in said
    assert "output layer fitted again on up to 16 training images" in said
    assert (after["packed"]["statistics_batches"], after["packed"]["output_batches"]) == (2, 1)
    assert "output_batches" not in before["packed"]
    one, two = (read(tmp_path / f"{name}.xnor").tensors for name in ("as-it-was", "again"))
    assert set(one) == set(two)
    same = {name for name in one if np.array_equal(np.asarray(one[name]), np.asarray(two[name]))}
    assert any("weight" in name for name in same), "signs of weights stay"
    assert not same & {"fc.weight", "fc.bias"}


def test_a_file_that_is_not_torchs_equal_is_refused_and_kept_in_results(
    run: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = shipping.measure
    monkeypatch.setattr(shipping, "measure", lambda *a, **k: {**measured(*a, **k), "difference": -0.06})
    record = tmp_path / "shipped.jsonl"

    def attempt(force: bool) -> None:
        ship(run, "bad", data, tmp_path, record=record, rounds=1, verify_images=1, force=force, say=_silent)

    with pytest.raises(Refused, match=r"bad is not shipped: its top-1 differs from torch's by -0\.06 points"):
        attempt(force=False)
    assert shipped.list_shipped(tmp_path) == ()
    attempt(force=True)
    assert shipped.list_shipped(tmp_path) == ("bad",)
    refused, forced = (row["refused"] for row in rows_of(record))
    assert "-0.06" in refused
    assert forced is None


def test_what_must_not_be_shipped() -> None:
    card: dict[str, Any] = {
        "verified": {"beyond_the_bound": 0}, "accuracy": {"difference": 0.05}, "packed": {"half": False},
    }  # fmt: skip
    assert shipping.why_not(card) is None
    beyond = {**card, "verified": {"beyond_the_bound": 2}}
    assert "2 values differ" in str(shipping.why_not(beyond))
    assert shipping.why_not({**beyond, "packed": {"half": True}}) is None


def test_bad_input_is_one_sentence(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["paper", "ship", str(run), "--name", "Bad Name"]) == 2
    assert "`name` (='Bad Name') must be of small letters" in capsys.readouterr().err
    assert cli.main(["paper", "ship", str(run), "--name", "good", "--data", str(tmp_path)]) == 2
    assert "cifar" in capsys.readouterr().err.lower()


def test_the_baseline_of_a_file_of_results(tmp_path: Path) -> None:
    path = tmp_path / "accuracy.jsonl"
    rows = [
        {"recipe": "a-real", "metrics": {"top1": 1.0}, "epochs": 3, "seed": 0},
        {"recipe": "a-real", "metrics": {"top1": 2.0, "top5": 3.0}, "epochs": 3, "seed": 1, "split": "test"},
        {"recipe": "a-real", "metrics": {"top1": 4.0}, "epochs": 3, "seed": 1, "split": "held"},
        {"recipe": "a-real", "metrics": {"top1": 5.0}, "epochs": 3, "seed": 1, "quick": True},
        {"recipe": "b", "metrics": {"top1": 6.0}},
    ]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    found = read_baseline(path, "a-real")
    assert (found["top1"], found["top5"], found["seed"]) == (2.0, 3.0, 1)
    with pytest.raises(ValueError, match="no test result of recipe 'c'; its recipes are a-real, b"):
        read_baseline(path, "c")


def test_no_absolute_path_is_kept() -> None:
    kept = without_places(
        {"a": "/home/me/runs/twin/model.safetensors", "b": ["/x"], "c": 1, "d": "runs/twin"}
    )
    assert kept == {"a": "twin/model.safetensors", "b": ["x"], "c": 1, "d": "runs/twin"}


def _silent(line: str) -> None:
    pass


def test_held_out_images_give_a_temperature(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from xnorpp.training import load_recipe, train

    settings = (
        "schedule.max_steps=2", "data.batch_size=8", "run.tensorboard=false", "run.threads=1",
        "model.name=small", "model.options.width=8", "data.holdout=0.25",
    )  # fmt: skip
    train(
        load_recipe("cifar10-resnet20-case4", settings),
        data=data,
        out=tmp_path / "run",
        device="cpu",
        quiet=True,
    )
    monkeypatch.setattr(shipping, "ROUNDS", 1)
    card = ship(tmp_path / "run", "held", data, tmp_path, record=None, verify_images=2)
    calibration, accuracy = card["calibration"], card["accuracy"]
    assert "held out (0.25 of the training set)" in calibration["fitted_on"]
    packed = load(tmp_path / "held.xnor")
    assert packed.program.temperature == pytest.approx(calibration["temperature"])
    held = load_dataset("cifar10", data, "train", holdout=0.25, part="held")
    assert calibration["images"] == len(held) > 0
    assert calibrate(packed, as_images(held)).temperature == pytest.approx(calibration["temperature"])
    logits, labels = logits_of(packed, load_dataset("cifar10", data, "test"))
    powers = np.exp(logits / packed.program.temperature)
    error = expected_calibration_error(powers / powers.sum(1, keepdims=True), labels)
    assert accuracy["calibration_error"] == pytest.approx(error, abs=1e-4)
    assert any("calibrated on held-out" in limit for limit in card["limits"])
    assert f"temperature {calibration['temperature']:.3f}" in shipped.render_card(card)

    write(with_temperature(packed.program, 7.0), tmp_path / "held.xnor")  # fitted anew, on the same images
    again = transfer_temperature("held", None, data, tmp_path, record=None, say=_silent)
    assert load(tmp_path / "held.xnor").program.temperature == pytest.approx(calibration["temperature"])
    assert {key: again["calibration"][key] for key in calibration} == pytest.approx(calibration)
    assert again["accuracy"] == accuracy
    assert again["baseline"] is None
    with pytest.raises(ValueError, match="the card of held names no baseline"):
        transfer_temperature(
            "held", None, data, tmp_path, baseline=tmp_path / "rows.jsonl", record=None, say=_silent
        )
    about = tmp_path / "held.json"
    known = {
        "recipe": "real",
        "seed": 0,
        "epochs": 9,
        "top1": 50.0,
        "top5": 90.0,
        "commit": "a",
        "source": "b",
    }
    about.write_text(json.dumps({**card, "baseline": known}))
    newer = {"recipe": "real", "seed": 3, "epochs": 12, "metrics": {"top1": 61.5}, "commit": "c"}
    (tmp_path / "rows.jsonl").write_text(
        json.dumps({**newer, "epochs": 11}) + "\n" + json.dumps(newer) + "\n"
    )
    again = transfer_temperature(
        "held", None, data, tmp_path, baseline=tmp_path / "rows.jsonl", record=None, say=_silent
    )
    assert (again["baseline"]["top1"], again["baseline"]["epochs"]) == (61.5, 12)
    assert json.loads(about.read_text())["baseline"] == again["baseline"]


def test_a_temperature_is_that_of_another_run_which_held_images_out(
    run: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from xnorpp.training import load_recipe, train

    settings = (
        "schedule.max_steps=2", "data.batch_size=8", "run.tensorboard=false", "run.threads=1",
        "model.name=small", "model.options.width=8", "data.holdout=0.25",
    )  # fmt: skip
    held, other = tmp_path / "held", tmp_path / "other"
    for recipe, out in (("cifar10-resnet20-case4", held), ("cifar10-resnet20-case1", other)):
        train(load_recipe(recipe, settings), data=data, out=out, device="cpu", quiet=True)
    monkeypatch.setattr(shipping, "ROUNDS", 1)
    before = ship(run, "mine", data, tmp_path, record=None, verify_images=2)
    theirs = ship(held, "theirs", data, tmp_path, record=None, verify_images=2)
    assert before["calibration"] is None
    images = sample_images(load(tmp_path / "mine.xnor"))
    answers = load(tmp_path / "mine.xnor")(images)

    record = tmp_path / "rows.jsonl"
    arguments = ["mine", "--data", str(data), "--folder", str(tmp_path), "--record", str(record)]
    assert cli.main(["paper", "temperature", *arguments, "--from", str(other)]) == 2
    assert "must have the recipe of mine, 'cifar10-resnet20-case4'" in capsys.readouterr().err
    assert cli.main(["paper", "temperature", *arguments, "--from", str(run)]) == 2
    assert "must be a run that held images out" in capsys.readouterr().err
    assert cli.main(["paper", "temperature", *arguments]) == 2
    assert "mine has no temperature from held-out images of its own" in capsys.readouterr().err
    assert load(tmp_path / "mine.xnor").program.temperature is None
    assert cli.main(["paper", "temperature", "none", *arguments[1:], "--from", str(held)]) == 2
    assert f"`name` (='none') must be that of a model in {tmp_path}: mine" in capsys.readouterr().err
    assert cli.main(["paper", "temperature", *arguments, "--from", str(held)]) == 0

    packed, card = load(tmp_path / "mine.xnor"), json.loads((tmp_path / "mine.json").read_text())
    assert packed.program.temperature == pytest.approx(theirs["calibration"]["temperature"])
    assert np.array_equal(packed(images), answers)
    assert card["file"]["sha256"] == hashlib.sha256((tmp_path / "mine.xnor").read_bytes()).hexdigest()
    logits, labels = logits_of(packed, load_dataset("cifar10", data, "test"))
    powers = np.exp(logits / packed.program.temperature)
    error = expected_calibration_error(powers / powers.sum(1, keepdims=True), labels)
    assert card["accuracy"]["calibration_error"] == pytest.approx(error, abs=1e-4)
    assert card["accuracy"]["packed_top1"] == before["accuracy"]["packed_top1"]
    assert "by another run of its recipe" in card["limits"][0]
    (row,) = rows_of(record)
    assert row["kind"] == "shipped"
    assert row["calibration"]["transferred"]


@pytest.mark.parametrize(
    ("teacher", "words"),
    [
        (None, ""),
        ({}, ", which the network's teacher was trained on"),
        ({"dataset": "digits", "holdout": 0.1}, ", which the network's teacher was trained on"),
        ({"dataset": "digits", "holdout": 0.25}, ", which its teacher was not trained on either"),
    ],
)
def test_a_card_states_whether_the_teacher_saw_the_held_out_images(
    teacher: dict[str, Any] | None, words: str
) -> None:
    loss = {"teacher": "" if teacher is None else "real/model.safetensors"}
    meta = {"recipe": {"loss": loss}, "dataset": "digits", "teacher": teacher}
    assert _seen_by_teacher(meta, 0.25) == words
