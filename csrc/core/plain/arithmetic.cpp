// Sums, differences, products and quotients whose operands lie on each other in any way; the ways that epilogues know do not
// come here.
#include "walk.h"

namespace xnorpp {
namespace {

// How far the axes of the result go in an operand, whose axes of size 1 stand still.
struct Steps {
    int64_t step[kMostRank];
    Steps(const View &in, const View &out) {
        for (size_t i = 0; i < out.rank; i++) step[i] = in.size[i] == out.size[i] ? in.step[i] : 0;
    }
};

template <class Function>
PlainStep combine(Function function) {
    return {[function](const PlainCall &call, int first, int count, float *to) {
        const View &a = call.in[0], &b = call.in[1], &out = call.out;
        const Steps left(a, out), right(b, out);
        Walk x(out, left.step, first), y(out, right.step, first);
        for (int i = 0; i < count; i++, x.next(), y.next()) {
            const float *p = a.data + x.place(), *q = b.data + y.place();
            const int64_t ps = left.step[0], qs = right.step[0];
            float *row = to + (size_t)i * out.stride;
            for (int k = 0; k < out.c; k++) row[k] = function(p[k * ps], q[k * qs]);
        }
    }};
}

PlainStep sum(const PlainSite &) { return combine([](float a, float b) { return a + b; }); }
PlainStep difference(const PlainSite &) { return combine([](float a, float b) { return a - b; }); }
PlainStep product(const PlainSite &) { return combine([](float a, float b) { return a * b; }); }
PlainStep quotient(const PlainSite &) { return combine([](float a, float b) { return a / b; }); }

}  // namespace

void add_plain_arithmetic(PlainRows &rows) {
    rows.insert(rows.end(), {{"add", sum}, {"sub", difference}, {"mul", product}, {"div", quotient}});
}

}  // namespace xnorpp
