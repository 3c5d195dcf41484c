"""`export_c`: a packed model as one C99 source and one header."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xnorpp.export.c.fixed import FixedWriter
from xnorpp.export.c.floating import FloatWriter
from xnorpp.export.c.layers import KINDS, Layer, extent, make_layers
from xnorpp.export.c.ranges import example_inputs, value_ranges
from xnorpp.export.c.text import Function, comment, identifier, literal, parts, wrapped
from xnorpp.export.c.writer import Writer
from xnorpp.export.errors import ExportError
from xnorpp.export.one_size import check_program, for_one_size
from xnorpp.runtime.files import write_atomically
from xnorpp.runtime.format.program import INPUT, Program


@dataclass(frozen=True)
class Generated:
    """A generated source.

    Attributes:
        name: the prefix of every public name, and the name of the two files.
        source: the text of `NAME.c`.
        header: the text of `NAME.h`.
        arena_bytes: the memory that the network needs beside the stack.
        constant_bytes: weights and other constants, which stay in flash.

    Example:
        >>> import xnorpp
        >>> from xnorpp.export import export_c
        >>> generated = export_c(xnorpp.load("cifar10-resnet20").program, name="objects")
        >>> generated.constant_bytes < 100_000
        True
        >>> [path.name for path in generated.write("firmware")]
        ['objects.c', 'objects.h']
    """

    name: str
    source: str
    header: str
    arena_bytes: int
    constant_bytes: int

    def write(self, folder: str | os.PathLike[str]) -> tuple[Path, Path]:
        """Write both files into a folder, which is made where it is missing."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        paths = place / f"{self.name}.c", place / f"{self.name}.h"
        for path, text in zip(paths, (self.source, self.header), strict=True):
            write_atomically(path, text.encode())
        return paths


def export_c(
    program: Program,
    name: str = "network",
    *,
    from_bytes: bool = True,
    fixed: int | None = None,
    examples: npt.NDArray[Any] | None = None,
) -> Generated:
    """A program as C99 that needs no library but `string.h`.

    Args:
        program: what to export; one with free sizes is exported for its `input_shape`.
        name: the prefix of every public name.
        from_bytes: the input is the bytes of an image, channels last; otherwise numbers, channels first.
        fixed: 16 or 24: use no float at all, and store numbers with this many bits; the outputs are integers.
        examples: inputs, as the library takes them, whose ranges decide the scales of fixed-point numbers;
            noise by default.

    Returns:
        The two texts and what they need.

    Raises:
        ExportError: a layer that generated C does not have, or a name that is no C identifier.

    Example:
        >>> import xnorpp
        >>> from xnorpp.export import export_c
        >>> generated = export_c(xnorpp.load("cifar10-resnet20").program, name="objects")
        >>> "objects_run" in generated.header
        True
    """
    check_program(program)
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise ExportError(f"`name` (={name!r}) must be a C identifier: letters, digits and _, a letter first")
    program = for_one_size(program)
    layers = make_layers(program, "c")
    if fixed not in (None, 16, 24):
        raise ExportError(f"`fixed` (={fixed!r}) must be 16 or 24 bits, or None for float")
    if fixed is None:
        if examples is not None:
            raise ExportError("`examples` decide the scales of fixed-point numbers, and `fixed` is None")
        return _assemble(FloatWriter(program, layers, from_bytes), name)
    inputs = example_inputs(program, from_bytes) if examples is None else examples
    if examples is not None and not (len(examples) and np.isfinite(examples).all()):
        what = "numbers that are not finite" if len(examples) else "no inputs"
        raise ExportError(f"`examples` has {what}; some inputs as the network gets them are needed")
    ranges = value_ranges(program, inputs, from_bytes)
    return _assemble(FixedWriter(program, layers, from_bytes, ranges, fixed), name)


def _assemble(writer: Writer, name: str) -> Generated:
    functions: dict[str, str] = {}  # a definition without its name -> its name
    definitions: list[str] = []
    descriptions: list[str] = []
    calls: list[str] = []
    taken: set[str] = set()
    for index, layer in enumerate(writer.layers):
        function = writer.make(index)
        key = "\n".join(function.definition("NAME"))
        if key not in functions:
            functions[key] = f"{identifier(layer.kind.replace('2d', ''))}_{len(functions) + 1}"
            definitions += ["", *function.definition(functions[key])]
        kind = functions[key]
        label = _unique(identifier(layer.name), taken)
        title = comment(_title(writer, layer, function))
        descriptions += ["", f"/* {title} */", *function.description(kind, label)]
        calls += [f"    /* {title} */", f"    run_{kind}(&{label});"]
    copying = [] if writer.direct else ["    {", *("    " + line for line in writer.input_lines()), "    }"]
    endings = [*_outputs(writer), *_classify(writer, name)]
    if "value_of(" not in "\n".join(
        [*definitions, *copying, *endings, *parts(writer.mode, writer.needs - VALUES)]
    ):
        writer.needs -= VALUES
    source = [
        *_opening(writer, name),
        *_input_constants(writer),
        *(line for part in parts(writer.mode, writer.needs) for line in ("", *part.splitlines())),
        "",
        "/* Weights and other constants. */",
        *writer.constants.lines,
        *definitions,
        *descriptions,
        "",
        "/* Runs all layers; the outputs are then in the arena. */",
        "static void infer(const input_type *image)",
        "{",
        *(["    input = image;"] if writer.direct else ["    const input_type *const input = image;"]),
        *copying,
        *calls,
        "}",
        "",
        f"void {name}_run({_arguments(writer)})",
        "{",
        "    infer(image);",
        *_outputs(writer),
        "}",
        *_classify(writer, name),
        *_labels(writer, name),
    ]
    header = _header(writer, name)
    return Generated(
        name, "\n".join(source) + "\n", "\n".join(header) + "\n", writer.memory.arena, writer.constants.bytes
    )


def _unique(name: str, taken: set[str]) -> str:
    unique, count = f"layer_{name}", 1
    while unique in taken:
        count += 1
        unique = f"layer_{name}_{count}"
    taken.add(unique)
    return unique


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _title(writer: Writer, layer: Layer, function: Function) -> str:
    source = writer.program.values[layer.source].shape
    window = ""
    if layer.op is not None and "conv2d" in layer.kind:
        window = " {}x{}".format(*writer.program.window(layer.op))
    words = function.title.replace(KINDS.get(layer.kind, ""), KINDS.get(layer.kind, "") + window, 1)
    return f"{layer.name}: {words}; {_size(source)} -> {_size(layer.shape)}"


def _arguments(writer: Writer) -> str:
    outputs = [f"{writer.output_type} *{identifier(name)}" for name in writer.program.outputs]
    return ", ".join([f"const {writer.input_type} *image", *outputs])


def _opening(writer: Writer, name: str) -> list[str]:
    return [
        f"/* {name}: a neural network as C99, generated by xnorpp; do not edit, export it again.",
        "   It needs no memory but its arena and a small stack, and no library but string.h; constants stay",
        f"   in flash. {name}.h has the functions and sizes. */",
        f'#include "{name}.h"',
        "",
        "#include <stddef.h>",
        "#include <string.h>",
        "",
        "#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__",
        '#error "the constants are in little-endian order"',
        "#endif",
        *(FLOAT_RULES if writer.mode == "float" else []),
        "",
        f"typedef {writer.typedef} number;",
        f"typedef {writer.input_type} input_type;",
        "",
        "/* The only memory that the network writes to. */",
        f"#ifndef {name.upper()}_ARENA_PLACE",
        f'#define {name.upper()}_ARENA_PLACE /* for example __attribute__((section(".dtcm"))) */',
        "#endif",
        "static union {",
        f"    uint8_t bytes[{name.upper()}_ARENA_BYTES];",
        "    uint32_t words[1];",
        f"}} arena {name.upper()}_ARENA_PLACE;",
        "#define AT(type, offset) ((type *)(void *)(arena.bytes + (offset)))",
        *(["static const input_type *input;"] if writer.direct else []),
        *writer.opening_lines(),
    ]


VALUES = {"value16", "value24"}  # functions that not every network calls
FLOAT_RULES = [
    "",
    "/* A product and a sum are rounded one after the other unless the code asks for a fused operation. */",
    "#if defined(__clang__)",
    "#pragma STDC FP_CONTRACT OFF",
    "#elif defined(__GNUC__)",
    '#pragma GCC optimize("fp-contract=off")',
    "#endif",
    "#if defined(__GNUC__)",
    "#define INFINITE __builtin_inff()",
    "#else",
    "#define INFINITE (1e30f * 1e30f)",
    "#endif",
]


def _input_constants(writer: Writer) -> list[str]:
    if not writer.from_bytes or not {"input_bytes", "gather_input_bytes"} & writer.needs:
        return []
    lines = ["", "/* How a byte b of channel c becomes the number (b / 255 - mean[c]) / std[c]. */"]
    for name, (ctype, row) in writer.input_constants().items():
        lines.append(f"static const {ctype} input_{name}[{row.size}] = {{")
        lines += wrapped([literal(ctype, value) for value in row])
        lines.append("};")
    return lines


def _outputs(writer: Writer) -> list[str]:
    lines = []
    for name, value in writer.program.outputs.items():
        channels, height, width = extent(writer.program.values[value].shape)
        pixels = height * width
        place = "i" if pixels == 1 else f"i % {pixels} * {channels} + i / {pixels}"
        lines.append(f"    for (int32_t i = 0; i < {channels * pixels}; i++)")
        lines.append(f"        {identifier(name)}[i] = {writer.element(value, place)};")
    return lines


def _is_classifier(writer: Writer) -> bool:
    shape = writer.program.values[writer.program.output].shape
    return len(writer.program.outputs) == 1 and int(np.prod(shape[1:])) == 1


def _classify(writer: Writer, name: str) -> list[str]:
    if not _is_classifier(writer):
        return []
    value = writer.program.output
    return [
        "",
        f"int32_t {name}_classify(const {writer.input_type} *image)",
        "{",
        "    int32_t best = 0;",
        "    infer(image);",
        f"    for (int32_t i = 1; i < {writer.program.values[value].shape[0]}; i++)",
        f"        if ({writer.element(value, 'i')} > {writer.element(value, 'best')})",
        "            best = i;",
        "    return best;",
        "}",
    ]


def _labels(writer: Writer, name: str) -> list[str]:
    labels = writer.program.labels
    if labels is None:
        return []
    quoted = ['"' + "".join(_character(byte) for byte in label.encode()) + '"' for label in labels]
    return ["", f"const char *const {name}_labels[{len(labels)}] = {{", *wrapped(quoted), "};"]


def _character(byte: int) -> str:
    plain = 32 <= byte < 127 and chr(byte) not in '"\\?'
    return chr(byte) if plain else f"\\{byte:03o}"


def _header(writer: Writer, name: str) -> list[str]:
    upper, program = name.upper(), writer.program
    channels, height, width = extent(program.values[INPUT].shape)
    order = "rows, columns, channels" if writer.from_bytes else "channels, rows, columns"
    ctype = writer.input_type
    what = {"uint8_t": "the bytes of an image", "float": "normalised numbers"}.get(
        ctype, f"normalised numbers times 2^{upper}_INPUT_SHIFT"
    )
    lines = [
        f"/* {name}: a neural network as C99, generated by xnorpp. */",
        f"#ifndef {upper}_H",
        f"#define {upper}_H",
        "",
        "#include <stdint.h>",
        "",
        f"#define {upper}_CHANNELS {channels}",
        f"#define {upper}_HEIGHT {height}",
        f"#define {upper}_WIDTH {width}",
        f"#define {upper}_INPUT_COUNT {channels * height * width}",
    ]
    for output, value in program.outputs.items():
        shape = program.values[value].shape
        lines.append(
            f"#define {upper}_{identifier(output).upper()}_COUNT {int(np.prod(shape))} /* {_size(shape)} */"
        )
    lines += [
        f"#define {upper}_ARENA_BYTES {writer.memory.arena} /* all memory beside the stack */",
        *writer.header_lines(upper),
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        f"/* Runs the network. `image`: {what}, {height} x {width} x {channels} in the order {order}.",
        "   There is one arena: calls must not overlap. */",
        f"void {name}_run({_arguments(writer)});",
    ]
    if _is_classifier(writer):
        lines += [
            "",
            "/* The index of the greatest output. */",
            f"int32_t {name}_classify(const {ctype} *image);",
        ]
    if program.labels is not None:
        lines += ["", f"extern const char *const {name}_labels[{len(program.labels)}];"]
    return [*lines, "", "#ifdef __cplusplus", "}", "#endif", "", "#endif"]
