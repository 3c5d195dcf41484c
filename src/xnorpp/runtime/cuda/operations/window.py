"""Pools and filters over windows of an image."""

from __future__ import annotations

from xnorpp.runtime.cuda.operations.producer import Producer

ENTRY = {
    "max_pool2d": "max_pool", "avg_pool2d": "mean_pool", "global_avg_pool": "global_mean",
    "abs_mean": "abs_mean", "box_filter": "box_filter",
}  # fmt: skip
STAGES: tuple[str, ...] = ()
PRODUCERS: dict[str, Producer] = {}
