// Tiles: 32 rows of keys or values out of the pool's blocks, as the products take them. Keys are transposed, to a panel as
// a weight's is; values are taken where they lie.
#pragma once

#include "linear.h"
#include "pool.h"

namespace {

constexpr int64_t LINE = 64;  // bytes that the cache fetches at a time

// A square of numbers is transposed in as many registers as it has rows.
#if defined(__AVX__)
constexpr int SIDE = 8;
#else
constexpr int SIDE = 4;
#endif
typedef float Row __attribute__((vector_size(SIDE * 4)));
typedef int32_t Places __attribute__((vector_size(SIDE * 4)));
typedef Row AnyRow __attribute__((aligned(4), may_alias));

#if defined(__AVX__)
inline void transpose(Row* row) {
    Row t[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = PAGECHAT_SHUFFLE(Places, row[i], row[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
        t[i + 1] = PAGECHAT_SHUFFLE(Places, row[i], row[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            row[i + j] = PAGECHAT_SHUFFLE(Places, t[i + j], t[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            row[i + j + 2] = PAGECHAT_SHUFFLE(Places, t[i + j], t[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int j = 0; j < 4; j++) {
        const Row a = row[j], b = row[j + 4];
        row[j] = PAGECHAT_SHUFFLE(Places, a, b, 0, 1, 2, 3, 8, 9, 10, 11);
        row[j + 4] = PAGECHAT_SHUFFLE(Places, a, b, 4, 5, 6, 7, 12, 13, 14, 15);
    }
}
#else
inline void transpose(Row* row) {
    Row t[4];
    for (int i = 0; i < 4; i += 2) {
        t[i] = PAGECHAT_SHUFFLE(Places, row[i], row[i + 1], 0, 4, 2, 6);
        t[i + 1] = PAGECHAT_SHUFFLE(Places, row[i], row[i + 1], 1, 5, 3, 7);
    }
    for (int j = 0; j < 2; j++) {
        row[j] = PAGECHAT_SHUFFLE(Places, t[j], t[j + 2], 0, 1, 4, 5);
        row[j + 2] = PAGECHAT_SHUFFLE(Places, t[j], t[j + 2], 2, 3, 6, 7);
    }
}
#endif

// Asks for a line that is read soon: rows lie anywhere, and the CPU cannot guess where the next ones do.
inline void fetch(const void* line) {
    if (line) __builtin_prefetch(line, 0, 2);
}

// Writes the 32-bit words of a tile's rows as [words][32], with zeros where there is no row. A word is a number, or a pair
// of 16-bit ones. Meanwhile the `next` rows are fetched.
inline void transpose_rows(const float* const* rows, int64_t words, float* out, const float* const* next) {
    for (int s = 0; s < TILE; s += SIDE) {
        int64_t w = 0;
        for (; w + SIDE <= words; w += SIDE) {
            if (w * 4 % LINE == 0)
                for (int i = 0; i < SIDE; i++) fetch(next[s + i] ? next[s + i] + w : nullptr);
            Row row[SIDE];
            for (int i = 0; i < SIDE; i++) row[i] = rows[s + i] ? *(const AnyRow*)(rows[s + i] + w) : Row{};
            transpose(row);
            for (int i = 0; i < SIDE; i++) *(AnyRow*)(out + (w + i) * TILE + s) = row[i];
        }
        for (; w < words; w++)
            for (int i = 0; i < SIDE; i++)
                if (rows[s + i])
                    memcpy(&out[w * TILE + s + i], &rows[s + i][w], 4);
                else
                    out[w * TILE + s + i] = 0;
    }
}

// Copies the columns from `column` on of a tile's rows to `padded` [TILE][32], which zeros fill up, and lets `rows` lie there.
template <class Number>
void pad_rows(const Number** rows, int64_t count, int64_t column, int64_t dim, Number* padded) {
    for (int64_t s = 0; s < count; s++) {
        memset(padded + s * COLUMNS, 0, COLUMNS * sizeof(Number));
        memcpy(padded + s * COLUMNS, rows[s] + column, (dim - column) * sizeof(Number));
        rows[s] = padded + s * COLUMNS;
    }
}

}  // namespace
