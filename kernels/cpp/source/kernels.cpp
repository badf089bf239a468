// The functions that Python calls. Each runs one team of threads from its first line to its last.
//
// Their interface is plain C, with pointers to what torch tensors hold. kernels/cpp/library.py declares the same structures.
#include <algorithm>

#include "attention.h"
#include "rope.h"

namespace {

struct Layer {
    const float* input_norm;
    Linear qkv;
    const float* q_norm;  // null, as k_norm is, for models without
    const float* k_norm;
    Linear out;
    const float* mlp_norm;
    Linear gate_up;
    Linear down;
    int64_t rotates;
};

struct Decoder {
    const Layer* layers;
    int64_t num_layers, hidden, intermediate, heads, kv_heads, head_dim;
    const float* inv_freq;  // [head_dim / 2]
    float eps, scale;
};

void run_attention(
    const Plan& plan, const Pool& pool, int64_t heads, const float* q, int64_t q_stride, float scale, float* out,
    float* pieces
) {
    if (pool.is_bf16)
        run_attention<uint16_t>(plan, pool, heads, q, q_stride, scale, out, pieces);
    else
        run_attention<float>(plan, pool, heads, q, q_stride, scale, out, pieces);
}

}  // namespace

extern "C" {

// The instructions of the CPU that this library uses, in a few words.
const char* pagechat_instructions() { return INSTRUCTIONS; }

int64_t pagechat_packed_bytes(int32_t form, int64_t outputs, int64_t inputs) {
    return up(outputs, COLUMNS) * up(inputs, GROUP) * bytes_of_group(form);
}

// Packs a weight [outputs, inputs] into `packed`, which holds pagechat_packed_bytes zeros.
void pagechat_pack(
    int32_t form, const void* weight, int32_t is_bf16, int64_t outputs, int64_t inputs, char* packed, int32_t threads
) {
    const Source source{weight, outputs, inputs, is_bf16 != 0};
    const int64_t groups = up(inputs, GROUP), group_size = bytes_of_group(form);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t panel = 0; panel < up(outputs, COLUMNS); panel++)
        for (int64_t g = 0; g < groups; g++)
            for (int c = 0; c < COLUMNS; c++) {
                float values[GROUP];
                source.read(panel * COLUMNS + c, g, values);
                pack_group(form, values, packed + (panel * groups + g) * group_size, c);
            }
}

// Counts those groups, of every `step`th output, that do not lie on a grid of 16 steps.
int64_t pagechat_off_grid(const void* weight, int32_t is_bf16, int64_t outputs, int64_t inputs, int64_t step) {
    const Source source{weight, outputs, inputs, is_bf16 != 0};
    int64_t off = 0;
    for (int64_t output = 0; output < outputs; output += step)
        for (int64_t g = 0; g < inputs / GROUP; g++) {
            float values[GROUP], scale, least;
            source.read(output, g, values);
            off += !find_grid(values, scale, least);
        }
    return off;
}

// The largest whole number to which products with weights of this form round their inputs on this CPU; 0 where they do not.
int32_t pagechat_input_limit(int32_t form) { return !takes_dots(form) ? 0 : form == INT8 ? 127 * 128 : 127; }

// How many floats of memory a product works in.
int64_t pagechat_linear_floats(int64_t inputs, int64_t rows) { return rows * inputs + floats_to_round(rows, inputs); }

// The product of x [rows, inputs], which is normalised first where there is a `norm`.
void pagechat_linear(
    const Linear* linear, int32_t mode, const float* x, int64_t rows, const float* norm, float eps, float* memory,
    float* out, int32_t threads
) {
    void* const rounded = memory + rows * linear->inputs;
#pragma omp parallel num_threads(threads)
    {
        const float* const taken = run_prepare(*linear, x, rows, norm, eps, memory, rounded);
        run_linear(*linear, (Mode)mode, taken, rounded, rows, out);
    }
}

void pagechat_rope_and_cache(
    const Plan* plan, const Pool* pool, int64_t heads, float* qkv, const float* cosines, const float* sines,
    int64_t angle_stride, const float* q_norm, const float* k_norm, float eps, int32_t threads
) {
#pragma omp parallel num_threads(threads)
    run_rope_and_cache(*plan, *pool, heads, qkv, cosines, sines, angle_stride, q_norm, k_norm, eps);
}

int64_t pagechat_piece_floats(int64_t heads, int64_t kv_heads, int64_t dim) {
    return floats_of_piece(heads / kv_heads, dim);
}

int64_t pagechat_task_queries(int64_t heads, int64_t kv_heads) { return queries_of_task(heads / kv_heads); }

void pagechat_attention(
    const Plan* plan, const Pool* pool, int64_t heads, const float* q, int64_t q_stride, float scale, float* out,
    float* pieces, int32_t threads
) {
#pragma omp parallel num_threads(threads)
    run_attention(*plan, *pool, heads, q, q_stride, scale, out, pieces);
}

// How many floats of memory a step works in, besides the pieces.
int64_t pagechat_step_floats(const Decoder* decoder, int64_t tokens) {
    const int64_t heads = 2 * decoder->heads + 2 * decoder->kv_heads;
    const int64_t widest = std::max({decoder->hidden, decoder->intermediate, decoder->heads * decoder->head_dim});
    return tokens * (decoder->hidden + decoder->intermediate + (heads + 1) * decoder->head_dim) +
           floats_to_round(tokens, widest);
}

// Computes all layers over `residual` [tokens, hidden], in place; pools[layer] is the pool of each.
void pagechat_layers(
    const Decoder* decoder, const Plan* plan, const Pool* pools, float* residual, float* memory, float* pieces,
    int32_t threads
) {
    const int64_t tokens = plan->tokens, hidden = decoder->hidden, dim = decoder->head_dim, half = dim / 2;
    const int64_t width = (decoder->heads + 2 * decoder->kv_heads) * dim;
    float* const normed = memory;
    float* const qkv = normed + tokens * hidden;
    float* const attended = qkv + tokens * width;
    float* const gated = attended + tokens * decoder->heads * dim;
    float* const cosines = gated + tokens * decoder->intermediate;
    float* const sines = cosines + tokens * half;
    void* const rounded = sines + tokens * half;
    const auto run = [&](const Linear& linear, Mode mode, const float* x, const float* norm, float* out) {
        x = run_prepare(linear, x, tokens, norm, decoder->eps, normed, rounded);
        run_linear(linear, mode, x, rounded, tokens, out);
    };
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int64_t token = 0; token < tokens; token++) {
            const int64_t s = plan->owners[token];
            const float position = (float)(plan->starts[s] + token - plan->firsts[s]);
            for (int64_t i = 0; i < half; i++) {
                cosines[token * half + i] = std::cos(position * decoder->inv_freq[i]);
                sines[token * half + i] = std::sin(position * decoder->inv_freq[i]);
            }
        }
        for (int64_t l = 0; l < decoder->num_layers; l++) {
            const Layer& layer = decoder->layers[l];
            run(layer.qkv, PLAIN, residual, layer.input_norm, qkv);
            run_rope_and_cache(*plan, pools[l], decoder->heads, qkv, layer.rotates ? cosines : nullptr, sines, half,
                               layer.q_norm, layer.k_norm, decoder->eps);
            run_attention(*plan, pools[l], decoder->heads, qkv, width, decoder->scale, attended, pieces);
            run(layer.out, ADD, attended, nullptr, residual);
            run(layer.gate_up, SWIGLU, residual, layer.mlp_norm, gated);
            run(layer.down, ADD, gated, nullptr, residual);
        }
    }
}
}
