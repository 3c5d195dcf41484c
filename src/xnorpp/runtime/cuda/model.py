"""The CUDA engine: the same packed file on an NVIDIA GPU.

    model = load("model.xnor", device="cuda")
    scores = model(images)          # torch CUDA tensor in, torch CUDA tensor out, on torch's current stream
    scores = model(array)           # numpy in, numpy out

Kernels are compiled at the first use of a (model, batch size) and stored on disk (`XNORPP_CACHE`, or the
user's cache folder); neither a CUDA toolkit nor torch is needed. For each batch size the whole network is
recorded as one graph. Binary convolutions run on one-bit tensor cores from compute capability 8.0 on, with
`popc` on the ordinary cores below.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from xnorpp.runtime.cuda import driver as cu
from xnorpp.runtime.cuda.build import Builder, Gpu, Schedule, output_places
from xnorpp.runtime.cuda.graph import Graph, Start, current_stream
from xnorpp.runtime.cuda.launch import Caller, Constant, Kernel, Local, extent
from xnorpp.runtime.cuda.tune import known, measure, record_path
from xnorpp.runtime.format.batch import check_input, shape_of_batch
from xnorpp.runtime.format.program import INPUT, Program

__all__ = ["CudaError", "CudaModel"]

CudaError = cu.CudaError
OLDEST = (7, 0)
MAX_BATCH = 1024  # more images run in pieces of this
RESIDENT = 1 << 27  # twice as much is 2 % faster and takes 60 % more memory; what fits the cache is slower
SESSIONS = 6  # batch sizes that stay ready
SIZES = 4  # other heights and widths that stay ready, for programs of any size


class _Session:
    """One batch size and kind of input, ready to run."""

    def __init__(self, model: CudaModel, images: int, from_bytes: bool) -> None:
        self.model, self.from_bytes = model, from_bytes
        model.builder.picks = {}
        schedule = model.builder.schedule(images, from_bytes)
        record = record_path(model, schedule)
        picks = known(record)
        if picks:
            model.builder.picks = picks
            schedule = model.builder.schedule(images, from_bytes)
        self.use(schedule)
        self.memory = model.device.allocate(self.schedule.layout.total)
        self._clear()
        self._given: tuple[int, int] = (0, 0)
        self._graph: Graph | None = None
        if picks is None and model.tune:
            model.builder.picks = measure(self, record)
            self.use(model.builder.schedule(images, from_bytes))

    def use(self, schedule: Schedule) -> None:
        """Run this schedule from now on; all schedules of a batch size share one memory plan."""
        self.schedule = schedule
        self.kernels = self.model._load([launch.kernel for launch in schedule.launches])
        self.model._upload()
        self.movable = [i for i, launch in enumerate(schedule.launches) if launch.touches_caller()]

    def given_bytes(self) -> tuple[int, int]:
        """Sizes of the caller's input and output."""
        values, images = self.model.program.values, self.schedule.images
        item = 1 if self.from_bytes else 4
        output = sum(values[name].elements for name in set(self.model.program.outputs.values()))
        return images * values[INPUT].elements * item, images * output * 4

    def _clear(self) -> None:
        """Halos: zeros everywhere, ones where a layer pads with +1."""
        device, base = self.model.device, self.memory.pointer
        cu.call("cuMemsetD8_v2", ctypes.c_uint64(base), ctypes.c_ubyte(0), ctypes.c_size_t(self.memory.size))
        for place, layout in self.schedule.layout.ones:
            empty = np.zeros((1, layout.channels, layout.height, layout.width), bool)
            blank = layout.pack(empty, True)[: layout.rows * layout.row]
            device.write(base + place.offset, np.tile(blank, place.images))
        device.synchronize()

    def start(self, index: int, given: tuple[int, int]) -> Start:
        """A launch with its addresses; `given` are those of the caller's input and output."""
        launch = self.schedule.launches[index]
        constants, base = self.model.constants, self.memory.pointer

        def address(ref: Constant | Local | Caller) -> int:
            if isinstance(ref, Constant):
                return constants[ref.key].pointer
            return base + ref.offset if isinstance(ref, Local) else given[ref.output] + ref.offset

        kernel = self.kernels[index]
        room = kernel.resident * self.model.device.multiprocessors if launch.stay else 0
        return Start(kernel, launch.grid(room), launch.bind(address), self.model.early and index > 0)

    def run(self, given: tuple[int, int], stream: int) -> None:
        count = len(self.schedule.launches)
        if not self.model.graph:
            for index in range(count):
                self.start(index, given).launch(stream)
            return
        if self._graph is not None and given != self._given and not self._moved(given):
            self.close()
        if self._graph is None:
            starts = [self.start(index, given) for index in range(count)]
            self._graph = Graph(self.model.stream, starts, self.movable)
        self._given = given
        self._graph.replay(stream)

    def _moved(self, given: tuple[int, int]) -> bool:
        """Whether the recorded graph took the new addresses; a driver that refuses gets a new graph."""
        assert self._graph is not None
        try:
            for index in self.movable:
                self._graph.move(index, self.start(index, given).arguments)
        except CudaError:
            return False
        return True

    def close(self) -> None:
        if self._graph is not None:
            self.model.device.synchronize()
            self._graph.close()
            self._graph = None


def _joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    import sys

    return sys.modules["torch"].cat(parts)


class CudaModel:
    """A program on one GPU. Safe to call from several threads; calls run one after the other.

    `resident` is how many bytes of floats a piece of a batch may hold between two layers (default:
    128 MiB), `tensor_cores=False` forces the `popc` path, `graph=False` starts
    kernel after kernel. `residual` is the type of the floats between binary layers on the tensor cores:
    "float32" rounds nothing beyond the reference; "float16" halves the memory traffic, and every sum, still
    made in float32, is rounded once when stored. `tune` times the tilings of every layer at the first use
    of a batch size and keeps the winners on disk (cuda_tune.py). `wgmma=False` keeps the first layer
    of a large batch on compute capability 9.0 from its kernel of warpgroups (cuda_wgmma.py).
    """

    threads = 1

    def __init__(
        self,
        program: Program,
        device: str = "cuda",
        *,
        resident: int | None = None,
        tensor_cores: bool = True,
        graph: bool = True,
        early: bool = True,
        residual: str = "float32",
        tune: bool = False,
        wgmma: bool = True,
    ) -> None:
        name, _, number = device.partition(":")
        if name != "cuda" or (number and not number.isdigit()):
            raise ValueError(f"`device` (={device!r}) must be 'cuda' or 'cuda:N'")
        if residual not in ("float16", "float32"):
            raise ValueError(f"`residual` (={residual!r}) must be 'float16' or 'float32'")
        self.program = program
        self._choices: dict[str, Any] = {
            "resident": resident,
            "tensor_cores": tensor_cores,
            "graph": graph,
            "early": early,
            "residual": residual,
            "tune": tune,
            "wgmma": wgmma,
        }
        self._sizes: OrderedDict[tuple[int, ...], CudaModel] = OrderedDict()
        self.residual = residual
        self.tune = tune
        self.device = cu.Device(int(number or 0))
        if self.device.capability < OLDEST:
            major, minor = self.device.capability
            raise CudaError(
                f"The GPU {self.device.name} has compute capability {major}.{minor}, "
                f"and {OLDEST[0]}.{OLDEST[1]} or newer is needed: use device='cpu'."
            )
        gpu = Gpu(self.device.capability, self.device.multiprocessors, self.device.shared_limit, tensor_cores)
        room = resident or RESIDENT
        self.builder = Builder(program, gpu, room, half=residual == "float16", wgmma=wgmma)
        self.isa = f"{self.device.arch}, {'one-bit tensor cores' if gpu.bit_products else 'popc'}"
        self.graph = graph
        self.early = early and self.device.capability >= (9, 0)
        self.constants: dict[str, cu.Memory] = {}
        self.stream = cu.Stream()
        self._loaded: dict[Kernel, cu.Kernel] = {}
        self._sessions: OrderedDict[tuple[int, bool], _Session] = OrderedDict()
        self._staging: dict[str, cu.Memory] = {}
        self._last_stream: int | None = None
        self._lock = threading.Lock()
        self._process = os.getpid()

    @property
    def memory(self) -> int:
        """Bytes on the GPU: weights, constants and working memory of the batch sizes in use."""
        return self.device.allocated + sum(model.memory for model in self._sizes.values())

    def session(self, images: int, from_bytes: bool) -> _Session:
        """The ready-made launches of a batch size; the least recently used are dropped."""
        key = (images, from_bytes)
        if key not in self._sessions:
            self.device.enter()
            while len(self._sessions) >= SESSIONS:
                self.device.synchronize()
                self._sessions.popitem(last=False)[1].close()
            self._sessions[key] = _Session(self, images, from_bytes)
        self._sessions.move_to_end(key)
        return self._sessions[key]

    def _require_same_process(self) -> None:
        """Before any lock, which a thread of the parent may have held at the fork."""
        if self._process != os.getpid():
            raise CudaError(
                "A model on a GPU cannot be used in a forked process: load it in that process, "
                "or start the process with 'spawn'."
            )

    def forget(self) -> None:
        """Drop the working memory and recorded graphs of all batch sizes."""
        self._require_same_process()
        with self._lock:
            self._sizes.clear()
            self._forget()

    def _forget(self) -> None:
        self.device.enter()
        self.device.synchronize()
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()
        self._staging.clear()

    def _for(self, shape: tuple[int, ...]) -> CudaModel:
        """The model for an input of this size: this one, or one planned for the size, which stays ready while
        it is among the last few. The tilings and graphs of every size are its own."""
        if shape == self.program.input_shape:
            return self
        with self._lock:
            ready = self._sizes.pop(shape, None)
            if ready is None:
                while len(self._sizes) >= SIZES:
                    self._sizes.popitem(last=False)[1].forget()
                device = f"cuda:{self.device.index}"
                ready = CudaModel(self.program.for_input(shape), device, **self._choices)
            self._sizes[shape] = ready  # the newest last
        return ready

    def __call__(self, x: Any) -> Any:
        """uint8 `(n, h, w, c)` or normalised float32 `(n, c, h, w)`, numpy or torch on this GPU -> outputs
        alike."""
        self._require_same_process()
        if type(x).__module__.partition(".")[0] == "torch":
            return self._torch(x)
        return self._numpy(x)

    def _torch(self, x: Any) -> Any:
        import sys

        torch = sys.modules["torch"]
        if not x.is_cuda or (x.device.index or 0) != self.device.index:
            raise ValueError(f"`x` is on {x.device}; a tensor on cuda:{self.device.index} is needed")
        if x.dtype not in (torch.uint8, torch.float32):
            raise ValueError(f"`x` has dtype {x.dtype}; uint8 images or normalised float32 are needed")
        from_bytes = x.dtype == torch.uint8
        given = tuple(x.shape[1:])
        if self.program.variable and x.dim() == 4:
            c, h, w = (given[2], *given[:2]) if from_bytes else given
            if c == self.program.input_shape[0] and (c, h, w) != self.program.input_shape:
                return self._for((c, h, w))._torch(x)
        c, *rest = self.program.input_shape
        wanted = (*rest, c) if from_bytes else (c, *rest)
        if given != wanted:
            raise ValueError(
                f"`x` has shape {tuple(x.shape)}; {wanted} after the batch axis is needed for {x.dtype}"
            )
        x = x.contiguous()
        out = torch.empty((x.shape[0], self._width), dtype=torch.float32, device=x.device)
        stream = current_stream(x)
        with self._lock:
            self.device.enter()
            for first in range(0, x.shape[0], MAX_BATCH):
                some, result = x[first : first + MAX_BATCH], out[first : first + MAX_BATCH]
                self._enqueue((some.data_ptr(), result.data_ptr()), some.shape[0], from_bytes, stream)
        return self._answers(out, lambda part: part.permute(0, 3, 1, 2))

    def _numpy(self, x: npt.NDArray[Any]) -> Any:
        x = np.ascontiguousarray(check_input(self.program, x))
        if self.program.variable and shape_of_batch(x) != self.program.input_shape:
            return self._for(shape_of_batch(x))._numpy(x)
        out = np.empty((x.shape[0], self._width), np.float32)
        stream = self.stream.value
        with self._lock:
            self.device.enter()
            for first in range(0, x.shape[0], MAX_BATCH):
                some, result = x[first : first + MAX_BATCH], out[first : first + MAX_BATCH]
                given = self._room("input", some.nbytes), self._room("output", result.nbytes)
                self.device.write(given[0], some, stream)
                self._enqueue(given, some.shape[0], x.dtype == np.uint8, stream)
                self.device.read(given[1], result, stream)
                self.stream.synchronize()
        return self._answers(out, lambda part: np.ascontiguousarray(np.moveaxis(part, 3, 1)))

    @property
    def _width(self) -> int:
        """Numbers of all outputs of one image."""
        values = self.program.values
        return sum(values[name].elements for name in set(self.program.outputs.values()))

    def _answers(self, out: Any, channels_first: Callable[[Any], Any]) -> Any:
        """The outputs from what the kernels wrote: piece by piece of a batch, one output after the other,
        each as [image][row][column][channel]."""
        values, images = self.program.values, out.shape[0]
        firsts = range(0, images, MAX_BATCH) or (0,)
        answers = {}
        for name, value in self.program.outputs.items():
            shape, place = values[value].shape, output_places(self.program)[value] // 4
            c, h, w = extent(shape)
            parts = []
            for first in firsts:
                count = min(MAX_BATCH, images - first)
                flat = out[first : first + count].reshape(-1)
                part = flat[count * place : count * (place + c * h * w)].reshape(count, h, w, c)
                parts.append(channels_first(part).reshape(count, *shape))
            answers[name] = parts[0] if len(parts) == 1 else _joined(parts)
        return answers if len(answers) > 1 else next(iter(answers.values()))

    def _room(self, name: str, size: int) -> int:
        if name not in self._staging or self._staging[name].size < size:
            self._staging.pop(name, None)
            self._staging[name] = self.device.allocate(size)
        return self._staging[name].pointer

    def _enqueue(self, given: tuple[int, int], images: int, from_bytes: bool, stream: int) -> None:
        session = self.session(images, from_bytes)
        if self._last_stream not in (None, stream):  # one working memory: finish what uses it
            self.device.synchronize()
        self._last_stream = stream
        session.run(given, stream)

    def _load(self, kernels: list[Kernel]) -> list[cu.Kernel]:
        new = [kernel for kernel in dict.fromkeys(kernels) if kernel not in self._loaded]
        requests = [(kernel.source(), kernel.entry, kernel.threads, kernel.shared) for kernel in new]
        self._loaded |= dict(zip(new, cu.build_kernels(self.device, requests), strict=True))
        return [self._loaded[kernel] for kernel in kernels]

    def _upload(self) -> None:
        """Constants that are not on the GPU yet."""
        for key, array in self.builder.constants.items():
            if key not in self.constants:
                self.constants[key] = self.device.upload(array)
        self.device.synchronize()
