from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from xnorpp.data import Preprocess, dataset_info
from xnorpp.runtime.decode import Blob, CorruptImageError, _array, decode, decode_blob, fit


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


def test_apply_is_the_centre_crop_of_the_squashed_picture(smooth: Any) -> None:
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


def test_right_sized_pictures_pass_unchanged(smooth: Any) -> None:
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
    with pytest.raises(ValueError, match='"crop" is wrong'):
        Preprocess.from_dict({k: v for k, v in preprocess.to_dict().items() if k != "crop"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"channels": 2}, r"`channels` \(=2\) must be 1 or 3"),
        ({"crop": 9}, r"`crop` \(=9\) must be at least 1 and at most `resize` \(=8\)"),
        ({"mean": (0.5,)}, r"`mean` \(=\(0.5,\)\) must have `channels` \(=3\) values"),
        ({"std": (0.5, 0.0, 0.5)}, "must be positive"),
        ({"std": (0.5, 1e-46, 0.5)}, "must be positive in float32"),
        ({"std": (0.5, float("nan"), 0.5)}, "`std` .* must be finite numbers"),
        ({"mean": (0.5, 1e39, 0.5)}, "`mean` .* must be finite numbers"),
        ({"resize": None}, r"`resize` \(=None\) must be an integer"),
        ({"channels": True}, r"`channels` \(=True\) must be an integer"),
        ({"resize": 20000, "crop": 20000}, r"`resize` \(=20000\) must be at most 8192"),
    ],
)
def test_wrong_values_are_named(change: dict[str, object], message: str) -> None:
    values: dict[str, object] = {"resize": 8, "crop": 8, "mean": (0.5,) * 3, "std": (0.5,) * 3, "channels": 3}
    with pytest.raises(ValueError, match=message):
        Preprocess(**{**values, **change})  # type: ignore[arg-type]


def test_a_path_is_no_picture() -> None:
    preprocess = Preprocess(8, 8, (0.5,), (0.5,), 1)
    with pytest.raises(TypeError, match=r"`picture` is str; .* PIL.Image.open\(path\) reads a file"):
        preprocess.apply("x.png")  # type: ignore[arg-type]


def test_wrong_array_is_named() -> None:
    with pytest.raises(ValueError, match=r"`picture` \(=uint8 \(4, 4, 2\)\)"):
        dataset_info("cifar10").preprocess().apply(np.zeros((4, 4, 2), np.uint8))


@pytest.mark.parametrize("data", [b"", b"hello", b"\x89PNG\r\n\x1a\n" + b"\0" * 40, b"\x93NUMPYxx"])
def test_corrupt_bytes(data: bytes) -> None:
    with pytest.raises(CorruptImageError):
        decode(data, 64, 64, 0, 0, 3)


def test_what_is_no_picture_is_told_without_addresses() -> None:
    for data, what in ((b"hello", "no picture format that is known"), (b"", "the file is empty")):
        with pytest.raises(CorruptImageError, match=what) as caught:
            decode(data, 64, 64, 0, 0, 3)
        assert "0x" not in str(caught.value)


@pytest.mark.parametrize("channels", [1, 3])
def test_sixteen_bits_a_pixel_keep_their_upper_eight(channels: int) -> None:
    """Pillow's conversion would cut everything above 255 off: a white picture."""
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


def test_raw_arrays_are_pictures(smooth: Any) -> None:
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
        ("std", [10**400, 1, 1], "`std` must be finite numbers"),
    ],
)
def test_wrong_values_of_a_file_are_one_sentence(key: str, value: object, message: str) -> None:
    values = dataset_info("cifar10").preprocess().to_dict()
    with pytest.raises(ValueError, match=message):
        Preprocess.from_dict({**values, key: value})
