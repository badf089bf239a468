// Weights in panels of 32 outputs, and how a panel's numbers are read.
//
//   panel: the weights of 32 outputs   [ group of 32 inputs | group | ... ]      zeros pad outputs and inputs
//   group: [ header, 32 words | words ]  a word holds the numbers of the next inputs of one output, 32 / bits of them, the
//                                        first in its lowest bits; 32 words, one for each output, stand in a row.
//                                        Of eight 4-bit numbers the first four are the lower halves of its bytes
//
//   float32   no header   w = the word
//   bf16      no header   w = a half of it
//   int8      scale       w = (q - 128) * scale    q in 1 .. 255, scale float32
//   int4      scale, min  w = q * scale + min      q in 0 .. 15, both in 16 bits, the scale in the lower half
//
// Fields of a word are taken out with shifts in the lane where they stand, since widening single bytes costs several times
// more.
#pragma once

#include "vectors.h"

namespace {

enum Form : int32_t { FLOAT32 = 0, BF16 = 1, INT8 = 2, INT4 = 3 };

struct Float32Weights {
    static constexpr int bits = 32, header = 0;
    explicit Float32Weights(const char*) {}
    Floats get(Words word, int, int) const { return (Floats)word; }
};

struct Bf16Weights {
    static constexpr int bits = 16, header = 0;
    explicit Bf16Weights(const char*) {}
    Floats get(Words word, int place, int) const { return (Floats)(place ? word & 0xFFFF0000u : word << 16); }
};

struct Int8Weights {
    static constexpr int bits = 8, header = COLUMNS * 4;
    Floats scale[VECTORS];
    explicit Int8Weights(const char* group) {
        for (int v = 0; v < VECTORS; v++) scale[v] = load((const float*)group + v * LANES);
    }
    Floats get(Words word, int place, int v) const {
        return __builtin_convertvector((Ints)((word >> (8 * place)) & 255) - 128, Floats) * scale[v];
    }
};

constexpr int shift4(int place) { return place % 4 * 8 + place / 4 * 4; }

struct Int4Weights {
    static constexpr int bits = 4, header = COLUMNS * 4;
    Floats scale[VECTORS], least[VECTORS];
    explicit Int4Weights(const char* group) {
        for (int v = 0; v < VECTORS; v++) {
            const Words both = load_words(group + v * LANES * 4);
            scale[v] = from_fp16(both & 0xFFFF);
            least[v] = from_fp16(both >> 16);
        }
    }
    Floats get(Words word, int place, int v) const {
        return __builtin_convertvector((Ints)((word >> shift4(place)) & 15), Floats) * scale[v] + least[v];
    }
};

template <class Weights>
constexpr int group_bytes = Weights::header + COLUMNS * GROUP * Weights::bits / 8;

inline int64_t bytes_of_group(int32_t form) {
    switch (form) {
        case FLOAT32: return group_bytes<Float32Weights>;
        case BF16: return group_bytes<Bf16Weights>;
        case INT8: return group_bytes<Int8Weights>;
        default: return group_bytes<Int4Weights>;
    }
}

inline int64_t up(int64_t n, int64_t step) { return (n + step - 1) / step; }

// -- packing -----------------------------------------------------------------------------------------------------

// Finds the grid of 16 steps at most on which 32 numbers lie, as those of a 4-bit file do, or else takes the one from their
// least to their largest. Returns whether they lie on it, within the rounding of both ends and of the number to bfloat16.
inline bool find_grid(const float* values, float& scale, float& least) {
    float low = values[0], high = values[0];
    for (int k = 1; k < GROUP; k++) {
        low = values[k] < low ? values[k] : low;
        high = values[k] > high ? values[k] : high;
    }
    least = low;
    const float tolerance = std::fmax(std::fabs(low), std::fabs(high)) / 128;
    for (int steps = 15; steps >= 1; steps--) {
        scale = (high - low) / steps;
        const float inverse = scale > 0 ? 1 / scale : 0;
        bool fits = true;
        for (int k = 0; k < GROUP && fits; k++)
            fits = std::fabs(values[k] - (low + scale * std::nearbyint((values[k] - low) * inverse))) <= tolerance;
        if (fits) return true;
    }
    scale = (high - low) / 15;
    return false;
}

// Packs the 32 inputs of one output into the column `column` of a group.
inline void pack_group(int32_t form, const float* values, char* group, int column) {
    uint32_t* words = (uint32_t*)group + column;
    if (form == FLOAT32) {
        for (int k = 0; k < GROUP; k++) memcpy(&words[k * COLUMNS], &values[k], 4);
    } else if (form == BF16) {
        for (int k = 0; k < GROUP; k++) words[k / 2 * COLUMNS] |= (uint32_t)to_bf16(values[k]) << (k % 2 * 16);
    } else if (form == INT8) {
        float most = 0;
        for (int k = 0; k < GROUP; k++) most = std::fmax(most, std::fabs(values[k]));
        const float scale = most / 127, inverse = most > 0 ? 127 / most : 0;
        memcpy(words, &scale, 4);
        words += COLUMNS;
        for (int k = 0; k < GROUP; k++) {
            const int q = (int)std::nearbyint(values[k] * inverse);
            words[k / 4 * COLUMNS] |= (uint32_t)(q + 128) << (k % 4 * 8);
        }
    } else {
        float scale, least;
        find_grid(values, scale, least);
        const uint16_t scale_bits = to_fp16(scale), least_bits = to_fp16(least);
        *words = scale_bits | (uint32_t)least_bits << 16;
        scale = from_fp16(scale_bits);
        least = from_fp16(least_bits);
        const float inverse = scale > 0 ? 1 / scale : 0;
        words += COLUMNS;
        for (int k = 0; k < GROUP; k++) {
            const float q = std::nearbyint((values[k] - least) * inverse);
            words[k / 8 * COLUMNS] |= (uint32_t)(q < 0 ? 0 : q > 15 ? 15 : q) << shift4(k % 8);
        }
    }
}

// A weight [outputs, inputs] as it comes: float32, or bfloat16 when `is_bf16`.
struct Source {
    const void* data;
    int64_t outputs, inputs;
    bool is_bf16;

    // Reads the 32 inputs of a group of one output; past the end there are zeros.
    void read(int64_t output, int64_t group, float* values) const {
        for (int k = 0; k < GROUP; k++) {
            const int64_t input = group * GROUP + k;
            const int64_t place = output * inputs + input;
            const bool there = output < outputs && input < inputs;
            values[k] = !there ? 0 : is_bf16 ? from_bf16(((const uint16_t*)data)[place]) : ((const float*)data)[place];
        }
    }
};

}  // namespace
