"""Chains of moves, which the CPU engine does as one copy: every engine against numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from cuda_host.cases import Writer
from engines import engines_agree

from xnorpp.runtime.cpu import CpuModel

SHARES = {"permute": 7, "reshape": 7, "slice": 3, "flip": 1, "channel_shuffle": 1, "expand": 1}


def regrouped(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Another shape of as many numbers: some neighbours joined, some axes split."""
    sizes: list[int] = []
    for n in shape:
        if sizes and len(shape) > 2 and rng.random() < 0.4:
            sizes[-1] *= n
        else:
            sizes.append(n)
    split: list[int] = []
    for n in sizes:
        parts = [d for d in range(2, n) if n % d == 0]
        if parts and len(split) + len(sizes) < 7 and rng.random() < 0.5:
            part = int(rng.choice(parts))
            split += [part, n // part]
        else:
            split.append(n)
    return tuple(split)


def one_move(rng: np.random.Generator, x: np.ndarray) -> tuple[str, dict[str, Any], np.ndarray]:
    """An operation, its attributes and what it makes of a batch."""
    shape = x.shape[1:]
    kind = rng.choice([op for op, share in SHARES.items() for _ in range(share)])
    if kind == "reshape":
        new = regrouped(rng, shape)
        return kind, {"shape": list(new)}, x.reshape(-1, *new)
    if kind == "slice":
        start = [int(rng.integers(0, max(1, n // 3))) for n in shape]
        stop = [int(rng.integers(min(n, s + max(1, n // 2)), n + 1)) for s, n in zip(start, shape)]
        step = [int(rng.integers(1, 3)) for _ in shape]
        parts = tuple(slice(*part) for part in zip(start, stop, step))
        return kind, {"start": start, "stop": stop, "step": step}, x[(slice(None), *parts)]
    if kind == "flip":
        axis = int(rng.integers(0, len(shape)))
        return kind, {"axis": axis}, np.flip(x, axis + 1)
    groups = [d for d in range(1, shape[0] + 1) if shape[0] % d == 0]
    if kind == "channel_shuffle":
        group = int(rng.choice(groups))
        rest = shape[1:]
        turned = x.reshape(-1, group, shape[0] // group, *rest).swapaxes(1, 2)
        return kind, {"groups": group}, turned.reshape(-1, *shape)
    if kind == "expand" and 1 in shape and math.prod(shape) < 3000:
        new = tuple(3 if n == 1 else n for n in shape)
        return kind, {"shape": list(new)}, np.broadcast_to(x, (len(x), *new))
    axes = rng.permutation(len(shape)).tolist()
    return "permute", {"axes": axes}, x.transpose(0, *(axis + 1 for axis in axes))


@pytest.mark.parametrize("seed", range(40))
def test_random_chains(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.choice([1, 2, 3, 4, 6, 8, 12, 16, 24, 49], rng.integers(2, 5)))
    w = Writer(shape)
    x = rng.standard_normal((3, *shape)).astype(np.float32)
    name, value = w.op("relu", "input"), np.maximum(x, 0)
    kept: list[tuple[str, np.ndarray]] = []
    for _ in range(int(rng.integers(2, 8))):
        op, attrs, value = one_move(rng, value)
        name = w.op(op, name, attrs=attrs)
        kept.append((name, value))
    # A value in the middle of the chain is read twice, or by something that is no move.
    middle, between = kept[int(rng.integers(0, len(kept)))]
    flat, other = (int(np.prod(v.shape[1:])) for v in (value, between))
    ends = []
    for end, size in ((name, flat), (middle, other)):
        positive = w.op("prelu", end, slope=np.float32([0.5]))
        ends.append(w.op("reshape", positive, attrs={"shape": [size, 1, 1]}))
    program = w.program(w.op("relu", w.op("concat", *ends, attrs={"axis": 0})))
    want = np.concatenate([value.reshape(3, -1), between.reshape(3, -1)], 1)[:, :, None, None]
    np.testing.assert_array_equal(engines_agree(program, x), want)


def test_windows_of_an_image_and_back() -> None:
    """As in a Swin Transformer: windows become an axis of their own, and pixels again."""
    w = Writer((24, 14, 21))
    x = w.normal(2, 24, 14, 21)
    name = w.op("permute", w.op("relu", "input"), attrs={"axes": [1, 2, 0]})
    name = w.op("reshape", name, attrs={"shape": [2, 7, 3, 7, 24]})
    name = w.op("permute", name, attrs={"axes": [0, 2, 1, 3, 4]})
    name = w.op("reshape", name, attrs={"shape": [6, 49, 24]})
    windows = w.op("permute", name, attrs={"axes": [2, 0, 1]})
    twice = w.op("affine", windows, mult=np.full(24, 2, np.float32))
    name = w.op("permute", twice, attrs={"axes": [1, 2, 0]})
    name = w.op("reshape", name, attrs={"shape": [2, 3, 7, 7, 24]})
    name = w.op("permute", name, attrs={"axes": [0, 2, 1, 3, 4]})
    back = w.op("permute", w.op("reshape", name, attrs={"shape": [14, 21, 24]}), attrs={"axes": [2, 0, 1]})
    program = w.program(w.op("add", back, "input"))
    np.testing.assert_array_equal(engines_agree(program, x), np.maximum(x, 0) * 2 + x)


def test_a_chain_is_one_step() -> None:
    """The steps of all moves but the last have nothing to do."""
    w = Writer((64, 128, 128))
    first = w.op("permute", w.op("relu", "input"), attrs={"axes": [1, 2, 0]})
    second = w.op("reshape", first, attrs={"shape": [16, 8, 128, 64]})
    third = w.op("permute", second, attrs={"axes": [3, 0, 2, 1]})
    program = w.program(w.op("relu", w.op("reshape", third, attrs={"shape": [64, 16, 1024]})))
    engine = CpuModel(program, threads=1)
    seconds = dict(engine.step_seconds(w.normal(1, 64, 128, 128)))
    assert max(seconds[name] for name in (first, second, third)) < max(seconds.values()) / 10


def test_a_reshape_across_channels_and_pixels() -> None:
    """(6, 4) as (8, 3): no digit of the one divides the other."""
    w = Writer((6, 4))
    name = w.op("reshape", w.op("relu", "input"), attrs={"shape": [8, 3]})
    program = w.program(w.op("relu", w.op("permute", name, attrs={"axes": [1, 0]})))
    x = w.normal(2, 6, 4)
    want = np.maximum(x, 0).reshape(2, 8, 3).transpose(0, 2, 1)
    np.testing.assert_array_equal(engines_agree(program, x), want)
