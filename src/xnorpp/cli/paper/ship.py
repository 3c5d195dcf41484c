"""`xnorpp paper ship` and `xnorpp paper temperature`: their arguments, and the calls of `paper.shipping`."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser, Namespace

from xnorpp.cli.command import at_least, check_file, say


def add_arguments(parser: ArgumentParser) -> None:
    from xnorpp.paper.shipping.words import RECORD

    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a run's folder or a .safetensors file")
    parser.add_argument("--name", required=True, help="name of the model, such as cifar10-resnet18")
    parser.add_argument("--data", metavar="DIR", help="folder of the data set")
    parser.add_argument("--dataset", metavar="NAME", help="measure on another data set than that of training")
    parser.add_argument("--folder", metavar="DIR", help="folder for the two files (default: the package)")
    parser.add_argument(
        "--baseline", metavar="SOURCE", dest="baseline",
        help="accuracy of the real-valued baseline: the folder of its run, or a .jsonl file of results",
    )  # fmt: skip
    parser.add_argument(
        "--baseline-recipe", metavar="NAME", dest="baseline_recipe",
        help="which recipe in --baseline (default: RECIPE-real)",
    )  # fmt: skip
    parser.add_argument("--twin", dest="baseline", help=SUPPRESS)  # the two names of 0.1.0
    parser.add_argument("--twin-recipe", dest="baseline_recipe", help=SUPPRESS)
    parser.add_argument(
        "--record",
        metavar="FILE",
        default=str(RECORD),
        help=f"append the row to this file (default: {RECORD})",
    )
    parser.add_argument(
        "--statistics", metavar="N", type=at_least(0), default=0,
        help="first re-estimate the statistics of batch norm on N batches of training images (default: 0)",
    )  # fmt: skip
    parser.add_argument(
        "--output", metavar="N", type=at_least(0), default=0,
        help="then fit the output layer again on N batches of whole training images (default: 0)",
    )  # fmt: skip
    parser.add_argument("--half", action="store_true", help="store real-valued parts in 16 bits")
    parser.add_argument(
        "--measure-only", action="store_true",
        help="record the measurements and write no model, for another seed of a network that ships",
    )  # fmt: skip
    parser.add_argument("--force", action="store_true", help="ship even if the accuracy differs from torch's")
    parser.add_argument(
        "--batch", metavar="N", type=at_least(1), default=100, help="images per batch (default: 100)"
    )
    parser.add_argument(
        "--verify", metavar="N", type=at_least(1), default=16,
        help="images on which every sign is verified (default: 16)",
    )  # fmt: skip
    parser.add_argument("--device", default="cpu", help="where torch runs: cpu or cuda (default: cpu)")


def run(given: Namespace) -> int:
    """Ship with parsed arguments, and print the card."""
    from xnorpp.paper.shipping.ship import ship
    from xnorpp.shipped import render_card

    check_file("--record", given.record, makes_folder=True)
    card = ship(
        given.checkpoint, given.name, given.data, given.folder, dataset=given.dataset,
        baseline=given.baseline, baseline_recipe=given.baseline_recipe, record=given.record,
        half=given.half, force=given.force, measure_only=given.measure_only,
        batch=given.batch, verify_images=given.verify, statistics=given.statistics, output=given.output,
        device=given.device, say=say,
    )  # fmt: skip
    print(render_card(card))
    return 0


def add_temperature_arguments(parser: ArgumentParser) -> None:
    from xnorpp.paper.shipping.words import RECORD

    parser.add_argument("name", metavar="NAME", help="a model that ships, such as cifar10-resnet18")
    parser.add_argument(
        "--from", metavar="RUN", dest="run",
        help="a run of the same recipe that held images out: its folder or a .safetensors file (default: fit "
        "on the images that the model's own training held out)",
    )  # fmt: skip
    parser.add_argument("--data", metavar="DIR", help="folder of the data set")
    parser.add_argument("--folder", metavar="DIR", help="folder of the model's files (default: the package)")
    parser.add_argument(
        "--baseline", metavar="FILE",
        help="a .jsonl file of results: the card names its newest run of the real-valued baseline",
    )  # fmt: skip
    parser.add_argument(
        "--record", metavar="FILE", default=str(RECORD),
        help=f"append the row to this file (default: {RECORD})",
    )  # fmt: skip


def run_temperature(given: Namespace) -> int:
    """Write the temperature with parsed arguments, and print the card."""
    from xnorpp.paper.shipping.transfer import transfer_temperature
    from xnorpp.shipped import render_card

    check_file("--record", given.record, makes_folder=True)
    card = transfer_temperature(
        given.name, given.run, given.data, given.folder, baseline=given.baseline, record=given.record, say=say
    )
    print(render_card(card))
    return 0
