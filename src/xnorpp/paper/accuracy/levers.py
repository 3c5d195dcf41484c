"""The real-valued networks, and what was tried on held-out images to raise the binary networks' accuracy."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from xnorpp.paper.accuracy.runs import BASELINES, LATER_BASELINES, STUDENTS, TAUGHT, parts_of
from xnorpp.paper.accuracy.tables import top1, top5
from xnorpp.paper.accuracy.tried import LARGE_LEVERS, LEVER_HOLDOUT, LEVERS, STUDENT_LEVERS
from xnorpp.paper.layers.tables import NOT_MEASURED, markdown
from xnorpp.paper.recorded import Row, accuracy, of_kind
from xnorpp.paper.shipping.words import DATASETS, NETWORKS

TRAINING_IMAGES = 50_000  # of CIFAR-10
UNPOOLED = "tiny-imagenet-resnet18"  # whose teacher is another network: without pooling after its stem
_KINDS = {"taught": ", with its students' teacher", "teacher": ", without pooling"}
# The highest top-1 of a one-bit network that we found in print; the first two are of the best test epoch.
PUBLISHED = {
    "cifar10-resnet20": "88.1 (AdaBin)",
    "cifar10-resnet18": "93.75 (BiPer)",
    "cifar100-resnet18": "71.2 (CMIM)",
    "tiny-imagenet-resnet18": "none found",
    "cifar10-reactnet-a": "none found",
}


def baselines_block(rows: Sequence[Row]) -> str:
    """The newest run of each real-valued network."""
    found = {
        (row["dataset"].replace("_", "-"), row["network"], row["row"]): row
        for row in accuracy(rows, experiment="baseline", split="test")
        if row["row"] in ("real", *_KINDS)
    }
    if not found:
        return f"The real-valued baselines: {NOT_MEASURED}."
    body = []
    names = [
        *((name, "real") for name in (*BASELINES, *LATER_BASELINES)),
        *((name, "taught") for name in TAUGHT),
        (UNPOOLED, "teacher"),
    ]
    for name, kind in names:
        dataset, network = parts_of(name)
        row = found.get((dataset, network, kind))
        if row is None and (kind in _KINDS or name in LATER_BASELINES):
            continue
        words = NETWORKS[network] + _KINDS.get(kind, "")
        title = [DATASETS.get(dataset.replace("-", "_"), dataset), words]
        if row is None:
            body.append([*title, "", NOT_MEASURED, "", ""])
            continue
        metrics = row["metrics"]
        body.append([*title, str(row["epochs"]), _marked(row), f"{top5(row):.2f}", f"{metrics['loss']:.3f}"])
    head = ["data", "network", "epochs", "top-1 %", "top-5 %", "loss"]
    return markdown(head, body) + _footnotes(found.values())


def _marked(row: Row) -> str:
    """Top-1, with a star where the row has a flaw."""
    return f"{top1(row):.2f}" + r"\*" * bool(row.get("flaw"))


def _footnotes(rows: Iterable[Row]) -> str:
    """A paragraph for every flaw of rows that a table marks with a star."""
    flaws = dict.fromkeys(str(row["flaw"]) for row in rows if row.get("flaw"))
    return "".join(f"\n\n\\* {flaw[0].upper()}{flaw[1:]}." for flaw in flaws)


def students_block(rows: Sequence[Row]) -> str:
    """Every measured seed of each binary network: packed, on the whole test set. No row for those that were
    not trained."""
    shipped = {
        row["name"]: row["file"]["sha256"] for row in of_kind(rows, "shipped") if not row.get("refused")
    }
    measured = [
        row
        for row in (*of_kind(rows, "measured"), *of_kind(rows, "shipped"))
        if str(row["recipe"]["name"]).startswith("student-")
    ]
    body = []
    for name in STUDENTS:
        dataset, network = parts_of(name)
        title = [DATASETS.get(dataset.replace("-", "_"), dataset), NETWORKS[network]]
        # One group per state of the code, because recipes and teachers changed between them.
        groups: dict[str, dict[int, Row]] = {}
        for row in measured:
            if row["recipe"]["name"] == f"student-{name}":
                groups.setdefault(str(row["trained"]["commit"]), {})[int(row["seed"])] = row
        for found in groups.values():
            for seed, row in sorted(found.items()):
                result = row["accuracy"]
                body.append(
                    [
                        *title,
                        str(seed),
                        str(row["recipe"]["epochs"]),
                        f"{result['packed_top1']:.2f}",
                        _baseline(row),
                        PUBLISHED[name],
                        f"{result['calibration_error']:.3f}",
                        "ships" if row["file"]["sha256"] == shipped.get(name) else "",
                    ]
                )
            if len(found) > 1:
                mean = sum(row["accuracy"]["packed_top1"] for row in found.values()) / len(found)
                cells = [f"mean of {len(found)}", "", f"{mean:.2f}", _baseline(row), PUBLISHED[name]]
                body.append([*title, *cells, "", ""])
    if not body:
        return f"The students: {NOT_MEASURED}."
    head = ["data", "network", "seed", "epochs", "packed top-1 %", "real-valued baseline", "best published"]
    return markdown([*head, "calibration error", ""], body)


def _baseline(row: Row) -> str:
    return f"{row['baseline']['top1']:.2f}" if row.get("baseline") else NOT_MEASURED


def levers(rows: Sequence[Row], network: str, tried: Collection[str]) -> dict[tuple[str, int], Row]:
    """(lever, seed) -> its newest row of this network."""
    found = [row for row in accuracy(rows, experiment="lever", split=None) if row["network"] == network]
    return {(str(row["row"]), int(row["seed"])): row for row in found if row["row"] in tried}


def levers_block(rows: Sequence[Row]) -> str:
    """Each lever against the default of the same network and seed, on the held-out images."""
    return _network_levers(rows, "resnet20", LEVERS)


def large_levers_block(rows: Sequence[Row]) -> str:
    """The same of ResNet-18, with the accuracy on training images."""
    return _network_levers(rows, "resnet18", LARGE_LEVERS)


def student_levers_block(rows: Sequence[Row]) -> str:
    """The same around the recipe of ResNet-20's students. On the results page once it is measured
    (`BLOCKS` of `paper/report.py`); `xnorpp paper levers` prints it in any case.
    """
    return _network_levers(rows, "resnet20", STUDENT_LEVERS)


def every_levers_block(rows: Sequence[Row]) -> str:
    """All three."""
    return "\n\n".join(draw(rows) for draw in (levers_block, large_levers_block, student_levers_block))


def _network_levers(rows: Sequence[Row], network: str, tried: Mapping[str, Sequence[str]]) -> str:
    found = levers(rows, network, tried)
    if not found:
        return f"These levers of {NETWORKS[network]}: {NOT_MEASURED}."
    order = list(tried)  # the first is what the others change
    ordered = sorted(found.items(), key=lambda pair: (pair[0][1], order.index(pair[0][0])))
    start = found.get((order[0], 0))
    first = start or ordered[0][1]
    share, images = top1(first) / 100, LEVER_HOLDOUT * TRAINING_IMAGES
    chance = 200 * math.sqrt(2 * share * (1 - share) / images)
    with_training = "train_top1" in first["metrics"]
    body = []
    for (name, seed), row in ordered:
        metrics = row["metrics"]
        gap = change = ""
        if start is not None:
            gap = "start" if row is start else f"{top1(row) - top1(start):+.2f}"
            change = "start" if row is start else f"{metrics['loss'] - start['metrics']['loss']:+.3f}"
        changed = "another seed" if seed else " ".join(tried[name])
        training = [f"{metrics['train_top1']:.2f}"] if with_training else []
        body.append([name, changed, _marked(row), gap, f"{metrics['loss']:.3f}", change, *training])
    head = ["lever", "changed", "top-1 %", "minus start", "loss", "minus start"]
    text = (
        f"{NETWORKS[network]}, CIFAR-10, Case 4, {first['epochs']} epochs, measured on {images:,.0f} "
        "training images that neither the networks nor their teacher were trained on. Twice the standard "
        f"deviation of a difference by chance: {chance:.1f} points.\n\n"
        + markdown([*head, *(["training top-1 %"] if with_training else [])], body)
    )
    text += _footnotes(row for _, row in ordered)
    missing = [name for name in tried if (name, 0) not in found]
    if missing:
        text += f"\n\nOther settings of `xnorpp paper levers`, {NOT_MEASURED}: {', '.join(missing)}."
    return text
