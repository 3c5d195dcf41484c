#include "plain.h"

namespace xnorpp {

std::vector<float> PlainSite::floats(const char *role) const {
    const Tensor &tensor = *program.tensor(op, role);
    budget.take((size_t)tensor.elements() * 4);
    return floats_of(tensor);
}

std::vector<int64_t> PlainSite::integers(const char *attr) const {
    std::vector<int64_t> out;
    for (const Json &item : op.attrs.find(attr)->items()) out.push_back(item.integer);
    return out;
}

View view_of(const Value &value, int stride) {
    View view;
    const Extent e = extent_of(value.shape);
    view.c = e.c, view.h = e.h, view.w = e.w, view.stride = stride;
    view.rank = value.shape.size();
    int64_t step = stride;
    for (size_t axis = view.rank; axis-- > 0;) {
        view.size[axis] = value.shape[axis], view.step[axis] = axis ? step : 1;
        step *= value.shape[axis];
    }
    return view;
}

}  // namespace xnorpp
