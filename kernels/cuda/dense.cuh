// What the kernels of the dense graph share: matrices with gaps between rows, read and written in packs of 16 bytes.
//
// A matrix is a pointer and the elements from one row to the next, so the columns of a wider buffer are matrices too.
// A thread handles a pack: 16 bytes of activations at once where both the address and the stride allow, and element by
// element where they don't (the last pack of a row, the odd column of a wider buffer). Sums are kept in float.
//
// `add` says how a result is written: 0 overwrites, 1 adds it to what is there.
#pragma once

#include "common.cuh"

// Activations in 16 bytes.
const uint32_t PACK = 16 / sizeof(REAL);

// A pack of one type and of the other.
DEVICE void read_pack(const float* p, float (&x)[4]) {
    float4 v = *reinterpret_cast<const float4*>(p);
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
}
DEVICE void read_pack(const float* p, float (&x)[8]) {
    float4 v = *reinterpret_cast<const float4*>(p), w = *reinterpret_cast<const float4*>(p + 4);
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    x[4] = w.x, x[5] = w.y, x[6] = w.z, x[7] = w.w;
}
DEVICE void read_pack(const bf16* p, float (&x)[8]) {
    uint4 v = *reinterpret_cast<const uint4*>(p);
    uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        x[2 * i] = __uint_as_float(words[i] << 16);
        x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
}
DEVICE void write_pack(float* p, const float (&x)[4]) {
    *reinterpret_cast<float4*>(p) = make_float4(x[0], x[1], x[2], x[3]);
}
DEVICE void write_pack(float* p, const float (&x)[8]) {
    *reinterpret_cast<float4*>(p) = make_float4(x[0], x[1], x[2], x[3]);
    *reinterpret_cast<float4*>(p + 4) = make_float4(x[4], x[5], x[6], x[7]);
}
// Two numbers as brain floats in a word, the first in the lower half.
DEVICE uint32_t pack_bf16(float low, float high) {
    return round_to_bf16(low).bits | uint32_t(round_to_bf16(high).bits) << 16;
}
DEVICE void write_pack(bf16* p, const float (&x)[8]) {
    uint4 v;
    v.x = pack_bf16(x[0], x[1]), v.y = pack_bf16(x[2], x[3]);
    v.z = pack_bf16(x[4], x[5]), v.w = pack_bf16(x[6], x[7]);
    *reinterpret_cast<uint4*>(p) = v;
}

// The columns `column ..` of a row, n of them; the others become 0. `wide`: packs may be read whole.
template <class T>
DEVICE void load_pack(const T* p, bool wide, uint32_t n, float (&x)[PACK]) {
    if (wide && n == PACK) {
        read_pack(p, x);
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < PACK; i++) {
        x[i] = i < n ? to_float(p[i]) : 0.0f;
    }
}
template <class T>
DEVICE void store_pack(T* p, bool wide, uint32_t n, float (&x)[PACK], uint32_t add) {
    if (add) {
        float old[PACK];
        load_pack(p, wide, n, old);
#pragma unroll
        for (uint32_t i = 0; i < PACK; i++) {
            x[i] = old[i] + x[i];
        }
    }
    if (wide && n == PACK) {
        write_pack(p, x);
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < PACK; i++) {
        if (i < n) {
            p[i] = from_float<T>(x[i]);
        }
    }
}

// What is read again of a number that was written as an activation.
DEVICE float rounded(float x) {
    return to_float(from_float<REAL>(x));
}

// A matrix, and whether its rows may be read in whole packs.
template <class T>
struct View {
    T* data;
    uint64_t stride;
    bool wide;
};
template <class T>
DEVICE View<T> view(T* data, uint64_t stride) {
    return View<T>{data, stride, aligned16(data, stride)};
}
// Where a row begins.
template <class T>
DEVICE T* at(View<T> matrix, uint64_t row) {
    return matrix.data + row * matrix.stride;
}

// Calls f(row, column, columns) for each pack of a matrix, by all threads of a grid.
template <class F>
DEVICE void for_packs(Grid grid, uint64_t rows, uint64_t columns, F f) {
    uint64_t packs = ceiling(columns, PACK), all = rows * packs;
    for (uint64_t i = thread_in_grid(grid); i < all; i += threads_of_grid(grid)) {
        uint64_t row, pack;
        if (all <= 0xffffffffull) {
            // Divisions of 32 bits are cheap.
            row = uint32_t(i) / uint32_t(packs);
            pack = uint32_t(i) - uint32_t(row) * uint32_t(packs);
        } else {
            row = i / packs;
            pack = i - row * packs;
        }
        uint64_t column = pack * PACK;
        f(row, column, uint32_t(least<uint64_t>(PACK, columns - column)));
    }
}

template <class F>
DEVICE void for_packs(uint64_t rows, uint64_t columns, F f) {
    for_packs(whole_grid(), rows, columns, f);
}

// Calls f(row) by whole warps, a row each; rows of a grid's warps are neighbours.
template <class F>
DEVICE void for_rows_by_warps(uint64_t rows, F f) {
    uint64_t step = threads_of_grid() / WARP;
    for (uint64_t row = thread_in_grid() / WARP; row < rows; row += step) {
        f(row);
    }
}
// Calls f(column, columns) for each pack of a row, by the lanes of a warp.
template <class F>
DEVICE void for_packs_of_row(uint64_t columns, F f) {
    for (uint64_t column = uint64_t(thread_in_block() % WARP) * PACK; column < columns; column += WARP * PACK) {
        f(column, uint32_t(least<uint64_t>(PACK, columns - column)));
    }
}

// Four floats of shared memory, aligned to 16 bytes.
DEVICE void read_floats(const float* p, float (&x)[4]) {
    read_pack(p, x);
}

DEVICE float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}
