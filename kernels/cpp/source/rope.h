// Norms and rotation of a step's queries and keys, and the write of its keys and values to the pool.
#pragma once

#include "linear.h"
#include "pool.h"

namespace {

// Rotates one head [2 * half] in place; pairs are `half` apart, as in Llama checkpoints of Hugging Face.
inline void rotate(float* x, const float* cosines, const float* sines, int64_t half) {
    for (int64_t i = 0; i < half; i++) {
        const float c = cosines[i], n = sines[i];
        const float a = x[i], b = x[half + i];
        x[i] = a * c - b * n;
        x[half + i] = b * c + a * n;
    }
}

// Normalises and rotates queries and keys of qkv [tokens, heads + 2 * pool.heads, dim] in place, and writes keys and values
// to the pool. cosines and sines [tokens, dim / 2] have rows of `angle_stride`; they, q_norm and k_norm [dim] may be null,
// for models without. Every thread of a team calls it.
inline void run_rope_and_cache(
    const Plan& plan, const Pool& pool, int64_t heads, float* qkv, const float* cosines, const float* sines,
    int64_t angle_stride, const float* q_norm, const float* k_norm, float eps
) {
    const int64_t dim = pool.dim, half = dim / 2, all_heads = heads + 2 * pool.heads;
#pragma omp for schedule(static)
    for (int64_t token = 0; token < plan.tokens; token++) {
        const int64_t s = plan.owners[token], position = plan.starts[s] + token - plan.firsts[s];
        const int64_t block = plan.blocks[plan.tables[s] + position / pool.block_size];
        for (int64_t head = 0; head < all_heads; head++) {
            float* const x = qkv + (token * all_heads + head) * dim;
            if (head < heads + pool.heads) {
                const float* const norm = head < heads ? q_norm : k_norm;
                if (norm) norm_row(x, dim, norm, eps, x);
                if (cosines) rotate(x, cosines + token * angle_stride, sines + token * angle_stride, half);
            }
            if (head < heads) continue;
            const int64_t part = head < heads + pool.heads ? 0 : 1, kv_head = (head - heads) % pool.heads;
            const int64_t row = ((block * 2 + part) * pool.heads + kv_head) * pool.block_size + position % pool.block_size;
            if (pool.is_bf16)
                for (int64_t i = 0; i < dim; i++) ((uint16_t*)pool.data)[row * dim + i] = to_bf16(x[i]);
            else
                memcpy((float*)pool.data + row * dim, x, dim * sizeof(float));
        }
    }
}

}  // namespace
