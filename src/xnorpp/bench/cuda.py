"""`xnorpp bench --device cuda`: the packed network beside torch eager and torch.compile on one GPU, in one
run.

Times are of CUDA events around calls from tensors that already lie on the GPU, the median of several
rounds; the real-valued baseline gets normalised images in its own precision and channels_last, the packed
network gets bytes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from xnorpp.bench.compare import baseline_of
from xnorpp.bench.engine import random_images
from xnorpp.runtime import Program
from xnorpp.runtime.format.preprocess import normalise

OURS = "xnorpp"
MODES = ("eager", "default", "reduce-overhead")  # max-autotune takes minutes and measured the same
PRECISIONS = ("bfloat16", "float16")

# Ceilings of an H200, measured (shared by every floor below): one-bit products, 8-bit products, memory.
BIT_RATE, BYTE_RATE, BANDWIDTH = 10_342e12, 1_293e12, 4.3e12


@dataclass(frozen=True)
class GpuRow:
    """One engine at one batch size: milliseconds per call, and bytes at the peak of a call (weights counted,
    the caller's input and output not)."""

    engine: str
    mode: str
    precision: str
    batch: int
    milliseconds: float
    spread: float
    peak_bytes: int | None = None
    note: str = ""

    @property
    def images_per_second(self) -> float:
        return 1e3 * self.batch / self.milliseconds


@dataclass(frozen=True)
class LayerRow:
    """One launch of the packed network for a whole batch, and the floors that arithmetic and memory set."""

    name: str
    kernel: str
    launches: int
    microseconds: float
    floor_arithmetic: float
    floor_memory: float
    teraops: float


def time_call(call: Callable[[], object], rounds: int = 15, repeat: int = 10) -> tuple[float, float]:
    """Milliseconds of one call: (median of the rounds, quartile distance)."""
    import torch

    for _ in range(3):
        call()
    torch.cuda.synchronize()
    found = []
    for _ in range(rounds):
        start, stop = _event(), _event()
        start.record()
        for _ in range(repeat):
            call()
        stop.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(stop) / repeat)
    found.sort()
    return median(found), found[3 * len(found) // 4] - found[len(found) // 4]


def _event() -> Any:
    from importlib import import_module

    return import_module("torch").cuda.Event(enable_timing=True)


def latency(call: Callable[[], object], rounds: int = 200) -> float:
    """Milliseconds from the call to its finished result, by the host's clock: the median."""
    import torch

    call()
    found = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        found.append(1e3 * (time.perf_counter() - start))
    return median(found)


def torch_rows(
    baseline: Any,
    program: Program,
    batch: int,
    *,
    precisions: Sequence[str] = PRECISIONS,
    modes: Sequence[str] = MODES,
    say: Callable[[str], None] = print,
) -> list[GpuRow]:
    """The real-valued baseline in every precision and mode; one that fails is skipped with a message."""
    import torch

    images = normalise(random_images(batch, program.input_shape), program.mean, program.std)
    rows = []
    torch.backends.cudnn.benchmark = True
    logging.getLogger("torch._inductor").setLevel(logging.CRITICAL)
    for precision in precisions:
        dtype = getattr(torch, precision)
        net = baseline.to("cuda", dtype).to(memory_format=torch.channels_last).eval()
        x = torch.from_numpy(images).to("cuda", dtype).to(memory_format=torch.channels_last)
        weights = sum(t.nbytes for t in net.state_dict().values())
        for mode in modes:
            torch._dynamo.reset()
            try:
                rows.append(_torch_row(net, x, weights, precision, mode))
            except Exception as error:
                say(f"torch {mode} {precision} batch {batch}: skipped ({str(error).splitlines()[0][:120]})")
                continue
            say(describe(rows[-1]))
    return rows


def _torch_row(net: Any, x: Any, weights: int, precision: str, mode: str) -> GpuRow:
    import torch

    call = net if mode == "eager" else torch.compile(net, mode=mode)
    with torch.inference_mode():
        ms, spread = time_call(lambda: call(x))
        torch.cuda.synchronize()
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        y = call(x)
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - held - y.nbytes + weights
        note = f"latency {latency(lambda: call(x)):.4f} ms" if x.shape[0] == 1 else ""
    graphs = mode in ("reduce-overhead", "max-autotune")  # their memory is a private pool that is always held
    return GpuRow("torch", mode, precision, x.shape[0], ms, spread, None if graphs else peak, note)


def our_row(model: Any, batch: int, *, from_bytes: bool = True, note: str = "") -> GpuRow:
    """The packed network from bytes, or from normalised floats."""
    import torch

    program = model.program
    images = random_images(batch, program.input_shape)
    array = images if from_bytes else normalise(images, program.mean, program.std)
    x = torch.from_numpy(array).cuda()
    ms, spread = time_call(lambda: model(x))
    if batch == 1:
        note = f"{note} latency {latency(lambda: model(x)):.4f} ms".strip()
    kind = "one bit, from bytes" if from_bytes else "one bit, from floats"
    return GpuRow(OURS, "graph" if model.graph else "launches", kind, batch, ms, spread, model.memory, note)


def layer_rows(model: Any, batch: int) -> list[LayerRow]:
    """Every launch of a batch by itself, chunks added up, beside its floors. The sum is more than the whole
    network takes, because in one graph a kernel starts while the one before it drains."""
    import torch

    from xnorpp.runtime.cuda import driver as cu
    from xnorpp.runtime.cuda.memory import image_bytes
    from xnorpp.runtime.format.program import INPUT

    program, builder = model.program, model.builder
    x = torch.from_numpy(random_images(batch, program.input_shape)).cuda()
    y = model(x)
    torch.cuda.synchronize()
    session = model.session(batch, True)
    schedule, stream = session.schedule, model.stream
    found: dict[int, list[float]] = {}
    for index, launch in enumerate(schedule.launches):
        start = session.start(index, (x.data_ptr(), y.data_ptr()))
        found.setdefault(launch.unit, []).append(_time_start(start, stream, cu))
    rows = []
    for number, times in sorted(found.items()):
        unit = schedule.units[number]
        launch = next(one for one in schedule.launches if one.unit == number)
        size = 0
        for name in dict.fromkeys((*unit.reads, *unit.writes)):
            size += (
                program.values[INPUT].elements
                if name == INPUT
                else image_bytes(program, builder.bits, name, schedule.halves)
            )
        work = 0
        for step in (unit.step, unit.side):
            if step is not None and step.op is not None and step.weight is not None:
                packed = step.packed
                taps = (
                    step.weight[0].size
                    if not packed
                    else program.values[step.source].shape[0]
                    * int(np.prod(step.weight.shape[1:3]) if step.weight.ndim == 4 else 1)
                )
                work += 2 * batch * int(np.prod(step.shape)) * int(taps)
        rate = {"conv": BIT_RATE, "stem": BYTE_RATE / 2}.get(unit.kind, 60e12)
        total = sum(times)
        rows.append(
            LayerRow(
                unit.name, launch.kernel.entry, len(times), total, 1e6 * work / rate,
                1e6 * batch * size / BANDWIDTH, 1e-6 * work / total,
            )
        )  # fmt: skip
    return rows


def _time_start(start: Any, stream: Any, cu: Any, launches: int = 20, replays: int = 5) -> float:
    """Microseconds of one launch, the best replay of a graph of `launches`."""
    stream.begin()
    for _ in range(launches):
        cu.launch(start.kernel, start.grid, start.arguments, stream.value)
    graph, timer = stream.end(), cu.Timer()
    best = float("inf")
    for _ in range(replays):
        timer.start(stream.value)
        cu.replay(graph, stream.value)
        best = min(best, timer.stop(stream.value))
    return 1e3 * best / launches


def describe(row: GpuRow) -> str:
    peak = "" if row.peak_bytes is None else f"  peak {row.peak_bytes / 2**20:7.1f} MiB"
    return (
        f"{row.engine:<7}{row.mode:<16}{row.precision:<21}batch {row.batch:>4} {row.milliseconds:9.4f} ms"
        f" +-{row.spread:.4f} {row.images_per_second:11.0f} images/s{peak}  {row.note}"
    )


def compare_cuda(
    program: Program,
    *,
    device: str = "cuda",
    batches: Sequence[int] = (256, 1),
    precisions: Sequence[str] = PRECISIONS,
    modes: Sequence[str] = MODES,
    say: Callable[[str], None] = print,
) -> list[GpuRow]:
    """All engines at all batch sizes, ours first; prints as it goes."""
    from xnorpp.runtime.cuda.model import CudaModel

    rows = []
    for batch in batches:
        for kind in ("float32", "float16"):
            model = CudaModel(program, device, tune=True, residual=kind)
            rows.append(our_row(model, batch, note=f"{kind} shortcuts"))
            say(describe(rows[-1]))
            model.forget()
        rows += torch_rows(baseline_of(program), program, batch, precisions=precisions, modes=modes, say=say)
    return rows


def as_record(row: GpuRow) -> dict[str, Any]:
    return {**asdict(row), "images_per_second": row.images_per_second}
