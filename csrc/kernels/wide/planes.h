// The prepared rows of a convolution by a matrix unit. 64 channels of a pixel are a unit: 64 bytes, 0 or 1. A tile takes
// sixteen pixels that lie at equal distances, so an image is cut into planes, one for each remainder of row and column by
// the strides: neighbouring outputs then begin at neighbouring pixels of a plane, whatever the stride, and a tile goes on from
// the end of one row to the begin of the next. The places between the rows' ends are computed too and thrown away.
#pragma once
#include "../kernels.h"

namespace xnorpp {

constexpr int kPlaneUnit = 64;         // channels and bytes of a unit
constexpr int kTilePlaces = 16;        // pixels, and filters, of a tile
constexpr int kMostTiles = 4;          // tiles of pixels that are computed together
constexpr size_t kMostPlaneBytes = 64 * 1024;
constexpr int kRing = 8;               // tiles of weights, a power of two

static inline int plane_columns(const Conv &k) { return (k.cols + k.sw - 1) / k.sw; }
static inline int plane_rows(const Conv &k) { return k.band + (k.kh - 1) * k.dh / k.sh; }
static inline int planes_across(const Conv &k) { return (k.kw - 1) * k.dw + 1 < k.sw ? (k.kw - 1) * k.dw + 1 : k.sw; }
static inline int planes_down(const Conv &k) { return (k.kh - 1) * k.dh + 1 < k.sh ? (k.kh - 1) * k.dh + 1 : k.sh; }
static inline int planes(const Conv &k) { return planes_across(k) * planes_down(k); }
// Units up to the place of a row and a column of a window, from the window's first.
static inline size_t plane_offset(const Conv &k, int row, int column) {
    const size_t plane = (size_t)(row % k.sh) * planes_across(k) + column % k.sw;
    return (plane * plane_rows(k) + row / k.sh) * k.row_units + (size_t)(column / k.sw) * k.units;
}
static inline size_t plane_units(const Conv &k) { return (size_t)planes(k) * plane_rows(k) * k.row_units; }
// The last tiles read pixels after the last one.
static inline size_t plane_bytes(const Conv &k) { return (plane_units(k) + (size_t)kMostTiles * kTilePlaces * k.units) * kPlaneUnit; }
// Tiles of the places of some rows, and jobs: a job is up to four tiles of pixels and a block of filters.
static inline int plane_tiles(const Conv &k, int rows) {
    return ((rows - 1) * plane_columns(k) + k.ow + kTilePlaces - 1) / kTilePlaces;
}
static inline int plane_jobs(const Conv &k, int rows) { return (plane_tiles(k, rows) + kMostTiles - 1) / kMostTiles; }
// The weights of a block as bytes, or, where one job is all that uses them, a ring of some tiles.
static inline size_t plane_panel_bytes(const Conv &k) {
    const size_t tile = (size_t)kPlaneUnit * kTilePlaces, all = (size_t)k.total_units * 2 * tile;
    return plane_jobs(k, k.band) == 1 && all > kRing * tile ? kRing * tile : all;
}
static inline size_t plane_counts_bytes() { return (size_t)kMostTiles * kTilePlaces * kBlock * sizeof(int32_t); }
static inline size_t plane_scratch(const Conv &k) {
    return plane_bytes(k) + plane_panel_bytes(k) + 2 * plane_counts_bytes() + 4 * kLine;
}

}  // namespace xnorpp
