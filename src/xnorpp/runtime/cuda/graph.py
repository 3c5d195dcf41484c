"""A chain of kernel starts recorded once and replayed with one call.

The caller's input and output move from call to call; the few kernels that touch them get their new addresses
written into the recorded graph, so nothing is copied.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xnorpp.runtime.cuda import driver as cu


@dataclass(frozen=True)
class Start:
    """One bound kernel start. `early`: it may begin while the one before it drains."""

    kernel: cu.Kernel
    grid: int
    arguments: ctypes.Structure
    early: bool = False

    def launch(self, stream: int) -> None:
        cu.launch(self.kernel, self.grid, self.arguments, stream, self.early)


class _NodeParameters(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = [
        ("function", ctypes.c_void_p), ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint), ("parameters", ctypes.c_void_p), ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p), ("context", ctypes.c_void_p),
    ]  # fmt: skip


class Graph:
    """A recorded chain. `movable` are the indices of starts that `move` may give new arguments."""

    def __init__(self, stream: cu.Stream, starts: Sequence[Start], movable: Sequence[int]) -> None:
        self._graph, self._executable = ctypes.c_void_p(), ctypes.c_void_p()
        stream.begin()
        try:
            for start in starts:
                start.launch(stream.value)
        finally:
            cu.call("cuStreamEndCapture", stream.handle, ctypes.byref(self._graph))
        self._starts = list(starts)
        self._nodes = self._find({index: starts[index] for index in movable})
        cu.call(
            "cuGraphInstantiateWithFlags", ctypes.byref(self._executable), self._graph, ctypes.c_uint64(0)
        )

    def _find(self, wanted: dict[int, Start]) -> dict[int, ctypes.c_void_p]:
        """The graph's node of each start, known by the bytes of its arguments."""
        count = ctypes.c_size_t()
        cu.call("cuGraphGetNodes", self._graph, None, ctypes.byref(count))
        nodes = (ctypes.c_void_p * count.value)()
        cu.call("cuGraphGetNodes", self._graph, nodes, ctypes.byref(count))
        found: dict[int, ctypes.c_void_p] = {}
        for handle in nodes:
            node = ctypes.c_void_p(handle)
            parameters = _NodeParameters()
            try:
                cu.call("cuGraphKernelNodeGetParams_v2", node, ctypes.byref(parameters))
            except (cu.CudaError, AttributeError):
                return found
            first = ctypes.cast(parameters.parameters, ctypes.POINTER(ctypes.c_void_p))[0]
            for index, start in wanted.items():
                size = ctypes.sizeof(start.arguments)
                other = parameters.function not in (None, start.kernel.function.value)
                if index in found or other or first is None:
                    continue
                if ctypes.string_at(first, size) == bytes(start.arguments):
                    found[index] = node
                    break
        return found

    def move(self, index: int, arguments: ctypes.Structure) -> None:
        """Other arguments for one start of the recorded chain."""
        if index not in self._nodes:
            raise cu.CudaError("A kernel was not found again in its recorded graph.")
        kernel, grid = self._starts[index].kernel, self._starts[index].grid
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
        parameters = _NodeParameters(
            kernel.function.value, (grid, 1, 1), (kernel.threads, 1, 1), kernel.shared,
            ctypes.addressof(pointers), None, None, None,
        )  # fmt: skip
        cu.call(
            "cuGraphExecKernelNodeSetParams_v2",
            self._executable,
            self._nodes[index],
            ctypes.byref(parameters),
        )

    def replay(self, stream: int) -> None:
        cu.replay(self._executable, stream)

    def close(self) -> None:
        for name, handle in (("cuGraphExecDestroy", self._executable), ("cuGraphDestroy", self._graph)):
            if handle.value:
                cu.call(name, handle)
                handle.value = None


def current_stream(tensor: Any) -> int:
    """The stream that torch works on, for the tensor's GPU."""
    import sys

    torch = sys.modules["torch"]
    return int(torch.cuda.current_stream(tensor.device).cuda_stream)
