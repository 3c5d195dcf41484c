"""What a run writes: checkpoints on the way, and at its end the result, its summary and the curves."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from xnorpp.nn import binary_layers
from xnorpp.shipped.accuracy import accuracy_text
from xnorpp.training import identity
from xnorpp.training.distributed import World, average_buffers, merge_over_world, wait_for_all
from xnorpp.training.optimizer import optimizer_tensors
from xnorpp.training.recipe.config import Recipe
from xnorpp.training.records.curves import draw_curves
from xnorpp.training.records.journal import Journal, read_metrics, time_left
from xnorpp.training.records.record import describe_hardware, source_commit
from xnorpp.training.setup import DataSets
from xnorpp.training.state.checkpoint import (
    BEST_NAME,
    FINAL_NAME,
    checkpoint_path,
    forget_old,
    save_checkpoint,
    write_atomically,
)
from xnorpp.training.update.average import AveragedWeights


@dataclass
class Position:
    """Where the run stands."""

    step: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    best: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


class Outcome:
    """The part of a run that writes. `loop._Run` sets what is declared here."""

    recipe: Recipe
    out: Path
    world: World
    at: Position
    facts: dict[str, Any]
    skipped: dict[str, str]
    sets: DataSets
    loaders: list[Any]
    test_loader: Any
    steps_per_epoch: int
    total: int
    model: nn.Module
    config: dict[str, Any]
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler | None
    last_saved: Path | None
    averaged: AveragedWeights | None

    def _name_skipped(self, journal: Journal, others: dict[str, str]) -> None:
        """Name every unreadable image once: those of this process's loaders, and of `others`."""
        own = {name: why for loader in (*self.loaders, self.test_loader) for name, why in loader.skipped}
        for name, why in {**own, **others}.items():
            if name not in self.skipped:
                self.skipped[name] = why
                journal.say(f"{name} cannot be read ({why}) and is left out")

    def meta(self) -> dict[str, Any]:
        """All that is needed to resume, pack or predict."""
        recipe, sets = self.recipe, self.sets
        meta: dict[str, Any] = {
            "model": self.config,
            "recipe": recipe.to_dict(),
            "dataset": recipe.data.dataset,
            "classes": sets.class_names(self.config["num_classes"]),
            "preprocess": sets.preprocess.to_dict() if sets.preprocess else None,
            "step": self.at.step,
            "steps_per_epoch": self.steps_per_epoch,
            "epoch": self.at.step // self.steps_per_epoch,
            "metrics": self.at.metrics,
            "best": self.at.best,
            "seconds": self.at.seconds,
            "seed": recipe.run.seed,
            "commit": source_commit(),
            "code": identity.code_hash(),
            "settings_hash": identity.settings_hash(recipe),
            "hardware": describe_hardware(self.world.device),
            **self.facts,
        }
        if self.scaler is not None:
            meta["scaler"] = self.scaler.state_dict()
        return meta

    def _opening(self) -> str:
        """The first line of a run: recipe, device, data, network and length."""
        train, test = self.sets.train, self.sets.test
        counts = [
            f"{len(one):,} {name}" if hasattr(one, "__len__") else f"{name}"
            for one, name in ((train, "training"), (test, "test images"))
        ]
        bits = sum(layer.weight.numel() for _, layer in binary_layers(self.model))
        every = sum(parameter.numel() for parameter in self.model.parameters())
        counts_of = {"epoch": -(-self.total // self.steps_per_epoch), "step": self.steps_per_epoch}
        length = " of ".join(f"{n:,} {unit}{'s' * (n != 1)}" for unit, n in counts_of.items())
        return (
            f"{self.recipe.name} on {self.world.device}: {' and '.join(counts)}, {every:,} parameters of "
            f"which {bits:,} are one-bit weights, {length}"
        )

    def _save_best(self, network: nn.Module) -> None:
        """The weights of the best evaluation so far, beside the result, which is the last epoch's."""
        if self.world.leader:
            save_checkpoint(self.out / BEST_NAME, network.state_dict(), self.meta())

    def _save(self) -> None:
        average_buffers(self.model, self.world)
        if self.averaged is not None:
            average_buffers(self.averaged.model, self.world)
        path = checkpoint_path(self.out, self.at.step)
        if self.world.leader:
            tensors = optimizer_tensors(self.model, self.optimizer)
            average = self.averaged.model.state_dict() if self.averaged is not None else None
            save_checkpoint(path, self.model.state_dict(), self.meta(), tensors, average)
            forget_old(self.out, self.recipe.run.keep)
        wait_for_all(self.world)
        self.last_saved = path

    @property
    def classes(self) -> int:
        """Of the data; those that the network distinguishes where the data does not state them."""
        return self.sets.num_classes or int(self.config["num_classes"])

    def _finish(self, journal: Journal) -> dict[str, Any]:
        meta = self.meta()
        self._name_skipped(journal, merge_over_world(self.skipped, self.world))
        summary = {
            **meta, "out": str(self.out), "skipped_images": len(self.skipped), "skipped": self.skipped,
        }  # fmt: skip
        if self.world.leader:
            save_checkpoint(self.out / FINAL_NAME, self.model.state_dict(), meta)
            write_atomically(self.out / "summary.json", json.dumps(summary, indent=1).encode())
            drawn = draw_curves(
                read_metrics(self.out / "metrics.jsonl"), self.recipe, self.out / "curves.png", self.classes
            )
            accuracy = accuracy_text(self.at.metrics["top1"], self.at.metrics["top5"], self.classes)
            journal.say(
                f"{self.recipe.name}: {accuracy} after {self.at.step} step{'s' * (self.at.step != 1)} in "
                f"{time_left(self.at.seconds)}; model in {self.out / FINAL_NAME}"
                + (f", curves in {self.out / 'curves.png'}" if drawn else "")
            )
        wait_for_all(self.world)
        return summary
