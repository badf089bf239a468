// Attention over the blocks of the pool, each token's result the same whatever stands beside it and however a prompt was
// cut: always chunks of 256 slots, counted from the sequence's start, each with a softmax of its own, merged in order.
//
//   task      one key/value head of a span: a block of its queries over all chunks, or one token over a single chunk
//   tile      32 slots; keys are transposed, to a panel as a weight's; values are taken where they lie
#pragma once

#include <cstdlib>

#include "linear.h"

namespace {

constexpr int TILE = COLUMNS, CHUNK = 256, TILES = CHUNK / TILE;
constexpr int QUERY_ROWS = 96;  // queries times heads of a task, at most, unless one query has more heads

// One layer's pool, [blocks, 2, heads, block_size, dim].
struct Pool {
    void* data;
    int64_t heads, block_size, dim;
    int32_t is_bf16;
};

// The step's tokens: spans of consecutive tokens of a sequence, and each sequence's block table.
struct Plan {
    int64_t spans, tokens;
    const int64_t* starts;   // [spans] place in its sequence of each span's first token
    const int64_t* firsts;   // [spans + 1] and among the step's tokens
    const int64_t* tables;   // [spans + 1] where its block table begins in `blocks`
    const int32_t* blocks;
    const int32_t* owners;   // [tokens] their span
    const int64_t* tasks;    // [spans + 1] number of tasks before each span's: a key/value head's, times blocks of queries or chunks
    const int64_t* pieces;   // [spans + 1] and of those that attend to a single chunk
};

// Memory of a thread that only grows.
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

typedef float Eight __attribute__((vector_size(32)));
typedef Eight AnyEight __attribute__((aligned(4), may_alias));

inline void transpose(Eight* row) {
    Eight t[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = __builtin_shufflevector(row[i], row[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
        t[i + 1] = __builtin_shufflevector(row[i], row[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            row[i + j] = __builtin_shufflevector(t[i + j], t[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            row[i + j + 2] = __builtin_shufflevector(t[i + j], t[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int j = 0; j < 4; j++) {
        const Eight a = row[j], b = row[j + 4];
        row[j] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11);
        row[j + 4] = __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

// Where the keys (part 0) or values (part 1) of slots first .. end of a sequence lie; null for the rest of the tile.
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

// Asks for a line that is read soon: rows lie anywhere, and the CPU does not guess where the next ones do.
inline void fetch(const void* line) {
    if (line) __builtin_prefetch(line, 0, 2);
}

constexpr int64_t LINE = 64;

// 32-bit words of a tile's rows -> [words][32], zeros where there is no row. Words are numbers, or pairs of 16-bit ones.
// Meanwhile the `next` rows are fetched.
inline void transpose_rows(const float* const* rows, int64_t words, float* out, const float* const* next) {
    for (int s = 0; s < TILE; s += 8) {
        int64_t w = 0;
        for (; w + 8 <= words; w += 8) {
            if (w * 4 % LINE == 0)
                for (int i = 0; i < 8; i++) fetch(next[s + i] ? next[s + i] + w : nullptr);
            Eight row[8];
            for (int i = 0; i < 8; i++) row[i] = rows[s + i] ? *(const AnyEight*)(rows[s + i] + w) : Eight{};
            transpose(row);
            for (int i = 0; i < 8; i++) *(AnyEight*)(out + (w + i) * TILE + s) = row[i];
        }
        for (; w < words; w++)
            for (int i = 0; i < 8; i++)
                if (rows[s + i])
                    memcpy(&out[w * TILE + s + i], &rows[s + i][w], 4);
                else
                    out[w * TILE + s + i] = 0;
    }
}

template <class Number>
struct Keys {};
template <>
struct Keys<float> {
    typedef Float32Weights Panel;
};
template <>
struct Keys<uint16_t> {
    typedef Bf16Weights Panel;
};

inline Floats numbers(const float* p) { return load(p); }
inline Floats numbers(const uint16_t* p) {
    typedef uint16_t Halves __attribute__((vector_size(LANES * 2), aligned(2), may_alias));
    return (Floats)(__builtin_convertvector(*(const Halves*)p, Words) << 16);
}

// sums[R][32] += weights[R][count] * 32 columns of `count` rows. Meanwhile the `next` rows are fetched, where there are any.
template <class Number, int R>
void accumulate_values(
    const Number* const* rows, int64_t count, int64_t column, const float* weights, int64_t stride, float* sums,
    const Number* const* next
) {
    Floats sum[R][VECTORS];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < VECTORS; v++) sum[r][v] = load(sums + r * COLUMNS + v * LANES);
    for (int64_t s = 0; s < count; s++) {
        if (next && next[s])
            for (int64_t at = 0; at < COLUMNS * (int64_t)sizeof(Number); at += LINE)
                fetch((const char*)(next[s] + column) + at);
        for (int v = 0; v < VECTORS; v++) {
            Floats value = numbers(rows[s] + column + v * LANES);
            keep(value);
            for (int r = 0; r < R; r++) sum[r][v] += weights[r * stride + s] * value;
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < VECTORS; v++) store(sums + r * COLUMNS + v * LANES, sum[r][v]);
}

// With pairs of 16-bit floats, a lane's two products are one instruction: queries and softmax weights are rounded to
// such, as GPUs do for them. Without, 16-bit keys and values become float32 in registers, and nothing else is rounded.
template <class Number>
constexpr bool in_pairs = false;

#if defined(__AVX512BF16__) && defined(__AVX512BW__)
#define PAGECHAT_PAIRS
template <>
constexpr bool in_pairs<uint16_t> = true;

inline Floats add_pairs(Floats sums, __m512i a, uint32_t b) {
    return (Floats)_mm512_dpbf16_ps((__m512)sums, (__m512bh)a, (__m512bh)_mm512_set1_epi32((int)b));
}

// Rows of numbers -> pairs, each row at the start of its place.
inline void make_pairs(float* rows, int64_t count, int64_t width, int64_t stride) {
    for (int64_t r = 0; r < count; r++) {
        float* const row = rows + r * stride;
        int64_t i = 0;
        for (; i + 32 <= width; i += 32) {  // all are read before they are written over
            const __m512 low = _mm512_loadu_ps(row + i), high = _mm512_loadu_ps(row + i + 16);
            _mm512_storeu_si512(row + i / 2, (__m512i)_mm512_cvtne2ps_pbh(high, low));
        }
        for (; i < width; i += 2) {
            const uint32_t pair = to_bf16(row[i]) | (uint32_t)to_bf16(row[i + 1]) << 16;
            memcpy(row + i / 2, &pair, 4);
        }
    }
}

// sums[R][32] += x[R][words] * a transposed tile [words][32].
template <int R>
void accumulate_pairs(const float* tile, int64_t words, const uint32_t* x, int64_t stride, float* sums) {
    Floats sum[R][VECTORS];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < VECTORS; v++) sum[r][v] = load(sums + r * COLUMNS + v * LANES);
    for (int64_t w = 0; w < words; w++)
        for (int v = 0; v < VECTORS; v++) {
            const __m512i pairs = _mm512_loadu_si512(tile + w * TILE + v * LANES);
            for (int r = 0; r < R; r++) sum[r][v] = add_pairs(sum[r][v], pairs, x[r * stride + w]);
        }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < VECTORS; v++) store(sums + r * COLUMNS + v * LANES, sum[r][v]);
}

// sums[R][32] += weights[R][count / 2, pairs] * 32 columns of `count` rows. Meanwhile the `next` rows are fetched.
template <int R>
void accumulate_value_pairs(
    const uint16_t* const* rows, int64_t count, int64_t column, const uint32_t* weights, int64_t stride, float* sums,
    const uint16_t* const* next
) {
    alignas(64) static const uint16_t halves[2][32] = {
        {0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
        {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
         24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63},
    };
    Floats sum[R][VECTORS];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < VECTORS; v++) sum[r][v] = load(sums + r * COLUMNS + v * LANES);
    for (int64_t s = 0; s < count; s += 2) {
        if (next)
            for (int64_t i = s; i < s + 2; i++) fetch(next[i] ? next[i] + column : nullptr);
        const __m512i first = _mm512_loadu_si512(rows[s] + column);
        const __m512i second = s + 1 < count ? _mm512_loadu_si512(rows[s + 1] + column) : _mm512_setzero_si512();
        for (int v = 0; v < VECTORS; v++) {
            const __m512i pairs = _mm512_permutex2var_epi16(first, _mm512_load_si512(halves[v]), second);
            for (int r = 0; r < R; r++) sum[r][v] = add_pairs(sum[r][v], pairs, weights[r * stride + s / 2]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < VECTORS; v++) store(sums + r * COLUMNS + v * LANES, sum[r][v]);
}
#endif

template <class Number, int R = MOST_ROWS>
void accumulate_value_rows(
    const Number* const* rows, int64_t count, int64_t column, const float* weights, int64_t stride, int64_t queries,
    float* sums, const Number* const* next
) {
    for (; queries >= R; queries -= R, weights += R * stride, sums += R * COLUMNS, next = nullptr) {
#ifdef PAGECHAT_PAIRS
        if constexpr (in_pairs<Number>) {
            accumulate_value_pairs<R>(rows, count, column, (const uint32_t*)weights, stride, sums, next);
            continue;
        }
#endif
        accumulate_values<Number, R>(rows, count, column, weights, stride, sums, next);
    }
    if constexpr (R > 1)
        if (queries) accumulate_value_rows<Number, R - 1>(rows, count, column, weights, stride, queries, sums, next);
}

// scores [rows][32] += queries [rows, dim] * the keys of a transposed tile.
template <class Number, int R = MOST_ROWS>
void accumulate_scores(const float* tile, int64_t dim, const float* queries, int64_t rows, float* scores) {
    for (; rows >= R; rows -= R, queries += R * dim, scores += R * COLUMNS) {
#ifdef PAGECHAT_PAIRS
        if constexpr (in_pairs<Number>) {
            accumulate_pairs<R>(tile, dim / 2, (const uint32_t*)queries, dim, scores);
            continue;
        }
#endif
        accumulate<typename Keys<Number>::Panel, R>((const char*)tile, 0, dim, queries, dim, scores);
    }
    if constexpr (R > 1)
        if (rows) accumulate_scores<Number, R - 1>(tile, dim, queries, rows, scores);
}

// The columns from `column` on of a tile's rows, filled up to 32 with zeros: `padded` [TILE][32], and where its rows lie.
template <class Number>
void pad_rows(const Number** rows, int64_t count, int64_t column, int64_t dim, Number* padded) {
    for (int64_t s = 0; s < count; s++) {
        memset(padded + s * COLUMNS, 0, COLUMNS * sizeof(Number));
        memcpy(padded + s * COLUMNS, rows[s] + column, (dim - column) * sizeof(Number));
        rows[s] = padded + s * COLUMNS;
    }
}

// The softmax of a chunk, or of several merged: out / total is the attention of what was seen.
struct Part {
    float most, total;
};

// out [panels][stride] and (part) take in another chunk's.
inline void merge(Part& part, float* out, Part other, const float* more, int64_t panels, int64_t stride) {
    const float most = part.most > other.most ? part.most : other.most;
    const float kept = std::exp(part.most - most), added = std::exp(other.most - most);
    part = {most, part.total * kept + other.total * added};
    for (int64_t p = 0; p < panels; p++)
        for (int c = 0; c < COLUMNS; c += LANES) {
            float* const at = out + p * stride + c;
            store(at, load(at) * kept + load(more + p * stride + c) * added);
        }
}

// Scores [TILES][rows][32] of one row -> weights, 0 from `valid` on.
inline Part weigh(float* scores, int64_t stride, int64_t tiles, int64_t valid, float scale) {
    Floats most = all(-INFINITY), total{};
    for (int64_t t = 0; t < tiles; t++)
        for (int c = 0; c < TILE; c += LANES) {
            float* const at = scores + t * stride + c;
            Floats score = load(at) * scale;
            if (t * TILE + c + LANES > valid)
                for (int i = 0; i < LANES; i++)
                    if (t * TILE + c + i >= valid) score[i] = -INFINITY;
            store(at, score);
            most = largest(most, score);
        }
    float top = most[0];
    for (int i = 1; i < LANES; i++) top = most[i] > top ? most[i] : top;
    for (int64_t t = 0; t < tiles; t++)
        for (int c = 0; c < TILE; c += LANES) {
            float* const at = scores + t * stride + c;
            const Floats weight = exponential(load(at) - top);
            store(at, weight);
            total += weight;
        }
    return {top, sum_of(total)};
}

struct Span {
    int64_t start, first, count;
    const int32_t* table;
};

// Attention of queries [from, to) of a span, their `group` heads of one key/value head, to chunks [chunk, last_chunk):
// parts [rows] and out [panels][rows][32], row = query * group + head.
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

// Floats of memory that `attend` works in.
inline int64_t floats_to_attend(int64_t rows, int64_t dim) {
    const int64_t width = up(dim, COLUMNS) * COLUMNS;
    return rows * (dim + width + CHUNK + 2) + width * TILE + 64;
}

inline int64_t queries_of_task(int64_t group) { return group < QUERY_ROWS ? QUERY_ROWS / group : 1; }

// Floats of one piece: [panels][group][32], and the group's parts.
inline int64_t floats_of_piece(int64_t group, int64_t dim) { return group * (up(dim, COLUMNS) * COLUMNS + 2); }

// One row of [panels][stride] divided by its total, to [dim].
inline void write_row(const Part& part, const float* from, int64_t stride, int64_t dim, float* to) {
    const float factor = 1 / part.total;
    for (int64_t d = 0; d < dim; d++) to[d] = from[d / COLUMNS * stride + d % COLUMNS] * factor;
}

// q [tokens, >= heads * dim] of row stride `q_stride` -> out [tokens, heads * dim]. `pieces` holds those of the plan.
// Called by every thread of a team.
template <class Number>
void run_attention(
    const Plan& plan, const Pool& pool, int64_t heads, const float* q, int64_t q_stride, float scale, float* out,
    float* pieces
) {
    const int64_t group = heads / pool.heads, panels = up(pool.dim, COLUMNS), queries = queries_of_task(group);
    const int64_t piece_size = floats_of_piece(group, pool.dim), piece_out = group * panels * COLUMNS;
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < plan.tasks[plan.spans]; task++) {
        int64_t s = 0;
        for (int64_t after = plan.spans; after - s > 1;) {
            const int64_t middle = (s + after) / 2;
            (plan.tasks[middle] <= task ? s : after) = middle;
        }
        const Span span{
            plan.starts[s], plan.firsts[s], plan.firsts[s + 1] - plan.firsts[s], plan.blocks + plan.tables[s]};
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

// Rotates queries and keys of qkv [tokens, heads + 2 * pool.heads, dim] in place, and writes keys and values to the pool.
// cosines and sines [tokens, dim / 2] in rows of `angle_stride`, null for none; q_norm and k_norm [dim], null for none.
// Called by every thread of a team.
inline void run_rope_and_cache(
    const Plan& plan, const Pool& pool, int64_t heads, float* qkv, const float* cosines, const float* sines,
    int64_t angle_stride, const float* q_norm, const float* k_norm, float eps
) {
    const int64_t dim = pool.dim, half = dim / 2, all_heads = heads + 2 * pool.heads;
#pragma omp for schedule(static)
    for (int64_t token = 0; token < plan.tokens; token++) {
        const int64_t s = plan.owners[token], position = plan.starts[s] + token - plan.firsts[s];
        const int64_t block = plan.blocks[plan.tables[s] + position / pool.block_size];
        for (int64_t head = 0; head < all_heads; head++) {
            float* const x = qkv + (token * all_heads + head) * dim;
            if (head < heads + pool.heads) {
                const float* const norm = head < heads ? q_norm : k_norm;
                if (norm) norm_row(x, dim, norm, eps, x);
                if (cosines)
                    for (int64_t i = 0; i < half; i++) {
                        const float c = cosines[token * angle_stride + i], n = sines[token * angle_stride + i];
                        const float a = x[i], b = x[half + i];
                        x[i] = a * c - b * n;
                        x[half + i] = b * c + a * n;
                    }
            }
            if (head < heads) continue;
            const int64_t part = head < heads + pool.heads ? 0 : 1, kv_head = (head - heads) % pool.heads;
            const int64_t row = ((block * 2 + part) * pool.heads + kv_head) * pool.block_size + position % pool.block_size;
            if (pool.is_bf16)
                for (int64_t i = 0; i < dim; i++) ((uint16_t*)pool.data)[row * dim + i] = to_bf16(x[i]);
            else
                memcpy((float*)pool.data + row * dim, x, dim * sizeof(float));
        }
    }
}

}  // namespace
