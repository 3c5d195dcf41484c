"""The NVIDIA driver and its run-time compiler through ctypes: no CUDA toolkit, no CuPy, no torch at the
user's.

The driver (`libcuda`) comes with the GPU; the compiler (`libnvrtc`) comes with torch's CUDA wheels, with
`pip install nvidia-cuda-nvrtc` or with a toolkit. Compiled kernels are stored on disk, one file per (source,
options,
architecture), so the compiler is needed once.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import hashlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xnorpp.runtime.cache import cache_folder, private_folder
from xnorpp.runtime.errors import FAILED, XnorppError
from xnorpp.runtime.files import write_atomically


class CudaError(XnorppError, RuntimeError):
    """No usable GPU, or a call that failed; the message is one sentence."""

    exit_code = FAILED


@cache
def _libcuda() -> ctypes.CDLL:
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        library = ctypes.CDLL(name)
    except OSError:
        raise CudaError(f"No NVIDIA driver was found ({name}): use device='cpu'.") from None
    library.cuGetErrorString.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]
    if library.cuInit(0) != 0:
        raise CudaError("The NVIDIA driver found no usable GPU: use device='cpu'.")
    return library


def _check(code: int, what: str) -> None:
    if code != 0:
        text = ctypes.c_char_p()
        _libcuda().cuGetErrorString(code, ctypes.byref(text))
        reason = text.value.decode() if text.value else "unknown error"
        raise CudaError(f"The GPU call {what} failed: {reason} (code {code}).")


def call(name: str, *arguments: Any) -> None:
    """A driver function that reports by its return code."""
    _check(getattr(_libcuda(), name)(*arguments), name)


def _nvrtc_candidates() -> Iterator[str]:
    folders = [Path(p) / "nvidia" for p in sys.path if p]
    pattern = "nvrtc64_*.dll" if sys.platform == "win32" else "libnvrtc.so.*"
    for folder in folders:
        for inner in ("cu13/lib", "cu13/bin", "cuda_nvrtc/lib", "cuda_nvrtc/bin"):
            yield from sorted(glob.glob(str(folder / inner / pattern)), reverse=True)
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if home:
            for inner in ("lib64", "lib", "bin"):
                yield from sorted(glob.glob(os.path.join(home, inner, pattern)), reverse=True)
    yield from ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")


@cache
def _nvrtc() -> ctypes.CDLL:
    for name in _nvrtc_candidates():
        if "builtins" in name or ".alt." in name:
            continue
        try:
            for companion in glob.glob(os.path.join(os.path.dirname(name), "libnvrtc-builtins.so*")):
                ctypes.CDLL(companion)  # the compiler asks for it by bare name
            library = ctypes.CDLL(name)
        except OSError:
            continue
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        return library
    raise CudaError(
        "No CUDA run-time compiler (libnvrtc) was found: install torch with CUDA, or "
        "`pip install nvidia-cuda-nvrtc`."
    )


def compile_source(source: str, options: Sequence[str]) -> bytes:
    """Machine code of one source text; the compiler's messages are part of the error."""
    lib = _nvrtc()
    program = ctypes.c_void_p()
    if lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"xnorpp.cu", 0, None, None):
        raise CudaError("The CUDA run-time compiler did not accept the source.")
    try:
        texts = [o.encode() for o in options]
        array = (ctypes.c_char_p * len(texts))(*texts)
        code = lib.nvrtcCompileProgram(program, len(texts), array)
        if code:
            size = ctypes.c_size_t()
            lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            lib.nvrtcGetProgramLog(program, log)
            raise CudaError(f"Compiling a CUDA kernel failed: {log.value.decode(errors='replace').strip()}")
        size = ctypes.c_size_t()
        kind = "PTX" if any("=compute_" in o for o in options) else "CUBIN"
        getattr(lib, f"nvrtcGet{kind}Size")(program, ctypes.byref(size))
        code_text = ctypes.create_string_buffer(size.value)
        getattr(lib, f"nvrtcGet{kind}")(program, code_text)
        return code_text.raw
    finally:
        lib.nvrtcDestroyProgram(ctypes.byref(program))


def _target(arch: str) -> str:
    """The architecture itself, or for one newer than the compiler the newest it knows, as portable code."""
    if arch.endswith("a"):
        return arch
    lib = _nvrtc()
    count = ctypes.c_int()
    if lib.nvrtcGetNumSupportedArchs(ctypes.byref(count)):
        return arch
    known = (ctypes.c_int * count.value)()
    lib.nvrtcGetSupportedArchs(known)
    wanted = int(arch.removeprefix("sm_"))
    older = [number for number in known if number <= wanted]
    if wanted in older:
        return arch
    if not older:
        raise CudaError(
            f"The CUDA compiler no longer knows this GPU ({arch}): use an older one, or device='cpu'."
        )
    return f"compute_{max(older)}"


def kernel_cache() -> Path | None:
    """The folder of compiled kernels, or None: then each start compiles again. A folder that another user can
    write to is not used, with a warning; a read-only home has none."""
    try:
        return private_folder(cache_folder() / "kernels")
    except PermissionError as error:
        if error.errno is None:  # our own; the system's have a number
            warnings.warn(f"compiled CUDA kernels are not cached: {error}", RuntimeWarning, stacklevel=2)
        return None
    except OSError:
        return None


def cached_cubin(source: str, arch: str) -> bytes:
    """The machine code from the cache, or compiled and put there. A kernel with `wgmma` is for one
    architecture alone, which the compiler knows as `sm_90a`."""
    if "wgmma.mma_async" in source:
        arch += "a"
    options = [
        f"--gpu-architecture={arch}",
        "--std=c++17",
        "--device-as-default-execution-space",
        "--fmad=false",
    ]
    key = hashlib.sha256("\n".join([source, *options]).encode()).hexdigest()
    folder = kernel_cache()
    path = None if folder is None else folder / f"{key[:32]}.cubin"
    if path is not None and path.is_file():
        return path.read_bytes()
    options[0] = f"--gpu-architecture={_target(arch)}"
    cubin = compile_source(source, options)
    if path is not None:
        with contextlib.suppress(OSError):  # a full disk costs a compilation at each start, nothing else
            write_atomically(path, cubin, flush=False)
    return cubin


@dataclass
class Memory:
    """Device memory, freed with the object."""

    pointer: int
    size: int
    _device: Device = field(repr=False)

    def __del__(self) -> None:
        if self.pointer and not sys.is_finalizing() and self._device.process == os.getpid():
            self._device.enter()
            _libcuda().cuMemFree_v2(ctypes.c_uint64(self.pointer))
            self._device.allocated -= self.size
            self.pointer = 0


class Device:
    """One GPU through its primary context, the one torch uses."""

    def __init__(self, index: int = 0) -> None:
        _libcuda()
        device = ctypes.c_int()
        call("cuDeviceGet", ctypes.byref(device), index)
        self.index = index
        self._device = device
        self._context = ctypes.c_void_p()
        call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        name = ctypes.create_string_buffer(256)
        call("cuDeviceGetName", name, 256, device)
        self.name = name.value.decode()
        self.capability = (self.attribute(75), self.attribute(76))
        self.multiprocessors = self.attribute(16)
        self.shared_limit = self.attribute(97)  # bytes a block may ask for
        self.cache = self.attribute(38)  # bytes of the second-level cache
        self.allocated = 0
        self.peak = 0
        self.process = os.getpid()  # the driver works in no process that was forked from this one
        self.enter()

    def attribute(self, number: int) -> int:
        value = ctypes.c_int()
        call("cuDeviceGetAttribute", ctypes.byref(value), number, self._device)
        return value.value

    @property
    def arch(self) -> str:
        return f"sm_{self.capability[0]}{self.capability[1]}"

    def enter(self) -> None:
        """Makes this GPU's context current in the calling thread."""
        call("cuCtxSetCurrent", self._context)

    def allocate(self, size: int) -> Memory:
        pointer = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(size, 16)))
        self.allocated += size
        self.peak = max(self.peak, self.allocated)
        return Memory(pointer.value, size, self)

    def upload(self, array: npt.NDArray[Any]) -> Memory:
        data = np.ascontiguousarray(array)
        memory = self.allocate(data.nbytes)
        call(
            "cuMemcpyHtoD_v2",
            ctypes.c_uint64(memory.pointer),
            ctypes.c_void_p(data.ctypes.data),
            ctypes.c_size_t(data.nbytes),
        )
        return memory

    def write(self, pointer: int, array: npt.NDArray[Any], stream: int = 0) -> None:
        """Copies a contiguous array to device memory, in the order of a stream."""
        call(
            "cuMemcpyHtoDAsync_v2",
            ctypes.c_uint64(pointer),
            ctypes.c_void_p(array.ctypes.data),
            ctypes.c_size_t(array.nbytes),
            ctypes.c_void_p(stream),
        )

    def read(self, pointer: int, array: npt.NDArray[Any], stream: int = 0) -> None:
        """Starts filling a contiguous array from device memory, in the order of a stream."""
        call(
            "cuMemcpyDtoHAsync_v2",
            ctypes.c_void_p(array.ctypes.data),
            ctypes.c_uint64(pointer),
            ctypes.c_size_t(array.nbytes),
            ctypes.c_void_p(stream),
        )

    def download(self, pointer: int, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Fills a contiguous array from device memory."""
        call(
            "cuMemcpyDtoH_v2",
            ctypes.c_void_p(array.ctypes.data),
            ctypes.c_uint64(pointer),
            ctypes.c_size_t(array.nbytes),
        )
        return array

    def synchronize(self) -> None:
        call("cuCtxSynchronize")


@dataclass
class Kernel:
    """A compiled function and how much shared memory a block of it takes."""

    function: ctypes.c_void_p
    threads: int
    shared: int
    module: ctypes.c_void_p

    @property
    def registers(self) -> int:
        return self._attribute(4)

    @property
    def spilled(self) -> int:
        """Bytes of local memory a thread."""
        return self._attribute(3)

    @property
    def resident(self) -> int:
        """Blocks that fit on a multiprocessor."""
        value = ctypes.c_int()
        name = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        call(name, ctypes.byref(value), self.function, self.threads, ctypes.c_size_t(self.shared))
        return value.value

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        call("cuFuncGetAttribute", ctypes.byref(value), number, self.function)
        return value.value


def load_kernel(device: Device, cubin: bytes, name: str, threads: int, shared: int) -> Kernel:
    if shared > device.shared_limit:
        raise CudaError(
            f"A kernel needs {shared} bytes of shared memory, this GPU gives {device.shared_limit}."
        )
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuModuleLoadData", ctypes.byref(module), cubin)
    call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
    call("cuFuncSetAttribute", function, 8, shared)
    return Kernel(function, threads, shared, module)


def build_kernels(device: Device, requests: Sequence[tuple[str, str, int, int]]) -> list[Kernel]:
    """(source, entry, threads, shared bytes) each; compiled in parallel, loaded in order."""
    sources = list({r[0] for r in requests})
    with ThreadPoolExecutor(max(1, min(len(sources), os.cpu_count() or 1))) as pool:
        cubins = dict(zip(sources, pool.map(lambda s: cached_cubin(s, device.arch), sources), strict=True))
    return [
        load_kernel(device, cubins[source], entry, threads, shared)
        for source, entry, threads, shared in requests
    ]


class _LaunchConfig(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint),
    ]  # fmt: skip


class _LaunchAttribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int * 16)]


def launch(kernel: Kernel, grid: int, arguments: ctypes.Structure, stream: int, early: bool = False) -> None:
    """Starts a kernel that takes one structure. `early`: it may start while the one before it drains."""
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
    config = _LaunchConfig((grid, 1, 1), (kernel.threads, 1, 1), kernel.shared, stream, None, 0)
    attribute = _LaunchAttribute(6, 0)  # programmatic stream serialization
    if early:
        attribute.value[0] = 1
        config.attributes, config.count = ctypes.addressof(attribute), 1
    call("cuLaunchKernelEx", ctypes.byref(config), kernel.function, parameters, None)


class Stream:
    """A stream of our own, and graphs captured on it."""

    def __init__(self) -> None:
        self.handle = ctypes.c_void_p()
        call("cuStreamCreate", ctypes.byref(self.handle), 1)

    @property
    def value(self) -> int:
        return self.handle.value or 0

    def begin(self) -> None:
        call("cuStreamBeginCapture_v2", self.handle, 2)

    def end(self) -> ctypes.c_void_p:
        """Ends the capture and returns an executable graph."""
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        call("cuStreamEndCapture", self.handle, ctypes.byref(graph))
        call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_uint64(0))
        call("cuGraphDestroy", graph)
        return executable

    def synchronize(self) -> None:
        call("cuStreamSynchronize", self.handle)


def replay(executable: ctypes.c_void_p, stream: int) -> None:
    call("cuGraphLaunch", executable, ctypes.c_void_p(stream))


class Timer:
    """Time between two events on a stream, in milliseconds."""

    def __init__(self) -> None:
        self.events = (ctypes.c_void_p(), ctypes.c_void_p())
        for event in self.events:
            call("cuEventCreate", ctypes.byref(event), 0)

    def start(self, stream: int) -> None:
        call("cuEventRecord", self.events[0], ctypes.c_void_p(stream))

    def stop(self, stream: int) -> float:
        call("cuEventRecord", self.events[1], ctypes.c_void_p(stream))
        call("cuEventSynchronize", self.events[1])
        elapsed = ctypes.c_float()
        call("cuEventElapsedTime", ctypes.byref(elapsed), self.events[0], self.events[1])
        return elapsed.value
