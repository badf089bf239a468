// Products of 4- and 8-bit weights with inputs rounded to whole numbers: the CPU multiplies and adds four pairs of bytes a
// lane in one instruction, or in two (instructions.h). Each row's inputs are rounded by themselves, and sums of whole numbers
// are exact, so a row's result is the same whatever stands beside it.
//
//   input    x = q * scale, where 32 inputs share a scale. For 4-bit weights q is in -127 .. 127; for 8-bit ones, which are
//            there to be exact, q = 128 * high + low is in -16,256 .. 16,256
//   product  sum over groups of w_scale * x_scale * (sum of w_q * q) + w_least * x_sum
#pragma once

#include "instructions.h"
#include "weights.h"

namespace {

// The 32 inputs of a group and a row, for 4-bit weights. `sum` is that of the inputs.
struct Inputs4 {
    int8_t low[GROUP];
    float scale, sum;
};

// The same for 8-bit weights. They are held 128 too large, and `offset`, -128 times the sum of q, makes up for that.
struct Inputs8 {
    int8_t low[GROUP], high[GROUP];
    float scale;
    int32_t offset;
};

// Rounds 32 numbers to q of up to `limit`. Returns the scale; `sum` becomes the sum of q.
inline float round_group(const float* x, float limit, Ints* q, int32_t& sum) {
    Ints most{};  // sizes are in the same order as whole numbers, where NaN is the largest
    for (int k = 0; k < GROUP; k += LANES) {
        const Ints size = (Ints)load(x + k) & 0x7FFFFFFF;
        most = size > most ? size : most;
    }
    int32_t bits = most[0];
    for (int i = 1; i < LANES; i++) bits = most[i] > bits ? most[i] : bits;
    float top;
    memcpy(&top, &bits, 4);
    const float inverse = top > 1e-30f ? limit / top : 0;
    Ints total{};
    for (int k = 0; k < GROUP; k += LANES) {
        q[k / LANES] = (Ints)(load(x + k) * inverse + all(12582912.0f)) - 0x4B400000;  // adding 1.5 * 2^23 rounds to the nearest
        total += q[k / LANES];
    }
    sum = 0;
    for (int i = 0; i < LANES; i++) sum += total[i];
    return top / limit;
}

inline void round_to(const float* x, Inputs4& to) {
    Ints q[GROUP / LANES];
    int32_t sum;
    to.scale = round_group(x, 127, q, sum);
    to.sum = to.scale * (float)sum;
    narrow(q, to.low);
}

inline void round_to(const float* x, Inputs8& to) {
    Ints q[GROUP / LANES];
    int32_t sum;
    to.scale = round_group(x, 127 * 128, q, sum);
    to.offset = -128 * sum;
    Ints high[GROUP / LANES];
    for (int i = 0; i < GROUP / LANES; i++) {
        high[i] = (q[i] + 64) >> 7;
        q[i] -= high[i] << 7;
    }
    narrow(high, to.high);
    narrow(q, to.low);
}

template <class Inputs>
void round_row(const float* x, int64_t inputs, Inputs* to) {
    int64_t k = 0;
    for (; k + GROUP <= inputs; k += GROUP) round_to(x + k, *to++);
    if (k == inputs) return;
    alignas(64) float padded[GROUP] = {};
    memcpy(padded, x + k, (inputs - k) * sizeof(float));
    round_to(padded, *to);
}

// Whether weights of this form are multiplied here.
inline bool takes_dots(int32_t form) {
#ifdef PAGECHAT_DOTS
    return form == INT4 || (form == INT8 && PAGECHAT_DOTS == 8);
#else
    (void)form;
    return false;
#endif
}

#ifdef PAGECHAT_DOTS

constexpr int WORDS = GROUP / 4;  // a word holds four bytes

inline int32_t four(const int8_t* q, int i) {
    int32_t bytes;
    memcpy(&bytes, q + 4 * i, 4);
    return bytes;
}

// The sums of a group's products with a row; each lane has an output.
struct Sum4 {
    Dots low;
    void begin(const Inputs4&) { low = Dots{}; }
    void add(Words w, const Inputs4& x, int i) { low = dot(low, w, four(x.low, i)); }
};

// How a group's 4-bit weights are taken out as bytes: word `i` of 8 holds the inputs 4 * i .. of an output.
struct Dots4 {
    typedef Inputs4 Inputs;
    typedef Sum4 Sum;
    static constexpr int bytes = group_bytes<Int4Weights>;
    static Words word(const char* group, int i, int v) {
        const Words both = load_words(group + (1 + i / 2) * COLUMNS * 4 + v * LANES * 4);
        return (i % 2 ? both >> 4 : both) & 0x0F0F0F0F;
    }
    static Floats scale(const char* group, int v) { return from_low_fp16(load_words(group + v * LANES * 4)); }
    static Floats least(const char* group, int v) { return from_low_fp16(load_words(group + v * LANES * 4) >> 16); }
};

// A group of 4-bit weights after `unpack4`: scales, leasts, and bytes.
struct Unpacked4 {
    typedef Inputs4 Inputs;
    typedef Sum4 Sum;
    static constexpr int bytes = (2 + WORDS) * COLUMNS * 4;
    static Words word(const char* group, int i, int v) { return load_words(group + (2 + i) * COLUMNS * 4 + v * LANES * 4); }
    static Floats scale(const char* group, int v) { return load((const float*)group + v * LANES); }
    static Floats least(const char* group, int v) { return load((const float*)group + COLUMNS + v * LANES); }
};

#if PAGECHAT_DOTS == 8
struct Sum8 {
    Dots low, high;
    void begin(const Inputs8& x) {
        low = Dots{} + (SIGNED_WEIGHTS ? 0 : x.offset);
        high = Dots{};
    }
    void add(Words w, const Inputs8& x, int i) {
        low = dot(low, w, four(x.low, i));
        high = dot(high, w, four(x.high, i));
    }
};

struct Dots8 {
    typedef Inputs8 Inputs;
    typedef Sum8 Sum;
    static constexpr int bytes = group_bytes<Int8Weights>;
    static Words word(const char* group, int i, int v) {
        const Words bytes = load_words(group + (1 + i) * COLUMNS * 4 + v * LANES * 4);
        return SIGNED_WEIGHTS ? bytes ^ 0x80808080 : bytes;  // taking 128 off each byte
    }
    static Floats scale(const char* group, int v) { return load((const float*)group + v * LANES); }
};
#endif

inline void unpack4(const char* group, int64_t groups, char* to) {
    for (int64_t g = 0; g < groups; g++, group += Dots4::bytes, to += Unpacked4::bytes)
        for (int v = 0; v < VECTORS; v++) {
            store((float*)to + v * LANES, Dots4::scale(group, v));
            store((float*)to + COLUMNS + v * LANES, Dots4::least(group, v));
            for (int i = 0; i < WORDS; i++)
                *(AnyWords*)(to + (2 + i) * COLUMNS * 4 + v * LANES * 4) = Dots4::word(group, i, v);
        }
}

// Adds a group's products with a row to the row's sum.
template <class Weights>
void finish(const char* group, int v, const Sum4& dots, const Inputs4& x, Floats& sum) {
    sum += (Weights::scale(group, v) * x.scale) * total(dots.low);
    sum += Weights::least(group, v) * x.sum;
}

#if PAGECHAT_DOTS == 8
template <class Weights>
void finish(const char* group, int v, const Sum8& dots, const Inputs8& x, Floats& sum) {
    sum += (Weights::scale(group, v) * x.scale) * total((dots.high << 7) + dots.low);
}
#endif

// sums[R][32] += the products of R rows, `stride` groups apart, with `groups` groups of a panel.
template <class Weights, int R>
void accumulate_dots(
    const char* panel, int64_t groups, const typename Weights::Inputs* x, int64_t stride, float* sums
) {
    for (int first = 0; first < VECTORS; first += DOT_VECTORS) {
        Floats sum[R][DOT_VECTORS];
        for (int r = 0; r < R; r++)
            for (int v = 0; v < DOT_VECTORS; v++) sum[r][v] = load(sums + r * COLUMNS + (first + v) * LANES);
        const char* group = panel;
        for (int64_t g = 0; g < groups; g++, group += Weights::bytes) {
            typename Weights::Sum dots[R][DOT_VECTORS];
            for (int r = 0; r < R; r++)
                for (int v = 0; v < DOT_VECTORS; v++) dots[r][v].begin(x[r * stride + g]);
#pragma GCC unroll 8
            for (int i = 0; i < WORDS; i++) {
                Words w[DOT_VECTORS];
                for (int v = 0; v < DOT_VECTORS; v++) w[v] = Weights::word(group, i, first + v);
                for (int r = 0; r < R; r++)
                    for (int v = 0; v < DOT_VECTORS; v++) dots[r][v].add(w[v], x[r * stride + g], i);
            }
            for (int v = 0; v < DOT_VECTORS; v++)
                for (int r = 0; r < R; r++)
                    finish<Weights>(group, first + v, dots[r][v], x[r * stride + g], sum[r][v]);
        }
        for (int r = 0; r < R; r++)
            for (int v = 0; v < DOT_VECTORS; v++) store(sums + r * COLUMNS + (first + v) * LANES, sum[r][v]);
    }
}

template <class Weights, int R = MOST_DOT_ROWS>
void accumulate_dot_rows(
    const char* panel, int64_t groups, const typename Weights::Inputs* x, int64_t stride, int64_t rows, float* sums
) {
    for (; rows >= R; rows -= R, x += R * stride, sums += R * COLUMNS)
        accumulate_dots<Weights, R>(panel, groups, x, stride, sums);
    if constexpr (R > 1)
        if (rows) accumulate_dot_rows<Weights, R - 1>(panel, groups, x, stride, rows, sums);
}

// sums [rows][32] = the rows from `first` on of the rounded inputs [..][groups] * one panel.
inline void multiply_dots(
    int32_t form, const char* panel, int64_t groups, const void* rounded, int64_t first, int64_t rows, float* sums
) {
    constexpr int BLOCK = 16;   // groups that are unpacked at a time, which takes 20 KiB
    constexpr int DIRECT = 32;  // up to so many rows, unpacking for each few of them anew takes less time
    memset(sums, 0, rows * COLUMNS * sizeof(float));
    (void)form;  // some CPUs multiply only one form here
#if PAGECHAT_DOTS == 8
    if (form == INT8)
        return accumulate_dot_rows<Dots8>(panel, groups, (const Inputs8*)rounded + first * groups, groups, rows, sums);
#endif
    const Inputs4* const x = (const Inputs4*)rounded + first * groups;
    if (rows <= DIRECT) return accumulate_dot_rows<Dots4>(panel, groups, x, groups, rows, sums);
    alignas(64) char unpacked[BLOCK * Unpacked4::bytes];
    for (int64_t g = 0; g < groups; g += BLOCK) {
        const int64_t count = groups - g < BLOCK ? groups - g : BLOCK;
        unpack4(panel + g * Dots4::bytes, count, unpacked);
        accumulate_dot_rows<Unpacked4>(unpacked, count, x + g, groups, rows, sums);
    }
}

#endif

}  // namespace
