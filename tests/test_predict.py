"""Predictions of a packed model, called from Python."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from xnorpp.cli.main import main
from xnorpp.data import FolderDataset, dataset_info
from xnorpp.data.evaluate import evaluate_packed, prepared
from xnorpp.runtime import PackedModel, load
from xnorpp.runtime.format.program import INPUT, Op, Program
from xnorpp.runtime.predict import predict, printable, probabilities, temperature_of


@pytest.fixture(scope="module")
def model() -> PackedModel:
    """Four classes on an 8x8 grey image: which quarter is the brightest."""
    quarters = np.zeros((4, 1, 8, 8), np.float32)
    for index, (top, left) in enumerate(((0, 0), (0, 4), (4, 0), (4, 4))):
        quarters[index, 0, top : top + 4, left : left + 4] = 1
    ops = (
        Op("flatten", "flat", (INPUT,), "flat"),
        Op("linear", "quarters", ("flat",), "out", {}, {"weight": "quarters"}),
    )
    labels = ("top left", "top right", "bottom left", "bottom right")
    return load(Program((1, 8, 8), ops, "out", {"quarters": quarters.reshape(4, 64)}, labels=labels))


def image(path: Path, orientation: int | None = None) -> Path:
    """An image whose top left quarter is white, saved with that EXIF orientation."""
    pixels = np.zeros((24, 32), np.uint8)
    pixels[:12, :16] = 255
    exif = Image.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
    Image.fromarray(pixels).save(path, exif=exif, quality=95)
    return path


def first(model: PackedModel, path: Path) -> str:
    return next(predict(model, path, top=1)).guesses[0].label


def test_a_path_by_itself_is_one_image(model: PackedModel, tmp_path: Path) -> None:
    path = image(tmp_path / "a.png")
    for given in (path, str(path), [path]):
        found = list(predict(model, given))
        assert [one.image for one in found] == [str(path)]
        assert found[0].guesses[0].label == "top left"


@pytest.mark.parametrize(
    ("orientation", "shown"),
    [(None, "top left"), (1, "top left"), (3, "bottom right"), (6, "top right"), (8, "bottom left")],
)
def test_a_photo_is_turned_as_its_exif_orientation_says(
    orientation: int | None, shown: str, model: PackedModel, tmp_path: Path
) -> None:
    assert first(model, image(tmp_path / "photo.jpg", orientation)) == shown


def test_a_damaged_exif_block_does_not_spoil_the_image(model: PackedModel, tmp_path: Path) -> None:
    path = image(tmp_path / "photo.jpg", 6)
    path.write_bytes(path.read_bytes().replace(b"Exif\0\0MM\0*", b"Exif\0\0MM\0?"))
    assert first(model, path) == "top left"


def test_a_image_cut_off_is_still_an_error(model: PackedModel, tmp_path: Path) -> None:
    for name in ("cut.png", "cut.jpg"):
        path = image(tmp_path / name, 6)
        path.write_bytes(path.read_bytes()[:-60])
        assert next(predict(model, path)).error, name


def test_what_must_be_positive_is_named_alone(model: PackedModel) -> None:
    for arguments, words in (
        ({"top": 0}, r"^`top` \(=0\) must be at least 1$"),
        ({"batch": 0}, r"^`batch` \(=0\) must be at least 1$"),
    ):
        with pytest.raises(ValueError, match=words):
            next(predict(model, "a.png", **arguments))
    with pytest.raises(ValueError, match=r"^`workers` \(=0\) must be at least 1$"):
        next(prepared(None, None, 1, 0, []))  # type: ignore[arg-type]


def test_what_is_no_file_is_an_error_of_that_image_alone(model: PackedModel, tmp_path: Path) -> None:
    """And a FIFO does not block."""
    fifo = tmp_path / "fifo.png"
    os.mkfifo(fifo)
    good = image(tmp_path / "a.png")
    found = list(predict(model, [fifo, good, tmp_path]))
    assert [one.error for one in found] == ["it is not a regular file", None, "it is a folder"]
    assert found[1].guesses[0].label == "top left"


def test_the_distortion_of_a_squashed_image(model: PackedModel, tmp_path: Path) -> None:
    path = tmp_path / "wide.png"
    Image.new("L", (1600, 400)).save(path)
    assert next(predict(model, path)).distortion == 4
    keep = replace(model.program, preprocess={"resize": 8, "aspect": "keep"})
    assert next(predict(load(keep), path)).distortion == 1


def test_a_stored_temperature_divides_the_outputs(model: PackedModel) -> None:
    outputs = np.float32([[2, 1, 0, -3], [0, 0, 5, 0]])
    powers = np.exp(outputs.astype(float) / 4)
    expected = powers / powers.sum(1, keepdims=True)
    program = replace(model.program, temperature=4.0)
    assert temperature_of(program) == 4
    np.testing.assert_allclose(probabilities(program, outputs), expected, rtol=1e-6)
    plain = probabilities(model.program, outputs)
    assert temperature_of(model.program) == 1
    np.testing.assert_allclose(plain, np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True), rtol=1e-6)
    assert (plain.argmax(1) == expected.argmax(1)).all()
    last = Op("softmax", "softmax", (program.output,), "softmax")
    ends = replace(program, ops=(*program.ops, last), output="softmax")
    np.testing.assert_allclose(probabilities(ends, plain), expected, rtol=1e-5)
    np.testing.assert_array_equal(probabilities(replace(ends, temperature=None), plain), plain)


@pytest.mark.parametrize("value", [0, -1.0, "4", True, float("inf")])
def test_a_temperature_that_is_none(model: PackedModel, value: object) -> None:
    with pytest.raises(ValueError, match=r"temperature|cannot be written as JSON"):
        replace(model.program, temperature=value)


def test_what_is_not_printable_is_escaped() -> None:
    assert printable("chat à la crème, 猫") == "chat à la crème, 猫"
    assert printable("a\x1b[31mb\nc\rd\x9be\u202ef") == r"a\x1b[31mb\nc\rd\x9be\u202ef"


@pytest.fixture
def hostile(model: PackedModel, tmp_path: Path) -> str:
    labels = ("cat\x1b[2J", "two\nlines", "c", "d")
    path = tmp_path / "hostile.xnor"
    load(replace(model.program, labels=labels)).save(path)
    return str(path)


def test_labels_reach_the_terminal_escaped(
    hostile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", hostile, str(image(tmp_path / "a.png"))]) == 0
    out, _ = capsys.readouterr()
    assert "\x1b" not in out
    assert len(out.splitlines()) == 1
    assert r"cat\x1b[2J " in out
    assert r"two\nlines " in out


def test_a_note_when_an_image_is_squashed(
    hostile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once per run, on stderr, and not for nearly square images."""
    paths = []
    for index, size in enumerate(((40, 40), (44, 40), (50, 40), (160, 40))):
        paths.append(str(tmp_path / f"{index}.png"))
        Image.new("L", size).save(paths[-1])
    assert main(["predict", hostile, *paths]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert f"the aspect ratio of {paths[2]} is changed by a factor of 1.2" in lines[0]
    assert main(["predict", hostile, *paths[:2]]) == 0
    assert capsys.readouterr().err == ""


def test_a_person_reads_that_probabilities_are_not_calibrated(
    hostile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("L", (40, 40)).save(tmp_path / "a.png")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert main(["predict", hostile, str(tmp_path / "a.png")]) == 0
    assert "probabilities of this model are not calibrated" in capsys.readouterr().err
    assert main(["predict", hostile, str(tmp_path / "a.png"), "--csv"]) == 0
    assert capsys.readouterr().err == ""
    calibrated = str(tmp_path / "calibrated.xnor")
    assert main(["calibrate", hostile, "--temperature", "1.4", "-o", calibrated]) == 0
    capsys.readouterr()
    assert main(["predict", calibrated, str(tmp_path / "a.png")]) == 0
    assert capsys.readouterr().err == ""


def test_a_dense_output_is_not_predicted_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dense = load(Program((1, 8, 8), (Op("relu", "relu", (INPUT,), "out"),), "out", {}))
    path = tmp_path / "dense.xnor"
    dense.save(path)
    assert main(["predict", str(path), str(image(tmp_path / "a.png"))]) == 2
    error = capsys.readouterr().err
    assert "the model's output has the shape (1, 8, 8), not one number per class" in error
    assert len(error.splitlines()) == 1
    from xnorpp.data import load_dataset

    with pytest.raises(ValueError, match="not one number per class"):
        evaluate_packed(dense, load_dataset("digits", split="test"))


def test_the_preprocessing_of_a_file_is_checked_when_it_is_loaded(
    model: PackedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from xnorpp.runtime import ProgramError, write

    for stored, words in (
        ({"resize": 20000, "crop": 20000}, r"`resize` \(=20000\) must be"),
        (
            {"resize": 16, "crop": 16},
            r"makes an input of shape \(1, 16, 16\), and the network's is \(1, 8, 8\)",
        ),
        ({"resize": None}, r"`resize` \(=None\) must be"),
        ({"mean": 5}, r"`mean` \(=5\) must be"),
        ({"std": ["nan"]}, r"`std` \(=\['nan'\]\) must be"),
        ({"channels": 3, "mean": [0] * 3, "std": [1] * 3}, r"makes an input of shape \(3, 8, 8\)"),
        ({"channels": 3}, r"`mean` \(=\(0.0,\)\) must have `channels` \(=3\) values"),
    ):
        path = tmp_path / "wrong.xnor"
        write(replace(model.program, preprocess=stored), path)
        with pytest.raises(ProgramError, match=rf"wrong\.xnor: input: .*{words}"):
            load(path)
        assert main(["predict", str(path), "a.png"]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_names_of_a_file_reach_the_terminal_escaped(
    model: PackedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ops = tuple(replace(op, name="a\x1b[2J\nb") for op in model.program.ops)
    path = tmp_path / "names.xnor"
    load(replace(model.program, ops=ops)).save(path)
    assert main(["inspect", str(path)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert r"a\x1b[2J\nb" in out


def test_unreadable_images_of_a_data_set_are_skipped_up_to_a_number(
    model: PackedModel, tmp_path: Path
) -> None:
    for index in range(4):
        image(tmp_path / f"{index}.png")
    for index in (1, 2):
        (tmp_path / f"{index}.png").write_bytes(b"rubbish")
    info = replace(dataset_info("digits"), classes=4)
    names = [f"{index}.png" for index in range(4)]
    assert model.labels is not None
    labels = np.zeros(4, np.int64)
    dataset = FolderDataset(info, "test", model.labels, labels, root=tmp_path, paths=names)
    found = evaluate_packed(model, dataset, max_skipped=2)
    assert (found.top1, found.images) == (100, 2)
    assert [Path(lost.name).name for lost in found.skipped] == ["1.png", "2.png"]
    with pytest.raises(
        ValueError, match=r"more than 1 images cannot be read; .*2\.png: not a recognised image"
    ):
        evaluate_packed(model, dataset)
