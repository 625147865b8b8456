// Sums of rows by group, each element of a result summed by one thread in one order.
//
// Positions come sorted by group (sort.cu). The rows of one source are summed in position order from +0, the first
// source's are added to the result one by one, then the sums of the others in turn, those of each later node as one: the
// order of the CPU, so the bits too, and those of a sum that was made somewhere else. No list is cut for speed, as that would
// change bits with how it travelled. Instead long lists are summed by whole blocks: all warps bring rows into shared memory, one of them adds.
// Where sums travel rounded, those of a node are rounded before they are added to the others', as a relay would have sent them.
#include "common.cuh"

// What is summed for a column: in all, of the node in hand if it is not the first, and of the source in hand.
struct Sum {
    float total, node, part;
    bool open;
};
DEVICE void plus(Sum& sum, bool first, float value) {
    if (first) {
        sum.total += value;
    } else {
        sum.part += value;
        sum.open = true;
    }
}

// Who sends the rows: where those of each source end, how many sources are a node, and whether a node's sum is rounded.
struct Senders {
    const uint32_t* ends;
    uint32_t count, node;
    bool round;
};
// Where positions of the source in hand end, and which source is the first behind its node.
struct Source {
    const uint32_t* ends;
    uint32_t number, end, node, behind;
    bool round;
};
DEVICE Source first_source(const Senders& all) {
    uint32_t node = greatest(least(all.node, all.count), 1u);
    bool any = all.count > 0;
    return Source{any ? all.ends : nullptr, 0, any ? all.ends[0] : 0xffffffffu, node, node, all.round};
}
// What ends where the source in hand is left, whether its node is one after the first, and is rounded.
struct Ended {
    bool source, later, node, round;
};
// What ends with the last position.
DEVICE Ended all_ends(const Source& source) {
    return Ended{true, source.behind > source.node, true, source.round};
}
// Goes on to the source of a position.
DEVICE Ended advance(Source& source, uint32_t position) {
    Ended ended{false, source.behind > source.node, false, source.round};
    while (position >= source.end && source.ends) {
        source.number++;
        source.end = source.ends[source.number];
        ended.source = true;
    }
    while (source.number >= source.behind) {
        source.behind += source.node;
        ended.node = true;
    }
    return ended;
}
DEVICE void close(Sum& sum, Ended ended) {
    if (sum.open) {
        (ended.later ? sum.node : sum.total) += sum.part;
        sum.part = 0;
        sum.open = false;
    }
    if (ended.node) {
        if (ended.later) {
            sum.total += ended.round ? to_float(round_to_bf16(sum.node)) : sum.node;
            sum.node = 0;
        } else if (ended.round) {
            sum.total = to_float(round_to_bf16(sum.total));
        }
    }
}

// The row of a position, and what it is multiplied by: that of its bag, if positions are in bags.
template <class X>
struct Rows {
    const X* x;
    uint64_t stride;
    const uint32_t* bags;
    const uint32_t* offsets;
    bool mean;
};
template <class X>
DEVICE const X* row_of(const Rows<X>& rows, uint32_t position, float& factor) {
    factor = 1;
    if (!rows.bags) {
        return rows.x + position * rows.stride;
    }
    uint32_t bag = rows.bags[position];
    if (rows.mean) {
        factor = 1.0f / float(greatest(rows.offsets[bag + 1] - rows.offsets[bag], 1u));
    }
    return rows.x + bag * rows.stride;
}

// Positions whose rows are asked for before the first is added.
const uint32_t SUM_AHEAD = 4;

// Sums groups of at most `longest` positions.
template <class X, class Y>
DEVICE void segment_sum_of(
    Grid grid, uint32_t groups, uint32_t cols, Rows<X> rows, const uint32_t* positions, const uint32_t* ends, Senders senders, Y* y,
    uint64_t y_stride, uint32_t add, uint32_t longest) {
    uint64_t group = uint64_t(grid.block) * blockDim.y + threadIdx.y;
    if (group >= groups) {
        return;
    }
    uint32_t begin = group > 0 ? ends[group - 1] : 0, end = ends[group];
    if (end - begin > longest || (add && begin == end)) {
        return;
    }
    Y* out = y + group * y_stride;
    bool fours = by_fours(rows.x, rows.stride) && by_fours(y, y_stride);
    uint32_t whole = fours ? cols / 4 * 4 : 0;
    for (uint32_t j = 4 * threadIdx.x; j < whole; j += 4 * blockDim.x) {
        Sum sums[4] = {};
        if (add) {
            float4 old = load4(out + j);
            sums[0].total = old.x;
            sums[1].total = old.y;
            sums[2].total = old.z;
            sums[3].total = old.w;
        }
        Source source = first_source(senders);
        for (uint32_t at = begin; at < end; at += SUM_AHEAD) {
            float4 value[SUM_AHEAD];
            uint32_t position[SUM_AHEAD];
            float factor[SUM_AHEAD];
#pragma unroll
            for (uint32_t k = 0; k < SUM_AHEAD; k++) {
                if (at + k < end) {
                    position[k] = positions[at + k];
                    value[k] = load4(row_of(rows, position[k], factor[k]) + j);
                }
            }
#pragma unroll
            for (uint32_t k = 0; k < SUM_AHEAD; k++) {
                if (at + k < end) {
                    Ended ended = advance(source, position[k]);
                    if (ended.source) {
                        close(sums[0], ended);
                        close(sums[1], ended);
                        close(sums[2], ended);
                        close(sums[3], ended);
                    }
                    bool first = source.number == 0;
                    plus(sums[0], first, value[k].x * factor[k]);
                    plus(sums[1], first, value[k].y * factor[k]);
                    plus(sums[2], first, value[k].z * factor[k]);
                    plus(sums[3], first, value[k].w * factor[k]);
                }
            }
        }
        Ended ended = all_ends(source);
        close(sums[0], ended);
        close(sums[1], ended);
        close(sums[2], ended);
        close(sums[3], ended);
        store4(out + j, make_float4(sums[0].total, sums[1].total, sums[2].total, sums[3].total));
    }
    for (uint32_t j = whole + threadIdx.x; j < cols; j += blockDim.x) {
        Sum sum = {};
        sum.total = add ? to_float(out[j]) : 0;
        Source source = first_source(senders);
        for (uint32_t at = begin; at < end; at++) {
            float factor, value = to_float(row_of(rows, positions[at], factor)[j]);
            Ended ended = advance(source, positions[at]);
            if (ended.source) {
                close(sum, ended);
            }
            plus(sum, source.number == 0, value * factor);
        }
        close(sum, all_ends(source));
        out[j] = from_float<Y>(sum.total);
    }
}

const uint32_t LONG_COLUMNS = 32, LONG_ROWS = 128, LONG_WARPS = 8;

// Sums the listed groups, a slice of columns for each block, as many as come.
template <class X, class Y>
DEVICE void segment_sum_long_of(
    Grid grid, uint32_t cols, Rows<X> rows, const uint32_t* positions, const uint32_t* ends, Senders senders, Y* y,
    uint64_t y_stride, uint32_t add, const uint32_t* listed, const uint32_t* count) {
    SHARED_2D(float, values, LONG_ROWS, LONG_COLUMNS);
    SHARED(uint32_t, places, LONG_ROWS);
    const uint32_t each = LONG_ROWS / LONG_WARPS;
    uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    uint32_t slices = (cols + LONG_COLUMNS - 1) / LONG_COLUMNS;
    uint64_t items = uint64_t(*count) * slices;
    for (uint64_t item = grid.block; item < items; item += grid.blocks) {
        uint32_t group = listed[item / slices], j = uint32_t(item % slices) * LONG_COLUMNS + lane;
        uint32_t begin = group > 0 ? ends[group - 1] : 0, end = ends[group];
        Y* out = y + group * y_stride;
        Sum sum = {};
        if (warp == 0 && add && j < cols) {
            sum.total = to_float(out[j]);
        }
        Source source = first_source(senders);
        float next[each];
        for (uint32_t start = begin;; start += LONG_ROWS) {
            // Asked for before the rows in hand are added.
            if (start < end) {
#pragma unroll
                for (uint32_t k = 0; k < each; k++) {
                    uint32_t at = start + k * LONG_WARPS + warp;
                    next[k] = 0;
                    if (at < end && j < cols) {
                        float factor, value = to_float(row_of(rows, positions[at], factor)[j]);
                        next[k] = value * factor;
                    }
                }
            }
            if (warp == 0 && start > begin) {
                uint32_t many = least(end - (start - LONG_ROWS), LONG_ROWS);
                for (uint32_t r = 0; r < many; r++) {
                    Ended ended = advance(source, places[r]);
                    if (ended.source) {
                        close(sum, ended);
                    }
                    plus(sum, source.number == 0, values[r][lane]);
                }
            }
            __syncthreads();
            if (start >= end) {
                break;
            }
#pragma unroll
            for (uint32_t k = 0; k < each; k++) {
                uint32_t r = k * LONG_WARPS + warp;
                values[r][lane] = next[k];
                if (lane == 0 && start + r < end) {
                    places[r] = positions[start + r];
                }
            }
            __syncthreads();
        }
        if (warp == 0 && j < cols) {
            close(sum, all_ends(source));
            out[j] = from_float<Y>(sum.total);
        }
    }
}

// Lists the groups of more than `longest` positions, in any order: each is summed by itself. `count` begins at 0.
KERNEL_JOINED(long_groups,
    (uint32_t groups, const uint32_t* ends, uint32_t longest, uint32_t* listed, uint32_t* count),
    (groups, ends, longest, listed, count)) {
    uint64_t group = thread_in_grid(grid);
    if (group >= groups) {
        return;
    }
    uint32_t begin = group > 0 ? ends[group - 1] : 0;
    if (ends[group] - begin > longest) {
        listed[atomicAdd(count, 1u)] = uint32_t(group);
    }
}

// y[g] (+)= the sum of the rows of x at the positions of group g: gradients of activations, by the rows that they had.
KERNEL_JOINED(segment_sum,
    (uint32_t groups, uint32_t cols, const REAL* x, uint64_t x_stride, const uint32_t* bags, const uint32_t* offsets,
     uint32_t mean, const uint32_t* positions, const uint32_t* ends, float* y, uint64_t y_stride, uint32_t add,
     uint32_t longest),
    (groups, cols, x, x_stride, bags, offsets, mean, positions, ends, y, y_stride, add, longest)) {
    Rows<REAL> rows{x, x_stride, bags, offsets, mean != 0};
    segment_sum_of(grid, groups, cols, rows, positions, ends, Senders{nullptr, 0, 1, false}, y, y_stride, add, longest);
}
KERNEL_JOINED_OF(segment_sum_long, 256,
    (uint32_t cols, const REAL* x, uint64_t x_stride, const uint32_t* bags, const uint32_t* offsets, uint32_t mean,
     const uint32_t* positions, const uint32_t* ends, float* y, uint64_t y_stride, uint32_t add,
     const uint32_t* listed, const uint32_t* count),
    (cols, x, x_stride, bags, offsets, mean, positions, ends, y, y_stride, add, listed, count)) {
    Rows<REAL> rows{x, x_stride, bags, offsets, mean != 0};
    segment_sum_long_of(grid, cols, rows, positions, ends, Senders{nullptr, 0, 1, false}, y, y_stride, add, listed, count);
}

// The same of received gradients, whose positions are grouped by source; those of source s end at sources[s],
// and `node` sources one after the other are a node's. With `round` each node's sum is rounded to bf16 before it is added.
KERNEL_JOINED(received_sum,
    (uint32_t groups, uint32_t cols, const REAL* x, uint64_t x_stride, const uint32_t* positions,
     const uint32_t* ends, const uint32_t* sources, uint32_t source_count, uint32_t node, uint32_t round, float* y,
     uint64_t y_stride, uint32_t longest),
    (groups, cols, x, x_stride, positions, ends, sources, source_count, node, round, y, y_stride, longest)) {
    Rows<REAL> rows{x, x_stride, nullptr, nullptr, false};
    Senders senders{sources, source_count, node, round != 0};
    segment_sum_of(grid, groups, cols, rows, positions, ends, senders, y, y_stride, 0, longest);
}
KERNEL_JOINED_OF(received_sum_long, 256,
    (uint32_t cols, const REAL* x, uint64_t x_stride, const uint32_t* positions, const uint32_t* ends,
     const uint32_t* sources, uint32_t source_count, uint32_t node, uint32_t round, float* y, uint64_t y_stride,
     const uint32_t* listed, const uint32_t* count),
    (cols, x, x_stride, positions, ends, sources, source_count, node, round, y, y_stride, listed, count)) {
    Rows<REAL> rows{x, x_stride, nullptr, nullptr, false};
    Senders senders{sources, source_count, node, round != 0};
    segment_sum_long_of(grid, cols, rows, positions, ends, senders, y, y_stride, 0, listed, count);
}

// The same of one node's, whose sums travel on as the gradients came.
KERNEL_JOINED(node_sum,
    (uint32_t groups, uint32_t cols, const REAL* x, uint64_t x_stride, const uint32_t* positions,
     const uint32_t* ends, const uint32_t* sources, uint32_t source_count, REAL* y, uint64_t y_stride,
     uint32_t longest),
    (groups, cols, x, x_stride, positions, ends, sources, source_count, y, y_stride, longest)) {
    Rows<REAL> rows{x, x_stride, nullptr, nullptr, false};
    Senders senders{sources, source_count, source_count, false};
    segment_sum_of(grid, groups, cols, rows, positions, ends, senders, y, y_stride, 0, longest);
}
KERNEL_JOINED_OF(node_sum_long, 256,
    (uint32_t cols, const REAL* x, uint64_t x_stride, const uint32_t* positions, const uint32_t* ends,
     const uint32_t* sources, uint32_t source_count, REAL* y, uint64_t y_stride, const uint32_t* listed,
     const uint32_t* count),
    (cols, x, x_stride, positions, ends, sources, source_count, y, y_stride, listed, count)) {
    Rows<REAL> rows{x, x_stride, nullptr, nullptr, false};
    Senders senders{sources, source_count, source_count, false};
    segment_sum_long_of(grid, cols, rows, positions, ends, senders, y, y_stride, 0, listed, count);
}
