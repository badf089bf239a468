// The pool of one layer, the step's tokens in it, and where the keys and values of a sequence lie.
#pragma once

#include "vectors.h"

namespace {

constexpr int TILE = COLUMNS;  // slots whose keys, or values, are multiplied at a time

// One layer's pool, [blocks, 2, heads, block_size, dim].
struct Pool {
    void* data;
    int64_t heads, block_size, dim;
    int32_t is_bf16;
};

// The step's tokens. A span is a run of consecutive tokens of one sequence, and `blocks` holds the sequences' block tables.
struct Plan {
    int64_t spans, tokens;
    const int64_t* starts;   // [spans] the position of each span's first token in its sequence
    const int64_t* firsts;   // [spans + 1] the number of the step's tokens before each span
    const int64_t* tables;   // [spans + 1] where the block table of each span begins in `blocks`
    const int32_t* blocks;
    const int32_t* owners;   // [tokens] the span of each token
    const int64_t* tasks;    // [spans + 1] the number of tasks before each span's (attention.h says what a task is)
    const int64_t* pieces;   // [spans + 1] the number of those tasks that attend to a single chunk
};

// One span, taken from the plan.
struct Span {
    int64_t start, first, count;
    const int32_t* table;
};

inline Span span_of(const Plan& plan, int64_t s) {
    return {plan.starts[s], plan.firsts[s], plan.firsts[s + 1] - plan.firsts[s], plan.blocks + plan.tables[s]};
}

// Finds the keys (part 0) or values (part 1) of the slots first .. end of a sequence; the rest of the tile gets null.
template <class Number>
void find_rows(
    const Pool& pool, const int32_t* table, int64_t first, int64_t end, int64_t head, int part, const Number** rows
) {
    int64_t i = 0, block = first / pool.block_size, offset = first % pool.block_size;
    const int64_t count = end - first < TILE ? end - first : TILE;
    for (; i < count; block++, offset = 0) {
        const int64_t run = (((int64_t)table[block] * 2 + part) * pool.heads + head) * pool.block_size;
        for (; offset < pool.block_size && i < count; offset++) rows[i++] = (const Number*)pool.data + (run + offset) * pool.dim;
    }
    for (; i < TILE; i++) rows[i] = nullptr;
}

}  // namespace
