"""The commands behind training: pack, predict, inspect, models.

They stand in the table of `cli.py`, and follow its rules. Only `pack` and checkpoints need torch.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xnorpp.cli.command import Parser, at_least, check_file, print_table

if TYPE_CHECKING:
    from xnorpp.runtime import PackedModel


MUCH = 1.2  # a change of the aspect ratio that a person is told about


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
    check_file("--output", given.output)

    from xnorpp.inspect import inspect_file
    from xnorpp.training.packing import float_bytes, pack_checkpoint

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
    numpy and Pillow, no torch. A photo is turned upright as its EXIF orientation says. A picture that cannot
    be read is named on stderr, the others are still predicted, and the exit status is 1.
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
    parser.add_argument("--top", metavar="K", type=at_least(1), default=5, help="show so many classes (5)")
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of text")
    parser.add_argument("--device", metavar="NAME", default="cpu", help="cpu, cuda or cuda:N (cpu)")
    engine_options(parser, THREADS)
    given = parser.parse_args(arguments)

    from xnorpp.runtime.predict import predict as run
    from xnorpp.runtime.predict import printable

    path, images = _model_and_images(given.model, given.files)
    model = load_packed(path, given)
    failed, noted = 0, False
    rows: list[dict[str, Any]] = []
    for found in run(model, images, top=given.top):
        name = printable(found.image)
        if found.error is not None:
            failed += 1
            print(f"xnorpp predict: {name} cannot be read ({printable(found.error)}).", file=sys.stderr)
        elif found.distortion > MUCH and not noted:
            noted = True  # once per run: a folder of photos would repeat it for each
            print(
                f"xnorpp predict: note: the aspect ratio of {name} is changed by a factor of "
                f"{found.distortion:.1f}, because this model expects squashed images; crop the image to "
                "avoid it.",
                file=sys.stderr,
            )
        if given.json:
            guesses = [asdict(guess) for guess in found.guesses]
            row = {"image": found.image, "error": found.error} if found.error else None
            rows.append(row or {"image": found.image, "predictions": guesses})
        elif found.error is None:
            best = [f"{printable(guess.label)} {100 * guess.probability:.1f} %" for guess in found.guesses]
            print(f"{name}: {', '.join(best)}")
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


def load_packed(path: str | Path, given: Namespace) -> PackedModel:
    """The packed file on the device, the threads and the kernels that were asked for; `auto` is the CPU."""
    from xnorpp.runtime import load

    if given.device in ("auto", "cpu"):
        return load(path, threads=given.threads, isa=given.isa)
    if given.device.partition(":")[0] != "cuda":
        raise ValueError(f"`device` (={given.device!r}) must be auto, cpu, cuda or cuda:N")
    refuse_ignored(given, ("threads", "isa"), f"the CPU engine, not for --device {given.device}")
    from xnorpp.runtime.cuda.model import CudaError

    try:
        return load(path, device=given.device)
    except CudaError as error:
        raise ValueError(str(error)) from None


def refuse_ignored(given: Namespace, names: tuple[str, ...], place: str) -> None:
    """An error for the first of these options that was given: it belongs to `place` and would be ignored."""
    for name in names:
        value = getattr(given, name)
        if value is not None and value is not False:
            raise ValueError(f"`--{name.replace('_', '-')}` (={value!r}) is for {place}")


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
    engine_options(parser, "threads of --time (1)")
    given = parser.parse_args(arguments)
    if not given.time:
        refuse_ignored(given, ("threads", "isa"), "--time, which is not given")

    from xnorpp.inspect import inspect_file, render, time_layers

    found = inspect_file(one_model(given.model, None))
    if given.time:
        found = time_layers(found, threads=given.threads or 1, isa=given.isa)
    print(json.dumps(found.to_dict(), indent=2) if given.json else render(found))
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


THREADS = "threads of one call (as many as its work is worth, at most one a core and 8)"


def engine_options(parser: Parser, threads: str) -> None:
    parser.add_argument("--threads", metavar="N", type=at_least(1), help=threads)
    parser.add_argument("--isa", metavar="NAME", help="force the kernels of this instruction set")
