"""Feed damaged packed files to the reader and the engine: a clear error or a correct load, nothing else.

    python benchmarks/fuzz_files.py [--count 100000] [--seed 0] [--engine reference|native|none]

Each case takes a good file and damages it: bytes flipped, cut off, appended or moved; or, with the checksum
made right again so that the deeper checks are reached, the program's JSON, the tensor table or the tensors'
bytes changed. Passing means: `read` raises `ProgramError` (or a load succeeds and the program plans and runs
on the engine), within the time limit. Any other exception, a crash or a hang fails the run. With the native
engine built under AddressSanitizer and UndefinedBehaviorSanitizer the same command shows reads out of bounds.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from xnorpp.runtime import ReferenceModel, load
from xnorpp.runtime.format.program import Program, ProgramError, _checksum, encode, read
from xnorpp.runtime.plan import make_plan

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "runtime"))
from random_programs import random_program

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


def change_data(blob: bytes, rng: np.random.Generator) -> bytes:
    header, data = split(blob)
    return join(header, flip_bytes(data, rng) if data else data)


MUTATIONS: tuple[Mutation, ...] = (
    *(flip_bytes, cut, append, move, header_length),
    *(change_program, change_program, change_program, change_header, change_header, change_data),
)


def check(blob: bytes, engine: str) -> str:
    """ "refused" or "loaded" (and run); anything else raises."""
    begin = time.perf_counter()
    try:
        program = read(blob)
    except ProgramError as error:
        text = str(error)
        assert text
        assert "\n" not in text
        assert len(text) < 600
        outcome = "refused"
    else:
        run_loaded(program, engine)
        outcome = "loaded"
    elapsed = time.perf_counter() - begin
    if elapsed > LIMIT_SECONDS:
        raise TimeoutError(f"a case took {elapsed:.1f} s")
    return outcome


def run_loaded(program: Program, engine: str) -> None:
    make_plan(program)
    if engine == "none" or program.work > SMALL_WORK:
        return
    model = ReferenceModel(program) if engine == "reference" else load(program, threads=1)
    x = np.random.default_rng(0).standard_normal((2, *program.input_shape)).astype(np.float32)
    with np.errstate(all="ignore"):
        y = model(x)
    assert y.shape == (2, *program.values[program.output].shape)


def cases(count: int, seed: int, bases: int = 24) -> Any:
    """Damaged files, the same for the same seed."""
    blobs = [encode(random_program(1000 + i, length=3 + i % 12, largest=20)) for i in range(bases)]
    for index in range(count):
        rng = np.random.default_rng([seed, index])
        mutation = MUTATIONS[int(rng.integers(len(MUTATIONS)))]
        yield index, mutation.__name__, mutation(blobs[int(rng.integers(bases))], rng)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", choices=("reference", "native", "none"), default="reference")
    arguments = parser.parse_args()
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
    print(f"{arguments.count} files in {time.perf_counter() - begin:.0f} s, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
