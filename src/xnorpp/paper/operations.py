"""The tables of the operation sets in docs/format.md, from the rows of the core and of the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xnorpp.runtime.format.ops import Rule, operations
from xnorpp.runtime.reference import ROWS

HEADER = "| operation | inputs -> output | attributes | tensors |\n|---|---|---|---|"
GROUPS = {  # tensors that the page explains together
    "spatial?": ("row", "col", "map", "full"),
    "bytes?": ("byte_weight", "byte_mean", "byte_rest", "byte_scale"),
}


def _attributes(name: str, names: Sequence[str], mark: str = "") -> list[str]:
    notes = ROWS[name].notes
    return [f"{attr}{mark} ({notes[attr]})" if attr in notes else f"{attr}{mark}" for attr in names]


def _tensors(name: str, rule: Rule) -> list[str]:
    notes, cells = ROWS[name].notes, []
    for role in (*rule.required, *rule.optional):
        group = next((group for group, roles in GROUPS.items() if role in roles), None)
        cell = group or f"`{role}`{'?' * (role in rule.optional)} {notes.get(role, '')}".rstrip()
        if cell not in cells:
            cells.append(cell)
    return cells


def _cells(name: str, rule: Rule, since: int) -> tuple[str, str, str]:
    if rule.since < since:
        return "as in set 1", ", ".join(_attributes(name, rule.more_attrs, "?")), ""
    return ROWS[name].form, ", ".join(_attributes(name, rule.attrs)), ", ".join(_tensors(name, rule))


def _table(since: int) -> str:
    """The operations that a set adds, those of the same form in one row; then what they mean."""
    rows = operations()
    new = [name for name, rule in rows.items() if rule.since == since]
    new += [name for name, rule in rows.items() if since == 2 and rule.since == 1 and rule.more_attrs]
    lines, alike = [HEADER], dict[tuple[str, str, str], list[str]]()
    for name in new:
        alike.setdefault(_cells(name, rows[name], since), []).append(name)
    for (form, attributes, tensors), names in alike.items():
        row = f"| {', '.join(f'`{name}`' for name in names)} | {form} | {attributes} | {tensors} |"
        lines.append(row.replace("|  |", "| |").replace("|  |", "| |"))
    meanings = [f"**{name}** {ROWS[name].meaning}" for name in new if ROWS[name].meaning]
    return "\n\n".join(["\n".join(lines), *meanings])


def later_sets() -> str:
    """A section for each set after the second."""
    newest = max(rule.since for rule in operations().values())
    return "\n\n".join(
        f"## Operation set {since}\n\nSet {since} has those of set {since - 1} and\n\n{_table(since)}\n"
        for since in range(3, newest + 1)
    )


# Drawn by benchmarks/draw_readme.py; the rows of results/ do not matter here.
BLOCKS: dict[str, Callable[[Sequence[dict[str, Any]]], str]] = {
    "operation_set_1": lambda rows: _table(1),
    "operation_set_2": lambda rows: _table(2),
    "later_operation_sets": lambda rows: later_sets(),
}
