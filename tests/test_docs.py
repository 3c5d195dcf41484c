"""The documents hold: their Python runs, their command lines parse, their links and names exist, and their
numbers are those of results/.

Every ```python block of a page runs, in order, in one namespace, in a folder that has a small trained run
(runs/digits), its packed file (digits.xnor) and two images (digit.png, photo.jpg). Recipes are cut to a few
steps. Every `xnorpp ...` line of a ```console block, and in backticks, goes through the real argument parser.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import json
import re
import shlex
import shutil
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from xnorpp.cli import main as cli
from xnorpp.cli.command import Parser
from xnorpp.cli.paper.experiments import PAPER
from xnorpp.data import list_datasets, load_dataset
from xnorpp.models import create_model, list_models
from xnorpp.nn import QUANTIZERS, SCALES
from xnorpp.training.recipe import library as recipes
from xnorpp.training.recipe.config import recipe_keys

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`(xnorpp [^`]+)`")
PLACEHOLDER = re.compile(r"\b(RECIPE|MODEL|COMMAND|NAME|CHECKPOINT|IMAGE|DIR|FILE)\b")
SHORT = ("model.options.width=4", "schedule.max_steps=2", "run.tensorboard=false", "run.threads=1")

load_recipe = recipes.load_recipe


def page_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(path: Path, language: str) -> list[tuple[int, str]]:
    """(line, text) of each fenced block of a language."""
    text = path.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, found.start(2)) + 1, found[2])
        for found in FENCE.finditer(text)
        if found[1] == language
    ]


def command_lines() -> list[tuple[str, str]]:
    """(where, command line), from console blocks and from text in backticks."""
    found = []
    for path in PAGES:
        for line, text in blocks(path, "console"):
            for number, row in enumerate(text.splitlines()):
                command = row.removeprefix("$ ").partition("  #")[0].strip()
                if row.startswith("$ ") and re.match(r"xnorpp |torchrun .* -m xnorpp ", command):
                    found.append((f"{page_name(path)}:{line + number}", command))
        prose = FENCE.sub(lambda block: "\n" * block[0].count("\n"), path.read_text(encoding="utf-8"))
        for match in INLINE.finditer(prose):
            if match[1].split()[1] != "COMMAND":
                found.append((f"{page_name(path)}:{prose.count(chr(10), 0, match.start()) + 1}", match[1]))
    return found


def short_recipe(name: str | Path, overrides: Sequence[str] = ()) -> Any:
    return load_recipe(name, [*overrides, *SHORT])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs/digits, digits.xnor, digit.png and photo.jpg."""
    from PIL import Image

    from xnorpp.training import train

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("docs")
    train(short_recipe("digits-small-case4"), out=folder / "runs" / "digits", device="cpu", quiet=True)
    assert cli.main(["pack", str(folder / "runs" / "digits"), "-o", str(folder / "digits.xnor")]) == 0
    Image.fromarray(load_dataset("digits", split="test").images[0, :, :, 0]).save(folder / "digit.png")
    Image.new("RGB", (60, 40), (90, 140, 200)).save(folder / "photo.jpg")
    return folder


@pytest.mark.parametrize("path", [path for path in PAGES if blocks(path, "python")], ids=page_name)
def test_the_python_of_a_page_runs(
    path: Path,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for item in trained.iterdir():
        if not (path.name == "README.md" and item.name in ("runs", "digits.xnor")):  # the README makes them
            (shutil.copytree if item.is_dir() else shutil.copy)(item, tmp_path / item.name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(recipes, "load_recipe", short_recipe)
    names: dict[str, Any] = {"__name__": "__main__"}
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        for line, text in blocks(path, "python"):
            padded = "\n" * (line - 1) + text  # so that an error names the line of the page
            exec(compile(padded, str(path), "exec"), names)
    if path.name == "packing.md":
        printed = capsys.readouterr().out
        assert re.search(r"torch\.lgamma is not supported\n  2  packing\.md:\d+: return x", printed)
        assert "1: nn.BatchNorm2d has no running statistics (track_running_stats=False)" in printed
        assert "\nTrue\npacked  " in printed


def test_a_recipe_in_the_text_loads(tmp_path: Path) -> None:
    shown = [text for path in PAGES for _, text in blocks(path, "toml")]
    assert shown
    for number, text in enumerate(shown):
        place = tmp_path / f"{number}.toml"
        place.write_text(text, encoding="utf-8")
        recipe = load_recipe(place)
        assert recipe.model.options["surrogate"] in QUANTIZERS
        assert recipe.data.dataset in list_datasets()


class _Parsed(BaseException):
    """Carries the parsed arguments out of a command before it does anything."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given


@pytest.fixture
def parse_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(self: Parser, arguments: list[str]) -> None:
        raise _Parsed(argparse.ArgumentParser.parse_args(self, arguments))

    monkeypatch.setattr(Parser, "parse_args", parse)


@pytest.mark.usefixtures("parse_only")
@pytest.mark.parametrize(("where", "command"), command_lines())
def test_a_command_line_parses(where: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(command)
    words = words[words.index("xnorpp") + 1 :]
    if ">" in words:  # the shell's, not the command's
        words = words[: words.index(">")]
    if words[0] in ("help", "--help", "--version"):
        return
    assert words[0] in cli.COMMANDS, f"{where}: there is no command {words[0]!r}"
    if len(words) == 1 or "--help" in words or any(PLACEHOLDER.fullmatch(word) for word in words):
        if len(words) > 1:
            check_flags(words, where, capsys)
        return
    try:
        cli.main(words)
    except _Parsed as parsed:
        given = parsed.given
    except SystemExit:
        pytest.fail(f"{where}: {capsys.readouterr().err}")
    recipe = given.recipe if words[0] in ("train", "recipes") else None
    if recipe and "*" in recipe:
        assert fnmatch.filter(recipes.list_recipes(), recipe), f"{where}: no recipe matches {recipe}"
    elif recipe and not recipe.endswith(".toml"):
        load_recipe(recipe, given.overrides)


def check_flags(words: list[str], where: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A line with placeholders: its command's help must know every flag."""
    with pytest.raises(SystemExit):
        cli.main([*words[: 2 if words[1] in PAPER else 1], "--help"])
    known = capsys.readouterr().out
    for word in words[1:]:
        assert not word.startswith("-") or word in known, f"{where}: {words[0]} has no flag {word}"


@pytest.mark.parametrize("path", PAGES, ids=page_name)
def test_make_targets_and_scripts_exist(path: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"(?:`|\$ )make ([\w-]+)", text):
        assert target in targets, f"{page_name(path)} names `make {target}`"
    for script in re.findall(r"benchmarks/\w+\.\w+", text):
        assert (ROOT / script).is_file(), f"{page_name(path)} names {script}"


def test_every_command_has_a_section_with_an_example() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    sections = {
        part.partition("`")[0]: part for part in re.split(r"^## `xnorpp ", text, flags=re.MULTILINE)[1:]
    }
    assert list(sections) == list(cli.COMMANDS)
    for name, part in sections.items():
        assert f"$ xnorpp {name}" in part


@pytest.mark.parametrize("path", PAGES, ids=page_name)
def test_relative_links_lead_somewhere(path: Path) -> None:
    prose = FENCE.sub("", path.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"\w+:", target):
            continue
        file, _, anchor = target.partition("#")
        place = (path.parent / file).resolve() if file else path
        assert place.exists(), f"{page_name(path)} links to {target}"
        if anchor:
            assert anchor in anchors(place), f"{page_name(path)} links to {target}"


def anchors(path: Path) -> set[str]:
    """The headings of a page as mkdocs and code hosts name them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_recipe_keys_in_the_text_exist() -> None:
    sections = {key.partition(".")[0] for key in recipe_keys() if "." in key} - {"model"}  # a variable too
    named = re.compile(rf"(?<![\w./-])((?:{'|'.join(sections)})\.[a-z_]+)\b")
    seen = set()
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        spans = re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
        spans += [text for _, text in blocks(path, "console")]
        for span in spans:
            for key in named.findall(span):
                assert key in recipe_keys(), f"{page_name(path)} names the key {key}"
                seen.add(key)
    assert {"optimizer.lr", "loss.teacher", "run.keep"} <= seen


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("models.md", list_models()),
        ("data.md", list_datasets()),
        ("layers.md", (*SCALES, *QUANTIZERS)),
    ],
)
def test_a_page_names_all_that_is_listed(page: str, names: Sequence[str]) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert [name for name in names if f"`{name}`" not in text] == []


def test_the_page_of_networks_has_every_option() -> None:
    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    fixed = {"name", "input_size", "num_classes", "in_channels", "method", "scale"}
    with torch.device("meta"):  # the sizes of AlexNet need no memory here
        options = {key for name in list_models() for key in create_model(name).config} - fixed
    assert [option for option in sorted(options) if f"`{option}`" not in text] == []


def test_the_first_page_leads_to_every_other() -> None:
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert pages == set(re.findall(r"\]\(([\w-]+\.md)\)", text))


def test_the_navigation_has_every_page() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"^\s+- .+: ([\w-]+\.md)$", text, re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


@pytest.fixture
def drawing() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("draw_readme", ROOT / "benchmarks" / "draw_readme.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_drawn_numbers_are_those_of_the_results(drawing: ModuleType) -> None:
    rows = drawing.read_rows()
    for path in drawing.documents():
        text = path.read_text(encoding="utf-8")
        assert drawing.draw(text, rows) == text, (
            f"{path.name} is out of date: run `python benchmarks/draw_readme.py`"
        )


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "plots").glob("*.svg")), ids=lambda path: path.stem)
def test_the_text_of_a_plot_is_readable_on_a_page(path: Path) -> None:
    """At least eleven pixels on a page of 760."""
    text = path.read_text(encoding="utf-8")
    width = re.search(r'viewBox="0 0 ([0-9.]+)', text)
    sizes = [float(size) for size in re.findall(r"font(?:-size)?: ?([0-9.]+)px", text)]
    assert width is not None
    assert min(sizes) * 760 / float(width[1]) >= 11


def test_drawing_fills_a_block_and_nothing_else(drawing: ModuleType) -> None:
    row = {"kind": "captured", "name": "demo", "hardware": {"cpu": "a CPU"}, "date": "2026-01-01"}
    rows = [{**row, "output": "slow"}, {**row, "output": "hello"}]
    text = "before\n<!-- drawn: demo -->\nold\n<!-- end -->\nafter <!-- end -->\n"
    drawn = drawing.draw(text, rows)
    assert drawn.startswith("before\n<!-- drawn: demo -->\n![What make demo prints")
    assert "on a CPU, 2026-01-01; all 2 recorded runs" in drawn
    assert drawn.endswith("\n<!-- end -->\nafter <!-- end -->\n")
    assert "old" not in drawn
    assert "![" not in drawing.draw(text, [])
    with pytest.raises(SystemExit, match="no block 'dome'"):
        drawing.draw("<!-- drawn: dome -->\n<!-- end -->", rows)


def test_tables_are_drawn_from_what_the_commands_keep(
    drawing: ModuleType, trained: Path, tmp_path: Path
) -> None:
    from xnorpp.bench import Startup, report
    from xnorpp.training.records.record import append_rows, record_result

    assert drawing.read_rows(tmp_path) == []
    assert drawing.trained([]) == drawing.engines([]) == drawing.engines_on_gpu([]) == drawing.NOTHING
    summary = json.loads((trained / "runs" / "digits" / "summary.json").read_text(encoding="utf-8"))
    record_result(tmp_path / "training.jsonl", summary)
    startup = Startup(0.25, 0.1, 0.1, 0.05, 50_000_000, 20_000_000, False, "avx2")
    append_rows(
        tmp_path / "cpu.jsonl", report.complete(report.startup_rows(startup, "model.xnor", 1), seed=0)
    )
    rows = drawing.read_rows(tmp_path)
    table = drawing.trained(rows)
    assert f"| digits-small-case4 | 15 | 0 | {summary['metrics']['top1']:.2f} |" in table
    assert "| training.jsonl |" in table
    table = drawing.engines(rows)
    assert "| model.xnor: first answer | xnorpp | 1 | 1 | 0.25 s |" in table
    assert "30 MB" in table
    gpu = {"engine": "xnorpp", "mode": "graph", "precision": "one bit", "batch": 8, "milliseconds": 0.5,
           "images_per_second": 16000.0, "peak_bytes": 7_000_000, "note": "default"}  # fmt: skip
    quick = {**gpu, "milliseconds": 0.4, "note": "residual float16, resident 8 MiB"}
    metrics = {
        "speedup_batch_256_bfloat16": 5.5, "speedup_batch_256_bfloat16_float16_stream": 6.5,
        "speedup_batch_1_bfloat16": 3.5, "speedup_batch_1_bfloat16_float16_stream": 4.5,
        "memory_ratio": 0.24, "memory_ratio_float16_stream": 0.23,
        "same_class_float16": 0.9425, "same_class_float32": 1.0,
        "teraops_layer3.1.conv1": 4000.0, "teraops_layer4.1.conv1": 4200.0,
    }  # fmt: skip
    layer = {"name": "conv1", "kernel": "stem", "microseconds": 10.0, "floor_arithmetic": 2.0,
             "floor_memory": 3.0}  # fmt: skip
    row = {"kind": "cuda inference", "hardware": {"gpu": "a GPU"}, "date": "2026-01-01",
           "rows": [gpu, quick], "metrics": metrics, "correctness": {"images": 10000},
           "layers": [layer], "layers_float16": [{**layer, "microseconds": 8.0}]}  # fmt: skip
    table = drawing.engines_on_gpu([row])
    assert "| xnorpp | graph | one bit | 8 | 0.500 | 16,000 | 7 | default |" in table
    assert "| batch 256, times as fast | 5.50 | 6.50 |" in table
    assert "| peak memory of a call, batch 256 | 0.24 | 0.23 |" in table
    assert "| 100.00 % | 94.25 % |" in table
    table = drawing.gpu_layers([row])
    assert "| conv1 | stem | 10.0 (2.0, 3.0) | 8.0 (2.0, 3.0) |" in table
    assert "| sum | | 10 | 8 |" in table
    step = {"kind": "cuda training", "what": "step", "commit": "new", "hardware": {"gpu": "a GPU"},
            "batch": 8, "date": "2026-01-01", "size": 64, "variant": "real compiled",
            "images_per_second": 100.0, "peak_bytes": 10_000_000}  # fmt: skip
    fused = {**step, "variant": "fused graph", "images_per_second": 120.0, "peak_bytes": 7_000_000}
    table = drawing.gpu_training([{**fused, "commit": "old", "images_per_second": 1.0}, step, fused])
    assert "| 64 | real compiled | 100 (1.00) | 10 (1.00) |" in table
    assert "| 64 | fused graph | 120 (1.20) | 7 (0.70) |" in table
    assert drawing.gpu_training([]) == drawing.NOTHING


def test_packed_comparisons_are_drawn(drawing: ModuleType) -> None:
    assert drawing.packed([]) == drawing.NOTHING
    row = {"kind": "packed against trained", "recipe": "r", "name": "small", "method": "bnn", "scale": None,
           "dataset": "d", "epochs": 1, "seed": 0, "images": 1000, "top1_trained": 50.0, "fed": "floats",
           "top1_packed": 50.1, "same_class": 99.9, "batch_norm": "torch's numbers"}  # fmt: skip
    older = {**row, "same_class": 12.0}
    table = drawing.packed([older, row, {**row, "fed": "bytes", "same_class": 97.5}])
    assert "| small | bnn | d | 1 | 1,000 | 50.00 | 50.10 | 99.90 | **97.50** |" in table
    assert "12.00" not in table
    del row["batch_norm"]
    assert "| small (older) | bnn |" in drawing.packed([row])


def test_shipped_models_are_drawn(drawing: ModuleType) -> None:
    assert drawing.shipped([]) == drawing.NOTHING
    assert drawing.shipped_short([]) == ""
    accuracy = {"packed_top1": 91.5, "torch_top1": 91.51, "from_bytes_top1": 91.4, "packed_top5": 99.0,
                "same_class": 99.9, "images": 10000}  # fmt: skip
    row = {"kind": "shipped", "name": "a-model", "refused": None, "accuracy": accuracy,
           "baseline": {"top1": 94}, "data": {"classes": ["a"] * 10},
           "latency": {"from_bytes_median": 0.5, "from_bytes_fastest": 0.4, "isa": "avx2",
                       "hardware": {"cpu": "a CPU"}}, "seed": 7,
           "file": {"bytes": 1_500_000}, "recipe": {"name": "best"}, "date": "2026-01-01"}  # fmt: skip
    worse = {**row, "accuracy": {**accuracy, "packed_top1": 10.0}}
    refused = {**worse, "refused": "its top-1 differs"}
    table = drawing.shipped([worse, row, refused])
    assert (
        "| `a-model` | 91.50 | 94.00 | 99.00 | 1.50 MB | 0.50 ms (fastest 0.40) | a CPU, avx2, 2026" in table
    )
    assert "| `a-model` | best, 7 | 10,000 | 91.50 | 91.51 | 91.40 | 99.90 |" in table
    assert "10.00" not in table
    assert "Refused, 2026-01-01: a-model, because its top-1 differs." in table
    few = drawing.shipped([{**row, "data": {"classes": ["a"] * 5}}])
    assert "| `a-model` | 91.50 | 94.00 |  | 1.50 MB |" in few
    short = drawing.shipped_short([row, refused])
    assert "| `a-model` | 91.50 % | 94.00 % | 1.50 MB | 0.50 ms |" in short
    assert "$ xnorpp predict --model a-model photo.png" in short
    assert "Times are medians on a CPU.\n" in short
    other = {**row, "name": "b-model", "latency": {**row["latency"], "hardware": {"cpu": "another"}}}
    assert "medians on a CPU: `a-model`; another: `b-model`.\n" in drawing.shipped_short([row, other])
