"""Distillation: the loss, the real-valued teacher, and its answers where they are computed beforehand."""

from xnorpp.training.teacher.answers import StoredAnswers, why_not_stored
from xnorpp.training.teacher.lesson import Lesson
from xnorpp.training.teacher.loss import distillation_loss, missing_teacher, training_loss
from xnorpp.training.teacher.network import TorchvisionResNet, load_teacher

__all__ = [
    "Lesson",
    "StoredAnswers",
    "TorchvisionResNet",
    "distillation_loss",
    "load_teacher",
    "missing_teacher",
    "training_loss",
    "why_not_stored",
]
