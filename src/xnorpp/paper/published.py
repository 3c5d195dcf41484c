"""What the paper prints (Bulat and Tzimiropoulos, "XNOR-Net++", BMVC 2019), to compare with what we measure.

The accuracies are stored in the recipes of the rows that they belong to (`paper = {top1 = ..., top5 = ...}`)
and read from there; the other numbers are copied from Table 2 and the section "Efficiency analysis".
"""

from __future__ import annotations

from xnorpp.training.recipe.library import load_recipe

METHODS: dict[str, str] = {
    "direct": "direct binarization, no scale",
    "bnn": "BNN",
    "xnor-alpha": "XNOR-Net without K",
    "xnor": "XNOR-Net with K",
    "bethge": "Bethge et al.",
    "case1": "Case 1: one factor per output channel",
    "case2": "Case 2: one factor per output element",
    "case3": "Case 3: channel x pixel",
    "case4": "Case 4: channel x row x column",
    "real": "real-valued",
}


def _printed(network: str, rows: tuple[str, ...]) -> dict[str, tuple[float, float]]:
    """Row -> (top-1 %, top-5 %) on ImageNet."""
    papers = {row: load_recipe(f"imagenet-{network}-{row}").paper for row in rows}
    return {row: (paper.top1, paper.top5) for row, paper in papers.items()}


# Table 1 prints XNOR-Net and the cases, Table 3 the others; XNOR-Net without K is in neither.
RESNET18 = _printed("resnet18", ("bnn", "xnor", "bethge", "case1", "case2", "case3", "case4", "real"))
ALEXNET = _printed("alexnet", ("bnn", "xnor", "case4", "real"))
NETWORKS = {"alexnet": ("AlexNet", ALEXNET), "resnet18": ("ResNet-18", RESNET18)}

# (mean, deviation) of the L1 distance over 100 repetitions; whether XNOR-Net is with K is not stated.
TABLE2: dict[str, tuple[float, float]] = {
    "direct": (6.36, 0.04),
    "xnor": (0.095, 0.002),
    "case1": (0.038, 0.001),
    "case3": (0.037, 0.001),
    "case4": (0.035, 0.001),
}

# Speed-ups at 256 output channels and a 3x3 kernel, and how many times smaller the weights become.
SPEEDUP_XNOR, SPEEDUP_OURS, STORAGE = 63.69, 63.98, 64
