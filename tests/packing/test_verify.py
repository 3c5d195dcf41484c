"""`verify` sees what it is there to see: it fails on a wrong packing and counts flips."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from networks import Lambda
from torch import Tensor, nn

from xnorpp.nn import BinaryConv2d, BinaryLinear
from xnorpp.packing import verify
from xnorpp.packing.operations import arithmetic

fold = importlib.import_module("xnorpp.packing.fold")  # the module; the package's attribute is its function


def network() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        BinaryConv2d(8, 8, 3, padding=1, scale="channel"),
        nn.BatchNorm2d(8),
        BinaryConv2d(8, 8, 3, padding=1, scale="channel_height_width", output_size=(6, 6)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    with torch.no_grad():
        for norm in (model[1], model[3]):
            norm.bias.normal_()
            norm.running_mean.normal_()
    return model


X = np.random.default_rng(0).standard_normal((16, 3, 6, 6)).astype(np.float32)


def test_a_right_packing_holds() -> None:
    result = verify(network(), X)
    assert result.holds
    assert result.flips == 0
    assert result.bits == 2 * 16 * 8 * 36
    assert result.same_class == 1.0
    assert result.output_error < 1e-5
    assert {layer.op for layer in result.layers} >= {"sign", "affine", "conv2d"}
    first, last = str(result).splitlines()
    assert first == f"holds: rounding explains every difference in {len(result.layers)} operations"
    assert last.startswith("end to end: 0 of 9,216 signs differ, the same class for 100.00 % of the inputs")
    assert verify(network(), torch.from_numpy(X)) == result, "a tensor does as well"


def test_a_wrong_threshold_is_beyond_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    good = fold.integer_threshold

    def shifted(*arguments: object) -> object:
        t, flip = good(*arguments)
        return t + np.float32(2), flip

    monkeypatch.setattr(fold, "integer_threshold", shifted)
    result = verify(network(), X)
    assert not result.holds
    assert result.flips > 0
    assert [layer.name for layer in result.layers if layer.beyond] == ["4"]
    first, broken, last = str(result).splitlines()
    assert first.startswith("does not hold: rounding does not explain 1 of ")
    assert broken.startswith("  4 (sign): ")
    assert last.startswith(f"end to end: {result.flips:,} of 9,216 signs differ")


def test_a_wrong_fold_is_beyond_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    good = fold._into_weights

    def scaled(output: object) -> object:
        folded = good(output)
        for node in fold.order(*folded):
            if node.op == "conv2d":
                node.tensors["bias"] = node.tensors["bias"] * 1.0001
        return folded

    monkeypatch.setattr(fold, "_into_weights", scaled)
    result = verify(network(), X)
    assert "conv2d" in {layer.op for layer in result.layers if layer.beyond}


def test_half_is_not_rounding_of_single() -> None:
    assert not verify(network(), X, half=True).holds


def test_at_least_one_image_is_needed() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten())
    for shape in ((0, 3, 4, 4), (3,)):
        with pytest.raises(ValueError, match=r"`x` has shape .*; a batch of at least one input"):
            verify(model, np.zeros(shape, np.float32))


class Block(nn.Module):
    """A transformer's, over (n, tokens, channels): the program has channels first and moves nothing."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.layer = BinaryLinear(width, width, scale="channel")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.layer(self.second(x))


class Tokens(nn.Module):
    """Many blocks, and the first token alone."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.into = nn.Conv2d(3, width, 2, stride=2)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(blocks)))
        self.out = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.into(x).flatten(2).transpose(1, 2))
        return self.out(x[:, 0])


def test_values_with_their_axes_in_other_places_are_compared() -> None:
    """After each block its bounds begin anew; added up over all blocks they were infinite, which bounds
    nothing, and in a wider network not a number, which nothing is within."""
    torch.manual_seed(0)
    result = verify(Tokens(32, 12), X)
    assert result.holds
    assert result.same_class == 1.0
    assert max(layer.bound for layer in result.layers) < 0.1
    sums = [layer for layer in result.layers if layer.op == "add"]
    assert len(sums) == 24
    assert {layer.count for layer in sums} == {16 * 32 * 9}


def test_a_wrong_value_with_its_axes_in_other_places_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison is with the trained value as the program has it: other axes are another value."""
    torch.manual_seed(0)
    module = importlib.import_module("xnorpp.packing.verify")
    found = module.trained_value

    def turned(node: object, trained: dict[int, np.ndarray]) -> np.ndarray | None:
        value = found(node, trained)
        return value if getattr(node, "turned", None) is None or value is None else value[..., ::-1].copy()

    monkeypatch.setattr(module, "trained_value", turned)
    assert not verify(Tokens(32, 1), X).holds


def test_a_sign_of_a_value_that_the_trained_network_does_not_have() -> None:
    """A product of an axis is multiplied in another order than by torch, and compared with a part of itself:
    where they are equal, rounding alone decides, and `verify` counts a bit that may be either."""

    def run(x: torch.Tensor) -> torch.Tensor:
        product = x.prod(1, keepdim=True)
        return (product * 1 <= product.relu()).float()

    x = np.random.default_rng(3).standard_normal((64, 5, 1, 3)).astype(np.float32)
    assert verify(Lambda(run), x).holds


def _estimator(x: Tensor) -> Tensor:
    """Its sum has other numbers than -1 and +1 by the rounding of numbers up to 100."""
    smooth = torch.exp(x)
    return F.max_pool2d((torch.sign(x + 0.1) - smooth) + smooth * 1, 2)


def test_the_rounding_of_an_estimator_comes_in() -> None:
    model = nn.Sequential(Lambda(lambda x: _estimator(x * 2)), nn.Conv2d(3, 4, 3)).eval()
    x = np.random.default_rng(0).standard_normal((3, 3, 9, 8)).astype(np.float32)
    assert verify(model, x).holds


def test_an_estimator_of_another_sum_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "same", lambda a, b: True)
    model = nn.Sequential(Lambda(lambda x: (torch.sign(x + 0.1) - x) + x.tanh()), nn.Conv2d(3, 4, 3)).eval()
    x = np.random.default_rng(0).standard_normal((3, 3, 9, 8)).astype(np.float32)
    assert not verify(model, x).holds


class Cancelling(nn.Module):
    """Tokens whose mean is 0 but for rounding, so that the signs of their zeros are decided by it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(37, elementwise_affine=False), nn.LayerNorm(74)
        self.layer = BinaryLinear(74, 20)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        found: Tensor = self.layer(self.second(torch.cat([y, torch.zeros_like(y)], 2)))
        return found


def test_signs_of_tokens_are_compared_and_may_be_decided_by_rounding() -> None:
    torch.manual_seed(0)
    x = 5 + np.random.default_rng(0).standard_normal((20, 9, 37)).astype(np.float32)
    found = verify(Cancelling(), x)
    assert found.holds
    (signs,) = (layer for layer in found.layers if layer.op == "sign")
    assert signs.count == 20 * 9 * 74
    assert signs.end_to_end > 0, "rounding decides some"


def test_bits_that_rounding_may_turn_move_the_sums_that_take_them() -> None:
    from xnorpp.packing import pack_program
    from xnorpp.runtime import reference

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.BatchNorm2d(16), BinaryConv2d(16, 20, 3, padding=1, stride=2, groups=2, scale=None)
    )
    program = pack_program(model.eval(), (16, 7, 6))
    op = next(op for op in program.ops if op.op == "binary_conv2d")
    rng = np.random.default_rng(0)
    bits = rng.choice(np.array([-1, 1], np.int8), (3, 16, 7, 6))
    turned = rng.random(bits.shape) < 0.05
    before, after = (reference.apply(program, op, x) for x in (bits, np.where(turned, -bits, bits)))
    for errors in (np.zeros(bits.shape), 2.0 * turned):
        bound = reference.ROWS[op.op].bound(program, op, None, [bits], [errors], before)
        assert bound.shape == before.shape
        if errors.any():
            moved = np.abs(after - before)
            assert np.all(moved <= bound)
            assert (moved == bound).any(), "no more than needed"
        else:
            assert not bound.any()
    linear = pack_program(nn.Sequential(nn.BatchNorm1d(24), BinaryLinear(24, 7, scale=None)).eval(), (24,))
    op = next(op for op in linear.ops if op.op == "binary_linear")
    bits = rng.choice(np.array([-1, 1], np.int8), (5, 24))
    turned = rng.random(bits.shape) < 0.1
    before, after = (reference.apply(linear, op, x) for x in (bits, np.where(turned, -bits, bits)))
    bound = reference.ROWS[op.op].bound(linear, op, None, [bits], [2.0 * turned], before)
    assert bound.shape == before.shape
    assert np.all(np.abs(after - before) <= bound)
