"""How bits, weights and constants lie in GPU memory: the numpy side of kernels/binary_conv.cu.

Everything a kernel is compiled for or reads besides its input is made here, so the arithmetic and the tiling
can be
checked without a GPU. The kernel's comment gives the formula; this module gives the tables in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from xnorpp.runtime.stem import ImageFilters

Array = npt.NDArray[Any]

UNIT = 64  # channels in a group of bits; 8 bytes
CHUNK = 16  # bytes a tensor-core load takes from a pixel


def bit_position(channel: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Bit of a channel: within each 64, channel 16p + 4t + e sits at 16t + 4p + e."""
    low = channel % UNIT
    return channel // UNIT * UNIT + (low // 4 % 4) * 16 + (low // 16) * 4 + low % 4


def pack_units(bits: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
    """Booleans (..., channels) to words (..., units, 2), channels in the kernel's order, missing ones 0."""
    channels = bits.shape[-1]
    units = -(-channels // UNIT)
    ordered = np.zeros((*bits.shape[:-1], units * UNIT), dtype=np.uint8)
    ordered[..., bit_position(np.arange(channels))] = bits
    packed = np.packbits(ordered, axis=-1, bitorder="little")
    return packed.view("<u4").reshape(*bits.shape[:-1], units, 2)


def unpack_units(words: npt.NDArray[np.uint32], channels: int) -> npt.NDArray[np.bool_]:
    """Inverse of `pack_units`."""
    raw = np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape[:-2], -1)
    ordered = np.unpackbits(raw, axis=-1, bitorder="little")
    return ordered[..., bit_position(np.arange(channels))].astype(bool)


@dataclass(frozen=True)
class BitsLayout:
    """An image of bits with its halo: [image][row][pixel][pitch bytes].

    At most 64 channels (8 bytes): a pixel's other 8 bytes repeat its right neighbour, so a 16-byte chunk is
    two taps.
    """

    channels: int
    height: int
    width: int
    halo: int
    pitch: int
    row: int

    @property
    def units(self) -> int:
        return -(-self.channels // UNIT)

    @property
    def parts(self) -> int:
        """16-byte chunks a pixel."""
        return -(-self.channels // (8 * CHUNK))

    @property
    def pair(self) -> bool:
        return 0 < self.channels <= UNIT

    @property
    def rows(self) -> int:
        """Rows an image, halo included."""
        return self.height + 2 * self.halo

    def size(self, images: int) -> int:
        """Bytes of a batch, with room for a tile that reads past the end."""
        return (images + 1) * self.rows * self.row + 65536

    def pack(self, bits: npt.NDArray[np.bool_], outside: bool = False) -> npt.NDArray[np.uint8]:
        """Booleans (n, c, h, w) to the bytes of the image; `outside` is the bit of the halo."""
        n = bits.shape[0]
        padded = np.full((n, self.channels, self.rows, self.width + 2 * self.halo), outside)
        padded[:, :, self.halo : self.halo + self.height, self.halo : self.halo + self.width] = bits
        return self.place(pack_units(np.moveaxis(padded, 1, -1)))

    def place(self, words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
        """Words (n, rows, width with halo, units, 2) to the bytes of the image."""
        n = words.shape[0]
        out = np.zeros(self.size(n), dtype=np.uint8)
        body = out[: n * self.rows * self.row].reshape(n, self.rows, self.row)
        pixels = body[:, :, : words.shape[2] * self.pitch].reshape(n, self.rows, -1, self.pitch)
        pixels[..., : 8 * self.units] = words.view(np.uint8).reshape(*words.shape[:-2], -1)
        if self.pair:
            pixels[:, :, :-1, 8:16] = pixels[:, :, 1:, :8]
        return out

    def unpack(self, raw: npt.NDArray[np.uint8], images: int) -> npt.NDArray[np.bool_]:
        """The bytes of the image back to booleans (n, c, h, w), without the halo."""
        body = raw[: images * self.rows * self.row].reshape(images, self.rows, self.row)
        wide = self.width + 2 * self.halo
        pixels = body[:, :, : wide * self.pitch].reshape(images, self.rows, wide, self.pitch)
        inner = pixels[
            :, self.halo : self.halo + self.height, self.halo : self.halo + self.width, : 8 * self.units
        ]
        words = (
            np.ascontiguousarray(inner).view("<u4").reshape(images, self.height, self.width, self.units, 2)
        )
        return np.moveaxis(unpack_units(words, self.channels), -1, 1)


def bits_layout(channels: int, height: int, width: int, halo: int = 0) -> BitsLayout:
    """Chooses the pitch so that a load of 8 neighbouring pixels' chunks falls into different banks of shared
    memory:
    an odd number of chunks a pixel."""
    parts = -(-channels // (8 * CHUNK))
    pitch = CHUNK * (parts + (parts % 2 == 0))
    return BitsLayout(channels, height, width, halo, pitch, (width + 2 * halo) * pitch)


@dataclass(frozen=True)
class ConvShape:
    """A binary convolution, one group."""

    in_channels: int
    out_channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    height: int
    width: int
    pad_value: int = 0

    @property
    def out_height(self) -> int:
        return (
            self.height + 2 * self.padding[0] - self.dilation[0] * (self.kernel[0] - 1) - 1
        ) // self.stride[0] + 1

    @property
    def out_width(self) -> int:
        return (
            self.width + 2 * self.padding[1] - self.dilation[1] * (self.kernel[1] - 1) - 1
        ) // self.stride[1] + 1

    def multiply_adds(self, images: int) -> int:
        taps = self.kernel[0] * self.kernel[1] * self.in_channels
        return images * self.out_height * self.out_width * self.out_channels * taps


@dataclass(frozen=True)
class Tile:
    """How a block divides its work; the names are the kernel's macros."""

    wm: int = 4
    wn: int = 1
    mt: int = 2
    np: int = 4
    ml: int = 1
    stages: int = 2
    hold: int = 0
    ahead: int = 0  # groups of 16 channels whose residual is read at once (0: all of half, two of float)
    tail128: int = 1
    blocks: int = 1
    stay: int = 0  # blocks stay and walk over the tiles, as many as fit (0: one block a tile)

    @property
    def block_m(self) -> int:
        return self.wm * self.mt * 16 * self.ml

    @property
    def block_n(self) -> int:
        return self.wn * self.np * 16

    @property
    def threads(self) -> int:
        return self.wm * self.wn * 32


def lanes_of(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Words (o, step, 2, 4 lanes of a quad) to [o/16][step][lane][4]: (b0, b1) of the two tiles of 16
    channels."""
    out, steps = words.shape[:2]
    lane = np.arange(32)
    column, t = lane // 4, lane % 4
    packed = np.zeros((out // 16, steps, 32, 4), dtype=np.uint32)
    for tile in range(2):
        channel = np.arange(out // 16)[:, None] * 16 + column // 2 * 4 + tile * 2 + column % 2  # (o/16, lane)
        for half in range(2):
            packed[..., 2 * tile + half] = np.moveaxis(words[channel, :, half, t], -1, 1)
    return packed


def chunks(positive: npt.NDArray[np.bool_], dilation: int) -> npt.NDArray[np.uint32]:
    """Booleans (o, c, kh, kw) to words (o, chunk, 4), chunks in the kernel's order."""
    out, channels, kh, kw = positive.shape
    units = pack_units(np.moveaxis(positive, 1, -1))  # (o, kh, kw, unit, 2)
    if channels <= UNIT:
        step = 2 if dilation == 1 else 1
        pairs = np.zeros((out, kh, -(-kw // step), 2, 2), dtype=np.uint32)
        pairs[:, :, :, 0] = units[:, :, ::step, 0]
        if step == 2:
            pairs[:, :, : kw // 2, 1] = units[:, :, 1::2, 0]
        return pairs.reshape(out, -1, 4)
    parts = -(-channels // (8 * CHUNK))
    padded = np.zeros((out, kh, kw, 2 * parts, 2), dtype=np.uint32)
    padded[:, :, :, : units.shape[3]] = units
    return padded.reshape(out, -1, 4)


def pack_weights(positive: npt.NDArray[np.bool_], dilation: int = 1) -> npt.NDArray[np.uint32]:
    """Booleans (o, c, kh, kw) to [o/16][step][lane][4 words], as the lanes of the kernel read them."""
    out = positive.shape[0]
    if out % 16:
        raise ValueError(f"`out_channels` (={out}) must be a multiple of 16 in the packed weights")
    words = chunks(positive, dilation)
    steps = -(-words.shape[1] // 2)
    filled = np.zeros((out, 2 * steps, 4), dtype=np.uint32)
    filled[:, : words.shape[1]] = words
    return lanes_of(filled.reshape(out, steps, 2, 4))


def pack_side_weights(positive: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
    """Booleans (o, c) of a fused 1x1 shortcut, at most 256 channels: lane t has group t of 64."""
    units = pack_units(positive)
    if units.shape[1] > 4:
        raise ValueError(f"a fused shortcut takes at most 256 channels, not {positive.shape[1]}")
    filled = np.zeros((positive.shape[0], 4, 2), dtype=np.uint32)
    filled[:, : units.shape[1]] = units
    return lanes_of(np.moveaxis(filled, 1, 2)[:, None])[:, 0]


def border_cases(
    size: int, out: int, kernel: int, stride: int, padding: int, dilation: int
) -> tuple[Array, Array]:
    """Which taps fall inside, for each output position: (case of each position, [case][tap] booleans)."""
    start = np.arange(out)[:, None] * stride - padding + np.arange(kernel) * dilation
    inside = (start >= 0) & (start < size)
    patterns, case = np.unique(inside, axis=0, return_inverse=True)
    return case.reshape(-1), patterns


def constants(shape: ConvShape, positive: npt.NDArray[np.bool_]) -> tuple[Array, npt.NDArray[np.float32]]:
    """The weight term n - 2*popc(w) over the taps inside: (case of each pixel, [case][o] float32)."""
    count = positive.sum(axis=1)  # (o, kh, kw)
    if shape.pad_value != 0:
        whole = shape.in_channels * count.shape[1] * count.shape[2] - 2 * count.sum(axis=(1, 2))
        return np.zeros((shape.out_height, shape.out_width), np.int32), whole[None].astype(np.float32)
    yc, ypat = border_cases(
        shape.height, shape.out_height, shape.kernel[0], shape.stride[0], shape.padding[0], shape.dilation[0]
    )
    xc, xpat = border_cases(
        shape.width, shape.out_width, shape.kernel[1], shape.stride[1], shape.padding[1], shape.dilation[1]
    )
    taps = shape.in_channels - 2 * count
    table = np.einsum("yk,xl,okl->yxo", ypat.astype(np.int64), xpat.astype(np.int64), taps)
    case = yc[:, None] * xpat.shape[0] + xc[None, :]
    return case.astype(np.int32), table.reshape(-1, table.shape[2]).astype(np.float32)


SCALE_UP = np.float32(2.0**24)


def pixel_table(
    case: Array, spatial: Array | None, side_spatial: Array | None, out: BitsLayout | None
) -> npt.NDArray[np.float32]:
    """[oh*ow][4]: spatial factor * 2^24, border case, the shortcut's factor * 2^24, offset of the pixel's
    bits."""
    table = np.zeros((*case.shape, 4), dtype=np.float32)
    table[..., 0] = SCALE_UP if spatial is None else np.asarray(spatial, np.float32) * SCALE_UP
    table[..., 1] = case.astype(np.int32).view(np.float32)
    table[..., 2] = SCALE_UP if side_spatial is None else np.asarray(side_spatial, np.float32) * SCALE_UP
    if out is not None:
        y, x = np.indices(case.shape, dtype=np.int32)
        table[..., 3] = (
            ((y + out.halo) * out.row + (x + out.halo) * out.pitch).astype(np.int32).view(np.float32)
        )
    return table.reshape(-1, 4)


def rows_needed(shape: ConvShape, layout: BitsLayout, block_m: int, pool: bool) -> int:
    """Rows of the bits buffer the largest tile touches."""
    oh, ow = shape.out_height, shape.out_width
    first = np.arange(oh * ow + 1) * block_m  # the pattern repeats after at most oh*ow tiles
    last = first + block_m - 1
    reach = (shape.kernel[0] - 1) * shape.dilation[0] + 1

    def row(pixel: Array, bottom: bool) -> Array:
        if pool:
            window = pixel // 32 * 8 + (7 if bottom else 0)
            image, y = (
                window // (oh // 2 * (ow // 2)),
                window % (oh // 2 * (ow // 2)) // (ow // 2) * 2 + int(bottom),
            )
        else:
            image, y = pixel // (oh * ow), pixel % (oh * ow) // ow
        return np.asarray(image * layout.rows + y * shape.stride[0])

    return int((row(last, True) - row(first, False)).max()) + reach


@dataclass(frozen=True)
class Fusion:
    """The chain after a convolution, as the kernel's macros."""

    epilogue: str = "SIGN(0, 0)"
    tables: int = 1
    signs: int = 1
    pool: bool = False
    pooled: str = ""
    pool_bits: bool = False
    full: bool = False
    stream: str = "float"

    @property
    def residuals(self) -> int:
        """Streams that lie as the result does, where all are: those are worth asking for early."""
        line = self.epilogue
        return 0 if "MUL_PIXEL" in line else line.count("ADD(") + line.count("MUL(")


def conv_macros(
    shape: ConvShape,
    layout: BitsLayout,
    out: BitsLayout | None,
    tile: Tile,
    fusion: Fusion,
    cases: int,
    pooled_out: BitsLayout | None = None,
    side: BitsLayout | None = None,
    side_stride: int = 1,
) -> dict[str, int | str]:
    """Everything `binary_conv.cu` is compiled for."""
    if shape.out_channels % tile.block_n:
        raise ValueError(
            f"`out_channels` (={shape.out_channels}) must be a multiple of the tile's {tile.block_n}"
        )
    if fusion.pool and (tile.mt % 2 or shape.out_height % 2 or shape.out_width % 2):
        raise ValueError("a fused 2x2 mean needs an even image and an even `mt`")
    rows = rows_needed(shape, layout, tile.block_m, fusion.pool)
    ahead = min(tile.np, tile.ahead or (4 if fusion.stream == "u16" else 2))
    empty = BitsLayout(0, 0, 0, 0, 0, 0)
    out, pooled_out, side_layout = out or empty, pooled_out or empty, side or empty
    return {
        "PARTS": layout.parts, "PAIR": int(layout.pair), "PITCH": layout.pitch, "ROW": layout.row,
        "HALO": layout.halo, "IHP": layout.rows,
        "KH": shape.kernel[0], "KW": shape.kernel[1], "SY": shape.stride[0], "SX": shape.stride[1],
        "DY": shape.dilation[0], "DX": shape.dilation[1], "PY": shape.padding[0], "PX": shape.padding[1],
        "OH": shape.out_height, "OW": shape.out_width, "OC": shape.out_channels,
        "OPITCH": out.pitch, "OPAIR": int(out.pair), "OROW": out.row, "OHALO": out.halo, "OHP": out.rows,
        "QPITCH": pooled_out.pitch, "QPAIR": int(pooled_out.pair), "QROW": pooled_out.row,
        "QHALO": pooled_out.halo, "QHP": pooled_out.rows,
        "SIDE_U": side_layout.units, "SIDE_PITCH": side_layout.pitch, "SIDE_ROW": side_layout.row,
        "SIDE_HALO": side_layout.halo, "SIDE_HP": side_layout.rows, "SIDE_S": side_stride,
        "CASES": cases, "FULL": int(fusion.full), "TABLES": fusion.tables, "SIGNS": fusion.signs,
        "EPILOGUE": fusion.epilogue, "POOL": int(fusion.pool), "POOLED": fusion.pooled,
        "POOL_BITS": int(fusion.pool_bits), "STREAM": fusion.stream, "RESIDUALS": fusion.residuals,
        "WM": tile.wm, "WN": tile.wn, "MT": tile.mt, "NP": tile.np, "ML": tile.ml, "ROWS": rows,
        "STAGES": tile.stages, "HOLD": tile.hold, "AHEAD": ahead,
        "TAIL128": tile.tail128, "BLOCKS": tile.blocks,
    }  # fmt: skip


def shared_bytes(macros: dict[str, int | str]) -> int:
    """SHARED_BYTES of the kernel, so that the launch can ask for it."""
    m = {k: v for k, v in macros.items() if isinstance(v, int)}
    across = -(-m["KW"] // 2) if m["PAIR"] and m["DX"] == 1 else m["KW"]
    steps = -(-m["KH"] * across * m["PARTS"] // 2)
    block_n = m["WN"] * m["NP"] * 16
    tile = -(-m["ROWS"] * m["ROW"] // 128) * 128
    weights = m["WN"] * m["NP"] * steps * 512
    side = m["WN"] * m["NP"] * 512 if m["SIDE_U"] else 0
    case_at = m["STAGES"] * tile + weights + side + (m["TABLES"] + 1) * block_n * 4
    barrier_at = -(-(case_at + m["CASES"] * (block_n + 16) * 4) // 16) * 16
    return barrier_at + (m["STAGES"] + 1) * 8


@dataclass(frozen=True)
class StemFilters:
    """A real-valued convolution on bytes, as stem.cu reads it: 16-bit filters as two signed bytes."""

    packed: npt.NDArray[np.uint32]  # [o/16][hi, lo][kh][lane][4]
    rest: npt.NDArray[np.float32]  # (o,): the bits of a whole number that is added to the sum
    whole: npt.NDArray[np.int64]  # (o, kh, 8, 4), the 16-bit filters themselves; the fourth is the mean's


def stem_filters(filters: ImageFilters, turned: npt.NDArray[np.bool_]) -> StemFilters:
    """Packs `filters`, those that are `turned` with the other sign: what follows then rises with the sum."""
    o, _, kh, kw = filters.taps.shape
    whole = np.zeros((o, kh, 8, 4), np.int64)
    whole[:, :, :kw, :3] = np.moveaxis(filters.taps, 1, 3)
    whole[:, :, :kw, 3] = filters.mean
    sign = np.where(turned, -1, 1)
    whole *= sign[:, None, None, None]
    low = (whole + 128) % 256 - 128
    high = (whole - low) // 256
    if np.abs(high).max(initial=0) > 127:
        raise ValueError("a filter of the first layer is larger than two signed bytes")
    parts = np.stack([high, low], axis=1).astype(np.int8)  # (o, 2, kh, 8, 4)
    words = np.ascontiguousarray(parts).view("<u4").reshape(o, 2, kh, 8)
    packed = lanes_of(words.reshape(o, 2 * kh, 2, 4)).reshape(o // 16, 2, kh, 32, 4)
    return StemFilters(packed, (filters.rest * sign).astype(np.int32).view(np.float32), whole)


def stem_macros(
    height: int, width: int, kernel: int, padding: int, channels: int, out: BitsLayout, tables: int,
    epilogue: str,
    signs: int, stream: str, rows: int, np_: int, blocks: int, across: int = 0, hold: int = 0,
) -> dict[str, int | str]:  # fmt: skip
    """Everything `stem.cu` is compiled for: convolution of stride 2, then 3x3 max pooling of stride 2 and
    padding 1."""
    ch, cw = (height + 2 * padding - kernel) // 2 + 1, (width + 2 * padding - kernel) // 2 + 1
    oh, ow = (ch - 1) // 2 + 1, (cw - 1) // 2 + 1
    groups = -(-ow // 7)
    return {
        "IH": height, "IW": width, "KH": kernel, "PY": padding, "PX": padding, "CH": ch, "CW": cw, "OH": oh,
        "OW": ow,
        "OC": channels, "TABLES": tables, "EPILOGUE": epilogue, "SIGNS": signs, "STREAM": stream,
        "OPITCH": out.pitch, "OPAIR": int(out.pair), "OROW": out.row, "OHALO": out.halo, "OHP": out.rows,
        "R": rows, "XG": groups, "XB": min(across or groups, groups),
        "NP": np_, "HOLD": hold, "BLOCKS": blocks,
    }  # fmt: skip


def stem_threads(macros: dict[str, int | str]) -> int:
    return int(macros["XB"]) * (int(macros["OC"]) // (16 * int(macros["NP"]))) * 32


def stem_blocks(macros: dict[str, int | str], images: int) -> int:
    return images * -(-int(macros["OH"]) // int(macros["R"])) * -(-int(macros["XG"]) // int(macros["XB"]))


def stem_shared_bytes(macros: dict[str, int | str]) -> int:
    m = {k: v for k, v in macros.items() if isinstance(v, int)}
    wide = (8 + 28 * m["XB"] + 8 + 3) // 4 * 4
    deep = 4 * m["R"] + 2 + m["KH"]
    weights = 0 if m["HOLD"] else m["OC"] // 16 * 2 * m["KH"] * 32 * 16
    return deep * wide * 4 + weights + m["TABLES"] * m["OC"] * 4
