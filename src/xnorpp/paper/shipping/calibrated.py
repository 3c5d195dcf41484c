"""The temperature of a model that ships, and how far its probabilities are off."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xnorpp.data import load_dataset
from xnorpp.data.own import as_images
from xnorpp.inspect.calibration import calibrate, expected_calibration_error, with_temperature
from xnorpp.runtime import PackedModel, load
from xnorpp.runtime.format.program import write


def calibrate_on_held(
    path: Path,
    meta: Mapping[str, Any],
    data: str | Path | None,
    say: Callable[[str], None],
    fitted_on: str | None = None,
) -> dict[str, Any] | None:
    """Writes the temperature that suits the held-out training images into the file; None without any.

    `fitted_on` describes these images where `meta`, that of a checkpoint, does not record all of it.
    """
    holdout = float(meta["recipe"].get("data", {}).get("holdout", 0.0))
    if not holdout:
        return None
    held = load_dataset(meta["dataset"], data, "train", holdout=holdout, part="held")
    packed = load(path)
    found = calibrate(packed, as_images(held), batch=250)
    where = fitted_on or (
        f"{held.name}, held out ({holdout:g} of the training set){_seen_by_teacher(meta, holdout)}"
    )
    facts = {"fitted_on": where, "images": found.images, "criterion": "guess"}
    write(with_temperature(packed.program, found.temperature, calibration=facts), path)
    say(f"temperature {found.temperature:.3f}, fitted on {found.images:,} held-out training images")
    return {"temperature": found.temperature, **facts}


def _seen_by_teacher(meta: Mapping[str, Any], holdout: float) -> str:
    """Whether the teacher was trained on the images; checkpoints record it since teachers hold images out."""
    if not meta["recipe"].get("loss", {}).get("teacher"):
        return ""
    facts = meta.get("teacher") or {}
    if (facts.get("dataset"), facts.get("holdout")) == (meta["dataset"], holdout):
        return ", which its teacher was not trained on either"
    return ", which the network's teacher was trained on"


def calibration_errors(
    scores: npt.NDArray[Any], labels: npt.NDArray[np.int64], packed: PackedModel
) -> dict[str, float]:
    """The expected calibration error of the probabilities that `predict` prints, and at temperature 1."""
    found = {}
    for key, temperature in (
        ("calibration_error", packed.program.temperature or 1.0),
        ("calibration_error_at_1", 1.0),
    ):
        shifted = (scores - scores.max(axis=1, keepdims=True)).astype(np.float64) / temperature
        powers = np.exp(shifted)
        found[key] = round(expected_calibration_error(powers / powers.sum(axis=1, keepdims=True), labels), 5)
    return found
