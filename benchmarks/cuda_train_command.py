"""Images per second of `xnorpp train` itself on a GPU, with and without CUDA graphs, on random images in
CIFAR-10's format (how fast, not how well):

python benchmarks/cuda_train_command.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from xnorpp.training.records.journal import read_metrics

LOG_STEPS = 10


def write_images(home: Path, count: int) -> None:
    """`count` training images in five files and a few to test on, records of a label and 3072 bytes."""
    rng = np.random.default_rng(0)
    for name, records in [(f"data_batch_{i}", count // 5) for i in range(1, 6)] + [("test_batch", 512)]:
        labels = rng.integers(0, 10, (records, 1), dtype=np.uint8)
        pixels = rng.integers(0, 256, (records, 3072), dtype=np.uint8)
        np.hstack([labels, pixels]).tofile(home / f"{name}.bin")


def measure(recipe: str, size: int, batch: int, setting: str, home: Path, epochs: int) -> float:
    """The median over the windows of `LOG_STEPS` steps after the first epoch."""
    out = home / f"{recipe}-{size}-{setting}"
    settings = {
        "run.cuda_graph": setting,
        "run.amp": "bf16",
        "run.channels_last": "true",
        "run.log_steps": LOG_STEPS,
        "run.tensorboard": "false",
        "run.eval_epochs": epochs,
        "run.save_epochs": epochs,
        "data.batch_size": batch,
        "data.size": size,
        "schedule.epochs": epochs,
    }
    command = [sys.executable, "-m", "xnorpp", "train", recipe, "--data", str(home), "--out", str(out)]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    subprocess.run(command, check=True, stdout=sys.stderr)
    rows = [row for row in read_metrics(out / "metrics.jsonl") if row["kind"] == "train"]
    return statistics.median(r["images_per_s"] for r in rows if r["epoch"] > 1 and not r["step"] % LOG_STEPS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipes", default="cifar10-resnet18-case4,cifar10-resnet20-case4")
    parser.add_argument("--settings", default="on,off", help="of run.cuda_graph")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--images", type=int, default=12800)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        write_images(home, args.images)
        for recipe in args.recipes.split(","):
            for setting in args.settings.split(","):
                rate = measure(recipe, args.size, args.batch, setting, home, args.epochs)
                row = {"recipe": recipe, "size": args.size, "batch": args.batch, "cuda_graph": setting}
                print(json.dumps({**row, "images_per_second": rate}), flush=True)


if __name__ == "__main__":
    main()
