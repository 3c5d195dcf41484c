from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from xnorpp.convert import binarize, resize_scales
from xnorpp.models import create_model
from xnorpp.nn import METHOD_SCALES, METHODS, BinaryConv2d, BinaryLinear

VARIANTS = [(m, s) for m in METHODS if m != "real" for s in METHOD_SCALES[m] or (None,)]


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(12, 5)  # listed first, runs last
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.body = nn.Sequential(
            nn.BatchNorm2d(8),
            nn.Conv2d(8, 8, (3, 1), stride=2, padding=(1, 0), bias=True),
            nn.BatchNorm2d(8),
            nn.Conv2d(8, 12, 3, padding="same", groups=2, dilation=2),
        )
        self.mix = nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(self.body(self.stem(x)).mean((2, 3))))


@pytest.mark.parametrize(("method", "scale"), VARIANTS)
def test_the_inner_layers_change_and_the_network_still_trains(method: str, scale: str | None) -> None:
    model = Network()
    weights = dict(model.named_parameters())
    report = binarize(model, method=method, scale=scale, input_size=(10, 8))
    assert report.changed == ("body.1", "body.3", "mix")
    assert report.left == ("stem", "head")
    assert type(model.stem) is nn.Conv2d
    assert type(model.head) is nn.Linear
    assert isinstance(model.body[1], BinaryConv2d)
    assert isinstance(model.mix, BinaryLinear)
    assert model.body[1].method == model.mix.method == method
    kept = dict(model.named_parameters())
    assert all(kept[name] is p for name, p in weights.items())  # an optimiser made before still fits
    model(torch.randn(2, 3, 10, 8)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    if method == "xnor++":
        mean = 0.8 * model.mix.weight.abs().mean(1)
        torch.testing.assert_close(model.mix.scale.alpha.flatten(), mean)


def test_geometry_and_settings_are_taken_over() -> None:
    model = Network().double()
    binarize(model, input_size=10, padding_value=-1, surrogate="tanh", scale="dense", clip_weights=True)
    first, second = model.body[1], model.body[3]
    assert (first.kernel_size, first.stride, first.padding) == ((3, 1), (2, 2), (1, 0))
    assert (second.groups, second.dilation, second.padding) == (2, (2, 2), "same")
    assert (second.padding_value, second.surrogate, second.clip_weights) == (-1, "tanh", True)
    assert first.output_size == second.output_size == (5, 5)
    assert first.scale.alpha.dtype == torch.float64
    assert model(torch.randn(1, 3, 10, 10).double()).dtype == torch.float64


def test_the_report_reads_as_a_table() -> None:
    text = str(binarize(Network(), input_size=8))
    assert "stem" in text.splitlines()[0]
    assert "first layer, kept real" in text
    assert "last layer, kept real" in text
    assert "method xnor++, scale channel_height_width" in text
    assert text.endswith("3 layers made binary, 2 left as they were")


def test_without_a_dry_run_the_listed_order_counts() -> None:
    report = binarize(Network(), scale="channel")
    assert report.left == ("head", "mix")
    with pytest.raises(ValueError, match=r"`input_size` \(=None\) must be given for scale='dense'"):
        binarize(Network(), scale="dense")


def test_all_layers_on_request_and_some_kept() -> None:
    report = binarize(Network(), input_size=8, keep_first=False, keep_last=False, keep=["body"])
    assert report.changed == ("stem", "mix", "head")
    assert {row.reason for row in report.rows if not row.changed} == {"kept on request"}
    with pytest.raises(ValueError, match=r"`keep` \(='bodi'\)"):
        binarize(Network(), input_size=8, keep=["bodi"])


class Odd(nn.Module):
    """Everything that cannot be converted."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 1)
        self.depthwise = nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.reflecting = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
        self.transposed = nn.ConvTranspose2d(4, 4, 2)
        self.twice = nn.Conv2d(4, 4, 3, padding=1)
        self.unused = nn.Conv2d(4, 4, 1)
        self.binary = BinaryConv2d(4, 4, 1, scale="channel")
        self.attention = nn.MultiheadAttention(4, 1, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.transposed(self.reflecting(self.depthwise(self.stem(x))))
        x = self.binary(self.twice(self.twice(x)[..., ::2, ::2]))
        x = x.flatten(2).transpose(1, 2)
        return self.head(self.attention(x, x, x)[0])


def test_what_cannot_be_converted_is_left_with_a_reason() -> None:
    model = Odd()
    rows = {row.path: row for row in binarize(model, input_size=8).rows}
    assert not any(row.changed for row in rows.values())
    reasons = {
        "depthwise": "depthwise",
        "reflecting": "padding_mode 'reflect'",
        "transposed": "ConvTranspose2d has no binary twin",
        "twice": "several output sizes, (9, 9) and (5, 5), which scale 'channel_height_width' cannot hold",
        "unused": "not reached in the dry run",
        "binary": "already a BinaryConv2d of method xnor++",
        "attention.out_proj": "subclass of Linear",
    }
    for path, reason in reasons.items():
        assert reason in rows[path].reason
    assert binarize(Odd(), input_size=8, scale="channel").changed == ("twice",)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.a = nn.Linear(6, 6)
        self.b = self.a  # the same module under two names
        self.c = nn.Linear(6, 6)
        self.c.weight = self.a.weight  # the same weight in another module
        self.d = nn.Linear(6, 6)
        self.last = nn.Linear(6, 6)
        self.d.weight = self.last.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.d(self.c(self.b(self.a(self.first(x))))))


def test_tied_modules_stay_tied_and_partners_of_real_layers_stay_real() -> None:
    model = Tied()
    report = binarize(model, example_input=torch.randn(2, 6))
    assert report.changed == ("a", "c")
    assert model.a is model.b
    assert isinstance(model.a, BinaryLinear)
    assert model.c.weight is model.a.weight
    rows = {row.path: row.reason for row in report.rows}
    assert "also reachable as b" in rows["a"]
    assert rows["d"] == "shares its weight with 'last', which stays real"


def test_modes_survive_the_dry_run_and_statistics_too() -> None:
    model = Network().train()
    model.body[0].eval()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    binarize(model, input_size=8)
    assert model.training
    assert model.body[1].training
    assert not model.body[0].training
    after = dict(model.named_buffers())
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_calls_that_make_no_sense_are_errors() -> None:
    with pytest.raises(ValueError, match="`method`"):
        binarize(Network(), method="real")
    with pytest.raises(ValueError, match="`example_input` instead"):
        binarize(nn.Sequential(nn.Linear(2, 2)), input_size=8)
    lone = nn.Linear(3, 3)
    assert "cannot be replaced inside itself" in binarize(lone, scale="channel").rows[0].reason
    assert str(binarize(nn.ReLU(), scale="channel")) == "0 layers made binary, 0 left as they were"


def test_scales_are_resized_for_another_picture_size() -> None:
    model = Network()
    binarize(model, input_size=8)
    with pytest.raises(ValueError, match="is bound to output size"):
        model(torch.randn(1, 3, 16, 12))
    sizes = resize_scales(model, (16, 12))
    assert sizes == {"body.1": (8, 6), "body.3": (8, 6)}
    assert model(torch.randn(1, 3, 16, 12)).shape == (1, 5)
    assert resize_scales(model, (16, 12)) == {}


def test_an_impossible_size_leaves_every_scale_as_it_was() -> None:
    model = create_model("resnet18", input_size=32, num_classes=3)
    before = dict(model.named_parameters())
    with pytest.raises(ValueError, match=r"^`input_size` \(=64\) must be a size that the model can run on"):
        resize_scales(nn.Sequential(model, nn.Linear(5, 2)), 64)  # fails behind all the scales
    assert all(parameter is before[name] for name, parameter in model.named_parameters())
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 3)
    for size in (0, (8,), 2.5, "8", (8, 0)):
        with pytest.raises(ValueError, match=r"`input_size` .* must be a positive side or"):
            resize_scales(model, size)  # type: ignore[arg-type]


def test_a_resized_listed_network_knows_its_new_size() -> None:
    """Its `config` builds the same network again, whose parameters fit; pooling stays as it was."""
    model = create_model("small", input_size=12, num_classes=3, width=8)
    resize_scales(model, (20, 16))
    assert model.config["input_size"] == [20, 16]
    again = create_model(**model.config)
    again.load_state_dict(model.state_dict())
    x = torch.randn(2, 3, 20, 16)
    assert torch.equal(again.eval()(x), model.eval()(x))
