"""Temperatures: fitted, stored, and used by predictions; the calibration error by its definition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xnorpp
from xnorpp.cli.main import main
from xnorpp.data import load_dataset
from xnorpp.inspect.calibration import (
    COLDEST,
    HOTTEST,
    calibrate,
    expected_calibration_error,
    fit_temperature,
    logits_of,
    with_temperature,
)
from xnorpp.runtime.predict import probabilities
from xnorpp.training import load_recipe, train
from xnorpp.training.packing import pack_checkpoint


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network on the digits, a third of the training set held out."""
    folder = tmp_path_factory.mktemp("calibration")
    settings = ["data.holdout=0.3", "schedule.epochs=3", "run.tensorboard=false", "model.options.width=8"]
    train(load_recipe("digits-small-case4", settings), out=folder / "run", device="cpu", quiet=True)
    pack_checkpoint(folder / "run", folder / "digits.xnor")
    return folder / "digits.xnor"


def test_the_error_is_the_weighted_distance_of_the_bins() -> None:
    rows = np.array([[0.95, 0.05], [0.95, 0.05], [0.55, 0.45], [0.2, 0.8]])
    labels = np.array([0, 1, 0, 1])
    # bins of a tenth: (0.95, 0.95; one of two right), 0.55 right, 0.8 right
    expected = (abs(2 * 0.95 - 1) + abs(0.55 - 1) + abs(0.8 - 1)) / 4
    assert expected_calibration_error(rows, labels, bins=10) == pytest.approx(expected)
    assert expected_calibration_error(rows, labels, bins=1) == pytest.approx(abs(3.25 - 3) / 4)
    assert expected_calibration_error(np.array([[1.0, 0.0]]), np.array([0])) == 0.0


@pytest.mark.parametrize("of", ["guess", "classes"])
@pytest.mark.parametrize("true", [0.3, 1.0, 4.0])
def test_the_temperature_of_made_up_outputs_is_found(true: float, of: Any) -> None:
    random = np.random.default_rng(0)
    scores = 3 * random.standard_normal((4000, 5))
    powers = np.exp(scores)
    powers /= powers.sum(1, keepdims=True)
    labels = (random.random((4000, 1)) > powers.cumsum(1)).sum(1)
    found = fit_temperature(scores * true, labels, of)
    assert found == pytest.approx(true, rel=0.08)

    def loss(temperature: float) -> float:
        logits = scores * true / temperature
        powers = np.exp(logits - logits.max(1, keepdims=True))
        powers /= powers.sum(1, keepdims=True)
        if of == "classes":
            return float(-np.log(powers[np.arange(4000), labels]).mean())
        sure, right = powers.max(1), scores.argmax(1) == labels
        return float(-np.log(np.where(right, sure, 1 - sure)).mean())

    assert loss(found) <= min(loss(found * 1.01), loss(found * 0.99)) + 1e-12


def test_the_first_guess_is_fitted_whatever_the_other_classes_do() -> None:
    """The first guesses are as sure as they should be. What is left is shared out wrongly among the others,
    and the cross-entropy of all classes repairs that at the cost of the first guess."""
    random = np.random.default_rng(0)
    sure = random.uniform(0.3, 0.95, 20000)
    shares = np.array([0.0, 0.9, 0.1 / 3, 0.1 / 3, 0.1 / 3])  # of what the first guess leaves
    rows = (1 - sure)[:, None] * shares
    rows[:, 0] = sure
    right = random.random(20000) < sure
    labels = np.where(right, 0, random.integers(1, 5, 20000))
    guessed = rows.argmax(1) == 0
    logits, labels = np.log(rows[guessed]), labels[guessed]
    assert fit_temperature(logits, labels) == pytest.approx(1.0, abs=0.03)
    assert fit_temperature(logits, labels, "classes") > 1.1
    with pytest.raises(ValueError, match="`of` \\(='all'\\) must be 'guess' or 'classes'"):
        fit_temperature(logits, labels, "all")  # type: ignore[arg-type]


def test_the_ends_of_the_range() -> None:
    scores = np.array([[1.0, 0.0]] * 3)
    assert fit_temperature(scores, np.array([0, 0, 0])) == COLDEST
    assert fit_temperature(scores, np.array([1, 1, 1])) == HOTTEST
    with pytest.raises(ValueError, match="`labels`"):
        fit_temperature(scores, np.array([0]))
    with pytest.raises(ValueError, match="`bins`"):
        expected_calibration_error(scores, np.array([0, 0, 0]), bins=0)


def test_the_command_fits_on_what_the_run_held_out_and_predictions_use_it(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "calibrated.xnor"
    assert main(["calibrate", str(packed), "-o", str(out)]) == 0
    said = capsys.readouterr().out
    before, after = xnorpp.load(packed), xnorpp.load(out)
    held = load_dataset("digits", None, "train", holdout=0.3, part="held")
    logits, labels = logits_of(before, held)
    assert len(labels) == len(held)
    assert after.program.temperature == pytest.approx(fit_temperature(logits, labels))
    assert f"fitted on {len(held)} images of digits, held out (0.3 of the training set)" in said
    assert after.program.meta["calibration"]["fitted_on"].startswith("digits, held out")
    found = calibrate(before, held)
    assert main(["calibrate", str(packed), "-o", str(out), "--fit", "classes"]) == 0
    of_classes = calibrate(before, held, "classes")
    assert xnorpp.load(out).program.temperature == pytest.approx(of_classes.temperature)
    assert of_classes.loss <= min(found.loss, of_classes.loss_before)
    rows = probabilities(after.program, logits.astype(np.float32))
    assert expected_calibration_error(rows, labels) == pytest.approx(found.error, abs=1e-4)
    x = np.random.default_rng(0).random((4, 1, 8, 8), dtype=np.float32)
    np.testing.assert_array_equal(before(x), after(x))


def test_a_given_temperature_is_written_into_the_file_itself(packed: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.xnor"
    copy.write_bytes(packed.read_bytes())
    assert main(["calibrate", str(copy), "--temperature", "1.5"]) == 0
    assert xnorpp.load(copy).program.temperature == 1.5
    with pytest.raises(ValueError, match="`temperature`"):
        with_temperature(xnorpp.load(copy).program, 0.0)


def test_images_that_were_trained_on_are_refused(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", str(packed), "--holdout", "0"]) == 2
    assert "was trained on all training images of 'digits'" in capsys.readouterr().err
    assert main(["calibrate", str(packed), "--temperature", "2", "--dataset", "digits"]) == 2
    assert "leave `--data` and `--dataset` out" in capsys.readouterr().err
    out = tmp_path / "test.xnor"
    assert main(["calibrate", str(packed), "--split", "test", "-o", str(out)]) == 0
    assert xnorpp.load(out).program.meta["calibration"]["fitted_on"] == "digits, test"


@pytest.mark.parametrize(
    ("temperature", "why"), [(COLDEST, "it is right on all"), (HOTTEST, "its outputs predict none")]
)
def test_a_temperature_that_cannot_be_fitted_is_not_written(
    temperature: float,
    why: str,
    packed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where a model is right on the few images that there are, the best temperature is zero: it would print
    100 % for everything."""
    monkeypatch.setattr("xnorpp.inspect.calibration.fit_temperature", lambda *_: temperature)
    out = tmp_path / "calibrated.xnor"
    assert main(["calibrate", str(packed), "-o", str(out)]) == 2
    assert f"images, because {why} of them; use more images" in capsys.readouterr().err
    assert not out.exists()
