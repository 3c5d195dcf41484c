"""Starting from weights that exist: our own checkpoints, a real-valued baseline's state_dict, or
torchvision's ResNet.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from xnorpp.nn import binary_layers
from xnorpp.runtime.files import FileKind, file_kind
from xnorpp.training.state.checkpoint import (
    CheckpointError,
    load_checkpoint,
    packed_instead,
)

# torchvision's name (a pattern) -> ours. Its block is conv1 bn1 relu conv2 bn2; ours is bn1 conv1 act1 bn2
# conv2 act2. So its bn1, between the two convolutions, is our bn2; its bn2, after the second one, and our
# bn1 have no partner.
_TORCHVISION = (
    (r"conv1\.weight|bn1\..+|fc\..+|layer\d\.\d+\.conv[12]\.weight", r"\g<0>"),
    (r"(layer\d\.\d+)\.bn1\.(.+)", r"\1.bn2.\2"),
    (r"(layer\d\.\d+\.downsample)\.0\.(.+)", r"\1.conv.\2"),
    (r"(layer\d\.\d+\.downsample)\.1\.(.+)", r"\1.norm.\2"),
)


@dataclass(frozen=True)
class InitialReport:
    """Which tensors of the network were set, which were not, which of the file found no place, and a sentence
    where the file is of a network whose shortcuts go elsewhere, which its tensors do not show.
    """

    source: str
    loaded: tuple[str, ...]
    left: tuple[str, ...]
    unused: tuple[str, ...]
    differs: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {key: list(value) if isinstance(value, tuple) else value
                for key, value in dataclasses.asdict(self).items()}  # fmt: skip


def is_checkpoint(path: str | Path) -> bool:
    """Whether `path` is one of our runs or checkpoint files."""
    return Path(path).is_dir() or file_kind(path) is FileKind.CHECKPOINT


def is_torchvision_resnet(state: Mapping[str, Tensor]) -> bool:
    return {"layer1.0.bn1.weight", "layer2.0.downsample.0.weight", "fc.weight"} <= set(state)


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint, a safetensors file, or a torch file (read with weights_only, so no code
    runs).
    """
    path = Path(path)
    if is_checkpoint(path):
        return load_checkpoint(path).result
    if not path.exists():
        raise CheckpointError(f"There is no file {path} to take weights from.")
    if file_kind(path) is FileKind.PACKED:
        raise packed_instead(path)
    try:
        if path.suffix == ".safetensors":
            state: Any = safetensors.torch.load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # bytes that are no pickle raise nearly anything in an unpickler
        raise CheckpointError(
            f"{path} is not a state_dict that can be read without running code; "
            "`torch.save(model.state_dict(), FILE)` writes one."
        ) from None
    if isinstance(state, Mapping):
        for key in ("state_dict", "model"):
            if isinstance(state.get(key), Mapping):
                state = state[key]
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise CheckpointError(f"{path} holds no state_dict: names with tensors were expected.")
    return {name.removeprefix("module."): tensor for name, tensor in state.items()}


def translate_torchvision(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """torchvision's names turned into ours; what has no partner keeps its name with the prefix
    `torchvision.`."""
    translated: dict[str, Tensor] = {}
    for name, tensor in state.items():
        ours = f"torchvision.{name}"
        for pattern, replacement in _TORCHVISION:
            found = re.fullmatch(pattern, name)
            if found:
                ours = found.expand(replacement)
                break
        translated[ours] = tensor
    return translated


def initialise(model: nn.Module, path: str | Path) -> InitialReport:
    """Copy every tensor of the file at `path` that has a place of the same name and shape in `model`.

    Learned scales that the file does not have start again from the new weights.

    Example:
        >>> import tempfile
        >>> from safetensors.torch import save_file
        >>> from xnorpp.models import create_model
        >>> from xnorpp.training import initialise
        >>> real = create_model("small", method="real", input_size=8, in_channels=1)
        >>> binary = create_model("small", input_size=8, in_channels=1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_file(real.state_dict(), f"{folder}/real.safetensors")
        ...     report = initialise(binary, f"{folder}/real.safetensors")
        >>> "fc.weight" in report.loaded
        True
    """
    checkpoint = load_checkpoint(path) if is_checkpoint(path) else None
    state = read_state_dict(path) if checkpoint is None else checkpoint.result
    if is_torchvision_resnet(state):
        state = translate_torchvision(state)
    own = model.state_dict()
    fitting = {
        name: tensor for name, tensor in state.items() if name in own and own[name].shape == tensor.shape
    }
    if not any(tensor.ndim > 1 for tensor in fitting.values()):
        raise CheckpointError(
            f"{path} has no weight that fits the network: it has {', '.join(list(state)[:3])}, ..., "
            f"the network {', '.join(list(own)[:3])}, ..."
        )
    model.load_state_dict({**own, **fitting})
    for name, layer in binary_layers(model):
        if not any(key.startswith(f"{name}.scale.") for key in fitting):
            layer.reset_scale()
    return InitialReport(
        source=str(path),
        loaded=tuple(fitting),
        left=tuple(name for name in own if name not in fitting),
        unused=tuple(name for name in state if name not in fitting),
        differs="" if checkpoint is None else _other_shortcuts(model, checkpoint.model_config, path),
    )


def _other_shortcuts(model: nn.Module, trained: Mapping[str, Any], path: str | Path) -> str:
    """A sentence where both networks are ours and their shortcuts differ, else nothing."""
    theirs, ours = (config.get("shortcut") for config in (trained, getattr(model, "config", {})))
    if None in (theirs, ours) or theirs == ours:
        return ""
    return f"The weights of {path} were trained with shortcut={theirs!r}; this network has shortcut={ours!r}."
