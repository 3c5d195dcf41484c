"""The report: statistics, tables of a made-up folder of results, what is missing, and what is out of date."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from xnorpp.cli import main as cli
from xnorpp.paper import published, report
from xnorpp.paper.accuracy import tables as accuracy_tables
from xnorpp.paper.layers import tables as layer_tables
from xnorpp.paper.plots import PLOTS
from xnorpp.paper.recorded import Seeds, accuracy, read_rows, welch

ROOT = Path(__file__).resolve().parents[2]
HARDWARE = {"gpu": "a GPU", "cpu": "a CPU", "cores": 2}

Row = dict[str, Any]


def run(row: str, seed: int, top1: float, **more: Any) -> Row:
    return {
        "kind": "accuracy", "experiment": "table1", "row": row, "network": "resnet18", "seed": seed,
        "dataset": "tiny_imagenet", "recipe": row, "settings": {}, "epochs": 80, "split": "test",
        "metrics": {"top1": top1, "top5": top1 + 20, "loss": 1.0, "train_top1": 50.0, "train_loss": 0.5},
        "seconds": 600.0,
        "images_per_second": 1e4, "commit": "abc", "date": "2026-01-01", "hardware": HARDWARE, **more,
    }  # fmt: skip


def write(folder: Path, name: str, rows: Sequence[Row]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / name).write_text(text, encoding="utf-8")


def three(row: str, centre: float) -> list[Row]:
    return [run(row, seed, centre + shift) for seed, shift in enumerate((-0.3, 0.0, 0.3))]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A README and a page with every block, and results of Table 1."""
    blocks = "\n".join(f"<!-- drawn: {name} -->\n<!-- end -->" for name in report.BLOCKS)
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(
        "# made up\n<!-- drawn: paper_short -->\n<!-- end -->\n", encoding="utf-8"
    )
    page = f"{blocks}\n<!-- drawn: elsewhere -->\nkept\n<!-- end -->\n"
    (tmp_path / "docs" / "results.md").write_text(page, encoding="utf-8")
    rows = [*three("case4", 40), *three("xnor", 36), *three("xnor-alpha", 37), run("case1", 0, 39.5)]
    write(tmp_path / "results", "accuracy.jsonl", rows)
    return tmp_path


@pytest.mark.parametrize(("seeds", "quantile"), [(2, 4.30265), (3, 2.77645), (16, 2.04227)])
def test_equal_variances_give_the_tabulated_t(seeds: int, quantile: float) -> None:
    """2 n - 2 degrees of freedom; the quantiles are those of printed tables."""
    values = [float(number % 2) for number in range(seeds)]
    found = welch(Seeds(tuple(values)), Seeds(tuple(value + 5 for value in values)))
    assert found is not None
    variance = Seeds(tuple(values)).variance
    assert found.width / 2 == pytest.approx(quantile * math.sqrt(2 * variance / seeds), rel=1e-5)


def test_welch_of_a_worked_example() -> None:
    a, b = Seeds((10.0, 11.0, 12.0)), Seeds((5.0, 5.5, 6.0))
    found = welch(a, b)
    assert found is not None
    error, freedom = math.sqrt(1 / 3 + 0.25 / 3), (1.25 / 3) ** 2 / ((1 / 3) ** 2 / 2 + (0.25 / 3) ** 2 / 2)
    assert found.difference == 5.5
    assert freedom == pytest.approx(2.94118, rel=1e-5)
    assert found.high - found.difference == pytest.approx(3.21872 * error, rel=1e-4)
    assert 0.001 < found.p < 0.01
    assert found.width == pytest.approx(2 * (found.difference - found.low))
    assert welch(a, Seeds((5.0,))) is None
    assert welch(Seeds((1.0, 1.0)), Seeds((1.0, 1.0))) is not None


def test_seeds_say_mean_and_deviation() -> None:
    assert Seeds((1.0, 2.0, 3.0)).text() == "2.00 ± 1.00 (3 seeds)"
    assert Seeds((1.5,)).text() == "1.50 (1 seed)"


def test_table_1_with_its_interval_and_what_is_missing(checkout: Path) -> None:
    rows = read_rows(checkout / "results")
    text = report.BLOCKS["table1"](rows)
    assert "**ResNet-18 on Tiny-ImageNet-200, 80 epochs**" in text
    assert "| Case 4: channel x row x column | 40.00 ± 0.30 (3 seeds) | 60.00 ± 0.30 (3 seeds) |" in text
    assert "| BNN | not measured yet |" in text
    assert "| real-valued | not measured yet |  |  |  | 69.3 / 89.2 |" in text
    reach = 2.776445 * math.sqrt(2 * 0.09 / 3)  # equal deviations give 4 degrees of freedom
    interval = f"+3.00 ({3 - reach:+.2f} to {3 + reach:+.2f}, p < 0.001)"
    constant = "+0.000 (+0.000 to +0.000, p 1.000)"
    assert (
        f"| Case 4 minus XNOR-Net without K | 3 and 3 | {interval} | {interval} | {constant} | not printed |"
        in text
    )
    assert re.search(r"\| Case 4 minus XNOR-Net with K \| 3 and 3 \| \+4.00 .*\| \+5.9 \|", text)
    assert "| Case 4 minus Case 1 | 3 and 1 | +0.50 | +0.50 | +0.000 | +1.6 |" in text
    pooled = "| Cases 1, 3 and 4 minus XNOR-Net with and without K | not measured yet |"
    assert text.count(pooled) == 2, "Case 3 is missing, and CIFAR-10 has nothing"
    assert "plots/table1.svg" in text


def test_nothing_measured_gives_tables_without_a_number_of_ours() -> None:
    for name, draw in report.BLOCKS.items():
        text = draw([])
        assert "not measured yet" in text, name
        assert "svg" not in text, name
    ours = [line.split("|")[2] for line in report.BLOCKS["table1"]([]).splitlines() if line.startswith("| ")]
    assert not re.search(r"\d\d\.\d", "".join(ours))


def test_quick_and_held_out_rows_enter_no_table() -> None:
    rows = [run("case4", 0, 90.0, quick=True), run("case4", 0, 91.0, split="held")]
    assert accuracy(rows, experiment="table1") == []
    assert "9" not in report.BLOCKS["table1"](rows).split("| Case 4")[1].split("|")[1]
    assert "| held out | 91.00 |" in report.BLOCKS["runs"](rows)


def test_the_newest_of_a_seed_counts_and_schedules_do_not_mix() -> None:
    rows = [run("case4", 0, 30.0), run("case4", 0, 40.0), run("case4", 0, 20.0, epochs=10)]
    text = report.BLOCKS["table1"](rows)
    assert (
        text.index("80 epochs")
        < text.index("40.00 (1 seed)")
        < text.index("10 epochs")
        < text.index("20.00 (1 s")
    )
    assert "30.00" not in text
    assert "| 30.00 |" in report.BLOCKS["runs"](rows)


def test_table_3_takes_the_rows_of_table_1() -> None:
    rows = [run("case4", 0, 40.0), run("bethge", 0, 38.0, experiment="table3"),
            run("case4", 0, 30.0, experiment="table3", network="alexnet")]  # fmt: skip
    text = report.BLOCKS["table3"](rows)
    assert "| Bethge et al. | 38.00 (1 seed) | 58.00 (1 seed) | 54.4 / 77.5 |" in text
    assert "| Ours (Case 4) | 40.00 (1 seed) | 60.00 (1 seed) | 57.1 / 79.9 |" in text
    assert "| Ours (Case 4) | 30.00 (1 seed) | 50.00 (1 seed) | 46.9 / 71.0 |" in text


def test_the_ablation_measures_from_its_default() -> None:
    def level(factor: str, name: str, top1: float, default: bool = False) -> Row:
        more = {"experiment": "ablation", "split": "held", "epochs": 10}
        return run(name, 0, top1, factor=factor, level=name, default=default, **more)

    rows = [
        level("activation", "prelu", 30.0, True),
        level("activation", "relu", 28.5),
        level("padding value", "-1", 31.0),
    ]
    text = report.BLOCKS["ablation"](rows)
    assert "second round" not in text
    assert "measured on the held-out tenth of the training set" in text
    assert "| activation | prelu | 30.00 | 50.00 | start | yes |" in text
    assert "| activation | relu | 28.50 | 48.50 | -1.50 |  |" in text
    assert (
        "| padding value | 0 | 30.00 | 50.00 | start | yes |\n"
        "| padding value | -1 | 31.00 | 51.00 | +1.00 |  |\n"
        "| padding value | +1 | not measured yet |"
    ) in text
    more = [level("second round", "defaults", 36.0), level("second round", "rprelu", 36.5)]
    second = report.BLOCKS["ablation"]([*rows, *more]).split("The second round")[1]
    assert "| defaults | 36.00 | 56.00 | start |" in second
    assert "| rprelu | 36.50 | 56.50 | +0.50 |" in second
    assert "| calibrated | not measured yet |" in second
    assert "Twice the standard deviation of a difference: 1.3 points." in text
    panels = PLOTS["ablation"][0]([*rows, *more])
    assert [bar[:3] for bar in panels[0]["bars"]] == [
        ["activation: relu", [-1.5], False], ["padding value: -1", [1.0], False],
    ]  # fmt: skip
    assert panels[1]["bars"] == [["rprelu", [0.5], False, None]]


def test_the_trials_measure_from_their_default() -> None:
    def trial(name: str, top1: float) -> Row:
        return run(name, 0, top1, experiment="trial", split="held", dataset="cifar10", network="resnet20")

    assert report.BLOCKS["trials"]([]) == "The trials: not measured yet."
    text = report.BLOCKS["trials"]([trial("default", 83.0), trial("batch-128", 84.5)])
    assert "a held-out tenth of the training set" in text
    assert "| default |  | 83.00 |" in text
    assert re.search(r"\| batch-128 \| data.batch_size=128 \| 84.50 \| [0-9.]+ \| \+1.50 \|", text)
    assert "| lr-0.001 |" not in text
    assert re.search(r"not measured yet: no-teacher, .*lr-0.001", text)


def test_models_that_ship_from_their_cards_or_their_runs() -> None:
    name = "cifar10-resnet18"
    facts = {"experiment": "shipped", "dataset": "cifar10", "name": name}
    rows = [run("real", 0, 95.0, **facts), run("best", 0, 93.0, **facts)]
    assert f"| {name} | not measured yet | not measured yet | 93.00 | 95.00 |  |" in report.BLOCKS["best"](
        rows
    )
    card = {
        "kind": "shipped", "name": name, "refused": None, "date": "2026-01-01", "file": {"bytes": 1_500_000},
        "accuracy": {"torch_top1": 93.0, "packed_top1": 92.98, "packed_top5": 99.5},
        "baseline": {"top1": 95.0}, "latency": {"from_bytes_median": 1.25}, "data": {"classes": ["a"] * 10},
    }  # fmt: skip
    text = report.BLOCKS["best"]([*rows, card])
    assert f"| {name} | 92.98 | 99.50 | 93.00 | 95.00 | 2.02 | 1.50 | 1.25 |" in text
    few = report.BLOCKS["best"]([*rows, {**card, "data": {"classes": ["a"] * 5}}])
    assert f"| {name} | 92.98 |  | 93.00 |" in few, "the top-5 of five classes"
    refused = {**card, "refused": "it is wrong"}
    assert "| not measured yet |" in report.BLOCKS["best"]([*rows, refused]).splitlines()[3]
    assert "was not shipped: it is wrong." in report.BLOCKS["runs"]([refused])


def test_hours_of_imagenet() -> None:
    step = {
        "kind": "cuda training",
        "variant": "fused graph",
        "size": 224,
        "what": "step",
        "hardware": HARDWARE,
    }
    rows = [{**step, "images_per_second": 1281167 * 80 / 3600 / 2}]
    text = report.BLOCKS["imagenet"](rows)
    assert "| a GPU | 14,235 | 2.00 | not measured yet |" in text
    assert "The loader: not measured yet." in text
    rows += [{**step, "variant": "fused eager", "images_per_second": 7117.6}]
    text = report.BLOCKS["imagenet"](rows)
    assert "| a GPU | 14,235 | 2.00 | 0.50 |" in text
    assert "without a CUDA graph, 7,118 images/s" in text
    loader = {"kind": "loader", "source": "npy shards", "workers": 16, "cores": 16,
              "images_per_second": 28470.0, "images_per_second_a_core": 1779.4}  # fmt: skip
    text = report.BLOCKS["imagenet"]([*rows, loader])
    assert "| npy shards | 16 | 16 | 28,470 | 1,779 | 8 | 1.0 |" in text
    whole = {
        "kind": "imagenet train",
        "images_per_second": 7117.6,
        "hardware": HARDWARE,
        "source": "npy shards",
    }
    text = report.BLOCKS["imagenet"]([*rows, whole, loader])
    assert "from files to weights (npy shards) | a GPU | 7,118 | 4.00 | 1.00 |" in text, "the loader's rate"


def test_blocks_hold_numbers_and_no_conclusions() -> None:
    """Fed the paper's own numbers, no block claims that they are not there: people write conclusions."""
    rows = [
        run(row, seed, value + shift)
        for row, (value, _) in published.RESNET18.items()
        for seed, shift in enumerate((-0.1, 0.0, 0.1))
    ]
    assert not [name for name in report.BLOCKS if name.endswith("words") or name == "goals"]
    text = "\n".join(draw(rows) for draw in report.BLOCKS.values())
    assert "Case 4 minus XNOR-Net with K | 3 and 3 | +5.90 (" in text
    for verdict in ("not there", "overfits", "shown", "reached", "holds", "wanted", "aim"):
        assert not re.search(rf"\b{verdict}\b", text), verdict


def test_every_run_shows_its_packed_accuracy_and_whether_it_ships() -> None:
    facts = {"experiment": "shipped", "dataset": "cifar10", "network": "resnet20", "name": "cifar10-resnet20",
             "recipe": "best-cifar10-resnet20"}  # fmt: skip
    packed = {"kind": "packed against trained", "recipe": "best-cifar10-resnet20", "seed": 0}
    rows = [
        run("best", 0, 88.0, **{**facts, "epochs": 300}), run("best", 0, 88.1, **{**facts, "epochs": 400}),
        run("real", 0, 90.0, **facts), run("real", 0, 90.1, **facts),
        {**packed, "epochs": 300, "top1_packed": 87.4}, {**packed, "epochs": 400, "top1_packed": 87.8},
    ]  # fmt: skip
    text = report.BLOCKS["runs"](rows)
    assert "| best | 300 | 0 | test | 88.00 | 87.40 | replaced | 10.0 | abc |" in text
    assert "| best | 400 | 0 | test | 88.10 | 87.80 | ships | 10.0 | abc |" in text
    assert text.count("trained 2 times, the same seed and recipe") == 2
    smaller = {"settings": {"data": {"batch_size": 128, "evaluate": "held"}, "optimizer": {"lr": 0.1}}}
    larger = {"settings": {"data": {"batch_size": 256}, "optimizer": {"lr": 0.1}}}
    text = report.BLOCKS["runs"](
        [run("real", 0, 95.0, **facts, **smaller), run("real", 0, 94.0, **facts, **larger)]
    )
    assert "| 95.00 |  | trained 2 times, the same seed; here `data.batch_size=128` |" in text
    assert "| 94.00 |  | trained 2 times, the same seed; here `data.batch_size=256` |" in text
    older = {"settings": {"data": {"batch_size": 128}}}  # before recipes had `schedule.statistics_batches`
    measured = {"settings": {"data": {"batch_size": 128}, "schedule": {"statistics_batches": 190}}}
    text = report.BLOCKS["runs"](
        [run("real", 0, 95.0, **facts, **older), run("real", 0, 94.0, **facts, **measured)]
    )
    assert "| 95.00 |  | trained 2 times, the same seed; here `schedule.statistics_batches=0` |" in text
    assert "| 94.00 |  | trained 2 times, the same seed; here `schedule.statistics_batches=190` |" in text
    plain = {"settings": {"data": {"batch_size": 128}, "schedule": {"statistics_batches": 0}}}
    text = report.BLOCKS["runs"](
        [run("real", 0, 95.0, **facts, **older), run("real", 0, 94.0, **facts, **plain)]
    )
    assert text.count("trained 2 times, the same seed and recipe") == 2, "the default is what was done before"
    marked = report.BLOCKS["runs"]([run("case4", 0, 40.0, commit="0123456789+changes")])
    assert marked.endswith("| 10.0 | 0123456, uncommitted changes |")


def test_drawing_finds_what_is_out_of_date_and_only_that(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["paper", "report", "--root", str(checkout)]
    assert cli.main([*arguments, "--check"]) == 1
    assert capsys.readouterr().out == "out of date: table1.svg, table3.svg, README.md, results.md\n"
    assert "40.00" not in (checkout / "README.md").read_text(encoding="utf-8")
    assert cli.main(arguments) == 0
    assert "40.00 ± 0.30" in (checkout / "docs" / "results.md").read_text(encoding="utf-8")
    page = (checkout / "docs" / "results.md").read_text(encoding="utf-8")
    assert "<!-- drawn: elsewhere -->\nkept\n<!-- end -->" in page
    assert cli.main([*arguments, "--check"]) == 0
    with (checkout / "results" / "accuracy.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(run("case4", 3, 41.0)) + "\n")
    capsys.readouterr()
    assert cli.main([*arguments, "--check"]) == 1
    assert "table1.svg" in capsys.readouterr().out
    assert cli.main(arguments) == 0
    assert cli.main([*arguments, "--check"]) == 0
    assert "40.25 ± 0.56" in (checkout / "docs" / "results.md").read_text(encoding="utf-8")
    assert "40.25" not in (checkout / "README.md").read_text(encoding="utf-8"), "it shows E1"
    with (checkout / "results" / "accuracy.jsonl").open("a", encoding="utf-8") as file:
        for seed in range(10, 15):
            file.write(json.dumps(run("case4", seed, 30.0 + seed, experiment="claim")) + "\n")
    assert cli.main([*arguments, "--check"]) == 1
    assert cli.main(arguments) == 0
    assert "Case 4, top-1 % | 42.00 ± 1.58 (5 seeds)" in (checkout / "README.md").read_text(encoding="utf-8")


def test_quick_prints_and_writes_nothing(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()}
    assert cli.main(["paper", "report", "--quick", "--root", str(checkout)]) == 0
    assert "40.00 ± 0.30 (3 seeds)" in capsys.readouterr().out
    assert before == {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()}


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["paper", "report", "--root", str(tmp_path)]) == 2
    assert "has no README.md" in capsys.readouterr().err


def test_our_own_documents_and_plots_are_up_to_date() -> None:
    stale = report.draw_documents(ROOT, read_rows(ROOT / "results"), write=False)
    assert stale == [], "run `python benchmarks/draw_readme.py`"
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    names = re.findall(r"<!-- drawn: (\w+) -->", page)
    assert set(names) >= set(report.BLOCKS) - report.ELSEWHERE
    assert set(names) <= {*report.BLOCKS, report.FURTHER}


def test_a_table_that_has_no_place_is_drawn_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    monkeypatch.setitem(report.BLOCKS, "table9", lambda rows: f"| rows |\n|---|\n| {len(rows)} |")
    drawn = report.fill(page, [], {})
    assert "<!-- drawn: further -->\n## table9\n\n| rows |\n|---|\n| 0 |\n<!-- end -->" in drawn
    placed = page.replace(
        "<!-- drawn: further -->", "<!-- drawn: table9 -->\n<!-- end -->\n<!-- drawn: further -->"
    )
    assert "<!-- drawn: further -->\n<!-- end -->" in report.fill(placed, [], report.BLOCKS)


def test_conclusions_quote_numbers_that_the_tables_have() -> None:
    """A number in the prose of the page is in one of its tables, so it is checked when the tables change.

    Exceptions are settings, and numbers that the paper prints.
    """
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    tables = "".join(re.findall(r"<!-- drawn: \w+ -->\n.*?<!-- end -->", page, re.DOTALL))
    prose = re.sub(r"<!-- drawn: \w+ -->\n.*?<!-- end -->|```.*?```", "", page, flags=re.DOTALL)
    printed = {
        str(value) for table in published.NETWORKS.values() for both in table[1].values() for value in both
    }
    printed |= {str(mean) for mean, _ in published.TABLE2.values()} | {"5.9"}
    settings = {"0.001", "0.002", "0.8"}
    quoted = re.findall(r"(?<![\w.])\d+\.\d+(?![\w.]*\d)", prose)
    assert len(quoted) > 20
    missing = [number for number in quoted if number not in tables and number not in printed | settings]
    assert missing == []


def test_the_papers_figures_are_the_papers() -> None:
    """Spot checks against the paper's text: its gains from case to case, and its claim."""
    tops = [published.RESNET18[row][0] for row in ("case1", "case2", "case3", "case4")]
    assert [round(tops[i + 1] - tops[i], 1) for i in range(3)] == [0.6, 0.6, 0.4]
    assert round(tops[-1] - published.RESNET18["xnor"][0], 1) == 5.9
    assert set(published.TABLE2) < set(published.METHODS)
    assert set(accuracy_tables.TABLE1) <= set(published.METHODS)
    assert layer_tables.IMAGENET_IMAGES == 1_281_167
