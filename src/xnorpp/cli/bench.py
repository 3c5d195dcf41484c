"""`xnorpp bench`."""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from xnorpp.cli.command import (
    Parser,
    at_least,
    check_file,
    check_plot,
    one_model,
    positive,
    refuse_ignored,
    say,
)

OTHERS, ROUNDS, REPEAT, SECONDS = "torch,onnxruntime,openvino", 10, 5, 5.0
OPTIONS = (
    *("block", "real", "threads", "batch", "streams", "seconds", "against", "rounds", "repeat", "isa"),
    *("avx2_only", "no_amx", "plot"),
)
# Which of these, and whether MODEL, the other kinds of measurement accept.
TAKES = {
    "--layers": ("threads", "against", "rounds", "repeat", "isa", "avx2_only", "no_amx", "plot"),
    "--real-layers": ("threads", "against", "rounds", "repeat", "isa", "avx2_only", "no_amx"),
    "--throughput": (
        "model", "block", "real", "threads", "batch", "streams", "seconds", "isa", "avx2_only", "no_amx",
    ),
    "--startup": ("model", "block", "real", "threads", "isa", "avx2_only"),
    "--device cuda": ("model", "block"),
    "": tuple(name for name in OPTIONS if name != "streams"),
}  # fmt: skip


def bench(arguments: list[str]) -> int:
    """All engines run on this machine in one session, in turns. Medians, percentiles and minima are printed,
    with a description of the machine. The other engines run the real-valued baseline, which is the same
    network without binarization, and are optional: `pip install 'xnorpp[bench]'`. Without MODEL the network
    is a ResNet-18 for 224x224 images, Case 4, with the paper's block and random weights. --throughput fills
    the cores with calls of xnorpp alone, and counts images per second.
    """
    parser = Parser(
        "bench",
        bench,
        """
        xnorpp bench --threads 1,2
        xnorpp bench model.xnor --against onnxruntime,openvino --json bench.json --plot bench.png
        xnorpp bench model.xnor --throughput --batch 1,8,32 --seconds 5
        xnorpp bench model.xnor --against none --seconds 10
        xnorpp bench --layers --avx2-only
        xnorpp bench --real-layers --avx2-only
        xnorpp bench model.xnor --device cuda --json gpu.json
        """,
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="a packed file, a checkpoint, or the name of a shipped model",
    )
    parser.add_argument(
        "--block",
        metavar="NAME",
        help="without MODEL: the block of the ResNet-18, paper or default (default: paper)",
    )
    parser.add_argument(
        "--real", metavar="NAME",
        help="how the real-valued layers of that network are computed: float32 or int8 (default: float32)",
    )  # fmt: skip
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--layers", action="store_true", help="time chains of eight binary layers instead")
    kind.add_argument(
        "--real-layers", action="store_true", help="time chains of real-valued layers and a stem instead"
    )
    kind.add_argument(
        "--throughput",
        action="store_true",
        help="images per second with all cores busy, and percentiles of the time per call, instead",
    )
    kind.add_argument(
        "--startup",
        action="store_true",
        help="measure the time to the first result, the memory and cold commands instead",
    )
    parser.add_argument(
        "--device", metavar="NAME", default="cpu",
        help="cpu, or cuda: batches of 256 and 1, compared with torch eager and compiled (default: cpu)",
    )  # fmt: skip
    parser.add_argument("--threads", metavar="N[,N]", help="threads of every engine (default: 1)")
    parser.add_argument(
        "--batch",
        metavar="N[,N]",
        type=lambda text: int(text) if text.isdigit() else text,
        help="images per call (default: 1); several with --throughput",
    )
    parser.add_argument(
        "--streams",
        metavar="N",
        type=at_least(1),
        help="with --throughput: callers at the same time (default: as many as fill the cores)",
    )
    parser.add_argument(
        "--seconds",
        metavar="S",
        type=positive,
        help="time limit: of all rounds together; with --throughput of each setting (default there: 5)",
    )
    parser.add_argument(
        "--against", metavar="NAMES",
        help="the other engines, or none; eager is torch without its compiler "
        "(default: torch,onnxruntime,openvino)",
    )  # fmt: skip
    parser.add_argument(
        "--rounds",
        metavar="N",
        type=at_least(1),
        help="rounds; every engine has one turn per round (default: 10; with --seconds no limit)",
    )
    parser.add_argument("--repeat", metavar="N", type=at_least(1), help="timed calls per round (default: 5)")
    parser.add_argument(
        "--isa", metavar="NAME",
        help="use the xnorpp kernels of this instruction set; with --layers several, separated by commas",
    )  # fmt: skip
    masks = parser.add_mutually_exclusive_group()
    masks.add_argument(
        "--avx2-only", action="store_true", help="hide instruction sets above AVX2 from every engine"
    )
    masks.add_argument("--no-amx", action="store_true", help="hide the matrix unit (AMX) from every engine")
    parser.add_argument("--json", metavar="FILE", help="write all measurements to this JSON file")
    parser.add_argument("--plot", metavar="FILE", help="write a plot (.png or .svg)")
    parser.add_argument("--append", metavar="FILE", help="append the rows to this .jsonl file")
    given = parser.parse_args(arguments)
    _check(given)

    from xnorpp.bench import CannotMask, hidden, restart
    from xnorpp.bench.machine import describe_machine
    from xnorpp.bench.report import complete, machine_text
    from xnorpp.training.records.record import append_rows

    mask = "above-avx2" if given.avx2_only else "amx" if given.no_amx else None
    if mask and hidden() != mask:
        try:
            restart(["bench", *arguments], mask)
        except CannotMask as error:
            print(f"xnorpp bench: {error}.", file=sys.stderr)
            return 2
    given.model = str(one_model(given.model, None)) if given.model else None
    if given.model and not Path(given.model).exists():
        raise FileNotFoundError(f"there is no file or folder {given.model}")
    threads, against = _numbers("threads", given.threads), _others(given.against)
    machine = describe_machine(max(threads))
    print(machine_text(machine), flush=True)
    rows = complete(_measure(given, threads, against), seed=0, hardware=machine)
    if given.json:
        from xnorpp.runtime.files import write_atomically

        write_atomically(given.json, (json.dumps(rows, indent=2) + "\n").encode())
    if given.append:
        append_rows(given.append, rows)
    if given.plot:
        from xnorpp.bench.plot import plot

        plot(rows, given.plot)
    return 0


def _check(given: Namespace) -> None:
    """Refuse options without effect and outputs that cannot be written, before anything is timed."""
    from xnorpp.bench.compare import TITLES
    from xnorpp.runtime.choices import check_choice

    if given.block is not None and given.block not in TITLES:
        raise ValueError(f"`--block` (={given.block!r}) must be one of {', '.join(TITLES)}")
    for name in ("block", "real"):
        value = getattr(given, name)
        if value is not None and given.model is not None:
            raise ValueError(f"`--{name}` (={value!r}) is for the network without MODEL; leave one out")
    check_choice("--real", given.real or "float32", ("float32", "int8"))
    if given.device != "cpu" and given.device.partition(":")[0] != "cuda":
        raise ValueError(f"`device` (={given.device!r}) must be 'cpu', 'cuda' or 'cuda:N'")
    kinds = {
        "--layers": given.layers,
        "--real-layers": given.real_layers,
        "--throughput": given.throughput,
        "--startup": given.startup,
    }
    kind = next((name for name, asked in kinds.items() if asked), "")
    if kind and given.device != "cpu":
        raise ValueError(f"`device` (={given.device!r}) must be 'cpu' with {kind}")
    kind = kind or ("--device cuda" if given.device != "cpu" else "")
    if kind and given.model is not None and "model" not in TAKES[kind]:
        raise ValueError(
            f"MODEL (={given.model!r}) must not be given with {kind}, which builds its own layers"
        )
    left = tuple(name for name in OPTIONS if name not in TAKES[kind])
    place = f"the comparison of whole networks on the CPU, not for {kind}" if kind else "--throughput"
    refuse_ignored(given, left, place)
    if len(_numbers("threads", given.threads)) > 1 and given.startup:
        raise ValueError(f"`--threads` (={given.threads!r}) must be one number with --startup")
    if len(_numbers("batch", given.batch)) > 1 and not given.throughput:
        raise ValueError(f"`--batch` (={given.batch!r}) must be one number without --throughput")
    _others(given.against)
    if given.model is None and kind not in ("--layers", "--real-layers") and find_spec("torch") is None:
        raise ValueError(
            "without MODEL the network is built by torch, which is not installed; install it with "
            "`pip install 'xnorpp[train]'`, or give a packed model: `xnorpp bench cifar10-resnet20`"
        )
    check_file("--json", given.json)
    check_file("--append", given.append, makes_folder=True)
    check_plot("--plot", given.plot)


def _measure(given: Namespace, threads: tuple[int, ...], against: list[str]) -> list[dict[str, Any]]:
    """Measure what was asked for, print it, and return its rows."""
    from xnorpp.bench import (
        bench_layers,
        bench_real_layers,
        compare,
        measure_commands,
        measure_startup,
        measure_throughput,
        open_program,
        report,
    )
    from xnorpp.bench.compare import TITLES
    from xnorpp.runtime import write

    block = given.block or "paper"
    if given.layers or given.real_layers:
        rows = []
        for count in threads:
            chains = (bench_real_layers if given.real_layers else bench_layers)(
                threads=count, isa=given.isa, against="openvino" in against,
                rounds=given.rounds or ROUNDS, repeat=given.repeat or REPEAT, say=say,
            )  # fmt: skip
            print(report.layers_text(chains, real=given.real_layers), flush=True)
            rows += report.layers_rows(chains, count, real=given.real_layers)
        return rows
    if given.device != "cpu":
        from xnorpp.bench.cuda import as_record, compare_cuda
        from xnorpp.runtime.cuda.model import CudaError
        from xnorpp.training.records.record import describe_hardware

        def show(line: str) -> None:
            print(line, flush=True)

        try:
            measured_rows = compare_cuda(open_program(given.model, block), device=given.device, say=show)
        except CudaError as error:
            text = str(error).replace("device='cpu'", "--device cpu")
            raise ValueError(text.rstrip(".")) from None
        gpu = describe_hardware(given.device)["gpu"]
        return [
            {"kind": "cuda bench", "device": given.device, "gpu": gpu, **as_record(row)}
            for row in measured_rows
        ]
    title = Path(given.model).name if given.model else TITLES[block] + ", int8" * (given.real == "int8")
    program = open_program(given.model, block, given.real)
    if given.startup:
        with tempfile.TemporaryDirectory(prefix="xnorpp-bench-") as folder:
            place = Path(folder) / "model.xnor"
            write(program, place)
            startup = measure_startup(place, threads=threads[0], isa=given.isa)
            cold = measure_commands(place)
        print(report.startup_text(startup))
        print(report.commands_text(cold))
        return report.startup_rows(startup, title, threads[0]) + report.commands_rows(cold, title)
    batches = _numbers("batch", given.batch)
    if given.throughput:
        settings = [(batch, count) for count in threads for batch in batches]
        say(
            f"measuring {len(settings)} setting{'s' * (len(settings) != 1)}, "
            f"{given.seconds or SECONDS:g} seconds each"
        )
        measured = [
            measure_throughput(
                program, title=title, batch=batch, threads=count, streams=given.streams,
                seconds=given.seconds or SECONDS, isa=given.isa,
            )
            for batch, count in settings
        ]  # fmt: skip
        print(report.throughput_text(measured))
        return report.throughput_rows(measured)
    comparison = compare(
        program, title=title, threads=threads, batch=batches[0], isa=given.isa, against=against,
        rounds=given.rounds or (None if given.seconds else ROUNDS), repeat=given.repeat or REPEAT,
        seconds=given.seconds, say=say,
    )  # fmt: skip
    print(report.comparison_text(comparison))
    return report.comparison_rows(comparison)


def _others(text: str | None) -> list[str]:
    """The engines to compare with."""
    names = OTHERS if text is None else text
    if names in ("", "none"):
        return []
    from xnorpp.runtime.choices import check_choice

    for name in names.split(","):
        check_choice("--against", name, (*OTHERS.split(","), "eager", "none"))
    return names.split(",")


def _numbers(option: str, text: str | int | None) -> tuple[int, ...]:
    if text is None:
        return (1,)
    try:
        numbers = tuple(int(part) for part in str(text).split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise ValueError(f"`{option}` (={text!r}) must be positive integers separated by commas, such as 1,2")
    return numbers
