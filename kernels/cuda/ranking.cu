// Ranking of items: queries, norms of rows, and how many rows are better than a target. Scores are matrix products.
#include "common.cuh"

// inverse[i] = 1 / max(|x[i]|, eps), by a warp for each row; squares are summed in double precision.
KERNEL_OF(inverse_norms, 256)(uint32_t n, uint32_t cols, const float* x, uint64_t stride, float eps, float* inverse) {
    uint64_t i = (uint64_t(blockIdx.x) * blockDim.x + threadIdx.x) / WARP;
    uint32_t lane = threadIdx.x % WARP;
    double sum = 0;
    for (uint32_t j = lane; i < n && j < cols; j += WARP) {
        double value = x[i * stride + j];
        sum += value * value;
    }
    sum = warp_sum(sum);
    if (i < n && lane == 0) {
        double norm = sqrt(sum);
        inverse[i] = float(1.0 / (norm > eps ? norm : double(eps)));
    }
}

// sums[i] += the squares of a part's columns of row i.
KERNEL_OF(add_squares, 256)(uint32_t n, uint32_t cols, const float* x, uint64_t stride, float* sums) {
    uint64_t i = (uint64_t(blockIdx.x) * blockDim.x + threadIdx.x) / WARP;
    uint32_t lane = threadIdx.x % WARP;
    float sum = 0;
    for (uint32_t j = lane; i < n && j < cols; j += WARP) {
        float value = x[i * stride + j];
        sum += value * value;
    }
    sum = warp_sum(sum);
    if (i < n && lane == 0) {
        sums[i] += sum;
    }
}
// x[i] = 1 / max(sqrt(x[i]), eps)
KERNEL_OF(inverse_roots, 256)(uint32_t n, float eps, float* x) {
    uint64_t i = thread_in_grid();
    if (i < n) {
        double root = sqrt(double(x[i]));
        x[i] = float(1.0 / (root > eps ? root : double(eps)));
    }
}

// queries[s] = the last token of sample s, zeros if it has none.
KERNEL(last_tokens)(
    uint32_t samples, uint32_t cols, const REAL* h, uint64_t stride, const uint32_t* offsets, float* queries) {
    uint64_t i = thread_in_grid();
    if (i >= uint64_t(samples) * cols) {
        return;
    }
    uint32_t s = uint32_t(i / cols), j = uint32_t(i % cols);
    queries[i] = offsets[s + 1] > offsets[s] ? to_float(h[(offsets[s + 1] - 1) * stride + j]) : 0;
}

// x[i] *= factors[i], rows of `cols`.
KERNEL(scale_rows)(uint32_t n, uint32_t cols, const float* factors, float* x, uint64_t stride) {
    uint64_t i = thread_in_grid();
    if (i < uint64_t(n) * cols) {
        x[i / cols * stride + i % cols] *= factors[i / cols];
    }
}
// x[i][j] *= factors[j]: scores by the norms of their rows.
KERNEL(scale_columns)(uint32_t n, uint32_t cols, const float* factors, float* x, uint64_t stride) {
    uint64_t i = thread_in_grid();
    if (i < uint64_t(n) * cols) {
        x[i / cols * stride + i % cols] *= factors[i % cols];
    }
}

const uint32_t NO_ROW = 0xffffffffu;

// targets[q] = the score of the query's target, if it is a row of this block.
KERNEL(target_scores)(
    uint32_t queries, uint32_t rows, const float* scores, const uint32_t* local, float* targets, uint32_t* fault) {
    uint64_t q = thread_in_grid();
    if (q >= queries || local[q] == NO_ROW) {
        return;
    }
    if (local[q] >= rows) {
        raise_fault(fault, FAULT_ROW);
        return;
    }
    targets[q] = scores[q * rows + local[q]];
}

// better[q] = rows of the block that are better than the target: of equal ones, those with lower ids. `ids` are the ids
// of the block's rows; without them they are first_id and what follows. A block for each query.
KERNEL_OF(count_better, 256)(
    uint32_t queries, uint32_t rows, const float* scores, const float* targets, const int64_t* target_ids,
    const int64_t* ids, int64_t first_id, uint64_t* better) {
    uint64_t q = blockIdx.x;
    if (q >= queries) {
        return;
    }
    uint32_t count = 0;
    const float* own = scores + q * rows;
    float target = targets[q];
    int64_t target_id = target_ids[q];
#pragma unroll 2
    for (uint32_t r = threadIdx.x; r < rows; r += 256) {
        float score = own[r];
        if (score > target) {
            count++;
        } else if (score == target) {
            // Few scores are equal, so few ids are looked up.
            count += (ids ? ids[r] : first_id + r) < target_id;
        }
    }
    uint32_t total;
    block_scan(count, total);
    if (threadIdx.x == 0) {
        better[q] = total;
    }
}

// known[q] = of the items that the user has seen, those of this block that are better than the target, without the target
// itself. Items of query q stand from offsets[q] on, with their rows of the block (or none) in `local`.
KERNEL_OF(count_known, 256)(
    uint32_t queries, uint32_t rows, const float* scores, const float* targets, const int64_t* target_ids,
    const uint32_t* offsets, const int64_t* seen, const uint32_t* local, uint64_t* known, uint32_t* fault) {
    uint64_t q = blockIdx.x;
    if (q >= queries) {
        return;
    }
    uint32_t count = 0;
    for (uint32_t k = offsets[q] + threadIdx.x; k < offsets[q + 1]; k += blockDim.x) {
        if (local[k] == NO_ROW || seen[k] == target_ids[q]) {
            continue;
        }
        if (local[k] >= rows) {
            raise_fault(fault, FAULT_ROW);
            continue;
        }
        float score = scores[q * rows + local[k]];
        count += score > targets[q] || (score == targets[q] && seen[k] < target_ids[q]);
    }
    uint32_t total;
    block_scan(count, total);
    if (threadIdx.x == 0) {
        known[q] = total;
    }
}
