"""The first layer's whole-numbered filters: what they promise, and the CPU engine computes their formula."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from random_programs import Builder

from xnorpp.runtime.cpu import CpuModel, available_isas
from xnorpp.runtime.format.program import Op, Program, ProgramError, encode, read
from xnorpp.runtime.plan import make_steps
from xnorpp.runtime.reference import multiply_add, normalise, run
from xnorpp.runtime.stem import ImageFilters, add_byte_filters, byte_step, image_filters

MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def program(kernel: int, stride: int, bias: bool, **given: object) -> Program:
    """A convolution with a factor and a shift behind it, over three channels."""
    rng = np.random.default_rng(kernel * 10 + stride)
    tensors = {
        "w": rng.normal(size=(40, 3, kernel, kernel)).astype(np.float32),
        "m": rng.normal(size=40).astype(np.float32),
        "a": rng.normal(size=40).astype(np.float32),
    }
    more = {"bias": "b"} if bias else {}
    tensors |= {"b": rng.normal(size=40).astype(np.float32)} if bias else {}
    padding = kernel // 2
    attrs = {"stride": [stride] * 2, "padding": [padding] * 2, "dilation": [1, 1], "groups": 1}
    ops = (
        Op("conv2d", "conv", ("input",), "c", attrs, {"weight": "w", **more}),
        Op("affine", "norm", ("c",), "y", {}, {"mult": "m", "add": "a"}),
    )
    mean, std = given.get("mean", MEAN), given.get("std", STD)
    version = given.get("version", 2)
    net = Program((3, 23, 30), ops, "y", tensors, tuple(mean), tuple(std), version=version)  # type: ignore[arg-type]
    return add_byte_filters(net)


def by_hand(net: Program, x: np.ndarray) -> np.ndarray:
    """The formula of stem.py: exact sums, then each step rounded to float32, batch norm's as one."""
    attrs, t = net.ops[0].attrs, net.tensors
    stride, padding = attrs["stride"][0], attrs["padding"][0]
    if net.version == 1:  # engines round by themselves
        filters = image_filters(t["w"], np.array(net.mean), np.array(net.std), stride)
    else:
        filters = ImageFilters(*(t[f"w.byte_{role}"] for role in ("weight", "mean", "rest", "scale")))
    o, _, kh, kw = filters.taps.shape
    four = np.concatenate([x, np.full((*x.shape[:3], 1), 255, np.uint8)], axis=3).astype(np.int64)
    four = np.pad(four, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    oh, ow = (four.shape[1] - kh) // stride + 1, (four.shape[2] - kw) // stride + 1
    sums = np.zeros((len(x), o, oh, ow), np.int64) + filters.rest[:, None, None]
    whole = np.concatenate([filters.taps, filters.mean[:, None]], axis=1).astype(np.int64)
    for i in range(kh):
        for j in range(kw):
            part = four[:, i : i + stride * (oh - 1) + 1 : stride, j : j + stride * (ow - 1) + 1 : stride]
            sums += np.einsum("nhwc,oc->nohw", part, whole[:, :, i, j])
    assert np.abs(sums).max() < 2**31
    y = sums.astype(np.float32) * filters.step[:, None, None]
    if "b" in t:
        y = y + t["b"][:, None, None]
    return multiply_add(y, t["m"][:, None, None], t["a"][:, None, None])


def pooled(net: Program, slope: float | None) -> Program:
    """`net` with PReLU, unless there is no slope, and the max pool of an ImageNet stem behind it."""
    act, tensors = (), dict(net.tensors)
    if slope is not None:
        act = (Op("prelu", "act", ("y",), "z", {}, {"slope": "s"}),)
        tensors["s"] = np.full(40, slope, np.float32)
    attrs = {"kernel": [3, 3], "stride": [2, 2], "padding": [1, 1], "ceil_mode": False}
    pool = Op("max_pool2d", "pool", ("z" if act else "y",), "p", attrs)
    return replace(net, ops=(*net.ops, *act, pool), output="p", tensors=tensors)


def without_room_for_eight(net: Program) -> Program:
    """`net` with a sum of eight taps that leaves 16 bits, while each sum of four fits."""
    tensors = {name: tensor.copy() for name, tensor in net.tensors.items()}
    tensors["w.byte_weight"][:] //= 4
    tensors["w.byte_mean"][:] //= 4
    tensors["w.byte_weight"][1, 2, ::2, :3:2] = 5000
    return replace(net, tensors=tensors)


def maxima(y: np.ndarray, slope: float | None) -> np.ndarray:
    """What `pooled` makes of the stem's floats."""
    if slope is not None:
        y = np.where(y > 0, y, y * np.float32(slope))
    y = np.pad(y, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(y, (3, 3), (2, 3))[:, :, ::2, ::2]
    return np.asarray(windows.max((4, 5)))


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("slope", [0.25, 0.0, 1.5, -0.5, None])
@pytest.mark.parametrize("together", [2, 4, 8])
def test_maxima_of_sums_are_maxima_of_floats(
    together: int, slope: float | None, threads: int, isa: str
) -> None:
    """Factors of both signs, and slopes with which a greater sum need not be a greater float. Filters of
    version 1 leave no room for sums of four taps, so that outputs are taken in twos, and those of earlier
    packers none for sums of eight, so that they are taken in fours."""
    net = program(7, 2, True, version=1 if together == 2 else 2)
    if together == 4:
        net = without_room_for_eight(net)
    assert (net.tensors["m"] < 0).any()
    x = np.random.default_rng(1).integers(0, 256, (2, 23, 30, 3), dtype=np.uint8)
    want = maxima(by_hand(net, x), slope)
    np.testing.assert_array_equal(CpuModel(pooled(net, slope), threads=threads, isa=isa)(x), want)


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("size", [(7, 7), (1, 9), (13, 64), (15, 33), (25, 17), (27, 16)])
def test_maxima_of_any_number_of_rows(size: tuple[int, int], isa: str) -> None:
    """Rows of the stem come in fours, the last ones in twos or alone; three threads begin anywhere."""
    for net in (program(7, 2, False), without_room_for_eight(program(7, 2, False))):
        net = replace(net, input_shape=(3, *size))
        x = np.random.default_rng(2).integers(0, 256, (1, *size, 3), dtype=np.uint8)
        want = maxima(by_hand(net, x), None)
        for threads in (1, 3):
            np.testing.assert_array_equal(CpuModel(pooled(net, None), threads=threads, isa=isa)(x), want)


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize(
    ("kernel", "stride", "bias"), [(7, 2, False), (7, 2, True), (7, 3, False), (11, 4, True), (9, 2, False)]
)
def test_the_cpu_engine_computes_the_formula(kernel: int, stride: int, bias: bool, isa: str) -> None:
    net = program(kernel, stride, bias)
    x = np.random.default_rng(0).integers(0, 256, (2, *net.input_shape[1:], 3), dtype=np.uint8)
    want = by_hand(net, x)
    np.testing.assert_array_equal(CpuModel(net, threads=2, isa=isa)(x), want)
    np.testing.assert_array_equal(run(net, x), want)  # the reference follows the file too
    np.testing.assert_array_equal(CpuModel(read(encode(net)), isa=isa)(x), want)
    old = program(kernel, stride, bias, version=1)  # its file states nothing: engines round by a rule
    assert "byte_weight" not in old.ops[0].tensors
    own = by_hand(old, x)
    np.testing.assert_array_equal(CpuModel(read(encode(old)), isa=isa)(x), own)
    assert np.array_equal(own, want) == (
        (kernel, stride) != (7, 2)
    )  # where files leave room for sums of eight taps


@pytest.mark.parametrize("kind", ["random", "smooth", "one tap"])
def test_files_leave_room_for_sums_of_eight_taps(kind: str) -> None:
    """Of up to four rows and two columns, two or four apart: no sum leaves 16 bits, and the largest nearly
    fills them."""
    net = program(7, 2, False, version=1)
    weight = net.tensors["w"]
    weight = {
        "random": weight,
        "smooth": weight * 0.1 + 1,
        "one tap": weight * (np.arange(49) == 24).reshape(7, 7),
    }[kind]
    net = add_byte_filters(replace(net, tensors={**net.tensors, "w": weight.astype(np.float32)}, version=2))
    one = net.tensors["w.byte_weight"].astype(np.int64)
    two = one[..., [0, 1, 4, 0, 1, 2], :] + one[..., [2, 3, 6, 4, 5, 6], :]
    all_of_a_parity = [one[..., first::2, :].sum(axis=2, keepdims=True) for first in (0, 1)]
    rows = np.concatenate([one, two, *all_of_a_parity], axis=2)
    sums = np.concatenate([rows, rows[..., [0, 1, 4]] + rows[..., [2, 3, 6]]], axis=3)
    most = np.abs(sums).max(axis=(1, 2, 3))
    assert most.max() <= 127 * 256 + 127
    if kind == "random":
        assert np.median(most) > 32600
    scale = net.tensors["w.byte_scale"].astype(np.float64)[:, None, None, None]
    exact = weight / (255 * STD.astype(np.float32).astype(np.float64)[:, None, None]) / scale
    assert np.abs(net.tensors["w.byte_weight"] - exact).max() <= 4


def test_filters_that_leave_no_room_for_pairs_run_all_the_same() -> None:
    """The fast kernel adds up taps two columns apart in 16 bits; other writers need not leave room for it."""
    net = program(7, 2, False)
    tensors = {name: tensor.copy() for name, tensor in net.tensors.items()}
    tensors["w.byte_weight"][:] //= 4
    tensors["w.byte_mean"][:] //= 4
    tensors["w.byte_weight"][0, 0, 0, :3] = 30000
    changed = replace(net, tensors=tensors)
    x = np.random.default_rng(0).integers(0, 256, (2, *net.input_shape[1:], 3), dtype=np.uint8)
    for isa in available_isas():
        np.testing.assert_array_equal(CpuModel(changed, isa=isa)(x), run(changed, x))


@pytest.mark.parametrize(
    ("role", "change", "reason"),
    [
        ("byte_weight", lambda t: t.astype(np.int32), "must be int16"),
        ("byte_mean", lambda t: t[:, :1], "must be int16 of shape"),
        ("byte_rest", lambda t: t.astype(np.int16), "must be int32"),
        ("byte_scale", lambda t: np.full_like(t, np.nan), "NaN"),
        ("byte_weight", lambda t: np.full_like(t, 32700), "out of range"),
        ("byte_rest", lambda t: np.full_like(t, 2**31 - 1), "out of range"),
    ],
)
def test_whole_numbers_are_checked(
    role: str, change: Callable[[np.ndarray], np.ndarray], reason: str
) -> None:
    net = program(7, 2, False)
    tensors = {**net.tensors, f"w.{role}": change(net.tensors[f"w.{role}"])}
    with pytest.raises(ProgramError, match=reason):
        replace(net, tensors=tensors)


def test_whole_numbers_need_the_input_for_themselves() -> None:
    net = program(7, 2, False)
    with pytest.raises(ProgramError, match="nothing else reads the input"):
        replace(net, ops=(*net.ops, Op("relu", "", ("input",), "other")))
    with pytest.raises(ProgramError, match="given together, in version 2"):
        replace(net, version=1, tensors=dict(net.tensors))


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize(
    ("kernel", "stride", "bias"), [(3, 1, False), (3, 2, True), (5, 2, False), (7, 1, True), (1, 1, False)]
)
def test_a_small_stem_gives_what_the_normalised_image_gives(
    kernel: int, stride: int, bias: bool, isa: str
) -> None:
    """Bit for bit; and no filter is rounded: the definition's numbers but for the order of additions."""
    net = program(kernel, stride, bias)
    x = np.random.default_rng(0).integers(0, 256, (2, *net.input_shape[1:], 3), dtype=np.uint8)
    model = CpuModel(net, threads=2, isa=isa)
    np.testing.assert_array_equal(model(x), model(normalise(net, x)))
    want = run(net, x)
    np.testing.assert_allclose(model(x), want, rtol=0, atol=2e-6 * float(np.abs(want).max()))


def smooth_images(count: int, size: int) -> np.ndarray:
    """Sums of waves: neighbouring pixels and channels alike."""
    rng = np.random.default_rng(1)
    y, x = np.mgrid[:size, :size] / size
    waves = [np.sin(2 * np.pi * (a * y + b * x + c)) for a, b, c in rng.normal(0, 3, (12, 3))]
    mix = rng.normal(size=(count, 1, 12)) + 0.3 * rng.normal(size=(count, 3, 12))
    images = 120 + 30 * np.einsum("nck,khw->nhwc", mix, np.array(waves))
    return images.clip(0, 255).round().astype(np.uint8)


def patches(x: np.ndarray, kernel: int) -> np.ndarray:
    windows = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), axis=(1, 2))
    return windows.reshape(-1, 3, kernel, kernel)


@pytest.mark.parametrize(("kernel", "part"), [(3, 0.5), (7, 0.3)])
def test_smooth_images_are_nearer_than_with_nearest_taps(kernel: int, part: float) -> None:
    weight = np.random.default_rng(2).normal(size=(16, 3, kernel, kernel))
    found = image_filters(weight, MEAN, STD, 2)
    scale = 255 * STD.astype(np.float32).astype(np.float64)[:, None, None]
    exact = weight / scale / found.step.astype(np.float64)[:, None, None, None]
    x = patches(smooth_images(2, 40), kernel) - 255 * MEAN[:, None, None]
    ours, nearest = (np.einsum("pcij,ocij->po", x, taps - exact) for taps in (found.taps, np.rint(exact)))
    assert np.sqrt((ours**2).mean()) < part * np.sqrt((nearest**2).mean())
    assert np.abs(found.taps - exact).max() <= 4


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
@pytest.mark.parametrize("kind", ["random", "one sign", "one tap", "zero"])
def test_sums_fit(kind: str, scale: float) -> None:
    """Two bytes a tap, 16 bits for sums of taps two apart, 32 bits for the whole sum."""
    weight = np.random.default_rng(3).normal(size=(8, 3, 7, 7))
    weight = {
        "random": weight, "one sign": np.ones_like(weight), "zero": 0 * weight,
        "one tap": weight * (np.arange(147).reshape(3, 7, 7) == 30),
    }[kind] * scale  # fmt: skip
    found = image_filters(weight.astype(np.float32), MEAN, STD, 2)
    taps, mean = found.taps.astype(np.int64), found.mean.astype(np.int64)
    for values in (taps, mean, taps[..., 2:] + taps[..., :-2]):
        assert np.abs(values).max() <= 127 * 256 + 127
    sums = np.abs(taps).sum(axis=(1, 2, 3)) + np.abs(mean).sum(axis=(1, 2))
    assert (255 * sums + np.abs(found.rest)).max() < 2**31
    assert np.abs(found.rest).max() <= 128
    if kind != "zero":
        assert max(np.abs(values).max() for values in (taps, mean, taps[..., 2:] + taps[..., :-2])) > 10000


def test_the_mean_is_right_at_every_border() -> None:
    """A grey image of the mean's colour is zero wherever the window lies, padding included."""
    net = program(7, 2, False, mean=(0.4, 0.4, 0.4))
    x = np.full((1, *net.input_shape[1:], 3), 102, np.uint8)  # 0.4*255
    y = CpuModel(net)(x)
    zero = net.tensors["a"][:, None, None]
    one = np.abs(CpuModel(net)(np.full_like(x, 103)) - zero).max()  # a single grey level
    assert np.abs(y - zero).max() < 0.05 * one


def test_what_takes_bytes() -> None:
    """A kernel of 7x7 or more with a stride of 2 or more, unless small ones are wanted too."""
    for kernel, stride, takes in ((7, 2, True), (11, 4, True), (7, 1, False), (5, 2, False), (3, 1, False)):
        net = program(kernel, stride, False)
        steps = make_steps(net)
        assert (byte_step(net, steps) is not None) == takes, (kernel, stride)
        assert byte_step(net, steps, small=True) is steps[0]
    far = program(7, 2, False, mean=(100.0, 0.0, 0.0))
    assert byte_step(far, make_steps(far), small=True) is None
    assert add_byte_filters(far) is far
    old = program(7, 2, False, version=1)
    assert byte_step(old, make_steps(old)) is not None


@pytest.mark.parametrize(("std", "scale"), [(1e-40, 1.0), (1e-10, 1e30), (0.5, 1e36)])
def test_filters_beyond_the_range_of_whole_numbers_are_not_rounded(std: float, scale: float) -> None:
    """Their step was infinite or zero, and what was added up from it overflowed."""
    rng = np.random.default_rng(0)
    b = Builder((3, 16, 16))
    attrs = {"stride": [2, 2], "padding": [3, 3], "dilation": [1, 1], "groups": 1}
    weight = (rng.standard_normal((4, 3, 7, 7)) * scale).astype(np.float32)
    y = b.emit("conv2d", "input", attrs=attrs, tensors={"weight": weight})
    program = b.program(b.emit("relu", y), mean=(0.5,) * 3, std=(std,) * 3, version=1)
    assert byte_step(program, make_steps(program)) is None
    assert add_byte_filters(replace(program, version=2)).ops == program.ops


def test_a_std_that_is_zero_in_float32_is_refused() -> None:
    b = Builder((3, 4, 4))
    b.emit("relu", "input")
    with pytest.raises(ProgramError, match="`std` must be positive in float32"):
        b.program("v0", mean=(0.0,) * 3, std=(1.0, 1e-46, 1.0))
    with pytest.raises(ProgramError, match="`mean` must be 3 finite numbers"):
        b.program("v0", mean=(0.0, 1e39, 0.0), std=(1.0,) * 3)
