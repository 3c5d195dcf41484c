"""How many threads a call takes by itself, and that the answer does not depend on it."""

from __future__ import annotations

import os

import numpy as np
import pytest

from xnorpp.runtime import cpu, load
from xnorpp.runtime.format.program import Op, Program
from xnorpp.runtime.limits import UNITS_A_THREAD, threads_worth, work_per_image


def network(size: int, channels: int = 64) -> Program:
    """A real convolution, a sign, a binary convolution in two groups, a classifier."""
    rng = np.random.default_rng(0)
    half = channels // 2
    tensors = {
        "first": rng.standard_normal((channels, 3, 3, 3)).astype(np.float32),
        "bits": rng.integers(0, 256, (channels, 3, 3, -(-half // 8)), dtype=np.uint8),
        "scale": rng.standard_normal(channels).astype(np.float32),
        "last": rng.standard_normal((5, channels)).astype(np.float32),
    }
    window = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1]}
    ops = (
        Op("conv2d", "first", ("input",), "a", {**window, "groups": 1}, {"weight": "first"}),
        Op("sign", "sign", ("a",), "b"),
        Op("binary_conv2d", "c", ("b",), "c", {**window, "groups": 2, "pad_value": 0}, {"weight": "bits"}),
        Op("affine", "scale", ("c",), "s", {}, {"mult": "scale"}),
        Op("global_avg_pool", "pool", ("s",), "d"),
        Op("flatten", "flat", ("d",), "e"),
        Op("linear", "last", ("e",), "y", {}, {"weight": "last"}),
    )
    return Program((3, size, size), ops, "y", tensors, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


def cores(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(count)))


def test_work_counts_products_and_results() -> None:
    pixels = 10 * 10
    products = 64 * pixels * 27 + 64 * pixels * 32 * 9 / 64 + 5 * 64
    results = 2 * 64 * pixels + 64 + 5  # flattening one pixel makes nothing
    assert work_per_image(network(10)) == products + 24 * results


def test_a_small_network_takes_one_thread_and_a_large_one_takes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    cores(monkeypatch, 4)
    small, large = network(4), network(64)
    assert threads_worth(small) < 0.1
    assert 4 < threads_worth(large) == work_per_image(large) / UNITS_A_THREAD
    assert [load(net).threads for net in (small, large)] == [1, 4]
    assert [load(net, threads=3).threads for net in (small, large)] == [3, 3]
    cores(monkeypatch, 100)
    assert load(network(200)).threads == cpu.MOST_THREADS


@pytest.mark.parametrize("worth", [0.0, 0.3, 1.0, 2.5, 100.0])
def test_the_answer_does_not_depend_on_it(worth: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """One image and batches on either side of every border, on fewer threads than there are and on all."""
    program = network(9)
    x = np.random.default_rng(1).integers(0, 256, (20, 9, 9, 3), dtype=np.uint8)
    expected = load(program, threads=1)(x)
    cores(monkeypatch, 5)
    monkeypatch.setattr(cpu, "threads_worth", lambda *given: worth)
    model = load(program)
    assert model.threads == max(1, min(5, int(worth)))
    for _ in range(3):
        for count in (1, 2, 3, 4, 5, 6, 7, 20):
            np.testing.assert_array_equal(model(x[:count]), expected[:count])
