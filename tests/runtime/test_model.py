"""`PackedModel`: what a user calls, copies, sends to other processes and classifies images with."""

from __future__ import annotations

import copy
import io
import multiprocessing
import pickle
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from PIL import Image
from random_programs import random_program

import xnorpp
from xnorpp.runtime import PackedModel, Preprocess, Program, load, read
from xnorpp.runtime import model as models
from xnorpp.runtime.decode import CorruptImageError
from xnorpp.runtime.format.program import INPUT, Op
from xnorpp.runtime.limits import DEFAULT_LIMITS
from xnorpp.runtime.predict import Guess, outputs_of

ROOT = Path(__file__).resolve().parents[2]


def quarters(**fields: Any) -> Program:
    """Four classes on an 8x6 RGB image: which quarter is the brightest."""
    weight = np.zeros((4, 3, 8, 6), np.float32)
    for index, (top, left) in enumerate(((0, 0), (0, 3), (4, 0), (4, 3))):
        weight[index, :, top : top + 4, left : left + 3] = 1
    ops = (
        Op("flatten", "flat", (INPUT,), "flat"),
        Op("linear", "quarters", ("flat",), "out", {}, {"weight": "quarters"}),
    )
    labels = ("top left", "top right", "bottom left", "bottom right")
    return Program((3, 8, 6), ops, "out", {"quarters": weight.reshape(4, 144)}, labels=labels, **fields)


@pytest.fixture(scope="module")
def model() -> PackedModel:
    return load(quarters(), threads=1)


def images(count: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 8, 6, 3), dtype=np.uint8)


def test_what_a_model_knows(model: PackedModel) -> None:
    assert isinstance(model, xnorpp.PackedModel)
    assert model.input_shape == (3, 8, 6)
    assert model.output_names == ("output",)
    assert model.labels == ("top left", "top right", "bottom left", "bottom right")
    assert model.preprocess == Preprocess((8, 6), (8, 6), (0.0,) * 3, (1.0,) * 3)
    assert model.threads == 1
    assert model.isa == model.engine.isa
    assert model.memory > 0
    assert model.device == "cpu"
    assert repr(model) == f"PackedModel(3x8x6 -> 4; {model.isa}, threads=1)"


@pytest.mark.parametrize("isa", [None, "reference"])
def test_one_image_without_the_batch_axis(isa: str | None) -> None:
    model = load(quarters(), isa=isa)
    x = images()
    floats = np.ascontiguousarray(x.transpose(0, 3, 1, 2)) / np.float32(255)
    for batch in (x, floats, floats.astype(np.float64)):
        many = model(batch)
        assert many.shape == (3, 4)
        one = model(batch[1])
        assert one.shape == (4,)
        np.testing.assert_allclose(one, many[1], rtol=1e-6)  # numpy may add in another order
    np.testing.assert_array_equal(model(floats[0].tolist()), model(floats[0]))
    np.testing.assert_array_equal(model(floats.tolist()), model(floats))


def test_a_batch_of_nothing(model: PackedModel) -> None:
    assert model(images(0)).shape == (0, 4)


@pytest.mark.parametrize("shape", [(8, 6), (1, 1, 8, 6, 3), (6, 8, 3), (2, 6, 8, 3)])
def test_other_shapes_are_refused(model: PackedModel, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="`x` has shape"):
        model(np.zeros(shape, np.uint8))


def test_dense_outputs() -> None:
    program = Program((2, 4, 5), (Op("relu", "relu", (INPUT,), "mask"),), "mask", {})
    model = load(program)
    x = np.random.default_rng(0).standard_normal((3, 2, 4, 5)).astype(np.float32)
    np.testing.assert_array_equal(model(x), np.maximum(x, 0))
    np.testing.assert_array_equal(model(x[0]), np.maximum(x[0], 0))
    with pytest.raises(ValueError, match=r"output has the shape \(2, 4, 5\), not one number per class"):
        model.classify(np.zeros((4, 5, 2), np.uint8))


def test_several_outputs_come_by_name(model: PackedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine with several outputs gives a dict, whose arrays lose the batch axis for one image."""
    whole = model.engine

    class Two:
        isa, threads, memory, program = "two", 1, 1, model.program

        def __call__(self, x: np.ndarray) -> dict[str, np.ndarray]:
            return {"class": whole(x), "twice": 2 * whole(x)}

    monkeypatch.setattr(models, "start_engine", lambda *_: Two())
    two = PackedModel(model.program)
    many, one = two(images()), two(images()[1])
    assert list(many) == list(one) == ["class", "twice"]
    assert many["twice"].shape == (3, 4)
    np.testing.assert_array_equal(one["twice"], many["twice"][1])
    monkeypatch.setattr("xnorpp.runtime.predict.outputs_of", lambda _: {"class": (4,), "twice": (4,)})
    with pytest.raises(ValueError, match=r"the model has 2 outputs \(class, twice\)"):
        two.classify(images()[0])


def test_the_shapes_of_outputs() -> None:
    program = random_program(0)
    assert outputs_of(program) == {"output": program.values[program.output].shape}


@pytest.mark.parametrize(
    "copied",
    [
        copy.deepcopy, copy.copy, lambda model: pickle.loads(pickle.dumps(model)),
        lambda model: pickle.loads(pickle.dumps(model, protocol=2)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("started", [False, True])
def test_copies_give_the_same_numbers(copied: Any, started: bool) -> None:
    program = random_program(3)
    model = PackedModel(program, threads=2, isa="generic")
    if started:
        model.start()
    other = copied(model)
    assert other is not model
    assert other.settings == model.settings == (2, "generic", "cpu", DEFAULT_LIMITS)
    c, h, w = program.input_shape
    x = np.random.default_rng(0).integers(0, 256, (2, h, w, c), np.uint8)
    np.testing.assert_array_equal(other(x), model(x))
    assert (other.isa, other.threads) == ("generic", 2)
    assert other.engine is not model.engine
    assert other.program.meta == program.meta


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_other_processes(model: PackedModel, method: str) -> None:
    """The model itself is the function that the pool maps."""
    parts = [images(2, seed) for seed in range(4)]
    with multiprocessing.get_context(method).Pool(2) as pool:
        found = pool.map_async(model, parts).get(timeout=120)
    for part, outputs in zip(parts, found, strict=True):
        np.testing.assert_array_equal(outputs, model(part))


def test_joblib(model: PackedModel) -> None:
    parts = [images(2, seed) for seed in range(4)]
    found = joblib.Parallel(n_jobs=2)(joblib.delayed(model)(part) for part in parts)
    for part, outputs in zip(parts, found, strict=True):
        np.testing.assert_array_equal(outputs, model(part))


def test_threads_share_one_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight threads that use a fresh model at once start one engine, and their answers are right."""
    program = random_program(5)
    c, h, w = program.input_shape
    parts = [np.random.default_rng(seed).integers(0, 256, (2, h, w, c), np.uint8) for seed in range(8)]
    started: list[int] = []
    start, barrier = models.start_engine, threading.Barrier(8)

    def slow(*arguments: Any) -> Any:
        started.append(1)
        time.sleep(0.05)
        return start(*arguments)

    monkeypatch.setattr(models, "start_engine", slow)
    model = PackedModel(program, threads=1)

    def call(x: np.ndarray) -> np.ndarray:
        barrier.wait()
        return np.stack([model(x) for _ in range(20)])

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(call, parts))
    assert started == [1]
    for part, outputs in zip(parts, found, strict=True):
        np.testing.assert_array_equal(outputs, np.broadcast_to(model(part), outputs.shape))


def test_save_and_load(model: PackedModel, tmp_path: Path) -> None:
    path = tmp_path / "model.xnor"
    assert model.save(path) == path.stat().st_size
    np.testing.assert_array_equal(load(path)(images()), model(images()))
    assert read(path).labels == model.labels


def bright(corner: tuple[int, int], size: tuple[int, int] = (80, 60)) -> np.ndarray:
    """An image of (h, w) whose quarter at `corner` is white."""
    h, w = size
    pixels = np.zeros((h, w, 3), np.uint8)
    top, left = corner[0] * h // 2, corner[1] * w // 2
    pixels[top : top + h // 2, left : left + w // 2] = 255
    return pixels


def encoded(pixels: np.ndarray, name: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, name, **options)
    return file.getvalue()


def test_classify_takes_every_kind_of_image(model: PackedModel, tmp_path: Path) -> None:
    pixels = bright((1, 0))
    data = encoded(pixels)
    path = tmp_path / "a.png"
    path.write_bytes(data)
    expected = model.classify(pixels)
    assert expected[0].label == "bottom left"
    assert len(expected) == 4
    assert isinstance(expected[0], Guess)
    assert sum(guess.probability for guess in expected) == pytest.approx(1)
    array = io.BytesIO()
    np.save(array, pixels)
    with open(path, "rb") as file:
        for image in (
            path, str(path), data, bytearray(data), memoryview(data), file, io.BytesIO(data),
            Image.open(path), Image.fromarray(pixels), np.asfortranarray(pixels), array.getvalue(),
        ):  # fmt: skip
            assert model.classify(image) == expected, type(image)
    assert model.classify(pixels[:, :, 0]) == expected
    assert model.classify(Image.fromarray(pixels).convert("RGBA")) == expected
    assert model.classify(path, top=1) == expected[:1]


def test_classify_turns_photos_upright_and_changes_no_image(model: PackedModel) -> None:
    exif = Image.Exif()
    exif[0x0112] = 3  # held upside down
    data = encoded(bright((0, 0)), "JPEG", exif=exif, quality=95)
    image = Image.open(io.BytesIO(data))
    assert model.classify(data)[0].label == "bottom right"
    assert model.classify(image)[0].label == "bottom right"
    assert image.getexif()[0x0112] == 3


@pytest.mark.parametrize(
    ("image", "error", "words"),
    [
        (5, TypeError, "`image` is int; a path, bytes, a binary file, a Pillow image or a uint8 array"),
        (None, TypeError, "`image` is NoneType"),
        (io.StringIO("x"), TypeError, "`image` is a file of str; one opened in binary mode is needed"),
        (np.zeros((4, 4, 3)), ValueError, r"`image` \(=float64 \(4, 4, 3\)\) must be uint8"),
        ("/no/such.png", CorruptImageError, "^there is no such file$"),
        (b"", CorruptImageError, "^the file is empty$"),
        (b"hello", CorruptImageError, "^not a recognised image format"),
        (encoded(images(1)[0])[:-60], CorruptImageError, "truncated"),
    ],
)
def test_what_is_no_image(model: PackedModel, image: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        model.classify(image)


def test_classify_uses_what_the_file_stores() -> None:
    """Aspect ratio, normalisation and temperature: all from the program."""
    stored = {"resize": 8, "crop": [8, 6], "aspect": "keep", "mean": [0.5] * 3, "std": [0.5] * 3}
    program = quarters(preprocess=stored, mean=(0.5,) * 3, std=(0.5,) * 3)
    model = load(program)
    wide = np.zeros((8, 40, 3), np.uint8)
    wide[:4, 17:20] = 255  # the top left quarter of the centre
    assert model.classify(wide)[0].label == "top left"
    sharp = model.classify(wide)[0].probability
    calm = load(replace(program, temperature=100.0)).classify(wide)[0]
    assert calm.label == "top left"
    assert calm.probability < sharp


def test_what_the_preprocessing_leaves_out_comes_from_the_program() -> None:
    program = quarters(preprocess={"resize": 9}, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    assert load(program).preprocess == Preprocess(9, (8, 6), (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))


def test_a_model_of_something_else_than_images() -> None:
    flat = (Op("global_avg_pool", "pool", (INPUT,), "pool"), Op("flatten", "flat", ("pool",), "flat"))
    model = load(Program((7, 4, 4), flat, "flat", {}))
    assert model.preprocess is None
    assert model(np.ones((7, 4, 4), np.float32)).shape == (7,)
    with pytest.raises(ValueError, match=r"input has the shape \(7, 4, 4\), which is not an image of 1 to 4"):
        model.classify(np.zeros((4, 4), np.uint8))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"threads": 0}, r"`threads` \(=0\) must be an integer from 1 to 1024"),
        ({"device": "tpu"}, r"`device` \(='tpu'\) must be 'cpu', 'cuda' or 'cuda:N'"),
        ({"device": "cuda:"}, r"`device` \(='cuda:'\) must be"),
        ({"device": None}, r"`device` \(=None\) must be"),
        (
            {"device": "cuda", "threads": 2},
            r"`threads` \(=2\) is for the CPU; leave it out with device='cuda'",
        ),
        ({"device": "cuda:1", "isa": "avx2"}, r"`isa` \(='avx2'\) is for the CPU"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], words: str) -> None:
    for make in (load, PackedModel):
        with pytest.raises(ValueError, match=words):
            make(quarters(), **arguments)


def test_a_model_is_made_of_a_program() -> None:
    with pytest.raises(TypeError, match=r"`program` is str; a Program is needed \(`load` reads a file\)"):
        PackedModel("model.xnor")  # type: ignore[arg-type]


def test_the_wrapper_costs_next_to_nothing(model: PackedModel) -> None:
    """Below 2 microseconds a call: an engine that does nothing, called with and without the wrapper."""

    class Nothing:
        isa, threads, memory, program = "none", 1, 0, model.program

        def __call__(self, x: Any) -> Any:
            return x

    empty = PackedModel(model.program)
    engine = empty._started = Nothing()  # type: ignore[assignment]
    x = images(1)

    def seconds(call: Any) -> float:
        start = time.perf_counter()
        for _ in range(2000):
            call(x)
        return (time.perf_counter() - start) / 2000

    wrapped, bare = (min(seconds(call) for _ in range(20)) for call in (empty, engine))
    assert wrapped - bare < 2e-6


@pytest.mark.parametrize("name", ["multiprocessing_inference"])
def test_the_examples_run(name: str, tmp_path: Path) -> None:
    for index, corner in enumerate(((0, 0), (1, 1))):
        (tmp_path / f"{index}.png").write_bytes(encoded(bright(corner, (40, 40))))
    script = ROOT / "examples" / f"{name}.py"
    assert len(script.read_text(encoding="utf-8").splitlines()) <= 40
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == ["0.png", "1.png"]
