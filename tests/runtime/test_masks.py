"""Masks of a model with a class for each pixel: their size, and what `xnorpp predict --save` writes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from xnorpp.cli.main import main
from xnorpp.runtime import PackedModel
from xnorpp.runtime.format.program import INPUT, Op, Program
from xnorpp.runtime.masks import colour_of, segment

POOL = {"kernel": [2, 2], "stride": [2, 2], "padding": [0, 0], "ceil_mode": False}
UP = {"size": None, "scale": [2.0, 2.0], "mode": "nearest", "align_corners": False}
FIRST = {"start": [0, 0, 0], "stop": [1, None, None], "step": [1, 1, 1]}
CONV = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1}


def program(free: bool = True, outputs: int = 1, **options: object) -> Program:
    """Grey levels below 1/3, up to 2/3 and above, decided after halving and doubling the image."""
    weight = np.array([0, 1, 2], np.float32).reshape(3, 1, 1, 1)
    bias = np.array([0, -1 / 3, -1], np.float32)
    ops = [
        Op("max_pool2d", "pool", (INPUT,), "half", POOL),
        Op("upsample2d", "up", ("half",), "whole", UP),
        Op("concat", "both", ("whole", INPUT), "joined", {"axis": 0}),  # even sizes only
        Op(
            "slice", "first", ("joined",), "one", {"start": [0] * 3, "stop": [1, None, None], "step": [1] * 3}
        ),
        Op("conv2d", "levels", ("one",), "levels", CONV, {"weight": "w", "bias": "b"}),
        Op("affine", "dark", ("one",), "dark", {}, {"mult": "m", "add": "a"}),
    ]
    tensors = {"w": weight, "b": bias, "m": np.full(1, -1, np.float32), "a": np.full(1, 0.5, np.float32)}
    more = {"dark": "dark"} if outputs == 2 else {}
    if outputs == 1:
        ops, tensors = ops[:-1], {"w": weight, "b": bias}
    labels = ("black", "grey", "white")
    free_axes = (1, 2) if free else ()
    return Program(
        (1, 8, 8), tuple(ops), "levels", tensors, more_outputs=more, free_axes=free_axes, labels=labels,
        **options,
    )  # type: ignore[arg-type]  # fmt: skip


def levels(height: int, width: int) -> np.ndarray:
    """Three bands from left to right, black, grey and white."""
    classes = np.minimum(np.arange(width) * 3 // width, 2)
    return np.broadcast_to((classes * 127).astype(np.uint8), (height, width)).copy()


def test_a_mask_has_the_size_of_its_image() -> None:
    model = PackedModel(program())
    image = levels(12, 36)
    np.testing.assert_array_equal(model.segment(image), image // 127)
    odd = model.segment(levels(13, 35))  # enlarged to 32 x 64 and back
    assert odd.shape == (13, 35)
    assert (odd == levels(13, 35) // 127).mean() > 0.9
    fixed = PackedModel(program(free=False)).segment(levels(12, 36))
    assert fixed.shape == (12, 36)
    assert set(np.unique(fixed)) == {0, 1, 2}


def test_a_stored_size_is_used_and_a_crop_gives_a_mask_of_its_own_size() -> None:
    image = levels(16, 48)
    squashed = PackedModel(program(preprocess={"resize": 8, "crop": 8})).segment(image)
    assert squashed.shape == (16, 48)
    cropped = PackedModel(program(preprocess={"resize": 16, "crop": 8, "aspect": "keep"})).segment(image)
    assert cropped.shape == (8, 8)
    assert np.all(cropped == 1)


def test_several_outputs_and_one_channel() -> None:
    found = PackedModel(program(outputs=2)).segment(levels(8, 24))
    assert set(found) == {"output", "dark"}
    np.testing.assert_array_equal(found["dark"], levels(8, 24) < 128)


def test_shares_and_colours() -> None:
    mask = segment(PackedModel(program()), levels(8, 24))["output"]
    assert list(mask.shares()) == ["black", "grey", "white"]
    assert sum(mask.shares().values()) == pytest.approx(1)
    image = mask.image()
    assert image.mode == "P"
    np.testing.assert_array_equal(np.asarray(image), mask.classes)
    assert len({colour_of(index) for index in range(256)}) == 256
    assert image.convert("RGB").getpixel((23, 0)) == colour_of(2)


def test_the_command_writes_masks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.xnor"
    PackedModel(program()).save(path)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        Image.fromarray(levels(10, 30)).save(tmp_path / folder / "image.png")
    (tmp_path / "b" / "broken.png").write_bytes(b"no image")
    out = tmp_path / "masks"
    arguments = ["predict", str(path), str(tmp_path / "a"), str(tmp_path / "b"), "--save", str(out)]
    assert main(arguments) == 1
    printed = capsys.readouterr()
    assert printed.out.splitlines()[0].endswith("image.png, black 33.3 %, grey 33.3 %, white 33.3 %")
    assert "broken.png cannot be read" in printed.err
    assert sorted(file.name for file in out.iterdir()) == ["image-2.png", "image.png"]
    np.testing.assert_array_equal(np.asarray(Image.open(out / "image.png")), levels(10, 30) // 127)
    assert main([*arguments, "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)
    assert sorted(rows[0]) == ["classes", "height", "image", "mask", "width"]
    assert "error" in rows[1]


def test_what_cannot_be_a_mask_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = tmp_path / "image.png"
    Image.fromarray(levels(8, 8)).save(image)
    assert main(["predict", "--model", "cifar10-resnet20", str(image), "--save", str(tmp_path)]) == 2
    assert "no output of the model has rows and columns" in capsys.readouterr().err
    PackedModel(program()).save(tmp_path / "model.xnor")
    assert main(["predict", str(tmp_path / "model.xnor"), str(image)]) == 2
    assert "--save DIR" in capsys.readouterr().err
    assert main(["predict", str(tmp_path / "model.xnor"), str(image), "--save", str(image)]) == 2
    assert "must be a folder" in capsys.readouterr().err
    options = ["--save", str(tmp_path), "--top", "2"]
    assert main(["predict", str(tmp_path / "model.xnor"), str(image), *options]) == 2
    assert "`--top` (=2) is for labels" in capsys.readouterr().err
