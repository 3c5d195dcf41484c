"""What a new user types wrong: each is one clear sentence and the right exit status, never a traceback."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from xnorpp.cli.main import main
from xnorpp.shipped import shipped_path

CASES = [
    ("predict", 2, "give a model: MODEL, a file or a folder, or --model NAME"),
    ("predict model.xnor", 2, "need a model and at least one image (got only 'model.xnor')"),
    ("predict nope.xnor cat.png", 2, "there is no file or folder nope.xnor."),
    ("predict short.xnor cat.png", 2, "short.xnor: the header needs "),
    ("predict half.xnor cat.png", 2, "half.xnor: "),
    ("predict empty.xnor cat.png", 2, "the file has 0 bytes; it is cut off"),
    ("predict changed.xnor cat.png", 2, "changed.xnor: the checksum does not match; the file is damaged"),
    ("predict cat.png model.xnor", 2, "cat.png is an image, and a packed model (.xnor) is needed"),
    ("predict folder cat.png", 2, "folder is a folder, and a file is needed"),
    ("predict model.xnor folder", 2, "the folder folder has no images (.jpg"),
    ("predict model.xnor nope.png", 1, "nope.png cannot be read (there is no such file)"),
    ("predict model.xnor short.png", 1, "short.png cannot be read (image file is truncated"),
    ("predict model.xnor empty.png", 1, "empty.png cannot be read (the file is empty)"),
    ("predict model.xnor text.png", 1, "text.png cannot be read (not a recognised image format"),
    ("predict model.xnor pipe.png", 1, "pipe.png cannot be read (it is not a regular file)"),
    ("predict --model cifar10-resnet99 cat.png", 2, "is not a shipped model; those are cifar10-resnet18"),
    ("predict cifar10-resnt20 cat.png", 2, "no shipped model of that name (those are cifar10-resnet20"),
    ("predict model.xnor cat.png --tpo 3", 2, "unrecognized arguments: --tpo 3; did you mean --top?"),
    ("predict model.xnor cat.png --top 0", 2, "--top: '0' is not a whole number of at least 1"),
    ("predict model.xnor cat.png --json --csv", 2, "--csv: not allowed with argument --json"),
    ("predict model.xnor cat.png --device gpu", 2, "`device` (='gpu') must be auto, cpu, cuda or cuda:N"),
    ("predict model.xnor cat.png --isa sse9", 2, "`isa` (='sse9') is unknown; known are "),
    ("predict model.xnor cat.png --threads 9999", 2, "must be an integer from 1 to 1024"),
    ("predict model.xnor cat.png --save out", 2, "no output of the model has rows and columns"),
    ("eval nope", 2, "there is no file or folder nope, and no shipped model of that name"),
    ("eval model.xnor --dataset nope", 2, '`dataset` (="nope") must be one of '),
    ("eval model.xnor --data folder", 2, 'data set "cifar10" is not in folder'),
    (
        "eval model.xnor --dataset digits",
        2,
        "the model's classes (airplane, automobile, bird, ... 10 in all)",
    ),
    ("eval folder", 2, "folder holds no checkpoint"),
    ("eval cat.png", 2, "cat.png is an image; a packed model (.xnor), a checkpoint"),
    ("pack nope -o x.xnor", 2, "There is no checkpoint nope"),
    ("pack cat.png -o x.xnor", 2, "cat.png is an image; the folder of a run"),
    ("pack model.xnor -o nowhere/x.xnor", 2, "must be in a folder that exists"),
    ("inspect cat.png", 2, "cat.png is an image; a packed model (.xnor), a checkpoint"),
    ("inspect short.xnor", 2, "it is cut off"),
    ("calibrate model.xnor --temperature -1", 2, "`temperature` (=-1.0) must be above 0"),
    ("export tflite model.xnor -o x", 2, "invalid choice: 'tflite'"),
    ("export c nope.xnor -o x", 2, "there is no file or folder nope.xnor"),
    ("serve short.xnor --port 0", 2, "it is cut off"),
    ("serve model.xnor --port 99999", 2, "`--port` (=99999) must be at most 65535"),
    ("serve model.xnor --host nowhere.invalid", 2, "must be an address of this machine that is free"),
    ("bench nope.xnor", 2, "there is no file or folder nope.xnor"),
    ("bench --against bogus", 2, "`--against` (='bogus') must be one of"),
    ("bench model.xnor --json nowhere/x.json", 2, "must be in a folder that exists"),
    ("models nope", 2, "`model` (='nope') is not a shipped model"),
    ("models --markdown", 2, "`--markdown` needs the NAME of one model"),
    ("recipes zzz*", 2, "no recipe matches 'zzz*'"),
    ("train nope", 2, "There is no recipe 'nope'; the nearest are "),
    ("train digits-small-case4 --epochs x", 2, "argument --epochs: 'x' is not a whole number"),
    ("train digits-small-case4 --lr much", 2, "argument --lr: 'much' is not a number"),
    ("train digits-small-case4 --epochs 0", 2, "`schedule.epochs` (=0) must be at least 1"),
    ("train digits-small-case4 --set nokey", 2, "must look like `section.key=value`"),
    ("train digits-small-case4 --dataset folder --data folder", 2, "looked for class folders in folder"),
    ("train digits-small-case4 --init-from model.xnor", 2, "is a packed model; a checkpoint is needed"),
    ("train digits-small-case4 --epoch 3", 2, "unrecognized arguments: --epoch 3; did you mean --epochs?"),
    ("shards nope --out s", 2, '`dataset` (="nope") must be one of '),
    ("paper nope", 2, "there is no experiment 'nope'; the experiments are "),
    ("paper ship nope --name x", 2, "There is no checkpoint nope"),
    ("completion powershell", 2, "invalid choice: 'powershell'"),
    ("help nope", 2, "there is no command 'nope'; the commands are "),
    ("demo --seed x", 2, "argument --seed: 'x' is not a whole number"),
]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a model, an image, and damaged copies of both."""
    folder = tmp_path_factory.mktemp("desk")
    shutil.copy(shipped_path("cifar10-resnet20"), folder / "model.xnor")
    blob = (folder / "model.xnor").read_bytes()
    size = int.from_bytes(blob[:8], "little")
    (folder / "short.xnor").write_bytes(blob[:1000])
    (folder / "half.xnor").write_bytes(blob[: len(blob) // 2])
    (folder / "empty.xnor").touch()
    changed = blob[8 : 8 + size].replace(b"binary_conv2d", b"binary_convXd")
    (folder / "changed.xnor").write_bytes(blob[:8] + changed + blob[8 + size :])
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    Image.fromarray(pixels).save(folder / "cat.png")
    (folder / "short.png").write_bytes((folder / "cat.png").read_bytes()[:200])
    (folder / "empty.png").touch()
    (folder / "text.png").write_text("no image")
    os.mkfifo(folder / "pipe.png")
    (folder / "folder").mkdir()
    (folder / "folder" / "notes.txt").write_text("no image either")
    before = Path.cwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


@pytest.mark.parametrize(("line", "status", "words"), CASES, ids=[case[0] for case in CASES])
def test_one_sentence(
    line: str, status: int, words: str, desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(path.name for path in desk.iterdir() if path.name != "runs")
    try:
        found = main(line.split())
    except SystemExit as stop:
        found = int(stop.code or 0)
    said = capsys.readouterr()
    assert found == status, said.err
    assert words in said.err
    assert len(said.err.strip().splitlines()) == 1
    assert said.err.startswith("xnorpp")
    assert "Error:" not in said.err
    assert said.out == ""
    assert sorted(path.name for path in desk.iterdir() if path.name != "runs") == before  # of `train`


def test_a_port_in_use_is_one_sentence(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert main(["serve", "model.xnor", "--port", str(other.getsockname()[1])]) == 2
    assert "Address already in use" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["models", "predict model.xnor folder2 --csv", "inspect model.xnor"])
def test_a_closed_pipe_is_no_traceback(line: str, desk: Path) -> None:
    many = desk / "folder2"
    many.mkdir(exist_ok=True)
    for number in range(60):
        shutil.copy(desk / "cat.png", many / f"{number}.png")
    command = f"{sys.executable} -m xnorpp {line} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    shutil.rmtree(many)
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1
    assert done.returncode in (0, 141)  # 0: all was written before the reader went away


def test_ctrl_c_is_one_line(desk: Path) -> None:
    code = (  # a shell without job control starts its background jobs with SIGINT ignored
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from xnorpp.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "bench", "model.xnor", "--throughput", "--seconds", "60"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "measuring" in process.stderr.readline()
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said == "xnorpp bench: stopped.\n"


def test_the_list_of_data_sets_gives_no_size_for_ones_own_images(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["datasets"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "any classes, any size" in rows["shards"]
    assert "any classes, any size" in rows["folder"]
    assert "1000 classes, 224 px, 3 channels" in rows["imagenet"]
