// Attention in floats, by fused multiply-adds.
//
// A block takes a tile of rows of a sequence's head and walks over the other side in tiles of as many rows, both in shared
// memory; rows there are four floats longer than the head. A tile's scores are made by threads that have some rows and
// columns each, eight threads a row, and go through shared memory to the next product. The backward pass is two kernels
// that compute the scores again: by queries for gq, by keys for gk and gv. Each result is summed by one thread in one order.
#pragma once

#include "attention.cuh"

// Rows of a tile of heads of D columns: what 48 KiB hold in the backward pass.
template <uint32_t D>
struct FmaShape {
    static const uint32_t TILE = D <= 64 ? 32 : 16;
    static const uint32_t STRIDE = D + 4;
    static const uint32_t ROWS_EACH = TILE / 16;
    static const uint32_t SCORES_EACH = TILE / 8;
    // Groups of four columns that a thread sums, 32 columns apart.
    static const uint32_t GROUPS = D <= 32 ? 1 : D / 32;
    static const uint32_t WEIGHTS = TILE + 1;
};

// Rows of a thread in a tile's products: row(0), row(1); and the columns of its scores.
DEVICE uint32_t fma_row(uint32_t i) {
    return threadIdx.x / 8 + 16 * i;
}
DEVICE uint32_t fma_column(uint32_t j) {
    return threadIdx.x % 8 + 8 * j;
}

// Rows first .. first + TILE of a head, zeros past its length and width.
template <uint32_t D>
DEVICE void load_tile(float* tile, View<const float> from, uint32_t first, uint32_t length, uint32_t dim) {
    for (uint32_t i = threadIdx.x; i < FmaShape<D>::TILE * (D / 4); i += ATTENTION_THREADS) {
        uint32_t row = i / (D / 4), column = i % (D / 4) * 4;
        bool inside = first + row < length;
        const float* source = at(from, first + row) + column;
        float v[4];
        if (from.wide && inside && column < dim) {
            read_pack(source, v);
        } else {
#pragma unroll
            for (uint32_t c = 0; c < 4; c++) {
                v[c] = inside && column + c < dim ? source[c] : 0.0f;
            }
        }
        write_pack(tile + row * FmaShape<D>::STRIDE + column, v);
    }
}

// This thread's part of left right^T.
template <uint32_t D>
DEVICE void by_rows_of(
    float (&sums)[FmaShape<D>::ROWS_EACH][FmaShape<D>::SCORES_EACH], const float* left, const float* right) {
    typedef FmaShape<D> S;
#pragma unroll
    for (uint32_t i = 0; i < S::ROWS_EACH; i++) {
#pragma unroll
        for (uint32_t j = 0; j < S::SCORES_EACH; j++) {
            sums[i][j] = 0.0f;
        }
    }
#pragma unroll 2
    for (uint32_t column = 0; column < D; column += 4) {
        float a[S::ROWS_EACH][4], b[S::SCORES_EACH][4];
#pragma unroll
        for (uint32_t i = 0; i < S::ROWS_EACH; i++) {
            read_floats(left + fma_row(i) * S::STRIDE + column, a[i]);
        }
#pragma unroll
        for (uint32_t j = 0; j < S::SCORES_EACH; j++) {
            read_floats(right + fma_column(j) * S::STRIDE + column, b[j]);
        }
#pragma unroll
        for (uint32_t c = 0; c < 4; c++) {
#pragma unroll
            for (uint32_t i = 0; i < S::ROWS_EACH; i++) {
#pragma unroll
                for (uint32_t j = 0; j < S::SCORES_EACH; j++) {
                    sums[i][j] = fmaf(a[i][c], b[j][c], sums[i][j]);
                }
            }
        }
    }
}

// This thread's part of weights tile, added to sums: the weight of row and step is at weights[row a + step b].
template <uint32_t D>
DEVICE void weighted(
    float (&sums)[FmaShape<D>::ROWS_EACH][FmaShape<D>::GROUPS][4], const float* weights, uint32_t a, uint32_t b,
    const float* tile) {
    typedef FmaShape<D> S;
    uint32_t own = threadIdx.x % 8 * 4;
    // Of narrow heads some threads have no columns.
    if (own >= D) {
        return;
    }
#pragma unroll 4
    for (uint32_t step = 0; step < S::TILE; step++) {
        float w[S::ROWS_EACH];
#pragma unroll
        for (uint32_t i = 0; i < S::ROWS_EACH; i++) {
            w[i] = weights[fma_row(i) * a + step * b];
        }
#pragma unroll
        for (uint32_t group = 0; group < S::GROUPS; group++) {
            float x[4];
            read_floats(tile + step * S::STRIDE + own + 32 * group, x);
#pragma unroll
            for (uint32_t i = 0; i < S::ROWS_EACH; i++) {
#pragma unroll
                for (uint32_t c = 0; c < 4; c++) {
                    sums[i][group][c] = fmaf(w[i], x[c], sums[i][group][c]);
                }
            }
        }
    }
}

// Writes this thread's part of a tile of results, row i times factors[i].
template <uint32_t D>
DEVICE void store_tile(
    View<float> to, const float (&sums)[FmaShape<D>::ROWS_EACH][FmaShape<D>::GROUPS][4],
    const float (&factors)[FmaShape<D>::ROWS_EACH], uint32_t first, uint32_t length, uint32_t dim, uint32_t add) {
    typedef FmaShape<D> S;
#pragma unroll
    for (uint32_t i = 0; i < S::ROWS_EACH; i++) {
        uint32_t row = first + fma_row(i);
#pragma unroll
        for (uint32_t group = 0; group < S::GROUPS; group++) {
#pragma unroll
            for (uint32_t c = 0; c < 4; c++) {
                uint32_t column = threadIdx.x % 8 * 4 + 32 * group + c;
                if (row < length && column < dim) {
                    float* target = at(to, row) + column;
                    float value = sums[i][group][c] * factors[i];
                    *target = add ? *target + value : value;
                }
            }
        }
    }
}

// The eight lanes that share a row.
DEVICE float eight_max(float x) {
#pragma unroll
    for (uint32_t step = 4; step > 0; step /= 2) {
        x = greatest(x, __shfl_xor_sync(ALL_LANES, x, step));
    }
    return x;
}
DEVICE float eight_sum(float x) {
#pragma unroll
    for (uint32_t step = 4; step > 0; step /= 2) {
        x += __shfl_xor_sync(ALL_LANES, x, step);
    }
    return x;
}

template <uint32_t D, bool SOFTMAX>
DEVICE void attention_forward(
    const float* q, uint64_t q_stride, const float* k, uint64_t k_stride, const float* v, uint64_t v_stride,
    const uint64_t* offsets, uint64_t sequences, uint64_t all_tiles, uint32_t heads, uint32_t dim, bool causal, float* y, uint64_t y_stride,
    uint32_t add, float* stats) {
    typedef FmaShape<D> S;
    SHARED(float4, memory, 3 * S::TILE * S::STRIDE / 4);
    SHARED(float, weights, S::TILE * S::WEIGHTS);
    float* queries = reinterpret_cast<float*>(memory);
    float* keys = queries + S::TILE * S::STRIDE;
    float* values = keys + S::TILE * S::STRIDE;
    Part part;
    if (!part_of_block(offsets, sequences, all_tiles, S::TILE, causal, part)) {
        return;
    }
    uint32_t head = blockIdx.y;
    auto key_rows = head_of(k, k_stride, part.begin, head, dim);
    auto value_rows = head_of(v, v_stride, part.begin, head, dim);
    load_tile<D>(queries, head_of(q, q_stride, part.begin, head, dim), part.first, part.length, dim);
    float root = 1.0f / sqrtf(float(dim));
    float sums[S::ROWS_EACH][S::GROUPS][4] = {};
    float tops[S::ROWS_EACH], totals[S::ROWS_EACH], factors[S::ROWS_EACH];
#pragma unroll
    for (uint32_t i = 0; i < S::ROWS_EACH; i++) {
        tops[i] = -INFINITY_F;
        totals[i] = 0.0f;
    }
    uint32_t end = causal ? least(part.length, part.first + S::TILE) : part.length;
    for (uint32_t base = 0; base < end; base += S::TILE) {
        load_tile<D>(keys, key_rows, base, part.length, dim);
        load_tile<D>(values, value_rows, base, part.length, dim);
        __syncthreads();
        float scores[S::ROWS_EACH][S::SCORES_EACH];
        by_rows_of<D>(scores, queries, keys);
#pragma unroll
        for (uint32_t i = 0; i < S::ROWS_EACH; i++) {
            uint32_t row = part.first + fma_row(i);
            float top = tops[i];
#pragma unroll
            for (uint32_t j = 0; j < S::SCORES_EACH; j++) {
                uint32_t key = base + fma_column(j);
                bool seen = key < part.length && (!causal || key <= row);
                float x = scores[i][j] * root;
                if (SOFTMAX) {
                    scores[i][j] = seen ? x : -INFINITY_F;
                    top = greatest(top, scores[i][j]);
                } else {
                    scores[i][j] = seen ? x * sigmoid_for(0.0f, x) : 0.0f;
                }
            }
            if (SOFTMAX) {
                top = eight_max(top);
                float shrink = expf(tops[i] - top), added = 0.0f;
#pragma unroll
                for (uint32_t j = 0; j < S::SCORES_EACH; j++) {
                    scores[i][j] = expf(scores[i][j] - top);
                    added += scores[i][j];
                }
                totals[i] = totals[i] * shrink + eight_sum(added);
                tops[i] = top;
#pragma unroll
                for (uint32_t group = 0; group < S::GROUPS; group++) {
#pragma unroll
                    for (uint32_t c = 0; c < 4; c++) {
                        sums[i][group][c] *= shrink;
                    }
                }
            }
#pragma unroll
            for (uint32_t j = 0; j < S::SCORES_EACH; j++) {
                weights[fma_row(i) * S::WEIGHTS + fma_column(j)] = scores[i][j];
            }
        }
        __syncthreads();
        weighted<D>(sums, weights, S::WEIGHTS, 1, values);
        // Before anybody loads the next tile.
        __syncthreads();
    }
#pragma unroll
    for (uint32_t i = 0; i < S::ROWS_EACH; i++) {
        uint32_t row = part.first + fma_row(i);
        factors[i] = SOFTMAX ? 1.0f / totals[i] : 1.0f / float(part.length);
        if (SOFTMAX && threadIdx.x % 8 == 0 && row < part.length) {
            stats[(part.begin + row) * heads + head] = tops[i] + logf(totals[i]);
        }
    }
    store_tile<D>(head_of(y, y_stride, part.begin, head, dim), sums, factors, part.first, part.length, dim, add);
}

// The weights of a tile's scores and the gradients of the scores, queries in rows, to shared memory (`grads` after `weights`).
template <uint32_t D, bool SOFTMAX>
DEVICE void weigh_tile(
    const float* queries, const float* keys, const float* output_grads, const float* values, float* weights, float* grads,
    Part part, uint32_t first_query, uint32_t first_key, bool causal, float root, const float* stats, const float* dots,
    uint32_t heads, uint32_t head) {
    typedef FmaShape<D> S;
    float scores[S::ROWS_EACH][S::SCORES_EACH], weight_grads[S::ROWS_EACH][S::SCORES_EACH];
    by_rows_of<D>(scores, queries, keys);
    by_rows_of<D>(weight_grads, output_grads, values);
#pragma unroll
    for (uint32_t i = 0; i < S::ROWS_EACH; i++) {
        uint32_t row = first_query + fma_row(i);
        float lse = 0.0f, dot = 0.0f;
        if (SOFTMAX && row < part.length) {
            lse = stats[(part.begin + row) * heads + head];
            dot = dots[(part.begin + row) * heads + head];
        }
#pragma unroll
        for (uint32_t j = 0; j < S::SCORES_EACH; j++) {
            uint32_t key = first_key + fma_column(j);
            bool seen = row < part.length && key < part.length && (!causal || key <= row);
            float x = scores[i][j] * root, weight, grad;
            if (SOFTMAX) {
                weight = expf(x - lse);
                grad = weight * (weight_grads[i][j] - dot);
            } else {
                float sig = sigmoid_for(0.0f, x);
                weight = x * sig;
                grad = weight_grads[i][j] * silu_slope(x, sig);
            }
            uint32_t at = fma_row(i) * S::WEIGHTS + fma_column(j);
            weights[at] = seen ? weight : 0.0f;
            grads[at] = seen ? grad : 0.0f;
        }
    }
}

template <uint32_t D, bool SOFTMAX>
DEVICE void attention_grad_q(
    const float* q, uint64_t q_stride, const float* k, uint64_t k_stride, const float* v, uint64_t v_stride,
    const float* gy, uint64_t gy_stride, const uint64_t* offsets, uint64_t sequences, uint64_t all_tiles, uint32_t heads, uint32_t dim,
    bool causal, const float* stats, const float* dots, float* gq, uint64_t gq_stride, uint32_t add) {
    typedef FmaShape<D> S;
    SHARED(float4, memory, 4 * S::TILE * S::STRIDE / 4);
    SHARED(float, weights, 2 * S::TILE * S::WEIGHTS);
    float* grads = weights + S::TILE * S::WEIGHTS;
    float* queries = reinterpret_cast<float*>(memory);
    float* output_grads = queries + S::TILE * S::STRIDE;
    float* keys = output_grads + S::TILE * S::STRIDE;
    float* values = keys + S::TILE * S::STRIDE;
    Part part;
    if (!part_of_block(offsets, sequences, all_tiles, S::TILE, causal, part)) {
        return;
    }
    uint32_t head = blockIdx.y;
    auto key_rows = head_of(k, k_stride, part.begin, head, dim);
    auto value_rows = head_of(v, v_stride, part.begin, head, dim);
    load_tile<D>(queries, head_of(q, q_stride, part.begin, head, dim), part.first, part.length, dim);
    load_tile<D>(output_grads, head_of(gy, gy_stride, part.begin, head, dim), part.first, part.length, dim);
    float root = 1.0f / sqrtf(float(dim));
    float sums[S::ROWS_EACH][S::GROUPS][4] = {};
    uint32_t end = causal ? least(part.length, part.first + S::TILE) : part.length;
    for (uint32_t base = 0; base < end; base += S::TILE) {
        load_tile<D>(keys, key_rows, base, part.length, dim);
        load_tile<D>(values, value_rows, base, part.length, dim);
        __syncthreads();
        weigh_tile<D, SOFTMAX>(
            queries, keys, output_grads, values, weights, grads, part, part.first, base, causal, root, stats, dots, heads,
            head);
        __syncthreads();
        weighted<D>(sums, grads, S::WEIGHTS, 1, keys);
        // Before anybody loads the next tile.
        __syncthreads();
    }
    float factors[S::ROWS_EACH];
#pragma unroll
    for (uint32_t i = 0; i < S::ROWS_EACH; i++) {
        factors[i] = SOFTMAX ? root : root / float(part.length);
    }
    store_tile<D>(head_of(gq, gq_stride, part.begin, head, dim), sums, factors, part.first, part.length, dim, add);
}

template <uint32_t D, bool SOFTMAX>
DEVICE void attention_grad_kv(
    const float* q, uint64_t q_stride, const float* k, uint64_t k_stride, const float* v, uint64_t v_stride,
    const float* gy, uint64_t gy_stride, const uint64_t* offsets, uint64_t sequences, uint64_t all_tiles, uint32_t heads, uint32_t dim,
    bool causal, const float* stats, const float* dots, float* gk, uint64_t gk_stride, uint32_t gk_add, float* gv,
    uint64_t gv_stride, uint32_t gv_add) {
    typedef FmaShape<D> S;
    SHARED(float4, memory, 4 * S::TILE * S::STRIDE / 4);
    SHARED(float, weights, 2 * S::TILE * S::WEIGHTS);
    float* grads = weights + S::TILE * S::WEIGHTS;
    float* queries = reinterpret_cast<float*>(memory);
    float* output_grads = queries + S::TILE * S::STRIDE;
    float* keys = output_grads + S::TILE * S::STRIDE;
    float* values = keys + S::TILE * S::STRIDE;
    Part part;
    if (!part_of_block(offsets, sequences, all_tiles, S::TILE, false, part)) {
        return;
    }
    uint32_t head = blockIdx.y;
    auto query_rows = head_of(q, q_stride, part.begin, head, dim);
    auto grad_rows = head_of(gy, gy_stride, part.begin, head, dim);
    load_tile<D>(keys, head_of(k, k_stride, part.begin, head, dim), part.first, part.length, dim);
    load_tile<D>(values, head_of(v, v_stride, part.begin, head, dim), part.first, part.length, dim);
    float root = 1.0f / sqrtf(float(dim));
    float key_sums[S::ROWS_EACH][S::GROUPS][4] = {}, value_sums[S::ROWS_EACH][S::GROUPS][4] = {};
    // Queries before the block's first key see none of its keys; tiles begin at the same places on both sides.
    for (uint32_t base = causal ? part.first : 0; base < part.length; base += S::TILE) {
        load_tile<D>(queries, query_rows, base, part.length, dim);
        load_tile<D>(output_grads, grad_rows, base, part.length, dim);
        __syncthreads();
        weigh_tile<D, SOFTMAX>(
            queries, keys, output_grads, values, weights, grads, part, base, part.first, causal, root, stats, dots, heads,
            head);
        __syncthreads();
        // Queries are rows of the weights, keys are columns.
        weighted<D>(value_sums, weights, 1, S::WEIGHTS, output_grads);
        weighted<D>(key_sums, grads, 1, S::WEIGHTS, queries);
        // Before anybody loads the next tile.
        __syncthreads();
    }
    float key_factors[S::ROWS_EACH], value_factors[S::ROWS_EACH];
#pragma unroll
    for (uint32_t i = 0; i < S::ROWS_EACH; i++) {
        value_factors[i] = SOFTMAX ? 1.0f : 1.0f / float(part.length);
        key_factors[i] = root * value_factors[i];
    }
    store_tile<D>(head_of(gk, gk_stride, part.begin, head, dim), key_sums, key_factors, part.first, part.length, dim, gk_add);
    store_tile<D>(head_of(gv, gv_stride, part.begin, head, dim), value_sums, value_factors, part.first, part.length, dim, gv_add);
}
