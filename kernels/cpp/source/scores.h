// The two products of attention: queries with a tile of keys, and softmax weights with a tile of values.
#pragma once

#include "pairs.h"

namespace {

// How a transposed tile of keys is read: as a weight's panel that holds such numbers.
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

// The same for any number of queries; sums [queries][32].
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

}  // namespace
