"""Every listed network by every method and scale: trained briefly on CIFAR-10, packed, and compared.

    python benchmarks/packed_matrix.py --data DIR --out runs/matrix [--jobs 4] [--record FILE.jsonl]
    python benchmarks/packed_matrix.py --data DIR --out runs/matrix --networks small --rows case4,xnor

A few epochs are enough for activations as real training leaves them; the accuracies are not the networks'
best. AlexNet sees the images enlarged to 112 pixels, the least its strides leave something of. The runs are
a queue that continues where it was (xnorpp.paper.accuracy.queue). What is compared:
packed_against_trained.py, with the images as floats and as bytes; `--jobs` comparisons run at a time, while
the next network trains.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from xnorpp.paper.accuracy.queue import QueueError, run_queue
from xnorpp.paper.accuracy.run import Run
from xnorpp.paper.accuracy.runs import FIRST_ROWS, OTHER_ROWS

ROWS = (*FIRST_ROWS, *OTHER_ROWS, "binaryconnect")
NETWORKS = {"small": 0, "resnet20": 0, "resnet18": 0, "resnet34": 0, "alexnet": 112}
COMPARE = Path(__file__).with_name("packed_against_trained.py")


def run_of(given: argparse.Namespace, network: str, row: str) -> Run:
    """ResNet-18's recipe with another network in it; BinaryConnect, which has none, is laid over Case 1."""
    settings = [
        f"model.name={network}",
        f"data.size={NETWORKS[network]}",
        "data.batch_size=256",
        "data.holdout=0.02",  # the run evaluates on these; the test set is for the comparison
        f"schedule.epochs={given.epochs}",
        f"schedule.max_steps={given.steps}",
    ]
    base = row
    if row == "binaryconnect":
        base = "case1"
        settings += ["model.method=binaryconnect", "model.scale=default"]
    recipe = f"cifar10-resnet18-{base}"
    return Run("matrix", row, "cifar10", network, recipe, settings=tuple(settings))


def compare(given: argparse.Namespace, run: Run) -> str:
    """One line about a trained network: packed and compared."""
    command = [sys.executable, str(COMPARE), str(Path(given.out) / run.key), "--data", given.data]
    command += ["--verify", "50"]
    if given.count:
        command += ["--count", str(given.count)]
    if given.record:
        command += ["--record", given.record]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = (done.stderr if done.returncode else done.stdout).strip().splitlines()
    if done.returncode:
        return f"{run.key}: comparison failed: {lines[-1]}"
    trained = next(line for line in lines if line.startswith("top1_trained")).split()[1]
    return f"{run.key}: top1_trained {trained}; {'; '.join(lines[-2:])}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="folder of CIFAR-10")
    parser.add_argument("--out", required=True, help="a folder for the runs")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=0, help="stop after this many, for a quick look")
    parser.add_argument("--count", type=int, help="number of test images to compare (default: all)")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--record", help="file the comparisons are appended to")
    given = parser.parse_args()
    networks, rows = given.networks.split(","), given.rows.split(",")
    for option, names, known in (("networks", networks, NETWORKS), ("rows", rows, ROWS)):
        for name in names:
            if name not in known:
                parser.error(f"--{option} (={name!r}) must be of {', '.join(known)}")
    out = Path(given.out)
    failed = False
    with ThreadPoolExecutor(given.jobs) as pool:
        lines: list[Future[str]] = []
        for network in networks:
            runs = [run_of(given, network, row) for row in rows]
            try:
                run_queue(
                    runs, results=out, folder=out, data=given.data, jobs=given.jobs, device=given.device
                )
            except QueueError as error:  # the others are trained and can be compared
                print(error, flush=True)
                failed = True
            for run in runs:
                if (out / run.key / "summary.json").exists():
                    lines.append(pool.submit(compare, given, run))
                    lines[-1].add_done_callback(lambda line: print(line.result(), flush=True))
        failed |= any("failed" in line.result() for line in lines)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
