"""The learning rate as a function of the step, so that a resumed run needs no scheduler state."""

from __future__ import annotations

import math

from xnorpp.training.recipe.config import OptimizerPart, SchedulePart


def first_stage_steps(schedule: SchedulePart, steps_per_epoch: int) -> int:
    """Steps of the first stage (binary activations, real weights); 0 with one stage."""
    return schedule.first_stage_epochs * steps_per_epoch


def total_steps(schedule: SchedulePart, steps_per_epoch: int) -> int:
    steps = schedule.epochs * steps_per_epoch
    return min(steps, schedule.max_steps) if schedule.max_steps else steps


def learning_rate(schedule: SchedulePart, optimizer: OptimizerPart, step: int, steps_per_epoch: int) -> float:
    """The learning rate of step `step` (from 0). Each of two stages runs through the whole schedule.

    With progress p in [0, 1) over the steps after the warm-up:
    step: lr * factor**floor(epoch / step_epochs), the epoch a fraction, so that a shorter run may drop at the
    same fractions of its steps (whole `step_epochs` drop between epochs, as in the paper);
    cosine: final + (lr - final) * (1 + cos(pi p)) / 2;   linear: lr + (final - lr) p;   constant: lr.
    The warm-up multiplies by (step + 1) / warm-up steps.
    """
    first = first_stage_steps(schedule, steps_per_epoch)
    length = schedule.epochs * steps_per_epoch - first
    if step < first:
        length = first
    else:
        step -= first
    warmup = round(schedule.warmup_epochs * steps_per_epoch)
    lr, final = optimizer.lr, schedule.final_lr
    if step < warmup:
        return lr * (step + 1) / warmup
    progress = (step - warmup) / max(1, length - warmup)
    if schedule.name == "step":
        return lr * schedule.factor ** int(step / (schedule.step_epochs * steps_per_epoch))
    if schedule.name == "cosine":
        return final + (lr - final) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    if schedule.name == "linear":
        return lr + (final - lr) * min(1.0, progress)
    return lr
