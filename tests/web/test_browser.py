"""The browser package in Node and in Chromium against Python: the same bytes give the same classes."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from random_programs import Builder, random_program

import xnorpp
from browser import DIST, chromium, result_of
from xnorpp.runtime.format.program import Program, encode
from xnorpp.shipped import shipped_path

HERE = Path(__file__).resolve().parent
COUNT = 100
PAGE_BYTES = 600_000


def images(count: int, size: int, seed: int = 0) -> np.ndarray:
    """Coloured cells of many sizes, sharp or smooth: images that a network takes for different things."""
    rng = np.random.default_rng(seed)
    images = []
    for _ in range(count):
        cells = int(rng.integers(2, 9))
        coarse = Image.fromarray(rng.integers(0, 256, (cells, cells, 3), dtype=np.uint8))
        way = Image.Resampling.BICUBIC if rng.integers(2) else Image.Resampling.NEAREST
        image = np.asarray(coarse.resize((size, size), way)).astype(int) * int(rng.integers(2, 9)) // 8
        images.append(np.clip(image + rng.integers(0, 24, image.shape), 0, 255))
    return np.asarray(images, np.uint8)


def program_of_any_size() -> Program:
    """An image and half of it, made as large again: enlarged, with zeros around it, and as tokens."""
    b, rule = Builder((3, 8, 8)), [0, 1, 1, 0]
    pool = {"kernel": [2, 2], "stride": [2, 2], "padding": [0, 0], "ceil_mode": False}
    half = b.emit("max_pool2d", "input", attrs=pool)
    resize = {"size": [rule, rule], "mode": "bilinear", "align_corners": False}
    fit = {"size": [rule, rule], "before": ["half", 0], "mode": "constant", "value": 0.0}
    tokens = b.emit("reshape_to", "input", "input", attrs={"shape": [3, -1]})
    back = b.emit("reshape_to", tokens, "input", attrs={"shape": [3, [1, *rule], [2, *rule]]})
    parts = [b.emit("resize2d", half, "input", attrs=resize), b.emit("fit2d", half, "input", attrs=fit), back]
    return b.program(b.emit("concat", *parts, attrs={"axis": 0}), free_axes=(1, 2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, the checks, models and images."""
    if not (DIST / "page" / "lib").exists():
        pytest.skip("BROWSER PACKAGE NOT TESTED: it is not built; `make web-setup web` builds it")
    folder = tmp_path_factory.mktemp("web")
    shutil.copytree(DIST / "page" / "lib", folder / "lib")
    for name in ("check.html", "check.mjs"):
        shutil.copy(HERE / name, folder)
    cases: list[dict[str, Any]] = []

    def add(
        name: str, content: bytes, images: np.ndarray, build: str | None = None, resized: bool = False
    ) -> None:
        (folder / name).write_bytes(content)
        (folder / f"{name}.images").write_bytes(images.tobytes())
        case = {"model": name, "images": f"{name}.images", "count": len(images), "build": build}
        cases.append({**case, "size": list(images.shape[1:3]) if resized else None})

    small = shipped_path("cifar10-resnet20").read_bytes()
    add("small", small, images(COUNT, 32))
    add("small-simd", small, images(COUNT, 32), "simd")
    add("large", shipped_path("cifar10-resnet18").read_bytes(), images(10, 32, seed=1))
    add("tiny", shipped_path("tiny-imagenet-resnet18").read_bytes(), images(6, 64, seed=2))
    rng = np.random.default_rng(3)
    for seed in (2, 5, 8, 11, 14, 17):
        program = random_program(seed)
        channels, height, width = program.input_shape
        if channels <= 4:
            add(
                f"random-{seed}",
                encode(program),
                rng.integers(0, 256, (3, height, width, channels), np.uint8),
            )
    any_size = encode(program_of_any_size())
    add("random-any", any_size, rng.integers(0, 256, (2, 17, 23, 3), np.uint8), resized=True)
    (folder / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
    return folder


def compare(folder: Path, found: dict[str, Any]) -> dict[str, str]:
    """Every case against Python; the kernels that ran, by model."""
    assert "error" not in found, found["error"]
    cases = {case["model"]: case for case in json.loads((folder / "cases.json").read_text())}
    for result in found["results"]:
        name = result["model"]
        model = xnorpp.PackedModel(_program(folder / name), threads=1)
        channels, height, width = model.input_shape
        height, width = cases[name]["size"] or (height, width)
        count = cases[name]["count"]
        images = np.fromfile(folder / f"{name}.images", np.uint8).reshape(count, height, width, channels)
        wanted = model(images)
        outputs = np.asarray([np.nan if x is None else x for x in result["outputs"]], np.float32).reshape(
            wanted.shape
        )
        if name.startswith("random"):
            np.testing.assert_allclose(outputs, wanted, rtol=1e-3, atol=1e-3 * float(np.abs(wanted).max()))
            continue
        assert len(set(wanted.argmax(1))) > 2  # the images are not all the same to the network
        np.testing.assert_array_equal(outputs.argmax(1), wanted.argmax(1))
        # Real-valued sums may be rounded in another way, which rarely turns a sign and what follows from it.
        error = np.abs(outputs - wanted).max(1) / np.abs(wanted).max(1)
        assert np.mean(error < 2e-6) >= 0.95, np.sort(error)
        np.testing.assert_array_equal(result["again"], result["outputs"][: len(result["again"])])
        guesses = model.classify(images[0], top=3)
        assert [guess["label"] for guess in result["guesses"]] == [guess.label for guess in guesses]
        np.testing.assert_allclose(
            [guess["probability"] for guess in result["guesses"]], [g.probability for g in guesses], atol=2e-3
        )
        assert result["fileBytes"] == (folder / name).stat().st_size
        assert result["labels"] == list(model.labels or ())
    damaged, limit, size, pixels, top, fixed = found["errors"]
    assert fixed == "the model takes images of one size only, 3 x 32 x 32"
    assert damaged == "the checksum does not match; the file is damaged"
    assert "memory_bytes" in limit
    assert "5 numbers; 1 x 3072 (3 x 32 x 32) are needed" in size
    assert "must be an ImageData" in pixels
    assert "`top` (=0)" in top
    assert found["grown"] == 0
    return {result["model"]: result["isa"] for result in found["results"]}


def _program(path: Path) -> Any:
    from xnorpp.runtime.format.program import read

    return read(path.read_bytes())


def test_node_gives_the_classes_of_python(folder: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("BROWSER PACKAGE NOT TESTED IN NODE: node is not installed")
    done = subprocess.run([node, HERE / "check_node.mjs", folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert compare(folder, json.loads(done.stdout))["small-simd"] == "wasm-simd"


def test_chromium_gives_the_classes_of_python(folder: Path) -> None:
    if chromium() is None:
        pytest.skip("BROWSER PACKAGE NOT TESTED IN A BROWSER: chromium is not installed")
    isas = compare(folder, result_of(folder, "check.html"))
    assert isas["small-simd"] == "wasm-simd"
    assert isas["small"] == "wasm-relaxed"  # of a Chromium since 2023 on a machine that fuses


def test_the_page_is_small_and_needs_no_other_server(folder: Path) -> None:
    page = DIST / "page"
    loaded = [page / name for name in ("index.html", "style.css", "app.js", "board.js", "compare.js")]
    loaded += [page / "lib" / name for name in ("xnorpp.js", "instance.js", "xnorpp-relaxed.wasm.gz")]
    loaded += [page / "models" / "cifar10-resnet20.xnor"]
    assert sum(path.stat().st_size for path in loaded) < PAGE_BYTES
    for path in [*page.glob("*.html"), *page.glob("*.js"), *page.glob("*.css"), *(page / "lib").glob("*.js")]:
        text = path.read_text(encoding="utf-8")
        for part in ("https://", "http://"):
            links = [
                line
                for line in text.splitlines()
                if part in line and "<a href=" not in line and "xmlns" not in line
            ]
            assert links == [], path
