// Attention on tensor cores, for brain floats.
//
// A block takes 64 rows of a sequence's head, each of its 4 warps 16 of them, and walks over the other side in tiles. Its own
// rows stay in registers as left operands; the other side's tiles come to shared memory by copies beside the computation. Scores are sums in registers, and turn into the left operand of the next product where they are, since the layouts of a sum and of
// a left operand agree. The backward pass is two kernels that compute the scores again: by queries for gq, by keys for gk
// and gv. Each result is summed by one warp in one order.
#pragma once

#include "attention.cuh"
#include "mma.cuh"

const uint32_t MMA_ROWS = 64;

// Where elements lie in shared memory: rows are 16 bytes longer than the head, so that the eight rows of a square meet
// different banks, and are far apart by a constant, which costs no registers.
template <uint32_t D>
struct MmaShape {
    static const uint32_t STRIDE = D + 8;
};
template <uint32_t D>
DEVICE uint32_t place(uint32_t row, uint32_t column) {
    return row * MmaShape<D>::STRIDE + column;
}

// Rows first .. first + ROWS of a head, zeros past its length and width.
template <uint32_t D, uint32_t ROWS>
DEVICE void load_tile(
    Copies& copies, bf16* tile, View<const bf16> from, uint32_t first, uint32_t length, uint32_t dim) {
    // Not unrolled: the products need the registers.
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < ROWS * (D / 8); i += ATTENTION_THREADS) {
        uint32_t row = i / (D / 8), column = i % (D / 8) * 8;
        bf16* to = tile + place<D>(row, column);
        bool inside = first + row < length && column < dim;
        const bf16* source = inside ? at(from, first + row) + column : from.data;
        if (from.wide) {
            copy_16(copies, to, source, inside);
        } else {
#pragma unroll
            for (uint32_t c = 0; c < 8; c++) {
                to[c] = inside && column + c < dim ? source[c] : bf16{0};
            }
        }
    }
}

// This warp's 16 rows from `first` on, as left operands; zeros past the head's length and width.
template <uint32_t D>
DEVICE void load_left(
    uint32_t (&left)[D / 16][4], View<const bf16> from, uint32_t first, uint32_t length, uint32_t dim) {
    uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
#pragma unroll
    for (uint32_t step = 0; step < D / 16; step++) {
#pragma unroll
        for (uint32_t word = 0; word < 4; word++) {
            uint32_t row = first + g + word % 2 * 8, column = step * 16 + 2 * t + word / 2 * 8;
            const bf16* source = at(from, row) + column;
            uint32_t low = row < length && column < dim ? source[0].bits : 0;
            uint32_t high = row < length && column + 1 < dim ? source[1].bits : 0;
            left[step][word] = low | high << 16;
        }
    }
}

// sums (16 x ROWS) = left tile^T
template <uint32_t D, uint32_t ROWS>
DEVICE void by_rows_of(float (&sums)[ROWS / 8][4], const uint32_t (&left)[D / 16][4], const bf16* tile) {
    uint32_t lane = threadIdx.x % WARP, square = lane / 8;
    uint32_t row = lane % 8 + square / 2 * 8, column = square % 2 * 8;
#pragma unroll
    for (uint32_t j = 0; j < ROWS / 8; j++) {
        sums[j][0] = sums[j][1] = sums[j][2] = sums[j][3] = 0.0f;
    }
#pragma unroll
    for (uint32_t step = 0; step < D / 16; step++) {
#pragma unroll
        for (uint32_t j = 0; j < ROWS / 16; j++) {
            uint32_t right[4];
            load_squares(right, tile + place<D>(row + j * 16, column + step * 16));
            mma_16x8x16(sums[2 * j], left[step], right[0], right[1]);
            mma_16x8x16(sums[2 * j + 1], left[step], right[2], right[3]);
        }
    }
}

// The same with 16 rows of shared memory at the left: for what finds no room in registers.
template <uint32_t D, uint32_t ROWS>
DEVICE void by_rows_of(float (&sums)[ROWS / 8][4], const bf16* left, const bf16* tile) {
    uint32_t lane = threadIdx.x % WARP, square = lane / 8;
    uint32_t row = lane % 8 + square / 2 * 8, column = square % 2 * 8;
#pragma unroll
    for (uint32_t j = 0; j < ROWS / 8; j++) {
        sums[j][0] = sums[j][1] = sums[j][2] = sums[j][3] = 0.0f;
    }
#pragma unroll
    for (uint32_t step = 0; step < D / 16; step++) {
        uint32_t rows[4];
        load_squares(rows, left + place<D>(lane % 8 + square % 2 * 8, square / 2 * 8 + step * 16));
#pragma unroll
        for (uint32_t j = 0; j < ROWS / 16; j++) {
            uint32_t right[4];
            load_squares(right, tile + place<D>(row + j * 16, column + step * 16));
            mma_16x8x16(sums[2 * j], rows, right[0], right[1]);
            mma_16x8x16(sums[2 * j + 1], rows, right[2], right[3]);
        }
    }
}

// sums (16 x D) += weights (16 x ROWS) tile
template <uint32_t D, uint32_t ROWS>
DEVICE void weighted(float (&sums)[D / 8][4], const float (&weights)[ROWS / 8][4], const bf16* tile) {
    uint32_t lane = threadIdx.x % WARP, square = lane / 8;
    uint32_t row = lane % 8 + square % 2 * 8, column = square / 2 * 8;
#pragma unroll
    for (uint32_t j = 0; j < ROWS / 16; j++) {
        uint32_t left[4] = {
            pack_bf16(weights[2 * j][0], weights[2 * j][1]), pack_bf16(weights[2 * j][2], weights[2 * j][3]),
            pack_bf16(weights[2 * j + 1][0], weights[2 * j + 1][1]),
            pack_bf16(weights[2 * j + 1][2], weights[2 * j + 1][3])};
#pragma unroll
        for (uint32_t d = 0; d < D / 16; d++) {
            uint32_t right[4];
            load_squares_transposed(right, tile + place<D>(row + j * 16, column + d * 16));
            mma_16x8x16(sums[2 * d], left, right[0], right[1]);
            mma_16x8x16(sums[2 * d + 1], left, right[2], right[3]);
        }
    }
}

// Writes this warp's rows, those g .. times factors[0] and those g + 8 .. times factors[1].
template <uint32_t D>
DEVICE void store_rows(
    View<bf16> to, const float (&sums)[D / 8][4], const float (&factors)[2], uint32_t first, uint32_t length,
    uint32_t dim, uint32_t add) {
    uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    bool pairs = reinterpret_cast<uint64_t>(to.data) % 4 == 0 && to.stride % 2 == 0;
#pragma unroll
    for (uint32_t d = 0; d < D / 8; d++) {
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            uint32_t row = first + g + half * 8, column = d * 8 + 2 * t;
            if (row >= length || column >= dim) {
                continue;
            }
            bf16* target = at(to, row) + column;
            float low = sums[d][2 * half] * factors[half], high = sums[d][2 * half + 1] * factors[half];
            if (add) {
                low = to_float(target[0]) + low;
                high = column + 1 < dim ? to_float(target[1]) + high : 0.0f;
            }
            if (pairs && column + 1 < dim) {
                *reinterpret_cast<uint32_t*>(target) = pack_bf16(low, high);
            } else {
                target[0] = round_to_bf16(low);
                if (column + 1 < dim) {
                    target[1] = round_to_bf16(high);
                }
            }
        }
    }
}

// Calls f(value, row, column) for each score of this warp: rows from `first_row`, columns from `first_column`.
template <uint32_t COLUMNS, class F>
DEVICE void for_scores(float (&scores)[COLUMNS / 8][4], uint32_t first_row, uint32_t first_column, F f) {
    uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
#pragma unroll
    for (uint32_t j = 0; j < COLUMNS / 8; j++) {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            f(scores[j][i], j, i, first_row + g + i / 2 * 8, first_column + j * 8 + 2 * t + i % 2);
        }
    }
}

// The four lanes that share a row.
DEVICE float row_max(float x) {
    x = greatest(x, __shfl_xor_sync(ALL_LANES, x, 1));
    return greatest(x, __shfl_xor_sync(ALL_LANES, x, 2));
}
DEVICE float row_sum(float x) {
    x += __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}

template <uint32_t D, bool SOFTMAX>
DEVICE void attention_forward(
    const bf16* q, uint64_t q_stride, const bf16* k, uint64_t k_stride, const bf16* v, uint64_t v_stride,
    const uint64_t* offsets, uint64_t sequences, uint64_t all_tiles, uint32_t heads, uint32_t dim, bool causal, bf16* y, uint64_t y_stride,
    uint32_t add, float* stats) {
    const uint32_t KEYS = D <= 64 ? 64 : 32, TILE = KEYS * MmaShape<D>::STRIDE;
    SHARED(uint4, memory, 4 * TILE / 8);
    bf16* keys = reinterpret_cast<bf16*>(memory);
    bf16* values = keys + 2 * TILE;
    Part part;
    if (!part_of_block(offsets, sequences, all_tiles, MMA_ROWS, causal, part)) {
        return;
    }
    uint32_t head = blockIdx.y, first = part.first + threadIdx.x / WARP * 16;
    auto key_rows = head_of(k, k_stride, part.begin, head, dim);
    auto value_rows = head_of(v, v_stride, part.begin, head, dim);
    uint32_t own[D / 16][4];
    load_left<D>(own, head_of(q, q_stride, part.begin, head, dim), first, part.length, dim);
    float root = 1.0f / sqrtf(float(dim));
    float sums[D / 8][4] = {};
    float tops[2] = {-INFINITY_F, -INFINITY_F}, totals[2] = {0.0f, 0.0f};
    uint32_t end = causal ? least(part.length, part.first + MMA_ROWS) : part.length;
    uint32_t tiles = (end + KEYS - 1) / KEYS;
    Copies copies;
    auto load = [&](uint32_t tile) {
        load_tile<D, KEYS>(copies, keys + tile % 2 * TILE, key_rows, tile * KEYS, part.length, dim);
        load_tile<D, KEYS>(copies, values + tile % 2 * TILE, value_rows, tile * KEYS, part.length, dim);
    };
    load(0);
    commit(copies);
    for (uint32_t tile = 0; tile < tiles; tile++) {
        if (tile + 1 < tiles) {
            load(tile + 1);
        }
        commit(copies);
        wait_for_all_but<1>(copies);
        __syncthreads();
        float scores[KEYS / 8][4];
        by_rows_of<D, KEYS>(scores, own, keys + tile % 2 * TILE);
        // Below the diagonal and before the end all keys are seen.
        bool all = (tile + 1) * KEYS <= part.length && (!causal || (tile + 1) * KEYS <= first + 1);
        auto seen = [&](uint32_t row, uint32_t key) { return all || (key < part.length && (!causal || key <= row)); };
        if (SOFTMAX) {
            float most[2] = {tops[0], tops[1]};
            for_scores<KEYS>(scores, first, tile * KEYS, [&](float& x, uint32_t, uint32_t i, uint32_t row, uint32_t key) {
                x = seen(row, key) ? x * root : -INFINITY_F;
                most[i / 2] = greatest(most[i / 2], x);
            });
            float shrink[2], added[2] = {0.0f, 0.0f};
#pragma unroll
            for (uint32_t half = 0; half < 2; half++) {
                most[half] = row_max(most[half]);
                shrink[half] = exp_for(bf16{}, tops[half] - most[half]);
                tops[half] = most[half];
            }
            for_scores<KEYS>(scores, first, tile * KEYS, [&](float& x, uint32_t, uint32_t i, uint32_t, uint32_t) {
                x = exp_for(bf16{}, x - most[i / 2]);
                added[i / 2] += x;
            });
#pragma unroll
            for (uint32_t half = 0; half < 2; half++) {
                totals[half] = totals[half] * shrink[half] + row_sum(added[half]);
            }
#pragma unroll
            for (uint32_t d = 0; d < D / 8; d++) {
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) {
                    sums[d][i] *= shrink[i / 2];
                }
            }
        } else {
            for_scores<KEYS>(scores, first, tile * KEYS, [&](float& x, uint32_t, uint32_t, uint32_t row, uint32_t key) {
                x *= root;
                x = seen(row, key) ? x * sigmoid_for(bf16{}, x) : 0.0f;
            });
        }
        weighted<D, KEYS>(sums, scores, values + tile % 2 * TILE);
        // Before anybody loads over this tile.
        __syncthreads();
    }
    float factors[2];
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        factors[half] = SOFTMAX ? 1.0f / totals[half] : 1.0f / float(part.length);
        uint32_t row = first + threadIdx.x % WARP / 4 + half * 8;
        if (SOFTMAX && threadIdx.x % 4 == 0 && row < part.length) {
            stats[(part.begin + row) * heads + head] = tops[half] + logf(totals[half]);
        }
    }
    store_rows<D>(head_of(y, y_stride, part.begin, head, dim), sums, factors, first, part.length, dim, add);
}

// A score's weight, and the gradient of the score from that of the weight.
template <bool SOFTMAX>
DEVICE void weigh_grad(float& score, float& grad, bool seen, float root, float lse, float dot) {
    float x = score * root;
    if (SOFTMAX) {
        score = seen ? exp_for(bf16{}, x - lse) : 0.0f;
        grad = seen ? score * (grad - dot) : 0.0f;
    } else {
        float sig = sigmoid_for(bf16{}, x);
        score = seen ? x * sig : 0.0f;
        grad = seen ? grad * silu_slope(x, sig) : 0.0f;
    }
}

template <uint32_t D, bool SOFTMAX>
DEVICE void attention_grad_q(
    const bf16* q, uint64_t q_stride, const bf16* k, uint64_t k_stride, const bf16* v, uint64_t v_stride, const bf16* gy,
    uint64_t gy_stride, const uint64_t* offsets, uint64_t sequences, uint64_t all_tiles, uint32_t heads, uint32_t dim, bool causal,
    const float* stats, const float* dots, bf16* gq, uint64_t gq_stride, uint32_t add) {
    const uint32_t KEYS = 32, TILE = KEYS * MmaShape<D>::STRIDE;
    SHARED(uint4, memory, 4 * TILE / 8);
    bf16* keys = reinterpret_cast<bf16*>(memory);
    bf16* values = keys + 2 * TILE;
    Part part;
    if (!part_of_block(offsets, sequences, all_tiles, MMA_ROWS, causal, part)) {
        return;
    }
    uint32_t head = blockIdx.y, first = part.first + threadIdx.x / WARP * 16;
    auto key_rows = head_of(k, k_stride, part.begin, head, dim);
    auto value_rows = head_of(v, v_stride, part.begin, head, dim);
    uint32_t own[D / 16][4], own_grads[D / 16][4];
    load_left<D>(own, head_of(q, q_stride, part.begin, head, dim), first, part.length, dim);
    load_left<D>(own_grads, head_of(gy, gy_stride, part.begin, head, dim), first, part.length, dim);
    float lse[2] = {0.0f, 0.0f}, dot[2] = {0.0f, 0.0f};
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        uint32_t row = first + threadIdx.x % WARP / 4 + half * 8;
        if (SOFTMAX && row < part.length) {
            lse[half] = stats[(part.begin + row) * heads + head];
            dot[half] = dots[(part.begin + row) * heads + head];
        }
    }
    float root = 1.0f / sqrtf(float(dim));
    float sums[D / 8][4] = {};
    uint32_t end = causal ? least(part.length, part.first + MMA_ROWS) : part.length;
    uint32_t tiles = (end + KEYS - 1) / KEYS;
    Copies copies;
    auto load = [&](uint32_t tile) {
        load_tile<D, KEYS>(copies, keys + tile % 2 * TILE, key_rows, tile * KEYS, part.length, dim);
        load_tile<D, KEYS>(copies, values + tile % 2 * TILE, value_rows, tile * KEYS, part.length, dim);
    };
    load(0);
    commit(copies);
    for (uint32_t tile = 0; tile < tiles; tile++) {
        if (tile + 1 < tiles) {
            load(tile + 1);
        }
        commit(copies);
        wait_for_all_but<1>(copies);
        __syncthreads();
        float scores[KEYS / 8][4], grads[KEYS / 8][4];
        by_rows_of<D, KEYS>(scores, own, keys + tile % 2 * TILE);
        by_rows_of<D, KEYS>(grads, own_grads, values + tile % 2 * TILE);
        for_scores<KEYS>(scores, first, tile * KEYS, [&](float& x, uint32_t j, uint32_t i, uint32_t row, uint32_t key) {
            bool seen = key < part.length && (!causal || key <= row);
            weigh_grad<SOFTMAX>(x, grads[j][i], seen, root, lse[i / 2], dot[i / 2]);
        });
        weighted<D, KEYS>(sums, grads, keys + tile % 2 * TILE);
        // Before anybody loads over this tile.
        __syncthreads();
    }
    float factor = SOFTMAX ? root : root / float(part.length);
    float factors[2] = {factor, factor};
    store_rows<D>(head_of(gq, gq_stride, part.begin, head, dim), sums, factors, first, part.length, dim, add);
}

template <uint32_t D, bool SOFTMAX>
DEVICE void attention_grad_kv(
    const bf16* q, uint64_t q_stride, const bf16* k, uint64_t k_stride, const bf16* v, uint64_t v_stride, const bf16* gy,
    uint64_t gy_stride, const uint64_t* offsets, uint64_t sequences, uint64_t all_tiles, uint32_t heads, uint32_t dim, bool causal,
    const float* stats, const float* dots, bf16* gk, uint64_t gk_stride, uint32_t gk_add, bf16* gv, uint64_t gv_stride,
    uint32_t gv_add) {
    const uint32_t QUERIES = D <= 64 ? 32 : 16, TILE = QUERIES * MmaShape<D>::STRIDE;
    // Both sums of a wide head leave no room for the block's own rows in registers.
    const bool OWN_SHARED = D > 64;
    const uint32_t OWN = OWN_SHARED ? MMA_ROWS * MmaShape<D>::STRIDE : 0;
    SHARED(uint4, memory, (3 * TILE + 2 * OWN) / 8);
    bf16* queries = reinterpret_cast<bf16*>(memory);
    bf16* output_grads = queries + 2 * TILE;
    bf16* keys = output_grads + TILE;
    bf16* values = keys + OWN;
    Part part;
    if (!part_of_block(offsets, sequences, all_tiles, MMA_ROWS, false, part)) {
        return;
    }
    uint32_t head = blockIdx.y, first = part.first + threadIdx.x / WARP * 16;
    auto query_rows = head_of(q, q_stride, part.begin, head, dim);
    auto grad_rows = head_of(gy, gy_stride, part.begin, head, dim);
    uint32_t own[D / 16][4], own_values[D / 16][4];
    auto key_rows = head_of(k, k_stride, part.begin, head, dim);
    auto value_rows = head_of(v, v_stride, part.begin, head, dim);
    Copies copies;
    if (OWN_SHARED) {
        load_tile<D, MMA_ROWS>(copies, keys, key_rows, part.first, part.length, dim);
        load_tile<D, MMA_ROWS>(copies, values, value_rows, part.first, part.length, dim);
    } else {
        load_left<D>(own, key_rows, first, part.length, dim);
        load_left<D>(own_values, value_rows, first, part.length, dim);
    }
    float root = 1.0f / sqrtf(float(dim));
    uint64_t own_stats = part.begin * heads + head;
    float key_sums[D / 8][4] = {}, value_sums[D / 8][4] = {};
    // Queries before the block's first key see none of its keys.
    uint32_t from = causal ? part.first / QUERIES : 0;
    uint32_t tiles = (part.length + QUERIES - 1) / QUERIES;
    // Queries come a tile ahead; gradients, for which there is one place, while the scores are computed.
    auto load_queries = [&](uint32_t tile) {
        if (tile < tiles) {
            load_tile<D, QUERIES>(copies, queries + tile % 2 * TILE, query_rows, tile * QUERIES, part.length, dim);
        }
        commit(copies);
    };
    auto load_grads = [&](uint32_t tile) {
        if (tile < tiles) {
            load_tile<D, QUERIES>(copies, output_grads, grad_rows, tile * QUERIES, part.length, dim);
        }
        commit(copies);
    };
    load_queries(from);
    load_grads(from);
    for (uint32_t tile = from; tile < tiles; tile++) {
        wait_for_all_but<1>(copies);
        __syncthreads();
        load_queries(tile + 1);
        const bf16* query_tile = queries + tile % 2 * TILE;
        uint32_t of_warp = threadIdx.x / WARP * 16 * MmaShape<D>::STRIDE;
        // Rows are keys here, columns are queries. First the weights and gv, then the scores' gradients and gk, so that as
        // little as possible is in registers at once. `slopes`: what a score's gradient is times that of its weight.
        float weights[QUERIES / 8][4], slopes[QUERIES / 8][4], grads[QUERIES / 8][4];
        if (OWN_SHARED) {
            by_rows_of<D, QUERIES>(weights, keys + of_warp, query_tile);
        } else {
            by_rows_of<D, QUERIES>(weights, own, query_tile);
        }
        for_scores<QUERIES>(weights, first, tile * QUERIES, [&](float& x, uint32_t j, uint32_t i, uint32_t key, uint32_t row) {
            bool seen = row < part.length && key < part.length && (!causal || key <= row);
            float score = x * root;
            if (SOFTMAX) {
                x = seen ? exp_for(bf16{}, score - stats[own_stats + row * heads]) : 0.0f;
                slopes[j][i] = x;
            } else {
                float sig = sigmoid_for(bf16{}, score);
                x = seen ? score * sig : 0.0f;
                slopes[j][i] = seen ? silu_slope(score, sig) : 0.0f;
            }
        });
        wait_for_all_but<1>(copies);
        __syncthreads();
        weighted<D, QUERIES>(value_sums, weights, output_grads);
        if (OWN_SHARED) {
            by_rows_of<D, QUERIES>(grads, values + of_warp, output_grads);
        } else {
            by_rows_of<D, QUERIES>(grads, own_values, output_grads);
        }
        for_scores<QUERIES>(grads, first, tile * QUERIES, [&](float& g, uint32_t j, uint32_t i, uint32_t, uint32_t row) {
            float dot = SOFTMAX && row < part.length ? dots[own_stats + row * heads] : 0.0f;
            g = slopes[j][i] * (g - dot);
        });
        weighted<D, QUERIES>(key_sums, grads, query_tile);
        // Before anybody loads over this tile.
        __syncthreads();
        load_grads(tile + 1);
    }
    float share = SOFTMAX ? 1.0f : 1.0f / float(part.length);
    float value_factors[2] = {share, share}, key_factors[2] = {root * share, root * share};
    store_rows<D>(head_of(gk, gk_stride, part.begin, head, dim), key_sums, key_factors, first, part.length, dim, gk_add);
    store_rows<D>(head_of(gv, gv_stride, part.begin, head, dim), value_sums, value_factors, first, part.length, dim, gv_add);
}
