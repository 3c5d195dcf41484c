"""How a packed network compares with the trained one on a whole test set.

    python benchmarks/packed_against_trained.py RUN [--data DIR] [--verify 200] [--record FILE.jsonl]
    python benchmarks/packed_against_trained.py RUN --twice --count 4000

RUN is a training run's folder. Every test image goes through torch (float32) and through the packed CPU
engine; printed are the classes that agree, both accuracies and, on the first `--verify` images, the flipped
signs: layer by layer on the trained network's own values (how many the rounding bound does not explain), and
end to end. The packed engine gets the images twice, normalised as floats and as bytes; a row each.

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
from xnorpp.packing import verify
from xnorpp.runtime import load
from xnorpp.runtime.predict import preprocess_of
from xnorpp.training.packing import pack_checkpoint
from xnorpp.training.records.record import append_rows, describe_hardware, source_commit

BATCH = 250


def percent(hits: np.ndarray) -> float:
    return 100 * float(hits.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("--data")
    parser.add_argument("--verify", type=int, default=200)
    parser.add_argument("--count", type=int, help="number of test images, from the first (default: all)")
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
    images = np.stack([preprocess.apply(image) for image in dataset.images[: given.count]])
    labels = dataset.labels[: given.count]
    floats = preprocess.normalise(images)

    def by_torch(onednn: bool) -> np.ndarray:
        with torch.inference_mode(), torch.backends.mkldnn.flags(enabled=onednn):
            parts = [model(torch.from_numpy(floats[i : i + BATCH])) for i in range(0, len(floats), BATCH)]
        return torch.cat(parts).numpy()

    trained = by_torch(True)
    found = verify(model, floats[: given.verify])
    again = by_torch(False).argmax(1) if given.twice else None
    classes = trained.argmax(1)
    shared: dict[str, Any] = {
        "kind": "packed against trained",
        "dataset": dataset.name,
        "recipe": (meta.get("recipe") or {}).get("name"),
        "seed": meta.get("seed"),
        **{key: meta["model"].get(key) for key in ("name", "method", "scale", "stem")},
        "epochs": meta.get("epoch"),
        "images": len(images),
        "bytes": size,
        "top1_trained": percent(classes == labels),
        "verified_images": given.verify,
        "bits": found.bits,
        "flips_end_to_end": found.flips,
        "beyond_the_bound": sum(layer.beyond for layer in found.layers),
        "batch_norm": "torch's numbers",  # rows without this were packed before they were kept
        "isa": packed.isa,
        "commit": source_commit(),
        "hardware": describe_hardware(),
    }
    for name, value in shared.items():
        print(f"{name:<20} {value}")
    for fed, inputs in (("floats", floats), ("bytes", images)):
        answers = np.concatenate([packed(inputs[i : i + BATCH]) for i in range(0, len(inputs), BATCH)])
        got = answers.argmax(1)
        row = {"fed": fed, "same_class": percent(got == classes), "top1_packed": percent(got == labels)}
        if again is not None:
            row["same_class_torch_torch"] = percent(again == classes)
            row["same_class_without_onednn"] = percent(again == got)
        print(", ".join(f"{name} {value}" for name, value in row.items()))
        if given.record:
            append_rows(given.record, [{**shared, **row}])


if __name__ == "__main__":
    main()
