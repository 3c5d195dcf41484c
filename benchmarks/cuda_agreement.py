"""How often the CUDA engine gives the CPU engine's classes, and in which layer the first signs differ.

    PYTHONPATH=src python benchmarks/cuda_agreement.py --model M.xnor --images N.npy [--count 10000]

Every kind of stream by itself, from bytes and from normalised floats, each against the CPU engine on the same
input: $OUT/cuda_agreement.json after every part, a row for results/ in $OUT/agreement.jsonl at last. A part
that fails is named and the others still run; the exit status is then 1. With a float32 stream both engines
take an image's bytes the same way (runtime/stem.py states which) and round alike, so the outputs are
expected to be equal in every bit (in batches of nine and more; below that the last layer is summed in another
order).
"""

from __future__ import annotations

import argparse
import json
import os
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from xnorpp.runtime import Program, read
from xnorpp.runtime.cuda.model import CudaModel
from xnorpp.runtime.format.program import Op
from xnorpp.runtime.reference import normalise

Say = Callable[[str], None]
Engine = Callable[[np.ndarray], np.ndarray]
BATCH = 256
SIGNS_OF = 16  # images whose signs are compared layer by layer


@dataclass(frozen=True)
class Kind:
    """One way to run the network on the GPU."""

    title: str
    options: Mapping[str, Any] = field(default_factory=dict)
    from_bytes: bool = True
    most: int | None = None  # images; None: all


KINDS = (
    Kind("float32", {"residual": "float32"}),
    Kind("float16", {"residual": "float16"}),
    Kind("popc", {"tensor_cores": False}, most=1024),
    Kind("float32_from_floats", {"residual": "float32"}, False, 1024),
    Kind("float16_from_floats", {"residual": "float16"}, False, 1024),
)


def cpu_engine(program: Program, say: Say) -> tuple[Engine, str]:
    """The native core; where it is missing or of another version, the numpy reference, which is slow."""
    try:
        from xnorpp.runtime.cpu import CpuModel

        model = CpuModel(program, threads=os.cpu_count())
        return model, f"native core, {model.isa}, {model.threads} threads"
    except Exception as error:  # a core that was built from older sources fails when the program is loaded
        from xnorpp.runtime import ReferenceModel

        say(f"the native core does not run, build it again ({type(error).__name__}: {error})")
        return ReferenceModel(program), "numpy reference"


def outputs(call: Engine, program: Program, images: np.ndarray, from_bytes: bool) -> np.ndarray:
    pieces = (images[first : first + BATCH] for first in range(0, len(images), BATCH))
    return np.concatenate([call(piece if from_bytes else normalise(program, piece)) for piece in pieces])


def compare(title: str, got: np.ndarray, want: np.ndarray) -> dict[str, Any]:
    """Classes, whole images and single numbers that are equal, and how far the others are apart."""
    gap = np.abs(got - want).reshape(len(want), -1).max(axis=1)
    changed = got.reshape(len(got), -1).argmax(1) != want.reshape(len(want), -1).argmax(1)
    return {
        f"images_{title}": len(want),
        f"same_class_{title}": float((~changed).mean()),
        f"changed_classes_{title}": int(changed.sum()),
        f"same_image_{title}": float((gap < 1e-4 * np.abs(want).max()).mean()),
        f"equal_bits_{title}": float((got == want).mean()),
        f"largest_difference_{title}": float(gap.max()),
        f"typical_difference_{title}": float(np.median(gap)),
    }


def cut(program: Program, value: str) -> Program:
    """The program up to the signs `value`, which it gives as -1 and +1."""
    needed, ops = {value}, []
    for op in reversed(program.ops):
        if op.output in needed:
            needed |= set(op.inputs)
            ops.append(op)
    ops = [*reversed(ops), Op("signs", "signs", (value,), "signs of it")]
    names = {name for op in ops for name in op.tensors.values()}
    tensors = {name: tensor for name, tensor in program.tensors.items() if name in names}
    return Program(
        program.input_shape,
        tuple(ops),
        "signs of it",
        tensors,
        program.mean,
        program.std,
        version=program.version,
    )


def cpu_signs(program: Program, x: np.ndarray, names: list[str]) -> dict[str, np.ndarray]:
    from xnorpp.runtime.cpu import CpuModel

    threads = os.cpu_count()
    return {name: CpuModel(cut(program, name), threads=threads)(x) > 0 for name in names}


def gpu_signs(model: CudaModel, x: np.ndarray) -> dict[str, np.ndarray]:
    """The signs that each launch leaves, read before the next one starts."""
    result = model(x)
    session = model.session(len(x), x.dtype == np.uint8)
    given = (model._room("input", x.nbytes), model._room("output", result.nbytes))
    model.device.write(given[0], x, model.stream.value)
    schedule, found = session.schedule, {}
    for index, launch in enumerate(schedule.launches):
        session.start(index, given).launch(model.stream.value)
        for name in schedule.units[launch.unit].writes:
            if name not in model.builder.bits or launch.images != len(x):
                continue
            layout = model.builder.bits[name][0]
            raw = np.empty(len(x) * layout.rows * layout.row, np.uint8)
            model.device.read(
                session.memory.pointer + schedule.layout.places[name].offset, raw, model.stream.value
            )
            model.stream.synchronize()
            found[name] = layout.unpack(raw, len(x))
    model.stream.synchronize()
    return found


def differing_signs(program: Program, kind: Kind, images: np.ndarray) -> dict[str, Any]:
    """[layer, signs that differ, signs] in the order of the network."""
    x = images[:SIGNS_OF] if kind.from_bytes else normalise(program, images[:SIGNS_OF])
    model = CudaModel(program, early=False, **kind.options)
    mine = gpu_signs(model, np.ascontiguousarray(x))
    model.forget()
    theirs = cpu_signs(program, x, list(mine))
    rows = [[name, int((bits != theirs[name]).sum()), bits.size] for name, bits in mine.items()]
    return {f"signs_{kind.title}": rows, f"signs_differing_{kind.title}": sum(row[1] for row in rows)}


def agreement(
    program: Program,
    images: np.ndarray,
    say: Say,
    keep: Callable[[dict[str, Any]], None] = lambda found: None,
    kinds: tuple[Kind, ...] = KINDS,
) -> dict[str, Any]:
    """All kinds; `keep` sees what is known after each part."""
    cpu, name = cpu_engine(program, say)
    native = name != "numpy reference"
    images = images if native else images[:24]
    found: dict[str, Any] = {
        "images": len(images), "cpu_engine": name,
        "failed": {} if native else {"cpu engine": "the native core does not run"},
        "stem": "bytes as runtime/stem.py states; with a float32 stream the same on both engines",
    }  # fmt: skip
    want: dict[bool, np.ndarray] = {}

    def part(title: str, body: Callable[[], dict[str, Any]]) -> None:
        start = time.perf_counter()
        try:
            news = body()
        except Exception as error:
            news = {}
            found["failed"][title] = f"{type(error).__name__}: {error}"
            traceback.print_exc()
        found.update(news)
        say(f"{title} ({time.perf_counter() - start:.1f} s): {news or 'FAILED'}")
        keep(found)

    def classes(kind: Kind) -> dict[str, Any]:
        some = images[: kind.most]
        known = want.get(kind.from_bytes, np.zeros((0, 1)))
        if len(known) < len(some):
            start = time.perf_counter()
            want[kind.from_bytes] = known = outputs(cpu, program, some, kind.from_bytes)
            found[f"cpu_seconds_{'bytes' if kind.from_bytes else 'floats'}"] = time.perf_counter() - start
        model = CudaModel(program, **kind.options)
        got = outputs(model, program, some, kind.from_bytes)
        model.forget()
        return compare(kind.title, got, known[: len(got)])

    for kind in kinds:
        part(f"classes, {kind.title}", lambda kind=kind: classes(kind))  # type: ignore[misc]
    if True in want:
        found["classes_seen"] = len(np.unique(want[True].argmax(1)))
        found["largest_value"] = float(np.abs(want[True]).max())
    for kind in kinds if native else ():
        part(f"signs, {kind.title}", lambda kind=kind: differing_signs(program, kind, images))  # type: ignore[misc]
    return found


def table(found: Mapping[str, Any], kinds: tuple[Kind, ...] = KINDS) -> str:
    """One line a kind."""
    head = ("images", "same class", "equal numbers", "largest gap", "signs differing")
    lines = [f"{'':<22}{head[0]:>9}{head[1]:>12}{head[2]:>15}{head[3]:>13}{head[4]:>24}"]
    for t in (kind.title for kind in kinds):
        if f"same_class_{t}" in found:
            rows = found.get(f"signs_{t}", [])
            signs = f"{found[f'signs_differing_{t}']} of {sum(row[2] for row in rows)}" if rows else "-"
            lines.append(
                f"{t:<22}{found[f'images_{t}']:>9}{100 * found[f'same_class_{t}']:>11.2f}%"
                f"{100 * found[f'equal_bits_{t}']:>14.2f}%"
                f"{found[f'largest_difference_{t}']:>13.2e}{signs:>24}"
            )
    return "\n".join(lines + [f"FAILED {title}: {why}" for title, why in found["failed"].items()])


def main() -> None:
    from cuda_inference import load_images
    from xnorpp.training.records.record import describe_hardware, source_commit, today

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--images", required=True, help="uint8 array (n, h, w, 3)")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--resize", choices=("bilinear", "nearest"), default="bilinear")
    given = parser.parse_args()
    begin = time.perf_counter()
    out = Path(os.environ.get("OUT", "."))

    def say(text: str) -> None:
        print(f"[{time.perf_counter() - begin:6.1f}] {text}", flush=True)

    def keep(found: dict[str, Any]) -> None:
        (out / "cuda_agreement.json").write_text(json.dumps(found, indent=1))

    program = read(given.model)
    images = load_images(given.images, given.count, program.input_shape[1], given.resize)
    say(f"{len(images)} images")
    found = agreement(program, images, say, keep)
    print(table(found), flush=True)
    row = {
        "kind": "cuda agreement", "recipe": None, "seed": 0, "commit": source_commit(),
        "hardware": describe_hardware("cuda"), "model": dict(program.meta).get("model"),
        "date": today(),
        "metrics": {k: v for k, v in found.items() if k.startswith(("same_class", "signs_differing"))},
        "correctness": found,
    }  # fmt: skip
    (out / "agreement.jsonl").write_text(json.dumps(row, sort_keys=True) + "\n")
    if found["failed"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
