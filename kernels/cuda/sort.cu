// Scans, and stable sorting by small numbers: what lists of ids and rows are ordered with.
//
// A scan is three kernels: sums of tiles, a scan of these by one block, and the scan of each tile from there. Sorting is by
// digits of 8 bits, lowest first; a pass counts the digits of each tile, scans the counts (digit by digit, tile by tile
// within each) and puts every item in its place. Items of one digit keep their order, so the result is the same whatever
// the order of threads.
#include "common.cuh"

const uint32_t SCAN_THREADS = 256, SCAN_EACH = 8, SCAN_TILE = SCAN_THREADS * SCAN_EACH;

// sums[b] = the sum of the values of tile b.
KERNEL_JOINED_OF(scan_tiles, 256,
    (uint32_t n, const uint32_t* values, uint32_t* sums),
    (n, values, sums)) {
    uint32_t sum = 0;
    uint64_t first = uint64_t(grid.block) * SCAN_TILE;
    for (uint32_t k = 0; k < SCAN_EACH; k++) {
        uint64_t i = first + k * SCAN_THREADS + threadIdx.x;
        if (i < n) {
            sum += values[i];
        }
    }
    uint32_t total;
    block_scan(sum, total);
    if (threadIdx.x == 0) {
        sums[grid.block] = total;
    }
}

// The sums of what lies before, in place, and in `total` (if there is one) that of all. One block.
KERNEL_JOINED_OF(scan_top, 1024,
    (uint32_t n, uint32_t* sums, uint32_t* total),
    (n, sums, total)) {
    uint32_t before = 0;
    for (uint32_t start = 0; start < n; start += blockDim.x) {
        uint32_t i = start + threadIdx.x, of_block;
        uint32_t below = block_scan(i < n ? sums[i] : 0u, of_block);
        if (i < n) {
            sums[i] = before + below;
        }
        before += of_block;
    }
    if (threadIdx.x == 0 && total) {
        *total = before;
    }
}

// out[i] = the sum of the values before i. `out` may be `values`.
KERNEL_JOINED_OF(scan_apply, 256,
    (uint32_t n, const uint32_t* values, const uint32_t* sums, uint32_t* out),
    (n, values, sums, out)) {
    SHARED(uint32_t, tile, SCAN_TILE);
    uint64_t first = uint64_t(grid.block) * SCAN_TILE;
    for (uint32_t k = threadIdx.x; k < SCAN_TILE; k += SCAN_THREADS) {
        tile[k] = first + k < n ? values[first + k] : 0;
    }
    __syncthreads();
    uint32_t sum = 0, total;
    for (uint32_t k = 0; k < SCAN_EACH; k++) {
        sum += tile[threadIdx.x * SCAN_EACH + k];
    }
    uint32_t before = sums[grid.block] + block_scan(sum, total);
    for (uint32_t k = 0; k < SCAN_EACH; k++) {
        uint32_t value = tile[threadIdx.x * SCAN_EACH + k];
        tile[threadIdx.x * SCAN_EACH + k] = before;
        before += value;
    }
    __syncthreads();
    for (uint32_t k = threadIdx.x; k < SCAN_TILE; k += SCAN_THREADS) {
        if (first + k < n) {
            out[first + k] = tile[k];
        }
    }
}

const uint32_t DIGITS = 256, SORT_WARPS = 8, SORT_EACH = 8;
// Items of a block: consecutive ones for each warp, of which its lanes take 32 at a time.
const uint32_t SORT_TILE = SORT_WARPS * SORT_EACH * WARP;

DEVICE uint64_t sort_item(Grid grid, uint32_t round) {
    uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    return uint64_t(grid.block) * SORT_TILE + warp * SORT_EACH * WARP + round * WARP + lane;
}

// Of items with one digit, those in lower lanes, and whether this is the lowest.
DEVICE uint32_t same_digit(uint32_t digit, uint32_t& before, bool& lowest) {
    uint32_t same = __match_any_sync(ALL_LANES, digit), lane = threadIdx.x % WARP;
    before = __popc(same & ((1u << lane) - 1));
    lowest = before == 0;
    return __popc(same);
}

// counts[digit * tiles + tile] = items of the tile with that digit.
KERNEL_JOINED_OF(sort_count, 256,
    (uint32_t n, const uint32_t* keys, uint32_t shift, uint32_t* counts),
    (n, keys, shift, counts)) {
    SHARED(uint32_t, found, DIGITS);
    found[threadIdx.x] = 0;
    __syncthreads();
    for (uint32_t round = 0; round < SORT_EACH; round++) {
        uint64_t i = sort_item(grid, round);
        uint32_t digit = i < n ? keys[i] >> shift & (DIGITS - 1) : DIGITS, before;
        bool lowest;
        uint32_t many = same_digit(digit, before, lowest);
        if (lowest && digit < DIGITS) {
            atomicAdd(&found[digit], many);
        }
    }
    __syncthreads();
    counts[threadIdx.x * grid.blocks + grid.block] = found[threadIdx.x];
}

// Puts keys and values in their places: `offsets` are the scanned counts. Without values the value of an item is its number.
KERNEL_JOINED_OF(sort_place, 256,
    (uint32_t n, const uint32_t* keys, const uint32_t* values, uint32_t shift, const uint32_t* offsets,
     uint32_t* keys_out, uint32_t* values_out),
    (n, keys, values, shift, offsets, keys_out, values_out)) {
    // How many of each digit come before, in the warps of the block: first their numbers.
    SHARED_2D(uint32_t, next, SORT_WARPS, DIGITS);
    uint32_t warp = threadIdx.x / WARP;
    for (uint32_t w = 0; w < SORT_WARPS; w++) {
        next[w][threadIdx.x] = 0;
    }
    __syncthreads();
    for (uint32_t round = 0; round < SORT_EACH; round++) {
        uint64_t i = sort_item(grid, round);
        uint32_t digit = i < n ? keys[i] >> shift & (DIGITS - 1) : DIGITS, before;
        bool lowest;
        uint32_t many = same_digit(digit, before, lowest);
        if (lowest && digit < DIGITS) {
            next[warp][digit] += many;
        }
        __syncwarp();
    }
    __syncthreads();
    uint32_t at = offsets[threadIdx.x * grid.blocks + grid.block];
    for (uint32_t w = 0; w < SORT_WARPS; w++) {
        uint32_t many = next[w][threadIdx.x];
        next[w][threadIdx.x] = at;
        at += many;
    }
    __syncthreads();
    for (uint32_t round = 0; round < SORT_EACH; round++) {
        uint64_t i = sort_item(grid, round);
        uint32_t key = i < n ? keys[i] : 0;
        uint32_t digit = i < n ? key >> shift & (DIGITS - 1) : DIGITS, before;
        bool lowest;
        uint32_t many = same_digit(digit, before, lowest);
        uint32_t place = digit < DIGITS ? next[warp][digit] + before : 0;
        // All have read where theirs begin before it moves on.
        __syncwarp();
        if (digit < DIGITS) {
            keys_out[place] = key;
            values_out[place] = values ? values[i] : uint32_t(i);
            if (lowest) {
                next[warp][digit] += many;
            }
        }
        __syncwarp();
    }
}

// Tells of keys that are not below `limit`.
KERNEL_JOINED(check_below,
    (uint32_t n, const uint32_t* keys, uint32_t limit, uint32_t* fault),
    (n, keys, limit, fault)) {
    uint64_t i = thread_in_grid(grid);
    if (i < n && keys[i] >= limit) {
        raise_fault(fault, FAULT_ROW);
    }
}

// ends[g] = how many of the rising keys are at most g, for g below `groups`.
KERNEL_JOINED(bounds_of,
    (uint32_t groups, uint32_t n, const uint32_t* keys, uint32_t* ends),
    (groups, n, keys, ends)) {
    uint64_t g = thread_in_grid(grid);
    if (g >= groups) {
        return;
    }
    uint32_t low = 0, high = n;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (keys[middle] <= g) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    ends[g] = low;
}

// counts[g] = ends[g] less the end before: numbers of groups.
KERNEL_JOINED(counts_of,
    (uint32_t groups, const uint32_t* ends, uint64_t* counts),
    (groups, ends, counts)) {
    uint64_t g = thread_in_grid(grid);
    if (g < groups) {
        counts[g] = ends[g] - (g > 0 ? ends[g - 1] : 0);
    }
}

// y[i] = x[at[i]]: numbers of 32 bits, of 64, pairs of bytes and bytes.
template <class T>
DEVICE void take(Grid grid, uint32_t n, const T* x, uint32_t limit, const uint32_t* at, T* y, uint32_t* fault) {
    uint64_t i = thread_in_grid(grid);
    if (i >= n) {
        return;
    }
    uint32_t from = at[i];
    if (from < limit) {
        y[i] = x[from];
    } else {
        raise_fault(fault, FAULT_ROW);
    }
}
KERNEL_JOINED(take_words,
    (uint32_t n, const uint32_t* x, uint32_t limit, const uint32_t* at, uint32_t* y, uint32_t* fault),
    (n, x, limit, at, y, fault)) {
    take(grid, n, x, limit, at, y, fault);
}
KERNEL_JOINED(take_ids,
    (uint32_t n, const int64_t* x, uint32_t limit, const uint32_t* at, int64_t* y, uint32_t* fault),
    (n, x, limit, at, y, fault)) {
    take(grid, n, x, limit, at, y, fault);
}
KERNEL_JOINED(take_bytes,
    (uint32_t n, const uint8_t* x, uint32_t limit, const uint32_t* at, uint8_t* y, uint32_t* fault),
    (n, x, limit, at, y, fault)) {
    take(grid, n, x, limit, at, y, fault);
}

// y[i] = value.
KERNEL_JOINED(fill_words,
    (uint32_t value, uint64_t n, uint32_t* y),
    (value, n, y)) {
    for (uint64_t i = thread_in_grid(grid); i < n; i += threads_of_grid(grid)) {
        y[i] = value;
    }
}
