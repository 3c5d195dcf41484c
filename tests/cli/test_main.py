"""The command line: what it lists, what it refuses, and in which words."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import xnorpp
from xnorpp.cli import main as cli
from xnorpp.cli.command import check_file

QUICK = ("--set", "model.options.width=4", "--set", "schedule.max_steps=2", "--set", "run.tensorboard=false")


def add_command(monkeypatch: pytest.MonkeyPatch, name: str, function: Callable[[list[str]], int]) -> None:
    """Add a command as a contributor would: one module and one row of the table."""
    module = ModuleType(f"added_{name}")
    setattr(module, name, function)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(cli.COMMANDS, name, cli.Command(f"{module.__name__}:{name}", "A test."))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        status = cli.main(arguments)
    except SystemExit as stop:
        status = int(stop.code or 0)
    said = capsys.readouterr()
    return status, said.out, said.err


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ((), ("--help",), ("help",)):
        status, out, _ = run(capsys, *arguments)
        assert status == 0
        assert all(f"\n  {name} " in out for name in cli.COMMANDS)


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_each_commands_help_has_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, name, "--help")
    assert status == 0
    assert f"xnorpp {name}" in out.partition("examples:")[2]
    assert cli.COMMANDS[name].summary in out
    assert (cli.COMMANDS[name].load().__doc__ or "").split()[-1] in out
    assert run(capsys, "help", name) == (0, out, "")


def test_help_imports_no_command() -> None:
    code = (
        "import sys; from xnorpp.cli.main import main; main(['--help']); "
        "print([name for name in sys.modules if name.split('.')[0] in ('argparse', 'numpy', 'torch')"
        " or name.startswith('xnorpp.cli.') and name != 'xnorpp.cli.main'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_predict_imports_what_it_runs_and_no_more(tmp_path: Path) -> None:
    """A cold start is mostly imports: no data set, no definition of the operations, no network code."""
    from PIL import Image

    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(tmp_path / "a.png")
    code = (
        "import sys; from xnorpp.cli.main import main; "
        f"main(['predict', '--model', 'cifar10-resnet20', {str(tmp_path / 'a.png')!r}]); "
        "print([name for name in ('torch', 'ssl', 'urllib.request', 'xnorpp.data', 'xnorpp.training',"
        " 'xnorpp.runtime.reference', 'xnorpp.runtime.cuda') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", ["models", "models --json", "recipes", "datasets", "completion bash"])
def test_listing_imports_no_torch(command: str) -> None:
    code = (
        f"import sys; from xnorpp.cli.main import main; main({command.split()!r}); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_the_listed_networks_are_the_registered_ones() -> None:
    from xnorpp.cli.listing.models import NETWORKS as listed
    from xnorpp.models import NETWORKS as registered

    def ours(build: Any) -> bool:  # other tests may have registered some
        return getattr(build, "func", build).__module__.startswith("xnorpp.")

    assert listed == tuple((name, one.summary) for name, one in registered.items() if ours(one.build))


def test_models_without_torch_lists_the_networks_and_what_training_needs() -> None:
    code = "import sys; sys.modules['torch'] = None; from xnorpp.cli.main import main; main(['models'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ["resnet20", "ResNet-20", "for", "CIFAR"] in [line.split() for line in done.stdout.splitlines()]
    assert "training needs torch; install it with `pip install 'xnorpp[train]'`" in done.stdout


def test_a_part_of_names_lists_those_that_contain_it(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "recipes", "alexnet")
    assert status == 0
    names = [line.split()[0] for line in out.splitlines()]
    assert len(names) > 1
    assert all("alexnet" in name for name in names)
    assert run(capsys, "recipes", "table1-case4")[1].startswith("name = "), "a row of the paper is a name"
    assert "cifar10-resnet18" in run(capsys, "models", "resnet18")[1]
    assert run(capsys, "models", "cifar10-resnet18")[1].startswith("cifar10-resnet18: ")
    status, _, error = run(capsys, "models", "resnet18", "--markdown")
    assert status == 2
    assert "stands for several" in error


def test_bench_without_torch_points_to_a_packed_model() -> None:
    code = "import sys; sys.modules['torch'] = None; from xnorpp.cli.main import main; main(['bench'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not done.stdout  # nothing is measured or described first
    assert "pip install 'xnorpp[train]'`, or give a packed model: `xnorpp bench cifar10" in done.stderr


@pytest.mark.parametrize("command", ["bench", "inspect", "serve"])
def test_a_model_given_by_a_flag_that_does_not_exist(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, error = run(capsys, command, "--model", "cifar10-resnet20")
    assert status == 2
    assert "MODEL is given without a flag" in error


def test_a_command_that_is_added_is_listed_and_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def greet(arguments: list[str]) -> int:
        print("hello", *arguments)
        return 0

    add_command(monkeypatch, "greet", greet)
    assert re.search(r"\n  greet +A test\.\n", run(capsys, "--help")[1])
    assert run(capsys, "greet", "you") == (0, "hello you\n", "")


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("-v", "-V", "--version"):
        assert run(capsys, option) == (0, f"xnorpp {xnorpp.__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("trian",), "there is no command 'trian'; the commands are train,"),
        (("help", "trian"), "there is no command 'trian'; the commands are train,"),
        (("--verbose",), "there is no option '--verbose'; the commands are "),
        (("train",), "the following arguments are required: RECIPE"),
        (("train", "digits-smal-case4"), "the nearest are digits-small-case4"),
        (("train", "digits-small-case4", "--set", "optimizer.lrr=3"), "did you mean `optimizer.lr`?"),
        (("train", "digits-small-case4", "--set", "data.dataset=digit"), "must be one of digits"),
        (("train", "digits-small-case4", "--set", "model.name=smal"), "must be one of 'small'"),
        (("train", "digits-small-case4", "--set", "model.options.widht=3"), "its options are width"),
        (("train", "digits-small-case4", "--device", "abacus"), "`device` (='abacus') must be auto"),
        (("train", "digits-small-case4", "--unknown"), "unrecognized arguments: --unknown"),
        (("train", "digits-small-case4", "--init-from", "nope"), "There is no file nope"),
        (("train", "digits-small-case4", "--set", "loss.teacher=nope"), "nope"),
        (("train", "digits-small-case4", "--data", "nope"), "`--data` (='nope') must be a folder"),
        (("recipes", "x.toml"), "The recipe x.toml cannot be read"),
        (("recipes", "--set", "optimizer.lr=3"), "`--set` (='optimizer.lr=3') needs a NAME"),
        (("recipes", "digits-small-case4", "--set", "model.name=smal"), "must be one of 'small'"),
        (("recipes", "digits-small-case4", "--set", "data.dataset=digit"), "must be one of digits"),
        (("recipes", "digits-small-case4", "--set", "model.options.widht=3"), "its options are width"),
        (("recipes", "digits-small-case4", "--set", "model.scale=chanel"), "must be one of 'channel'"),
        (("shards", "digits", "--out", "x", "--workers", "-1"), "--workers: '-1' is not a whole number of"),
        (("shards", "digits", "--out", "x", "--data", "nope"), "`--data` (='nope') must be a folder"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(
    arguments: tuple[str, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if arguments[:1] == ("train",) and len(arguments) > 1:
        arguments = (*arguments, "--out", str(tmp_path / "run"))
    status, out, err = run(capsys, *arguments)
    assert status == 2
    assert words in err
    assert err.startswith("xnorpp")
    assert len(err.strip().splitlines()) == 1
    assert not out


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("train digits-small-case4 --out FILE", "`--out` (='FILE') must be a folder, and FILE is a file"),
        ("train digits-small-case4 --out FILE/run", "`--out` (='FILE/run') must be a folder, and FILE is a"),
        (
            "train digits-small-case4 --out FOLDER/run --record FOLDER",
            "`--record` (='FOLDER') must be a file",
        ),
        ("demo --out FILE", "`--out` (='FILE') must be a folder"),
        ("shards digits --out FILE", "`--out` (='FILE') must be a folder"),
        ("eval FILE --json FOLDER/no/x.json", "folder that exists, and FOLDER/no does not exist"),
        ("paper table2 --out FILE", "`--out` (='FILE') must be a folder"),
        ("paper table1 --runs FILE", "`--runs` (='FILE') must be a folder"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    command: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    for name in ("folder", "file"):
        command, words = (text.replace(name.upper(), str(tmp_path / name)) for text in (command, words))
    status, out, err = run(capsys, *command.split())
    assert (status, out) == (2, "")
    assert words in err
    assert len(err.strip().splitlines()) == 1
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder"]


def test_a_record_may_be_in_a_folder_that_is_still_to_be_made(tmp_path: Path) -> None:
    check_file("--record", str(tmp_path / "new" / "results.jsonl"), makes_folder=True)
    with pytest.raises(ValueError, match="must be in a folder that exists"):
        check_file("--record", str(tmp_path / "new" / "results.jsonl"))


def test_a_data_set_that_is_missing_says_how_to_get_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run(
        capsys,
        "train",
        "cifar10-resnet20-case4",
        "--data",
        str(tmp_path / "none"),
        "--out",
        str(tmp_path / "run"),
    )
    assert status == 2
    assert "cifar" in err.lower()
    assert "Traceback" not in err


def test_train_then_eval(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "run")
    results = tmp_path / "results.jsonl"
    status, said, _ = run(
        capsys,
        "train",
        "digits-small-case4",
        "--out",
        out,
        "--device",
        "cpu",
        "--record",
        str(results),
        *QUICK,
    )
    assert status == 0
    assert "digits-small-case4: top-1" in said
    assert results.read_text().count("\n") == 1
    batch = np.zeros((20, 3073), np.uint8)
    batch.tofile(tmp_path / "test_batch.bin")
    status, _, err = run(capsys, "eval", out, "--dataset", "cifar10", "--data", str(tmp_path))
    assert status == 2
    assert "takes images with 1 channels, and those of 'cifar10' have 3" in err
    status, again, _ = run(capsys, "eval", out, "--device", "cpu")
    assert status == 0
    assert "digits-small-case4 on digits (test, 359 images)" in again or "(test, 360 images)" in again
    top1 = said.rpartition("top-1 ")[2].partition(" %")[0]
    assert f"top-1 {top1} %" in again
    status, _, err = run(capsys, "train", "digits-small-case4", "--out", out, *QUICK)
    assert status == 2
    assert "already holds a run; pass --resume" in err
    newest = max((tmp_path / "run" / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:-10])
    status, _, err = run(capsys, "eval", str(newest))
    assert status == 2
    assert "damaged or truncated" in err


def test_a_damaged_checkpoint_is_a_warning_without_a_source_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "train", "digits-small-case4", "--out", str(tmp_path), "--device", "cpu", "--quiet", *QUICK)
    (tmp_path / "model.safetensors").write_bytes(b"")
    status, _, err = run(capsys, "eval", str(tmp_path), "--device", "cpu")
    assert status == 0
    assert err.startswith("xnorpp: warning: The checkpoint")
    assert len(err.strip().splitlines()) == 1


def test_lists(capsys: pytest.CaptureFixture[str]) -> None:
    assert "imagenet-resnet18-case4" in run(capsys, "recipes", "--all")[1]
    assert "table3-alexnet-ours" in run(capsys, "recipes")[1]
    families = run(capsys, "recipes")[1]
    assert re.search(r"^cifar10-resnet20-\* .*-case4", families, re.MULTILINE)
    assert len(families.splitlines()) < 30
    listed = run(capsys, "recipes", "cifar10-resnet20-*")[1].splitlines()
    assert len(listed) >= 8
    assert all(line.startswith("cifar10-resnet20-") for line in listed)
    assert "no recipe matches 'zzz*'" in run(capsys, "recipes", "zzz*")[2]
    shown = run(capsys, "recipes", "table1-case4", "--set", "optimizer.lr=0.25")[1]
    assert "lr = 0.25" in shown
    assert "batch_size = 256" in shown
    assert "resnet18" in run(capsys, "models")[1]
    assert "digits" in run(capsys, "datasets")[1]


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")],
)
def test_threads_of_torch_soon_sleep_unless_asked_otherwise(given: dict[str, str], expected: str) -> None:
    """Spinning threads made the demo ten times slower on a busy machine."""
    code = (
        "import os; from xnorpp.cli.command import share_cores; share_cores(); "
        "print(os.environ.get('GOMP_SPINCOUNT'))"
    )
    plain = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**plain, **given}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == expected


@pytest.mark.parametrize("command", ["train", "demo", "eval"])
def test_commands_that_run_torch_let_its_threads_sleep(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def asked() -> None:
        raise ValueError("asked")

    monkeypatch.setattr(f"xnorpp.cli.{command}.share_cores", asked)
    out = ["--out", str(tmp_path / "run")]
    more = {"train": ["digits-small-case4", *out], "demo": out, "eval": ["--model", "cifar10-resnet20"]}
    assert run(capsys, command, *more[command])[2] == f"xnorpp {command}: asked.\n"


def test_recipes_are_listed_where_torch_cannot_be_imported() -> None:
    code = "import sys; sys.modules['torch'] = None; from xnorpp.cli.main import main; "
    listed = subprocess.run(
        [sys.executable, "-c", code + "sys.exit(main(['recipes', '--all']))"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert listed.returncode == 0, listed.stderr
    assert "digits-small-case4" in listed.stdout
    refused = subprocess.run(
        [sys.executable, "-c", code + "sys.exit(main(['pack', 'x', '-o', 'x.xnor']))"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2
    assert (
        refused.stderr
        == "xnorpp pack: this command needs torch; install it with `pip install 'xnorpp[train]'`.\n"
    )


def test_a_checkpoint_that_cannot_be_written_is_a_failed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from xnorpp.training.state.checkpoint import load_checkpoint, write_atomically

    def both(arguments: list[str]) -> int:
        if arguments == ["write"]:
            write_atomically(tmp_path / "x", b"content")
        load_checkpoint(tmp_path / "x")
        return 0

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    add_command(monkeypatch, "both", both)
    monkeypatch.setattr("os.replace", full)
    assert cli.main(["both", "write"]) == 1
    assert cli.main(["both", "read"]) == 2


def test_a_fault_of_ours_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(arguments: list[str]) -> int:
        raise {"k": KeyError("x"), "v": ValueError("x"), "i": KeyboardInterrupt()}[arguments[0]]

    add_command(monkeypatch, "broken", broken)
    with pytest.raises(KeyError):
        cli.main(["broken", "k"])
    assert cli.main(["broken", "v"]) == 2
    capsys.readouterr()
    assert cli.main(["broken", "i"]) == 130
    assert capsys.readouterr().err == "xnorpp broken: stopped.\n"
    monkeypatch.setenv(cli.SHOW_TRACEBACK, "1")
    with pytest.raises(ValueError):
        cli.main(["broken", "v"])


@pytest.mark.parametrize("arguments", ["recipes", "--help", "--version", "help predict", "predict --help"])
@pytest.mark.parametrize("reader", ["head -1", "true"])
def test_a_reader_that_went_away_is_not_an_error(arguments: str, reader: str) -> None:
    command = f"{sys.executable} -m xnorpp {arguments} | {reader}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_the_exit_status_is_that_of_the_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from xnorpp.runtime.errors import XnorppError

    class Mine(XnorppError, RuntimeError):
        exit_code = 7

    def fail(arguments: list[str]) -> int:
        raise Mine("It did not work.")

    add_command(monkeypatch, "fail", fail)
    assert run(capsys, "fail") == (7, "", "xnorpp fail: It did not work.\n")


def test_every_error_of_the_package_carries_an_exit_status() -> None:
    """All exception classes derive from the base, but for `Unavailable`, which never leaves a benchmark."""
    import importlib
    import pkgutil

    from xnorpp.bench.engine import Unavailable
    from xnorpp.runtime.errors import XnorppError

    missing = []
    for module in pkgutil.walk_packages(xnorpp.__path__, "xnorpp."):
        if module.name == "xnorpp.__main__":
            continue
        try:
            found = vars(importlib.import_module(module.name)).values()
        except ModuleNotFoundError:  # triton, or an engine to compare with
            continue
        kinds = [one for one in found if isinstance(one, type) and issubclass(one, Exception)]
        missing += [
            kind
            for kind in kinds
            if kind.__module__ == module.name and not issubclass(kind, (XnorppError, Unavailable))
        ]
    assert missing == []


def test_shards_of_a_data_set_are_written_and_trained_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shards = str(tmp_path / "shards")
    status, out, _ = run(capsys, "shards", "digits", "--out", shards, "--format", "npy", "--workers", "1")
    assert status == 0
    assert "train: 1,438 images" in out
    assert "test: 359 images" in out
    assert len(xnorpp.load_dataset("shards", shards, "test")) == 359
    status, _, err = run(
        capsys, "train", "digits-small-case4", *QUICK,
        "--data", shards, "--set", "data.dataset=shards", "--out", str(tmp_path / "run"),
    )  # fmt: skip
    assert status == 0, err
    assert (tmp_path / "run" / "model.safetensors").exists()
