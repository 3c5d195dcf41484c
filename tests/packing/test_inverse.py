"""Angles of waves and hyperbolas, quotients with a rest, and other functions of one or two numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from agreement import agrees, images, is_refused
from networks import Lambda
from torch import Tensor

import xnorpp

INVERSE: dict[str, tuple[Callable[[Tensor], Tensor], float, float]] = {
    "atan": (torch.atan, -50.0, 50.0),
    "arctan": (torch.arctan, -1.0, 1.0),
    "asin": (torch.asin, -1.0, 1.0),
    "acos": (torch.acos, -1.0, 1.0),
    "asinh": (torch.asinh, -50.0, 50.0),
    "acosh": (torch.acosh, 1.0, 50.0),
    "atanh": (torch.atanh, -0.9999, 0.9999),
}


@pytest.mark.parametrize("name", INVERSE)
def test_angles_to_the_last_places(name: str) -> None:
    function, low, high = INVERSE[name]
    numbers = np.concatenate([
        np.linspace(low, high, 4001),
        np.clip(np.float32(10.0) ** np.arange(-20, 1) * np.float32(0.7), low, high),
        [low, high],
    ]).astype(np.float32).reshape(-1, 1)  # fmt: skip
    if name in ("atan", "asinh"):
        numbers = np.concatenate([numbers, [[-3e38], [3e38], [1e20]]]).astype(np.float32)
    packed = xnorpp.pack(Lambda(function), (1,))
    exact = function(torch.from_numpy(numbers.astype(np.float64))).numpy()
    for isa in (None, "reference"):
        found = xnorpp.PackedModel(packed.program, isa=isa)(numbers)
        bound = 2**-21 * np.abs(exact) + (2**-22 if name in ("asin", "acos") else 0)
        assert (np.abs(found - exact) <= bound).all(), np.abs(found - exact).max()
    if low < 0 and name != "acos":
        assert (np.sign(packed(numbers)) == np.sign(exact)).all()


def test_every_quadrant() -> None:
    steps = np.linspace(-3, 3, 25, dtype=np.float32)
    points = np.stack(np.meshgrid(steps, steps), -1).reshape(-1, 2)
    model = Lambda(lambda x: torch.atan2(x[:, :1], x[:, 1:]))
    agrees(model, torch.from_numpy(points), rtol=1e-6)
    one = torch.tensor([[1.0, -2.0, 0.0]])
    agrees(lambda x: torch.atan2(x, one), images(3))
    agrees(lambda x: torch.atan2(one, x.abs() + 0.1), images(3))
    agrees(lambda x: torch.arctan2(x[:, :2], x[:, 2:]), images(4, 3))
    agrees(lambda x: x.angle(), images(5))
    agrees(lambda x: torch.angle(torch.complex(x[:, :3], x[:, 3:])), images(6))
    agrees(lambda x: torch.view_as_real(torch.log(torch.complex(x[:, :3] + 5, x[:, 3:]))), images(6))


RESTS: dict[str, Callable[[Any, Any], Any]] = {
    "remainder": lambda x, y: torch.remainder(x, y),
    "operator": lambda x, y: x % y,
    "fmod": lambda x, y: torch.fmod(x, y),
    "floor_divide": lambda x, y: torch.floor_divide(x, y),
    "whole": lambda x, y: x // y,
    "down": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "to zero": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
}
DIVISORS: dict[str, Any] = {
    **{str(number): number for number in (1.0, 2, 0.5, 3, 0.1, -0.7, 2 * math.pi, -4)},
    "for each channel": torch.tensor([1.0, 3.0, -0.3, 0.25]),
}


@pytest.mark.parametrize("name", RESTS)
def test_rests_of_real_and_of_whole_numbers(name: str) -> None:
    rest = RESTS[name]
    x = torch.cat(
        [
            images(4, n=20) * 30,
            torch.arange(-40.0, 40.0).reshape(20, 4),
            0.1 * torch.arange(-40, 40).reshape(20, 4),
        ]
    )

    def every(x: Tensor) -> Tensor:
        return torch.stack([rest(x, divisor) for divisor in DIVISORS.values()], 1)

    packed = xnorpp.pack(Lambda(every), example=x)
    wanted = every(x).numpy()
    for isa in (None, "reference"):
        np.testing.assert_allclose(
            xnorpp.PackedModel(packed.program, isa=isa)(x.numpy()), wanted, rtol=1e-5, atol=2e-6
        )


def test_rests_by_computed_divisors() -> None:
    def both(x: Tensor) -> Tensor:
        return torch.cat(
            [x[:, :2] % (x[:, 2:].abs() + 0.5), 5 // (x[:, :2].abs() + 0.7), 5 % (x[:, 2:].abs() + 0.7)], 1
        )

    agrees(both, images(4, n=9))
    whole = torch.randint(-20, 20, (3, 5))
    agrees(lambda x: (x % 7 + x // 3).float(), whole)
    agrees(lambda x: torch.fmod(x, 4).float(), whole)
    agrees(lambda x: torch.div(x, 4, rounding_mode="trunc").float(), whole)


POWERS: dict[str, Callable[[Tensor], Tensor]] = {
    "whole powers": lambda x: x ** torch.tensor([2.0, 3.0, 0.0, 1.0, -1.0]).view(1, 1, 5).expand(1, 3, 5),
    "of zero": lambda x: (x.relu() + 0.0) ** torch.tensor([2.0, 0.5, 0.0, 1.0, 3.0]),
    "computed": lambda x: torch.pow(x, torch.round(x * 2)) + torch.pow(x.abs(), x.flip(2)),
    "float_power": lambda x: torch.float_power(x, torch.tensor(3.0)).float() + x.float_power(2).float(),
    "learned": lambda x: (
        x.clamp(min=1e-6).pow(torch.tensor(3.0)).mean(1, keepdim=True).pow(1 / torch.tensor(3.0))
    ),
}


@pytest.mark.parametrize("name", POWERS)
def test_powers_of_any_numbers(name: str) -> None:
    x = images(3, 5)
    if name == "computed":
        x = torch.where(x == 0, 0.7, x)
    if name == "whole powers":
        x[..., 4] += 5
    agrees(POWERS[name], x)


def test_limits_that_cross_and_whole_numbers_turned() -> None:
    agrees(lambda x: x.clamp(2, -1) + torch.clamp(x, 1.0, 1.0), images(5))
    agrees(lambda x: (~x + torch.bitwise_not(x * 2)).float(), torch.randint(-9, 9, (3, 5)))


OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "sinc": torch.sinc,
    "xlogy": lambda x: torch.xlogy(x, x.abs() + 1) + torch.xlogy(x.relu(), x.relu()),
    "entr": lambda x: torch.special.entr(x.relu()),
    "erfc": torch.erfc,
    "ndtr": torch.special.ndtr,
    "logaddexp2": lambda x: torch.logaddexp2(x, -x),
    "degrees": lambda x: torch.rad2deg(x) + torch.deg2rad(x),
    "copysign": lambda x: torch.copysign(x + 3, x) + torch.copysign(x, torch.tensor(-1.0)),
    "signbit": lambda x: torch.where(torch.signbit(x), x * 2, x),
    "larger": lambda x: torch.fmax(x, -x) + torch.fmin(x, x * 2),
    "is finite": lambda x: torch.where(torch.isfinite(x) & ~torch.isnan(x) & ~torch.isinf(x), x, 0.0),
    "is close": lambda x: torch.isclose(x, x.round(), atol=0.2).float(),
    "is in": lambda x: torch.isin(x.round(), torch.tensor([0.0, 2.0])).float() + x,
    "both": lambda x: (
        torch.logical_and(x, x.round()).float()
        + torch.logical_or(x, x.round()).float()
        + torch.logical_xor(x, x.round()).float()
    ),
    "of truth values": lambda x: torch.atan(x > 0) + torch.cos(x < 0),
    "the same": lambda x: torch.as_tensor(x).conj().resolve_conj() * 2,
    "axes": lambda x: torch.atleast_3d(x.sum(2)) + torch.atleast_2d(x).mean(2, keepdim=True),
    "ldexp": lambda x: torch.ldexp(x, torch.tensor(3)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_functions(name: str) -> None:
    agrees(OTHERS[name], images(3, 5))


def test_pooling_without_channels() -> None:
    agrees(lambda x: F.avg_pool1d(x, 2), images(7))
    agrees(lambda x: torch.cat([F.adaptive_avg_pool1d(x, 3), F.max_pool1d(x, 3, 2)], 1), images(7))
    agrees(lambda x: F.max_pool2d(x, 2) + F.adaptive_max_pool2d(x, (2, 3)), images(5, 6))


def test_what_is_no_number() -> None:
    model = Lambda(lambda x: torch.nan_to_num(x[:, :2] / x[:, 2:]))
    x = torch.tensor([[0.0, 1.0, 0.0, 2.0], [3.0, -3.0, 0.0, 0.0], [1.0, 1.0, 4.0, -4.0]])
    packed = xnorpp.pack(model, (4,))
    np.testing.assert_array_equal(packed(x.numpy()), model(x).numpy())
    agrees(lambda x: torch.nan_to_num(x * 2, posinf=1.0, neginf=-1.0), images(5))
    agrees(lambda x: torch.nan_to_num(x, 0.0), images(5))
    agrees(lambda x: torch.cat([x.nansum(1, keepdim=True), x.nanmean(1, True)], 1), images(5))
    y = torch.tensor([[0.0, 1.0, 0.0, 2.0], [3.0, 0.0, 1.0, 0.0], [1.0, 1.0, 4.0, -4.0]])
    mean = Lambda(lambda x: torch.nanmean(x[:, :2] / x[:, 2:], 1))
    np.testing.assert_allclose(xnorpp.pack(mean, (4,))(y.numpy()), mean(y).numpy(), rtol=1e-6)
    is_refused(Lambda(lambda x: torch.nan_to_num(x.log())), (4,), "may be no number", "clamp")
