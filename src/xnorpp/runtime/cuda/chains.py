"""What follows a dot product in one unit of the CUDA engine: a chain of micro-operations as a line of macros.

The macros are those of epilogue.cuh; each names rows of a table, one number per channel. A chain that does
not fit gives None, and its steps are left to `plain`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from xnorpp.runtime.plan import (
    F32,
    PLAIN_ONLY,
    AddValue,
    Affine,
    Hardtanh,
    MicroOp,
    MulValue,
    Prelu,
    Relu,
    Spatial,
    Step,
    StoreBits,
    StoreFloat,
)

MAX_TABLES = 12


@dataclass(frozen=True)
class Chain:
    """What follows a dot product, for the kernel: macros, the rows they name, and the values they touch."""

    epilogue: str
    tables: tuple[F32, ...]
    stream_in: tuple[str, ...]
    stream_out: tuple[str, ...]
    bits: tuple[str, ...]
    spatial: Spatial | None = None
    pooled: str = ""
    pooled_bits: str | None = None
    side_spatial: Spatial | None = None


@dataclass
class _Writer:
    """Collects a chain; `fits` turns false where the kernel has no room."""

    line: list[str] = field(default_factory=list)
    tables: list[F32] = field(default_factory=list)
    stream_in: list[str] = field(default_factory=list)
    stream_out: list[str] = field(default_factory=list)
    bits: list[str] = field(default_factory=list)
    fits: bool = True

    def table(self, values: F32) -> int:
        self.tables.append(np.ascontiguousarray(values, np.float32))
        return len(self.tables) - 1

    def write(self, micro: MicroOp) -> None:
        """One micro-operation; the spatial factor, where it has one, was applied before the line."""
        if isinstance(micro, Affine):
            self.affine(micro)
        elif isinstance(micro, Relu):
            self.line.append("RELU")
        elif isinstance(micro, Prelu):
            self.line.append(f"PRELU({self.table(micro.slope)})")
        elif isinstance(micro, Hardtanh):
            low, high = (int(np.float32(bound).view(np.uint32)) for bound in (micro.low, micro.high))
            self.line.append(f"HARDTANH({low}u, {high}u)")
        elif isinstance(micro, AddValue):
            self.line.append(f"ADD({len(self.stream_in)})")
            self.stream_in.append(micro.value)
        elif isinstance(micro, MulValue):
            name = "MUL_PIXEL" if micro.per_pixel else "MUL"
            self.line.append(f"{name}({len(self.stream_in)})")
            self.stream_in.append(micro.value)
        elif isinstance(micro, StoreFloat):
            self.line.append(f"STORE({len(self.stream_out)})")
            self.stream_out.append(micro.value)
        elif isinstance(micro, StoreBits):
            self.sign(micro, len(self.bits))
            self.bits.append(micro.value)

    def affine(self, micro: Affine, prefix: str = "") -> None:
        """A factor and a summand a channel; `prefix` names the value they are for (none: the main one)."""
        if micro.mult is not None and micro.add is not None:
            self.line.append(f"{prefix}AFFINE({self.table(micro.mult)}, {self.table(micro.add)})")
        elif micro.mult is not None:
            self.line.append(f"{prefix}SCALE({self.table(micro.mult)})")
        elif micro.add is not None:
            self.line.append(f"{prefix}SHIFT({self.table(micro.add)})")

    def sign(self, micro: StoreBits, place: int) -> None:
        flip = np.where(micro.flip != 0, np.float32(-1), np.float32(1)).astype(np.float32)
        if (flip > 0).all():
            self.line.append(f"SIGN({place}, {self.table(micro.threshold)})")
        else:
            with np.errstate(invalid="ignore"):
                row = self.table(flip * micro.threshold)
            self.line.append(f"SIGN_FLIP({place}, {row}, {self.table(-flip)})")

    def room(self, streams_in: int, streams_out: int, signs: int) -> bool:
        return (
            self.fits
            and len(self.stream_in) <= streams_in
            and len(self.stream_out) <= streams_out
            and len(self.bits) <= signs
            and len(self.tables) <= MAX_TABLES
        )


def _same(a: Spatial | None, b: Spatial | None) -> bool:
    return a is b if a is None or b is None else bool(np.array_equal(a.dense(), b.dense()))


def _first_spatial(epilogue: tuple[MicroOp, ...]) -> tuple[bool, Spatial | None]:
    """The factor that may be multiplied into the dot product before the line runs: (whether the line
    allows it, the factor). Everything that sees the bare dot product must want the same one."""
    wanted: list[Spatial | None] = []
    bare = True
    for micro in epilogue:
        if bare and isinstance(micro, StoreBits):
            wanted.append(micro.spatial)
        elif bare:
            wanted.append(micro.spatial if isinstance(micro, Affine) else None)
            bare = bare and isinstance(micro, StoreFloat)
        elif isinstance(micro, StoreBits | Affine) and micro.spatial is not None:
            return False, None
    first = wanted[0] if wanted else None
    return all(_same(first, other) for other in wanted), first


def conv_chain(step: Step, pool: Step | None, side: Step | None) -> Chain | None:
    """The chain of a binary convolution, or None where the kernel has no such line."""
    allowed, spatial = _first_spatial(step.epilogue)
    if not allowed or any(
        isinstance(m, PLAIN_ONLY) for s in (step, pool) if s is not None for m in s.epilogue
    ):
        return None
    writer = _Writer()
    side_spatial: Spatial | None = None
    for micro in step.epilogue:
        if side is not None and isinstance(micro, AddValue) and micro.value == stored_values(side)[0]:
            affine = side.epilogue[0]
            if isinstance(affine, Affine):
                side_spatial = affine.spatial
                writer.affine(affine, "SIDE_")
            writer.line.append("SIDE_ADD")
        else:
            writer.write(micro)
    line, pooled_bits = " ".join(writer.line), None
    if pool is not None:
        writer.line = []
        signs = 0
        for micro in pool.epilogue:
            if isinstance(micro, StoreBits):
                if micro.spatial is not None:
                    return None
                writer.sign(micro, 2)
                pooled_bits = micro.value
                signs += 1
            elif isinstance(micro, AddValue | MulValue) or (isinstance(micro, Affine) and micro.spatial):
                return None
            else:
                writer.write(micro)
        if signs > 1:
            return None
    if not writer.room(2, 2, 2):
        return None
    return Chain(
        line,
        tuple(writer.tables),
        tuple(writer.stream_in),
        tuple(writer.stream_out),
        tuple(writer.bits),
        spatial,
        " ".join(writer.line) if pool is not None else "",
        pooled_bits,
        side_spatial,
    )


def stored_values(step: Step) -> tuple[str, ...]:
    """The values that a step writes as floats."""
    return tuple(micro.value for micro in step.epilogue if isinstance(micro, StoreFloat))


def stem_chain(step: Step, pool: Step) -> tuple[Chain, npt.NDArray[np.bool_]] | None:
    """The chain of a first layer with its max pool, and which filters are to be taken with the other sign.

    Pooling the sums themselves is right where everything between them and the pool is increasing; a first
    factor may be negative, its sign goes into the filter: (-a)*(-b) is a*b in every bit. The first two rows,
    the sum's rest and the filters' step, are filled in with the filters."""
    channels = step.shape[0]
    micros = list(step.epilogue[:-1])
    writer = _Writer()
    turned = np.zeros(channels, bool)
    writer.table(np.zeros(channels, np.float32))
    writer.line.append(f"SCALE({writer.table(np.ones(channels, np.float32))})")
    if step.bias is not None:
        writer.line.append(f"SHIFT({writer.table(step.bias)})")
    elif micros and isinstance(micros[0], Affine) and micros[0].spatial is None:
        first = micros.pop(0)
        assert isinstance(first, Affine)
        if first.mult is not None:
            turned = np.asarray(first.mult) < 0
            first = Affine(mult=np.abs(np.asarray(first.mult, np.float32)), add=first.add)
        writer.write(first)
    for micro in micros:
        rising = isinstance(micro, Relu | Hardtanh) or (
            isinstance(micro, Prelu) and bool((micro.slope >= 0).all())
        )
        if isinstance(micro, Affine) and micro.spatial is None:
            rising = micro.mult is None or bool((micro.mult >= 0).all())
        if not rising:
            return None
        writer.write(micro)
    for micro in pool.epilogue:
        if isinstance(micro, StoreBits | Affine) and micro.spatial is not None:
            return None
        writer.write(micro)
    if not writer.room(1, 1, 2) or any(isinstance(m, MulValue) for m in pool.epilogue):
        return None
    chain = Chain(
        " ".join(writer.line),
        tuple(writer.tables),
        tuple(writer.stream_in),
        tuple(writer.stream_out),
        tuple(writer.bits),
    )
    return chain, turned
