"""The text of a kernel: a file of kernels/ or a text of operations/ with a layer's numbers written above it;
and the argument structures."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path


@cache
def kernel_folder() -> Path:
    """The folder of the CUDA sources, beside this module."""
    folder = Path(__file__).resolve().parent / "kernels"
    if (folder / "device.cuh").is_file():
        return folder
    raise FileNotFoundError("the CUDA kernel sources are missing from this installation of xnorpp")


@cache
def _text(name: str, own: str = "") -> str:
    """A file, or without its name the text `own`, with its includes put in, each once."""
    seen: set[str] = set()

    def put_in(file: str) -> str:
        if file in seen:
            return ""
        seen.add(file)
        text = (kernel_folder() / file).read_text() if file else own
        if file == "device.cuh":  # the host build is for the tests
            text = re.sub(r'#ifdef XNORPP_HOST\n#include "host_device.h"\n#else\n', "", text)
            text = text.replace("#endif  // XNORPP_HOST\n", "")
        return re.sub(r'#include "(.+)"\n', lambda m: put_in(m.group(1)), text.replace("#pragma once\n", ""))

    return put_in(name)


def kernel_source(name: str, macros: Mapping[str, int | str], own: str = "") -> str:
    """The whole source of one kernel: of a file of kernels/, or of the text `own` where `name` is empty."""
    return "".join(f"#define {key} {value}\n" for key, value in macros.items()) + _text(name, own)


_Pointer = ctypes.c_void_p


class ConvArguments(ctypes.Structure):
    """`Arguments` of binary_conv.cu."""

    _fields_ = [
        ("input", _Pointer), ("weight", _Pointer), ("channel", _Pointer), ("constant", _Pointer), ("pixel",
        _Pointer),
        ("full", _Pointer), ("stream_in", _Pointer * 2), ("stream_out", _Pointer * 2), ("bits_out",
        _Pointer * 3),
        ("side", _Pointer), ("side_weight", _Pointer), ("side_constant", _Pointer),
        ("images", ctypes.c_int), ("tiles", ctypes.c_int),
    ]  # fmt: skip


class StemArguments(ctypes.Structure):
    """`StemArguments` of stem.cu."""

    _fields_ = [
        ("input", _Pointer), ("weight", _Pointer), ("channel", _Pointer), ("stream_in", _Pointer * 1),
        ("stream_out", _Pointer * 1), ("bits_out", _Pointer * 2), ("images", ctypes.c_int),
    ]  # fmt: skip


class BitsPlace(ctypes.Structure):
    """`BitsPlace` of stages.cuh."""

    _fields_ = [
        ("pitch", ctypes.c_int), ("row", ctypes.c_int), ("halo", ctypes.c_int), ("rows", ctypes.c_int),
        ("pair", ctypes.c_int),
    ]  # fmt: skip


class Stage(ctypes.Structure):
    """`Stage` of stages.cuh."""

    _fields_ = [
        ("kind", ctypes.c_int), ("low", ctypes.c_float), ("high", ctypes.c_float), ("place", BitsPlace),
        ("half", ctypes.c_int), ("which", ctypes.c_int), ("a", _Pointer),
        ("flip", _Pointer), ("map", _Pointer), ("full", _Pointer), ("out", _Pointer),
    ]  # fmt: skip


class Operand(ctypes.Structure):
    """`Operand` of stages.cuh."""

    _fields_ = [
        ("data", _Pointer), ("c", ctypes.c_int), ("pixels", ctypes.c_int), ("half", ctypes.c_int),
    ]  # fmt: skip


STAGES = (
    "mult",
    "shift",
    "affine",
    "map",
    "full",
    "relu",
    "prelu",
    "hardtanh",
    "add",
    "mul",
    "mul_pixel",
    "store",
    "sign",
    "curve",
    "offset",
    "combine",
)
MAX_STAGES = 32
NUMBERS = 32
_WINDOW = ("kh", "kw", "sy", "sx", "py", "px", "dy", "dx", "groups", "pad_value", "include")


class PlainArguments(ctypes.Structure):
    """`PlainArguments` of stages.cuh."""

    _fields_ = [
        ("source", _Pointer), ("table", _Pointer), ("weight", _Pointer), ("bias", _Pointer),
        ("range", _Pointer), ("factor", _Pointer),
        ("image_step", ctypes.c_long), ("row_step", ctypes.c_long), ("pixel_step", ctypes.c_long),
        ("channel_step", ctypes.c_long), ("place", BitsPlace),
        *((name, ctypes.c_int) for name in ("images", "c", "h", "w", "oc", "oh", "ow", *_WINDOW)),
        ("value", ctypes.c_float), ("half", ctypes.c_int),
        ("operand", Operand * 3), ("constant", _Pointer * 2), ("number", ctypes.c_int * NUMBERS),
        ("real", ctypes.c_float * 4), ("stages", ctypes.c_int),
        ("stage", Stage * MAX_STAGES),
    ]  # fmt: skip
