"""Counts of networks that hold, differ as torch does, or are refused."""

from __future__ import annotations

from typing import Any

from xnorpp.paper.foreign import differs_as_torch, int8, passes, zoo

GOOD = {"kept_in": "zoo_unlisted.jsonl", "packs": True, "same_class": 0.99, "verify": True}


def differing(torch: float, packed: float, again: float, errors: tuple[float, float]) -> dict[str, Any]:
    return {
        **GOOD,
        "network": "unsure",
        "same_class": 0.5,
        "torch_in_float64": {"torch": torch, "packed": packed},
        "torch_with_other_kernels": {"without_onednn": again, "channels_last": 1.0},
        "rounding": {"values": 9, "torch": errors[0], "packed": errors[1]},
    }


def test_a_network_differs_as_torch_where_torch_differs_and_is_no_nearer() -> None:
    assert differs_as_torch(differing(0.6, 0.7, 1.0, (1.0, 2.0)))
    assert differs_as_torch(differing(1.0, 0.5, 0.4, (2.0, 1.0)))
    assert not differs_as_torch(differing(1.0, 0.5, 0.995, (2.0, 1.0)))  # torch agrees with itself
    assert not differs_as_torch(differing(0.6, 0.5, 0.4, (1.0, 2.0)))  # torch is nearer to float64
    assert not differs_as_torch({**differing(0.6, 0.7, 0.4, (2.0, 1.0)), "verify": False})
    assert not differs_as_torch(GOOD)
    assert passes(GOOD)
    assert not passes({**GOOD, "same_class": 0.985})


def test_the_newest_row_of_a_network_counts() -> None:
    rows = [
        {**GOOD, "network": "a", "same_class": 0.1},
        {**GOOD, "network": "a"},
        {**GOOD, "network": "construct:b"},
        {**GOOD, "network": "c", "packs": False, "obstacles": ["layer: no | form", "more"]},
        differing(0.6, 0.7, 1.0, (1.0, 2.0)),
        {**GOOD, "network": "d", "verify": False},
    ]
    drawn = zoo(rows)
    assert "| networks that no list asked for | 4 | 1 | 1 | 1 | 1 |" in drawn
    assert "| constructs that people write | 1 | 1 | 0 | 0 | 0 |" in drawn
    assert "| unsure | 50.0 | 60.0, 70.0 | 100.0, 100.0 | 1.0e+00, 2.0e+00 |" in drawn
    assert "| c | layer: no &#124; form |" in drawn


def test_int8_shows_accuracy_and_size() -> None:
    row = {
        "kind": "int8 weights", "model": "m.xnor", "images": 10000, "calibration": {"tolerance": 0.001},
        "top1": 92.7, "top1_calibrated": 92.71, "top1_int8": 92.95,
        "same_calibrated": 99.98, "same_int8": 98.5,
        "bytes": 2175424, "bytes_calibrated": 1906956, "bytes_int8": 1622592,
    }  # fmt: skip
    drawn = int8([row])
    assert (
        "| m.xnor | 10,000 | 92.70 | 92.71 | 92.95 | 99.98 | 98.50 | 2,175,424 | 1,906,956 | 1,622,592 |"
        in drawn
    )
    assert "Tolerance of the calibration: 0.001." in drawn
    assert "Nothing" in int8([])
    assert "Nothing" in zoo([])
