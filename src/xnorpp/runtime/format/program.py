"""The packed file: a program over named values, its tensors, and one safetensors file that holds both.

    file     = u64 little-endian header length | header JSON | tensor bytes
    header   = {"__metadata__": metadata, tensor name: {"dtype", "shape", "data_offsets"}, ...}
    metadata = {"format": "xnorpp", "version": "2", "checksum": ..., "program": JSON}

Reading and checking is done by the native core (`csrc/core`: container, program, operations), which believes
nothing: lengths, offsets, types, version and checksum are checked before a tensor is looked at, then every
operation with the kind and shape of each value. What passes is a `Program` whose values, shapes and total
work are known and bounded. `docs/format.md` describes the same for other languages.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from io import BufferedReader
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from xnorpp.runtime.format.ops import CODES, Value, operations, stored_rows
from xnorpp.runtime.format.stored import StoredTensors
from xnorpp.runtime.native import ProgramError, core

__all__ = ["INPUT", "Encoding", "Op", "Program", "ProgramError", "Value", "encode", "read", "write"]

VERSION = 2  # of files that are written
INPUT = "input"  # the name of the value a caller gives
MAX_FILE = 1 << 32
MAX_HEADER = 1 << 24

_DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"), "float16": np.dtype("<f2"), "bits": np.dtype("u1"), "uint8": np.dtype("u1"),
    "int8": np.dtype("i1"), "int16": np.dtype("<i2"), "int32": np.dtype("<i4"),
}  # fmt: skip

Array = npt.NDArray[Any]
F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Encoding:
    """How a tensor's numbers are stored: float32, float16, bits, uint8, int8, int16 or int32.

    `length` is the number of elements along the last axis of `bits`, which is packed eight to a byte; None
    for other encodings, and in version 1, where the operation that uses a tensor decides. `scale` is the
    name of the tensor with one factor for each index of the first axis, where whole numbers stand for real
    ones.
    """

    name: str
    length: int | None = None
    scale: str | None = None


@dataclass(frozen=True)
class Op:
    """One operation: reads the values `inputs`, makes the value `output`; `tensors` are names by role.

    Example:
        >>> import xnorpp
        >>> op = xnorpp.load("cifar10-resnet20").program.ops[0]
        >>> op.op, op.inputs, op.attrs["stride"]
        ('conv2d', ('input',), [1, 1])
    """

    op: str
    name: str
    inputs: tuple[str, ...]
    output: str
    attrs: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Program:
    """A checked program. Building one checks it: a `ProgramError` names the operation that is wrong.

    Args:
        input_shape: of one input without the batch axis, `(c, h, w)` or another rank.
        ops: the operations in the order they run.
        output: the value that is the first output.
        tensors: stored arrays by name: float32 or float16, packed bits and flags as uint8, whole numbers.
        mean: of the channels of an image whose bytes are given; 0 where left out.
        std: likewise; 1 where left out.
        preprocess: how an image file becomes an input, or None.
        labels: one for each channel of the first output, or None.
        meta: whatever the writer wants to record.
        output_name: the name of the first output.
        more_outputs: further outputs, names to values.
        temperature: divides the first output (logits) before a softmax for calibrated probabilities.
        free_axes: axes of a `(c, h, w)` input that may have any size, 1 and 2; `input_shape` is then an
            example that the program is checked and planned with.
        version: of the file format that `encode` writes; 1 has one output, one size, and no whole numbers.
        scales: int8 and int16 tensors that stand for real numbers, to the float tensor with one factor for
            each index of the first axis.

    `values` gives the kind and shape of every value, `encodings` how each tensor is stored, `work` the
    multiply-adds of one image; all are derived.

    Example:
        >>> from xnorpp.runtime import read
        >>> from xnorpp.shipped import shipped_path
        >>> program = read(shipped_path("cifar10-resnet20"))
        >>> program.input_shape, program.labels[:2]
        ((3, 32, 32), ('airplane', 'automobile'))
    """

    input_shape: tuple[int, ...]
    ops: tuple[Op, ...]
    output: str
    tensors: Mapping[str, Array]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    preprocess: Mapping[str, Any] | None = None
    labels: tuple[str, ...] | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    output_name: str = "output"
    more_outputs: Mapping[str, str] = field(default_factory=dict)
    temperature: float | None = None
    free_axes: tuple[int, ...] = ()
    version: int = VERSION
    scales: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Value] = field(init=False, repr=False)
    encodings: Mapping[str, Encoding] = field(init=False, repr=False)
    work: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        new = (
            self.more_outputs,
            self.temperature,
            self.free_axes,
            self.scales,
            self.output_name != "output",
        )
        if self.version == 1 and any(new):
            raise ProgramError(
                "`version` (=1) has one unnamed output of one size, no temperature, no scale; use version 2"
            )
        self._derive(self.native)

    def _derive(self, native: Any) -> dict[str, Any]:
        """What the core found out; returns all of its description."""
        about: dict[str, Any] = native.describe()
        found = {
            "mean": about["mean"],
            "std": about["std"],
            "values": {name: Value(*row) for name, row in about["values"].items()},
            "encodings": {
                name: Encoding(encoding, None if length < 0 else length, scale or None)
                for name, encoding, _, length, _, scale in about["tensors"]
            },
            "work": about["work"],
            "_native": native,
        }
        for name, value in found.items():
            object.__setattr__(self, name, value)
        return about

    @classmethod
    def _from_native(cls, native: Any, file: bytes | Array, hold: Callable[[int], None] | None) -> Program:
        self = object.__new__(cls)
        about = self._derive(native)
        places = {name: (_DTYPES[row[0]], row[1], row[3]) for name, *row in about["tensors"]}
        (output_name, output), *others = about["outputs"].items()
        found = {
            "input_shape": about["example_shape"],
            "free_axes": tuple(axis for axis, size in enumerate(about["input_shape"]) if size is None),
            "ops": tuple(Op(*row) for row in about["ops"]),
            "output": output,
            "output_name": output_name,
            "more_outputs": dict(others),
            "tensors": StoredTensors(file, places, hold),
            "scales": {name: row.scale for name, row in self.encodings.items() if row.scale},
            **{key: about[key] for key in ("preprocess", "labels", "meta", "temperature", "version")},
        }
        for name, value in found.items():
            object.__setattr__(self, name, value)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Without the core's own object, which is made again where it is needed."""
        state = {name: value for name, value in self.__dict__.items() if name != "_native"}
        return {**state, "tensors": dict(self.tensors)}

    @property
    def native(self) -> Any:
        """The program in the core, for engines."""
        native = self.__dict__.get("_native")
        if native is None:
            try:
                text = _program_json(self)
                text.encode()
            except (TypeError, ValueError) as error:  # UnicodeEncodeError is a ValueError
                raise ProgramError(f"the program cannot be written as JSON: {error}") from None
            native = core().Program.build(text, self.version, stored_rows(self.tensors))
            object.__setattr__(self, "_native", native)
        return native

    @property
    def outputs(self) -> Mapping[str, str]:
        """Every output: names to values, the first first."""
        return {self.output_name: self.output, **self.more_outputs}

    @property
    def variable(self) -> bool:
        """Whether inputs of other heights or widths are allowed."""
        return bool(self.free_axes)

    def for_input(self, shape: tuple[int, ...]) -> Program:
        """The same program planned for another size of its free axes.

        Raises:
            ProgramError: the size does not fit.
        """
        if shape == self.input_shape:
            return self
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, input_shape=shape)
        other._derive(self.native.with_input(list(shape)))
        return other

    def stored(self, op: Op, role: str) -> Array | None:
        """The tensor an operation has in a role, as stored, or None."""
        name = op.tensors.get(role)
        return None if name is None else self.tensors[name]

    def real(self, op: Op, role: str) -> F32 | None:
        """A real-valued tensor as float32, whatever it is stored as, or None."""
        tensor = self.stored(op, role)
        if tensor is None:
            return None
        single: F32 = tensor.astype(np.float32, copy=False)
        scale = self.scales.get(op.tensors[role])
        if scale is None:
            return single
        return single * self.tensors[scale].astype(np.float32).reshape(-1, *[1] * (tensor.ndim - 1))

    def is_packed(self, op: Op, role: str = "weight") -> bool:
        """Whether the tensor in a role has one bit for each number."""
        name = op.tensors.get(role)
        return name is not None and self.encodings[name].name == "bits"

    def window(self, op: Op) -> tuple[int, int]:
        """Rows and columns of an operation's filters: bits (o, kh, kw, bytes), or real (o, c, kh, kw)."""
        shape = self.tensors[op.tensors["weight"]].shape
        if len(shape) != 4:
            return 1, 1
        return (shape[1], shape[2]) if self.is_packed(op) else (shape[2], shape[3])


def _program_json(program: Program, encodings: Mapping[str, Encoding] | None = None) -> str:
    """The program's JSON text; without `encodings` a draft, whose tensors the core finds out about."""
    preprocess = None if program.preprocess is None else dict(program.preprocess)
    ops = []
    for op in program.ops:
        row: dict[str, Any] = {"op": op.op, "name": op.name, "inputs": list(op.inputs), "output": op.output}
        if op.attrs:
            row["attrs"] = dict(op.attrs)
        if op.tensors:
            row["tensors"] = dict(op.tensors)
        ops.append(row)
    labels = None if program.labels is None else list(program.labels)
    shape = list(program.input_shape)
    source: dict[str, Any] = {"shape": shape}
    if program.version == 1:
        count = shape[0] if shape and isinstance(shape[0], int) else 0
        source["mean"] = list(program.mean) or [0.0] * count
        source["std"] = list(program.std) or [1.0] * count
        source["preprocess"] = preprocess
        body: dict[str, Any] = {"input": source, "ops": ops, "output": program.output, "labels": labels}
        return _text({**body, "meta": dict(program.meta)})
    if program.free_axes:
        source["shape"] = [None if axis in program.free_axes else size for axis, size in enumerate(shape)]
        source["example_shape"] = shape
    if any(value != 0 for value in program.mean):
        source["mean"] = list(program.mean)
    if any(value != 1 for value in program.std):
        source["std"] = list(program.std)
    rows = operations()
    opset = max(rule.since for rule in rows.values())  # the newest that is known
    if encodings is not None:  # the operations have been checked: the oldest that has them
        opset = max((rows[op.op].opset(op.attrs) for op in program.ops), default=1)
        opset = max(opset, 2 if program.scales else 1)
    body = {"opset": opset, "input": {**source, "preprocess": preprocess}}
    if encodings is not None:
        body["tensors"] = {name: _encoding_row(program, name, row) for name, row in encodings.items()}
    elif program.scales:
        body["tensors"] = {name: {"scale": scale} for name, scale in program.scales.items()}
    body |= {
        "ops": ops,
        "outputs": [{"name": name, "value": value} for name, value in program.outputs.items()],
        "labels": labels,
        "temperature": program.temperature,
        "meta": dict(program.meta),
    }
    return _text(body)


def _text(body: Mapping[str, Any]) -> str:
    return json.dumps(body, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def _encoding_row(program: Program, name: str, encoding: Encoding) -> dict[str, Any]:
    row: dict[str, Any] = {"encoding": encoding.name}
    if encoding.length is not None:
        row["shape"] = [*program.tensors[name].shape[:-1], encoding.length]
    if encoding.scale is not None:
        row["scale"] = encoding.scale
    return row


def _checksum(program: str, table: list[tuple[str, str, tuple[int, ...]]], data: bytes | memoryview) -> str:
    """SHA-256 over the program JSON, a line `name dtype d0,d1,...` a tensor in file order, and the bytes."""
    import hashlib  # here, since it loads OpenSSL: four megabytes that running a model does not need

    digest = hashlib.sha256(program.encode())
    for name, code, shape in table:
        digest.update(f"\n{name} {code} {','.join(map(str, shape))}".encode())
    digest.update(b"\n")
    digest.update(data)
    return "sha256:" + digest.hexdigest()


def encode(program: Program) -> bytes:
    """The bytes of a packed file. The same program gives the same bytes."""
    order = list(CODES.values())  # wide first, so that every tensor stays aligned to its own width
    arrays = []
    for name, tensor in program.tensors.items():
        plain = np.ascontiguousarray(tensor, dtype=tensor.dtype.newbyteorder("<"))
        arrays.append((name, CODES[plain.dtype], plain))
    arrays.sort(key=lambda item: order.index(item[1]))
    data = b"".join(array.tobytes() for _, _, array in arrays)
    text = _program_json(program, {name: program.encodings[name] for name, _, _ in arrays})
    checksum = _checksum(text, [(name, code, array.shape) for name, code, array in arrays], data)
    header: dict[str, Any] = {
        "__metadata__": {
            "format": "xnorpp",
            "version": str(program.version),
            "checksum": checksum,
            "program": text,
        }
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
    """Write a packed file and return its size. Whole or not at all: a new file takes the old one's place.

    Example:
        >>> import xnorpp
        >>> from xnorpp.runtime import write
        >>> write(xnorpp.load("cifar10-resnet20").program, "copy.xnor") < 100_000
        True
    """
    from xnorpp.runtime.files import write_atomically

    blob = encode(program)
    write_atomically(path, blob)
    return len(blob)


def read(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview, file_bytes: int = MAX_FILE
) -> Program:
    """Read and check a packed file (a path, or its bytes) of at most `file_bytes`.

    Raises:
        ProgramError: the file breaks the format; the message states where.

    Example:
        >>> from xnorpp.runtime import read
        >>> from xnorpp.shipped import shipped_path
        >>> sum(op.op == "binary_conv2d" for op in read(shipped_path("cifar10-resnet20")).ops)
        18
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        _check_size(memoryview(source).nbytes, file_bytes)
        return _decode(bytes(source), file_bytes)
    if not isinstance(source, (str, os.PathLike)):  # `open` takes a number for an open file, and closes it
        raise TypeError(
            f"`source` is {type(source).__name__}; a path, the bytes of a packed file or a Program is needed"
        )
    try:
        with open(source, "rb") as file:
            about = os.fstat(file.fileno())
            _check_size(about.st_size, file_bytes)
            if stat.S_ISREG(about.st_mode):
                return _read_regular(file, about.st_size, file_bytes)
            return _decode(_read_stream(file, file_bytes), file_bytes)
    except IsADirectoryError as error:
        reason = "This is a folder, and a packed file is needed; `xnorpp pack` makes one of a run's folder"
        raise IsADirectoryError(error.errno, reason, os.fspath(source)) from None
    except ProgramError as error:
        raise ProgramError(f"{os.fspath(source)}: {error}") from None


def _read_regular(file: BufferedReader, size: int, file_bytes: int) -> Program:
    """A file on a disk, into memory whose pages the core gives back where an engine needs them no longer."""
    memory = core().FileMemory(size)
    whole: Array = memory.bytes
    end = 0
    while end < size and (count := file.readinto(whole.data[end:])):
        end += count
    if more := file.read():  # it has grown meanwhile
        return _decode(whole[:end].tobytes() + more, file_bytes)
    whole.flags.writeable = False
    return Program._from_native(core().Program.read_memory(memory, end, file_bytes), whole, memory.hold)


def _read_stream(file: BinaryIO, file_bytes: int) -> bytes:
    """A pipe or a device, which has no size and perhaps no end."""
    parts = [file.read(8)]
    if len(parts[0]) < 8 or not 2 <= int.from_bytes(parts[0], "little") <= MAX_HEADER:
        return parts[0]  # nothing that the core would read on
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


def _decode(blob: bytes, file_bytes: int) -> Program:
    return Program._from_native(core().Program.read(blob, file_bytes), blob, None)
