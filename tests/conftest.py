"""What holds for every test: set before torch is imported by any of them, whatever their order."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from types import ModuleType

import pytest

# Set by `make test-deploy`, which installs what its tests need: there a test that is skipped has failed,
# unless its reason is an instruction set that the processor does not have.
NEVER_SKIP = bool(os.environ.get("XNORPP_DEPLOY"))
OTHER_PROCESSOR = "OTHER PROCESSOR NEEDED"

# Some virtual machines list AMX and die of its instructions; oneDNN is kept below it, in subprocesses too.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")


def _never_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    if OTHER_PROCESSOR in str(report.longrepr):
        return
    if NEVER_SKIP and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which `make test-deploy` does not allow: {report.longrepr}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _never_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _never_skipped(report)
    return report


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
