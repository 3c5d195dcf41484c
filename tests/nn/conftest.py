from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

# Some virtual machines announce AMX and then refuse it: torch's own bfloat16 linear dies there of an illegal
# instruction. oneDNN reads this at its first operation, which is after the tests were collected.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")


@pytest.fixture(autouse=True)
def _fresh_start() -> Iterator[None]:
    """The same random numbers for every test, and no compiled code left over from another."""
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
