"""Which tiling a binary convolution gets. The order of the candidates is what an H200 measured
(benchmarks/cuda_kernels.py); what does not divide the channels or fit the shared memory is passed over.

Many pixels: big tiles that stay resident and walk. A chain that reads or writes floats waits for memory, and
wants more warps with fewer registers; bare bits want the most products a load. Few pixels (a batch of one):
tiles so small that every multiprocessor gets one.
"""

from __future__ import annotations

from xnorpp.runtime.cuda.layout import BitsLayout, ConvShape, Fusion, Tile, conv_macros, shared_bytes

_BITS_NARROW = (
    Tile(wm=4, mt=2, ml=4, hold=1, stay=1),
    Tile(wm=4, mt=2, ml=2, stay=1),
    Tile(wm=4, wn=1, mt=2, ml=1, stay=1, blocks=3),
)
_BITS_WIDE = (
    Tile(wm=2, wn=2, mt=4, ml=1, stay=1, blocks=2),
    Tile(wm=4, wn=1, mt=4, ml=1, stay=1, blocks=2),
    Tile(wm=4, wn=1, mt=2, ml=1, stay=1, blocks=3),
    Tile(wm=4, wn=1, mt=2, ml=1, stages=1, stay=1, blocks=2),
)
_STRIDED = (
    Tile(wm=2, wn=2, mt=2, ml=2, stay=1, blocks=2),
    Tile(wm=4, wn=1, mt=2, ml=1, stay=1, blocks=3),
)
_FLOATS_NARROW = (
    Tile(wm=4, mt=2, ml=2, blocks=3, stay=1),
    Tile(wm=4, mt=1, ml=4, blocks=5, stay=1),
    Tile(wm=4, mt=2, ml=2, ahead=2, blocks=4, stay=1),
    Tile(wm=4, mt=1, ml=2, blocks=5, stay=1),
    Tile(wm=4, wn=1, mt=2, ml=1, stay=1, blocks=3),
    Tile(wm=4, mt=2, ml=2, ahead=4, blocks=3, stay=1),
)
_FLOATS_WIDE = (
    Tile(wm=4, wn=1, mt=2, ml=1, stay=1, blocks=3),
    Tile(wm=2, wn=2, mt=2, ml=2, stay=1, blocks=2),
    Tile(wm=4, wn=2, mt=2, ml=1, stay=1),
    Tile(wm=4, wn=1, mt=1, ml=2, stay=1, blocks=4),
    Tile(wm=4, wn=1, mt=2, ml=1, ahead=2, stay=1, blocks=3),
)
_ANY = (
    Tile(wm=4, wn=1, mt=2, ml=1, stages=1),
    Tile(wm=2, wn=1, mt=2, ml=1, stages=1),
    Tile(wm=1, wn=1, mt=2, ml=1, stages=1),
    Tile(wm=4, wn=1, mt=2, np=2, ml=1, stages=1),
    Tile(wm=2, wn=1, mt=2, np=2, ml=1, stages=1),
    Tile(wm=1, wn=1, mt=2, np=2, ml=1, stages=1),
)
_FEW = (
    Tile(wm=2, wn=2, mt=1, np=2, stages=1),
    Tile(wm=1, wn=2, mt=1, np=2, stages=1),
    Tile(wm=1, wn=1, mt=1, np=2, stages=1),
)
_FEW_POOLED = (
    Tile(wm=1, wn=2, mt=2, np=2, stages=1),
    Tile(wm=1, wn=1, mt=2, np=2, stages=1),
)


def candidates(shape: ConvShape, fusion: Fusion, floats: bool, images: int, processors: int) -> list[Tile]:
    """Tiles to try, best first."""
    pixels = images * shape.out_height * shape.out_width
    small: tuple[Tile, ...] = _FEW_POOLED if fusion.pool else _FEW
    if pixels * shape.out_channels < processors * 128 * 64:  # not one big tile for every multiprocessor
        if shape.out_height * shape.out_width <= 64 and not fusion.pool:
            small = small[1:]
        return [*small, *_ANY]
    if floats:
        return [*(_FLOATS_NARROW if shape.in_channels <= 64 else _FLOATS_WIDE), *_ANY, *small]
    if max(shape.stride) > 1:
        return [*_STRIDED, *_ANY, *small]
    return [*(_BITS_NARROW if shape.in_channels <= 64 else _BITS_WIDE), *_ANY, *small]


MOST = 6  # tilings that are ever timed against one another


def buildable_tiles(
    shape: ConvShape,
    layout: BitsLayout,
    out: BitsLayout | None,
    fusion: Fusion,
    cases: int,
    *,
    pooled: BitsLayout | None,
    side: BitsLayout | None,
    side_stride: int,
    floats: bool,
    images: int,
    processors: int,
    shared_limit: int,
) -> list[tuple[Tile, dict[str, int | str]]]:
    """Tiles that can be built and the macros of their kernels, best guess first; none where none can."""
    found: list[tuple[Tile, dict[str, int | str]]] = []
    for tile in candidates(shape, fusion, floats, images, processors):
        if shape.out_channels % tile.block_n or (fusion.pool and tile.mt % 2):
            continue
        macros = conv_macros(shape, layout, out, tile, fusion, cases, pooled, side, side_stride)
        if shared_bytes(macros) <= shared_limit:
            found.append((tile, macros))
        if len(found) == MOST:
            break
    return found
