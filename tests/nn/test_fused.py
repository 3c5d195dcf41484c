"""The fused training path against plain PyTorch in float32, on the CPU through Triton's interpreter."""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from xnorpp.models.blocks import PAPER_BLOCK, AveragePool, Options, PreActivationBlock, initialise
from xnorpp.nn import METHOD_SCALES, Binarization, BinaryConv2d, fuse_for_training

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is first imported, here or at first use
pytest.importorskip("triton")

from xnorpp.nn.fused import chain as fused_chain
from xnorpp.nn.fused import closed as fused_closed
from xnorpp.nn.fused import dispatch as fused
from xnorpp.nn.fused import ends as fused_pool
from xnorpp.nn.fused import ops as fused_ops
from xnorpp.nn.fused.dispatch import Unit

CASE4 = Binarization(scale="channel_height_width")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two parts of the images and several blocks of rows even here; the interpreter pays for each program."""
    if DEVICE == "cpu":
        monkeypatch.setattr(fused_ops, "TILE_ELEMENTS", 512)
        monkeypatch.setitem(fused_ops.SUM_BLOCKS, "BLOCK_R", 1)


class Chain(nn.Module):
    """One or two units with a shortcut, as the models build them."""

    def __init__(
        self, channels: list[int], size: int, stride: int = 1, activation: str = "prelu", **options: object
    ):
        super().__init__()
        self.before: nn.Module | None = None
        self.norms, self.convs, self.activations = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for index, (a, b) in enumerate(itertools.pairwise(channels)):
            step = stride if index == 0 else 1
            out = (size + 2 - 3) // step + 1
            self.norms.append(nn.BatchNorm2d(a))
            arguments = {"bias": False, "config": CASE4 if "method" not in options else None, **options}
            conv = BinaryConv2d(a, b, 3, step, 1, output_size=(out, out), **arguments)  # type: ignore[arg-type]
            self.convs.append(conv)
            self.activations.append(
                {"prelu": nn.PReLU(b), "one": nn.PReLU(), "relu": nn.ReLU(), "none": nn.Identity()}[
                    activation
                ]
            )
            size = out
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if "norms" in name or "scale" in name:
                    parameter.add_(0.2 * torch.randn_like(parameter))
                if "convs" in name and name.endswith("weight"):
                    parameter.mul_(8)  # so that some weights lie outside the clip of their sign's gradient

    def units(self) -> list[Unit]:
        parts = zip(self.norms, self.convs, self.activations, strict=True)
        return [Unit(*three, before=self.before) for three in parts]

    def forward(self, x: Tensor, shortcut: Tensor | None) -> Tensor:
        with fused.backend("reference"):
            return fused.chain(x, self.units(), shortcut)


def run_both(
    model: Chain, x: Tensor, shortcut: Tensor | str | None, recompute: bool
) -> tuple[dict[str, Tensor], ...]:
    """Outputs, gradients and buffers of the plain float32 version and of the fused one."""
    torch.manual_seed(5)
    weights: Tensor | None = None
    results = []
    for fuse in (False, True):
        chain = copy.deepcopy(model).to(DEVICE, memory_format=torch.channels_last)
        dtype = torch.bfloat16 if fuse else torch.float32
        start = x.to(DEVICE, dtype).requires_grad_()
        side = start if shortcut == "x" else None
        if isinstance(shortcut, Tensor):
            side = shortcut.to(DEVICE, dtype).requires_grad_()
        if fuse:
            with fused.backend("fused", recompute):
                assert fused.use_fused(start, chain.units())
                y = fused.chain(start, chain.units(), side)
        else:
            y = chain(start, side)
        if weights is None:
            weights = torch.randn_like(y)
        (y.float() * weights.to(torch.bfloat16).float()).sum().backward()
        assert start.grad is not None
        found = {"y": y.detach().float(), "x": start.grad.float()}
        if isinstance(shortcut, Tensor):
            assert side is not None
            assert side.grad is not None
            found["shortcut"] = side.grad.float()
        for name, parameter in chain.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.shape == parameter.shape
            found[name] = parameter.grad.float()
        found.update({name: value.float() for name, value in chain.named_buffers() if "progress" not in name})
        results.append(found)
    return results[0], results[1]


def error(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm().clamp_min(1e-12))


def assert_close(plain: dict[str, Tensor], quick: dict[str, Tensor]) -> None:
    assert plain.keys() == quick.keys()
    worst = {name: error(quick[name], plain[name]) for name in plain}
    # bfloat16 keeps 8 bits: 2^-9 a rounding, a few roundings a chain; buffers are computed in float32.
    bad = {name: e for name, e in worst.items() if not e < (1e-5 if "running" in name else 1.5e-2)}
    assert not bad, bad


@pytest.mark.parametrize("scale", METHOD_SCALES["xnor++"])
def test_block_equals_plain(scale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    channels = [20, 24, 20] if scale == "channel_height_width" else [20, 20]
    if len(channels) == 3 and DEVICE == "cpu":
        monkeypatch.setattr(fused_ops, "TILE_ELEMENTS", 256)  # two tiles of pixels
    model = Chain(channels, 4, scale=scale)
    x = torch.randn(10, 20, 4, 4).bfloat16().to(memory_format=torch.channels_last)
    assert_close(*run_both(model, x, "x", False))


@pytest.mark.parametrize("scale", ["dense", "channel_spatial"])
def test_recomputation_equals_plain(scale: str) -> None:
    torch.manual_seed(1)
    model = Chain([8, 12, 8], 3, scale=scale)
    assert_close(*run_both(model, torch.randn(9, 8, 3, 3).bfloat16(), "x", True))


@pytest.mark.parametrize("activation", ["one", "relu"])
def test_activations_and_stride(activation: str) -> None:
    torch.manual_seed(2)
    model = Chain([8, 16, 16], 3, stride=2, activation=activation, groups=2)
    x = torch.randn(9, 8, 3, 3).bfloat16() * 3 + 1
    assert_close(*run_both(model, x, torch.randn(9, 16, 2, 2).bfloat16(), False))


@pytest.mark.parametrize("method", ["bnn", "xnor"])
def test_other_methods_without_shortcut(method: str) -> None:
    torch.manual_seed(3)
    model = Chain([8, 12], 4, activation="none", method=method, center_weights=True)
    x = torch.randn(8, 8, 4, 4).bfloat16()
    assert_close(*run_both(model, x, None, False))


@pytest.mark.parametrize("weights", ["recu", "polynomial"])
def test_other_gradients_of_the_weight(weights: str) -> None:
    """The kernels take the signs, and autograd passes the gradient on to the weights."""
    torch.manual_seed(4)
    model = Chain([8, 12], 4, weights=weights, standardize_weights=weights == "recu")
    for conv in model.convs:
        conv.progress.fill_(0.5)
    x = torch.randn(8, 8, 4, 4).bfloat16()
    assert_close(*run_both(model, x, None, False))


@pytest.mark.parametrize(("channels", "stride", "recompute"), [([72, 20, 20], 2, False), ([8, 12], 1, True)])
def test_xnor_net_with_k(channels: list[int], stride: int, recompute: bool) -> None:
    """72 channels are two tiles, whose sums K adds up; a second unit hands K's gradient to the first."""
    torch.manual_seed(11)
    model = Chain(channels, 4, stride=stride, method="xnor", scale="alpha_k")
    x = torch.randn(9, channels[0], 4, 4).bfloat16() * 2
    size = 4 // stride
    shortcut = torch.randn(9, channels[-1], size, size).bfloat16()
    plain, quick = run_both(model, x, shortcut, recompute)
    assert_close(plain, quick)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_unit_without_batch_norm(recompute: bool) -> None:
    """The first half of a block as others write it: convolution, batch norm, ReLU, convolution."""
    torch.manual_seed(14)
    model = Chain([12, 20, 12], 4, activation="none", scale="channel")
    model.norms[0].requires_grad_(False)
    units = [
        Unit(None, model.convs[0]),
        Unit(model.norms[1], model.convs[1], model.activations[1], nn.ReLU()),
    ]
    start = (torch.randn(9, 12, 4, 4)).bfloat16()
    found = []
    for fuse in (False, True):
        copied = copy.deepcopy(units)
        for unit in copied:
            for part in unit.parts:
                part.to(DEVICE, memory_format=torch.channels_last)
        x = start.to(DEVICE, torch.bfloat16 if fuse else torch.float32).requires_grad_()
        with fused.backend("fused" if fuse else "reference", recompute):
            y = fused.chain(x, copied)
        assert (type(y.grad_fn).__name__ == "_ChainBackward") == fuse
        torch.manual_seed(6)
        (y.float() * torch.randn(y.shape).bfloat16().float().to(DEVICE)).sum().backward()
        assert x.grad is not None
        result = {"y": y.detach().float(), "x": x.grad.float()}
        for index, unit in enumerate(copied):
            for part in unit.parts:
                for name, p in part.named_parameters():
                    assert p.grad is not None
                    result[f"{index}.{type(part).__name__}.{name}"] = p.grad.float()
        found.append(result)
    assert_close(found[0], found[1])


@pytest.mark.parametrize("channels", [[8, 12], [20, 24, 20]])
def test_a_relu_between_batch_norm_and_sign(channels: list[int]) -> None:
    """As in networks of others: the sign is the same, its gradient is 0 where the ReLU's is."""
    torch.manual_seed(13)
    model = Chain(channels, 4, activation="none")
    model.before = nn.ReLU()
    assert all(unit.before is model.before for unit in model.units())
    x = torch.randn(9, channels[0], 4, 4).bfloat16()
    shortcut = torch.randn(9, channels[-1], 4, 4).bfloat16()
    assert_close(*run_both(model, x, shortcut, False))
    with_k = BinaryConv2d(4, 4, 3, bias=False, method="xnor", scale="alpha_k")
    assert "ReLU between" in (fused.why_not_unit(Unit(nn.BatchNorm2d(4), with_k, None, nn.ReLU())) or "")


class Foreign(nn.Module):
    """A post-activation block as others write it."""

    def __init__(self, inputs: int, outputs: int, stride: int, relu: bool = True, scale: str = "channel"):
        super().__init__()
        config = Binarization(scale=scale)
        self.conv1 = BinaryConv2d(inputs, outputs, 3, stride, 1, bias=False, config=config)
        self.bn1, self.relu = nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
        self.conv2 = BinaryConv2d(outputs, outputs, 3, 1, 1, bias=False, config=config)
        self.bn2, self.ends_in_relu = nn.BatchNorm2d(outputs), relu
        self.side: nn.Module = nn.Identity()
        if stride > 1:
            conv = BinaryConv2d(inputs, outputs, 1, stride, bias=False, config=config)
            self.side = nn.Sequential(conv, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += self.side(x)
        return self.relu(out) if self.ends_in_relu else out


class StemEnd(nn.Module):
    """Batch norm and ReLU of a real tensor, as before the first block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(12)

    def forward(self, x: Tensor) -> Tensor:
        return fused.chain(x, (), None, fused.End(self.norm, nn.ReLU()))


def shaken(model: nn.Module) -> nn.Module:
    """Parameters that are not at their start."""
    model(torch.randn(2, 12, 4, 4))  # sizes of scales
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() < 4:
                parameter.add_(0.3 * torch.randn_like(parameter))
            else:
                parameter.mul_(8)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.reset_running_stats()
    return model


@pytest.mark.parametrize(
    ("make", "nodes"),
    [
        (lambda: Foreign(12, 12, 1), 1),
        (lambda: Foreign(12, 20, 2), 1),
        (lambda: Foreign(12, 12, 1, relu=False, scale="channel_height_width"), 1),
        (StemEnd, 0),
    ],
)
@pytest.mark.parametrize("recompute", [False, True])
def test_a_post_activation_block_of_someone_else_is_one_node(
    make: Callable[[], nn.Module], nodes: int, recompute: bool
) -> None:
    torch.manual_seed(15)
    model = shaken(make())
    assert len(fuse_for_training(model)) == nodes

    def own(copied: Any, start: Tensor) -> Tensor:
        with fused.backend("fused", recompute):
            y: Tensor = copied(start)
        found, step = [], [y.grad_fn]
        while step:
            node: Any = step.pop()
            found.append(node)
            step += [n for n, _ in node.next_functions if n is not None and n not in found]
        kinds = [type(node).__name__ for node in set(found)]
        assert kinds.count("_ClosedBackward") == max(1, nodes)
        assert {kind for kind in kinds if "Norm" in kind or "Relu" in kind or "Conv" in kind} == set()
        return y

    compare(model, torch.randn(9, 12, 4, 4).bfloat16(), own)


def test_a_shortcut_from_elsewhere_gets_its_gradient() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = BinaryConv2d(8, 12, 3, 1, 1, bias=False), nn.BatchNorm2d(12)
            self.real = nn.Conv2d(8, 12, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.real(x) + self.norm(self.conv(x))

    torch.manual_seed(16)
    model = Two()
    (chain,) = fuse_for_training(model)
    assert chain.shortcut

    def own(copied: Any, start: Tensor) -> Tensor:
        copied.real.bfloat16()
        y: Tensor = copied(start)
        assert type(y.grad_fn).__name__ == "_ClosedBackward"
        return y

    compare(model, torch.randn(9, 8, 4, 4).bfloat16(), own)


def test_signs_are_left_for_the_next_block_and_void_after_a_change_in_place() -> None:
    torch.manual_seed(17)
    blocks = [shaken(StemEnd()), shaken(Foreign(12, 20, 2))]
    fuse_for_training(blocks[1])
    results: list[list[Tensor]] = []
    x = torch.randn(9, 12, 4, 4, device=DEVICE).bfloat16()
    for case in ("left", "taken away", "void"):
        stem, block = (copy.deepcopy(module).to(DEVICE) for module in blocks)
        start = x.clone().requires_grad_()
        with fused.backend("fused"):
            y = stem(start)
            if case == "taken away":
                assert fused_closed.take_signs_from(y) is not None
            if case == "void":
                y = y.mul_(-1.0).mul_(-1.0)
                assert fused_closed.take_signs_from(y) is None
            out = block(y)
            assert fused_closed.take_signs_from(y) is None  # read by the block, or void
        torch.manual_seed(18)
        (out.float() * torch.randn(out.shape).to(DEVICE)).sum().backward()
        assert start.grad is not None
        gradients = [p.grad for module in (stem, block) for p in module.parameters() if p.grad is not None]
        results.append([out.detach(), start.grad, *gradients])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_k_of_a_binary_shortcut() -> None:
    torch.manual_seed(12)
    options = Options(Binarization.preset("xnor", scale="alpha_k"), **PAPER_BLOCK)
    block = PreActivationBlock(options, 8, 16, 2, (4, 4))
    initialise(block)

    def own(copied: Any, start: Tensor) -> Tensor:
        assert fused.side_of(copied.downsample, start) is not None
        y: Tensor = copied(start)
        assert type(y.grad_fn).__name__ == "_ChainBackward"
        return y

    compare(block, (torch.randn(9, 8, 4, 4) + 0.5).bfloat16(), own)


def compare(
    model: nn.Module,
    x: Tensor,
    own: Callable[[Any, Tensor], Tensor],
    input_grad: bool = True,
) -> None:
    """The plain float32 run of a module against `own`, its fused run."""
    found = []
    for fuse in (False, True):
        copied = copy.deepcopy(model).to(DEVICE, memory_format=torch.channels_last)
        start = x.to(DEVICE, torch.bfloat16 if fuse else torch.float32).requires_grad_(input_grad)
        with fused.backend("fused" if fuse else "reference"):
            y = own(copied, start) if fuse else copied(start)
        torch.manual_seed(6)
        (y.float() * torch.randn(y.shape).bfloat16().float().to(DEVICE)).sum().backward()
        result = {"y": y.detach().float()}
        if start.grad is not None:
            result["x"] = start.grad.float()
        result.update({name: p.grad for name, p in copied.named_parameters() if p.grad is not None})
        result.update({name: b.float() for name, b in copied.named_buffers() if "progress" not in name})
        found.append(result)
    assert_close(*found)


def ends(activation: str, channels: int, pool: nn.Module) -> nn.Sequential:
    act = {"prelu": nn.PReLU(channels), "one": nn.PReLU(), "relu": nn.ReLU()}[activation]
    norm = nn.BatchNorm2d(channels)
    with torch.no_grad():
        norm.weight.normal_()
        norm.bias.normal_()
    return nn.Sequential(norm, act, pool)


@pytest.mark.parametrize(("activation", "size"), [("prelu", (7, 6)), ("one", (4, 5))])
def test_stem_end_equals_plain(activation: str, size: tuple[int, int]) -> None:
    torch.manual_seed(4)
    model = ends(activation, 12, nn.MaxPool2d(3, 2, 1))
    x = (torch.randn(3, 12, *size) * 2 + 1).bfloat16()

    def own(layers: Any, start: Tensor) -> Tensor:
        assert fused_pool.use_stem_end(start, *layers)
        return fused_pool.stem_end(start, *layers[:2])

    compare(model, x, own)


@pytest.mark.parametrize("activation", ["prelu", "relu"])
def test_head_equals_plain(activation: str) -> None:
    torch.manual_seed(4)
    model = ends(activation, 12, nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    x = (torch.randn(9, 12, 3, 5) * 2 + 1).bfloat16()

    def own(layers: Any, start: Tensor) -> Tensor:
        assert fused_pool.use_head(start, *layers[:2], layers[2][0])
        return fused_pool.head(start, *layers[:2])

    compare(model, x, own)


def test_stem_convolution_equals_plain() -> None:
    torch.manual_seed(5)
    conv = nn.Conv2d(3, 8, 7, 2, 3, bias=False)
    x = torch.randn(2, 3, 14, 10).bfloat16().to(memory_format=torch.channels_last)

    def own(layer: Any, start: Tensor) -> Tensor:
        assert fused_pool.use_stem_conv(start, layer)
        return fused_pool.stem_conv(start, layer)

    compare(conv, x, own, input_grad=False)
    weight = torch.randn(4, 3, 7, 7)
    there = fused_pool.squares_as_channels(weight, 16)
    assert torch.equal(fused_pool.channels_as_squares(there, 3), weight)


@pytest.mark.parametrize("stride", [1, 2])
def test_blocks_that_change_the_shape_equal_plain(stride: int) -> None:
    torch.manual_seed(7)
    block = PreActivationBlock(Options(**PAPER_BLOCK), 8, 16, stride, (4, 4))
    initialise(block)
    x = (torch.randn(9, 8, 4, 4) + 0.5).bfloat16()

    def own(copied: Any, start: Tensor) -> Tensor:
        assert fused.side_of(copied.downsample, start) is not None
        y: Tensor = copied(start)
        assert type(y.grad_fn).__name__ == "_ChainBackward"
        return y

    compare(block, x, own)


def test_block_with_a_shortcut_a_convolution() -> None:
    torch.manual_seed(9)
    block = PreActivationBlock(Options(shortcut="conv"), 8, 8, 1, (3, 3)).to(DEVICE)
    initialise(block)
    x = torch.randn(2, 8, 3, 3).bfloat16().to(DEVICE)
    units = (Unit(block.bn1, block.conv1, block.act1), Unit(block.bn2, block.conv2, block.act2))
    with fused.backend("fused"):
        middle = fused.chain(x, units[:1], x)
        assert torch.equal(block(x), fused.chain(middle, units[1:], middle))
    with fused.backend("reference"):
        assert error(middle.detach().float(), units[0](x.float()).detach() + x.float()) < 1e-2


def test_the_default_block_that_changes_the_shape_is_two_chains_beside_a_real_shortcut() -> None:
    torch.manual_seed(9)
    block = PreActivationBlock(Options(), 8, 16, 2, (4, 4)).to(DEVICE)
    initialise(block)
    block.downsample.to(torch.bfloat16)  # as autocast runs it
    x = torch.randn(2, 8, 4, 4).bfloat16().to(DEVICE)
    units = (Unit(block.bn1, block.conv1, block.act1), Unit(block.bn2, block.conv2, block.act2))
    assert fused.side_of(block.downsample, x) is None
    with fused.backend("fused"):
        shortcut = block.downsample(x)
        middle = fused.chain(x, units[:1], shortcut)
        assert torch.equal(block(x), fused.chain(middle, units[1:], middle))
    with fused.backend("reference"):
        plain = units[0](x.float()).detach() + shortcut.detach().float()
        assert error(middle.detach().float(), plain) < 1e-2


def test_moments_left_for_the_next_batch_norm() -> None:
    torch.manual_seed(8)
    model = Chain([8, 8], 4)
    x = torch.randn(9, 8, 4, 4).bfloat16().to(DEVICE)
    model.to(DEVICE)
    with fused.backend("fused"):
        y = fused.chain(x, model.units(), x)
    left = fused_chain.moments_left_on(y)
    assert left is not None
    mean, inverse_std, _ = fused_ops.statistics(left, nn.BatchNorm2d(8).to(DEVICE), None)
    values = y.detach().float()
    assert torch.allclose(mean, values.mean((0, 2, 3)), atol=1e-5)
    variance = values.var((0, 2, 3), unbiased=False)
    assert torch.allclose(inverse_std, (variance + 1e-5).rsqrt(), rtol=1e-4)
    y.detach().add_(1)  # shares y's version counter
    assert fused_chain.moments_left_on(y) is None


def test_fused_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small inputs are fused in a CUDA graph, for memory, and when asked for; large ones always."""
    units = Chain([4, 4], 3).to(DEVICE).units()
    half = torch.randn(2, 4, 3, 3, device=DEVICE).bfloat16()
    assert not fused.use_fused(half, units)
    with fused.for_graph():
        assert fused.use_fused(half, units)
    for name, recompute in (("auto", True), ("fused", False)):
        with fused.backend(name, recompute):
            assert fused.use_fused(half, units)
    assert not fused.use_fused(half, units)
    monkeypatch.setattr(fused, "LARGE_INPUT", half.numel())
    assert fused.use_fused(half, units)
    monkeypatch.setattr(fused, "LARGE_INPUT", half.numel() + 1)
    assert not fused.use_fused(half, units)


def test_hooks_and_compilation_get_the_plain_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "LARGE_INPUT", 1)
    model = Chain([4, 4], 3).to(DEVICE)
    half = torch.randn(2, 4, 3, 3, device=DEVICE).bfloat16()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        assert not fused.use_fused(half, model.units())
    assert fused.use_fused(half, model.units())
    hook = model.convs[0].register_forward_hook(lambda *_: None)
    assert not fused.use_fused(half, model.units())
    assert fused.why_not_chain(half, model.units()) == "a hook listens to the BinaryConv2d"
    hook.remove()
    assert fused.use_fused(half, model.units())


def test_what_is_not_supported_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "LARGE_INPUT", 1)
    model = Chain([4, 4], 3)
    x = torch.randn(2, 4, 3, 3, device=DEVICE)
    with fused.backend("fused"), pytest.raises(RuntimeError, match=r"working dtype is torch.float32"):
        fused.use_fused(x, model.units())
    with fused.backend("auto"):
        assert not fused.use_fused(x, model.units())
    half = x.bfloat16()
    assert fused.why_not_chain(half, model.units()) is None
    with torch.no_grad():
        assert fused.why_not_chain(half, model.units()) is not None
    with fused.backend("reference"):
        assert not fused.use_fused(half, model.units())
    assert fused.get_backend() == "auto"
    model.eval()
    assert "training mode" in (fused.why_not_chain(half, model.units()) or "")
    grouped = Chain([4, 4], 3, method="xnor", scale="alpha_k", groups=2)
    assert "without groups" in (fused.why_not_chain(half, grouped.units()) or "")
    biased = Chain([4, 4], 3, bias=True)
    assert fused.why_not_chain(half, biased.units()) == "the convolution has a bias"


def test_unknown_backend() -> None:
    with pytest.raises(ValueError, match="`name`"):
        fused.set_backend("fast")


def test_average_pooling_rounds_as_pytorch_does() -> None:
    """A gradient is a quarter to each of four pixels. (Triton's interpreter cuts bfloat16 off instead of
    rounding it: one step of its last bit.)"""
    torch.manual_seed(3)
    pool = AveragePool(2, 2)
    x = torch.randn(3, 12, 6, 10, device=DEVICE).bfloat16().to(memory_format=torch.channels_last)
    x.requires_grad_(True)
    assert fused_pool.use_halve(x, pool)
    y = pool(x)
    assert type(y.grad_fn).__name__ == "_HalveBackward"
    want = nn.functional.avg_pool2d(x, 2)
    torch.testing.assert_close(y, want, rtol=0 if DEVICE == "cuda" else 2**-7, atol=0)
    grad = torch.randn_like(y)
    y.backward(grad)
    assert x.grad is not None
    assert torch.equal(x.grad, torch.repeat_interleave(torch.repeat_interleave(grad, 2, 2), 2, 3) * 0.25)
    with torch.no_grad():
        assert torch.equal(pool(x), y)
    for other in (x.float(), x[:, :, :5], x.contiguous()):
        assert not fused_pool.use_halve(other, pool)
    with fused.backend("reference"):
        assert not fused_pool.use_halve(x, pool)
