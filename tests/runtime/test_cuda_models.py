"""Whole programs through the CUDA engine on the CPU: plan, fusion, memory, arguments and kernels, all but
the GPU."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cuda_host import cases, machine, units

from xnorpp.models import list_models
from xnorpp.runtime.cpu import CpuModel, available_isas
from xnorpp.runtime.cuda.build import Builder, Gpu, Schedule
from xnorpp.runtime.cuda.source import kernel_source
from xnorpp.runtime.format.program import Program
from xnorpp.runtime.reference import normalise, run

FUSING = available_isas()[0]  # real-valued layers are equal where a multiply and an add are fused
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> object:
    return machine.HostMachine(machine.shared_folder(tmp_path_factory))


def images(program: Program, count: int) -> np.ndarray:
    c, h, w = program.input_shape
    return np.random.default_rng(0).integers(0, 256, (count, h, w, c), dtype=np.uint8)


def check(
    host: object,
    program: Program,
    x: np.ndarray,
    gpu: Gpu,
    resident: int = 1 << 25,
    beside_cpu: float | None = None,
) -> Schedule:
    """The outputs are the reference's within float rounding: one wrong bit would be seen; or the CPU engine's
    within `beside_cpu` of the largest."""
    builder = Builder(program, gpu, resident)
    schedule = builder.schedule(len(x), x.dtype == np.uint8)
    got = host.run(builder, schedule, x)  # type: ignore[attr-defined]
    if beside_cpu is not None:
        want = CpuModel(program, isa=FUSING)(x)
        assert np.abs(got - want).max() <= beside_cpu * np.abs(want).max()
        return schedule
    want = run(program, x)
    assert not np.isnan(got).any()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * float(np.abs(want).max()))
    return schedule


def _networks() -> list[tuple[str, str, str | None]]:
    """All methods on the small networks; the deep ones where a method has operations of its own (the rest
    needs a GPU's speed: tests/gpu)."""
    deep = {"resnet18": ("xnor", "xnor++"), "resnet34": (), "alexnet": ("xnor++",), "reactnet-a": ("xnor++",)}
    chosen = ("channel_height_width", "alpha_k")
    return [
        (name, method, scale)
        for name in list_models()
        for method, scale in cases.METHOD_SCALES
        if name not in deep or (method in deep[name] and scale in chosen)
    ]


@pytest.mark.parametrize(("name", "method", "scale"), _networks())
def test_every_network_without_tensor_cores(name: str, method: str, scale: str | None, host: object) -> None:
    program = cases.network(name, method, scale)
    deep = name in ("resnet18", "resnet34", "alexnet")
    x = images(program, 1 if deep else 3)
    # Without signs in between the rounding of the first filters grows from layer to layer: floats there.
    given = normalise(program, x) if method in ("bnn", "binaryconnect") else x
    schedule = check(host, program, given, Gpu(tensor_cores=False))
    assert {unit.kind for unit in schedule.units} == {"plain"}


@pytest.mark.parametrize("count", [1, 3, 40])
def test_every_operation(count: int, host: object) -> None:
    program = cases.zoo()
    check(host, program, images(program, count), Gpu(tensor_cores=False), resident=1 << 16)
    check(host, program, normalise(program, images(program, count)), Gpu(tensor_cores=False))


def test_odd_shapes_on_the_tensor_cores(host: object) -> None:
    program = cases.fast_shapes()
    schedule = check(host, program, normalise(program, images(program, 3)), Gpu(), resident=1 << 17)
    assert sum(unit.kind == "conv" for unit in schedule.units) == 5


def test_a_small_network_on_the_tensor_cores(host: object) -> None:
    program = cases.network("small", "xnor", "alpha_k")
    schedule = check(host, program, images(program, 2), Gpu())
    assert sum(unit.kind == "conv" for unit in schedule.units) >= 6


def test_a_resnet_in_pieces(host: object) -> None:
    """Stem, shortcuts and means fused, the batch in pieces that grow from stage to stage: the CPU engine's
    outputs, as without tensor cores."""
    program = cases.tamed_stem(
        cases.network("resnet18", "xnor++", "channel_height_width", 32, stem="7x7", downsample="binary")
    )
    x = images(program, 9)
    check(host, program, x, Gpu(tensor_cores=False), beside_cpu=0.0)
    # A piece of less than nine images sums the last layer in another order; everything before it is equal.
    schedule = check(host, program, x[:3], Gpu(), resident=1 << 15, beside_cpu=1e-6)
    kinds = [unit.kind for unit in schedule.units]
    assert kinds == ["stem"] + ["conv"] * 16 + ["plain"] * 2
    assert sum(unit.side is not None for unit in schedule.units) == 3
    assert len({segment.chunk for segment in schedule.layout.segments}) > 1


@pytest.mark.parametrize("from_bytes", [True, False])
@pytest.mark.parametrize(
    ("name", "method", "scale", "options"),
    [
        ("small", "xnor++", "channel_height_width", {}), ("resnet20", "xnor++", "dense", {}),
        ("small", "binaryconnect", None, {}),
        ("resnet20", "xnor++", "channel_height_width", {"shortcut": "conv", "downsample": "real"}),
    ],
)  # fmt: skip
def test_the_cpu_engines_outputs_bit_for_bit(
    name: str, method: str, scale: str | None, options: dict[str, str], from_bytes: bool, host: object
) -> None:
    """Sums of whole numbers and of floats, in the same order and rounded alike: not one output differs."""
    program = cases.network(name, method, scale, **options)
    x = images(program, 9) if from_bytes else normalise(program, images(program, 9))
    builder = Builder(program, Gpu(tensor_cores=False))
    got = host.run(builder, builder.schedule(9, from_bytes), x)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(got, CpuModel(program, isa=FUSING)(x))


def test_a_small_stem_is_the_cpus_with_a_float32_stream_only(host: object) -> None:
    """From bytes the exact mode computes in float32, as from floats; a stream of half keeps the fast way."""
    program = cases.network("small", "xnor++", "channel_height_width")
    x = images(program, 9)
    exact, fast = (Builder(program, Gpu(), half=half) for half in (False, True))
    assert exact.taker is None
    assert fast.taker is not None
    entries = [builder.schedule(9, True).launches[0].kernel.entry for builder in (exact, fast)]
    assert entries == ["real_conv", "image_conv"]
    popc = Builder(program, Gpu(tensor_cores=False))
    got = [
        host.run(popc, popc.schedule(9, given.dtype == np.uint8), given)  # type: ignore[attr-defined]
        for given in (x, normalise(program, x))
    ]
    np.testing.assert_array_equal(*got)


def test_every_launch_with_a_stream_of_half(host: object) -> None:
    """Bits and half floats of every launch equal the definition on what the launch was given."""
    program = cases.tamed_stem(
        cases.network("resnet18", "xnor++", "channel_height_width", 32, stem="7x7", downsample="binary")
    )
    builder = Builder(program, Gpu(), 1 << 28, half=True)
    x = images(program, 2)
    schedule = builder.schedule(2, True)
    checks = []

    def watch(read: object) -> object:
        checks.append(units.UnitCheck(builder, schedule, normalise(program, x), read))
        return checks[0]

    got = host.run(builder, schedule, x, watch)  # type: ignore[attr-defined]
    assert checks[0].seen > 20
    assert checks[0].flips <= 0.001 * checks[0].bits
    assert len(schedule.halves) >= 6
    large = [
        Builder(program, Gpu(), 1 << 28, half).schedule(256, True).layout.total for half in (True, False)
    ]
    assert large[0] < 0.8 * large[1]
    assert np.isfinite(got).all()


def test_the_stem_of_warpgroups_writes_what_the_other_writes(host: object) -> None:
    """On compute capability 9.0 only: bits and floats of the first launch, byte for byte."""
    program = cases.tamed_stem(
        cases.network("resnet18", "xnor++", "channel_height_width", 40, stem="7x7", downsample="binary")
    )
    x, busy = images(program, 3), Gpu(processors=3)

    def first_launch(builder: Builder) -> tuple[str, bytes]:
        schedule = builder.schedule(len(x), True)
        seen: list[bytes] = []

        def watch(read: Callable[[int, int], np.ndarray]) -> object:
            def after(launch: object) -> None:
                seen.append(read(0, schedule.layout.total).tobytes())

            return SimpleNamespace(before=lambda launch: None, after=after)

        only = replace(schedule, launches=schedule.launches[:1])
        host.run(builder, only, x, watch)  # type: ignore[attr-defined]
        return schedule.launches[0].kernel.file, seen[0]

    for half in (False, True):
        file, want = first_launch(Builder(program, busy, half=half, wgmma=False))
        assert file == "stem.cu"
        assert np.count_nonzero(np.frombuffer(want, np.uint8)) > 1000
        builder = Builder(program, busy, half=half)
        builder.picks = {(builder.steps[0].index, len(x)): int(half)}
        assert first_launch(builder) == ("stem_wgmma.cu", want)
    for gpu in (Gpu((8, 9), 3), Gpu((10, 0), 3), Gpu()):  # the last: three images do not fill it
        builder = Builder(program, gpu)
        assert builder.schedule(len(x), True).launches[0].kernel.file == "stem.cu"


def test_a_kernel_of_warpgroups_is_compiled_for_its_architecture_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from xnorpp.runtime.cuda import driver as cuda_driver

    asked: list[str] = []

    def compiler(source: str, options: Sequence[str]) -> bytes:
        asked.append(options[0])
        return b""

    monkeypatch.setenv("XNORPP_CACHE", str(tmp_path))
    monkeypatch.setattr(cuda_driver, "compile_source", compiler)
    monkeypatch.setattr(cuda_driver, "_target", lambda arch: arch)
    for file in ("stem_wgmma.cu", "stem.cu"):
        cuda_driver.cached_cubin(kernel_source(file, {}), "sm_90")
    assert asked == ["--gpu-architecture=sm_90a", "--gpu-architecture=sm_90"]


def test_values_that_live_together_never_share_memory() -> None:
    """The memory plan of a large batch: disjoint places for overlapping lives, and no more than it
    promises."""
    program = cases.network("resnet18", "xnor++", "channel_height_width", 64)
    for resident in (1 << 18, 1 << 21, 1 << 30):
        builder = Builder(program, Gpu(), resident)
        schedule = builder.schedule(64, True)
        sizes = {
            name: place.images * _image_bytes(builder, name) for name, place in schedule.layout.places.items()
        }
        alive: dict[str, tuple[int, int]] = {}
        for index, unit in enumerate(schedule.units):
            for name in (*unit.reads, *unit.writes):
                if name in sizes:
                    alive[name] = (alive.get(name, (index, index))[0], index)
        for a, (a_first, a_last) in alive.items():
            for b, (b_first, b_last) in alive.items():
                if a < b and max(a_first, b_first) < min(a_last, b_last):
                    start_a, start_b = (schedule.layout.places[n].offset for n in (a, b))
                    assert start_a + sizes[a] <= start_b or start_b + sizes[b] <= start_a, (a, b)
        assert max(p.offset + sizes[n] for n, p in schedule.layout.places.items()) <= schedule.layout.total


def _image_bytes(builder: Builder, name: str) -> int:
    from xnorpp.runtime.cuda.memory import image_bytes

    return image_bytes(builder.program, builder.bits, name)


def test_a_gpu_is_missing_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    from xnorpp.runtime import load
    from xnorpp.runtime.cuda import driver as cuda_driver

    def no_driver() -> None:
        raise cuda_driver.CudaError("No NVIDIA driver was found (libcuda.so.1): use device='cpu'.")

    monkeypatch.setattr(cuda_driver, "_libcuda", no_driver)
    with pytest.raises(cuda_driver.CudaError, match=r"^No NVIDIA driver.*\.$"):
        load(cases.zoo(), device="cuda")
    with pytest.raises(ValueError, match="must be 'cpu', 'cuda' or 'cuda:N'"):
        load(cases.zoo(), device="cuda:x")
