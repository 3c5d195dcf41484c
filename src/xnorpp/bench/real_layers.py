"""`xnorpp bench --real-layers`: chains of real-valued layers, ours and OpenVINO's in float32.

A chain is eight layers (convolution, bias, ReLU) and a mean over the pixels; a stem, which stands alone in a
network, is one layer and its max pool. Both engines run the same weights, and their results are compared
before anything is timed. The stem is timed from float32 and from uint8 images; OpenVINO converts and
normalises the bytes within its graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from xnorpp.bench.engine import MEAN, STD, Array, Unavailable, random_images
from xnorpp.bench.layers import ChainResult
from xnorpp.inspect.stopwatch import SETTLE, SETTLE_ALONE, WARM, Probe, interleave
from xnorpp.runtime import load
from xnorpp.runtime.format.preprocess import normalise
from xnorpp.runtime.format.program import INPUT, Op, Program
from xnorpp.runtime.stem import add_byte_filters

F32 = npt.NDArray[np.float32]
DEPTH = 8


@dataclass(frozen=True)
class RealLayer:
    """A convolution `weight` (o, c/groups, k, k) with its bias; ReLU follows, then a max pool where asked."""

    weight: F32
    bias: F32
    stride: int = 1
    groups: int = 1
    pool: bool = False

    @property
    def padding(self) -> int:
        return int(self.weight.shape[2]) // 2


@dataclass(frozen=True)
class RealChain:
    """Layers on an input of `shape`, given as float32 or, with `from_bytes`, as a uint8 image."""

    name: str
    shape: tuple[int, int, int]
    layers: tuple[RealLayer, ...]
    from_bytes: bool = field(default=False)

    @property
    def multiply_adds(self) -> int:
        total, size = 0, self.shape[1]
        for layer in self.layers:
            size = (size - 1) // layer.stride + 1
            total += int(layer.weight.size) * size**2
        return total

    def input(self) -> Array:
        if self.from_bytes:
            return random_images(1, self.shape)
        return np.random.default_rng(1).standard_normal((1, *self.shape)).astype(np.float32)


def layer(o: int, fan: int, kernel: int, seed: int, **settings: Any) -> RealLayer:
    """A layer with random weights that leave the size of the numbers as it is."""
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((o, fan, kernel, kernel)) * (2 / (fan * kernel**2)) ** 0.5
    bias = rng.uniform(-0.1, 0.1, o)
    return RealLayer(weight.astype(np.float32), bias.astype(np.float32), **settings)


def make_chains() -> tuple[RealChain, ...]:
    """The measured chains: 1x1, 3x3, depthwise with both strides, and the stem of ImageNet networks."""
    widths = [64 if i % 2 == 0 else 128 for i in range(DEPTH + 1)]
    pointwise = [layer(widths[i + 1], widths[i], 1, i) for i in range(DEPTH)]
    dense = [layer(64, 64, 3, i) for i in range(DEPTH)]
    depthwise = [layer(256, 1, 3, i, groups=256) for i in range(DEPTH)]
    strided = [layer(64, 1, 3, i, groups=64, stride=2) for i in range(3)]
    stem = (layer(64, 3, 7, 0, stride=2, pool=True),)
    return (
        RealChain("1x1 64@28->128", (64, 28, 28), tuple(pointwise)),
        RealChain("3x3 64@28", (64, 28, 28), tuple(dense)),
        RealChain("depthwise 3x3 256@14", (256, 14, 14), tuple(depthwise)),
        RealChain("depthwise 3x3/2 64@112", (64, 112, 112), tuple(strided)),
        RealChain("stem 7x7/2 3@224, float32", (3, 224, 224), stem),
        RealChain("stem 7x7/2 3@224, uint8", (3, 224, 224), stem, from_bytes=True),
    )


def real_program(chain: RealChain) -> Program:
    """The chain as our program."""
    ops: list[Op] = []
    tensors: dict[str, npt.NDArray[Any]] = {}
    value = INPUT
    for i, one in enumerate(chain.layers):
        tensors[f"weight{i}"], tensors[f"bias{i}"] = one.weight, one.bias
        stride, padding = [one.stride] * 2, [one.padding] * 2
        attrs = {"stride": stride, "padding": padding, "dilation": [1, 1], "groups": one.groups}
        roles = {"weight": f"weight{i}", "bias": f"bias{i}"}
        ops += [
            Op("conv2d", f"conv{i}", (value,), f"sum{i}", attrs, roles),
            Op("relu", f"relu{i}", (f"sum{i}",), f"out{i}"),
        ]
        value = f"out{i}"
        if one.pool:
            window = {"kernel": [3, 3], "stride": [2, 2], "padding": [1, 1], "ceil_mode": False}
            ops.append(Op("max_pool2d", f"pool{i}", (value,), f"pooled{i}", window))
            value = f"pooled{i}"
    ops.append(Op("global_avg_pool", "mean", (value,), "mean"))
    plain = (0.0,) * chain.shape[0], (1.0,) * chain.shape[0]
    mean, std = (MEAN, STD) if chain.from_bytes else plain
    return add_byte_filters(Program(chain.shape, tuple(ops), "mean", tensors, mean=mean, std=std))


def openvino_real(chain: RealChain, threads: int) -> tuple[Callable[[Array], Array], tuple[str, ...]]:
    """The chain compiled by OpenVINO in float32, and the kernels of its convolutions."""
    from xnorpp.bench.peers import load_openvino, openvino_settings

    openvino, _ = load_openvino()
    from openvino import opset8

    x = opset8.parameter([1, *chain.shape], np.float32)
    y = x
    for one in chain.layers:
        stride, padding = [one.stride] * 2, [one.padding] * 2
        if one.groups > 1:
            shape = (one.groups, one.weight.shape[0] // one.groups, *one.weight.shape[1:])
            weight = opset8.constant(one.weight.reshape(shape))
            y = opset8.group_convolution(y, weight, stride, padding, padding, [1, 1])
        else:
            y = opset8.convolution(y, opset8.constant(one.weight), stride, padding, padding, [1, 1])
        y = opset8.relu(opset8.add(y, opset8.constant(one.bias.reshape(1, -1, 1, 1))))
        if one.pool:
            y = opset8.max_pool(y, [2, 2], [1, 1], [1, 1], [1, 1], [3, 3]).output(0)
    y = opset8.reduce_mean(y, opset8.constant(np.array([2, 3])), True)
    graph = openvino.Model([y], [x], "chain")
    if chain.from_bytes:
        steps = openvino.preprocess.PrePostProcessor(graph)
        entry = steps.input()
        entry.tensor().set_element_type(openvino.Type.u8).set_layout(openvino.Layout("NHWC"))
        entry.preprocess().convert_element_type(openvino.Type.f32)
        entry.preprocess().mean([255 * m for m in MEAN]).scale([255 * s for s in STD])
        entry.model().set_layout(openvino.Layout("NCHW"))
        graph = steps.build()
    compiled = openvino.Core().compile_model(graph, "CPU", openvino_settings(threads))
    kinds = [node.get_rt_info() for node in compiled.get_runtime_model().get_ordered_ops()]
    primitives = tuple(
        str(kind["primitiveType"].astype(str))
        for kind in kinds
        if "Convolution" in kind["layerType"].astype(str)
    )
    request = compiled.create_infer_request()

    def call(x: Array) -> Array:
        request.infer([x], share_inputs=True)
        result: Array = request.get_output_tensor().data
        return result

    return call, primitives


def bench_real_layers(
    *,
    threads: int = 1,
    isa: str | None = None,
    against: bool = True,
    rounds: int = 10,
    repeat: int = 5,
    chains: tuple[RealChain, ...] | None = None,
    say: Callable[[str], None] = print,
) -> list[ChainResult]:
    """Time chains of real-valued layers, ours and OpenVINO's, in turns.

    Args:
        threads: Threads of both engines.
        isa: Our CPU kernels; the fastest available by default.
        against: Whether OpenVINO is measured too. If it is not installed, it is skipped with a message.
        rounds: How often the engines take turns.
        repeat: Timed calls per turn.
        chains: The chains; those of `make_chains` by default.
        say: Receives lines of progress.

    Raises:
        RuntimeError: The engines disagree.
    """
    results = []
    for chain in chains or make_chains():
        model, x = load(real_program(chain), threads=threads, isa=isa), chain.input()
        calls: dict[str, Callable[[], object]] = {"xnorpp": _bind(model, x)}
        primitives: tuple[str, ...] = ()
        if against:
            try:
                peer, primitives = openvino_real(chain, threads)
            except Unavailable as error:
                say(f"openvino is skipped: {error}")
                against = False
            else:
                _check(chain, model, peer)
                calls["openvino"] = _bind(peer, x)
        settle = SETTLE_ALONE if threads == 1 else SETTLE
        seconds = interleave(calls, rounds=rounds, repeat=repeat, settle=settle, warm=WARM, probe=Probe())
        results.append(ChainResult(chain.name, chain.multiply_adds, model.isa, seconds, primitives))
    return results


def _bind(call: Callable[[Any], object], x: Array) -> Callable[[], object]:
    return lambda: call(x)


def _check(chain: RealChain, model: Callable[[Array], Array], peer: Callable[[Array], Array]) -> None:
    """Compare the engines; our whole-numbered filters of a stem differ by their rounding to 16 bits."""
    x = chain.input()
    ours, theirs = model(x), peer(x).copy()
    bound = (1e-3 if chain.from_bytes else 1e-4) * float(np.abs(theirs).max())
    difference = float(np.abs(ours - theirs).max())
    if not difference <= bound:
        raise RuntimeError(f"the chain {chain.name} differs by {difference:g} between xnorpp and openvino")
    if chain.from_bytes and not np.allclose(model(normalise(x, MEAN, STD)), ours, atol=bound):
        raise RuntimeError(f"the chain {chain.name} differs between uint8 and float32 images")
