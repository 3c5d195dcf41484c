"""Input that cannot be used, as people give it: one sentence that names the thing, and no half result."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import xnorpp
from xnorpp.cli import main as cli
from xnorpp.training import load_model, train
from xnorpp.training.state.checkpoint import CheckpointError, CheckpointWriteError

SHORT = {"model.options.width": 4, "schedule.max_steps": 2, "run.tensorboard": False, "run.threads": 1}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run and its packed file."""
    folder = tmp_path_factory.mktemp("made")
    train({"extends": "digits-small-case4", **SHORT}, out=folder / "run", device="cpu", quiet=True)
    assert cli.main(["pack", str(folder / "run"), "-o", str(folder / "model.xnor")]) == 0
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def images(folder: Path, *names: str, count: int = 8, blue: int = 0) -> None:
    for name in names:
        (folder / name).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (9, 9), (number * 20, 0, blue)).save(folder / name / f"{number}.png")


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one sentence of a command that ends with status 2."""
    capsys.readouterr()
    try:
        status = cli.main(list(arguments))
    except SystemExit as stop:
        status = int(stop.code or 0)
    written = capsys.readouterr()
    assert status == 2
    assert len(written.err.strip().splitlines()) == 1, written.err
    return written.err


def test_a_calibration_that_fails_leaves_the_packed_file_as_it_was(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "old.xnor").write_bytes(b"old")
    for output in ("old.xnor", "new.xnor"):
        text = refused(capsys, "pack", "run", "-o", output, "--real", "int8", "--calibration", "nothing")
        assert "`--data` (='nothing') must be a folder" in text
    assert (place / "old.xnor").read_bytes() == b"old"
    assert sorted(path.name for path in place.iterdir()) == ["model.xnor", "old.xnor", "run"]


@pytest.mark.usefixtures("place")
def test_short_names_do_not_overwrite_a_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    text = refused(capsys, "pack", "run", "-o", "run/model.safetensors", "--short-names")
    assert "is a checkpoint, which packing would overwrite" in text
    assert cli.main(["pack", "run", "-o", "short.xnor", "--short-names"]) == 0
    assert xnorpp.load("short.xnor").labels == xnorpp.load("model.xnor").labels


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("calibrate model.xnor --temperature inf", "`temperature` (=inf) must be above 0 and finite"),
        ("calibrate model.xnor --temperature 2 -o no/x.xnor", "(='no/x.xnor') must be in a folder"),
        ("calibrate model.xnor --temperature 2 --holdout 0.1", "`--holdout` (=0.1) is for fitting"),
        ("calibrate model.xnor --split test --holdout 0.1", "`--holdout` (=0.1) is for --split held"),
        ("export c run -o out", "pack it first: `xnorpp pack run -o model.xnor`"),
        ("export c model.xnor -o file.txt/out", "file.txt is a file"),
        ("export c model.xnor -o ''", "`--output` (='') must be a folder, and is empty"),
        ("export c model.xnor -o out --fixed --examples empty", "must be a .npy file of one array"),
        ("export c model.xnor -o out --fixed --examples file.txt", "must be a .npy file of one array"),
        ("export c model.xnor -o out --fixed --examples objects.npy", "must be a .npy file of one array"),
        ("eval plain.safetensors", "plain.safetensors is a safetensors file"),
        ("eval ''", "give a model: MODEL"),
        ("predict model.xnor ''", "an IMAGE is empty ('')"),
        ("pack torch.pth -o x.xnor", "torch.pth is a file of torch.save; a checkpoint of a run is needed"),
        ("pack cut -o x.xnor", "and cut holds no other one"),
        ("serve model.xnor --timeout inf", "`--timeout` (=inf) must be above 0 and finite"),
        ("train digits-small-case4 --out ''", "`--out` (='') must be a folder, and is empty"),
        ("train section.toml --out o", "`optimzer` is not a recipe key; did you mean `optimizer`?"),
        ("train digits-small-case4 --out o --set model.options.width=wide", "(='wide') must be a number"),
        ("train digits-small-case4 --out o --set model.options.width=1.5", "`width` (=1.5) must be a whole"),
        ("train digits-small-case4 --out o --set model.options.clip_weights=flase", "must be true or false"),
        ("train digits-small-case4 --out o --set model.options.sign_shift=yes", "must be true or false"),
        ("train digits-small-case4 --out o --set model.options.stem_pool=yes", "must be true or false"),
    ],
)  # fmt: skip
def test_one_sentence(arguments: str, text: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import shlex

    from safetensors.numpy import save_file

    (place / "empty").touch()
    (place / "file.txt").write_text("hello", encoding="utf-8")
    (place / "section.toml").write_text("[optimzer]\nlr = 1\n", encoding="utf-8")
    np.save(place / "objects.npy", np.array([{}], object), allow_pickle=True)
    save_file({"a": np.zeros(3, np.float32)}, place / "plain.safetensors")
    torch.save({"a": torch.zeros(3)}, place / "torch.pth")
    (place / "cut").mkdir()
    (place / "cut" / "model.safetensors").write_bytes((place / "run" / "model.safetensors").read_bytes()[:-9])
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    assert text in refused(capsys, *shlex.split(arguments))
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before


def test_an_output_folder_that_cannot_be_made_is_refused_before_the_work(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`/proc` makes no folders: `train` looked for one without end, others failed after their work."""
    if not Path("/proc/self").is_dir():
        pytest.skip("the system has no /proc")
    for arguments in (
        "train digits-small-case4 --out /proc/x",
        "export c model.xnor -o /proc/x",
        "shards digits --out /proc/x",
        "demo --out /proc/x",
    ):
        assert "(='/proc/x') cannot be written: no file can be created in /proc" in refused(
            capsys, *arguments.split()
        )
    with pytest.raises(CheckpointWriteError, match=r"`out` \(='/proc/x'\) cannot be written to"):
        train({"extends": "digits-small-case4", **SHORT}, out="/proc/x", quiet=True)


def test_folders_of_images(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images(place / "one", "only")
    images(place / "empty", "cat")
    (place / "empty" / "dog").mkdir()
    images(place / "tree", "cat", "dog")
    rest = ("--out", "o", "--epochs", "1", "--batch-size", "2", "--set")
    text = refused(capsys, "train", "folder-small", "--data", "one", *rest, "data.holdout=0.3")
    assert "one class folder, 'only', and a classifier needs at least two" in text
    text = refused(capsys, "train", "folder-small", "--data", "empty", *rest, "data.holdout=0.3")
    assert "The class 'dog' has no training images" in text
    text = refused(capsys, "train", "folder-small", "--data", "tree", *rest, "data.holdout=0.01")
    assert "`data.holdout` (=0.01) holds out none of the 16 training images" in text
    text = refused(capsys, "shards", "folder", "--data", "tree", "--out", "s")
    assert "tree is one tree of classes, the same for training and testing" in text
    assert not (place / "o").exists()
    assert not (place / "s").exists()
    with pytest.raises(ValueError, match=r"`size` \(=-1\) must be at least 1"):
        xnorpp.load_dataset("folder", place / "tree", size=-1)


def test_what_is_loaded() -> None:
    for source in (None, 3, True, [1], np.zeros(3)):
        with pytest.raises(TypeError, match="a path, the bytes of a packed file or a Program is needed"):
            xnorpp.load(source)  # type: ignore[arg-type]


def test_what_a_model_is_called_with(made: Path) -> None:
    model = xnorpp.load(made / "model.xnor")
    tensor = torch.zeros(2, 1, 8, 8)
    for x in (tensor.requires_grad_(), tensor.detach().bfloat16(), [[1.0], [1.0, 2.0]]):
        with pytest.raises(ValueError, match="cannot be converted to an array"):
            model(x)
    image = np.zeros((8, 8, 1), np.uint8)
    for top in (1.5, "3", True):
        with pytest.raises(ValueError, match=r"`top` \(=.*\) must be a whole number of at least 1"):
            model.classify(image, top=top)  # type: ignore[arg-type]


def test_what_is_made_binary() -> None:
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3))
    for model in (None, "resnet18", nn.Linear):
        with pytest.raises(TypeError, match=r"`model` is .*; an nn.Module is needed"):
            xnorpp.binarize(model)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"`example` of shape \(2, 3, 8, 8\) is none that the model runs on"):
        xnorpp.binarize(net, example=torch.zeros(2, 3, 8, 8))
    with pytest.raises(TypeError, match="`filter` is int"):
        xnorpp.binarize(net, filter=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`overrides` is list"):
        xnorpp.binarize(net, overrides=["1"])  # type: ignore[arg-type]
    assert [type(layer) for layer in net] == [nn.Conv2d, nn.Conv2d]


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))


def test_what_is_trained_and_evaluated(tmp_path: Path) -> None:
    x, y = torch.zeros(8, 1, 8, 8), torch.arange(8) % 3
    recipe = {"schedule.epochs": 1, "data.batch_size": 4, "run.tensorboard": False}

    def run(**changed: Any) -> None:
        data: dict[str, Any] = {"model": linear(), "train_data": (x, y), "test_data": (x, y)}
        train(recipe, **{**data, **changed}, out=tmp_path / "run", quiet=True)

    with pytest.raises(
        ValueError, match="largest label of `train_data` is 2000000000; labels are class indices"
    ):
        run(train_data=(x, y * 10**9))
    with pytest.raises(ValueError, match=r"`classes` .* must be a list of at least 3 names"):
        run(classes=3)
    with pytest.raises(ValueError, match="no parameter to train"):
        run(model=linear().requires_grad_(False))
    assert not (tmp_path / "run" / "model.safetensors").exists()
    with pytest.raises(TypeError, match="`model` is NoneType"):
        xnorpp.evaluate(None, (x, y))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`data` has the label 9, and the network has 3 outputs"):
        xnorpp.evaluate(linear(), (x, y * 0 + 9))
    with pytest.raises(ValueError, match=r"fails on a batch of shape \(8, 3, 8, 8\)"):
        xnorpp.evaluate(linear(), (torch.zeros(8, 3, 8, 8), y))
    with pytest.raises(ValueError, match=r"returns \(8, 64\)|must return a tensor of shape"):
        xnorpp.evaluate(nn.Identity(), (x, y))


def test_where_a_model_goes(made: Path) -> None:
    with pytest.raises(ValueError, match=r"`device` \(='gpu'\) must be auto, cpu, cuda or cuda:N"):
        load_model(made / "run", "gpu")
    with pytest.raises(CheckpointError, match=r"holds no checkpoint|There is no checkpoint"):
        load_model(made / "nothing")


def test_what_is_exported_and_served(made: Path) -> None:
    from xnorpp.export import export_c, export_onnx, export_openvino, export_qonnx

    model = xnorpp.load(made / "model.xnor")
    for exported in (export_c, export_onnx, export_qonnx, export_openvino):
        more = ("name",) if exported is export_c else ()
        with pytest.raises(TypeError, match="`program` is PackedModel; a Program is needed"):
            exported(model, *more)  # type: ignore[operator]
    for examples in (np.zeros((0, 1, 8, 8), np.float32), np.full((1, 1, 8, 8), np.nan, np.float32)):
        with pytest.raises(ValueError, match="`examples` has"):
            export_c(model.program, "name", from_bytes=False, fixed=16, examples=examples)
    pytest.importorskip("starlette")
    from xnorpp.serve import ServerLimits, create_app

    with pytest.raises(TypeError, match="`model` is str; a PackedModel is needed"):
        create_app("model.xnor")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"`workers` \(=1.5\) must be a whole number"):
        create_app(model, workers=1.5)  # type: ignore[arg-type]
    for wrong in ({"image_bytes": 0}, {"seconds": -1.0}, {"seconds": float("inf")}, {"waiting": 0}):
        with pytest.raises(ValueError, match="must be"):
            ServerLimits(**wrong)  # type: ignore[arg-type]


def test_names_and_settings_of_a_wrong_kind(made: Path) -> None:
    with pytest.raises(ValueError, match=r"`name` \(=None\) must be one of"):
        xnorpp.create_model(None)  # type: ignore[arg-type]
    for wrong in ({"num_classes": 1.5}, {"num_classes": 0}, {"in_channels": "3"}):
        with pytest.raises(ValueError, match="must be a"):
            xnorpp.create_model("small", **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"`hidden` \(='wide'\) must be a number"):
        xnorpp.create_model("alexnet", hidden="wide")
    with pytest.raises(ValueError, match=r"`dropout` \(=2.0\) must be from 0 to 1"):
        xnorpp.create_model("alexnet", dropout=2.0)
    with pytest.raises(ValueError, match=r"`in_channels` \(=-1\) must be at least 1"):
        xnorpp.BinaryConv2d(-1, 2, 3)
    with pytest.raises(ValueError, match=r"`dataset` .* must be one of"):
        xnorpp.load_dataset(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`limits` is int; a Limits is needed"):
        xnorpp.runtime.load(made / "model.xnor", limits=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`config` is NoneType; a mapping is needed"):
        xnorpp.Preprocess.from_timm(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`out` is NoneType; the path of the run's folder is needed"):
        train({"extends": "digits-small-case4"}, out=None)  # type: ignore[arg-type]


def test_unseen_images_of_a_folder_calibrate_a_model_of_folders(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`folder` names the training images and others alike; the advice of the error led back to it."""
    images(place / "tree" / "train", "cat", "dog")
    images(place / "tree" / "val", "cat", "dog")
    text = refused(capsys, "train", "folder-small", "--data", "tree", "--out", "o", "--batch-size=4")
    assert "The training and the test folder in tree hold the same images" in text
    shutil.rmtree(place / "tree" / "val")
    images(place / "tree" / "val", "cat", "dog", blue=200)
    short = [f"--set={key}={str(value).lower()}" for key, value in SHORT.items()]
    assert cli.main(["train", "folder-small", "--data", "tree", "--out", "o", "--batch-size=4", *short]) == 0
    assert cli.main(["pack", "o", "-o", "folder.xnor"]) == 0
    text = refused(capsys, "calibrate", "folder.xnor", "--data", "tree")
    assert "give unseen images: --dataset folder --data DIR" in text
    capsys.readouterr()
    status = cli.main(["calibrate", "folder.xnor", "--dataset", "folder", "--data", "tree", "-o", "c.xnor"])
    text = "".join(capsys.readouterr())
    assert "fitted on 16 images of folder, test" in text or "no temperature can be fitted" in text, status


@pytest.mark.usefixtures("place")
def test_only_the_first_process_must_be_able_to_write(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    (Path("file.txt")).write_text("hello", encoding="utf-8")
    wrong = ["--out", "file.txt", "--init-from", "nothing", "--quiet"]
    assert cli.main(["train", "digits-small-case4", *wrong]) != 0
    assert "`--out`" not in capsys.readouterr().err
