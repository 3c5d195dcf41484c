"""The front door: the public names exist, importing is cheap, and the runtime needs no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

import xnorpp
from xnorpp.shipped import shipped_path


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", xnorpp.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(xnorpp, name) is not None


def test_all_is_sorted_and_unique() -> None:
    assert sorted(set(xnorpp.__all__)) == list(xnorpp.__all__)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'binarise'"):
        _ = xnorpp.binarise


def test_packages_need_no_import_of_their_own() -> None:
    code = "import xnorpp; print(xnorpp.packing.PackError.__name__, xnorpp.runtime.load.__name__)"
    assert _run(code) == "PackError load"


def test_importing_the_package_loads_neither_torch_nor_numpy() -> None:
    code = "import sys, xnorpp; print([m for m in ('torch', 'numpy', 'PIL') if m in sys.modules])"
    assert _run(code) == "[]"


def test_a_loaded_model_answers_without_modules_that_only_other_calls_need() -> None:
    """Each of them is some 100 kB of the memory of a small service."""
    code = (
        "import sys, numpy\n"
        "given = set(sys.modules)\n"
        "import xnorpp.runtime\n"
        f"model = xnorpp.runtime.load({str(shipped_path('cifar10-resnet20'))!r}, threads=1)\n"
        "model(numpy.zeros((1, 32, 32, 3), numpy.uint8))\n"
        "wanted = ('PIL', 'concurrent', 'hashlib', 'logging', 'pathlib', 'torch', 'urllib')\n"
        "wanted += ('xnorpp.runtime.decode', 'xnorpp.runtime.plan', 'xnorpp.runtime.reference')\n"
        "print([name for name in wanted if name in sys.modules and name not in given])"
    )
    assert _run(code) == "[]"


def test_the_runtime_and_image_preprocessing_work_where_torch_cannot_be_imported() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import xnorpp.runtime, xnorpp.data, xnorpp.cli.main\n"
        "from xnorpp.data import Preprocess\n"
        "print(callable(xnorpp.runtime.load), Preprocess.__name__)"
    )
    assert _run(code) == "True Preprocess"
