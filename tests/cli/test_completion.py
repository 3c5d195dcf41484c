"""Shell completion: the scripts come from the parsers, and complete in the shells that are installed."""

from __future__ import annotations

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from xnorpp.cli.command import parser_of
from xnorpp.cli.listing import shells
from xnorpp.cli.listing.completion import SHELLS, Shape, shapes
from xnorpp.cli.main import COMMANDS, main


@pytest.fixture(scope="module")
def found() -> list[Shape]:
    return list(shapes())


@pytest.fixture(scope="module")
def script(found: list[Shape], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "xnorpp.bash"
    path.write_text(shells.bash(found))
    return path


def test_every_option_of_every_command_is_known(found: list[Shape]) -> None:
    named = {shape.name: shape for shape in found}
    assert set(COMMANDS) <= set(named)
    assert "paper table2" in named
    for name, command in COMMANDS.items():
        flags = {flag for option in named[name].options for flag in option.flags}
        assert flags == set(parser_of(command.load())._option_string_actions)
    options = {flag: option for option in named["train"].options for flag in option.flags}
    assert options["--resume"].value is None
    assert options["--out"].value == ((), "folders")
    assert "digits-small-case4" in named["train"].positions[0].value.words


def complete(script: Path, *words: str, folder: Path | None = None) -> list[str]:
    """What bash offers for the last word."""
    code = (
        'source "$1"; shift; COMP_WORDS=(xnorpp "$@"); COMP_CWORD=$#; '
        'function=$(complete -p xnorpp | sed "s/.*-F \\([^ ]*\\).*/\\1/"); $function; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", code, "bash", str(script), *words],
        capture_output=True,
        text=True,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return sorted(filter(None, done.stdout.splitlines()))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("pre",), ["predict"]),
        (("help", "ser"), ["serve"]),
        (("train", "digits-small-case4", "--ep"), ["--epochs"]),
        (("train", "digits-small-bn"), ["digits-small-bnn"]),
        (("train", "--set", "a=b", "--device", "cpu", "digits-small-bn"), ["digits-small-bnn"]),
        (("predict", "--model", "cifar10-resnet2"), ["cifar10-resnet20"]),
        (("predict", "cifar10-resnet18", "pho"), ["photo.png", "photos"]),
        (("predict", "a", "b", "c", "photo."), ["photo.png"]),
        (("eval", "--data", "pho"), ["photos"]),
        (("eval", "--split", ""), ["test", "train"]),
        (("export", "q"), ["qonnx"]),
        (("export", "c", "tiny"), ["tiny-imagenet-resnet18", "tiny-imagenet-resnet18-224"]),
        (("export", "c", "m", "x"), []),
        (("shards", "cifar1"), ["cifar10", "cifar100"]),
        (("paper", "fig"), ["figure1"]),
        (("paper", "figure1", "--thr"), ["--threads"]),
        (("train", "x", "--resume", "--da"), ["--data", "--dataset"]),
        (("nothing", "x"), []),
    ],
)
def test_bash_completes(script: Path, words: tuple[str, ...], expected: list[str], tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photo.png").touch()
    assert complete(script, *words, folder=tmp_path) == expected


INTERACTIVE = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
}


@pytest.mark.parametrize("shell", INTERACTIVE)
def test_a_person_presses_tab(found: list[Shape], shell: str, tmp_path: Path) -> None:
    """An interactive shell on a terminal of its own."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(getattr(shells, shell)(found))
    (tmp_path / "my photo.png").touch()
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TERM": "dumb", "PS1": "$ "}
        os.execvpe(shell, INTERACTIVE[shell], environment)
    start = "autoload -U compinit; compinit -u; bindkey -e; " if shell == "zsh" else ""
    os.write(terminal, f"{start}source ./script; echo rea''dy\n".encode())
    _read_until(terminal, "ready")
    os.write(terminal, b"xnorpp pred\t--mod\tcifar10-resnet2\tmy\t\x01echo \n")  # ctrl-A: the line's start
    text = _read_until(terminal, "\nxnorpp predict")
    os.close(terminal)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert "\nxnorpp predict --model cifar10-resnet20 my photo.png" in text, text


def _read_until(terminal: int, words: str) -> str:
    """What the terminal shows until half a second after these words, or for a minute."""
    text, deadline = "", time.monotonic() + 60
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.5)[0]:
            text += os.read(terminal, 4096).decode(errors="replace").replace("\r", "")
        elif words in text:
            break
    return text


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_are_valid_where_their_shell_is_installed(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS)
    assert "digits-small-case4" in text
    path = tmp_path / "script"
    path.write_text(text)
    if shutil.which(shell):
        done = subprocess.run([shell, "-n", str(path)], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("xnorpp pre", "predict"),
        ("xnorpp train digits-small-bn", "digits-small-bnn"),
        ("xnorpp predict --model cifar10-resnet2", "cifar10-resnet20"),
        ("xnorpp paper figure1 --thr", "--threads"),
    ],
)
def test_fish_completes(found: list[Shape], line: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "xnorpp.fish").write_text(shells.fish(found))
    code = f"source {tmp_path / 'xnorpp.fish'}; complete -C '{line}'"
    done = subprocess.run(
        ["fish", "--no-config", "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    assert expected in [row.partition("\t")[0] for row in done.stdout.splitlines()], done.stderr


def test_an_unknown_shell_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["completion", "tcsh"])
    assert stop.value.code == 2
    assert "invalid choice: 'tcsh'" in capsys.readouterr().err


def test_it_needs_no_torch() -> None:
    code = (
        "import sys; from xnorpp.cli.main import main; main(['completion', 'bash']); "
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]
