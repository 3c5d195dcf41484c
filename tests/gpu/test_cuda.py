"""The CUDA engine on a real GPU. One command on such a machine:

pytest -m gpu tests/gpu
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cuda_host import cases, units

from xnorpp.models import list_models
from xnorpp.runtime import load
from xnorpp.runtime.cuda import build as cuda_build
from xnorpp.runtime.cuda import real as cuda_real
from xnorpp.runtime.cuda import wgmma as cuda_wgmma
from xnorpp.runtime.cuda.driver import Device
from xnorpp.runtime.cuda.model import CudaError, CudaModel
from xnorpp.runtime.format.bits import pack_conv_weight
from xnorpp.runtime.format.program import Op, Program
from xnorpp.runtime.reference import normalise, run


def _missing() -> str:
    try:
        Device()
    except CudaError as error:
        return str(error)
    return ""


MISSING = _missing()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(MISSING), reason=f"NOT RUN: the CUDA engine needs a GPU. {MISSING}"),
]


def images(program: Program, count: int, seed: int = 0) -> np.ndarray:
    c, h, w = program.input_shape
    return np.random.default_rng(seed).integers(0, 256, (count, h, w, c), dtype=np.uint8)


def cpu_engine(program: Program, x: np.ndarray) -> Any:
    """The CPU engine's outputs; a test that compares real-valued sums bit for bit does not run without it,
    because the reference adds in another order."""
    cpu = pytest.importorskip("xnorpp.runtime.cpu", reason="NOT RUN: the native core is not built")
    return cpu.CpuModel(program)(x)


def expected(program: Program, x: np.ndarray) -> Any:
    """The CPU engine's outputs, or the reference's where the native core is not built."""
    try:
        from xnorpp.runtime.cpu import CpuModel
    except ImportError:
        return run(program, x)
    return CpuModel(program)(x)


def close(got: np.ndarray, want: np.ndarray) -> None:
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4 * float(np.abs(want).max()))


def few_flips(got: np.ndarray, want: np.ndarray, share: float = 0.35, alike: float = 0.97) -> None:
    """End to end, real-valued sums in another order may turn a sign whose argument is next to its
    threshold, and everything behind it in that image; the other images must be right. Every launch by
    itself is exact: `test_every_launch_is_exact`."""
    assert got.shape == want.shape
    assert np.isfinite(got).all()
    apart = np.abs(got - want).reshape(len(want), -1).max(axis=1) > 1e-3 * float(np.abs(want).max())
    assert apart.sum() <= max(1, share * len(want)), f"{apart.sum()} of {len(want)} images differ"
    if len(want) > 2:
        assert np.corrcoef(got.ravel(), want.ravel())[0, 1] > alike


def dot_program(
    channels: int,
    filters: int,
    kernel: int,
    stride: int,
    padding: int,
    dilation: int,
    pad_value: int,
    size: int,
) -> Program:
    """Sign, binary convolution, and the bare dot products as the output."""
    rng = np.random.default_rng(channels + filters + kernel + size)
    weight = pack_conv_weight(rng.normal(size=(filters, channels, kernel, kernel)))
    attrs = cases.window(stride, padding, dilation, 1, pad_value=pad_value)
    ops = (
        Op("sign", "sign", ("input",), "a"),
        Op("binary_conv2d", "conv", ("a",), "b", attrs, {"weight": "w"}),
        Op("affine", "out", ("b",), "c"),
    )
    return Program((channels, size, size), ops, "c", {"w": weight})


@pytest.mark.parametrize("tensor_cores", [True, False])
@pytest.mark.parametrize("images", [1, 5, 64])
@pytest.mark.parametrize(
    "shape",
    [
        (64, 64, 3, 1, 1, 1, 0, 14), (64, 128, 3, 2, 1, 1, 0, 15), (32, 96, 3, 1, 1, 1, 1, 9),
        (128, 128, 3, 1, 1, 1, -1, 8), (192, 64, 3, 1, 2, 2, 0, 11), (256, 256, 3, 1, 1, 1, 0, 7),
        (512, 512, 3, 1, 1, 1, 0, 7), (100, 64, 5, 1, 2, 1, 0, 6), (512, 64, 1, 1, 0, 1, 0, 5),
        (48, 40, 3, 1, 1, 1, 0, 6),
    ],
)  # fmt: skip
def test_dot_products_bit_for_bit(shape: tuple[int, ...], images: int, tensor_cores: bool) -> None:
    program = dot_program(*shape)
    x = np.random.default_rng(images).standard_normal((images, *program.input_shape)).astype(np.float32)
    got = CudaModel(program, tensor_cores=tensor_cores)(x)
    np.testing.assert_array_equal(got, expected(program, x))


def _tiled(model: CudaModel, images: int) -> int:
    launches = model.builder.schedule(images, False).launches
    return sum(launch.kernel.entry == cuda_real.ENTRY for launch in launches)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", cases.REAL_LAYERS)
def test_real_convolutions_in_tiles_bit_for_bit(
    name: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one thread an output gives, and what the CPU engine gives."""
    program = cases.real_layer(name, stream=stream)
    x = np.random.default_rng(0).standard_normal((1000, *program.input_shape)).astype(np.float32)
    model = CudaModel(program)
    assert _tiled(model, len(x)) == 1
    got = model(x).view(np.uint32)
    np.testing.assert_array_equal(got, cpu_engine(program, x).view(np.uint32))
    monkeypatch.setattr(cuda_build, "plain_ways", lambda *given: ["plain"])
    plain = CudaModel(program)
    assert _tiled(plain, len(x)) == 0
    np.testing.assert_array_equal(got, plain(x).view(np.uint32))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet18", {"size": 224, "stem": "7x7"}),
        ("resnet18", {"size": 64, "stem": "7x7", "downsample": "real"}), ("resnet20", {"size": 32}),
        ("alexnet", {"size": 227}),
    ],
)  # fmt: skip
def test_networks_from_floats_are_the_cpu_engines(name: str, options: dict[str, Any]) -> None:
    program = cases.network(name, "xnor++", "channel_height_width", **options)
    x = normalise(program, images(program, 64))
    model = load(program, device="cuda")
    assert _tiled(model.engine, len(x)) >= 1
    np.testing.assert_array_equal(model(x), cpu_engine(program, x))


@pytest.mark.parametrize(("method", "scale"), cases.METHOD_SCALES)
@pytest.mark.parametrize("name", list_models())
def test_every_network(name: str, method: str, scale: str | None) -> None:
    program = cases.network(name, method, scale)
    model, half = load(program, device="cuda"), CudaModel(program, residual="float16")
    for count in (1, 7):
        x = images(program, count)
        want = expected(program, x)
        few_flips(model(x), want)
        few_flips(model(normalise(program, x)), want)
        few_flips(half(x), want, share=1.0, alike=0.8)  # random weights: most signs are near their threshold


NETWORKS = {
    "stem, binary shortcuts": (
        "resnet18", "xnor++", "channel_height_width", {"size": 64, "stem": "7x7", "downsample": "binary"}),
    "small stem, binary shortcuts": ("resnet18", "xnor++", "channel_height_width", {"size": 32}),
    "the default block": (
        "resnet20", "xnor++", "channel_height_width", {"shortcut": "conv", "downsample": "real"}),
    "K of XNOR-Net": ("resnet18", "xnor", "alpha_k", {}),
    "a factor an output": ("small", "xnor++", "dense", {}),
}  # fmt: skip


@pytest.mark.parametrize("residual", ["float32", "float16"])
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("count", [1, 9, 112])
def test_every_launch_is_exact(name: str, count: int, residual: str) -> None:
    """Each launch on what the GPU itself had: bits of binary layers bit for bit, floats to the last digit."""
    network, method, scale, options = NETWORKS[name]
    if count > 100 and "stem" not in options:
        count = 40  # only the first is large enough for the tilings of large batches anyway
    program = cases.network(
        network, method, scale, options.get("size"), **{k: v for k, v in options.items() if k != "size"}
    )
    if "stem" in options:
        program = cases.tamed_stem(program)
    model = CudaModel(program, residual=residual)
    x = images(program, count)
    result = model(x)
    session = model.session(count, True)
    given = (model._room("input", x.nbytes), model._room("output", result.nbytes))
    model.device.write(given[0], x, model.stream.value)

    def read(offset: int, size: int) -> np.ndarray:
        found = np.empty(size, np.uint8)
        model.device.read(session.memory.pointer + offset, found, model.stream.value)
        model.stream.synchronize()
        return found

    check = units.UnitCheck(model.builder, session.schedule, normalise(program, x), read)
    for index, launch in enumerate(session.schedule.launches):
        check.before(launch)
        session.start(index, given).launch(model.stream.value)
        model.stream.synchronize()
        check.after(launch)
    assert check.seen > 10
    assert check.flips <= 1e-3 * check.bits


@pytest.mark.parametrize("tensor_cores", [True, False])
@pytest.mark.parametrize("from_bytes", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_cpu_engines_outputs_bit_for_bit(name: str, from_bytes: bool, tensor_cores: bool) -> None:
    """With a float32 stream both engines add the same numbers in the same order and round alike, from nine
    images on (below, the last layer is summed in another order)."""
    cpu = pytest.importorskip("xnorpp.runtime.cpu", reason="NOT RUN: the native core is not built")
    network, method, scale, options = NETWORKS[name]
    program = cases.network(
        network, method, scale, options.get("size"), **{k: v for k, v in options.items() if k != "size"}
    )
    if "stem" in options:
        program = cases.tamed_stem(program)
    model = CudaModel(program, residual="float32", tensor_cores=tensor_cores)
    isa = cpu.available_isas()[0]
    if isa == "generic":
        pytest.skip("NOT RUN: this processor fuses no multiply and add")
    for count in (9, 112):
        x = images(program, count) if from_bytes else normalise(program, images(program, count))
        np.testing.assert_array_equal(model(x), cpu.CpuModel(program, isa=isa)(x))
    x = images(program, 3) if from_bytes else normalise(program, images(program, 3))
    want = cpu.CpuModel(program, isa=isa)(x)
    assert np.abs(model(x) - want).max() <= 1e-6 * np.abs(want).max()


@pytest.mark.parametrize("resident", [1 << 18, 1 << 22, 1 << 30])
def test_a_resnet_in_pieces(resident: int) -> None:
    program = cases.tamed_stem(
        cases.network("resnet18", "xnor++", "channel_height_width", 64, stem="7x7", downsample="binary")
    )
    for residual in ("float32", "float16"):
        model = CudaModel(program, resident=resident, residual=residual)
        whole = CudaModel(program, residual=residual)
        for count in (33, 4, 33):
            x = images(program, count, seed=count)
            got = model(x)
            np.testing.assert_array_equal(got, whole(x))  # pieces change nothing
            exact = residual == "float32"
            few_flips(got, expected(program, x), 0.5 if exact else 1.0, 0.97 if exact else 0.8)


@pytest.mark.parametrize("size", [64, 70])
@pytest.mark.parametrize("tiling", cuda_wgmma.TILINGS)
def test_the_stem_of_warpgroups_changes_nothing(
    tiling: cuda_wgmma.Tiling, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every tiling of stem_wgmma.cu: outputs as with stem.cu, bit for bit."""
    if Device().capability != cuda_wgmma.CAPABILITY:
        pytest.skip("NOT RUN: products of warpgroups need compute capability 9.0")
    monkeypatch.setattr(cuda_wgmma, "TILINGS", (tiling,))
    program = cases.tamed_stem(
        cases.network("resnet18", "xnor++", "channel_height_width", size, stem="7x7", downsample="binary")
    )
    x = images(program, 140)
    for residual in ("float32", "float16"):
        model = CudaModel(program, residual=residual)
        got = model(x)
        assert model.session(len(x), True).schedule.launches[0].kernel.file == "stem_wgmma.cu"
        np.testing.assert_array_equal(got, CudaModel(program, residual=residual, wgmma=False)(x))


@pytest.mark.parametrize("tensor_cores", [True, False])
def test_every_operation(tensor_cores: bool) -> None:
    for program in (cases.zoo(), cases.fast_shapes()):
        for count in (1, 40):
            x = images(program, count)
            close(CudaModel(program, tensor_cores=tensor_cores, residual="float32")(x), run(program, x))


def test_torch_tensors_move_nothing_to_the_host() -> None:
    program = cases.network("resnet18", "xnor++", "channel_height_width", 32)
    model = CudaModel(program)
    want = [CudaModel(program)(images(program, 8, seed)) for seed in range(4)]
    inputs = [torch.from_numpy(images(program, 8, seed)).cuda() for seed in range(4)]
    results = [model(x) for x in inputs]  # other addresses each time: the recorded graph follows
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        other.wait_stream(torch.cuda.default_stream())
        results += [model(x) for x in inputs]
    torch.cuda.synchronize()
    for got, expect in zip(results, want * 2, strict=True):
        assert got.is_cuda
        np.testing.assert_array_equal(got.cpu().numpy(), expect)
    with pytest.raises(ValueError, match="a tensor on cuda:0 is needed"):
        model(torch.zeros(1, 32, 32, 3, dtype=torch.uint8))
    with pytest.raises(ValueError, match="after the batch axis"):
        model(torch.zeros(1, 3, 32, 32, dtype=torch.uint8, device="cuda"))


def test_calls_from_threads_give_what_each_asked_for() -> None:
    program = cases.network("small", "xnor++", "channel_height_width")
    model = CudaModel(program)
    found: dict[int, np.ndarray] = {}

    def work(seed: int) -> None:
        found[seed] = model(images(program, 1 + seed % 3, seed))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, got in found.items():
        np.testing.assert_array_equal(got, CudaModel(program)(images(program, 1 + seed % 3, seed)))


def test_graph_launches_and_early_starts_agree() -> None:
    program = cases.network("resnet18", "xnor++", "channel_height_width", 64, downsample="binary")
    x = images(program, 9)
    want = CudaModel(program, graph=False, early=False)(x)
    for graph in (True, False):
        for early in (True, False):
            model = CudaModel(program, graph=graph, early=early)
            for _ in range(3):
                np.testing.assert_array_equal(model(x), want)


def test_a_kernel_that_does_not_compile_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from xnorpp.runtime.cuda import driver as cuda_driver

    monkeypatch.setenv("XNORPP_CACHE", str(tmp_path))
    with pytest.raises(CudaError, match="Compiling a CUDA kernel failed"):
        cuda_driver.cached_cubin("this is no program", Device().arch)
    assert not list(tmp_path.rglob("*.cubin"))
