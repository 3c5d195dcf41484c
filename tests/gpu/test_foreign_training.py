"""The benchmark of foreign networks: in miniature on the CPU, and a short one on a GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
import warm

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "foreign_training.py"


def run(*arguments: str) -> list[dict[str, object]]:
    done = warm.run([sys.executable, SCRIPT, *arguments], timeout=3600)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in Path(arguments[-1]).read_text().splitlines()]


def test_a_miniature_runs_on_the_cpu(tmp_path: Path) -> None:
    given = (
        "--networks",
        "resnet20",
        "--variants",
        "real graph,fused",
        "--out",
        str(tmp_path / "rows.jsonl"),
    )
    (row,) = run(*given)
    assert row["speed"] > 0  # type: ignore[operator]
    assert set(row["variants"]) == {"real graph", "fused"}  # type: ignore[call-overload]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="NOT RUN: timing the fused kernels needs a GPU")
def test_the_benchmark_records_a_ratio_per_network(tmp_path: Path) -> None:
    rows = run("--variants", "real graph,fused,binary graph", "--out", str(tmp_path / "rows.jsonl"))
    assert [row["network"] for row in rows] == ["resnet18", "resnet20"]
    assert all(row["speed"] > 0 for row in rows)  # type: ignore[operator]
    assert rows[0]["fastest_binary"] == "fused"
