#include "plan.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include "../joins.h"
#include "operations.h"
#include "stem.h"

namespace xnorpp {
namespace {

// A step while it grows: the values its register takes in turn and the moves between them.
struct Line {
    int op = -1, source = -1;
    std::vector<int> names;                     // names[i] is the register after moves[:i]
    std::vector<Move> moves;
    std::vector<bool> alias;                    // of each move: it only gives the register another name
    std::vector<std::pair<size_t, int>> signs;  // place in the line, sign operation
    std::vector<int> operands;
};

struct Home {
    int line = -1;
    int place = -1;  // in the line; -1 for bits
};

class Fuser {
  public:
    explicit Fuser(const Program &p) : p_(p), home_(p.values.size()) { home_[0] = {-1, 0}; }

    std::vector<PlanStep> steps() {
        std::vector<bool> wanted(p_.values.size());
        for (const Output &output : p_.outputs) wanted[(size_t)output.value] = true;
        for (size_t i = p_.ops.size(); i-- > 0;)
            if (wanted[i + 1])
                for (size_t k = 0; k < reads(p_.ops[i]); k++) wanted[(size_t)p_.ops[i].inputs[k]] = true;
        for (size_t i = 0; i < p_.ops.size(); i++)
            if (wanted[i + 1] && !join((int)i)) open((int)i);
        return finish();
    }

  private:
    const Operation &op(int index) const { return p_.ops[(size_t)index]; }
    const Value &value(int index) const { return p_.values[(size_t)index]; }
    static size_t reads(const Operation &o) { return o.row->read(o.inputs.size()); }  // inputs whose numbers it needs

    // A reshape that leaves channels, rows and columns only renames its input; so does a flatten of (c, 1, 1).
    bool is_alias(const Operation &o) const {
        return o.row->fusion == Fusion::Reshape && extent_of(value(o.inputs[0]).shape) == extent_of(value(o.output).shape);
    }
    // Which input may be in the register: the one with the shape of the result, the other one lying on it in a way that a
    // line knows. A difference and a quotient take the first alone, and so does a product of integers. -1: neither.
    int register_input(const Operation &o, size_t index) const {
        if (reads(o) == 1) return index == 0 ? o.inputs[0] : -1;
        const Shape &shape = value(o.output).shape;
        const int own = o.inputs[index], other = o.inputs[1 - index];
        const bool commutes = (o.op == "add" || o.op == "mul") && value(other).kind == Kind::F32;
        if ((index == 1 && !commutes) || value(own).shape != shape) return -1;
        return spread_of(value(other).shape, shape) == Spread::Other ? -1 : own;
    }
    bool is_pointwise(const Operation &o) const {
        return (o.row->fusion == Fusion::Pointwise && (register_input(o, 0) >= 0 || register_input(o, 1) >= 0)) || is_alias(o);
    }

    bool join(int index) {
        const Operation &o = op(index);
        if (o.row->fusion == Fusion::Sign) {
            const Home at = home_[(size_t)o.inputs[0]];
            if (at.line < 0) return false;
            lines_[(size_t)at.line].signs.emplace_back((size_t)at.place, index);
            home_[(size_t)o.output] = {at.line, -1};
            return true;
        }
        if (!is_pointwise(o)) return false;
        const bool two = reads(o) == 2;
        if (two && o.inputs[0] == o.inputs[1]) return false;
        int name = register_input(o, 0);
        if (two) {
            const int second = register_input(o, 1);
            if (name < 0 || (second >= 0 && home_[(size_t)second].line > home_[(size_t)name].line)) name = second;
        }
        const int at = home_[(size_t)name].line;
        if (at < 0 || lines_[(size_t)at].names.back() != name) return false;
        for (size_t i = 0; i < reads(o); i++)
            if (o.inputs[i] != name && home_[(size_t)o.inputs[i]].line >= at) return false;
        extend(lines_[(size_t)at], at, index, two ? (name == o.inputs[0] ? o.inputs[1] : o.inputs[0]) : -1);
        return true;
    }

    void extend(Line &line, int at, int index, int other) {
        const Operation &o = op(index);
        Move move;
        move.op = index, move.value = other;
        const bool alias = is_alias(o);
        if (!alias) {
            if (o.op == "affine") move.kind = MoveKind::Affine;
            else if (o.op == "relu") move.kind = MoveKind::Relu;
            else if (o.op == "prelu") move.kind = MoveKind::Prelu;
            else if (o.op == "hardtanh") move.kind = MoveKind::Hardtanh;
            else if (o.op == "add") move.kind = MoveKind::AddValue;
            else if (o.op == "mul") move.kind = MoveKind::MulValue;
            else if (o.op == "sub") move.kind = MoveKind::SubValue;
            else if (o.op == "div") move.kind = MoveKind::DivValue;
            else if (o.op == "offset") move.kind = MoveKind::Offset;
            else if (curve_of(o.op) >= 0) move.kind = MoveKind::Curve;
            else throw Error("no plan is known for the operation " + quoted(o.op, 40));
        }
        if (other >= 0) move.spread = spread_of(value(other).shape, value(o.output).shape);
        line.moves.push_back(move), line.alias.push_back(alias);
        line.names.push_back(o.output);
        if (other >= 0) line.operands.push_back(other);
        home_[(size_t)o.output] = {at, (int)line.names.size() - 1};
    }

    // A new line that begins with this operation.
    void open(int index) {
        const Operation &o = op(index);
        const int at = (int)lines_.size();
        Line line;
        line.source = o.inputs[0];
        if (is_pointwise(o)) {
            const bool second = !is_alias(o) && register_input(o, 0) < 0;
            line.source = o.inputs[second ? 1 : 0];
            line.names.push_back(line.source);
            extend(line, at, index, reads(o) == 2 ? o.inputs[second ? 0 : 1] : -1);
        } else if (o.row->fusion == Fusion::Sign) {
            line.names.push_back(line.source);
            line.signs.emplace_back(0, index);
            home_[(size_t)o.output] = {at, -1};
        } else {
            line.op = index;
            line.names.push_back(o.output);
            line.operands.assign(o.inputs.begin() + 1, o.inputs.begin() + (std::ptrdiff_t)reads(o));
            home_[(size_t)o.output] = {at, 0};
        }
        lines_.push_back(std::move(line));
    }

    std::vector<PlanStep> finish() const {
        std::vector<std::set<int>> readers(p_.values.size());
        for (const Output &output : p_.outputs) readers[(size_t)output.value].insert((int)lines_.size());
        for (size_t i = 0; i < lines_.size(); i++) {
            readers[(size_t)lines_[i].source].insert((int)i);
            for (const int name : lines_[i].operands) readers[(size_t)name].insert((int)i);
        }
        std::vector<PlanStep> steps;
        for (size_t i = 0; i < lines_.size(); i++) {
            const Line &line = lines_[i];
            PlanStep step;
            step.op = line.op, step.source = line.source;
            step.shape = value(line.names[0]).shape;  // a later name may be an alias
            for (size_t place = 0; place < line.names.size(); place++) {
                if (place && !line.alias[place - 1]) step.epilogue.push_back(line.moves[place - 1]);
                const int name = line.names[place];
                if (name != line.source && !readers[(size_t)name].empty()) step.epilogue.push_back({MoveKind::StoreFloat, -1, name});
                for (const auto &sign : line.signs)
                    if (sign.first == place && !readers[(size_t)op(sign.second).output].empty())
                        step.epilogue.push_back({MoveKind::StoreBits, sign.second, op(sign.second).output});
            }
            step.reads.push_back(line.source);
            for (const int name : line.operands)
                if (std::find(step.reads.begin(), step.reads.end(), name) == step.reads.end()) step.reads.push_back(name);
            int floats = 0;
            for (const Move &move : step.epilogue)
                if (is_store(move))
                    step.writes.push_back(move.value), floats += move.kind == MoveKind::StoreFloat;
            if (step.writes.size() == 1 && floats == 1 && i + 1 < lines_.size()) {
                const Line &after = lines_[i + 1];
                const std::set<int> next{(int)i + 1};
                step.feeds_pool = value(step.writes[0]).shape == step.shape && after.op >= 0 && op(after.op).op == "max_pool2d" && after.source == step.writes[0] &&
                                  readers[(size_t)step.writes[0]] == next;
            }
            steps.push_back(std::move(step));
        }
        return steps;
    }

    const Program &p_;
    std::vector<Line> lines_;
    std::vector<Home> home_;
};

// A convolution or linear layer that an engine has kernels for, not a plain function.
bool is_filter(const Program &p, const PlanStep &step) {
    return step.op >= 0 && p.ops[(size_t)step.op].row->since == 1 && p.ops[(size_t)step.op].tensor("weight") >= 0;
}

bool is_act(MoveKind kind) { return kind == MoveKind::Relu || kind == MoveKind::Prelu || kind == MoveKind::Hardtanh; }

// Whether an engine may run this convolution and the max pool after it as one, row by row: its epilogue is the straight line
// that an engine has in registers, and the pool does not write where the convolution still reads.
bool joins_pool(const Program &p, const std::vector<PlanStep> &steps, size_t index) {
    const PlanStep &step = steps[index];
    if (!step.feeds_pool || !is_filter(p, step)) return false;
    const PlanStep &pool = steps[index + 1];
    int place = 0;  // of affine, act, + value, act, store
    for (const Move &move : step.epilogue) {
        int at = 5;
        if (move.kind == MoveKind::Affine) at = 0;
        else if (is_act(move.kind)) at = place <= 1 ? 1 : 3;
        else if (move.kind == MoveKind::AddValue && move.spread == Spread::Each) at = 2;
        else if (move.kind == MoveKind::StoreFloat) at = 4;
        if (at < place || at == 5) return false;
        if (move.kind == MoveKind::Affine && p.ops[(size_t)move.op].tensor("full") >= 0) return false;
        place = at + 1;
    }
    for (const Move &move : pool.epilogue)
        if (move.kind == MoveKind::AddValue && std::find(step.reads.begin(), step.reads.end(), move.value) != step.reads.end()) return false;
    return p.ops[(size_t)pool.op].integer("kernel", 0) <= 8;
}

bool contains(const std::vector<int> &list, int value) { return std::find(list.begin(), list.end(), value) != list.end(); }

// Stored floats that may take an operand's place: same size, added for the last time, read only so.
void take_places(const Program &p, PlanStep &step, int index, const std::vector<int> &dies, const std::vector<int64_t> &bytes) {
    step.in_place.clear();
    const auto &moves = step.epilogue;
    for (size_t place = 0; place < moves.size(); place++) {
        if (moves[place].kind != MoveKind::StoreFloat) continue;
        const int stored = moves[place].value;
        for (size_t before = 0; before < place; before++) {
            const int operand = moves[before].value;
            if (moves[before].kind != MoveKind::AddValue || moves[before].spread != Spread::Each || operand == step.source || operand == 0 || p.is_output(operand)) continue;
            if (step.op >= 0 && contains(p.ops[(size_t)step.op].inputs, operand)) continue;  // other pieces still read it
            bool free = dies[(size_t)operand] == index && bytes[(size_t)operand] == bytes[(size_t)stored];
            for (const auto &pair : step.in_place) free &= pair.second != operand;
            for (size_t later = place + 1; later < moves.size(); later++)
                free &= moves[later].value != operand;
            if (free) {
                step.in_place.emplace_back(stored, operand);
                break;
            }
        }
    }
}

}  // namespace

const char *PlanStep::kind(const Program &program) const {
    return op < 0 ? "pointwise" : program.ops[(size_t)op].row->name;
}

std::vector<PlanStep> make_steps(const Program &program) {
    std::vector<PlanStep> steps = Fuser(program).steps();
    for (size_t i = 0; i < steps.size(); i++) steps[i].joins_pool = joins_pool(program, steps, i);
    const int taker = byte_step(program, steps);
    if (taker >= 0) steps[(size_t)taker].bytes = true;
    return steps;
}

MemoryPlan plan_memory(const Program &p, std::vector<PlanStep> &steps, const SizeOf &size_of, int64_t align, const Joins *joins,
                       Places places, int few_rows) {
    const size_t count = p.values.size();
    std::vector<int> born(count, -2), dies(count, -2), group(count, -1);
    born[0] = dies[0] = -1;
    for (size_t i = 0; i < steps.size(); i++) {
        for (const int name : steps[i].writes) born[(size_t)name] = (int)i, dies[(size_t)name] = std::max(dies[(size_t)name], (int)i);
        for (const int name : steps[i].reads) dies[(size_t)name] = std::max(dies[(size_t)name], (int)i);
        if (i > 0 && steps[i - 1].joins_pool)  // what a convolution reads must outlive the pool that runs with it
            for (const int name : steps[i - 1].reads) dies[(size_t)name] = std::max(dies[(size_t)name], (int)i);
    }
    for (const Output &output : p.outputs) dies[(size_t)output.value] = (int)steps.size();
    MemoryPlan plan;
    plan.offset.assign(count, -1), plan.bytes.assign(count, 0);
    const auto whole = [&](size_t v) { return joins ? joins->whole[v] : -1; };
    for (size_t v = 0; v < count; v++)  // a part comes before its whole
        if (whole(v) >= 0 && (born[(size_t)whole(v)] == -2 || born[v] < born[(size_t)whole(v)])) born[(size_t)whole(v)] = born[v];
    for (size_t v = 0; v < count; v++)
        if (born[v] > -2) plan.bytes[v] = size_of((int)v), group[v] = joins ? joins->root((int)v) : (int)v;
    std::vector<int64_t> sizes = plan.bytes;  // that no other has where a value's place is fixed
    for (size_t v = 0; v < count; v++)
        if (whole(v) >= 0) sizes[v] = -1 - (int64_t)v, sizes[(size_t)whole(v)] = -1 - (int64_t)whole(v);
    for (size_t i = 0; i < steps.size(); i++) {
        take_places(p, steps[i], (int)i, dies, sizes);
        for (const auto &pair : steps[i].in_place) group[(size_t)pair.first] = group[(size_t)pair.second];
    }
    std::vector<Block> blocks;
    std::vector<int> block_of(count, -1);
    for (size_t v = 0; v < count; v++) {
        if (group[v] < 0) continue;
        const size_t root = (size_t)group[v];
        if (block_of[root] < 0) block_of[root] = (int)blocks.size(), blocks.push_back({plan.bytes[root], born[v], dies[v], p.names[root], 0, extent_of(p.values[root].shape).h < few_rows});
        Block &block = blocks[(size_t)block_of[root]];
        block.first = std::min(block.first, born[v]), block.last = std::max(block.last, dies[v]);
    }
    plan.arena = place_blocks(blocks, align, places);
    for (size_t v = 0; v < count; v++)
        if (group[v] >= 0) {
            int64_t channel = 0;
            if (joins) joins->root((int)v, &channel);
            plan.offset[v] = blocks[(size_t)block_of[(size_t)group[v]]].offset + 4 * channel;
        }
    return plan;
}

namespace {

constexpr int64_t kMuch = 5;  // a fifth more memory is too much for places in the middle and apart

// From `start` on, in this order; returns where they end.
int64_t place(std::vector<Block> &blocks, const std::vector<size_t> &order, int64_t start, int64_t align, Places places) {
    using Range = std::pair<int64_t, int64_t>;
    const auto up = [&](int64_t n) { return (n + align - 1) / align * align; };
    int64_t arena = start;
    std::vector<Range> taken;
    for (size_t i = 0; i < order.size(); i++) {
        Block &block = blocks[order[i]];
        std::vector<int64_t> middles;
        taken.clear();
        for (size_t j = 0; j < i; j++) {
            const Block &other = blocks[order[j]];
            if (block.first <= other.last && other.first <= block.last) taken.emplace_back(other.offset, other.offset + other.bytes);
            else if (places == Places::Centred) middles.push_back(other.offset + (other.bytes - block.bytes) / 2 / align * align);
        }
        std::sort(taken.begin(), taken.end());
        block.offset = start;
        for (const Range &range : taken) {
            if (block.offset + block.bytes <= range.first) break;
            block.offset = std::max(block.offset, up(range.second));
        }
        const auto is_free = [&](int64_t at) {
            return std::none_of(taken.begin(), taken.end(), [&](const Range &r) { return at < r.second && r.first < at + block.bytes; });
        };
        const auto middle = std::find_if(middles.begin(), middles.end(), is_free);
        if (middle != middles.end()) block.offset = *middle;
        arena = std::max(arena, block.offset + block.bytes);
    }
    return up(arena);
}

}  // namespace

int64_t place_blocks(std::vector<Block> &blocks, int64_t align, Places places) {
    std::vector<size_t> order(blocks.size());
    std::iota(order.begin(), order.end(), (size_t)0);
    std::stable_sort(order.begin(), order.end(), [&](size_t i, size_t j) {
        const Block &a = blocks[i], &b = blocks[j];
        return a.bytes != b.bytes ? a.bytes > b.bytes : a.first != b.first ? a.first < b.first : a.name < b.name;
    });
    const int64_t least = place(blocks, order, 0, align, Places::Lowest);
    if (places == Places::Lowest) return least;
    const std::vector<Block> lowest = blocks;
    const auto middle = std::stable_partition(order.begin(), order.end(), [&](size_t i) { return !blocks[i].apart; });
    const int64_t shared = place(blocks, {order.begin(), middle}, 0, align, places);
    const int64_t arena = place(blocks, {middle, order.end()}, shared, align, Places::Lowest);
    if (arena <= least + least / kMuch) return arena;
    blocks = lowest;
    return least;
}

bool only_filters_read_input(const Program &p, const std::vector<PlanStep> &steps) {
    for (const PlanStep &step : steps)
        if (contains(step.reads, 0) && !(is_filter(p, step) && step.reads.size() == 1)) return false;
    return true;
}

double units_of(const Program &p, const std::vector<PlanStep> &steps) {
    double total = 0;
    for (const PlanStep &step : steps) {
        const int64_t outputs = elements_of(step.shape);
        if (is_filter(p, step)) {
            const Operation &op = p.ops[(size_t)step.op];
            const int64_t products = filter_products(p.values[(size_t)step.source], outputs, op, *p.tensor(op, "weight"));
            const bool binary = p.values[(size_t)step.source].kind == Kind::Bits;
            total += binary ? (double)products / 64 : (double)products;
        }
        if (step.op >= 0 && p.ops[(size_t)step.op].row->since > 1) total += (double)work_of_row(p, p.ops[(size_t)step.op]);
        total += 24.0 * (double)outputs;
    }
    return total;
}

}  // namespace xnorpp
