"""`xnorpp paper NAME`: the paper's tables and figures, one function each, in the table `PAPER`.

To add one, write a module in `xnorpp.paper` that measures it and has its block, a function
`NAME(arguments: list[str]) -> int` and its row in `PAPER` here, and the row of its block in `BLOCKS` of
`paper/report.py`. The first line of the function's docstring is its summary in `xnorpp paper --help`. Its
parser comes from `paper_parser`, so that all have `--quick` and `--out`.
"""

from __future__ import annotations

import inspect
from argparse import Namespace
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from xnorpp.cli.command import Parser, at_least, check_folder, say
from xnorpp.cli.paper.runs import QUICK, RESULTS, TRAINING, results_folder


def paper(arguments: list[str]) -> int:
    """Each experiment measures what one table or figure of the paper shows, adds its rows to results/*.jsonl
    and prints them as a table; `report` regenerates the tables and plots of the documentation from the stored
    results.
    """
    width = max(map(len, PAPER)) + 2
    lines = [f"{name:<{width}}{_first_line(function)}" for name, function in PAPER.items()]
    parser = Parser(
        "paper",
        paper,
        """
        xnorpp paper table2 --quick
        xnorpp paper figure1 --out results
        xnorpp paper table1 --data DIR --jobs 3
        xnorpp paper report
        """,
    )
    parser.add_argument("experiment", metavar="NAME", help="one of: " + ", ".join(PAPER))
    parser.description = "\n".join([str(parser.description), "", *lines])
    if not arguments or arguments[0].startswith("-"):
        parser.parse_args(arguments)
    name, *rest = arguments
    if name not in PAPER:
        from xnorpp.runtime.choices import nearest_first

        valid = ", ".join(nearest_first(name, PAPER))
        raise ValueError(f"there is no experiment {name!r}; the experiments are {valid}")
    return PAPER[name](rest)


def table2(arguments: list[str]) -> int:
    """How closely a binary convolution with scale factors approximates a real one (Table 2).

    Weights 64x64x3x3 and inputs 64x16x16 are random, the signs fixed, and the factors trained by Adam to
    convergence: direct binarization, XNOR-Net without and with K, Cases 1 to 4, on the input of the fit
    and on a held-out one. Further set-ups show where the paper's absolute numbers may come from. Takes some
    minutes on one core.
    """
    parser = paper_parser("table2", table2, "xnorpp paper table2 --setup stated --repetitions 20")
    parser.add_argument(
        "--setup", metavar="NAME", action="append", default=[], help="only this set-up; can be repeated"
    )
    parser.add_argument(
        "--repetitions",
        metavar="N",
        type=at_least(1),
        help="random draws of weights and inputs (default: 100)",
    )
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="random seed (default: 0)")
    given = parser.parse_args(arguments)
    check_folder("--out", given.out)

    from xnorpp.paper.layers.table2 import run
    from xnorpp.paper.layers.tables import table2_block
    from xnorpp.paper.plots import table2_plot

    rows = run(quick=given.quick, setups=given.setup, repetitions=given.repetitions, seed=given.seed, say=say)
    return record_and_show(given, "table2", rows, table2_block, table2_plot)


def figure1(arguments: list[str]) -> int:
    """Speed-ups and storage: the paper's formulas, and what this engine achieves (Figure 1).

    One packed binary layer is timed in turns with the same real-valued convolution of torch and of xnorpp,
    over channel counts and kernel sizes. Run it on an otherwise idle machine.
    """
    parser = paper_parser("figure1", figure1, "xnorpp paper figure1 --against torch --rounds 40")
    parser.add_argument(
        "--threads", metavar="N", type=at_least(1), default=1, help="threads of every engine (default: 1)"
    )
    parser.add_argument("--isa", metavar="NAME", help="use the xnorpp kernels of this instruction set")
    parser.add_argument(
        "--against",
        metavar="NAMES",
        default="torch,xnorpp",
        help="whose real convolution to compare with (default: torch,xnorpp)",
    )
    parser.add_argument(
        "--rounds",
        metavar="N",
        type=at_least(1),
        help="rounds; every engine has one turn per round (default: 20)",
    )
    given = parser.parse_args(arguments)
    check_folder("--out", given.out)

    from xnorpp.paper.layers.figure1 import run
    from xnorpp.paper.layers.tables import figure1_block
    from xnorpp.paper.plots import figure1_plot

    rows = run(
        quick=given.quick, threads=given.threads, isa=given.isa, against=given.against.split(","),
        rounds=given.rounds, say=say,
    )  # fmt: skip
    return record_and_show(given, "figure1", rows, figure1_block, figure1_plot)


def report(arguments: list[str]) -> int:
    """Regenerate the tables and plots of the documentation from the stored results.

    Fills the blocks of README.md and docs/*.md that report the paper's experiments, and writes docs/plots.
    `benchmarks/draw_readme.py` also fills the other measured parts. --quick prints the tables and writes
    nothing; --check writes nothing and ends with status 1 where something is out of date.
    """
    parser = Parser("paper report", report, "xnorpp paper report\nxnorpp paper report --check")
    parser.add_argument("--quick", action="store_true", help="print the tables and write nothing")
    parser.add_argument("--out", metavar="DIR", help=f"folder of the results (default: {RESULTS} in --root)")
    parser.add_argument(
        "--root", metavar="DIR", default=".", help="the checkout with README.md and docs (default: .)"
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit status 1 if something is out of date"
    )
    given = parser.parse_args(arguments)

    from xnorpp.paper.recorded import read_rows
    from xnorpp.paper.report import BLOCKS, draw_documents

    root = Path(given.root)
    rows = read_rows(Path(given.out) if given.out else root / RESULTS)
    if given.quick:
        for name, block in BLOCKS.items():
            print(f"{name}\n\n{block(rows)}\n")
        return 0
    stale = draw_documents(root, rows, write=not given.check)
    what = "out of date" if given.check else "updated"
    print(f"{what}: {', '.join(stale)}" if stale else "everything is up to date")
    return 1 if given.check and stale else 0


# One row per experiment, in the order of the help.
PAPER: dict[str, Callable[[list[str]], int]] = {
    "table2": table2,
    "figure1": figure1,
    **TRAINING,
    "report": report,
}


def paper_parser(name: str, function: Callable[[list[str]], int], example: str) -> Parser:
    """The parser of one experiment, with what all have: --quick and --out."""
    parser = Parser(f"paper {name}", function, f"xnorpp paper {name}\nxnorpp paper {name} --quick\n{example}")
    parser.add_argument(
        "--quick", action="store_true", help="smoke test in seconds; results are not meaningful"
    )
    parser.add_argument(
        "--out", metavar="DIR", help=f"folder of the results (default: {RESULTS}; with --quick: {QUICK})"
    )
    return parser


def record_and_show(
    given: Namespace,
    name: str,
    parts: Iterable[list[dict[str, Any]]],
    table: Callable[[list[dict[str, Any]]], str],
    plot: Callable[[list[dict[str, Any]], Path], None] | None = None,
) -> int:
    """Append each part to NAME.jsonl as soon as it is measured, print the table and draw NAME.svg."""
    from xnorpp.bench.report import complete
    from xnorpp.training.records.record import append_rows

    folder = results_folder(given)
    measured: list[dict[str, Any]] = []
    for rows in parts:
        done = complete(rows, seed=getattr(given, "seed", 0))
        append_rows(folder / f"{name}.jsonl", done)
        measured += done
    shown = [{**row, "quick": False} for row in measured]
    print(table(shown))
    plotted = ""
    if plot is not None:
        plot(shown, folder / f"{name}.svg")
        plotted = f", plotted in {folder / f'{name}.svg'}"
    say(f"recorded in {folder / f'{name}.jsonl'}{plotted}")
    return 0


def _first_line(function: Callable[[list[str]], int]) -> str:
    return inspect.cleandoc(function.__doc__ or "").splitlines()[0]
