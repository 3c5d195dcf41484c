"""Load test of `xnorpp serve`: clients on this machine against the bare engine fed the same encoded images.

    python benchmarks/serve_load.py        ResNet-18 at 224 pixels, 64 clients, one row in results/
    python benchmarks/serve_load.py --clients 8 --seconds 3 --rounds 1 --out ''

The bare engine is this process: as many threads as there are cores, each of which decodes, prepares and runs
one image after the other. The server is a process of its own, and so are the clients: they take time of the
same cores. Rounds alternate, so that both see the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import multiprocessing
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import xnorpp
from xnorpp.bench.machine import describe_machine
from xnorpp.runtime.decode import load_image
from xnorpp.runtime.predict import as_input
from xnorpp.training.records.record import append_rows, source_commit, today

RESULTS = Path(__file__).resolve().parents[1] / "results" / "serve.jsonl"


def images(count: int = 32, side: int = 256) -> list[bytes]:
    """JPEG files as photographs compress: smooth shapes and a little noise."""
    random = np.random.default_rng(0)
    found = []
    for _ in range(count):
        coarse = Image.fromarray(random.integers(0, 256, (12, 12, 3), dtype=np.uint8))
        pixels = np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC)).astype(int)
        pixels = np.clip(pixels + random.integers(-8, 9, pixels.shape), 0, 255).astype(np.uint8)
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "JPEG", quality=85)
        found.append(stream.getvalue())
    return found


def make_model(path: Path) -> None:
    """ResNet-18 with random weights, default block: speed does not depend on the weights."""
    from xnorpp.models import create_model
    from xnorpp.packing import pack_to_file

    network = create_model("resnet18", num_classes=1000, input_size=224)
    preprocess = {"resize": 256, "crop": 224, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    pack_to_file(network, 224, path, preprocess=preprocess)


def bare(path: Path, blobs: list[bytes], seconds: float, threads: int) -> float:
    """Images per second of the engine itself."""
    model = xnorpp.load(str(path), threads=1)
    preprocess = model.preprocess
    assert preprocess is not None
    model(preprocess.apply(load_image(blobs[0])))
    counts, end = [0] * threads, time.monotonic() + seconds

    def work(index: int) -> None:
        while time.monotonic() < end:
            pixels = preprocess.apply(load_image(blobs[counts[index] % len(blobs)]))
            model(as_input(model.program, preprocess, pixels[None]))
            counts[index] += 1

    workers = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    start = time.monotonic()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(counts) / (time.monotonic() - start)


def clients(port: int, blobs: list[bytes], count: int, seconds: float, pipe: Any) -> None:
    """`count` connections that ask one after the other; sends (latencies in ms, failures, seconds)."""
    requests = [
        b"POST /predict?top=5 HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(blob) + blob
        for blob in blobs
    ]
    latencies: list[float] = []
    failures = 0

    async def one(index: int, end: float) -> None:
        nonlocal failures
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.monotonic() < end:
            index += 1
            start = time.monotonic()
            writer.write(requests[index % len(requests)])
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            await reader.readexactly(size)
            if head.startswith(b"HTTP/1.1 200"):
                latencies.append(1000 * (time.monotonic() - start))
            else:
                failures += 1
        writer.close()

    async def all_of_them() -> None:
        end = time.monotonic() + seconds
        await asyncio.gather(*(one(index, end) for index in range(count)))

    start = time.monotonic()
    asyncio.run(all_of_them())
    pipe.send((latencies, failures, time.monotonic() - start))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", default=str(RESULTS))
    given = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    blobs = images()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "resnet18.xnor"
        make_model(path)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        server = subprocess.Popen([sys.executable, "-m", "xnorpp", "serve", str(path), "--port", str(port)])
        for _ in range(300):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.1)
        rounds: list[tuple[float, float]] = []
        latencies: list[float] = []
        failures = 0
        for _ in range(given.rounds):
            alone = bare(path, blobs, given.seconds, cores)
            ours, theirs = multiprocessing.Pipe()
            process = multiprocessing.get_context("spawn").Process(
                target=clients, args=(port, blobs, given.clients, given.seconds, theirs)
            )
            process.start()
            found, failed, seconds = ours.recv()
            process.join()
            rounds.append((alone, len(found) / seconds))
            latencies += found
            failures += failed
            print(f"bare {alone:.1f} images/s, served {len(found) / seconds:.1f} images/s")
        server.send_signal(signal.SIGTERM)
        status = server.wait(60)
    p50, p99 = np.percentile(latencies, [50, 99])
    row = {
        "kind": "serve load", "date": today(), "commit": source_commit(), "hardware": describe_machine(),
        "model": "resnet18, 224 pixels, default block", "clients": given.clients, "seconds": given.seconds,
        "bare": [round(one, 2) for one, _ in rounds], "served": [round(one, 2) for _, one in rounds],
        "share": round(statistics.median(served / alone for alone, served in rounds), 4),
        "p50_ms": round(float(p50), 2), "p99_ms": round(float(p99), 2), "requests": len(latencies),
        "failures": failures, "status_after_sigterm": status,
    }  # fmt: skip
    print(json.dumps({key: value for key, value in row.items() if key != "hardware"}))
    if given.out:
        append_rows(Path(given.out), [row])
    return 0


if __name__ == "__main__":
    sys.exit(main())
