// Matrix products with panels: every row of the result is the same sum in the same order, whatever stands beside it.
#pragma once

#include "dots.h"

namespace {

constexpr int INPUT_BLOCK = 128;    // inputs that are unpacked at a time; their 16 KiB stay in the first cache
constexpr int ROW_BLOCK = 192;      // the rows that a task computes of a panel
constexpr int DIRECT_ROWS = MOST_ROWS;  // up to so many rows, weights are used as they are unpacked, in registers

struct Linear {
    const char* panels;
    const float* bias;  // null: none
    int64_t outputs, inputs;
    int32_t form;
};

// sums[R][32] += x[R][first .. end) * the panel's weights; `first` is a multiple of 32.
template <class Weights, int R>
void accumulate(const char* panel, int64_t first, int64_t end, const float* x, int64_t stride, float* sums) {
    constexpr int PER_WORD = 32 / Weights::bits;
    Floats sum[R][VECTORS];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < VECTORS; v++) sum[r][v] = load(sums + r * COLUMNS + v * LANES);
    const char* group = panel + first / GROUP * group_bytes<Weights>;
    for (int64_t k = first; k < end; group += group_bytes<Weights>) {
        const Weights weights(group);
        const char* row = group + Weights::header;
        const int64_t stop = k + GROUP < end ? k + GROUP : end;
        for (; k + PER_WORD <= stop; k += PER_WORD, row += COLUMNS * 4) {
            Words words[VECTORS];
            for (int v = 0; v < VECTORS; v++) words[v] = load_words(row + v * LANES * 4);
#pragma GCC unroll 8
            for (int place = 0; place < PER_WORD; place++)
                for (int v = 0; v < VECTORS; v++) {
                    Floats w = weights.get(words[v], place, v);
                    keep(w);
                    for (int r = 0; r < R; r++) sum[r][v] += x[r * stride + k + place] * w;
                }
        }
        for (int place = 0; k < stop; k++, place++)
            for (int v = 0; v < VECTORS; v++) {
                const Floats w = weights.get(load_words(row + v * LANES * 4), place, v);
                for (int r = 0; r < R; r++) sum[r][v] += x[r * stride + k] * w;
            }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < VECTORS; v++) store(sums + r * COLUMNS + v * LANES, sum[r][v]);
}

template <class Weights, int R = MOST_ROWS>
void accumulate_rows(
    const char* panel, int64_t first, int64_t end, const float* x, int64_t stride, int64_t rows, float* sums
) {
    for (; rows >= R; rows -= R, x += R * stride, sums += R * COLUMNS)
        accumulate<Weights, R>(panel, first, end, x, stride, sums);
    if constexpr (R > 1)
        if (rows) accumulate_rows<Weights, R - 1>(panel, first, end, x, stride, rows, sums);
}

// Unpacks the inputs first .. end of a panel, both multiples of 32, to float32 [inputs][32].
template <class Weights>
void unpack(const char* panel, int64_t first, int64_t end, float* out) {
    constexpr int PER_WORD = 32 / Weights::bits;
    const char* group = panel + first / GROUP * group_bytes<Weights>;
    for (int64_t k = first; k < end; k += GROUP, group += group_bytes<Weights>) {
        const Weights weights(group);
        const char* row = group + Weights::header;
        for (int i = 0; i < GROUP; i += PER_WORD, row += COLUMNS * 4, out += PER_WORD * COLUMNS)
            for (int v = 0; v < VECTORS; v++) {
                const Words words = load_words(row + v * LANES * 4);
#pragma GCC unroll 8
                for (int place = 0; place < PER_WORD; place++)
                    store(out + place * COLUMNS + v * LANES, weights.get(words, place, v));
            }
    }
}

// sums [rows][32] = x [rows, inputs] * one panel.
template <class Weights>
void multiply_panel(const char* panel, int64_t inputs, const float* x, int64_t stride, int64_t rows, float* sums) {
    memset(sums, 0, rows * COLUMNS * sizeof(float));
    if (rows <= DIRECT_ROWS) return accumulate_rows<Weights>(panel, 0, inputs, x, stride, rows, sums);
    alignas(64) float unpacked[INPUT_BLOCK * COLUMNS];
    for (int64_t first = 0; first < inputs; first += INPUT_BLOCK) {
        const int64_t count = inputs - first < INPUT_BLOCK ? inputs - first : INPUT_BLOCK;
        unpack<Weights>(panel, first, first + up(count, GROUP) * GROUP, unpacked);
        accumulate_rows<Float32Weights>((const char*)unpacked, 0, count, x + first, stride, rows, sums);
    }
}

// sums [rows][32] = the rows from `first` on of x, or of its rounded form, * one panel.
inline void multiply(
    const Linear& linear, int64_t panel, const float* x, const void* rounded, int64_t first, int64_t rows, float* sums
) {
    (void)rounded;  // not every CPU takes it
    const int64_t inputs = linear.inputs, groups = up(inputs, GROUP);
    const char* data = linear.panels + panel * groups * bytes_of_group(linear.form);
#ifdef PAGECHAT_DOTS
    if (takes_dots(linear.form)) return multiply_dots(linear.form, data, groups, rounded, first, rows, sums);
#endif
    x += first * inputs;
    switch (linear.form) {
        case FLOAT32: return multiply_panel<Float32Weights>(data, inputs, x, inputs, rows, sums);
        case BF16: return multiply_panel<Bf16Weights>(data, inputs, x, inputs, rows, sums);
        case INT8: return multiply_panel<Int8Weights>(data, inputs, x, inputs, rows, sums);
        default: return multiply_panel<Int4Weights>(data, inputs, x, inputs, rows, sums);
    }
}

enum Mode : int32_t { PLAIN = 0, ADD = 1, SWIGLU = 2 };

// Writes a panel's sums [rows][32] to their places: out = sums + bias, out += sums + bias, or out = silu(gate) * up.
inline void finish(
    Mode mode, const Linear& linear, int64_t panel, const float* sums, const float* gates, int64_t rows, float* out,
    int64_t width
) {
    const int64_t first = panel * COLUMNS;
    const int count = (int)(width - first < COLUMNS ? width - first : COLUMNS);
    alignas(64) float bias[COLUMNS] = {}, gate_bias[COLUMNS] = {};
    if (linear.bias) {
        memcpy(bias, linear.bias + first + (mode == SWIGLU ? width : 0), count * sizeof(float));
        memcpy(gate_bias, linear.bias + first, count * sizeof(float));
    }
    for (int64_t r = 0; r < rows; r++) {
        alignas(64) float values[COLUMNS];
        float* const to = out + r * width + first;
        for (int v = 0; v < COLUMNS; v += LANES) {
            Floats value = load(sums + r * COLUMNS + v) + load(bias + v);
            if (mode == SWIGLU) {
                const Floats gate = load(gates + r * COLUMNS + v) + load(gate_bias + v);
                value *= gate / (exponential(-gate) + 1.0f);
            }
            store(values + v, value);
        }
        for (int c = 0; c < count; c++) to[c] = mode == ADD ? to[c] + values[c] : values[c];
    }
}

// x [rows, inputs] -> out [rows, outputs], or [rows, outputs / 2] for SWIGLU, whose halves are a multiple of 32 wide.
// `rounded` is what `run_prepare` made of x, for weights that take dots. Every thread of a team calls it, and it returns when
// the whole result is there.
inline void run_linear(
    const Linear& linear, Mode mode, const float* x, const void* rounded, int64_t rows, float* out
) {
    const int64_t width = mode == SWIGLU ? linear.outputs / 2 : linear.outputs;
    const int64_t panels = up(width, COLUMNS), blocks = up(rows, ROW_BLOCK);
    const int64_t block = up(rows, blocks);
    alignas(64) float sums[ROW_BLOCK * COLUMNS], gates[ROW_BLOCK * COLUMNS];
#pragma omp for schedule(static)
    for (int64_t task = 0; task < panels * blocks; task++) {
        const int64_t panel = task % panels, first = task / panels * block;
        const int64_t count = rows - first < block ? rows - first : block;
        multiply(linear, mode == SWIGLU ? panel + panels : panel, x, rounded, first, count, sums);
        if (mode == SWIGLU) multiply(linear, panel, x, rounded, first, count, gates);
        finish(mode, linear, panel, sums, gates, count, out + first * width, width);
    }
}

// out = x / sqrt(mean(x^2) + eps) * weight; `out` may be x.
inline void norm_row(const float* x, int64_t width, const float* weight, float eps, float* out) {
    Floats squares[4] = {};
    int64_t i = 0;
    for (; i + 4 * LANES <= width; i += 4 * LANES)
        for (int v = 0; v < 4; v++) {
            const Floats value = load(x + i + v * LANES);
            squares[v] += value * value;
        }
    float total = sum_of((squares[0] + squares[1]) + (squares[2] + squares[3]));
    for (; i < width; i++) total += x[i] * x[i];
    const float factor = 1 / std::sqrt(total / (float)width + eps);
    for (int64_t j = 0; j < width; j++) out[j] = x[j] * factor * weight[j];
}

inline int64_t floats_to_round(int64_t rows, int64_t inputs) {
    return rows * up(inputs, GROUP) * (int64_t)(sizeof(Inputs8) / sizeof(float));
}

// Normalises each row of x [rows, inputs], where there is a `norm`, and rounds it, where `linear`, which takes it next, needs
// that. Returns what `linear` takes: x or `normed`. Every thread of a team calls it.
inline const float* run_prepare(
    const Linear& linear, const float* x, int64_t rows, const float* norm, float eps, float* normed, void* rounded
) {
    const int64_t inputs = linear.inputs;
    const bool rounds = takes_dots(linear.form);
    if (!norm && !rounds) return x;
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const float* row = x + r * inputs;
        if (norm) {
            norm_row(row, inputs, norm, eps, normed + r * inputs);
            row = normed + r * inputs;
        }
        if (!rounds) continue;
        if (linear.form == INT8)
            round_row(row, inputs, (Inputs8*)rounded + r * up(inputs, GROUP));
        else
            round_row(row, inputs, (Inputs4*)rounded + r * up(inputs, GROUP));
    }
    return norm ? normed : x;
}

}  // namespace
