// Losses, each with the gradient of what it is computed from: kernels/src/loss.rs on a device.
//
// A loss is a sum over samples or tokens; each writes its term in double precision, and one block adds them in an order
// that depends on their number only.
#include "dense.cuh"

// Threads that add terms.
const uint32_t SUM_THREADS = 256;

// loss = factor times the sum of the terms, as a float and, if wanted (not null), in double precision.
KERNEL_OF(sum_terms, SUM_THREADS)
(const double* terms, double factor, float* loss, double* total, uint64_t n) {
    SHARED(double, sums, SUM_THREADS);
    double sum = 0.0;
#pragma unroll 4
    for (uint64_t i = threadIdx.x; i < n; i += SUM_THREADS) {
        sum += terms[i];
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (uint32_t half = SUM_THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            sums[threadIdx.x] += sums[threadIdx.x + half];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        double value = sums[0] * factor;
        *loss = float(value);
        if (total) {
            *total = value;
        }
    }
}

// Binary cross-entropy with logits: terms max(x, 0) - x y + ln(1 + e^-|x|), and, if wanted (not null), glogits =
// (sigmoid(x) - y) norm.
KERNEL(bce_with_logits)
(const REAL* logits, uint64_t logits_stride, const float* labels, double norm, double* terms, REAL* glogits,
 uint64_t glogits_stride, uint32_t add, uint64_t n) {
    for (uint64_t i = thread_in_grid(); i < n; i += threads_of_grid()) {
        double x = to_float(logits[i * logits_stride]), y = labels[i];
        double e = exp(-fabs(x));
        terms[i] = (x > 0.0 ? x : 0.0) - x * y + log1p(e);
        if (glogits) {
            double sigmoid = x >= 0.0 ? 1.0 / (1.0 + e) : e / (1.0 + e);
            REAL* to = glogits + i * glogits_stride;
            float g = float((sigmoid - y) * norm);
            *to = from_float<REAL>(add ? to_float(*to) + g : g);
        }
    }
}

// Lanes that make a dot product together; a warp makes four at once.
const uint32_t DOT_LANES = 8;

// The dot product of h and a row, by eight lanes; the same in all of them.
DEVICE float dot_by_eight(const REAL* h, bool h_wide, const REAL* row, bool row_wide, uint64_t columns) {
    float dot = 0.0f;
    for (uint64_t column = thread_in_block() % DOT_LANES * PACK; column < columns; column += DOT_LANES * PACK) {
        uint32_t n = uint32_t(least<uint64_t>(PACK, columns - column));
        float a[PACK], b[PACK];
        load_pack(h + column, h_wide, n, a);
        load_pack(row + column, row_wide, n, b);
#pragma unroll
        for (uint32_t i = 0; i < PACK; i++) {
            dot = fmaf(a[i], b[i], dot);
        }
    }
#pragma unroll
    for (uint32_t step = DOT_LANES / 2; step > 0; step /= 2) {
        dot += __shfl_xor_sync(ALL_LANES, dot, step);
    }
    return dot;
}

// Sampled softmax: the cross-entropy of each target among itself and `count` negatives, with logits h . row times
// `cold` (1 / temperature); a negative that is its own target does not count. `scale` is norm / temperature. Writes a
// term a token, and the gradients with respect to the dot products (tokens x (1 + count), target first), which also hold
// the logits meanwhile. An entry of `target` or `negatives` that is no row raises a fault and stands for row 0. A warp
// takes a token.
KERNEL(sampled_softmax)
(const REAL* h, uint64_t h_stride, const REAL* rows, uint64_t rows_stride, uint64_t row_count, const uint32_t* target,
 const uint32_t* negatives, uint32_t count, float cold, double scale, double* terms, float* dlogits, uint64_t tokens,
 uint64_t columns, uint32_t* fault) {
    auto queries = view(h, h_stride);
    auto table = view(rows, rows_stride);
    uint32_t lane = thread_in_block() % WARP;
    if (row_count == 0) {
        if (tokens > 0 && thread_in_grid() == 0) {
            raise_fault(fault, FAULT_ROW);
        }
        return;
    }
    for_rows_by_warps(tokens, [&](uint64_t token) {
        float* logits = dlogits + token * (count + 1);
        const uint32_t* drawn = negatives + token * count;
        uint32_t positive = target[token];
        // Four rows at a time. All lanes stay, for the sums over them.
        for (uint32_t base = 0; base <= count; base += WARP / DOT_LANES) {
            uint32_t j = base + lane / DOT_LANES;
            uint32_t entry = j == 0 || j > count ? positive : drawn[j - 1];
            if (entry >= row_count) {
                raise_fault(fault, FAULT_ROW);
            }
            const REAL* row = at(table, entry < row_count ? entry : 0);
            float dot = dot_by_eight(at(queries, token), queries.wide, row, table.wide, columns);
            if (lane % DOT_LANES == 0 && j <= count) {
                logits[j] = j > 0 && entry == positive ? -INFINITY_F : dot * cold;
            }
        }
        // What other lanes wrote is read from here on.
        __syncwarp();
        float top = -INFINITY_F;
        for (uint32_t j = lane; j <= count; j += WARP) {
            top = greatest(top, logits[j]);
        }
        top = warp_max(top);
        float own = logits[0];
        float sum = 0.0f;
        for (uint32_t j = lane; j <= count; j += WARP) {
            sum += expf(logits[j] - top);
        }
        sum = warp_sum(sum);
        float factor = float(scale / double(sum));
        for (uint32_t j = lane; j <= count; j += WARP) {
            // e^-inf is 0: a negative that is the target gets no gradient.
            float g = expf(logits[j] - top) * factor;
            logits[j] = j == 0 ? g - float(scale) : g;
        }
        if (lane == 0) {
            terms[token] = log(double(sum)) + double(top - own);
        }
    });
}

// gh[t] = sum of dlogits times rows, target first, then negatives in their order. A warp takes a token.
KERNEL(sampled_softmax_grad)
(const REAL* rows, uint64_t rows_stride, uint64_t row_count, const uint32_t* target, const uint32_t* negatives,
 uint32_t count, const float* dlogits, REAL* gh, uint64_t gh_stride, uint32_t add, uint64_t tokens, uint64_t columns,
 uint32_t* fault) {
    auto table = view(rows, rows_stride);
    auto to = view(gh, gh_stride);
    for_rows_by_warps(tokens, [&](uint64_t token) {
        const float* d = dlogits + token * (count + 1);
        const uint32_t* drawn = negatives + token * count;
        for_packs_of_row(columns, [&](uint64_t column, uint32_t n) {
            float sum[PACK];
            uint32_t positive = target[token];
            bool known = positive < row_count;
            if (!known) {
                raise_fault(fault, FAULT_ROW);
            }
            if (add) {
                load_pack(at(to, token) + column, to.wide, n, sum);
            }
            float x[PACK];
            load_pack(at(table, known ? positive : 0) + column, table.wide, known ? n : 0, x);
#pragma unroll
            for (uint32_t i = 0; i < PACK; i++) {
                sum[i] = add ? sum[i] + d[0] * x[i] : d[0] * x[i];
            }
#pragma unroll 4
            for (uint32_t j = 0; j < count; j++) {
                uint32_t entry = drawn[j];
                if (entry >= row_count) {
                    raise_fault(fault, FAULT_ROW);
                    continue;
                }
                load_pack(at(table, entry) + column, table.wide, n, x);
#pragma unroll
                for (uint32_t i = 0; i < PACK; i++) {
                    sum[i] = fmaf(d[j + 1], x[i], sum[i]);
                }
            }
            store_pack(at(to, token) + column, to.wide, n, sum, 0);
        });
    });
}

// grows[row] = sum of dlogits times h over all that ask for the row: first targets in order, then negatives in order. `starts`
// (row_count + 1) and `positions` list for each row where it stands in targets (0 .. tokens) followed by negatives
// (tokens ..), ascending. A warp takes a row and sums it whole.
KERNEL(sampled_softmax_grad_rows)
(const REAL* h, uint64_t h_stride, const uint32_t* starts, const uint32_t* positions, uint32_t count,
 const float* dlogits, float* grows, uint64_t grows_stride, uint32_t add, uint64_t tokens, uint64_t row_count,
 uint64_t columns) {
    auto queries = view(h, h_stride);
    auto to = view(grows, grows_stride);
    for_rows_by_warps(row_count, [&](uint64_t row) {
        for_packs_of_row(columns, [&](uint64_t column, uint32_t n) {
            float sum[PACK];
            if (add) {
                load_pack(at(to, row) + column, to.wide, n, sum);
            }
#pragma unroll
            for (uint32_t i = 0; i < PACK; i++) {
                sum[i] = add ? sum[i] : 0.0f;
            }
#pragma unroll 4
            for (uint32_t k = starts[row]; k < starts[row + 1]; k++) {
                uint32_t position = positions[k];
                uint64_t token = position, which = 0;
                if (position >= tokens) {
                    token = (position - tokens) / count;
                    which = 1 + (position - tokens) % count;
                }
                float d = dlogits[token * (count + 1) + which];
                float v[PACK];
                load_pack(at(queries, token) + column, queries.wide, n, v);
#pragma unroll
                for (uint32_t i = 0; i < PACK; i++) {
                    sum[i] = sum[i] + d * v[i];
                }
            }
            store_pack(at(to, row) + column, to.wide, n, sum, 0);
        });
    });
}
