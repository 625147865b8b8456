// Moving rows, and sums of rows.
//
// A block moves rows by a tile of threads: columns along x, four at a time where addresses allow, rows along y. Each
// thread asks for four rows before it writes the first, so that enough is in flight to fill the memory's bandwidth.
#include "common.cuh"

const uint32_t ROWS_AT_ONCE = 4;

// y[to(i)] (+)= x[rows(at(i))] for i below n. A null map is the identity. Rows of x and y of `cols` elements start at whole
// strides.
template <class X, class Y>
DEVICE void move_rows(
    Grid grid, uint32_t n, uint32_t cols, const X* __restrict__ x, uint32_t x_rows, uint64_t x_stride,
    const uint32_t* __restrict__ rows, const uint32_t* __restrict__ at, uint32_t at_limit, Y* __restrict__ y,
    uint32_t y_rows, uint64_t y_stride, const uint32_t* __restrict__ to, uint32_t add, uint32_t* fault) {
    const uint32_t none = 0xffffffffu;
    uint64_t first = uint64_t(grid.block) * blockDim.y * ROWS_AT_ONCE + threadIdx.y;
    uint32_t source[ROWS_AT_ONCE], target[ROWS_AT_ONCE];
#pragma unroll
    for (uint32_t k = 0; k < ROWS_AT_ONCE; k++) {
        uint64_t i = first + k * blockDim.y;
        source[k] = target[k] = none;
        if (i >= n) {
            continue;
        }
        uint32_t from = at ? at[i] : uint32_t(i), into = to ? to[i] : uint32_t(i);
        bool known = from < at_limit;
        if (known && rows) {
            from = rows[from];
        }
        if (known && from < x_rows && into < y_rows) {
            source[k] = from;
            target[k] = into;
        } else {
            raise_fault(fault, FAULT_ROW);
        }
    }
    if (by_fours(x, x_stride) && by_fours(y, y_stride)) {
        uint32_t fours = cols / 4;
        for (uint32_t j = threadIdx.x; j < fours; j += blockDim.x) {
            float4 value[ROWS_AT_ONCE];
#pragma unroll
            for (uint32_t k = 0; k < ROWS_AT_ONCE; k++) {
                if (source[k] != none) {
                    value[k] = load4(x + source[k] * x_stride + 4 * j);
                }
            }
#pragma unroll
            for (uint32_t k = 0; k < ROWS_AT_ONCE; k++) {
                if (target[k] != none) {
                    Y* out = y + target[k] * y_stride + 4 * j;
                    if (add) {
                        float4 old = load4(out);
                        value[k].x += old.x;
                        value[k].y += old.y;
                        value[k].z += old.z;
                        value[k].w += old.w;
                    }
                    store4(out, value[k]);
                }
            }
        }
    }
    uint32_t begin = by_fours(x, x_stride) && by_fours(y, y_stride) ? cols / 4 * 4 : 0;
    for (uint32_t j = begin + threadIdx.x; j < cols; j += blockDim.x) {
        float value[ROWS_AT_ONCE];
#pragma unroll
        for (uint32_t k = 0; k < ROWS_AT_ONCE; k++) {
            if (source[k] != none) {
                value[k] = to_float(x[source[k] * x_stride + j]);
            }
        }
#pragma unroll
        for (uint32_t k = 0; k < ROWS_AT_ONCE; k++) {
            if (target[k] != none) {
                Y* out = y + target[k] * y_stride + j;
                *out = from_float<Y>(add ? value[k] + to_float(*out) : value[k]);
            }
        }
    }
}

// y[i] = table[rows[at[i]]], or table[rows[i]] without `at`, rounded to what rows are on their way.
KERNEL_JOINED(gather,
    (uint32_t n, uint32_t cols, const float* table, uint32_t table_rows, uint64_t table_stride, const uint32_t* rows,
     uint32_t entries, const uint32_t* at, REAL* y, uint64_t y_stride, uint32_t add, uint32_t* fault),
    (n, cols, table, table_rows, table_stride, rows, entries, at, y, y_stride, add, fault)) {
    move_rows(grid, n, cols, table, table_rows, table_stride, rows, at, entries, y, n, y_stride, nullptr, add, fault);
}

// y[at[i]] = x[i]. `at` holds no position twice.
KERNEL_JOINED(scatter,
    (uint32_t n, uint32_t cols, const REAL* x, uint64_t x_stride, const uint32_t* at, REAL* y, uint32_t y_rows,
     uint64_t y_stride, uint32_t* fault),
    (n, cols, x, x_stride, at, y, y_rows, y_stride, fault)) {
    move_rows(grid, n, cols, x, n, x_stride, nullptr, nullptr, n, y, y_rows, y_stride, at, 0, fault);
}

// y[i] = x[at[i]]: activations, from unique rows to one row per position.
KERNEL_JOINED(expand,
    (uint32_t n, uint32_t cols, const REAL* x, uint32_t x_rows, uint64_t x_stride, const uint32_t* at, REAL* y,
     uint64_t y_stride, uint32_t add, uint32_t* fault),
    (n, cols, x, x_rows, x_stride, at, y, y_stride, add, fault)) {
    move_rows(grid, n, cols, x, x_rows, x_stride, at, nullptr, n, y, n, y_stride, nullptr, add, fault);
}

// y[at[i]] = x[i], exactly: rows that arrived, as they are used. `at` holds no position twice.
KERNEL_JOINED(merge,
    (uint32_t n, uint32_t cols, const REAL* x, uint64_t x_stride, const uint32_t* at, float* y, uint32_t y_rows,
     uint64_t y_stride, uint32_t* fault),
    (n, cols, x, x_stride, at, y, y_rows, y_stride, fault)) {
    move_rows(grid, n, cols, x, n, x_stride, nullptr, nullptr, n, y, y_rows, y_stride, at, 0, fault);
}

// y[i] = x[at[i]], rounded: gradients of rows, those of a class, as they travel.
KERNEL_JOINED(split,
    (uint32_t n, uint32_t cols, const float* x, uint32_t x_rows, uint64_t x_stride, const uint32_t* at, REAL* y,
     uint64_t y_stride, uint32_t add, uint32_t* fault),
    (n, cols, x, x_rows, x_stride, at, y, y_stride, add, fault)) {
    move_rows(grid, n, cols, x, x_rows, x_stride, at, nullptr, n, y, n, y_stride, nullptr, add, fault);
}

// y[at[i]] = x[i]: gradients of rows.
KERNEL_JOINED(scatter_floats,
    (uint32_t n, uint32_t cols, const float* x, uint64_t x_stride, const uint32_t* at, float* y, uint32_t y_rows,
     uint64_t y_stride, uint32_t* fault),
    (n, cols, x, x_stride, at, y, y_rows, y_stride, fault)) {
    move_rows(grid, n, cols, x, n, x_stride, nullptr, nullptr, n, y, y_rows, y_stride, at, 0, fault);
}

// y[b] (+)= the sum of x[at[p]] over the positions p of bag b, or their mean. Empty bags give zeros.
KERNEL_JOINED(pool,
    (uint32_t bags, uint32_t cols, const REAL* x, uint32_t x_rows, uint64_t x_stride, const uint32_t* at,
     const uint32_t* offsets, uint32_t mean, REAL* y, uint64_t y_stride, uint32_t add, uint32_t* fault),
    (bags, cols, x, x_rows, x_stride, at, offsets, mean, y, y_stride, add, fault)) {
    uint64_t bag = uint64_t(grid.block) * blockDim.y + threadIdx.y;
    if (bag >= bags) {
        return;
    }
    uint32_t begin = offsets[bag], end = offsets[bag + 1];
    float factor = 1.0f / float(greatest(end - begin, 1u));
    bool fours = by_fours(x, x_stride) && by_fours(y, y_stride);
    uint32_t whole = fours ? cols / 4 * 4 : 0;
    for (uint32_t j = 4 * threadIdx.x; j < whole; j += 4 * blockDim.x) {
        float4 sum = make_float4(0, 0, 0, 0);
        for (uint32_t p = begin; p < end; p++) {
            uint32_t row = at[p];
            if (row >= x_rows) {
                raise_fault(fault, FAULT_ROW);
                continue;
            }
            float4 value = load4(x + row * x_stride + j);
            sum.x += value.x;
            sum.y += value.y;
            sum.z += value.z;
            sum.w += value.w;
        }
        if (mean) {
            sum.x *= factor;
            sum.y *= factor;
            sum.z *= factor;
            sum.w *= factor;
        }
        REAL* out = y + bag * y_stride + j;
        if (add) {
            float4 old = load4(out);
            sum.x += old.x;
            sum.y += old.y;
            sum.z += old.z;
            sum.w += old.w;
        }
        store4(out, sum);
    }
    for (uint32_t j = whole + threadIdx.x; j < cols; j += blockDim.x) {
        float sum = 0;
        for (uint32_t p = begin; p < end; p++) {
            uint32_t row = at[p];
            if (row >= x_rows) {
                raise_fault(fault, FAULT_ROW);
                continue;
            }
            sum += to_float(x[row * x_stride + j]);
        }
        if (mean) {
            sum *= factor;
        }
        REAL* out = y + bag * y_stride + j;
        *out = from_float<REAL>(add ? sum + to_float(*out) : sum);
    }
}

// bags[p] = the bag of position p.
KERNEL_JOINED(bags_of_positions,
    (uint32_t n, uint32_t bags, const uint32_t* offsets, uint32_t* out, uint32_t* fault),
    (n, bags, offsets, out, fault)) {
    uint64_t p = thread_in_grid(grid);
    if (p >= n) {
        return;
    }
    uint32_t low = 0, high = bags;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (offsets[middle + 1] <= p) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low >= bags) {
        raise_fault(fault, FAULT_SIZE);
    }
    out[p] = low;
}
