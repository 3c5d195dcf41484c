"""The CPU engine as a whole: random programs against the definition, threads, kernels, odd inputs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import threads_agree
from random_programs import Builder, random_program

from xnorpp.runtime import load
from xnorpp.runtime.format.bits import pack_conv_weight
from xnorpp.runtime.format.program import INPUT, Program
from xnorpp.runtime.reference import normalise, run

cpu = pytest.importorskip("xnorpp.runtime.cpu", reason="THE NATIVE CORE IS NOT BUILT: not tested")

ISAS = cpu.available_isas()


def close(ours: Any, expected: Any) -> bool:
    finite = np.abs(expected[np.isfinite(expected)])
    scale = float(finite.max(initial=1.0))
    return bool(np.allclose(ours, expected, rtol=1e-3, atol=1e-4 * scale, equal_nan=True))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("block", range(4))
def test_random_programs(isa: str, block: int) -> None:
    """Every operation in random order, from floats and from bytes, for one thread and for two."""
    for seed in range(block * 20, block * 20 + 20):
        program = random_program(seed)
        rng = np.random.default_rng(seed)
        c, h, w = program.input_shape
        floats = rng.standard_normal((3, c, h, w)).astype(np.float32)
        for x in (floats, rng.integers(0, 256, (1, h, w, c), dtype=np.uint8)):
            with np.errstate(all="ignore"):
                expected = run(program, x)
            for threads in (1, 2):
                ours = load(program, threads=threads, isa=isa)(x)
                assert close(ours, expected), f"seed {seed}, {x.dtype}, {threads} threads"


def stem(classes: int = 11, size: int = 40) -> Program:
    """A 7x7 convolution, batch norm, max pool, a binary convolution with a shortcut, a classifier."""
    rng = np.random.default_rng(0)

    def real(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    window = {"dilation": [1, 1], "groups": 1}
    b = Builder((3, size, size))
    attrs = {"stride": [2, 2], "padding": [3, 3], **window}
    x = b.emit("conv2d", INPUT, attrs=attrs, tensors={"weight": real(40, 3, 7, 7)})
    x = b.emit("affine", x, tensors={"mult": real(40), "add": real(40)})
    x = b.emit("relu", x)
    pool = {"kernel": [3, 3], "stride": [2, 2], "padding": [1, 1], "ceil_mode": False}
    x = b.emit("max_pool2d", x, attrs=pool)
    bits = b.emit("sign", x, tensors={"threshold": real(40), "flip": rng.integers(0, 2, 40).astype(np.uint8)})
    weight = rng.integers(0, 256, (40, 3, 3, 5), dtype=np.uint8)
    attrs = {"stride": [1, 1], "padding": [1, 1], **window, "pad_value": 0}
    y = b.emit("binary_conv2d", bits, attrs=attrs, tensors={"weight": weight})
    side = b.values[y].shape[1]
    y = b.emit("affine", y, tensors={"mult": real(40), "add": real(40), "row": real(side), "col": real(side)})
    x = b.emit("add", b.emit("prelu", y, tensors={"slope": real(40)}), x)
    x = b.emit("flatten", b.emit("global_avg_pool", x))
    x = b.emit("linear", x, tensors={"weight": real(classes, 40), "bias": real(classes)})
    return b.program(x, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


def images(n: int, size: int = 40) -> Any:
    return np.random.default_rng(n).integers(0, 256, (n, size, size, 3), dtype=np.uint8)


@pytest.mark.parametrize("isa", ISAS)
def test_bytes_and_floats_agree(isa: str) -> None:
    """Bytes of an image for a large stem go through 16-bit weights; the same as floats through float32."""
    program, x = stem(), images(3)
    model = load(program, threads=1, isa=isa)
    expected = run(program, x)
    scale = np.abs(expected).max()
    assert np.abs(model(x) - expected).max() < 1e-4 * scale
    assert np.abs(model(normalise(program, x)) - expected).max() < 1e-4 * scale


@pytest.mark.parametrize("isa", ISAS)
def test_threads_give_the_same_numbers(isa: str) -> None:
    """Bit for bit, whoever took which piece: bytes and floats, rows and channel blocks."""
    programs = [stem(), *(random_program(seed) for seed in range(12))]
    for program in programs:
        c, h, w = program.input_shape
        rng = np.random.default_rng(c)
        floats = rng.standard_normal((3, c, h, w)).astype(np.float32)
        one = load(program, threads=1, isa=isa)
        for x in (floats, rng.integers(0, 256, (3, h, w, c), dtype=np.uint8)):
            with np.errstate(all="ignore"):
                expected = one(x)
            for threads in (2, 3, 5):
                model = load(program, threads=threads, isa=isa)
                np.testing.assert_array_equal(model(x), expected)
                for _ in range(3):
                    np.testing.assert_array_equal(model(x[:1]), expected[:1])


def test_sleeping_threads_join() -> None:
    """The threads sleep between calls far apart: the caller begins alone, and the answer is the same."""
    program, x = stem(), images(1)
    expected = load(program, threads=1)(x)
    model = load(program, threads=4)
    for pause in (0.0, 0.002, 0.0, 0.01, 0.0003) * 4:
        time.sleep(pause)
        np.testing.assert_array_equal(model(x), expected)


def test_calls_from_several_threads() -> None:
    program = stem()
    model = load(program, threads=2)
    batches = [images(n) for n in (1, 2, 3, 1, 4, 1, 2, 1)]
    expected = [model(x) for x in batches]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            for ours, wanted in zip(pool.map(model, batches), expected):
                np.testing.assert_array_equal(ours, wanted)


def test_forked_child_answers() -> None:
    """Threads do not survive a fork; the child starts its own (test_fork.py has every state)."""
    model, x = load(stem(), threads=2), images(2)
    expected = model(x)
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(model(x), expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("isa", ["reference", *ISAS])
def test_empty_batch(isa: str) -> None:
    assert load(stem(), isa=isa)(images(0)).shape == (0, 11)
    for seed in range(40):  # every operation
        program = random_program(seed)
        x = np.zeros((0, *program.input_shape), np.float32)
        assert load(program, threads=1, isa=isa)(x).shape == (0, *program.values[program.output].shape)


@pytest.mark.parametrize("isa", ISAS)
def test_nan_and_infinity(isa: str) -> None:
    """NaN passes every real operation and is -1 to sign; infinities follow IEEE arithmetic."""
    b = Builder((4, 3, 3))
    bits = b.emit("sign", INPUT, tensors={"flip": np.array([0, 1, 0, 1], np.uint8)})
    x = b.emit("hardtanh", b.emit("relu", INPUT), attrs={"min": -1.0, "max": 2.0})
    pool = {"kernel": [2, 2], "stride": [1, 1], "padding": [0, 0], "ceil_mode": False}
    x = b.emit("max_pool2d", x, attrs=pool)
    y = b.emit("max_pool2d", b.emit("signs", bits), attrs=pool)
    program = b.program(b.emit("add", x, y))
    data = np.random.default_rng(0).standard_normal((1, 4, 3, 3)).astype(np.float32)
    data[0, 0, 0, 0], data[0, 1, 2, 2], data[0, 2, 1, 1], data[0, 3, 0, 1] = np.nan, np.nan, np.inf, -np.inf
    expected = run(program, data)
    assert np.isnan(expected).any()
    np.testing.assert_array_equal(load(program, isa=isa)(data), expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("act", ["none", "relu", "hardtanh", "prelu", "falling prelu", "overflow"])
def test_signs_that_follow_from_counts(isa: str, act: str) -> None:
    """Factors of either sign and zero, thresholds that values meet exactly, borders, channel tails."""
    shapes = [(64, 64, 9, 0), (37, 70, 6, -1), (96, 33, 5, 1), (5, 32, 1, 0)]
    for seed, (c, o, size, pad_value) in enumerate(shapes):
        rng = np.random.default_rng(seed)
        b = Builder((c, size, size))
        attrs = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1, "pad_value": pad_value}
        weight = pack_conv_weight(np.where(rng.integers(0, 2, (o, c, 3, 3)) > 0, 1, -1).astype(np.int8))
        x = b.emit("binary_conv2d", b.emit("sign", INPUT), attrs=attrs, tensors={"weight": weight})
        mult = rng.choice([-1.0, -0.3, 0.0, 0.1, 0.5, 1.0], o).astype(np.float32)
        if act == "overflow":
            mult[: o // 2] = 3e38
        add = rng.integers(-3, 4, o).astype(np.float32)
        x = b.emit("affine", x, tensors={"mult": mult, "add": add})
        if act == "relu":
            x = b.emit("relu", x)
        elif act == "hardtanh":
            x = b.emit("hardtanh", x, attrs={"min": -2.0, "max": 2.0})
        elif "prelu" in act:
            low = -0.5 if act == "falling prelu" else 0.0
            x = b.emit("prelu", x, tensors={"slope": rng.uniform(low, 1, o).astype(np.float32)})
        flip = rng.integers(0, 2, o).astype(np.uint8)
        threshold = rng.integers(-4, 5, o).astype(np.float32)
        threshold[:2] = np.inf, -np.inf
        bits = b.emit("sign", x, tensors={"threshold": threshold, "flip": flip})
        program = b.program(b.emit("relu", b.emit("signs", bits)))
        data = rng.standard_normal((2, c, size, size)).astype(np.float32)
        data[1] = 1.0  # counts far from the middle
        with np.errstate(all="ignore"):
            expected = run(program, data)
        assert 0.1 < expected.mean() < 0.9
        for threads in (1, 2):
            np.testing.assert_array_equal(load(program, threads=threads, isa=isa)(data), expected)


def test_too_many_threads_are_refused_before_any_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_core", None)  # whatever reaches the core fails otherwise
    for make in (load, cpu.CpuModel):
        for threads in (1025, 1_000_000, 0):
            with pytest.raises(ValueError, match=rf"`threads` \(={threads}\) must be .* from 1 to 1024"):
                make(stem(), threads=threads)


def test_the_reference_knows_its_memory() -> None:
    program = stem()
    assert load(program, isa="reference").memory == sum(t.nbytes for t in program.tensors.values()) > 0


def test_unknown_and_missing_kernels() -> None:
    with pytest.raises(ValueError, match=r"`isa` \(='sse9'\) is unknown; known are .*, reference$"):
        load(stem(), isa="sse9")
    for name, built, detected in cpu.isa_table():
        if not (built and detected):
            with pytest.raises(
                ValueError, match=rf"`isa` \(='{name}'\) is not .*; available are .*, reference$"
            ):
                load(stem(), isa=name)


def test_environment_forces_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ISAS:
        monkeypatch.setenv("XNORPP_ISA", name)
        assert load(stem()).isa == name
    monkeypatch.setenv("XNORPP_ISA", "nonsense")
    with pytest.raises(ValueError, match="nonsense"):
        load(stem())


def test_step_seconds_names_every_step() -> None:
    model = load(stem(), threads=1)
    rows = model.engine.step_seconds(images(1), repeats=2)
    assert len(rows) == 5
    assert all(seconds >= 0 for _, seconds in rows)
    assert model.memory > 0
    together = load(stem(), threads=2).engine._engine.step_seconds(images(1), together=True)
    assert len(together) == 5
    assert all(seconds >= 0 for seconds in together)


def test_without_the_core_one_sentence_tells_how_to_build_it() -> None:
    """Importing works; reading a file, which the core does, is an ImportError."""
    golden = Path(__file__).parents[1] / "golden" / "v1.xnor"
    code = (
        "import sys; sys.modules['xnorpp.runtime._core'] = None\n"
        "from xnorpp.runtime import Program, load\n"
        "try:\n"
        f"    load({str(golden)!r}, isa='reference')\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ)
    assert done.stdout.startswith("the native core of xnorpp"), done.stderr
    assert "pip install ." in done.stdout
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize("isa", ["reference", *ISAS])
@pytest.mark.parametrize("staged", [False, True])
def test_an_affine_multiplies_and_adds_with_one_rounding(isa: str, staged: bool) -> None:
    """(1 + 2^-12)^2 - 1 is 2^-11 + 2^-24; were the product rounded, the last bit would be gone.

    `staged`: behind a product of values, which no fused line has.
    """
    one = np.full(40, 1 + 2.0**-12, np.float32)
    b = Builder((40, 3, 5))
    source = b.emit("mul", INPUT, b.emit("abs_mean", INPUT)) if staged else INPUT
    y = b.emit("affine", source, tensors={"mult": one, "add": np.full(40, -1, np.float32)})
    x = np.ones((1, 40, 3, 5), np.float32)
    x[:, 0], x[:, 1] = 1 + 2.0**-12, 1 - 2.0**-12  # the mean of the sizes is 1
    got = load(b.program(b.emit("flatten", y)), threads=1, isa=isa)(x).reshape(40, 3, 5)
    np.testing.assert_array_equal(got[0], np.float32(2.0**-11 + 2.0**-24))


@pytest.mark.parametrize("isa", ["reference", *ISAS])
@pytest.mark.parametrize("sign", [-1, 1])
def test_an_affine_is_not_rounded_to_float64_first(isa: str, sign: int) -> None:
    """2^30 + 128 + 64*(1 - 2^-30) is nearer to the float below it, by too little for a float64 to show."""
    big, low, high = sign * (2.0**30 + 128), 1 - 2.0**-15, 64 + 2.0**-9
    numbers = np.array([high, -high, 0, 2.0**-149, np.inf, -np.inf, np.nan], np.float32)
    b = Builder((7, 1, 1))
    tensors = {"mult": np.full(7, sign * low, np.float32), "add": np.full(7, big, np.float32)}
    program = b.program(b.emit("flatten", b.emit("affine", INPUT, tensors=tensors)))
    got = load(program, threads=1, isa=isa)(numbers.reshape(1, 7, 1, 1))
    want = [big, big, big, big, sign * np.inf, -sign * np.inf, np.nan]
    np.testing.assert_array_equal(got[0], np.array(want, np.float32))


@pytest.mark.parametrize("isa", ISAS)
def test_the_input_scale_of_xnor_net_is_the_same_number_everywhere(isa: str) -> None:
    """K is summed in float64 and rounded once, so that no order of summation shows."""
    rng = np.random.default_rng(3)
    for channels, kernel in ((3, 3), (64, 3), (77, 1), (256, 5)):
        b = Builder((channels, 9, 11))
        window = {"kernel": [kernel] * 2, "stride": [2, 1], "padding": [kernel // 2] * 2, "dilation": [1, 1]}
        program = b.program(b.emit("flatten", b.emit("box_filter", b.emit("abs_mean", INPUT), attrs=window)))
        sizes = 10.0 ** rng.integers(-3, 3, (1, channels, 1, 1))
        x = (rng.standard_normal((2, channels, 9, 11)) * sizes).astype(np.float32)
        np.testing.assert_array_equal(load(program, threads=1, isa=isa)(x), run(program, x))


@pytest.mark.parametrize("isa", ISAS)
def test_threads_share_a_stem_and_its_pool(isa: str) -> None:
    """Rows are made in twos and fours: who begins at an odd one, or takes a single one, makes the same."""
    for size in (112, 118):
        threads_agree(stem(size=size), images(1, size), isa, calls=5)


@pytest.mark.parametrize("isa", ISAS)
def test_threads_share_the_channels_of_a_mean(isa: str) -> None:
    for channels in (64, 192, 200):
        b = Builder((channels, 40, 37))
        program = b.program(b.emit("global_avg_pool", b.emit("relu", INPUT)))
        x = np.random.default_rng(channels).standard_normal((1, *program.input_shape)).astype(np.float32)
        assert close(threads_agree(program, x, isa, calls=3), run(program, x))


@pytest.mark.parametrize("isa", ISAS)
def test_real_layers_of_1x1_have_tiles_of_any_size(isa: str) -> None:
    """Whole numbers, so that the order of additions does not matter and every bit must be the reference's."""
    rng = np.random.default_rng(0)
    weight = rng.integers(-9, 10, (40, 32, 1, 1)).astype(np.float32)
    bias = rng.integers(-9, 10, 40).astype(np.float32)
    attrs = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1}
    for height, width in [*((1, n) for n in range(1, 31)), (5, 3), (7, 7), (3, 17)]:
        b = Builder((32, height, width))
        program = b.program(
            b.emit("conv2d", b.emit("relu", INPUT), attrs=attrs, tensors={"weight": weight, "bias": bias})
        )
        x = rng.integers(-9, 10, (1, 32, height, width)).astype(np.float32)
        want = run(program, x)
        for threads in (1, 3):
            np.testing.assert_array_equal(
                load(program, threads=threads, isa=isa)(x), want, err_msg=f"{width}"
            )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("line", ["usual", "shifted", "shifted, by pixels", "bounded", "clipped"])
def test_the_usual_lines_of_a_residual_block(isa: str, stride: int, line: str) -> None:
    """Factors of pixels and channels, PReLU, shortcut, floats and bits, for rows of any width: bit for bit,
    with NaN, infinity and both zeros in the shortcut. `shifted`: the PReLU comes last, between two shifts, as
    in ReActNet; `bounded`: a ReLU comes last, as in torchvision; `clipped`: bounds before and after, no batch
    norm, and signs with factors of their own."""
    rng = np.random.default_rng(stride)

    def real(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    attrs = {"stride": [stride] * 2, "padding": [1, 1], "dilation": [1, 1], "groups": 1, "pad_value": 0}
    same = {**attrs, "stride": [1, 1]}
    pool = {"kernel": [3, 3], "stride": [2, 2], "padding": [1, 1], "ceil_mode": False}
    weights = [pack_conv_weight(rng.standard_normal((64, 64, 3, 3))) for _ in range(2)]
    for width in range(1, 27):
        b = Builder((64, 3, width))
        bits = b.emit("sign", INPUT, tensors={"threshold": real(64)})
        shortcut = b.emit("max_pool2d", INPUT, attrs=pool) if stride > 1 else INPUT
        value = b.emit("binary_conv2d", bits, attrs=attrs, tensors={"weight": weights[0]})
        _, rows, columns = b.values[value].shape
        factors = {"mult": real(64), "add": real(64)}
        if line in ("usual", "shifted, by pixels"):
            factors |= {"row": real(rows), "col": real(columns)}
        spatial = {}
        bounds = {"min": -6.0, "max": 7.0}
        if line == "clipped":
            spatial = {"row": real(rows), "col": real(columns)}
            value = b.emit("affine", value, tensors={"row": real(rows), "col": real(columns)})
            value = b.emit("add", b.emit("hardtanh", value, attrs=bounds), shortcut)
            value = b.emit("hardtanh", value, attrs=bounds)
        else:
            value = b.emit("affine", value, tensors=factors)
        if line == "usual":
            value = b.emit("add", b.emit("prelu", value, tensors={"slope": real(64)}), shortcut)
        elif line == "bounded":
            value = b.emit("relu", b.emit("add", value, shortcut))
        elif line != "clipped":
            value = b.emit("affine", b.emit("add", value, shortcut), tensors={"add": real(64)})
            value = b.emit("prelu", value, tensors={"slope": real(64)})
            value = b.emit("affine", value, tensors={"mult": real(64), "add": real(64)})
        flip = rng.integers(0, 2, 64).astype(np.uint8)
        bits = b.emit("sign", value, tensors={"threshold": real(64), "flip": flip, **spatial})
        dot = b.emit("binary_conv2d", bits, attrs=same, tensors={"weight": weights[1]})
        value = b.emit("add", b.emit("affine", dot, tensors={"mult": real(64)}), value)
        if line != "usual":  # the last block, which has no bits
            value = b.emit(
                "prelu", b.emit("affine", value, tensors={"add": real(64)}), tensors={"slope": real(64)}
            )
            value = b.emit("affine", value, tensors={"add": real(64)})
        program = b.program(value)
        x = real(2, 64, 3, width)
        x.flat[rng.integers(0, x.size, 6)] = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e38]
        with np.errstate(all="ignore"):
            want = run(program, x)
        np.testing.assert_array_equal(load(program, isa=isa)(x), want, err_msg=f"width {width}")
