"""Convolutions of bits and of real numbers; fused ones are binary_conv.cu, stem.cu and real_conv.cu."""

from __future__ import annotations

from xnorpp.runtime.cuda.operations.producer import Producer

ENTRY = {"conv2d": "real_conv", "bitweight_conv2d": "real_conv", "binary_conv2d": "bit_conv"}
STAGES: tuple[str, ...] = ()
PRODUCERS: dict[str, Producer] = {}
