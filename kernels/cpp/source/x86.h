// The instructions of x86 CPUs; instructions.h says what for.
#pragma once

#include <immintrin.h>

#include "vectors.h"

namespace {

constexpr const char* INSTRUCTIONS =
#if defined(__AVX512F__)
    "AVX-512"
#elif defined(__AVX2__)
    "AVX2"
#elif defined(__AVX__)
    "AVX"
#elif defined(__SSSE3__)
    "SSSE3"
#else
    "SSE2"
#endif
#if (defined(__AVX512VNNI__) && defined(__AVX512F__)) || (defined(__AVXVNNI__) && !defined(__AVX512F__))
    " with VNNI"
#endif
#if defined(__AVX512BF16__) && defined(__AVX512BW__)
    " and bfloat16"
#endif
    ;

// `Dots` holds a lane's sums of products. dot(sums, w, x) adds the products of a word of weights, four unsigned bytes, with
// four signed bytes of inputs.
constexpr bool SIGNED_WEIGHTS = false;

#if defined(__AVX512VNNI__) && defined(__AVX512F__)
#define PAGECHAT_DOTS 8
constexpr int MOST_DOT_ROWS = 4, DOT_VECTORS = 2;
typedef Ints Dots;
inline Dots dot(Dots sums, Words w, int32_t x) {
    return (Dots)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)w, _mm512_set1_epi32(x));
}
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
#define PAGECHAT_DOTS 8
constexpr int MOST_DOT_ROWS = 4, DOT_VECTORS = 1;
typedef Ints Dots;
inline Dots dot(Dots sums, Words w, int32_t x) {
    return (Dots)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)w, _mm256_set1_epi32(x));
}
#elif defined(__AVX512BW__) || (defined(__AVX2__) && !defined(__AVX512F__)) || (defined(__SSSE3__) && !defined(__AVX__))
#define PAGECHAT_DOTS 4  // these sums have 16 bits, which 32 products with 4-bit weights fit into, and with 8-bit ones do not
constexpr int MOST_DOT_ROWS = 4, DOT_VECTORS = 1;
typedef int16_t Dots __attribute__((vector_size(LANES * 4)));
inline Dots dot(Dots sums, Words w, int32_t x) {
#if defined(__AVX512BW__)
    return sums + (Dots)_mm512_maddubs_epi16((__m512i)w, _mm512_set1_epi32(x));
#elif defined(__AVX2__)
    return sums + (Dots)_mm256_maddubs_epi16((__m256i)w, _mm256_set1_epi32(x));
#else
    return sums + (Dots)_mm_maddubs_epi16((__m128i)w, _mm_set1_epi32(x));
#endif
}
#endif

#if defined(PAGECHAT_DOTS)
inline Floats total(Dots sums) {
#if PAGECHAT_DOTS == 8
    return __builtin_convertvector(sums, Floats);
#else
    const Ints pairs = (Ints)sums;  // two 16-bit sums in each lane
    return __builtin_convertvector((pairs << 16 >> 16) + (pairs >> 16), Floats);
#endif
}
#endif

#if defined(__AVX512F__)
#define PAGECHAT_FP16
// The 16-bit floats in the low halves of the words, whatever the high halves hold.
inline Floats from_low_fp16(Words bits) {
    return (Floats)_mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)bits));
}
#endif

#if defined(__AVX512BF16__) && defined(__AVX512BW__)
#define PAGECHAT_PAIRS

// Adds both products of a lane's pair with `pair`.
inline Floats add_pairs(Floats sums, Words pairs, uint32_t pair) {
    return (Floats)_mm512_dpbf16_ps((__m512)sums, (__m512bh)(__m512i)pairs, (__m512bh)_mm512_set1_epi32((int)pair));
}

// The numbers of `first`, then those of `second`, rounded to bfloat16.
inline Words pairs_of(Floats first, Floats second) {
    return (Words)(__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
}

// Vector `v` of 32 columns of two rows: a lane holds both rows' numbers of its column.
inline Words interleave(const uint16_t* first, const uint16_t* second, int v) {
    alignas(64) static const uint16_t places[2][32] = {
        {0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
        {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
         24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63},
    };
    return (Words)_mm512_permutex2var_epi16(
        _mm512_loadu_si512(first), _mm512_load_si512(places[v]), _mm512_loadu_si512(second));
}
#endif

}  // namespace
