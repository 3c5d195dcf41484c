// The families of the operation set. A family is one file here with its shape rules, its functions on the CPU and one function
// that adds its rows; `operation_set` (rows.cpp) calls them all.
#pragma once
#include "../plain/plain.h"
#include "../program/operations.h"

namespace xnorpp {

using Rows = std::vector<OperationRow>;
using Names = std::vector<const char *>;

void add_convolutions(Rows &rows);
void add_products(Rows &rows);
void add_arithmetic(Rows &rows);
void add_activations(Rows &rows);
void add_windows(Rows &rows);
void add_shapes(Rows &rows);
void add_reductions(Rows &rows);
void add_moves(Rows &rows);
void add_sizes(Rows &rows);

// Kinds that an input may have.
constexpr int kF = (int)Kind::F32, kB = (int)Kind::Bits, kN = (int)Kind::F32 | (int)Kind::Int;

Shape channels_of(const Value &value);
Value same_value(const Site &site);  // a rule: as the first input
bool is_float32(const Json &value);
std::string mode_of(const Site &site, const Names &allowed);  // the attribute `mode`

// Windows of a (c, h, w) input; what does not fit is refused.
int64_t window_size(int64_t size, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation);
// As `window_size`; ceil_mode rounds up, but drops a last window that would start in the padding.
int64_t pooled_size(int64_t size, int64_t kernel, int64_t stride, int64_t padding, bool ceil_mode);
[[noreturn]] void no_fit(const Site &site, int64_t kh, int64_t kw);
std::pair<int64_t, int64_t> windows(const Site &site, int64_t kh, int64_t kw);

// An image of another size: by one of upsample2d's modes, or by the windows of an adaptive pool.
PlainStep upsampling(const PlainSite &site);
PlainStep pooling(bool maxima);
// The same numbers in the same order.
PlainStep reshaping(const PlainSite &site);

// Costs.
int64_t outputs_work(const Site &site, const Value &out);
int64_t inputs_work(const Site &site, const Value &out);
int64_t filter_work(const Site &site, const Value &out);
int64_t windows_work(const Site &site, const Value &out);

}  // namespace xnorpp
