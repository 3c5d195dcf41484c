"""The commands behind training: pack, predict, inspect, bench, models, and `eval` of a packed file.

They stand in the table of `cli.py`, and follow its rules. Only `pack`, checkpoints and the twins of `bench`
need torch.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from xnorpp.command import Parser, print_table


def pack(arguments: list[str]) -> int:
    """Pack a trained network into one small file that runs as bit operations.

    CHECKPOINT is a run's folder or one of its .safetensors files. The file holds the pre-processing and the
    labels too. --half stores what stays real-valued in 16 bits.
    """
    parser = Parser(
        "pack", pack, "xnorpp pack runs/digits -o digits.xnor\nxnorpp pack runs/case4 -o case4.xnor --half"
    )
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="a run's folder or one of its .safetensors files"
    )
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="the packed file to write")
    parser.add_argument("--half", action="store_true", help="store the real-valued parts in 16 bits")
    given = parser.parse_args(arguments)

    from xnorpp.inspect import inspect_file
    from xnorpp.train.packing import float_bytes, pack_checkpoint

    model, _ = pack_checkpoint(given.checkpoint, given.output, half=given.half)
    found = inspect_file(given.output)
    floats = float_bytes(model)
    print(
        f"{given.output}: {found.total_bytes:,} bytes, {floats / found.total_bytes:.1f} times smaller than "
        f"the float32 state_dict ({floats:,} bytes)"
    )
    print(
        f"{found.count('binary')} layers binary, {found.count('one-bit weights')} with one-bit weights, "
        f"{found.count('real')} real"
    )
    for layer in found.layers:
        print(f"  {layer.state:<16}{layer.bytes:>12,} bytes  {layer.name} ({layer.why})")
    for warning in found.warnings:
        print(f"warning: {warning}")
    return 0


def predict(arguments: list[str]) -> int:
    """Say what pictures show: labels and probabilities from a packed model.

    The model is a packed file, the first argument, or one that ships with the package, by --model. Needs
    numpy and Pillow, no torch. A picture that cannot be read is named on stderr, the others are still
    predicted, and the exit status is 1.
    """
    parser = Parser(
        "predict",
        predict,
        """
        xnorpp predict --model cifar10-resnet18 picture.png
        xnorpp predict model.xnor cat.jpg dog.png --top 3
        xnorpp predict model.xnor *.jpg --json
        """,
    )
    parser.usage = "%(prog)s [options] MODEL IMAGE ...\n       %(prog)s [options] --model NAME IMAGE ..."
    parser.add_argument("files", metavar="IMAGE", nargs="*", help="pictures; without --model MODEL is first")
    parser.add_argument(
        "--model", metavar="NAME", help="a model that ships with the package (`xnorpp models`)"
    )
    parser.add_argument("--top", metavar="K", type=int, default=5, help="show so many classes (5)")
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of text")
    _engine_options(parser)
    given = parser.parse_args(arguments)

    from xnorpp.predict import predict as run
    from xnorpp.runtime import load

    path, images = _model_and_images(given.model, given.files)
    model = load(path, threads=given.threads, isa=given.isa)
    failed = 0
    rows: list[dict[str, Any]] = []
    for found in run(model, images, top=given.top):
        if found.error is not None:
            failed += 1
            print(f"xnorpp predict: {found.image} cannot be read ({found.error}).", file=sys.stderr)
        if given.json:
            guesses = [asdict(guess) for guess in found.guesses]
            row = {"image": found.image, "error": found.error} if found.error else None
            rows.append(row or {"image": found.image, "predictions": guesses})
        elif found.error is None:
            best = ", ".join(f"{guess.label} {100 * guess.probability:.1f} %" for guess in found.guesses)
            print(f"{found.image}: {best}")
    if given.json:
        print(json.dumps(rows, indent=2))
    return 1 if failed else 0


def one_model(path: str | None, name: str | None) -> Path:
    """The model that was asked for, by path or by the name of a shipped one: exactly one of the two."""
    from xnorpp.shipped import find_model, list_shipped, shipped_path

    if path is not None and name is not None:
        raise ValueError(f"give one model: MODEL (={path!r}) or --model (={name!r}), not both")
    if name is not None:
        return Path(name) if name not in list_shipped() and Path(name).exists() else shipped_path(name)
    if path is None:
        known = ", ".join(list_shipped()) or "none in this copy of the package"
        raise ValueError(f"give a model: MODEL, a file or a folder, or --model NAME ({known})")
    return find_model(path)


def _model_and_images(name: str | None, files: list[str]) -> tuple[Path, list[str]]:
    """What `xnorpp predict` was given: without --model the first file is the model."""
    first = files[0] if files else None
    if name is not None and first is not None and first.endswith(".xnor"):
        return one_model(first, name), []  # says that there are two
    if len(files) == 1 and name is None:
        raise ValueError(f"give a model and a picture; {first!r} alone is one of the two")
    path, images = (one_model(None, name), files) if name is not None else (one_model(first, None), files[1:])
    if not images:
        raise ValueError(f"give a picture for the model {name}")
    return path, images


def evaluate_packed(given: Namespace) -> int:
    """`xnorpp eval` of a packed file: top-1 and top-5 through the packed engine, without torch."""
    from xnorpp.data import load_dataset
    from xnorpp.data.progress import Progress
    from xnorpp.predict import evaluate_packed as measure
    from xnorpp.runtime import load

    model = load(given.checkpoint)
    name = given.dataset or model.program.meta.get("dataset")
    if not name:
        raise ValueError("the packed file does not say which data set it was trained on; give --dataset NAME")
    dataset = load_dataset(str(name), given.data, given.split, download=given.download)
    progress = Progress("evaluating", len(dataset), "pictures")
    found = measure(
        model, dataset, batch=given.batch_size, workers=max(given.workers, 1), progress=progress.advance
    )
    progress.close()
    for lost in found.skipped:
        print(f"xnorpp eval: {lost.name} cannot be read ({lost.reason}) and is left out.", file=sys.stderr)
    print(
        f"{Path(given.checkpoint).name} on {name} ({given.split}, {found.images} pictures, {model.isa}): "
        f"top-1 {found.top1:.2f} %, top-5 {found.top5:.2f} %"
    )
    return 0


def inspect(arguments: list[str]) -> int:
    """Show what is binary in a network, what is not and why, and what it costs.

    MODEL is a packed file, a checkpoint or a run's folder. A row a layer: bits of weights and inputs, bytes,
    binary and real multiply-adds, bits wasted, the speed-up in the paper's theory and, with --time, the
    measured one. Warnings name layers that look binary and are not.
    """
    parser = Parser(
        "inspect",
        inspect,
        "xnorpp inspect runs/digits\nxnorpp inspect model.xnor --time\nxnorpp inspect model.xnor --json",
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a packed file, a checkpoint, a run's folder, or a shipped model's name",
    )
    parser.add_argument("--time", action="store_true", help="time every layer, packed against real")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    _engine_options(parser)
    given = parser.parse_args(arguments)

    from xnorpp.inspect import inspect_file, render, time_layers

    found = inspect_file(one_model(given.model, None))
    if given.time:
        found = time_layers(found, threads=given.threads or 1, isa=given.isa)
    print(json.dumps(found.to_dict(), indent=2) if given.json else render(found))
    return 0


def bench(arguments: list[str]) -> int:
    """Race our engine against others on this machine, side by side in one run.

    Engines take turns; medians, quartiles and minima are shown, and the machine is described. The others run
    the real-valued twin of the network and are optional installs: `pip install 'xnorpp[bench]'`. Without
    MODEL the network is a ResNet-18 for 224x224 pictures, Case 4, with random weights.
    """
    parser = Parser(
        "bench",
        bench,
        """
        xnorpp bench --threads 1,2
        xnorpp bench model.xnor --against onnxruntime,openvino --json bench.json --plot bench.png
        xnorpp bench --layers --avx2-only
        xnorpp bench model.xnor --device cuda --json gpu.json
        """,
    )
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", help="a packed file, a checkpoint, or a shipped model's name"
    )
    parser.add_argument("--layers", action="store_true", help="time chains of eight binary layers instead")
    parser.add_argument("--startup", action="store_true", help="time the first answer and its memory instead")
    parser.add_argument(
        "--device", metavar="NAME", default="cpu",
        help="cpu, or cuda: batches 256 and 1 beside torch eager and compiled (cpu)",
    )  # fmt: skip
    parser.add_argument("--threads", metavar="N[,N]", default="1", help="threads of every engine (1)")
    parser.add_argument("--batch", metavar="N", type=int, default=1, help="pictures a call (1)")
    parser.add_argument(
        "--against", metavar="NAMES", default="torch,onnxruntime,openvino",
        help="which others, or none (torch,onnxruntime,openvino)",
    )  # fmt: skip
    parser.add_argument("--rounds", metavar="N", type=int, default=10, help="turns of each engine (10)")
    parser.add_argument("--repeat", metavar="N", type=int, default=5, help="timed calls a turn (5)")
    parser.add_argument("--isa", metavar="NAME", help="force our kernels of this instruction set")
    parser.add_argument("--avx2-only", action="store_true", help="hide all above AVX2 from every engine")
    parser.add_argument("--json", metavar="FILE", help="write every number here")
    parser.add_argument("--plot", metavar="FILE", help="draw it (.png or .svg)")
    parser.add_argument("--append", metavar="FILE", help="append the rows to this .jsonl file")
    given = parser.parse_args(arguments)

    from xnorpp.bench import AVX2_ONLY, CannotMask, restart
    from xnorpp.bench.machine import describe_machine
    from xnorpp.bench.report import complete, machine_text
    from xnorpp.train.record import append_rows

    if given.device.partition(":")[0] not in ("cpu", "cuda"):
        raise ValueError(f"`device` (={given.device!r}) must be 'cpu', 'cuda' or 'cuda:N'")
    if given.avx2_only and not os.environ.get(AVX2_ONLY):
        try:
            restart(["bench", *arguments])
        except CannotMask as error:
            print(f"xnorpp bench: {error}.", file=sys.stderr)
            return 2
    given.model = str(one_model(given.model, None)) if given.model else None
    threads = _numbers(given.threads)
    against = [] if given.against in ("", "none") else given.against.split(",")
    print(machine_text(describe_machine()), flush=True)
    rows = complete(_race(given, threads, against), seed=0)
    if given.json:
        Path(given.json).write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    if given.append:
        append_rows(given.append, rows)
    if given.plot:
        from xnorpp.bench.plot import plot

        plot(rows, given.plot)
    return 0


def models(arguments: list[str]) -> int:
    """List the networks to train and the models that ship; with NAME, a shipped model's card.

    Accuracy is that of the packed file on the whole test set, the time that of one picture on one thread of
    the machine that the card names.
    """
    parser = Parser(
        "models",
        models,
        "xnorpp models\nxnorpp models cifar10-resnet18\nxnorpp models cifar10-resnet18 --json",
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="show this model's whole card")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    given = parser.parse_args(arguments)

    from xnorpp.shipped import list_shipped, render_card, shipped_card, short_card, summary_rows

    if given.name is not None:
        card = shipped_card(given.name)
        print(json.dumps(card, indent=2) if given.json else render_card(card))
        return 0
    cards = [shipped_card(name) for name in list_shipped()]
    try:
        from xnorpp.models import list_models

        networks = list_models()
    except ModuleNotFoundError:
        networks = ()
    if given.json:
        print(json.dumps({"networks": networks, "shipped": cards}, indent=2))
        return 0
    print("networks to train (`xnorpp recipes` lists how):")
    print_table([(name,) for name in networks], "  ")
    if not networks:
        print("  training needs torch; `pip install 'xnorpp[train]'` brings it")
    print("\nmodels that ship (`xnorpp models NAME` shows one's card):")
    print_table(summary_rows(cards) if cards else [("none in this copy of the package",)], "  ")
    for card in cards:
        print(f"\n  {short_card(card)}")
    return 0


def _race(given: Namespace, threads: tuple[int, ...], against: list[str]) -> list[dict[str, Any]]:
    """The part of `bench` that was asked for: its text on stdout, its rows as the result."""
    from xnorpp.bench import bench_layers, compare, measure_startup, open_program, report
    from xnorpp.runtime import write

    if given.layers:
        rows = []
        for count in threads:
            chains = bench_layers(
                threads=count, isa=given.isa, against="openvino" in against,
                rounds=given.rounds, repeat=given.repeat, say=_say,
            )  # fmt: skip
            print(report.layers_text(chains), flush=True)
            rows += report.layers_rows(chains, count)
        return rows
    if given.device != "cpu":
        from xnorpp.bench.cuda import as_record, compare_cuda
        from xnorpp.runtime.cuda import CudaError

        def show(line: str) -> None:
            print(line, flush=True)

        try:
            found_rows = compare_cuda(open_program(given.model), device=given.device, say=show)
        except CudaError as error:
            raise ValueError(str(error).rstrip(".")) from None
        return [{"device": given.device, **as_record(row)} for row in found_rows]
    title = Path(given.model).name if given.model else "resnet18 224x224 xnor++ case 4, binary downsampling"
    program = open_program(given.model)
    if given.startup:
        with tempfile.TemporaryDirectory(prefix="xnorpp-bench-") as folder:
            place = Path(folder) / "model.xnor"
            write(program, place)
            found = measure_startup(place, threads=threads[0], isa=given.isa)
        print(report.startup_text(found))
        return report.startup_rows(found, title, threads[0])
    comparison = compare(
        program, title=title, threads=threads, batch=given.batch, isa=given.isa, against=against,
        rounds=given.rounds, repeat=given.repeat, say=_say,
    )  # fmt: skip
    print(report.comparison_text(comparison))
    return report.comparison_rows(comparison)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise ValueError(f"`threads` (={text!r}) must be positive integers with commas between, such as 1,2")
    return found


def _engine_options(parser: Parser) -> None:
    parser.add_argument("--threads", metavar="N", type=int, help="threads of one call (as many as cores)")
    parser.add_argument("--isa", metavar="NAME", help="force the kernels of this instruction set")
