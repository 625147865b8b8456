// Matrix products with strides: what runs where the library for them is missing, and on the emulated device.
//
// A block makes a tile of 64 x 64 from slices of 16: the slices go through shared memory, each of 256 threads keeps 4 x 4
// sums in registers and adds in the order of the inner dimension, so the bits don't depend on the grid. Sums are floats.
#include "dense.cuh"

const uint32_t TILE = 64;
const uint32_t SLICE = 16;
const uint32_t EACH = 4;
const uint32_t SIDE = TILE / EACH;

// A slice of an operand, rows x inner: slice[step][row]. Elements past the ends are 0. Threads walk along the dimension in
// which neighbours are close in memory.
template <class T>
DEVICE void load_slice(
    const T* x, uint64_t row_stride, uint64_t step_stride, uint64_t first_row, uint64_t rows, uint64_t first_step,
    uint64_t steps, float (&slice)[SLICE][TILE + 4]) {
    uint32_t thread = threadIdx.x;
#pragma unroll
    for (uint32_t k = 0; k < TILE * SLICE / (SIDE * SIDE); k++) {
        uint32_t i = k * (SIDE * SIDE) + thread;
        bool along_rows = row_stride < step_stride;
        uint32_t row = along_rows ? i % TILE : i / SLICE, step = along_rows ? i / TILE : i % SLICE;
        bool inside = first_row + row < rows && first_step + step < steps;
        slice[step][row] = inside ? to_float(x[(first_row + row) * row_stride + (first_step + step) * step_stride]) : 0.0f;
    }
}

// c (+)= a b + bias
template <class C>
DEVICE void product(
    const REAL* a, uint64_t a_row, uint64_t a_step, const REAL* b, uint64_t b_step, uint64_t b_column,
    const float* bias, C* c, uint64_t c_stride, uint32_t add, uint64_t m, uint64_t n, uint64_t k) {
    SHARED_2D(float, left, SLICE, TILE + 4);
    SHARED_2D(float, right, SLICE, TILE + 4);
    uint64_t across = ceiling(n, TILE);
    uint64_t first_row = blockIdx.x / across * TILE, first_column = blockIdx.x % across * TILE;
    uint32_t row = threadIdx.x / SIDE, column = threadIdx.x % SIDE;
    float sums[EACH][EACH] = {};
    for (uint64_t first = 0; first < k; first += SLICE) {
        load_slice(a, a_row, a_step, first_row, m, first, k, left);
        load_slice(b, b_column, b_step, first_column, n, first, k, right);
        __syncthreads();
#pragma unroll
        for (uint32_t step = 0; step < SLICE; step++) {
            float x[EACH], y[EACH];
            read_floats(&left[step][row * EACH], x);
            read_floats(&right[step][column * EACH], y);
#pragma unroll
            for (uint32_t i = 0; i < EACH; i++) {
#pragma unroll
                for (uint32_t j = 0; j < EACH; j++) {
                    sums[i][j] = fmaf(x[i], y[j], sums[i][j]);
                }
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
#pragma unroll
        for (uint32_t j = 0; j < EACH; j++) {
            uint64_t to_row = first_row + row * EACH + i, to_column = first_column + column * EACH + j;
            if (to_row < m && to_column < n) {
                C* to = c + to_row * c_stride + to_column;
                float sum = bias ? sums[i][j] + bias[to_column] : sums[i][j];
                *to = from_float<C>(add ? to_float(*to) + sum : sum);
            }
        }
    }
}

// c = a b + bias, or added into c; a is m x k and b is k x n, each with its (row, column) strides, so either may be
// transposed. Bias may be null. A grid of n / 64 times m / 64 blocks
// of 256 threads.
KERNEL_OF(matmul, SIDE * SIDE)
(const REAL* a, uint64_t a_row, uint64_t a_column, const REAL* b, uint64_t b_row, uint64_t b_column, const float* bias,
 REAL* c, uint64_t c_stride, uint32_t add, uint64_t m, uint64_t n, uint64_t k) {
    product(a, a_row, a_column, b, b_row, b_column, bias, c, c_stride, add, m, n, k);
}
// The same with a result in floats: gradients of parameters.
KERNEL_OF(matmul_to_float, SIDE * SIDE)
(const REAL* a, uint64_t a_row, uint64_t a_column, const REAL* b, uint64_t b_row, uint64_t b_column, float* c,
 uint64_t c_stride, uint32_t add, uint64_t m, uint64_t n, uint64_t k) {
    product(a, a_row, a_column, b, b_row, b_column, nullptr, c, c_stride, add, m, n, k);
}
