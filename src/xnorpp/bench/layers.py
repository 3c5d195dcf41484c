"""`xnorpp bench --layers`: chains of eight (sign, binary 3x3 convolution, scale), ours and OpenVINO's.

The chain is the middle of a ResNet without its shortcuts. Ours is a program of the same operations;
OpenVINO's is FakeQuantize with two levels, BinaryConvolution with u1 weights, Multiply. OpenVINO folds a
scale into the next FakeQuantize's threshold and both into the convolution; whether it really ran its binary
kernel is read from the compiled graph. Both give the same numbers, which is checked before anything is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from xnorpp.bench.engine import Array, Unavailable
from xnorpp.inspect.stopwatch import SETTLE, SETTLE_ALONE, WARM, Probe, Spread, interleave
from xnorpp.runtime import load
from xnorpp.runtime.format.bits import pack_conv_weight
from xnorpp.runtime.format.program import INPUT, Op, Program

SHAPES = ((64, 56), (128, 28), (256, 14), (512, 7))
DEPTH = 8


@dataclass(frozen=True)
class Chain:
    """Random signs `(depth, o, c, 3, 3)` and scales `(depth, o)` of a chain at `channels`@`size`."""

    channels: int
    size: int
    signs: npt.NDArray[np.int8]
    scales: npt.NDArray[np.float32]

    @property
    def multiply_adds(self) -> int:
        return len(self.signs) * 9 * self.channels**2 * self.size**2

    def input(self) -> npt.NDArray[np.float32]:
        shape = (1, self.channels, self.size, self.size)
        return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


@dataclass(frozen=True)
class ChainResult:
    """One chain on all engines; `primitives` are the kernels that OpenVINO reports."""

    chain: str
    multiply_adds: int
    isa: str
    seconds: dict[str, Spread]
    primitives: tuple[str, ...]

    def rate(self, engine: str) -> float:
        """Multiply-adds per second at the median."""
        return self.multiply_adds / self.seconds[engine].median

    def speedup(self, by: str, against: str = "openvino") -> float | None:
        """Ours against another engine by "median", "quiet" or "minimum"; see `Comparison.speedup`."""
        ours, peer = (self.seconds.get(name) for name in ("xnorpp", against))
        if ours is None or peer is None or not getattr(ours, by) or not getattr(peer, by):
            return None
        return float(getattr(peer, by) / getattr(ours, by))


def make_chain(channels: int, size: int, depth: int = DEPTH, seed: int = 0) -> Chain:
    rng = np.random.default_rng(seed)
    signs = np.where(rng.integers(0, 2, (depth, channels, channels, 3, 3)) > 0, 1, -1).astype(np.int8)
    scales = rng.uniform(0.01, 0.03, (depth, channels)).astype(np.float32)
    return Chain(channels, size, signs, scales)


def chain_program(chain: Chain) -> Program:
    """The chain as our program: nothing is folded in advance."""
    attrs = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1, "pad_value": 0}
    ops: list[Op] = []
    tensors: dict[str, npt.NDArray[Any]] = {}
    value = INPUT
    for i, (signs, scale) in enumerate(zip(chain.signs, chain.scales)):
        tensors[f"weight{i}"], tensors[f"scale{i}"] = pack_conv_weight(signs), scale
        ops += [
            Op("sign", f"sign{i}", (value,), f"bits{i}"),
            Op("binary_conv2d", f"conv{i}", (f"bits{i}",), f"dot{i}", attrs, {"weight": f"weight{i}"}),
            Op("affine", f"scale{i}", (f"dot{i}",), f"out{i}", {}, {"mult": f"scale{i}"}),
        ]
        value = f"out{i}"
    return Program((chain.channels, chain.size, chain.size), tuple(ops), value, tensors)


def openvino_chain(chain: Chain, threads: int) -> tuple[Callable[[Array], Array], tuple[str, ...]]:
    """The chain compiled by OpenVINO, and the kernels of its binary convolutions."""
    from xnorpp.bench.peers import load_openvino, openvino_settings

    openvino, _ = load_openvino()
    from openvino import opset1

    x = opset1.parameter([1, chain.channels, chain.size, chain.size], np.float32)
    low = opset1.constant(np.zeros((1, 1, 1, 1), np.float32))
    high = opset1.constant(np.ones((1, 1, 1, 1), np.float32))
    zero = opset1.constant(np.zeros((1, chain.channels, 1, 1), np.float32))
    alive = []  # a constant made from a tensor only borrows its bytes
    y = x
    for signs, scale in zip(chain.signs, chain.scales):
        bits = np.packbits(signs.reshape(-1) > 0, bitorder="little")
        alive.append(bits)
        weight = openvino.op.Constant(openvino.Tensor(bits, openvino.Shape(signs.shape), openvino.Type.u1))
        # Two levels, 0 and 1, with equal input limits: x > 0 gives 1. Other levels would not become bits.
        quantised = opset1.fake_quantize(y, zero, zero, low, high, 2)
        dot = opset1.binary_convolution(
            quantised, weight, [1, 1], [1, 1], [1, 1], [1, 1], "xnor-popcount", 0.0
        )
        y = opset1.multiply(dot, opset1.constant(scale.reshape(1, -1, 1, 1)))
    compiled = openvino.Core().compile_model(
        openvino.Model([y], [x], "chain"), "CPU", openvino_settings(threads)
    )
    kinds = [node.get_rt_info() for node in compiled.get_runtime_model().get_ordered_ops()]
    primitives = tuple(
        str(kind["primitiveType"].astype(str))
        for kind in kinds
        if kind["layerType"].astype(str) == "BinaryConvolution"
    )
    request = compiled.create_infer_request()

    def call(x: Array, alive: object = alive) -> Array:
        request.infer([x], share_inputs=True)
        result: Array = request.get_output_tensor().data
        return result

    return call, primitives


def bench_layers(
    *,
    threads: int = 1,
    isa: str | None = None,
    against: bool = True,
    rounds: int = 10,
    repeat: int = 5,
    shapes: tuple[tuple[int, int], ...] = SHAPES,
    say: Callable[[str], None] = print,
) -> list[ChainResult]:
    """Time chains of eight binary layers, ours and OpenVINO's, in turns.

    Args:
        threads: Threads of both engines.
        isa: Our CPU kernels; the fastest available by default. Several names, separated by commas, are
            measured in turns as "xnorpp" (the first), "xnorpp NAME" (the others).
        against: Whether OpenVINO is measured too. If it is not installed, it is skipped with a message.
        rounds: How often the engines take turns.
        repeat: Timed calls per turn.
        shapes: (channels, size) of each chain.
        say: Receives lines of progress.

    Raises:
        RuntimeError: The engines disagree, or OpenVINO did not run its binary kernel.
    """
    results = []
    for channels, size in shapes:
        chain = make_chain(channels, size)
        names = isa.split(",") if isa else [None]
        models = [load(chain_program(chain), threads=threads, isa=name) for name in names]
        model, x = models[0], chain.input()
        calls: dict[str, Callable[[], object]] = {"xnorpp": _bind(model, x)}
        for other in models[1:]:
            if not np.array_equal(model(x), other(x)):
                raise RuntimeError(f"the chain {channels}@{size} differs between {model.isa} and {other.isa}")
            calls[f"xnorpp {other.isa}"] = _bind(other, x)
        primitives: tuple[str, ...] = ()
        if against:
            try:
                peer, primitives = openvino_chain(chain, threads)
            except Unavailable as error:
                say(f"openvino is skipped: {error}")
                against = False
            else:
                _check(channels, size, model(x), peer(x), primitives)
                calls["openvino"] = _bind(peer, x)
        settle = SETTLE_ALONE if threads == 1 else SETTLE
        seconds = interleave(calls, rounds=rounds, repeat=repeat, settle=settle, warm=WARM, probe=Probe())
        results.append(ChainResult(f"{channels}@{size}", chain.multiply_adds, model.isa, seconds, primitives))
    return results


def _bind(call: Callable[[Any], object], x: Array) -> Callable[[], object]:
    return lambda: call(x)


def _check(channels: int, size: int, ours: Array, theirs: Array, primitives: tuple[str, ...]) -> None:
    difference = float(np.abs(ours - theirs).max())
    if difference > 1e-5:
        raise RuntimeError(
            f"the chain {channels}@{size} differs by {difference:g} between xnorpp and openvino"
        )
    slow = [kind for kind in primitives if not kind.startswith("jit")]
    if slow or not primitives:
        raise RuntimeError(
            f"openvino ran {slow or 'no binary convolution'} instead of its compiled binary kernel"
        )
