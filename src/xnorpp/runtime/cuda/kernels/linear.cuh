// Real linear layers: a part of plain.cu, whose arguments and stages they take.
#pragma once

// A real linear layer for a few images: a block makes eight channels of an image, its lanes share the inputs.
XN_KERNEL void __launch_bounds__(THREADS) linear_few(const PlainArguments a) {
    XN_SHARED;
    float* sums = (float*)shared_memory;  // [warp][8]
    Place p;
    if (!locate(a, blockIdx.x, p)) return;  // a whole block
    const int wide = (a.oc + 63) / 64 * 64, first = channel_of(p, 0), second = channel_of(p, 4);
    const float* weight = (const float*)a.weight;
    const bool plain = !a.table && !a.half;
    dependency_wait();
    dependency_release();
    float v[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 4
    for (int k = threadIdx.x; k < a.c; k += THREADS) {
        const float u = plain ? ((const float*)a.source)[p.image * a.image_step + k * a.channel_step] : fetch(a, p.image, 0, 0, k);
        float w0[4];
        float w1[4];
        load4(weight + (long)k * wide + first, w0);
        load4(weight + (long)k * wide + second, w1);
        EACH8(v[i] = __fmaf_rn(u, i < 4 ? w0[i % 4] : w1[i % 4], v[i]))
    }
#pragma unroll
    for (int by = 16; by > 0; by /= 2) {
        EACH8(v[i] = __fadd_rn(v[i], __uint_as_float((u32)__shfl_xor_sync(~0u, (int)__float_as_uint(v[i]), by))))
    }
    if (threadIdx.x % 32 == 0) { EACH8(sums[threadIdx.x / 32 * 8 + i] = v[i]) }
    __syncthreads();
    if (threadIdx.x > 0) return;
#pragma unroll
    for (int k = 1; k < THREADS / 32; ++k) { EACH8(v[i] = __fadd_rn(v[i], sums[k * 8 + i])) }
    if (a.bias) { EACH_CHANNEL(v[i] = __fadd_rn(v[i], a.bias[c])) }
    run_stages(a, p, v);
}

// A real linear layer for many images: 32 images by 64 channels a block of four warps. Two warps take the even inputs, two
// the odd ones, a thread 8 images by 4 channels; of 64 inputs at a time, while the next 64 are on their way.
//
// Shared memory gives a warp 128 bytes a clock and is what such a product waits for. So inputs lie turned, [input][image],
// their fours of images moved by the input's number (`input_place`) to be written and read without conflicts, and lanes are
// numbered so that lane l and l^1 read the same inputs, l and l^2 the same weights: half the steps for both.
constexpr int MANY_THREADS = 128, MANY_IMAGES = 32, MANY_DEEP = 64;
constexpr int MANY_INPUTS = MANY_DEEP * MANY_IMAGES, MANY_PIECE = MANY_INPUTS + MANY_DEEP * 64;  // floats

// Of input k, four images from 4*four.
XN_INLINE int input_place(int k, int four) { return k * MANY_IMAGES + (four ^ k / 4 % 8) * 4; }
// Of an image, four channels from 4*four.
XN_INLINE int sum_place(int image, int four) { return image * 64 + (four ^ four / 8 * 4 ^ image / 8 * 2) * 4; }

XN_INLINE void put_inputs(const float (&u)[4], float* inputs, int image, int k) {
    float* to = inputs + input_place(k, image / 4) + image % 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i * MANY_IMAGES] = u[i];
}

XN_KERNEL void __launch_bounds__(MANY_THREADS, 1) linear_many(const PlainArguments a) {
    XN_SHARED;
    float* pieces = (float*)shared_memory;  // [2]: inputs, [MANY_DEEP][64] of weights
    float* sums = (float*)shared_memory;    // then [2][MANY_IMAGES][64]
    const int units = (a.oc + 63) / 64, wide = units * 64;
    Place p;
    p.unit = blockIdx.x % units;
    p.byte = threadIdx.x % 8;
    p.y = p.x = 0;
    const int base = blockIdx.x / units * MANY_IMAGES, lane = threadIdx.x % 32, half = threadIdx.x / 32 % 2;
    const int down = lane / 2 % 4, across = threadIdx.x / 64 * 8 + lane / 8 * 2 + lane % 2;  // of 8 images, 4 channels
    const bool fours = by_fours(a);
    const float* column = (const float*)a.weight + p.unit * 64 + threadIdx.x % 16 * 4;
    // Inputs a thread brings: four of image from_image (+ 16), number from_k (+ 32) and the three behind it.
    const int from_k = threadIdx.x % 8 * 4, from_image = threadIdx.x / 8;
    const int row_size = a.half ? 2 : 4;
    const u8* rows[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {  // an image past the last is read as the last and never written
        const int image = base + from_image + j * 16;
        rows[j] = (const u8*)a.source + ((image < a.images ? image : a.images - 1) * a.image_step + from_k) * row_size;
    }
    const auto start_weights = [&](int at, float* piece) {
        const int first = at + threadIdx.x / 16;
        const float* from = column + (long)first * wide;
        float* to = piece + MANY_INPUTS + threadIdx.x * 4;
#pragma unroll
        for (int j = 0; j < MANY_DEEP; j += 8, from += 8 * wide) copy16_start(to + j * 64, from, first + j < a.c);
    };
    // Weights need no wait for the kernel before: the first go here, the others near, where they are few.
    start_weights(0, pieces);
    const long bytes = (long)a.c * wide * 4;
    if (threadIdx.x == 0 && bytes <= 8 << 20) {
        const long share = (bytes / 16 + gridDim.x - 1) / gridDim.x * 16, from = blockIdx.x * share;
        if (from < bytes) prefetch((const u8*)a.weight + from, (u32)(bytes - from < share ? bytes - from : share));
    }
    float bias[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    if (a.bias) { EACH_CHANNEL(bias[i] = a.bias[c]) }
    dependency_wait();
    dependency_release();
    float4 next[4];  // as they lie in memory: of halves the first two words
    const auto bring = [&](int at) {
        const bool there[2] = {at + from_k < a.c, at + from_k + 32 < a.c};
#pragma unroll
        for (int j = 0; j < 4; ++j) next[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (!fours) return;
        if (a.half) {
#pragma unroll
            for (int j = 0; j < 4; ++j)
                if (there[j % 2]) *(float2*)&next[j] = *(const float2*)(rows[j / 2] + (at + j % 2 * 32) * 2);
        } else {
#pragma unroll
            for (int j = 0; j < 4; ++j)
                if (there[j % 2]) next[j] = *(const float4*)(rows[j / 2] + (at + j % 2 * 32) * 4);
        }
    };
    const auto put = [&](int at, float* piece) {
        float u[4];
        if (fours) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                if (a.half) unpack4(make_uint2(float_bits(next[j].x), float_bits(next[j].y)), u);
                else unpack4(next[j], u);
                put_inputs(u, piece, from_image + j / 2 * 16, from_k + j % 2 * 32);
            }
            return;
        }
#pragma unroll 1
        for (int j = 0; j < 4; ++j) {  // any other source, one by one
            const int row = from_image + j / 2 * 16, k = from_k + j % 2 * 32;
#pragma unroll
            for (int i = 0; i < 4; ++i)
                u[i] = base + row < a.images && at + k + i < a.c ? fetch(a, base + row, 0, 0, at + k + i) : 0.0f;
            put_inputs(u, piece, row, k);
        }
    };
    bring(0);
    put(0, pieces);
    float acc[8][4];
    EACH8(acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0.0f)
    for (int at = 0, now = 0; at < a.c; at += MANY_DEEP, now ^= 1) {
        float* piece = pieces + now * MANY_PIECE;
        float* other = pieces + (now ^ 1) * MANY_PIECE;
        const bool more = at + MANY_DEEP < a.c;
        copy16_wait();
        __syncthreads();  // this piece is here, and nobody reads the other any more
        if (more) {
            start_weights(at + MANY_DEEP, other);
            bring(at + MANY_DEEP);
        }
        // Input 2k + half: `input_place` with k known to the compiler, so that four addresses serve all.
        const float* inputs[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) inputs[j] = piece + half * MANY_IMAGES + (down ^ j) * 8;
        const float* weights = piece + MANY_INPUTS + half * 64 + across * 4;
        float u[2][2][4];
        float w[2][4];
        const auto take = [&](int k, int to, int back) {
            const float* from = inputs[k / 4 % 4] + (k - back) * 2 * MANY_IMAGES;
            load4(from + k / 2 % 2 * 4, u[to][0]);
            load4(from + (4 - k / 2 % 2 * 4), u[to][1]);
            load4(weights + (k - back) * 128, w[to]);
        };
        take(0, 0, 0);
#pragma unroll 1
        for (int part = 0; part < 2; ++part) {
            const int last = part == 0 ? 0 : MANY_DEEP / 4;  // nothing lies behind the second: its first again, for nobody
#pragma unroll
            for (int k = 0; k < MANY_DEEP / 4; ++k) {
                take(k + 1, (k + 1) % 2, k + 1 < MANY_DEEP / 4 ? 0 : last);
#pragma unroll
                for (int i = 0; i < 8; ++i)
#pragma unroll
                    for (int j = 0; j < 4; ++j) acc[i][j] = __fmaf_rn(u[k % 2][i / 4][i % 4], w[k % 2][j], acc[i][j]);
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) inputs[j] += MANY_DEEP / 2 * MANY_IMAGES;
            weights += MANY_DEEP / 2 * 64;
        }
        if (more) put(at + MANY_DEEP, other);
    }
    __syncthreads();
    EACH8(store4(sums + half * MANY_IMAGES * 64 + sum_place(8 * down + i, across), acc[i]))
    __syncthreads();
    if (channel_of(p, 0) >= a.oc) return;
#pragma unroll 1
    for (int row = threadIdx.x / 8; row < MANY_IMAGES && base + row < a.images; row += MANY_THREADS / 8) {
        p.image = base + row;
        float v[8];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const float* from = sums + sum_place(row, channel_of(p, 4 * j) % 64 / 4);
            float even[4];
            float odd[4];
            load4(from, even);
            load4(from + MANY_IMAGES * 64, odd);
#pragma unroll
            for (int i = 0; i < 4; ++i) v[4 * j + i] = __fadd_rn(even[i], odd[i]);
        }
        if (a.bias) { EACH8(v[i] = __fadd_rn(v[i], bias[i])) }
        run_stages(a, p, v);
    }
}
