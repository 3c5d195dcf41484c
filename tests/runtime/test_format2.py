"""What format version 2 adds: encodings, outputs, inputs of any rank and size, and a stricter reader."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from random_programs import Builder, random_program
from test_program import remake

from xnorpp.runtime import load
from xnorpp.runtime.cpu import CpuModel, available_isas
from xnorpp.runtime.format.bits import pack_conv_weight, pack_linear_weight
from xnorpp.runtime.format.program import Program, ProgramError, encode, read
from xnorpp.runtime.reference import run

GEOMETRY = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1}


def small(size: tuple[int, int] = (9, 7), **options: Any) -> Program:
    """A stem, a binary convolution, and a classifier on the mean of all pixels: no tensor knows the size."""
    rng = np.random.default_rng(3)
    b = Builder((3, *size))
    stem = {"weight": rng.standard_normal((20, 3, 3, 3)).astype("f4")}
    x = b.emit("conv2d", "input", attrs=GEOMETRY, tensors=stem)
    weight = {"weight": pack_conv_weight(rng.standard_normal((24, 20, 3, 3)))}
    dot = b.emit("binary_conv2d", b.emit("sign", x), attrs={**GEOMETRY, "pad_value": 0}, tensors=weight)
    dense = b.emit("affine", dot, tensors={"mult": rng.standard_normal(24).astype("f4")})
    flat = b.emit("flatten", b.emit("global_avg_pool", b.emit("relu", dense)))
    logits = b.emit("linear", flat, tensors={"weight": rng.standard_normal((5, 24)).astype("f4")})
    if "more_outputs" in options:  # "dense" stands for the value before the classifier
        options["more_outputs"] = dict.fromkeys(options["more_outputs"], dense)
    return b.program(logits, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4), **options)


def pruned(program: Program, output: str) -> Program:
    """What one value needs."""
    needed, ops = {output}, []
    for op in reversed(program.ops):
        if op.output in needed:
            needed.update(op.inputs)
            ops.append(op)
    names = {name for op in ops for name in op.tensors.values()}
    tensors = {name: tensor for name, tensor in program.tensors.items() if name in names}
    return replace(program, ops=tuple(reversed(ops)), output=output, tensors=tensors)


def images(program: Program, count: int = 3) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    c, *rest = program.input_shape
    floats = rng.standard_normal((count, c, *rest)).astype(np.float32)
    return [floats, rng.integers(0, 256, (count, *rest, c), dtype=np.uint8)]


def close(a: Any, b: Any) -> None:
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-4 * max(1.0, float(np.abs(b).max(initial=0))))


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("seed", range(40))
def test_several_outputs(seed: int, isa: str) -> None:
    """Any float value may be an output: in the middle of a step, dense or flat, read by later operations."""
    program = random_program(seed, length=10)
    floats = [name for name, value in program.values.items() if value.kind == "f32" and name != "input"]
    chosen = np.random.default_rng(seed).choice(floats, min(4, len(floats)), replace=False)
    more = {f"out {name}": str(name) for name in chosen if name != program.output}
    several = read(encode(replace(program, more_outputs=more)))
    assert several.outputs == {"output": program.output, **more}
    model = CpuModel(several, threads=1 + seed % 2, isa=isa)
    for x in images(several):
        answers = model(x) if more else {"output": model(x)}
        assert answers.keys() == several.outputs.keys()
        for name, value in several.outputs.items():
            alone = CpuModel(pruned(program, value), threads=1, isa=isa)
            np.testing.assert_array_equal(answers[name], alone(x))


def test_outputs_by_name_equal_the_reference() -> None:
    program = small(output_name="logits", more_outputs={"map": "dense", "again": "dense"}, temperature=2.0)
    again = read(encode(program))
    assert list(again.outputs) == ["logits", "map", "again"]
    assert again.temperature == 2.0
    for x in images(program):
        expected, answers = run(again, x), load(again)(x)
        assert answers["map"].shape == (3, 24, 9, 7)
        for name in again.outputs:
            close(answers[name], expected[name])
        assert load(again)(x[:0])["map"].shape == (0, 24, 9, 7)


@pytest.mark.parametrize("shape", [(37,), (5, 11), (4, 3, 2, 5)])
def test_inputs_of_other_ranks(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    b = Builder(shape)
    scale = {role: rng.standard_normal(shape[0]).astype("f4") for role in ("mult", "add")}
    x = b.emit("relu", b.emit("affine", "input", tensors=scale))
    flat = b.emit("flatten", b.emit("add", x, "input"))
    count = int(np.prod(shape))
    weight = {"weight": pack_linear_weight(rng.standard_normal((6, count)))}
    dot = b.emit("affine", b.emit("binary_linear", b.emit("sign", flat), tensors=weight))
    program = read(encode(b.program(dot, mean=(0.25,) * shape[0], more_outputs={"x": x})))
    assert program.input_shape == shape
    for batch in images(program, 2):
        expected, answers = run(program, batch), load(program)(batch)
        assert answers["x"].shape == (2, *shape)
        for name in answers:
            close(answers[name], expected[name])
    with pytest.raises(ValueError, match="after the batch axis is needed"):
        load(program)(np.zeros((2, *shape, 1), np.float32))


def test_any_height_and_width() -> None:
    program = read(encode(small(free_axes=(1, 2), more_outputs={"map": "dense"})))
    assert program.free_axes == (1, 2)
    assert program.input_shape == (3, 9, 7)
    model = load(program)
    for size in ((9, 7), (4, 5), (17, 30), (1, 1), (6, 6), (5, 5), (9, 7), (4, 5)):
        fixed = small(size, more_outputs={"map": "dense"})
        for x in images(fixed):
            expected, answers = load(fixed)(x), model(x)
            assert answers["map"].shape == (3, 24, *size)
            for name in expected:
                np.testing.assert_array_equal(answers[name], expected[name])
                close(run(program, x)[name], expected[name])
    assert len(model.engine._sizes) <= 4  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="of which height and width may be others"):
        model(np.zeros((1, 4, 9, 7), np.float32))
    with pytest.raises(ValueError, match="of which height and width may be others"):
        model(np.zeros((1, 3, 0, 7), np.float32))


def test_a_size_that_does_not_fit_is_refused_in_one_sentence() -> None:
    b = Builder((2, 8, 8))
    pool = {"kernel": [3, 3], "stride": [1, 1], "padding": [0, 0], "ceil_mode": False}
    y = b.emit("flatten", b.emit("max_pool2d", "input", attrs=pool))
    weight = np.ones((3, 72), np.float32)
    program = b.program(b.emit("linear", y, tensors={"weight": weight}), free_axes=(1,))
    with pytest.raises(ProgramError, match=r"does not fit the 2x8 input"):
        load(program)(np.zeros((1, 2, 2, 8), np.float32))
    with pytest.raises(ProgramError, match=r"`weight` has shape \(3, 72\); \(3, 84\) is needed"):
        load(program)(np.zeros((1, 2, 9, 8), np.float32))


def test_a_scale_that_is_bound_to_a_size_does_not_allow_any() -> None:
    b = Builder((2, 4, 4))
    y = b.emit("affine", "input", tensors={"map": np.ones((4, 4), np.float32)})
    with pytest.raises(ProgramError, match="`map` is bound to one size"):
        b.program(y, free_axes=(1, 2))


def test_constants_of_several_axes_allow_any_size_where_they_are_for_no_places() -> None:
    b = Builder((2, 4, 4))
    places = b.emit("offset", "input", tensors={"value": np.ones((1, 4, 4), np.float32)})
    with pytest.raises(ProgramError, match="`value` is bound to one size"):
        b.program(places, free_axes=(1, 2))
    b = Builder((2, 4, 4))
    pixels = b.emit("reshape_to", "input", "input", attrs={"shape": [2, 1, -1]})
    queries = b.emit("constant", "input", tensors={"value": np.arange(6, dtype=np.float32).reshape(2, 3, 1)})
    seen = b.emit("matmul", queries, pixels)
    value = np.arange(6, dtype=np.float32).reshape(2, 3, 1)
    program = b.program(b.emit("offset", seen, tensors={"value": value}), free_axes=(1, 2))
    x = np.random.default_rng(0).standard_normal((1, 2, 5, 7)).astype(np.float32)
    wanted = value * x.reshape(1, 2, 1, 35) + value
    np.testing.assert_allclose(load(program)(x), wanted, rtol=1e-6)


def test_what_version_1_cannot_say_is_refused() -> None:
    for option in ({"temperature": 1.0}, {"free_axes": (1,)}, {"more_outputs": {"m": "dense"}}):
        with pytest.raises(ProgramError, match="use version 2"):
            small(version=1, **option)


def test_both_versions_give_the_same() -> None:
    for seed in range(30):
        old, new = (replace(random_program(seed), version=version) for version in (1, 2))
        assert json.loads(text(encode(old)))["output"] == old.output
        a, b = read(encode(old)), read(encode(new))
        assert (a.version, b.version) == (1, 2)
        assert [(name, e.name) for name, e in a.encodings.items()] == [
            (name, e.name) for name, e in b.encodings.items()
        ]
        for x in images(old):
            np.testing.assert_array_equal(load(a)(x), load(b)(x))


def text(blob: bytes) -> str:
    length = int.from_bytes(blob[:8], "little")
    return str(json.loads(blob[8 : 8 + length])["__metadata__"]["program"])


def test_every_tensor_states_its_encoding() -> None:
    rows = json.loads(text(encode(small())))["tensors"]
    assert {row["encoding"] for row in rows.values()} == {"float32", "bits"}
    assert [24, 3, 3, 20] in [row.get("shape") for row in rows.values()]


def _bits(change: Callable[[dict[str, Any]], Any]) -> Any:
    """`change(row)` of the encoding of the packed weight."""

    def apply(header: Any, program: Any) -> None:
        change(next(row for row in program["tensors"].values() if row["encoding"] == "bits"))

    return apply


BROKEN: dict[str, tuple[Any, str]] = {
    "no encoding": (lambda h, p: p["tensors"].popitem(), "has no row in `tensors`"),
    "one too many": (lambda h, p: p["tensors"].__setitem__("x", {"encoding": "bits"}), "not in the file"),
    "reserved": (_bits(lambda row: row.__setitem__("encoding", "ternary")), "'ternary' is unknown"),
    "other type": (_bits(lambda row: row.__setitem__("encoding", "float32")), "does not fit the dtype"),
    "bytes": (
        _bits(lambda row: (row.clear(), row.__setitem__("encoding", "uint8"))),
        "one bit in U8 is needed",
    ),
    "no shape": (_bits(lambda row: row.pop("shape")), "`shape` must be a JSON array"),
    "other bytes": (_bits(lambda row: row.__setitem__("shape", [24, 3, 3, 40])), "does not fit the stored"),
    "other length": (
        _bits(lambda row: row.__setitem__("shape", [24, 3, 3, 19])),
        "has 19 bits along its last axis",
    ),
    "unknown key": (_bits(lambda row: row.__setitem__("scale", 1)), "unknown key 'scale'"),
    "opset": (lambda h, p: p.__setitem__("opset", 1000), "operation set 1000 is unknown"),
    "no opset": (lambda h, p: p.pop("opset"), "operation set null is unknown"),
    "unknown field": (lambda h, p: p.__setitem__("layout", "x"), "`program` has the unknown key 'layout'"),
    "unknown in an operation": (lambda h, p: p["ops"][0].__setitem__("x", 1), "unknown key 'x'"),
    "no outputs": (lambda h, p: p.__setitem__("outputs", []), "1 to 256 outputs"),
    "same name": (lambda h, p: p["outputs"].append(p["outputs"][0]), "two outputs have the name"),
    "empty name": (lambda h, p: p["outputs"][0].__setitem__("name", ""), "is empty"),
    "input as output": (lambda h, p: p["outputs"][0].__setitem__("value", "input"), "never made"),
    "temperature": (lambda h, p: p.__setitem__("temperature", -1), "`temperature` .* positive"),
    "null channels": (lambda h, p: p["input"].__setitem__("shape", [None, 9, 7]), "`shape`"),
    "no example": (
        lambda h, p: p["input"].__setitem__("shape", [3, None, 7]),
        "`example_shape` must be given",
    ),
    "no axes": (lambda h, p: p["input"].__setitem__("shape", []), "`shape`"),
    "too many axes": (lambda h, p: p["input"].__setitem__("shape", [1] * 9), "`shape`"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_say_what_is_wrong(name: str) -> None:
    change, reason = BROKEN[name]
    with pytest.raises(ProgramError, match=reason) as error:
        read(remake(encode(small()), change))
    assert "\n" not in str(error.value)


def test_numbers_and_names_of_json_are_kept() -> None:
    meta = {"a": [1, 2.5, -0.0, 1e-300, True, None, 'é\u2028\U0001f600\\"/'], "b": {"": {}}, "n": -(2**63)}
    program = replace(small(), meta=meta)
    again = read(encode(program))
    assert again.meta == meta
    assert [type(v) for v in again.meta["a"]] == [type(v) for v in meta["a"]]
    assert encode(again) == encode(program)


def test_a_program_can_be_pickled() -> None:
    program = read(encode(small(free_axes=(1, 2))))
    other = pickle.loads(pickle.dumps(program))
    x = images(program)[0]
    np.testing.assert_array_equal(load(other)(x), load(program)(x))
    assert encode(other) == encode(program)
