"""Which of a layer's tilings is fastest on this GPU, measured once and stored on disk beside the kernels.

The order of the candidates (cuda_tiles.py) is a guess made on one GPU. `CudaModel(tune=True)` times every
candidate of every layer by itself at the first use of a batch size; the winners are used from then on by
every model of the same layers on the same kind of GPU, with or without `tune`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from xnorpp.runtime.cache import cache_folder
from xnorpp.runtime.cuda import driver as cu
from xnorpp.runtime.files import write_atomically

if TYPE_CHECKING:
    from xnorpp.runtime.cuda.build import Schedule
    from xnorpp.runtime.cuda.model import CudaModel, _Session

LAUNCHES, REPLAYS = 10, 3


def record_path(model: CudaModel, schedule: Schedule) -> Path:
    """The file of a schedule's winners, named by the GPU, the first guess's kernels and the candidates."""
    text = [model.device.name, str(model.device.multiprocessors)]
    text += [launch.kernel.source() for launch in schedule.launches]
    text += [repr(model.builder.options(unit, schedule.images)) for unit in schedule.units]
    key = hashlib.sha256("\n".join(text).encode()).hexdigest()
    return cache_folder() / f"{key[:32]}.tiles.json"


def known(path: Path) -> dict[tuple[int, int], int] | None:
    """The winners of a record: (step, images of a launch) -> number of the candidate."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return {(int(step), int(images)): int(choice) for step, images, choice, *_ in rows}
    except (OSError, ValueError, TypeError):
        return None


def measure(session: _Session, path: Path) -> dict[tuple[int, int], int]:
    """Times all candidates in the session's own memory and writes the record: a row a launch with its step,
    its images, the winner's number and every candidate's milliseconds."""
    model, first = session.model, session.schedule
    builder = model.builder
    keys = {(first.units[one.unit].step.index, one.images): first.units[one.unit] for one in first.launches}
    counts = {key: len(builder.options(unit, key[1])) for key, unit in keys.items()}
    room = [model.device.allocate(max(16, size)) for size in session.given_bytes()]
    given = (room[0].pointer, room[1].pointer)
    times: dict[tuple[int, int], dict[int, float]] = {}
    for number in range(max(counts.values())):
        builder.picks = {key: min(number, count - 1) for key, count in counts.items()}
        session.use(builder.schedule(first.images, session.from_bytes))
        for index, launch in enumerate(session.schedule.launches):
            key = (session.schedule.units[launch.unit].step.index, launch.images)
            if counts[key] > max(1, number):
                took = _time(session, index, given)
                some = times.setdefault(key, {})
                some[number] = min(some.get(number, took), took)
    best = {key: min(some, key=lambda number: (some[number], number)) for key, some in times.items()}
    rows = [[*key, best[key], [round(t, 5) for t in some.values()]] for key, some in sorted(times.items())]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(rows).encode(), flush=False)
    except OSError:
        pass  # measured again next time
    return {key: choice for key, choice in best.items() if choice}


def _time(session: _Session, index: int, given: tuple[int, int]) -> float:
    """Milliseconds of one launch, the best replay of a graph of a few."""
    stream, start = session.model.stream, session.start(index, given)
    stream.begin()
    for _ in range(LAUNCHES):
        cu.launch(start.kernel, start.grid, start.arguments, stream.value)
    graph, timer = stream.end(), cu.Timer()
    best = float("inf")
    for _ in range(REPLAYS):
        timer.start(stream.value)
        cu.replay(graph, stream.value)
        best = min(best, timer.stop(stream.value))
    return best / LAUNCHES
