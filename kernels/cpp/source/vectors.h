// Vectors as wide as the registers of this CPU, written with the extensions that GCC and Clang share: one source serves
// SSE, AVX, AVX-512 and NEON. instructions.h has the few operations for which a CPU has instructions of its own.
//
// A row must get the same bits alone and among others. Two rules give that: the compiler contracts the same expression to
// the same fused multiply-adds wherever it is inlined, and it reorders nothing (there is no -ffast-math).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16;
constexpr int MOST_ROWS = 8;  // a block of sums: 8 rows of 2 vectors take 16 of 32 registers
#elif defined(__AVX__)
constexpr int LANES = 8;
constexpr int MOST_ROWS = 3;  // 3 rows of 4 vectors take 12 of 16 registers
#else
constexpr int LANES = 4;
constexpr int MOST_ROWS = 3;  // 3 rows of 8 vectors take 24 of NEON's 32 registers
#endif
constexpr int COLUMNS = 32;  // the outputs of a panel
constexpr int VECTORS = COLUMNS / LANES;
constexpr int GROUP = 32;  // the inputs that share a scale

typedef float Floats __attribute__((vector_size(LANES * 4)));
typedef int32_t Ints __attribute__((vector_size(LANES * 4)));
typedef uint32_t Words __attribute__((vector_size(LANES * 4)));
typedef Floats AnyFloats __attribute__((aligned(4), may_alias));
typedef Words AnyWords __attribute__((aligned(4), may_alias));

inline Floats load(const float* p) { return *(const AnyFloats*)p; }
inline void store(float* p, Floats v) { *(AnyFloats*)p = v; }
inline Words load_words(const void* p) { return *(const AnyWords*)p; }
inline Floats all(float x) { return x - Floats{}; }

// A vector of the numbers that stand at the given places of `a` and `b`, laid one after the other. GCC has Clang's word for
// it from version 12 on; its own word takes the places as a vector of integers as wide as the numbers.
#if defined(__clang__) || __GNUC__ >= 12
#define PAGECHAT_SHUFFLE(Places, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PAGECHAT_SHUFFLE(Places, a, b, ...) __builtin_shuffle(a, b, Places{__VA_ARGS__})
#endif

// Holds a vector in a register. GCC would load it again for each of its uses, and loads are what is scarce.
inline void keep(Floats& v) {
#if defined(__x86_64__)
    asm("" : "+v"(v));
#elif defined(__aarch64__)
    asm("" : "+w"(v));
#else
    (void)v;
#endif
}

inline float sum_of(Floats v) {
    float total = 0;
    for (int i = 0; i < LANES; i++) total += v[i];
    return total;
}

inline Floats largest(Floats a, Floats b) { return a > b ? a : b; }

// e^x, right to 2 units in the last place (the polynomial of Cephes' expf). It is 0 below -87, and about 2e38 above 88.
inline Floats exponential(Floats x) {
    const Ints tiny = x < all(-87.0f);
    x = x < all(-87.0f) ? all(-87.0f) : x;
    x = x > all(88.0f) ? all(88.0f) : x;
    const Floats round = all(12582912.0f);  // adding 1.5 * 2^23 and taking it away rounds to a whole number
    const Floats n = (x * 1.44269504088896341f + round) - round;
    const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    const Ints power = (__builtin_convertvector(n, Ints) + 127) << 23;
    return (Floats)((Ints)(p * (Floats)power) & ~tiny);
}

inline float from_bf16(uint16_t bits) {
    const uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, 4);
    return value;
}

// Rounds to the nearest, and to the even one of two that are as near.
inline uint16_t to_bf16(float value) {
    uint32_t word;
    memcpy(&word, &value, 4);
    return (uint16_t)((word + 0x7FFF + ((word >> 16) & 1)) >> 16);
}

// Rounds to the nearest; numbers beyond the range become the largest that there is.
inline uint16_t to_fp16(float value) {
    uint32_t word;
    memcpy(&word, &value, 4);
    const uint16_t sign = (word >> 16) & 0x8000;
    const float magnitude = std::fabs(value);
    if (magnitude >= 65504.0f) return sign | 0x7BFF;
    if (magnitude < 6.103515625e-5f) return sign | (uint16_t)std::lrint(magnitude * 16777216.0f);  // subnormal: in steps of 2^-24
    memcpy(&word, &magnitude, 4);
    word += 0xFFF + ((word >> 13) & 1);
    return sign | (uint16_t)((word >> 13) - (112 << 10));
}

// The 16-bit floats in the low halves of `bits`, whose high halves are zero. Exponent and mantissa are moved into the place
// that they have in 32 bits; the factor 2^112 makes up for the other bias of the exponent.
inline Floats from_fp16(Words bits) {
    const Floats magnitude = (Floats)((bits & 0x7FFF) << 13) * 5.192296858534828e33f;
    return (Floats)((Words)magnitude | ((bits & 0x8000) << 16));
}

inline float from_fp16(uint16_t bits) { return from_fp16(Words{} + bits)[0]; }

}  // namespace
