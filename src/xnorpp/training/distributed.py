"""Many processes: what torchrun's environment states, the process group, and the few collectives training
needs.

`torchrun --nproc-per-node N -m xnorpp train ...` starts N of us with RANK, LOCAL_RANK and WORLD_SIZE set.
Every process builds the same network from the same seed; gradients are averaged by DistributedDataParallel.
When a process dies, gloo and nccl report a broken connection or run into the time limit, and torchrun ends
the others.
"""

from __future__ import annotations

import contextlib
import datetime
import gc
import importlib
import inspect
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from xnorpp.runtime.errors import FAILED, XnorppError

TIME_LIMIT_VARIABLE = "XNORPP_COLLECTIVE_TIMEOUT"


class LostWorker(XnorppError, RuntimeError):
    """Another process of the run ended or stopped answering."""

    exit_code = FAILED


@dataclass(frozen=True)
class World:
    """This process among the others."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def leader(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0


def choose_device(name: str = "auto") -> torch.device:
    """`auto` is this process's GPU where there is one, else the CPU."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and torch.cuda.is_available():  # pragma: cuda only
        return torch.device("cuda", local)
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"`device` (={name!r}) must be auto, cpu, cuda or cuda:N.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"`device` (={name!r}) needs a CUDA device and torch finds none here.")
    return device


@contextlib.contextmanager
def join_world(device: str = "auto") -> Iterator[World]:
    """The world torchrun started us in; a world of one without it. Leaves the process group at the end."""
    chosen = choose_device(device)
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or dist.is_initialized():
        ready = dist.is_initialized()
        yield World(dist.get_rank() if ready else 0, dist.get_world_size() if ready else 1, chosen)
        return
    if chosen.type == "cuda":  # pragma: cuda only
        torch.cuda.set_device(chosen)
    # The functions of this module have the group as default arguments. Imported after the group is made, as
    # DistributedDataParallel would, they hold it until the process ends.
    importlib.import_module("torch.distributed.nn")
    seconds = float(os.environ.get(TIME_LIMIT_VARIABLE, "600"))
    dist.init_process_group(
        backend="nccl" if chosen.type == "cuda" else "gloo", timeout=datetime.timedelta(seconds=seconds)
    )
    world = World(dist.get_rank(), dist.get_world_size(), chosen)
    try:
        yield world
        # Together: a process that left while the first one still wrote its files was seen to end in gloo's
        # threads ("terminate called without an active exception"), once in some twenty runs.
        dist.barrier()
    except RuntimeError as error:
        if _is_lost_connection(error):
            raise LostWorker(
                f"process {world.rank} of {world.size} lost another one, whose own error comes before this "
                f"or in its log ({str(error).splitlines()[0]})."
            ) from error
        raise
    # Gloo's threads must end here: one that releases a tensor while the interpreter shuts down aborts the
    # process ("terminate called without an active exception"). They end with the group's last user. That must
    # not be DistributedDataParallel, which is part of reference cycles: its destructor holds the lock of the
    # interpreter, which such a thread may wait for. None of this after an error, when others may be gone.
    gc.collect()
    dist.destroy_process_group()


def _is_lost_connection(error: RuntimeError) -> bool:
    """Whether a collective failed because another process is gone; gloo reports it in the message alone."""
    signs = (
        "Connection closed",
        "Connection reset",
        "Timed out waiting",
        "Broken pipe",
        "Connection refused",
    )
    return isinstance(error, dist.DistError) or any(sign in str(error) for sign in signs)


def wrap(trained: nn.Module, world: World) -> nn.Module:
    """`trained` (the network or its compiled form) with gradients averaged over the world.

    Buffers are not broadcast at every step: batch norm's running statistics are averaged by `average_buffers`
    where they are used, which is better than taking the first process's.
    """
    if world.size == 1:
        return trained
    kind: Any = nn.parallel.DistributedDataParallel
    # torch 2.13 renamed the argument and warns about the old name.
    newer = "forward_sync_buffers" in inspect.signature(kind.__init__).parameters
    wrapped: nn.Module = kind(
        trained,
        device_ids=[world.device.index] if world.device.type == "cuda" else None,
        **{"forward_sync_buffers" if newer else "broadcast_buffers": False},
    )
    return wrapped


def average_buffers(model: nn.Module, world: World) -> None:
    """Make the running statistics of all processes their mean."""
    if world.size == 1:
        return
    for buffer in model.buffers():
        if buffer.is_floating_point():
            dist.all_reduce(buffer)
            buffer /= world.size


def mean_over_world(value: Tensor, world: World) -> Tensor:
    return sum_over_world(value, world) / world.size


def sum_over_world(value: Tensor, world: World) -> Tensor:
    if world.size > 1:
        value = value.clone()
        dist.all_reduce(value)
    return value


def merge_over_world(found: dict[str, str], world: World) -> dict[str, str]:
    """The dictionaries of all processes laid over each other, the same in each."""
    if world.size == 1:
        return found
    parts: list[dict[str, str]] = [{}] * world.size
    dist.all_gather_object(parts, found)
    return {name: text for part in parts for name, text in part.items()}


def wait_for_all(world: World) -> None:
    if world.size > 1:
        dist.barrier()
