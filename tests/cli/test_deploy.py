"""The commands after training, from a checkpoint to labels, as a person types them."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from xnorpp.cli.main import main


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained small network for the digits, saved as a training run would."""
    import torch

    from xnorpp.data import dataset_info
    from xnorpp.models import create_model
    from xnorpp.training import save_checkpoint

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
    for index, size in enumerate(((8, 8), (25, 30), (9, 9))):
        paths.append(str(tmp_path / f"image{index}.png"))
        Image.fromarray(rng.integers(0, 256, size, dtype=np.uint8)).save(paths[-1])
    return paths


def test_pack_says_what_it_did(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "half.xnor"
    assert main(["pack", str(checkpoint.parent), "-o", str(out), "--half"]) == 0
    text = capsys.readouterr().out
    assert f"{out.stat().st_size:,} bytes" in text
    assert "6 layers binary, 0 with one-bit weights, 4 real" in text
    assert "conv1 (first layer" in text


def test_pack_without_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pack", str(tmp_path / "nothing"), "-o", str(tmp_path / "x.xnor")]) == 2
    assert "no checkpoint" in capsys.readouterr().err
    assert not (tmp_path / "x.xnor").exists()


def test_pack_to_where_no_file_can_be(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output is named, not the temporary file beside it, and none is left."""
    out = str(tmp_path / "no" / "x.xnor")
    assert main(["pack", str(checkpoint), "-o", out]) == 2
    assert capsys.readouterr().err == (
        f"xnorpp pack: `--output` (={out!r}) must be in a folder that exists, and {tmp_path / 'no'} does not "
        "exist.\n"
    )
    folder = tmp_path / "folder"
    folder.mkdir()
    assert main(["pack", str(checkpoint), "-o", str(folder)]) == 2
    said = capsys.readouterr().err
    assert said == f"xnorpp pack: `--output` (={str(folder)!r}) must be a file, and is a folder.\n"
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("command", ["eval", "predict", "pack", "inspect"])
def test_a_model_that_is_not_there(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence that names it, nothing of the system's error numbers."""
    missing = tmp_path / "missing.xnor"
    more = {"predict": ["image.png"], "pack": ["-o", str(tmp_path / "x.xnor")]}.get(command, [])
    assert main([command, str(missing), *more]) == 2
    said = capsys.readouterr().err
    assert said.lower().startswith(f"xnorpp {command}: there is no ")
    assert said.endswith(f"{missing}.\n")
    assert "Errno" not in said


@pytest.mark.parametrize("command", ["eval", "pack", "inspect"])
def test_what_is_no_checkpoint_is_input_that_cannot_be_used(
    command: str, packed: Path, images: list[str], tmp_path: Path
) -> None:
    more = ["-o", str(tmp_path / "x.xnor")] if command == "pack" else []
    assert main([command, str(tmp_path), *more]) == 2
    if command == "pack":
        assert main([command, images[0], *more]) == 2
        assert main([command, str(packed), *more]) == 2


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("eval MODEL --device foo", "`device` (='foo') must be auto, cpu, cuda or cuda:N."),
        ("eval MODEL --device cuda:99", ""),
        ("eval MODEL --device cuda --threads 1", "`--threads` (=1) is for the CPU engine"),
        ("eval MODEL --workers -1", "--workers: '-1' is not a whole number of at least 0"),
        ("eval MODEL --batch-size 0", "--batch-size: '0' is not a whole number of at least 1"),
        ("eval MODEL --isa foo", "foo"),
        ("eval MODEL --data nowhere", "`--data` (='nowhere') must be a folder"),
        ("eval CHECKPOINT --data nowhere", "`--data` (='nowhere') must be a folder"),
        ("eval CHECKPOINT --threads 1", "`--threads` (=1) is for a packed file"),
        ("eval CHECKPOINT --isa generic", "`--isa` (='generic') is for a packed file"),
        ("predict MODEL a.png --device foo", "`device` (='foo') must be auto, cpu, cuda or cuda:N."),
        ("predict MODEL a.png --top 0", "--top: '0' is not a whole number of at least 1"),
        ("inspect MODEL --threads 0", "--threads: '0' is not a whole number of at least 1"),
        ("inspect MODEL --threads 2", "`--threads` (=2) is for --time"),
        ("inspect MODEL --isa foo", "`--isa` (='foo') is for --time"),
        ("bench --layers --startup", "--startup: not allowed with argument --layers"),
        ("bench MODEL --layers", "must not be given with --layers"),
        ("bench MODEL --block default", "`--block` (='default') is for the network without MODEL"),
        ("bench --block big", "`--block` (='big') must be one of paper, default"),
        ("bench --layers --batch 2", "`--batch` (=2) is for the comparison of whole networks"),
        ("bench --layers --device cuda", "`device` (='cuda') must be 'cpu' with --layers"),
        ("bench --startup --threads 1,2", "`--threads` (='1,2') must be one number with --startup"),
        ("bench --startup --plot x.png", "`--plot` (='x.png') is for the comparison of whole networks"),
        (
            "bench --device cuda --rounds 2",
            "`--rounds` (=2) is for the comparison of whole networks on the CPU",
        ),
        ("bench MODEL --against bogus", "`--against` (='bogus') must be one of "),
        ("bench --device cpu:0", "`device` (='cpu:0') must be 'cpu', 'cuda' or 'cuda:N'"),
        ("bench MODEL --json FOLDER", "must be a file, and is a folder"),
        ("bench MODEL --append FOLDER", "must be a file, and is a folder"),
        ("bench MODEL --json nowhere/b.json", "must be in a folder that exists, and nowhere does not exist"),
        ("bench MODEL --plot b.foo", "`--plot` (='b.foo') must end in one of"),
        ("bench MODEL --plot b", "`--plot` (='b') must end in one of"),
    ],
)
def test_an_argument_is_never_ignored(
    command: str, words: str, packed: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    places = {"MODEL": packed, "CHECKPOINT": checkpoint, "FOLDER": packed.parent}
    try:
        status = main([str(places.get(word, word)) for word in command.split()])
    except SystemExit as ended:
        status = int(ended.code or 0)
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert words in err
    assert len(err.strip().splitlines()) == 1


def test_a_folder_for_a_packed_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(tmp_path), "image.png"]) == 2
    assert capsys.readouterr().err == f"xnorpp predict: {tmp_path} is a folder, and a file is needed.\n"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("predict RUN IMAGE", "RUN is the folder of a training run, and a packed model is needed; pack it "
         "first: `xnorpp pack RUN -o model.xnor`."),
        ("predict CHECKPOINT IMAGE", "CHECKPOINT is a checkpoint, and a packed model is needed; pack it"),
        ("predict IMAGE IMAGE", "IMAGE is an image, and a packed model (.xnor) is needed as MODEL."),
        ("predict IMAGE", "missing argument: need a model and at least one image (got only 'IMAGE')"),
        ("predict --model none.xnor IMAGE", "a file is given as MODEL, without the flag, and there is no "
         "file none.xnor."),
        ("inspect IMAGE", "IMAGE is an image; a packed model (.xnor), a checkpoint (.safetensors) or the "
         "folder of a run is needed."),
        ("eval IMAGE", "IMAGE is an image; a packed model (.xnor), a checkpoint"),
        ("bench IMAGE", "IMAGE is an image; a packed model (.xnor), a checkpoint"),
        ("pack CHECKPOINT -o /proc/x.xnor", "`--output` (='/proc/x.xnor') cannot be written: no file can be "
         "created in /proc ("),
        ("eval MODEL --json /proc/x.json", "`--json` (='/proc/x.json') cannot be written: no file can be "
         "created in /proc ("),
    ],
)  # fmt: skip
def test_messages_name_the_cause_and_what_to_do(
    command: str, words: str, packed: Path, checkpoint: Path, images: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    capsys.readouterr()
    places = {"MODEL": packed, "CHECKPOINT": checkpoint, "RUN": checkpoint.parent, "IMAGE": images[0]}
    given = [str(places.get(word, word)) for word in command.split()]
    words = words.replace("needed as MODEL", "needed as @").replace("given as MODEL", "given as @")
    for name, place in places.items():
        words = words.replace(name, str(place))
    assert main(given) == 2
    err = capsys.readouterr().err
    assert words.replace("@", "MODEL") in err
    assert len(err.strip().splitlines()) == 1


def test_predict(packed: Path, images: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(packed), *images, "--top", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition(": ")[0] for line in lines] == images
    assert all("digit " in line and line.count("%") == 2 for line in lines)


def test_predict_json_and_an_unreadable_image(
    packed: Path, images: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no image")
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


def test_predict_takes_folders_and_standard_input_and_writes_csv(
    packed: Path, images: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inner = tmp_path / "photos" / "inner"
    inner.mkdir(parents=True)
    shutil.copy(images[0], tmp_path / "photos" / "b.png")
    shutil.copy(images[1], inner / "=a.png")
    (inner / "notes.txt").write_text("no image")
    (inner / "bad.jpg").write_bytes(b"no image")
    assert main(["predict", str(packed), str(tmp_path / "photos"), "--csv", "--top", "2"]) == 1
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert rows[0] == ["image", "label", "probability", "label_2", "probability_2", "error"]
    assert [Path(row[0]).name for row in rows[1:]] == ["b.png", "=a.png", "bad.jpg"]
    assert rows[3][1:5] == [""] * 4
    assert rows[3][5]
    assert main(["predict", str(packed), images[0], "--top", "1"]) == 0
    alone = capsys.readouterr().out
    assert rows[1][1] in alone
    code = "import sys; from xnorpp.cli.main import main; sys.exit(main(sys.argv[1:]))"
    piped = subprocess.run(
        [sys.executable, "-c", code, "predict", str(packed), "-", "--top", "1"],
        input=Path(images[0]).read_bytes(), capture_output=True, check=True,
    )  # fmt: skip
    assert piped.stdout.decode() == alone.replace(images[0], "-")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert main(["predict", str(packed), str(empty)]) == 2
    assert f"the folder {empty} has no images" in capsys.readouterr().err


def test_eval_reports_classes_confusions_and_calibration(
    packed: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for number, model in enumerate((packed, checkpoint)):
        target, plot = tmp_path / f"{number}.json", tmp_path / f"{number}.png"
        options = ["--by-position", "--per-class", "--confusion", str(plot), "--json", str(target)]
        assert main(["eval", str(model), *options]) == 0
        text = capsys.readouterr().out
        assert "calibration error 0." in text
        assert text.count("digit ") >= 10
        assert plot.read_bytes().startswith(b"\x89PNG")
        found.append(json.loads(target.read_text()))
    first, second = found
    matrix = np.array(first["confusion"])
    assert matrix.sum() == first["images"]
    assert 100 * matrix.trace() / matrix.sum() == pytest.approx(first["top1"])
    assert first["confusion"] == second["confusion"]  # packed and trained give the same classes
    assert first["calibration_error"] == pytest.approx(second["calibration_error"], abs=1e-4)
    assert main(["eval", str(packed), "--by-position", "--confusion", "-"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 12
    assert [int(cell) if cell != "." else 0 for cell in lines[2].split()[-10:]] == first["confusion"][0]


def test_predict_equals_the_trained_network(packed: Path, checkpoint: Path, images: list[str]) -> None:
    import torch

    from xnorpp.data import Preprocess
    from xnorpp.runtime import load
    from xnorpp.runtime.predict import predict
    from xnorpp.training import load_model

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
        "from xnorpp.cli.main import main\n"
        "assert main(['predict', *sys.argv[1:]]) == 0\n"
        "assert main(['inspect', sys.argv[1]]) == 0\n"
        "sys.exit(main(['eval', sys.argv[1], '--by-position']))\n"
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
    assert main(["eval", str(packed), "--by-position"]) == 0
    ours = capsys.readouterr().out
    assert main(["eval", str(checkpoint), "--by-position"]) == 0
    trained = capsys.readouterr().out
    accuracy = [text.partition("top-1 ")[2].partition(" %")[0] for text in (ours, trained)]
    assert float(accuracy[0]) == pytest.approx(float(accuracy[1]), abs=0.3)
    assert "359 images" in ours


def test_eval_writes_what_it_measured(
    packed: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "accuracy.json"
    more = ["--by-position", "--device", "cpu", "--json", str(out)]
    assert main(["eval", str(packed), *more, "--threads", "1", "--isa", "generic"]) == 0
    ours = json.loads(out.read_text())
    assert (ours["engine"], ours["threads"], ours["images"]) == ("generic", 1, 359)
    assert f"359 images, generic): top-1 {ours['top1']:.2f} %" in capsys.readouterr().out
    assert main(["eval", str(checkpoint), *more]) == 0
    trained = json.loads(out.read_text())
    assert trained["top1"] == pytest.approx(ours["top1"], abs=0.3)
    assert (trained["recipe"], trained["dataset"], trained["split"]) == ("made-up", "digits", "test")


def test_eval_needs_matching_classes(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(packed), "--dataset", "nonsense"]) == 2
    assert "nonsense" in capsys.readouterr().err
    assert main(["eval", str(packed)]) == 2
    assert "the model's classes (digit 0, digit 1, " in capsys.readouterr().err


@pytest.mark.parametrize("form", ["packed", "checkpoint"])
def test_inspect(form: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> None:
    path: Path = request.getfixturevalue(form)
    assert main(["inspect", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(layer["state"] == "binary" for layer in found["layers"]) == 6
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
    out, rows, image = tmp_path / "bench.json", tmp_path / "rows.jsonl", tmp_path / "bench.png"
    status = main(
        ["bench", str(packed), "--against", "none", "--rounds", "1", "--repeat", "1", "--threads", "1,2",
         "--json", str(out), "--append", str(rows), "--plot", str(image)]
    )  # fmt: skip
    assert status == 0
    written = json.loads(out.read_text())
    assert [json.loads(line) for line in rows.read_text().splitlines()] == written
    assert {row["threads"] for row in written if row["name"] == "latency_uint8"} == {1, 2}
    assert image.exists()
    assert "model.xnor, batch 1" in capsys.readouterr().out


def test_bench_threads_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--threads", "none"]) == 2
    assert "`threads` (='none')" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["pack", "predict", "inspect", "bench", "eval"])
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "examples:" in text
    threads = {
        "predict": "threads per call (default: chosen automatically, up to min(cores, 8))",
        "inspect": "threads for --time (default: 1)",
        "eval": "a packed file, or the name of a shipped model",
    }
    assert threads.get(command, "") in text
