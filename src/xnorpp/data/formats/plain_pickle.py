"""Pickles of plain data, as the python batches of CIFAR are, read without running code and in bounded memory.

A pickle is a program. Its operations are listed first, without being carried out: only those that build
dictionaries, lists, tuples, strings and numbers are allowed; a memo index may not exceed the number of
operations before it (an unpickler sets aside memory for every index below it); and there are few tuples
(hashing one that is nested 100,000 deep overflows the stack). Then it is read by an unpickler that knows the
names under which numpy pickles its arrays, which lead to stand-ins for uint8 data. Every other name is an
error. What is read takes at most a few times the size of the file.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np

from xnorpp.data.dataset import DatasetError, UInt8Array

MAX_BYTES = 1 << 30  # CIFAR-100's training batch has 155 MB
_OPERATIONS = {
    "PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2",
    "LONG", "LONG1", "FLOAT", "BINFLOAT", "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE",
    "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "EMPTY_DICT", "DICT",
    "SETITEM", "SETITEMS", "EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_TUPLE", "TUPLE", "TUPLE1",
    "TUPLE2", "TUPLE3", "GET", "BINGET", "LONG_BINGET", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GLOBAL",
    "STACK_GLOBAL", "REDUCE", "BUILD",
}  # fmt: skip
_TUPLES = ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3")
_PUTS = ("PUT", "BINPUT", "LONG_BINPUT")
_MAX_TUPLES = 1000  # that are not the arguments of a REDUCE; a batch has about five


def read_python_batch(path: Path) -> dict[bytes, Any]:
    """The dictionary of an official python batch, with bytes keys.

    Args:
        path: The file. Arrays in it become `PlainArray`.

    Raises:
        DatasetError: The file is not a pickle of a dictionary, or asks for more than plain data.
    """
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    try:
        if len(content) > MAX_BYTES:
            raise pickle.UnpicklingError(f"it is larger than {MAX_BYTES >> 20} MiB")
        _check(content)
        loaded = _PlainUnpickler(content).load()
    except Exception as error:
        reason = str(error).splitlines()
        raise DatasetError(
            f"{path} is not a plain CIFAR python batch: {reason[0][:200] if reason else type(error).__name__}"
        ) from error
    if not isinstance(loaded, dict):
        raise DatasetError(f"{path} is not a plain CIFAR python batch: it holds a {type(loaded).__name__}")
    return {key.encode() if isinstance(key, str) else key: value for key, value in loaded.items()}


def _check(content: bytes) -> None:
    """Raise an error where an operation is not needed for plain data or would take memory."""
    tuples = 0
    before = ""  # the last operation that is not about the memo
    for number, (operation, argument, _) in enumerate(pickletools.genops(content)):
        name = operation.name
        if name not in _OPERATIONS:
            raise pickle.UnpicklingError(f"it has the operation {name}, which no CIFAR batch needs")
        if name in _PUTS and not 0 <= int(str(argument)) <= number:
            raise pickle.UnpicklingError(f"it has the memo index {argument} after {number} operations")
        if name not in (*_PUTS, "MEMOIZE"):
            tuples += before in _TUPLES and name != "REDUCE"
            before = name
        if tuples > _MAX_TUPLES:
            raise pickle.UnpicklingError(f"it has more than {_MAX_TUPLES} tuples")


class PlainArray:
    """Stands in for numpy.ndarray while unpickling: accepts uint8 values and a shape, nothing else."""

    array: UInt8Array

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, column_major, data = state
        if not (isinstance(dtype, _PlainType) and dtype.code in (b"u1", "u1", b"|u1", "|u1")):
            raise pickle.UnpicklingError("it holds an array that is not uint8")
        if not isinstance(data, bytes):
            raise pickle.UnpicklingError("it holds an array whose data is not bytes")
        values = np.frombuffer(data, np.uint8)
        self.array = values.reshape(tuple(shape), order="F" if column_major else "C")


class _PlainType:
    """Stands in for numpy.dtype.

    Remembers the code; byte order and flags of one-byte values do not matter.
    """

    def __init__(self, code: Any, *flags: Any) -> None:
        if not isinstance(code, (bytes, str)) or not all(isinstance(flag, int) for flag in flags):
            raise pickle.UnpicklingError("it holds a damaged type of an array")
        self.code = code

    def __setstate__(self, state: Any) -> None:
        return None


def _plain_array(kind: Any, shape: Any, code: Any) -> PlainArray:
    """numpy pickles an array as an empty one, (0,), whose state follows."""
    if kind is not PlainArray or shape != (0,) or not isinstance(code, (bytes, str)):
        raise pickle.UnpicklingError("it holds a damaged array")
    return PlainArray()


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _plain_array,
    ("numpy._core.multiarray", "_reconstruct"): _plain_array,
    ("numpy", "ndarray"): PlainArray,
    ("numpy", "dtype"): _PlainType,
}


class _PlainUnpickler(pickle.Unpickler):
    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self._left = len(content)  # bytes that may still be copied: a string has to be written to be copied

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return self._latin1
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR batch needs") from None

    def _latin1(self, text: Any, encoding: Any) -> bytes:
        """How Python 3 writes bytes in old pickle protocols: `_codecs.encode(text, "latin1")`."""
        if not isinstance(text, str) or not isinstance(encoding, str):
            raise pickle.UnpicklingError("it holds a damaged string")
        self._left -= len(text)
        if self._left < 0:
            raise pickle.UnpicklingError("it copies more than it contains")
        return text.encode("latin-1")
