"""Every listed network by every method and scale: trained briefly on CIFAR-10, packed, and compared.

    python benchmarks/packed_matrix.py --data DIR --out runs/matrix [--jobs 4] [--record FILE.jsonl]
    python benchmarks/packed_matrix.py --data DIR --out runs/matrix --networks small --rows case4,xnor

A few epochs are enough for activations as real training leaves them; the accuracies are not the networks'
best. AlexNet sees the pictures enlarged to 112 pixels, the least its strides leave something of. What is
compared: packed_against_trained.py, with the pictures as floats and as bytes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROWS: dict[str, tuple[str, str]] = {
    "case1": ("xnor++", "channel"),
    "case2": ("xnor++", "dense"),
    "case3": ("xnor++", "channel_spatial"),
    "case4": ("xnor++", "channel_height_width"),
    "xnor-alpha": ("xnor", "alpha"),
    "xnor": ("xnor", "alpha_k"),
    "bnn": ("bnn", "default"),
    "binaryconnect": ("binaryconnect", "default"),
    "real": ("real", "default"),
}
NETWORKS = {"small": 0, "resnet20": 0, "resnet18": 0, "resnet34": 0, "alexnet": 112}
COMPARE = Path(__file__).with_name("packed_against_trained.py")


def train(given: argparse.Namespace, network: str, row: str, out: Path) -> None:
    method, scale = ROWS[row]
    cuda = given.device.startswith("cuda")
    settings = {
        "model.name": network,
        "model.method": method,
        "model.scale": scale,
        "data.size": NETWORKS[network],
        "data.batch_size": 256,
        "data.holdout": 0.02,  # the run evaluates on these; the test set is for the comparison
        "schedule.epochs": given.epochs,
        "run.amp": "bf16" if cuda else "off",
        "run.channels_last": "true",
        "run.tensorboard": "false",
    }
    if given.steps:
        settings["schedule.max_steps"] = given.steps
    command = [sys.executable, "-m", "xnorpp", "train", "cifar10-resnet18-case4", "--resume"]
    command += ["--data", given.data, "--out", str(out), "--device", given.device]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    with (out / "log.txt").open("a", encoding="utf-8") as log:
        subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)


def one(given: argparse.Namespace, network: str, row: str) -> str:
    """One line about one network and row: trained, packed and compared."""
    out = Path(given.out) / f"{network}-{row}"
    out.mkdir(parents=True, exist_ok=True)
    try:
        train(given, network, row, out)
    except subprocess.CalledProcessError:
        last = (out / "log.txt").read_text(encoding="utf-8").strip().splitlines()[-1:]
        return f"{out.name}: training failed: {' '.join(last)}"
    command = [sys.executable, str(COMPARE), str(out), "--data", given.data, "--verify", "50"]
    if given.count:
        command += ["--count", str(given.count)]
    if given.record:
        command += ["--record", given.record]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = (done.stderr if done.returncode else done.stdout).strip().splitlines()
    if done.returncode:
        return f"{out.name}: comparison failed: {lines[-1]}"
    trained = next(line for line in lines if line.startswith("top1_trained")).split()[1]
    return f"{out.name}: top1_trained {trained}; {'; '.join(lines[-2:])}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="folder of CIFAR-10")
    parser.add_argument("--out", required=True, help="a folder for the runs")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--steps", type=int, help="stop after so many, for a look")
    parser.add_argument("--count", type=int, help="compare the first so many test pictures (all)")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--record", help="file the comparisons are appended to")
    given = parser.parse_args()
    pairs = [(n, r) for n in given.networks.split(",") for r in given.rows.split(",")]
    for kind, name in [("networks", n) for n, _ in pairs] + [("rows", r) for _, r in pairs]:
        known = NETWORKS if kind == "networks" else ROWS
        if name not in known:
            parser.error(f"--{kind} (={name!r}) must be of {', '.join(known)}")
    failed = 0
    with ThreadPoolExecutor(given.jobs) as pool:
        for line in pool.map(lambda pair: one(given, *pair), pairs):
            print(line, flush=True)
            failed += "failed" in line
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
