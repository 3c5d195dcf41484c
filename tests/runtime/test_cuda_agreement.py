"""The script that compares both engines on a GPU, rehearsed on a GPU that is the CPU."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from cuda_host import cases, device

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
HERE = Path(__file__).parent


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"agreement_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


agree = _load(HERE.parents[1] / "benchmarks" / "cuda_agreement.py")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    device.install(monkeypatch, device.machine.shared_folder(tmp_path_factory))


def test_equal_engines_and_a_part_that_fails(fake: None) -> None:
    """Without tensor cores everything is equal, bytes or floats; a part that fails stops no other."""
    program = cases.network("small", "xnor++", "channel_height_width")
    c, h, w = program.input_shape
    images = np.random.default_rng(0).integers(0, 256, (20, h, w, c), dtype=np.uint8)
    popc = {"tensor_cores": False, "residual": "float32"}
    kinds = (
        agree.Kind("bytes", popc), agree.Kind("wrong", {"residual": "float8"}),
        agree.Kind("floats", popc, from_bytes=False, most=12),
    )  # fmt: skip
    kept: list[dict[str, Any]] = []
    found = agree.agreement(program, images, print, lambda part: kept.append(dict(part)), kinds)
    assert len(kept) == 6
    assert set(found["failed"]) == {"classes, wrong", "signs, wrong"}
    for title, count in (("bytes", 20), ("floats", 12)):
        assert found[f"images_{title}"] == count
        assert found[f"same_class_{title}"] == found[f"equal_bits_{title}"] == 1.0
        assert found[f"largest_difference_{title}"] == 0.0
        assert found[f"signs_differing_{title}"] == 0
        assert len(found[f"signs_{title}"]) > 4
    text = agree.table(found, kinds)
    assert "100.00%" in text
    assert "FAILED classes, wrong: ValueError" in text


def test_without_a_core_a_few_images_are_compared_and_it_says_so(
    fake: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from xnorpp.runtime import cpu

    class Old:
        @staticmethod
        def Engine(*given: Any) -> None:
            raise RuntimeError("std::bad_cast")

    monkeypatch.setattr(cpu, "_core", Old)
    program = cases.network("small", "xnor++", "channel_height_width")
    c, h, w = program.input_shape
    images = np.random.default_rng(0).integers(0, 256, (30, h, w, c), dtype=np.uint8)
    said: list[str] = []
    kinds = (agree.Kind("bytes", {"tensor_cores": False}),)
    found = agree.agreement(program, images, said.append, kinds=kinds)
    assert found["images_bytes"] == 24
    assert found["failed"] == {"cpu engine": "the native core does not run"}
    assert "build it again" in said[0]


def test_differences_are_counted(fake: None, monkeypatch: pytest.MonkeyPatch) -> None:
    program = cases.network("small", "xnor++", "channel_height_width")
    c, h, w = program.input_shape
    images = np.random.default_rng(0).integers(0, 256, (4, h, w, c), dtype=np.uint8)
    kind = agree.Kind("bytes", {"tensor_cores": False, "residual": "float32"})
    real = agree.cpu_signs

    def one_turned(*given: Any) -> dict[str, np.ndarray]:
        signs = real(*given)
        first = next(iter(signs))
        signs[first] = signs[first].copy()
        signs[first].flat[5] ^= True
        return signs

    monkeypatch.setattr(agree, "cpu_signs", one_turned)
    rows = agree.differing_signs(program, kind, images)["signs_bytes"]
    assert [row[1] for row in rows] == [1] + [0] * (len(rows) - 1)
    scores = np.eye(4, dtype=np.float32)
    compared = agree.compare("x", scores, scores[[0, 1, 3, 2]])
    assert compared["same_class_x"] == 0.5
    assert compared["changed_classes_x"] == 2
    assert compared["equal_bits_x"] == 0.75
