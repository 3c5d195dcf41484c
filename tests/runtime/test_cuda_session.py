"""`CudaModel` itself, on a GPU that is the CPU: batches, pieces, recorded graphs that follow the caller's
addresses."""

from __future__ import annotations

import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_host import cases, device
from random_programs import Builder

from xnorpp.runtime import load
from xnorpp.runtime.cuda import model as cuda
from xnorpp.runtime.format.program import Program
from xnorpp.runtime.reference import normalise, run

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


FakeDevice, FakeGraph = device.FakeDevice, device.FakeGraph


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    device.install(monkeypatch, device.machine.shared_folder(tmp_path_factory))


def images(program: Program, count: int, seed: int) -> np.ndarray:
    c, h, w = program.input_shape
    return np.random.default_rng(seed).integers(0, 256, (count, h, w, c), dtype=np.uint8)


@pytest.mark.parametrize("refuse", [False, True])
def test_batches_of_all_sizes_and_kinds(refuse: bool, fake: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeGraph, "refuse", refuse)
    monkeypatch.setattr(cuda, "MAX_BATCH", 8)
    program = cases.zoo()
    model = cuda.CudaModel(program, tensor_cores=False)
    assert model.isa == "sm_90, popc"
    for count, seed in ((1, 0), (20, 1), (3, 2), (1, 3), (20, 4)):
        x = images(program, count, seed)
        np.testing.assert_allclose(model(x), run(program, x), rtol=1e-4, atol=1e-6)
    assert model(images(program, 0, 5)).shape == (0, 10)
    x = normalise(program, images(program, 3, 9))
    np.testing.assert_allclose(model(x), run(program, x), rtol=1e-4, atol=1e-6)


def test_few_batch_sizes_are_kept_and_memory_comes_back(fake: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "SESSIONS", 2)
    program = cases.zoo()
    model = cuda.CudaModel(program, tensor_cores=False)
    for count in (1, 2, 3, 4, 2):
        model(images(program, count, count))
    assert list(model._sessions) == [(4, True), (2, True)]
    held = model.memory
    model.forget()
    weights = sum(memory.size for memory in model.constants.values())
    assert weights == model.memory < held


def test_a_graph_is_recorded_once_a_batch_size(fake: None) -> None:
    program = cases.zoo()
    model = cuda.CudaModel(program, tensor_cores=False)
    FakeGraph.made = 0
    for seed in range(3):
        model(images(program, 2, seed))
    model._staging.clear()  # other addresses from now on
    x = images(program, 2, 7)
    np.testing.assert_allclose(model(x), run(program, x), rtol=1e-4, atol=1e-6)
    assert FakeGraph.made == 1


def test_timed_tilings_are_kept_and_used(fake: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The second candidate is played to be faster; the record serves a model that does not tune."""
    from xnorpp.runtime.cuda import tiles as cuda_tiles
    from xnorpp.runtime.cuda import tune as cuda_tune

    monkeypatch.setenv("XNORPP_CACHE", str(tmp_path))
    monkeypatch.setattr(cuda_tiles, "MOST", 2)
    asked = []

    def second_is_faster(session: Any, index: int, given: tuple[int, int]) -> float:
        asked.append(index)
        return 1.0 if len(asked) <= count else 0.5

    program = cases.fast_shapes()
    x = normalise(program, images(program, 3, 0))
    first = cuda.CudaModel(program, residual="float32")
    count = sum(len(first.builder.options(u, 3)) > 1 for u in first.builder.units(3, False))
    assert count >= 4
    monkeypatch.setattr(cuda_tune, "_time", second_is_faster)
    tuned = cuda.CudaModel(program, residual="float32", tune=True)
    want = run(program, x)
    np.testing.assert_allclose(tuned(x), want, rtol=1e-4, atol=1e-5 * float(np.abs(want).max()))
    assert len(asked) == 2 * count
    assert len(list(tmp_path.glob("*.tiles.json"))) == 1
    np.testing.assert_array_equal(first(x), tuned(x))
    kernels = [launch.kernel for launch in tuned.session(3, False).schedule.launches]
    assert kernels == [launch.kernel for launch in first.session(3, False).schedule.launches]
    assert set(tuned.builder.picks.values()) == {1}
    assert len(asked) == 2 * count


@pytest.mark.parametrize("tensor_cores", [False, True])
def test_several_outputs(tensor_cores: bool, fake: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dense and flat ones, read by later layers, in several pieces of a batch."""
    monkeypatch.setattr(cuda, "MAX_BATCH", 4)
    program = cases.fast_shapes()
    floats = [name for name, value in program.values.items() if value.kind == "f32" and name != "input"]
    more = {name: name for name in (floats[0], floats[len(floats) // 2], floats[-2])}
    several = replace(program, more_outputs={**more, "again": floats[0]})
    model = cuda.CudaModel(several, tensor_cores=tensor_cores)
    x = normalise(program, images(program, 6, 0))
    answers, want = model(x), run(several, x)
    assert answers.keys() == want.keys()
    for name, answer in answers.items():
        assert answer.shape == want[name].shape
        np.testing.assert_allclose(answer, want[name], rtol=1e-4, atol=1e-5 * float(np.abs(want[name]).max()))
    assert model(x[:0])[floats[0]].shape == (0, *program.values[floats[0]].shape)


@pytest.mark.parametrize("shape", [(37,), (5, 11)])
def test_inputs_of_other_ranks(shape: tuple[int, ...], fake: None) -> None:
    b = Builder(shape)
    x = b.emit("relu", b.emit("affine", "input", tensors={"mult": np.full(shape[0], 0.5, np.float32)}))
    weight = np.random.default_rng(0).standard_normal((6, int(np.prod(shape)))).astype(np.float32)
    y = b.emit("linear", b.emit("flatten", x), tensors={"weight": weight})
    program = b.program(y, more_outputs={"x": x})
    model = cuda.CudaModel(program)
    rng = np.random.default_rng(1)
    batches = (
        rng.standard_normal((3, *shape)).astype(np.float32),
        rng.integers(0, 256, (3, *shape[1:], shape[0])),
    )
    for batch in (batches[0], batches[1].astype(np.uint8)):
        answers, want = model(batch), run(program, batch)
        for name in want:
            np.testing.assert_allclose(answers[name], want[name], rtol=1e-4, atol=1e-4)


def test_every_size_is_planned_and_the_last_few_stay_ready(
    fake: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "SIZES", 2)
    b = Builder((3, 6, 5))
    program = b.program(b.emit("relu", "input"), free_axes=(1, 2))
    model = cuda.CudaModel(program, tensor_cores=False)
    rng = np.random.default_rng(0)
    for height, width in ((4, 7), (6, 5), (2, 3), (4, 7), (9, 1)):
        x = rng.standard_normal((2, 3, height, width)).astype(np.float32)
        np.testing.assert_array_equal(model(x), run(program, x))
        pixels = rng.integers(0, 256, (2, height, width, 3), dtype=np.uint8)
        np.testing.assert_array_equal(model(pixels), run(program, pixels))
    assert list(model._sizes) == [(3, 4, 7), (3, 9, 1)]
    held = model.memory
    model.forget()
    assert model._sizes == {}
    assert model.memory < held
    with pytest.raises(ValueError, match="shape"):
        model(np.zeros((2, 4, 4, 7), np.float32))


def test_images_of_the_wrong_kind_are_refused(fake: None) -> None:
    model = cuda.CudaModel(cases.zoo(), tensor_cores=False)
    with pytest.raises(ValueError, match="after the batch axis"):
        model(np.zeros((1, 5, 5, 6), np.uint8))
    with pytest.raises(ValueError, match="dtype"):
        model(np.zeros((1, 6, 13, 11), np.int64))


def test_an_old_gpu_is_one_sentence(fake: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeDevice, "capability", (6, 1))
    with pytest.raises(cuda.CudaError, match=r"compute capability 6\.1, and 7\.0 or newer is needed"):
        cuda.CudaModel(cases.zoo())


def test_a_forked_child_is_refused_before_it_waits_for_a_lock(fake: None) -> None:
    """The driver works in no forked process, and the lock may be held there for ever."""
    program = cases.fast_shapes()
    model = cuda.CudaModel(program)
    with model._lock:
        child = os.fork()
        if child == 0:
            try:
                model(images(program, 1, 0))
            except cuda.CudaError as error:
                os._exit(0 if "cannot be used in a forked process" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_packed_model_on_a_gpu(fake: None) -> None:
    """One image and copies, as on the CPU; a copy is made on the same device."""
    program = cases.zoo()
    model = load(program, device="cuda")
    x = images(program, 3, 0)
    expected = run(program, x)
    assert isinstance(model.engine, cuda.CudaModel)
    np.testing.assert_allclose(model(x[1]), expected[1], rtol=1e-4, atol=1e-6)
    other = pickle.loads(pickle.dumps(model))
    assert other.device == "cuda"
    assert other.engine is not model.engine
    np.testing.assert_array_equal(other(x), model(x))
