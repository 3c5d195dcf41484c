"""From a checkpoint to a packed file that carries everything a prediction needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from xnorpp.packing import pack_to_file
from xnorpp.runtime.files import FileKind, file_kind
from xnorpp.training.state.checkpoint import load_model


def pack_checkpoint(
    checkpoint: str | Path,
    output: str | Path,
    *,
    half: bool = False,
    real: str | None = None,
    labels: Sequence[str] | None = None,
    prepare: Callable[[nn.Module], object] | None = None,
    model: Any = None,
) -> tuple[nn.Module, dict[str, Any]]:
    """Pack a run's network into `output`, with its labels and pre-processing; returns what was packed.

    `half` and `real` are those of `pack`. `labels` takes the place of the class names that the checkpoint
    has; `prepare` may change the network before it is packed; `model` is the network where it is a user's
    (see `load_model`). The file's meta records where the network came from: its configuration, data set,
    recipe, epoch, metrics and commit. A checkpoint at `output` is never overwritten.
    """
    check_output(output)
    model, meta = load_model(checkpoint, model=model)
    if prepare is not None:
        prepare(model)
    config = meta["model"]
    kept = {
        "model": config,
        "dataset": meta.get("dataset"),
        "holdout": ((meta.get("recipe") or {}).get("data") or {}).get("holdout", 0.0),
        "recipe": (meta.get("recipe") or {}).get("name"),
        "epoch": meta.get("epoch"),
        "metrics": meta.get("metrics"),
        "commit": meta.get("commit"),
    }
    labels = labels or meta.get("classes")
    pack_to_file(
        model,
        (config["in_channels"], *config["input_size"]),
        output,
        half=half,
        real=real,
        preprocess=meta.get("preprocess"),
        labels=[str(label) for label in labels] if labels else None,
        meta=kept,
    )
    return model, meta


def check_output(output: str | Path) -> None:
    """Refuse to overwrite a checkpoint."""
    if file_kind(output) is FileKind.CHECKPOINT:
        raise ValueError(
            f"`output` (={str(output)!r}) is a checkpoint, which packing would overwrite; "
            "choose another name, such as model.xnor"
        )


def float_bytes(model: nn.Module) -> int:
    """What the network's state_dict takes as it was trained."""
    return sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
