"""The tables of accuracy: Tables 1 and 3, the models that ship, and all runs.

Missing rows are shown as "not measured yet". Only results on the test set enter Tables 1 and 3; what was
measured on the held-out part of the training set is in `choices.py` and in the list of all runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xnorpp.paper import published
from xnorpp.paper.accuracy.runs import CLAIM_SEEDS, EXPERIMENTS, REVISED_ROWS
from xnorpp.paper.layers.tables import NOT_MEASURED, markdown
from xnorpp.paper.recorded import Row, Seeds, accuracy, of_kind, welch
from xnorpp.shipped.accuracy import has_top5
from xnorpp.training.recipe.config import Recipe
from xnorpp.training.state.resume import FREE_TO_CHANGE

DATASETS = {"tiny_imagenet": "Tiny-ImageNet-200", "cifar10": "CIFAR-10"}
TABLE1 = ("bnn", "xnor-alpha", "xnor", "case1", "case2", "case3", "case4", "real")
TABLE3 = {
    "alexnet": ("bnn", "xnor", "case4", "real"),
    "resnet18": ("bnn", "xnor", "bethge", "case4", "real"),
}
EPOCHS = 80
MODELS = ("cifar10-resnet20", "cifar10-resnet18", "tiny-imagenet-resnet18")


def top1(row: Row) -> float:
    return float(row["metrics"]["top1"])


def top5(row: Row) -> float:
    return float(row["metrics"]["top5"])


def loss(row: Row) -> float:
    return float(row["metrics"]["loss"])


def train_top1(row: Row) -> float:
    return float(row["metrics"]["train_top1"])


def by_row(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: int(row["seed"])):
        found.setdefault(str(row["row"]), []).append(row)
    return found


def table1_groups(rows: Sequence[Row], dataset: str) -> dict[int, dict[str, list[Row]]]:
    """epochs -> row of Table 1 -> its runs, the longest schedule first; the paper's if there is none."""
    return by_epochs(accuracy(rows, experiment="table1", dataset=dataset, network="resnet18"))


def table3_groups(rows: Sequence[Row], network: str) -> dict[int, dict[str, list[Row]]]:
    """The same of Table 3, on Tiny-ImageNet; the ResNet-18 rows are those of Table 1."""
    tables = ("table3", "table1")
    return by_epochs(accuracy(rows, experiment=tables, dataset="tiny_imagenet", network=network))


def by_epochs(chosen: Sequence[Row]) -> dict[int, dict[str, list[Row]]]:
    lengths = sorted({int(row["epochs"]) for row in chosen}, reverse=True) or [EPOCHS]
    return {length: by_row([row for row in chosen if row["epochs"] == length]) for length in lengths}


def complete(found: dict[str, list[Row]], seeds: Sequence[int]) -> dict[str, list[Row]]:
    """The rows that have all of these seeds, each with these seeds only; without seeds, all rows as they are.

    A row enters a comparison once its planned seeds are there, so that no mean is over a choice of them.
    """
    if not seeds:
        return found
    planned = {name: [run for run in runs if int(run["seed"]) in seeds] for name, runs in found.items()}
    return {name: runs for name, runs in planned.items() if len(runs) == len(seeds)}


def replaced_rows(rows: Sequence[Row], dataset: str) -> set[str]:
    """The rows of Table 1 that E1 measured again, by better means."""
    found = by_row(accuracy(rows, experiment="claim", dataset=dataset, network="resnet18", epochs=EPOCHS))
    return set(complete(found, CLAIM_SEEDS))


def table1_block(rows: Sequence[Row]) -> str:
    """One table per data set and schedule: mean ± deviation over seeds, and the paper's on ImageNet."""
    parts = []
    for dataset, name in DATASETS.items():
        for epochs, found in table1_groups(rows, dataset).items():
            replaced = replaced_rows(rows, dataset) if epochs == EPOCHS else set()
            real = Seeds.of(found["real"], top1).mean if "real" in found else None
            body = []
            for row in TABLE1:
                name_of_row = published.METHODS[row] + " (superseded by E1)" * (row in replaced)
                paper = printed_accuracy(row)
                if row not in found:
                    body.append([name_of_row, NOT_MEASURED, "", "", "", paper])
                    continue
                seeds = Seeds.of(found[row], top1)
                behind = f"{seeds.mean - real:+.2f}" if real is not None and row != "real" else ""
                others = [Seeds.of(found[row], top5).text(), Seeds.of(found[row], loss).text(3)]
                body.append([name_of_row, seeds.text(), *others, behind, paper])
            head = ["method", "top-1 %", "top-5 %", "test loss", "minus real, top-1",
                    "paper, ImageNet: top-1 / top-5 %"]  # fmt: skip
            parts.append(f"**ResNet-18 on {name}, {epochs} epochs**\n\n{markdown(head, body)}")
            parts.append(differences(found))
    return "\n\n".join(parts)


def printed_accuracy(row: str) -> str:
    """What the paper prints for a row of ResNet-18, top-1 / top-5 % on ImageNet."""
    printed = published.RESNET18.get(row)
    return f"{printed[0]} / {printed[1]}" if printed else "not printed"


# (label, rows, rows to subtract)
Comparison = tuple[str, tuple[str, ...], tuple[str, ...]]
# Those of the paper's claim, and of learned with analytic scales.
COMPARISONS: tuple[Comparison, ...] = (
    ("Case 4 minus XNOR-Net with K", ("case4",), ("xnor",)),
    ("Case 4 minus XNOR-Net without K", ("case4",), ("xnor-alpha",)),
    ("Case 4 minus Case 1", ("case4",), ("case1",)),
    (
        "Cases 1, 3 and 4 minus XNOR-Net with and without K",
        ("case1", "case3", "case4"),
        ("xnor", "xnor-alpha"),
    ),
)


def sides(
    found: dict[str, list[Row]], comparison: Comparison
) -> tuple[Sequence[Row], Sequence[Row], bool] | None:
    """The runs of both sides of a comparison, and whether every row has two seeds, which a test needs; None
    where a row is missing.
    """
    _, ours, others = comparison
    if not set(ours) | set(others) <= set(found):
        return None
    first, second = ([row for name in names for row in found[name]] for names in (ours, others))
    return first, second, min(len(found[name]) for name in (*ours, *others)) > 1


def printed_difference(comparison: Comparison) -> str:
    """What the paper's numbers give for a comparison of two rows, top-1 points."""
    _, ours, others = comparison
    printed = published.RESNET18
    both = len(ours) == len(others) == 1 and ours[0] in printed and others[0] in printed
    return f"{printed[ours[0]][0] - printed[others[0]][0]:+.1f}" if both else "not printed"


NOTE = "In brackets: the 95 % interval and p of Welch's t-test, which needs two seeds of every row."


def differences(
    found: dict[str, list[Row]], comparisons: Sequence[Comparison] = COMPARISONS, *, paper: bool = True
) -> str:
    """Differences of means with their intervals and p-values, for three measures; with `paper` its top-1 too,
    and what the brackets are.
    """
    body = []
    for comparison in comparisons:
        both = sides(found, comparison)
        if both is None:
            body.append([comparison[0], NOT_MEASURED, "", "", "", *[""] * paper])
            continue
        first, second, test = both
        cells = [
            difference(first, second, read, digits, test=test)
            for read, digits in ((top1, 2), (top5, 2), (loss, 3))
        ]
        runs = f"{len(first)} and {len(second)}"
        body.append([comparison[0], runs, *cells, *[printed_difference(comparison)] * paper])
    head = ["difference of means", "runs", "top-1, points", "top-5, points", "test loss"]
    if not paper:
        return markdown(head, body)
    return markdown([*head, "paper, ImageNet: top-1"], body) + f"\n\n{NOTE}"


def difference(
    first: Sequence[Row], second: Sequence[Row], read: Callable[[Row], float], digits: int, *, test: bool
) -> str:
    """A difference of means, with its interval and p-value if `test`."""
    a, b = Seeds.of(first, read), Seeds.of(second, read)
    text = f"{a.mean - b.mean:+.{digits}f}"
    interval = welch(a, b) if test else None
    if interval is None:
        return text
    p = "p < 0.001" if interval.p < 0.001 else f"p {interval.p:.3f}"
    return f"{text} ({interval.low:+.{digits}f} to {interval.high:+.{digits}f}, {p})"


def table3_block(rows: Sequence[Row]) -> str:
    """Both networks, one table per schedule."""
    parts = []
    for network, wanted in TABLE3.items():
        title, printed = published.NETWORKS[network]
        for epochs, found in table3_groups(rows, network).items():
            body = []
            for row in wanted:
                name = "Ours (Case 4)" if row == "case4" else published.METHODS[row]
                paper = f"{printed[row][0]} / {printed[row][1]}"
                if row in found:
                    body.append(
                        [name, Seeds.of(found[row], top1).text(), Seeds.of(found[row], top5).text(), paper]
                    )
                else:
                    body.append([name, NOT_MEASURED, "", paper])
            head = ["method", "top-1 %", "top-5 %", "paper, ImageNet: top-1 / top-5 %"]
            parts.append(f"**{title} on Tiny-ImageNet-200, {epochs} epochs**\n\n{markdown(head, body)}")
    return "\n\n".join(parts)


def table3_revised_block(rows: Sequence[Row]) -> str:
    """Table 3 again, one seed each: what was run of it."""
    found = {
        network: by_row(accuracy(rows, experiment="table3-revised", dataset="tiny_imagenet", network=network))
        for network in ("alexnet", "resnet18")
    }
    parts = []
    for network, wanted, change in (
        ("alexnet", REVISED_ROWS, "batch norm measured without dropout"),
        ("resnet18", ("bethge",), "a batch norm after each convolution"),
    ):
        title = f"**{published.NETWORKS[network][0]} on Tiny-ImageNet-200, {change}**"
        if not found[network]:
            parts.append(f"{title}: {NOT_MEASURED}.")
            continue
        body = [[published.METHODS[row], *_measures(found[network].get(row))] for row in wanted]
        head = ["method", "top-1 %", "top-5 %", "test loss", "training top-1 %"]
        parts.append(f"{title}\n\n{markdown(head, body)}")
    return "\n\n".join(parts)


def _measures(runs: Sequence[Row] | None) -> list[str]:
    if not runs:
        return [NOT_MEASURED, "", "", ""]
    return [
        Seeds.of(runs, top1).text(),
        Seeds.of(runs, top5).text(),
        Seeds.of(runs, loss).text(3),
        Seeds.of(runs, train_top1).text(),
    ]


def shipped_models(rows: Sequence[Row]) -> dict[str, Row | None]:
    """Name -> its packed and torch's top-1, bytes, latency and baseline; None where nothing is measured."""
    cards = {row["name"]: row for row in of_kind(rows, "shipped") if not row.get("refused")}
    trained = accuracy(rows, experiment="shipped")
    found: dict[str, Row | None] = {}
    for name in dict.fromkeys([*MODELS, *cards, *(str(row["name"]) for row in trained if row.get("name"))]):
        own = [row for row in trained if row.get("name") == name]
        baselines = [row for row in own if row["row"] == "real"]
        binary = [row for row in own if row["row"] != "real"]
        card = cards.get(name)
        known: Row = {"baseline": top1(baselines[-1]) if baselines else None, "torch": None, "packed": None}
        if binary:
            packed = binary[-1].get("packed") or {}
            known.update(
                torch=top1(binary[-1]),
                packed=packed.get("top1"),
                top5=_points(packed.get("top5")),
                bytes=packed.get("file_bytes"),
                epochs=binary[-1]["epochs"],
            )
        if card:
            result = card["accuracy"]
            known.update(
                torch=result["torch_top1"],
                packed=result["packed_top1"],
                top5=_points(result["packed_top5"]) if has_top5(len(card["data"]["classes"])) else "",
                bytes=card["file"]["bytes"],
                milliseconds=card["latency"]["from_bytes_median"],
                calibration=result.get("calibration_error"),
            )
            if card.get("baseline"):
                known["baseline"] = card["baseline"]["top1"]
        found[name] = known if own or card else None
    return found


def shipped_block(rows: Sequence[Row]) -> str:
    """One row per model: accuracy of the packed file, of torch and of the real-valued baseline."""
    body = []
    for name, known in shipped_models(rows).items():
        known = known or {}
        packed, baseline = known.get("packed"), known.get("baseline")
        body.append(
            [
                name,
                _points(packed),
                known.get("top5", NOT_MEASURED),
                _points(known.get("torch")),
                _points(baseline),
                f"{baseline - packed:.2f}" if packed is not None and baseline is not None else "",
                f"{known['bytes'] / 1e6:.2f}" if known.get("bytes") else NOT_MEASURED,
                f"{known['milliseconds']:.2f}" if known.get("milliseconds") else NOT_MEASURED,
                NOT_MEASURED if known.get("calibration") is None else f"{known['calibration']:.3f}",
            ]
        )
    head = [
        "model",
        "packed top-1 %",
        "packed top-5 %",
        "torch top-1 %",
        "real-valued baseline, top-1 %",
        "baseline minus packed",
        "file, MB",
        "ms per image from bytes, 1 thread",
        "calibration error",
    ]
    return markdown(head, body)


def _points(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:.2f}"


def _packed_and_note(
    row: Row,
    found: Sequence[Row],
    packed: dict[tuple[str, int], float],
    ships: dict[str, tuple[str, int]],
) -> list[str]:
    """The accuracy of the packed file, for runs of models that ship, and a note."""
    same = ("experiment", "dataset", "network", "row", "epochs", "seed", "split", "factor", "level")
    notes = [str(row[key]) for key in ("flaw", "note") if row.get(key)]
    alike = [one for one in found if all(one.get(key) == row.get(key) for key in same)]
    if len(alike) > 1:
        differing = _differing_settings(row, alike)
        with_what = f"the same seed; here {', '.join(differing)}" if differing else "the same seed and recipe"
        return ["", "; ".join((f"trained {len(alike)} times, {with_what}", *notes))]
    own = str(row["recipe"]), int(row["epochs"])
    value = packed.get(own)
    if row["experiment"] != "shipped" or row["row"] != "best" or value is None:
        return ["", "; ".join(notes)]
    last = [one for one in found if (one["experiment"], one["row"]) == ("shipped", "best")]
    last = [one for one in last if one.get("name") == row.get("name")]
    here = row is last[-1] and ships.get(str(row.get("name")), own) == own
    return [f"{value:.2f}", "ships" if here else "replaced"]


def _differing_settings(row: Row, alike: Sequence[Row]) -> list[str]:
    """`key=value` of this run for each setting in which the runs differ. A key that one of them lacks was
    added to recipes later, and its default is what was done before; one without a default was removed since.
    What enters no arithmetic, such as how often a checkpoint was saved, is left out.
    """
    recorded = [_settings(one) for one in alike]
    keys = set().union(*recorded) - FREE_TO_CHANGE
    default = _settings({"settings": Recipe().to_dict()})
    runs = [{**default, **run} for run in recorded]
    own = {**default, **_settings(row)}
    differing = [key for key in sorted(keys) if any(run.get(key) != own.get(key) for run in runs)]
    return [f"`{key}={own[key]}`" for key in differing if all(key in run for run in runs)]


def _settings(row: Row) -> dict[str, Any]:
    sections = {name: keys for name, keys in (row.get("settings") or {}).items() if isinstance(keys, dict)}
    return {f"{name}.{key}": value for name, keys in sections.items() for key, value in keys.items()}


def shipped_recipes(rows: Sequence[Row]) -> dict[str, tuple[str, int]]:
    """Name -> recipe and epochs of the model that ships now."""
    found = {}
    for row in of_kind(rows, "shipped"):
        recipe = row.get("recipe") or {}
        if not row.get("refused") and {"name", "epochs"} <= set(recipe):
            found[str(row["name"])] = (str(recipe["name"]), int(recipe["epochs"]))
    return found


def commit_text(commit: object) -> str:
    """A commit in seven digits; a run from a tree with uncommitted changes is marked."""
    text = str(commit or "")
    return text[:7] + ", uncommitted changes" * text.endswith("+changes")


def packed_accuracy(rows: Sequence[Row]) -> dict[tuple[str, int], float]:
    """(recipe, epochs) -> top-1 of the packed file on the whole test set, the latest measurement."""
    found = {}
    for row in of_kind(rows, "packed against trained"):
        if row.get("epochs") and "top1_packed" in row:
            found[str(row["recipe"]), int(row["epochs"])] = float(row["top1_packed"])
    for row in of_kind(rows, "shipped"):
        recipe = row.get("recipe") or {}
        if not {"name", "epochs"} <= set(recipe):
            continue
        found.setdefault((str(recipe["name"]), int(recipe["epochs"])), float(row["accuracy"]["packed_top1"]))
    return found


def runs_block(rows: Sequence[Row]) -> str:
    """All recorded runs; those of models that ship with the accuracy of their packed file."""
    found = of_kind(rows, "accuracy")
    packed, ships = packed_accuracy(rows), shipped_recipes(rows)
    refused = [row for row in of_kind(rows, "shipped") if row.get("refused")]
    if not found and not refused:
        return f"Training runs: {NOT_MEASURED}."
    order = {name: place for place, name in enumerate(EXPERIMENTS)}
    body = []
    for row in sorted(
        found,
        key=lambda row: (
            order.get(row["experiment"], len(order)),
            row["dataset"],
            row["network"],
            row["row"],
            row["epochs"] if row["experiment"] == "short" else 0,
            row["seed"],
        ),
    ):
        body.append(
            [
                str(row["experiment"]),
                str(row["dataset"]),
                str(row["network"]),
                str(row["row"]),
                str(row["epochs"]),
                str(row["seed"]),
                "test" if row["split"] == "test" else "held out",
                f"{top1(row):.2f}",
                *_packed_and_note(row, found, packed, ships),
                f"{row['seconds'] / 60:.1f}" if row.get("seconds") else "",
                commit_text(row.get("commit")),
            ]
        )
    head = [
        "experiment",
        "data",
        "network",
        "row",
        "epochs",
        "seed",
        "measured on",
        "top-1 %",
        "packed, top-1 %",
        "note",
        "minutes",
        "commit",
    ]
    parts = [markdown(head, body)] if body else []
    stopped = len({row["key"] for row in of_kind(rows, "unfinished")} - {row.get("key") for row in found})
    parts += [f"Stopped before their end, and in no table: {stopped}."] * bool(stopped)
    parts += [f"- {row['name']}, {row['date']}, was not shipped: {row['refused']}." for row in refused]
    return "\n\n".join(parts)
