"""`xnorpp pack`."""

from __future__ import annotations

import os
from argparse import Namespace
from typing import Any

from xnorpp.cli.command import Parser, check_file, refuse_ignored

_IMAGES = 500  # of the training set, for calibration


def pack(arguments: list[str]) -> int:
    """CHECKPOINT is a run's folder or one of its .safetensors files. The packed file runs as bit operations
    and also holds the pre-processing and the labels. --real int8 stores the weights of real-valued layers in
    8 bits with one factor per output channel and other real numbers in 16 bits. With --calibration, images of
    the training set decide which layers are stored in 8 bits, and the change of their answers is printed.
    --short-names numbers tensors instead of naming them after their modules: the header is smaller and the
    answers are the same. With --real int8 or --short-names CHECKPOINT may also be a packed file.
    """
    parser = Parser(
        "pack",
        pack,
        """
        xnorpp pack runs/digits -o digits.xnor
        xnorpp pack runs/case4 -o case4.xnor --real int8
        xnorpp pack case4.xnor -o smaller.xnor --real int8 --short-names
        xnorpp pack cifar.xnor -o smaller.xnor --real int8 --calibration /data/cifar10
        """,
    )
    parser.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        help="a run's folder or one of its .safetensors files; with --real int8 or --short-names also a "
        "packed file",
    )
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="the packed file to write")
    parser.add_argument(
        "--real",
        metavar="NAME",
        help="how real numbers are stored: float32, float16 or int8 (default: float32)",
    )
    parser.add_argument(
        "--calibration",
        metavar="DIR",
        help="with --real int8: the data set's folder; 500 of its training images choose what is rounded",
    )
    parser.add_argument(
        "--dataset", metavar="NAME", help="with --calibration: another data set than that of training"
    )
    parser.add_argument(
        "--tolerance",
        metavar="SHARE",
        type=float,
        help="with --calibration: the share of answers that may change (default: 0.001)",
    )
    parser.add_argument(
        "--short-names",
        action="store_true",
        help="number tensors and values instead of naming them: some 7 kB less for 20 layers",
    )
    parser.add_argument("--half", action="store_true", help="the same as --real float16")
    parser.add_argument(
        "--network", metavar="PACKAGE.MODULE:FUNCTION", help="the function that builds your own network"
    )
    given = parser.parse_args(arguments)
    check_file("--output", given.output)

    from xnorpp.inspect import inspect_file
    from xnorpp.packing.storage import check_calibration, check_real
    from xnorpp.runtime.files import FileKind, file_kind

    real = check_real(given.real, given.half)
    check_calibration(real, given.calibration)
    if given.calibration is None:
        refuse_ignored(given, ("dataset", "tolerance"), "--calibration DIR, which was not given")
    kind = file_kind(given.checkpoint)
    if kind is FileKind.IMAGE:
        raise ValueError(
            f"{given.checkpoint} is {kind.value}; the folder of a run or one of its .safetensors files is "
            "needed"
        )
    if kind is FileKind.PACKED:
        floats, what = _store_again(given, given.checkpoint, real, given.output), "the packed file"
    else:
        floats, what = _pack(given, real), "the float32 state_dict"
    report = inspect_file(given.output)
    print(
        f"{given.output}: {report.total_bytes:,} bytes, {floats / report.total_bytes:.1f} times smaller than "
        f"{what} ({floats:,} bytes)"
    )
    print(
        f"{report.count('binary')} layers binary, {report.count('one-bit weights')} with one-bit weights, "
        f"{report.count('real')} real"
    )
    for layer in report.layers:
        print(f"  {layer.state:<16}{layer.bytes:>12,} bytes  {layer.name} ({layer.why})")
    for warning in report.warnings:
        print(f"warning: {warning}")
    return 0


def _pack(given: Namespace, real: str) -> int:
    """Pack a checkpoint; returns the bytes of its state_dict."""
    from xnorpp.runtime.files import replacing
    from xnorpp.runtime.format.names import with_short_names
    from xnorpp.runtime.format.program import read, write
    from xnorpp.training.packing import check_output, float_bytes, pack_checkpoint

    if given.calibration is None and not given.short_names:
        model, _ = pack_checkpoint(given.checkpoint, given.output, real=real, model=given.network)
        return float_bytes(model)
    check_output(given.output)
    with replacing(given.output) as temporary:  # an error of a later step leaves no half result
        plain = real if given.calibration is None else "float32"
        model, _ = pack_checkpoint(given.checkpoint, temporary, real=plain, model=given.network)
        if given.calibration is not None:
            _store_again(given, str(temporary), real, str(temporary))
        elif given.short_names:
            write(with_short_names(read(temporary)), temporary)
    return float_bytes(model)


def _store_again(given: Namespace, source: str, real: str, output: str) -> int:
    """Write a packed file again, with real numbers in int8 or with short names; returns the bytes it had."""
    from xnorpp.packing.storage import TOLERANCE, store_int8
    from xnorpp.runtime.format.names import with_short_names
    from xnorpp.runtime.format.program import read, write

    only_names = given.short_names and given.real is None and not given.half
    if real != "int8" and not only_names:
        raise ValueError(
            f"`--real` (={real!r}) must be 'int8' where CHECKPOINT (={source!r}) is a packed file; "
            "for other storage pack the checkpoint it was made from"
        )
    before = os.path.getsize(source)
    program = read(source)
    if only_names:
        stored = program
    elif given.calibration is None:
        stored = store_int8(program)
    else:
        images = calibration_images(program, given.dataset, given.calibration)
        tolerance = TOLERANCE if given.tolerance is None else given.tolerance
        stored = store_int8(program, images, tolerance=tolerance)
        _report(stored.meta["int8"])
    write(with_short_names(stored) if given.short_names else stored, output)
    return before


def calibration_images(
    program: Any, dataset: str | None, folder: str | None, count: int = _IMAGES
) -> tuple[Any, Any]:
    """Images of the training set, evenly spread over it, and their classes."""
    import numpy as np

    from xnorpp.cli.command import check_data
    from xnorpp.data import load_dataset
    from xnorpp.data.evaluate import prepared
    from xnorpp.data.labels import in_order_of
    from xnorpp.data.own import as_images
    from xnorpp.runtime.predict import as_input, check_classifier, preprocess_of

    check_classifier(program)
    name = dataset or program.meta.get("dataset")
    if not isinstance(name, str):
        raise ValueError("the file does not record its data set; `--dataset NAME` is needed")
    check_data(name, folder)
    found = in_order_of(as_images(load_dataset(name, folder, "train")), program.labels)
    places = np.linspace(0, len(found) - 1, min(count, len(found))).astype(np.int64)
    preprocess = preprocess_of(program)
    batches = list(prepared(found.subset(places), preprocess, 64, 1, []))
    images = np.concatenate([as_input(program, preprocess, pixels) for pixels, _ in batches])
    return images, np.concatenate([labels for _, labels in batches])


def _report(found: dict[str, Any]) -> None:
    """What calibration chose, and what changed."""
    for name, kind in found["layers"].items():
        print(f"  {kind:<20}{name}")
    before, after = found["accuracy"]
    same, mixed = 100 * found["same_answers"], 100 * found["same_answers_mixed"]
    print(
        f"{found['images']} calibration images: {same:.2f} % of the answers are the same ({mixed:.2f} % for "
        f"means of two images), accuracy {before:.2f} % before and {after:.2f} % after"
    )
