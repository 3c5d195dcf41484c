"""How a packed network compares with the trained one on a whole test set.

    python benchmarks/packed_against_trained.py RUN [--data DIR] [--verify 200] [--record FILE.jsonl]

RUN is a training run's folder. Every test picture goes through torch (float32) and through the packed CPU
engine; printed are the classes that agree, both accuracies and, on the first `--verify` pictures, the flipped
signs: layer by layer on the trained network's own values (how many the rounding bound does not explain), and
end to end.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import torch

from xnorpp.data import load_dataset
from xnorpp.data.dataset import ArrayDataset
from xnorpp.pack import verify
from xnorpp.predict import preprocess_of
from xnorpp.runtime import load
from xnorpp.train.packing import pack_checkpoint
from xnorpp.train.record import describe_hardware, source_commit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("--data")
    parser.add_argument("--verify", type=int, default=200)
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
    pictures = np.stack([preprocess.apply(image) for image in dataset.images])
    answers = np.concatenate([packed(pictures[i : i + 250]) for i in range(0, len(pictures), 250)])
    with torch.inference_mode():
        floats = preprocess.normalise(pictures)
        trained = np.concatenate(
            [model(torch.from_numpy(floats[i : i + 250])).numpy() for i in range(0, len(floats), 250)]
        )
    found = verify(model, floats[: given.verify])
    row = {
        "kind": "packed against trained",
        "dataset": dataset.name,
        "recipe": (meta.get("recipe") or {}).get("name"),
        "seed": meta.get("seed"),
        "pictures": len(pictures),
        "bytes": size,
        "same_class": 100 * float((answers.argmax(1) == trained.argmax(1)).mean()),
        "top1_trained": 100 * float((trained.argmax(1) == dataset.labels).mean()),
        "top1_packed": 100 * float((answers.argmax(1) == dataset.labels).mean()),
        "verified_pictures": given.verify,
        "bits": found.bits,
        "flips_end_to_end": found.flips,
        "beyond_the_bound": sum(layer.beyond for layer in found.layers),
        "isa": packed.isa,
        "commit": source_commit(),
        "hardware": describe_hardware(),
    }
    for name, value in row.items():
        print(f"{name:<20} {value}")
    if given.record:
        with Path(given.record).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
