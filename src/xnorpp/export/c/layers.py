"""What a generated source is made from: fused layers.

The fusion is the library's own (`runtime.plan`): one layer is one pass over an image, a producer and the
moves that run on each number while it is in a register. In memory, numbers are (row,
column, channel) without gaps, bits have whole bytes per pixel.
"""

from __future__ import annotations

from dataclasses import dataclass

from xnorpp.export.errors import refuse
from xnorpp.runtime.format.bits import packed_width
from xnorpp.runtime.format.ops import Value
from xnorpp.runtime.format.program import INPUT, Op, Program
from xnorpp.runtime.plan import (
    AddValue,
    Affine,
    Combine,
    Curve,
    Hardtanh,
    MicroOp,
    MulValue,
    Offset,
    Prelu,
    Relu,
    StoreBits,
    StoreFloat,
    make_steps,
)

FILTERS = frozenset(
    ("conv2d", "linear", "binary_conv2d", "binary_linear", "bitweight_conv2d", "bitweight_linear")
)
POOLS = frozenset(("max_pool2d", "avg_pool2d", "box_filter"))
RESIZERS = frozenset(("bilinear2d", "adaptive_avg_pool2d", "adaptive_max_pool2d"))
OTHERS = frozenset(
    ("pad2d", "global_avg_pool", "abs_mean", "flatten", "softmax", "signs", "pointwise", "concat")
)
MOVERS = frozenset(  # layers that take each number from another place
    ("permute", "reshape", "slice", "flip", "expand", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle",
     "edge_pad2d", "upsample2d")
)  # fmt: skip
PRODUCERS = FILTERS | POOLS | RESIZERS | OTHERS | MOVERS
MOVES = (Affine, Relu, Prelu, Hardtanh, AddValue, MulValue, Combine, Offset, Curve, StoreFloat, StoreBits)

KINDS = {  # in words, for comments
    "conv2d": "convolution",
    "linear": "linear layer",
    "binary_conv2d": "binary convolution",
    "binary_linear": "binary linear layer",
    "bitweight_conv2d": "convolution with one-bit weights",
    "bitweight_linear": "linear layer with one-bit weights",
    "max_pool2d": "max pooling",
    "avg_pool2d": "average pooling",
    "global_avg_pool": "global average",
    "bilinear2d": "bilinear resizing",
    "adaptive_avg_pool2d": "adaptive average pooling",
    "adaptive_max_pool2d": "adaptive max pooling",
    "pad2d": "padding",
    "pointwise": "element by element",
}
MOVE_WORDS: dict[type, str] = {
    Relu: "ReLU",
    Prelu: "PReLU",
    Hardtanh: "hard tanh",
    AddValue: "plus another value",
    MulValue: "times another value",
    Combine: "with another value",
    Offset: "plus a constant",
}


@dataclass(frozen=True)
class Move:
    """One micro-operation of an epilogue and the value that the register is after it."""

    micro: MicroOp
    value: str


@dataclass(frozen=True)
class Layer:
    """One fused pass: `kind` makes a number for every element of `shape`, `moves` run on it."""

    kind: str
    name: str
    op: Op | None
    source: str
    first: str  # the value that the producer makes
    shape: tuple[int, ...]
    moves: tuple[Move, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    takes_bytes: bool

    @property
    def extent(self) -> tuple[int, int, int]:
        """Channels, rows and columns."""
        return extent(self.shape)


def extent(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """A shape of any rank as channels, rows and columns; the order of the elements stays."""
    rows = 1
    for size in shape[1:-1]:
        rows *= size
    return shape[0], rows, shape[-1] if len(shape) > 1 else 1


def make_layers(program: Program, target: str) -> tuple[Layer, ...]:
    """The fused layers of a program; an operation that generated C does not have is refused by name."""
    layers = []
    for step, row in zip(make_steps(program), program.native.steps(), strict=True):
        op = step.op
        name = op.name if op is not None else program.ops[row["epilogue"][0][1]].name
        producer = step.kind
        if producer not in PRODUCERS:
            raise refuse(name, producer, target, "generated C does not have this operation")
        if op is not None and producer == "upsample2d" and not op.attrs["mode"].startswith("nearest"):
            if op.attrs["mode"] != "bilinear":
                mode = op.attrs["mode"]
                reason = f"generated C has the modes nearest, nearest-exact and bilinear, not {mode}"
                raise refuse(name, producer, target, reason)
            producer = "bilinear2d"
        moves = []
        value = step.source if op is None else op.output
        for micro, (kind, index, *_) in zip(step.epilogue, row["epilogue"], strict=True):
            if not isinstance(micro, MOVES):
                where = program.ops[index] if index >= 0 else op
                label, what = (where.name, where.op) if where is not None else (name, kind)
                raise refuse(label, what, target, "generated C does not have this operation")
            if not isinstance(micro, (StoreFloat, StoreBits)):
                value = program.ops[index].output
            moves.append(Move(micro, value))
        layers.append(
            Layer(
                *(
                    producer,
                    name or step.kind,
                    op,
                    step.source,
                    op.output if op is not None else step.source,
                ),
                *(step.shape, tuple(moves), step.reads, step.writes, step.takes_bytes),
            )
        )
    return tuple(layers)


def reads_image(program: Program, layers: tuple[Layer, ...]) -> bool:
    """Whether one convolution or linear layer alone reads the input: it then reads the caller's memory, and
    the arena holds no copy."""
    readers = [layer for layer in layers if INPUT in layer.reads]
    return (
        len(readers) == 1
        and readers[0].kind in FILTERS
        and readers[0].source == INPUT
        and INPUT not in program.outputs.values()
        and not any(getattr(move.micro, "value", None) == INPUT for move in readers[0].moves)
    )


def bits_bytes(value: Value) -> int:
    """Bytes of a bit value: whole bytes per pixel."""
    return value.elements // value.shape[0] * packed_width(value.shape[0])
