"""Why a packed network differs from torch: torch against itself, and both against float64.

Sums that cancel leave rounding alone, and a sign after it is decided by that. A network of many binary layers
turns one such sign into others, so that torch differs from itself wherever the same numbers are added in
another order or precision, as it differs from the packed model.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from xnorpp.packing.assemble import assemble
from xnorpp.packing.fold import fold
from xnorpp.packing.record import trace_values, unwrap
from xnorpp.packing.verify import trained_value
from xnorpp.runtime import reference

SAME = 1e-5  # a larger share of a value's size than rounding makes: a sign before it differs


def tensors_of(result: Any) -> list[Any]:
    if isinstance(result, dict):
        return [result[key] for key in result]
    return list(result) if isinstance(result, tuple | list) else [result]


def torch_against_itself(net: nn.Module, x: Tensor, goals: list[Any], mine: list[Any]) -> dict[str, Any]:
    """How often torch gives its own class again: in float64, without oneDNN, with channels last."""

    def outputs(model: nn.Module, images: Tensor) -> list[Any]:
        with torch.no_grad():
            found = [tensors_of(model(part)) for part in images.split(20)]
        return [torch.cat([part[i] for part in found]).numpy() for i in range(len(found[0]))]

    def share(first: list[Any], second: list[Any]) -> float:
        return min(float(np.mean(a.argmax(1) == b.argmax(1))) for a, b in zip(first, second, strict=True))

    exact = outputs(copy.deepcopy(net).double(), x.double())
    with torch.backends.mkldnn.flags(enabled=False):
        own = {"without_onednn": share(outputs(net, x), goals)}
    if x.dim() == 4:
        last = copy.deepcopy(net).to(memory_format=torch.channels_last)
        own["channels_last"] = share(outputs(last, x.contiguous(memory_format=torch.channels_last)), goals)
    return {
        "torch_in_float64": {"torch": share(exact, goals), "packed": share(exact, mine)},
        "torch_with_other_kernels": own,
    }


def rounding_of(net: nn.Module, x: Tensor) -> dict[str, Any]:
    """How far the values inside the network are from float64, in torch and in the packed model.

    The median over all values that come before a sign which differs; each by its root mean square.
    """
    model = unwrap(net)
    traced, narrow = trace_values(model, x)
    _, wide = trace_values(copy.deepcopy(model).double(), x.double())
    program, nodes = assemble(fold(traced), tuple(x.shape[1:]))
    _, found = reference.run(program, x.numpy(), keep=[op.output for op in program.ops])
    ours = {serial: tensor.float().numpy() for serial, tensor in narrow.items()}
    exact = {serial: tensor.double().numpy() for serial, tensor in wide.items()}
    errors = []
    for op in program.ops:
        goal, value = trained_value(nodes[op.output], exact), found[op.output]
        if goal is None or value.dtype != np.float32 or not np.any(goal):
            continue
        size = np.sqrt(np.mean(goal**2))
        pair = [
            float(np.sqrt(np.mean((own - goal) ** 2)) / size)
            for own in (trained_value(nodes[op.output], ours), value)
        ]
        if max(pair) < SAME:
            errors.append(pair)
    torchs, packed = np.median(errors, axis=0)
    return {"rounding": {"values": len(errors), "torch": float(torchs), "packed": float(packed)}}
