"""The tiled convolution of real numbers on the CPU: bit for bit the CPU engine's and plain.cu's."""

from __future__ import annotations

import ctypes
import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cuda_host import cases, machine

from xnorpp.runtime.cpu import CpuModel, available_isas
from xnorpp.runtime.cuda import real as cuda_real
from xnorpp.runtime.cuda.build import Builder, Gpu
from xnorpp.runtime.format.program import Program
from xnorpp.runtime.reference import normalise

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
BUSY = Gpu(processors=1, tensor_cores=False)  # every launch fills it


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> object:
    return machine.HostMachine(machine.shared_folder(tmp_path_factory))


def tiled(builder: Builder, images: int, from_bytes: bool = False) -> int:
    """How many launches of a schedule are tiled."""
    launches = builder.schedule(images, from_bytes).launches
    return sum(launch.kernel.entry == cuda_real.ENTRY for launch in launches)


def agree(host: Any, program: Program, x: np.ndarray, count: int) -> None:
    """`count` layers run in tiles and give what one thread an output gives, and what the CPU engine gives."""
    builder, plain = (Builder(program, BUSY) for _ in range(2))
    plain.picks = {(step.index, len(x)): 1 for step in plain.steps}
    from_bytes = x.dtype == np.uint8
    assert tiled(builder, len(x), from_bytes) == count
    assert tiled(plain, len(x), from_bytes) == 0
    got, want = (
        host.run(one, one.schedule(len(x), from_bytes), x).view(np.uint32) for one in (builder, plain)
    )
    np.testing.assert_array_equal(got, want)
    cpu = CpuModel(program, isa=available_isas()[0])(x)
    np.testing.assert_array_equal(got, cpu.view(np.uint32))


# Of bytes the first and the third take the bytes themselves (image_conv).
@pytest.mark.parametrize(
    ("name", "source"),
    [
        (name, source)
        for name in cases.REAL_LAYERS
        for source in ("floats", "stream", "bytes")
        if source != "bytes" or name not in ("7x7 / 2", "11x11 / 4")
    ],
)
def test_tiles_give_what_one_thread_an_output_gives(name: str, source: str, host: object) -> None:
    program, images = cases.real_layer(name, stream=source == "stream"), cases.REAL_LAYERS[name][-1]
    c, h, width = program.input_shape
    rng = np.random.default_rng(images)
    x = rng.normal(size=(images, c, h, width)).astype(np.float32)
    if source == "bytes":
        x = rng.integers(0, 256, (images, h, width, c), dtype=np.uint8)
    agree(host, program, x, 1)


def test_every_stage_and_a_sign_behind_a_tile(host: object) -> None:
    """A residual sum, factors a pixel and an output, two signs, a stored value that is read again."""
    w = cases.Writer((9, 12, 11), seed=4)
    a = w.op("conv2d", "input", attrs=cases.window(1, 1), weight=w.normal(40, 9, 3, 3))
    a = w.op("affine", a, map=w.normal(12, 11), mult=w.normal(40))
    b = w.op("conv2d", a, attrs=cases.window(1, 1), weight=w.normal(40, 40, 3, 3), bias=w.normal(40))
    b = w.op("affine", b, full=w.normal(40, 12, 11), mult=w.normal(40) / 9, add=w.normal(40))
    b = w.op("add", w.op("hardtanh", b, attrs={"min": -2.0, "max": 1.5}), a)
    c = w.op("add", w.op("signs", w.bits(b, 40)), b)
    c = w.op("conv2d", w.op("mul", c, a), attrs=cases.window(2), weight=w.normal(24, 40, 1, 1))
    program = w.program(w.op("relu", c))
    agree(host, program, w.normal(3, 9, 12, 11), 3)


def test_halves_give_what_their_floats_give(host: Any) -> None:
    """A stream of half as the source: the same sums, stored as float and as half, aligned and not."""
    w = cases.Writer((32, 5, 9), seed=2)
    conv = w.op("conv2d", w.op("relu", "input"), attrs=cases.window(2, 1), weight=w.normal(72, 32, 3, 3))
    builder = Builder(w.program(w.op("affine", conv)), BUSY)
    launch = builder.schedule(4, False).launches[-1]
    source = machine.aligned(w.normal(4, 5, 9, 32).astype(np.float16))
    weight = machine.aligned(next(array for key, array in builder.constants.items() if key.endswith("plain")))
    found = []
    for half in (1, 0):
        given = source if half else machine.aligned(source.astype(np.float32))
        macros = tuple((key, half if key == "SOURCE" else value) for key, value in launch.kernel.macros)
        kernel = replace(launch.kernel, macros=macros)
        library = host.build([kernel])[kernel]
        for narrow, shift in ((0, 0), (0, 1), (1, 0), (1, 1)):
            room = machine.aligned(np.full(4 * 3 * 5 * 72 + 8, np.nan, np.float16 if narrow else np.float32))
            a = launch.structure(source=given.ctypes.data, weight=weight.ctypes.data, images=4, stages=1)
            a.stage[0].half, a.stage[0].out = narrow, room.ctypes.data + shift * room.itemsize
            library.start_real_conv_tiled(ctypes.byref(a), launch.grid(1), kernel.shared)
            inside = np.s_[shift : shift + 4 * 3 * 5 * 72]
            assert np.isnan(np.delete(room, inside)).all()
            found.append(room[inside].astype(np.float16))
    assert not np.isnan(found[0]).any()
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


@pytest.mark.parametrize(
    ("name", "method", "scale", "options"),
    [
        ("resnet18", "xnor++", "channel_height_width", {"size": 64, "stem": "7x7", "downsample": "real"}),
        ("small", "binaryconnect", None, {}),
    ],
)
def test_whole_networks_from_floats(
    name: str, method: str, scale: str | None, options: dict[str, Any], host: object
) -> None:
    program = cases.network(name, method, scale, **options)
    c, h, width = program.input_shape
    x = np.random.default_rng(0).integers(0, 256, (9, h, width, c), dtype=np.uint8)
    count = tiled(Builder(program, BUSY), 9)
    assert count >= 4
    agree(host, program, normalise(program, x), count)


def test_grouped_and_tiny_layers_and_few_pixels_stay_plain() -> None:
    def entries(gpu: Gpu, channels: int, kernel: int, groups: int = 1, images: int = 1) -> int:
        w = cases.Writer((channels, 16, 16))
        weight = w.normal(64, channels // groups, kernel, kernel)
        value = w.op("conv2d", "input", attrs=cases.window(1, kernel // 2, groups=groups), weight=weight)
        return tiled(Builder(w.program(w.op("relu", value)), gpu), images)

    assert entries(BUSY, 3, 3) == entries(BUSY, 64, 1) == 1
    assert entries(BUSY, 4, 3, groups=2) == 0
    assert entries(BUSY, 1, 3) == entries(BUSY, 53, 1) == 0  # pieces of three and of one
    assert entries(Gpu(), 3, 3) == 0
    assert entries(Gpu(), 3, 3, images=33) == 1  # 66 blocks for 132 multiprocessors
    assert entries(Gpu(processors=1, shared_limit=49152), 16, 3) == 0
