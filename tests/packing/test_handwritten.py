"""One-bit layers that are written by hand, as public code writes them: they are packed as bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from agreement import agrees, images, is_refused
from torch import Tensor, nn

import xnorpp
from xnorpp.packing import check_packable, pack_program

Binarize = Callable[[Tensor], Tensor]


class Sign(torch.autograd.Function):
    """As the code of most papers has it: 0 is neither."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.sign(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grads[0] * (x.abs() <= 1)


def polynomial(x: Tensor) -> Tensor:
    """The gradient is that of a polynomial of three pieces."""
    out = torch.sign(x)
    far, negative, near = (
        (x < -1).type(torch.float32),
        (x < 0).type(torch.float32),
        (x < 1).type(torch.float32),
    )
    first = -far + (x * x + 2 * x) * (1 - far)
    second = first * negative + (-x * x + 2 * x) * (1 - negative)
    third = second * near + 1 - near
    return out.detach() - third.detach() + third


def swish(x: Tensor) -> Tensor:
    """The derivative of a swish, written twice."""

    def smooth(x: Tensor) -> Tensor:
        return 2 * torch.sigmoid(5 * x) * (1 + 5 * x * (1 - torch.sigmoid(5 * x))) - 1

    return (x.sign() - smooth(x)).detach() + smooth(x)


def by_masks(x: Tensor) -> Tensor:
    out = x.clone()
    out[x > 0] = 1
    out[x <= 0] = -1
    return out


def by_masks_of_itself(x: Tensor) -> Tensor:
    out = x.clone()
    out[out >= 0] = 1
    out[out < 0] = -1
    return out


def of_zeros(x: Tensor) -> Tensor:
    out = x.sign()
    out[out == 0] = 1
    return out


def data(x: Tensor) -> Tensor:
    x.data = x.data.sign()
    return x


VALUES: dict[str, Binarize] = {
    "function": Sign.apply,
    "polynomial": polynomial,
    "swish": swish,
    "masks": by_masks,
    "masks of itself": by_masks_of_itself,
    "the larger one": lambda x: torch.max(torch.sign(x), torch.tensor(-1.0)),
    "zeros": of_zeros,
    "data": data,
    "at least 0": lambda x: torch.where(x >= 0, torch.ones_like(x), -torch.ones_like(x)),
    "numbers": lambda x: torch.where(x < 0, -1.0, 1.0),
    "truth values": lambda x: (x > 0).float() * 2 - 1,
    "of a tangent": lambda x: torch.tanh(3 * x) + (x.sign() - torch.tanh(3 * x)).detach(),
    "around x": lambda x: x + (x.sign() - x).detach(),
    "around x, summed first": lambda x: (x.sign() + x) - x.detach(),
    "x less itself": lambda x: x.sign().detach() + (x - x.detach()),
    "x less itself first": lambda x: x - x.detach() + x.sign().detach(),
    "x times 0": lambda x: x.detach().sign() + 0 * x,
    "clipped": lambda x: (x.clamp(-1, 1).sign() - x.clamp(-1, 1)).detach() + x.clamp(-1, 1),
    "twice": lambda x: torch.sign(torch.sign(x) + 0.1),
    "in place": lambda x: x.clone().sign_(),
    "by its size": lambda x: x / x.abs(),
    "a step": lambda x: 2 * torch.heaviside(x, torch.zeros(1)) - 1,
    "0 becomes 1": lambda x: x.sign() + (x == 0).float(),
    "0 becomes 1 later": lambda x: torch.where(x.sign() == 0, torch.ones_like(x), x.sign()),
    "0 and 1": lambda x: (x > 0).float(),
    "from 2 to 5": lambda x: 3 * (x >= 0).float() + 2,
    "scaled": lambda x: 0.37 * torch.sign(x / 0.37),
    "moved": lambda x: 0.4 * torch.sign((x - 0.1) / 0.4) + 0.1,
}


def straight_through(w: Tensor) -> Tensor:
    scale = w.abs().mean((1, 2, 3), keepdim=True).detach()
    clipped = w.clamp(-1, 1)
    return (scale * torch.sign(w)).detach() - clipped.detach() + clipped


def standardised(w: Tensor) -> Tensor:
    rows = w.flatten(1)
    rows = (rows - rows.mean(1, keepdim=True)) / rows.std(1, keepdim=True)
    power = 2 ** (rows.abs().mean(1).log() / math.log(2)).round()
    return rows.sign().view_as(w) * power.view(-1, 1, 1, 1)


def moved(w: Tensor) -> Tensor:
    middle, size = w.mean((1, 2, 3), keepdim=True), w.std((1, 2, 3), keepdim=True)
    return Sign.apply((w - middle) / size) * size + middle


FILTERS: dict[str, Binarize] = {
    "signs": torch.sign,
    "straight through": straight_through,
    "standardised": standardised,
    "one mean": lambda w: w.abs().mean() * torch.sign(w / w.abs().mean()),
    "moved": moved,
    "0 and 1": lambda w: (w > 0).float(),
}


class Function(nn.Module):
    def __init__(self, function: Binarize) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Shift1d(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(channels, 1) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias


class Shift(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(1, channels, 1, 1) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias.expand_as(x)


class Conv(nn.Module):
    """A convolution with functions of its own for values and filters."""

    def __init__(self, values: Binarize, filters: Binarize, channels: int = 8, **settings: Any) -> None:
        super().__init__()
        groups = settings.get("groups", 1)
        self.weight = nn.Parameter(torch.randn(channels, channels // groups, 3, 3))
        self.values, self.filters = values, filters
        self.settings = {"padding": 1, **settings}

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(self.values(x), self.filters(self.weight), **self.settings)


def network(layer: nn.Module, channels: int = 8, size: int = 5) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), Shift(channels),
        layer, nn.BatchNorm2d(channels), nn.PReLU(channels), nn.Flatten(), nn.Linear(channels * size**2, 4),
    )  # fmt: skip
    for norm in model:
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.normal_(norm.bias)
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 2)
    return model.eval()


def operations(packed: Any) -> list[str]:
    return [op.op for op in packed.program.ops]


@pytest.mark.parametrize("name", VALUES)
def test_values_of_two_numbers_are_one_bit(name: str) -> None:
    packed = agrees(network(Conv(VALUES[name], straight_through)), images(3, 5, 5))
    made = operations(packed)
    assert made.count("binary_conv2d") == 1
    assert made.count("sign") == 1
    assert made.count("conv2d") == (2 if name in ("from 2 to 5", "moved") else 1)


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("settings", [{}, {"groups": 4}, {"stride": 2, "dilation": 2, "padding": 2}])
def test_filters_of_two_numbers_are_bits(name: str, settings: dict[str, int]) -> None:
    size = 3 if settings.get("stride") else 5
    packed = agrees(network(Conv(torch.sign, FILTERS[name], **settings), size=size), images(3, 5, 5))
    made = operations(packed)
    assert made.count("binary_conv2d") == (2 if name in ("moved", "0 and 1") else 1)
    assert made.count("sign") == 1


def test_parameters_of_one_number_per_channel_are_stored_once() -> None:
    """`bias.expand_as(x)` has a number for each pixel, which are the same."""
    model = network(nn.Identity())
    packed = agrees(model, images(3, 5, 5))
    assert "offset" not in operations(packed)


@pytest.mark.parametrize("value", [-1.0, 0.0, 1.0, 0.5])
def test_padding_before_a_convolution(value: float) -> None:
    layer = Conv(lambda x: F.pad(torch.sign(x), (1, 1, 1, 1), value=value), straight_through, padding=0)
    made = operations(agrees(network(layer), images(3, 5, 5)))
    assert made.count("binary_conv2d") == (value != 0.5)
    assert made.count("conv2d") == 1 + (value == 0.5)


@pytest.mark.parametrize("sides", [(0, 1, 0, 1), (1, 0, 2, 0), (0, 3, 2, 1)])
@pytest.mark.parametrize("settings", [{}, {"stride": 2}, {"stride": 3, "padding": 1}, {"dilation": 2}])
@pytest.mark.parametrize("values", ["function", "from 2 to 5"])
def test_uneven_padding_before_a_convolution(
    sides: tuple[int, ...], settings: dict[str, int], values: str
) -> None:
    """As "same" padding of other frameworks has it; the values 2 and 5 are padded with neither."""
    layer = Conv(lambda x: F.pad(VALUES[values](x), sides), straight_through, **{"padding": 0, **settings})
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), Shift(8), layer, nn.PReLU(8)).eval()
    made = operations(agrees(model, images(3, 11, 9)))
    assert made.count("binary_conv2d") == 1
    assert made.count("conv2d") == (2 if values == "from 2 to 5" else 1)


def test_a_sequence_is_padded_before_a_causal_convolution() -> None:
    filters = straight_through(torch.randn(8, 8, 3, 1)).squeeze(3)
    model = nn.Sequential(
        nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8), Shift1d(8),
        Function(lambda x: F.conv1d(F.pad(torch.sign(x), (4, 0)), filters, dilation=2)),
    )  # fmt: skip
    made = operations(agrees(model, images(3, 11)))
    assert made.count("binary_conv2d") == made.count("conv2d") == 1


PICKED: dict[str, Binarize] = {
    "replicated": lambda x: F.pad(torch.sign(x), (1, 1, 1, 1), mode="replicate"),
    "reflected": lambda x: F.pad(0.3 * torch.sign(x), (2, 1, 1, 2), mode="reflect"),
    "circular": lambda x: F.pad(torch.sign(x), (1, 1, 1, 1), mode="circular"),
    "uneven, of a number": lambda x: F.pad(torch.sign(x), (0, 1, 2, 1), value=-1.0),
    "largest": lambda x: F.max_pool2d(torch.sign(x), 2, 1),
    "largest of 0 and 1": lambda x: F.max_pool2d((x > 0).float(), 3, 2, 1),
    "two parts": lambda x: torch.cat([torch.sign(x[:, :4]), torch.where(x[:, 4:] >= 0.1, 1.0, -1.0)], 1),
    "shuffled": lambda x: F.channel_shuffle(torch.sign(x), 2),
    "pixels": lambda x: F.pixel_unshuffle(F.pixel_shuffle(torch.sign(x), 2), 2),
    "turned": lambda x: torch.sign(x).flip(2),
    "rolled": lambda x: torch.sign(x).roll(1, 3),
    "larger": lambda x: F.interpolate(torch.sign(x), scale_factor=2),
    "cut": lambda x: torch.sign(x)[:, :, 1:-1, 1:],
    "ReLU of a sign": lambda x: torch.relu(torch.sign(x)),
    "clipped sign": lambda x: F.hardtanh(torch.sign(x)),
}


@pytest.mark.parametrize("name", PICKED)
def test_numbers_picked_from_two_are_two(name: str) -> None:
    torch.manual_seed(0)
    layer = Conv(PICKED[name], straight_through)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), Shift(8), layer, nn.PReLU(8)).eval()
    made = operations(agrees(model, images(3, 9, 8)))
    assert made.count("binary_conv2d") == made.count("conv2d") == 1


@pytest.mark.parametrize("values", ["function", "scaled", "0 and 1", "from 2 to 5"])
@pytest.mark.parametrize("filters", ["straight through", "moved"])
@pytest.mark.parametrize(
    "settings", [{}, {"stride": 2, "padding": 1, "output_padding": 1}, {"groups": 2, "stride": 3}]
)
def test_transposed_convolutions_are_bits(values: str, filters: str, settings: dict[str, int]) -> None:
    torch.manual_seed(0)
    groups = settings.get("groups", 1)
    weight = FILTERS[filters](torch.randn(6, 8 // groups, 3, 3))  # of an ordinary one
    weight = weight.view(groups, 6 // groups, 8 // groups, 3, 3).transpose(1, 2).reshape(8, -1, 3, 3)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), Shift(8),
        Function(lambda x: F.conv_transpose2d(VALUES[values](x), weight, torch.ones(6), **settings)),
        nn.PReLU(6),
    ).eval()  # fmt: skip
    made = operations(agrees(model, images(3, 6, 5)))
    assert "binary_conv2d" in made
    sums = filters == "moved" and groups > 1  # of each group
    assert made.count("conv2d") == 1 + sums + (values in ("0 and 1", "from 2 to 5"))


class Heads(nn.Module):
    """A layer of another kind on an image of 8 channels."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.weight = nn.Parameter(torch.randn(8, 8) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight.abs().mean(1, keepdim=True) * torch.sign(self.weight)
        if self.kind == "linear":
            return F.linear(torch.sign(x.flatten(1)[:, :8]), w).view(-1, 8, 1, 1) + x
        if self.kind == "tokens":
            return F.linear(torch.sign(x.flatten(2).transpose(1, 2)), w).transpose(1, 2).view_as(x)
        if self.kind == "product":
            return (torch.sign(x).permute(0, 2, 3, 1) @ w.t()).permute(0, 3, 1, 2)
        if self.kind == "matrix first":
            return (w @ torch.sign(x).flatten(2)).view_as(x)
        if self.kind == "matrix of each image":
            return torch.bmm(w.expand(len(x), 8, 8), torch.sign(x).flatten(2)).view_as(x)
        if self.kind == "einsum":
            return torch.einsum("nchw,oc->nohw", torch.sign(x), w)
        if self.kind == "einsum, turned":
            return torch.einsum("oc,nchw->nwho", w, torch.sign(x)).permute(0, 3, 2, 1)
        if self.kind == "moved":
            signs = torch.sign(x).flatten(1)
            return F.linear(signs[:, :8] * 1.0, w).view(-1, 8, 1, 1) + x
        if self.kind == "sequence":
            return F.conv1d(torch.sign(x.flatten(2)), w.unsqueeze(2)).view_as(x)
        filters = w.view(8, 8, 1, 1) if self.kind == "dense" else w.view(8, 2, 2, 2)[:, :, :1]
        groups = 1 if self.kind == "dense" else 4
        filters = filters.abs().mean() * torch.sign(filters)
        return F.conv_transpose2d(torch.sign(x), filters, groups=groups)[..., : x.shape[-1]]


@pytest.mark.parametrize(
    "kind",
    [
        "linear",
        "tokens",
        "product",
        "sequence",
        "dense",
        "grouped",
        "matrix first",
        "matrix of each image",
        "einsum",
        "einsum, turned",
    ],
)
def test_other_layers_are_bits_too(kind: str) -> None:
    torch.manual_seed(0)
    made = operations(agrees(network(Heads(kind)), images(3, 5, 5)))
    assert {"binary_linear", "binary_conv2d"} & set(made)
    assert made.count("sign") == 1
    assert made.count("conv2d") == made.count("linear") == 1


def test_one_factor_per_input_channel_stays_real() -> None:
    factors = torch.rand(8, 1, 1) + 0.5
    layer = Conv(lambda x: torch.sign(x) * factors, straight_through)
    made = operations(agrees(network(layer), images(3, 5, 5)))
    assert "binary_conv2d" not in made
    layer = Conv(lambda x: torch.sign(x) * factors, lambda w: torch.sign(w) / factors.view(1, 8, 1, 1))
    made = operations(agrees(network(layer), images(3, 5, 5)))
    assert made.count("binary_conv2d") == 1


def test_real_filters_of_one_bit_values() -> None:
    made = operations(agrees(network(Conv(torch.sign, lambda w: w)), images(3, 5, 5)))
    assert made.count("conv2d") == 2
    assert made.count("sign") == 1


ZEROS: dict[str, Binarize] = {
    "padded": lambda x: F.pad(x, (1, 1, 1, 1)),
    "dead zone": lambda x: F.hardshrink(x),
    "whole numbers": lambda x: F.conv2d(torch.sign(x), torch.ones(8, 8, 2, 2)),
    "whole numbers, moved": lambda x: F.conv2d(torch.sign(x), torch.ones(8, 8, 2, 2)) - 2.0,
    "a sum of signs": lambda x: torch.sign(x) + torch.sign(x.flip(1)),
}


@pytest.mark.parametrize("name", ZEROS)
def test_a_sign_of_values_that_are_often_zero_is_refused(name: str) -> None:
    layer = Conv(lambda x: torch.sign(ZEROS[name](x)), straight_through)
    model = network(layer, size=7 if name == "padded" else 4 if "whole" in name else 5)
    is_refused(model, (3, 5, 5), r"conv2d reads torch\.sign, which is 0 at 0", "use xnorpp.nn.sign")


def test_an_untrained_network_packs_as_a_trained_one() -> None:
    """Batch norms that add 0 come before the signs of such a network."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.MaxPool2d(2), Conv(torch.sign, torch.sign),
        nn.BatchNorm2d(8), nn.Hardtanh(), Conv(torch.sign, torch.sign), nn.BatchNorm2d(8),
    )  # fmt: skip
    assert check_packable(model, (3, 12, 12))
    made = [op.op for op in pack_program(model, (3, 12, 12)).ops]
    assert made.count("binary_conv2d") == made.count("sign") == 2


class Taught(nn.Module):
    """Two layers of other code bases in one network: of ReActNet's block and of BinaryNet's."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16))
        self.shifts = nn.ModuleList(Shift(16) for _ in range(3))
        self.conv = Conv(polynomial, straight_through, 16)
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(2))
        self.act = nn.PReLU(16)
        self.head = nn.Linear(16, 10)
        self.hidden = nn.Linear(16, 16)
        self.hidden.weight.org = self.hidden.weight.data.clone()

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.norms[0](self.conv(self.shifts[0](x))) + x
        y = self.shifts[2](self.act(self.shifts[1](y)))
        y = self.norms[1](y).mean((2, 3))
        y.data = y.data.sign()
        self.hidden.weight.data = self.hidden.weight.org.sign()
        return self.head(F.hardtanh(self.hidden(y)))


def test_networks_of_other_code_bases_are_as_small_as_ours() -> None:
    torch.manual_seed(0)
    model = Taught()
    with torch.no_grad():
        model(torch.randn(8, 3, 16, 16))
    packed = agrees(model.eval(), images(3, 16, 16))
    made = operations(packed)
    assert made.count("sign") == 2
    assert (made.count("binary_conv2d"), made.count("binary_linear")) == (1, 1)
    assert (made.count("conv2d"), made.count("linear"), made.count("mul")) == (1, 1, 0)
    assert len(made) < 20


def test_binarize_leaves_such_layers_as_they_are() -> None:
    class Own(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return F.conv2d(torch.sign(x), standardised(self.weight), self.bias, padding=1)

    model = network(Own(8, 8, 3))
    report = xnorpp.binarize(model, example=images(3, 5, 5))
    assert type(model[3]) is Own
    assert not report.obstacles
    assert "binary_conv2d" in operations(xnorpp.pack(model, example=images(3, 5, 5)))
