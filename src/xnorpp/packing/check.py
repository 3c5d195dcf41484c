"""`check_packable`: every obstacle to packing a model, with its remedy, before any training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from xnorpp.packing.assemble import assemble
from xnorpp.packing.fold import fold
from xnorpp.packing.graph import PackError
from xnorpp.packing.obstacles import Obstacle
from xnorpp.packing.parts import Part, count_layers, find_parts, trace_example
from xnorpp.packing.record import unwrap
from xnorpp.runtime.format.program import ProgramError


@dataclass(frozen=True)
class Packability:
    """What `check_packable` found. It is true where the model packs, and prints as a list.

    Attributes:
        obstacles: What cannot be packed, in the order in which the model runs.
        parts: The largest submodules that can be packed, and those that cannot, with the reason.
        one_bit: How many convolutions and products are counted in bits, in a model that packs whole.

    Example:
        >>> from torch import nn
        >>> import xnorpp
        >>> result = xnorpp.check_packable(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), 8)
        >>> bool(result), str(result)
        (True, 'packable: the whole model, 1 layer')
    """

    obstacles: tuple[Obstacle, ...]
    parts: tuple[Part, ...]
    one_bit: int = 0

    @property
    def packable_parts(self) -> tuple[Part, ...]:
        """The parts that `pack_submodules` would pack."""
        return tuple(part for part in self.parts if part.packed)

    def __bool__(self) -> bool:
        return not self.obstacles

    def __str__(self) -> str:
        if self:
            layers = _count(sum(part.layers for part in self.parts), "layer")
            return f"packable: the whole model, {layers}" + (
                f", {_count(self.one_bit, 'one-bit operation')}" if self.one_bit else ""
            )
        count = len(self.obstacles)
        lines = [f"not packable: {count} obstacle{'s' * (count > 1)}"]
        groups: dict[tuple[str, str, str], list[Obstacle]] = {}
        for obstacle in self.obstacles:
            groups.setdefault((obstacle.operation, obstacle.reason, obstacle.remedy), []).append(obstacle)
        for (operation, reason, remedy), rows in groups.items():
            lines.append(f"- {operation} {reason}")
            lines += _columns([(row.path or "model", row.line) for row in rows])
            lines.append(f"  remedy: {remedy}")
        if self.packable_parts:
            lines.append("packable parts, which xnorpp.pack_submodules packs:")
            lines += [f"  {part}" for part in self.packable_parts]
        else:
            lines.append("no part with a convolution or linear layer can be packed by itself")
        return "\n".join(lines)


def check_packable(model: nn.Module, example: Any) -> Packability:
    """Lists everything that keeps `model` from being packed, with what to do about it.

    The model runs once in evaluation mode on two images and is left unchanged. The check takes about a second
    and needs no trained weights: a network that passes it untrained packs after training too.

    Args:
        model: Any `nn.Module`, before or after `binarize`.
        example: A batch as the model takes it (or a tuple of arguments), or the size of one input: a side,
            (h, w), (c, h, w) or (features,).

    Returns:
        A `Packability`: true where the model packs; `obstacles`, and the `packable_parts`.

    Raises:
        ValueError: If the model does not run on `example`.

    Example:
        >>> from torch import nn
        >>> import xnorpp
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.FractionalMaxPool2d(2, 3))
        >>> print(xnorpp.check_packable(net, (3, 32, 32)))
        not packable: 1 obstacle
        - nn.FractionalMaxPool2d is not supported
          1  nn.FractionalMaxPool2d
          remedy: use nn.MaxPool2d or nn.AdaptiveMaxPool2d, whose windows are fixed
        packable parts, which xnorpp.pack_submodules packs:
          0 (1 layer)
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"`model` is {type(model).__name__}; an nn.Module is needed")
    model = unwrap(model)
    recorder = trace_example(model, example)
    one_bit = 0
    if recorder.outputs:
        try:
            program, _ = assemble(fold(recorder.outputs), recorder.input.shape)
            one_bit = sum(op.op in ("binary_conv2d", "binary_linear") for op in program.ops)
        except (PackError, ProgramError) as error:
            remedy = "change the named layer, or pack the modules around it: xnorpp.pack_submodules"
            line = f"class {type(model).__name__}"
            recorder.obstacles.append(Obstacle("", "the program", line, f"is not valid: {error}", remedy))
    if not recorder.obstacles:
        return Packability((), (Part(("",), True, count_layers(model)),), one_bit)
    return Packability(tuple(recorder.obstacles), find_parts(model, recorder))


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'s' * (number != 1)}"


def _columns(rows: Sequence[tuple[str, str]]) -> list[str]:
    width = max(len(path) for path, _ in rows)
    return [f"  {path:<{width}}  {line}" for path, line in rows]
