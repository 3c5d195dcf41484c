"""A device for `CudaModel` whose memory is the host's and whose kernels are compiled by g++."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda_host import machine

from xnorpp.runtime.cuda import model as cuda
from xnorpp.runtime.cuda.launch import Kernel


class FakeMemory:
    def __init__(self, device: FakeDevice, size: int) -> None:
        self.array = machine.aligned(np.full(max(size, 16), 0xEE, np.uint8))
        self.pointer, self.size, self._device = self.array.ctypes.data, size, device
        device.allocated += size

    def __del__(self) -> None:
        self._device.allocated -= self.size


class FakeDevice:
    """Device memory is host memory."""

    name, capability, multiprocessors, shared_limit, cache, arch = "fake", (9, 0), 4, 232448, 1 << 17, "sm_90"

    def __init__(self, index: int = 0) -> None:
        self.index, self.allocated = index, 0

    def enter(self) -> None: ...

    def synchronize(self) -> None: ...

    def allocate(self, size: int) -> FakeMemory:
        return FakeMemory(self, size)

    def upload(self, array: np.ndarray) -> FakeMemory:
        memory = FakeMemory(self, array.nbytes)
        self.write(memory.pointer, array)
        return memory

    def write(self, pointer: int, array: np.ndarray, stream: int = 0) -> None:
        ctypes.memmove(pointer, array.ctypes.data, array.nbytes)

    def read(self, pointer: int, array: np.ndarray, stream: int = 0) -> None:
        ctypes.memmove(array.ctypes.data, pointer, array.nbytes)


class FakeStream:
    value = 1

    def synchronize(self) -> None: ...


class FakeGraph:
    """Keeps the starts; a moved one gets other arguments. `refuse` plays a driver that cannot move them."""

    refuse = False
    made = 0

    def __init__(self, stream: FakeStream, starts: list[Any], movable: list[int]) -> None:
        self.starts, self.movable = list(starts), set(movable)
        FakeGraph.made += 1

    def move(self, index: int, arguments: ctypes.Structure) -> None:
        if FakeGraph.refuse:
            raise cuda.CudaError("no.")
        assert index in self.movable
        old = self.starts[index]
        self.starts[index] = type(old)(old.kernel, old.grid, arguments, old.early)

    def replay(self, stream: int) -> None:
        for start in self.starts:
            start.kernel.start(ctypes.byref(start.arguments), start.grid, start.kernel.shared)

    def close(self) -> None: ...


def _start(kernel: Any, grid: int, arguments: ctypes.Structure, stream: int = 0, early: bool = False) -> None:
    kernel.start(ctypes.byref(arguments), grid, kernel.shared)


def install(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """From now on `CudaModel` runs here; compiled kernels are kept in `folder`."""
    host = machine.HostMachine(folder)

    def load(self: cuda.CudaModel, kernels: list[Kernel]) -> list[Any]:
        built = host.build(kernels)
        return [
            SimpleNamespace(start=getattr(built[k], f"start_{k.entry}"), shared=k.shared, resident=1)
            for k in kernels
        ]

    def memset(name: str, pointer: Any, value: Any, size: Any) -> None:
        assert name == "cuMemsetD8_v2"
        ctypes.memset(pointer.value, value.value, size.value)

    monkeypatch.setattr(cuda.CudaModel, "_load", load)
    monkeypatch.setattr(cuda.cu, "Device", FakeDevice)
    monkeypatch.setattr(cuda.cu, "Stream", FakeStream)
    monkeypatch.setattr(cuda.cu, "call", memset)
    monkeypatch.setattr(cuda.cu, "launch", _start)
    monkeypatch.setattr(cuda, "Graph", FakeGraph)
    monkeypatch.setattr(FakeGraph, "refuse", False)
