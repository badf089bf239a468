// Attention over the blocks of the pool. Each token's result is the same whatever stands beside it and however its prompt
// was cut: there are always chunks of 256 slots, counted from the sequence's start, each with a softmax of its own, and they
// are merged in order.
//
//   task      one key/value head of a span: a block of its queries over all chunks, or one token over a single chunk
//   piece     what such a single chunk gives, kept until all of the token's chunks are there
//   tile      32 slots (tiles.h)
#pragma once

#include <cstdlib>

#include "scores.h"
#include "softmax.h"

namespace {

constexpr int CHUNK = 256, TILES = CHUNK / TILE;
constexpr int QUERY_ROWS = 96;  // the queries times heads of a task, at most, unless one query has more heads

// The memory of a thread, which only grows.
inline float* scratch(int64_t floats) {
    struct Memory {
        float* data = nullptr;
        int64_t size = 0;
        ~Memory() { free(data); }
    };
    static thread_local Memory memory;
    if (memory.size < floats) {
        free(memory.data);
        memory.size = up(floats, 16) * 16;
        memory.data = (float*)aligned_alloc(64, memory.size * sizeof(float));
        if (!memory.data) abort();
    }
    return memory.data;
}

// Lets the queries [from, to) of a span, in their `group` heads of one key/value head, attend to the chunks
// [chunk, last_chunk). The results are parts [rows] and out [panels][rows][32], where row = query * group + head.
template <class Number>
void attend(
    const Pool& pool, const Span& span, int64_t head, int64_t group, const float* q, int64_t q_stride, float scale,
    int64_t from, int64_t to, int64_t chunk, int64_t last_chunk, Part* parts, float* out, float* memory
) {
    const int64_t rows = (to - from) * group, panels = up(pool.dim, COLUMNS);
    float* const queries = memory;
    float* const tile = queries + rows * pool.dim;
    float* const scores = tile + up(pool.dim, COLUMNS) * COLUMNS * TILE;
    float* const chunk_out = scores + TILES * rows * TILE;
    Part* const found = (Part*)(chunk_out + panels * rows * COLUMNS);
    for (int64_t i = from; i < to; i++)
        memcpy(queries + (i - from) * group * pool.dim, q + (span.first + i) * q_stride + head * group * pool.dim,
               group * pool.dim * sizeof(float));
#ifdef PAGECHAT_PAIRS
    if (in_pairs<Number>) make_pairs(queries, rows, pool.dim, pool.dim);
#endif
    for (int64_t r = 0; r < rows; r++) parts[r] = {-INFINITY, 0};
    memset(out, 0, panels * rows * COLUMNS * sizeof(float));
    for (; chunk < last_chunk; chunk++) {
        const int64_t base = chunk * CHUNK, end = span.start + to < base + CHUNK ? span.start + to : base + CHUNK;
        const int64_t tiles = up(end - base, TILE);
        const Number *slots[TILE], *next[TILE];
        const auto find = [&](int64_t t, int part, const Number** to) {
            find_rows(pool, span.table, base + t * TILE, end, head, part, to);
        };
        memset(scores, 0, tiles * rows * TILE * sizeof(float));
        find(0, 0, next);
        for (int64_t t = 0; t < tiles; t++) {
            memcpy(slots, next, sizeof slots);
            const bool last = t + 1 == tiles;
            find(last ? 0 : t + 1, last ? 1 : 0, next);
            transpose_rows((const float* const*)slots, pool.dim * sizeof(Number) / 4, tile, (const float* const*)next);
            accumulate_scores<Number>(tile, pool.dim, queries, rows, scores + t * rows * TILE);
        }
        for (int64_t r = 0; r < rows; r++)
            found[r] = weigh(scores + r * TILE, rows * TILE, tiles, span.start + from + r / group + 1 - base, scale);
#ifdef PAGECHAT_PAIRS
        if (in_pairs<Number>) make_pairs(scores, tiles * rows, TILE, TILE);
#endif
        memset(chunk_out, 0, panels * rows * COLUMNS * sizeof(float));
        for (int64_t t = 0; t < tiles; t++) {
            const int64_t left = end - base - t * TILE, count = left < TILE ? left : TILE;
            memcpy(slots, next, sizeof slots);
            find(t + 1, 1, next);
            for (int64_t p = 0; p < panels; p++) {
                int64_t column = p * COLUMNS;
                if (column + COLUMNS > pool.dim) {
                    pad_rows(slots, count, column, pool.dim, (Number*)tile);
                    column = 0;
                }
                accumulate_value_rows<Number>(slots, count, column, scores + t * rows * TILE, TILE, rows,
                                              chunk_out + p * rows * COLUMNS, next);
            }
        }
        for (int64_t r = 0; r < rows; r++)
            if (span.start + from + r / group >= base)
                merge(parts[r], out + r * COLUMNS, found[r], chunk_out + r * COLUMNS, panels, rows * COLUMNS);
    }
}

// How many floats of memory `attend` works in.
inline int64_t floats_to_attend(int64_t rows, int64_t dim) {
    const int64_t width = up(dim, COLUMNS) * COLUMNS;
    return rows * (dim + width + CHUNK + 2) + width * TILE + 64;
}

inline int64_t queries_of_task(int64_t group) { return group < QUERY_ROWS ? QUERY_ROWS / group : 1; }

// How many floats one piece takes: [panels][group][32], and the group's parts.
inline int64_t floats_of_piece(int64_t group, int64_t dim) { return group * (up(dim, COLUMNS) * COLUMNS + 2); }

// The span that a task belongs to.
inline int64_t span_of_task(const Plan& plan, int64_t task) {
    int64_t s = 0;
    for (int64_t after = plan.spans; after - s > 1;) {
        const int64_t middle = (s + after) / 2;
        (plan.tasks[middle] <= task ? s : after) = middle;
    }
    return s;
}

// Attention of q [tokens, >= heads * dim], whose rows are `q_stride` apart, to out [tokens, heads * dim]. `pieces` has room
// for those of the plan. Every thread of a team calls it.
template <class Number>
void run_attention(
    const Plan& plan, const Pool& pool, int64_t heads, const float* q, int64_t q_stride, float scale, float* out,
    float* pieces
) {
    const int64_t group = heads / pool.heads, panels = up(pool.dim, COLUMNS), queries = queries_of_task(group);
    const int64_t piece_size = floats_of_piece(group, pool.dim), piece_out = group * panels * COLUMNS;
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < plan.tasks[plan.spans]; task++) {
        const int64_t s = span_of_task(plan, task);
        const Span span = span_of(plan, s);
        const int64_t number = task - plan.tasks[s], head = number % pool.heads, place = number / pool.heads;
        if (span.count == 1) {
            float* const piece = pieces + (plan.pieces[s] + number) * piece_size;
            attend<Number>(pool, span, head, group, q, q_stride, scale, 0, 1, place, place + 1,
                           (Part*)(piece + piece_out), piece, scratch(floats_to_attend(group, pool.dim)));
            continue;
        }
        const int64_t from = place * queries, to = from + queries < span.count ? from + queries : span.count;
        const int64_t rows = (to - from) * group;
        float* const result = scratch(floats_to_attend(rows, pool.dim) + rows * (panels * COLUMNS + 2));
        Part* const parts = (Part*)(result + rows * panels * COLUMNS);
        attend<Number>(pool, span, head, group, q, q_stride, scale, from, to, 0, up(span.start + to, CHUNK), parts,
                       result, (float*)(parts + rows));
        for (int64_t r = 0; r < rows; r++)
            write_row(parts[r], result + r * COLUMNS, rows * COLUMNS, pool.dim,
                      out + ((span.first + from + r / group) * heads + head * group + r % group) * pool.dim);
    }
#pragma omp for schedule(static)
    for (int64_t item = 0; item < plan.spans * pool.heads; item++) {
        const int64_t s = item / pool.heads, head = item % pool.heads;
        if (plan.firsts[s + 1] - plan.firsts[s] != 1) continue;
        const int64_t chunks = (plan.pieces[s + 1] - plan.pieces[s]) / pool.heads;
        float* const first = pieces + (plan.pieces[s] + head) * piece_size;
        for (int64_t g = 0; g < group; g++) {
            Part& part = ((Part*)(first + piece_out))[g];
            for (int64_t c = 1; c < chunks; c++) {
                const float* const piece = first + c * pool.heads * piece_size;
                merge(part, first + g * COLUMNS, ((const Part*)(piece + piece_out))[g], piece + g * COLUMNS, panels,
                      group * COLUMNS);
            }
            write_row(part, first + g * COLUMNS, group * COLUMNS, pool.dim,
                      out + (plan.firsts[s] * heads + head * group + g) * pool.dim);
        }
    }
}

}  // namespace
