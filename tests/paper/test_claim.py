"""E1 to E3: which rows count, the tables and plots of their differences, and what the commands print."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from xnorpp.cli.main import main
from xnorpp.paper import report
from xnorpp.paper.accuracy.claim import claim_groups, groups, short_groups
from xnorpp.paper.accuracy.queue import ACCEPTED_CODE, done_keys, recipe_of
from xnorpp.paper.accuracy.runs import (
    CLAIM_SEEDS,
    COMPARED_ROWS,
    ENLARGED_ROWS,
    ENLARGED_SEEDS,
    SHORT_ROWS,
    SHORT_SEEDS,
    table3_revised,
)
from xnorpp.paper.plots import PLOTS
from xnorpp.paper.recorded import of_kind, read_rows

ROOT = Path(__file__).resolve().parents[2]
SHIFTS = (-0.2, -0.1, 0.0, 0.1, 0.2)

Row = dict[str, Any]


def one(row: str, seed: int, top1: float, *, experiment: str = "claim", epochs: int = 80, **more: Any) -> Row:
    metrics = {
        "top1": top1,
        "top5": top1 + 25,
        "loss": 5 - top1 / 20,
        "train_top1": top1 + 15,
        "train_loss": 2.0,
    }
    return {
        "kind": "accuracy", "experiment": experiment, "row": row, "network": "resnet18", "seed": seed,
        "dataset": "tiny_imagenet", "recipe": row, "epochs": epochs, "split": "test", "metrics": metrics,
        "key": f"{experiment}-{row}-{epochs}-{seed}", "commit": "abc", **more,
    }  # fmt: skip


def seeds_of(row: str, centre: float, seeds: Sequence[int] = CLAIM_SEEDS, **more: Any) -> list[Row]:
    return [one(row, seed, centre + shift, **more) for seed, shift in zip(seeds, SHIFTS, strict=False)]


def e1() -> list[Row]:
    centres = {"xnor-alpha": 39.0, "xnor": 39.5, "case1": 40.5, "case4": 40.0}
    return [run for row, centre in centres.items() for run in seeds_of(row, centre)]


def e2(epochs: int) -> list[Row]:
    return [
        run
        for place, row in enumerate(SHORT_ROWS)
        for run in seeds_of(row, 20.0 + place, SHORT_SEEDS, experiment="short", epochs=epochs)
    ]


def test_e1_has_means_deviations_and_welchs_intervals() -> None:
    text = report.BLOCKS["claim"](e1())
    assert "80 epochs**, mean ± standard deviation over seeds 10 to 14" in text
    line = "40.00 ± 0.16 | 65.00 ± 0.16 | 3.000 ± 0.008 | 55.00 ± 0.16 | 2.000 ± 0.000 | 57.1 / 79.9 |"
    assert f"| Case 4: channel x row x column | {line}" in text
    reach = 2.306004 * math.sqrt(2 * 0.025 / 5)  # equal deviations give 8 degrees of freedom
    interval = f"+1.00 ({1 - reach:+.2f} to {1 + reach:+.2f}, p < 0.001)"
    assert f"| Case 4 minus XNOR-Net without K | 5 and 5 | {interval} |" in text
    assert "| Case 4 minus Case 1 | 5 and 5 | -0.50 (" in text
    assert "| Cases 1 and 4 minus XNOR-Net with and without K | 10 and 10 | +1.00 (" in text
    assert text.endswith("plots/claim.svg)")


def test_a_row_counts_when_its_planned_seeds_are_there_and_no_other_seed_does() -> None:
    rows = [*e1()[:-1], one("case1", 15, 90.0)]  # Case 4 lacks a seed, Case 1 has one more
    found = claim_groups(rows)[80]
    assert set(found) == {"xnor-alpha", "xnor", "case1"}
    assert [run["seed"] for run in found["case1"]] == list(CLAIM_SEEDS)
    text = report.BLOCKS["claim"](rows)
    assert "| Case 4: channel x row x column | not measured yet |" in text
    assert "| Case 4 minus Case 1 | not measured yet |" in text
    assert "| Case 1 minus XNOR-Net with K | 5 and 5 | +1.00 (" in text


def test_e2_shows_complete_lengths_and_counts_the_runs_of_others() -> None:
    stopped = one("case4", 10, 0.0, experiment="short", epochs=25, kind="unfinished")
    some = [run for run in e2(25) if run["seed"] == 10][:4]
    rows = [*e1(), *e2(3), *e2(10), *some, stopped]
    assert list(short_groups(rows)) == [3, 10, 25]
    text = report.BLOCKS["short"](rows)
    assert "| 3 epochs | 10 epochs | 25 epochs | 80 epochs |" in text
    first = next(line for line in text.splitlines() if line.startswith("| Case 4 minus XNOR-Net without K"))
    assert [cell.split("(")[0].strip() for cell in first.split("|")[2:-1]] == [
        "+4.00", "+4.00", "not measured yet", "+1.00",
    ]  # fmt: skip
    assert "25 epochs**: not measured yet (4 of 18 runs are finished)." in text
    panels = PLOTS["short"][0](rows)
    assert [panel["title"] for panel in panels] == [
        "learned minus XNOR-Net without K", "learned minus XNOR-Net with K",
    ]  # fmt: skip
    assert [[point[0] for point in points] for _, points in panels[0]["lines"]] == [[3, 10, 80]] * 2
    name, points = panels[1]["lines"][1]
    assert name == "Case 4"
    assert [point[1] for point in points] == [3.0, 3.0, 0.5]
    assert all(low < middle < high for _, middle, low, high in points)
    assert "Stopped before their end, and in no table: 1." in report.BLOCKS["runs"](rows)


def test_older_rows_of_table_1_are_marked_where_e1_replaces_them() -> None:
    older = [one("case4", 0, 38.0, experiment="table1"), one("bnn", 0, 30.0, experiment="table1")]
    older[0]["metrics"] = older[1]["metrics"] = {"top1": 38.0, "top5": 60.0, "loss": 1.0}
    text = report.BLOCKS["table1"]([*older, *e1()])
    assert "| Case 4: channel x row x column (superseded by E1) | 38.00 (1 seed) |" in text
    assert "| BNN | 38.00 (1 seed) |" in text
    assert "superseded" not in report.BLOCKS["table1"](older)
    assert "superseded" not in text.split("CIFAR-10")[1]


def test_the_readme_has_e1_first_and_the_short_runs() -> None:
    lines = report.BLOCKS["paper_short"]([*e1(), *e2(10)]).splitlines()
    assert lines[2] == "| ResNet-18, XNOR-Net without K, top-1 % | 39.00 ± 0.16 (5 seeds) | not printed |"
    assert lines[5] == "| ResNet-18, Case 4, top-1 % | 40.00 ± 0.16 (5 seeds) | 57.1 (ImageNet) |"
    assert lines[7].startswith("| Case 4 minus XNOR-Net with K, 80 epochs, points | +0.50 (")
    assert lines[7].endswith("| +5.9 |")
    assert lines[8].startswith("| Case 4 minus XNOR-Net without K, 10 epochs, points | +4.00 (")


def test_e3_waits_for_both_seeds() -> None:
    assert report.BLOCKS["enlarged"]([]) == "E3, 80 epochs at 224 pixels: not measured yet."
    rows = [
        *seeds_of("case4", 50.0, (10, 11), experiment="enlarged"),
        *seeds_of("xnor-alpha", 48.0, (10,), experiment="enlarged"),
    ]
    shipped = {
        "kind": "shipped", "name": "tiny-imagenet-resnet18-224", "date": "2026-11-16", "seed": 10,
        "recipe": {"epochs": 80}, "data": {"train_images": 99_000},
        "accuracy": {"packed_top1": 54.8, "packed_top5": 79.8},
    }  # fmt: skip
    text = report.BLOCKS["enlarged"]([*rows, shipped])
    assert "3 of 6 runs are finished." in text
    assert "| Case 4: channel x row x column | 49.85 ± 0.07 |" in text
    assert "| XNOR-Net without K | not measured yet |" in text
    assert "Case 4 with the default block, seed 10, 80 epochs on 99,000 of the training images" in text
    assert "top-1 54.80 %, top-5 79.80 %." in text
    assert "with K |" not in text.replace("without K", "")
    assert "at 224 pixels" not in report.BLOCKS["paper_short"](rows)
    rows.append(one("xnor-alpha", 11, 48.3, experiment="enlarged"))
    line = "| Case 4 minus XNOR-Net without K, at 224 pixels, 80 epochs, points | +1.80 ("
    assert line in report.BLOCKS["paper_short"](rows)


def test_what_is_recorded_of_e1_e2_and_e3_is_balanced_and_of_one_clean_commit() -> None:
    rows = read_rows(ROOT / "results")
    runs = [row for row in of_kind(rows, "accuracy") if row["experiment"] in ("claim", "short", "enlarged")]
    assert len({row["commit"] for row in runs}) == 1
    assert not runs[0]["commit"].endswith("+changes")
    assert {row["code"] for row in runs} <= set(ACCEPTED_CODE)
    assert set(claim_groups(rows)[80]) == set(COMPARED_ROWS)
    found = short_groups(rows)
    assert set(found[3]) == set(found[10]) == set(found[25]) == set(SHORT_ROWS)
    assert set(groups(rows, "enlarged", ENLARGED_SEEDS)[80]) == set(ENLARGED_ROWS)


@pytest.mark.parametrize("name", ["claim", "short"])
def test_the_commands_print_their_table_and_draw_their_plot(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(ROOT / "results" / "accuracy.jsonl", tmp_path)
    monkeypatch.setattr("xnorpp.paper.accuracy.queue.run_queue", lambda *_, **__: [])
    monkeypatch.setattr("xnorpp.cli.paper.runs._find_data", lambda *_: None)
    assert main(["paper", name, "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "| Case 4 minus XNOR-Net without K |" in out
    assert f"plotted in {tmp_path / name}.svg" in out
    assert (tmp_path / f"{name}.svg").stat().st_size > 1000


def test_table_3_again_has_new_keys_one_seed_and_the_two_changes(tmp_path: Path) -> None:
    runs = list(table3_revised())
    assert [(run.network, run.row) for run in runs] == [
        ("resnet18", "bethge"),
        *(("alexnet", row) for row in ("bnn", "xnor-alpha", "xnor", "case4", "real")),
    ]
    recipes = [recipe_of(run, tmp_path, on_gpu=True) for run in runs]
    assert recipes[0].model.options["norm_after"] is True
    assert (recipes[2].model.method, recipes[2].model.scale) == ("xnor", "alpha")
    for run, recipe in zip(runs, recipes, strict=True):
        images = recipe.schedule.statistics_batches * recipe.data.batch_size
        assert 99_000 < images <= 100_000, "batch norm is measured on the whole training set"
        assert recipe.run.eval_train
        assert recipe.schedule.epochs == 80
        assert run.seed == 10
    old = [{"key": run.key.replace("-revised", ""), "epochs": 80} for run in runs]
    (tmp_path / "accuracy.jsonl").write_text("".join(json.dumps(row) + "\n" for row in old))
    assert done_keys(tmp_path, runs) == set()


def test_table_3_again_shows_what_was_run() -> None:
    text = report.BLOCKS["table3_revised"]([])
    assert text.count("not measured yet") == 2
    rows = [one("xnor-alpha", 10, 30.0, experiment="table3-revised", network="alexnet")]
    text = report.BLOCKS["table3_revised"](rows)
    line = "| XNOR-Net without K | 30.00 (1 seed) | 55.00 (1 seed) | 3.500 (1 seed) | 45.00 (1 seed) |"
    assert line in text
    assert "| BNN | not measured yet |" in text
