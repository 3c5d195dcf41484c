"""Draws docs/results.md, tables of the README and docs/plots from results/*.jsonl: no number is typed.

Blocks hold numbers only. Conclusions are sentences that a person writes outside of them, and checks when the
numbers change.

A document has blocks, `<!-- drawn: NAME -->` to `<!-- end -->`; `BLOCKS` has the function that fills each. A
table that no page has a place for is drawn in the block `further` of docs/results.md. The script
`benchmarks/draw_readme.py` draws these, its own and the plots; `xnorpp paper report` these alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from xnorpp.paper.accuracy.choices import ablation_block, trials_block
from xnorpp.paper.accuracy.claim import claim_block, enlarged_block, readme_block, short_block
from xnorpp.paper.accuracy.levers import baselines_block, large_levers_block, levers_block, students_block
from xnorpp.paper.accuracy.tables import (
    runs_block,
    shipped_block,
    table1_block,
    table3_block,
    table3_revised_block,
)
from xnorpp.paper.layers.tables import (
    figure1_block,
    imagenet_block,
    storage_block,
    table2_block,
)
from xnorpp.paper.plots import PLOTS, Plot, digest, drawn_from
from xnorpp.paper.recorded import Row
from xnorpp.paper.speed import headline_block, home_block, speed_block

BLOCK = re.compile(r"(<!-- drawn: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
FOLDER = Path("docs") / "plots"
FURTHER = "further"  # the block of what has no place yet
ELSEWHERE = frozenset(
    ("headline", "home", "paper_short", "speed_short")
)  # on other pages than docs/results.md

Draw = Callable[[Sequence[Row]], str]


def with_plot(name: str, draw: Draw, plot: Plot | None = None) -> Draw:
    """The table followed by its plot, where there is something to plot; `plot` where `PLOTS` has none."""
    if plot is not None:
        PLOTS[name] = plot

    def drawn(rows: Sequence[Row]) -> str:
        data, _ = PLOTS[name]
        return draw(rows) + (f"\n\n![{name}]({FOLDER.name}/{name}.svg)" if data(rows) else "")

    return drawn


BLOCKS: dict[str, Draw] = {
    "paper_short": readme_block,
    "speed_short": speed_block,
    "headline": headline_block,
    "home": home_block,
    "best": with_plot("shipped", shipped_block),
    "claim": with_plot("claim", claim_block),
    "short": with_plot("short", short_block),
    "enlarged": enlarged_block,
    "table1": with_plot("table1", table1_block),
    "table2": with_plot("table2", table2_block),
    "table3": with_plot("table3", table3_block),
    "table3_revised": table3_revised_block,
    "figure1": with_plot("figure1", figure1_block),
    "storage": storage_block,
    "ablation": with_plot("ablation", ablation_block),
    "trials": with_plot("trials", trials_block),
    "baselines": baselines_block,
    "students": students_block,
    "levers": levers_block,
    "large_levers": large_levers_block,
    "imagenet": imagenet_block,
    "runs": runs_block,
}


def fill(text: str, rows: Sequence[Row], blocks: Mapping[str, Draw]) -> str:
    """The text with its blocks filled; a block that is not in `blocks` stays as it is."""
    placed = {found[2] for found in BLOCK.finditer(text)} | ELSEWHERE

    def drawn(found: re.Match[str]) -> str:
        if found[2] == FURTHER:
            new = [f"## {name}\n\n{draw(rows)}\n" for name, draw in BLOCKS.items() if name not in placed]
            return found[1] + "\n".join(new) + found[3]
        if found[2] not in blocks:
            return found[0]
        return found[1] + blocks[found[2]](rows) + "\n" + found[3]

    return BLOCK.sub(drawn, text)


def documents(root: Path) -> list[Path]:
    """The README and the pages of docs/."""
    found = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    if not found[0].is_file():
        raise ValueError(f"`root` (={str(root)!r}) must be a checkout, and has no README.md")
    return found


def stale_plots(root: Path, rows: Sequence[Row]) -> list[str]:
    """The plots whose numbers are not those of the rows, or that are missing."""
    stale = []
    for name, (data, _) in PLOTS.items():
        numbers = data(rows)
        if numbers and drawn_from(root / FOLDER / f"{name}.svg") != digest(numbers):
            stale.append(name)
    return stale


def draw_plots(root: Path, rows: Sequence[Row]) -> list[str]:
    """Draw the plots that are out of date; their names."""
    stale = stale_plots(root, rows)
    for name in stale:
        PLOTS[name][1](rows, root / FOLDER / f"{name}.svg")
    return stale


def draw_documents(
    root: Path, rows: Sequence[Row], *, write: bool = True, blocks: Mapping[str, Draw] = BLOCKS
) -> list[str]:
    """Fill the blocks of every document and draw the plots; the names of what was out of date."""
    stale = [f"{name}.svg" for name in (draw_plots if write else stale_plots)(root, rows)]
    for path in documents(root):
        old = path.read_text(encoding="utf-8")
        new = fill(old, rows, blocks)
        if new != old:
            stale.append(path.name)
            if write:
                path.write_text(new, encoding="utf-8")
    return stale
