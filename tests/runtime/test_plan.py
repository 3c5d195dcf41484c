"""The fused plan gives the reference's values, read from and written to its own arena."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from random_programs import Builder, random_program

from xnorpp.runtime import plan as plans
from xnorpp.runtime.format.ops import Value
from xnorpp.runtime.format.program import INPUT, Op, Program
from xnorpp.runtime.plan import AddValue, Plan, Step, StoreBits, StoreFloat, make_plan
from xnorpp.runtime.reference import affine, apply, per_channel, run


class Arena:
    """One image's memory: what is written at an offset is all that can be read back."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.bytes = np.full(plan.arena, 0xA5, np.uint8)

    def write(self, name: str, array: np.ndarray) -> None:
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        offset = self.plan.offsets[name]
        assert raw.nbytes <= self.plan.sizes[name]
        assert offset + self.plan.sizes[name] <= self.plan.arena
        self.bytes[offset : offset + raw.nbytes] = raw

    def read(self, name: str) -> np.ndarray:
        value = self.plan.program.values[name]
        dtype = np.int8 if value.kind == "bits" else np.float32
        offset, count = self.plan.offsets[name], value.elements * np.dtype(dtype).itemsize
        return self.bytes[offset : offset + count].view(dtype).reshape(1, *value.shape).copy()


COMBINE = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}


def roomy(value: Value) -> int:
    """Bits as one byte each, so that the test's arena can hold what the reference computes with."""
    return value.elements if value.kind == "bits" else 4 * value.elements


def execute(plan: Plan, x: np.ndarray) -> np.ndarray:
    arena = Arena(plan)
    arena.write(INPUT, x)
    for step in plan.steps:
        _run_step(plan.program, step, arena)
    return arena.read(plan.program.output)


def _run_step(program: Program, step: Step, arena: Arena) -> None:
    v = arena.read(step.source)
    if step.op is not None:
        v = apply(program, step.op, v).astype(np.float32)
    assert v.shape[1:] == step.shape
    for micro in step.epilogue:
        if isinstance(micro, StoreFloat):
            arena.write(micro.value, v)
        elif isinstance(micro, StoreBits):
            u = v if micro.spatial is None else v * micro.spatial.dense()
            t, flip = per_channel(micro.threshold, v.ndim), per_channel(micro.flip, v.ndim)
            arena.write(micro.value, np.where(np.where(flip, u < t, u > t), 1, -1).astype(np.int8))
        elif isinstance(micro, AddValue | plans.MulValue):
            other = arena.read(micro.value).reshape(1, -1, *v.shape[2:])
            v = v + other if isinstance(micro, AddValue) else v * other
        elif isinstance(micro, plans.Combine):
            pixels = v.shape[2:]
            shape = {
                "each": v.shape, "pixel": (1, 1, *pixels), "channel": (1, v.shape[1], *(1 for _ in pixels)),
                "one": (1,) * v.ndim,
            }[micro.spread]  # fmt: skip
            v = COMBINE[micro.function](v, arena.read(micro.value).reshape(shape))
        elif isinstance(micro, plans.Affine):
            v = v if micro.spatial is None else v * micro.spatial.dense()
            v = affine(v, micro.mult, micro.add)
        elif isinstance(micro, plans.Relu):
            v = np.maximum(v, np.float32(0))
        elif isinstance(micro, plans.Prelu):
            v = np.where(v > 0, v, v * per_channel(micro.slope, v.ndim))
        else:
            assert isinstance(micro, plans.Hardtanh)
            v = np.clip(v, np.float32(micro.low), np.float32(micro.high))


@pytest.mark.parametrize("seed", range(150))
def test_random_programs(seed: int) -> None:
    program = random_program(seed, length=6 + seed % 25)
    plan = make_plan(program, roomy, align=1 + seed % 3)
    x = np.random.default_rng(seed).standard_normal((1, *program.input_shape)).astype(np.float32)
    with np.errstate(all="ignore"):
        assert np.array_equal(execute(plan, x), run(program, x), equal_nan=True)
    seen = {INPUT}
    for step in plan.steps:
        assert set(step.reads) <= seen  # every value comes from an earlier step
        seen.update(step.writes)
        for stored, operand in step.in_place.items():
            assert plan.offsets[stored] == plan.offsets[operand]


def test_the_samples_use_every_operation() -> None:
    from xnorpp.runtime.format.ops import operations

    used = Counter(op.op for seed in range(150) for op in random_program(seed, length=6 + seed % 25).ops)
    assert set(used) == {name for name, rule in operations().items() if rule.since == 1}


def residual_block() -> Program:
    rng = np.random.default_rng(0)
    b = Builder((64, 8, 8))
    attrs = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1, "pad_value": 0}

    def conv(value: str) -> str:
        weight = rng.integers(0, 256, (64, 3, 3, 8), dtype=np.uint8)
        return b.emit("binary_conv2d", value, attrs=attrs, tensors={"weight": weight})

    x = b.emit("relu", INPUT)
    for _ in range(2):
        bits = b.emit("sign", x, tensors={"threshold": np.ones(64, np.float32)})
        middle = b.emit("sign", conv(bits), tensors={"threshold": np.full(64, 3.5, np.float32)})
        y = b.emit("affine", conv(middle), tensors={"mult": np.ones(64, np.float32)})
        x = b.emit("add", b.emit("prelu", y, tensors={"slope": np.ones(64, np.float32)}), x)
    return b.program(x)


def test_a_residual_block_is_two_passes() -> None:
    plan = make_plan(residual_block())
    kinds = [(step.kind, [type(micro).__name__ for micro in step.epilogue]) for step in plan.steps]
    first = ("binary_conv2d", ["StoreBits"])
    last = ("binary_conv2d", ["Affine", "Prelu", "AddValue", "StoreFloat"])
    middle = (last[0], [*last[1], "StoreBits"])
    assert kinds == [("pointwise", ["Relu", "StoreFloat", "StoreBits"]), first, middle, first, last]
    stores = [micro for micro in plan.steps[1].epilogue if isinstance(micro, StoreBits)]
    assert stores[0].integer
    assert len(plan.steps[2].in_place) == len(plan.steps[4].in_place) == 1
    floats, bits = 4 * 64 * 64, 8 * 64
    assert plan.arena <= 2 * floats + 2 * bits  # the input and the sum; bits come and go


def test_a_stem_is_marked_for_its_pool() -> None:
    b = Builder((3, 16, 16))
    attrs = {"stride": [2, 2], "padding": [3, 3], "dilation": [1, 1], "groups": 1}
    y = b.emit("conv2d", INPUT, attrs=attrs, tensors={"weight": np.ones((8, 3, 7, 7), np.float32)})
    pool = {"kernel": [3, 3], "stride": [2, 2], "padding": [1, 1], "ceil_mode": False}
    z = b.emit("max_pool2d", b.emit("relu", y), attrs=pool)
    plan = make_plan(b.program(z))
    assert [step.feeds_pool for step in plan.steps] == [True, False]
    both = b.emit("add", b.emit("relu", y), b.emit("affine", y))
    assert not make_plan(b.program(both)).steps[0].feeds_pool


def test_dead_operations_and_aliases_cost_nothing() -> None:
    b = Builder((3, 4, 4))
    pooled = b.emit("global_avg_pool", INPUT)
    b.emit("relu", pooled)  # nobody reads it
    flat = b.emit("flatten", pooled)
    out = b.emit("linear", flat, tensors={"weight": np.ones((2, 3), np.float32)})
    plan = make_plan(b.program(out))
    assert [step.kind for step in plan.steps] == ["global_avg_pool", "linear"]


def test_a_value_added_to_itself() -> None:
    b = Builder((2, 3, 3))
    y = b.emit("relu", INPUT)
    program = b.program(b.emit("add", y, y))
    x = np.random.default_rng(0).standard_normal((1, 2, 3, 3)).astype(np.float32)
    assert np.array_equal(execute(make_plan(program, roomy), x), run(program, x))
    assert isinstance(program.ops[0], Op)


def lives() -> list[tuple[int, int, int, str]]:
    """Blocks (bytes, first step, last step, name) of a ResNet: every stage's values are half as large."""
    rows = []
    for stage, size in enumerate((8192, 4096, 2048, 1024)):
        rows += [
            (size, 4 * stage, 4 * stage + 3, f"sum{stage}"),
            (size // 4, 4 * stage + 3, 4 * stage + 4, f"pool{stage}"),
        ]
    return rows


def clashes(blocks: list[tuple[int, int, int, str]], offsets: list[int]) -> list[tuple[str, str]]:
    """Pairs that share memory while both are alive."""
    placed = list(zip(blocks, offsets, strict=True))
    return [
        (a[3], b[3])
        for i, (a, at) in enumerate(placed)
        for b, bt in placed[:i]
        if a[1] <= b[2] and b[1] <= a[2] and at < bt + b[0] and bt < at + a[0]
    ]


def test_values_of_threads_lie_in_the_middle_of_larger_ones() -> None:
    """The half that another thread makes begins where that thread's half always begins."""
    core = pytest.importorskip("xnorpp.runtime._core")
    blocks = lives()
    lowest, least = core.place(blocks, 64)
    offsets, total = core.place(blocks, 64, centred=True)
    assert total == least
    assert not clashes(blocks, offsets)
    middles = {name: offset + size // 2 for (size, _, _, name), offset in zip(blocks, offsets, strict=True)}
    assert len({middles[f"sum{stage}"] for stage in range(4)}) == 1
    assert len({middles[f"pool{stage}"] for stage in range(4)}) == 1
    assert offsets != lowest
    few = ["sum3", "pool3"]  # values of few rows, which threads share by channels
    offsets, total = core.place(blocks, 64, centred=True, apart=few)
    assert not clashes(blocks, offsets)
    assert least < total <= least * 6 / 5
    assert all((at >= least) == (block[3] in few) for at, block in zip(offsets, blocks, strict=True))


@pytest.mark.parametrize("seed", range(20))
def test_places_in_the_middle_never_clash_and_take_little_more(seed: int) -> None:
    core = pytest.importorskip("xnorpp.runtime._core")
    random = np.random.default_rng(seed)
    blocks = []
    for i in range(30):
        first = int(random.integers(0, 40))
        size = int(random.choice([100, 640, 6400, 64000]) * random.integers(1, 4))
        blocks.append((size, first, first + int(random.integers(0, 6)), f"v{i}"))
    least = core.place(blocks, 64)[1]
    few = [block[3] for block in blocks if random.integers(0, 4) == 0]
    offsets, total = core.place(blocks, 64, centred=True, apart=few)
    assert not clashes(blocks, offsets)
    assert total <= least * 6 / 5
    assert all(
        0 <= at <= total - block[0] and at % 64 == 0 for at, block in zip(offsets, blocks, strict=True)
    )
