"""The inference figures on one GPU: first right, then fast. Every number goes to $OUT/cuda_inference.json,
and as rows for results/ to $OUT/results.jsonl.

    PYTHONPATH=src python benchmarks/cuda_inference.py [--model M.xnor] [--images N.npy] [--labels N.npy]

`--images` is a uint8 array (n, h, w, 3); images of another size than the network's are resized on the
GPU (`--resize`) and rounded to bytes, so both engines see the same; `--labels` adds the accuracy. Without
`--model` the network is ResNet-18, 224x224, Case 4, the paper's block, random weights with batch-norm
statistics of the images. The CPU engine is the native core, which must be built (cmake -S . -B build
-DXNORPP_PYTHON=ON -DXNORPP_LIBRARY=OFF && cmake --build build -j, then copy build/_core*.so to
src/xnorpp/runtime). How the classes are compared: cuda_agreement.py.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cuda_agreement import agreement, outputs, table
from xnorpp.bench.cuda import GpuRow, as_record, describe, layer_rows, our_row, torch_rows
from xnorpp.bench.engine import MEAN, STD
from xnorpp.runtime import Program, read
from xnorpp.runtime.cuda.model import CudaModel
from xnorpp.training.records.record import describe_hardware, source_commit, today

BEGIN = time.perf_counter()
# Kinds of stream and megabytes of floats that a piece of a batch may hold: small pieces stay in the L2 cache.
SCANNED = (
    ("float16", 128), ("float32", 64), ("float32", 128), ("float32", 256),
)  # fmt: skip


def say(text: str) -> None:
    print(f"[{time.perf_counter() - BEGIN:6.1f}] {text}", flush=True)


def load_images(path: str | None, count: int, size: int, resize: str = "bilinear") -> np.ndarray:
    """uint8 (n, size, size, 3)."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if path is None:
        # Smooth random images: neighbouring pixels alike, as in photographs.
        g = torch.Generator().manual_seed(0)
        coarse = torch.rand(count, 3, 16, 16, generator=g)
    else:
        array = np.load(path, mmap_mode="r")[:count]
        coarse = torch.from_numpy(np.array(array)).permute(0, 3, 1, 2)
    parts = []
    for piece in coarse.split(500):
        real = piece.to(device).float() * (255.0 if path is None else 1.0)
        if real.shape[2:] != (size, size):
            real = torch.nn.functional.interpolate(real, (size, size), mode=resize)
        if path is None:
            real = real + torch.randn(real.shape, device=device) * 12
        parts.append(real.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).cpu().contiguous())
    return torch.cat(parts).numpy()


def make_program(images: np.ndarray) -> Program:
    """Random weights; every batch norm has the statistics of the images."""
    from xnorpp.bench.networks import DEFAULT
    from xnorpp.models import create_model
    from xnorpp.packing import pack_program

    torch.manual_seed(0)
    model = create_model(**DEFAULT)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None
    x = torch.from_numpy(images[:48]).permute(0, 3, 1, 2).float() / 255
    x = (x - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
    model.train()
    with torch.no_grad():
        for piece in x.split(24):
            model(piece)
    preprocess = {"resize": 256, "crop": 224, "mean": list(MEAN), "std": list(STD), "channels": 3}
    return pack_program(
        model.eval(), 224, preprocess=preprocess, meta={"model": dict(DEFAULT), "weights": "random"}
    )


def timed_tilings(model: CudaModel) -> list[list[Any]]:
    """Rows of step, images, number of the winner and every candidate's milliseconds."""
    from xnorpp.runtime.cuda.tune import record_path

    model.builder.picks = {}
    path = record_path(model, model.builder.schedule(256, True))
    rows: list[list[Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    parser.add_argument("--images")
    parser.add_argument("--labels", help="int array (n,) of the images' classes")
    parser.add_argument("--resize", choices=("bilinear", "nearest"), default="bilinear")
    parser.add_argument("--no-tune", action="store_true", help="first guesses instead of timed tilings")
    parser.add_argument("--max-autotune", action="store_true", help="time that mode too (minutes)")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--skip-torch", action="store_true")
    parser.add_argument("--skip-float16", action="store_true", help="torch in bfloat16 only")
    parser.add_argument(
        "--limit", type=float, default=270, help="seconds after which torch modes are left out"
    )
    given = parser.parse_args()
    out = Path(os.environ.get("OUT", "."))
    found: dict[str, Any] = {}

    def keep() -> None:
        (out / "cuda_inference.json").write_text(json.dumps(found, indent=1))

    program = read(given.model) if given.model else None
    size = program.input_shape[1] if program else 224
    images = load_images(given.images, given.count, size, given.resize)
    say(f"{len(images)} images")
    if program is None:
        program = make_program(images)
    first = time.perf_counter()
    model = CudaModel(program, tune=not given.no_tune)
    model(torch.from_numpy(images[:256]).cuda())
    torch.cuda.synchronize()
    found["first_call_seconds"] = time.perf_counter() - first
    say(f"first call with compilation {found['first_call_seconds']:.1f} s; {model.isa}")

    def checked(part: dict[str, Any]) -> None:
        found["correctness"] = part
        keep()

    found["correctness"] = agreement(program, images, say, checked)
    print(table(found["correctness"]), flush=True)
    if given.labels:
        labels = np.load(given.labels)[: len(images)]
        found["top1"] = {
            kind: float((got.argmax(1) == labels).mean())
            for kind in ("float16", "float32")
            for got in [outputs(CudaModel(program, residual=kind), program, images, True)]
        }
        say(f"top-1 {found['top1']}")
    del images
    keep()

    rows: list[GpuRow] = []
    model.forget()
    for kind, megabytes in SCANNED:
        tried = CudaModel(program, resident=megabytes << 20, residual=kind, tune=not given.no_tune)
        row = our_row(tried, 256, note=f"residual {kind}, resident {megabytes} MiB")
        chunks = [segment.chunk for segment in tried.session(256, True).schedule.layout.segments]
        say(f"{describe(row)} chunks {chunks}")
        rows.append(row)
        if kind == "float16":
            found["layers_float16"] = [vars(row) for row in layer_rows(tried, 256)]
        tried.forget()
    model = CudaModel(program, tune=not given.no_tune)
    rows.append(our_row(model, 256, note="default"))
    say(describe(rows[-1]))
    for name, options in (("no early start", {"early": False}), ("no graph", {"graph": False})):
        rows.append(our_row(CudaModel(program, **options), 256, note=name))
        say(describe(rows[-1]))
    found["tilings"] = timed_tilings(model)
    found["tilings_float16"] = timed_tilings(CudaModel(program, residual="float16"))
    found["layers"] = [vars(row) for row in layer_rows(model, 256)]
    keep()
    small = CudaModel(program, tune=not given.no_tune)
    for batch in (1, 32):
        rows.append(our_row(small, batch))
        say(describe(rows[-1]))
    rows.append(our_row(CudaModel(program, residual="float16"), 1, note="residual float16"))
    say(describe(rows[-1]))
    rows.append(our_row(CudaModel(program), 256, from_bytes=False))
    say(describe(rows[-1]))
    found["layers_batch_1"] = [vars(row) for row in layer_rows(small, 1)]
    found["rows"] = [as_record(row) for row in rows]
    keep()
    tables = {"batch 256": "layers", "float16": "layers_float16", "batch 1": "layers_batch_1"}
    for title, layers in ((title, found[key]) for title, key in tables.items()):
        print(f"{title:<24}{'kernel':<13}{'n':>3}{'us':>9}{'floor: ops':>12}{'memory':>9}{'Tops/s':>8}")
        for row in layers:
            print(
                f"{row['name']:<24}{row['kernel']:<13}{row['launches']:>3}{row['microseconds']:9.1f}"
                f"{row['floor_arithmetic']:12.1f}{row['floor_memory']:9.1f}{row['teraops']:8.0f}"
            )
        print(f"{'sum':<40}{sum(row['microseconds'] for row in layers):9.1f}", flush=True)
    for precision, modes in (
        ("bfloat16", ("eager", "default", "reduce-overhead")),
        *([] if given.skip_float16 else [("float16", ("default", "reduce-overhead"))]),
        *([("bfloat16", ("max-autotune",))] if given.max_autotune else []),
    ):  # fmt: skip
        for batch in (256, 1):
            if given.skip_torch or time.perf_counter() - BEGIN > given.limit:
                say(f"left out for time: torch {modes} {precision} batch {batch}")
                continue
            from xnorpp.bench.compare import baseline_of

            baseline = baseline_of(program)
            rows += torch_rows(baseline, program, batch, precisions=(precision,), modes=modes, say=say)
            found["rows"] = [as_record(row) for row in rows]
            keep()
    summary(found, rows, out, program)
    keep()


def summary(found: dict[str, Any], rows: list[GpuRow], out: Path, program: Program) -> None:
    """The figures of the table, one line each."""

    def fastest(batch: int, precision: str | None, stream: str = "") -> GpuRow | None:
        """Ours (with a kind of stream, where one is named), or torch.compile's best mode in a precision."""
        some = [r for r in rows if r.batch == batch and (r.engine == "xnorpp") == (precision is None)]
        if precision is None and stream:
            some = [r for r in some if f"residual {stream}" in r.note]
        elif precision is None:
            some = [r for r in some if r.note == "default"] or [r for r in some if "residual" not in r.note]
        else:
            some = [r for r in some if r.mode != "eager" and r.precision == precision]
        return min(some, key=lambda r: r.milliseconds) if some else None

    checked = found["correctness"]
    wanted = ("same_class", "equal_bits", "signs_differing")
    figures: dict[str, Any] = {key: value for key, value in checked.items() if key.startswith(wanted)}
    figures |= {f"top1_{kind}": value for kind, value in found.get("top1", {}).items()}
    for batch in (256, 1):
        for precision in ("bfloat16", "float16"):
            mine, theirs = fastest(batch, None), fastest(batch, precision)
            if mine and theirs:
                figures[f"speedup_batch_{batch}_{precision}"] = theirs.milliseconds / mine.milliseconds
                figures[f"milliseconds_batch_{batch}_{precision}"] = [mine.milliseconds, theirs.milliseconds]
        half, theirs = fastest(batch, None, "float16"), fastest(batch, "bfloat16")
        if half and theirs:
            figures[f"speedup_batch_{batch}_bfloat16_float16_stream"] = (
                theirs.milliseconds / half.milliseconds
            )
    compiled = [r for r in rows if r.mode == "default" and r.precision == "bfloat16" and r.batch == 256]
    chosen = [r for r in rows if r.note == "default"]
    halves = [r for r in rows if r.batch == 256 and r.note.startswith("residual float16")]
    if compiled and compiled[0].peak_bytes and chosen[0].peak_bytes and halves[0].peak_bytes:
        figures["memory_ratio"] = chosen[0].peak_bytes / compiled[0].peak_bytes
        figures["memory_ratio_float16_stream"] = halves[0].peak_bytes / compiled[0].peak_bytes
        figures["peak_bytes"] = [chosen[0].peak_bytes, compiled[0].peak_bytes]
    for name in ("layer3.1.conv1", "layer4.1.conv1"):
        layer = [r for r in found["layers"] if r["name"].startswith(name)]
        if layer:
            figures[f"teraops_{name}"] = layer[0]["teraops"]
    found["figures"] = figures
    hardware = describe_hardware("cuda")
    lines = [
        {
            "kind": "cuda inference", "recipe": None, "seed": 0, "commit": source_commit(),
            "hardware": hardware,
            "date": today(),
            "model": dict(program.meta).get("model"), "metrics": figures, "correctness": found["correctness"],
            "residual": "float32",
            "rows": [as_record(row) for row in rows],
            "layers": found["layers"], "layers_float16": found["layers_float16"],
            "layers_batch_1": found["layers_batch_1"],
        }
    ]  # fmt: skip
    (out / "results.jsonl").write_text("".join(json.dumps(line, sort_keys=True) + "\n" for line in lines))
    for key, value in figures.items():
        print(f"{key}: {value}")


if __name__ == "__main__":
    main()
