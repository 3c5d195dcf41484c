"""Time to the first result, peak memory, and commands from a cold start, each in a process of its own."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from xnorpp.inspect.stopwatch import Spread

# `numpy` counts: it is what `import xnorpp.runtime` brings. The clock starts in the fresh interpreter.
_FIRST_ANSWER = """
import time
start = time.perf_counter()
import sys
import json
import numpy
from xnorpp.runtime import load
imported = time.perf_counter()
model = load(sys.argv[1], threads=int(sys.argv[2]), isa=sys.argv[3] or None)
loaded = time.perf_counter()
c, h, w = model.program.input_shape
model(numpy.zeros((1, h, w, c), numpy.uint8))
answered = time.perf_counter()
"""
_BARE = "import json\nextra = {}\n"
_EXTRA = """
extra = {"seconds": answered - start, "import": imported - start, "load": loaded - imported,
         "answer": answered - loaded, "torch": "torch" in sys.modules, "isa": model.isa}
"""
_PEAK = """
with open("/proc/self/status") as file:
    peak = next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
print(json.dumps({"peak": peak * 1024, **extra}))
"""


@dataclass(frozen=True)
class Startup:
    """Seconds to the first result (median of several processes) and bytes above a bare interpreter's peak."""

    seconds: float
    importing: float
    loading: float
    answering: float
    peak_bytes: int
    bare_bytes: int
    torch_imported: bool
    isa: str

    @property
    def bytes_above_bare(self) -> int:
        return self.peak_bytes - self.bare_bytes


def measure_startup(
    path: str | Path, *, threads: int = 1, isa: str | None = None, processes: int = 5
) -> Startup:
    """Time importing `xnorpp.runtime`, loading a file and running one image, and measure the peak memory.

    Args:
        path: The packed file.
        threads: Threads of the engine.
        isa: The CPU kernels; the fastest available by default.
        processes: How many fresh processes the medians are taken over.

    Raises:
        OSError: This system has no /proc/self/status.
    """
    if not Path("/proc/self/status").exists():
        raise OSError("peak memory is read from /proc/self/status, which this system does not have")
    arguments = [str(path), str(threads), isa or ""]
    runs = [_run(_FIRST_ANSWER + _EXTRA + _PEAK, arguments) for _ in range(processes)]
    bare = [_run(_BARE + _PEAK, []) for _ in range(processes)]
    return Startup(
        seconds=statistics.median(float(run["seconds"]) for run in runs),
        importing=statistics.median(float(run["import"]) for run in runs),
        loading=statistics.median(float(run["load"]) for run in runs),
        answering=statistics.median(float(run["answer"]) for run in runs),
        peak_bytes=int(statistics.median(int(run["peak"]) for run in runs)),
        bare_bytes=int(statistics.median(int(run["peak"]) for run in bare)),
        torch_imported=any(bool(run["torch"]) for run in runs),
        isa=str(runs[0]["isa"]),
    )


# What the installed script `xnorpp` does.
_SCRIPT = "import sys; from xnorpp.cli.main import main; sys.exit(main())"


@dataclass(frozen=True)
class ColdStart:
    """One command in fresh processes: seconds from start to end, and seconds of the processor in between.

    On an idle machine the two are nearly the same; on a busy one the second still shows what the command
    costs.
    """

    elapsed: Spread
    processor: Spread


def measure_commands(path: str | Path, *, processes: int = 9) -> dict[str, ColdStart]:
    """Time commands from a cold start, in turns with the bare interpreter and with numpy alone.

    Args:
        path: The packed file for `xnorpp predict`.
        processes: How many fresh processes of each.

    Returns:
        The times of `python -c pass`, `import numpy`, `xnorpp --help` and `xnorpp predict`.
    """
    import resource

    from PIL import Image

    from xnorpp.bench.engine import random_images
    from xnorpp.runtime import read
    from xnorpp.runtime.format.pixels import as_image

    elapsed: dict[str, list[float]] = {}
    processor: dict[str, list[float]] = {}

    def used() -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return children.ru_utime + children.ru_stime

    with tempfile.TemporaryDirectory(prefix="xnorpp-bench-") as folder:
        image = Path(folder) / "image.png"
        pixels = as_image(random_images(1, read(path).input_shape)[0])
        assert isinstance(pixels, Image.Image)
        pixels.save(image)
        commands = {
            "python -c pass": ["pass"],
            "import numpy": ["import numpy"],
            "xnorpp --help": [_SCRIPT, "--help"],
            "xnorpp predict": [_SCRIPT, "predict", str(path), str(image)],
        }
        for _ in range(processes):
            for name, arguments in commands.items():
                start, before = time.perf_counter(), used()
                _start(arguments)
                elapsed.setdefault(name, []).append(time.perf_counter() - start)
                processor.setdefault(name, []).append(used() - before)
    return {name: ColdStart(Spread.of(elapsed[name]), Spread.of(processor[name])) for name in elapsed}


def _run(code: str, arguments: list[str]) -> dict[str, float | int | str | bool]:
    found: dict[str, float | int | str | bool] = json.loads(_start([code, *arguments]))
    return found


def _start(arguments: list[str]) -> str:
    """What a fresh interpreter prints for `-c` with these arguments."""
    import xnorpp

    home = str(Path(xnorpp.__file__).resolve().parents[1])
    paths = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        timeout=120,
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        raise RuntimeError(f"the start-up process failed: {last[0]}")
    return done.stdout
