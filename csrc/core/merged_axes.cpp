// The axes before the last two as one, where only products of matrices, softmax and moves see them.
//
// A value's first axis lies side by side in memory, and kernels work on sixteen numbers of it at once. Of scores with the shape
// (windows, heads, queries, keys) that is the windows: four of them leave three quarters of a vector idle. Stored as
// (windows*heads, queries, keys) it is full.
#include <algorithm>

#include "joins.h"

namespace xnorpp {
namespace {

class Merger {
  public:
    Merger(const Program &p, std::vector<PlanStep> &steps, std::vector<MoveChain> &chains) : p_(p), steps_(steps), chains_(chains), free_(p.values.size()) {}

    std::vector<Value> merged() {
        for (const PlanStep &step : steps_)
            if (is_product(step))
                for (const int value : touched(step)) free_[(size_t)value] = may_merge(value);
        for (bool changed = true; changed;) {
            changed = false;
            for (size_t i = 0; i < steps_.size(); i++) changed |= restrict(i);
        }
        std::vector<Value> values = p_.values;
        for (size_t v = 0; v < values.size(); v++)
            if (free_[v]) values[v].shape = merged_shape(values[v].shape);
        for (size_t i = 0; i < steps_.size(); i++) {
            if (!apply(i)) continue;
            const PlanStep &step = steps_[i];  // what its register is in between has the same shape
            if (step.op >= 0) values[(size_t)p_.ops[(size_t)step.op].output].shape = step.shape;
            for (const Move &move : step.epilogue)
                if (move.op >= 0) values[(size_t)p_.ops[(size_t)move.op].output].shape = step.shape;
        }
        return values;
    }

  private:
    const Operation *op(const PlanStep &step) const { return step.op < 0 ? nullptr : &p_.ops[(size_t)step.op]; }
    static Shape merged_shape(const Shape &shape) {
        int64_t lead = 1;
        for (size_t axis = 0; axis + 2 < shape.size(); axis++) lead *= shape[axis];
        return {lead, shape[shape.size() - 2], shape.back()};
    }
    bool may_merge(int value) const {
        const Value &v = p_.values[(size_t)value];
        return value != 0 && v.kind == Kind::F32 && v.shape.size() > 3 && !p_.is_output(value);
    }
    bool is_product(const PlanStep &step) const { return op(step) && op(step)->op == "matmul"; }
    // A step that treats what lies before the last two axes as so many values side by side.
    bool works_by_matrices(const PlanStep &step) const {
        const Operation *o = op(step);
        if (!o || o->op == "matmul") return true;
        const Json *axis = o->op == "softmax" ? o->attrs.find("axis") : nullptr;
        return axis && axis->integer + 2 >= (int64_t)p_.values[(size_t)o->inputs[0]].shape.size();
    }
    static std::vector<int> touched(const PlanStep &step) {
        std::vector<int> all = step.reads;
        all.insert(all.end(), step.writes.begin(), step.writes.end());
        return all;
    }
    bool same_for_all_channels(const Operation &o) const {
        for (const auto &[role, index] : o.tensors) {
            if (role != "mult" && role != "add") return false;
            const std::vector<float> values = floats_of(p_.tensors[(size_t)index]);
            if (std::any_of(values.begin(), values.end(), [&](float v) { return v != values[0]; })) return false;
        }
        return true;
    }
    bool by_element(const Move &move) const {
        switch (move.kind) {
            case MoveKind::Affine: return same_for_all_channels(p_.ops[(size_t)move.op]);
            case MoveKind::Prelu: case MoveKind::StoreBits: return false;
            case MoveKind::AddValue: case MoveKind::SubValue: case MoveKind::MulValue: case MoveKind::DivValue: return move.spread == Spread::Each;
            default: return true;
        }
    }

    // Values that cannot be merged because of this step are no longer free; whether there were any.
    bool restrict(size_t index) {
        const PlanStep &step = steps_[index];
        std::vector<int> together;
        bool possible = true;
        if (chains_[index].empty()) {
            together = touched(step);
            possible = works_by_matrices(step) && std::all_of(step.epilogue.begin(), step.epilogue.end(), [&](const Move &move) { return by_element(move); });
        } else {  // what it reads may be stored in either way, and so may its result if it is only stored
            together = step.writes;
            possible = std::all_of(step.epilogue.begin(), step.epilogue.end(), [](const Move &move) { return move.kind == MoveKind::StoreFloat; });
            for (const Move &move : step.epilogue)
                if (move.value >= 0 && !is_store(move)) together.push_back(move.value);
        }
        const auto fits = [&](int value) {
            const Shape &shape = p_.values[(size_t)value].shape;
            return shape.size() > 3 && merged_shape(shape) == merged_shape(step.shape);
        };
        possible = possible && step.shape.size() > 3 && std::all_of(step.writes.begin(), step.writes.end(), fits);
        for (const Move &move : step.epilogue)
            if (move.value >= 0) possible = possible && fits(move.value);
        bool changed = false;
        for (const int value : together) possible = possible && free_[(size_t)value];
        if (!possible)
            for (const int value : together) changed |= free_[(size_t)value], free_[(size_t)value] = false;
        return changed;
    }

    // Whether the result of a step is merged.
    bool apply(size_t index) {
        PlanStep &step = steps_[index];
        MoveChain &chain = chains_[index];
        const bool result = !step.writes.empty() && free_[(size_t)step.writes[0]];
        if (!chain.empty() && free_[(size_t)step.source]) chain.insert(chain.begin(), {-1, p_.values[(size_t)step.source].shape});
        if (!chain.empty() && result) chain.push_back({-1, merged_shape(step.shape)});
        if (result) step.shape = merged_shape(step.shape);
        return result;
    }

    const Program &p_;
    std::vector<PlanStep> &steps_;
    std::vector<MoveChain> &chains_;
    std::vector<bool> free_;  // values that may be merged
};

}  // namespace

std::vector<Value> merge_axes(const Program &program, std::vector<PlanStep> &steps, std::vector<MoveChain> &chains) {
    return Merger(program, steps, chains).merged();
}

}  // namespace xnorpp
