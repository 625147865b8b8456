// Row-wise normalisations and their gradients: kernels/src/norm.rs on a device. Also sums over rows.
//
// A warp takes a row. It reads it once from memory; what it reads again for the next pass over the same row comes from
// the first-level cache. The floor is each operand's bytes once.
//
// Sums over rows (the gradients of scales and biases) are made in two launches without atomics: of chunks of rows, then
// of the chunks in order. How rows are cut depends on their number only, so the bits don't depend on the grid.
#include "dense.cuh"

// The norms of rows. `load(row, column, n, v)` gives what stands in a row, the same each time; `store(row, column, n, v)` takes
// what becomes of it. Both are called by the thread whose columns they are.
template <class Load, class Store>
DEVICE void layer_norm_rows(
    const float* weight, const float* bias, float eps, float* stats, uint64_t rows, uint64_t columns, Load load,
    Store store) {
    bool weight_wide = aligned16(weight, 0), bias_wide = aligned16(bias, 0);
    for_rows_by_warps(rows, [&](uint64_t row) {
        float sum = 0.0f;
        for_packs_of_row(columns, [&](uint64_t column, uint32_t n) {
            float v[PACK];
            load(row, column, n, v, true);
#pragma unroll
            for (uint32_t i = 0; i < PACK; i++) {
                sum += v[i];
            }
        });
        float mean = warp_sum(sum) / float(columns);
        float squares = 0.0f;
        for_packs_of_row(columns, [&](uint64_t column, uint32_t n) {
            float v[PACK];
            load(row, column, n, v, false);
#pragma unroll
            for (uint32_t i = 0; i < PACK; i++) {
                float d = i < n ? v[i] - mean : 0.0f;
                squares = fmaf(d, d, squares);
            }
        });
        float rstd = 1.0f / sqrtf(warp_sum(squares) / float(columns) + eps);
        for_packs_of_row(columns, [&](uint64_t column, uint32_t n) {
            float v[PACK];
            load(row, column, n, v, false);
#pragma unroll
            for (uint32_t i = 0; i < PACK; i++) {
                v[i] = (v[i] - mean) * rstd;
            }
            if (weight) {
                float w[PACK], b[PACK];
                load_pack(weight + column, weight_wide, n, w);
                load_pack(bias + column, bias_wide, n, b);
#pragma unroll
                for (uint32_t i = 0; i < PACK; i++) {
                    v[i] = v[i] * w[i] + b[i];
                }
            }
            store(row, column, n, v);
        });
        if (thread_in_block() % WARP == 0) {
            stats[2 * row] = mean;
            stats[2 * row + 1] = rstd;
        }
    });
}

// y = (x - mean) / sqrt(variance + eps) weight + bias over each row; stats (rows x 2) receive mean and 1 / deviation.
// Without weight and bias they are null.
KERNEL(layer_norm)
(const REAL* x, uint64_t x_stride, const float* weight, const float* bias, float eps, REAL* y, uint64_t y_stride,
 uint32_t add, float* stats, uint64_t rows, uint64_t columns) {
    auto from = view(x, x_stride);
    auto to = view(y, y_stride);
    layer_norm_rows(
        weight, bias, eps, stats, rows, columns,
        [&](uint64_t row, uint64_t column, uint32_t n, float(&v)[PACK], bool) {
            load_pack(at(from, row) + column, from.wide, n, v);
        },
        [&](uint64_t row, uint64_t column, uint32_t n, float(&v)[PACK]) {
            store_pack(at(to, row) + column, to.wide, n, v, add);
        });
}

// sum = a + b, and y and stats of it as of layer_norm.
KERNEL(add_layer_norm)
(const REAL* a, uint64_t a_stride, const REAL* b, uint64_t b_stride, const float* weight, const float* bias, float eps,
 REAL* sum, uint64_t sum_stride, REAL* y, uint64_t y_stride, float* stats, uint64_t rows, uint64_t columns) {
    auto left = view(a, a_stride);
    auto right = view(b, b_stride);
    auto both = view(sum, sum_stride);
    auto to = view(y, y_stride);
    layer_norm_rows(
        weight, bias, eps, stats, rows, columns,
        [&](uint64_t row, uint64_t column, uint32_t n, float(&v)[PACK], bool first) {
            // A thread reads again what it has written itself.
            if (!first) {
                load_pack(at(both, row) + column, both.wide, n, v);
                return;
            }
            float w[PACK];
            load_pack(at(left, row) + column, left.wide, n, v);
            load_pack(at(right, row) + column, right.wide, n, w);
#pragma unroll
            for (uint32_t i = 0; i < PACK; i++) {
                v[i] = v[i] + w[i];
            }
            store_pack(at(both, row) + column, both.wide, n, v, 0);
#pragma unroll
            for (uint32_t i = 0; i < PACK; i++) {
                v[i] = rounded(v[i]);
            }
        },
        [&](uint64_t row, uint64_t column, uint32_t n, float(&v)[PACK]) {
            store_pack(at(to, row) + column, to.wide, n, v, 0);
        });
}

// z and stats as of layer_norm, and y = z gate.
KERNEL(layer_norm_mul)
(const REAL* x, uint64_t x_stride, const float* weight, const float* bias, float eps, const REAL* gate, uint64_t gate_stride,
 REAL* z, uint64_t z_stride, REAL* y, uint64_t y_stride, float* stats, uint64_t rows, uint64_t columns) {
    auto from = view(x, x_stride);
    auto factor = view(gate, gate_stride);
    auto norm = view(z, z_stride);
    auto to = view(y, y_stride);
    layer_norm_rows(
        weight, bias, eps, stats, rows, columns,
        [&](uint64_t row, uint64_t column, uint32_t n, float(&v)[PACK], bool) {
            load_pack(at(from, row) + column, from.wide, n, v);
        },
        [&](uint64_t row, uint64_t column, uint32_t n, float(&v)[PACK]) {
            float w[PACK];
            load_pack(at(factor, row) + column, factor.wide, n, w);
            store_pack(at(norm, row) + column, norm.wide, n, v, 0);
#pragma unroll
            for (uint32_t i = 0; i < PACK; i++) {
                v[i] = rounded(v[i]) * w[i];
            }
            store_pack(at(to, row) + column, to.wide, n, v, 0);
        });
}

// gx = rstd (g - mean(g) - xhat mean(g xhat)) with xhat = (x - mean) rstd and g = gy weight.
KERNEL(layer_norm_grad)
(const REAL* x, uint64_t x_stride, const float* weight, const float* stats, const REAL* gy, uint64_t gy_stride, REAL* gx,
 uint64_t gx_stride, uint32_t add, uint64_t rows, uint64_t columns) {
    auto from = view(x, x_stride);
    auto grad = view(gy, gy_stride);
    auto to = view(gx, gx_stride);
    bool weight_wide = aligned16(weight, 0);
    for_rows_by_warps(rows, [&](uint64_t row) {
        float mean = stats[2 * row], rstd = stats[2 * row + 1];
        // Of a pack: xhat, and g.
        auto read = [&](uint64_t column, uint32_t n, float(&xhat)[PACK], float(&g)[PACK]) {
            load_pack(at(from, row) + column, from.wide, n, xhat);
            load_pack(at(grad, row) + column, grad.wide, n, g);
            float w[PACK];
            if (weight) {
                load_pack(weight + column, weight_wide, n, w);
            }
#pragma unroll
            for (uint32_t i = 0; i < PACK; i++) {
                xhat[i] = (xhat[i] - mean) * rstd;
                g[i] = weight ? g[i] * w[i] : g[i];
            }
        };
        // Columns past the end have g = 0 and add nothing.
        float sum = 0.0f, along = 0.0f;
        for_packs_of_row(columns, [&](uint64_t column, uint32_t n) {
            float xhat[PACK], g[PACK];
            read(column, n, xhat, g);
#pragma unroll
            for (uint32_t i = 0; i < PACK; i++) {
                sum += g[i];
                along = fmaf(g[i], xhat[i], along);
            }
        });
        sum = warp_sum(sum) / float(columns);
        along = warp_sum(along) / float(columns);
        for_packs_of_row(columns, [&](uint64_t column, uint32_t n) {
            float xhat[PACK], g[PACK];
            read(column, n, xhat, g);
#pragma unroll
            for (uint32_t i = 0; i < PACK; i++) {
                g[i] = rstd * (g[i] - sum - xhat[i] * along);
            }
            store_pack(at(to, row) + column, to.wide, n, g, add);
        });
    });
}

// Columns that a block sums, and the groups of rows in it that do so at the same time.
const uint32_t SUM_COLUMNS = 32;
const uint32_t SUM_GROUPS = 8;

// The rows of a chunk, in order: out[column] is the sum of f(row, column). Each group sums every eighth row, then the groups are
// added in order. For blocks of 32 x 8 threads.
template <class F>
DEVICE float sum_of_rows(uint64_t first, uint64_t last, uint64_t column, uint64_t columns, F f) {
    SHARED_2D(float, sums, SUM_GROUPS, SUM_COLUMNS);
    float sum = 0.0f;
    if (column < columns) {
#pragma unroll 4
        for (uint64_t row = first + threadIdx.y; row < last; row += SUM_GROUPS) {
            sum += f(row);
        }
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    float all = 0.0f;
    if (threadIdx.y == 0) {
#pragma unroll
        for (uint32_t group = 0; group < SUM_GROUPS; group++) {
            all += sums[group][threadIdx.x];
        }
    }
    // Before anybody writes there again.
    __syncthreads();
    return all;
}

// Sums of chunks of rows, `chunk` rows each: part c is at partials + c columns. A grid of (columns / 32, chunks).
KERNEL_OF(column_sums, SUM_COLUMNS * SUM_GROUPS)
(const REAL* x, uint64_t x_stride, uint64_t chunk, float* partials, uint64_t rows, uint64_t columns) {
    uint64_t first = blockIdx.y * chunk, column = uint64_t(blockIdx.x) * SUM_COLUMNS + threadIdx.x;
    float sum = sum_of_rows(first, least(first + chunk, rows), column, columns, [&](uint64_t row) {
        return to_float(x[row * x_stride + column]);
    });
    if (threadIdx.y == 0 && column < columns) {
        partials[blockIdx.y * columns + column] = sum;
    }
}

// The same for the gradients of layer_norm's weight (sum of gy xhat) and bias (sum of gy): part c of both is at
// partials + 2 c columns, first the weight's.
KERNEL_OF(layer_norm_grad_columns, SUM_COLUMNS * SUM_GROUPS)
(const REAL* x, uint64_t x_stride, const float* stats, const REAL* gy, uint64_t gy_stride, uint64_t chunk,
 float* partials, uint64_t rows, uint64_t columns) {
    uint64_t first = blockIdx.y * chunk, column = uint64_t(blockIdx.x) * SUM_COLUMNS + threadIdx.x;
    uint64_t last = least(first + chunk, rows);
    float weight = sum_of_rows(first, last, column, columns, [&](uint64_t row) {
        float xhat = (to_float(x[row * x_stride + column]) - stats[2 * row]) * stats[2 * row + 1];
        return to_float(gy[row * gy_stride + column]) * xhat;
    });
    float bias = sum_of_rows(first, last, column, columns, [&](uint64_t row) {
        return to_float(gy[row * gy_stride + column]);
    });
    if (threadIdx.y == 0 && column < columns) {
        partials[2 * blockIdx.y * columns + column] = weight;
        partials[(2 * blockIdx.y + 1) * columns + column] = bias;
    }
}

// out = the sum of the chunks' parts, which are `distance` apart. A grid of columns / 32.
KERNEL_OF(fold_partials, SUM_COLUMNS * SUM_GROUPS)
(const float* partials, uint64_t distance, uint64_t chunks, float* out, uint32_t add, uint64_t columns) {
    uint64_t column = uint64_t(blockIdx.x) * SUM_COLUMNS + threadIdx.x;
    float sum = sum_of_rows(0, chunks, column, columns, [&](uint64_t part) { return partials[part * distance + column]; });
    if (threadIdx.y == 0 && column < columns) {
        out[column] = add ? out[column] + sum : sum;
    }
}

// y = x / max(|x|, eps) over each row; norms receive max(|x|, eps).
KERNEL(l2_normalize)
(const REAL* x, uint64_t x_stride, float eps, REAL* y, uint64_t y_stride, uint32_t add, float* norms, uint64_t rows,
 uint64_t columns) {
    auto from = view(x, x_stride);
    auto to = view(y, y_stride);
    for_rows_by_warps(rows, [&](uint64_t row) {
        float squares = 0.0f;
        for_packs_of_row(columns, [&](uint64_t column, uint32_t n) {
            float v[PACK];
            load_pack(at(from, row) + column, from.wide, n, v);
#pragma unroll
            for (uint32_t i = 0; i < PACK; i++) {
                squares = fmaf(v[i], v[i], squares);
            }
        });
        float norm = greatest(sqrtf(warp_sum(squares)), eps);
        float factor = 1.0f / norm;
        for_packs_of_row(columns, [&](uint64_t column, uint32_t n) {
            float v[PACK];
            load_pack(at(from, row) + column, from.wide, n, v);
#pragma unroll
            for (uint32_t i = 0; i < PACK; i++) {
                v[i] *= factor;
            }
            store_pack(at(to, row) + column, to.wide, n, v, add);
        });
        if (thread_in_block() % WARP == 0) {
            norms[row] = norm;
        }
    });
}

// The sum over a row of y gy.
DEVICE float dot_of_row(View<const REAL> y, View<const REAL> gy, uint64_t row, uint64_t columns) {
    float dot = 0.0f;
    for_packs_of_row(columns, [&](uint64_t column, uint32_t n) {
        float v[PACK], g[PACK];
        load_pack(at(y, row) + column, y.wide, n, v);
        load_pack(at(gy, row) + column, gy.wide, n, g);
#pragma unroll
        for (uint32_t i = 0; i < PACK; i++) {
            dot = fmaf(v[i], g[i], dot);
        }
    });
    return warp_sum(dot);
}

// gx = (gy - y (y . gy)) / norm; where the norm was raised to eps, gy / eps.
KERNEL(l2_normalize_grad)
(const REAL* y, uint64_t y_stride, const float* norms, float eps, const REAL* gy, uint64_t gy_stride, REAL* gx,
 uint64_t gx_stride, uint32_t add, uint64_t rows, uint64_t columns) {
    auto from = view(y, y_stride);
    auto grad = view(gy, gy_stride);
    auto to = view(gx, gx_stride);
    for_rows_by_warps(rows, [&](uint64_t row) {
        float dot = dot_of_row(from, grad, row, columns);
        float factor = 1.0f / norms[row];
        if (norms[row] <= eps) {
            dot = 0.0f;
        }
        for_packs_of_row(columns, [&](uint64_t column, uint32_t n) {
            float v[PACK], g[PACK];
            load_pack(at(from, row) + column, from.wide, n, v);
            load_pack(at(grad, row) + column, grad.wide, n, g);
#pragma unroll
            for (uint32_t i = 0; i < PACK; i++) {
                g[i] = factor * (g[i] - v[i] * dot);
            }
            store_pack(at(to, row) + column, to.wide, n, g, add);
        });
    });
}

// y = e^x / sum of e^x over each row.
KERNEL(softmax)
(const REAL* x, uint64_t x_stride, REAL* y, uint64_t y_stride, uint32_t add, uint64_t rows, uint64_t columns) {
    auto from = view(x, x_stride);
    auto to = view(y, y_stride);
    for_rows_by_warps(rows, [&](uint64_t row) {
        float top = -INFINITY_F;
        for_packs_of_row(columns, [&](uint64_t column, uint32_t n) {
            float v[PACK];
            load_pack(at(from, row) + column, from.wide, n, v);
#pragma unroll
            for (uint32_t i = 0; i < PACK; i++) {
                top = i < n ? greatest(top, v[i]) : top;
            }
        });
        top = warp_max(top);
        float sum = 0.0f;
        for_packs_of_row(columns, [&](uint64_t column, uint32_t n) {
            float v[PACK];
            load_pack(at(from, row) + column, from.wide, n, v);
#pragma unroll
            for (uint32_t i = 0; i < PACK; i++) {
                sum += i < n ? expf(v[i] - top) : 0.0f;
            }
        });
        float factor = 1.0f / warp_sum(sum);
        for_packs_of_row(columns, [&](uint64_t column, uint32_t n) {
            float v[PACK];
            load_pack(at(from, row) + column, from.wide, n, v);
#pragma unroll
            for (uint32_t i = 0; i < PACK; i++) {
                v[i] = expf(v[i] - top) * factor;
            }
            store_pack(at(to, row) + column, to.wide, n, v, add);
        });
    });
}

// gx = y (gy - sum of y gy)
KERNEL(softmax_grad)
(const REAL* y, uint64_t y_stride, const REAL* gy, uint64_t gy_stride, REAL* gx, uint64_t gx_stride, uint32_t add,
 uint64_t rows, uint64_t columns) {
    auto from = view(y, y_stride);
    auto grad = view(gy, gy_stride);
    auto to = view(gx, gx_stride);
    for_rows_by_warps(rows, [&](uint64_t row) {
        float dot = dot_of_row(from, grad, row, columns);
        for_packs_of_row(columns, [&](uint64_t column, uint32_t n) {
            float v[PACK], g[PACK];
            load_pack(at(from, row) + column, from.wide, n, v);
            load_pack(at(grad, row) + column, grad.wide, n, g);
#pragma unroll
            for (uint32_t i = 0; i < PACK; i++) {
                g[i] = v[i] * (g[i] - dot);
            }
            store_pack(at(to, row) + column, to.wide, n, g, add);
        });
    });
}
