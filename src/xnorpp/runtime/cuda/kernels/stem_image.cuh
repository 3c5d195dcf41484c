// The rows of an image that a block of stem.cu or stem_wgmma.cu needs, into shared memory: a word a pixel, its fourth byte
// 255 inside the image and 0 outside. Included behind the constants it reads: THREADS, LEFT, WIDE, DEEP.
#pragma once

XN_INLINE u32 opaque(u32 rgb) { return (rgb & 0xFFFFFFu) | 0xFF000000u; }

// `top`: the image's row in shared row 0; `xg0`: the block's first group of columns. Four pixels are three words, and
// FLIGHT of them are asked for before the first is needed.
template <int FLIGHT> XN_INLINE void load_pixels(u32* place, const u8* source, int top, int xg0) {
#if IW % 4 == 0
    for (int begin = threadIdx.x; begin < DEEP * (WIDE / 4); begin += FLIGHT * THREADS) {
        u32 words[FLIGHT][3];
#pragma unroll
        for (int k = 0; k < FLIGHT; ++k) {
            const int i = begin + k * THREADS, row = i / (WIDE / 4), quad = i % (WIDE / 4);
            const int y = top + row, x = 4 * quad - LEFT + 28 * xg0;
            const bool in = row < DEEP && y >= 0 && y < IH && x >= 0 && x < IW;
            const u32* from = (const u32*)(source + (in ? (y * IW + x) * 3 : 0));
#pragma unroll
            for (int j = 0; j < 3; ++j) words[k][j] = in ? from[j] : 0;
        }
#pragma unroll
        for (int k = 0; k < FLIGHT; ++k) {
            const int i = begin + k * THREADS, row = i / (WIDE / 4), quad = i % (WIDE / 4);
            const int y = top + row, x = 4 * quad - LEFT + 28 * xg0;
            if (row >= DEEP) continue;
            const u32 solid = y >= 0 && y < IH && x >= 0 && x < IW ? 0xFF000000u : 0u;
            const u32 w0 = words[k][0], w1 = words[k][1], w2 = words[k][2];
            *(uint4*)(place + row * WIDE + 4 * quad) =
                make_uint4((w0 & 0xFFFFFFu) | solid, (__byte_perm(w0, w1, 0x0543) & 0xFFFFFFu) | solid,
                           (__byte_perm(w1, w2, 0x0432) & 0xFFFFFFu) | solid, w2 >> 8 | solid);
        }
    }
#else
    for (int i = threadIdx.x; i < DEEP * (WIDE / 4); i += THREADS) {
        const int row = i / (WIDE / 4), quad = i % (WIDE / 4);
        const int y = top + row, x = 4 * quad - LEFT + 28 * xg0;
        uint4 four = make_uint4(0, 0, 0, 0);
        if (y >= 0 && y < IH && x >= 0 && x < IW) {
            u32 pixels[4];
            for (int k = 0; k < 4; ++k) {
                const u8* from = source + (y * IW + x + k) * 3;
                pixels[k] = x + k < IW ? opaque(from[0] | from[1] << 8 | from[2] << 16) : 0;
            }
            four = make_uint4(pixels[0], pixels[1], pixels[2], pixels[3]);
        }
        *(uint4*)(place + row * WIDE + 4 * quad) = four;
    }
#endif
}
