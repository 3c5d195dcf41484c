"""The loss, with distillation where there is a teacher."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from xnorpp.training.recipe.config import LossPart, Recipe


def distillation_loss(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T^2 * KL(softmax(teacher / T) || softmax(student / T)), the mean over the batch.

    paper: Hinton et al. 2015, "Distilling the Knowledge in a Neural Network",
    https://arxiv.org/abs/1503.02531
    """
    return temperature**2 * functional.kl_div(
        functional.log_softmax(student.float() / temperature, dim=1),
        functional.log_softmax(teacher.float() / temperature, dim=1),
        reduction="batchmean",
        log_target=True,
    )


def training_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    label_smoothing: float = 0.0,
    teacher_logits: Tensor | None = None,
    distill_weight: float = 0.0,
    temperature: float = 1.0,
) -> Tensor:
    """(1 - w) * cross-entropy + w * distillation; without a teacher the cross-entropy alone.

    `labels` are class indices, or one row of probabilities per sample, as mixup makes them.
    """
    if labels.ndim == 2 and labels.shape[1] < logits.shape[1]:  # outputs that no class stands for
        labels = functional.pad(labels, (0, logits.shape[1] - labels.shape[1]))
    loss = functional.cross_entropy(logits.float(), labels, label_smoothing=label_smoothing)
    if teacher_logits is None:
        return loss
    return (1 - distill_weight) * loss + distill_weight * distillation_loss(
        logits, teacher_logits, temperature
    )


def missing_teacher(recipe: Recipe) -> str | None:
    """A line of warning where a recipe asks for distillation and names no teacher.

    `loss.distill_weight` has a value in every recipe; one that differs from the default was meant. Recipes of
    real-valued baselines share it with the networks that they teach.
    """
    loss = recipe.loss
    if loss.answers and not loss.teacher:
        return (
            "Warning: `loss.answers` is set and `loss.teacher` is empty, so the run trains without "
            "distillation; --set loss.teacher=CHECKPOINT names a teacher."
        )
    if (
        loss.teacher
        or loss.distill_weight in (0.0, LossPart().distill_weight)
        or recipe.model.method == "real"
    ):
        return None
    return (
        f"Warning: `loss.distill_weight` is {loss.distill_weight:g} and `loss.teacher` is empty, so the run "
        "trains without distillation; --set loss.teacher=CHECKPOINT names a teacher."
    )
