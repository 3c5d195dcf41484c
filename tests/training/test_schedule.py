"""The learning rate, step by step."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xnorpp.training.recipe.config import OptimizerPart, SchedulePart
from xnorpp.training.recipe.schedule import first_stage_steps, learning_rate, total_steps

OPTIMIZER = OptimizerPart(lr=1.0)


def rate(schedule: SchedulePart, step: int, steps_per_epoch: int = 10) -> float:
    return learning_rate(schedule, OPTIMIZER, step, steps_per_epoch)


def test_the_papers_schedule_drops_every_25_epochs() -> None:
    rates = [rate(SchedulePart(), epoch * 10 + 9) for epoch in range(80)]
    expected = [1.0] * 25 + [0.1] * 25 + [0.01] * 25 + [0.001] * 5
    assert rates == pytest.approx(expected)


def test_a_short_run_drops_inside_epochs_at_the_same_fractions() -> None:
    schedule = SchedulePart(epochs=3, step_epochs=3 * 25 / 80)
    rates = [rate(schedule, step, 160) for step in range(480)]
    assert rates == pytest.approx([1.0] * 150 + [0.1] * 150 + [0.01] * 150 + [0.001] * 30)


def test_cosine_and_linear_go_from_the_start_to_the_end() -> None:
    cosine = SchedulePart(name="cosine", epochs=10, final_lr=0.1)
    linear = SchedulePart(name="linear", epochs=10, final_lr=0.1)
    assert rate(cosine, 0) == rate(linear, 0) == 1.0
    assert rate(cosine, 50) == rate(linear, 50) == pytest.approx(0.55)
    assert rate(cosine, 25) == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 4)))
    assert rate(linear, 99) == pytest.approx(0.1 + 0.9 * 0.01)
    assert rate(SchedulePart(name="constant"), 12345) == 1.0


def test_warm_up_is_linear_and_ends_at_the_full_rate() -> None:
    schedule = SchedulePart(name="cosine", epochs=10, warmup_epochs=0.5)
    assert [rate(schedule, step) for step in range(5)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rate(schedule, 5) == 1.0


def test_each_of_two_stages_has_the_whole_schedule() -> None:
    two = SchedulePart(name="cosine", epochs=10, first_stage_epochs=4)
    one = SchedulePart(name="cosine", epochs=6)
    assert first_stage_steps(two, 10) == 40
    assert rate(two, 39) < 0.01
    assert [rate(two, 40 + step) for step in range(60)] == [rate(one, step) for step in range(60)]


@given(
    st.sampled_from(["step", "cosine", "linear", "constant"]),
    st.integers(1, 50),
    st.floats(0, 3),
    st.integers(1, 7),
)
def test_the_rate_is_never_negative_nor_above_the_start(
    name: str, epochs: int, warmup: float, steps: int
) -> None:
    schedule = SchedulePart(name=name, epochs=epochs, warmup_epochs=warmup)
    rates = [rate(schedule, step, steps) for step in range(epochs * steps)]
    assert min(rates) >= 0
    assert max(rates) <= 1.0


def test_the_number_of_steps() -> None:
    assert total_steps(SchedulePart(epochs=3), 10) == 30
    assert total_steps(SchedulePart(epochs=3, max_steps=7), 10) == 7
    assert total_steps(SchedulePart(epochs=3, max_steps=70), 10) == 30
