"""Own images from the shell: train, pack, evaluate; classes matched by name; unused arguments refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from xnorpp.cli.main import main

QUICK = [
    part
    for setting in (
        "data.size=12", "data.batch_size=12", "schedule.epochs=12", "model.options.width=8", "run.threads=1",
        "run.tensorboard=false",
    )
    for part in ("--set", setting)
]  # fmt: skip


def draw(kind: str, seed: int) -> Image.Image:
    """A circle, noise or stripes, 14 pixels wide."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:14, :14]
    pixels = {
        "circle": 255 * (abs(np.hypot(y - 6.5, x - 6.5) - 4 - rng.random()) < 1.2),
        "noise": rng.integers(0, 256, (14, 14)),
        "stripe": 255 * ((y + rng.integers(4)) % 4 < 2),
    }[kind]
    return Image.fromarray(pixels.astype(np.uint8)).convert("RGB")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root: Path = tmp_path_factory.mktemp("shapes")
    for number, kind in enumerate(("circle", "noise", "stripe")):
        for split, count in (("train", 24), ("val", 8)):
            (root / split / kind).mkdir(parents=True)
            for seed in range(count):
                draw(kind, 1000 * number + seed + 100 * (split == "val")).save(
                    root / split / kind / f"{seed}.png"
                )
    return root


@pytest.fixture(scope="module")
def run(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out: Path = tmp_path_factory.mktemp("run") / "own"
    command = [
        "train",
        "folder-small",
        "--data",
        str(images),
        "--out",
        str(out),
        "--device",
        "cpu",
        "--quiet",
    ]
    assert main([*command, *QUICK]) == 0
    return out


def accuracy(capsys: pytest.CaptureFixture[str], *command: str) -> float:
    assert main(["eval", *command]) == 0
    return float(capsys.readouterr().out.partition("top-1 ")[2].partition(" %")[0])


def test_a_folder_is_trained_packed_and_evaluated(
    run: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = accuracy(capsys, str(run), "--data", str(images), "--device", "cpu")
    assert trained > 90
    assert main(["pack", str(run), "-o", str(tmp_path / "own.xnor")]) == 0
    capsys.readouterr()
    assert accuracy(capsys, str(tmp_path / "own.xnor"), "--data", str(images)) == trained
    assert main(["predict", str(tmp_path / "own.xnor"), str(images / "val" / "stripe" / "0.png")]) == 0
    assert "stripe" in capsys.readouterr().out


def test_labels_in_another_order_give_the_same_accuracy(
    run: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same network with its outputs permuted, and named so, is exactly as right."""
    from xnorpp.packing import pack_to_file
    from xnorpp.training import load_model, save_checkpoint

    model, meta = load_model(run)
    before = accuracy(capsys, str(run), "--data", str(images), "--device", "cpu")
    last = next(module for module in reversed(list(model.modules())) if hasattr(module, "out_features"))
    order = [2, 1, 0]
    last.weight.data = last.weight.data[order]
    last.bias.data = last.bias.data[order]
    meta["classes"] = [meta["classes"][number] for number in order]
    assert meta["classes"] == ["stripe", "noise", "circle"]
    checkpoint = save_checkpoint(tmp_path / "permuted.safetensors", model.state_dict(), meta)
    assert accuracy(capsys, str(checkpoint), "--data", str(images), "--device", "cpu") == before
    packed = tmp_path / "permuted.xnor"
    pack_to_file(
        model, (3, 12, 12), packed, labels=meta["classes"], preprocess=meta["preprocess"],
        meta={"dataset": "folder"},
    )  # fmt: skip
    assert accuracy(capsys, str(packed), "--data", str(images)) == before
    assert accuracy(capsys, str(packed), "--data", str(images), "--by-position") < before


def test_classes_that_the_model_does_not_know_are_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw("noise", 1).save(tmp_path / "x.png")
    (tmp_path / "val" / "cat").mkdir(parents=True)
    (tmp_path / "x.png").rename(tmp_path / "val" / "cat" / "x.png")
    assert main(["pack", str(run), "-o", str(tmp_path / "own.xnor")]) == 0
    for model in (str(run), str(tmp_path / "own.xnor")):
        capsys.readouterr()
        assert main(["eval", model, "--data", str(tmp_path)]) == 2
        err = capsys.readouterr().err
        assert "the model's classes (circle, noise, stripe) are not those of data set 'folder' (cat)" in err
        assert len(err.splitlines()) == 1
    assert main(["eval", str(run), "--dataset", "digits"]) == 2
    assert "takes images with 3 channels" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            "train digits-small-case4 --data IMAGES",
            "holds no digits.csv.gz: the digits come with scikit-learn",
        ),
        ("train digits-small-case4 --download", "data set 'digits' cannot be downloaded"),
        (
            "train digits-small-case4 --set data.max_skipped=3",
            "`data.max_skipped` (=3) is not used by 'digits'",
        ),
        ("train digits-small-case4 --set data.channels=3", "`data.channels` (=3) is not used by 'digits'"),
        (
            "train digits-small-case4 --set data.options.labels=x",
            "`data.options.labels` is not used by 'digits'",
        ),
        ("train folder-small", 'data set "folder" is not in (no folder given)'),
        ("train folder-small --data IMAGES/val", "is one tree of classes, the same for training and testing"),
        (
            "train folder-small --data IMAGES --set data.std=[0.1,0.2]",
            "`data.std` (=[0.1, 0.2]) must have one",
        ),
        ("train folder-small --dataset no.such:thing --data IMAGES", "there is no module 'no'"),
        ("eval RUN --network no.such:thing", "there is no module 'no'"),
    ],
)
def test_what_is_not_used_or_wrong_is_one_sentence(
    command: str, words: str, run: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = command.replace("IMAGES", str(images)).replace("RUN", str(run))
    more = ["--out", str(tmp_path / "out")] if command.startswith("train") else []
    assert main([*text.split(), *more]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert len(err.splitlines()) == 1


def test_what_a_run_held_out_of_one_tree_is_its_test_set(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = str(images / "train")
    command = ["train", "folder-small", "--data", tree, "--out", str(tmp_path / "run"), "--device", "cpu"]
    assert main([*command, *QUICK, "--set", "data.holdout=0.25", "--set", "schedule.max_steps=4"]) == 0
    out = capsys.readouterr().out
    assert "top-5" not in out, "three classes"
    top1 = out.rpartition("top-1 ")[2].partition(" %")[0]
    assert main(["pack", str(tmp_path / "run"), "-o", str(tmp_path / "own.xnor")]) == 0
    for model in ("run", "own.xnor"):
        capsys.readouterr()
        assert main(["eval", str(tmp_path / model), "--data", tree]) == 0
        out = capsys.readouterr().out
        assert "on folder (held out, 18 images" in out
        assert f"top-1 {top1} %" in out
        assert "top-5" not in out
    assert main(["eval", str(tmp_path / "run"), "--data", tree, "--holdout", "0"]) == 0
    assert "on folder (test, 72 images" in capsys.readouterr().out


def test_unreadable_images_are_tolerated_as_the_recipe_says(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    shutil.copytree(images, tmp_path / "own")
    for number in range(3):
        (tmp_path / "own" / "train" / "noise" / f"{number}.png").write_bytes(b"broken")
    (tmp_path / "own" / "val" / "noise" / "0.png").write_bytes(b"broken")
    (tmp_path / "own" / "val" / "noise" / "1.png").write_bytes(b"broken")
    command = [
        "train",
        "folder-small",
        "--data",
        str(tmp_path / "own"),
        "--out",
        str(tmp_path / "run"),
        *QUICK,
    ]
    command += ["--set", "schedule.max_steps=2", "--device", "cpu", "--quiet"]
    assert main(command) == 2
    assert "could not be read, more than `max_skipped` (=1)" in capsys.readouterr().err
    assert main([*command, "--set", "data.max_skipped=3"]) == 0
    assert main(["eval", str(tmp_path / "run"), "--data", str(tmp_path / "own"), "--device", "cpu"]) == 0
    assert main(["pack", str(tmp_path / "run"), "-o", str(tmp_path / "own.xnor")]) == 0
    packed = ["eval", str(tmp_path / "own.xnor"), "--data", str(tmp_path / "own")]
    assert main(packed) == 2
    assert main([*packed, "--max-skipped", "2"]) == 0
