#include "joins.h"

#include <algorithm>

namespace xnorpp {

int Joins::root(int value, int64_t *channel) const {
    int64_t at = 0;
    for (; whole[(size_t)value] >= 0; value = whole[(size_t)value]) at += first[(size_t)value];
    if (channel) *channel = at;
    return value;
}

Joins join_parts(const Program &p, std::vector<PlanStep> &steps, int64_t multiple) {
    Joins joins;
    joins.whole.assign(p.values.size(), -1), joins.first.assign(p.values.size(), 0);
    std::vector<bool> stored(p.values.size());  // by a step: neither the input nor a value between two joined steps
    for (const PlanStep &step : steps)
        for (const int value : step.writes) stored[(size_t)value] = true;
    for (PlanStep &step : steps) {
        const Operation *op = step.op >= 0 ? &p.ops[(size_t)step.op] : nullptr;
        bool free = op && op->op == "concat" && op->integer("axis") == 0;
        int64_t channel = 0;
        std::vector<int> parts;
        for (size_t i = 0; free && i < op->inputs.size(); i++) {
            const int part = op->inputs[i];
            free = stored[(size_t)part] && joins.whole[(size_t)part] < 0 && channel % multiple == 0 && p.values[(size_t)part].kind == Kind::F32 &&
                   std::find(parts.begin(), parts.end(), part) == parts.end();
            parts.push_back(part), channel += p.values[(size_t)part].channels();
        }
        if (!free) continue;
        const int whole = op->output;
        channel = 0;
        for (const int part : parts) {
            joins.whole[(size_t)part] = whole, joins.first[(size_t)part] = channel;
            channel += p.values[(size_t)part].channels();
        }
        stored[(size_t)whole] = true;
        const auto is_whole = [&](const Move &move) { return move.kind == MoveKind::StoreFloat && move.value == whole; };
        step.epilogue.erase(std::remove_if(step.epilogue.begin(), step.epilogue.end(), is_whole), step.epilogue.end());
        step.writes.erase(std::remove(step.writes.begin(), step.writes.end(), whole), step.writes.end());
        std::vector<int> reads{whole};
        for (const Move &move : step.epilogue)
            if (move.value >= 0 && !is_store(move)) reads.push_back(move.value);
        step.op = -1, step.source = whole, step.reads = reads, step.feeds_pool = false;
    }
    return joins;
}

}  // namespace xnorpp
