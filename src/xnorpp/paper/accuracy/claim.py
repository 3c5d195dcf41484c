"""Learned against analytic scales: the tables of E1 (80 epochs), E2 (3, 10 and 25) and E3 (224 pixels).

Their seeds were fixed before the first run and are the same for every row. A row counts once all of its seeds
are there (`complete`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xnorpp.paper import published
from xnorpp.paper.accuracy.runs import (
    CLAIM_SEEDS,
    COMPARED_ROWS,
    ENLARGED_ROWS,
    ENLARGED_SEEDS,
    ENLARGED_SIZE,
    SHORT_EPOCHS,
    SHORT_ROWS,
    SHORT_SEEDS,
)
from xnorpp.paper.accuracy.tables import (
    EPOCHS,
    NOTE,
    Comparison,
    by_epochs,
    complete,
    difference,
    differences,
    loss,
    printed_accuracy,
    printed_difference,
    sides,
    table1_groups,
    top1,
    top5,
    train_top1,
)
from xnorpp.paper.layers.tables import NOT_MEASURED, claims, markdown
from xnorpp.paper.recorded import Row, Seeds, accuracy, newest, of_kind

Groups = dict[int, dict[str, list[Row]]]

COMPARISONS: tuple[Comparison, ...] = (
    ("Case 4 minus XNOR-Net without K", ("case4",), ("xnor-alpha",)),
    ("Case 4 minus XNOR-Net with K", ("case4",), ("xnor",)),
    ("Case 1 minus XNOR-Net without K", ("case1",), ("xnor-alpha",)),
    ("Case 1 minus XNOR-Net with K", ("case1",), ("xnor",)),
    ("Case 4 minus Case 1", ("case4",), ("case1",)),
    ("Cases 1 and 4 minus XNOR-Net with and without K", ("case1", "case4"), ("xnor-alpha", "xnor")),
)
ENLARGED_COMPARISONS = tuple(
    one for one in COMPARISONS if {*one[1], *one[2]} <= set(ENLARGED_ROWS)
)  # without K only
ENLARGED_MODEL = "tiny-imagenet-resnet18-224"  # Case 4 with the default block, the run of E3 that ships
# column -> how to read it from a row, digits
MEASURES: dict[str, tuple[Callable[[Row], float], int]] = {
    "top-1 %": (top1, 2),
    "top-5 %": (top5, 2),
    "test loss": (loss, 3),
    "training top-1 %": (train_top1, 2),
    "training loss": (lambda row: float(row["metrics"]["train_loss"]), 3),
}


def groups(rows: Sequence[Row], experiment: str, seeds: Sequence[int]) -> Groups:
    """epochs -> row -> its runs, of the rows that have all seeds, the shortest training first."""
    found = by_epochs(accuracy(rows, experiment=experiment, dataset="tiny_imagenet", network="resnet18"))
    return {epochs: complete(found[epochs], seeds) for epochs in sorted(found)}


def claim_groups(rows: Sequence[Row], seeds: Sequence[int] = CLAIM_SEEDS) -> Groups:
    return groups(rows, "claim", seeds)


def short_groups(rows: Sequence[Row], seeds: Sequence[int] = SHORT_SEEDS) -> Groups:
    """Of every planned length, measured or not."""
    found = groups(rows, "short", seeds) if accuracy(rows, experiment="short") else {}
    return {epochs: found.get(epochs, {}) for epochs in sorted({*SHORT_EPOCHS, *found})}


def by_length(rows: Sequence[Row], *, planned: bool = True) -> Groups:
    """E2's lengths, then E1's: where the effect of training length is seen. Not `planned`: with any seeds."""
    if not planned:
        return {**short_groups(rows, ()), **claim_groups(rows, ())}
    return {**short_groups(rows), **claim_groups(rows)}


def table(found: dict[str, list[Row]], wanted: Sequence[str], *, paper: bool = True) -> str:
    """One line per method: all measures, and with `paper` its accuracy on ImageNet."""
    body = []
    for row in wanted:
        name = published.METHODS[row]
        cells = [NOT_MEASURED, *[""] * (len(MEASURES) - 1)]
        if row in found:
            cells = [Seeds.of(found[row], read).spread(digits) for read, digits in MEASURES.values()]
        body.append([name, *cells, *[printed_accuracy(row)] * paper])
    return markdown(["method", *MEASURES, *["paper, ImageNet: top-1 / top-5 %"] * paper], body)


def claim_block(rows: Sequence[Row], seeds: Sequence[int] = CLAIM_SEEDS) -> str:
    """E1: every method, then the differences. Without `seeds`, whatever was run."""
    parts = []
    for epochs, found in claim_groups(rows, seeds).items():
        parts += [_title("E1", epochs, seeds), table(found, COMPARED_ROWS), differences(found, COMPARISONS)]
    return "\n\n".join(parts)


def short_block(rows: Sequence[Row], seeds: Sequence[int] = SHORT_SEEDS) -> str:
    """E2: the differences by length of training, with E1's as the longest; then each length as E1."""
    parts = [lengths_table(by_length(rows, planned=bool(seeds))), NOTE]
    every = accuracy(rows, experiment="short", dataset="tiny_imagenet", network="resnet18")
    for epochs, found in short_groups(rows, seeds).items():
        if found:
            parts += [_title("E2", epochs, seeds), table(found, SHORT_ROWS, paper=False)]
            parts.append(differences(found, COMPARISONS, paper=False))
        else:
            done = sum(row["epochs"] == epochs for row in every)
            planned = len(SHORT_ROWS) * len(SHORT_SEEDS)
            parts.append(
                f"{_title('E2', epochs, ())}: {NOT_MEASURED} ({done} of {planned} runs are finished)."
            )
    return "\n\n".join(parts)


def lengths_table(found: Groups) -> str:
    """Top-1 differences, one column per length of training."""
    body = []
    for comparison in COMPARISONS:
        cells = []
        for one in found.values():
            both = sides(one, comparison)
            cells.append(difference(*both[:2], top1, 2, test=both[2]) if both else NOT_MEASURED)
        body.append([comparison[0], *cells])
    return markdown(["difference of means, top-1, points", *(f"{epochs} epochs" for epochs in found)], body)


def enlarged_block(rows: Sequence[Row], seeds: Sequence[int] = ENLARGED_SEEDS) -> str:
    """E3, as E1; then the network with the default block, as it ships."""
    every = accuracy(rows, experiment="enlarged")
    if not every:
        return f"E3, {EPOCHS} epochs at {ENLARGED_SIZE} pixels: {NOT_MEASURED}."
    parts = []
    for epochs, found in groups(rows, "enlarged", seeds).items():
        parts += [_title("E3", epochs, seeds, f" at {ENLARGED_SIZE} pixels"), table(found, ENLARGED_ROWS)]
        done, planned = sum(row["epochs"] == epochs for row in every), len(ENLARGED_ROWS) * len(seeds)
        if found:
            parts.append(differences(found, ENLARGED_COMPARISONS))
        if done < planned:
            parts.append(f"{done} of {planned} runs are finished.")
    for row in newest(of_kind(rows, "shipped"), "name"):
        if row["name"] == ENLARGED_MODEL:
            result, images = row["accuracy"], row["data"].get("train_images")
            parts.append(
                f"Case 4 with the default block, seed {row['seed']}, {row['recipe']['epochs']} epochs on "
                f"{images:,} of the training images, as it ships (`{ENLARGED_MODEL}`): top-1 "
                f"{result['packed_top1']:.2f} %, top-5 {result['packed_top5']:.2f} %."
            )
    return "\n\n".join(parts)


def _title(name: str, epochs: int, seeds: Sequence[int], size: str = "") -> str:
    which = f", mean ± standard deviation over seeds {seeds[0]} to {seeds[-1]}" if seeds else ""
    return f"**{name}: ResNet-18 on Tiny-ImageNet-200{size}, {epochs} epochs**{which}"


def readme_block(rows: Sequence[Row]) -> str:
    """The table in the README: our results and what the paper prints, E1 first."""
    found = claim_groups(rows).get(EPOCHS, {})
    body = []
    for row in COMPARED_ROWS:
        printed = published.RESNET18.get(row)
        body.append(
            [
                f"ResNet-18, {published.METHODS[row].partition(':')[0]}, top-1 %",
                Seeds.of(found[row], top1).text() if row in found else NOT_MEASURED,
                f"{printed[0]} (ImageNet)" if printed else "not printed",
            ]
        )
    for epochs, one in sorted(by_length(rows).items(), reverse=True):
        for comparison in COMPARISONS[:2]:
            both = sides(one, comparison)
            if both:
                cell = difference(*both[:2], top1, 2, test=both[2])
                paper = printed_difference(comparison) if epochs == EPOCHS else "not printed"
                body.append([f"{comparison[0]}, {epochs} epochs, points", cell, paper])
    for epochs, one in groups(rows, "enlarged", ENLARGED_SEEDS).items():
        both = sides(one, COMPARISONS[0])
        if both:
            cell = difference(*both[:2], top1, 2, test=both[2])
            name = f"{COMPARISONS[0][0]}, at {ENLARGED_SIZE} pixels, {epochs} epochs, points"
            body.append([name, cell, "not printed"])
    real = table1_groups(rows, "tiny_imagenet").get(EPOCHS, {}).get("real")
    body.append(
        [
            "ResNet-18, real-valued, top-1 %, from older runs",
            Seeds.of(real, top1).text() if real else NOT_MEASURED,
            f"{published.RESNET18['real'][0]} (ImageNet)",
        ]
    )
    head = ["", f"ours (Tiny-ImageNet-200, {EPOCHS} epochs unless stated)", "paper"]
    return markdown(head, [*body, *claims(rows)])
