// Attention over jagged sequences, pointwise (HSTU's SiLU, causal) and softmax: kernels/src/attention.rs on a device.
//
// Nothing of size L x L is written: a tile of scores lives in registers and is computed again in the backward pass. Brain
// floats go to tensor cores (attention_mma.cuh), floats to multiply-adds (attention_fma.cuh). All matrices are tokens x
// (heads dim); head h is columns h dim ..; a kernel's name ends with the widest head that it takes, a narrower one is filled
// up with zeros. A grid of (tiles, heads) blocks of 128 threads; tiles are tokens / rows + sequences, with the rows of
// a tile: 64 for brain floats; for floats 32, or 16 for heads wider than 64.
//
// Arguments: matrices with the elements between their rows; offsets (sequences + 1); tiles; heads and their width; whether
// later positions are masked (always for SiLU); for softmax, stats (tokens x heads) receive the logarithm of each row's sum of
// exponentials, and dots hold what attention_dots makes. Unused ones are null.
#include "attention_fma.cuh"
#include "attention_mma.cuh"

#define HEADS \
    const uint64_t *offsets, uint64_t sequences, uint64_t tiles, uint32_t heads, uint32_t dim, uint32_t causal
#define INPUTS                                                                                             \
    const REAL *q, uint64_t q_stride, const REAL *k, uint64_t k_stride, const REAL *v, uint64_t v_stride
#define FORWARD (INPUTS, HEADS, REAL * y, uint64_t y_stride, uint32_t add, float* stats)
#define GRAD_Q                                                                                             \
    (INPUTS, const REAL* gy, uint64_t gy_stride, HEADS, const float* stats, const float* dots, REAL* gq,   \
     uint64_t gq_stride, uint32_t add)
#define GRAD_KV                                                                                            \
    (INPUTS, const REAL* gy, uint64_t gy_stride, HEADS, const float* stats, const float* dots, REAL* gk,   \
     uint64_t gk_stride, uint32_t gk_add, REAL* gv, uint64_t gv_stride, uint32_t gv_add)

#define FORWARD_OF(D, SOFTMAX, CAUSAL)                                                                     \
    {                                                                                                      \
        (void)causal;                                                                                      \
        attention_forward<D, SOFTMAX>(                                                                     \
            q, q_stride, k, k_stride, v, v_stride, offsets, sequences, tiles, heads, dim, CAUSAL, y, y_stride, add, stats); \
    }
#define GRAD_Q_OF(D, SOFTMAX, CAUSAL)                                                                      \
    {                                                                                                      \
        (void)causal;                                                                                      \
        attention_grad_q<D, SOFTMAX>(                                                                      \
            q, q_stride, k, k_stride, v, v_stride, gy, gy_stride, offsets, sequences, tiles, heads, dim, CAUSAL, stats, dots,   \
            gq, gq_stride, add);                                                                           \
    }
#define GRAD_KV_OF(D, SOFTMAX, CAUSAL)                                                                     \
    {                                                                                                      \
        (void)causal;                                                                                      \
        attention_grad_kv<D, SOFTMAX>(                                                                     \
            q, q_stride, k, k_stride, v, v_stride, gy, gy_stride, offsets, sequences, tiles, heads, dim, CAUSAL, stats, dots,   \
            gk, gk_stride, gk_add, gv, gv_stride, gv_add);                                                 \
    }

// dots (tokens x heads) = the sum over a head's columns of y gy: what a softmax's gradient subtracts. A warp takes a token's head.
KERNEL(attention_dots)
(const REAL* y, uint64_t y_stride, const REAL* gy, uint64_t gy_stride, uint32_t heads, uint32_t dim, float* dots,
 uint64_t tokens) {
    for_rows_by_warps(tokens * heads, [&](uint64_t i) {
        uint64_t token = i / heads, first = i % heads * dim;
        float dot = 0.0f;
        for (uint64_t column = first + thread_in_block() % WARP; column < first + dim; column += WARP) {
            dot = fmaf(to_float(y[token * y_stride + column]), to_float(gy[token * gy_stride + column]), dot);
        }
        dot = warp_sum(dot);
        if (thread_in_block() % WARP == 0) {
            dots[i] = dot;
        }
    });
}

// y_i = sum over j <= i of silu(q_i . k_j / sqrt(d)) / L v_j, and its gradients.
KERNEL_OF(silu_attention_16, ATTENTION_THREADS) FORWARD FORWARD_OF(16, false, true)
KERNEL_OF(silu_attention_32, ATTENTION_THREADS) FORWARD FORWARD_OF(32, false, true)
KERNEL_OF(silu_attention_64, ATTENTION_THREADS) FORWARD FORWARD_OF(64, false, true)
KERNEL_OF(silu_attention_128, ATTENTION_THREADS) FORWARD FORWARD_OF(128, false, true)
KERNEL_OF(silu_attention_grad_q_16, ATTENTION_THREADS) GRAD_Q GRAD_Q_OF(16, false, true)
KERNEL_OF(silu_attention_grad_q_32, ATTENTION_THREADS) GRAD_Q GRAD_Q_OF(32, false, true)
KERNEL_OF(silu_attention_grad_q_64, ATTENTION_THREADS) GRAD_Q GRAD_Q_OF(64, false, true)
KERNEL_OF(silu_attention_grad_q_128, ATTENTION_THREADS) GRAD_Q GRAD_Q_OF(128, false, true)
KERNEL_OF(silu_attention_grad_kv_16, ATTENTION_THREADS) GRAD_KV GRAD_KV_OF(16, false, true)
KERNEL_OF(silu_attention_grad_kv_32, ATTENTION_THREADS) GRAD_KV GRAD_KV_OF(32, false, true)
KERNEL_OF(silu_attention_grad_kv_64, ATTENTION_THREADS) GRAD_KV GRAD_KV_OF(64, false, true)
KERNEL_OF(silu_attention_grad_kv_128, ATTENTION_THREADS) GRAD_KV GRAD_KV_OF(128, false, true)

// y_i = sum over j of p_ij v_j with p_i = softmax(q_i . k_j / sqrt(d)) over the keys that are seen, and its gradients.
KERNEL_OF(softmax_attention_16, ATTENTION_THREADS) FORWARD FORWARD_OF(16, true, causal != 0)
KERNEL_OF(softmax_attention_32, ATTENTION_THREADS) FORWARD FORWARD_OF(32, true, causal != 0)
KERNEL_OF(softmax_attention_64, ATTENTION_THREADS) FORWARD FORWARD_OF(64, true, causal != 0)
KERNEL_OF(softmax_attention_128, ATTENTION_THREADS) FORWARD FORWARD_OF(128, true, causal != 0)
KERNEL_OF(softmax_attention_grad_q_16, ATTENTION_THREADS) GRAD_Q GRAD_Q_OF(16, true, causal != 0)
KERNEL_OF(softmax_attention_grad_q_32, ATTENTION_THREADS) GRAD_Q GRAD_Q_OF(32, true, causal != 0)
KERNEL_OF(softmax_attention_grad_q_64, ATTENTION_THREADS) GRAD_Q GRAD_Q_OF(64, true, causal != 0)
KERNEL_OF(softmax_attention_grad_q_128, ATTENTION_THREADS) GRAD_Q GRAD_Q_OF(128, true, causal != 0)
KERNEL_OF(softmax_attention_grad_kv_16, ATTENTION_THREADS) GRAD_KV GRAD_KV_OF(16, true, causal != 0)
KERNEL_OF(softmax_attention_grad_kv_32, ATTENTION_THREADS) GRAD_KV GRAD_KV_OF(32, true, causal != 0)
KERNEL_OF(softmax_attention_grad_kv_64, ATTENTION_THREADS) GRAD_KV GRAD_KV_OF(64, true, causal != 0)
KERNEL_OF(softmax_attention_grad_kv_128, ATTENTION_THREADS) GRAD_KV GRAD_KV_OF(128, true, causal != 0)
