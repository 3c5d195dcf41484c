from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _fresh_start() -> Iterator[None]:
    """The same random numbers for every test, and no compiled code left over from another."""
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
