"""What a step learns from: its batch, the loss, and the teacher, asked in each step or once beforehand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from xnorpp.training.accuracy import autocast
from xnorpp.training.recipe.config import Recipe
from xnorpp.training.teacher.answers import StoredAnswers
from xnorpp.training.teacher.loss import training_loss


class Lesson:
    """Batches and loss of a run. `cached` is False where the step may be recorded as a CUDA graph, in which
    weights have to be cast at each use.
    """

    def __init__(
        self, recipe: Recipe, teacher: nn.Module | None, loaders: list[Any], cached: bool = True
    ) -> None:
        self.recipe, self.teacher, self.loaders, self.cached = recipe, teacher, loaders, cached
        self.answers: StoredAnswers | None = None

    def prepare(self, classes: int, say: Callable[[str], None]) -> None:
        """Compute the teacher's answers beforehand, where the recipe wants that, and release the teacher."""
        if self.teacher is not None and self.recipe.loss.answers:
            self.answers = StoredAnswers(self.recipe, self.teacher, self.loaders, classes, say)
            self.teacher = None

    def batches(self, index: int, epoch: int, start_step: int) -> Iterator[tuple[Tensor, ...]]:
        """The batches of loader `index`: images and labels, and with stored answers the teacher's logits."""
        if self.answers is not None:
            return self.answers.beside(index, epoch, start_step)
        batches: Iterator[tuple[Tensor, ...]] = self.loaders[index].epoch(epoch, start_step=start_step)
        return batches

    def loss(
        self,
        model: Callable[[Tensor], Tensor],
        images: Tensor,
        labels: Tensor,
        teacher_logits: Tensor | None = None,
    ) -> Tensor:
        """The loss of a batch, which has logits of the teacher if they were stored."""
        run, part = self.recipe.run, self.recipe.loss
        if run.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        with autocast(run.amp, images.device, cache=self.cached):
            if self.teacher is not None:
                with torch.no_grad():
                    teacher_logits = self.teacher(images)
            logits = model(images)
        return training_loss(
            logits,
            labels,
            label_smoothing=part.label_smoothing,
            teacher_logits=teacher_logits,
            distill_weight=part.distill_weight,
            temperature=part.temperature,
        )
