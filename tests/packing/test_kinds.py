"""Kinds of numbers: truth values, whole numbers, casts between them, and the three values of torch.sign."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from agreement import agrees, images, is_refused
from networks import Lambda
from torch import Tensor, nn

import xnorpp
from xnorpp.nn import BinaryConv2d, BinaryLinear, sign
from xnorpp.packing import pack_program, verify

SHAPE = (6, 7, 9)
Forward = Callable[[Tensor], Any]


def put(start: Forward, value: Any) -> Forward:
    def run(x: Tensor) -> Tensor:
        y = start(x)
        y[:, 1:3] = value(x) if callable(value) else value
        return y.float()

    return run


def changed(x: Tensor) -> Tensor:
    y = x * 1
    y.relu_().sign_()
    return y * 2


KINDS: dict[str, Forward] = {
    "counted": lambda x: (x > 0).sum((2, 3)),
    "whole numbers": lambda x: (x > 0).int() * 3 - (x > 1).long(),
    "counted as whole numbers": lambda x: (x > 0).long().sum(1).float() / 7,
    "quotient of whole numbers": lambda x: (x > 0).int() / (1 + (x > 1).int()),
    "truth of numbers": lambda x: x.relu().bool().float() + x.to(torch.bool).to(x),
    "truth of whole numbers": lambda x: ((x > 0).int() - (x > 1).int()).bool().type_as(x),
    "as float64": lambda x: (x.double() * 2).float() + x.to(torch.float64),
    "product of truth values": lambda x: ((x > 0) * (x < 1)).float(),
    "masked truth values": lambda x: (x > 0).masked_fill(x > 1, False).float(),
    "masked whole numbers": lambda x: (x > 0).long().masked_fill(x > 1, 5).float(),
    "put in whole numbers": put(lambda x: (x > 0).long(), lambda x: (x > 1)[:, :2].long() * 2),
    "put in truth values": put(lambda x: x > 0, True),
    "sign": lambda x: torch.sign(x) + 1,
    "sign of exact zeros": lambda x: x.relu().sign() * 2,
    "sign in place": changed,
    "sgn": lambda x: torch.sgn(x.relu()) * x,
    "sign, turned": lambda x: x.transpose(0, 1).relu().sign().transpose(0, 1) * 2,
    "sign of windows": lambda x: x.reshape(-1, 7, 9).sign().reshape(x.shape) * 2,
    "sign of a vector": lambda x: x.amax((2, 3)).relu().sign() + 1,
    "sign of a sign": lambda x: torch.sign(torch.sign(x)) * 3,
    "bits": lambda x: F.threshold(torch.sign(x.relu()), 0, -1) * 2,
    "bits of numbers": lambda x: sign(x) * 2,
}


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_of_numbers_gives_torchs(name: str) -> None:
    model = Lambda(lambda x: KINDS[name](x).float())
    agrees(model, images(*SHAPE))


def test_nn_sign_is_one_bit_and_torch_sign_is_two() -> None:
    for function, count in ((sign, 1), (torch.sign, 2)):
        program = pack_program(Lambda(lambda x, f=function: f(x) * 2), SHAPE)
        assert [op.op for op in program.ops].count("sign") == count
    zeros = np.zeros((1, *SHAPE), np.float32)
    assert (xnorpp.pack(Lambda(lambda x: sign(x) * 2), SHAPE)(zeros) == -2).all()
    assert (xnorpp.pack(Lambda(lambda x: torch.sign(x) * 2), SHAPE)(zeros) == 0).all()


@pytest.mark.parametrize("before", [torch.sign, lambda x: x.relu().sign(), lambda x: x.sign() - x.sign()])
def test_three_values_before_binary_layers(before: Forward) -> None:
    """A binary layer takes the sign of 0 as -1, as in training."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = BinaryConv2d(6, 8, 3)
            self.last = BinaryLinear(8, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(before(self.first(before(x)).mean((2, 3))))

    torch.manual_seed(0)
    agrees(Net(), images(*SHAPE))


def test_a_product_with_sign_weights_takes_bits() -> None:
    """As binary layers are often written by hand: with one bit they are binary, with torch.sign refused."""

    class Own(nn.Module):
        def __init__(self, function: Forward, layer: str) -> None:
            super().__init__()
            self.function, self.layer = function, layer
            self.weight = nn.Parameter(torch.randn(4, 6, 3, 3))

        def forward(self, x: Tensor) -> Tensor:
            x, w = self.function(x), sign(self.weight)
            if self.layer == "conv2d":
                return F.conv2d(x, w)
            if self.layer == "conv1d":
                return F.conv1d(x.flatten(2), w[:, :, 0])
            if self.layer == "conv_transpose2d":
                return F.conv_transpose2d(x, w.transpose(0, 1))
            return F.linear(x.movedim(1, -1), w[:, :, 0, 0])

    for layer in ("conv2d", "conv1d", "conv_transpose2d", "linear"):
        model = Own(torch.sign, layer)
        reason = rf"{layer} reads torch\.sign, which is 0 at 0 and has no bit"
        is_refused(model, SHAPE, reason, "use xnorpp.nn.sign")
        assert verify(Own(sign, layer), images(*SHAPE).numpy()).holds
    packed = xnorpp.pack(Own(sign, "conv2d"), SHAPE)
    assert "binary_conv2d" in {op.op for op in packed.program.ops}


REFUSED: dict[str, tuple[Forward, str, str]] = {
    "half": (lambda x: x.half(), "half rounds to float16", "float32"),
    "bfloat16": (lambda x: x.to(torch.bfloat16).float(), "to rounds to bfloat16", "float32"),
    "bytes": (lambda x: (x > 0).to(torch.uint8) - 1, "uint8, whose numbers wrap around", "float32"),
    "short": (lambda x: (x > 0).short().float(), "int16, whose numbers wrap around", "int64"),
    "sum of truth values": (lambda x: ((x > 0) + (x > 1)).float(), "add of truth values", "| for either"),
    "put in whole numbers": (put(lambda x: (x > 0).long(), 0.5), "rounds to int64", "leave the numbers real"),
    "put a value in whole numbers": (
        put(lambda x: torch.zeros(x.shape, dtype=torch.long), lambda x: x[:, :2] * 3),
        "rounds to int64",
        "leave the numbers real",
    ),
    "put in truth values": (
        put(lambda x: torch.zeros(x.shape, dtype=torch.bool), lambda x: x[:, :2]),
        "rounds to bool",
        "leave the numbers real",
    ),
    "2 in truth values": (lambda x: (x > 0).masked_fill(x < -1, 2).float(), "rounds to bool", "real"),
    "numbers in truth values": (put(lambda x: x > 0, 7), "rounds to bool", "leave the numbers real"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_kind_that_rounds_is_refused(name: str) -> None:
    function, reason, remedy = REFUSED[name]
    is_refused(Lambda(function), SHAPE, reason, remedy)


def test_a_model_in_bfloat16_may_cast_to_its_own_kind() -> None:
    class Norm(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            return F.layer_norm(x.float(), (9,)).to(x.dtype)

    model = nn.Sequential(nn.Conv2d(6, 4, 1), Norm(9)).to(torch.bfloat16)
    x = images(*SHAPE)
    with torch.no_grad():
        wanted = model(x.bfloat16()).float().numpy()
    np.testing.assert_allclose(xnorpp.pack(model, SHAPE)(x.numpy()), wanted, atol=0.1)
