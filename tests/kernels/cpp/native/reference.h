// What the kernels should compute, written out in plain loops over doubles, from the layouts that weights.h and pool.h tell.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

typedef std::vector<float> Numbers;
typedef std::vector<double> Doubles;

// Pseudo-random numbers between -1 and 1 (a linear congruential generator, so that every machine draws the same).
struct Draw {
    uint64_t state;
    float next() {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return (float)((double)(state >> 40) / (1 << 23) - 1);
    }
    Numbers many(int64_t count) {
        Numbers numbers(count);
        for (float& x : numbers) x = next();
        return numbers;
    }
};

inline float half_to_float(uint16_t bits) {
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const double size = exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24);
    return (float)(bits & 0x8000 ? -size : size);
}

inline float bf16_to_float(uint16_t bits) {
    const uint32_t word = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &word, 4);
    return x;
}

inline float round_to_bf16(float x) {
    uint32_t word;
    memcpy(&word, &x, 4);
    const uint32_t rest = word & 0xFFFF;
    word &= 0xFFFF0000u;
    if (rest > 0x8000 || (rest == 0x8000 && (word >> 16 & 1))) word += 0x10000;
    memcpy(&x, &word, 4);
    return x;
}

// The weight [outputs, inputs] that panels of a form hold: 0 float32, 1 bfloat16, 2 8 bits, 3 4 bits.
inline Doubles held(int form, const std::vector<char>& packed, int64_t outputs, int64_t inputs) {
    const int bits[] = {32, 16, 8, 4}, header = form >= 2 ? 32 : 0;  // words
    const int per_word = 32 / bits[form], words = header + 32 * 32 / per_word;
    const uint32_t* const data = (const uint32_t*)packed.data();
    const int64_t groups = (inputs + 31) / 32;
    Doubles weight(outputs * inputs);
    for (int64_t o = 0; o < outputs; o++)
        for (int64_t i = 0; i < inputs; i++) {
            const uint32_t* const group = data + ((o / 32) * groups + i / 32) * words + o % 32;
            const int k = (int)(i % 32), place = k % per_word;
            const uint32_t word = group[header + k / per_word * 32], top = group[0];
            double& w = weight[o * inputs + i];
            if (form == 0) {
                float x;
                memcpy(&x, &word, 4);
                w = x;
            } else if (form == 1) {
                w = bf16_to_float((uint16_t)(word >> (16 * place)));
            } else if (form == 2) {
                float scale;
                memcpy(&scale, &top, 4);
                w = ((int)(word >> (8 * place) & 255) - 128) * (double)scale;
            } else {
                const int q = word >> (place % 4 * 8 + place / 4 * 4) & 15;
                w = q * (double)half_to_float((uint16_t)top) + half_to_float((uint16_t)(top >> 16));
            }
        }
    return weight;
}

// What a kernel's `x * inverse + 1.5 * 2^23` rounds: the exact product where the CPU multiplies and adds at once.
inline double scaled(float x, float inverse) {
#if defined(__FMA__) || defined(__aarch64__)
    return (double)x * inverse;
#else
    return x * inverse;
#endif
}

// Inputs [rows, inputs] as a product takes them that rounds groups of 32 to whole numbers of up to `limit` (0: it does not).
inline Doubles taken(const Doubles& x, int64_t rows, int64_t inputs, int limit) {
    if (!limit) return x;
    Doubles rounded = x;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t first = 0; first < inputs; first += 32) {
            const int64_t end = first + 32 < inputs ? first + 32 : inputs;
            float most = 0;
            for (int64_t i = first; i < end; i++) most = std::fmax(most, (float)std::fabs(x[r * inputs + i]));
            for (int64_t i = first; i < end && most > 0; i++) {
                double& value = rounded[r * inputs + i];
                value = std::nearbyint(scaled((float)value, (float)limit / most)) * (most / (float)limit);
            }
        }
    return rounded;
}

inline Doubles normed(const Doubles& x, int64_t rows, int64_t width, const Numbers& weight, double eps) {
    Doubles out(x.size());
    for (int64_t r = 0; r < rows; r++) {
        double squares = 0;
        for (int64_t i = 0; i < width; i++) squares += x[r * width + i] * x[r * width + i];
        for (int64_t i = 0; i < width; i++)
            out[r * width + i] = x[r * width + i] / std::sqrt(squares / (double)width + eps) * weight[i];
    }
    return out;
}

inline Doubles product(const Doubles& x, int64_t rows, int64_t inputs, const Doubles& weight, int64_t outputs) {
    Doubles out(rows * outputs);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < outputs; o++)
            for (int64_t i = 0; i < inputs; i++) out[r * outputs + o] += x[r * inputs + i] * weight[o * inputs + i];
    return out;
}

// gate_up [rows, 2 * width] to silu(gate) * up [rows, width].
inline Doubles gated(const Doubles& gate_up, int64_t rows, int64_t width) {
    Doubles out(rows * width);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i++) {
            const double gate = gate_up[r * 2 * width + i];
            out[r * width + i] = gate / (1 + std::exp(-gate)) * gate_up[r * 2 * width + width + i];
        }
    return out;
}

// Rotates the first `heads` heads of each row of qkv [tokens, all_heads, dim].
inline void rotated(
    Doubles& qkv, const std::vector<int64_t>& positions, int64_t heads, int64_t all_heads, int64_t dim,
    const Numbers& inv_freq
) {
    for (size_t t = 0; t < positions.size(); t++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < dim / 2; i++) {
                double* const x = &qkv[((int64_t)t * all_heads + h) * dim];
                const double angle = (float)positions[t] * inv_freq[i], a = x[i], b = x[dim / 2 + i];
                x[i] = a * std::cos(angle) - b * std::sin(angle);
                x[dim / 2 + i] = b * std::cos(angle) + a * std::sin(angle);
            }
}

// One query [dim] over keys and values [count, dim].
inline Doubles attended(const double* q, const Doubles& keys, const Doubles& values, int64_t count, int64_t dim, double scale) {
    Doubles weights(count), out(dim);
    double most = -INFINITY, total = 0;
    for (int64_t s = 0; s < count; s++) {
        for (int64_t i = 0; i < dim; i++) weights[s] += q[i] * keys[s * dim + i] * scale;
        most = std::fmax(most, weights[s]);
    }
    for (double& w : weights) total += w = std::exp(w - most);
    for (int64_t s = 0; s < count; s++)
        for (int64_t i = 0; i < dim; i++) out[i] += weights[s] / total * values[s * dim + i];
    return out;
}
