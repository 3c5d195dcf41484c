"""`xnorpp pack`."""

from __future__ import annotations

import os

from xnorpp.cli.command import Parser, check_file


def pack(arguments: list[str]) -> int:
    """CHECKPOINT is a run's folder or one of its .safetensors files. The packed file runs as bit operations
    and also holds the pre-processing and the labels. --real int8 stores the weights of real-valued layers in
    8 bits with one factor per output channel and other real numbers in 16 bits; a packed file may then be
    given instead of a checkpoint.
    """
    parser = Parser(
        "pack",
        pack,
        """
        xnorpp pack runs/digits -o digits.xnor
        xnorpp pack runs/case4 -o case4.xnor --real int8
        xnorpp pack case4.xnor -o smaller.xnor --real int8
        """,
    )
    parser.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        help="a run's folder or one of its .safetensors files; with --real int8 also a packed file",
    )
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="the packed file to write")
    parser.add_argument(
        "--real",
        metavar="NAME",
        help="how real numbers are stored: float32, float16 or int8 (default: float32)",
    )
    parser.add_argument("--half", action="store_true", help="the same as --real float16")
    parser.add_argument(
        "--network", metavar="PACKAGE.MODULE:FUNCTION", help="the function that builds your own network"
    )
    given = parser.parse_args(arguments)
    check_file("--output", given.output)

    from xnorpp.inspect import inspect_file
    from xnorpp.packing.storage import check_real
    from xnorpp.runtime.files import FileKind, file_kind

    real = check_real(given.real, given.half)
    kind = file_kind(given.checkpoint)
    if kind is FileKind.IMAGE:
        raise ValueError(
            f"{given.checkpoint} is {kind.value}; the folder of a run or one of its .safetensors files is "
            "needed"
        )
    if kind is FileKind.PACKED:
        floats, what = _store_again(given.checkpoint, given.output, real), "the packed file"
    else:
        from xnorpp.training.packing import float_bytes, pack_checkpoint

        model, _ = pack_checkpoint(given.checkpoint, given.output, real=real, model=given.network)
        floats, what = float_bytes(model), "the float32 state_dict"
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


def _store_again(source: str, output: str, real: str) -> int:
    """Write a packed file with its real numbers in int8; returns the bytes that it had."""
    from xnorpp.packing.storage import store_int8
    from xnorpp.runtime.format.program import read, write

    if real != "int8":
        raise ValueError(
            f"`--real` (={real!r}) must be 'int8' where CHECKPOINT (={source!r}) is a packed file; "
            "for other storage pack the checkpoint it was made from"
        )
    write(store_int8(read(source)), output)
    return os.path.getsize(source)
