"""Timing a layer: the programs are right and every row gets a number (which number is not tested)."""

from __future__ import annotations

import numpy as np
import pytest

from xnorpp.inspect import Geometry, Inspection, Layer, render, time_layers
from xnorpp.inspect.timing import one_layer
from xnorpp.runtime.reference import run

CONV = Geometry(5, 6, (7, 8), (4, 4), (3, 3), (2, 2), (1, 1))
LINEAR = Geometry(10, 3, (1, 1), (1, 1), linear=True)


def layers() -> tuple[Layer, ...]:
    return tuple(
        Layer(f"{state} {geometry.describe()}", state, "", geometry, bits, bits, 0, 0, 0)
        for geometry in (CONV, LINEAR)
        for state, bits in (("binary", 1), ("one-bit weights", 1), ("real", 32))
    )


@pytest.mark.parametrize("layer", layers(), ids=lambda layer: layer.name)
@pytest.mark.parametrize("real", [False, True])
def test_a_layer_alone_has_its_shape(layer: Layer, real: bool) -> None:
    geometry = layer.geometry
    program = one_layer(layer, real=real)
    x = (
        np.random.default_rng(0)
        .standard_normal((2, geometry.inputs, *geometry.input_size))
        .astype(np.float32)
    )
    expected = (2, geometry.outputs) if geometry.linear else (2, geometry.outputs, *geometry.output_size)
    assert run(program, x).shape == expected
    assert ("binary" in program.ops[-2 if len(program.ops) > 1 else 0].op) == (
        layer.state == "binary" and not real
    )


@pytest.mark.parametrize("against", ["torch", "xnorpp"])
def test_every_row_is_timed(against: str) -> None:
    found = time_layers(Inspection("two", layers()), isa="reference", rounds=1, repeat=1, against=against)
    assert all(layer.measured is not None and layer.measured.speedup > 0 for layer in found.layers)
    assert found.timed is not None
    assert ("torch" in found.timed) == (against == "torch")
    assert "measured" in render(found)
    assert "measured_speedup" in found.to_dict()["layers"][0]


def test_against_is_checked() -> None:
    with pytest.raises(ValueError, match="`against`"):
        time_layers(Inspection("none", ()), against="numpy")
