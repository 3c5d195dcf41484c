"""Plain English: the worst patterns of the first release do not come back in documents, notebooks, help,
recipes, messages, docstrings and comments.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import re
import tokenize
from pathlib import Path

import pytest

import xnorpp
from xnorpp.cli import main as cli
from xnorpp.cli.paper.experiments import PAPER
from xnorpp.shipped import render_card

ROOT = Path(__file__).resolve().parents[1]
COUNTED = (
    "factors?|rows?|lines?|numbers?|scales?|shortcuts?|multiply-adds?|bits?|bytes?|columns?|tables?|bars?|panels?|"
    "pictures?|images?|ms|milliseconds?|calls?|inputs?|slopes?|thresholds?|processes|threads?|checkpoints?|one"
)
UNITS = (
    "second|minute|picture|image|batch|call|turn|round|core|channel|filter|layer|row|run|seed|step|epoch|evaluation|"
    "machine|model|network|pixel|element|value|output|input|number|set-up|method|engine|GPU|shape|class"
)
PATTERNS = {
    "write 'one factor per channel', 'images per second'": rf"\b(?:{COUNTED}) an? (?:{UNITS})\b",
    "write 'image'": r"\bpictures?\b",
    "write 'real-valued baseline'": r"\btwins?\b",
    "write 'benchmark' or 'comparison'": r"\braces?\b(?! condition)|\braced\b",
    "write 'before'": r"\bin front of\b",
    "write 'is skipped with a message' or 'raises'": r"\bin so many words\b",
    "write 'reports' or 'shows'": r"\b(?:is|are) told\b|\btells? (?:what|how|which|where)\b",
    "write 'states', 'lists' or 'explains'": r"\b(?:message|error|row|it) says\b|\bsays? (?:why|where|so)\b",
    "write 'continues'": r"\bgo(?:es)? on (?:from|at|with|where|until)\b",
    "write 'always' or 'forever'": r"\bfor ever\b(?!y)",
    "write 'this many'": r"\bso many\b",
    "write 'recorded' or 'stored'": r"\bkept in (?:`|results|the file)|\bkept beside\b",
}
PACKAGES = (
    "",
    "nn",
    "models",
    "data",
    "training",
    "packing",
    "convert",
    "export",
    "runtime",
    "shipped",
    "inspect",
    "bench",
)


def patterns_in(text: str) -> list[str]:
    """Each match with its surroundings and what to write instead."""
    text = re.sub(r"\s+", " ", re.sub(r"`[^`\n]*`|<!--.*?-->", "``", text))  # names may be anything
    return [
        f"...{text[max(0, match.start() - 30) : match.end() + 30]}...: {advice}"
        for advice, pattern in PATTERNS.items()
        for match in re.finditer(pattern, text)
    ]


def test_the_patterns_find_what_they_are_for() -> None:
    for text in (
        "a factor a channel",
        "40 images a second",
        "one line an evaluation",
        "a picture",
        "is told",
    ):
        assert patterns_in(text), text
    assert patterns_in("one factor per channel; `twin`; a race condition; once a day; it gives a name") == []


@pytest.mark.parametrize(
    "path",
    [
        ROOT / "README.md",
        ROOT / "SECURITY.md",
        ROOT / "CODE_OF_CONDUCT.md",
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "docs").rglob("*.ipynb")),
    ],
    ids=lambda path: path.name,
)
def test_documents(path: Path) -> None:
    name = path.relative_to(ROOT).as_posix()
    found = patterns_in(path.read_text(encoding="utf-8"))
    assert found == [], f"{name}:\n" + "\n".join(found)


@pytest.mark.parametrize("command", [*cli.COMMANDS, *(f"paper {name}" for name in PAPER)])
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main([*command.split(), "--help"])
    assert patterns_in(capsys.readouterr().out) == []


def test_the_overview(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["--help"])
    assert patterns_in(capsys.readouterr().out) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_of_public_names(package: str) -> None:
    module = importlib.import_module(f"xnorpp.{package}".rstrip("."))
    texts = [module.__doc__ or ""]
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            texts.append(inspect.getdoc(thing) or "")
        if inspect.isclass(thing):
            texts += [inspect.getdoc(one) or "" for key, one in vars(thing).items() if key[0] != "_"]
    assert [one for text in texts for one in patterns_in(text)] == []
    assert xnorpp.__all__


def prose(path: Path) -> list[tuple[int, str]]:
    """Comments, docstrings and messages of a file with their lines: all strings that have a space."""
    source = path.read_text(encoding="utf-8")
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    found = [(one.start[0], one.string) for one in tokens if one.type == tokenize.COMMENT]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            found.append((node.lineno, node.value))
    return found


@pytest.mark.parametrize("folder", ["src", "benchmarks", "examples", "docs", "web"])
def test_comments_docstrings_and_messages(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {one}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text in prose(path)
        for one in patterns_in(text)
    ]
    assert found == [], "\n".join(found)


def test_prose_is_found(tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    path.write_text('"""A docstring."""\npicture = f"a {1} message"  # a comment\n', encoding="utf-8")
    texts = " ".join(text for _, text in prose(path))
    assert "A docstring." in texts
    assert " message" in texts
    assert "# a comment" in texts
    assert "picture" not in texts


def test_recipes() -> None:
    files = sorted((ROOT / "src" / "xnorpp" / "recipes").glob("*.toml"))
    assert files
    found = [one for path in files for one in patterns_in(path.read_text(encoding="utf-8"))]
    assert found == [], "\n".join(found)


@pytest.mark.parametrize("name", xnorpp.list_shipped())
def test_model_cards(name: str) -> None:
    assert patterns_in(render_card(xnorpp.shipped_card(name))) == []
