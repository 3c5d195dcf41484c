"""Feed damaged packed files of both versions to the reader: a clear error or a correct load, nothing else.

    python benchmarks/fuzz_files.py [--count 100000] [--seed 0] [--engine reference|native|none]
    python benchmarks/fuzz_files.py --sanitized [--count 100000]     # tests/native/fuzz.cpp, built here
    ... [--record results/fuzz.jsonl]                                # appends what was found

Each case takes a good file and damages it: bytes flipped, cut off, appended or moved; or, with the checksum
made right again so that the deeper checks are reached, the program's JSON, the tensor table or the tensors'
bytes changed; or its JSON is huge or deep. Passing means: `read` raises `ProgramError` (or a load succeeds
and the program plans and runs on the engine), within the time limit. Any other exception, a crash or a hang
fails the run. With --sanitized the files go through reader, planner and generic kernels in a program
without Python that is built with AddressSanitizer and UndefinedBehaviorSanitizer and counts memory.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from xnorpp.bench.machine import describe_machine
from xnorpp.runtime import ReferenceModel, load
from xnorpp.runtime.format.program import Op, Program, ProgramError, _checksum, encode, read
from xnorpp.runtime.plan import make_plan
from xnorpp.runtime.stem import add_byte_filters

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "runtime"))
from random_programs import random_program, random_program_2

LIMIT_SECONDS = 10.0  # one case; the slowest good ones take milliseconds
SMALL_WORK = 1 << 22  # run what loads only if it is not a big computation by its own right

Mutation = Callable[[bytes, np.random.Generator], bytes]


def split(blob: bytes) -> tuple[dict[str, Any], bytes]:
    """The header and the tensors' bytes of a good file."""
    length = int.from_bytes(blob[:8], "little")
    return json.loads(blob[8 : 8 + length]), blob[8 + length :]


def join(header: dict[str, Any], data: bytes) -> bytes:
    """A file with a right checksum where one can be computed."""
    try:
        rows = [(name, row) for name, row in header.items() if name != "__metadata__"]
        rows.sort(key=lambda item: tuple(item[1]["data_offsets"]))
        table = [(name, row["dtype"], tuple(row["shape"])) for name, row in rows]
        header["__metadata__"]["checksum"] = _checksum(header["__metadata__"]["program"], table, data)
    except (KeyError, TypeError, AttributeError, ValueError):
        pass  # too broken for a checksum: the reader must find out by itself
    raw = json.dumps(header).encode("utf-8", "surrogatepass")
    return len(raw).to_bytes(8, "little") + raw + data


def flip_bytes(blob: bytes, rng: np.random.Generator) -> bytes:
    out = bytearray(blob)
    for _ in range(int(rng.integers(1, 20))):
        out[int(rng.integers(len(out)))] = int(rng.integers(256))
    return bytes(out)


def cut(blob: bytes, rng: np.random.Generator) -> bytes:
    return blob[: int(rng.integers(len(blob)))]


def append(blob: bytes, rng: np.random.Generator) -> bytes:
    return blob + rng.bytes(int(rng.integers(1, 100)))


def move(blob: bytes, rng: np.random.Generator) -> bytes:
    a, b = sorted(rng.integers(0, len(blob), 2).tolist())
    return blob[:a] + blob[b:] if rng.random() < 0.5 else blob[:b] + blob[a:]


def header_length(blob: bytes, rng: np.random.Generator) -> bytes:
    length = [0, 1, 7, len(blob), len(blob) - 8, 2**24, 2**40, 2**63, 2**64 - 1, int(rng.integers(len(blob)))]
    return length[int(rng.integers(len(length)))].to_bytes(8, "little") + blob[8:]


STRANGE: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 7, 8, 64, 1024, 1025, 65536, 2**31, 2**31 - 1, 2**32, 2**53, 2**63, 10**400, -(2**40)),
    *(0.0, -0.5, 1e308, 0.1, True, False, None, "", "input", "v0", "v1", "sign", "\ud800", "x" * 5000),
    *(
        [],
        {},
        [1],
        [1, 1],
        [0, 0],
        [-1, 2],
        [1024, 1024],
        [2**40, 1],
        [1, 1, 1, 1],
        {"a": 1},
        [[]],
        [None, 3],
    ),
)


def disturb(tree: Any, rng: np.random.Generator) -> Any:
    """Change something somewhere in a JSON tree: replace, remove, repeat, swap or nudge."""
    spots: list[tuple[Any, Any]] = []

    def visit(node: Any) -> None:
        for key in node if isinstance(node, dict) else range(len(node)):
            spots.append((node, key))
            if isinstance(node[key], dict | list):
                visit(node[key])

    for _ in range(int(rng.integers(1, 4))):
        spots.clear()
        visit(tree)
        if not spots:
            return tree
        node, key = spots[int(rng.integers(len(spots)))]
        choice = rng.random()
        if choice < 0.35:
            node[key] = copy.deepcopy(STRANGE[int(rng.integers(len(STRANGE)))])
        elif choice < 0.6 and type(node[key]) in (int, float):
            node[key] += [-1, 1, 2, -2, 100][int(rng.integers(5))]
        elif choice < 0.7:
            del node[key]
        elif choice < 0.8 and isinstance(node, list):
            node.insert(key, json.loads(json.dumps(node[key])))
        else:
            other, spot = spots[int(rng.integers(len(spots)))]
            node[key] = (
                json.loads(json.dumps(other[spot])) if spot in other or isinstance(other, list) else None
            )
    return tree


def change_program(blob: bytes, rng: np.random.Generator) -> bytes:
    header, data = split(blob)
    program = disturb(json.loads(header["__metadata__"]["program"]), rng)
    header["__metadata__"]["program"] = json.dumps(program)
    return join(header, data)


def change_header(blob: bytes, rng: np.random.Generator) -> bytes:
    header, data = split(blob)
    header = disturb(header, rng)
    return join(header, data) if isinstance(header, dict) else blob


def many_values(blob: bytes, rng: np.random.Generator) -> bytes:
    """JSON that asks for much memory: many values, deep lists, long texts, many keys."""
    count = int(rng.integers(1, 1 << int(rng.integers(4, 21))))
    parts: tuple[Callable[[], Any], ...] = (
        lambda: [0] * count,
        lambda: [[]] * count,
        lambda: [{"": ""}] * (count // 4),
        lambda: "x" * count,
        lambda: dict.fromkeys(map(str, range(count // 8))),
        lambda: json.loads("[" * min(count, 900) + "]" * min(count, 900)),
    )
    value = parts[int(rng.integers(len(parts)))]()
    header, data = split(blob)
    program = json.loads(header["__metadata__"]["program"])
    if rng.random() < 0.5:
        program[["meta", "labels", "ops", "outputs", "opset", "tensors"][int(rng.integers(6))]] = value
        header["__metadata__"]["program"] = json.dumps(program)
    else:
        header[["__metadata__", "x", next(iter(header))][int(rng.integers(3))]] = value
    return join(header, data)


def change_data(blob: bytes, rng: np.random.Generator) -> bytes:
    header, data = split(blob)
    return join(header, flip_bytes(data, rng) if data else data)


MUTATIONS: tuple[Mutation, ...] = (
    *(flip_bytes, cut, append, move, header_length),
    *(change_program, change_program, change_program, change_header, change_header, change_data),
)
RARE: tuple[Mutation, ...] = (many_values,)  # one case in a hundred: they are large


def check(blob: bytes, engine: str) -> str:
    """ "refused" or "loaded" (and run); anything else raises."""
    begin = time.perf_counter()
    try:
        program = read_either(blob)
    except ProgramError as error:
        text = str(error)
        assert text
        assert "\n" not in text
        assert len(text) < 600
        outcome = "refused"
    else:
        run_loaded(program, engine)
        for name, tensor in read(blob).tensors.items():  # some have left memory and come back
            assert program.tensors[name].tobytes() == tensor.tobytes(), name
        outcome = "loaded"
    elapsed = time.perf_counter() - begin
    if elapsed > LIMIT_SECONDS:
        raise TimeoutError(f"a case took {elapsed:.1f} s")
    return outcome


def read_either(blob: bytes) -> Program:
    """From bytes or from a file, which are read in different ways; the length decides."""
    if len(blob) % 2:
        return read(blob)
    with tempfile.TemporaryDirectory(prefix="xnorpp-fuzz-") as folder:
        path = Path(folder) / "case.xnor"
        path.write_bytes(blob)
        return read(path)


def run_loaded(program: Program, engine: str) -> None:
    make_plan(program)
    if engine == "none" or program.work > SMALL_WORK:
        return
    try:
        model = ReferenceModel(program) if engine == "reference" else load(program, threads=1)
    except ProgramError as error:
        if any(part in str(error) for part in ("`limits`", "cannot be run here", "`preprocess`")):
            return
        raise AssertionError(f"a checked program was refused: {error}") from None
    x = np.random.default_rng(0).standard_normal((2, *program.input_shape)).astype(np.float32)
    with np.errstate(all="ignore"):
        y = model(x)
    outputs = y if program.more_outputs else {program.output_name: y}
    for name, value in program.outputs.items():
        assert outputs[name].shape == (2, *program.values[value].shape)


def good_files(count: int) -> list[bytes]:
    """Files to damage: every other one of version 1, the others with what version 2 and set 2 add."""
    golden = Path(__file__).resolve().parents[1] / "tests" / "golden"
    files = [(golden / "set2.xnor").read_bytes()] * (count // 8)  # every operation of the set
    for index in range(count):
        if index % 6 == 5:
            files.append(encode(random_program_2(2000 + index, length=3 + index % 12)))
            continue
        program = random_program(1000 + index, length=3 + index % 12, largest=20)
        floats = [name for name, value in program.values.items() if value.kind == "f32" and name != "input"]
        if index % 2 == 0:
            program = replace(program, version=1)
        elif index % 4 == 1:
            more = {f"o{i}": name for i, name in enumerate(floats[:3])}
            program = replace(program, more_outputs=more, temperature=1.5, labels=None)
        else:
            sized = {"row", "col", "map", "full"}
            free = () if any(sized & set(op.tensors) for op in program.ops) else (1, 2)
            program = replace(program, free_axes=free, meta={"a": [1, {"b": None}]})
        files.append(encode(program))
    return [*files, encode(stem())]


def stem() -> Program:
    """A large first convolution with whole-numbered filters for bytes."""
    rng = np.random.default_rng(5)
    weight = rng.standard_normal((4, 3, 7, 7)).astype(np.float32)
    attrs = {"stride": [2, 2], "padding": [3, 3], "dilation": [1, 1], "groups": 1}
    op = Op("conv2d", "stem", ("input",), "y", attrs, {"weight": "w"})
    return add_byte_filters(Program((3, 9, 8), (op,), "y", {"w": weight}, (0.5,) * 3, (0.2,) * 3))


def cases(count: int, seed: int, bases: int = 24) -> Any:
    """Damaged files, the same for the same seed."""
    blobs = good_files(bases)
    for index in range(count):
        rng = np.random.default_rng([seed, index])
        choices = RARE if index % 100 == 99 else MUTATIONS
        mutation = choices[int(rng.integers(len(choices)))]
        yield index, mutation.__name__, mutation(blobs[int(rng.integers(len(blobs)))], rng)


def build_driver(folder: Path) -> Path:
    """tests/native/fuzz.cpp with the core and the generic kernels, under the sanitizers."""
    root = Path(__file__).resolve().parents[1]
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or "c++"
    flags = ["-std=c++17", "-ffp-contract=off", "-fsanitize=address,undefined", "-w", "-pthread"]
    flags += ["-fno-sanitize-recover=undefined"]
    sources = [root / "tests/native/fuzz.cpp", *sorted((root / "csrc/core").rglob("*.cpp"))]
    sources += [root / f"csrc/kernels/{name}.cpp" for name in ("generic", "dispatch")]
    program = folder / "fuzz"
    objects = [folder / f"{index}.o" for index in range(len(sources))]  # files of two folders share names

    def compile_one(source: Path, target: Path) -> int:
        own = ["-O0"] if source.parent.name == "kernels" else ["-O1"]  # kernels are long to compile
        return subprocess.run([compiler, *flags, *own, "-c", source, "-o", target]).returncode

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        ended = list(pool.map(compile_one, sources, objects))
    if any(ended):
        raise RuntimeError("tests/native/fuzz.cpp does not compile")
    subprocess.run([compiler, *flags, *objects, "-o", program], check=True)
    return program


def run_driver(count: int, seed: int) -> str:
    """What the sanitized program prints for this many cases; an error where it ended otherwise."""
    with tempfile.TemporaryDirectory() as folder:
        driver = build_driver(Path(folder))
        with subprocess.Popen([driver], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=False) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            for _, _, blob in cases(count, seed):
                process.stdin.write(len(blob).to_bytes(4, "little") + blob)
            process.stdin.close()
            said = process.stdout.read().decode()
        if process.returncode:
            raise RuntimeError(f"the sanitized program ended with {process.returncode}")
    return said.strip()


def record(arguments: argparse.Namespace, engine: str, found: dict[str, Any]) -> None:
    """One line with the seed, the commit and the machine, where a file for it is named."""
    if arguments.record is None:
        return
    folder = Path(__file__).parent
    said = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=False
    )
    row = {"kind": "fuzz", "engine": engine, "count": arguments.count, "seed": arguments.seed, **found}
    row |= {"commit": said.stdout.strip()[:7], "machine": describe_machine()}
    with arguments.record.open("a") as file:
        file.write(json.dumps(row) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", choices=("reference", "native", "none"), default="reference")
    parser.add_argument("--sanitized", action="store_true", help="through the core under sanitizers")
    parser.add_argument("--record", type=Path, metavar="FILE.jsonl")
    arguments = parser.parse_args()
    if arguments.sanitized:
        begin = time.perf_counter()
        said = run_driver(arguments.count, arguments.seed)
        seconds = round(time.perf_counter() - begin)
        print(f"{said}\n{arguments.count} files in {seconds} s, 0 failed")
        record(arguments, "sanitized", {"found": said, "failed": 0, "seconds": seconds})
        return 0
    if arguments.engine == "native" and load(random_program(0)).isa == "reference":
        raise SystemExit("the native core is not built")
    found: Counter[tuple[str, str]] = Counter()
    begin = time.perf_counter()
    for index, name, blob in cases(arguments.count, arguments.seed):
        try:
            found[name, check(blob, arguments.engine)] += 1
        except Exception as error:
            print(f"case {index} ({name}): {type(error).__name__}: {error}", file=sys.stderr)
            found[name, "FAILED"] += 1
    for (name, outcome), number in sorted(found.items()):
        print(f"{name:15} {outcome:8} {number}")
    failed = sum(number for (_, outcome), number in found.items() if outcome == "FAILED")
    seconds = round(time.perf_counter() - begin)
    print(f"{arguments.count} files in {seconds} s, {failed} failed")
    outcomes: Counter[str] = Counter()
    for (_, outcome), number in found.items():
        outcomes[outcome] += number
    parts = ", ".join(f"{number} {outcome}" for outcome, number in sorted(outcomes.items()))
    record(arguments, arguments.engine, {"found": parts, "failed": failed, "seconds": seconds})
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
