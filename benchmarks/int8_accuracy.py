"""What `real="int8"` changes: size, accuracy and answers of packed networks, before and after.

    python benchmarks/int8_accuracy.py --data cifar10=DIR --data tiny_imagenet=DIR [--record FILE.jsonl]
    python benchmarks/int8_accuracy.py model.xnor --data cifar10=DIR --images 500 --tolerance 0.005

Without MODELs all networks that ship with the package are measured, each on the test set that it was trained
for: as they are, in int8 chosen by images of the training set (`--images 0`: not), and in int8 without them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from xnorpp.cli.pack import calibration_images
from xnorpp.data import load_dataset
from xnorpp.data.evaluate import evaluate_packed
from xnorpp.data.own import as_images
from xnorpp.packing import store_int8
from xnorpp.packing.storage import TOLERANCE
from xnorpp.runtime import load
from xnorpp.runtime.format.program import encode, read
from xnorpp.shipped import list_shipped, shipped_path
from xnorpp.training.records.record import append_rows, describe_hardware, source_commit, today


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", metavar="MODEL", nargs="*")
    parser.add_argument("--data", metavar="NAME=DIR", action="append", default=[])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--images", type=int, default=500, help="of the training set, for calibration")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE)
    parser.add_argument("--record")
    given = parser.parse_args()
    folders = dict(item.split("=", 1) for item in given.data)
    paths = [Path(name) for name in given.models] or [shipped_path(name) for name in list_shipped()]
    for path in paths:
        program = read(path)
        name = str(program.meta["dataset"])
        images = as_images(load_dataset(name, folders.get(name), "test"))
        stored = {"as it is": program, "int8": store_int8(program)}
        if given.images:
            chosen = calibration_images(program, name, folders.get(name), given.images)
            stored["int8, calibrated"] = store_int8(program, chosen, tolerance=given.tolerance)
            print(f"{path.name}: {stored['int8, calibrated'].meta['int8']}", flush=True)
        found, same = {}, {}
        answers: dict[str, list[int]] = {kind: [] for kind in stored}
        for kind, one in stored.items():
            found[kind] = evaluate_packed(
                load(one, threads=given.threads), images, batch=250,
                observe=lambda chances, _, put=answers[kind]: put.extend(chances.argmax(1).tolist()),
            )  # fmt: skip
            pairs = list(zip(answers["as it is"], answers[kind], strict=True))
            same[kind] = 100 * sum(before == after for before, after in pairs) / len(pairs)
            print(
                f"{path.name}, {kind}: {len(encode(one)):,} bytes, top-1 {found[kind].top1:.2f} %, "
                f"same answers {same[kind]:.2f} %", flush=True,
            )  # fmt: skip
        row: dict[str, object] = {
            "kind": "int8 weights", "model": path.name, "dataset": name, "images": found["int8"].images,
            "top1": found["as it is"].top1, "top1_int8": found["int8"].top1,
            "top5": found["as it is"].top5, "top5_int8": found["int8"].top5, "same_int8": same["int8"],
            "bytes": len(encode(program)), "bytes_int8": len(encode(stored["int8"])),
            "commit": source_commit(), "hardware": describe_hardware("cpu"), "date": today(), "seed": None,
        }  # fmt: skip
        if given.images:
            calibrated, accuracy = stored["int8, calibrated"], found["int8, calibrated"]
            row |= {
                "top1_calibrated": accuracy.top1, "top5_calibrated": accuracy.top5,
                "same_calibrated": same["int8, calibrated"],
                "bytes_calibrated": len(encode(calibrated)), "calibration": calibrated.meta["int8"],
            }  # fmt: skip
        if given.record:
            append_rows(given.record, [row])


if __name__ == "__main__":
    main()
