"""Does the loader keep the GPU busy? ImageNet training from files, beside the same steps without a loader.

    python benchmarks/imagenet_busy.py                       # 16 cores and a GPU: about a minute and a half
    python benchmarks/imagenet_busy.py --quick --device cpu  # the same in miniature, to see that it works

Makes a synthetic ImageNet (class folders of JPEG images of 500x375 that compress as photographs do; some
hundred different ones, the rest hard links to them), converts it by `xnorpp shards`, and measures

    loader           images per second that arrive as normalised batches on the device, nothing else running
    imagenet train   `xnorpp train imagenet-resnet18-case4` itself in its steady state, and the same steps of
                     the same loop on one batch that stays on the device; the share of the two says whether
                     the loader keeps up (1: it costs nothing)

The files are in the page cache, so this measures decoding and copying, not a disk. Rows are printed and
appended to results/loader.jsonl (not with --quick).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from PIL import Image, features

from loader import image, whole_loader
from xnorpp.data import load_dataset
from xnorpp.data.dataset import StreamDataset
from xnorpp.training.records.journal import read_metrics
from xnorpp.training.records.record import append_rows, describe_hardware, source_commit, today

RECIPE = "imagenet-resnet18-case4"
LOG_STEPS = 10
EPOCH_STEPS = 40  # a multiple of LOG_STEPS, so that every window is whole
SOURCES = {"jpeg folders": "imagenet", "jpg shards": "shards", "npy shards": "shards"}


def make_imagenet(root: Path, count: int, classes: int, distinct: int, workers: int) -> int:
    """`count` training images and a few to test on; the mean size of a file in bytes."""
    store = root / "store"
    store.mkdir(parents=True)
    with ProcessPoolExecutor(workers) as pool:
        for seed, data in enumerate(pool.map(image, range(distinct), chunksize=4)):
            (store / f"{seed}.JPEG").write_bytes(data)
    for split, images in (("train", count), ("val", min(classes, 256))):
        for label in range(classes):
            (root / split / f"n{label:08d}").mkdir(parents=True)
        for index in range(images):
            wnid = f"n{index % classes:08d}"
            os.link(store / f"{index % distinct}.JPEG", root / split / wnid / f"{index:06d}.JPEG")
    return round(statistics.mean(path.stat().st_size for path in store.iterdir()))


def xnorpp(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "xnorpp", *arguments], check=True, stdout=sys.stderr)


def train_arguments(given: argparse.Namespace, source: str, data: Path, out: Path) -> list[str]:
    cuda = given.device.startswith("cuda")
    settings = {
        "data.dataset": SOURCES[source],
        "data.workers": given.workers,
        "data.batch_size": given.batch_size,
        "data.size": given.size,
        "run.amp": "bf16" if cuda else "off",
        "run.channels_last": "true",
        "run.cuda_graph": "auto",
        "run.log_steps": LOG_STEPS if given.steps > LOG_STEPS else 1,
        "run.tensorboard": "false",
        "run.eval_epochs": 1000,
        "run.save_epochs": 1000,
        "schedule.max_steps": given.steps,
    }
    where = ["--data", str(data), "--out", str(out), "--device", given.device]
    return [
        RECIPE,
        *where,
        *(part for key, value in settings.items() for part in ("--set", f"{key}={value}")),
    ]


def steady_rate(out: Path) -> float:
    """The median over the windows of `LOG_STEPS` steps, without the first ones, which start everything."""
    rows = [row for row in read_metrics(out / "metrics.jsonl") if row["kind"] == "train"]
    late = [row for row in rows if row["step"] > rows[-1]["step"] / 3]
    return statistics.median(row["images_per_s"] for row in late)


class Resident:
    """Stands for a run's loader: its first batch again and again, never leaving the device."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.batch = loader, None
        self.steps_per_epoch, self.skipped = loader.steps_per_epoch, loader.skipped

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Any]:
        if self.batch is None:
            self.batch = next(iter(self.loader.epoch(0)))
            self.loader.close()
        for _ in range(start_step, self.steps_per_epoch):
            yield self.batch

    def close(self) -> None:
        self.loader.close()


def train_on_one_batch(arguments: list[str]) -> int:
    """`xnorpp train` with every batch the first one: what a step costs by itself."""
    from xnorpp.cli.main import main
    from xnorpp.training import loop

    make = loop.make_loaders

    def resident(*given: Any) -> tuple[list[Any], Any]:
        train, test = make(*given)
        return [Resident(loader) for loader in train], test

    loop.make_loaders = resident
    return main(["train", *arguments])


def open_source(source: str, data: Path) -> StreamDataset:
    dataset = load_dataset(SOURCES[source], data)
    assert isinstance(dataset, StreamDataset)
    return dataset


@contextlib.contextmanager
def told(what: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    print(f"{what}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)


def measure(given: argparse.Namespace, root: Path) -> Iterator[dict[str, Any]]:
    """All rows, without what they have in common."""
    places = {source: root / source.replace(" ", "-") for source in SOURCES}
    with told(f"making {given.images} images"):
        files = make_imagenet(
            places["jpeg folders"], given.images, given.classes, given.distinct, given.workers
        )
    for form in ("npy", "jpg"):
        with told(f"xnorpp shards --format {form}"):
            where = ["--data", str(places["jpeg folders"]), "--out", str(places[f"{form} shards"])]
            xnorpp("shards", "imagenet", *where, "--format", form, "--workers", str(given.workers))
    cores = len(os.sched_getaffinity(0))
    for source, data in places.items():
        with told(f"loader, {source}"):
            rate = whole_loader(
                open_source(source, data), given.seconds, given.workers, given.batch_size, given.device
            )
        yield {
            "kind": "loader",
            "source": source,
            "images_per_second": round(rate, 1),
            "images_per_second_a_core": round(rate / cores, 1),
            "cores": cores,
            "file_bytes": files,
            "pillow": Image.__version__,
            "libjpeg_turbo": features.version("libjpeg_turbo"),
        }
    with told("steps on one batch"):
        arguments = train_arguments(given, "npy shards", places["npy shards"], root / "resident")
        subprocess.run([sys.executable, __file__, "one-batch", *arguments], check=True, stdout=sys.stderr)
    alone = steady_rate(root / "resident")
    for source in ("npy shards", "jpeg folders"):
        out = root / f"run-{source.replace(' ', '-')}"
        with told(f"xnorpp train, {source}"):
            xnorpp("train", *train_arguments(given, source, places[source], out))
        rate = steady_rate(out)
        yield {
            "kind": "imagenet train",
            "source": source,
            "recipe": RECIPE,
            "steps": given.steps,
            "images_per_second": round(rate, 1),
            "step_images_per_second": round(alone, 1),
            "share": round(rate / alone, 4),
        }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--workers", type=int, default=cores, help=f"decoding processes (default: {cores})")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--size", type=int, default=224, help="side of the images fed to the network")
    parser.add_argument("--images", type=int, help=f"training images (default: {EPOCH_STEPS} batches)")
    parser.add_argument("--distinct", type=int, default=256, help="different ones among them")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=160, help="steps of each training run")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long the loader alone is measured")
    parser.add_argument("--quick", action="store_true", help="everything in miniature; nothing is recorded")
    parser.add_argument("--results", type=Path, help="file the rows are appended to")
    given = parser.parse_args()
    if given.quick:
        given.batch_size, given.size, given.steps, given.seconds = 8, 64, 6, 0.2
        given.distinct, given.classes, given.images = 4, 4, 32
    given.images = given.images or EPOCH_STEPS * given.batch_size
    if given.results is None and not given.quick:
        given.results = Path(__file__).resolve().parents[1] / "results" / "loader.jsonl"
    return given


def main() -> int:
    if sys.argv[1:2] == ["one-batch"]:
        return train_on_one_batch(sys.argv[2:])
    given = parse()
    shared = {
        "workers": given.workers,
        "batch_size": given.batch_size,
        "size": given.size,
        "commit": source_commit(),
        "date": today(),
        "hardware": describe_hardware(given.device),
    }
    with tempfile.TemporaryDirectory() as folder:
        for row in measure(given, Path(folder)):
            whole = {**shared, **row}
            print(json.dumps(whole, sort_keys=True), flush=True)
            if given.results is not None:
                append_rows(given.results, [whole])
    return 0


if __name__ == "__main__":
    sys.exit(main())
