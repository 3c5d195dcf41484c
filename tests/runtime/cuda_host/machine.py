"""A GPU for the tests: launches of cuda_build.py run on the CPU, kernels compiled by g++ (host_device.h)."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xnorpp.runtime.cuda.build import Builder, Schedule
from xnorpp.runtime.cuda.launch import Caller, Constant, Kernel, Local, extent

HERE = Path(__file__).resolve().parent
KERNELS = HERE.parents[2] / "src" / "xnorpp" / "runtime" / "cuda" / "kernels"
FLAGS = ["-std=c++17", "-fpermissive", "-w", "-ffp-contract=off", "-fno-strict-aliasing", "-shared", "-fPIC"]
PLAIN = (
    "pointwise", "real_conv", "image_conv", "bit_conv", "max_pool", "mean_pool", "box_filter", "abs_mean",
    "softmax", "flatten", "pad", "signs",
)  # fmt: skip


def aligned(a: np.ndarray) -> np.ndarray:
    """A copy on a 256-byte boundary."""
    room = np.zeros(a.nbytes + 256, np.uint8)
    start = -room.ctypes.data % 256
    out = room[start : start + a.nbytes].view(a.dtype).reshape(a.shape)
    out[...] = a
    return out


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """Where all processes of a test run keep compiled kernels, so that each is compiled once."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kernels"
    folder.mkdir(exist_ok=True)
    return folder


def compile_text(text: str, folder: Path, level: str) -> ctypes.CDLL:
    name = hashlib.sha256((level + text).encode()).hexdigest()[:20]
    source, library = folder / f"{name}.cpp", folder / f"{name}.so"
    if not library.exists():
        source.write_text(text)
        command = ["g++", level, *FLAGS, "-DXNORPP_HOST", f"-I{KERNELS}", f"-I{HERE}"]
        made = library.with_suffix(
            f".{os.getpid()}.{threading.get_ident()}"
        )  # another process may make it too
        subprocess.run([*command, str(source), "-o", str(made)], check=True)
        made.replace(library)
    return ctypes.CDLL(str(library))


def kernel_text(kernel: Kernel) -> str:
    """A kernel and a C function that starts it. Those without barriers run thread after thread."""
    lines = [f"#define {key} {value}" for key, value in kernel.macros]
    lines.append(kernel.text or f'#include "{kernel.file}"')
    if kernel.text:
        entries = re.findall(r"^PLAIN\((\w+),", kernel.text, re.MULTILINE)
        starts = {entry: f"launch_threads([=] {{ {entry}(*a); }}, grid, THREADS)" for entry in entries}
        kind = "PlainArguments"
    elif kernel.file == "plain.cu":
        starts = {entry: f"launch_threads([=] {{ {entry}(*a); }}, grid, THREADS)" for entry in PLAIN}
        sizes = {"global_mean": "MEAN_THREADS", "linear_few": "THREADS", "linear_many": "MANY_THREADS"}
        for entry, threads in sizes.items():
            starts[entry] = f"launch_blocks([=] {{ {entry}(*a); }}, grid, {threads}, shared)"
        kind = "PlainArguments"
    else:
        kinds = {"stem": "StemArguments", "real": "PlainArguments", "binary": "Arguments"}
        kind = kinds[kernel.file.removesuffix(".cu").partition("_")[0]]
        starts = {kernel.entry: f"launch_blocks([=] {{ {kernel.entry}(*a); }}, grid, THREADS, shared)"}
        lines.append('extern "C" int shared_bytes() { return SHARED_BYTES; }')
    lines += [
        f'extern "C" void start_{entry}(const {kind}* a, int grid, int shared) {{ {body}; }}'
        for entry, body in starts.items()
    ]
    lines.append(f'extern "C" int argument_bytes() {{ return sizeof({kind}); }}')
    return "\n".join(lines) + "\n"


class HostMachine:
    """Runs schedules. Compiled kernels are kept in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def build(self, kernels: Sequence[Kernel]) -> dict[Kernel, ctypes.CDLL]:
        texts = {kernel: kernel_text(kernel) for kernel in kernels}
        different = list(dict.fromkeys(texts.values()))

        def one(text: str) -> ctypes.CDLL:
            plain = any(f'"{name}"' in text for name in ("plain.cu", "producer.cuh", "real_conv.cu"))
            return compile_text(text, self.folder, "-O2" if plain else "-O1")

        with ThreadPoolExecutor(2) as pool:
            built = dict(zip(different, pool.map(one, different), strict=True))
        return {kernel: built[text] for kernel, text in texts.items()}

    def run(
        self,
        builder: Builder,
        schedule: Schedule,
        x: np.ndarray,
        watch: Callable[[Callable[[int, int], np.ndarray]], Any] | None = None,
    ) -> np.ndarray:
        """The output for a batch; `watch` makes something whose `before` and `after` see every launch."""
        program = builder.program
        constants = {key: aligned(array) for key, array in builder.constants.items()}
        arena = aligned(np.zeros(schedule.layout.total, np.uint8))
        for place, layout in schedule.layout.ones:
            blank = layout.pack(np.zeros((1, layout.channels, layout.height, layout.width), bool), True)
            size = layout.rows * layout.row
            for image in range(place.images):
                start = place.offset + image * size
                arena[start : start + size] = blank[:size]
        c, h, w = extent(program.values[program.output].shape)
        given, out = aligned(x), aligned(np.full((len(x), h, w, c), np.nan, np.float32))
        base = {True: out.ctypes.data, False: given.ctypes.data}

        def address(ref: Constant | Local | Caller) -> int:
            if isinstance(ref, Constant):
                return constants[ref.key].ctypes.data
            return arena.ctypes.data + ref.offset if isinstance(ref, Local) else base[ref.output] + ref.offset

        libraries = self.build([launch.kernel for launch in schedule.launches])
        watching = watch(lambda offset, size: arena[offset : offset + size].copy()) if watch else None
        for launch in schedule.launches:
            library, kernel = libraries[launch.kernel], launch.kernel
            assert library.argument_bytes() == ctypes.sizeof(launch.structure)
            if not kernel.text and kernel.file != "plain.cu":
                assert library.shared_bytes() == kernel.shared
            arguments = launch.bind(address)
            if watching is not None:
                watching.before(launch)
            getattr(library, f"start_{kernel.entry}")(
                ctypes.byref(arguments), launch.grid(2 * launch.columns), kernel.shared
            )
            if watching is not None:
                watching.after(launch)
        shape = program.values[program.output].shape
        return np.moveaxis(out, 3, 1).reshape(len(x), *shape)
