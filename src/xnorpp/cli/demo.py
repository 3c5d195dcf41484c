"""`xnorpp demo`: a one-bit network and its real-valued baseline on scikit-learn's digits, side by side; then
the one-bit network is packed and run as bit operations.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xnorpp.cli.command import Parser, check_folder, share_cores

BINARY, REAL = "digits-small-case4", "digits-small-real"


def demo(arguments: list[str]) -> int:
    """Trains a one-bit network on scikit-learn's digits, and its real-valued baseline (the same network
    without binarization); packs the one-bit network, and compares accuracy, size and speed. Needs no data
    and no GPU.
    """
    parser = Parser("demo", demo, "xnorpp demo\nxnorpp demo --out runs/demo --seed 1")
    parser.add_argument("--out", metavar="DIR", help="store the runs here (default: a temporary folder)")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="random seed (default: 0)")
    given = parser.parse_args(arguments)
    check_folder("--out", given.out)
    share_cores()
    run_demo(given.out, seed=given.seed)
    return 0


def run_demo(
    out: str | Path | None = None, *, seed: int = 0, overrides: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Train both networks, print their accuracies, pack the binary one and run it.

    Args:
        out: The folder for the runs; a temporary one by default.
        seed: Seed of both runs.
        overrides: Further changes to both recipes, as `--set` takes them.

    Returns:
        The two training summaries as `binary` and `real`, and as `packed` the size of the file, how many test
        images get the same class from it as from torch, and the seconds per image in each engine.
    """
    from xnorpp.training import train
    from xnorpp.training.recipe.library import load_recipe

    results: dict[str, Any] = {}
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
            results[kind] = summary
        print()
        print(_table(folder, results))
        print()
        results["packed"] = _run_packed(folder)
    return results


def _run_packed(folder: Path) -> dict[str, Any]:
    """Pack the binary network, compare its predictions with torch's on the whole test set, and time both."""
    import torch

    from xnorpp.data import load_dataset
    from xnorpp.data.dataset import ArrayDataset
    from xnorpp.inspect.stopwatch import SETTLE_ALONE, interleave
    from xnorpp.runtime import load
    from xnorpp.runtime.predict import preprocess_of
    from xnorpp.shipped.card import size_text
    from xnorpp.training import load_model
    from xnorpp.training.packing import float_bytes, pack_checkpoint

    path = folder / "digits.xnor"
    trained, _ = pack_checkpoint(folder / "binary", path)
    real, _ = load_model(folder / "real")
    packed = load(path, threads=1)
    dataset = load_dataset("digits", split="test")
    assert isinstance(dataset, ArrayDataset)
    floats = preprocess_of(packed.program).normalise(dataset.images)
    with torch.inference_mode():
        expected = trained(torch.from_numpy(floats)).argmax(1).numpy()
        answers = packed(dataset.images).argmax(1)
        one, tensor = dataset.images[:1], torch.from_numpy(floats[:1])
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        spreads = interleave(
            {
                "packed": lambda: packed(one),
                "torch, binary": lambda: trained(tensor),
                "torch, real-valued": lambda: real(tensor),
            },
            rounds=5,
            repeat=20,
            settle=SETTLE_ALONE,
        )
        torch.set_num_threads(threads)
    same = int((expected == answers).sum())
    size = path.stat().st_size
    seconds = {name: spread.median for name, spread in spreads.items()}
    ratio = float_bytes(trained) / size
    print(f"Packed: {size_text(size)}, {ratio:.1f} times smaller than its state_dict")
    print(f"Predictions equal to torch's on {same} of {len(answers)} test images")
    print(f"One image, one thread ({packed.isa}), median:")
    for name, value in seconds.items():
        longer = "" if name == "packed" else f"{value / seconds['packed']:>8.1f} times as long"
        print(f"  {name:<20}{value * 1e3:>8.3f} ms{longer}")
    return {"bytes": size, "same": same, "images": len(answers), "seconds": seconds, "isa": packed.isa}


def _table(folder: Path, results: dict[str, Any]) -> str:
    """Accuracy, and the memory of the weights with one bit or 32 bits for each of the inner layers."""
    from xnorpp.nn import binary_layers
    from xnorpp.shipped.card import size_text
    from xnorpp.training import load_model
    from xnorpp.training.recipe.config import Recipe

    model, _ = load_model(folder / "binary")
    binary = sum(layer.weight.numel() for _, layer in binary_layers(model))
    every = sum(parameter.numel() for parameter in model.parameters())
    recipe = Recipe.from_dict(results["binary"]["recipe"])
    lines = [f"{'network':<34}{'test accuracy':>14}{'weights':>13}"]
    sizes = {"binary": (every - binary) * 4 + binary / 8, "real": every * 4}
    titles = {
        "binary": f"{recipe.model.name}, one bit, {recipe.model.method} Case 4",
        "real": f"{recipe.model.name}, real-valued baseline",
    }
    for kind in ("binary", "real"):
        lines.append(
            f"{titles[kind]:<34}{results[kind]['metrics']['top1']:>12.2f} %{size_text(sizes[kind]):>13}"
        )
    return "\n".join(lines)


@contextlib.contextmanager
def _folder(out: str | Path | None) -> Iterator[Path]:
    if out is not None:
        yield Path(out)
        return
    with tempfile.TemporaryDirectory(prefix="xnorpp-demo-") as name:
        yield Path(name)
