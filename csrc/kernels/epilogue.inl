// The epilogue: from an accumulated tile to floats and bits in memory. Included by every instruction set's file
// after it has defined its vector `F` of `N` floats; all is in an unnamed namespace, so nothing is shared.
//
// The arithmetic. A register starts as the dot product, exact in float32 (below 2**24). With batch norm, scale
// and bias folded by the packer it becomes  v = (dot*map[pixel])*mult[c] + add[c], then an activation, then the
// shortcut is added. The multiply-add rounds once, as PyTorch's batch norm does, every other operation by itself, so the
// result equals reference.py's bit for bit. The next layer's sign is a comparison: bit = v*map > t[c], or < t[c] in a flipped
// channel, which is -v*map > -t[c]: `flip` holds the sign bit that is xor-ed in, and the stored threshold is already
// negated. A NaN compares false either way, so its bit is 0 (-1).

namespace {

// What happens behind the activation, known at compile time for the lines that networks are full of; every source
// below says which of them it often meets.
// Shifted: the shortcut, then a PReLU between two shifts (RPReLU), and floats and bits.
enum class Tail : unsigned { Any = 0, Bits = 1, Out = 2, OutBits = 4, ResidualOutBits = 8, Shifted = 16 };
constexpr unsigned kBinaryTails = (unsigned)Tail::Bits | (unsigned)Tail::Out | (unsigned)Tail::ResidualOutBits | (unsigned)Tail::Shifted;
constexpr unsigned kStoredTail = (unsigned)Tail::Out;
constexpr unsigned kPooledTails = (unsigned)Tail::Bits | (unsigned)Tail::Out | (unsigned)Tail::OutBits;

inline Tail tail_of(const Epilogue &e) {
    const bool second = e.residual && e.mult2 && e.act2 == Act::Prelu && e.mult3;
    if (second && e.act == Act::None && e.out && e.bits && !e.sign_map) return Tail::Shifted;
    if (e.mult2 || e.mult3 || e.act2 != Act::None || e.sign_map) return Tail::Any;
    if (!e.residual && !e.out && e.bits) return Tail::Bits;
    if (!e.residual && e.out) return e.bits ? Tail::OutBits : Tail::Out;
    return e.residual && e.out && e.bits ? Tail::ResidualOutBits : Tail::Any;
}

// Whether a line is the one that most layers of a network have: factors, PReLU, shortcut, floats and bits.
inline bool is_usual(const Epilogue &e) {
    const bool usual = e.fused && e.map && e.mult && !e.mult2 && !e.mult3 && e.act2 == Act::None && !e.sign_map;
    return usual && (e.act == Act::Prelu || e.act == Act::Leaky) && e.residual && e.out && e.bits && e.channels % kBlock == 0;
}

struct BaseMinus {  // dot = base[case][c] - 2*differing, from 16-bit counts; all exact in float32
    static constexpr unsigned kTails = kBinaryTails;
    const uint16_t *counts;
    const float *const *base;
    __attribute__((always_inline)) F get(int i, int lane, int c) const { return from_counts16(base[i] + c, counts + i * kBlock + lane); }
    float one(int i, int lane, int c) const { return base[i][c] - 2.0f * (float)counts[i * kBlock + lane]; }
};
struct WideBaseMinus {  // the same from 32-bit counts
    static constexpr unsigned kTails = kWideCounts ? kBinaryTails : 0;
    const int32_t *counts;
    const float *const *base;
    __attribute__((always_inline)) F get(int i, int lane, int c) const { return from_counts32(base[i] + c, counts + i * kBlock + lane); }
    float one(int i, int lane, int c) const { return base[i][c] - 2.0f * (float)counts[i * kBlock + lane]; }
};
struct Biased {  // sum + bias[c]
    static constexpr unsigned kTails = kStoredTail;
    const float *sums, *bias;
    __attribute__((always_inline)) F get(int i, int lane, int c) const { return add(load(sums + i * kBlock + lane), load(bias + c)); }
    float one(int i, int lane, int c) const { return sums[i * kBlock + lane] + bias[c]; }
};
struct Dequantised {  // scale[c]*(sum + shift[case][c]) + bias[c]; rounded one by one, as every engine does
    static constexpr unsigned kTails = kStoredTail;
    const int32_t *sums;
    const int32_t *const *shift;
    const float *scale, *bias;
    __attribute__((always_inline)) F get(int i, int lane, int c) const {
        const F v = mul(load_sums(sums + i * kBlock + lane, shift[i] + c), load(scale + c));
        return bias ? add(v, load(bias + c)) : v;
    }
    float one(int i, int lane, int c) const {
        const float v = (float)(sums[i * kBlock + lane] + shift[i][c]) * scale[c];
        return bias ? v + bias[c] : v;
    }
};
struct Pooled {  // the same from whole sums whose maxima along rows are in three lines (pooled.inl), border's part included
    static constexpr unsigned kTails = kPooledTails;
    const int32_t *upper, *middle, *lower;
    int stride;
    const int32_t *toward;
    const float *scale, *bias;
    __attribute__((always_inline)) F get(int i, int, int c) const {
        const size_t at = (size_t)i * stride + c;
        const I most = max_ints(max_ints(load_ints(upper + at), load_ints(middle + at)), load_ints(lower + at));
        const F v = mul(to_floats(xor_ints(most, load_ints(toward + c))), load(scale + c));
        return bias ? add(v, load(bias + c)) : v;
    }
};
struct Plain {  // a float value in memory
    static constexpr unsigned kTails = kPooledTails;
    const float *src;
    int stride;
    __attribute__((always_inline)) F get(int i, int, int c) const { return load(src + (size_t)i * stride + c); }
};

inline int vectors_in(const Epilogue &e, int c0) {
    int left = (e.channels + 15) / 16 * 16 - c0;
    return (left < kBlock ? left : kBlock) / N;
}

// Bits of channels c..c+N that exist; the tail behind `channels` is written as 0.
inline unsigned channel_mask(int channels, int c) {
    int left = channels - c;
    return left >= N ? (unsigned)((1ull << N) - 1) : left <= 0 ? 0u : (1u << left) - 1;
}

inline void put_bits(uint8_t *pixel, int c, unsigned bits) {
    if constexpr (N == 16) {
        uint16_t half = (uint16_t)bits;
        __builtin_memcpy(pixel + c / 8, &half, 2);
    } else {
        pixel[c / 8] = (uint8_t)bits;
    }
}

inline void clear_tail_bits(const Epilogue &e, uint8_t *pixel, int c0, int from) {
    int end = (e.channels + 31) / 32 * 32;
    for (int c = c0 + from; c < c0 + kBlock && c < end; c += N) put_bits(pixel, c, 0);
}

// `kVectors` vectors of channels from c on, of every pixel of the tile: their constants stay in registers.
template <int kVectors, bool kMap, bool kAffine, Act A, Tail T, class Src>
__attribute__((always_inline)) inline void fused_vectors(const Epilogue &e, const Src &src, const int *pixels, int n, int c0,
                                                         int lane0) {
    const bool has_residual = T == Tail::Any ? e.residual != nullptr : T == Tail::ResidualOutBits || T == Tail::Shifted;
    const bool has_out = T == Tail::Any ? e.out != nullptr : T != Tail::Bits;
    const bool has_bits = T == Tail::Any ? e.bits != nullptr : T != Tail::Out;
    const Act act2 = T == Tail::Any ? e.act2 : T == Tail::Shifted ? Act::Prelu : Act::None;
    const bool has_second = T == Tail::Any ? e.mult2 != nullptr : T == Tail::Shifted;
    const bool has_third = T == Tail::Any ? e.mult3 != nullptr : T == Tail::Shifted;
    const int first = c0 + lane0;
    F mult[kVectors], shift[kVectors], slope[kVectors], flip[kVectors], threshold[kVectors];
    unsigned real = 0;
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; j++) {
        const int c = first + j * N;
        if (kAffine) mult[j] = load(e.mult + c), shift[j] = load(e.add + c);
        if (A == Act::Prelu || A == Act::Leaky) slope[j] = load(e.slope + c);
        flip[j] = has_bits ? load((const float *)e.flip + c) : zero();
        threshold[j] = has_bits ? load(e.threshold + c) : zero();
        real |= channel_mask(e.channels, c) << j * N;
    }
    // Fewer names than registers: of the places below, those that lie together are found by one product.
    const float *const residuals = has_residual ? e.residual + first : nullptr;
    float *const outs = has_out ? e.out + first : nullptr;
    uint8_t *const signs = has_bits ? e.bits + first / 8 : nullptr;
    const size_t step = (size_t)e.out_stride, residual_step = (size_t)e.residual_stride, bits_step = (size_t)e.bits_stride;
    const float *const maps = e.map;
    const auto one = [&](int i, int p, size_t at, size_t residual_at, size_t bits_at) __attribute__((always_inline)) {
        const F map = kMap ? set1(maps[p]) : zero();
        const F sign_map = T == Tail::Any && e.sign_map ? set1(e.sign_map[p]) : set1(1.0f);
        unsigned word = 0;
#pragma GCC unroll 2
        for (int j = 0; j < kVectors; j++) {
            const int c = first + j * N;
            F v = src.get(i, lane0 + j * N, c);
            if (kMap) v = mul(v, map);
            if (kAffine) v = multiply_add(v, mult[j], shift[j]);
            if (A == Act::Relu) v = relu(v);
            if (A == Act::Prelu) v = prelu(v, slope[j]);
            if (A == Act::Leaky) v = leaky(v, slope[j]);
            if (A == Act::Hardtanh) v = clamp(v, set1(e.lo), set1(e.hi));
            if (has_residual) v = add(v, load(residuals + residual_at + j * N));
            if (has_second) v = multiply_add(v, load(e.mult2 + c), load(e.add2 + c));
            if (act2 == Act::Relu) v = relu(v);
            else if (act2 == Act::Prelu) v = prelu(v, load(e.slope2 + c));
            else if (act2 == Act::Hardtanh) v = clamp(v, set1(e.lo2), set1(e.hi2));
            if (has_third) v = multiply_add(v, load(e.mult3 + c), load(e.add3 + c));
            if (has_out) store(outs + at + j * N, v);
            if (has_bits) {
                if (T == Tail::Any && e.sign_map) v = mul(v, sign_map);
                word |= greater(xor_sign(v, flip[j]), threshold[j]) << j * N;
            }
        }
        if (has_bits) {  // the tail behind the last channel is 0
            word &= real;
            __builtin_memcpy(signs + bits_at, &word, kVectors * N / 8);
        }
    };
    const bool together = bits_step * 8 == step && (!has_residual || residual_step == step);
    if ((T == Tail::ResidualOutBits || T == Tail::OutBits || T == Tail::Shifted) && together) {
        for (int i = 0; i < n; i++) {
            const int p = pixels[i];
            if (p < 0) continue;
            const size_t at = (size_t)p * step;
            one(i, p, at, at, at / 8);
        }
        return;
    }
    for (int i = 0; i < n; i++) {
        const int p = pixels[i];
        if (p >= 0) one(i, p, (size_t)p * step, (size_t)p * residual_step, (size_t)p * bits_step);
    }
}

template <bool kMap, bool kAffine, Act A, Tail T, class Src>
void fused_tile(const Epilogue &line, const Src &source, const int *pixels, int n, int c0) {
    const Epilogue e = line;  // copies: a vector store might change the originals, and they would be read again after each
    const Src src = source;
    const int count = vectors_in(e, c0);
    int j = 0;
    for (; j + 2 <= count; j += 2) fused_vectors<2, kMap, kAffine, A, T>(e, src, pixels, n, c0, j * N);
    if (j < count) fused_vectors<1, kMap, kAffine, A, T>(e, src, pixels, n, c0, j * N);
    if (e.bits && count < kBlock / N)
        for (int i = 0; i < n; i++)
            if (pixels[i] >= 0) clear_tail_bits(e, e.bits + (size_t)pixels[i] * e.bits_stride, c0, count * N);
}

// One stage of a general line over a tile of `count` vectors of channels from c0 on, which stays in memory.
inline void run_stage(const Epilogue &e, const Stage &stage, float *tile, const int *pixels, int n, int c0, int count) {
    const Stage g = stage;  // a copy: a store might change the original
    const auto each = [&](auto change) __attribute__((always_inline)) {
        for (int i = 0; i < n; i++) {
            const int p = pixels[i];
            if (p < 0) continue;
            float *memory = (float *)g.value + (size_t)p * g.stride;
            for (int j = 0; j < count; j++) {
                float *at = tile + i * kBlock + j * N;
                change(at, load(at), memory, p, c0 + j * N);
            }
        }
    };
// `each` with what becomes of the vector v of a pixel p and channels c; `memory` is the pixel's in the stage's value.
#define XN_BECOMES(expression) \
    each([&](float *at, F v, [[maybe_unused]] float *memory, [[maybe_unused]] int p, [[maybe_unused]] int c) __attribute__((always_inline)) { store(at, expression); })
    switch (g.kind) {
        case StageKind::Map: XN_BECOMES(mul(v, set1(g.a[p]))); break;
        case StageKind::Full: XN_BECOMES(mul(v, load(g.a + (size_t)p * e.full_stride + c))); break;
        case StageKind::Affine: XN_BECOMES(multiply_add(v, load(g.a + c), load(g.b + c))); break;
        case StageKind::Relu: XN_BECOMES(relu(v)); break;
        case StageKind::Prelu: XN_BECOMES(prelu(v, load(g.a + c))); break;
        case StageKind::Hardtanh: XN_BECOMES(clamp(v, set1(g.lo), set1(g.hi))); break;
        case StageKind::Curve:
            if (count * N == kBlock) {  // the pixels lie side by side
                run_curve(g.which, g.lo, tile, n * kBlock);
                break;
            }
            for (int i = 0; i < n; i++)
                if (pixels[i] >= 0) run_curve(g.which, g.lo, tile + i * kBlock, count * N);
            break;
        case StageKind::AddValue:
            if (g.which) XN_BECOMES(add(v, set1(memory[0])));
            else XN_BECOMES(add(v, load(memory + c)));
            break;
        case StageKind::SubValue:
            if (g.which) XN_BECOMES(add(v, xor_sign(set1(memory[0]), set1(-0.0f))));
            else XN_BECOMES(add(v, xor_sign(load(memory + c), set1(-0.0f))));
            break;
        case StageKind::DivValue:
            if (g.which) XN_BECOMES(div(v, set1(memory[0])));
            else XN_BECOMES(div(v, load(memory + c)));
            break;
        case StageKind::MulValue: XN_BECOMES(mul(v, load(memory + c))); break;
        case StageKind::MulPixel: XN_BECOMES(mul(v, set1(memory[0]))); break;
        case StageKind::Store: each([&](float *, F v, float *memory, int, int c) __attribute__((always_inline)) { store(memory + c, v); }); break;
        case StageKind::Sign:
            each([&](float *, F v, float *, int p, int c) __attribute__((always_inline)) {
                F u = v;
                if (g.map) u = mul(u, set1(g.map[p]));
                if (g.full) u = mul(u, load(g.full + (size_t)p * e.full_stride + c));
                const F turned = xor_sign(u, load((const float *)g.flip + c));
                uint8_t *bits = (uint8_t *)g.value + (size_t)p * g.stride;
                put_bits(bits, c, greater(turned, load(g.a + c)) & channel_mask(e.channels, c));
            });
            for (int i = 0; i < n; i++)
                if (pixels[i] >= 0) clear_tail_bits(e, (uint8_t *)g.value + (size_t)pixels[i] * g.stride, c0, count * N);
            break;
    }
#undef XN_BECOMES
}

// The general line: the tile is materialised and each stage passes over it.
template <class Src>
void staged_tile(const Epilogue &e, const Src &src, const int *pixels, int n, int c0) {
    alignas(64) float tile[kMaxTile * kBlock];
    const int count = vectors_in(e, c0);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < count; j++) store(tile + i * kBlock + j * N, src.get(i, j * N, c0 + j * N));
    for (int s = 0; s < e.count; s++) run_stage(e, e.stages[s], tile, pixels, n, c0, count);
}

template <bool kMap, bool kAffine, Tail T, class Src>
void with_act(const Epilogue &e, const Src &src, const int *pixels, int n, int c0) {
    switch (e.act) {
        case Act::None: return fused_tile<kMap, kAffine, Act::None, T>(e, src, pixels, n, c0);
        case Act::Relu: return fused_tile<kMap, kAffine, Act::Relu, T>(e, src, pixels, n, c0);
        case Act::Prelu: return fused_tile<kMap, kAffine, Act::Prelu, T>(e, src, pixels, n, c0);
        case Act::Hardtanh: return fused_tile<kMap, kAffine, Act::Hardtanh, T>(e, src, pixels, n, c0);
        case Act::Leaky: return fused_tile<kMap, kAffine, Act::Leaky, T>(e, src, pixels, n, c0);
    }
}

template <bool kMap, bool kAffine, class Src>
void with_tail(const Epilogue &e, const Src &src, const int *pixels, int n, int c0) {
    const Tail tail = tail_of(e);
    if constexpr (Src::kTails & (unsigned)Tail::Bits)
        if (tail == Tail::Bits) return with_act<kMap, kAffine, Tail::Bits>(e, src, pixels, n, c0);
    if constexpr (Src::kTails & (unsigned)Tail::Out)
        if (tail == Tail::Out) return with_act<kMap, kAffine, Tail::Out>(e, src, pixels, n, c0);
    if constexpr (Src::kTails & (unsigned)Tail::OutBits)
        if (tail == Tail::OutBits) return with_act<kMap, kAffine, Tail::OutBits>(e, src, pixels, n, c0);
    if constexpr (Src::kTails & (unsigned)Tail::ResidualOutBits)
        if (tail == Tail::ResidualOutBits) return with_act<kMap, kAffine, Tail::ResidualOutBits>(e, src, pixels, n, c0);
    if constexpr (Src::kTails & (unsigned)Tail::Shifted)
        if (tail == Tail::Shifted) return fused_tile<kMap, kAffine, Act::None, Tail::Shifted>(e, src, pixels, n, c0);
    with_act<kMap, kAffine, Tail::Any>(e, src, pixels, n, c0);
}

// Lines of real layers that end in registers: a factor and a summand or not, ReLU or not, floats alone.
inline bool ends_in_registers(const Epilogue &e) {
    const bool plain = e.fused && !e.map && !e.residual && !e.mult2 && !e.mult3 && e.act2 == Act::None && !e.bits && !e.sign_map;
    return plain && e.out && (e.act == Act::None || e.act == Act::Relu) && e.channels % kBlock == 0;
}

// Such a line for P pixels from `pixel` on, V vectors of channels from c on. One pass for each operation: as few instructions as
// there can be for every P.
template <int P, int V>
__attribute__((always_inline)) inline void end_points(const Epilogue &e, F (&v)[P][V], int pixel, int c) {
    if (e.mult)
#pragma GCC unroll 2
        for (int j = 0; j < V; j++) {
            const F mult = load(e.mult + c + j * N), shift = load(e.add + c + j * N);
#pragma GCC unroll 16
            for (int i = 0; i < P; i++) v[i][j] = multiply_add(v[i][j], mult, shift);
        }
    if (e.act == Act::Relu)
#pragma GCC unroll 16
        for (int i = 0; i < P; i++)
#pragma GCC unroll 2
            for (int j = 0; j < V; j++) v[i][j] = relu(v[i][j]);
    float *out = e.out + (size_t)pixel * e.out_stride + c;
    const size_t step = (size_t)e.out_stride;
#pragma GCC unroll 16
    for (int i = 0; i < P; i++, out += step)
#pragma GCC unroll 2
        for (int j = 0; j < V; j++) store(out + j * N, v[i][j]);
}

// Pixels with index -1 are computed and thrown away.
template <class Src>
void finish_tile(const Epilogue &e, const Src &src, const int *pixels, int n, int c0) {
    if (!e.fused) return staged_tile(e, src, pixels, n, c0);
    if (e.map) return e.mult ? with_tail<true, true>(e, src, pixels, n, c0) : with_tail<true, false>(e, src, pixels, n, c0);
    return e.mult ? with_tail<false, true>(e, src, pixels, n, c0) : with_tail<false, false>(e, src, pixels, n, c0);
}

[[maybe_unused]] void finish_pixels(const Epilogue &e, const float *src, int stride, int first, int n) {
    int pixels[kMaxTile];
    for (int at = 0; at < n; at += kMaxTile) {
        const int m = n - at < kMaxTile ? n - at : kMaxTile;
        for (int i = 0; i < m; i++) pixels[i] = first + at + i;
        const Plain plain{src + (size_t)at * stride, stride};
        for (int c0 = 0; c0 < e.channels; c0 += kBlock) finish_tile(e, plain, pixels, m, c0);
    }
}

}  // namespace
