"""How many images per second the loader prepares, on synthetic files like ImageNet's (500x375, 110 KB).

    python benchmarks/loader.py [--workers N] [--seconds S] [--device cuda]

Prints one JSON object: images per second of one core for each way of storing and decoding (measured in this
process, alone), and of the whole loader with `--workers` processes, up to the normalised batch on the device.

    exact       JPEG 500x375, decoded in full, resized to 256x256, cropped to 224 (the default)
    fast        the same files, `fast_decode`: the JPEG decoder halves them
    prepared    JPEG 256x256 (quality 95) as `write_shards(format="jpg")` stores them: only the crop is left
    raw         uint8 256x256 as `write_shards(format="npy")` stores them: nothing is decoded
"""

from __future__ import annotations

import argparse
import io
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image, features

from xnorpp.data import dataset_info, load_dataset, make_loader, write_shards
from xnorpp.data.dataset import FolderDataset, StreamDataset
from xnorpp.runtime.decode import decode_blob
from xnorpp.runtime.machine import processor


def image(seed: int, width: int = 500, height: int = 375) -> bytes:
    """Noise at several scales, the amplitude falling as in photographs, so that it compresses as they do."""
    random = np.random.default_rng(seed)
    total = np.full((height, width, 3), 128, np.float32)
    for cells, amplitude in ((4, 60), (16, 40), (64, 25), (200, 15), (500, 14)):
        coarse = random.normal(size=(cells * 3 // 4 + 1, cells, 3)).astype(np.float32)
        for channel in range(3):
            layer = Image.fromarray(coarse[:, :, channel]).resize((width, height), Image.Resampling.BICUBIC)
            total[:, :, channel] += amplitude * np.asarray(layer)
    file = io.BytesIO()
    Image.fromarray(total.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=92)
    return file.getvalue()


def make_folder(root: Path, count: int) -> FolderDataset:
    """`count` files of 16 different images, in 4 class folders."""
    contents = [image(seed) for seed in range(16)]
    for index in range(count):
        path = root / "train" / f"n{index % 4:08d}" / f"{index:06d}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents[index % 16])
    dataset = load_dataset("imagenet", root)
    assert isinstance(dataset, FolderDataset)
    return dataset


def one_core(dataset: StreamDataset, seconds: float, *, fast: bool = False) -> float:
    """Images per second of one process that decodes and crops, nothing else."""
    random = np.random.default_rng(0)
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        top, left = (int(value) for value in random.integers(0, 33, 2))
        decode_blob(dataset.blob(done % len(dataset)), 256, 224, top, left, 3, fast=fast)
        done += 1
    return done / (time.perf_counter() - start)


def whole_loader(
    dataset: StreamDataset, seconds: float, workers: int, batch_size: int, device: str, *, fast: bool = False
) -> float:
    """Images per second that arrive as normalised batches on the device, after the first two batches."""
    loader = make_loader(
        dataset,
        batch_size=batch_size,
        train=True,
        workers=workers,
        device=device,
        fast_decode=fast,
        channels_last=True,
    )
    done, seen, start, epoch = 0, 0, 0.0, 0
    try:
        while True:
            for images, _ in loader.epoch(epoch):
                seen += 1
                if seen <= 2:
                    start = time.perf_counter()
                    continue
                done += len(images)
                if time.perf_counter() - start > seconds:
                    float(images[0, 0, 0, 0])  # waits for the device
                    return done / (time.perf_counter() - start)
            epoch += 1
    finally:
        loader.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--workers", type=int, default=cores, help=f"decoding processes (default: {cores})")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each measurement takes")
    parser.add_argument("--images", type=int, default=2048, help="files to make")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        files = make_folder(root / "files", arguments.images)
        size = np.mean([os.path.getsize(files.blob(i).path) for i in range(16)])
        write_shards(files, root / "jpg", format="jpg", samples_per_shard=512, workers=arguments.workers)
        write_shards(files, root / "npy", format="npy", samples_per_shard=512, workers=arguments.workers)
        ways: dict[str, tuple[StreamDataset, bool]] = {"exact": (files, False), "fast": (files, True)}
        for name, form in (("prepared", "jpg"), ("raw", "npy")):
            shards = load_dataset("shards", root / form)
            assert isinstance(shards, StreamDataset)
            ways[name] = (shards, False)
        per_core = {name: one_core(data, arguments.seconds, fast=fast) for name, (data, fast) in ways.items()}
        loaded = {
            name: whole_loader(
                data, arguments.seconds, arguments.workers, arguments.batch_size, arguments.device, fast=fast
            )
            for name, (data, fast) in ways.items()
        }
    report = {
        "benchmark": "loader",
        "file_bytes": round(float(size)),
        "crop": dataset_info("imagenet").image_size,
        "images_per_second_one_core": {name: round(rate, 1) for name, rate in per_core.items()},
        "workers": arguments.workers,
        "batch_size": arguments.batch_size,
        "device": arguments.device,
        "images_per_second_loader": {name: round(rate, 1) for name, rate in loaded.items()},
        "cores": cores,
        "processor": processor().name,
        "pillow": Image.__version__,
        "libjpeg_turbo": features.version("libjpeg_turbo"),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
