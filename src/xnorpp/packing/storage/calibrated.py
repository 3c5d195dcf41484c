"""int8 chosen by a calibration set: which layers, how their weights are rounded, and what it changes.

In a binary network the smallest change before a sign turns other signs further on, and with them the class of
a few images. So a layer is stored smaller only where the network gives the same answers, up to `tolerance`:
an accuracy cannot change by more than the answers do. A trained network is surer of its training images than
of others, and would show no change on them. So the answers to the means of two images count as well, which
change several times as often as those to images that it has not seen.

Rounding. Weights are rounded one input after the other, and what a rounded weight is off by is made up for
by those that follow, as far as their inputs are alike on the calibration images (Frantar et al., "GPTQ"; it
is the nearest-plane rule of `csrc/core/program/stem.h` with measured correlations). What is left of the mean
goes into the bias.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from xnorpp.packing.storage.recorded import check_classes, check_finite
from xnorpp.packing.storage.whole import (
    FINE_STEPS,
    STEPS,
    decides_signs,
    halved,
    is_large,
    quantise,
    quantise_fine,
    roles_of,
)
from xnorpp.runtime import load
from xnorpp.runtime.format.batch import check_input, join_inputs
from xnorpp.runtime.format.program import INPUT, VERSION, Op, Program
from xnorpp.runtime.reference.arrays import columns_of, pad_images
from xnorpp.runtime.reference.run import normalise
from xnorpp.runtime.stem import ROLES, add_byte_filters

Array = npt.NDArray[Any]
F64 = npt.NDArray[np.float64]

_BATCH = 64
_COLUMNS = 16384  # of inputs that correlations are measured with
_MOST_INPUTS = 8192  # of a filter, beyond which its weights are rounded one by one
_DAMPING = 0.01  # of the mean square of an input: what is not seen in the images is not made up for
_HEADROOM = 1.25  # of the largest input that was seen
_MOST_SUM = 2**31 - 1
_SAMPLES = 2048  # columns that the reach of 8-bit inputs is chosen by
_REACHES = np.linspace(0.3, 1.0, 15)  # parts of the largest input
_FEW_INPUTS = 16  # of a filter, for which rounding the input costs more than it saves


@dataclass(frozen=True)
class Observed:
    """The inputs of a layer on the calibration images, as columns of its filters (inputs, samples)."""

    columns: F64
    largest: float


def store_calibrated(program: Program, calibration: Any, tolerance: float) -> Program:
    """The program with real layers in int8 where the answers on the calibration images stay the same."""
    if not isinstance(tolerance, int | float) or not 0 <= tolerance <= 1:
        raise ValueError(f"`tolerance` (={tolerance!r}) must be between 0 and 1, a share of the answers")
    images, labels, mixed = _calibration(program, calibration)
    chosen, asked = program, np.concatenate([images, _mixed(images)]) if mixed else images
    before = _answers(chosen, asked)
    allowed = int(tolerance * before.size)
    layers: dict[str, str] = {}
    for op in _layers(program):
        seen = _observe(program, op, images)
        layers[op.name] = "as it was"
        for kind, candidate in _candidates(replace(chosen, version=VERSION), op, seen):
            if np.count_nonzero(_answers(candidate, asked) != before) <= allowed:
                chosen, layers[op.name] = candidate, kind
                break
    candidate = _small_vectors(chosen)
    if np.count_nonzero(_answers(candidate, asked) != before) <= allowed:
        chosen = candidate
    after = _answers(chosen, asked)
    report: dict[str, Any] = {
        "images": len(images), "tolerance": tolerance, "layers": layers,
        "same_answers": float(np.mean(after[: len(images)] == before[: len(images)])),
    }  # fmt: skip
    if mixed:
        report["same_answers_mixed"] = float(np.mean(after[len(images) :] == before[len(images) :]))
    if labels is not None:
        report["accuracy"] = [float(100 * np.mean(y[: len(images)] == labels)) for y in (before, after)]
    return replace(chosen, meta={**chosen.meta, "int8": report})


def _mixed(images: Array) -> Array:
    """The means of each image and another one."""
    others = np.roll(images, 1 + len(images) // 2, axis=0)
    if images.dtype == np.uint8:
        return ((images.astype(np.uint16) + others) // 2).astype(np.uint8)
    return np.asarray((images + others) / np.float32(2))


def _calibration(program: Program, given: Any) -> tuple[Array, Array | None, bool]:
    """Images, their classes where they were given, and whether two images have a mean: words have none."""
    count = len(program.meta.get("inputs") or ())
    mixed = program.meta.get("whole_numbers") is not True
    if count > 1:
        arrays, labels = _several(given, count)
        images, _ = join_inputs(program, arrays)
        mixed = mixed and all(array.dtype.kind == "f" for array in arrays)
    else:
        images, labels = given if isinstance(given, tuple) else (given, None)
        images = check_input(program, images)
    check_finite(images)
    if not len(images):
        raise ValueError("`calibration` has no images; some hundred of the training set are needed")
    if labels is None:
        return images, None, mixed
    labels = np.asarray(labels)
    if labels.shape != (len(images),) or len(program.values[program.output].shape) != 1:
        raise ValueError(
            f"`calibration` has classes of shape {labels.shape}; one for each of the {len(images)} images of "
            "a network with one number per class is needed"
        )
    check_classes(labels, program.values[program.output].shape[0])
    return images, labels, mixed


def _several(given: Any, count: int) -> tuple[list[Array], Any]:
    """The inputs for a model that takes `count` of them, and their classes where they were given."""
    labels = None
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], tuple | list):
        given, labels = given
    if not isinstance(given, tuple | list) or len(given) != count:
        raise ValueError(
            f"`calibration` must be a tuple of the {count} inputs that the model takes, or a pair of such a "
            "tuple and the classes"
        )
    return [np.asarray(array) for array in given], labels


def _run(program: Program, images: Array) -> Iterator[dict[str, Array]]:
    model = load(program)
    for first in range(0, len(images), _BATCH):
        found = model(images[first : first + _BATCH])
        yield found if isinstance(found, dict) else {program.output_name: found}


def _answers(program: Program, images: Array) -> Array:
    """The largest number of each output, everywhere; of outputs of one number whether it is positive."""
    found = []
    for outputs in _run(program, images):
        parts = [y.argmax(1) if y.shape[1] > 1 else y[:, 0] > 0 for y in outputs.values()]
        found.append(np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1))
    answers = np.concatenate(found)
    return answers[:, 0] if answers.shape[1] == 1 else answers


def _layers(program: Program) -> list[Op]:
    """Layers with weights that are worth rounding: those after the last sign first, then the largest."""
    count: dict[str, int] = {}
    for op in program.ops:
        for name in op.tensors.values():
            count[name] = count.get(name, 0) + 1
    roles = roles_of(program)
    found = []
    for op in program.ops:
        name = op.tensors.get("weight", "")
        if roles.get(name) != {"weight"} or count[name] > 1 or name in program.scales:
            continue
        if op.op in ("conv2d", "linear") and is_large(program.tensors[name]):
            found.append(op)
    size = {op.name: program.tensors[op.tensors["weight"]].size for op in found}
    return sorted(found, key=lambda op: (decides_signs(program, {op.tensors["weight"]}), -size[op.name]))


def _observe(program: Program, op: Op, images: Array) -> Observed:
    """The inputs of a layer: all of them for their largest, a sample of columns for their correlations."""
    source = op.inputs[0]
    weight = program.tensors[op.tensors["weight"]]
    if source == INPUT:
        batches: Iterator[Array] = iter([normalise(program, images)])
    else:
        part = replace(program, output=source, output_name="input", more_outputs={}, labels=None,
                       temperature=None, version=VERSION, meta={})  # fmt: skip
        batches = (found["input"] for found in _run(part, images))
    rng = np.random.default_rng(0)
    share = max(1, _COLUMNS // len(images))
    columns, largest = [], 0.0
    for x in batches:
        largest = max(largest, float(np.abs(x).max()))
        if weight.ndim == 2:
            columns.append(x.T)
            continue
        out = program.values[op.output].shape[1:]
        for image in pad_images(x, op.attrs["padding"], 0):
            flat = columns_of(
                image, weight.shape[2:], op.attrs["stride"], op.attrs["dilation"], (out[0], out[1])
            )
            pick = rng.choice(flat.shape[2], min(share, flat.shape[2]), replace=False)
            columns.append(flat[:, :, pick].reshape(-1, len(pick)))
    return Observed(np.concatenate(columns, axis=1).astype(np.float64), largest)


def _candidates(program: Program, op: Op, seen: Observed) -> Iterator[tuple[str, Program]]:
    """The program with one layer stored smaller, the smallest and fastest first."""
    weight = program.real(op, "weight")
    assert weight is not None
    whole, factor = quantise(weight)
    if op.attrs.get("groups", 1) == 1 and len(seen.columns) <= _MOST_INPUTS:
        whole = make_up(weight, factor.astype(np.float64), seen.columns)
    bias = _bias(program, op, weight, whole * _spread(factor, weight), seen)
    stored = _with_whole(program, op, whole, factor, bias)
    for kind, limit in (("int8, input int8", STEPS), ("int8, input rounded", FINE_STEPS)):
        rounded = _rounded_input(stored, op, whole, seen, limit)
        if rounded is not None:
            yield kind, rounded
    yield "int8", stored
    yield "int16", _with_whole(program, op, *quantise_fine(weight), None)


def make_up(weight: Array, factor: F64, columns: F64) -> npt.NDArray[np.int8]:
    """Whole numbers for the rows of `weight`, each input's rounding made up for by the inputs that follow."""
    rows = weight.reshape(len(weight), -1).astype(np.float64)
    square = columns @ columns.T / columns.shape[1]
    size = float(np.mean(np.diag(square)))
    square[np.diag_indices_from(square)] += _DAMPING * size if size > 0 else 1.0
    order = np.argsort(-np.diag(square), kind="stable")
    rows, square = rows[:, order], square[np.ix_(order, order)]
    passed = np.linalg.cholesky(np.linalg.inv(square)).T
    whole = np.empty_like(rows)
    for i in range(rows.shape[1]):
        whole[:, i] = np.clip(np.rint(rows[:, i] / factor), -STEPS, STEPS)
        off = (rows[:, i] - whole[:, i] * factor) / passed[i, i]
        rows[:, i + 1 :] -= off[:, None] * passed[i, i + 1 :]
    found = np.empty_like(whole)
    found[:, order] = whole
    return found.astype(np.int8).reshape(weight.shape)


def _spread(factor: Array, weight: Array) -> F64:
    """One number per output, to be multiplied with `weight`."""
    return factor.astype(np.float64).reshape(-1, *[1] * (weight.ndim - 1))


def _bias(program: Program, op: Op, weight: Array, stored: Array, seen: Observed) -> Array | None:
    """The bias with what rounding changes on the mean of the inputs; None where groups have inputs apart."""
    if op.attrs.get("groups", 1) != 1:
        return None
    change = (weight - stored).reshape(len(weight), -1) @ seen.columns.mean(axis=1)
    given = program.real(op, "bias")
    return np.asarray(change if given is None else given + change, np.float32)


def _with_whole(program: Program, op: Op, whole: Array, factor: Array, bias: Array | None) -> Program:
    """The program with whole numbers as the weight of one operation."""
    name = op.tensors["weight"]
    scale = f"{name}.scale"
    tensors = {**program.tensors, name: whole, scale: factor}
    changed = {"weight": name, **{role: used for role, used in op.tensors.items() if role != "weight"}}
    if bias is not None:
        changed["bias"] = f"{name}.bias"
        tensors[changed["bias"]] = bias
        given = op.tensors.get("bias")
        if given is not None and not any(
            given in other.tensors.values() for other in program.ops if other is not op
        ):
            del tensors[given]
    for role in ROLES:  # filters for the bytes of an image follow the new weights
        tensors.pop(changed.pop(role, ""), None)
    ops = tuple(replace(op, tensors=changed) if other == op else other for other in program.ops)
    return add_byte_filters(
        replace(program, ops=ops, tensors=tensors, scales={**program.scales, name: scale})
    )


def _rounded_input(program: Program, op: Op, whole: Array, seen: Observed, most: int) -> Program | None:
    """The program with an `int_conv2d` in place of a convolution, its input at most `most` steps."""
    if op.op != "conv2d" or op.inputs[0] == INPUT or op.attrs["groups"] != 1 or op.attrs["dilation"][1] != 1:
        return None
    sums = np.abs(whole.reshape(len(whole), -1).astype(np.int64)).sum(axis=1)
    if whole[0].size < _FEW_INPUTS or not seen.largest > 0:
        return None
    limit = int(min(most, _MOST_SUM // max(1, int(sums.max()))))
    reach = _reach(seen, limit) if most == STEPS else _HEADROOM * seen.largest
    steps = float(np.float32(limit / reach))
    if not 1e-15 <= steps <= 1e15:
        return None
    attrs = {**op.attrs, "steps": steps, "limit": limit}
    own = next(other for other in program.ops if other.output == op.output)
    changed = replace(own, op="int_conv2d", attrs=attrs)
    return replace(program, ops=tuple(changed if other is own else other for other in program.ops))


def _reach(seen: Observed, limit: int) -> float:
    """What few steps are best spread over: beyond it numbers are cut off, so that all others are nearer."""
    columns = seen.columns[:, :_SAMPLES]

    def off(reach: float) -> float:
        moved = np.clip(np.rint(columns * (limit / reach)), -limit, limit)
        return float(np.mean((moved * (reach / limit) - columns) ** 2))

    return float(min((seen.largest * share for share in _REACHES), key=off))


def _small_vectors(program: Program) -> Program:
    """The program with its other real numbers in float16, where that changes them by rounding alone."""
    taken = {*program.scales, *program.scales.values()}
    roles = roles_of(program)
    tensors = {
        name: halved(tensor, roles[name])
        if name in roles and name not in taken and tensor.dtype == np.float32
        else tensor
        for name, tensor in program.tensors.items()
    }
    return replace(program, tensors=tensors)
