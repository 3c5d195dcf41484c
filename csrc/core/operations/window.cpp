// Pools and filters over windows of an image.
#include "rows.h"

namespace xnorpp {
namespace {

Value pool(const Site &site) {
    const Shape &in = site.image();
    const auto kernel = site.pair("kernel", 1), stride = site.pair("stride", 1), padding = site.pair("padding", 0);
    const bool ceil_mode = site.flag("ceil_mode");
    if (site.op.attrs.find("count_include_pad")) site.flag("count_include_pad");
    if (2 * padding.first > kernel.first || 2 * padding.second > kernel.second)
        site.fail("`padding` (=" + site.attr("padding").brief() + ") must be at most half of `kernel` (=" + site.attr("kernel").brief() + ")");
    const int64_t h = pooled_size(in[1], kernel.first, stride.first, padding.first, ceil_mode);
    const int64_t w = pooled_size(in[2], kernel.second, stride.second, padding.second, ceil_mode);
    if (h < 1 || w < 1 || in[1] + 2 * padding.first < kernel.first || in[2] + 2 * padding.second < kernel.second)
        no_fit(site, kernel.first, kernel.second);
    return {Kind::F32, {in[0], h, w}};
}

Value global_avg_pool(const Site &site) { return {Kind::F32, {site.image()[0], 1, 1}}; }

Value abs_mean(const Site &site) {
    Shape shape = site.inputs[0]->shape;
    shape[0] = 1;
    return {Kind::F32, shape};
}

Value box_filter(const Site &site) {
    const Shape &in = site.image();
    const auto kernel = site.pair("kernel", 1);
    const auto out = windows(site, kernel.first, kernel.second);
    return {Kind::F32, {in[0], out.first, out.second}};
}

int64_t window_work(const Site &site, const Value &out) {
    const auto kernel = site.pair("kernel", 1);
    return elements_of(out.shape) * kernel.first * kernel.second;
}

}  // namespace

void add_windows(Rows &rows) {
    const Names pools{"kernel", "stride", "padding", "ceil_mode"};
    const Names averages{"kernel", "stride", "padding", "ceil_mode", "count_include_pad"};
    const Names boxes{"kernel", "stride", "padding", "dilation"};
    rows.insert(rows.end(), {
        {"max_pool2d", {kF}, pool, window_work, Fusion::Producer, pools, {}, {}},
        {"avg_pool2d", {kF}, pool, window_work, Fusion::Producer, averages, {}, {}},
        {"global_avg_pool", {kF}, global_avg_pool, inputs_work, Fusion::Producer, {}, {}, {}},
        {"abs_mean", {kF}, abs_mean, inputs_work, Fusion::Producer, {}, {}, {}},
        {"box_filter", {kF}, box_filter, window_work, Fusion::Producer, boxes, {}, {}},
    });
}

}  // namespace xnorpp
