"""An extension of griffe, which reads the docstrings for the API reference.

Our docstrings end in `Example:`. Griffe reads only `Examples:` as code and takes the other for a remark,
whose prompts would become quotations.
"""

from __future__ import annotations

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Renames the section in every docstring that is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
