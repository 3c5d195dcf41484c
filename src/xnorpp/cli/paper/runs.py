"""The experiments of `xnorpp paper` that train networks, and `ship`, which packs what they trained.

All are the same queue with another filter; `experiments.PAPER` lists them. Results go to accuracy.jsonl.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from xnorpp.cli.command import Parser, at_least, check_folder, say, share_cores

RESULTS, QUICK, RUNS = Path("results"), Path("runs") / "quick", Path("runs") / "paper"


def table1(arguments: list[str]) -> int:
    """ResNet-18 by every method, Tiny-ImageNet-200 and CIFAR-10 in ImageNet's place (Table 1).

    BNN, XNOR-Net without and with K, Cases 1 to 4 and the real-valued network, by the paper's recipe: 80
    epochs, Adam, a tenth of the learning rate every 25. Three seeds on Tiny-ImageNet, five of the two rows
    that the claim compares (XNOR-Net with K and Case 4); one seed on CIFAR-10. Whatever
    results/accuracy.jsonl lacks is trained, most informative first, and added at once; after a stop, the same
    command continues.
    """
    return _queue(arguments, "table1", table1, ("table1",))


def table3(arguments: list[str]) -> int:
    """AlexNet and ResNet-18 on Tiny-ImageNet-200, with Bethge et al. (Table 3).

    ResNet-18's other rows are Table 1's: what that has trained already is taken from there.
    """
    return _queue(arguments, "table3", table3, ("table3",))


def ablation(arguments: list[str]) -> int:
    """What the paper leaves open, one thing changed at a time.

    Start of the scale, activation, downsampling, shortcut, padding value, weight decay on scales; ten epochs
    each, measured on a held-out tenth of the training set; then a second round from the best choices.
    """
    return _queue(arguments, "ablation", ablation, ("ablation",))


def trials(arguments: list[str]) -> int:
    """Small changes to an earlier recipe of ResNet-20, one at a time, on held-out images.

    Forty epochs of ResNet-20 on CIFAR-10 each, after two teachers; the test set is not read.
    """
    return _queue(arguments, "trials", trials, ("trial",))


def claim(arguments: list[str]) -> int:
    """E1: learned against analytic scales after the paper's 80 epochs, five seeds each.

    XNOR-Net without and with K, Case 1 and Case 4 on Tiny-ImageNet-200, by the paper's block and recipe. The
    seeds were fixed beforehand and are the same for all. Accuracies are float32, after batch norm was
    measured again over the training set; training accuracy is recorded too.
    """
    return _queue(arguments, "claim", claim, ("claim",))


def short(arguments: list[str]) -> int:
    """E2: the same after 3, 10 and 25 epochs, BNN and Case 2 too, three seeds each.

    The learning rate drops at the same fractions of training as in the paper's 80 epochs.
    """
    return _queue(arguments, "short", short, ("short",))


def enlarged(arguments: list[str]) -> int:
    """E3: 80 epochs on images enlarged to 224 pixels, XNOR-Net without K, Case 1 and Case 4, two seeds each.

    Feature maps are then 56 to 7 pixels, as on ImageNet. One more run of Case 4 has the default block.
    """
    return _queue(arguments, "enlarged", enlarged, ("enlarged",))


def table3_revised(arguments: list[str]) -> int:
    """Table 3 again: AlexNet with batch norm measured without dropout, Bethge et al. with more batch norm.

    One seed each: five rows of AlexNet, XNOR-Net without K among them, and ResNet-18 by Bethge et al. with a
    batch norm after each convolution. Accuracies are float32, as those of `claim`.
    """
    return _queue(arguments, "table3-revised", table3_revised, ("table3-revised",))


def baselines(arguments: list[str]) -> int:
    """The real-valued networks, trained as suits them: SGD, momentum, weight decay.

    ResNet-18 and ResNet-20 on CIFAR-10, ResNet-18 on CIFAR-100 and Tiny-ImageNet-200. The binary networks are
    compared with them and learn from them.
    """
    return _queue(arguments, "baselines", baselines, ("baseline",))


def levers(arguments: list[str]) -> int:
    """Changes that may raise the accuracy of the best recipe, one at a time, on held-out images.

    ResNet-20, ResNet-18, then ResNet-20 by the recipe of the students, on CIFAR-10 with a teacher that never
    saw the held-out fifth of the training set; the test set is not read.
    """
    return _queue(arguments, "levers", levers, ("lever",))


def students(arguments: list[str]) -> int:
    """The one-bit networks that learn from the baselines, by the recipe that the levers favour.

    A fiftieth of the training set is held out for the temperature; `xnorpp paper ship` packs a network and
    measures it on the test set. Baselines whose weights are not in the folder of the runs are trained first,
    again where their results are recorded.
    """
    return _queue(arguments, "students", students, ("baseline", "student"))


def shipped(arguments: list[str]) -> int:
    """Train the models that ship, each after its real-valued baseline.

    `xnorpp paper ship` packs them.
    """
    return _queue(arguments, "shipped", shipped, ("shipped",))


def everything(arguments: list[str]) -> int:
    """The runs of shipped, table1, table3 and ablation, most informative first."""
    return _queue(arguments, "all", everything, ("shipped", "table1", "table3", "ablation"))


def ship(arguments: list[str]) -> int:
    """Pack a trained network as a model that ships, with its card.

    The packed file is verified and compared with torch on every test image; it is refused if its accuracy is
    not torch's. Its card and a row of results/shipped.jsonl record what was measured.
    """
    parser = Parser(
        "paper ship",
        ship,
        "xnorpp paper ship runs/paper/RUN --name cifar10-resnet18 --data DIR "
        "--baseline results/accuracy.jsonl",
    )
    from xnorpp.cli.paper.ship import add_arguments, run

    add_arguments(parser)
    given = parser.parse_args(arguments)
    share_cores()
    return run(given)


def temperature(arguments: list[str]) -> int:
    """Fit the temperature of a model that ships again, or give it that of another run of its recipe.

    --from is for models that were trained on all training images. The new file has the same answers; its card
    and a row of results/shipped.jsonl record the calibration error on the test images before and after.
    """
    parser = Parser(
        "paper temperature",
        temperature,
        "xnorpp paper temperature cifar10-resnet18 --from runs/paper/RUN --data DIR",
    )
    from xnorpp.cli.paper.ship import add_temperature_arguments, run_temperature

    add_temperature_arguments(parser)
    given = parser.parse_args(arguments)
    share_cores()
    return run_temperature(given)


TRAINING: dict[str, Callable[[list[str]], int]] = {
    "table1": table1,
    "table3": table3,
    "ablation": ablation,
    "trials": trials,
    "claim": claim,
    "short": short,
    "enlarged": enlarged,
    "table3-revised": table3_revised,
    "baselines": baselines,
    "levers": levers,
    "students": students,
    "shipped": shipped,
    "all": everything,
    "ship": ship,
    "temperature": temperature,
}


def _queue(
    arguments: list[str], name: str, function: Callable[[list[str]], int], experiments: Sequence[str]
) -> int:
    parser = Parser(
        f"paper {name}",
        function,
        f"""
        xnorpp paper {name} --quick
        xnorpp paper {name} --list
        xnorpp paper {name} --data DIR --jobs 3
        """,
    )
    parser.add_argument(
        "--data",
        metavar="DIR",
        help="holds tiny-imagenet-200, cifar-10-batches-bin, cifar-100-binary (or the -py forms)",
    )
    parser.add_argument(
        "--dataset", metavar="NAME", action="append", default=[],
        help="these data sets only (tiny_imagenet, cifar10, cifar100)",
    )  # fmt: skip
    parser.add_argument(
        "--jobs", metavar="N", type=at_least(1), default=1, help="runs at a time on one device (1)"
    )
    parser.add_argument(
        "--minutes", metavar="N", type=float, help="stop after so long; the rest can be resumed"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (auto)")
    parser.add_argument(
        "--accept-code", metavar="HASH", action="append", default=[],
        help="results of code with this hash count as done too",
    )  # fmt: skip
    parser.add_argument(
        "--no-retrain", action="store_true",
        help="a recorded teacher whose weights are missing is an error, instead of trained again",
    )  # fmt: skip
    parser.add_argument("--out", metavar="DIR", help=f"the folder of results ({RESULTS}; --quick: {QUICK})")
    parser.add_argument("--runs", metavar="DIR", help=f"the folder of the runs ({RUNS}; --quick: {QUICK})")
    parser.add_argument("--list", action="store_true", help="name the runs, and which are done, and end")
    parser.add_argument(
        "--quick", action="store_true",
        help="smoke test in a minute: every row is a small network on digits; results are not meaningful",
    )  # fmt: skip
    given = parser.parse_args(arguments)
    check_folder("--out", given.out)
    check_folder("--runs", given.runs)
    if given.minutes is not None and not given.minutes > 0:
        raise ValueError(f"`--minutes` (={given.minutes:g}) must be above 0")

    from xnorpp.paper.accuracy.queue import done_keys, read_results, run_queue
    from xnorpp.paper.accuracy.runs import DATASETS, plan, quick

    runs = plan(tuple(experiments), tuple(given.dataset) or DATASETS)
    if not runs:
        raise ValueError(f"`--dataset` (={', '.join(given.dataset)}) has no run of `xnorpp paper {name}`")
    results = results_folder(given)
    if given.list:
        done = done_keys(results, runs, given.accept_code)
        for run in runs:
            print(f"{'done' if run.key in done else '-':<5} {run.key:<60} {run.recipe}")
        return 0
    if given.quick:
        runs = [quick(run) for run in _one_a_row(runs)]
    else:
        done = done_keys(results, runs, given.accept_code)
        _find_data({run.dataset for run in runs if run.key not in done}, given.data)
    run_queue(
        runs,
        results=results,
        folder=Path(given.runs) if given.runs else (QUICK if given.quick else RUNS),
        data=given.data,
        jobs=given.jobs,
        device=given.device,
        minutes=given.minutes,
        accept=given.accept_code,
        retrain=not given.no_retrain,
        say=say,
    )
    keys = {run.key: None for run in runs}
    rows = [row for row in read_results(results) if row.get("key") in keys and row.get("finished", True)]
    print(f"{'run':<60} {'epochs':>6} {'top-1':>7} {'top-5':>7}  measured on")
    for row in rows:
        metrics = row["metrics"]
        where = "held-out images" if row["split"] == "held" else "test set"
        print(f"{row['key']:<60} {row['epochs']:>6} {metrics['top1']:>7.2f} {metrics['top5']:>7.2f}  {where}")
    plots = _show(experiments, results, given.quick)
    drawn = f", plotted in {', '.join(map(str, plots))}" if plots else ""
    print(f"recorded in {results / 'accuracy.jsonl'}{drawn}")
    return 0


def results_folder(given: Namespace) -> Path:
    """Where an experiment keeps its rows: --out, or a folder of its own with --quick."""
    return Path(given.out) if given.out else (QUICK if given.quick else RESULTS)


def _show(experiments: Sequence[str], results: Path, look: bool) -> list[Path]:
    """Print the table of each experiment from what `results` keeps, and draw its plot there."""
    from xnorpp.paper.accuracy.choices import ablation_block, trials_block
    from xnorpp.paper.accuracy.claim import claim_block, enlarged_block, short_block
    from xnorpp.paper.accuracy.levers import baselines_block, every_levers_block, students_block
    from xnorpp.paper.accuracy.tables import (
        shipped_block,
        table1_block,
        table3_block,
        table3_revised_block,
    )
    from xnorpp.paper.plots import PLOTS
    from xnorpp.paper.recorded import read_rows

    tables: dict[str, tuple[str, Callable[[Sequence[Any]], str]]] = {
        "shipped": ("shipped", shipped_block),
        "table1": ("table1", table1_block),
        "table3": ("table3", table3_block),
        "ablation": ("ablation", ablation_block),
        "trial": ("trials", trials_block),
        "claim": ("claim", claim_block),
        "short": ("short", short_block),
        "enlarged": ("", enlarged_block),
        "table3-revised": ("", table3_revised_block),
        "baseline": ("", baselines_block),
        "lever": ("", every_levers_block),
        "student": ("", students_block),
    }
    rows = read_rows(results)
    if look:
        every = {"claim": claim_block, "short": short_block, "enlarged": enlarged_block}
        tables |= {name: (tables[name][0], partial(block, seeds=())) for name, block in every.items()}
        rows = [{**row, "quick": False} for row in rows]
        print("\nA look: every row is the small network on digits, whatever the table calls it.")
    drawn = []
    for experiment in experiments:
        name, table = tables[experiment]
        print(f"\n{table(rows)}")
        if name and PLOTS[name][0](rows):
            PLOTS[name][1](rows, results / f"{name}.svg")
            drawn.append(results / f"{name}.svg")
    print()
    return drawn


def _find_data(names: Collection[str], folder: str | None) -> None:
    """Look for the data sets once: without one of them, each run of the queue would fail by itself."""
    from xnorpp.data import load_dataset
    from xnorpp.data.dataset import DatasetNotFoundError
    from xnorpp.data.places import data_home

    missing = []
    for name in sorted(names):
        try:
            load_dataset(name, folder, "test")
        except DatasetNotFoundError:
            missing.append(name)
    if missing:
        raise ValueError(
            f"{' and '.join(missing)} must be in `--data` (={str(folder or data_home())!r}), and "
            f"{'are' if len(missing) > 1 else 'is'} not there; see `xnorpp datasets` for how to get them"
        )


def _one_a_row(runs: Sequence[Any]) -> list[Any]:
    """The first run of each row, which is enough for a look."""
    return list({(run.experiment, run.row, run.network): run for run in reversed(runs)}.values())[::-1]
