"""The C library through ctypes, as a C program calls it, and where a developer's build left it."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[2]


class Options(ctypes.Structure):
    """xnorpp_options."""

    _fields_ = (
        ("struct_bytes", ctypes.c_size_t),
        ("threads", ctypes.c_int),
        ("isa", ctypes.c_char_p),
        ("file_bytes", ctypes.c_uint64),
        ("memory_bytes", ctypes.c_uint64),
        ("multiply_adds", ctypes.c_uint64),
    )


class Error(ctypes.Structure):
    """xnorpp_error."""

    _fields_ = (("status", ctypes.c_int), ("message", ctypes.c_char * 512))


class Value(ctypes.Structure):
    """xnorpp_value."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("axes", ctypes.c_int),
        ("shape", ctypes.c_int64 * 8),
        ("elements", ctypes.c_size_t),
    )


class Guess(ctypes.Structure):
    """xnorpp_guess."""

    _fields_ = (("index", ctypes.c_size_t), ("probability", ctypes.c_float), ("label", ctypes.c_char_p))


def built(name: str) -> Path | None:
    """What `pip install -e .` built of the C library, the newest."""
    found = sorted(ROOT.glob(f"build/*/csrc/capi/{name}"), key=lambda path: path.stat().st_mtime)
    return found[-1] if found else None


def open_library(path: Path) -> Any:
    """The shared library with the types of what it returns."""
    library = ctypes.CDLL(str(path))
    for name in ("version", "isa", "label", "model_isa"):
        getattr(library, f"xnorpp_{name}").restype = ctypes.c_char_p
    for name in ("output_count", "label_count", "memory"):
        getattr(library, f"xnorpp_{name}").restype = ctypes.c_size_t
    library.xnorpp_input.restype = library.xnorpp_output.restype = Value
    library.xnorpp_free.restype = None
    return library


class CError(Exception):
    """A code that is not 0, with its message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class CModel:
    """A model of the C library."""

    def __init__(
        self, library: Any, source: Any, handle: ctypes.c_void_p | None = None, **options: Any
    ) -> None:
        self.library = library
        self.handle = ctypes.c_void_p() if handle is None else handle
        if handle is not None:
            return
        given = Options(ctypes.sizeof(Options), **options)
        if isinstance(source, bytes):
            arguments: tuple[Any, ...] = (source, ctypes.c_size_t(len(source)))
            self._call("load_memory", *arguments, ctypes.byref(given), ctypes.byref(self.handle))
        else:
            self._call("load", str(source).encode(), ctypes.byref(given), ctypes.byref(self.handle))

    def _call(self, name: str, *arguments: Any) -> None:
        error = Error()
        status = getattr(self.library, f"xnorpp_{name}")(*arguments, ctypes.byref(error))
        assert status == error.status
        assert bool(status) == bool(error.message)
        if status:
            raise CError(status, error.message.decode())

    def __del__(self) -> None:
        self.library.xnorpp_free(self.handle)

    def resized(self, height: int, width: int) -> CModel:
        other = ctypes.c_void_p()
        self._call("resized", self.handle, ctypes.c_int64(height), ctypes.c_int64(width), ctypes.byref(other))
        return CModel(self.library, None, other)

    @property
    def input(self) -> Value:
        return self.library.xnorpp_input(self.handle)

    @property
    def outputs(self) -> list[Value]:
        count = self.library.xnorpp_output_count(self.handle)
        return [self.library.xnorpp_output(self.handle, ctypes.c_size_t(i)) for i in range(count)]

    def run(self, x: npt.NDArray[Any]) -> list[npt.NDArray[np.float32]]:
        x = np.ascontiguousarray(x)
        values = self.outputs
        results = [np.full((len(x), *value.shape[: value.axes]), np.nan, np.float32) for value in values]
        pointers = (ctypes.c_void_p * len(results))(*(result.ctypes.data for result in results))
        name = "run_bytes" if x.dtype == np.uint8 else "run_floats"
        self._call(name, self.handle, x.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(len(x)), pointers)
        return results

    def _pixels(self, image: npt.NDArray[np.uint8]) -> tuple[Any, ...]:
        height, width = image.shape[:2]
        channels = image.shape[2] if image.ndim == 3 else 1
        return (
            self.handle,
            image.ctypes.data_as(ctypes.c_void_p),
            *map(ctypes.c_size_t, (width, height, channels)),
        )

    def prepare(self, image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        channels, height, width = self.input.shape[:3]
        result = np.zeros((height, width, channels), np.uint8)
        self._call(
            "prepare", *self._pixels(np.ascontiguousarray(image)), result.ctypes.data_as(ctypes.c_void_p)
        )
        return result

    def classify(self, image: npt.NDArray[np.uint8], top: int = 5) -> list[tuple[int, str | None, float]]:
        guesses, found = (Guess * max(top, 1))(), ctypes.c_size_t()
        pixels = self._pixels(np.ascontiguousarray(image))
        self._call("classify", *pixels, ctypes.c_size_t(top), guesses, ctypes.byref(found))
        return [
            (guess.index, guess.label.decode() if guess.label is not None else None, guess.probability)
            for guess in guesses[: found.value]
        ]
