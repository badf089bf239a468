// Every kernel against plain loops (reference.h), in a program of its own: tests/arm.sh runs it for CPUs that this machine
// is not, and on this machine it shows what a compiler made. It prints what failed, and ends with 1 then.
#include <cstdio>
#include <string>

#include "../../../../kernels/cpp/source/kernels.cpp"
#include "reference.h"

namespace {

int checks = 0, failures = 0;
const char* const FORMS[] = {"float32", "bf16", "int8", "int4"};

void report(const std::string& what, bool right, double error, double allowed) {
    checks++;
    if (right) return;
    failures++;
    printf("FAILED %s: off by %g where %g is allowed\n", what.c_str(), error, allowed);
}

// Each number within `absolute` + `relative` of its size.
template <class Number>
void expect_near(
    const std::string& what, const std::vector<Number>& got, const Doubles& wanted, double relative, double absolute
) {
    double worst = 0, allowed = absolute;
    bool right = got.size() == wanted.size();
    for (size_t i = 0; i < got.size() && i < wanted.size(); i++) {
        const double error = std::fabs((double)got[i] - wanted[i]), room = absolute + relative * std::fabs(wanted[i]);
        if (error <= room) continue;
        right = false;  // so is what is no number
        if (!(error <= worst)) worst = error, allowed = room;
    }
    report(what, right, worst, allowed);
}

void expect_same(const std::string& what, const float* got, const float* wanted, int64_t count) {
    report(what + ", to the last bit", !memcmp(got, wanted, count * sizeof(float)), NAN, 0);
}

Doubles doubles(const Numbers& numbers) { return Doubles(numbers.begin(), numbers.end()); }

// -- conversions -------------------------------------------------------------------------------------------------

void test_conversions() {
    bool fp16 = true, low = true, bf16 = true;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        if ((bits >> 10 & 31) != 31) {  // no infinity, no NaN
            const float x = half_to_float((uint16_t)bits);
            fp16 &= from_fp16((uint16_t)bits) == x && to_fp16(x) == bits;
            low &= from_low_fp16(Words{} + (bits | 0xABCD0000u))[0] == x;
        }
        const float y = 1.0f + (float)bits * 3.1e-5f;
        bf16 &= from_bf16(to_bf16(y)) == round_to_bf16(y) && from_bf16(to_bf16(-y)) == round_to_bf16(-y);
    }
    report("16-bit floats", fp16, NAN, 0);
    report("16-bit floats in the low halves of words", low, NAN, 0);
    report("bfloat16", bf16, NAN, 0);
    Numbers got, x = Draw{1}.many(64);
    Doubles wanted;
    for (float& one : x) one *= 87;
    for (int i = 0; i < 64; i += LANES)
        for (int lane = 0; lane < LANES; lane++) got.push_back(exponential(load(&x[i]))[lane]);
    for (float one : x) wanted.push_back(std::exp((double)one));
    expect_near("e^x", got, wanted, 3e-7, 0);
}

// -- products ----------------------------------------------------------------------------------------------------

struct Weight {
    std::vector<char> packed;
    Numbers bias;
    Doubles values;  // [outputs, inputs] as held
    Linear linear;

    Weight(int form, const Numbers& weight, const Numbers& bias, int64_t outputs, int64_t inputs)
        : packed(pagechat_packed_bytes(form, outputs, inputs)), bias(bias) {
        pagechat_pack(form, weight.data(), 0, outputs, inputs, packed.data(), 2);
        values = held(form, packed, outputs, inputs);
        linear = {packed.data(), this->bias.empty() ? nullptr : this->bias.data(), outputs, inputs, form};
    }
    Weight(const Weight&) = delete;
};

Numbers run_product(const Weight& weight, Mode mode, const Numbers& x, int64_t rows, const Numbers& norm, Numbers out) {
    Numbers memory(pagechat_linear_floats(weight.linear.inputs, rows));
    pagechat_linear(&weight.linear, mode, x.data(), rows, norm.empty() ? nullptr : norm.data(), 1e-5f, memory.data(),
                    out.data(), 2);
    return out;
}

Doubles plain_product(const Weight& weight, const Doubles& x, int64_t rows) {
    const Linear& linear = weight.linear;
    Doubles out = product(taken(x, rows, linear.inputs, pagechat_input_limit(linear.form)), rows, linear.inputs,
                          weight.values, linear.outputs);
    for (int64_t i = 0; i < (int64_t)out.size() && linear.bias; i++) out[i] += linear.bias[i % linear.outputs];
    return out;
}

void test_products() {
    const int64_t shapes[][2] = {{32, 32}, {40, 70}, {1, 33}, {97, 160}, {128, 544}};
    Draw draw{2};
    for (int form = 0; form < 4; form++)
        for (const auto& shape : shapes) {
            const int64_t outputs = shape[0], inputs = shape[1];
            const Numbers raw = draw.many(outputs * inputs);
            const Weight weight(form, raw, draw.many(outputs), outputs, inputs);
            const double step[] = {0, 1.0 / 256, 1.02 / 254, 1.1 / 15};
            expect_near(std::string("packed ") + FORMS[form], weight.values, doubles(raw), 0, step[form]);
            for (const int64_t rows : {1, 2, 3, 4, 5, 9, 40, 200}) {
                const std::string what = std::string(FORMS[form]) + " product of " + std::to_string(rows) + " rows, " +
                                         std::to_string(outputs) + " x " + std::to_string(inputs);
                const Numbers x = draw.many(rows * inputs), blank(rows * outputs);
                const Numbers got = run_product(weight, PLAIN, x, rows, {}, blank);
                expect_near(what, got, plain_product(weight, doubles(x), rows), 1e-4, 3e-4);
                const Numbers last(x.end() - inputs, x.end());
                expect_same(what, run_product(weight, PLAIN, last, 1, {}, Numbers(outputs)).data(),
                            &got[(rows - 1) * outputs], outputs);
                if (rows != 5) continue;
                const Numbers residual = draw.many(rows * outputs), norm = draw.many(inputs);
                Doubles sum = plain_product(weight, doubles(x), rows);
                for (size_t i = 0; i < sum.size(); i++) sum[i] += residual[i];
                expect_near(what + ", added", run_product(weight, ADD, x, rows, {}, residual), sum, 1e-4, 3e-4);
                const Numbers after = run_product(weight, PLAIN, x, rows, norm, blank);
                // Where inputs are rounded, one that lies between two whole numbers may fall to either side.
                const double room = pagechat_input_limit(form) == 127 ? 0.03 : 1e-3;
                expect_near(what + ", normed", after, plain_product(weight, normed(doubles(x), rows, inputs, norm, 1e-5), rows), 1e-3, room);
                if (outputs % 64) continue;
                const Doubles gates = gated(plain_product(weight, doubles(x), rows), rows, outputs / 2);
                expect_near(what + ", gated", run_product(weight, SWIGLU, x, rows, {}, Numbers(rows * outputs / 2)),
                            gates, 1e-3, 1e-3);
            }
        }
}

// -- attention ---------------------------------------------------------------------------------------------------

// Sequences in blocks that are scattered over a pool, and a step of theirs. What no sequence wrote is NaN.
struct Scene {
    int64_t heads, kv_heads, dim, block_size;
    bool is_bf16;
    std::vector<int64_t> starts, firsts{0}, tables{0}, tasks{0}, pieces{0}, positions;
    std::vector<int32_t> blocks, owners;
    std::vector<Doubles> keys, values;  // [slots][kv_heads][dim] of each sequence
    Numbers qkv, pool_floats, piece_memory;
    std::vector<uint16_t> pool_halves;
    Plan plan;
    Pool pool;

    Scene(
        const std::vector<std::pair<int64_t, int64_t>>& spans, int64_t heads, int64_t kv_heads, int64_t dim,
        int64_t block_size, bool is_bf16, uint64_t seed
    )
        : heads(heads), kv_heads(kv_heads), dim(dim), block_size(block_size), is_bf16(is_bf16) {
        Draw draw{seed};
        const int64_t queries = pagechat_task_queries(heads, kv_heads);
        int32_t used = 0, needed = 0;
        for (const auto& span : spans) needed += (int32_t)up(span.first + span.second, block_size);
        for (const auto& [start, count] : spans) {
            for (int64_t b = 0; b < up(start + count, block_size); b++) blocks.push_back(needed - used++);
            for (int64_t t = 0; t < count; t++) {
                owners.push_back((int32_t)starts.size());
                positions.push_back(start + t);
            }
            const int64_t found = count == 1 ? up(start + 1, CHUNK) * kv_heads : 0;
            starts.push_back(start);
            firsts.push_back(firsts.back() + count);
            tables.push_back((int64_t)blocks.size());
            pieces.push_back(pieces.back() + found);
            tasks.push_back(tasks.back() + (count == 1 ? found : up(count, queries) * kv_heads));
            keys.push_back(drawn(draw, (start + count) * kv_heads * dim));
            values.push_back(drawn(draw, (start + count) * kv_heads * dim));
        }
        qkv = draw.many((int64_t)positions.size() * (heads + 2 * kv_heads) * dim);
        const int64_t size = (needed + 1) * 2 * kv_heads * block_size * dim;
        if (is_bf16)
            pool_halves.assign(size, 0x7FC0);
        else
            pool_floats.assign(size, NAN);
        pool = {is_bf16 ? (void*)pool_halves.data() : (void*)pool_floats.data(), kv_heads, block_size, dim, is_bf16};
        plan = {(int64_t)starts.size(), (int64_t)positions.size(), starts.data(), firsts.data(), tables.data(),
                blocks.data(), owners.data(), tasks.data(), pieces.data()};
        piece_memory.resize(pieces.back() * pagechat_piece_floats(heads, kv_heads, dim));
        for (size_t s = 0; s < starts.size(); s++)
            for (int64_t slot = 0; slot < (int64_t)keys[s].size() / kv_heads / dim; slot++)
                for (int64_t h = 0; h < kv_heads; h++)
                    for (int part = 0; part < 2; part++) {
                        const int64_t from = (slot * kv_heads + h) * dim;
                        if (slot < starts[s])
                            for (int64_t i = 0; i < dim; i++)
                                put(place(s, slot, h, part) + i, (float)(part ? values : keys)[s][from + i]);
                        else  // the step's own keys and values stand in qkv
                            for (int64_t i = 0; i < dim; i++)
                                qkv[((firsts[s] + slot - starts[s]) * all() + heads + part * kv_heads + h) * dim + i] =
                                    (float)(part ? values : keys)[s][from + i];
                    }
    }
    Scene(const Scene&) = delete;

    int64_t all() const { return heads + 2 * kv_heads; }
    int64_t place(size_t s, int64_t slot, int64_t head, int part) const {
        const int64_t block = blocks[tables[s] + slot / block_size];
        return (((block * 2 + part) * kv_heads + head) * block_size + slot % block_size) * dim;
    }
    void put(int64_t at, float x) {
        if (is_bf16)
            pool_halves[at] = to_bf16(x);
        else
            pool_floats[at] = x;
    }
    double get(int64_t at) const { return is_bf16 ? bf16_to_float(pool_halves[at]) : pool_floats[at]; }

    // Numbers that the pool holds as they are.
    Doubles drawn(Draw& draw, int64_t count) const {
        Doubles numbers(count);
        for (double& x : numbers) x = is_bf16 ? round_to_bf16(1.7f * draw.next()) : 1.7f * draw.next();
        return numbers;
    }

    void cache(const Numbers& cosines, const Numbers& sines, const Numbers& q_norm, const Numbers& k_norm) {
        const auto or_null = [](const Numbers& numbers) { return numbers.empty() ? nullptr : numbers.data(); };
        pagechat_rope_and_cache(&plan, &pool, heads, qkv.data(), or_null(cosines), or_null(sines), dim / 2,
                                or_null(q_norm), or_null(k_norm), 1e-5f, 2);
    }
    Numbers attend() {
        Numbers out(positions.size() * heads * dim);
        pagechat_attention(&plan, &pool, heads, qkv.data(), all() * dim, 0.25f, out.data(), piece_memory.data(), 2);
        return out;
    }
    // Attention of queries [tokens, heads, dim], rows `stride` apart, to the keys and values given.
    Doubles plain(const Doubles& queries, int64_t stride, double scale) const {
        Doubles out;
        for (size_t t = 0; t < positions.size(); t++)
            for (int64_t h = 0; h < heads; h++) {
                const int64_t s = owners[t], count = positions[t] + 1, kv_head = h / (heads / kv_heads);
                Doubles k(count * dim), v(count * dim);
                for (int64_t i = 0; i < count * dim; i++) {
                    const int64_t from = (i / dim * kv_heads + kv_head) * dim + i % dim;
                    k[i] = keys[s][from];
                    v[i] = values[s][from];
                }
                const Doubles one = attended(&queries[(int64_t)t * stride + h * dim], k, v, count, dim, scale);
                out.insert(out.end(), one.begin(), one.end());
            }
        return out;
    }
};

void test_attention() {
    const std::vector<std::pair<int64_t, int64_t>> spans{{0, 1},  {31, 1}, {32, 1},  {255, 1},  {256, 1}, {600, 1},
                                                         {0, 40}, {5, 3},  {30, 35}, {250, 20}, {500, 30}};
    for (const bool is_bf16 : {false, true})
        for (const int64_t dim : {16, 20, 64, 72, 128})
            for (const int64_t kv_heads : {1, 2, 6}) {
                if (dim != 16 && kv_heads != 2) continue;
                Scene scene(spans, 6, kv_heads, dim, kv_heads == 2 ? 16 : 24, is_bf16, 3 + dim + kv_heads);
                scene.cache({}, {}, {}, {});
                const Numbers got = scene.attend();
                const std::string what = std::string(is_bf16 ? "bfloat16" : "float32") + " attention, heads of " +
                                         std::to_string(dim) + ", " + std::to_string(kv_heads) + " of them";
                const double room = is_bf16 && in_pairs<uint16_t> ? 0.02 : 2e-5;
                expect_near(what, got, scene.plain(doubles(scene.qkv), scene.all() * dim, 0.25), 0, room);
                // The last prompt once more, cut in two.
                Scene alone({{500, 1}}, 6, kv_heads, dim, scene.block_size, is_bf16, 1);
                const int64_t first = scene.firsts[10], row = 6 * dim;
                for (const int64_t cut : {1, 13}) {
                    const int64_t starts[] = {500 + cut}, firsts[] = {0, 30 - cut}, tables[] = {0};
                    const int64_t tasks[] = {0, up(30 - cut, pagechat_task_queries(6, kv_heads)) * kv_heads}, none[] = {0, 0};
                    const Plan plan{1, 30 - cut, starts, firsts, tables, &scene.blocks[scene.tables[10]], nullptr, tasks, none};
                    Numbers out((30 - cut) * row);
                    pagechat_attention(&plan, &scene.pool, 6, &scene.qkv[(first + cut) * scene.all() * dim],
                                       scene.all() * dim, 0.25f, out.data(), nullptr, 1);
                    expect_same(what + ", cut", out.data(), &got[(first + cut) * row], (int64_t)out.size());
                }
            }
}

// -- rotation and the KV write -----------------------------------------------------------------------------------

Numbers frequencies(int64_t dim) {
    Numbers inv_freq;
    for (int64_t i = 0; i < dim / 2; i++) inv_freq.push_back((float)std::pow(10000.0, -2.0 * (double)i / (double)dim));
    return inv_freq;
}

void test_rope_and_cache() {
    for (const bool is_bf16 : {false, true})
        for (const int64_t dim : {16, 20, 64})
            for (const bool norms : {false, true}) {
                Scene scene({{0, 5}, {300, 1}, {16, 9}}, 6, 2, dim, 16, is_bf16, 5);
                const Numbers inv_freq = frequencies(dim), all_norms = Draw{6}.many(2 * dim);
                Numbers q_norm, k_norm, cosines, sines;
                if (norms) {
                    q_norm.assign(all_norms.begin(), all_norms.begin() + dim);
                    k_norm.assign(all_norms.begin() + dim, all_norms.end());
                }
                for (const int64_t position : scene.positions)
                    for (const float freq : inv_freq) {
                        cosines.push_back(std::cos((float)position * freq));
                        sines.push_back(std::sin((float)position * freq));
                    }
                Doubles wanted = doubles(scene.qkv);
                for (size_t at = 0; norms && at < wanted.size(); at += dim) {
                    const int64_t head = (int64_t)at / dim % scene.all();
                    if (head >= 8) continue;
                    const Doubles one(wanted.begin() + at, wanted.begin() + at + dim);
                    const Doubles done = normed(one, 1, dim, head < 6 ? q_norm : k_norm, 1e-5);
                    std::copy(done.begin(), done.end(), wanted.begin() + at);
                }
                rotated(wanted, scene.positions, 8, scene.all(), dim, inv_freq);
                scene.cache(cosines, sines, q_norm, k_norm);
                const std::string what = std::string(is_bf16 ? "bfloat16" : "float32") + " rotation, heads of " +
                                         std::to_string(dim) + (norms ? ", normed" : "");
                expect_near(what, scene.qkv, wanted, 1e-5, 1e-5);
                Doubles written, given;
                for (size_t t = 0; t < scene.positions.size(); t++)
                    for (int64_t h = 0; h < 4; h++)
                        for (int64_t i = 0; i < dim; i++) {
                            const int64_t at = scene.place(scene.owners[t], scene.positions[t], h % 2, (int)h / 2);
                            written.push_back(scene.get(at + i));
                            given.push_back(wanted[((int64_t)t * scene.all() + 6 + h) * dim + i]);
                        }
                expect_near(what + ", written", written, given, is_bf16 ? 0.004 : 1e-5, 1e-5);
            }
}

// -- fused layers ------------------------------------------------------------------------------------------------

void test_layers() {
    constexpr int64_t hidden = 64, intermediate = 96, heads = 4, kv_heads = 2, dim = 16, layers = 2;
    constexpr int64_t width = (heads + 2 * kv_heads) * dim;
    for (int form = 0; form < 4; form++)
        for (const bool is_bf16 : {false, true})
            for (const bool norms : {false, true}) {
                Scene scene({{40, 1}, {0, 7}, {270, 1}, {16, 3}}, heads, kv_heads, dim, 16, is_bf16, 7);
                const int64_t tokens = (int64_t)scene.positions.size();
                const Numbers inv_freq = frequencies(dim);
                Draw draw{8};
                const auto weight = [&](int64_t outputs, int64_t inputs) {
                    Numbers numbers = draw.many(outputs * inputs);
                    for (float& x : numbers) x *= 0.2f;
                    return numbers;
                };
                const Numbers input_norm = draw.many(hidden), mlp_norm = draw.many(hidden), q_norm = draw.many(dim),
                              k_norm = draw.many(dim);
                const Weight qkv(form, weight(width, hidden), {}, width, hidden);
                const Weight out(form, weight(hidden, heads * dim), {}, hidden, heads * dim);
                const Weight gate_up(form, weight(2 * intermediate, hidden), {}, 2 * intermediate, hidden);
                const Weight down(form, weight(hidden, intermediate), {}, hidden, intermediate);
                const float* const qk[] = {norms ? q_norm.data() : nullptr, norms ? k_norm.data() : nullptr};
                const Layer layer{input_norm.data(), qkv.linear, qk[0], qk[1], out.linear,
                                  mlp_norm.data(), gate_up.linear, down.linear, 1};
                Layer unrotated = layer;
                unrotated.rotates = 0;
                const Layer both[layers] = {layer, unrotated};
                const Decoder decoder{both, layers, hidden, intermediate, heads, kv_heads, dim,
                                      inv_freq.data(), 1e-5f, 0.25f};
                Numbers residual = draw.many(tokens * hidden);
                Doubles wanted = doubles(residual);
                Scene plain({{40, 1}, {0, 7}, {270, 1}, {16, 3}}, heads, kv_heads, dim, 16, is_bf16, 7);
                for (int l = 0; l < layers; l++) {  // both layers read and write the same pool, one after the other
                    Doubles rows = plain_product(qkv, normed(wanted, tokens, hidden, input_norm, 1e-5), tokens);
                    for (int64_t at = 0; norms && at < (int64_t)rows.size(); at += dim) {
                        const int64_t head = at / dim % scene.all();
                        if (head >= heads + kv_heads) continue;
                        const Doubles one(rows.begin() + at, rows.begin() + at + dim);
                        const Doubles done = normed(one, 1, dim, head < heads ? q_norm : k_norm, 1e-5);
                        std::copy(done.begin(), done.end(), rows.begin() + at);
                    }
                    if (both[l].rotates) rotated(rows, scene.positions, heads + kv_heads, scene.all(), dim, inv_freq);
                    for (int64_t t = 0; t < tokens; t++)
                        for (int64_t h = 0; h < 2 * kv_heads; h++)
                            for (int64_t i = 0; i < dim; i++) {
                                auto& kept = (h < kv_heads ? plain.keys : plain.values)[scene.owners[t]];
                                const double x = rows[(t * scene.all() + heads + h) * dim + i];
                                kept[(scene.positions[t] * kv_heads + h % kv_heads) * dim + i] = is_bf16 ? round_to_bf16((float)x) : x;
                            }
                    const Doubles sum = plain_product(out, plain.plain(rows, width, 0.25), tokens);
                    for (size_t i = 0; i < wanted.size(); i++) wanted[i] += sum[i];
                    const Doubles gates = gated(plain_product(gate_up, normed(wanted, tokens, hidden, mlp_norm, 1e-5), tokens), tokens, intermediate);
                    const Doubles more = plain_product(down, gates, tokens);
                    for (size_t i = 0; i < wanted.size(); i++) wanted[i] += more[i];
                }
                Numbers memory(pagechat_step_floats(&decoder, tokens));
                const Pool pools[layers] = {scene.pool, scene.pool};
                pagechat_layers(&decoder, &scene.plan, pools, residual.data(), memory.data(), scene.piece_memory.data(), 2);
                // Inputs rounded to 8 bits, or a pool's numbers to bfloat16, may fall to the other side of a half.
                const double room = pagechat_input_limit(form) == 127 ? 0.05 : is_bf16 ? 0.02 : 1e-3;
                expect_near(std::string("layers, ") + FORMS[form] + (is_bf16 ? ", bfloat16 pool" : "") + (norms ? ", normed" : ""),
                            residual, wanted, 0, room);
            }
}

}  // namespace

int main() {
    printf("%s, %d lanes\n", pagechat_instructions(), LANES);
    test_conversions();
    test_products();
    test_attention();
    test_rope_and_cache();
    test_layers();
    printf("%d passed, %d failed\n", checks - failures, failures);
    return failures ? 1 : 0;
}
