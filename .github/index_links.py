"""Prepares a checkout for a package index, which shows README.md without the files beside it.

    python .github/index_links.py https://HOST/OWNER/NAME v0.2.0

Relative links of README.md become absolute, at that tag or branch, and pyproject.toml gets the addresses of
the repository. Run by the workflow that builds the wheels: the sources name no host, so a fork's links are
its own.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# [text](target), ![image](target) and [![image](target)](target); [name]: target; src="target" of HTML.
PLACES = (r"(\]\()([^)\s]+)", r"(?m)^(\[[^\]]+\]:\s*)(\S+)", r"((?:src|href|srcset)=[\"'])([^\"'\s]+)")
IMAGES = (".svg", ".png", ".gif", ".jpg", ".jpeg", ".webp")


def absolute(text: str, repository: str, version: str) -> str:
    """`text` with its relative links and images as addresses in the repository."""

    def replace(found: re.Match[str]) -> str:
        before, target = found.groups()
        if re.match(r"https?:|mailto:|#", target):
            return found[0]
        kind = "raw" if target.partition("#")[0].endswith(IMAGES) else "blob"
        return f"{before}{repository}/{kind}/{version}/{target}"

    for place in PLACES:
        text = re.sub(place, replace, text)
    return text


def with_urls(pyproject: str, repository: str) -> str:
    """`pyproject` with the addresses of the repository after the head of `[project.urls]`."""
    head = "[project.urls]\n"
    if pyproject.count(head) != 1:
        raise SystemExit("pyproject.toml must have one table [project.urls]")
    lines = {
        "Repository": repository,
        "Issues": f"{repository}/issues",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
    }
    return pyproject.replace(head, head + "".join(f'{name} = "{url}"\n' for name, url in lines.items()))


def main(arguments: list[str]) -> None:
    if len(arguments) != 2 or not re.fullmatch(r"https://[\w.:/-]+", arguments[0]):
        raise SystemExit(__doc__)
    repository, version = arguments[0].rstrip("/"), arguments[1]
    for name, change in (
        ("README.md", lambda text: absolute(text, repository, version)),
        ("pyproject.toml", lambda text: with_urls(text, repository)),
    ):
        path = ROOT / name
        path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
