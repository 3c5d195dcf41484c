"""How a packed network compares with the trained one on a whole test set.

    python benchmarks/packed_against_trained.py RUN [--data DIR] [--verify 200] [--record FILE.jsonl]
    python benchmarks/packed_against_trained.py RUN --twice --floats --count 4000

RUN is a training run's folder. Every test picture goes through torch (float32) and through the packed CPU
engine; printed are the classes that agree, both accuracies and, on the first `--verify` pictures, the flipped
signs: layer by layer on the trained network's own values (how many the rounding bound does not explain), and
end to end. The packed engine gets the pictures as bytes, or with `--floats` normalised.

`--twice` is the yardstick: torch runs again without oneDNN, which adds up the same products in another order,
and the classes on which torch agrees with itself are counted too.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from xnorpp.data import load_dataset
from xnorpp.data.dataset import ArrayDataset
from xnorpp.pack import verify
from xnorpp.predict import preprocess_of
from xnorpp.runtime import load
from xnorpp.train.packing import pack_checkpoint
from xnorpp.train.record import append_rows, describe_hardware, source_commit

BATCH = 250


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("--data")
    parser.add_argument("--verify", type=int, default=200)
    parser.add_argument("--count", type=int, help="the first so many test pictures (all)")
    parser.add_argument("--floats", action="store_true", help="normalised pictures to the packed engine")
    parser.add_argument("--twice", action="store_true", help="torch without oneDNN too")
    parser.add_argument("--record")
    given = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.xnor"
        model, meta = pack_checkpoint(given.run, path)
        packed = load(path)
        size = path.stat().st_size
    dataset = load_dataset(meta["dataset"], given.data, "test")
    if not isinstance(dataset, ArrayDataset):
        raise SystemExit(
            f"data set {dataset.name!r} is streamed; this comparison takes one that is in memory"
        )
    preprocess = preprocess_of(packed.program)
    pictures = np.stack([preprocess.apply(image) for image in dataset.images[: given.count]])
    labels = dataset.labels[: given.count]
    floats = preprocess.normalise(pictures)
    fed = floats if given.floats else pictures
    answers = np.concatenate([packed(fed[i : i + BATCH]) for i in range(0, len(fed), BATCH)])

    def by_torch(onednn: bool) -> np.ndarray:
        with torch.inference_mode(), torch.backends.mkldnn.flags(enabled=onednn):
            parts = [model(torch.from_numpy(floats[i : i + BATCH])) for i in range(0, len(floats), BATCH)]
        return torch.cat(parts).numpy()

    trained = by_torch(True)
    found = verify(model, floats[: given.verify])
    row: dict[str, Any] = {
        "kind": "packed against trained",
        "dataset": dataset.name,
        "recipe": (meta.get("recipe") or {}).get("name"),
        "seed": meta.get("seed"),
        "pictures": len(pictures),
        "bytes": size,
        "fed": "floats" if given.floats else "bytes",
        "same_class": 100 * float((answers.argmax(1) == trained.argmax(1)).mean()),
        "top1_trained": 100 * float((trained.argmax(1) == labels).mean()),
        "top1_packed": 100 * float((answers.argmax(1) == labels).mean()),
        "verified_pictures": given.verify,
        "bits": found.bits,
        "flips_end_to_end": found.flips,
        "beyond_the_bound": sum(layer.beyond for layer in found.layers),
        "isa": packed.isa,
        "commit": source_commit(),
        "hardware": describe_hardware(),
    }
    if given.twice:
        again = by_torch(False).argmax(1)
        row["same_class_torch_torch"] = 100 * float((again == trained.argmax(1)).mean())
        row["same_class_without_onednn"] = 100 * float((again == answers.argmax(1)).mean())
    for name, value in row.items():
        print(f"{name:<20} {value}")
    if given.record:
        append_rows(given.record, [row])


if __name__ == "__main__":
    main()
