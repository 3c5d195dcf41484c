"""How often torch agrees with itself on a binary network: the yardstick for every other engine.

    python benchmarks/torch_against_itself.py RUN [--data DIR] [--count 2000] [--record FILE.jsonl]

The same float32 network runs twice on the CPU: with oneDNN's convolutions and with torch's own, which add up
the same products in another order. A value near zero may then get another sign, and in a binary network one
sign turns others over. Printed are the classes that agree between the two, and of each with the packed file.
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
from xnorpp.predict import preprocess_of
from xnorpp.runtime import load
from xnorpp.train.packing import pack_checkpoint
from xnorpp.train.record import describe_hardware, source_commit

BATCH = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("--data")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--record")
    given = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.xnor"
        model, meta = pack_checkpoint(given.run, path)
        packed = load(path)
    dataset = load_dataset(meta["dataset"], given.data, "test")
    if not isinstance(dataset, ArrayDataset):
        raise SystemExit(f"data set {dataset.name!r} is streamed; this takes one that is in memory")
    preprocess = preprocess_of(packed.program)
    floats = preprocess.normalise(np.stack([preprocess.apply(one) for one in dataset.images[: given.count]]))

    def classes(onednn: bool) -> np.ndarray:
        with torch.inference_mode(), torch.backends.mkldnn.flags(enabled=onednn):
            parts = [model(torch.from_numpy(floats[i : i + BATCH])) for i in range(0, len(floats), BATCH)]
            return torch.cat(parts).argmax(1).numpy()

    one, other = classes(True), classes(False)
    ours = np.concatenate([packed(floats[i : i + BATCH]) for i in range(0, len(floats), BATCH)]).argmax(1)
    row = {
        "kind": "torch against itself",
        "dataset": dataset.name,
        "recipe": (meta.get("recipe") or {}).get("name"),
        "seed": meta.get("seed"),
        "pictures": len(floats),
        "same_class_torch_torch": 100 * float((one == other).mean()),
        "same_class_packed_onednn": 100 * float((ours == one).mean()),
        "same_class_packed_native": 100 * float((ours == other).mean()),
        "commit": source_commit(),
        "hardware": describe_hardware(),
    }
    for name, value in row.items():
        print(f"{name:<26} {value}")
    if given.record:
        with Path(given.record).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
