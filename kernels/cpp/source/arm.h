// The instructions of 64-bit ARM CPUs; instructions.h says what for. NEON is on every one of them, the dot product on
// those since about 2018 (Cortex-A55 and A76, Neoverse N1, Apple's A13 and M1), bfloat16 since about 2021 (Neoverse V1 and
// N2, Apple's M2).
#pragma once

#include <arm_neon.h>

#include "vectors.h"

namespace {

constexpr const char* INSTRUCTIONS =
    "NEON"
#if defined(__ARM_FEATURE_DOTPROD)
    " with dot products"
#endif
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    " and bfloat16"
#endif
    ;

// `Dots` holds sums of products, and total(sums) each lane's. dot(sums, w, x) adds the products of a word of weights, four
// signed bytes, with four signed bytes of inputs.
constexpr bool SIGNED_WEIGHTS = true;
constexpr int MOST_DOT_ROWS = 4, DOT_VECTORS = 2;

#if defined(__ARM_FEATURE_DOTPROD)
#define PAGECHAT_DOTS 8
typedef Ints Dots;
inline Dots dot(Dots sums, Words w, int32_t x) {
    return (Dots)vdotq_s32((int32x4_t)sums, (int8x16_t)w, vreinterpretq_s8_s32(vdupq_n_s32(x)));
}
inline Floats total(Dots sums) { return __builtin_convertvector(sums, Floats); }
#else
#define PAGECHAT_DOTS 4  // these sums have 16 bits, which 32 products with 4-bit weights fit into, and with 8-bit ones do not
// Each byte's sum: those of the first two lanes, and of the last two.
struct Dots {
    int16x8_t low, high;
};
inline Dots dot(Dots sums, Words w, int32_t x) {
    const int8x16_t weights = (int8x16_t)w;
    const int8x8_t inputs = vreinterpret_s8_s32(vdup_n_s32(x));
    return {vmlal_s8(sums.low, vget_low_s8(weights), inputs), vmlal_s8(sums.high, vget_high_s8(weights), inputs)};
}
inline Floats total(Dots sums) {
    return (Floats)vcvtq_f32_s32(vpaddq_s32(vpaddlq_s16(sums.low), vpaddlq_s16(sums.high)));
}
#endif

#define PAGECHAT_FP16
// The 16-bit floats in the low halves of the words, whatever the high halves hold.
inline Floats from_low_fp16(Words bits) {
    return (Floats)vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32((uint32x4_t)bits)));
}

#define PAGECHAT_NARROW
// A group's whole numbers as bytes.
inline void narrow(const Ints* numbers, int8_t* to) {
    const auto half = [&](int i) {
        return vcombine_s16(vmovn_s32((int32x4_t)numbers[i]), vmovn_s32((int32x4_t)numbers[i + 1]));
    };
    for (int i = 0; i < GROUP / LANES; i += 4)
        vst1q_s8(to + i * LANES, vcombine_s8(vmovn_s16(half(i)), vmovn_s16(half(i + 2))));
}

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define PAGECHAT_PAIRS

// Adds both products of a lane's pair with `pair`.
inline Floats add_pairs(Floats sums, Words pairs, uint32_t pair) {
    return (Floats)vbfdotq_f32(
        (float32x4_t)sums, vreinterpretq_bf16_u32((uint32x4_t)pairs), vreinterpretq_bf16_u32(vdupq_n_u32(pair)));
}

// The numbers of `first`, then those of `second`, rounded to bfloat16.
inline Words pairs_of(Floats first, Floats second) {
    return (Words)vreinterpretq_u32_bf16(
        vcvtq_high_bf16_f32(vcvtq_low_bf16_f32((float32x4_t)first), (float32x4_t)second));
}

// Vector `v` of 32 columns of two rows: a lane holds both rows' numbers of its column.
inline Words interleave(const uint16_t* first, const uint16_t* second, int v) {
    const uint16x8_t a = vld1q_u16(first + v / 2 * 8), b = vld1q_u16(second + v / 2 * 8);
    return (Words)vreinterpretq_u32_u16(v % 2 ? vzip2q_u16(a, b) : vzip1q_u16(a, b));
}
#endif

}  // namespace
