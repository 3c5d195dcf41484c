"""Folding on random chains: signs forced negative, and every decision equal to the trained one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from xnorpp.nn import BinaryConv2d, ChannelShift, RPReLU
from xnorpp.packing import pack_program as pack
from xnorpp.packing import verify
from xnorpp.packing.threshold import float_at, integer_threshold, real_threshold
from xnorpp.runtime import PackedModel

CHANNELS = 5


def wild(module: nn.Module, g: torch.Generator) -> nn.Module:
    """Random parameters with negative and zero multipliers, slopes and scales among them."""
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            if tensor.is_floating_point() and "weight" not in name.split(".")[-1:] and tensor.ndim > 2:
                tensor.normal_(0, 1, generator=g)
        for part in module.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.running_mean.normal_(0, 3, generator=g)
                part.running_var.uniform_(0.1, 9, generator=g)
                part.weight.normal_(0, 1, generator=g)
                part.weight[0] = 0.0
                part.bias.normal_(0, 1, generator=g)
            elif isinstance(part, nn.PReLU):
                part.weight.normal_(0.1, 0.3, generator=g)
            elif isinstance(part, ChannelShift):
                part.shift.normal_(0, 2, generator=g)
    return module


MAKERS = {
    "bn": lambda: nn.BatchNorm2d(CHANNELS),
    "relu": nn.ReLU,
    "prelu": lambda: nn.PReLU(CHANNELS),
    "hardtanh": lambda: nn.Hardtanh(-2.5, 3.0),
    "rprelu": lambda: RPReLU(CHANNELS),
    "shift": lambda: ChannelShift(CHANNELS),
    "drop": nn.Dropout,
    "relu6": nn.ReLU6,
}


@settings(max_examples=60, deadline=None)
@given(
    chain=st.lists(st.sampled_from(sorted(MAKERS)), max_size=4),
    scale=st.sampled_from(
        ["channel", "dense", "channel_spatial", "channel_height_width", "bnn", "alpha", "alpha_k"]
    ),
    bias=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_a_chain_between_two_binary_layers(chain: list[str], scale: str, bias: bool, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    method = {"bnn": "bnn", "alpha": "xnor", "alpha_k": "xnor"}.get(scale, "xnor++")
    name = None if method == "bnn" else scale
    first = BinaryConv2d(3, CHANNELS, 3, padding=1, bias=bias, method=method, scale=name, output_size=(6, 7))
    last = BinaryConv2d(CHANNELS, 4, 1, method="bnn")
    model = nn.Sequential(first, *(MAKERS[link]() for link in chain), last)
    wild(model, g)
    if bias:
        with torch.no_grad():
            first.bias.normal_(0, 2, generator=g)
    x = np.random.default_rng(seed).standard_normal((3, 3, 6, 7)).astype(np.float32)
    result = verify(model, x)
    assert result.holds, [layer for layer in result.layers if layer.beyond]
    signs = [op for op in pack(model, (3, 6, 7)).ops if op.op == "sign"]
    assert len(signs) == 2


def test_integer_decisions_are_exactly_the_trained_ones() -> None:
    """Without a spatial factor the dot product is an integer: the folded bit equals torch's for each."""
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(0)
    channels, inputs = 64, 45
    bn = nn.BatchNorm2d(channels)
    layer = BinaryConv2d(inputs, channels, 1, bias=False, scale="channel")
    model = nn.Sequential(layer, bn, nn.PReLU(channels), BinaryConv2d(channels, 8, 1, method="bnn"))
    with torch.no_grad():
        layer.scale.alpha.normal_(0, 0.1, generator=g)
        bn.running_mean.normal_(0, 0.5, generator=g)
        bn.weight.normal_(0, 1, generator=g)
        bn.bias.normal_(0, 1, generator=g)
    program = pack(model, (inputs, 1, 1))
    sign = [op for op in program.ops if op.op == "sign"][1]
    assert program.values[sign.inputs[0]].kind == "int"
    t, flip = program.real(sign, "threshold"), program.stored(sign, "flip")
    assert t is not None
    assert flip is not None
    assert 0 < flip.sum() < channels
    finite = np.isfinite(t)
    assert np.array_equal(t[finite] % 1, np.full(finite.sum(), 0.5, np.float32))
    dots = torch.arange(-inputs, inputs + 1).float().reshape(-1, 1, 1, 1).expand(-1, channels, 1, 1)
    model.eval()
    with torch.no_grad():
        trained = model[2](bn(dots * layer.scale.tensor()))[:, :, 0, 0].numpy() > 0
    v = dots[:, :, 0, 0].numpy()
    assert np.array_equal(np.where(flip, v < t, v > t), trained)


def test_a_residual_before_the_sign_stays_float() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = BinaryConv2d(4, 4, 3, padding=1, scale="channel")
            self.bn = nn.BatchNorm2d(4)
            self.last = BinaryConv2d(4, 4, 3, padding=1, scale="channel")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.bn(self.conv(x) + x))

    program = pack(Block(), (4, 5, 5))
    assert [op.op for op in program.ops] == [
        "sign",
        "binary_conv2d",
        "affine",
        "add",
        "sign",
        "binary_conv2d",
        "affine",
    ]
    assert program.values[program.ops[4].inputs[0]].kind == "f32"


def test_whole_numbers_have_their_trained_sign_where_a_value_is_read_twice() -> None:
    """Batch norm's means are whole numbers times the scale: what is left there is rounding alone."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = BinaryConv2d(16, 64, 3, padding=1, scale="channel", bias=False)
            self.bn = nn.BatchNorm2d(64)
            self.last = BinaryConv2d(64, 8, 3, padding=1, scale="channel")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.relu(self.bn(self.conv(x)))
            return self.last(y) + y.mean(1, keepdim=True)

    g = torch.Generator().manual_seed(1)
    model = Block().eval()
    with torch.no_grad():
        scale = model.conv.scale.alpha.uniform_(0.01, 3, generator=g).reshape(-1)
        model.bn.running_mean.copy_(scale * torch.arange(64).remainder(9).sub(4) * 2)
        model.bn.running_var.uniform_(0.1, 9, generator=g)
        model.bn.weight.normal_(0, 1, generator=g)
        model.bn.bias.zero_()
    x = torch.randn(4, 16, 9, 9, generator=g).numpy()
    found = verify(model, x)
    assert found.holds
    assert found.flips == 0, [(layer.name, layer.end_to_end) for layer in found.layers]


def test_negative_slopes_stay_in_the_float_epilogue_and_positive_ones_fold() -> None:
    act = nn.PReLU(4)
    model = nn.Sequential(BinaryConv2d(4, 4, 1, scale="channel"), act, BinaryConv2d(4, 4, 1, method="bnn"))
    assert "prelu" not in {op.op for op in pack(model, (4, 3, 3)).ops}
    with torch.no_grad():
        act.weight[2] = -0.1
    assert "prelu" in {op.op for op in pack(model, (4, 3, 3)).ops}


def test_rank_one_scale_stays_factored_and_its_sign_counts() -> None:
    torch.manual_seed(0)
    layer = BinaryConv2d(4, 6, 1, bias=False, scale="channel_height_width", output_size=(5, 5))
    with torch.no_grad():
        layer.scale.beta.copy_(torch.tensor([1.0, -2, 0, 3, -1]).reshape(1, 5, 1))
        layer.scale.gamma.copy_(torch.tensor([-1.0, 2, 1, -3, 0]).reshape(1, 1, 5))
    model = nn.Sequential(layer, nn.BatchNorm2d(6), BinaryConv2d(6, 4, 1, method="bnn"))
    wild(model[1], torch.Generator().manual_seed(1))
    program = pack(model, (4, 5, 5))
    sign = [op for op in program.ops if op.op == "sign"][1]
    assert {"row", "col", "threshold"} <= set(sign.tensors)
    assert verify(model, np.random.default_rng(0).standard_normal((8, 4, 5, 5)).astype(np.float32)).holds


def test_batch_norm_goes_into_a_real_convolution() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=True), wild(nn.BatchNorm2d(4), torch.Generator().manual_seed(0))
    )
    program = pack(model, (3, 6, 6))
    assert [op.op for op in program.ops] == ["conv2d"]
    assert verify(model, np.random.default_rng(0).standard_normal((2, 3, 6, 6)).astype(np.float32)).holds


def test_batch_norm_behind_a_convolution_without_bias_is_torchs_to_the_bit() -> None:
    """Multiply and add are torch's own numbers (where it fuses them, as on any processor of ours)."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, bias=False), wild(nn.BatchNorm2d(32), torch.Generator().manual_seed(0))
    ).eval()
    program = pack(model, (3, 12, 12))
    assert [op.op for op in program.ops] == ["conv2d", "affine"]
    x = torch.randn(4, 3, 12, 12)
    with torch.inference_mode():
        sums, want = model[0](x).numpy().astype(np.float64), model(x).numpy()
    op = program.ops[1]
    mult, add = (program.tensors[op.tensors[role]].reshape(1, -1, 1, 1) for role in ("mult", "add"))
    np.testing.assert_array_equal((sums * mult + add).astype(np.float32), want)
    assert verify(model, x.numpy()).holds


def test_equal_signs_are_taken_once() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn = nn.BatchNorm2d(4)
            self.a, self.b = BinaryConv2d(4, 4, 1, method="bnn"), BinaryConv2d(4, 4, 1, method="bnn")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.bn(x)
            return self.a(x) + self.b(x)

    assert [op.op for op in pack(Two(), (4, 2, 2)).ops].count("sign") == 1


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 300))
def test_thresholds_decide_as_the_function(seed: int, largest: int) -> None:
    """For random monotone float32 functions: constants, flips, and the neighbours of every threshold."""
    rng = np.random.default_rng(seed)
    m1, m2 = (rng.normal(0, 10.0 ** rng.integers(-3, 3), 8).astype(np.float32) for _ in range(2))
    a1, a2 = (rng.normal(0, 10.0 ** rng.integers(-3, 3), 8).astype(np.float32) for _ in range(2))
    m1[0], m2[1], a2[2] = 0, 0, 0

    def f(v: np.ndarray) -> np.ndarray:
        return np.maximum(v * m1 + a1, np.float32(0)) * m2 + a2

    t, flip = integer_threshold(f, 8, largest)
    v = np.repeat(np.arange(-largest, largest + 1, dtype=np.float32)[:, None], 8, axis=1)
    assert np.array_equal(np.where(flip, v < t, v > t), f(v) > 0)
    t, flip = real_threshold(f, 8)
    near = np.stack([np.nextafter(t, np.float32(-np.inf)), t, np.nextafter(t, np.float32(np.inf))])
    spread = float_at(rng.integers(-0x7F000000, 0x7F000000, (50, 8)))
    with np.errstate(over="ignore", invalid="ignore"):
        for v in (near[:, np.isfinite(near).all(0)], spread):
            where = np.isfinite(near).all(0) if v is not spread else slice(None)
            full = np.zeros((len(v), 8), np.float32)
            full[:, where] = v
            wanted = (f(full) > 0)[:, where]
            assert np.array_equal(np.where(flip[where], v < t[where], v > t[where]), wanted)


def test_thresholds_of_infinities_are_the_functions_but_for_one_case() -> None:
    """A weight of 0 and a positive bias: inf * 0 is a NaN for torch, and the bit is constant."""
    weight, bias = np.array([0, 0, 1, -1], np.float32), np.array([1, -1, 0.5, 0.5], np.float32)

    def f(v: np.ndarray) -> np.ndarray:
        return v * weight + bias

    t, flip = real_threshold(f, 4)
    v = np.repeat(np.array([[-np.inf], [np.inf], [np.nan]], np.float32), 4, axis=1)
    with np.errstate(invalid="ignore"):
        wanted = f(v) > 0
    assert not wanted[1, 0]
    wanted[1, 0] = True
    assert np.array_equal(np.where(flip, v < t, v > t), wanted)


def test_float_order() -> None:
    places = np.array([-2, -1, 0, 1, 2, 0x7F7FFFFF])
    assert np.all(np.diff(float_at(places)) > 0)
    assert float_at(places)[-1] == np.finfo(np.float32).max
    assert float_at(np.array([1]))[0] == np.nextafter(np.float32(0), np.float32(1))


@pytest.mark.parametrize("groups", [1, 2])
def test_k_of_xnor_net_packs_as_operations(groups: int) -> None:
    torch.manual_seed(0)
    layer = BinaryConv2d(
        4, 6, 3, padding=1, stride=2, groups=groups, method="xnor", scale="alpha_k", bias=True
    )
    model = nn.Sequential(layer, nn.BatchNorm2d(6))
    program = pack(model, (4, 7, 7))
    assert "mul" in {op.op for op in program.ops}
    assert verify(model, np.random.default_rng(0).standard_normal((2, 4, 7, 7)).astype(np.float32)).holds


class Gated(nn.Module):
    """A count of bits times a value, in any order."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.order, self.layer = order, BinaryConv2d(4, 4, 3, padding=1, bias=False, scale=None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        if self.order == "itself":
            return y * y
        return y * torch.sigmoid(x) if self.order == "first" else torch.sigmoid(x) * y


@pytest.mark.parametrize("order", ["first", "second", "itself"])
def test_a_product_with_a_count_of_bits_in_any_order(order: str) -> None:
    torch.manual_seed(0)
    model, x = Gated(order).eval(), np.random.default_rng(0).standard_normal((2, 4, 7, 6)).astype(np.float32)
    with torch.no_grad():
        wanted = model(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(PackedModel(pack(model, (4, 7, 6)))(x), wanted, rtol=1e-5, atol=1e-5)
    assert verify(model, x).holds
