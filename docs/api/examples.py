"""An extension of griffe, which reads the docstrings for the API reference.

Our docstrings end in `Example:`. Griffe reads only `Examples:` as code and takes the other for a remark,
whose prompts would become quotations.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Makes one section of the examples of every docstring that is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_sections(obj.docstring.value)


def with_sections(text: str) -> str:
    """A docstring whose examples are in sections `Examples:`, also those without a heading."""
    text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
    bare = r"^>>> .*(?:\n.+)*"
    return re.sub(
        bare, lambda found: "Examples:\n" + textwrap.indent(found[0], "    "), text, flags=re.MULTILINE
    )
