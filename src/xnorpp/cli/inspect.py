"""`xnorpp inspect`."""

from __future__ import annotations

import json

from xnorpp.cli.command import Parser, engine_options, one_model, refuse_ignored


def inspect(arguments: list[str]) -> int:
    """MODEL is a packed file, a checkpoint or a run's folder. One row per layer: bits of weights and inputs,
    bytes, binary and real multiply-adds, padding bits, the speed-up in the paper's theory and, with --time,
    the measured one. Warnings name layers that look binary but are not.
    """
    parser = Parser(
        "inspect",
        inspect,
        "xnorpp inspect runs/digits\nxnorpp inspect model.xnor --time\nxnorpp inspect model.xnor --json",
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a packed file, a checkpoint, a run's folder, or the name of a shipped model",
    )
    parser.add_argument("--time", action="store_true", help="time every layer, packed and real-valued")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    engine_options(parser, "threads for --time (default: 1)")
    given = parser.parse_args(arguments)
    if not given.time:
        refuse_ignored(given, ("threads", "isa"), "--time, which is not given")

    from xnorpp.inspect import inspect_file, render, time_layers

    report = inspect_file(one_model(given.model, None))
    if given.time:
        report = time_layers(report, threads=given.threads or 1, isa=given.isa)
    print(json.dumps(report.to_dict(), indent=2) if given.json else render(report))
    return 0
