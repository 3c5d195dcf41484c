"""The tables of single layers and of speed: Table 2, Figure 1, storage, and the hours of ImageNet."""

from __future__ import annotations

from collections.abc import Sequence

from xnorpp.paper import published
from xnorpp.paper.layers.figure1 import CHANNELS, KERNELS, theory
from xnorpp.paper.recorded import Row, newest, of_kind

NOT_MEASURED = "not measured yet"
IMAGENET_IMAGES, EPOCHS = 1_281_167, 80
SETUPS = ("stated", "stated-he", "pointwise", "pointwise-he", "fitted")


def markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A table of markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(cells) + " |" for cells in body)])


def machine(hardware: Row) -> str:
    """The GPU, or the processor and its cores."""
    name = hardware.get("gpu") or hardware.get("cpu", "unknown processor")
    cores = f", {hardware['cores']} cores" if "cores" in hardware and "gpu" not in hardware else ""
    return f"{name}{cores}" + (", masked to AVX2" if "masked" in hardware else "")


def table2_rows(rows: Sequence[Row]) -> list[Row]:
    return newest(of_kind(rows, "table2"), "setup", "method")


def table2_block(rows: Sequence[Row]) -> str:
    """One table per set-up: distance on the fitted input and on a held-out one, and the paper's."""
    found = table2_rows(rows)
    if not found:
        return f"Table 2: {NOT_MEASURED}."
    parts = []
    for setup in SETUPS:
        chosen = {row["method"]: row for row in found if row["setup"] == setup}
        if not chosen:
            parts.append(f"**{setup}**: {NOT_MEASURED}.")
            continue
        body = []
        for method, name in published.METHODS.items():
            printed = published.TABLE2.get("xnor" if method == "xnor-alpha" else method)
            if method not in chosen:
                continue
            row = chosen[method]
            body.append(
                [
                    name,
                    _spread(row["distance"]),
                    _spread(row["held_out"]),
                    f"{100 * (row['of_xnor']['mean'] - 1):+.2f} %",
                    f"{printed[0]:g} ± {printed[1]:g}" + ", K not stated" * method.startswith("xnor")
                    if printed
                    else "not printed",
                ]
            )
        head = ["method", "distance, fitted input", "held-out input", "against XNOR-Net with K", "paper"]
        any_row = next(iter(chosen.values()))
        about = any_row["settings"]["about"].replace(" a filter", " per filter")  # older rows
        title = f"**{setup}**: {about} ({any_row['repetitions']} repetitions)"
        parts.append(f"{title}\n\n{markdown(head, body)}{_converged(chosen)}")
    return "\n\n".join(parts)


def _converged(chosen: dict[str, Row]) -> str:
    above = [
        f"{_short(method)} ends at most {100 * row['above_optimum']:.2g} % above it"
        for method, row in chosen.items()
        if "above_optimum" in row
    ]
    return f"\n\nAgainst the exact optimum, where there is one: {', '.join(above)}." if above else ""


def _short(method: str) -> str:
    return published.METHODS[method].partition(":")[0]


def _spread(spread: dict[str, float]) -> str:
    """mean ± deviation, with four digits of the mean."""
    digits = 3 if spread["mean"] >= 1 else 4
    return f"{spread['mean']:.{digits}f} ± {spread['std']:.{digits}f}"


def figure1_rows(rows: Sequence[Row], what: str) -> list[Row]:
    """The newest row of each, of the machine and thread count that were measured last."""
    found = [row for row in of_kind(rows, "figure1") if row["what"] == what]
    here = [(machine(row["hardware"]), row.get("threads"), row.get("size")) for row in found]
    found = [row for row, where in zip(found, here) if where == here[-1]]
    return newest(found, "channels", "kernel", "against", "name")


def figure1_block(rows: Sequence[Row]) -> str:
    """One row per shape: both formulas, and the measured ratio of medians and of fastest calls."""
    found = {(row["channels"], row["kernel"], row["against"]): row for row in figure1_rows(rows, "speed")}
    shapes = list(dict.fromkeys([(c, 3) for c in CHANNELS] + [(256, k) for k in KERNELS]))
    shapes += [shape for shape in dict.fromkeys((c, k) for c, k, _ in found) if shape not in shapes]
    body = []
    for channels, kernel in shapes:
        xnor, ours = theory(channels, kernel)
        torch_row, own = (found.get((channels, kernel, against)) for against in ("torch", "xnorpp"))
        body.append(
            [
                str(channels),
                f"{kernel}x{kernel}",
                f"{xnor:.2f}",
                f"{ours:.2f}",
                f"{1e6 * torch_row['packed']['median']:.1f}" if torch_row else NOT_MEASURED,
                *(_ratio(row) for row in (torch_row, own)),
            ]
        )
    head = [
        "channels",
        "kernel",
        "theory, XNOR-Net",
        "theory, XNOR-Net++",
        "packed layer, µs",
        "times torch's float32: medians (fastest calls)",
        "times our own float32: medians (fastest calls)",
    ]
    lines = [markdown(head, body)]
    if found:
        row = next(reversed(found.values()))
        lines.append(
            f"On {machine(row['hardware'])}, {row['date']}, "
            f"{row['threads']} thread{'s' * (row['threads'] != 1)}, {row['size']}x{row['size']} pixels, "
            f"{row['packed']['calls']} calls each, in turns."
        )
    xnor, ours = theory(256, 3)
    lines.append(
        f"At 256 channels and 3x3 the paper prints {published.SPEEDUP_XNOR} and {published.SPEEDUP_OURS}; "
        f"its formulas give {xnor:.2f} and {ours:.2f}."
    )
    return "\n\n".join(lines)


def _ratio(row: Row | None) -> str:
    return f"{row['speedup']:.1f} ({row['speedup_fastest']:.1f})" if row else NOT_MEASURED


def storage_block(rows: Sequence[Row]) -> str:
    """Size of the packed file and of the float32 state_dict, and the paper's ratio."""
    found = figure1_rows(rows, "storage")
    if not found:
        return f"Storage: {NOT_MEASURED}."
    body = [
        [
            row["name"],
            f"{row['float_bytes'] / 1e6:.3f}",
            f"{row['packed_bytes'] / 1e6:.3f}",
            f"{row['ratio']:.1f}",
            f"{published.STORAGE}",
        ]
        for row in found
    ]
    return markdown(["what", "float32, MB", "packed file, MB", "times smaller", "paper"], body)


def claims(rows: Sequence[Row]) -> list[list[str]]:
    """The paper's claims about single layers, one row each: claim, ours, the paper's."""
    table2 = {row["method"]: row for row in table2_rows(rows) if row["setup"] == "stated"}
    speeds = [
        row["speedup"]
        for row in figure1_rows(rows, "speed")
        if (row["channels"], row["kernel"], row["against"]) == (256, 3, "torch")
    ]
    storage = [row["ratio"] for row in figure1_rows(rows, "storage") if row["name"].startswith("ResNet-18")]
    printed = 100 * (published.TABLE2["case4"][0] / published.TABLE2["xnor"][0] - 1)
    ours = 100 * (table2["case4"]["of_xnor"]["mean"] - 1) if "case4" in table2 else None
    return [
        [
            "Table 2: Case 4's distance against XNOR-Net's (with K)",
            NOT_MEASURED if ours is None else f"{ours:+.1f} %",
            f"{printed:+.0f} %",
        ],
        [
            "Figure 1: speed-up of a layer, 256 channels, 3x3",
            f"{speeds[-1]:.1f} times (torch's float32, CPU)" if speeds else NOT_MEASURED,
            f"{published.SPEEDUP_OURS} times (theory)",
        ],
        [
            "storage, ResNet-18, the paper's block",
            f"{storage[0]:.1f} times smaller (float32, whole file)" if storage else NOT_MEASURED,
            f"{published.STORAGE} times smaller",
        ],
    ]


def imagenet_block(rows: Sequence[Row]) -> str:
    """Images per second of the step and of the loader, and the hours of the paper's schedule at that rate."""
    taken = [
        row for row in of_kind(rows, "cuda training") if row.get("size") == 224 and row.get("what") == "step"
    ]
    steps = [row for row in taken if row.get("variant") == "fused graph"]
    plain = [row for row in taken if row.get("variant") == "fused eager"]
    whole = of_kind(rows, "imagenet train")
    loaders = newest(of_kind(rows, "loader"), "source", "workers", "cores")
    eight = 8 * float(plain[-1]["images_per_second"]) if plain else None
    body = []
    for name, chosen in (
        ("training step of Case 4, images already on the GPU", newest(steps, "kept_in")),
        ("`xnorpp train` with its loader, from files to weights", newest(whole, "source", "workers")),
    ):
        for row in chosen:
            source = f" ({row['source']})" if row.get("source") else ""
            own = [one["images_per_second"] for one in loaders if one["source"] == row.get("source")]
            together = f"{_hours(min([eight, *own])):.2f}" if eight else NOT_MEASURED
            rate = float(row["images_per_second"])
            body.append(
                [name + source, machine(row["hardware"]), f"{rate:,.0f}", f"{_hours(rate):.2f}", together]
            )
        if not chosen:
            body.append([name, NOT_MEASURED, NOT_MEASURED, "", ""])
    head = ["what", "on", "images/s", f"hours for {EPOCHS} epochs, 1 GPU", "8 GPUs (estimate)"]
    parts = [
        f"{IMAGENET_IMAGES:,} images, {EPOCHS} epochs: hours = images x epochs / (images/s x 3600). "
        + (
            "Eight GPUs are an estimate: eight times the step without a CUDA graph, "
            f"{eight / 8:,.0f} images/s, because a graph is recorded on one GPU only; from files no faster "
            "than the loader below."
            if eight
            else ""
        ),
        markdown(head, body),
    ]
    if not loaders:
        parts.append(f"The loader: {NOT_MEASURED}.")
        return "\n\n".join(parts)
    need = float(steps[-1]["images_per_second"]) if steps else None
    body = [
        [
            str(row["source"]),
            str(row.get("workers", "")),
            str(row.get("cores", "")),
            f"{row['images_per_second']:,.0f}",
            f"{row['images_per_second_a_core']:,.0f}" if row.get("images_per_second_a_core") else "",
            f"{need / row['images_per_second_a_core']:.0f}"
            if need and row.get("images_per_second_a_core")
            else "",
            f"{IMAGENET_IMAGES * EPOCHS / row['images_per_second'] / 3600:.1f}",
        ]
        for row in loaders
    ]
    head = [
        "images stored as",
        "workers",
        "cores",
        "images/s",
        "images/s per core",
        "cores to feed one GPU's step",
        "hours for 80 epochs at this rate",
    ]
    return "\n\n".join([*parts, "The loader alone, up to the normalised batch:", markdown(head, body)])


def _hours(rate: float) -> float:
    """Hours of the whole schedule at this many images per second."""
    return IMAGENET_IMAGES * EPOCHS / rate / 3600
