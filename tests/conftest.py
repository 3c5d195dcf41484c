"""What holds for every test: set before torch is imported by any of them, whatever their order."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

# Some virtual machines list AMX and die of its instructions; oneDNN is kept below it, in subprocesses too.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module `own`, which a user wrote outside of the package; what it registers is forgotten again."""
    from xnorpp.models import NETWORKS
    from xnorpp.nn import QUANTIZERS, SCALES

    registries = (NETWORKS, QUANTIZERS, SCALES)
    before = [dict(registry) for registry in registries]
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "outside"))
    yield importlib.import_module("own")
    del sys.modules["own"]
    for registry, entries in zip(registries, before, strict=True):
        registry._entries = entries
