"""The bit layout, and the contract that ties sign, packing and the dot product together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xnorpp.runtime.format.bits import (
    pack_bits,
    pack_conv_weight,
    pack_linear_weight,
    packed_width,
    popcount_dot,
    tail_is_zero,
    unpack_bits,
    unpack_conv_weight,
)


@given(st.integers(1, 200), st.integers(0, 2**32 - 1))
def test_pack_and_unpack(count: int, seed: int) -> None:
    positive = np.random.default_rng(seed).integers(0, 2, (3, count)).astype(bool)
    packed = pack_bits(positive)
    assert packed.shape == (3, packed_width(count))
    assert np.array_equal(unpack_bits(packed, count), np.where(positive, 1, -1))
    assert tail_is_zero(packed, count)
    for index in range(count):
        assert ((packed[:, index // 8] >> (index % 8)) & 1 == positive[:, index]).all()


@given(st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_dot_needs_no_mask(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, w = rng.choice([-1, 1], (2, 4, count))
    assert np.array_equal(popcount_dot(pack_bits(a > 0), pack_bits(w > 0), count), (a * w).sum(-1))


def test_weights_keep_channels_together() -> None:
    weight = np.random.default_rng(0).standard_normal((5, 11, 3, 2))
    packed = pack_conv_weight(weight)
    assert packed.shape == (5, 3, 2, 2)
    assert np.array_equal(unpack_conv_weight(packed, 11), np.where(weight > 0, 1, -1))
    assert pack_linear_weight(weight[:, :, 0, 0]).shape == (5, 2)
    assert pack_conv_weight(np.zeros((1, 1, 1, 1)))[0, 0, 0, 0] == 0  # sign(0) = -1 is bit 0


def test_tails_are_noticed() -> None:
    assert not tail_is_zero(np.array([0x10], np.uint8), 4)
    assert tail_is_zero(np.array([0xFF], np.uint8), 8)


def test_wrong_axes() -> None:
    with pytest.raises(ValueError, match="4"):
        pack_conv_weight(np.zeros((2, 2)))
    with pytest.raises(ValueError, match="2"):
        pack_linear_weight(np.zeros((2, 2, 1, 1)))
