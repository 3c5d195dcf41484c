"""Checkpoints: what comes back is what went in, or a clear error and the previous one."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from xnorpp.models import create_model
from xnorpp.training import CheckpointError, load_checkpoint, load_model, save_checkpoint
from xnorpp.training.state import checkpoint
from xnorpp.training.state.checkpoint import (
    checkpoint_path,
    clear_temporary,
    forget_old,
    list_checkpoints,
    newest_checkpoint,
)

META: dict[str, Any] = {"model": {"name": "small"}, "step": 3, "loss": 0.1 + 0.2, "names": ["a", "ä"]}


def _weights(seed: int = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {
        "a.weight": torch.randn(4, 3, 3, 3).to(memory_format=torch.channels_last),
        "count": torch.tensor(7),
        "half": torch.randn(5, dtype=torch.bfloat16),
        "empty": torch.zeros(0, 2),
    }


def _save(run: Path, step: int) -> Path:
    return save_checkpoint(
        checkpoint_path(run, step), _weights(step), {**META, "step": step}, {"a/exp": torch.ones(2)}
    )


def test_what_goes_in_comes_out(tmp_path: Path, same: Callable[[Any, Any], bool]) -> None:
    found = load_checkpoint(_save(tmp_path, 3))
    assert same(found.weights, _weights(3))
    assert same(found.optimizer, {"a/exp": torch.ones(2)})
    assert found.meta == META
    assert found.model_config == {"name": "small"}


def test_tied_weights_are_saved_twice_instead_of_refused(tmp_path: Path) -> None:
    shared = torch.randn(3)
    path = save_checkpoint(tmp_path / "x.safetensors", {"a": shared, "b": shared[:2]}, META)
    assert torch.equal(load_checkpoint(path).weights["b"], shared[:2])


def test_a_model_comes_back_in_evaluation_mode(tmp_path: Path) -> None:
    model = create_model("small", input_size=8, num_classes=10, in_channels=1, width=4).eval()
    path = save_checkpoint(tmp_path / "m.safetensors", model.state_dict(), {"model": model.config})
    loaded, meta = load_model(path)
    x = torch.randn(2, 1, 8, 8)
    assert not loaded.training
    assert torch.equal(loaded(x), model(x))
    assert meta["model"]["width"] == 4


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.99])
def test_a_truncated_checkpoint_is_named_and_the_previous_one_loads(tmp_path: Path, keep: float) -> None:
    _save(tmp_path, 1)
    path = _save(tmp_path, 2)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(CheckpointError, match=r"step-000000002.safetensors is damaged or truncated"):
        load_checkpoint(path)
    with pytest.warns(UserWarning, match="Using the previous one, .*step-000000001"):
        found = load_checkpoint(tmp_path)
    assert found.meta["step"] == 1


def test_one_wrong_bit_is_noticed(tmp_path: Path) -> None:
    path = _save(tmp_path, 1)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="its checksum does not match"):
        load_checkpoint(path)
    with pytest.raises(CheckpointError, match=r"No checkpoint of .* is left to use"):
        newest_checkpoint(tmp_path)


def test_a_damaged_final_model_falls_back_to_the_checkpoints(tmp_path: Path) -> None:
    _save(tmp_path, 5)
    (tmp_path / "model.safetensors").write_bytes(b"short")
    with pytest.warns(UserWarning, match="Falling back to the run's checkpoints"):
        assert load_checkpoint(tmp_path).meta["step"] == 5


def test_what_is_not_a_checkpoint_is_refused(tmp_path: Path) -> None:
    plain = tmp_path / "plain.safetensors"
    safetensors.torch.save_file({"a": torch.ones(1)}, plain)
    with pytest.raises(CheckpointError, match="is a safetensors file but not an xnorpp checkpoint"):
        load_checkpoint(plain)
    safetensors.torch.save_file({"a": torch.ones(1)}, plain, {"format": checkpoint.FORMAT, "version": "9"})
    with pytest.raises(CheckpointError, match="has version '9'; this release reads '1'"):
        load_checkpoint(plain)
    with pytest.raises(CheckpointError, match="There is no checkpoint"):
        load_checkpoint(tmp_path / "none.safetensors")
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        load_checkpoint(tmp_path / "..")


def test_a_full_disk_gives_a_clear_error_and_the_previous_checkpoint_still_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _save(tmp_path, 1)
    write = os.write

    def full(descriptor: int, content: Any) -> int:
        write(descriptor, bytes(content)[:100])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(
        CheckpointError, match=r"step-000000002.* could not be written .*No space left on device"
    ):
        _save(tmp_path, 2)
    monkeypatch.undo()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000000001.safetensors"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_checkpoint(tmp_path).meta["step"] == 1


def test_a_real_limit_on_file_size_in_a_real_process_behaves_the_same(tmp_path: Path) -> None:
    code = f"""
import resource, signal, torch
from pathlib import Path
from xnorpp.training.state.checkpoint import checkpoint_path, load_checkpoint, save_checkpoint
run = Path({str(tmp_path)!r})
save_checkpoint(checkpoint_path(run, 1), {{"a": torch.ones(10)}}, {{"model": {{}}, "step": 1}})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    save_checkpoint(checkpoint_path(run, 2), {{"a": torch.ones(10000)}}, {{"model": {{}}, "step": 2}})
except Exception as error:
    print(type(error).__name__, error)
print(load_checkpoint(run).meta["step"])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    error, step = done.stdout.strip().splitlines()
    assert error.startswith("CheckpointWriteError")
    assert "File too large" in error
    assert step == "1"


def test_only_the_newest_are_kept_and_leftovers_are_cleared(tmp_path: Path) -> None:
    for step in (1, 20, 3):
        _save(tmp_path, step)
    forget_old(tmp_path, 2)
    assert [path.stem for path in list_checkpoints(tmp_path)] == ["step-000000020", "step-000000003"]
    leftover = tmp_path / "checkpoints" / ".step-000000021.safetensors.1.tmp"
    leftover.write_bytes(b"half")
    clear_temporary(tmp_path)
    assert not leftover.exists()
    assert newest_checkpoint(tmp_path / "elsewhere") is None
