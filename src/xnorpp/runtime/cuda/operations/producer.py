"""One operation on the GPU: its kernel, and what it takes besides its inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from xnorpp.runtime.cuda.launch import Array, Constant
from xnorpp.runtime.format.program import Program
from xnorpp.runtime.plan import Step


class Keeper(Protocol):
    """What the arguments of an operation may need of the builder."""

    program: Program

    def keep(self, key: str, make: Callable[[], Array]) -> Constant: ...


# (builder, step) -> fields of `PlainArguments`: `number` (at most 32), `real` (at most 4), `constant`
# (at most 2, by `keeper.keep`).
Arguments = Callable[[Keeper, Step], dict[str, Any]]


def no_arguments(keeper: Keeper, step: Step) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Producer:
    """The kernel `entry` of a family's CUDA text; a thread makes eight channels of a pixel.

    The text includes kernels/producer.cuh and ends with `PLAIN(entry, body)` for each kernel: `body` fills
    `v[8]` for the place `p`; what follows the operation runs by itself.
    """

    kernels: str
    entry: str
    arguments: Arguments = no_arguments
