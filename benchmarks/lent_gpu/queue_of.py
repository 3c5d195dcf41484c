"""Runs of a plan by the queue of a source tree: started by `lent_gpu run` with that tree on PYTHONPATH.

    python queue_of.py HOME --device DEVICE --minutes N [--set KEY=VALUE ...]

HOME/plan.json says which runs; results and folders of runs are written below HOME. Nothing is decided here:
runs, recipes, resuming and recording are those of `xnorpp paper` in that tree, which may be an older one.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import json
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from collect import FINAL

PLACES = {  # today's module and its name in the trees of earlier tags
    "queue": ("xnorpp.paper.accuracy.queue", "xnorpp.experiments.queue"),
    "runs": ("xnorpp.paper.accuracy.runs", "xnorpp.experiments.runs"),
    "checkpoint": ("xnorpp.training.state.checkpoint", "xnorpp.train.checkpoint"),
}


def module(name: str) -> Any:
    """A module of the source tree, wherever that tree has it."""
    for place in PLACES[name]:
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if not place.startswith(str(error.name)):
                raise
    raise ModuleNotFoundError(f"none of {', '.join(PLACES[name])} is in the source tree")


def chosen(plan: dict[str, Any], more: Sequence[str] = ()) -> list[Any]:
    """The plan's runs in its order, with the settings it lays over them."""
    runs = module("runs")
    known = {run.key: run for run in runs.plan(runs.EXPERIMENTS)}
    unknown = [key for key in plan["runs"] if key not in known]
    if unknown:
        raise ValueError(f"the source tree has no run {', '.join(unknown)}; `xnorpp paper` lists them")
    found = []
    for key in plan["runs"]:
        laid = [
            one for pattern, some in plan["settings"].items() if fnmatch.fnmatch(key, pattern) for one in some
        ]
        found.append(replace(known[key], settings=(*known[key].settings, *laid, *more)))
    return found


def check_tree(source: Path) -> None:
    """Refuse an installed xnorpp that hides the tree: rows would state a commit that did not train them."""
    package = importlib.import_module("xnorpp")
    if not Path(str(package.__file__)).resolve().is_relative_to(source.resolve()):
        raise RuntimeError(f"xnorpp is imported from {package.__file__}, not from {source}: uninstall it")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("home", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--set", action="append", default=[])
    given = parser.parse_args()
    home, plan = given.home, json.loads((given.home / "plan.json").read_text(encoding="utf-8"))
    check_tree(home / "source")
    runs = chosen(plan, given.set)
    os.chdir(home)  # a recipe states its teacher's path, which must be the same where a run is resumed
    folder = Path("runs")
    here = [run.key for run in runs if (folder / run.key / FINAL).exists()]
    for key in here:
        print(f"finished already: {key}", flush=True)
    queue = module("queue")
    queue.SAVES = plan["saves"]
    queue.run_queue(
        [run for run in runs if run.key not in here],
        results=Path("results"),
        folder=folder,
        data="data",
        jobs=plan["jobs"],
        device=given.device,
        minutes=given.minutes,
        say=lambda line: print(line, flush=True),
    )


if __name__ == "__main__":
    outcome = "stopped"
    try:
        main()
        outcome = "ended"
    except Exception as error:
        traceback.print_exc()
        outcome = f"failed: {error}"
    finally:
        Path(sys.argv[1], "outcome").write_text(outcome + "\n", encoding="utf-8")
    sys.exit(outcome != "ended")
