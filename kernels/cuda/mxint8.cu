// Rows as numbers of 8 bits with a power of two for each 32 of a row (MXINT8): a byte for each number, then one for each block.
//
// The bits are the CPU's (`kernels/src/mxint8.rs`, where the format is said): all that is multiplied is a normal float, and
// what is not rounded itself is exact. Eight threads have a block, four numbers each, so a warp has four blocks, of one row or of
// several. Rows begin at any byte.
#include "common.cuh"

const uint32_t BLOCK = 32, LANES_OF_BLOCK = 8;
// The byte of a block that holds no numbers, and the least one of others.
const uint32_t NO_NUMBERS = 255, LEAST_SCALE = 8;

DEVICE uint32_t row_bytes(uint32_t cols) {
    return cols + uint32_t(ceiling(cols, BLOCK));
}

// x in multiples of 2^(scale - 133), to the nearest and to the even one of two.
DEVICE uint8_t multiples(float x, uint32_t scale) {
    if (scale == NO_NUMBERS) {
        return 0;
    }
    // Sums with 1.5 2^23 are whole numbers.
    const float whole = 12582912.0f;
    float product = x * __uint_as_float((260u - scale) << 23);
    float rounded = (product + whole) - whole;
    return uint8_t(int32_t(least(greatest(rounded, -127.0f), 127.0f)));
}
DEVICE float number(uint8_t multiples, uint32_t scale) {
    if (scale == NO_NUMBERS) {
        return __uint_as_float(0x7fc00000u);
    }
    return float(int8_t(multiples)) * __uint_as_float((greatest(scale, LEAST_SCALE) - 6u) << 23);
}

// y[i] = table[rows[at[i]]], or table[rows[i]] without `at`.
KERNEL_JOINED(gather_mxint8,
    (uint32_t n, uint32_t cols, const float* table, uint32_t table_rows, uint64_t table_stride, const uint32_t* rows,
     uint32_t entries, const uint32_t* at, uint8_t* y, uint32_t* fault),
    (n, cols, table, table_rows, table_stride, rows, entries, at, y, fault)) {
    uint64_t i = uint64_t(grid.block) * blockDim.y + threadIdx.y;
    uint32_t blocks = uint32_t(ceiling(cols, BLOCK)), from = 0;
    bool own = i < n;
    if (own) {
        uint32_t entry = at ? at[i] : uint32_t(i);
        own = entry < entries;
        from = own ? rows[entry] : 0;
        own = own && from < table_rows;
        if (!own) {
            raise_fault(fault, FAULT_ROW);
        }
    }
    uint32_t lane = threadIdx.x % LANES_OF_BLOCK, side_by_side = blockDim.x / LANES_OF_BLOCK;
    const float* x = table + from * table_stride;
    uint8_t* out = y + i * row_bytes(cols);
    // All lanes of a warp go round as often: they look at each other's numbers.
    for (uint32_t first = 0; first < blocks; first += side_by_side) {
        uint32_t block = first + threadIdx.x / LANES_OF_BLOCK, j = block * BLOCK + 4 * lane;
        uint32_t many = own && j < cols ? least(cols - j, 4u) : 0;
        float value[4] = {0, 0, 0, 0};
        if (many == 4 && by_fours(table, table_stride)) {
            float4 all = load4(x + j);
            value[0] = all.x;
            value[1] = all.y;
            value[2] = all.z;
            value[3] = all.w;
        } else {
            for (uint32_t k = 0; k < many; k++) {
                value[k] = x[j + k];
            }
        }
        uint32_t top = 0;
        for (uint32_t k = 0; k < 4; k++) {
            top = greatest(top, __float_as_uint(value[k]) & 0x7fffffffu);
        }
        for (uint32_t step = 1; step < LANES_OF_BLOCK; step *= 2) {
            top = greatest(top, __shfl_xor_sync(ALL_LANES, top, step));
        }
        uint32_t scale = greatest(top >> 23, LEAST_SCALE);
        for (uint32_t k = 0; k < many; k++) {
            out[j + k] = multiples(value[k], scale);
        }
        if (many > 0 && lane == 0) {
            out[cols + block] = uint8_t(scale);
        }
    }
}

// y[at[i]] = x[i], or y[i] = x[i] without `at`: rows that arrived, as they are used. `at` holds no position twice.
KERNEL_JOINED(merge_mxint8,
    (uint32_t n, uint32_t cols, const uint8_t* x, const uint32_t* at, float* y, uint32_t y_rows, uint64_t y_stride,
     uint32_t* fault),
    (n, cols, x, at, y, y_rows, y_stride, fault)) {
    uint64_t i = uint64_t(grid.block) * blockDim.y + threadIdx.y;
    if (i >= n) {
        return;
    }
    uint32_t into = at ? at[i] : uint32_t(i);
    if (into >= y_rows) {
        raise_fault(fault, FAULT_ROW);
        return;
    }
    const uint8_t* row = x + i * row_bytes(cols);
    float* out = y + into * y_stride;
    bool fours = by_fours(y, y_stride);
    for (uint32_t j = 4 * threadIdx.x; j < cols; j += 4 * blockDim.x) {
        uint32_t scale = row[cols + j / BLOCK];
        if (fours && j + 4 <= cols) {
            float4 all = make_float4(
                number(row[j], scale), number(row[j + 1], scale), number(row[j + 2], scale), number(row[j + 3], scale));
            store4(out + j, all);
        } else {
            for (uint32_t k = j; k < least(j + 4, cols); k++) {
                out[k] = number(row[k], scale);
            }
        }
    }
}

// y[i] = x[at[i]]: rows that travel on as they came.
KERNEL_JOINED(pass_mxint8,
    (uint32_t n, uint32_t cols, const uint8_t* x, uint32_t x_rows, const uint32_t* at, uint8_t* y, uint32_t* fault),
    (n, cols, x, x_rows, at, y, fault)) {
    uint64_t i = uint64_t(grid.block) * blockDim.y + threadIdx.y;
    if (i >= n) {
        return;
    }
    uint32_t from = at[i];
    if (from >= x_rows) {
        raise_fault(fault, FAULT_ROW);
        return;
    }
    uint64_t bytes = row_bytes(cols);
    for (uint64_t j = threadIdx.x; j < bytes; j += blockDim.x) {
        y[i * bytes + j] = x[from * bytes + j];
    }
}
