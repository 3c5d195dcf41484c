// How each kind of step runs: its pieces, in the order a thread takes them.
#include <cmath>

#include "engine.h"

namespace xnorpp {

constexpr size_t kMostViews = 4;  // without memory of their own

// One image from the caller's layout to ours.
void Engine::image_in(const Call &call, Pieces pieces) const {
    const ValueSpec &v = values_[(size_t)input_];
    float *to = (float *)(call.context->arena.as() + v.offset);
    for (Share rows; pieces.next(rows, v.h);) {
        const size_t first = (size_t)rows.begin * v.w;
        if (!call.bytes) {
            kernels_.transpose((const float *)call.x + first, (size_t)v.pixels(), v.c, (rows.end - rows.begin) * v.w, to + first * v.stride, (size_t)v.stride);
            continue;
        }
        for (int y = rows.begin; y < rows.end; y++) {
            float *row = to + (size_t)y * v.w * v.stride;
            const size_t columns = table_.size() / 256;  // one for each channel, or one for all
            for (int c = 0; c < v.c; c++) {
                const uint8_t *from = (const uint8_t *)call.x + (size_t)y * v.w * v.c + c;
                const float *floats = table_.data() + (columns == 1 ? 0 : c);
                for (int i = 0; i < v.w; i++) row[(size_t)i * v.stride + c] = floats[(size_t)from[(size_t)i * v.c] * columns];
            }
        }
    }
}

void Engine::run_conv(const Call &call, size_t index, int thread, Pieces &pieces) const {
    const Step &step = steps_[index];
    const bool from_bytes = call.bytes && step.image;
    const ConvStore &store = from_bytes ? *step.image : *step.conv;
    const Conv &k = store.conv;
    const void *in = from_bytes ? call.x : call.context->arena.as() + values_[(size_t)step.in].offset;
    const Epilogue &e = call.context->epilogues[index];
    char *scratch = call.context->scratch[(size_t)thread].as();
    const ConvFunction run = function_of(kernels_, store.source);
    int blocks = k.blocks;
    if (pieces.alone()) return run(k, e, in, 0, k.oh, 0, blocks, scratch, nullptr);
    const Split &split = splits_[index];
    Share share;
    if (split.by == By::Row) {
        Prepared rows;  // the parts of a thread follow each other and share most of their border
        Prepared *ready = is_binary(store.source) ? &rows : nullptr;
        while (pieces.next(share, split.most)) run(k, e, in, share.begin, share.end, 0, blocks, scratch, ready);
        return;
    }
    blocks /= split.width;
    if (split.by == By::Both) {  // pieces in the order of threads, then blocks
        const auto bound = [&](int owner, int block) {  // the first row of a thread: one more in some of the blocks
            const int rows = owner * k.oh;
            return rows / threads_ + ((long)block * threads_ < (long)(rows % threads_) * blocks);
        };
        Prepared rows;
        Prepared *ready = is_binary(store.source) ? &rows : nullptr;
        while (pieces.next(share, split.most))
            for (int at = share.begin, count; at < share.end; at += count) {
                const int owner = at / blocks, block = at % blocks, y0 = bound(owner, block), y1 = bound(owner + 1, block);
                count = 1;
                while (at + count < share.end && block + count < blocks && bound(owner, block + count) == y0 && bound(owner + 1, block + count) == y1)
                    count++;
                run(k, e, in, y0, y1, block * split.width, (block + count) * split.width, scratch, ready);
            }
        return;
    }
    // Pieces in the order of threads, then bands, then a thread's blocks: it brings each band into its scratch once.
    const int height = step.conv->conv.band, bands = split.count / blocks;
    Prepared prepared;
    while (pieces.next(share, split.most))
        for (int at = share.begin; at < share.end;) {
            int owner = 0;
            while (at >= share_of(blocks, owner, threads_).end * bands) owner++;
            const Share own = share_of(blocks, owner, threads_);
            const int width = own.end - own.begin, place = at - own.begin * bands;
            const int band = place / width, first = place % width;
            const int count = width - first < share.end - at ? width - first : share.end - at;
            const int y0 = band * height, y1 = y0 + height < k.oh ? y0 + height : k.oh;
            const int b0 = (own.begin + first) * split.width, b1 = b0 + count * split.width;
            run(k, e, in, y0, y1, b0, b1, scratch, k.band == height ? &prepared : nullptr);
            at += count;
        }
}

// Rows of the convolution go to a small ring, and each row of the pool is taken from it at once.
void Engine::run_conv_pool(const Call &call, size_t index, int thread, Pieces &pieces) const {
    const Step &step = steps_[index], &next = steps_[index + 1];
    const bool from_bytes = call.bytes && step.image;
    const ConvStore &store = from_bytes ? *step.image : *step.conv;
    const Conv &k = store.conv;
    const void *in = from_bytes ? call.x : call.context->arena.as() + values_[(size_t)step.in].offset;
    const int stride = (int)round_up((size_t)step.c, 16), ring = next.pool.kh;
    char *scratch = (char *)round_up((size_t)call.context->scratch[(size_t)thread].as(), kLine);
    float *lines = (float *)scratch;
    float *pooled = (float *)(scratch + round_up((size_t)ring * step.w * stride * 4, kLine));
    char *rest = (char *)pooled + round_up((size_t)next.w * stride * 4, kLine);
    const ConvFunction run = function_of(kernels_, store.source);
    Epilogue e = call.context->epilogues[index];
    e.out_stride = stride;
    int done = 0, last = -1;  // rows of the convolution below `done` are in the ring or gone, where the rows follow each other
    for (Share rows; pieces.next(rows, splits_[index].most);)
        for (int y = rows.begin; y < rows.end; last = y++) {
            const int first = y * next.pool.sh - next.pool.ph;
            const int begin = first < 0 ? 0 : first, end = first + next.pool.kh < step.h ? first + next.pool.kh : step.h;
            if (y != last + 1) done = 0;
            for (int r = begin > done ? begin : done; r < end; r++) {
                e.out = lines + ((long)(r % ring) - r) * step.w * stride;  // pixel r*w + x lands in its line
                run(k, e, in, r, r + 1, 0, k.blocks, rest, nullptr);
            }
            done = end > done ? end : done;
            kernels_.pool_row(next.pool, lines, stride, ring, y, pooled);
            kernels_.finish(call.context->epilogues[index + 1], pooled, stride, y * next.w, next.w);
        }
}

// The same over an image, where the pool takes the maxima of whole sums: two or four rows of the convolution at a time, which
// the ring holds side by side. Those after the last that a pool's row needs serve the next one.
void Engine::run_pooled_sums(const Call &call, size_t index, int thread, Pieces &pieces) const {
    const Step &step = steps_[index], &next = steps_[index + 1];
    const Conv &k = step.image->conv;
    const int stride = (int)round_up((size_t)step.c, 16), ring = ring_of_sums(k);
    char *scratch = (char *)round_up((size_t)call.context->scratch[(size_t)thread].as(), kLine);
    int32_t *lines = (int32_t *)scratch;
    char *rest = scratch + round_up((size_t)ring * next.w * stride * 4, kLine);
    const Epilogue &first = call.context->epilogues[index];
    Epilogue e = call.context->epilogues[index + 1];  // what is left of the first one stands in front of the pool's
    e.mult = first.mult, e.add = first.add, e.act = first.act, e.slope = first.slope, e.lo = first.lo, e.hi = first.hi;
    e.toward = step.toward.as<const int32_t>();
    Epilogue sums{};
    sums.channels = step.c, sums.out_stride = stride, sums.toward = e.toward;
    Prepared prepared;
    int done = 0, last = -1;  // rows of the convolution below `done` are in the ring or gone, where the rows follow each other
    // Four rows are two of the pool's, from an even one on: where only one of these is taken, two.
    for (Share rows{0, 0}; pieces.next(rows, rows.end % 2 ? 1 : splits_[index].most);)
        for (int y = rows.begin; y < rows.end; last = y++) {
            const int begin = y > 0 ? 2 * y - 1 : 0, end = 2 * y + 2 < step.h ? 2 * y + 2 : step.h;
            if (y != last + 1) done = 0;
            for (int r = begin > done ? begin : done, count; r < end; r += count, done = r) {
                count = k.eight && r % 4 == 0 && r + 3 < step.h && y + 1 < rows.end ? 4 : r % 2 == 0 && r + 1 < step.h ? 2 : 1;
                sums.sums = lines + ((long)(r % ring) - r) * next.w * stride;  // line r lands in its place
                kernels_.conv_pooled(k, sums, call.x, r, r + count, rest, &prepared);
            }
            kernels_.pool_lines(next.pool, k, e, lines, stride, ring, y);
        }
}

// Steps that make one row at a time from a float or bit value.
void Engine::run_rows(const Call &call, size_t index, int thread, Pieces &pieces) const {
    const Step &step = steps_[index];
    const ValueSpec &v = values_[(size_t)step.in];
    const char *in = call.context->arena.as() + v.offset;
    const float *floats = (const float *)in;
    const Epilogue &e = call.context->epilogues[index];
    float *row = (float *)round_up((size_t)call.context->scratch[(size_t)thread].as(), kLine);
    const int stride = (int)round_up((size_t)step.c, 16);
    const auto make = [&](int y) {
        switch (step.kind) {
            case StepKind::Pointwise:
                return kernels_.finish(e, floats + (size_t)y * v.w * v.stride, v.stride, y * v.w, v.w);
            case StepKind::AbsMean:
                kernels_.abs_mean(floats + (size_t)y * v.w * v.stride, v.w, v.stride, v.c, row, stride);
                break;
            case StepKind::Signs:
                for (int x = 0; x < v.w; x++)
                    for (int c = 0; c < v.c; c++) {
                        const uint8_t *bits = (const uint8_t *)in + ((size_t)y * v.w + x) * v.stride;
                        row[(size_t)x * stride + c] = bits[c / 8] >> c % 8 & 1 ? 1.0f : -1.0f;
                    }
                break;
            case StepKind::Pad:
                for (int x = 0; x < step.w; x++)
                    for (int c = 0; c < step.c; c++) {
                        const int fc = c - step.pad[0], fy = y - step.pad[2], fx = x - step.pad[4];
                        const bool inside = fc >= 0 && fc < v.c && fy >= 0 && fy < v.h && fx >= 0 && fx < v.w;
                        row[(size_t)x * stride + c] = inside ? floats[((size_t)fy * v.w + fx) * v.stride + fc] : step.pad_value;
                    }
                break;
            default:  // whose pixels are as far apart as those of its input
                kernels_.pool_row(step.pool, floats, v.stride, 0, y, row);
                return kernels_.finish(e, row, v.stride, y * step.w, step.w);
        }
        kernels_.finish(e, row, stride, y * step.w, step.w);
    };
    for (Share rows; pieces.next(rows, splits_[index].most);)
        for (int y = rows.begin; y < rows.end; y++) make(y);
}

// Steps of a plain function: a piece is a run of pixels.
void Engine::run_plain(const Call &call, size_t index, int thread, Pieces &pieces) const {
    const Step &step = steps_[index];
    const View &out = step.views.back();
    View in[kMostViews];
    std::vector<View> many;
    View *views = in;
    const size_t count = step.inputs.size();
    if (count > kMostViews) many.resize(count), views = many.data();
    for (size_t i = 0; i < count; i++) {
        const ValueSpec &v = values_[(size_t)step.inputs[i]];
        const char *memory = call.context->arena.as() + v.offset;
        views[i] = step.views[i];
        if (v.bits) views[i].bits = (const uint8_t *)memory;
        else views[i].data = (const float *)memory;
    }
    char *scratch = (char *)round_up((size_t)call.context->scratch[(size_t)thread].as(), kLine);
    float *rows = (float *)(scratch + round_up(step.plain.scratch, kLine));
    const int pixels = step.h * step.w, grain = step.plain.grain;
    PlainCall made{views, out, scratch, true};
    for (Share share; pieces.next(share, splits_[index].most);)
        for (int piece = share.begin; piece < share.end; piece++) {
            const int first = piece * grain, size = pixels - first < grain ? pixels - first : grain;
            step.plain.run(made, first, size, rows);
            kernels_.finish(call.context->epilogues[index], rows, out.stride, first, size);
            made.fresh = false;
        }
}

// Steps with one pixel of output.
void Engine::run_single(const Call &call, size_t index, int thread, Pieces &pieces) const {
    const Step &step = steps_[index];
    const ValueSpec &v = values_[(size_t)step.in];
    const float *in = (const float *)(call.context->arena.as() + v.offset);
    float *row = (float *)round_up((size_t)call.context->scratch[(size_t)thread].as(), kLine);
    for (Share share; pieces.next(share, 1);) {
        if (const int width = splits_[index].width; width > 1) {  // channels of a mean that is stored as it is
            const int first = share.begin * width, count = (share.end - share.begin) * width;
            kernels_.global_mean(in + first, v.pixels(), v.stride, count, call.context->epilogues[index].out + first);
            continue;
        }
        if (step.kind == StepKind::GlobalMean) {
            kernels_.global_mean(in, v.pixels(), v.stride, v.c, row);
        } else if (step.kind == StepKind::Flatten) {  // the logical order is channel, row, column
            const int pixels = v.pixels();
            kernels_.transpose(in, (size_t)v.stride, pixels, v.c, row, (size_t)pixels);
        } else {
            float most = in[0], sum = 0;
            for (int c = 1; c < v.c; c++) most = in[c] > most || in[c] != in[c] ? in[c] : most;
            for (int c = 0; c < v.c; c++) sum += row[c] = std::exp(in[c] - most);
            for (int c = 0; c < v.c; c++) row[c] /= sum;
        }
        kernels_.finish(call.context->epilogues[index], row, (int)round_up((size_t)step.c, 16), 0, 1);
    }
}

void Engine::run_step(const Call &call, size_t index, int thread, Pieces pieces) const {
    if (fused_pool_[index] && call.bytes && steps_[index].toward.as()) return run_pooled_sums(call, index, thread, pieces);
    if (fused_pool_[index]) return run_conv_pool(call, index, thread, pieces);
    if (index > 0 && fused_pool_[index - 1]) return;
    switch (steps_[index].kind) {
        case StepKind::Conv: return run_conv(call, index, thread, pieces);
        case StepKind::GlobalMean:
        case StepKind::Flatten:
        case StepKind::Softmax: return run_single(call, index, thread, pieces);
        case StepKind::Nothing:
            for (Share share; pieces.next(share, 1);) {}
            return;
        case StepKind::Plain: return run_plain(call, index, thread, pieces);
        default: return run_rows(call, index, thread, pieces);
    }
}

}  // namespace xnorpp
