"""One of several gloo processes: calibrates, takes a step under DistributedDataParallel, saves it.

Run as `python ddp_worker.py RANK WORLD_SIZE RENDEZVOUS_FILE OUTPUT`.
"""

from __future__ import annotations

import gc
import sys

import torch
import torch.distributed as dist
import torch.distributed.nn  # before the group is made: its default arguments would hold the group
from torch import nn

from xnorpp.nn import BinaryConv2d, BinaryLinear, calibrate_scales


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        BinaryConv2d(2, 4, 3, padding=1, output_size=(4, 4)),
        nn.PReLU(4),
        nn.Flatten(),
        BinaryLinear(64, 5),
    )


def batch(rank: int) -> torch.Tensor:
    return torch.randn(6, 2, 4, 4, generator=torch.Generator().manual_seed(rank))


def main() -> None:
    rank, world_size, rendezvous, output = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size)
    model = network()
    record = calibrate_scales(model, batch(rank))
    wrapped = nn.parallel.DistributedDataParallel(model)
    wrapped(batch(rank)).square().mean().backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    torch.save(
        {"state": model.state_dict(), "gradients": gradients, "processes": record["processes"]}, output
    )
    del wrapped, model, gradients  # the group's last user must be gone, so that gloo's threads end here
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
