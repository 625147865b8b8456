// Optimizers of tables: the touched rows, each with its summed gradient.
//
// A tile of threads has columns along x and rows along y, as in rows.cu. The sum of squares of a row (row-wise Adagrad) is
// made by the threads of a row together, so its last bits may differ from the CPU's; everything else is computed as there.
// How many rows there are only the device knows: a list has room for more, and ends with rows that are NO_ROW.
#include "common.cuh"

// A row that there is not.
const uint32_t NO_ROW = 0xffffffffu;

// Whether an item of a list is a row; tells of those that are out of range.
DEVICE bool is_row(uint64_t row, uint32_t table_rows, uint32_t* fault) {
    if (row < table_rows) {
        return true;
    }
    if (row != NO_ROW) {
        raise_fault(fault, FAULT_ROW);
    }
    return false;
}

enum Rule { SGD, ROWWISE_ADAGRAD, ADAGRAD, ADAM };

// What does not depend on the row. `rate` is the learning rate, Adam's with its corrections for the step.
struct Settings {
    float rate, eps, decay, keep1, keep2;
};

// The change of an element.
template <Rule rule>
DEVICE float change(const Settings& s, float row_rate, float g, float& first, float& second) {
    if (rule == SGD || rule == ROWWISE_ADAGRAD) {
        return row_rate * g;
    }
    if (rule == ADAGRAD) {
        first = fmaf(g, g, first);
        return s.rate * g / (sqrtf(first) + s.eps);
    }
    first = fmaf(s.keep1, g - first, first);
    second = fmaf(s.keep2, g * g - second, second);
    return s.rate * first / (sqrtf(second) + s.eps);
}

template <Rule rule>
DEVICE void update_rows(
    Grid grid, uint32_t n, uint32_t cols, Settings s, const uint32_t* rows, const float* grads, uint64_t grads_stride,
    float* table, uint32_t table_rows, uint64_t table_stride, float* state1, float* state2, uint32_t* fault) {
    uint64_t i = uint64_t(grid.block) * blockDim.y + threadIdx.y;
    bool there = i < n;
    uint64_t row = there ? rows[i] : 0;
    there = there && is_row(row, table_rows, fault);
    const float* g = grads + i * grads_stride;
    float* w = table + row * table_stride;
    float row_rate = s.rate;
    if (rule == ROWWISE_ADAGRAD) {
        float squares = 0;
        for (uint32_t j = threadIdx.x; there && j < cols; j += blockDim.x) {
            float value = g[j];
            if (s.decay != 0) {
                value = fmaf(s.decay, w[j], value);
            }
            squares = fmaf(value, value, squares);
        }
        // The threads of a row are neighbours in a warp. Rows that are not there take part.
        for (uint32_t step = blockDim.x / 2; step > 0; step /= 2) {
            squares += __shfl_xor_sync(ALL_LANES, squares, step);
        }
        float state = 0;
        if (there) {
            state = state1[row] + squares / float(cols);
        }
        // All have read it.
        __syncwarp();
        if (there && threadIdx.x == 0) {
            state1[row] = state;
        }
        row_rate = s.rate / (sqrtf(state) + s.eps);
    }
    if (!there) {
        return;
    }
    bool states = rule == ADAGRAD || rule == ADAM;
    float* p1 = states ? state1 + row * cols : nullptr;
    float* p2 = rule == ADAM ? state2 + row * cols : nullptr;
    bool fours = by_fours(grads, grads_stride) && by_fours(table, table_stride) && (!states || by_fours(state1, cols)) &&
        (rule != ADAM || by_fours(state2, cols));
    uint32_t whole = fours ? cols / 4 * 4 : 0;
    for (uint32_t j = 4 * threadIdx.x; j < whole; j += 4 * blockDim.x) {
        float4 value = load4(g + j), weight = load4(w + j), first = {}, second = {};
        if (states) {
            first = load4(p1 + j);
        }
        if (rule == ADAM) {
            second = load4(p2 + j);
        }
        if (s.decay != 0) {
            value.x = fmaf(s.decay, weight.x, value.x);
            value.y = fmaf(s.decay, weight.y, value.y);
            value.z = fmaf(s.decay, weight.z, value.z);
            value.w = fmaf(s.decay, weight.w, value.w);
        }
        weight.x -= change<rule>(s, row_rate, value.x, first.x, second.x);
        weight.y -= change<rule>(s, row_rate, value.y, first.y, second.y);
        weight.z -= change<rule>(s, row_rate, value.z, first.z, second.z);
        weight.w -= change<rule>(s, row_rate, value.w, first.w, second.w);
        store4(w + j, weight);
        if (states) {
            store4(p1 + j, first);
        }
        if (rule == ADAM) {
            store4(p2 + j, second);
        }
    }
    for (uint32_t j = whole + threadIdx.x; j < cols; j += blockDim.x) {
        float value = g[j], first = states ? p1[j] : 0, second = rule == ADAM ? p2[j] : 0;
        if (s.decay != 0) {
            value = fmaf(s.decay, w[j], value);
        }
        w[j] -= change<rule>(s, row_rate, value, first, second);
        if (states) {
            p1[j] = first;
        }
        if (rule == ADAM) {
            p2[j] = second;
        }
    }
}

KERNEL_JOINED(sgd_rows,
    (uint32_t n, uint32_t cols, float rate, float decay, const uint32_t* rows, const float* grads,
     uint64_t grads_stride, float* table, uint32_t table_rows, uint64_t table_stride, uint32_t* fault),
    (n, cols, rate, decay, rows, grads, grads_stride, table, table_rows, table_stride, fault)) {
    Settings s{rate, 0, decay, 0, 0};
    update_rows<SGD>(grid, n, cols, s, rows, grads, grads_stride, table, table_rows, table_stride, nullptr, nullptr, fault);
}
KERNEL_JOINED(rowwise_adagrad_rows,
    (uint32_t n, uint32_t cols, float rate, float eps, float decay, const uint32_t* rows, const float* grads,
     uint64_t grads_stride, float* table, uint32_t table_rows, uint64_t table_stride, float* state, uint32_t* fault),
    (n, cols, rate, eps, decay, rows, grads, grads_stride, table, table_rows, table_stride, state, fault)) {
    Settings s{rate, eps, decay, 0, 0};
    update_rows<ROWWISE_ADAGRAD>(
        grid, n, cols, s, rows, grads, grads_stride, table, table_rows, table_stride, state, nullptr, fault);
}
KERNEL_JOINED(adagrad_rows,
    (uint32_t n, uint32_t cols, float rate, float eps, float decay, const uint32_t* rows, const float* grads,
     uint64_t grads_stride, float* table, uint32_t table_rows, uint64_t table_stride, float* state, uint32_t* fault),
    (n, cols, rate, eps, decay, rows, grads, grads_stride, table, table_rows, table_stride, state, fault)) {
    Settings s{rate, eps, decay, 0, 0};
    update_rows<ADAGRAD>(
        grid, n, cols, s, rows, grads, grads_stride, table, table_rows, table_stride, state, nullptr, fault);
}
KERNEL_JOINED(adam_rows,
    (uint32_t n, uint32_t cols, float rate, float eps, float decay, float keep1, float keep2, const uint32_t* rows,
     const float* grads, uint64_t grads_stride, float* table, uint32_t table_rows, uint64_t table_stride,
     float* first, float* second, uint32_t* fault),
    (n, cols, rate, eps, decay, keep1, keep2, rows, grads, grads_stride, table, table_rows, table_stride, first,
     second, fault)) {
    Settings s{rate, eps, decay, keep1, keep2};
    update_rows<ADAM>(grid, n, cols, s, rows, grads, grads_stride, table, table_rows, table_stride, first, second, fault);
}

// Keeps gradients instead: captured[rows[i]] += grads[i].
KERNEL_JOINED(capture_rows,
    (uint32_t n, uint32_t cols, const uint32_t* rows, const float* grads, uint64_t grads_stride, float* captured,
     uint32_t table_rows, uint32_t* fault),
    (n, cols, rows, grads, grads_stride, captured, table_rows, fault)) {
    uint64_t i = uint64_t(grid.block) * blockDim.y + threadIdx.y;
    if (i >= n) {
        return;
    }
    uint64_t row = rows[i];
    if (!is_row(row, table_rows, fault)) {
        return;
    }
    for (uint32_t j = threadIdx.x; j < cols; j += blockDim.x) {
        captured[row * cols + j] += grads[i * grads_stride + j];
    }
}

// What rows hold before they are updated: kept[i] = from[rows[i]], of a table or of a state of its optimizer.
KERNEL_JOINED(keep_rows,
    (uint32_t n, uint32_t cols, const uint32_t* rows, const float* from, uint32_t table_rows, float* kept,
     uint32_t* fault),
    (n, cols, rows, from, table_rows, kept, fault)) {
    uint64_t i = uint64_t(grid.block) * blockDim.y + threadIdx.y;
    if (i >= n) {
        return;
    }
    uint64_t row = rows[i];
    if (!is_row(row, table_rows, fault)) {
        return;
    }
    for (uint32_t j = threadIdx.x; j < cols; j += blockDim.x) {
        kept[i * cols + j] = from[row * cols + j];
    }
}
