// Chains of permutes, reshapes and slices (plain/moved.h), which a network of tokens or windows is full of.
#include <algorithm>

#include "joins.h"
#include "plain/moved.h"

namespace xnorpp {
namespace {

// Whether places along a chain have a form; the true distance of pixels does not matter for that.
bool possible(const Program &p, int root, const MoveChain &chain) {
    const Value &value = p.values[(size_t)root];
    Moved places(view_of(value, (int)value.channels()));
    for (const MoveLink &link : chain)
        if (!(link.op < 0 ? places.reshape(link.shape) : places.apply(p.ops[(size_t)link.op], link.shape))) return false;
    return true;
}

void set_reads(PlanStep &step) {
    step.reads = {step.source};
    for (const Move &move : step.epilogue)
        if (move.value >= 0 && !is_store(move) && std::find(step.reads.begin(), step.reads.end(), move.value) == step.reads.end()) step.reads.push_back(move.value);
}

// Stores that nobody reads vanish, and steps of moves that store nothing.
void drop_unread(const Program &p, std::vector<PlanStep> &steps, std::vector<MoveChain> &chains) {
    std::vector<int> readers(p.values.size());
    for (const Output &output : p.outputs) readers[(size_t)output.value]++;
    for (const PlanStep &step : steps)
        for (const int value : step.reads) readers[(size_t)value]++;
    for (size_t i = steps.size(); i-- > 0;) {
        PlanStep &step = steps[i];
        if (chains[i].empty()) continue;
        const auto unread = [&](const Move &move) { return move.kind == MoveKind::StoreFloat && !readers[(size_t)move.value]; };
        step.epilogue.erase(std::remove_if(step.epilogue.begin(), step.epilogue.end(), unread), step.epilogue.end());
        step.writes.clear();
        for (const Move &move : step.epilogue)
            if (is_store(move)) step.writes.push_back(move.value);
        if (!step.writes.empty()) continue;
        for (const int value : step.reads) readers[(size_t)value]--;
        step.op = -1, step.epilogue.clear(), step.reads.clear(), step.feeds_pool = false;
        chains[i].clear();
    }
}

}  // namespace

std::vector<MoveChain> join_moves(const Program &p, std::vector<PlanStep> &steps) {
    std::vector<MoveChain> chains(steps.size());
    std::vector<int> maker(p.values.size(), -1);  // the step whose register a value is, as it begins
    for (size_t i = 0; i < steps.size(); i++) {
        PlanStep &step = steps[i];
        const bool moves = step.op >= 0 && is_move(p.ops[(size_t)step.op]);
        const bool renames = step.op < 0 && !step.epilogue.empty() && step.epilogue[0].kind == MoveKind::StoreFloat;
        const int before = maker[(size_t)step.source];
        if (!moves && !(renames && before >= 0)) continue;
        const MoveLink own{step.op, moves ? p.values[(size_t)p.ops[(size_t)step.op].output].shape : p.values[(size_t)step.source].shape};
        MoveChain chain;
        int root = step.source;
        if (before >= 0) {
            chain = chains[(size_t)before], root = steps[(size_t)before].source;
            chain.push_back({-1, p.values[(size_t)step.source].shape});
        }
        chain.push_back(own);
        if (!possible(p, root, chain)) chain = {own}, root = step.source;
        if (!possible(p, root, chain)) continue;
        step.source = root, chains[i] = std::move(chain);
        set_reads(step);
        for (const Move &move : step.epilogue) {
            if (!is_store(move)) break;
            if (move.kind == MoveKind::StoreFloat) maker[(size_t)move.value] = (int)i;
        }
    }
    drop_unread(p, steps, chains);
    return chains;
}

}  // namespace xnorpp
