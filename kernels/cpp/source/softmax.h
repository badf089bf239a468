// The softmax of a chunk, and how those of several chunks become one (FlashAttention calls it the online softmax).
#pragma once

#include "tiles.h"

namespace {

// The softmax of a chunk, or of several merged: out / total is the attention to what was seen so far.
struct Part {
    float most, total;
};

// Turns the scores [tiles][stride] of one row into weights, which are 0 from `valid` on.
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

// Adds another chunk's softmax to a row's: `out` [panels][stride] and `part` take in `more` and `other`.
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

// Divides one row of [panels][stride] by its total and writes it to [dim].
inline void write_row(const Part& part, const float* from, int64_t stride, int64_t dim, float* to) {
    const float factor = 1 / part.total;
    for (int64_t d = 0; d < dim; d++) to[d] = from[d / COLUMNS * stride + d % COLUMNS] * factor;
}

}  // namespace
