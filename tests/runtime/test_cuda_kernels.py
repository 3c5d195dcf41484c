"""The CUDA kernels themselves, compiled for the CPU with their GPU instructions played in C++
(cuda_host/host_device.h).

What this cannot show (timing, memory ordering of the real machine) is left to tests/gpu.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from xnorpp.runtime.cuda import layout as lay
from xnorpp.runtime.cuda import wgmma
from xnorpp.runtime.cuda.source import ConvArguments, StemArguments
from xnorpp.runtime.reference import multiply_add
from xnorpp.runtime.stem import image_filters

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "src" / "xnorpp" / "runtime" / "cuda" / "kernels"

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def build(
    kernel: str, entry: str, macros: dict[str, int | str], folder: Path, arguments: str = "Arguments"
) -> ctypes.CDLL:
    """Compiles a kernel for the CPU."""
    text = "".join(f"#define {k} {v}\n" for k, v in macros.items())
    text += f'#include "{kernel}"\n'
    text += (
        f'extern "C" void launch(const {arguments}* a, int grid) '
        f"{{ launch_blocks([=] {{ {entry}(*a); }}, grid, THREADS, SHARED_BYTES); }}\n"
        'extern "C" int shared_bytes() { return SHARED_BYTES; }\n'
        'extern "C" const u64* prefetched_bytes() { return prefetched; }\n'
    )
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    source, library = folder / f"{name}.cpp", folder / f"{name}.so"
    source.write_text(text)
    command = ["g++", "-std=c++17", "-O1", "-fpermissive", "-w", "-ffp-contract=off", "-fno-strict-aliasing"]
    command += [
        "-shared",
        "-fPIC",
        "-DXNORPP_HOST",
        f"-I{KERNELS}",
        f"-I{Path(__file__).parent / 'cuda_host'}",
    ]
    subprocess.run([*command, str(source), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def address(a: np.ndarray | None) -> int | None:
    return None if a is None else a.ctypes.data


def aligned(a: np.ndarray) -> np.ndarray:
    """A copy on a 128-byte boundary."""
    room = np.zeros(a.nbytes + 128, np.uint8)
    start = -room.ctypes.data % 128
    out = room[start : start + a.nbytes].view(a.dtype).reshape(a.shape)
    out[...] = a
    return out


def dots(shape: lay.ConvShape, bits: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Plain integer convolution of the signs, (n, o, oh, ow)."""
    a = np.where(bits, 1, -1).astype(np.int64)
    w = np.where(weight, 1, -1).astype(np.int64)
    (ph, pw), (sh, sw), (dh, dw) = shape.padding, shape.stride, shape.dilation
    a = np.pad(a, ((0, 0), (0, 0), (ph, ph), (pw, pw)), constant_values=shape.pad_value)
    out = np.zeros((bits.shape[0], weight.shape[0], shape.out_height, shape.out_width), np.int64)
    for ky in range(shape.kernel[0]):
        for kx in range(shape.kernel[1]):
            part = a[:, :, ky * dh :, kx * dw :][:, :, ::sh, ::sw][
                :, :, : shape.out_height, : shape.out_width
            ]
            out += np.einsum("nchw,oc->nohw", part, w[:, :, ky, kx])
    return out


CASES = {
    "64, rows that cross": (lay.ConvShape(64, 64, (3, 3), (1, 1), (1, 1), (1, 1), 6, 10), lay.Tile(wm=2,
    mt=2, ml=2)),
    "64, long tail": (lay.ConvShape(64, 64, (3, 3), (1, 1), (1, 1), (1, 1), 6, 10), lay.Tile(wm=2, mt=1,
    tail128=0)),
    "64, weights held": (lay.ConvShape(64, 64, (3, 3), (1, 1), (1, 1), (1, 1), 5, 7), lay.Tile(wm=1, mt=2,
    hold=1)),
    "100 channels, +1 outside": (
        lay.ConvShape(100, 64, (3, 3), (1, 1), (1, 1), (1, 1), 5, 5, 1), lay.Tile(wm=1, wn=2, mt=1, np=2)),
    "128 to 128, stride 2": (lay.ConvShape(128, 128, (3, 3), (2, 2), (1, 1), (1, 1), 9, 9), lay.Tile(wm=1,
    wn=2, mt=1)),
    "256, -1 outside": (
        lay.ConvShape(256, 64, (3, 3), (1, 1), (1, 1), (1, 1), 4, 4, -1), lay.Tile(wm=1, mt=1, stages=1)),
    "192, dilated": (lay.ConvShape(192, 64, (3, 3), (1, 1), (2, 2), (2, 2), 7, 6), lay.Tile(wm=1, mt=1, wn=2,
    np=2)),
    "512, 1x1": (lay.ConvShape(512, 64, (1, 1), (1, 1), (0, 0), (1, 1), 3, 3), lay.Tile(wm=2, mt=1)),
    "64, 5x1, uneven": (lay.ConvShape(64, 64, (5, 1), (2, 1), (2, 0), (1, 1), 9, 4), lay.Tile(wm=1, mt=1)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_bits_and_stream_equal_the_plain_convolution(name: str, tmp_path: Path) -> None:
    shape, tile = CASES[name]
    rng = np.random.default_rng(len(name))
    images, slots = 3, 2
    bits = rng.random((images, shape.in_channels, shape.height, shape.width)) < 0.5
    weight = rng.random((shape.out_channels, shape.in_channels, *shape.kernel)) < 0.5
    layout = lay.bits_layout(shape.in_channels, shape.height, shape.width, max(shape.padding))
    out = lay.bits_layout(shape.out_channels, shape.out_height, shape.out_width, 1)
    case, constant = lay.constants(shape, weight)
    spatial = rng.uniform(0.5, 2, (shape.out_height, shape.out_width)).astype(np.float32)
    oc = shape.out_channels
    threshold, mult, add, slope = (rng.normal(size=oc).astype(np.float32) for _ in range(4))
    flip = np.where(rng.random(oc) < 0.5, -1, 1).astype(np.float32)
    channel = np.stack([mult, add, slope, threshold, flip * threshold, -flip])
    fusion = lay.Fusion("AFFINE(0,1) PRELU(2) ADD(0) STORE(0) SIGN(0,3) SIGN_FLIP(1,4,5)", tables=6, signs=2)
    macros = lay.conv_macros(shape, layout, out, tile, fusion, constant.shape[0])
    library = build("binary_conv.cu", "binary_conv", macros, tmp_path)
    assert library.shared_bytes() == lay.shared_bytes(macros)

    pixels = images * shape.out_height * shape.out_width
    residual = rng.normal(size=(pixels, oc)).astype(np.float32)
    arrays = {
        "input": layout.pack(bits, outside=shape.pad_value == 1),
        "weight": lay.pack_weights(weight, shape.dilation[1]),
        "channel": channel,
        "constant": constant / lay.SCALE_UP,
        "pixel": lay.pixel_table(case, spatial, None, out),
    }
    arrays = {k: aligned(v) for k, v in arrays.items()}
    stream = np.full((pixels, oc), np.nan, np.float32)
    words = [aligned(np.full(out.size(images), 0x5A, np.uint8)) for _ in range(2)]
    tiles = -(-pixels // tile.block_m)
    a = ConvArguments(images=images, tiles=tiles, **{k: address(v) for k, v in arrays.items()})
    residual, stream = aligned(residual), aligned(stream)
    a.stream_in[0], a.stream_out[0] = address(residual), address(stream)
    a.bits_out[0], a.bits_out[1] = address(words[0]), address(words[1])
    library.launch(ctypes.byref(a), slots * oc // tile.block_n)

    dot = dots(shape, bits, weight).astype(np.float32)
    y = multiply_add(dot * spatial, mult[:, None, None], add[:, None, None])
    y = np.where(y > 0, y, slope[:, None, None] * y)
    y = y + np.moveaxis(residual.reshape(images, shape.out_height, shape.out_width, oc), 3, 1)
    got = np.moveaxis(stream.reshape(images, shape.out_height, shape.out_width, oc), 3, 1)
    np.testing.assert_array_equal(got, y)
    np.testing.assert_array_equal(out.unpack(words[0], images), y > threshold[:, None, None])
    t = threshold[:, None, None]
    np.testing.assert_array_equal(
        out.unpack(words[1], images), np.where(flip[:, None, None] > 0, y > t, y < t)
    )
    halo = words[0][: images * out.rows * out.row].reshape(images, out.rows, out.row)
    assert (halo[:, [0, -1]] == 0x5A).all()
    if out.pair:
        pixels = halo[:, 1:-1].reshape(images, shape.out_height, -1, out.pitch)
        np.testing.assert_array_equal(pixels[:, :, :-2, 8:16], pixels[:, :, 1:-1, :8])


@pytest.mark.parametrize("pool", [False, True])
def test_every_residual_is_asked_for_once(pool: bool, tmp_path: Path) -> None:
    """Tiles that begin and end within a row, the last one cut off: the residual, no more and not twice."""
    shape, images, oc = lay.ConvShape(64, 64, (3, 3), (1, 1), (1, 1), (1, 1), 6, 10), 3, 64
    tile, layout = lay.Tile(wm=2, mt=2), lay.bits_layout(64, 6, 10, 1)
    weight = np.ones((oc, 64, 3, 3), bool)
    case, constant = lay.constants(shape, weight)
    fusion = lay.Fusion("ADD(0) STORE(0)", 1, 0, pool=pool, pooled="STORE(1)")
    macros = lay.conv_macros(shape, layout, None, tile, fusion, constant.shape[0])
    library = build("binary_conv.cu", "binary_conv", macros, tmp_path)
    library.prefetched_bytes.restype = ctypes.POINTER(ctypes.c_uint64 * 3)
    residual, stream, means = (aligned(np.ones((images * 60, oc), np.float32)) for _ in range(3))
    arrays = {
        "input": layout.pack(np.ones((images, 64, 6, 10), bool)), "weight": lay.pack_weights(weight),
        "channel": np.zeros((1, oc), np.float32), "constant": constant / lay.SCALE_UP,
        "pixel": lay.pixel_table(case, np.ones((6, 10), np.float32), None, layout),
    }  # fmt: skip
    arrays = {k: aligned(v) for k, v in arrays.items()}
    tiles = -(-images * 60 // tile.block_m)
    a = ConvArguments(images=images, tiles=tiles, **{k: address(v) for k, v in arrays.items()})
    a.stream_in[0], a.stream_out[0], a.stream_out[1] = address(residual), address(stream), address(means)
    library.launch(ctypes.byref(a), 2)
    assert stream[11 + 10 * 2, 0] == 9 * 64 + 1  # a pixel inside: all ones, and the residual
    first = residual.ctypes.data
    assert list(library.prefetched_bytes().contents) == [residual.nbytes, first, first + residual.nbytes]


@pytest.mark.parametrize("stream", ["float", "u16"])
def test_a_fused_shortcut_and_a_fused_mean(stream: str, tmp_path: Path) -> None:
    """Block end of a ResNet: dot, plus a 1x1 shortcut on other bits, bits out, and the bits of the 2x2
    mean."""
    shape = lay.ConvShape(128, 64, (3, 3), (1, 1), (1, 1), (1, 1), 6, 6)
    tile = lay.Tile(wm=2, mt=2, np=4, wn=1)
    rng = np.random.default_rng(0)
    images, oc = 2, 64
    bits, side_bits = rng.random((images, 128, 6, 6)) < 0.5, rng.random((images, 64, 6, 6)) < 0.5
    weight, side_weight = rng.random((oc, 128, 3, 3)) < 0.5, rng.random((oc, 64, 1, 1)) < 0.5
    layout, side = lay.bits_layout(128, 6, 6, 1), lay.bits_layout(64, 6, 6, 0)
    out, pooled = lay.bits_layout(oc, 6, 6, 1), lay.bits_layout(oc, 3, 3, 1)
    case, constant = lay.constants(shape, weight)
    side_shape = lay.ConvShape(64, oc, (1, 1), (1, 1), (0, 0), (1, 1), 6, 6)
    side_constant = lay.constants(side_shape, side_weight)[1]
    factors = rng.uniform(0.5, 2, (2, 6, 6)).astype(np.float32)
    channel = rng.normal(size=(7, oc)).astype(np.float32)
    fusion = lay.Fusion(
        "AFFINE(0,1) SIDE_AFFINE(2,3) SIDE_ADD STORE(0) SIGN(0,4)", 7, 1,
        pool=True, pooled="STORE(1) SIGN(2,5)", pool_bits=True, stream=stream,
    )  # fmt: skip
    macros = lay.conv_macros(shape, layout, out, tile, fusion, constant.shape[0], pooled, side)
    library = build("binary_conv.cu", "binary_conv", macros, tmp_path)
    dtype = np.float32 if stream == "float" else np.float16
    results = [aligned(np.full((images * n, oc), np.nan, dtype)) for n in (36, 9)]
    words = [aligned(np.zeros(x.size(images), np.uint8)) for x in (out, pooled)]
    arrays = {
        "input": layout.pack(bits), "weight": lay.pack_weights(weight), "channel": channel,
        "constant": constant / lay.SCALE_UP, "pixel": lay.pixel_table(case, *factors, out),
        "side": side.pack(side_bits),
        "side_weight": lay.pack_side_weights(side_weight[:, :, 0, 0]),
        "side_constant": side_constant / lay.SCALE_UP,
    }  # fmt: skip
    arrays = {k: aligned(v) for k, v in arrays.items()}
    tiles = -(-images * 36 // tile.block_m)
    a = ConvArguments(images=images, tiles=tiles, **{k: address(v) for k, v in arrays.items()})
    a.stream_out[0], a.stream_out[1] = address(results[0]), address(results[1])
    a.bits_out[0], a.bits_out[2] = address(words[0]), address(words[1])
    library.launch(ctypes.byref(a), tiles)

    c = channel[:, :, None, None]
    y = multiply_add(dots(shape, bits, weight).astype(np.float32) * factors[0], c[0], c[1])
    z = multiply_add(dots(side_shape, side_bits, side_weight).astype(np.float32) * factors[1], c[2], c[3])
    y = y + z
    q = ((y[..., ::2, ::2] + y[..., ::2, 1::2]) + y[..., 1::2, ::2]) + y[..., 1::2, 1::2]
    q = q * np.float32(0.25)
    for got, want in zip(results, (y, q), strict=True):
        n, _, h, w = want.shape
        np.testing.assert_array_equal(np.moveaxis(got.reshape(n, h, w, oc), 3, 1), want.astype(dtype))
    np.testing.assert_array_equal(out.unpack(words[0], images), y > c[4])
    np.testing.assert_array_equal(pooled.unpack(words[1], images), q > c[5])


@pytest.mark.parametrize(
    ("height", "width", "kernel", "rows", "pairs", "across", "hold"),
    [(40, 40, 7, 5, 4, 0, 0), (37, 70, 7, 4, 2, 2, 1), (30, 32, 3, 8, 2, 1, 1)],
)
def test_the_stem_equals_integers_pooled(
    height: int, width: int, kernel: int, rows: int, pairs: int, across: int, hold: int, tmp_path: Path
) -> None:
    check_stem(height, width, kernel, (rows, pairs, 1, across, hold), None, tmp_path)


@pytest.mark.parametrize(
    ("height", "width", "kernel", "tiling"),
    [
        (40, 40, 7, (6, 1, 3, 4, 1)),
        (37, 130, 7, (4, 2, 2, 4, 0)),  # odd sizes, two blocks side by side, the last row without a second
        (30, 226, 3, (8, 4, 1, 8, 1)),
        (22, 34, 8, (3, 1, 3, 4, 0)),
    ],
)
def test_the_stem_of_warpgroups_equals_integers_pooled(
    height: int, width: int, kernel: int, tiling: wgmma.Tiling, tmp_path: Path
) -> None:
    check_stem(height, width, kernel, (1, 4, 1, 0, 0), tiling, tmp_path)


def test_filters_of_warpgroups_lie_where_the_descriptor_says() -> None:
    """[kh][hi, lo], then pieces of eight channels and 16 bytes; a lane's sums are four channels in a row."""
    whole = np.random.default_rng(0).integers(-32000, 32000, (64, 3, 8, 4))
    packed = wgmma.pack_filters(whole).reshape(3, 2, wgmma.TILE)
    for channel, ky, byte in [(0, 0, 0), (1, 0, 5), (2, 1, 17), (4, 2, 31), (23, 1, 9), (63, 2, 16)]:
        p, t, e = channel // 16, channel % 16 // 4, channel % 4
        at = 256 * (2 * p + e // 2) + 128 * (byte // 16) + 16 * (2 * t + e % 2) + byte % 16
        tap = whole[channel, ky, byte // 4, byte % 4]
        assert 256 * int(packed[ky, 0, at]) + int(packed[ky, 1, at]) == tap


def check_stem(
    height: int, width: int, kernel: int, numbers: tuple[int, int, int, int, int],
    tiling: wgmma.Tiling | None, tmp_path: Path,
) -> None:  # fmt: skip
    """stem.cu, or with a `tiling` stem_wgmma.cu, beside whole numbers summed by numpy."""
    rng = np.random.default_rng(kernel)
    images, oc, padding = 2, 64, kernel // 2
    pixels = rng.integers(0, 256, (images, height, width, 3), dtype=np.uint8)
    weight = rng.normal(size=(oc, 3, kernel, kernel)).astype(np.float32)
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    mult, add = rng.normal(size=oc).astype(np.float32), rng.normal(size=oc).astype(np.float32)
    rounded = image_filters(weight, mean, std, 2)
    filters = lay.stem_filters(rounded, mult < 0)
    ch, cw = (height + 2 * padding - kernel) // 2 + 1, (width + 2 * padding - kernel) // 2 + 1
    oh, ow = (ch + 1) // 2, (cw + 1) // 2
    out = lay.bits_layout(oc, oh, ow, 1)
    threshold = rng.normal(size=oc).astype(np.float32)
    macros = lay.stem_macros(
        height, width, kernel, padding, oc, out, 5,
        "SCALE(1) AFFINE(2,3) RELU STORE(0) SIGN(0,4)", 1, "float", *numbers,
    )  # fmt: skip
    if tiling is not None:
        macros = wgmma.tiling_macros(macros, tiling)
    name = "stem" if tiling is None else "stem_wgmma"
    library = build(f"{name}.cu", name, macros, tmp_path, "StemArguments")
    assert library.shared_bytes() == (lay.stem_shared_bytes if tiling is None else wgmma.shared_bytes)(macros)
    arrays = {
        "input": pixels,
        "weight": filters.packed if tiling is None else wgmma.pack_filters(filters.whole),
        "channel": np.stack([filters.rest, rounded.step, np.abs(mult), add, threshold]),
    }
    arrays = {k: aligned(v) for k, v in arrays.items()}
    stream = aligned(np.full((images, oh, ow, oc), np.nan, np.float32))
    words = aligned(np.zeros(out.size(images), np.uint8))
    a = StemArguments(images=images, **{k: address(v) for k, v in arrays.items()})
    a.stream_out[0], a.bits_out[0] = address(stream), address(words)
    library.launch(ctypes.byref(a), lay.stem_blocks(macros, images))

    full = np.zeros((images, height + 2 * padding, width + 2 * padding + 8, 4), np.int64)
    full[:, padding : padding + height, padding : padding + width] = np.concatenate(
        [pixels, np.full((*pixels.shape[:3], 1), 255)], axis=3
    )
    sums = np.zeros((images, ch, cw, oc), np.int64)
    for ky in range(kernel):
        for kx in range(kernel):
            part = full[:, ky : ky + 2 * ch - 1 : 2, kx : kx + 2 * cw - 1 : 2]
            sums += np.einsum("nhwc,oc->nhwo", part, filters.whole[:, ky, kx])
    assert np.abs(sums).max() < 2**31
    padded = np.pad(sums, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-(2**31))
    pooled = np.max(
        [padded[:, i : i + 2 * oh - 1 : 2, j : j + 2 * ow - 1 : 2] for i in range(3) for j in range(3)],
        axis=0,
    )
    pooled = (pooled + filters.rest.view(np.int32)).astype(np.float32) * rounded.step
    y = np.maximum(multiply_add(pooled, np.abs(mult), add), np.float32(0))
    np.testing.assert_array_equal(stream, y)
    np.testing.assert_array_equal(np.moveaxis(out.unpack(words, images), 1, 3), y > threshold)

    if tiling is not None:
        return  # the filters are the same
    normal = (pixels / 255.0 - mean) / std
    padded_real = np.pad(normal, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    real = np.zeros((images, ch, cw, oc))
    for ky in range(kernel):
        for kx in range(kernel):
            part = padded_real[:, ky : ky + 2 * ch - 1 : 2, kx : kx + 2 * cw - 1 : 2]
            real += np.einsum("nhwc,oc->nhwo", part, weight[:, :, ky, kx].astype(np.float64))
    whole = (sums + filters.rest.view(np.int32)) * np.where(mult < 0, -1, 1) * rounded.step.astype(np.float64)
    assert np.abs(whole - real).max() < 1e-4 * np.abs(real).max()
