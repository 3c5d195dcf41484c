from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import torch

from xnorpp.nn import calibrate_scales

WORKER = Path(__file__).with_name("ddp_worker.py")


def test_two_processes_calibrate_alike_and_average_their_gradients(tmp_path: Path) -> None:
    outputs = [tmp_path / f"rank{rank}.pt" for rank in range(2)]
    workers = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(rank), "2", str(tmp_path / "rendezvous"), str(output)]
        )
        for rank, output in enumerate(outputs)
    ]
    assert [worker.wait(timeout=120) for worker in workers] == [0, 0]
    first, second = (torch.load(output, weights_only=True) for output in outputs)
    assert first["processes"] == second["processes"] == 2
    for part in ("state", "gradients"):
        for name, value in first[part].items():
            assert torch.equal(value, second[part][name]), name

    spec = importlib.util.spec_from_file_location("ddp_worker", WORKER)
    assert spec is not None
    assert spec.loader is not None
    worker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(worker)
    both = torch.cat([worker.batch(0), worker.batch(1)])
    model = worker.network()
    calibrate_scales(model, both)  # one process with all the data
    for name, value in model.state_dict().items():
        torch.testing.assert_close(first["state"][name], value)
    model(both).square().mean().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(first["gradients"][name], parameter.grad)
