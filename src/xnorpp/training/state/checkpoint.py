"""Checkpoints: one safetensors file each, written atomically, verified on reading, nothing in it can execute.

A file holds the weights as `model/NAME`, their moving average (of a run that has one and is not over) as
`average/NAME`, the optimiser's tensors as `optimizer/NAME/KEY`, and in its metadata a JSON text with
everything else. A checksum over names, types, shapes, bytes and the JSON reveals a damaged file. Random
numbers need no state: each one is a function of the seed and the step (see `loop.py`).

The writer fills a temporary file, flushes it to the disk, and renames it over its final name; whatever
moment the process dies at, a reader finds the old set of files or the new one.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from xnorpp.runtime import files
from xnorpp.runtime.errors import FAILED, XnorppError
from xnorpp.runtime.files import CHECKPOINT_FORMAT, PACKED_FORMAT, FileKind, file_kind

FORMAT = CHECKPOINT_FORMAT
VERSION = "1"
FINAL_NAME = "model.safetensors"
BEST_NAME = "best.safetensors"


class CheckpointError(XnorppError, RuntimeError):
    """A checkpoint that cannot be read; the message is one sentence for the user.

    Example:
        >>> from xnorpp.training import CheckpointError, load_checkpoint
        >>> try:
        ...     load_checkpoint("no-such-run/model.safetensors")
        ... except CheckpointError as error:
        ...     print("no-such-run" in str(error))
        True
    """


class CheckpointWriteError(CheckpointError):
    """A checkpoint that cannot be written; the system's error is its cause."""

    exit_code = FAILED


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds. `model_config` recreates the network through `create_model`.

    Example:
        >>> import tempfile
        >>> from xnorpp.models import create_model
        >>> from xnorpp.training import load_checkpoint, save_checkpoint
        >>> model = create_model("small", input_size=8, in_channels=1)
        >>> weights, meta = model.state_dict(), {"model": model.config}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = save_checkpoint(f"{folder}/mine.safetensors", weights, meta)
        ...     checkpoint = load_checkpoint(path)
        >>> checkpoint.model_config["name"], len(checkpoint.weights) == len(weights)
        ('small', True)
    """

    path: Path
    model_config: dict[str, Any]
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    meta: dict[str, Any]
    average: dict[str, Tensor] = field(default_factory=dict)

    @property
    def result(self) -> dict[str, Tensor]:
        """The weights to evaluate: their moving average, where the run has one (`optimizer.ema_decay`)."""
        return self.average or self.weights


def save_checkpoint(
    path: str | Path,
    weights: Mapping[str, Tensor],
    meta: Mapping[str, Any],
    optimizer: Mapping[str, Tensor] | None = None,
    average: Mapping[str, Tensor] | None = None,
) -> Path:
    """Write one file atomically; `meta` must be plain JSON and have `model`, the network's configuration.

    Example:
        >>> import tempfile
        >>> from xnorpp.models import create_model
        >>> from xnorpp.training import save_checkpoint
        >>> model = create_model("small", input_size=8, in_channels=1)
        >>> weights, meta = model.state_dict(), {"model": model.config}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_checkpoint(f"{folder}/mine.safetensors", weights, meta).name
        'mine.safetensors'
    """
    path = Path(path)
    tensors = {f"model/{name}": _plain(tensor) for name, tensor in weights.items()}
    tensors.update({f"optimizer/{name}": _plain(tensor) for name, tensor in (optimizer or {}).items()})
    tensors.update({f"average/{name}": _plain(tensor) for name, tensor in (average or {}).items()})
    text = json.dumps(meta, sort_keys=True, allow_nan=True)
    header = {"format": FORMAT, "version": VERSION, "meta": text, "checksum": _checksum(tensors, text)}
    write_atomically(path, safetensors.torch.save(tensors, header))
    return path


def _plain(tensor: Tensor) -> Tensor:
    """On the CPU, contiguous, and sharing memory with nothing (safetensors refuses shared storage)."""
    return tensor.detach().cpu().contiguous().clone()


def _checksum(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        if tensor.numel():
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return "sha256:" + digest.hexdigest()


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file of a run whole or not at all; its folder is made. On an error the old file stays."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomically(path, content)
    except OSError as error:
        raise CheckpointWriteError(
            f"{path} could not be written ({len(content)} bytes): {error.strerror or error}; "
            "files written before it are untouched."
        ) from error


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Read and verify a checkpoint file, or a run's folder: its final model, else its newest checkpoint
    that verifies.

    Example:
        >>> import tempfile
        >>> from xnorpp.models import create_model
        >>> from xnorpp.training import load_checkpoint, save_checkpoint
        >>> model = create_model("small", input_size=8, in_channels=1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = f"{folder}/mine.safetensors"
        ...     _ = save_checkpoint(path, model.state_dict(), {"model": model.config})
        ...     weights = load_checkpoint(path).weights
        >>> bool((weights["fc.weight"] == model.fc.weight).all())
        True
    """
    path = Path(path)
    if not path.is_dir():
        return _read(path)
    damaged: CheckpointError | None = None
    if (path / FINAL_NAME).exists():
        try:
            return _read(path / FINAL_NAME)
        except CheckpointError as error:
            damaged = error
    found = newest_checkpoint(path)
    if found is None:
        if damaged is not None:
            raise CheckpointError(f"{str(damaged).rstrip('.')}, and {path} holds no other one.")
        raise CheckpointError(f"{path} holds no checkpoint.")
    if damaged is not None:
        warnings.warn(f"{damaged} Falling back to the run's checkpoints.", stacklevel=2)
    return found


def _read(path: Path) -> Checkpoint:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            if header.get("format") == PACKED_FORMAT:
                raise packed_instead(path)
            if header.get("format") != FORMAT:
                raise CheckpointError(f"{path} is a safetensors file but not an xnorpp checkpoint.")
            if header.get("version") != VERSION:
                raise CheckpointError(
                    f"{path} has version {header.get('version')!r}; this release reads {VERSION!r}."
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise CheckpointError(f"There is no checkpoint {path}.") from None
    except (OSError, safetensors.SafetensorError) as error:
        kind = file_kind(path)
        if kind in (FileKind.IMAGE, FileKind.TORCH):
            raise CheckpointError(f"{path} is {kind.value}; a checkpoint of a run is needed.") from None
        raise CheckpointError(f"The checkpoint {path} is damaged or truncated ({error}).") from None
    if header.get("checksum") != _checksum(tensors, header.get("meta", "")):
        raise CheckpointError(f"The checkpoint {path} is damaged: its checksum does not match its content.")
    meta = _checked_meta(path, header.get("meta", ""))
    return Checkpoint(
        path=path,
        model_config=meta["model"],
        weights=_below("model/", tensors),
        optimizer=_below("optimizer/", tensors),
        meta=meta,
        average=_below("average/", tensors),
    )


def _checked_meta(path: Path, text: str) -> dict[str, Any]:
    """The JSON of a checkpoint. A checksum does not show who wrote a file: its content is checked."""
    try:
        meta = json.loads(text)
    except (ValueError, RecursionError):
        raise CheckpointError(f"The checkpoint {path} is damaged: its metadata is not JSON.") from None
    if not isinstance(meta, dict) or not isinstance(meta.get("model"), dict):
        raise CheckpointError(f"The checkpoint {path} does not describe its network (`model`).")
    step = meta.get("step", 0)
    if type(step) is not int or step < 0:
        raise CheckpointError(f"The checkpoint {path} has the step {step!r:.40}; a whole number is needed.")
    named = re.fullmatch(r"step-(\d+)\.safetensors", path.name)
    if named and "step" in meta and int(named[1]) != step:
        raise CheckpointError(f"The checkpoint {path} holds step {step}, and its name is another one's.")
    return meta


def packed_instead(path: str | Path) -> CheckpointError:
    """The error where a packed model was given for a checkpoint."""
    return CheckpointError(f"{path} is a packed model; a checkpoint is needed.")


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def load_model(
    path: str | Path, device: str | torch.device = "cpu", *, model: Any = None
) -> tuple[nn.Module, dict[str, Any]]:
    """The trained network of a checkpoint.

    Its weights are real where they were in training: in the first of two stages.

    Args:
        path: A checkpoint, or a run's folder.
        device: Where the network goes.
        model: The network itself, where it is a user's: an `nn.Module`, which gets the weights, a function
            that returns one, or `package.module:function`. A checkpoint never imports or calls what it names.

    Returns:
        The network in evaluation mode, and what is known about it.

    Raises:
        CheckpointError: The file cannot be read, or its weights do not fit `model`.
        ValueError: The network is a user's and `model` is not given.

    Example:
        >>> import tempfile
        >>> from xnorpp.training import train
        >>> folder = tempfile.TemporaryDirectory()
        >>> recipe = {"extends": "digits-small-case4", "model.options.width": 4, "schedule.max_steps": 1}
        >>> summary = train({**recipe, "run.tensorboard": False}, out=folder.name, quiet=True)
        >>> model, meta = load_model(folder.name)
        >>> meta["classes"][:3], model.training
        (['0', '1', '2'], False)
        >>> folder.cleanup()
    """
    from xnorpp.nn import set_stage
    from xnorpp.training.distributed import choose_device
    from xnorpp.training.network import dry_run, rebuild

    place = choose_device(str(device))
    checkpoint = load_checkpoint(path)
    config = checkpoint.model_config
    made = rebuild(config, checkpoint.path, model)
    if model is not None:  # lazy modules have no weights to fill before
        first = next((one.device for one in made.parameters()), torch.device("cpu"))
        dry_run(made, torch.zeros((2, config["in_channels"], *config["input_size"]), device=first))
    model = made
    set_weights(model, checkpoint.result, checkpoint.path)
    if in_first_stage(checkpoint.meta):
        set_stage(model, weights_binary=False)
    return model.to(place).eval(), checkpoint.meta


def set_weights(model: nn.Module, weights: Mapping[str, Tensor], path: Path) -> None:
    """`load_state_dict` with an error of one sentence where names or shapes differ."""
    own = model.state_dict()
    layer = _binary_on_one_side(own, weights)
    if layer is not None:
        binary_here = any(name.startswith(f"{layer}.scale.") for name in own)
        kinds = ("binary", "real-valued") if binary_here else ("real-valued", "binary")
        raise CheckpointError(
            f"The weights in {path} do not fit the network: the layer `{layer}` is {kinds[0]} in the network "
            f"and {kinds[1]} in the checkpoint; call `binarize` with the `example` and seed of the training, "
            "or with `overrides` for this layer."
        )
    for name in [*weights, *own]:
        if name not in weights or name not in own:
            lacking = "the checkpoint" if name in own else "the network"
            raise CheckpointError(f"The weights in {path} do not fit the network: {lacking} has no `{name}`.")
        if weights[name].shape != own[name].shape:
            raise CheckpointError(
                f"The weights in {path} do not fit the network: `{name}` has the shape "
                f"{tuple(weights[name].shape)} there and {tuple(own[name].shape)} in the network."
            )
    model.load_state_dict(weights)


def _binary_on_one_side(*sides: Mapping[str, Tensor]) -> str | None:
    """The first layer that has a learned scale on one side alone, and weights on both."""
    scaled = [[name.partition(".scale.")[0] for name in side if ".scale." in name] for side in sides]
    for layer in [*scaled[0], *scaled[1]]:
        if all(f"{layer}.weight" in side for side in sides) and (layer in scaled[0]) != (layer in scaled[1]):
            return layer
    return None


def in_first_stage(meta: Mapping[str, Any]) -> bool:
    """Whether the last step before a checkpoint was of the first of two stages.

    So at the very end of that stage too: those weights were trained and measured as real ones.
    """
    epochs = ((meta.get("recipe") or {}).get("schedule") or {}).get("first_stage_epochs", 0)
    return bool(epochs) and meta.get("step", math.inf) <= epochs * meta.get("steps_per_epoch", 0)


def checkpoint_path(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:09d}.safetensors"


def list_checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, newest first."""
    return sorted((run / "checkpoints").glob("step-*.safetensors"), reverse=True)


def newest_checkpoint(run: Path) -> Checkpoint | None:
    """The newest checkpoint that verifies; a damaged one is named in a warning and the previous one taken."""
    paths = list_checkpoints(run)
    problems: list[str] = []
    for path in paths:
        try:
            found = _read(path)
        except CheckpointError as error:
            problems.append(str(error))
            continue
        for problem in problems:
            warnings.warn(f"{problem} Using the previous one, {path}.", stacklevel=2)
        return found
    if problems:
        raise CheckpointError(" ".join([*problems, f"No checkpoint of {run} is left to use."]))
    return None


def forget_old(run: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints."""
    for path in list_checkpoints(run)[keep:]:
        path.unlink(missing_ok=True)


def clear_temporary(run: Path) -> None:
    """Delete what a killed writer left half-written."""
    for folder in (run, run / "checkpoints"):
        for path in folder.glob(".*.tmp"):
            path.unlink(missing_ok=True)
