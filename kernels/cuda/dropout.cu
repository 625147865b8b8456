// Dropout whose mask depends on the sample, never on the rank: kernels/src/dropout.rs on a device, with the same mask.
//
// A thread makes four counters' words, which are for four runs of four columns, 16 apart. Ten rounds of Philox for four
// elements are about 25 instructions each, below what the bytes of an element take.
#include "dense.cuh"
#include "random.cuh"

// y = factor x where the column's word is at least `threshold`, else 0; `all`: everything is dropped. Key and row keys
// are those of the CPU's kernel, the key mixed. Its own gradient.
KERNEL(dropout)
(uint32_t key0, uint32_t key1, uint32_t threshold, uint32_t all, float factor, const uint64_t* row_keys, const REAL* x,
 uint64_t x_stride, REAL* y, uint64_t y_stride, uint32_t add, uint64_t rows, uint64_t columns) {
    bool x_wide = by_fours(x, x_stride), y_wide = by_fours(y, y_stride);
    // Runs of 4 counters: 4 of them for each group of 64 columns.
    uint64_t runs = ceiling(columns, 4 * COUNTERS) * 4;
    for (uint64_t i = thread_in_grid(); i < rows * runs; i += threads_of_grid()) {
        uint64_t row = i / runs;
        uint32_t run = uint32_t(i - row * runs);
        uint64_t first = uint64_t(run / 4) * (4 * COUNTERS) + run % 4 * 4;
        if (first >= columns) {
            continue;
        }
        uint32_t words[4][4];
#pragma unroll
        for (uint32_t c = 0; c < 4; c++) {
            words_of_row(key0, key1, row_keys[row], run / 4 * COUNTERS + run % 4 * 4 + c, words[c]);
        }
#pragma unroll
        for (uint32_t w = 0; w < 4; w++) {
            uint64_t column = first + w * COUNTERS;
            if (column >= columns) {
                break;
            }
            const REAL* from = x + row * x_stride + column;
            REAL* to = y + row * y_stride + column;
            uint32_t n = uint32_t(least<uint64_t>(4, columns - column));
            float v[4];
            if (x_wide && n == 4) {
                float4 whole = load4(from);
                v[0] = whole.x, v[1] = whole.y, v[2] = whole.z, v[3] = whole.w;
            } else {
#pragma unroll
                for (uint32_t c = 0; c < 4; c++) {
                    v[c] = c < n ? to_float(from[c]) : 0.0f;
                }
            }
#pragma unroll
            for (uint32_t c = 0; c < 4; c++) {
                v[c] = !all && words[c][w] >= threshold ? v[c] * factor : 0.0f;
                if (add && c < n) {
                    v[c] = to_float(to[c]) + v[c];
                }
            }
            if (y_wide && n == 4) {
                store4(to, make_float4(v[0], v[1], v[2], v[3]));
            } else {
#pragma unroll
                for (uint32_t c = 0; c < 4; c++) {
                    if (c < n) {
                        to[c] = from_float<REAL>(v[c]);
                    }
                }
            }
        }
    }
}
