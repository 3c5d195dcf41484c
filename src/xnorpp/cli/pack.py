"""`xnorpp pack`."""

from __future__ import annotations

from xnorpp.cli.command import Parser, check_file


def pack(arguments: list[str]) -> int:
    """CHECKPOINT is a run's folder or one of its .safetensors files. The packed file runs as bit operations
    and also holds the pre-processing and the labels. --half stores what stays real-valued in 16 bits.
    """
    parser = Parser(
        "pack", pack, "xnorpp pack runs/digits -o digits.xnor\nxnorpp pack runs/case4 -o case4.xnor --half"
    )
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="a run's folder or one of its .safetensors files"
    )
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="the packed file to write")
    parser.add_argument("--half", action="store_true", help="store real-valued parts in 16 bits")
    parser.add_argument(
        "--network", metavar="PACKAGE.MODULE:FUNCTION", help="the function that builds your own network"
    )
    given = parser.parse_args(arguments)
    check_file("--output", given.output)

    from xnorpp.inspect import inspect_file
    from xnorpp.training.packing import float_bytes, pack_checkpoint

    model, _ = pack_checkpoint(given.checkpoint, given.output, half=given.half, model=given.network)
    report = inspect_file(given.output)
    floats = float_bytes(model)
    print(
        f"{given.output}: {report.total_bytes:,} bytes, {floats / report.total_bytes:.1f} times smaller than "
        f"the float32 state_dict ({floats:,} bytes)"
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
