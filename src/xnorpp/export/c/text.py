"""The text of a generated source: constants, functions that several layers share, and the parts they call."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

WIDTH = 112


def identifier(text: str) -> str:
    """A C identifier that resembles a name."""
    plain = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_")
    return plain if plain and not plain[0].isdigit() else f"n_{plain}"


def comment(text: str) -> str:
    """Text that may stand in a C comment."""
    return (
        text.replace("*/", "* /")
        .replace("/*", "/ *")
        .replace("\n", " ")
        .replace("??", "? ?")
        .replace("\\", "/")
    )


def number(value: float) -> str:
    """A float32 as a C constant that reads back as the same number."""
    if np.isinf(value):
        return "INFINITE" if value > 0 else "-INFINITE"
    text = f"{np.float32(value):.9g}"
    return text + ("f" if "." in text or "e" in text else ".0f")


def whole(value: int) -> str:
    """A C constant of type int32_t; -2^31 has no literal of its own."""
    return "(-2147483647 - 1)" if value == -(1 << 31) else str(value)


class Constants:
    """The constant arrays of a source; equal ones are stored once."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.bytes = 0
        self._names: dict[tuple[str, bytes], str] = {}
        self._taken: set[str] = set()

    def add(self, ctype: str, name: str, values: Array) -> str:
        """The C name of an array with these values."""
        flat = np.ascontiguousarray(values).reshape(-1)
        key = (ctype, flat.tobytes())
        if key in self._names:
            return self._names[key]
        unique = name = identifier(name)
        count = 1
        while unique in self._taken:
            count += 1
            unique = f"{name}_{count}"
        self._taken.add(unique)
        self._names[key] = unique
        self.lines.append(f"static const {ctype} {unique}[{flat.size}] = {{")
        self.lines += wrapped([literal(ctype, value) for value in flat])
        self.lines.append("};")
        self.bytes += flat.nbytes
        return unique


def literal(ctype: str, value: Any) -> str:
    if ctype == "float":
        return number(value)
    return f"0x{int(value):08x}u" if ctype == "uint32_t" else whole(int(value))


def wrapped(items: list[str], indent: str = "    ") -> list[str]:
    """Items with commas, in lines of a readable width."""
    lines, line = [], indent
    for item in items:
        if len(line) + len(item) + 2 > WIDTH:
            lines.append(line.rstrip())
            line = indent
        line += item + ", "
    return [*lines, line.rstrip().rstrip(",")]


@dataclass
class Function:
    """What one layer computes, as C: `fields` of its description with this layer's values, code for each
    pixel and code for each channel. Layers of the same structure share one function."""

    title: str
    fields: dict[str, tuple[str, str]] = field(default_factory=dict)
    per_pixel: list[str] = field(default_factory=list)
    per_channel: list[str] = field(default_factory=list)
    after_channels: list[str] = field(default_factory=list)

    def take(self, ctype: str, name: str, value: str) -> str:
        """Add a field of the layer's description; the C expression that reads it."""
        unique, count = name, 1
        while unique in self.fields:
            count += 1
            unique = f"{name}{count}"
        self.fields[unique] = (ctype, value)
        return f"l->{unique}"

    def definition(self, name: str) -> list[str]:
        """The struct and the function."""
        body = [*self.per_pixel, *self.per_channel, *self.after_channels]
        used = " ".join(body)
        fields = [f"    {_declare(ctype, field)};" for field, (ctype, _) in self.fields.items()]
        pixel = (
            ["            const int32_t pixel = y * l->columns + x;"]
            if re.search(r"\bpixel\b|\bi\b", used)
            else []
        )
        element = (
            ["                const int32_t i = pixel * l->channels + o;"]
            if re.search(r"\bi\b", used)
            else []
        )
        return [
            f"/* {self.title} */",
            f"struct {name} {{",
            *fields,
            "};",
            "",
            f"static void run_{name}(const struct {name} *l)",
            "{",
            "    for (int32_t y = 0; y < l->rows; y++)",
            "        for (int32_t x = 0; x < l->columns; x++) {",
            *pixel,
            *(f"            {line}" for line in self.per_pixel),
            "            for (int32_t o = 0; o < l->channels; o++) {",
            *element,
            *(f"                {line}" for line in self.per_channel),
            "            }",
            *(f"            {line}" for line in self.after_channels),
            "        }",
            "}",
        ]

    def description(self, name: str, layer: str) -> list[str]:
        """This layer's constant description."""
        rows = [f".{field} = {value}" for field, (_, value) in self.fields.items()]
        return [f"static const struct {name} {layer} = {{", *wrapped(rows), "};"]


def _declare(ctype: str, name: str) -> str:
    return f"{ctype}{name}" if ctype.endswith("*") else f"{ctype} {name}"


@cache
def _parts(mode: str) -> dict[str, tuple[tuple[str, ...], str]]:
    found = {}
    for file in ("shared", mode, *(["curves"] if mode == "float" else [])):
        text = (files("xnorpp.export.c") / "kernels" / f"{file}.c").read_text(encoding="utf-8")
        for part in text.split("//@ ")[1:]:
            head, _, body = part.partition("\n")
            name, *needs = head.split()
            found[name] = (tuple(needs), body.strip("\n"))
    return found


def parts(mode: str, names: Iterable[str]) -> list[str]:
    """The parts of a mode that are named, with all that they need, in the order of the files."""
    known = _parts(mode)
    wanted: set[str] = set()
    queue = list(names)
    while queue:
        name = queue.pop()
        if name not in wanted:
            wanted.add(name)
            queue += known[name][0]
    return [body for name, (_, body) in known.items() if name in wanted]
