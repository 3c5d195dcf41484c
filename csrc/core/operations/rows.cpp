#include "rows.h"

#include <algorithm>
#include <cmath>

namespace xnorpp {

// floor((size + 2*padding - dilation*(kernel-1) - 1) / stride) + 1, which may be below 1.
int64_t window_size(int64_t size, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation) {
    const int64_t room = size + 2 * padding - dilation * (kernel - 1) - 1;
    return room < 0 ? 0 : room / stride + 1;
}

int64_t pooled_size(int64_t size, int64_t kernel, int64_t stride, int64_t padding, bool ceil_mode) {
    if (!ceil_mode) return window_size(size, kernel, stride, padding, 1);
    const int64_t room = size + 2 * padding - kernel;
    if (room < 0) return 0;
    const int64_t count = (room + stride - 1) / stride + 1;
    return (count - 1) * stride >= size + padding ? count - 1 : count;
}

[[noreturn]] void no_fit(const Site &site, int64_t kh, int64_t kw) {
    const Shape &in = site.image();
    site.fail("a " + std::to_string(kh) + "x" + std::to_string(kw) + " window does not fit the " + std::to_string(in[1]) + "x" +
              std::to_string(in[2]) + " input");
}

std::pair<int64_t, int64_t> windows(const Site &site, int64_t kh, int64_t kw) {
    const Shape &in = site.image();
    const auto stride = site.pair("stride", 1), padding = site.pair("padding", 0), dilation = site.pair("dilation", 1);
    const int64_t h = window_size(in[1], kh, stride.first, padding.first, dilation.first);
    const int64_t w = window_size(in[2], kw, stride.second, padding.second, dilation.second);
    if (h < 1 || w < 1) no_fit(site, kh, kw);
    return {h, w};
}

Shape channels_of(const Value &value) { return {value.channels()}; }

Value same_value(const Site &site) { return *site.inputs[0]; }

std::string mode_of(const Site &site, const Names &allowed) {
    const Json &mode = site.attr("mode");
    std::string names;
    for (const char *name : allowed) {
        if (mode.is(Json::Type::Text) && mode.text() == name) return name;
        names += (names.empty() ? "" : ", ") + std::string(name);
    }
    site.fail("`mode` (=" + mode.brief() + ") must be one of " + names);
}

bool is_float32(const Json &value) { return value.is_number() && std::abs(value.number()) <= 3.4028234663852886e38; }

int64_t outputs_work(const Site &, const Value &out) { return elements_of(out.shape); }
int64_t inputs_work(const Site &site, const Value &) { return elements_of(site.inputs[0]->shape); }
int64_t windows_work(const Site &site, const Value &out) {
    return std::max(elements_of(site.inputs[0]->shape), elements_of(out.shape)) * 4;
}
int64_t filter_work(const Site &site, const Value &out) {
    return filter_products(*site.inputs[0], elements_of(out.shape), site.op, *site.tensor("weight"));
}

// In the order of XN_EACH_CURVE in curves.cuh.
const std::vector<const char *> &curves() {
    static const Names names{"sigmoid", "silu", "tanh", "elu", "softplus", "mish", "gelu", "gelu_tanh", "hardswish", "exp", "log", "erf", "sqrt", "reciprocal"};
    return names;
}

int curve_of(const std::string &op) {
    for (size_t i = 0; i < curves().size(); i++)
        if (op == curves()[i]) return (int)i;
    return -1;
}

// The order is that of the families in docs/format.md and means nothing else.
const std::vector<OperationRow> &operation_set() {
    static const Rows rows = [] {
        Rows all;
        for (const auto add : {add_convolutions, add_products, add_arithmetic, add_activations, add_reductions, add_windows, add_shapes, add_moves, add_sizes}) add(all);
        return all;
    }();
    return rows;
}

int newest_set() {
    static const int newest = [] {
        int most = 1;
        for (const OperationRow &row : operation_set()) most = std::max(most, row.since);
        return most;
    }();
    return newest;
}

const OperationRow *find_operation(const std::string &name) {
    for (const OperationRow &row : operation_set())
        if (name == row.name) return &row;
    return nullptr;
}

}  // namespace xnorpp
