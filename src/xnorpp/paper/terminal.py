"""What a command printed, drawn as a terminal: an SVG that reads well on light and dark pages."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xnorpp.paper.recorded import Row, of_kind

SIZE, LINE, MARGIN, BAR = 14, 20, 18, 30  # pixels: text, line, margin, title bar
WIDE = 0.6025  # the width of a character of a monospaced font, of its size
PAGE, TEXT, PROMPT, STRONG = "#1b1f27", "#d7dce5", "#8fd18f", "#ff9d76"
FONT = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"


def demo_data(rows: Sequence[Row]) -> Any:
    """[command, output] of the latest recorded run of `make demo`; empty if there is none."""
    runs = [row for row in of_kind(rows, "captured") if row["name"] == "demo"]
    return ["make demo", runs[-1]["output"]] if runs else []


def terminal_svg(command: str, output: str, description: str) -> str:
    """A terminal with a command and what it printed, line after line.

    Args:
        command: What was typed.
        output: What was printed; lines with `packed` or `Packed` are emphasised.
        description: Goes into the metadata.
    """
    lines = [f"$ {command}", *output.splitlines()]
    width = 2 * MARGIN + round(WIDE * SIZE * max(map(len, lines)))
    height = BAR + 2 * MARGIN + LINE * len(lines) - LINE // 2
    drawn = []
    for number, line in enumerate(lines):
        colour = PROMPT if not number else STRONG if "packed" in line.lower() or "one bit" in line else TEXT
        place = BAR + MARGIN + LINE * number + SIZE // 2
        drawn.append(
            f'<text class="line" x="{MARGIN}" y="{place}" fill="{colour}">{html.escape(line)}</text>'
        )
    dots = [
        f'<circle cx="{MARGIN + 18 * i}" cy="{BAR // 2}" r="5.5" fill="{colour}"/>'
        for i, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">',
            f"<desc>{html.escape(description)}</desc>",
            "<style>",
            f".line {{ font: {SIZE}px {FONT}; white-space: pre }}",
            "</style>",
            f'<rect width="{width}" height="{height}" rx="8" fill="{PAGE}"/>',
            *dots,
            *drawn,
            "</svg>",
            "",
        ]
    )


def write_terminal(path: Path, command: str, output: str, *, description: str) -> None:
    """`terminal_svg` as a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(terminal_svg(command, output, description), encoding="utf-8")
