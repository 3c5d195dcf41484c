"""What the paper prints (Bulat and Tzimiropoulos, "XNOR-Net++", BMVC 2019), to stand beside what we measure.

These are the paper's numbers, copied from its tables and its section "Efficiency analysis"; none is ours.
"""

from __future__ import annotations

METHODS: dict[str, str] = {
    "direct": "direct binarization, no scale",
    "bnn": "BNN",
    "xnor-alpha": "XNOR-Net without K",
    "xnor": "XNOR-Net with K",
    "bethge": "Bethge et al.",
    "case1": "Case 1: a factor a channel",
    "case2": "Case 2: a factor an output value",
    "case3": "Case 3: channel x pixel",
    "case4": "Case 4: channel x row x column",
    "real": "real-valued",
}

# (top-1 %, top-5 %) on ImageNet. Table 1 prints XNOR-Net and the cases, Table 3 the others.
RESNET18: dict[str, tuple[float, float]] = {
    "bnn": (42.2, 69.2),
    "xnor": (51.2, 73.2),
    "bethge": (54.4, 77.5),
    "case1": (55.5, 78.5),
    "case2": (56.1, 79.0),
    "case3": (56.7, 79.5),
    "case4": (57.1, 79.9),
    "real": (69.3, 89.2),
}
ALEXNET: dict[str, tuple[float, float]] = {
    "bnn": (41.8, 67.1),
    "xnor": (44.2, 69.2),
    "case4": (46.9, 71.0),
    "real": (56.6, 80.2),
}
NETWORKS = {"alexnet": ("AlexNet", ALEXNET), "resnet18": ("ResNet-18", RESNET18)}

# (mean, deviation) of the L1 distance over 100 repetitions. It does not say whether XNOR-Net is with K.
TABLE2: dict[str, tuple[float, float]] = {
    "direct": (6.36, 0.04),
    "xnor": (0.095, 0.002),
    "case1": (0.038, 0.001),
    "case3": (0.037, 0.001),
    "case4": (0.035, 0.001),
}

# Speed-ups at 256 output channels and a 3x3 kernel, and the saving of storage.
SPEEDUP_XNOR, SPEEDUP_OURS, STORAGE = 63.69, 63.98, 64
