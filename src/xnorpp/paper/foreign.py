"""Tables of networks of other people (`benchmarks/zoo.py`), and of int8 (`benchmarks/int8_accuracy.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from xnorpp.paper.recorded import Row, newest, of_kind

ENOUGH = 0.99  # of the inputs, with torch's class
NOTHING = "Nothing is recorded in `results/` yet."
_FILES = {"zoo.jsonl": "listed networks", "zoo_unlisted.jsonl": "networks that no list asked for"}
_CONSTRUCTS = "constructs that people write"


def passes(row: Row) -> bool:
    """Whether a network packs, gives torch's classes, and `verify` holds."""
    return bool(row.get("packs") and row.get("same_class", 1.0) >= ENOUGH and row.get("verify", True))


def differs_as_torch(row: Row) -> bool:
    """Whether torch differs from itself, and the packed model is as near to float64 as torch's float32.

    By the classes, or by the values inside of the network, whose error is not a matter of few classes.
    """
    if not row.get("verify") or "rounding" not in row:
        return False
    wide, rounding = row["torch_in_float64"], row["rounding"]
    own = min(wide["torch"], *row["torch_with_other_kernels"].values())
    near = wide["packed"] >= wide["torch"] or rounding["packed"] <= rounding["torch"]
    return bool(own < ENOUGH and near)


def zoo(rows: Sequence[Row]) -> str:
    """How many networks hold, and a line for each that does not."""
    found = newest([row for row in rows if row["kept_in"] in _FILES], "kept_in", "network")
    if not found:
        return NOTHING
    groups: dict[str, list[Row]] = {}
    for row in found:
        construct = str(row["network"]).startswith("construct:")
        groups.setdefault(_CONSTRUCTS if construct else _FILES[row["kept_in"]], []).append(row)
    lines = [
        "| | tried | hold | differ where torch differs from itself | refused | others |",
        "|---|---|---|---|---|---|",
    ]
    for name, members in groups.items():
        good, alike = (sum(map(check, members)) for check in (passes, _alike))
        refused = sum(not row.get("packs") for row in members)
        others = len(members) - good - alike - refused
        lines.append(f"| {name} | {len(members)} | {good} | {alike} | {refused} | {others} |")
    failed = [row for row in found if not passes(row)]
    if failed:
        lines += ["", *_failures(failed)]
    return "\n".join(lines)


def _alike(row: Row) -> bool:
    return not passes(row) and differs_as_torch(row)


def _failures(rows: Sequence[Row]) -> list[str]:
    lines = []
    differing = [row for row in rows if row.get("packs")]
    if differing:
        lines += [
            "| network | torch's class, % of inputs | torch in float64: torch, packed "
            "| torch again: without oneDNN, channels last | median error of values: torch, packed |",
            "|---|---|---|---|---|",
        ]
    for row in differing:
        wide, again, error = (
            row.get(key) or {} for key in ("torch_in_float64", "torch_with_other_kernels", "rounding")
        )
        cells = (
            row["network"],
            _percent(row["same_class"]),
            ", ".join(_percent(wide[key]) for key in ("torch", "packed") if key in wide),
            ", ".join(map(_percent, again.values())) if isinstance(again, Mapping) else "",
            ", ".join(f"{error[key]:.1e}" for key in ("torch", "packed") if key in error),
        )
        lines.append("| " + " | ".join(cells) + " |")
    refused = [row for row in rows if not row.get("packs")]
    if refused:
        lines += ["", "| refused | the first reason |", "|---|---|"]
    for row in refused:
        reason = str((row.get("obstacles") or [row.get("error", "")])[0])
        lines.append(f"| {row['network']} | {reason.replace('|', '&#124;')} |")
    return lines


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def int8(rows: Sequence[Row]) -> str:
    """Size, accuracy and equal answers of each network that ships, as it is and with int8."""
    found = newest(of_kind(rows, "int8 weights"), "model")
    if not found:
        return NOTHING
    lines = [
        "| model | images | top-1 %: as it is | with calibration | without | same answers %: with | without "
        "| bytes: as it is | with calibration | without |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found:
        sizes = [f"{row[key]:,}" for key in ("bytes", "bytes_calibrated", "bytes_int8")]
        shares = [f"{row[key]:.2f}" for key in ("top1", "top1_calibrated", "top1_int8")]
        shares += [f"{row[key]:.2f}" for key in ("same_calibrated", "same_int8")]
        lines.append(f"| {row['model']} | {row['images']:,} | {' | '.join([*shares, *sizes])} |")
    tolerances = sorted({row["calibration"]["tolerance"] for row in found})
    return "\n".join([*lines, "", f"Tolerance of the calibration: {', '.join(map(str, tolerances))}."])


BLOCKS: dict[str, Callable[[Sequence[Row]], str]] = {"zoo": zoo, "int8": int8}
