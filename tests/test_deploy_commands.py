"""The commands behind training, from a checkpoint to labels, as a person types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from xnorpp.cli import main


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained small network for the digits, saved as a training run would."""
    import torch

    from xnorpp.data import dataset_info
    from xnorpp.models import create_model
    from xnorpp.train import save_checkpoint

    torch.manual_seed(0)
    info = dataset_info("digits")
    model = create_model(
        "small", input_size=info.image_size, width=8, in_channels=1, num_classes=info.classes
    )
    meta = {
        "model": model.config,
        "dataset": "digits",
        "classes": [f"digit {i}" for i in range(10)],
        "preprocess": info.preprocess().to_dict(),
        "recipe": {"name": "made-up", "schedule": {"first_stage_epochs": 0}},
        "epoch": 1,
    }
    path: Path = tmp_path_factory.mktemp("run") / "model.safetensors"
    return save_checkpoint(path, model.state_dict(), meta)


@pytest.fixture(scope="module")
def packed(checkpoint: Path) -> Path:
    path = checkpoint.with_name("model.xnor")
    assert main(["pack", str(checkpoint), "-o", str(path)]) == 0
    return path


@pytest.fixture
def images(tmp_path: Path) -> list[str]:
    rng = np.random.default_rng(0)
    paths = []
    for index, size in enumerate(((8, 8), (20, 30), (9, 9))):
        paths.append(str(tmp_path / f"picture{index}.png"))
        Image.fromarray(rng.integers(0, 256, size, dtype=np.uint8)).save(paths[-1])
    return paths


def test_pack_says_what_it_did(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "half.xnor"
    assert main(["pack", str(checkpoint.parent), "-o", str(out), "--half"]) == 0
    text = capsys.readouterr().out
    assert f"{out.stat().st_size:,} bytes" in text
    assert "8 layers binary, 0 with one-bit weights, 2 real" in text
    assert "conv1 (first layer" in text


def test_pack_without_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pack", str(tmp_path / "nothing"), "-o", str(tmp_path / "x.xnor")]) != 0
    assert "no checkpoint" in capsys.readouterr().err
    assert not (tmp_path / "x.xnor").exists()


def test_pack_to_where_no_file_can_be(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The place that was asked for is named, not the temporary file beside it, and none is left."""
    assert main(["pack", str(checkpoint), "-o", str(tmp_path / "no" / "x.xnor")]) == 2
    assert capsys.readouterr().err == f"xnorpp pack: there is no file or folder {tmp_path / 'no'}.\n"
    folder = tmp_path / "folder"
    folder.mkdir()
    assert main(["pack", str(checkpoint), "-o", str(folder)]) == 2
    assert capsys.readouterr().err == f"xnorpp pack: {folder} is a folder, and a file is needed.\n"
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("command", ["eval", "predict", "pack", "inspect"])
def test_a_model_that_is_not_there(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence that names it, nothing of the system's error numbers."""
    missing = tmp_path / "missing.xnor"
    more = {"predict": ["picture.png"], "pack": ["-o", str(tmp_path / "x.xnor")]}.get(command, [])
    assert main([command, str(missing), *more]) != 0
    said = capsys.readouterr().err
    assert said.lower().startswith(f"xnorpp {command}: there is no ")
    assert said.endswith(f"{missing}.\n")
    assert "Errno" not in said


def test_a_folder_for_a_packed_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(tmp_path), "picture.png"]) == 2
    assert capsys.readouterr().err == f"xnorpp predict: {tmp_path} is a folder, and a file is needed.\n"


def test_predict(packed: Path, images: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(packed), *images, "--top", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition(": ")[0] for line in lines] == images
    assert all("digit " in line and line.count("%") == 2 for line in lines)


def test_predict_json_and_an_unreadable_picture(
    packed: Path, images: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no picture")
    missing = tmp_path / "missing.png"
    given = [images[0], str(bad), images[1], str(missing), images[2]]
    assert main(["predict", str(packed), *given, "--json"]) == 1
    out, err = capsys.readouterr()
    rows = json.loads(out)
    assert [row["image"] for row in rows] == given
    assert ["error" in row for row in rows] == [False, True, False, True, False]
    assert sum(guess["probability"] for guess in rows[0]["predictions"]) <= 1 + 1e-6
    assert len(err.strip().splitlines()) == 2
    assert str(bad) in err
    assert "Traceback" not in err


def test_predict_equals_the_trained_network(packed: Path, checkpoint: Path, images: list[str]) -> None:
    import torch

    from xnorpp.data import Preprocess
    from xnorpp.predict import predict
    from xnorpp.runtime import load
    from xnorpp.train import load_model

    model, meta = load_model(checkpoint)
    preprocess = Preprocess.from_dict(meta["preprocess"])
    batch = preprocess.normalise(np.stack([preprocess.apply(Image.open(path)) for path in images]))
    with torch.no_grad():
        expected = torch.softmax(model(torch.from_numpy(batch)), 1).numpy()
    for row, found in zip(expected, predict(load(packed), images, top=10, batch=2), strict=True):
        assert len(found.guesses) == 10
        for guess in found.guesses:
            assert guess.probability == pytest.approx(float(row[guess.index]), abs=1e-4)


def test_predict_and_eval_without_torch(packed: Path, images: list[str]) -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from xnorpp.cli import main\n"
        "assert main(['predict', *sys.argv[1:]]) == 0\n"
        "assert main(['inspect', sys.argv[1]]) == 0\n"
        "sys.exit(main(['eval', sys.argv[1]]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(packed), *images],
        capture_output=True,
        text=True,
        env={**os.environ, "XNORPP_ISA": ""},
    )
    assert done.returncode == 0, done.stderr
    assert "top-1" in done.stdout


def test_eval_of_both_forms_agrees(
    packed: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(packed)]) == 0
    ours = capsys.readouterr().out
    assert main(["eval", str(checkpoint)]) == 0
    trained = capsys.readouterr().out
    accuracy = [text.partition("top-1 ")[2].partition(" %")[0] for text in (ours, trained)]
    assert float(accuracy[0]) == pytest.approx(float(accuracy[1]), abs=0.3)
    assert "359 pictures" in ours


def test_eval_needs_matching_classes(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(packed), "--dataset", "nonsense"]) == 2
    assert "nonsense" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["packed", "checkpoint"])
def test_inspect(form: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> None:
    path: Path = request.getfixturevalue(form)
    assert main(["inspect", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(layer["state"] == "binary" for layer in found["layers"]) == 8
    assert found["warnings"] == []
    if form == "packed":
        assert found["total"]["bytes"] == path.stat().st_size


def test_inspect_time_says_against_what(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(packed), "--time", "--threads", "1"]) == 0
    text = capsys.readouterr().out
    assert "measured: sign, convolution and scale on" in text
    assert "torch's float32 convolution" in text


def test_inspect_of_a_damaged_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "damaged.xnor"
    path.write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    assert main(["inspect", str(path)]) == 2
    assert "cut off" in capsys.readouterr().err


def test_bench_writes_what_it_measured(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, rows, picture = tmp_path / "bench.json", tmp_path / "rows.jsonl", tmp_path / "bench.png"
    status = main(
        ["bench", str(packed), "--against", "none", "--rounds", "1", "--repeat", "1", "--threads", "1,2",
         "--json", str(out), "--append", str(rows), "--plot", str(picture)]
    )  # fmt: skip
    assert status == 0
    written = json.loads(out.read_text())
    assert [json.loads(line) for line in rows.read_text().splitlines()] == written
    assert {row["threads"] for row in written if row["name"] == "latency_uint8"} == {1, 2}
    assert picture.exists()
    assert "model.xnor, batch 1" in capsys.readouterr().out


def test_bench_threads_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--threads", "none"]) == 2
    assert "`threads` (='none')" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["pack", "predict", "inspect", "bench", "eval"])
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert "examples:" in capsys.readouterr().out
