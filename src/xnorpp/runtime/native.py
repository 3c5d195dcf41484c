"""The native core, which reads files, plans programs and runs them (`csrc/`), loaded at its first use."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from xnorpp.runtime.errors import FAILED, XnorppError


class ProgramError(XnorppError, ValueError):
    """A packed file or program that breaks the format, or needs too much; the message states where and how.

    Example:
        >>> from xnorpp.runtime import ProgramError, load
        >>> try:
        ...     load(b"not a packed model")
        ... except ProgramError as error:
        ...     print(type(error).__name__)
        ProgramError
    """


class CoreMissing(XnorppError, ImportError):
    """The native core was not built."""

    exit_code = FAILED


@cache
def core() -> Any:
    """The extension module.

    Raises:
        CoreMissing: it was not built.
    """
    try:
        module = importlib.import_module("xnorpp.runtime._core")
    except ImportError as error:
        raise CoreMissing(
            f"the native core of xnorpp, which reads and runs packed models, is not built ({error}); "
            "install a C++17 compiler and run `pip install .` in the source tree, or install a wheel"
        ) from None
    module.raise_as(ProgramError)
    return module
