"""`xnorpp export`."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xnorpp.cli.command import (
    Parser,
    at_least,
    check_file,
    check_folder,
    check_packed,
    refuse_ignored,
)

if TYPE_CHECKING:
    from xnorpp.runtime import Program

FORMATS = ("c", "onnx", "qonnx", "openvino")


def export(arguments: list[str]) -> int:
    """MODEL is a packed model (.xnor) or the name of one that ships. FORMAT is

      c          one C99 source and one header for microcontrollers, into the folder -o
      onnx       standard operators (opset 18), one-bit weights stored as bits
      qonnx      signs as BipolarQuant, for FPGA tools
      openvino   binary layers as BinaryConvolution: NAME.xml and, beside it, NAME.bin

    A layer that the format cannot express is refused with its name and the reason.
    """
    parser = Parser(
        "export",
        export,
        """
        xnorpp export c cifar10-resnet20 -o firmware
        xnorpp export c digits.xnor -o firmware --name digits --fixed 16
        xnorpp export onnx cifar10-resnet18 -o resnet18.onnx
        xnorpp export openvino cifar10-resnet18 -o resnet18.xml --batch 8
        """,
    )
    parser.add_argument(
        "format", metavar="FORMAT", choices=FORMATS, help="what to write: " + ", ".join(FORMATS)
    )
    parser.add_argument("model", metavar="MODEL", help="a packed model, or the name of a shipped one")
    parser.add_argument(
        "-o", "--output", metavar="PATH", required=True, help="the folder (c) or file to write"
    )
    parser.add_argument(
        "--name", metavar="NAME", help="prefix of the C names and files (default: from MODEL)"
    )
    parser.add_argument(
        "--input",
        choices=("bytes", "float"),
        help="what the result takes: bytes of images (default of c), or normalised numbers (of the others)",
    )
    parser.add_argument(
        "--fixed",
        metavar="BITS",
        nargs="?",
        const=24,
        type=int,
        choices=(16, 24),
        help="C without any float, for chips that have none: numbers of 24 (default) or 16 bits",
    )
    parser.add_argument(
        "--examples",
        metavar="FILE",
        help="a .npy array of inputs whose ranges decide the scales of --fixed (default: noise)",
    )
    parser.add_argument(
        "--layout", choices=("bits", "qdq"), help="onnx: one-bit weights as bits (default) or 8-bit Q/DQ"
    )
    parser.add_argument(
        "--batch", metavar="N", type=at_least(1), help="openvino: the images of a call (default: 1)"
    )
    parser.add_argument("--size", metavar="HxW", help="for a model that takes any size: height and width")
    given = parser.parse_args(arguments)

    from xnorpp.runtime.format.program import read
    from xnorpp.shipped import find_model

    path = find_model(given.model)
    check_packed(path)
    program = _sized(read(path), given.size)
    only = {"c": ("name", "fixed", "examples"), "onnx": ("layout",), "openvino": ("batch",)}
    for format, options in only.items():
        if format != given.format:
            refuse_ignored(given, options, f"{format}, not for {given.format}")
    if given.format == "c":
        return _c(program, path, given)
    check_file("--output", given.output)
    if given.format == "openvino":
        return _openvino(program, given)
    return _onnx(program, path, given)


def _sized(program: Program, size: str | None) -> Program:
    """The program for one size of its input."""
    if size is None:
        return program
    found = re.fullmatch(r"(\d+)x(\d+)", size)
    if found is None:
        raise ValueError(f"`--size` (={size!r}) must be HEIGHTxWIDTH, such as 96x96")
    if not program.variable:
        raise ValueError(
            f"`--size` (={size!r}) is for a model that takes any size, and this one takes one size"
        )
    from xnorpp.export.one_size import for_one_size

    return for_one_size(program.for_input((program.input_shape[0], int(found[1]), int(found[2]))))


def _c(program: Program, path: Path, given: argparse.Namespace) -> int:
    from xnorpp.export.c import export_c
    from xnorpp.export.c.text import identifier

    check_folder("--output", given.output)
    name = given.name or identifier(path.stem)
    examples = None if given.examples is None else _examples(program, given.examples, given.fixed)
    made = export_c(program, name, from_bytes=given.input != "float", fixed=given.fixed, examples=examples)
    source, header = made.write(given.output)
    print(f"{source} and {header}: constants {made.constant_bytes:,} bytes, arena {made.arena_bytes:,} bytes")
    return 0


def _onnx(program: Program, path: Path, given: argparse.Namespace) -> int:
    from xnorpp.export import export_onnx, export_qonnx
    from xnorpp.runtime.files import write_atomically

    if given.format == "qonnx":
        _only_float(given)
        model = export_qonnx(program)
    else:
        model = export_onnx(program, layout=given.layout or "bits", from_bytes=given.input == "bytes")
    data = model.SerializeToString()
    write_atomically(given.output, data)
    print(f"{given.output}: {len(data):,} bytes, {len(data) / path.stat().st_size:.2f} times the packed file")
    return 0


def _openvino(program: Program, given: argparse.Namespace) -> int:
    from xnorpp.export.openvino import export_openvino

    _only_float(given)
    target = Path(given.output)
    if target.suffix != ".xml":
        raise ValueError(
            f"`--output` (={given.output!r}) must end in .xml; the weights go beside it, into a .bin"
        )
    model = export_openvino(program, batch=given.batch or 1)
    from openvino import save_model

    save_model(model, target, compress_to_fp16=False)
    weights = target.with_suffix(".bin")
    print(f"{target} and {weights}: {target.stat().st_size + weights.stat().st_size:,} bytes")
    return 0


def _only_float(given: argparse.Namespace) -> None:
    if given.input == "bytes":
        raise ValueError(f"`--input` (='bytes') is for c and onnx; {given.format} takes normalised numbers")


def _examples(program: Program, path: str, fixed: int | None) -> Any:
    import numpy as np

    from xnorpp.runtime.format.batch import check_input

    if fixed is None:
        raise ValueError(f"`--examples` (={path!r}) decides the scales of --fixed, which is not given")
    try:
        array = np.load(path, allow_pickle=False)
    except (EOFError, ValueError):
        array = None
    if not isinstance(array, np.ndarray):
        raise ValueError(
            f"`--examples` (={path!r}) must be a .npy file of one array of numbers, as numpy.save writes it"
        )
    return check_input(program, array)
