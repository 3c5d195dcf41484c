"""The demo, shortened: both networks are trained and their accuracies printed side by side."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from xnorpp.cli.demo import run_demo


def test_the_demo_trains_both_and_prints_them_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.set_num_threads(1)
    found = run_demo(tmp_path, seed=1, overrides=("schedule.epochs=2", "model.options.width=8"))
    said = capsys.readouterr().out
    assert "test accuracy" in said
    for kind in ("binary", "real"):
        assert f"{found[kind]['metrics']['top1']:.2f} %" in said
        assert found[kind]["seed"] == 1
        assert (tmp_path / kind / "model.safetensors").exists()
    assert "one bit" in said
    assert "real-valued baseline" in said
    packed = found["packed"]
    assert packed["same"] >= 0.999 * packed["images"]
    assert packed["bytes"] == (tmp_path / "digits.xnor").stat().st_size
    assert f"equal to torch's on {packed['same']} of {packed['images']}" in said
    assert f"Packed: {packed['bytes'] / 1e3:.1f} kB, " in said
    assert said.count(" times as long\n") == 2
