"""A new temperature for a model that ships.

    xnorpp paper temperature NAME --data DIR               fitted on the images that its training held out
    xnorpp paper temperature NAME --from RUN --data DIR    that of another run, where its own held none out

The other run trained the same network by the same recipe, and held images out of training. Its temperature
is fitted on these and written into the model's file. A temperature changes no guess; what it does to the
calibration error is measured on the test images.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from xnorpp import shipped
from xnorpp.data import load_dataset
from xnorpp.data.evaluate import ranks
from xnorpp.data.own import as_images
from xnorpp.inspect.calibration import logits_of, with_temperature
from xnorpp.paper.shipping.calibrated import calibrate_on_held, calibration_errors
from xnorpp.paper.shipping.ship import Refused, append_row, read_baseline, write_model
from xnorpp.paper.shipping.words import RECORD, limits
from xnorpp.runtime import load
from xnorpp.runtime.format.program import write
from xnorpp.shipped.card import check_card
from xnorpp.training.packing import pack_checkpoint
from xnorpp.training.records.record import source_commit, today
from xnorpp.training.state.checkpoint import load_checkpoint

SAME = ("name", "method", "scale", "num_classes", "input_size")  # of the two networks


def transfer_temperature(
    name: str,
    run: str | Path | None,
    data: str | Path | None,
    folder: str | Path | None = None,
    *,
    baseline: str | Path | None = None,
    record: str | Path | None = RECORD,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Write a new temperature into `NAME.xnor`, that of `run`, a checkpoint; the new card is returned.

    Without `run`, it is fitted on the images that the model's own training held out. `baseline`: a .jsonl
    file of results, whose newest run of the real-valued baseline the card names from now on.

    Raises:
        ValueError: There is no such model, or the run is of another network, recipe or data set, or held no
            images out.
        Refused: The accuracy on the test images is not that of the card.
    """
    folder = shipped.FOLDER if folder is None else Path(folder)
    path = folder / f"{name}.xnor"
    if not path.exists():
        there = ", ".join(sorted(file.stem for file in folder.glob("*.xnor"))) or "no model"
        raise ValueError(f"`name` (={name!r}) must be that of a model in {folder}: {there}")
    card: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="xnorpp-temperature-") as temporary:
        mine = Path(temporary) / f"{name}.xnor"
        mine.write_bytes(path.read_bytes())
        found = _own(card, mine, data, say) if run is None else _transferred(card, run, mine, data, say)
        content = mine.read_bytes()
    packed = load(content)
    dataset = load_dataset(card["data"]["dataset"], data, "test")
    scores, labels = logits_of(packed, as_images(dataset), batch=250)
    top1 = 100 * float((ranks(scores, labels) <= 1).mean())
    if abs(top1 - card["accuracy"]["packed_top1"]) > 1e-9:
        raise Refused(
            f"{name} is not changed: its top-1 on the test images is {top1:.2f} %, and its card has "
            f"{card['accuracy']['packed_top1']:.2f} %"
        )
    card["accuracy"].update(calibration_errors(scores, labels, packed))
    card["calibration"] = {**found, "commit": source_commit(), "date": today()}
    card["file"].update(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    if baseline is not None:
        card["baseline"] = _newest_baseline(card, baseline)
    card["limits"] = limits(card)
    check_card(card, f"{name}.json")
    say(
        f"calibration error on the test images: {card['accuracy']['calibration_error_at_1']:.3f} before, "
        f"{card['accuracy']['calibration_error']:.3f} with the temperature {found['temperature']:.3f}"
    )
    if record is not None:
        append_row(record, card, None)
    write_model(folder, name, content, card)
    return card


def _newest_baseline(card: Mapping[str, Any], results: str | Path) -> dict[str, Any]:
    if not card["baseline"]:
        raise ValueError(f"the card of {card['name']} names no baseline (--baseline has nothing to renew)")
    return read_baseline(results, card["baseline"]["recipe"])


def _own(
    card: Mapping[str, Any], mine: Path, data: str | Path | None, say: Callable[[str], None]
) -> dict[str, Any]:
    """The temperature fitted on the images that the model's own training held out, written into its file."""
    known = card.get("calibration") or {}
    meta = {"dataset": card["data"]["dataset"], "recipe": card["recipe"]["settings"]}
    if not known or known.get("transferred"):
        raise ValueError(
            f"{card['name']} has no temperature from held-out images of its own; give a run of its recipe "
            "that held images out (--from RUN)"
        )
    fitted = calibrate_on_held(mine, meta, data, say, known["fitted_on"])
    if fitted is None:
        raise ValueError(f"the card of {card['name']} records no held-out images (`data.holdout`)")
    return fitted


def _transferred(
    card: Mapping[str, Any],
    run: str | Path,
    mine: Path,
    data: str | Path | None,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """The temperature of another run of the recipe, written into the model's file."""
    meta = load_checkpoint(run).meta
    _check_same(card, meta, run)
    other = mine.with_name("other.xnor")
    pack_checkpoint(run, other)
    fitted = calibrate_on_held(other, meta, data, say)
    if fitted is None:
        raise ValueError(f"`run` (={str(run)!r}) must be a run that held images out (`data.holdout`)")
    where = (
        f"{fitted['fitted_on']}, by another run of the recipe with {meta['epoch']} epochs, whose temperature "
        "this is"
    )
    facts = {**fitted, "fitted_on": where}
    temperature = facts.pop("temperature")
    write(with_temperature(load(mine).program, temperature, calibration=facts), mine)
    return {
        "temperature": temperature, **facts, "transferred": True, "seed": meta.get("seed"),
        "run_commit": meta.get("commit"),
    }  # fmt: skip


def _check_same(card: Mapping[str, Any], meta: Mapping[str, Any], run: str | Path) -> None:
    wanted = {"dataset": card["data"]["dataset"], "recipe": card["recipe"]["name"]}
    found = {"dataset": meta["dataset"], "recipe": meta["recipe"]["name"]}
    wanted |= {key: card["network"].get(key) for key in SAME}
    found |= {key: meta["model"].get(key) for key in SAME}
    for key, value in wanted.items():
        if found[key] != value:
            raise ValueError(
                f"`run` (={str(run)!r}) must have the {key} of {card['name']}, {value!r}, and has "
                f"{found[key]!r}"
            )
