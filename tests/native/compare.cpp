// Every detected instruction set against plain C++: random convolutions, pools and epilogues. Bits, counts and
// comparisons must be equal bit for bit; real sums within rounding. Needs no Python, so it also runs under an
// emulator (NEON) and under sanitizers. Usage: compare SEED COUNT; prints what it compared.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "../../csrc/kernels/dispatch.h"
#include "../../csrc/core/conv_build.h"

using namespace xnorpp;

namespace {

std::mt19937 rng;
int draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng); }
float real() { return std::normal_distribution<float>()(rng); }

Buffer reals(size_t n) {
    Buffer buffer(round_up(n, 64) * 4);
    for (size_t i = 0; i < n; i++) buffer.as<float>()[i] = real();
    return buffer;
}

// What follows a convolution: the line of run(), signs of the product times a factor for each pixel, or limits of counts.
enum class Ending { Line, Signs, Limits };

struct Case {
    ConvSpec s;
    int oh, ow, threads;
    bool fused, plain;
    Ending ending = Ending::Line;
    Buffer mult, add, slope, map, threshold, flip, residual, limits, turn;
};

struct Output {
    std::vector<float> floats;
    std::vector<uint8_t> bits;
};

// What has the size of the output, after a change of the shape.
void fit(Case &c) {
    const ConvSpec &s = c.s;
    c.oh = (s.h + 2 * s.ph - s.dh * (s.kh - 1) - 1) / s.sh + 1, c.ow = (s.w + 2 * s.pw - s.dw * (s.kw - 1) - 1) / s.sw + 1;
    const size_t o = (size_t)s.o, pixels = (size_t)c.oh * c.ow;
    c.mult = reals(o), c.add = reals(o), c.slope = reals(o), c.threshold = reals(o);
    c.map = reals(pixels), c.residual = reals(pixels * round_up(o, 16));
    c.flip = Buffer(round_up(o, 64) * 4);
    for (size_t i = 0; i < o; i++) c.flip.as<uint32_t>()[i] = draw(0, 1) ? 0x80000000u : 0u;
}

Case draw_case() {
    Case c{};
    ConvSpec &s = c.s;
    s.groups = draw(0, 2) ? 1 : draw(0, 1) ? draw(2, 3) : draw(8, 80);
    const bool many = s.groups > 3;  // up to depthwise
    s.c = s.groups * draw(1, many ? 2 : draw(0, 1) ? 20 : 150), s.o = s.groups * draw(1, many ? 2 : 70);
    s.kh = draw(1, 3), s.kw = many ? draw(1, 7) : draw(1, 3), s.sh = draw(1, 2), s.sw = draw(1, 2);
    s.ph = draw(0, 2), s.pw = draw(0, 2), s.dh = draw(1, 2), s.dw = draw(1, 2);
    s.h = draw(5, 12), s.w = draw(5, 12), s.pad_value = draw(-1, 1);
    if (s.kw > 3) s.dw = 1, s.w += 2;
    c.fused = draw(0, 1);
    fit(c);
    return c;
}

// A convolution with its weight panels.
struct Built : ConvStore {
    explicit Built(ConvStore store) : ConvStore(std::move(store)), weights(weight_bytes) { take_weights(weights.as()); }
    Buffer weights;
    // Whether the panels give the stored filters again, over whatever lies there.
    bool gives(const void *filters, size_t bytes) const {
        std::vector<uint8_t> found(bytes, 0xa5);
        unpack(conv, weights.as(), found.data());
        return !std::memcmp(found.data(), filters, bytes);
    }
};

// v*map, v*mult + add, prelu, + residual, store, sign: as one fused line or as stages.
Output run(const Kernels &kernels, const Case &c, const ConvStore &store, const void *in) {
    const size_t pixels = (size_t)c.oh * c.ow, stride = round_up((size_t)c.s.o, 16);
    const size_t bytes = ((size_t)c.s.o + 31) / 32 * 4;
    Buffer floats(pixels * stride * 4), bits(pixels * bytes);
    std::memset(bits.as(), 0xff, pixels * bytes);
    Stage stages[6] = {};
    const StageKind kinds[6] = {StageKind::Map,      StageKind::Affine, StageKind::Prelu,
                                StageKind::AddValue, StageKind::Store,  StageKind::Sign};
    for (int i = 0; i < 6; i++) stages[i].kind = kinds[i];
    stages[0].a = c.map.as<float>(), stages[1].a = c.mult.as<float>(), stages[1].b = c.add.as<float>();
    stages[2].a = c.slope.as<float>(), stages[5].a = c.threshold.as<float>(), stages[5].flip = c.flip.as<uint32_t>();
    stages[3].value = c.residual.as(), stages[3].stride = (int)stride;
    stages[4].value = floats.as(), stages[4].stride = (int)stride;
    stages[5].value = bits.as(), stages[5].stride = (int)bytes;
    Epilogue e{};
    e.stages = stages, e.count = 6, e.channels = c.s.o, e.full_stride = (int)stride, e.fused = c.fused;
    e.map = c.map.as<float>(), e.mult = c.mult.as<float>(), e.add = c.add.as<float>();
    e.act = Act::Prelu, e.slope = c.slope.as<float>();
    e.residual = c.residual.as<float>(), e.residual_stride = (int)stride;
    e.out = floats.as<float>(), e.out_stride = (int)stride;
    e.bits = bits.as<uint8_t>(), e.bits_stride = (int)bytes;
    e.threshold = c.threshold.as<float>(), e.flip = c.flip.as<uint32_t>();
    if (c.ending != Ending::Line) {
        e.fused = true, e.mult = nullptr, e.act = Act::None, e.residual = nullptr, e.out = nullptr;
        if (c.ending == Ending::Limits) e.limits = c.limits.as<int16_t>(), e.turn = c.turn.as<uint32_t>();
    } else if (c.plain) {  // v*mult + add, relu, store
        e.fused = true, e.map = nullptr, e.residual = nullptr, e.bits = nullptr;
        e.act = c.fused ? Act::Relu : Act::None;
        if (c.threads % 2) e.mult = e.add = nullptr;
    }
    const Conv &k = store.conv;
    Buffer scratch(scratch_of(kernels, store));
    const ConvFunction conv = function_of(kernels, store.source);
    if (k.oh % 2) {  // block by block, each band prepared once
        Prepared prepared;
        for (int top = 0; top < k.oh; top += k.band)
            for (int b = 0; b < k.blocks; b++)
                conv(k, e, in, top, top + k.band < k.oh ? top + k.band : k.oh, b, b + 1, scratch.as(), &prepared);
    } else {  // two shares of the rows, as two threads would
        const int half = k.oh / 2;
        if (half) conv(k, e, in, 0, half, 0, k.blocks, scratch.as(), nullptr);
        conv(k, e, in, half, k.oh, 0, k.blocks, scratch.as(), nullptr);
    }
    Output out;
    for (size_t p = 0; p < pixels; p++) {
        for (int o = 0; o < c.s.o; o++) out.floats.push_back(floats.as<float>()[p * stride + (size_t)o]);
        for (size_t b = 0; b < bytes; b++) out.bits.push_back(bits.as<uint8_t>()[p * bytes + b]);
    }
    return out;
}

void fail(const Kernels &kernels, const char *what, const Case &c) {
    std::printf("DIFFERENT: %s %s c=%d h=%d w=%d o=%d k=%dx%d s=%dx%d p=%dx%d d=%dx%d g=%d pad=%d fused=%d\n", kernels.name, what,
                c.s.c, c.s.h, c.s.w, c.s.o, c.s.kh, c.s.kw, c.s.sh, c.s.sw, c.s.ph, c.s.pw, c.s.dh, c.s.dw, c.s.groups,
                c.s.pad_value, c.fused);
    std::exit(1);
}

bool close(const Output &a, const Output &b) {
    for (size_t i = 0; i < a.floats.size(); i++)
        if (!(std::fabs(a.floats[i] - b.floats[i]) <= 1e-3f * (1 + std::fabs(a.floats[i])))) return false;
    return true;
}

// Lines without floats. Limits, which plain C++ does not look at, are compared with signs that are made to be the same: of a
// convolution without border cases, whose dot product is n - 2*count.
void compare_endings(const Kernels &kernels, Case &c, const ConvStore &plain, const ConvStore &store, const void *in) {
    const size_t o = (size_t)c.s.o, pixels = (size_t)c.oh * c.ow;
    c.ending = Ending::Signs;
    if (run(*generic_kernels(), c, plain, in).bits != run(kernels, c, store, in).bits) fail(kernels, "signs", c);
    if (kernels.limits && c.s.groups == 1 && c.s.pad_value) {
        const int n = c.s.kh * c.s.kw * c.s.c;
        const size_t padded = round_up(o, kBlock);
        Buffer map(round_up(pixels, 64) * 4), threshold(round_up(o, 64) * 4);
        std::swap(c.map, map), std::swap(c.threshold, threshold);
        for (size_t i = 0; i < pixels; i++) c.map.as<float>()[i] = 1.0f;
        c.limits = Buffer(padded * 2), c.turn = Buffer(padded / 8);
        for (size_t i = 0; i < o; i++) {  // n - 2*count > n - 2*limit, turned round where `flip` is set
            const int limit = draw(n / 2 - 3, n / 2 + 3);
            const bool flip = c.flip.as<uint32_t>()[i] != 0;
            c.limits.as<int16_t>()[i] = (int16_t)limit;
            if (flip) c.turn.as<uint32_t>()[i / kBlock] |= 1u << i % kBlock;
            c.threshold.as<float>()[i] = flip ? (float)(2 * limit - n) - 0.5f : (float)(n - 2 * limit);
        }
        const Output signs = run(*generic_kernels(), c, plain, in);
        c.ending = Ending::Limits;
        if (signs.bits != run(kernels, c, store, in).bits) fail(kernels, "limits", c);
        std::swap(c.map, map), std::swap(c.threshold, threshold);
    }
    c.ending = Ending::Line;
}

// A stem and its max pool by maxima of whole sums, as Engine::run_pooled_sums does it, against the plain floats' maxima.
void compare_pooled(const Kernels &kernels, const Case &c, const ConvStore &plain, const ConvStore &store, const void *in) {
    const Conv &k = store.conv;
    const Pool p{k.o, k.oh, k.ow, (k.oh + 1) / 2, (k.ow + 1) / 2, 3, 3, 2, 2, 1, 1, 1, 1, true, false, false};
    const size_t stride = round_up((size_t)k.o, 16), pixels = (size_t)p.oh * p.ow, bytes = ((size_t)k.o + 31) / 32 * 4;
    Epilogue line{};
    line.channels = k.o, line.fused = true, line.mult = c.mult.as<float>(), line.add = c.add.as<float>(), line.act = Act::Relu;
    Epilogue tail{};
    tail.channels = k.o, tail.fused = true, tail.threshold = c.threshold.as<float>(), tail.flip = c.flip.as<uint32_t>();
    tail.out_stride = (int)stride, tail.bits_stride = (int)bytes;
    Buffer floats[2] = {Buffer(pixels * stride * 4), Buffer(pixels * stride * 4)}, bits[2] = {Buffer(pixels * bytes), Buffer(pixels * bytes)};

    Buffer all((size_t)k.oh * k.ow * stride * 4), row((size_t)p.ow * stride * 4);
    Buffer spare(conv_scratch(plain.conv, generic_kernels()->image_pair, false));
    line.out = all.as<float>(), line.out_stride = (int)stride;
    tail.out = floats[0].as<float>(), tail.bits = bits[0].as<uint8_t>();
    generic_kernels()->conv_image_pair(plain.conv, line, in, 0, k.oh, 0, k.blocks_per_group, spare.as(), nullptr);
    for (int y = 0; y < p.oh; y++) {
        generic_kernels()->pool_row(p, all.as<float>(), (int)stride, 0, y, row.as<float>());
        generic_kernels()->finish(tail, row.as<float>(), (int)stride, y * p.ow, p.ow);
    }

    constexpr int kRing = 8;
    Buffer lines((size_t)kRing * p.ow * stride * 4), toward(round_up((size_t)k.o, kBlock) * 4);
    for (int o = 0; o < k.o; o++) toward.as<int32_t>()[o] = c.mult.as<float>()[o] < 0 ? -1 : 0;
    Buffer scratch(conv_scratch(k, kernels.image_pair, false));
    Epilogue sums{};
    sums.channels = k.o, sums.out_stride = (int)stride, sums.toward = toward.as<int32_t>();
    tail.out = floats[1].as<float>(), tail.bits = bits[1].as<uint8_t>(), tail.toward = sums.toward;
    tail.mult = line.mult, tail.add = line.add, tail.act = line.act;
    Prepared prepared;
    for (int y = 0, done = 0; y < p.oh; y++) {
        const int end = 2 * y + 2 < k.oh ? 2 * y + 2 : k.oh;
        for (int count; done < end; done += count) {
            const bool four = k.eight && done % 4 == 0 && done + 3 < k.oh && draw(0, 3);
            count = four ? 4 : done % 2 == 0 && done + 1 < end ? 2 : 1;
            sums.sums = lines.as<int32_t>() + ((long)(done % kRing) - done) * p.ow * (long)stride;
            kernels.conv_pooled(k, sums, in, done, done + count, scratch.as(), &prepared);
        }
        kernels.pool_lines(p, k, tail, lines.as<int32_t>(), (int)stride, kRing, y);
    }
    for (size_t i = 0; i < pixels; i++)
        for (size_t o = 0; o < (size_t)k.o; o++)
            if (floats[0].as<float>()[i * stride + o] != floats[1].as<float>()[i * stride + o]) fail(kernels, "pooled sums", c);
    if (std::memcmp(bits[0].as(), bits[1].as(), pixels * bytes) != 0) fail(kernels, "bits of pooled sums", c);
}

// Floats rounded to 8 or 16 bits: sums of whole numbers, then steps that are rounded one by one: equal.
void compare_whole(const Kernels &kernels, Case &c, const char *in, const float *bias) {
    ConvSpec s = c.s;
    const int dilation = s.dw;
    c.s.dw = s.dw = 1;
    if (dilation > 1) fit(c);
    const size_t inputs = (size_t)s.c * s.kh * s.kw;
    std::vector<int16_t> filters((size_t)s.o * inputs);
    for (auto &v : filters) v = (int16_t)draw(-128, 127);
    const Buffer scale = reals((size_t)s.o);
    const float limit = draw(0, 2) ? (float)draw(1, 127) : (float)std::min(32767, (int)(INT32_MAX / (128 * inputs)));
    const WholeSpec spec{[&] { return filters; }, scale.as<float>(), limit / 2, limit};
    Budget budget(SIZE_MAX);
    const auto build = [&](const Kernels &k) { return Built(build_whole_conv(k, budget, s, spec, draw(0, 1) ? bias : nullptr)); };
    const auto seed = rng;
    const Output a = run(*generic_kernels(), c, build(*generic_kernels()), in);
    rng = seed;
    const Output b = run(kernels, c, build(kernels), in);
    if (a.floats != b.floats || a.bits != b.bits) fail(kernels, "whole numbers", c);
    c.s.dw = dilation;
    if (dilation > 1) fit(c);
}

void compare_bits(const Kernels &kernels, Case &c) {
    const Kernels &plain = *generic_kernels();
    Budget budget(SIZE_MAX);
    ConvSpec &s = c.s;
    const size_t fan = (size_t)(s.c / s.groups), taps = (size_t)s.kh * s.kw, pixels = (size_t)s.h * s.w;
    const size_t bytes = (fan + 7) / 8, words = ((size_t)s.c + 31) / 32;
    std::vector<uint8_t> weight((size_t)s.o * taps * bytes);
    for (size_t i = 0; i < weight.size(); i++) {
        weight[i] = (uint8_t)draw(0, 255);
        if (i % bytes == bytes - 1 && fan % 8) weight[i] &= (uint8_t)((1u << fan % 8) - 1);
    }
    Buffer bits(pixels * words * 4);
    for (size_t p = 0; p < pixels; p++)
        for (int i = 0; i < s.c; i++) bits.as<uint8_t>()[p * words * 4 + (size_t)i / 8] |= (uint8_t)(draw(0, 1) << i % 8);
    s.in_stride = (int)words;
    const float factor = c.map.as<float>()[0];
    if (draw(0, 3) == 0) c.map.as<float>()[0] = 3e38f;  // whose double is no number
    const Output a = run(plain, c, Built(build_bit_conv(plain, budget, s, weight.data())), bits.as());
    const Built built(build_bit_conv(kernels, budget, s, weight.data()));
    if (!built.gives(weight.data(), weight.size())) fail(kernels, "bits from panels", c);
    const Output b = run(kernels, c, built, bits.as());
    if (a.floats != b.floats || a.bits != b.bits) fail(kernels, "bits", c);
    c.map.as<float>()[0] = factor;
    compare_endings(kernels, c, Built(build_bit_conv(plain, budget, s, weight.data())), Built(build_bit_conv(kernels, budget, s, weight.data())), bits.as());
}

// Rows of more than sixteen pixels, pixels of up to seventeen words, kernels up to 5x5 and strides up to 3: what AVX-512's
// chains of words (csrc/kernels/wide/chain.inl) tell apart.
void compare_long(const Kernels &kernels, const Case &given) {
    Case c = draw_case();
    c.plain = given.plain, c.fused = given.fused;
    ConvSpec &s = c.s;
    s.groups = 1, s.c = (draw(0, 1) ? 32 << draw(0, 4) : 32 * draw(1, 17)) - draw(0, 1) * draw(0, 31), s.o = draw(1, 3) * 16 + draw(0, 1);
    s.kh = draw(1, 5), s.kw = draw(0, 1) ? s.kh : draw(1, 5), s.sh = draw(1, 3), s.sw = draw(1, 3);
    s.h = draw(9, 11), s.w = draw(0, 1) ? draw(9, 20) : draw(30, 50);
    fit(c);
    compare_bits(kernels, c);
}

void compare(const Kernels &kernels) {
    const Kernels &plain = *generic_kernels();
    Budget budget(SIZE_MAX);
    Case c = draw_case();
    ConvSpec &s = c.s;
    c.plain = draw(0, 2) == 0;
    if (draw(0, 1) && s.groups == 1) s.o = 32 * draw(1, 2), s.kw = 3, s.dw = 1, c.fused = draw(0, 3), fit(c);  // ends in registers
    compare_bits(kernels, c);
    if (s.groups == 1) compare_long(kernels, c);
    const size_t pixels = (size_t)s.h * s.w;
    // Floats, with and without padded pixels.
    const int stride = draw(0, 1) ? s.c : (int)round_up((size_t)s.c, 16);
    s.in_stride = stride;
    if (draw(0, 2) == 0) s.kh = s.kw = s.sh = s.sw = s.groups = 1, s.ph = s.pw = 0, s.o = draw(1, 3) * 32;
    c.plain = draw(0, 1), c.threads = draw(0, 1);
    fit(c);
    const size_t count = (size_t)s.o * (size_t)(s.c / s.groups) * (size_t)s.kh * (size_t)s.kw;
    const Buffer x = reals(pixels * (size_t)stride), w = reals(count), bias = reals((size_t)s.o);
    const auto filters = [&] { return std::vector<float>(w.as<float>(), w.as<float>() + w.size() / 4); };
    const Output fa = run(plain, c, Built(build_float_conv(plain, budget, s, filters, nullptr, bias.as<float>())), x.as());
    const Built real(build_float_conv(kernels, budget, s, nullptr, w.as<float>(), bias.as<float>()));
    if (!real.gives(w.as(), count * 4)) fail(kernels, "floats from panels", c);
    const Output fb = run(kernels, c, real, x.as());
    if (!close(fa, fb)) fail(kernels, "floats", c);
    if (s.groups == 1) compare_whole(kernels, c, x.as(), bias.as<float>());
    c.plain = false;
    // Images: integer sums, then steps that are rounded one by one: equal. Half of them have the stem's shape.
    if (draw(0, 1)) s.c = 3, s.kw = 7, s.sw = 2, s.w = draw(0, 1) ? draw(7, 20) : draw(60, 90), s.groups = 1;
    if (s.kw == 7 && s.groups == 1 && draw(0, 1)) {  // two rows at once
        s.kh = 7, s.sh = 2, s.dh = 1, s.h = draw(7, 20);
        c.oh = (s.h + 2 * s.ph - s.kh) / s.sh + 1;
    }
    if (s.groups == 1) {
        s.dw = 1, s.in_stride = s.c;
        c.ow = (s.w + 2 * s.pw - s.kw) / s.sw + 1;
        const size_t out = (size_t)c.oh * c.ow, area = (size_t)s.h * s.w;
        c.map = reals(out), c.residual = reals(out * round_up((size_t)s.o, 16));
        const size_t o = (size_t)s.o, taps = (size_t)s.kh * s.kw;
        std::vector<int16_t> filters(o * (size_t)s.c * taps);
        std::vector<int32_t> means(o * taps), rest(o);
        const int most = draw(0, 2) ? 2000 : 16000;  // beyond what sums of rows have room for
        for (auto &v : filters) v = (int16_t)draw(-most, most);
        for (auto &v : means) v = draw(-100000, 100000);
        for (auto &v : rest) v = draw(-1000, 1000);
        const Buffer scale = reals(o);
        Buffer image(area * (size_t)s.c);
        for (size_t i = 0; i < area * (size_t)s.c; i++) image.as<uint8_t>()[i] = (uint8_t)draw(0, 255);
        const ImageSpec spec{filters.data(), means.data(), rest.data(), scale.as<float>()};
        const auto build = [&](const Kernels &k) { return Built(build_image_conv(k, budget, s, spec, bias.as<float>())); };
        const Output pa = run(plain, c, build(plain), image.as()), pb = run(kernels, c, build(kernels), image.as());
        if (pa.floats != pb.floats || pa.bits != pb.bits)
            fail(kernels, "image", c);
        if (build(plain).source == Source::ImagePair) {  // whose steps are above 0
            for (size_t i = 0; i < o; i++) scale.as<float>()[i] = std::fabs(scale.as<float>()[i]);
            compare_pooled(kernels, c, build(plain), build(kernels), image.as());
        }
    }
}

void compare_transpose(const Kernels &kernels) {
    const int rows = draw(1, 40), columns = draw(1, 40);
    const size_t from_stride = (size_t)(columns + draw(0, 5)), to_stride = (size_t)(rows + draw(0, 5));
    const Buffer from = reals(from_stride * (size_t)rows);
    std::vector<float> a(to_stride * (size_t)columns, 7.0f), b = a;
    generic_kernels()->transpose(from.as<float>(), from_stride, rows, columns, a.data(), to_stride);
    kernels.transpose(from.as<float>(), from_stride, rows, columns, b.data(), to_stride);
    bool right = a == b;
    for (size_t i = 0; i < (size_t)rows; i++)
        for (size_t j = 0; j < (size_t)columns; j++) right &= a[j * to_stride + i] == from.as<float>()[i * from_stride + j];
    if (right) return;
    std::printf("DIFFERENT: %s transposes %d rows of %d\n", kernels.name, rows, columns);
    std::exit(1);
}

void compare_pool(const Kernels &kernels) {
    Pool p{draw(1, 40), draw(3, 9), draw(3, 9), 0, 0, draw(1, 3), draw(1, 3), draw(1, 3), draw(1, 3), 0, 0, 1, 1, false, false, false};
    p.ph = draw(0, p.kh / 2), p.pw = draw(0, p.kw / 2);
    p.oh = (p.h + 2 * p.ph - p.kh) / p.sh + 1, p.ow = (p.w + 2 * p.pw - p.kw) / p.sw + 1;
    p.max = draw(0, 1), p.include_pad = draw(0, 1);
    const int stride = (int)round_up((size_t)p.c, 16);
    const Buffer x = reals((size_t)p.h * p.w * (size_t)stride);
    if (draw(0, 1)) x.as<float>()[draw(0, p.c - 1)] = NAN;
    Buffer a((size_t)p.ow * (size_t)stride * 4), b((size_t)p.ow * (size_t)stride * 4);
    for (int y = 0; y < p.oh; y++) {
        generic_kernels()->pool_row(p, x.as<float>(), stride, 0, y, a.as<float>());
        kernels.pool_row(p, x.as<float>(), stride, 0, y, b.as<float>());
        for (int i = 0; i < p.ow; i++)
            for (int c = 0; c < p.c; c++) {
                const float u = a.as<float>()[i * stride + c], v = b.as<float>()[i * stride + c];
                if (u != v && !(u != u && v != v)) {
                    std::printf("DIFFERENT: %s pool %g %g\n", kernels.name, u, v);
                    std::exit(1);
                }
            }
    }
}

}  // namespace

int main(int argc, char **argv) {
    const int count = argc > 2 ? std::atoi(argv[2]) : 100;
    for (const std::string &name : available_isas()) {
        rng.seed((unsigned)(argc > 1 ? std::atoi(argv[1]) : 0));
        for (int i = 0; i < count; i++) compare(choose_kernels(name)), compare_pool(choose_kernels(name)), compare_transpose(choose_kernels(name));
        std::printf("%s equals generic in %d cases\n", name.c_str(), count);
    }
}
