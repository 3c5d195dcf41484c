"""The teacher's answers to every crop and flip of every training image, computed once and looked up later.

A run of hundreds of epochs shows its teacher the same views of an image again and again: with a padding of
four pixels and flips there are 162, fewer than the epochs of a long run. Runs that share a teacher share its
answers too, in a file that the first of them writes.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from xnorpp.data.loading.views import Views, why_not_counted
from xnorpp.runtime import files
from xnorpp.training.accuracy import AMP_TYPES, autocast
from xnorpp.training.recipe.config import Recipe, RecipeError
from xnorpp.training.state.checkpoint import CheckpointWriteError
from xnorpp.training.state.lock import in_turn

TENSOR = "answers"
_SHARE = 0.5  # of the device's free memory that the answers may take


class StoredAnswers:
    """A row of logits for each view of each image.

    Args:
        recipe: The run's recipe; `loss.answers` names the folder.
        teacher: The frozen teacher.
        loaders: The run's training loaders.
        classes: How many logits the teacher gives.
        say: Gets a line where the answers are computed or waited for.

    Raises:
        RecipeError: The views cannot be counted, or the answers do not fit into memory.
        CheckpointWriteError: The file cannot be written.
    """

    def __init__(
        self,
        recipe: Recipe,
        teacher: nn.Module,
        loaders: list[Any],
        classes: int,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        reason = why_not_stored(loaders[0])
        if reason is not None:
            raise RecipeError(
                f"`loss.answers` (={recipe.loss.answers!r}) must be empty here, because {reason}."
            )
        self.views = [Views(loader) for loader in loaders]
        self.table = self._table(recipe, teacher, classes, say).flatten(0, 1)

    def beside(self, index: int, epoch: int, start_step: int = 0) -> Iterator[tuple[Tensor, ...]]:
        """The batches of loader `index`: images, labels and the teacher's logits."""
        return self.views[index].beside(self.table, epoch, start_step)

    def _table(self, recipe: Recipe, teacher: nn.Module, classes: int, say: Callable[[str], None]) -> Tensor:
        views, folder = self.views[0], Path(recipe.loss.answers)
        device = views.loader.device
        shape = (views.images, views.per_image, classes)
        dtype = AMP_TYPES.get(recipe.run.amp, torch.float32)
        _check_room(recipe, shape, dtype, device)
        facts = _identity(recipe, teacher, views)
        path = folder / f"answers-{hashlib.sha256(facts.encode()).hexdigest()[:16]}.safetensors"
        text = f"the teacher's answers to {views.per_image} views of each of {views.images:,} images"
        with in_turn(folder, "loss.answers", lambda: say(f"Waiting for {text}, which another run computes.")):
            found = _read(path, facts, shape, dtype, device)
            if found is None:
                size = _bytes(shape, dtype)
                say(f"Computing {text} ({size / 1e6:,.0f} MB).")
                started = time.perf_counter()
                found = _ask(teacher, views, shape, dtype, recipe)
                _write(path, found, facts, folder)
                say(f"Stored them in {path} after {time.perf_counter() - started:.0f} s.")
        return found


def why_not_stored(loader: object) -> str | None:
    """None where a teacher's answers to a loader's batches can be computed beforehand, else the reason."""
    return why_not_counted(loader)


def _bytes(shape: tuple[int, int, int], dtype: torch.dtype) -> int:
    return int(torch.Size(shape).numel()) * dtype.itemsize


def _check_room(
    recipe: Recipe, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device
) -> None:
    """Refuse what does not fit, before minutes go into it."""
    if device.type == "cuda":  # pragma: cuda only
        free = torch.cuda.mem_get_info(device)[0]
    elif hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:
        return
    needed = _bytes(shape, dtype)
    if needed > free * _SHARE:
        images, views, classes = shape
        raise RecipeError(
            f"`loss.answers` (={recipe.loss.answers!r}) must be empty here, because the answers to {views} "
            f"views of {images:,} images and {classes} classes take {needed / 1e9:.1f} GB, and "
            f"{free / 1e9:.1f} GB are free on {device.type!r}."
        )


def _identity(recipe: Recipe, teacher: nn.Module, views: Views) -> str:
    """What decides the answers, as JSON: the teacher's weights, the images, the views, the arithmetic."""
    loader = views.loader
    weights, images = hashlib.sha256(), hashlib.sha256()
    for name, value in sorted(teacher.state_dict().items()):
        weights.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    images.update(repr(tuple(loader.images.shape)).encode() + loader.images.cpu().numpy().tobytes())
    images.update(repr(loader.normalisation).encode())
    run = recipe.run
    facts = {
        "weights": weights.hexdigest(),
        "images": images.hexdigest(),
        "views": [views.pad, views.flips, loader.enlarged],
        "arithmetic": [run.amp, run.channels_last, loader.device.type],
    }
    return json.dumps(facts, sort_keys=True)


def _ask(
    teacher: nn.Module, views: Views, shape: tuple[int, int, int], dtype: torch.dtype, recipe: Recipe
) -> Tensor:
    """The teacher, in the precision that a step of the run would ask it in."""
    device = views.loader.device
    answers = torch.empty(shape, dtype=dtype, device=device)
    memory = torch.channels_last if recipe.run.channels_last else torch.contiguous_format
    with torch.no_grad(), autocast(recipe.run.amp, device):
        for view, part, images in views.each():
            answers[part, view] = teacher(images.contiguous(memory_format=memory)).to(dtype)
    return answers


def _read(
    path: Path, facts: str, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device
) -> Tensor | None:
    """The stored answers; None if there are none, or if the file is damaged or another one."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            if (file.metadata() or {}).get("facts") != facts:
                return None
            found = file.get_tensor(TENSOR)
    except (OSError, safetensors.SafetensorError):
        return None
    return found.to(device) if tuple(found.shape) == shape and found.dtype == dtype else None


def _write(path: Path, answers: Tensor, facts: str, folder: Path) -> None:
    try:
        with files.replacing(path, flush=False) as temporary:
            safetensors.torch.save_file({TENSOR: answers.cpu()}, temporary, {"facts": facts})
    except (OSError, safetensors.SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CheckpointWriteError(
            f"`loss.answers` (={str(folder)!r}) cannot be written to: {reason}."
        ) from error
