// From a program to fused steps and a memory plan, for every engine.
//
// A step is one pass over memory: a producer (a convolution, a pool, ...) makes a number for every channel and pixel, and an
// epilogue of moves runs on that number while it is in a register:
//
//     binary_conv2d: Affine(row, col, mult, add), Prelu, AddValue(shortcut), StoreFloat(x), StoreBits(a)
//
// The epilogue is a straight line. StoreFloat and StoreBits write the register as it is at their place and leave it
// unchanged, so one pass can store a sum in float for the shortcut and give the next layers' bits too. An integer dot product
// enters the register as float32, exactly (it is below 2**24), and is stored so.
//
// Operations are taken in program order. A pointwise operation joins the step that holds its input in the register at the end
// of the line; a sign joins the step wherever its input is in the line; anything else opens a new step. An add or mul joins the
// later of its two producers, so that the other operand is already in memory: every value a step reads comes from an
// earlier step.
//
// Memory: each stored value lives from the step that writes it to the last that reads it. Values whose lives overlap get
// disjoint places in one arena (for one image), largest first at the lowest free offset. A stored sum takes the place of the
// shortcut it was added to where that one is read for the last time: at each element the epilogue reads before it writes.
#pragma once
#include <functional>

#include "operations.h"

namespace xnorpp {

enum class MoveKind : uint8_t { Affine, Relu, Prelu, Hardtanh, AddValue, MulValue, StoreFloat, StoreBits, Curve, SubValue, DivValue, Offset };

struct Move {
    MoveKind kind{};
    int op = -1;     // whose attributes and tensors it has: Affine, Prelu, Hardtanh, StoreBits, Curve, Offset
    int value = -1;  // that it reads or writes: AddValue, MulValue, SubValue, DivValue, StoreFloat, StoreBits
    Spread spread = Spread::Each;  // how the value lies on the register: AddValue, MulValue, SubValue, DivValue
};

inline bool is_store(const Move &move) { return move.kind == MoveKind::StoreFloat || move.kind == MoveKind::StoreBits; }

struct PlanStep {
    int op = -1;  // the producer; -1: pointwise, the register starts as the float value `source` itself
    int source = -1;
    Shape shape;  // of the register
    std::vector<Move> epilogue;
    std::vector<int> reads, writes;  // values: the source and all operands, and all that is stored
    bool feeds_pool = false;         // its only result is one float value that only the next step, a max pool, reads
    bool joins_pool = false;         // feeds_pool, and an engine may run both row by row: what it reads outlives the pool
    bool bytes = false;              // it takes the bytes of an image with the whole-numbered filters of stem.h
    std::vector<std::pair<int, int>> in_place;  // a stored float value and the operand whose memory it takes over
    const char *kind(const Program &program) const;
};

struct MemoryPlan {
    std::vector<int64_t> offset;  // of each value, -1 where it is not stored
    std::vector<int64_t> bytes;
    int64_t arena = 0;
};

std::vector<PlanStep> make_steps(const Program &program);

// Where values lie that threads make together. Centred: they share rows from the middle on, and a smaller value in the middle
// of a larger one has each thread's rows where that thread's rows of the larger one were, in its own core's cache; elsewhere
// a thread would write what another cache holds, line by line. Values of few rows lie apart: threads share them in another
// way, or at a border that is not in the middle.
enum class Places { Lowest, Centred };

using SizeOf = std::function<int64_t(int value)>;
struct Joins;  // ../joins.h
// Gives every stored value (and the input) a place; fills `in_place`. Parts of a concatenation lie inside of it, four bytes for
// each channel before them.
MemoryPlan plan_memory(const Program &program, std::vector<PlanStep> &steps, const SizeOf &size_of, int64_t align,
                       const Joins *joins = nullptr, Places places = Places::Lowest, int few_rows = 0);

// Places for blocks of memory that live from one step to another, largest first at the lowest free offset; blocks of equal
// size and first step in the order of their names. Centred: where it can be, in the middle of a larger block that is not
// alive then, and at the lowest free offset where not; the blocks apart after all others; and all of them at the lowest free
// offset where that would need much less.
struct Block {
    int64_t bytes = 0;
    int first = 0, last = 0;
    std::string name;
    int64_t offset = 0;
    bool apart = false;
};
int64_t place_blocks(std::vector<Block> &blocks, int64_t align, Places places = Places::Lowest);

// Whether nothing but convolutions and linear layers reads the input.
bool only_filters_read_input(const Program &program, const std::vector<PlanStep> &steps);

// How much one image costs, roughly. A unit is what a real multiply-add takes: 64 binary ones are one, as in the paper's count,
// and a number that a step makes costs 24, for it goes through scale, activation, shortcut and sign.
double units_of(const Program &program, const std::vector<PlanStep> &steps);
constexpr double kUnitsPerThread = 1 << 21;  // below twice this, some 0.15 ms, a second thread does not pay

}  // namespace xnorpp
