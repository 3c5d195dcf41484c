"""The C library against the Python package: the same bits, images prepared alike, errors as codes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from capi import ROOT, CError, CModel, built, open_library
from PIL import Image
from random_programs import Builder, random_program

import xnorpp
from xnorpp.runtime.cpu import available_isas
from xnorpp.runtime.format.preprocess import Preprocess
from xnorpp.runtime.format.program import encode, read
from xnorpp.runtime.predict import printable
from xnorpp.shipped import shipped_path

ARGUMENT, FILE, MODEL, LIMIT = 1, 2, 3, 4
SMALL, LARGE = "cifar10-resnet20", "cifar10-resnet18"


@pytest.fixture(scope="module")
def library() -> Any:
    path = built("libxnorpp.so") or built("libxnorpp.dylib")
    if path is None:
        pytest.skip("C LIBRARY NOT TESTED: it is built by `pip install -e .` (make setup)")
    return open_library(path)


@pytest.fixture(scope="module")
def tool() -> str:
    path = built("xnorpp-run")
    if path is None:
        pytest.skip("xnorpp-run NOT TESTED: it is built by `pip install -e .` (make setup)")
    return str(path)


def classifier(shape: tuple[int, int, int], **options: Any) -> bytes:
    """A file whose five classes are sums of the input, with the given preparation."""
    rng = np.random.default_rng(1)
    b = Builder(shape)
    mean = b.emit("flatten", b.emit("global_avg_pool", "input"))
    logits = b.emit("linear", mean, tensors={"weight": rng.standard_normal((5, shape[0])).astype("f4")})
    options = {"mean": (0.0,) * shape[0], "std": (1.0,) * shape[0], **options}
    return encode(b.program(logits, **options))


@pytest.mark.parametrize("name", [SMALL, LARGE, "tiny-imagenet-resnet18"])
def test_the_bits_are_those_of_python(library: Any, name: str) -> None:
    rng = np.random.default_rng(0)
    path = shipped_path(name)
    for isa in available_isas()[:1] if name != SMALL else available_isas():
        for threads in (1, 2):
            python = xnorpp.load(path, threads=threads, isa=isa)
            c = CModel(library, path, threads=threads, isa=isa.encode())
            channels, height, width = python.input_shape
            images = rng.integers(0, 256, (3, height, width, channels), np.uint8)
            floats = rng.standard_normal((3, channels, height, width)).astype(np.float32)
            for x in (images, floats):
                np.testing.assert_array_equal(c.run(x)[0], python(x))


def test_random_programs_have_the_bits_of_python(library: Any) -> None:
    rng = np.random.default_rng(5)
    for seed in range(40):
        program = random_program(seed)
        model, c = xnorpp.runtime.PackedModel(program, threads=1), CModel(library, encode(program), threads=1)
        x = rng.standard_normal((2, *program.input_shape)).astype(np.float32)
        np.testing.assert_array_equal(c.run(x)[0], model(x))


def test_a_model_describes_itself(library: Any) -> None:
    path = shipped_path(SMALL)
    python, c = xnorpp.load(path), CModel(library, path)
    assert library.xnorpp_version().decode() == xnorpp.__version__.partition(".dev")[0]
    assert [library.xnorpp_isa(i).decode() for i in range(len(available_isas()))] == available_isas()
    assert library.xnorpp_isa(len(available_isas())) is None
    assert (c.input.name, tuple(c.input.shape[: c.input.axes])) == (b"input", (3, 32, 32))
    assert c.input.elements == 3 * 32 * 32
    assert [(o.name.decode(), o.axes, o.shape[0], o.elements) for o in c.outputs] == [("output", 1, 10, 10)]
    assert python.labels is not None
    assert library.xnorpp_label_count(c.handle) == 10
    assert tuple(library.xnorpp_label(c.handle, i).decode() for i in range(10)) == python.labels
    assert library.xnorpp_label(c.handle, 10) is None
    assert library.xnorpp_model_isa(c.handle).decode() == python.isa
    assert library.xnorpp_threads(c.handle) == python.threads
    assert library.xnorpp_memory(c.handle) == python.memory
    assert not library.xnorpp_takes_any_size(c.handle)


PREPARATIONS = [
    {"resize": 12, "crop": 8},
    {"resize": 8, "crop": 8, "interpolation": "bicubic"},
    {"resize": [9, 14], "crop": 8},
    {"resize": 11, "crop": 8, "aspect": "keep", "interpolation": "lanczos"},
    {"resize": [10, 8], "crop": 8, "aspect": "keep", "interpolation": "bicubic"},
    {"resize": 13, "crop": 8, "interpolation": "nearest"},
    {"resize": 10, "crop": 8, "aspect": "keep", "interpolation": "nearest"},
]


def rows_first(self: Any, size: tuple[int, int], resample: int, box: Any = None) -> Any:
    """Pillow's resize with the two directions in the order that all versions before 13 take."""
    if resample == Image.Resampling.NEAREST:
        return PILLOW_RESIZE(self, size, resample, box)
    if self.mode in ("LA", "RGBA"):
        weighed = self.convert({"LA": "La", "RGBA": "RGBa"}[self.mode])
        return rows_first(weighed, size, resample, box).convert(self.mode)
    left, top, right, bottom = box or (0, 0, *self.size)
    narrow = PILLOW_RESIZE(self, (size[0], self.height), resample, (left, 0, right, self.height))
    return PILLOW_RESIZE(narrow, size, resample, (0, top, size[0], bottom))


PILLOW_RESIZE = Image.Image.resize


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_images_are_prepared_as_pillow_does(
    library: Any, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(channels)
    monkeypatch.setattr(Image.Image, "resize", rows_first)
    for fields in PREPARATIONS:
        c = CModel(library, classifier((channels, 8, 8), preprocess=fields))
        python = Preprocess.from_dict(fields, (channels, 8, 8))
        for _ in range(12):
            height, width = rng.integers(1, 90, 2)
            given = int(rng.integers(1, 5))
            image = rng.integers(0, 256, (height, width, given), np.uint8)
            found, wanted = c.prepare(image), python.apply(image)
            np.testing.assert_array_equal(found, wanted, f"{fields} {height}x{width}x{given}")


def test_classify_gives_the_guesses_of_python(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image.Image, "resize", rows_first)
    rng = np.random.default_rng(2)
    files = [shipped_path(SMALL).read_bytes(), classifier((3, 8, 8), temperature=1.7, labels=tuple("abcde"))]
    for file in files:
        python, c = xnorpp.PackedModel(read(file)), CModel(library, file)
        for size in ((32, 32), (50, 31)):
            image = rng.integers(0, 256, (*size, 3), np.uint8)
            wanted, found = python.classify(image), c.classify(image)
            assert [(index, label) for index, label, _ in found] == [(g.index, g.label) for g in wanted]
            np.testing.assert_allclose(
                [p for _, _, p in found], [g.probability for g in wanted], rtol=2e-6, atol=1e-9
            )


def test_a_file_of_any_size_takes_any(library: Any) -> None:
    b = Builder((3, 9, 7))
    rng = np.random.default_rng(3)
    geometry = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1}
    x = b.emit(
        "conv2d", "input", attrs=geometry, tensors={"weight": rng.standard_normal((20, 3, 3, 3)).astype("f4")}
    )
    logits = b.emit("flatten", b.emit("global_avg_pool", b.emit("relu", x)))
    pool = {"kernel": [2, 2], "stride": [2, 2], "padding": [0, 0], "ceil_mode": False}
    small, same = b.emit("max_pool2d", x, attrs=pool), [[0, 1, 1, 0]] * 2
    large = b.emit(
        "resize2d", small, x, attrs={"size": same, "mode": "bilinear", "align_corners": False}
    )  # to the size of another value
    more = {"size": same, "before": ["half", 0], "mode": "constant", "value": 0.5}
    outputs = {"dense": x, "large": large, "fitted": b.emit("fit2d", small, "input", attrs=more)}
    program = b.program(logits, free_axes=(1, 2), more_outputs=outputs, mean=(0.5,) * 3, std=(0.5,) * 3)
    python, c = xnorpp.PackedModel(program, threads=1), CModel(library, encode(program), threads=1)
    assert library.xnorpp_takes_any_size(c.handle)
    for height, width in ((9, 7), (16, 5)):
        other = c.resized(height, width)
        assert tuple(other.input.shape[:3]) == (3, height, width)
        x = rng.standard_normal((2, 3, height, width)).astype(np.float32)
        for result, wanted in zip(other.run(x), python(x).values(), strict=True):
            np.testing.assert_array_equal(result, wanted)
    with pytest.raises(CError, match="does not fit") as error:
        c.resized(0, 7)
    assert error.value.status == MODEL


def test_errors_are_codes_with_a_sentence(library: Any, tmp_path: Path) -> None:
    file = shipped_path(SMALL).read_bytes()
    damaged = file[:-1] + bytes([file[-1] ^ 1])
    cases: list[tuple[Any, dict[str, Any], int, str]] = [
        (tmp_path / "none.xnor", {}, FILE, "none.xnor' cannot be opened (No such file or directory)"),
        (tmp_path, {}, FILE, "cannot be read"),
        (damaged, {}, MODEL, "the checksum does not match"),
        (file[:100], {}, MODEL, "cut off"),
        (b"", {}, MODEL, "has 0 bytes"),
        (file, {"file_bytes": 1000}, LIMIT, "set `file_bytes` of xnorpp_options to a larger number"),
        (file, {"memory_bytes": 1000}, LIMIT, "set `memory_bytes` of xnorpp_options"),
        (file, {"memory_bytes": 150_000}, LIMIT, "set `memory_bytes` of xnorpp_options"),
        (file, {"multiply_adds": 1000}, LIMIT, "set `multiply_adds` of xnorpp_options"),
        (shipped_path(SMALL), {"file_bytes": 1000}, LIMIT, "set `file_bytes` of xnorpp_options"),
        (file, {"threads": -1}, ARGUMENT, "`threads` (=-1) must be 1 to 1024"),
        (file, {"isa": b"sse2"}, ARGUMENT, "sse2"),
    ]
    for source, options, status, message in cases:
        with pytest.raises(CError) as error:
            CModel(library, source, **options)
        assert error.value.status == status, (options, str(error.value))
        assert message in str(error.value)
        assert "\n" not in str(error.value)
    model = CModel(library, file)
    for image, top, message in (
        (np.zeros((2, 2, 3), np.uint8), 0, "`top` (=0)"),
        (np.zeros((2, 0, 3), np.uint8), 1, "`width` (=0)"),
    ):
        with pytest.raises(CError, match="must be") as error:
            model.classify(image, top)
        assert (error.value.status, message in str(error.value)) == (ARGUMENT, True)
    assert library.xnorpp_load(None, None, None, None) == ARGUMENT
    library.xnorpp_free(None)


def test_limits_of_python_keep_their_advice() -> None:
    with pytest.raises(
        ValueError,
        match=r"allows 1000; pass limits=Limits\(memory_bytes=\.\.\.\) with a larger number to `load`",
    ):
        xnorpp.load(shipped_path(SMALL), limits=xnorpp.runtime.Limits(memory_bytes=1000)).start()


def write_ppm(path: Path, image: np.ndarray) -> Path:
    Image.fromarray(image).save(path)
    return path


def run(*command: Any, data: bytes | None = None) -> tuple[int, str, str]:
    done = subprocess.run([str(part) for part in command], input=data, capture_output=True)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_xnorpp_run_prints_what_predict_prints(
    tool: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from xnorpp.cli.main import main

    monkeypatch.setattr(Image.Image, "resize", rows_first)
    rng = np.random.default_rng(4)
    names = [
        write_ppm(tmp_path / name, rng.integers(0, 256, shape, np.uint8))
        for name, shape in (("a.ppm", (32, 32, 3)), ("b.ppm", (47, 61, 3)), ("c.pgm", (40, 40)))
    ]
    assert main(["predict", str(shipped_path(SMALL)), *map(str, names)]) == 0
    code, out, errors = run(tool, shipped_path(SMALL), *names)
    assert (code, errors) == (0, "")
    assert out == capsys.readouterr().out
    raw = np.asarray(Image.open(names[0])).tobytes()
    code, out, _ = run(tool, "--raw", "--top", "2", "--threads", "2", shipped_path(SMALL), "-", data=raw)
    model = xnorpp.load(SMALL)
    best = model.labels[int(model(np.frombuffer(raw, np.uint8).reshape(1, 32, 32, 3)).argmax())]
    assert code == 0
    assert out.startswith(f"-: {best} ")
    assert out.count("%") == 2


def test_xnorpp_run_escapes_labels_and_names_what_is_wrong(tool: str, tmp_path: Path) -> None:
    labels = ("cat\x1b[2J\n", "naïve 猫", "a\u202eb", "\U000e0001", "\t")
    (tmp_path / "m.xnor").write_bytes(classifier((3, 8, 8), labels=labels))
    image = write_ppm(tmp_path / "i.ppm", np.full((8, 8, 3), 200, np.uint8))
    code, out, _ = run(tool, tmp_path / "m.xnor", image)
    assert code == 0
    for label in labels:
        assert printable(label) in out
    assert sorted(out) == sorted(printable(out[:-1]) + "\n")  # nothing else that does not print
    (tmp_path / "cut.ppm").write_bytes(image.read_bytes()[:-1])
    (tmp_path / "other.png").write_bytes(b"\x89PNG")
    code, out, errors = run(tool, tmp_path / "m.xnor", tmp_path / "cut.ppm", tmp_path / "other.png", image)
    assert (code, out.count("\n")) == (1, 1)
    assert "cut.ppm: it is cut off" in errors
    assert "neither a PPM" in errors
    assert run(tool, tmp_path / "i.ppm", image)[0] == 2
    assert run(tool, "--wrong", "m", "i")[::2] == (
        2,
        "xnorpp-run: the option --wrong is unknown; --help lists all\n",
    )
    assert run(tool)[0] == 2
    assert run(tool, "--help")[0] == 0


def test_examples_are_short_and_run(library: Any, tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("C EXAMPLES NOT TESTED: a C compiler is needed")
    folder = built("libxnorpp.so").parent  # type: ignore[union-attr]
    rng = np.random.default_rng(6)
    images = rng.integers(0, 256, (2, 32, 32, 3), np.uint8)
    image = write_ppm(tmp_path / "i.ppm", images[0])
    (tmp_path / "i.raw").write_bytes(images.tobytes())
    flags = [
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{ROOT / 'include'}",
        f"-L{folder}",
        "-lxnorpp",
        f"-Wl,-rpath,{folder}",
    ]
    for source, options, argument in (
        ("classify.c", ["-std=c99", "-pedantic"], image),
        ("batch.cpp", ["-std=c++17"], tmp_path / "i.raw"),
    ):
        path = ROOT / "examples" / "c" / source
        assert len(path.read_text().splitlines()) <= 60
        program = tmp_path / path.stem
        name = compiler if source.endswith(".c") else "c++"
        subprocess.run([name, *options, str(path), *flags, "-o", str(program)], check=True)
        code, out, errors = run(program, shipped_path(SMALL), argument)
        assert (code, errors) == (0, "")
        model = xnorpp.load(SMALL)
        best = model.classify(images[0])[0].label
        assert out.startswith(best) if source.endswith(".c") else out.startswith(f"0 {best}\n1 ")
        assert run(program, argument, argument)[0] == 1
