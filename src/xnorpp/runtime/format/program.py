"""The packed file: a program over named values, its tensors, and one safetensors file that holds both.

    file     = u64 little-endian header length | header JSON | tensor bytes
    header   = {"__metadata__": metadata, tensor name: {"dtype", "shape", "data_offsets"}, ...}
    metadata = {"format": "xnorpp", "version": "1", "checksum": ..., "program": JSON}

`read` believes nothing: lengths, offsets, dtypes, version and checksum are checked before a tensor is looked
at, then every operation (`ops.py`) with the kind and shape of each value. What passes is a `Program` whose
values, shapes and total work are known and bounded. `docs/format.md` describes the same for other languages.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from xnorpp.runtime.files import write_atomically
from xnorpp.runtime.format.ops import MAX_ELEMENTS, MAX_EXTENT, ProgramError, Value, infer

__all__ = ["INPUT", "Op", "Program", "ProgramError", "Value", "read", "write"]

VERSION = "1"
INPUT = "input"  # the name of the value a caller gives

MAX_FILE = 1 << 32
MAX_HEADER = 1 << 24
MAX_OPS = 1 << 12
MAX_NAME = 1024
MAX_TOTAL_ELEMENTS = 1 << 30  # all values of one image together
MAX_WORK = 1 << 42  # multiply-adds of one image
MAX_TENSOR_BYTES = MAX_FILE  # of all operations; a shared tensor counts for each that uses it

_DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "U8": np.dtype("u1")}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}

Array = npt.NDArray[Any]
F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Op:
    """One operation: reads the values `inputs`, makes the value `output`; `tensors` are names by role."""

    op: str
    name: str
    inputs: tuple[str, ...]
    output: str
    attrs: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Program:
    """A checked program. Building one checks it: a `ProgramError` names the operation that is wrong.

    `values` gives the kind and shape of every value, `work` the multiply-adds of one image; both are derived.
    """

    input_shape: tuple[int, int, int]
    ops: tuple[Op, ...]
    output: str
    tensors: Mapping[str, Array]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    preprocess: Mapping[str, Any] | None = None
    labels: tuple[str, ...] | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Value] = field(init=False, repr=False)
    work: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        channels = self.input_shape[0]
        if not self.mean:
            object.__setattr__(self, "mean", (0.0,) * channels)
        if not self.std:
            object.__setattr__(self, "std", (1.0,) * channels)
        values, work = _check(self)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "work", work)

    def stored(self, op: Op, role: str) -> Array | None:
        """The tensor an operation has in a role, as stored, or None."""
        name = op.tensors.get(role)
        return None if name is None else self.tensors[name]

    def real(self, op: Op, role: str) -> F32 | None:
        """A real-valued tensor as float32 (float16 is only a way to store it), or None."""
        tensor = self.stored(op, role)
        return None if tensor is None else tensor.astype(np.float32, copy=False)


def _check_input_shape(shape: Sequence[Any]) -> None:
    if len(shape) != 3 or any(type(n) is not int or not 1 <= n <= MAX_EXTENT for n in shape):
        raise ProgramError(f"input: `shape` (={_clip(shape)}) must be three positive integers (c, h, w)")
    if math.prod(shape) > MAX_ELEMENTS:
        raise ProgramError(f"input: `shape` (={_clip(shape)}) is out of range")


def _check(program: Program) -> tuple[dict[str, Value], int]:
    shape = program.input_shape
    _check_input_shape(shape)
    for name, numbers in (("mean", program.mean), ("std", program.std)):
        with np.errstate(over="ignore"):
            row = np.asarray(numbers, np.float32)  # what is computed with
        if row.shape != shape[:1] or not np.isfinite(row).all():
            raise ProgramError(f"input: `{name}` must be {shape[0]} finite numbers, one per channel")
        if name == "std" and row.min() <= 0:
            raise ProgramError("input: `std` must be positive in float32")
    if not 1 <= len(program.ops) <= MAX_OPS:
        raise ProgramError(f"a program has 1 to {MAX_OPS} operations; this one has {len(program.ops)}")
    values = {INPUT: Value("f32", shape)}
    used: set[str] = set()
    total, work, constants = math.prod(shape), 0, 0
    for index, op in enumerate(program.ops):
        where = f"operation {index} ({op.op[:40]} {op.name[:80]!r})"
        for name in op.inputs:
            if name not in values:
                raise ProgramError(f"{where}: value {name[:80]!r} is read before it is made")
        if op.output in values:
            raise ProgramError(f"{where}: value {op.output[:80]!r} is made twice")
        if not 1 <= len(op.output) <= MAX_NAME:
            raise ProgramError(f"{where}: a value's name has 1 to {MAX_NAME} characters")
        for name in op.tensors.values():
            if name not in program.tensors:
                raise ProgramError(f"{where}: tensor {name[:80]!r} is not in the file")
        used.update(op.tensors.values())
        tensors = {role: program.tensors[name] for role, name in op.tensors.items()}
        constants += sum(tensor.nbytes for tensor in tensors.values())
        if constants > MAX_TENSOR_BYTES:
            raise ProgramError(f"{where}: the operations' tensors have more than {MAX_TENSOR_BYTES} bytes")
        value, cost = infer(op.op, where, tuple(values[name] for name in op.inputs), op.attrs, tensors)
        values[op.output] = value
        total, work = total + value.elements, work + cost
        if total > MAX_TOTAL_ELEMENTS or work > MAX_WORK:
            raise ProgramError(f"{where}: the program needs more memory or work than this format allows")
    if program.output not in values or program.output == INPUT:
        raise ProgramError(f"the output value {program.output[:80]!r} is never made")
    if values[program.output].kind != "f32":
        raise ProgramError(f"the output is {values[program.output].kind}; f32 is needed")
    unused = set(program.tensors) - used
    if unused:
        raise ProgramError(f"tensor {min(unused)[:80]!r} is used by no operation")
    if program.labels is not None and len(program.labels) != values[program.output].shape[0]:
        raise ProgramError(f"{len(program.labels)} labels for {values[program.output].shape[0]} outputs")
    return values, work


def _program_json(program: Program) -> str:
    preprocess = None if program.preprocess is None else dict(program.preprocess)
    ops = []
    for op in program.ops:
        row: dict[str, Any] = {"op": op.op, "name": op.name, "inputs": list(op.inputs), "output": op.output}
        if op.attrs:
            row["attrs"] = dict(op.attrs)
        if op.tensors:
            row["tensors"] = dict(op.tensors)
        ops.append(row)
    body = {
        "input": {
            "shape": list(program.input_shape),
            "mean": list(program.mean),
            "std": list(program.std),
            "preprocess": preprocess,
        },
        "ops": ops,
        "output": program.output,
        "labels": None if program.labels is None else list(program.labels),
        "meta": dict(program.meta),
    }
    return json.dumps(body, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def _checksum(program: str, table: list[tuple[str, str, tuple[int, ...]]], data: bytes | memoryview) -> str:
    """SHA-256 over the program JSON, a line `name dtype d0,d1,...` a tensor in file order, and the bytes."""
    digest = hashlib.sha256(program.encode())
    for name, code, shape in table:
        digest.update(f"\n{name} {code} {','.join(map(str, shape))}".encode())
    digest.update(b"\n")
    digest.update(data)
    return "sha256:" + digest.hexdigest()


def encode(program: Program) -> bytes:
    """The bytes of a packed file. The same program gives the same bytes."""
    order = {"F32": 0, "F16": 1, "U8": 2}  # wide first, so that every tensor stays aligned to its own width
    arrays = []
    for name, tensor in program.tensors.items():
        plain = np.ascontiguousarray(tensor, dtype=tensor.dtype.newbyteorder("<"))
        arrays.append((name, _CODES[plain.dtype], plain))
    arrays.sort(key=lambda item: order[item[1]])
    data = b"".join(array.tobytes() for _, _, array in arrays)
    text = _program_json(program)
    checksum = _checksum(text, [(name, code, array.shape) for name, code, array in arrays], data)
    header: dict[str, Any] = {
        "__metadata__": {"format": "xnorpp", "version": VERSION, "checksum": checksum, "program": text}
    }
    offset = 0
    for name, code, array in arrays:
        header[name] = {
            "dtype": code,
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    raw = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw + data


def write(program: Program, path: str | os.PathLike[str]) -> int:
    """Write a packed file and return its size. Whole or not at all: a new file takes the old one's place."""
    blob = encode(program)
    write_atomically(path, blob)
    return len(blob)


def read(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview, file_bytes: int = MAX_FILE
) -> Program:
    """Read and check a packed file (a path, or its bytes) of at most `file_bytes`.

    Raises:
        ProgramError: the file breaks the format; the message says where.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        _check_size(memoryview(source).nbytes, file_bytes)
        return _decode(bytes(source))
    try:
        with open(source, "rb") as file:
            about = os.fstat(file.fileno())
            _check_size(about.st_size, file_bytes)
            return _decode(file.read() if stat.S_ISREG(about.st_mode) else _read_stream(file, file_bytes))
    except ProgramError as error:
        raise ProgramError(f"{os.fspath(source)}: {error}") from None


def _read_stream(file: BinaryIO, file_bytes: int) -> bytes:
    """A pipe or a device, which has no size and perhaps no end."""
    parts = [file.read(8)]
    _header_length(parts[0])
    size = 8
    while size <= file_bytes and (part := file.read(1 << 20)):
        parts.append(part)
        size += len(part)
    _check_size(size, file_bytes)
    return b"".join(parts)


def _check_size(size: int, file_bytes: int) -> None:
    if size > file_bytes:
        raise ProgramError(
            f"the file has {size} bytes, and `file_bytes` of `limits` allows {file_bytes}; "
            "pass limits=Limits(file_bytes=...) with a larger number to `load`"
        )


def _header_length(blob: bytes) -> int:
    if len(blob) < 8:
        raise ProgramError(f"the file has {len(blob)} bytes; it is cut off before its header")
    length = int.from_bytes(blob[:8], "little")
    if not 2 <= length <= MAX_HEADER:
        raise ProgramError(f"the header length {length} is out of range; this is no packed model")
    return length


def _decode(blob: bytes) -> Program:
    length = _header_length(blob)
    if 8 + length > len(blob):
        raise ProgramError(f"the header needs {8 + length} bytes and the file has {len(blob)}; it is cut off")
    header = _object(_json(blob[8 : 8 + length], "the header"), "the header")
    meta = _object(header.pop("__metadata__", None), "`__metadata__`")
    if meta.get("format") == "xnorpp-checkpoint":
        raise ProgramError("this is an xnorpp checkpoint; pack it first with `xnorpp pack`")
    if meta.get("format") != "xnorpp":
        raise ProgramError("`format` is not xnorpp; this is a safetensors file of something else")
    if meta.get("version") != VERSION:
        found = _clip(meta.get("version"))
        raise ProgramError(f"format version {found} is unknown; this reader knows {VERSION}")
    data = memoryview(blob)[8 + length :]
    tensors, table = _tensors(header, data)
    text = _text(meta.get("program"), "`program`", limit=MAX_HEADER)
    try:
        expected = _checksum(text, table, data)
    except UnicodeEncodeError:
        raise ProgramError("the file holds text that is not valid Unicode") from None
    if meta.get("checksum") != expected:
        raise ProgramError("the checksum does not match; the file is damaged")
    return _program(_object(_json(text, "`program`"), "`program`"), tensors)


def _clip(value: object) -> str:
    return repr(value)[:40]


def _json(text: bytes | str, where: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise ProgramError(f"{where} has a key twice")
        return result

    def refuse(constant: str) -> Any:
        raise ProgramError(f"{where} holds {constant}, which is not JSON")

    try:
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
        return json.loads(decoded, object_pairs_hook=unique, parse_constant=refuse)
    except ProgramError:
        raise
    except (ValueError, RecursionError) as error:
        raise ProgramError(f"{where} is not valid JSON ({type(error).__name__})") from None


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ProgramError(f"{where} must be a JSON object")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ProgramError(f"{where} must be a JSON array")
    return value


def _text(value: Any, where: str, limit: int = MAX_NAME) -> str:
    if not isinstance(value, str) or len(value) > limit:
        raise ProgramError(f"{where} must be a text of at most {limit} characters")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:  # half of a surrogate pair, which JSON can escape
            raise ProgramError(f"{where} is not valid Unicode") from None
    return value


def _tensors(
    header: dict[str, Any], data: memoryview
) -> tuple[dict[str, Array], list[tuple[str, str, tuple[int, ...]]]]:
    """The tensors of the header over `data`: offsets must tile it exactly, in any order of the names."""
    rows = []
    for name, entry in header.items():
        where = f"tensor {name[:80]!r}"
        row = _object(entry, where)
        if set(row) != {"dtype", "shape", "data_offsets"}:
            raise ProgramError(f"{where} must have `dtype`, `shape` and `data_offsets`")
        code, shape, offsets = row["dtype"], row["shape"], row["data_offsets"]
        if not isinstance(code, str) or code not in _DTYPES:
            raise ProgramError(f"{where} has dtype {_clip(code)}; allowed are {', '.join(_DTYPES)}")
        if (
            not isinstance(shape, list)
            or not 1 <= len(shape) <= 4
            or not all(type(n) is int and 1 <= n <= MAX_FILE for n in shape)
        ):
            raise ProgramError(f"{where} has shape {_clip(shape)}; 1 to 4 positive integers are needed")
        if (
            not isinstance(offsets, list)
            or len(offsets) != 2
            or not all(type(n) is int and 0 <= n <= MAX_FILE for n in offsets)
        ):
            raise ProgramError(f"{where} has offsets {_clip(offsets)}; two of 0 to {MAX_FILE} are needed")
        if max(offsets) > len(data):
            raise ProgramError(
                f"{where} ends at {max(offsets)} and the file's data at {len(data)}; it is cut off"
            )
        if offsets[1] - offsets[0] != math.prod(shape) * _DTYPES[code].itemsize:
            raise ProgramError(f"{where} has {offsets[1] - offsets[0]} bytes, which is not its shape's size")
        rows.append((offsets[0], offsets[1], name, code, tuple(shape)))
    rows.sort(key=lambda row: row[:2])
    end = 0
    tensors: dict[str, Array] = {}
    for begin, stop, name, code, shape in rows:
        if begin != end:
            raise ProgramError(f"tensor {name[:80]!r} begins at {begin}; the one before ends at {end}")
        dtype = _DTYPES[code]
        tensors[name] = np.frombuffer(data, dtype, math.prod(shape), begin).reshape(shape)
        end = stop
    if end != len(data):
        raise ProgramError(f"the tensors end at {end} and the file's data at {len(data)}")
    return tensors, [(row[2], row[3], row[4]) for row in rows]


def _numbers(value: Any, channels: int, where: str) -> tuple[float, ...]:
    numbers = _list(value, where)
    if len(numbers) != channels or not all(type(v) in (int, float) and abs(v) < 1e30 for v in numbers):
        raise ProgramError(f"{where} must be {channels} finite numbers, one per channel")
    return tuple(float(v) for v in numbers)


def _program(body: dict[str, Any], tensors: dict[str, Array]) -> Program:
    source = _object(body.get("input"), "`input`")
    shape = _list(source.get("shape"), "input `shape`")
    _check_input_shape(shape)
    rows = _list(body.get("ops"), "`ops`")
    if len(rows) > MAX_OPS:
        raise ProgramError(f"a program has 1 to {MAX_OPS} operations; this one has {len(rows)}")
    ops = []
    for index, item in enumerate(rows):
        where = f"operation {index}"
        row = _object(item, where)
        inputs = [_text(v, f"{where}: an input") for v in _list(row.get("inputs"), f"{where}: `inputs`")]
        roles = _object(row.get("tensors", {}), f"{where}: `tensors`")
        ops.append(
            Op(
                _text(row.get("op"), f"{where}: `op`"),
                _text(row.get("name"), f"{where}: `name`"),
                tuple(inputs),
                _text(row.get("output"), f"{where}: `output`"),
                _object(row.get("attrs", {}), f"{where}: `attrs`"),
                {role: _text(name, f"{where}: tensor {role[:40]!r}") for role, name in roles.items()},
            )
        )
    preprocess, labels = source.get("preprocess"), body.get("labels")
    return Program(
        input_shape=(shape[0], shape[1], shape[2]),
        ops=tuple(ops),
        output=_text(body.get("output"), "`output`"),
        tensors=tensors,
        mean=_numbers(source.get("mean"), shape[0], "input `mean`"),
        std=_numbers(source.get("std"), shape[0], "input `std`"),
        preprocess=None if preprocess is None else _object(preprocess, "input `preprocess`"),
        labels=None if labels is None else tuple(_text(v, "a label") for v in _list(labels, "`labels`")),
        meta=_object(body.get("meta", {}), "`meta`"),
    )
