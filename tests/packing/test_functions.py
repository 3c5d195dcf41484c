"""Functions that are composed of others: single numbers, truth values, products, norms, distances, cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from agreement import agrees, images, is_refused
from networks import Lambda
from torch import Tensor, nn

SHAPE = (6, 7, 9)
torch.manual_seed(0)
MAP = torch.randn(6, 7, 9)
MASK = torch.rand(7, 9) > 0.5
CENTRES = torch.randn(4, 6)


def mean(x: Tensor) -> Tensor:
    return x.mean((2, 3))


def changed(function: Callable[[Tensor], Any]) -> Callable[[Tensor], Tensor]:
    """The value after a function changed it in place."""

    def run(x: Tensor) -> Tensor:
        y = x * 1
        function(y)
        return y + 1

    return run


def turned(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """With the batch as the second axis."""
    return lambda x: function(x.transpose(0, 1)).transpose(0, 1) * 2


def in_place_operators(x: Tensor) -> Tensor:
    mask = x > 0
    mask &= x < 1
    mask |= x < -1
    mask ^= MASK
    return mask.float()


NUMBERS: dict[str, Callable[[Tensor], Tensor]] = {
    "softshrink": F.softshrink,
    "softshrink of another width": nn.Softshrink(0.2),
    "softshrink of no width": lambda x: F.softshrink(x, 0.0) + 1,
    "hardshrink": F.hardshrink,
    "hardshrink of another width": nn.Hardshrink(0.1),
    "hardshrink of no width": lambda x: x.hardshrink(0.0) * 2,
    "tanhshrink": nn.Tanhshrink(),
    "logit": lambda x: torch.logit(x.sigmoid()),
    "logit with a margin": lambda x: torch.special.logit(x, eps=0.1),
    "logit in place": changed(lambda y: y.sigmoid_().logit_(0.01)),
    "hypot": lambda x: torch.hypot(x, 2 * x.relu()),
    "hypot of a constant": lambda x: x.hypot(MAP),
    "hypot in place": changed(lambda y: y.hypot_(y.relu())),
    "float_power": lambda x: torch.float_power(x, 3).float() + x.float_power(0),
    "power of 0": lambda x: x**0 + x,
    "positive": lambda x: +x * 2,
    "special": lambda x: torch.special.expit(x) + torch.special.exp2(x) + torch.special.log1p(x.abs()),
    "special softmax": lambda x: torch.special.softmax(x, 1) + torch.special.log_softmax(x, -1),
    "equal": lambda x: torch.where(x.relu() == 0, x * 2, x + 1),
    "equal to the largest": lambda x: (x == x.amax((2, 3), keepdim=True)).float() * x,
    "equal to a map": lambda x: (x.sign() == MAP.sign()).float(),
    "equal in place": changed(lambda y: y.eq_(y.relu())),
    "not equal": lambda x: (x.relu() != 0).float() + torch.not_equal(x, 0.0).float(),
    "not equal in place": changed(lambda y: y.ne_(0)),
    "equal truth values": lambda x: torch.eq(x > 0, x > 0.5).float(),
    "equal to a truth value": lambda x: ((x > 0) == True).float() - ((x > 1) == 0).float(),  # noqa: E712
    "different truth values": lambda x: ((x > 0) != (x > 0.5)).float(),
    "xor": lambda x: ((x > 0) ^ (x > 0.5)).float(),
    "xor of True": lambda x: (True ^ (x > 0.5)).float(),
    "xor of a mask": lambda x: (MASK ^ (x > 0.5)).float() + torch.logical_xor(x > 0, MASK).float(),
    "xor in place": lambda x: (x > 0).logical_xor_(x > 0.5).float(),
    "operators in place": in_place_operators,
    "any": lambda x: (x > 1.5).any(1).float(),
    "any of two axes": lambda x: (x > 2).any((-1, 2), keepdim=True).float() * x,
    "any number": lambda x: x.relu().any(-1).float(),
    "all": lambda x: torch.all(x > -1, 2).float() + torch.all(x > -2, axis=2).float(),
    "all, turned": turned(lambda y: (y > -1).all(0, keepdim=True).float() * y),
}
ALGEBRA: dict[str, Callable[[Tensor], Tensor]] = {
    "prod": lambda x: x.prod(1),
    "prod with its axis": lambda x: x.prod(-1, keepdim=True) + x,
    "prod of truth values": lambda x: (x > -1.5).prod(1).float(),
    "prod, turned": turned(lambda y: y.prod(0, keepdim=True) + y),
    "cumprod": lambda x: x.cumprod(2) + torch.cumprod(x, -1, dtype=torch.float32),
    "cumsum of truth values": lambda x: (x > 0).cumsum(1).float(),
    "cumsum, turned": turned(lambda y: y.cumsum(0)),
    "cumsum in place": changed(lambda y: y.cumsum_(-2)),
    "cross": lambda x: torch.cross(x[:, :3], x[:, 3:], dim=1),
    "cross of the last axis": lambda x: torch.linalg.cross(x[..., :3], x[..., 3:6]),
    "norm": lambda x: torch.linalg.norm(x, dim=1) + torch.linalg.norm(x, 1, dim=-3),
    "norm with its axis": lambda x: torch.linalg.norm(x, float("inf"), dim=-1, keepdim=True) * x,
    "norm of matrices": lambda x: torch.linalg.norm(x, 1, dim=(2, 3)) + torch.linalg.matrix_norm(x),
    "norm of rows": lambda x: torch.linalg.matrix_norm(x, float("inf"), (-1, 1), True) * x,
    "pairwise distance": lambda x: F.pairwise_distance(mean(x), x.amax((2, 3))),
    "pairwise distance of rows": lambda x: F.pairwise_distance(x, -x, 1.0, keepdim=True),
    "cdist": lambda x: torch.cdist(x[:, 0], x[:, 1]) + torch.cdist(x[:, 2], x[:, 3], p=1.0),
    "cdist to centres": lambda x: torch.cdist(mean(x), CENTRES),
    "cdist of maps": lambda x: torch.cdist(x, x.flip(2), p=float("inf")),
    "sums of a type": lambda x: x.sum(1, dtype=torch.float32) + x.mean(1, dtype=torch.float64).float(),
    "softmax of a type": lambda x: F.softmax(x, 1, dtype=torch.float32),
    "softmin": lambda x: F.softmin(x, 2),
}


@pytest.mark.parametrize("name", [*NUMBERS, *ALGEBRA])
def test_a_function_gives_torchs_numbers(name: str) -> None:
    agrees({**NUMBERS, **ALGEBRA}[name], images(*SHAPE))


@pytest.mark.parametrize("shape", [(6,), (5, 4), (1, 1, 1), (2, 3, 2, 3)], ids=str)
@pytest.mark.parametrize("name", ["softshrink", "equal", "xor", "prod with its axis", "cumsum in place"])
def test_values_of_any_rank(name: str, shape: tuple[int, ...]) -> None:
    if name != "cumsum in place" or len(shape) > 1:
        agrees({**NUMBERS, **ALGEBRA}[name], images(*shape, n=4))


class Cells(nn.Module):
    """Two steps of a cell over the rows of an image."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        state = self.cell(mean(x))
        state = self.cell(x.amax((2, 3)), state)
        return state[0] * state[1] if isinstance(state, tuple) else state


@pytest.mark.parametrize(
    "cell",
    [
        nn.LSTMCell(6, 5),
        nn.LSTMCell(6, 4, bias=False),
        nn.GRUCell(6, 5),
        nn.GRUCell(6, 4, bias=False),
        nn.RNNCell(6, 5),
        nn.RNNCell(6, 5, nonlinearity="relu"),
    ],
    ids=str,
)
def test_cells(cell: nn.Module) -> None:
    agrees(Cells(cell), images(*SHAPE))


REFUSED: dict[str, tuple[Callable[[Tensor], Any], str, str]] = {
    "any of all": (lambda x: (x > 1).any() * x, r"Tensor\.any .*no axis", "name the axes"),
    "all of all": (lambda x: (x > 1).all() * x, r"Tensor\.all .*no axis", "name the axes"),
    "any of the batch": (lambda x: (x > 1).any(0) * x, r"Tensor\.any along the batch", "leave each image"),
    "prod of all": (lambda x: x * x.prod(), r"Tensor\.prod .*no axis", "name one axis"),
    "prod of the batch": (lambda x: x * x.prod(0), r"Tensor\.prod .*along the batch", "leave the batch"),
    "many factors": (lambda x: x.flatten(2).tile(2).prod(2), "126 factors; up to 64", "name one axis"),
    "cumprod in half": (lambda x: x.cumprod(1, dtype=torch.float16), "leave `dtype` out", "name one axis"),
    "sum in half": (
        lambda x: x.sum(1, dtype=torch.float16),
        r"Tensor\.sum with this `dtype`",
        "leave `dtype`",
    ),
    "norm of all": (lambda x: x / torch.linalg.norm(x), "norm over the whole batch", "name the axes"),
    "nuclear norm": (lambda x: torch.linalg.matrix_norm(x, "nuc"), "norm 'nuc' of a matrix", "replace it"),
    "third norm": (lambda x: F.pairwise_distance(x, -x, 3.0), "pairwise_distance with p=3.0", "use p=1"),
    "distances of images": (lambda x: torch.cdist(mean(x), mean(x)), "cdist", "batch"),
    "xor of numbers": (lambda x: (x.long() ^ 1).float(), "xor.*numbers; compare", "replace it"),
    "random slopes": (lambda x: F.rrelu(x, training=True), "rrelu uses random numbers", "if self.training"),
    "differences of truth values": (lambda x: torch.diff(x > 0, dim=1).float(), r"torch\.diff", "replace it"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_function_and_a_remedy(name: str) -> None:
    function, reason, remedy = REFUSED[name]
    is_refused(Lambda(function), SHAPE, reason, remedy)


def test_a_comparison_with_none_is_a_decision_of_the_model() -> None:
    agrees(lambda x: x * 3 if (x == None) is False else x * 2, images(4))  # noqa: E711
