// Dot interaction of feature vectors, as in DLRM: kernels/src/interaction.rs on a device.
//
// A block takes a sample. Pieces of 32 columns of all features stand in shared memory, rows one word longer than that, so
// that the lanes of a warp, which read the same column of different features, meet different banks.
#include "dense.cuh"

// Columns in shared memory at once.
const uint32_t PIECE = 32;
const uint32_t PIECE_STRIDE = PIECE + 1;
// Pairs that a thread sums at once.
const uint32_t PAIRS_EACH = 4;

// A piece of the features of a sample. `addresses` are those of the features' matrices.
DEVICE void load_piece(
    const uint64_t* addresses, const uint64_t* strides, uint32_t features, uint64_t sample, uint64_t first,
    uint64_t columns, float* piece) {
    for (uint32_t i = threadIdx.x; i < features * PIECE; i += blockDim.x) {
        uint32_t feature = i / PIECE, column = i % PIECE;
        const REAL* x = reinterpret_cast<const REAL*>(addresses[feature]) + sample * strides[feature];
        piece[feature * PIECE_STRIDE + column] = first + column < columns ? to_float(x[first + column]) : 0.0f;
    }
}

// The number of the pair (low, high) with low < high.
DEVICE uint32_t pair_number(uint32_t low, uint32_t high, uint32_t features) {
    return low * (2 * features - low - 1) / 2 + high - low - 1;
}

// Column p of y is x_i . x_j for the pairs i < j in the order (0, 1), (0, 2), ..., (1, 2), ... Dynamic shared memory:
// features x 33 floats. A grid of as many blocks as one likes.
KERNEL(dot_interaction)
(const uint64_t* addresses, const uint64_t* strides, uint32_t features, REAL* y, uint64_t y_stride, uint32_t add,
 uint64_t samples, uint64_t columns) {
    DYNAMIC_SHARED(float, piece);
    uint32_t pairs = features * (features - 1) / 2;
    for (uint64_t sample = blockIdx.x; sample < samples; sample += gridDim.x) {
        for (uint32_t base = 0; base < pairs; base += PAIRS_EACH * blockDim.x) {
            uint32_t lows[PAIRS_EACH], highs[PAIRS_EACH];
            float sums[PAIRS_EACH];
#pragma unroll
            for (uint32_t k = 0; k < PAIRS_EACH; k++) {
                uint32_t pair = base + k * blockDim.x + threadIdx.x;
                uint32_t low = 0, rest = pair < pairs ? pair : 0;
                while (rest >= features - 1 - low) {
                    rest -= features - 1 - low;
                    low++;
                }
                lows[k] = low;
                highs[k] = low + 1 + rest;
                sums[k] = 0.0f;
            }
            for (uint64_t first = 0; first < columns; first += PIECE) {
                __syncthreads();
                load_piece(addresses, strides, features, sample, first, columns, piece);
                __syncthreads();
#pragma unroll
                for (uint32_t k = 0; k < PAIRS_EACH; k++) {
                    const float* a = piece + lows[k] * PIECE_STRIDE;
                    const float* b = piece + highs[k] * PIECE_STRIDE;
#pragma unroll 8
                    for (uint32_t column = 0; column < PIECE; column++) {
                        sums[k] = fmaf(a[column], b[column], sums[k]);
                    }
                }
            }
#pragma unroll
            for (uint32_t k = 0; k < PAIRS_EACH; k++) {
                uint32_t pair = base + k * blockDim.x + threadIdx.x;
                if (pair < pairs) {
                    REAL* to = y + sample * y_stride + pair;
                    *to = from_float<REAL>(add ? to_float(*to) + sums[k] : sums[k]);
                }
            }
        }
    }
}

// gx_i = sum over j, rising, of gy at the pair of i and j times x_j. `adds` has an `add` for each feature. Dynamic shared
// memory: features x 33 + pairs floats.
KERNEL(dot_interaction_grad)
(const uint64_t* addresses, const uint64_t* strides, uint32_t features, const REAL* gy, uint64_t gy_stride,
 const uint64_t* grad_addresses, const uint64_t* grad_strides, const uint8_t* adds, uint64_t samples, uint64_t columns) {
    DYNAMIC_SHARED(float, piece);
    float* grads = piece + features * PIECE_STRIDE;
    uint32_t pairs = features * (features - 1) / 2;
    for (uint64_t sample = blockIdx.x; sample < samples; sample += gridDim.x) {
        for (uint64_t first = 0; first < columns; first += PIECE) {
            __syncthreads();
            if (first == 0) {
                for (uint32_t pair = threadIdx.x; pair < pairs; pair += blockDim.x) {
                    grads[pair] = to_float(gy[sample * gy_stride + pair]);
                }
            }
            load_piece(addresses, strides, features, sample, first, columns, piece);
            __syncthreads();
            for (uint32_t i = threadIdx.x; i < features * PIECE; i += blockDim.x) {
                uint32_t feature = i / PIECE, column = i % PIECE;
                if (first + column >= columns) {
                    continue;
                }
                REAL* to = reinterpret_cast<REAL*>(grad_addresses[feature]) + sample * grad_strides[feature] + first + column;
                float sum = adds[feature] ? to_float(*to) : 0.0f;
                for (uint32_t j = 0; j < features; j++) {
                    if (j != feature) {
                        uint32_t pair = pair_number(least(feature, j), greatest(feature, j), features);
                        sum = fmaf(grads[pair], piece[j * PIECE_STRIDE + column], sum);
                    }
                }
                *to = from_float<REAL>(sum);
            }
        }
    }
}
