"""Table 2's experiment: the draws, Adam's optimum against the exact one, and its quick mode."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch.nn.functional import conv2d

from xnorpp.cli import main as cli
from xnorpp.nn import BinaryConv2d
from xnorpp.paper.layers import table2
from xnorpp.paper.recorded import read_rows

SMALL = table2.Setup("small", "for a test", channels=8, size=5)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def layer() -> table2.Drawn:
    return table2.draw(SMALL, range(3))[0]


def test_the_stated_set_up_is_the_papers() -> None:
    stated, he = table2.SETUPS[:2]
    assert (stated.channels, stated.kernel, stated.size, stated.fan_in) == (64, 3, 16, 576)
    assert (stated.weight_std, stated.input_std) == (1, 1)
    assert he.weight_std == pytest.approx(math.sqrt(2 / 576))
    assert table2.REPETITIONS == 100
    fit, held = table2.draw(stated, range(1))
    assert fit.real.shape == fit.binary.shape == (1, 64, 16, 16)
    assert torch.equal(fit.alpha, held.alpha)
    assert not torch.equal(fit.real, held.real)


def test_a_repetition_does_not_depend_on_its_batch() -> None:
    together, alone = table2.draw(SMALL, range(3))[0], table2.draw(SMALL, range(2, 3))[0]
    assert torch.equal(together.real[2:], alone.real)
    assert not torch.equal(together.real[0], together.real[1])


@pytest.mark.parametrize("scale", ["alpha", "alpha_k"])
def test_the_analytic_factors_are_the_layers(scale: str) -> None:
    random = torch.Generator().manual_seed(5)
    setup = table2.Setup("one", "", channels=4, size=6)
    weight = torch.randn((4, 4, 3, 3), generator=random)
    x = torch.randn(1, 4, 6, 6, generator=random)
    drawn = table2.draw(setup, range(5, 6))[0]  # the same seed, and the same order of draws
    conv = BinaryConv2d(4, 4, 3, padding=1, bias=False, method="xnor", scale=scale)
    with torch.no_grad():
        conv.weight.copy_(weight)
        gamma = drawn.alpha * drawn.k if scale == "alpha_k" else drawn.alpha
        assert torch.allclose(gamma * drawn.binary, conv(x), atol=1e-5)
        assert torch.allclose(drawn.real, conv2d(x, weight, padding=1), atol=1e-5)


def test_the_exact_optimum_of_case_1_is_one(layer: table2.Drawn) -> None:
    best = table2.optimum(layer, "case1")
    least = table2.distance(layer, best)
    for factor in (0.9, 0.999, 1.001, 1.1):
        assert (table2.distance(layer, factor * best) > least).all()
    with pytest.raises(ValueError, match="`case` \\(='case3'\\) must be 'case1' or 'case2'"):
        table2.optimum(layer, "case3")


@pytest.mark.parametrize("case", ["case1", "case2"])
def test_adam_finds_the_exact_optimum(case: str, layer: table2.Drawn) -> None:
    best = table2.distance(layer, table2.optimum(layer, case))
    found = table2.distance(layer, table2.fit(layer, case).gamma)
    assert (found >= best * (1 - 1e-6)).all()
    assert (found <= best * 1.002 + 1e-6).all()


def test_the_start_does_not_matter(layer: table2.Drawn) -> None:
    a, b = (table2.distance(layer, table2.fit(layer, "case1", start=start).gamma) for start in (None, 1.0))
    assert torch.allclose(a, b, rtol=1e-4)


def test_a_case_that_contains_another_fits_better_and_holds_worse() -> None:
    rows = {row["method"]: row for row in table2.measure(SMALL, 4)}
    fitted = [rows[case]["distance"]["mean"] for case in ("case2", "case3", "case4", "case1")]
    assert fitted == sorted(fitted)
    assert rows["case2"]["held_out"]["mean"] > rows["case1"]["held_out"]["mean"]
    assert rows["xnor"]["of_xnor"] == {"mean": 1.0, "std": 0.0}
    assert rows["case1"]["above_optimum"] < 1e-4
    assert rows["direct"]["distance"]["mean"] > rows["xnor"]["distance"]["mean"]


def test_scaled_weights_scale_the_distances() -> None:
    """All but direct binarization are homogeneous in the weights."""
    tiny = table2.Setup("tiny", "", channels=8, size=5, weight_std=0.01)
    whole, small = (table2.draw(setup, range(2))[0] for setup in (SMALL, tiny))
    gammas = [
        [layer.alpha, layer.alpha * layer.k, table2.fit(layer, "case1").gamma] for layer in (whole, small)
    ]
    for large, little in zip(*gammas):
        assert torch.allclose(table2.distance(small, little), 0.01 * table2.distance(whole, large), rtol=1e-3)
    assert (table2.distance(small, 1.0) > 0.5 * table2.distance(whole, 1.0)).all()


def test_the_quick_mode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["paper", "table2", "--quick", "--setup", "pointwise", "--out", str(tmp_path)]
    assert cli.main([*arguments, "--repetitions", "2"]) == 0
    assert "| Case 4: channel x row x column |" in capsys.readouterr().out
    rows = read_rows(tmp_path)
    assert [row["method"] for row in rows] == list(table2.METHODS)
    assert all(row["quick"] and row["commit"] and row["hardware"]["cpu"] for row in rows)
    assert (tmp_path / "table2.svg").read_text(encoding="utf-8").startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tabel2",), "there is no experiment 'tabel2'; the experiments are table2,"),
        (("table2", "--setup", "state"), "`setup` (='state') must be one of 'stated', 'stated-he'"),
        (("table2", "--repetitions", "-1"), "--repetitions: '-1' is not a whole number of at least 1"),
        (("figure1", "--against", "abacus"), "`against` (='abacus') must be among torch, xnorpp"),
        (("figure1", "--threads", "0"), "--threads: '0' is not a whole number of at least 1"),
        ((), "the following arguments are required: NAME"),
    ],
)
def test_bad_arguments_are_one_sentence(
    arguments: tuple[str, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ("--out", str(tmp_path)) if arguments[1:] else ()
    try:
        status = cli.main(["paper", *arguments, *out])
    except SystemExit as stop:
        status = int(stop.code or 0)
    said = capsys.readouterr()
    assert status == 2
    assert words in said.err
    assert len(said.err.strip().splitlines()) == 1
