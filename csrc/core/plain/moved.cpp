#include "moved.h"

#include <algorithm>
#include <cstring>

namespace xnorpp {
namespace {

constexpr int64_t kPiece = 4096;                         // numbers of a piece
constexpr int64_t kTransposed = 16, kMost = 1 << 18;     // of one that is transposed: columns, and numbers at most

struct Dim {
    int64_t n, from, to;  // its size, and its steps in both memories
};

enum class Way { Rows, Transposed, Numbers };

// A copy of a block, whose innermost one or two dimensions are done at once.
struct Block {
    Way way = Way::Numbers;
    Dim row{1, 1, 1}, column{1, 1, 1};
    std::vector<Dim> rest;

    void copy(const Kernels &kernels, const float *from, float *to) const {
        int64_t at[32] = {};
        for (;;) {
            if (way == Way::Rows) std::memcpy(to, from, (size_t)row.n * 4);
            else if (way == Way::Transposed) kernels.transpose(from, (size_t)row.from, (int)row.n, (int)column.n, to, (size_t)column.to);
            else
                for (int64_t k = 0; k < row.n; k++) to[k * row.to] = from[k * row.from];
            size_t i = rest.size();
            for (; i-- > 0;) {
                from += rest[i].from, to += rest[i].to;
                if (++at[i] < rest[i].n) break;
                from -= at[i] * rest[i].from, to -= at[i] * rest[i].to, at[i] = 0;
            }
            if (i == (size_t)-1) return;
        }
    }
};

Block block_of(const std::vector<Dim> &dims) {
    Block block;
    std::vector<Dim> &rest = block.rest;
    for (const Dim &dim : dims) {  // the slowest first
        if (dim.n == 1) continue;
        if (!rest.empty() && rest.back().from == dim.from * dim.n && rest.back().to == dim.to * dim.n) rest.back() = {rest.back().n * dim.n, dim.from, dim.to};
        else rest.push_back(dim);
    }
    if (rest.empty()) return block;
    const auto take = [&](std::vector<Dim>::iterator found) {
        const Dim dim = *found;
        rest.erase(found);
        return dim;
    };
    const auto nearest = std::min_element(rest.begin(), rest.end(), [](const Dim &a, const Dim &b) { return a.to < b.to; });
    const auto side = std::find_if(rest.begin(), rest.end(), [](const Dim &dim) { return dim.from == 1 && dim.n >= 4; });
    if (nearest->to == 1 && nearest->from == 1) {
        block.way = Way::Rows, block.row = take(nearest);
    } else if (nearest->to == 1 && nearest->from > 0 && nearest->n >= 4 && side != rest.end()) {
        block.way = Way::Transposed, block.row = *nearest, block.column = *side;
        rest.erase(std::max(nearest, side)), rest.erase(std::min(nearest, side));
    } else {  // the longest loop is the innermost
        block.row = take(std::max_element(rest.begin(), rest.end(), [](const Dim &a, const Dim &b) { return a.n < b.n; }));
    }
    return block;
}

}  // namespace

Moved::Moved(const View &source) {
    for (size_t axis = 0; axis < source.rank; axis++) axes_.push_back({{source.size[axis], source.step[axis], axis == 0}});
}

// Without digits of one, and neighbours as one digit where their numbers lie evenly.
Moved::Axis Moved::merged(const Axis &axis) {
    Axis out;
    for (const Digit &digit : axis) {
        if (digit.n == 1) continue;
        const bool even = !out.empty() && out.back().channel == digit.channel && out.back().step == digit.step * digit.n;
        if (even) out.back() = {out.back().n * digit.n, digit.step, digit.channel};
        else out.push_back(digit);
    }
    return out;
}

bool Moved::reshape(const Shape &out) {
    Axis all;
    for (const Axis &axis : axes_) all.insert(all.end(), axis.begin(), axis.end());
    all = merged(all);
    std::vector<Axis> axes(out.size());
    size_t next = 0;
    for (size_t i = 0; i < out.size(); i++)
        for (int64_t need = out[i]; need > 1;) {
            if (next == all.size()) return false;
            Digit &digit = all[next];
            if (need % digit.n == 0) {
                axes[i].push_back(digit), need /= digit.n, next++;
            } else if (digit.n % need == 0) {
                axes[i].push_back({need, digit.step * (digit.n / need), digit.channel});
                digit.n /= need, need = 1;
            } else {
                return false;
            }
        }
    axes_ = std::move(axes);
    return next == all.size();
}

bool Moved::regroup(const Shape &inner, const std::vector<int64_t> &order, const Shape &out) {
    if (!reshape(inner)) return false;
    std::vector<Axis> axes;
    for (const int64_t axis : order) axes.push_back(axes_[(size_t)axis]);
    axes_ = std::move(axes);
    return reshape(out);
}

bool Moved::slice(Axis &axis, int64_t start, int64_t count, int64_t step) {
    axis = merged(axis);
    Axis kept;
    for (size_t i = 0; i < axis.size(); i++) {
        int64_t inner = 1, rest = 1;
        for (size_t j = i; j < axis.size(); j++) rest *= axis[j].n, inner *= j > i ? axis[j].n : 1;
        Digit digit = axis[i];
        if (start == 0 && count == rest) {
            kept.insert(kept.end(), axis.begin() + (std::ptrdiff_t)i, axis.end());
            break;
        }
        if (inner == 1 || (step == 1 && start % inner == 0 && count % inner == 0)) {
            first_ += start / inner * digit.step;
            kept.push_back({count / inner, digit.step * step, digit.channel});
            kept.insert(kept.end(), axis.begin() + (std::ptrdiff_t)i + 1, axis.end());
            break;
        }
        if (start / inner != (start + (count - 1) * step) / inner) return false;
        first_ += start / inner * digit.step;
        start %= inner;
    }
    axis = std::move(kept);
    return true;
}

bool is_move(const Operation &op) {
    for (const char *name : {"permute", "reshape", "flatten", "slice", "expand", "flip", "channel_shuffle", "pixel_shuffle", "pixel_unshuffle"})
        if (op.op == name) return true;
    return false;
}

bool Moved::apply(const Operation &op, const Shape &out) {
    const auto list = [&](const char *name) {
        std::vector<int64_t> items;
        for (const Json &item : op.attrs.find(name)->items()) items.push_back(item.is(Json::Type::Integer) ? item.integer : -1);
        return items;
    };
    if (op.op == "reshape" || op.op == "flatten") return reshape(out);
    if (op.op == "permute") {
        std::vector<Axis> axes;
        for (const int64_t axis : list("axes")) axes.push_back(axes_[(size_t)axis]);
        axes_ = std::move(axes);
        return true;
    }
    if (op.op == "slice") {
        const std::vector<int64_t> start = list("start"), step = list("step");
        for (size_t i = 0; i < out.size(); i++)
            if (!slice(axes_[i], start[i], out[i], step[i])) return false;
        return true;
    }
    if (op.op == "expand") {
        for (size_t i = 0; i < out.size(); i++)
            if (merged(axes_[i]).empty() && out[i] > 1) axes_[i] = {{out[i], 0, false}};
        return true;
    }
    if (op.op == "flip") {
        for (Digit &digit : axes_[(size_t)op.integer("axis")]) first_ += (digit.n - 1) * digit.step, digit.step = -digit.step;
        return true;
    }
    Shape in;
    for (const Axis &axis : axes_) {
        in.push_back(1);
        for (const Digit &digit : axis) in.back() *= digit.n;
    }
    if (op.op == "channel_shuffle") {
        const int64_t groups = op.integer("groups");
        Shape inner{groups, in[0] / groups};
        std::vector<int64_t> order{1, 0};
        for (size_t i = 1; i < in.size(); i++) inner.push_back(in[i]), order.push_back((int64_t)i + 1);
        return regroup(inner, order, out);
    }
    const int64_t r = op.integer("factor");
    if (op.op == "pixel_shuffle") return regroup({out[0], r, r, in[1], in[2]}, {0, 3, 1, 4, 2}, out);
    return regroup({in[0], out[1], r, out[2], r}, {0, 2, 4, 1, 3}, out);
}

PlainStep Moved::copy(const View &out, const Kernels &kernels) const {
    std::vector<Dim> pixels, channels;  // the slowest first
    const auto add = [](std::vector<Dim> &dims, const Axis &axis, int64_t step) {
        for (const Digit &digit : axis) step *= digit.n;
        for (const Digit &digit : axis) step /= digit.n, dims.push_back({digit.n, digit.step, step});
    };
    add(channels, merged(axes_[0]), 1);
    for (size_t axis = 1; axis < axes_.size(); axis++) add(pixels, merged(axes_[axis]), out.step[axis]);
    // A piece is a run of the last digits of pixels, one of which may be split for it. One that is transposed reaches to the
    // digit whose numbers lie side by side in the source.
    int64_t wanted = std::max<int64_t>(kPiece / out.stride, 1), inner = 1;
    if (!channels.empty() && channels.back().from != 1)
        for (size_t i = pixels.size(); i-- > 0; inner *= pixels[i].n)
            if (pixels[i].from == 1 && inner * kTransposed * out.stride <= kMost) wanted = std::max(wanted, inner * kTransposed);
    std::vector<Dim> block;
    int64_t grain = 1;
    while (!pixels.empty()) {
        const Dim dim = pixels.back();
        int64_t part = std::min(dim.n, wanted / grain);
        while (dim.n % part) part--;
        block.insert(block.begin(), {part, dim.from, dim.to});
        grain *= part;
        if (part < dim.n) {
            pixels.back() = {dim.n / part, dim.from * part, dim.to * part};
            break;
        }
        pixels.pop_back();
    }
    block.insert(block.end(), channels.begin(), channels.end());
    PlainStep step;
    step.grain = (int)grain;
    // Pieces are whole: the grain divides the pixels.
    step.run = [grain, made = block_of(block), outer = pixels, start = first_, &kernels](const PlainCall &call, int first, int, float *to) {
        int64_t place = start, piece = first / grain;
        for (size_t i = outer.size(); i-- > 0; piece /= outer[i].n) place += piece % outer[i].n * outer[i].from;
        made.copy(kernels, call.in[0].data + place, to);
    };
    return step;
}

}  // namespace xnorpp
