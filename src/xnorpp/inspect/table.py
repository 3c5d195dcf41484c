"""An inspection as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from xnorpp.inspect.layer import Inspection, Layer
from xnorpp.runtime.predict import printable


def amount(number: float) -> str:
    """A count in three digits: 512, 1.2 k, 118 M, 1.71 G."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f}"


def columns(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Rows padded to equal widths; the columns numbered in `right` are flushed right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []
    lines = []
    for row in rows:
        cells = [
            text.rjust(width) if index in right else text.ljust(width)
            for index, (text, width) in enumerate(zip(row, widths))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def render(found: Inspection) -> str:
    """Format an inspection as text.

    Args:
        found: The report of `inspect_network`, `inspect_program` or `inspect_file`.

    Returns:
        A table with one row per layer, the totals, and the warnings.

    Example:
        >>> import xnorpp
        >>> from xnorpp.inspect import inspect_program, render
        >>> text = render(inspect_program(xnorpp.load("cifar10-resnet20").program))
        >>> text.splitlines()[1].split()[:3]
        ['layer', 'kind', 'in']
    """
    head = ["layer", "kind", "in -> out", "state", "W/A bits", "bytes", "binary", "real", "padding", "theory"]
    timed = any(layer.measured for layer in found.layers)
    if timed:
        head += ["packed ms", "real ms", "measured"]
    head.append("why")
    body = [_cells(layer, timed) for layer in found.layers]
    right = tuple(range(5, len(head) - 1))
    lines = [printable(found.title), *columns([head, *body], right), ""]
    binary = sum(layer.binary_operations for layer in found.layers)
    real = sum(layer.real_operations for layer in found.layers) + found.other_operations
    wasted = sum(layer.wasted_bits for layer in found.layers)
    size = "in the file" if found.file_bytes is not None else "when packed, the file's header not counted"
    share = f" ({100 * binary / (binary + real):.1f} % binary)" if binary + real else ""
    lines += [
        f"{found.count('binary')} layers binary, {found.count('one-bit weights')} with one-bit weights, "
        f"{found.count('real')} real",
        f"{found.total_bytes:,} bytes {size}; the weights alone are {found.float_bytes:,} in float32 "
        f"({found.float_bytes / max(found.total_bytes, 1):.1f} times)",
        f"{amount(binary)} binary and {amount(real)} real multiply-adds per image{share}; "
        f"{wasted:,} padding bits (channel count not a multiple of 8)",
        "theory: the paper's speed-up of a layer, S_OURS (with XNOR-Net's factors: S_XNOR)",
    ]
    if found.timed:
        lines.append(f"measured: {found.timed}")
    lines += [f"warning: {printable(text)}" for text in found.warnings]
    return "\n".join(lines)


def _cells(layer: Layer, timed: bool) -> list[str]:
    geometry, theory = layer.geometry, layer.theory
    before = f"{geometry.inputs}"
    after = f"{geometry.outputs}"
    if not geometry.linear:
        before += f"@{geometry.input_size[0]}x{geometry.input_size[1]}"
        after += f"@{geometry.output_size[0]}x{geometry.output_size[1]}"
    wasted = f"{layer.wasted_bits:,}"
    if layer.weight_bits == 1 and geometry.word_waste:
        wasted += f" ({100 * geometry.word_waste:.0f} % of words)"
    cells = [
        printable(layer.name),
        geometry.describe(),
        f"{before} -> {after}",
        layer.state,
        f"{layer.weight_bits}/{layer.input_bits}",
        f"{layer.bytes:,}",
        amount(layer.binary_operations),
        amount(layer.real_operations),
        wasted,
        f"{theory[1]:.2f}x ({theory[0]:.2f}x)" if theory else "-",
    ]
    if timed:
        measured = layer.measured
        cells += (
            [
                f"{1e3 * measured.packed.median:.3f}",
                f"{1e3 * measured.real.median:.3f}",
                f"{measured.speedup:.1f}x",
            ]
            if measured
            else ["-", "-", "-"]
        )
    return [*cells, layer.why]
