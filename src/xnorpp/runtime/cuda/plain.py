"""The launches of plain.cu: any step of a plan, one thread for eight channels of a pixel; and of real_conv.cu
for real convolutions that are worth its tiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from xnorpp.runtime.cuda import operations
from xnorpp.runtime.cuda import real as cuda_real
from xnorpp.runtime.cuda.fuse import Unit
from xnorpp.runtime.cuda.launch import Array, Caller, Constant, Kernel, Launch, Local, by_pixel, extent
from xnorpp.runtime.cuda.layout import BitsLayout, pack_units
from xnorpp.runtime.cuda.operations import PRODUCERS
from xnorpp.runtime.cuda.source import MAX_STAGES, STAGES, PlainArguments
from xnorpp.runtime.format.program import INPUT, Program, ProgramError
from xnorpp.runtime.plan import (
    SPREADS,
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
    Spatial,
    Step,
    StoreBits,
    StoreFloat,
)
from xnorpp.runtime.reference import normalise
from xnorpp.runtime.reference.curves import CURVES
from xnorpp.runtime.stem import filters_of

THREADS = 128
FEW = 8  # images up to which a linear layer is shared out by inputs, not by images

# The kernel in plain.cu of each producer of operation set 1, and of a step that begins with an epilogue.
ENTRY = {"pointwise": "pointwise", **operations.ENTRY}
_FUNCTIONS = ("add", "sub", "mul", "div")
_CURVES = tuple(CURVES)
_ONE_BIT = ("binary_conv2d", "binary_linear")

At = Callable[[str], Local | Caller]


class Maker(Protocol):
    """What a launch needs of the builder."""

    program: Program
    bits: Mapping[str, tuple[BitsLayout, bool]]
    halves: frozenset[str]
    taker: Step | None

    def keep(self, key: str, make: Callable[[], Array]) -> Constant: ...

    def positive(self, step: Step) -> npt.NDArray[np.bool_]: ...


def plain_ways(maker: Maker, unit: Unit, images: int, processors: int, shared_limit: int) -> list[str]:
    """What a step could run with, best guess first: tiles where they keep half the multiprocessors busy."""
    step = unit.step
    if step.kind not in ENTRY and step.kind not in PRODUCERS:
        raise ProgramError(f"{unit.name}: the GPU engine has no operation {step.kind!r}; use device='cpu'")
    if ENTRY.get(step.kind) != "real_conv":
        return ["plain"]
    channels, window = maker.program.values[step.source].shape[0], _window(step)
    piece = cuda_real.piece(channels, int(window["kw"]))
    if window.get("groups", 1) != 1 or piece is None or cuda_real.shared_bytes(piece) > shared_limit:
        return ["plain"]
    busy = 2 * cuda_real.blocks(images, extent(step.shape)) >= processors
    return ["tiled", "plain"] if busy else ["plain", "tiled"]


def plain_launch(
    maker: Maker, unit: Unit, index: int, images: int, at: At, from_bytes: bool, way: str = "plain"
) -> Launch:
    step = unit.step
    c, h, w = extent(maker.program.values[step.source].shape)
    oc, oh, ow = extent(step.shape)
    stages = [stage for micro in step.epilogue for stage in _stages(maker, step, micro, at)]
    if len(stages) > MAX_STAGES:
        raise ProgramError(
            f"{unit.name}: {len(stages)} operations follow one another; at most {MAX_STAGES} fit"
        )
    arguments: dict[str, Any] = {
        "source": at(step.source), "images": images, "c": c, "h": h, "w": w, "oc": oc, "oh": oh, "ow": ow,
        "kh": 1, "kw": 1, "sy": 1, "sx": 1, "dy": 1, "dx": 1, "groups": 1,
        "stages": len(stages), "stage": tuple(stages),
    }  # fmt: skip
    whole = from_bytes and maker.taker is not None and step.index == maker.taker.index
    arguments |= _source(maker, step, (c, h, w), from_bytes, whole)
    threads, shared = THREADS, 16
    units = -(-oc // 64)
    blocks = -(-images * oh * ow * units * 8 // THREADS)
    along = step.op is not None and "axis" in step.op.attrs  # a softmax that is not of a vector
    if step.kind in PRODUCERS and (step.kind not in ENTRY or along):
        producer = PRODUCERS[step.kind]
        arguments |= {"operand": _operands(maker, step, at), **producer.arguments(maker, step)}
        kernel = Kernel("", (), producer.entry, threads, shared, producer.kernels)
        return Launch(unit.name, kernel, PlainArguments, arguments, blocks, unit=index, images=images)
    arguments |= _window(step)
    arguments |= _image_weights(maker, step) if whole else _weights(maker, step)
    entry = "image_conv" if whole else ENTRY[step.kind]
    if entry == "global_mean":
        threads, blocks = 32, -(-images * units // 2)
    elif entry == "linear" and images <= FEW:
        entry, blocks, shared = "linear_few", images * units * 8, THREADS // 32 * 8 * 4
    elif entry == "linear":
        entry, blocks, threads, shared = "linear_many", -(-images // 32) * units, 128, 2 * 64 * (32 + 64) * 4
    kernel = Kernel("plain.cu", (), entry, threads, shared)
    if entry == "real_conv" and way == "tiled":
        kernel, blocks = cuda_real.kernel(arguments, stages), cuda_real.blocks(images, (oc, oh, ow))
    return Launch(unit.name, kernel, PlainArguments, arguments, blocks, unit=index, images=images)


def _operands(maker: Maker, step: Step, at: At) -> tuple[dict[str, Any], ...]:
    """The further inputs of a producer."""
    found = []
    for name in step.operands:
        values = maker.program.values  # the builder's copy of the input is none of the program's values
        c, h, w = extent(values.get(name, values[INPUT]).shape)
        found.append({"data": at(name), "c": c, "pixels": h * w, "half": int(name in maker.halves)})
    return tuple(found)


def _place(layout: BitsLayout) -> dict[str, int]:
    return {
        "pitch": layout.pitch, "row": layout.row, "halo": layout.halo, "rows": layout.rows,
        "pair": int(layout.pair),
    }  # fmt: skip


def _source(
    maker: Maker, step: Step, shape: tuple[int, int, int], from_bytes: bool, whole: bool
) -> dict[str, Any]:
    """How the source is walked: floats as [row][pixel][channel], the caller's as they came."""
    c, h, w = shape
    if step.source in maker.bits:
        return {"place": _place(maker.bits[step.source][0])}
    steps = (h * w * c, w * c, c, 1)
    found: dict[str, Any] = {}
    if whole:
        pass  # bytes as they are
    elif step.source == INPUT and from_bytes:
        found["table"] = maker.keep("input.table", lambda: _byte_table(maker.program))
    elif step.source in maker.halves:
        found["half"] = 1
    elif step.source == INPUT:
        steps = (c * h * w, w, 1, h * w)
    names = ("image_step", "row_step", "pixel_step", "channel_step")
    return found | dict(zip(names, steps, strict=True))


def _byte_table(program: Program) -> Array:
    """What each byte of an image stands for, [c][256]."""
    c = program.input_shape[0]
    ramp = np.broadcast_to(np.arange(256, dtype=np.uint8)[None, :, None, None], (1, 256, 1, c))
    return normalise(program, ramp)[0, :, :, 0]


def _window(step: Step) -> dict[str, int | float]:
    if step.op is None:
        return {}
    a = step.op.attrs
    if step.kind == "pad2d":
        return {
            "dy": a["padding"][0],
            "py": a["padding"][2],
            "px": a["padding"][4],
            "value": float(a["value"]),
        }
    found: dict[str, int | float] = {}
    if step.weight is not None and step.weight.ndim == 4:
        kernel = step.window
        found |= {"kh": int(kernel[0]), "kw": int(kernel[1])}
    for key, names in (
        ("kernel", ("kh", "kw")), ("stride", ("sy", "sx")), ("padding", ("py", "px")),
        ("dilation", ("dy", "dx")),
    ):  # fmt: skip
        if key in a:
            found |= {names[0]: a[key][0], names[1]: a[key][1]}
    found |= {key: a[key] for key in ("groups", "pad_value") if key in a}
    found["include"] = int(a.get("count_include_pad", False))
    return found


def _weights(maker: Maker, step: Step) -> dict[str, Constant]:
    if step.weight is None:
        return {}
    key = f"{step.index}.plain"
    if step.kind in _ONE_BIT:
        return {
            "weight": maker.keep(key, lambda: _bit_weights(maker, step)),
            "range": maker.keep(f"{key}.range", lambda: _word_range(maker, step)),
        }
    found = {"weight": maker.keep(key, lambda: _real_weights(maker, step))}
    if step.bias is not None:
        bias = step.bias
        found["bias"] = maker.keep(f"{key}.bias", lambda: bias)
    return found


def _image_weights(maker: Maker, step: Step) -> dict[str, Constant]:
    """Whole-numbered filters [tap][channel, then the mean][filter], filled up to a multiple of 64."""
    key = f"{step.index}.whole"
    filters = filters_of(maker.program, step)

    def taps() -> npt.NDArray[np.int32]:
        o, c, kh, kw = filters.taps.shape
        filled = np.zeros((kh * kw, c + 1, -(-o // 64) * 64), np.int32)
        filled[:, :c, :o] = filters.taps.transpose(2, 3, 1, 0).reshape(kh * kw, c, o)
        filled[:, c, :o] = filters.mean.transpose(1, 2, 0).reshape(kh * kw, o)
        return filled

    found = {
        "weight": maker.keep(key, taps),
        "range": maker.keep(f"{key}.rest", lambda: filters.rest),
        "factor": maker.keep(f"{key}.factor", lambda: filters.step),
    }
    if step.bias is not None:
        bias = step.bias
        found["bias"] = maker.keep(f"{key}.bias", lambda: bias)
    return found


def _real_weights(maker: Maker, step: Step) -> npt.NDArray[np.float32]:
    """[tap][channel of the group][filter], filters filled up to a multiple of 64."""
    assert step.weight is not None
    if step.packed:
        weight = np.where(maker.positive(step), np.float32(1), np.float32(-1))
    else:
        weight = step.weight if step.weight.ndim == 4 else step.weight[:, :, None, None]
    o, c, kh, kw = weight.shape
    filled = np.zeros((kh * kw, c, -(-o // 64) * 64), np.float32)
    filled[:, :, :o] = weight.transpose(2, 3, 1, 0).reshape(kh * kw, c, o)
    return filled


def _group_mask(maker: Maker, step: Step) -> npt.NDArray[np.bool_]:
    """(group, channel): whether the channel is the group's."""
    assert step.op is not None
    c, groups = maker.program.values[step.source].shape[0], step.op.attrs.get("groups", 1)
    return np.repeat(np.eye(groups, dtype=bool), c // groups, axis=1)


def _bit_weights(maker: Maker, step: Step) -> npt.NDArray[np.uint32]:
    """[tap][word][filter] with each filter's bits at its group's channels, then [word][group] of masks."""
    positive, mask = maker.positive(step), _group_mask(maker, step)
    o, fan, kh, kw = positive.shape
    groups, c = mask.shape
    spread = np.zeros((o, kh, kw, c), bool)
    for group in range(groups):
        rows = slice(group * (o // groups), (group + 1) * (o // groups))
        spread[rows, :, :, group * fan : (group + 1) * fan] = np.moveaxis(positive[rows], 1, 3)
    words = pack_units(spread).reshape(o, kh * kw, -1)
    filled = np.zeros((kh * kw, words.shape[2], -(-o // 64) * 64), np.uint32)
    filled[:, :, :o] = words.transpose(1, 2, 0)
    masks = pack_units(mask).reshape(groups, -1).T
    return np.concatenate([filled.ravel(), np.ascontiguousarray(masks).ravel()])


def _word_range(maker: Maker, step: Step) -> npt.NDArray[np.int32]:
    """First and last word of a pixel that holds channels of each group."""
    mask = _group_mask(maker, step)
    words = pack_units(mask).reshape(mask.shape[0], -1) != 0
    last = words.shape[1] - 1 - words[:, ::-1].argmax(axis=1)
    return np.stack([words.argmax(axis=1), last], axis=1).astype(np.int32)


def _factor(maker: Maker, key: str, spatial: Spatial) -> tuple[str, Constant]:
    if spatial.full is not None:
        return "full", maker.keep(f"{key}.full", lambda: by_pixel(spatial))
    return "map", maker.keep(f"{key}.map", spatial.dense)


def _offset(micro: Offset, step: Step) -> npt.NDArray[np.float32]:
    """A constant summand as [pixel][channel]."""
    return np.moveaxis(np.broadcast_to(micro.constant, micro.shape), 0, -1).reshape(-1, step.shape[0])


def _stages(maker: Maker, step: Step, micro: MicroOp, at: At) -> list[dict[str, Any]]:
    """One micro-operation as stages of plain.cu."""
    place = next(i for i, other in enumerate(step.epilogue) if other is micro)
    key = f"{step.index}.{place}"

    def stage(kind: str, **more: Any) -> dict[str, Any]:
        return {"kind": STAGES.index(kind), **more}

    if isinstance(micro, Affine):
        found = []
        if micro.spatial is not None:
            kind, factor = _factor(maker, key, micro.spatial)
            found.append(stage(kind, a=factor))
        rows = {
            kind: maker.keep(f"{key}.{kind}", lambda row=row: row)  # type: ignore[misc]
            for kind, row in (("mult", micro.mult), ("shift", micro.add))
            if row is not None
        }
        if len(rows) == 2:
            return [*found, stage("affine", a=rows["mult"], flip=rows["shift"])]
        return [*found, *(stage(kind, a=row) for kind, row in rows.items())]
    if isinstance(micro, Relu):
        return [stage("relu")]
    if isinstance(micro, Prelu):
        return [stage("prelu", a=maker.keep(f"{key}.slope", lambda: micro.slope))]
    if isinstance(micro, Hardtanh):
        return [stage("hardtanh", low=micro.low, high=micro.high)]
    if isinstance(micro, AddValue):
        return [stage("add", a=at(micro.value), half=int(micro.value in maker.halves))]
    if isinstance(micro, MulValue):
        kind = "mul_pixel" if micro.per_pixel else "mul"
        return [stage(kind, a=at(micro.value), half=int(micro.value in maker.halves))]
    if isinstance(micro, Curve):
        return [stage("curve", which=_CURVES.index(micro.function), low=micro.alpha)]
    if isinstance(micro, Offset):
        return [stage("offset", a=maker.keep(f"{key}.offset", lambda: _offset(micro, step)))]
    if isinstance(micro, Combine):
        which = 4 * SPREADS.index(micro.spread) + _FUNCTIONS.index(micro.function)
        return [stage("combine", a=at(micro.value), which=which, half=int(micro.value in maker.halves))]
    if isinstance(micro, StoreFloat):
        return [stage("store", out=at(micro.value), half=int(micro.value in maker.halves))]
    assert isinstance(micro, StoreBits)
    sign = stage("sign", place=_place(maker.bits[micro.value][0]), out=at(micro.value))
    sign["a"] = maker.keep(f"{key}.threshold", lambda: micro.threshold)
    if micro.flip.any():
        sign["flip"] = maker.keep(f"{key}.flip", lambda: micro.flip.astype(np.float32))
    if micro.spatial is not None:
        kind, factor = _factor(maker, key, micro.spatial)
        sign[kind] = factor
    return [sign]
