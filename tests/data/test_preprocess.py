from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from xnorpp.data import Preprocess, dataset_info
from xnorpp.runtime.decode import Blob, CorruptImageError, _array, decode, decode_blob, fit, load_image
from xnorpp.runtime.format.preprocess import normalise, normalise_constants, scale_and_offset


@settings(max_examples=25, deadline=None)
@given(
    width=st.integers(20, 700),
    height=st.integers(20, 700),
    top=st.integers(0, 32),
    left=st.integers(0, 32),
    seed=st.integers(0, 99),
)
def test_cropping_while_resizing_equals_resizing_then_cropping(
    smooth: Any, width: int, height: int, top: int, left: int, seed: int
) -> None:
    image = Image.fromarray(smooth(seed, width, height))
    whole = np.asarray(image.resize((256, 256), Image.Resampling.BILINEAR))
    cropped = whole[top : top + 224, left : left + 224].astype(int)
    assert np.abs(fit(image, 256, 224, top, left, 3) - cropped).max() <= 1


@pytest.mark.parametrize(("width", "height"), [(500, 375), (375, 500), (500, 333), (300, 300), (100, 80)])
def test_cropping_while_resizing_is_exact_for_usual_sizes(smooth: Any, width: int, height: int) -> None:
    image = Image.fromarray(smooth(1, width, height))
    whole = np.asarray(image.resize((256, 256), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(fit(image, 256, 224, 32, 7, 3), whole[32:256, 7:231])


def test_apply_is_the_centre_crop_of_the_squashed_image(smooth: Any) -> None:
    preprocess = dataset_info("imagenet").preprocess()
    image = Image.fromarray(smooth(1, 500, 375))
    expected = np.asarray(image.resize((256, 256), Image.Resampling.BILINEAR))[16:240, 16:240]
    np.testing.assert_array_equal(preprocess.apply(image), expected)
    np.testing.assert_array_equal(preprocess.apply(np.asarray(image)), expected)


def test_alexnet_and_other_sizes() -> None:
    info = dataset_info("imagenet")
    assert (info.preprocess(227).resize, info.preprocess(227).crop) == (256, 227)
    assert (info.preprocess(112).resize, info.preprocess(112).crop) == (128, 112)
    assert dataset_info("cifar10").preprocess(64).resize == 64


def test_right_sized_images_pass_unchanged(smooth: Any) -> None:
    pixels = smooth(3, 32, 32)
    np.testing.assert_array_equal(dataset_info("cifar10").preprocess().apply(pixels), pixels)
    grey = pixels[:28, :28, :1]
    np.testing.assert_array_equal(dataset_info("mnist").preprocess().apply(grey), grey)


def test_modes_are_converted() -> None:
    preprocess = Preprocess(resize=16, crop=16, mean=(0.5,) * 3, std=(0.5,) * 3)
    for mode in ("L", "CMYK", "RGBA", "P", "1"):
        assert preprocess.apply(Image.new("RGB", (20, 10), (255, 255, 255)).convert(mode)).shape == (
            16,
            16,
            3,
        )
    one = Preprocess(resize=16, crop=8, mean=(0.5,), std=(0.5,), channels=1)
    assert one.apply(Image.new("RGB", (20, 10))).shape == (8, 8, 1)


def test_normalise_is_the_formula() -> None:
    preprocess = Preprocess(resize=4, crop=4, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    images = np.random.default_rng(0).integers(0, 256, (2, 4, 4, 3), np.uint8)
    expected = (images / 255.0 - np.array(preprocess.mean)) / np.array(preprocess.std)
    out = preprocess.normalise(images)
    assert out.dtype == np.float32
    assert out.flags.c_contiguous
    np.testing.assert_allclose(out, expected.transpose(0, 3, 1, 2), rtol=2e-6, atol=1e-6)
    with pytest.raises(ValueError, match=r"`images` \(=float64"):
        preprocess.normalise(images / 255.0)  # type: ignore[arg-type]


def test_travels_as_json() -> None:
    preprocess = dataset_info("tiny_imagenet").preprocess()
    assert Preprocess.from_dict(json.loads(json.dumps(preprocess.to_dict()))) == preprocess
    assert set(preprocess.to_dict()) == {"resize", "crop", "mean", "std", "channels"}  # as in version 1
    other = replace(preprocess, resize=(70, 80), crop=(64, 72), interpolation="bicubic")
    assert Preprocess.from_dict(json.loads(json.dumps(other.to_dict()))) == other
    with pytest.raises(ValueError, match="has the key 'flip'; allowed are resize, crop, mean, std, channels"):
        Preprocess.from_dict({**preprocess.to_dict(), "flip": True})


def test_missing_fields_have_the_stated_defaults() -> None:
    assert Preprocess.from_dict({}, (3, 8, 8)) == Preprocess(8, 8, (0.0,) * 3, (1.0,) * 3)
    assert Preprocess.from_dict({}, (1, 8, 6)) == Preprocess((8, 6), (8, 6), (0.0,), (1.0,), 1)
    assert Preprocess.from_dict({"resize": 11}, (3, 11, 10)).size == (11, 10)
    assert Preprocess.from_dict({"resize": 9}) == Preprocess(9, 9, (0.0,) * 3, (1.0,) * 3)
    assert Preprocess.from_dict({"crop": 9, "mean": [0.5]}).channels == 1
    with pytest.raises(ValueError, match=r"`resize` \(=None\) must be an integer, or a pair"):
        Preprocess.from_dict({"mean": [0.5]})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"channels": 5}, r"`channels` \(=5\) must be an integer, 1, 2, 3 or 4"),
        ({"channels": True}, r"`channels` \(=True\) must be an integer"),
        ({"resize": None}, r"`resize` \(=None\) must be an integer, or a pair of them \(height, width\)"),
        ({"resize": 8.0}, r"`resize` \(=8.0\) must be an integer"),
        ({"resize": "8"}, r"`resize` \(='8'\) must be an integer"),
        ({"resize": [8]}, r"`resize` \(=\[8\]\) must be an integer, or a pair"),
        ({"resize": []}, r"`resize` \(=\[\]\) must be an integer, or a pair"),
        ({"resize": (8, 8, 8)}, r"must be an integer, or a pair"),
        ({"resize": 20000}, r"`resize` \(=20000\) must be at most 8192"),
        ({"crop": 0}, r"`crop` \(=0\) must be at least 1"),
        ({"resize": (8, 16), "crop": (8, 17)}, r"`crop` \(=\(8, 17\)\) must be at least 1 and at most"),
        ({"aspect": "crop"}, r"`aspect` \(='crop'\) must be \"squash\" or \"keep\""),
        ({"interpolation": "cubic"}, r"must be \"nearest\", \"bilinear\", \"bicubic\" or \"lanczos\""),
        ({"mean": 5}, r"`mean` \(=5\) must be a list of numbers, one per channel"),
        ({"mean": "abc"}, r"`mean` \(='abc'\) must be a list of numbers"),
        ({"mean": {"a": 1}}, "must be a list of numbers"),
        ({"mean": (0.5, 1e39, 0.5)}, "`mean` .* must be finite numbers"),
        ({"mean": (10**400, 0, 0)}, r"must be finite numbers"),
        ({"std": ["nan"] * 3}, r"`std` \(=\['nan', 'nan', 'nan'\]\) must be a list of numbers"),
        ({"std": [float("nan")] * 3}, r"must be finite numbers"),
        ({"std": [1e-46] * 3}, r"must be positive in float32"),
        ({"crop": 9}, r"`crop` \(=9\) must be at least 1 and at most `resize` \(=8\)"),
        ({"mean": (0.5,)}, r"`mean` \(=\(0.5,\)\) must have `channels` \(=3\) values"),
        ({"std": (0.5, 0.0, 0.5)}, "must be positive"),
        ({"std": (0.5, 1e-46, 0.5)}, "must be positive in float32"),
        ({"std": (0.5, float("nan"), 0.5)}, "`std` .* must be finite numbers"),
        ({"resize": None}, r"`resize` \(=None\) must be an integer"),
        ({"resize": 20000, "crop": 20000}, r"`resize` \(=20000\) must be at most 8192"),
    ],
)
def test_wrong_values_are_named(change: dict[str, object], message: str) -> None:
    values: dict[str, object] = {"resize": 8, "crop": 8, "mean": (0.5,) * 3, "std": (0.5,) * 3, "channels": 3}
    with pytest.raises(ValueError, match=message):
        Preprocess(**{**values, **change})  # type: ignore[arg-type]


def test_a_path_is_no_image() -> None:
    preprocess = Preprocess(8, 8, (0.5,), (0.5,), 1)
    with pytest.raises(TypeError, match=r"`image` is str; .* PIL.Image.open\(path\) reads a file"):
        preprocess.apply("x.png")  # type: ignore[arg-type]


def test_wrong_array_is_named() -> None:
    for array in (np.zeros((4, 4, 5), np.uint8), np.zeros((4, 4, 3), np.int64), np.zeros((0, 4), np.uint8)):
        with pytest.raises(ValueError, match=r"`image` \(=.*\) must be uint8 of shape \(H, W\) or"):
            dataset_info("cifar10").preprocess().apply(array)


@pytest.mark.parametrize("data", [b"", b"hello", b"\x89PNG\r\n\x1a\n" + b"\0" * 40, b"\x93NUMPYxx"])
def test_corrupt_bytes(data: bytes) -> None:
    with pytest.raises(CorruptImageError):
        decode(data, 64, 64, 0, 0, 3)


def test_what_is_no_image_is_told_without_addresses() -> None:
    for data, what in (
        (b"hello", "^not a recognised image format; those are JPEG, PNG, "),
        (b"", "the file is empty"),
    ):
        with pytest.raises(CorruptImageError, match=what) as caught:
            decode(data, 64, 64, 0, 0, 3)
        assert "0x" not in str(caught.value)


@pytest.mark.parametrize("channels", [1, 3])
def test_sixteen_bits_a_pixel_keep_their_upper_eight(channels: int) -> None:
    """Pillow's conversion would cut everything above 255 off: a white image."""
    grey = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1040
    file = io.BytesIO()
    Image.fromarray(grey).save(file, "PNG")
    found = decode(file.getvalue(), 8, 8, 0, 0, channels)
    assert np.array_equal(found, np.repeat((grey >> 8)[..., None], channels, axis=2))


def test_a_truncated_jpeg_is_corrupt(jpeg: Any) -> None:
    with pytest.raises(CorruptImageError, match="truncated"):
        decode(jpeg(0)[:-200], 64, 64, 0, 0, 3)


def test_corrupt_blobs(tmp_path: object) -> None:
    with pytest.raises(CorruptImageError, match=r"^there is no such file$"):
        decode_blob(Blob("/no/such/file"), 64, 64, 0, 0, 3)
    with pytest.raises(CorruptImageError, match=r"^it is a folder$"):
        decode_blob(Blob(str(tmp_path)), 64, 64, 0, 0, 3)
    path = f"{tmp_path}/short"
    with open(path, "wb") as file:
        file.write(b"12345")
    with pytest.raises(CorruptImageError, match="5 bytes where 9 were expected"):
        decode_blob(Blob(path, 0, 9), 64, 64, 0, 0, 3)


def test_a_decompression_bomb_is_corrupt(jpeg: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(CorruptImageError, match="DecompressionBomb"):
        decode(jpeg(0), 64, 64, 0, 0, 3)


def test_fast_decoding_is_close_and_only_touches_large_jpegs(jpeg: Any) -> None:
    large = jpeg(5, 500, 375)
    exact = decode(large, 256, 224, 16, 16, 3).astype(int)
    fast = decode(large, 256, 224, 16, 16, 3, fast=True).astype(int)
    assert 0 < np.abs(exact - fast).mean() < 3
    small = jpeg(5, 300, 200)
    np.testing.assert_array_equal(
        decode(small, 256, 224, 0, 0, 3), decode(small, 256, 224, 0, 0, 3, fast=True)
    )


def test_raw_arrays_are_images(smooth: Any) -> None:
    pixels = smooth(2, 256, 256)
    file = io.BytesIO()
    np.save(file, pixels)
    np.testing.assert_array_equal(decode(file.getvalue(), 256, 224, 3, 5, 3), pixels[3:227, 5:229])
    np.testing.assert_array_equal(
        decode(file.getvalue(), 128, 112, 3, 5, 3), fit(Image.fromarray(pixels), 128, 112, 3, 5, 3)
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a,
        np.asfortranarray,
        lambda a: a[:, ::-1],
        lambda a: a.astype(np.int64),
        lambda a: a[:, :, 0],
    ],
)
@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_every_raw_array_is_read_as_numpy_reads_it(change: Any, version: tuple[int, int]) -> None:
    array = change(np.arange(10 * 12 * 3, dtype=np.uint8).reshape(10, 12, 3))
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=version)
    for _ in range(2):  # the second time from the remembered header
        found = _array(file.getvalue())
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)
    with pytest.raises(CorruptImageError):
        decode(file.getvalue()[:-1], 10, 10, 0, 0, 3)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("resize", None, r"`resize` \(=None\) must be an integer"),
        ("crop", "8", r"`crop` \(='8'\) must be an integer"),
        ("mean", 5, r"`mean` \(=5\) must be a list of numbers"),
        ("mean", {"a": 1}, "`mean` .* must be a list of numbers"),
        ("std", ["nan", "1", "1"], "`std` .* must be a list of numbers"),
        ("std", [10**400, 1, 1], "`std` .* must be finite"),
    ],
)
def test_wrong_values_of_a_file_are_one_sentence(key: str, value: object, message: str) -> None:
    values = dataset_info("cifar10").preprocess().to_dict()
    with pytest.raises(ValueError, match=message):
        Preprocess.from_dict({**values, key: value})


def torchvision_pixels(image: Image.Image, resize: Any, crop: tuple[int, int], interpolation: str) -> Any:
    """torchvision's Resize and CenterCrop of a Pillow image, written out from its formulas.

    Resize(n): the shorter side becomes n, the longer int(n * long / short). CenterCrop: round(d / 2).
    """
    width, height = image.size
    if isinstance(resize, int):
        short, long = min(width, height), max(width, height)
        other = int(resize * long / short)
        size = (resize, other) if width <= height else (other, resize)
    else:
        size = (resize[1], resize[0])
    if size != image.size:
        image = image.resize(size, getattr(Image.Resampling, interpolation.upper()))
    top = round((image.height - crop[0]) / 2.0)
    left = round((image.width - crop[1]) / 2.0)
    return np.asarray(image)[top : top + crop[0], left : left + crop[1]]


SIZES = [(500, 375), (375, 500), (333, 500), (31, 29), (100, 24), (24, 24), (640, 480)]


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize(
    ("resize", "crop"),
    [(24, (24, 24)), (27, (24, 24)), (31, (20, 24)), ((24, 31), (24, 24)), ((27, 27), (24, 20))],
)
def test_pixels_are_those_of_torchvision(
    smooth: Any, width: int, height: int, interpolation: str, resize: Any, crop: tuple[int, int]
) -> None:
    image = Image.fromarray(smooth(4, width, height))
    aspect = "keep" if isinstance(resize, int) else "squash"
    ours = Preprocess(resize, crop, (0.5,) * 3, (0.5,) * 3, 3, aspect, interpolation)
    expected = torchvision_pixels(image, resize, crop, interpolation)
    np.testing.assert_array_equal(ours.apply(image), expected)


@pytest.mark.parametrize(
    ("resize", "height", "width", "expected"),
    [
        (256, 375, 500, (256, 341)),  # int(341.33)
        (256, 500, 333, (384, 256)),  # int(384.38)
        (224, 224, 224, (224, 224)),
        (232, 3, 1000, (232, 77333)),
        ((256, 128), 375, 500, (256, 341)),  # timm: ratio min(375/256, 500/128), both sides rounded
        ((128, 256), 375, 500, (192, 256)),
        ((100, 60), 333, 77, (259, 60)),
    ],
)
def test_sizes_that_keep_the_aspect_ratio(resize: Any, height: int, width: int, expected: Any) -> None:
    crop = resize if isinstance(resize, int) else min(resize)
    assert Preprocess(resize, crop, (0.5,), (0.5,), 1, "keep").resized(height, width) == expected


@pytest.mark.parametrize(
    ("margin", "version1", "torchvision"), [(0, 0, 0), (1, 0, 0), (2, 1, 1), (3, 1, 2), (5, 2, 2), (7, 3, 4)]
)
def test_where_the_crop_starts(margin: int, version1: int, torchvision: int) -> None:
    """Version 1 rounds down; torchvision rounds half to even."""
    side = 8 + margin
    old = Preprocess(side, 8, (0.5,), (0.5,), 1)
    assert old.offset(side, side) == (version1, version1)
    for new in (replace(old, aspect="keep"), replace(old, resize=(side, side))):
        assert new.offset(side, side) == (torchvision, torchvision)


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (2, "LA"), (3, "RGB"), (4, "RGBA")])
@pytest.mark.parametrize("aspect", ["squash", "keep"])
def test_one_to_four_channels(channels: int, mode: str, aspect: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 4), np.uint8)
    image = Image.fromarray(pixels)
    ours = Preprocess(12, (12, 10), (0.5,) * channels, (0.5,) * channels, channels, aspect)
    size = (12, 12) if aspect == "squash" else (18, 12)
    whole = np.asarray(image.convert(mode).resize(size, Image.Resampling.BILINEAR)).reshape(
        12, size[0], channels
    )
    left = 1 if aspect == "squash" else 4
    assert np.abs(ours.apply(image).astype(int) - whole[:, left : left + 10]).max() <= (aspect == "squash")
    array = np.asarray(image.convert(mode))
    np.testing.assert_array_equal(ours.apply(array), ours.apply(image))
    assert ours.normalise(ours.apply(array)[None]).shape == (1, channels, 12, 10)


def test_the_input_of_the_model_must_match() -> None:
    ours = Preprocess((20, 30), (16, 24), (0.5,), (0.5,), 1)
    ours.check_input((1, 16, 24))
    ours.check_input((1, -1, -1))
    for shape in ((1, 24, 16), (3, 16, 24), (1, 16, 25)):
        with pytest.raises(
            ValueError, match=r"makes an input of shape \(1, 16, 24\), and the network's is .*; `crop`"
        ):
            ours.check_input(shape)
    assert ours.size == (16, 24)
    with pytest.raises(ValueError, match="must be a square here"):
        _ = ours.side


def test_an_image_that_would_become_huge_is_refused() -> None:
    ours = Preprocess(256, 224, (0.5,), (0.5,), 1, "keep")
    with pytest.raises(ValueError, match=r"the image \(=4x40000\) would be resized to 256x2560000"):
        ours.apply(Image.new("L", (4, 40000)))
    assert replace(ours, aspect="squash").apply(Image.new("L", (4, 40000))).shape == (224, 224, 1)


def test_distortion() -> None:
    square = Preprocess(32, 32, (0.5,), (0.5,), 1)
    assert square.distortion(400, 1600) == square.distortion(1600, 400) == 4
    assert replace(square, aspect="keep").distortion(400, 1600) == 1
    assert replace(square, resize=(32, 64)).distortion(400, 800) == 1


def test_normalisation_has_one_definition() -> None:
    mean, std = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    images = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    centre, width = normalise_constants(mean, std)
    expected = ((images.astype(np.float32) / np.float32(255) - centre) / width).transpose(0, 3, 1, 2)
    found = normalise(images, mean, std)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(Preprocess(4, 4, mean, std).normalise(images), expected)
    scale, offset = scale_and_offset(mean, std)
    assert scale.dtype == offset.dtype == np.float32
    np.testing.assert_allclose(
        (images * scale + offset).transpose(0, 3, 1, 2), expected, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("name", ["JPEG", "PNG", "BMP", "GIF", "PPM", "WEBP", "TIFF", "MPO"])
def test_named_formats_are_decoded(smooth: Any, name: str) -> None:
    image, file = Image.fromarray(smooth(0, 40, 30)), io.BytesIO()
    image.save(file, name, **({"save_all": True, "append_images": [image]} if name == "MPO" else {}))
    found = load_image(file.getvalue())
    assert found.size == (40, 30)
    assert np.abs(np.asarray(found.convert("RGB")).astype(int) - np.asarray(image)).mean() < 12


@pytest.mark.parametrize("name", ["EPS", "PCX", "TGA", "ICO", "PDF"])
def test_other_formats_are_not(smooth: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import EpsImagePlugin

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_: pytest.fail("Ghostscript was asked for"))
    file = io.BytesIO()
    Image.fromarray(smooth(0, 40, 30)).save(file, name)
    for read in (lambda data: load_image(data), lambda data: decode(data, 8, 8, 0, 0, 3)):
        with pytest.raises(CorruptImageError, match="not a recognised image format; those are JPEG"):
            read(file.getvalue())


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    """A FIFO that nobody writes to would block for ever; a device never ends."""
    fifo = tmp_path / "x.png"
    os.mkfifo(fifo)
    for path in (str(fifo), "/dev/zero", "/dev/null"):
        with pytest.raises(CorruptImageError, match=r"^it is not a regular file$"):
            load_image(path)
        with pytest.raises(CorruptImageError, match=r"^it is not a regular file$"):
            decode_blob(Blob(path), 8, 8, 0, 0, 3)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.png"
    with open(path, "wb") as file:
        file.truncate((1 << 30) + 1)  # holes: it takes no room
    with pytest.raises(CorruptImageError, match="more than 1,073,741,824 bytes"):
        load_image(path)
