// What CPUs have instructions of their own for, each operation in two words at most; x86.h and arm.h say how.
//
//   names of the vector instructions    INSTRUCTIONS
//   PAGECHAT_DOTS      Dots, dot, total: sums of products of bytes (4: with 4-bit weights only; 8: with 8-bit ones too)
//   PAGECHAT_PAIRS     add_pairs, pairs_of, interleave: sums of products of pairs of bfloat16
//   for all            from_low_fp16, narrow
#pragma once

#include "vectors.h"

#if defined(__x86_64__)
#include "x86.h"
#elif defined(__aarch64__)
#include "arm.h"
#else
namespace {
constexpr const char* INSTRUCTIONS = "no vector instructions of its own";
}
#endif

namespace {

#if !defined(PAGECHAT_FP16)
// The 16-bit floats in the low halves of the words, whatever the high halves hold.
inline Floats from_low_fp16(Words bits) { return from_fp16(bits & 0xFFFF); }
#endif

#if !defined(PAGECHAT_NARROW)
typedef int8_t Bytes __attribute__((vector_size(LANES), aligned(1), may_alias));

// A group's whole numbers as bytes.
inline void narrow(const Ints* numbers, int8_t* to) {
    for (int k = 0; k < GROUP; k += LANES) *(Bytes*)(to + k) = __builtin_convertvector(numbers[k / LANES], Bytes);
}
#endif

}  // namespace
