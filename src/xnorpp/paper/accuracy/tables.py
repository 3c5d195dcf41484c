"""The tables of accuracy: Tables 1 and 3, the models that ship, the goals, and every run.

What has no row is said to be not measured yet. Only results on the test set enter Tables 1 and 3; what was
measured on the held-out part of the training set is in `choice_tables` and in the list of every run.
"""

from __future__ import annotations

from collections.abc import Sequence

from xnorpp.paper import published
from xnorpp.paper.accuracy.runs import EXPERIMENTS
from xnorpp.paper.layers.tables import NOT_MEASURED, claims, markdown
from xnorpp.paper.recorded import Interval, Row, Seeds, accuracy, of_kind, welch

DATASETS = {"tiny_imagenet": "Tiny-ImageNet-200", "cifar10": "CIFAR-10"}
TABLE1 = ("bnn", "xnor-alpha", "xnor", "case1", "case2", "case3", "case4", "real")
TABLE3 = {
    "alexnet": ("bnn", "xnor", "case4", "real"),
    "resnet18": ("bnn", "xnor", "bethge", "case4", "real"),
}
EPOCHS = 80
GOALS = {"cifar10-resnet20": 87.5, "cifar10-resnet18": 92.5}
MODELS = ("cifar10-resnet20", "cifar10-resnet18", "tiny-imagenet-resnet18")


def top1(row: Row) -> float:
    return float(row["metrics"]["top1"])


def top5(row: Row) -> float:
    return float(row["metrics"]["top5"])


def loss(row: Row) -> float:
    return float(row["metrics"]["loss"])


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


def table1_block(rows: Sequence[Row]) -> str:
    """A table a data set and schedule: mean ± deviation over seeds, and the paper's on ImageNet."""
    parts = []
    for dataset, name in DATASETS.items():
        for epochs, found in table1_groups(rows, dataset).items():
            real = Seeds.of(found["real"], top1).mean if "real" in found else None
            body = []
            for row in TABLE1:
                printed = published.RESNET18.get(row)
                paper = f"{printed[0]} / {printed[1]}" if printed else "not printed"
                if row not in found:
                    body.append([published.METHODS[row], NOT_MEASURED, "", "", "", paper])
                    continue
                seeds = Seeds.of(found[row], top1)
                behind = f"{seeds.mean - real:+.2f}" if real is not None and row != "real" else ""
                others = [Seeds.of(found[row], top5).text(), Seeds.of(found[row], loss).text(3)]
                body.append([published.METHODS[row], seeds.text(), *others, behind, paper])
            head = ["method", "top-1 %", "top-5 %", "test loss", "minus real, top-1",
                    "paper, ImageNet: top-1 / top-5 %"]  # fmt: skip
            parts.append(f"**ResNet-18 on {name}, {epochs} epochs**\n\n{markdown(head, body)}")
            parts.append(differences(found))
    return "\n\n".join(parts)


def better_xnor(found: dict[str, list[Row]]) -> str | None:
    """Which of XNOR-Net with and without K has the higher mean; None until one is measured."""
    there = [row for row in ("xnor-alpha", "xnor") if row in found]
    return max(there, key=lambda row: Seeds.of(found[row], top1).mean) if there else None


def difference(found: dict[str, list[Row]], a: str, b: str | None) -> tuple[float, Interval | None] | None:
    """Mean of `a` minus mean of `b`, and the interval where both have two seeds or more."""
    if b is None or a not in found or b not in found:
        return None
    first, second = Seeds.of(found[a], top1), Seeds.of(found[b], top1)
    return first.mean - second.mean, welch(first, second)


def differences(found: dict[str, list[Row]]) -> str:
    """The two comparisons that the paper's claim stands on, with their intervals."""
    best = better_xnor(found)
    paper = published.RESNET18["case4"][0] - published.RESNET18["xnor"][0]
    lines = []
    for other, note in (
        (best, f" (the better of XNOR-Net with and without K); paper, on ImageNet: {paper:+.1f}"),
        ("case1", ""),
    ):
        name = published.METHODS[other].partition(":")[0] if other else "XNOR-Net"
        both = difference(found, "case4", other)
        if both is None:
            lines.append(f"- Case 4 minus {name}: {NOT_MEASURED}.")
            continue
        gap, interval = both
        text = f"{gap:+.2f} points"
        if interval is None:
            text += "; an interval needs two seeds of each"
        else:
            text += (
                f", 95 % interval {interval.low:+.2f} to {interval.high:+.2f} (Welch's t, "
                f"{len(found['case4'])} and {len(found[str(other)])} seeds)"
            )
        lines.append(f"- Case 4 minus {name}: {text}{note}.")
    if best and not {"xnor", "xnor-alpha"} <= set(found):
        lines.append(f"- Of XNOR-Net only {published.METHODS[best]} is measured so far.")
    return "\n".join(lines)


def table3_block(rows: Sequence[Row]) -> str:
    """Both networks, a table a schedule."""
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


def shipped_models(rows: Sequence[Row]) -> dict[str, Row | None]:
    """name -> what is known of it: packed and torch's top-1, bytes, latency, twin; None where nothing is."""
    cards = {row["name"]: row for row in of_kind(rows, "shipped") if not row.get("refused")}
    trained = accuracy(rows, experiment="shipped")
    found: dict[str, Row | None] = {}
    for name in dict.fromkeys([*MODELS, *cards, *(str(row["name"]) for row in trained if row.get("name"))]):
        own = [row for row in trained if row.get("name") == name]
        twins = [row for row in own if row["row"] == "real"]
        binary = [row for row in own if row["row"] != "real"]
        card = cards.get(name)
        known: Row = {"twin": top1(twins[-1]) if twins else None, "torch": None, "packed": None}
        if binary:
            packed = binary[-1].get("packed") or {}
            known.update(
                torch=top1(binary[-1]),
                packed=packed.get("top1"),
                packed5=packed.get("top5"),
                bytes=packed.get("file_bytes"),
                epochs=binary[-1]["epochs"],
            )
        if card:
            result = card["accuracy"]
            known.update(
                torch=result["torch_top1"],
                packed=result["packed_top1"],
                packed5=result["packed_top5"],
                bytes=card["file"]["bytes"],
                milliseconds=card["latency"]["median"],
            )
            if card.get("twin"):
                known["twin"] = card["twin"]["top1"]
        found[name] = known if own or card else None
    return found


def shipped_block(rows: Sequence[Row]) -> str:
    """A line a model: accuracy through the packed engine, beside torch's and its real-valued twin's."""
    body = []
    for name, known in shipped_models(rows).items():
        known = known or {}
        packed, twin = known.get("packed"), known.get("twin")
        body.append(
            [
                name,
                _points(packed),
                _points(known.get("packed5")),
                _points(known.get("torch")),
                _points(twin),
                f"{twin - packed:.2f}" if packed is not None and twin is not None else "",
                f"{known['bytes'] / 1e6:.2f}" if known.get("bytes") else NOT_MEASURED,
                f"{known['milliseconds']:.2f}" if known.get("milliseconds") else NOT_MEASURED,
            ]
        )
    head = [
        "model",
        "packed top-1 %",
        "packed top-5 %",
        "torch top-1 %",
        "real-valued twin",
        "points behind it",
        "file, MB",
        "ms a picture, 1 thread",
    ]
    return markdown(head, body)


def _points(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:.2f}"


def goals_block(rows: Sequence[Row]) -> str:
    """What this project set out to show, and where it stands."""
    found = next(iter(table1_groups(rows, "tiny_imagenet").values()))
    body = []
    both = difference(found, "case4", better_xnor(found))
    seeds = min(
        (len(found[row]) for row in ("case4", better_xnor(found) or "xnor") if row in found), default=0
    )
    if both is None:
        state = value = NOT_MEASURED
    else:
        gap, interval = both
        value = f"{gap:+.2f}" + (f", interval {interval.width:.2f} wide" if interval else ", one seed")
        shown = (
            interval is not None
            and seeds >= 3
            and interval.width < 2
            and {"xnor", "xnor-alpha"} <= set(found)
        )
        state = "shown" if shown else "not shown yet"
    body.append(
        [
            "Table 1, Tiny-ImageNet: Case 4 minus the better XNOR-Net",
            "an interval under 2 points from three seeds (we aim for +4)",
            value,
            state,
        ]
    )
    both = difference(found, "case4", "case1")
    if both is None:
        value, state = NOT_MEASURED, NOT_MEASURED
    else:
        gap, interval = both
        larger = max(Seeds.of(found[row], top1).deviation for row in ("case1", "case4"))
        value = f"{gap:+.2f}, the larger of the two deviations {larger:.2f}"
        if interval is not None:
            value += f", 95 % interval {interval.low:+.2f} to {interval.high:+.2f}"
        state = "holds" if gap >= -larger else "does not hold"
    body.append(["Table 1: Case 4 minus Case 1", "not behind beyond the deviation", value, state])
    models = shipped_models(rows)
    for name, least in GOALS.items():
        packed = (models.get(name) or {}).get("packed")
        body.append([f"{name}, packed", f"{least} %", _points(packed), _state(packed, least)])
    known = models.get("tiny-imagenet-resnet18") or {}
    behind = (
        known["twin"] - known["packed"]
        if known.get("twin") is not None and known.get("packed") is not None
        else None
    )
    body.append(
        ["tiny-imagenet-resnet18, packed, behind its twin", "at most 6 points", _points(behind),
         _state(None if behind is None else -behind, -6)]
    )  # fmt: skip
    gaps = [
        abs(one["packed"] - one["torch"])
        for one in models.values()
        if one and one.get("packed") is not None and one.get("torch") is not None
    ]
    largest = max(gaps) if gaps else None
    body.append(
        ["packed accuracy against torch's, largest difference", "0.05 points", _points(largest),
         _state(None if largest is None else -largest, -0.05 - 1e-9)]
    )  # fmt: skip
    return markdown(["figure", "wanted", "measured", "state"], body)


def _state(value: float | None, least: float) -> str:
    return NOT_MEASURED if value is None else ("reached" if value >= least else "not reached")


def _packed_and_note(row: Row, found: Sequence[Row], packed: dict[tuple[str, int], float]) -> list[str]:
    """The packed file's accuracy and what is to be said of it, for the runs of models that ship."""
    same = ("experiment", "dataset", "network", "row", "epochs", "seed", "split", "factor", "level")
    alike = sum(all(one.get(key) == row.get(key) for key in same) for one in found)
    if alike > 1:
        return ["", f"trained {alike} times, the same seed and recipe"]
    value = packed.get((str(row["recipe"]), int(row["epochs"])))
    if row["experiment"] != "shipped" or row["row"] != "best" or value is None:
        return ["", str(row.get("note") or "")]
    goal = GOALS.get(str(row.get("name")))
    return [f"{value:.2f}", f"below the {goal} wanted, replaced" if goal and value < goal else "ships"]


def packed_accuracy(rows: Sequence[Row]) -> dict[tuple[str, int], float]:
    """(recipe, epochs) -> top-1 of the packed file on the whole test set, as measured last."""
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
    """Every kept run, the better and the worse; those of models that ship with their packed file's accuracy,
    which is what counts for them.
    """
    found = of_kind(rows, "accuracy")
    packed = packed_accuracy(rows)
    refused = [row for row in of_kind(rows, "shipped") if row.get("refused")]
    if not found and not refused:
        return f"Training runs: {NOT_MEASURED}."
    order = {name: place for place, name in enumerate(EXPERIMENTS)}
    body = []
    for row in sorted(
        found,
        key=lambda row: (
            order.get(row["experiment"], 9),
            row["dataset"],
            row["network"],
            row["row"],
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
                *_packed_and_note(row, found, packed),
                f"{row['seconds'] / 60:.1f}" if row.get("seconds") else "",
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
    ]
    parts = [markdown(head, body)] if body else []
    parts += [f"- {row['name']}, {row['date']}, was not shipped: {row['refused']}." for row in refused]
    return "\n\n".join(parts)


def readme_block(rows: Sequence[Row]) -> str:
    """The README's table: the paper's claims, ours beside."""
    epochs, found = next(iter(table1_groups(rows, "tiny_imagenet").items()))
    body = []
    for row in ("xnor-alpha", "xnor", "case1", "case4", "real"):
        printed = published.RESNET18.get(row)
        ours = Seeds.of(found[row], top1).text() if row in found else NOT_MEASURED
        body.append(
            [
                f"Table 1, ResNet-18: {published.METHODS[row].partition(':')[0]}, top-1 %",
                ours,
                f"{printed[0]} (ImageNet)" if printed else "not printed",
            ]
        )
    head = ["", f"ours (Tiny-ImageNet-200, {epochs} epochs)", "paper"]
    return markdown(head, [*body, *claims(rows)])
