"""The mean of an image and the real linear layer of plain.cu, on the CPU: the edges of their tilings, bit
for bit the CPU engine's."""

from __future__ import annotations

import ctypes
import shutil

import numpy as np
import pytest
from cuda_host import cases, machine

from xnorpp.runtime.cpu import CpuModel, available_isas
from xnorpp.runtime.cuda.build import Builder, Gpu
from xnorpp.runtime.cuda.launch import Kernel, Launch
from xnorpp.runtime.cuda.source import STAGES, PlainArguments

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> object:
    return machine.HostMachine(machine.shared_folder(tmp_path_factory))


def _launch(builder: Builder, images: int, entry: str) -> Launch:
    found = builder.schedule(images, False).launches
    return next(launch for launch in found if launch.kernel.entry == entry)


# Channels that fill no four, no byte and no unit; pixels around the 25 that are read at once; odd numbers of
# units; from the caller's image (turned) and from a stream; images around 32, inputs around 64.
@pytest.mark.parametrize(
    ("shape", "classes", "images", "first"),
    [
        ((64, 7, 7), 70, 9, "relu"), ((68, 5, 5), 64, 33, "relu"), ((70, 2, 13), 3, 32, "relu"),
        ((132, 1, 1), 65, 10, "relu"), ((20, 8, 9), 130, 9, None), ((129, 1, 1), 128, 40, None),
        ((63, 3, 1), 4, 9, None),
    ],
)  # fmt: skip
def test_mean_and_linear_are_the_cpu_engines(
    shape: tuple[int, int, int], classes: int, images: int, first: str | None, host: object
) -> None:
    w = cases.Writer(shape, seed=images)
    value = w.op(first, "input") if first else "input"
    mean = w.op("global_avg_pool", value)
    mean = w.op("affine", mean, mult=w.normal(shape[0]), add=w.normal(shape[0]))
    weight, flat = w.normal(classes, shape[0]), w.op("flatten", mean)
    program = w.program(w.op("linear", flat, weight=weight, bias=w.normal(classes)))
    builder = Builder(program, Gpu())
    entries = [launch.kernel.entry for launch in builder.schedule(images, False).launches]
    assert {"global_mean", "linear_many"} <= set(entries)
    c, height, width = shape
    pixels = w.rng.integers(0, 256, (images, height, width, c), dtype=np.uint8)
    for x in (w.normal(images, *shape), pixels):
        schedule = builder.schedule(images, x.dtype == np.uint8)
        got = host.run(builder, schedule, x)  # type: ignore[attr-defined]
        want = CpuModel(program, isa=available_isas()[0])(x)
        np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize(("c", "classes", "images", "pixels"), [(128, 100, 35, 26), (36, 66, 9, 3)])
@pytest.mark.parametrize("entry", ["global_mean", "linear_many"])
def test_halves_give_what_their_floats_give(
    entry: str, c: int, classes: int, images: int, pixels: int, host: object
) -> None:
    """The same numbers from a stream of half and of float, stored aligned and not: the same bits."""
    w = cases.Writer((c, 1, pixels), seed=c)
    mean = w.op("flatten", w.op("global_avg_pool", w.op("relu", "input")))
    builder = Builder(w.program(w.op("linear", mean, weight=w.normal(classes, c))), Gpu())
    kernel: Kernel = _launch(builder, images, entry).kernel
    blocks = _launch(builder, images, entry).grid(1)
    library = host.build([kernel])[kernel]  # type: ignore[attr-defined]
    linear = entry == "linear_many"
    area, oc = (1, classes) if linear else (pixels, c)
    filters = np.zeros((c, -(-oc // 64) * 64), np.float32)
    filters[:, :oc] = w.normal(c, oc)
    filters, bias = machine.aligned(filters), machine.aligned(w.normal(oc))
    halves = machine.aligned(w.normal(images, area, c).astype(np.float16))
    found = []
    for source, shift in ((halves, 0), (machine.aligned(halves.astype(np.float32)), 0), (halves, 1)):
        room = machine.aligned(np.full(images * oc + 2, np.nan, np.float32))
        a = PlainArguments(
            source=source.ctypes.data, half=int(source.dtype == np.float16), images=images, c=c, h=1, w=area,
            oc=oc, oh=1, ow=1, image_step=area * c, row_step=area * c, pixel_step=c, channel_step=1, stages=1,
        )  # fmt: skip
        if linear:
            a.weight, a.bias = filters.ctypes.data, bias.ctypes.data
        a.stage[0].kind, a.stage[0].out = STAGES.index("store"), room.ctypes.data + 4 * shift
        getattr(library, f"start_{entry}")(ctypes.byref(a), blocks, kernel.shared)
        found.append(room[shift : shift + images * oc].copy())
        assert np.isnan(np.delete(room, np.s_[shift : shift + images * oc])).all()
    assert not np.isnan(found[0]).any()
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)
    near = halves.astype(np.float64)
    want = near[:, 0] @ filters[:, :oc] + bias if linear else near.mean(axis=1)
    np.testing.assert_allclose(found[0].reshape(images, oc), want, atol=1e-5 * np.abs(want).max())
