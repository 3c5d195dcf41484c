"""The base of every error that xnorpp defines: it carries the exit status of the command line.

A new error class derives from `XnorppError` and from the built-in exception that describes it, such as
`class RecipeError(XnorppError, ValueError)`. It sets `exit_code` only where the default does not fit.
"""

from __future__ import annotations

from typing import ClassVar

UNUSABLE_INPUT = 2  # an argument or a file that cannot be used
FAILED = 1  # the input was fine, and the work failed


class XnorppError(Exception):
    """An error whose message is one sentence for the user.

    `exit_code` is the status with which `xnorpp` ends when a command raises it: 2 for input that cannot be
    used (the default), 1 for work that failed.

    Example:
        >>> class DiskFull(XnorppError, OSError):
        ...     exit_code = FAILED
        >>> DiskFull("no space left").exit_code
        1
    """

    exit_code: ClassVar[int] = UNUSABLE_INPUT
