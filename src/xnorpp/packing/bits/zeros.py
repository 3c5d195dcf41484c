"""Which arguments of torch.sign are exactly 0 by chance alone, measured on samples.

torch.sign is 0 at 0, where a bit has two values. After a batch norm or a bias no number is exactly 0; after a
ReLU, zero padding or a count many are, and on a raw image black pixels. So the model runs on samples: noise,
images of bytes that are partly black, and the example, and the zeros of every sign are counted. One bit is
what was hardly ever 0.

An untrained network may add nothing but 0 where a trained one adds other numbers. So parameters that are all
0, and means of batch norms, have small random numbers in these runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from xnorpp.packing.calls import changes_first
from xnorpp.packing.example import pair_of_images
from xnorpp.packing.graph import Node

_NEAR, _NOT_QUITE = 1e-6, 1e-4  # of the mean of a channel
_CHANCE = 1e-5  # of the numbers: float32 makes so few sums exactly 0
_NUMBERS = 2000  # of each sign, which are enough
_RUNS = (3, 16)  # at least and at most
_UNTRAINED = 0.05


@dataclass(frozen=True)
class ThreeWay:
    """A torch.sign that is no bit: its node, what it is the sign of, and its share of zeros, if known."""

    node: Node
    argument: Node
    zeros: float | None

    def __str__(self) -> str:
        if self.zeros is None:
            return "torch.sign, which is 0 at 0 and has no bit"
        share = "less than 0.1" if self.zeros < 1e-3 else f"{100 * self.zeros:.2g}"
        return f"torch.sign, which is 0 at 0 and has no bit, and {share} % of its numbers are 0 on samples"


@dataclass
class Signs:
    """The calls of torch.sign in one run of a model, in their order.

    `zeros` is the share of zeros of each in the samples, and `instead` what stands for parameters in a run on
    these, by identity. `met` are the zeros and the numbers in this run, and `one_bit` the nodes of those that
    are 0 by chance alone, `three_way` the others, by identity.
    """

    zeros: Sequence[float] = ()
    instead: Mapping[int, Tensor] = field(default_factory=dict)
    met: list[tuple[int, int]] = field(default_factory=list)
    one_bit: dict[int, Node] = field(default_factory=dict)
    three_way: dict[int, ThreeWay] = field(default_factory=dict)

    def next_share(self, argument: Tensor, result: Tensor) -> float | None:
        """The share of zeros of the next sign, 0 where they are chance; None where it was not measured.

        What is as near to 0 as rounding is one too, as a sum of as many -0.1 as +0.1, unless as many numbers
        are not quite so near. Of a sign in place, the argument is the result.
        """
        place, size = len(self.met), argument.abs().double()
        mean = size.mean([axis for axis in range(size.dim()) if axis != 1], keepdim=True)
        zeros, near, not_quite = (
            int(part.count_nonzero())
            for part in (result == 0, size <= _NEAR * mean, size <= _NOT_QUITE * mean)
        )
        self.met.append((max(near, zeros) if not_quite < 2 * near else zeros, result.numel()))
        return self.zeros[place] if place < len(self.zeros) else None

    def arguments(self, name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """A function's arguments with what stands for parameters, unless it changes them in place."""
        kept = args[:1] if changes_first(name) else ()
        others = [self.instead.get(id(arg), arg) for arg in args[len(kept) :]]
        return (*kept, *others), {key: self.instead.get(id(arg), arg) for key, arg in kwargs.items()}


def measured(run: Callable[[tuple[Tensor, ...]], Signs], given: Sequence[Tensor]) -> list[float]:
    """The share of zeros of each sign, 0 where they are chance; empty where the model does not run on samples
    as it does on `given`."""
    zeros = numbers = np.zeros(0)
    for count, sample in enumerate(samples(given), 1):
        try:
            met = np.array(run(sample).met, np.float64).reshape(-1, 2)
        except Exception:  # whatever the user's model raises where it cannot run
            return []
        if count > 1 and len(met) != len(zeros):
            return []
        zeros, numbers = (met if count == 1 else met + np.stack([zeros, numbers], 1)).T
        if count >= (_RUNS[0] if numbers.min(initial=_NUMBERS) >= _NUMBERS else _RUNS[-1]):
            break
    return [float(few / count) if few > _CHANCE * count else 0.0 for few, count in zip(zeros, numbers)]


def samples(inputs: Sequence[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """Batches of inputs like these: the example itself, unless it is all 0, and random ones without end."""
    inputs = pair_of_images(inputs)
    x, others = inputs[0], inputs[1:]
    if x.any():
        yield (x.clone(), *others)
    random = np.random.default_rng(0)
    while True:
        images = [_image(random, tuple(x.shape[1:]), x.dtype, black=bool(i % 2)) for i in range(len(x))]
        yield (torch.from_numpy(np.stack(images)).to(x.device, x.dtype), *others)


def _image(
    random: np.random.Generator, shape: tuple[int, ...], kind: torch.dtype, black: bool
) -> np.typing.NDArray[np.float32]:
    """Noise, or bytes from 0 to 1, the first half of whose last axis is black; bytes where bytes are read."""
    whole = kind == torch.uint8
    if not black and not whole:
        return random.standard_normal(shape, np.float32)
    image = random.integers(0, 256, shape).astype(np.float32)
    if black and shape:
        image[..., : shape[-1] // 2] = 0
    return image if whole else image / np.float32(255)


def trained_instead(model: nn.Module) -> Mapping[int, Tensor]:
    """By the identity of a model's tensors that training will change from 0: small random numbers."""
    means = [getattr(module, "running_mean", None) for module in model.modules()]
    found = [t for t in (*model.parameters(), *means) if isinstance(t, Tensor) and t.is_floating_point()]
    random = np.random.default_rng(0)
    return {
        id(t): torch.from_numpy(_UNTRAINED * random.standard_normal(t.shape)).to(t.device, t.dtype)
        for t in found
        if t.numel() and not t.any()
    }
