"""`xnorpp demo`: a one-bit network and its real-valued twin on scikit-learn's digits, side by side."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xnorpp.train import load_model, train
from xnorpp.train.config import Recipe
from xnorpp.train.recipes import load_recipe

BINARY, REAL = "digits-small-case4", "digits-small-real"


def run_demo(
    out: str | Path | None = None, *, seed: int = 0, overrides: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Train both networks, print their accuracies, and return the two summaries as `binary` and `real`."""
    found: dict[str, Any] = {}
    with _folder(out) as folder:
        for kind, name in (("binary", BINARY), ("real", REAL)):
            recipe = load_recipe(name, [f"run.seed={seed}", "run.tensorboard=false", *overrides])
            print(f"Training {recipe.about} ({recipe.schedule.epochs} epochs)", flush=True)
            start = time.perf_counter()
            summary = train(recipe, out=folder / kind, device="cpu", quiet=True)
            print(
                f"  top-1 {summary['metrics']['top1']:.2f} % in {time.perf_counter() - start:.0f} s",
                flush=True,
            )
            found[kind] = summary
        print()
        print(_table(folder, found))
    return found


def _table(folder: Path, found: dict[str, Any]) -> str:
    """Accuracy, and what the inner layers' weights take in memory, one bit each or 32."""
    from xnorpp.nn import binary_layers

    model, _ = load_model(folder / "binary")
    binary = sum(layer.weight.numel() for _, layer in binary_layers(model))
    every = sum(parameter.numel() for parameter in model.parameters())
    recipe = Recipe.from_dict(found["binary"]["recipe"])
    lines = [f"{'network':<34}{'test accuracy':>14}{'weights':>13}"]
    sizes = {"binary": (every - binary) * 4 + binary / 8, "real": every * 4}
    titles = {
        "binary": f"{recipe.model.name}, one bit, {recipe.model.method} Case 4",
        "real": f"{recipe.model.name}, real-valued twin",
    }
    for kind in ("binary", "real"):
        lines.append(
            f"{titles[kind]:<34}{found[kind]['metrics']['top1']:>12.2f} %{sizes[kind] / 1024:>10.1f} KB"
        )
    return "\n".join(lines)


@contextlib.contextmanager
def _folder(out: str | Path | None) -> Iterator[Path]:
    if out is not None:
        yield Path(out)
        return
    with tempfile.TemporaryDirectory(prefix="xnorpp-demo-") as name:
        yield Path(name)
