"""The ways to name and to give the arguments of torch's functions, and types that change no number."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from agreement import agrees, images
from torch import Tensor

SHAPE = (6, 7, 9)

NUMPY: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda x: x.mean(axis=-1, keepdims=True) * x,
    "mean of a list": lambda x: torch.mean(input=x, axis=[1, 2]) + 1,
    "sum": lambda x: torch.sum(x, axis=(1, 2), keepdims=True) + x,
    "amax": lambda x: x.amax(axis=1, keepdims=True) + x,
    "max": lambda x: x.max(axis=1, keepdims=True)[0] + x,
    "min": lambda x: torch.min(x, axis=1)[0] + 1,
    "var": lambda x: x.var(axis=-1, keepdims=True) + x,
    "std": lambda x: x.std(axis=(2, 3), keepdims=True) + x,
    "logsumexp": lambda x: torch.logsumexp(x, axis=1, keepdims=True) + x,
    "cat": lambda x: torch.cat([x, x * 2], axis=1),
    "stack": lambda x: torch.stack([x, x * 2], axis=1),
    "unsqueeze": lambda x: x.unsqueeze(axis=2).squeeze(axis=2) * 2,
    "cumsum": lambda x: torch.cumsum(x, axis=1),
    "prod": lambda x: x.prod(axis=1, keepdims=True) + x,
    "any": lambda x: (x > 1).any(axis=1, keepdims=True).float() + x,
    "swapaxes": lambda x: torch.swapaxes(x, axis0=1, axis1=2) * 2,
    "softmax of frames": lambda x: x.flatten(0, 1).mean(axis=-1, keepdims=True).unflatten(0, (-1, 6)),
}
NAMED: dict[str, Callable[[Tensor], Tensor]] = {
    "other": lambda x: torch.add(x, other=x.mul(other=0.5)) + torch.sub(input=x, other=1),
    "where": lambda x: torch.where(condition=x > 0, input=x, other=0.1 * x),
    "linear": lambda x: F.linear(input=x, weight=torch.ones(4, 9)),
    "maximum": lambda x: torch.maximum(input=x, other=x * 0.5),
    "reshape": lambda x: torch.reshape(input=x, shape=(x.shape[0], -1)) + 1,
}
TYPES: dict[str, Callable[[Tensor], Tensor]] = {
    "type": lambda x: (x > 0).type(torch.float32) + x.type("torch.FloatTensor"),
    "type as": lambda x: (x > 0).type_as(x) + torch.arange(9).type_as(x) * x,
    "counted": lambda x: torch.count_nonzero(x > 0, dim=1).float() + x.count_nonzero(1).float(),
}


@pytest.mark.parametrize("name", NUMPY)
def test_names_of_numpy(name: str) -> None:
    agrees(NUMPY[name], images(*SHAPE))


@pytest.mark.parametrize("name", NAMED)
def test_first_arguments_by_name(name: str) -> None:
    agrees(NAMED[name], images(*SHAPE))


@pytest.mark.parametrize("name", TYPES)
def test_types_that_change_no_number(name: str) -> None:
    agrees(TYPES[name], images(*SHAPE))
