"""What a file may ask for: a small file that describes something large is refused before it is allocated."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_programs import Builder, random_program

from xnorpp.runtime import Limits, Op, Program, ProgramError, load
from xnorpp.runtime.format.program import encode
from xnorpp.runtime.limits import image_work
from xnorpp.runtime.reference import byte_values, normalise

MEGABYTE = 1 << 20
WINDOW = {"stride": [1, 1], "dilation": [1, 1], "groups": 1}
ENGINES = ["reference"]
try:
    from xnorpp.runtime.cpu import available_isas

    ENGINES += available_isas()[:1]
except ImportError:
    pass


def pooled(b: Builder, value: str) -> Program:
    return b.program(b.emit("flatten", b.emit("global_avg_pool", value)))


def padded(edge: int) -> Program:
    """One pixel, padded to (edge + 1) x (edge + 1)."""
    b = Builder((1, 1, 1))
    return pooled(b, b.emit("pad2d", "input", attrs={"padding": [0, 0, 0, edge, 0, edge], "value": 0.0}))


def large_kernel(size: int, kernel: int = 1024) -> Program:
    b = Builder((1, size, size))
    attrs = {**WINDOW, "padding": [kernel // 2] * 2, "pad_value": 0}
    weight = np.ones((1, kernel, kernel, 1), np.uint8)
    bits = b.emit("sign", "input")
    y = b.emit("binary_conv2d", bits, attrs=attrs, tensors={"weight": weight})
    return pooled(b, b.emit("affine", y))


def shared_tensor(uses: int) -> Program:
    """One tensor that many operations use: an engine lays it out once for each."""
    weight = np.ones((512, 512), np.float16)
    ops = [Op("flatten", "", ("input",), "v0")]
    ops += [Op("linear", "", (f"v{i}",), f"v{i + 1}", {}, {"weight": "w"}) for i in range(uses)]
    return Program((512, 1, 1), tuple(ops), f"v{uses}", {"w": weight})


def rows_and_columns(steps: int) -> Program:
    """Factors of a few kilobytes that an engine multiplies out to one number per pixel."""
    b = Builder((16, 300, 300))
    value = "input"
    for _ in range(steps):
        ones = np.ones(300, np.float32)
        value = b.emit("relu", b.emit("affine", value, tensors={"row": ones, "col": ones}))
    return pooled(b, value)


def test_the_peak_of_many_channels_is_small() -> None:
    """0.1.0 took 3.4 GB for this program: a table of floats for every channel, as a Python list."""
    code = """
        import resource
        from xnorpp.runtime import Op, Program, load

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        load(Program((2**18, 1, 1), (Op("global_avg_pool", "a", ("input",), "a"),), "a", {}))
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60
    )
    assert int(done.stdout) < 100, done.stderr  # megabytes


@pytest.mark.parametrize("isa", ENGINES)
def test_padding_is_counted_as_the_engine_stores_it(isa: str) -> None:
    """A file of 552 bytes: 2^27 numbers are 0.5 GB, and in pixels of 16 channels 8 GB."""
    file = encode(padded(11584))
    assert len(file) < 700
    with pytest.raises(
        ProgramError, match=r"`memory_bytes` of `limits` allows 268435456; pass limits=Limits"
    ):
        load(file, isa=isa, limits=Limits(memory_bytes=256 * MEGABYTE))
    if isa != "reference":
        with pytest.raises(ProgramError, match="needs at least 8589582464 bytes of memory"):
            load(file, isa=isa)


@pytest.mark.parametrize("isa", ENGINES)
def test_a_large_kernel_is_counted_as_the_engine_computes_it(isa: str) -> None:
    """A file of 1 MB: one channel takes a word of 32 bits, and one filter a block of 32."""
    start = time.perf_counter()
    with pytest.raises(
        ProgramError, match=r"multiply-adds for one image, and `multiply_adds` of `limits` allows"
    ):
        load(encode(large_kernel(256)), isa=isa)
    assert time.perf_counter() - start < 10


@pytest.mark.parametrize("make", [shared_tensor, rows_and_columns])
def test_what_a_file_holds_once_is_counted_for_each_use(make: Any) -> None:
    limits = Limits(memory_bytes=40 * MEGABYTE)
    load(make(1), threads=1, limits=limits)
    with pytest.raises(ProgramError, match="`memory_bytes` of `limits` allows 41943040"):
        load(make(120), threads=1, limits=limits)


@pytest.mark.skipif(len(ENGINES) == 1, reason="the native core is not built")
def test_the_core_counts_its_own_layout() -> None:
    """The constants of the borders of a large kernel: 37 to 256 bytes for each byte of the file."""
    program = large_kernel(64)
    assert load(program, threads=1, isa="generic").memory > 100 * MEGABYTE
    needed = load(program, threads=1).memory
    assert needed > 32 * len(encode(program))
    with pytest.raises(ProgramError, match="`memory_bytes` of `limits` allows"):
        load(program, threads=1, limits=Limits(memory_bytes=needed // 2))
    once = Limits(memory_bytes=needed + MEGABYTE)  # the weights are written where they stay
    assert load(program, threads=1, limits=once).memory == needed


def test_real_networks_are_far_from_the_limits() -> None:
    """A convolution of ResNet-34 for 512 pixels, sixteen times over, is a hundredth of the default work."""
    b = Builder((64, 128, 128))
    weight = np.ones((64, 3, 3, 8), np.uint8)
    bits = b.emit("sign", "input")
    y = b.emit(
        "binary_conv2d", bits, attrs={**WINDOW, "padding": [1, 1], "pad_value": 0}, tensors={"weight": weight}
    )
    assert image_work(pooled(b, b.emit("affine", y))) * 16 < Limits().multiply_adds // 100


@pytest.mark.parametrize("name", ["file_bytes", "memory_bytes", "multiply_adds"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "1", None])
def test_a_limit_is_a_positive_integer(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"`{name}` \(={value!r}\) must be a positive integer"):
        Limits(**{name: value})


def test_a_file_beyond_its_limit_is_not_read(tmp_path: Path) -> None:
    blob = encode(random_program(0))
    (tmp_path / "model.xnor").write_bytes(blob)
    for source in (blob, tmp_path / "model.xnor"):
        load(source, limits=Limits(file_bytes=len(blob)))
        with pytest.raises(
            ProgramError, match=f"has {len(blob)} bytes, and `file_bytes` of `limits` allows 100"
        ):
            load(source, limits=Limits(file_bytes=100))
    with pytest.raises(ValueError, match="must be at most 4294967296"):
        Limits(file_bytes=1 << 33)


def test_a_device_without_end_is_refused() -> None:
    """0.1.0 read /dev/zero until the memory ended."""
    with pytest.raises(ProgramError, match="/dev/zero: the header length 0 is out of range"):
        load("/dev/zero")


def test_a_pipe_is_read_to_its_limit(tmp_path: Path) -> None:
    blob = encode(random_program(0))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for data, limit, reason in (
        (blob, len(blob), None),
        (blob[:8] + bytes(1 << 22), 1 << 21, "`file_bytes`"),
    ):
        (tmp_path / "data").write_bytes(data)
        command = f"cat {tmp_path / 'data'} > {pipe}"
        with subprocess.Popen(["sh", "-c", command], stderr=subprocess.DEVNULL) as writer:
            if reason is None:
                load(str(pipe), limits=Limits(file_bytes=limit))
            else:
                with pytest.raises(ProgramError, match=reason):
                    load(str(pipe), limits=Limits(file_bytes=limit))
            writer.wait(10)


@pytest.mark.parametrize("uniform", [True, False])
def test_the_table_of_bytes_is_what_the_definition_makes_of_them(uniform: bool) -> None:
    rng = np.random.default_rng(0)
    b = Builder((5, 1, 256))
    numbers = {} if uniform else {"mean": tuple(rng.random(5)), "std": tuple(rng.random(5) + 0.1)}
    program = b.program(b.emit("relu", "input"), **numbers)
    ramp = np.broadcast_to(np.arange(256, dtype=np.uint8)[None, None, :, None], (1, 1, 256, 5))
    table = byte_values(program)
    assert table.shape == (256, 1 if uniform else 5)
    expected = normalise(program, ramp)
    np.testing.assert_array_equal(np.broadcast_to(table, (256, 5)).T[:, None], expected[0])
    for isa in ENGINES[1:]:
        np.testing.assert_array_equal(
            load(program, threads=1, isa=isa)(np.ascontiguousarray(ramp)), np.maximum(expected, 0)
        )


def test_a_stem_with_a_huge_kernel_loads_at_once() -> None:
    """Rounding its filters for bytes, one input after the other, took minutes."""
    b = Builder((3, 256, 256))
    weight = np.random.default_rng(0).standard_normal((1, 3, 256, 256)).astype(np.float32)
    y = b.emit(
        "conv2d", "input", attrs={**WINDOW, "stride": [2, 2], "padding": [0, 0]}, tensors={"weight": weight}
    )
    start = time.perf_counter()
    load(pooled(b, y), threads=1)
    assert time.perf_counter() - start < 3
