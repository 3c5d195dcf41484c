"""`xnorpp bench`: one network on all engines, in turns, from uint8 images and from float32 ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from xnorpp.bench.engine import MEAN, STD, Array, Engine, random_images
from xnorpp.bench.machine import distance_of_two
from xnorpp.inspect.stopwatch import SETTLE, SETTLE_ALONE, WARM, Probe, Spread, interleave
from xnorpp.runtime import Program, load, read
from xnorpp.runtime.format.preprocess import normalise

OURS = "xnorpp"
KINDS = ("uint8", "float32")  # of images

# The network of `default_program` in rows, by its block.
TITLES = {
    "paper": "resnet18 224x224 xnor++ case 4, binary downsampling",
    "default": "resnet18 224x224 xnor++ case 4, default block",
}


@dataclass(frozen=True)
class Result:
    """One engine: seconds per batch from uint8 images (the main figure) and from float32 ones."""

    engine: str
    precision: str
    threads: int
    uint8: Spread
    float32: Spread
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """All engines of one run, ours first."""

    model: str
    batch: int
    isa: str
    file_bytes: int
    results: tuple[Result, ...]
    left_out: tuple[str, ...] = ()

    def ours(self, threads: int) -> Result:
        return next(row for row in self.results if row.engine == OURS and row.threads == threads)

    def fastest(self, precision: str, threads: int, by: str = "median") -> Result | None:
        """The fastest other engine of a precision from uint8, by its median, its "minimum" or its median
        over "quiet" calls."""
        rows = [
            row
            for row in self.results
            if row.engine != OURS
            and row.precision == precision
            and row.threads == threads
            and getattr(row.uint8, by) is not None
        ]
        return min(rows, key=lambda row: float(getattr(row.uint8, by))) if rows else None

    def speedup(self, precision: str, threads: int, by: str = "median") -> float | None:
        """How many times as fast as the fastest other engine of that precision ours is.

        By medians, by medians over the calls in which a probe found the machine "quiet", or by each engine's
        fastest call ("minimum"). The medians are what a user of this machine sees; all three are reported.
        """
        other, ours = self.fastest(precision, threads, by), getattr(self.ours(threads).uint8, by)
        return float(getattr(other.uint8, by) / ours) if other and ours else None

    def scaling(self, engine: str, low: int, high: int, by: str = "median") -> float | None:
        """Time with `low` threads over time with `high`, from uint8.

        By medians, "minimum" or "quiet" as in `speedup`, or by the medians over the calls for which the two
        cores were "near" each other or "far" apart, which is all the same to one thread.
        """
        found = {}
        for row in self.results:
            alone = row.threads == 1 and by in ("near", "far")
            seconds = getattr(row.uint8, "median" if alone else by)
            if row.engine == engine and seconds is not None:
                found[row.threads] = float(seconds)
        return found[low] / found[high] if low in found and high in found else None


def default_program(
    block: str = "paper", *, half: bool = False, real: str | None = None, seed: int = 0
) -> Program:
    """ResNet-18 for 224x224 images, Case 4, with random weights, packed.

    Args:
        block: "paper" (binary downsampling) or "default" (the default block of the networks).
        half: Store real-valued parts in 16 bits.
        real: How real-valued parts are stored, as `pack` takes it. With "int8" all layers that can be are
            rounded, their inputs too, by a few random images: random weights have no accuracy to lose.
        seed: Seed of the weights.
    """
    from xnorpp.bench.networks import DEFAULT, binary_network
    from xnorpp.models import PAPER_BLOCK
    from xnorpp.packing import pack_program

    preprocess = {"resize": 256, "crop": 224, "mean": list(MEAN), "std": list(STD), "channels": 3}
    config = {key: value for key, value in DEFAULT.items() if block == "paper" or key not in PAPER_BLOCK}
    model: Any = binary_network(config, seed=seed)
    meta = {"model": dict(model.config), "weights": "random", "seed": seed}
    settings: dict[str, Any] = {"half": half, "real": real}
    if real == "int8":
        settings |= {"calibration": random_images(4, (3, 224, 224), seed=1), "tolerance": 1.0}
    return pack_program(model, 224, preprocess=preprocess, meta=meta, **settings)


def open_program(path: str | Path | None, block: str = "paper", real: str | None = None) -> Program:
    """Open the network of a benchmark.

    Args:
        path: A packed file, a checkpoint (which is packed here), or None for `default_program`.
        block: The block of `default_program`.
        real: How the real-valued parts of `default_program` are stored.

    Raises:
        FileNotFoundError: There is no such file or folder.
        ValueError: The file is neither a packed model nor a checkpoint.
    """
    if path is None:
        return default_program(block, real=real)
    from xnorpp.inspect import is_packed

    if not Path(path).exists():
        raise FileNotFoundError(f"there is no file or folder {path}")
    if is_packed(path):
        return read(path)
    from xnorpp.packing import pack_program
    from xnorpp.training import load_model

    model, meta = load_model(path)
    config = meta["model"]
    preprocess = meta.get("preprocess")
    return pack_program(model, config["input_size"], preprocess=preprocess, meta={"model": config})


def baseline_of(program: Program) -> Any:
    """The real-valued baseline (an nn.Module), from the configuration recorded in the packed file."""
    from xnorpp.bench.networks import baseline_network

    config = program.meta.get("model")
    if not isinstance(config, Mapping) or "name" not in config:
        raise ValueError(
            "the packed file does not record which network it was, so there is no real-valued baseline to "
            "compare with; use `--against none` to time it alone"
        )
    return baseline_network(config)


def compare(
    program: Program,
    *,
    title: str = "model",
    threads: Sequence[int] = (1,),
    batch: int = 1,
    isa: str | None = None,
    against: Sequence[str] = (),
    baseline: Any = None,
    rounds: int | None = 10,
    repeat: int = 5,
    seconds: float | None = None,
    say: Callable[[str], None] = print,
) -> Comparison:
    """Compare our engine with other libraries, which run the real-valued baseline, in turns.

    Args:
        program: The packed network.
        title: Its name in the report.
        threads: The thread counts to measure.
        batch: Images per call.
        isa: Our CPU kernels; the fastest available by default.
        against: Names among "torch", "eager" (torch without its compiler), "onnxruntime" and "openvino". One
            that is not installed is skipped with a message.
        baseline: The network that they run, an `nn.Module`; by default that of the file's configuration.
        rounds: How often the engines take turns; None: until `seconds` have passed.
        repeat: Timed calls per turn.
        seconds: The round in which these pass is the last one.
        say: Receives lines of progress.

    Returns:
        The times of all engines, ours first.

    Raises:
        ValueError: An argument is wrong, or the file does not record its network.
        RuntimeError: An engine does not compute the network it was given.
    """
    from xnorpp.runtime.format.program import encode

    counts = tuple(dict.fromkeys(threads))
    if batch < 1 or not counts or min(counts) < 1:
        raise ValueError(f"`threads` (={list(threads)}) and `batch` (={batch}) must be at least 1")
    engines = [_ours(program, count, isa) for count in counts]
    used = engines[0].notes[0] if engines[0].notes else "reference"
    left_out: list[str] = []

    def hear(line: str) -> None:
        if "skipped" in line:
            left_out.append(line)
        say(line)

    if against:
        from xnorpp.bench.peers import Task, collect

        try:
            network = baseline_of(program) if baseline is None else baseline
            task = Task(network, program.input_shape, batch, counts, program.mean, program.std)
            engines += collect(task, against, hear)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            hear(
                f"{', '.join(against)}: skipped, their network is made by torch, which is not installed; "
                "install it with `pip install 'xnorpp[train]'`"
            )
    images = random_images(batch, program.input_shape)
    floats = normalise(images, program.mean, program.std)
    engines = _agreeing(engines, images, floats, hear)
    calls: dict[str, Callable[[], object]] = {}
    before: dict[str, Callable[[], object]] = {}
    for engine in engines:
        ways = ((KINDS[0], engine.from_uint8, images), (KINDS[1], engine.from_float, floats))
        for kind, call, x in ways:
            calls[f"{engine.key} {kind}"] = _bind(call, x)
            if engine.before:
                before[f"{engine.key} {kind}"] = engine.before
    limits = [f"{rounds} rounds"] if rounds else []
    limits += [f"{seconds:g} seconds"] if seconds else []
    how_many = "1 engine" if len(engines) == 1 else f"{len(engines)} engines"
    say(f"timing {how_many}, {' or '.join(limits)}, {repeat} calls per turn, from uint8 and float32")
    settle = SETTLE_ALONE if counts == (1,) else SETTLE
    spread = interleave(
        calls,
        rounds=rounds,
        repeat=repeat,
        seconds=seconds,
        settle=settle,
        warm=WARM,
        before=before,
        probe=Probe(),
        apart={
            f"{engine.key} {kind}": distance_of_two
            for engine in engines
            if engine.threads > 1
            for kind in KINDS
        },
    )
    results = tuple(
        Result(
            engine.name,
            engine.precision,
            engine.threads,
            _seen_whole(spread[f"{engine.key} uint8"], engine.threads),
            _seen_whole(spread[f"{engine.key} float32"], engine.threads),
            engine.notes,
        )
        for engine in engines
    )
    return Comparison(title, batch, used, len(encode(program)), results, tuple(left_out))


def _seen_whole(spread: Spread, threads: int) -> Spread:
    """The probe measures the caller's core alone: it does not know whether several threads were disturbed."""
    return spread if threads == 1 else replace(spread, quiet=None, quiet_calls=0)


def _ours(program: Program, threads: int, isa: str | None) -> Engine:
    model = load(program, threads=threads, isa=isa)
    return Engine(OURS, "one bit", threads, model, model, notes=(model.isa,))


def _bind(call: Callable[[Any], object], x: Array) -> Callable[[], object]:
    return lambda: call(x)


def _agreeing(
    engines: Sequence[Engine], images: Array, floats: Array, say: Callable[[str], None]
) -> list[Engine]:
    """All engines are timed on the same network: float ones agree to rounding, int8 ones roughly, and every
    engine gives the same from uint8 as from float32. Ours runs another network, the binary one.

    An int8 engine that computes something else is left out: without VNNI its 16-bit sums of two products may
    saturate, and then it is fast and wrong.
    """
    reference: Array | None = None
    found = []
    for engine in engines:
        if engine.before:
            engine.before()
        a, b = np.array(engine.from_uint8(images)), np.array(engine.from_float(floats))
        size = float(np.abs(b).max()) or 1.0
        if engine.precision == "fp32" and reference is None:
            reference = b
        bound = {"fp32": 1e-3, "int8": 0.5, "one bit": 0.5}[engine.precision]
        if float(np.abs(a - b).max()) > bound * size:
            raise RuntimeError(f"{engine.name} gives different results for uint8 and float32 images")
        other = reference is not None and float(np.abs(b - reference).max()) > bound * size
        if engine.precision == "int8" and other:
            say(f"{engine.name}: skipped, it does not compute the network it was given")
            continue
        if engine.precision != "one bit" and other:
            raise RuntimeError(f"{engine.name} does not compute the network it was given")
        found.append(engine)
    return found
