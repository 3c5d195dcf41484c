"""Figure 1: the speed-up of a binary layer in the paper's theory, and the one our engine has; and storage.

The theory (`xnorpp.inspect.layer` has the derivation) counts 64 binary operations as one multiplication and
leaves memory out:

    S_XNOR = 64 w h o / (w h o + 2 + w h)        S_OURS = 64 w h o / (w h o + 1)

Measured is the whole of the paper's layer (the sign of a float input, the convolution on bits, one factor per
channel), packed, at batch 1, in turns with the real-valued convolution of the same shape: torch's (the faster
of its memory layouts) and our own float one. Both ratios are recorded, of medians and of fastest calls.

Storage is the size of the packed file against the same network's float32 `state_dict`; one bit for 32 is the
most there is to gain, and the paper's 64 would need weights of 64 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from xnorpp.inspect.layer import Geometry, Inspection, Layer, speedup_ours, speedup_xnor
from xnorpp.inspect.timing import one_layer, time_layers

CHANNELS = (32, 64, 128, 256, 512)
KERNELS = (1, 3, 5, 7)
SIZE = 14  # of the image; the theory does not depend on it
AGAINST = ("torch", "xnorpp")

Row = dict[str, Any]


def geometry(channels: int, kernel: int, size: int = SIZE) -> Geometry:
    """As many filters as input channels, stride 1, a border that preserves the image's size."""
    pad = kernel // 2
    return Geometry(
        channels, channels, (size, size), (size, size), kernel=(kernel, kernel), padding=(pad, pad)
    )


def shapes(quick: bool = False) -> list[tuple[int, int]]:
    """(channels, kernel): channels at 3x3, then kernels at 256 channels."""
    channels, kernels, fixed = ((32, 64), (1, 3), 64) if quick else (CHANNELS, KERNELS, 256)
    return list(dict.fromkeys([(c, 3) for c in channels] + [(fixed, k) for k in kernels]))


def theory(channels: int, kernel: int) -> tuple[float, float]:
    """(S_XNOR, S_OURS)."""
    shape = geometry(channels, kernel)
    return speedup_xnor(shape), speedup_ours(shape)


def binary_layer(shape: Geometry) -> Layer:
    operations = shape.multiply_adds
    return Layer(
        "layer", "binary", "", shape, 1, 1, shape.packed_bytes, operations, shape.pixels * shape.outputs
    )


def measure_speed(
    channels: int,
    kernel: int,
    *,
    against: str,
    threads: int = 1,
    isa: str | None = None,
    size: int = SIZE,
    rounds: int = 10,
    repeat: int = 10,
) -> Row:
    """Time one layer packed and real, in turns."""
    found = Inspection("figure 1", (binary_layer(geometry(channels, kernel, size)),))
    timed = time_layers(found, threads=threads, isa=isa, rounds=rounds, repeat=repeat, against=against)
    measured = timed.layers[0].measured
    assert measured is not None
    xnor, ours = theory(channels, kernel)
    return {
        "kind": "figure1",
        "what": "speed",
        "channels": channels,
        "kernel": kernel,
        "size": size,
        "threads": threads,
        "against": against,
        "how": timed.timed,
        "packed": measured.packed.to_dict(),
        "real": measured.real.to_dict(),
        "speedup": measured.speedup,
        "speedup_fastest": measured.real.minimum / measured.packed.minimum,
        "theory_xnor": xnor,
        "theory_ours": ours,
    }


def measure_storage(quick: bool = False) -> Iterator[Row]:
    """Packed file against float32 `state_dict`: one layer at 256 channels, and whole networks."""
    from xnorpp.models import PAPER_BLOCK, create_model
    from xnorpp.packing import pack_program
    from xnorpp.runtime.format.program import encode
    from xnorpp.training.packing import float_bytes

    channels = 64 if quick else 256
    program = one_layer(binary_layer(geometry(channels, 3)))
    floats = 4 * (9 * channels**2 + channels)
    yield _storage(f"one 3x3 layer, {channels} channels", len(encode(program)), floats)
    paper = {"name": "resnet18", **PAPER_BLOCK}
    networks: dict[str, dict[str, Any]] = {
        "ResNet-18 for ImageNet, binary downsampling": paper,
        "ResNet-18 for ImageNet, real downsampling": {**paper, "downsample": "real"},
    }
    if quick:
        networks = {"small network": {"name": "small"}}
    for name, config in networks.items():
        model: Any = create_model(**config, method="xnor++", scale="channel_height_width").eval()
        size = model.config["input_size"]
        for half in (False, True):
            packed = len(encode(pack_program(model, size, half=half)))
            yield _storage(name + ", real parts in 16 bits" * half, packed, float_bytes(model))


def _storage(name: str, packed: int, floats: int) -> Row:
    return {
        "kind": "figure1",
        "what": "storage",
        "name": name,
        "packed_bytes": packed,
        "float_bytes": floats,
        "ratio": floats / packed,
    }


def run(
    *,
    quick: bool = False,
    threads: int = 1,
    isa: str | None = None,
    against: Sequence[str] = AGAINST,
    rounds: int | None = None,
    say: Callable[[str], None] = print,
) -> Iterator[list[Row]]:
    """The rows of each part as it is done: storage, then a shape at a time."""
    for name in against:
        if name not in AGAINST:
            raise ValueError(f"`against` (={name!r}) must be among {', '.join(AGAINST)}")
    if threads < 1:
        raise ValueError(f"`threads` (={threads}) must be at least 1")
    turns = {"rounds": rounds or (2 if quick else 20), "repeat": 2 if quick else 10}
    say("storage")
    yield [{**row, "quick": quick} for row in measure_storage(quick)]
    for channels, kernel in shapes(quick):
        say(f"{channels} channels, {kernel}x{kernel}: {turns['rounds']} rounds of {turns['repeat']} calls")
        yield [
            {
                **measure_speed(channels, kernel, against=other, threads=threads, isa=isa, **turns),
                "quick": quick,
            }
            for other in against
        ]
