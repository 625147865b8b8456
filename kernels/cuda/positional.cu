// Learned positional embeddings over jagged sequences: kernels/src/positional.rs on a device.
#include "dense.cuh"

// The last sequence that begins at or before a token; the token is in it.
DEVICE uint64_t sequence_of(const uint64_t* offsets, uint64_t sequences, uint64_t token) {
    uint64_t low = 0, high = sequences;
    while (high - low > 1) {
        uint64_t middle = (low + high) / 2;
        if (offsets[middle] <= token) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

// y = x + weight[position], positions counted within each sequence. `offsets` has sequences + 1 elements. A position
// that `weight` (positions rows) lacks raises a fault and adds nothing.
KERNEL(positional)
(const REAL* x, uint64_t x_stride, const uint64_t* offsets, uint64_t sequences, const float* weight,
 uint64_t positions, REAL* y, uint64_t y_stride, uint32_t add, uint64_t tokens, uint64_t columns, uint32_t* fault) {
    auto from = view(x, x_stride);
    auto table = view(weight, columns);
    auto to = view(y, y_stride);
    for_rows_by_warps(tokens, [&](uint64_t token) {
        uint64_t position = token - offsets[sequence_of(offsets, sequences, token)];
        bool known = position < positions;
        if (!known) {
            raise_fault(fault, FAULT_SIZE);
        }
        for_packs_of_row(columns, [&](uint64_t column, uint32_t n) {
            float v[PACK], w[PACK];
            load_pack(at(from, token) + column, from.wide, n, v);
            if (known) {
                load_pack(at(table, position) + column, table.wide, n, w);
#pragma unroll
                for (uint32_t i = 0; i < PACK; i++) {
                    v[i] += w[i];
                }
            }
            store_pack(at(to, token) + column, to.wide, n, v, add);
        });
    });
}

// gweight[position] = sum of gy over the sequences that reach the position, in their order; a warp takes a position.
KERNEL(positional_grad)
(const REAL* gy, uint64_t gy_stride, const uint64_t* offsets, uint64_t sequences, float* gweight, uint32_t add,
 uint64_t positions, uint64_t columns) {
    auto grad = view(gy, gy_stride);
    auto to = view(gweight, columns);
    for_rows_by_warps(positions, [&](uint64_t position) {
        for_packs_of_row(columns, [&](uint64_t column, uint32_t n) {
            float sum[PACK];
#pragma unroll
            for (uint32_t i = 0; i < PACK; i++) {
                sum[i] = 0.0f;
            }
            // Loads of several sequences are in flight before the first is added.
#pragma unroll 4
            for (uint64_t s = 0; s < sequences; s++) {
                uint64_t begin = offsets[s];
                if (position < offsets[s + 1] - begin) {
                    float g[PACK];
                    load_pack(at(grad, begin + position) + column, grad.wide, n, g);
#pragma unroll
                    for (uint32_t i = 0; i < PACK; i++) {
                        sum[i] += g[i];
                    }
                }
            }
            store_pack(at(to, position) + column, to.wide, n, sum, add);
        });
    });
}
