"""Predictions of a packed model, called from Python."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from xnorpp.predict import predict, prepared
from xnorpp.runtime import Model, load
from xnorpp.runtime.format.program import INPUT, Op, Program


@pytest.fixture(scope="module")
def model() -> Model:
    """Four classes on an 8x8 grey picture: which quarter is the brightest."""
    quarters = np.zeros((4, 1, 8, 8), np.float32)
    for index, (top, left) in enumerate(((0, 0), (0, 4), (4, 0), (4, 4))):
        quarters[index, 0, top : top + 4, left : left + 4] = 1
    ops = (
        Op("flatten", "flat", (INPUT,), "flat"),
        Op("linear", "quarters", ("flat",), "out", {}, {"weight": "quarters"}),
    )
    labels = ("top left", "top right", "bottom left", "bottom right")
    return load(Program((1, 8, 8), ops, "out", {"quarters": quarters.reshape(4, 64)}, labels=labels))


def picture(path: Path, orientation: int | None = None) -> Path:
    """A picture whose top left quarter is white, saved with that EXIF orientation."""
    pixels = np.zeros((24, 32), np.uint8)
    pixels[:12, :16] = 255
    exif = Image.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
    Image.fromarray(pixels).save(path, exif=exif, quality=95)
    return path


def first(model: Model, path: Path) -> str:
    return next(predict(model, path, top=1)).guesses[0].label


def test_a_path_by_itself_is_one_picture(model: Model, tmp_path: Path) -> None:
    path = picture(tmp_path / "a.png")
    for given in (path, str(path), [path]):
        found = list(predict(model, given))
        assert [one.image for one in found] == [str(path)]
        assert found[0].guesses[0].label == "top left"


@pytest.mark.parametrize(
    ("orientation", "shown"),
    [(None, "top left"), (1, "top left"), (3, "bottom right"), (6, "top right"), (8, "bottom left")],
)
def test_a_photo_is_turned_as_its_exif_orientation_says(
    orientation: int | None, shown: str, model: Model, tmp_path: Path
) -> None:
    assert first(model, picture(tmp_path / "photo.jpg", orientation)) == shown


def test_a_damaged_exif_block_does_not_spoil_the_picture(model: Model, tmp_path: Path) -> None:
    path = picture(tmp_path / "photo.jpg", 6)
    path.write_bytes(path.read_bytes().replace(b"Exif\0\0MM\0*", b"Exif\0\0MM\0?"))
    assert first(model, path) == "top left"


def test_a_picture_cut_off_is_still_an_error(model: Model, tmp_path: Path) -> None:
    for name in ("cut.png", "cut.jpg"):
        path = picture(tmp_path / name, 6)
        path.write_bytes(path.read_bytes()[:-60])
        assert next(predict(model, path)).error, name


def test_what_must_be_positive_is_named_alone(model: Model) -> None:
    for arguments, words in (
        ({"top": 0}, r"^`top` \(=0\) must be at least 1$"),
        ({"batch": 0}, r"^`batch` \(=0\) must be at least 1$"),
    ):
        with pytest.raises(ValueError, match=words):
            next(predict(model, "a.png", **arguments))
    with pytest.raises(ValueError, match=r"^`workers` \(=0\) must be at least 1$"):
        next(prepared(None, None, 1, 0, []))  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [9, 4000])
def test_a_preprocess_that_does_not_fit_the_input_is_refused_before_an_image_is_read(
    model: Model, tmp_path: Path, size: int
) -> None:
    """A file could ask for images of any size; the network refused them when they were there."""
    mapping = {"resize": size, "crop": size, "mean": [0.0], "std": [1.0], "channels": 1}
    other = load(replace(model.program, preprocess=mapping))
    message = rf"makes an input of shape \(1, {size}, {size}\), and the network's is \(1, 8, 8\)"
    with pytest.raises(ValueError, match=message):
        next(iter(predict(other, tmp_path / "is never read.png")))
