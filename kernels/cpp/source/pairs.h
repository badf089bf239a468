// Products of a bfloat16 pool's numbers as pairs, where the CPU has an instruction for a lane's two products. Queries and
// softmax weights are rounded to bfloat16 for it, as GPUs do. Elsewhere 16-bit keys and values become float32 in registers,
// and nothing else is rounded.
#pragma once

#include "tiles.h"

namespace {

template <class Number>
constexpr bool in_pairs = false;

#if defined(PAGECHAT_PAIRS)
template <>
constexpr bool in_pairs<uint16_t> = true;

// Makes pairs of the numbers in each row; they stand at the start of the row's place.
inline void make_pairs(float* rows, int64_t count, int64_t width, int64_t stride) {
    for (int64_t r = 0; r < count; r++) {
        float* const row = rows + r * stride;
        int64_t i = 0;
        for (; i + 2 * LANES <= width; i += 2 * LANES) {  // both are read before they are written over
            const Floats first = load(row + i), second = load(row + i + LANES);
            store(row + i / 2, (Floats)pairs_of(first, second));
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
            const Words pairs = load_words(tile + w * TILE + v * LANES);
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
    alignas(64) static const uint16_t zeros[COLUMNS] = {};  // the other half of the last pair of an odd count
    Floats sum[R][VECTORS];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < VECTORS; v++) sum[r][v] = load(sums + r * COLUMNS + v * LANES);
    for (int64_t s = 0; s < count; s += 2) {
        if (next)
            for (int64_t i = s; i < s + 2; i++) fetch(next[i] ? next[i] + column : nullptr);
        const uint16_t* const first = rows[s] + column;
        const uint16_t* const second = s + 1 < count ? rows[s + 1] + column : zeros;
        for (int v = 0; v < VECTORS; v++) {
            const Words pairs = interleave(first, second, v);
            for (int r = 0; r < R; r++) sum[r][v] = add_pairs(sum[r][v], pairs, weights[r * stride + s / 2]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < VECTORS; v++) store(sums + r * COLUMNS + v * LANES, sum[r][v]);
}
#endif

}  // namespace
