from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from xnorpp import Binarization, unbinarize
from xnorpp.convert import binarize, real_state_dict, resize_scales
from xnorpp.models import create_model
from xnorpp.nn import METHOD_SCALES, METHODS, BinaryConv1d, BinaryConv2d, BinaryLinear, TanhSign

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


def image(height: int = 8, width: int = 8) -> Tensor:
    return torch.zeros(1, 3, height, width)


@pytest.mark.parametrize(("method", "scale"), VARIANTS)
def test_the_inner_layers_change_and_the_network_still_trains(method: str, scale: str | None) -> None:
    model = Network()
    weights = dict(model.named_parameters())
    report = binarize(model, method, scale=scale, example=image(10, 8))
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
    config = Binarization(inputs="tanh", padding_value=-1, scale="dense", clip_weights=True)
    binarize(model, config, example=image(10, 10).double())
    first, second = model.body[1], model.body[3]
    assert (first.kernel_size, first.stride, first.padding) == ((3, 1), (2, 2), (1, 0))
    assert (second.groups, second.dilation, second.padding) == (2, (2, 2), "same")
    assert first.binarization == second.binarization == config
    assert second.binarization.inputs == TanhSign()
    assert (second.padding_value, second.clip_weights) == (-1, True)
    assert first.output_size == second.output_size == (5, 5)
    assert first.scale.alpha.dtype == torch.float64
    assert model(torch.randn(1, 3, 10, 10).double()).dtype == torch.float64


def test_the_report_reads_as_a_table() -> None:
    text = str(binarize(Network(), scale="channel_height_width", example=image()))
    assert "stem" in text.splitlines()[0]
    assert "first layer, stays real-valued" in text
    assert "last layer, stays real-valued" in text
    assert "method xnor++, scale channel_height_width" in text
    assert text.endswith("3 layers made binary, 2 left as they were")


def test_without_an_example_the_graph_shows_the_order_and_sizes_are_inferred_later() -> None:
    model = Network()
    report = binarize(model, scale="dense")
    assert report.left == ("stem", "head")
    assert model.body[1].output_size is None
    model(torch.randn(2, 3, 8, 8))
    assert model.body[1].output_size == (4, 4)


class Branching(Network):
    """torch.fx cannot follow it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum() > -1e9 else x


def test_a_model_that_cannot_be_traced_counts_in_the_order_it_lists_its_layers() -> None:
    assert binarize(Branching()).left == ("head", "mix")
    assert binarize(Branching(), example=image()).left == ("stem", "head")


def test_filter_and_overrides_choose_layer_by_layer() -> None:
    model = Network()
    report = binarize(
        model,
        "bnn",
        example=image(),
        filter=lambda path, layer: path != "mix",
        overrides={"body.1": Binarization(scale="dense"), "body": "real", "he*": "xnor"},
    )
    rows = {row.path: row.reason for row in report.rows}
    assert rows == {
        "stem": "first layer, stays real-valued",
        "body.1": "method xnor++, scale dense",
        "body.3": "stays real-valued on request",
        "mix": "excluded by the filter",
        "head": "method xnor, scale alpha",
    }
    assert report.changed == ("body.1", "head")
    with pytest.raises(ValueError, match=r"`overrides` \(='bodi'\) must name a convolution"):
        binarize(Network(), overrides={"bodi": "real"})
    with pytest.raises(ValueError, match=r"`method` \(='xnr'\) must be one of"):
        binarize(Network(), overrides={"body": "xnr"})


def test_the_arguments_of_0_1_0_warn_and_work() -> None:
    with pytest.warns(DeprecationWarning, match="`example=torch.zeros"):
        report = binarize(Network(), input_size=8, keep_first=False, keep_last=False, keep=["body"])
    assert report.changed == ("stem", "mix", "head")
    with pytest.warns(DeprecationWarning, match="write `example`"):
        report = binarize(Network(), method="bnn", example_input=image())
    assert report.changed == ("body.1", "body.3", "mix")


class Heads(nn.Module):
    """Two stems, two heads in a dictionary, one of them a sum of two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.body = nn.Conv2d(4, 4, 3, padding=1)
        self.skip = nn.Conv2d(4, 4, 3, padding=1)
        self.label, self.more, self.map = nn.Linear(4, 2), nn.Linear(4, 2), nn.Conv2d(4, 1, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.body(self.norm(self.left(x) + self.right(x)))
        x = x + self.skip(x)
        flat = x.mean((2, 3))
        return {"label": self.label(flat) + self.more(flat), "map": self.map(x).sigmoid()}


@pytest.mark.parametrize("example", [None, torch.zeros(1, 3, 4, 4)])
def test_all_input_and_output_layers_stay_real(example: Tensor | None) -> None:
    model = Heads()
    report = binarize(model, example=example)
    assert report.changed == ("body", "skip")
    rows = {row.path: row.reason for row in report.rows}
    assert rows["left"] == rows["right"] == "input layer, stays real-valued"
    assert rows["label"] == rows["more"] == rows["map"] == "output layer, stays real-valued"
    assert example is None or not hasattr(example, "_xnorpp_origins")


class ResidualEnd(nn.Module):
    """Every block reaches the output through the shortcuts; only the last one is the output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, float]:
        x = self.stem(x)
        x = x + self.a(x)
        return (x + self.b(x)).relu_(), 1.0


@pytest.mark.parametrize("example", [None, torch.zeros(1, 3, 4, 4)])
def test_a_residual_sum_at_the_end_keeps_its_last_layer_alone(example: Tensor | None) -> None:
    assert binarize(ResidualEnd(), example=example).changed == ("a",)


def test_sequences_become_binary_too() -> None:
    model = nn.Sequential(
        nn.Conv1d(2, 8, 3), nn.BatchNorm1d(8), nn.Conv1d(8, 8, 3, padding=1), nn.Flatten(), nn.Linear(48, 2)
    )
    report = binarize(model, scale="channel_spatial", example=torch.randn(2, 2, 8))
    assert report.changed == ("2",)
    assert isinstance(model[2], BinaryConv1d)
    assert model[2].output_size == (1, 6)
    model(torch.randn(2, 2, 8)).sum().backward()


def test_unbinarize_gives_back_torchs_layers_with_the_same_parameters() -> None:
    model, plain = Network(), Network()
    before = dict(model.named_parameters())
    binarize(model, example=image())
    trained = model.state_dict()
    report = unbinarize(model)
    assert report.changed == ("body.1", "body.3", "mix")
    assert {name: p is before[name] for name, p in model.named_parameters()} == dict.fromkeys(before, True)
    assert [type(layer) for layer in (*model.body[1::2], model.mix)] == [nn.Conv2d, nn.Conv2d, nn.Linear]
    plain.load_state_dict(model.state_dict())
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(plain.eval()(x), model.eval()(x))
    assert set(trained) > set(model.state_dict())
    with pytest.raises(ValueError, match="cannot be replaced inside itself"):
        unbinarize(BinaryLinear(2, 2))


@pytest.mark.parametrize("scale", METHOD_SCALES["xnor++"])
def test_a_real_state_dict_loads_into_a_binarized_network_and_back(scale: str) -> None:
    plain, model = Network(), Network()
    binarize(model, scale=scale, example=image())
    state = plain.state_dict()
    model.load_state_dict(state)
    torch.testing.assert_close(model.mix.scale.alpha.flatten(), 0.8 * plain.mix.weight.abs().mean(1))
    expected = 0.8 * plain.body[1].weight.abs().mean((1, 2, 3))
    torch.testing.assert_close(model.body[1].scale.tensor().mean((1, 2)), expected)
    assert list(state) == list(plain.state_dict())
    again = Network()
    again.load_state_dict(real_state_dict(model))
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(again.eval()(x), plain.eval()(x))
    with torch.no_grad():
        model.mix.scale.alpha.fill_(7.0)
    other = Network()
    binarize(other, scale=scale)  # its spatial scales take their sizes from the state
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.eval()(x), model.eval()(x))
    assert (other.mix.scale.alpha == 7.0).all()
    partial = {name: value for name, value in model.state_dict().items() if name != "mix.weight"}
    with pytest.raises(RuntimeError, match=r"mix\.weight"):
        other.load_state_dict(partial)


class OwnTransposed(nn.ConvTranspose2d):
    pass


class Odd(nn.Module):
    """Everything that cannot be converted."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 1)
        self.depthwise = nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.reflecting = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
        self.transposed = OwnTransposed(4, 4, 2)
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
    rows = {row.path: row for row in binarize(model, scale="channel_height_width", example=image()).rows}
    assert not any(row.changed for row in rows.values())
    reasons = {
        "depthwise": "depthwise",
        "reflecting": "padding_mode 'reflect'",
        "transposed": "OwnTransposed is a subclass of ConvTranspose2d",
        "twice": "several output sizes, (9, 9) and (5, 5), which scale 'channel_height_width' cannot hold",
        "unused": "not reached in the dry run",
        "binary": "already a BinaryConv2d of method xnor++",
        "attention.out_proj": "subclass of Linear",
    }
    for path, reason in reasons.items():
        assert reason in rows[path].reason
    assert binarize(Odd(), example=image()).changed == ("twice",)
    assert binarize(Odd(), overrides={"depthwise": "xnor++"}).changed == ("depthwise", "twice", "unused")


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
    report = binarize(model, example=torch.randn(2, 6))
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
    binarize(model, example=image())
    assert model.training
    assert model.body[1].training
    assert not model.body[0].training
    after = dict(model.named_buffers())
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_calls_that_make_no_sense_are_errors() -> None:
    with pytest.raises(ValueError, match="`method`"):
        binarize(Network(), method="real")
    with pytest.raises(ValueError, match="`example` instead"):
        resize_scales(nn.Sequential(nn.Linear(2, 2)), input_size=8)
    with pytest.raises(ValueError, match="`sclae` is not a setting of a binarization"):
        binarize(Network(), sclae="dense")
    lone = nn.Linear(3, 3)
    assert "cannot be replaced inside itself" in binarize(lone).rows[0].reason
    assert str(binarize(nn.ReLU())) == "0 layers made binary, 0 left as they were"


def test_scales_are_resized_for_another_image_size() -> None:
    model = Network()
    binarize(model, scale="channel_height_width", example=image())
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


class Gated(nn.Module):
    """A residual block with squeeze-excitation, a GELU, and two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.conv = nn.Conv2d(16, 16, 3, padding=1)
        self.squeeze = nn.Conv2d(16, 8, 1)
        self.excite = nn.Conv2d(8, 16, 1)
        self.classes, self.angle = nn.Linear(16, 5), nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.relu(self.conv(self.norm(self.stem(x))))
        gate = torch.relu(self.squeeze(x.mean((2, 3), keepdim=True)))
        x = torch.lgamma(x * torch.sigmoid(self.excite(gate)))
        pooled = x.mean((2, 3))
        return self.classes(pooled), self.angle(pooled)


def test_constant_inputs_and_all_heads_stay_real_and_obstacles_are_reported() -> None:
    """The squeeze sees averages of a ReLU, which are never negative: every bit would be +1."""
    model = Gated()
    report = binarize(model, example=torch.randn(4, 3, 8, 8))
    assert {row.path for row in report.rows if row.changed} == {"conv", "excite"}
    reasons = {row.path: row.reason for row in report.rows if not row.changed}
    assert "negative" in reasons["squeeze"]
    assert set(reasons) == {"stem", "squeeze", "classes", "angle"}
    assert any("torch.lgamma" in str(obstacle) for obstacle in report.obstacles)
    assert "torch.lgamma" in str(report)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_binary_encoder_layer_is_binary_in_evaluation_too(activation: str) -> None:
    """torch's fused inference would take the weights as they are and call no layer."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, activation=activation, batch_first=True, dropout=0.0)
    model = nn.Sequential(nn.Linear(8, 8), layer, nn.Linear(8, 3))
    flag = layer.activation_relu_or_gelu
    x = torch.randn(4, 5, 8)
    report = binarize(model, example=x)
    assert {"1.linear1", "1.linear2"} <= {row.path for row in report.rows if row.changed}
    trained = model.train()(x)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(x), trained)
    unbinarize(model)
    assert layer.activation_relu_or_gelu == flag


@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.spectral_norm])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_layer_whose_weight_is_computed_is_left(norm: Callable[[nn.Module], nn.Module]) -> None:
    layers = [nn.Conv2d(3, 8, 3), norm(nn.Conv2d(8, 8, 3)), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 4, 3)]
    report = binarize(nn.Sequential(*layers), example=torch.randn(2, 3, 12, 12))
    assert [row.changed for row in report.rows] == [False, False, True, False]
    assert "weight is computed" in report.rows[1].reason
    assert "makes it a parameter" in report.rows[1].reason


@pytest.mark.parametrize("norm", ["weight_norm", "spectral_norm", "orthogonal"])
def test_the_remedy_of_a_parametrization_works(norm: str) -> None:
    torch.manual_seed(0)
    made = getattr(nn.utils.parametrizations, norm)(nn.Linear(8, 8))
    model = nn.Sequential(nn.Linear(4, 8), made, nn.Linear(8, 8), nn.Linear(8, 2))
    report = binarize(model, example=torch.randn(4, 4))
    assert not report.rows[1].changed
    assert "computed by a parametrization" in report.rows[1].reason
    assert "nn.utils.parametrize.remove_parametrizations(layer, 'weight')" in report.rows[1].reason
    nn.utils.parametrize.remove_parametrizations(model[1], "weight")
    report = binarize(model, example=torch.randn(4, 4))
    assert report.rows[1].changed


def test_pruned_layers_have_a_remedy() -> None:
    pruned = prune.random_unstructured(nn.Linear(8, 8), "weight", 0.5)
    report = binarize(nn.Sequential(nn.Linear(4, 8), pruned, nn.Linear(8, 2)), example=torch.randn(4, 4))
    assert "nn.utils.prune.remove(layer, 'weight')" in report.rows[1].reason


def test_hooks_and_attributes_of_a_layer_stay() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1), nn.Flatten(), nn.Linear(128, 2))
    calls: list[str] = []
    before = net[1].register_forward_pre_hook(lambda module, args: calls.append("before"))
    net[1].register_forward_hook(lambda module, args, result: calls.append(module.role))
    net[1].role = "middle"
    binarize(net, example=(3, 4, 4))
    calls.clear()
    net(torch.zeros(1, 3, 4, 4))
    assert calls == ["before", "middle"]
    before.remove()
    unbinarize(net)
    net(torch.zeros(1, 3, 4, 4))
    assert calls == ["before", "middle", "middle"]


def test_an_example_that_the_model_does_not_run_on_is_named() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Flatten(), nn.Linear(128, 2))
    with pytest.raises(ValueError, match=r"`example` of shape \(2, 3, 5, 5\) is none that the model runs on"):
        binarize(net, example=(3, 5, 5))


def test_weights_of_several_types_leave_the_example_as_it_is() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.small = nn.Parameter(torch.randn(4, 8).half())
            self.layer = nn.Linear(6, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).relu() @ self.small.float().t()

    assert not binarize(Mixed(), example=torch.randn(2, 6)).obstacles


class OwnProduct(nn.Module):
    """A linear layer that someone wrote anew, with its weight the other way round."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs))
        self.gain = nn.Parameter(torch.ones(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight * self.gain


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, 8, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.flatten()


def test_modules_with_weights_of_their_own_are_named() -> None:
    model = nn.Sequential(
        nn.Linear(8, 8), OwnProduct(8, 8), Norm(), nn.Linear(8, 8), OwnProduct(8, 8), nn.Linear(8, 3)
    )
    model.append(nn.Embedding(4, 3))
    report = binarize(model[:-1], example=(8,))
    assert report.others == {"OwnProduct": ("1", "4")}
    assert "2 modules of class OwnProduct with a weight of their own left, the first at 1" in str(report)
    assert binarize(OwnProduct(8, 4)).others == {"OwnProduct": ("the model itself",)}
    assert "1 module of class OwnProduct with a weight of its own left" in str(binarize(OwnProduct(8, 4)))
    assert not binarize(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2))).others
