// Tensor cores: products of 16 x 16 and 16 x 8 brain floats, and the copies that feed them.
//
// On a device these are the instructions of PTX that sm_80 and later have; emulated, lanes hand each other what the
// instruction's layout says that they hold, so a kernel that mixes up lanes or halves gets wrong numbers. In these
// layouts lane = 4 g + t, with g in 0 .. 8 and t in 0 .. 4, and a word holds two neighbours of a row, the first in its
// lower half:
//   a (16 x 16): words of rows g, g + 8, g, g + 8 and columns 2 t ..., the last two 8 columns further;
//   b (16 x 8, given by columns): words of rows 2 t ... and 2 t + 8 ..., column g;
//   c (16 x 8): two floats of row g and two of row g + 8, columns 2 t and 2 t + 1.
#pragma once

#include "common.cuh"

// c += a b
#ifdef __CUDACC_RTC__
DEVICE void mma_16x8x16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#else
static inline void mma_16x8x16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, EMULATE_HERE) {
    struct Words {
        uint32_t a[4], b[2];
    };
    auto given = emulate::exchange("mma", ALL_LANES, Words{{a[0], a[1], a[2], a[3]}, {b0, b1}}, EMULATE_SITE);
    uint32_t g = emulate::lane() / 4, t = emulate::lane() % 4;
    auto half = [](uint32_t word, uint32_t k) { return to_float(bf16{uint16_t(word >> 16 * (k % 2))}); };
    for (uint32_t column = 0; column < 2; column++) {
        float upper = c[column], lower = c[2 + column];
        for (uint32_t k = 0; k < 16; k++) {
            uint32_t pair = k % 8 / 2, far = k / 8;
            Words row = given.of(4 * g + pair), other = given.of(4 * (2 * t + column) + pair);
            float b = half(other.b[far], k);
            upper = fmaf(half(row.a[2 * far], k), b, upper);
            lower = fmaf(half(row.a[2 * far + 1], k), b, lower);
        }
        c[column] = upper;
        c[2 + column] = lower;
    }
}
#endif

// Four squares of 8 x 8 from shared memory: lane 8 m + r gives the address of row r of square m, aligned to 16 bytes, and
// word m of each lane is two neighbours of row g, columns 2 t and 2 t + 1.
#ifdef __CUDACC_RTC__
DEVICE void load_squares(uint32_t (&words)[4], const bf16* row) {
    asm volatile(
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
        : "r"(uint32_t(__cvta_generic_to_shared(row)))
        : "memory");
}
// The same of the squares' transposes: word m of each lane is column g of square m, rows 2 t and 2 t + 1.
DEVICE void load_squares_transposed(uint32_t (&words)[4], const bf16* row) {
    asm volatile(
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
        : "r"(uint32_t(__cvta_generic_to_shared(row)))
        : "memory");
}
#else
static inline void load_squares_by(
    uint32_t (&words)[4], const bf16* row, bool transposed, emulate::Site site) {
    if (reinterpret_cast<uint64_t>(row) % 16 != 0) {
        emulate::fail(site, "the row of a square is not aligned to 16 bytes");
    }
    auto given = emulate::exchange("ldmatrix", ALL_LANES, row, site);
    uint32_t g = emulate::lane() / 4, t = emulate::lane() % 4;
    for (uint32_t m = 0; m < 4; m++) {
        auto element = [&](uint32_t r, uint32_t column) { return uint32_t(given.of(8 * m + r)[column].bits); };
        words[m] = transposed ? element(2 * t, g) | element(2 * t + 1, g) << 16
                              : element(g, 2 * t) | element(g, 2 * t + 1) << 16;
    }
}
static inline void load_squares(uint32_t (&words)[4], const bf16* row, EMULATE_HERE) {
    load_squares_by(words, row, false, EMULATE_SITE);
}
static inline void load_squares_transposed(uint32_t (&words)[4], const bf16* row, EMULATE_HERE) {
    load_squares_by(words, row, true, EMULATE_SITE);
}
#endif

// Copies of 16 bytes from global to shared memory beside computation, in groups that are waited for in order. Emulated, a
// copy is made when it is waited for, never before, so that a read that does not wait finds garbage. What one thread
// waits for, the others see after a barrier.
struct Copies {
#ifndef __CUDACC_RTC__
    static const uint32_t MOST = 64;
    struct {
        bf16* to;
        const bf16* from;
    } waiting[MOST];
    uint32_t begun = 0, ends[MOST], groups = 0;
#endif
};

// Begins one; where not `inside`, it copies nothing and writes zeros.
DEVICE void copy_16(Copies& copies, bf16* to, const bf16* from, bool inside) {
#ifdef __CUDACC_RTC__
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(uint32_t(__cvta_generic_to_shared(to))), "l"(from),
                 "r"(inside ? 16 : 0)
                 : "memory");
#else
    if (copies.begun == Copies::MOST || reinterpret_cast<uint64_t>(to) % 16 != 0 ||
        (inside && reinterpret_cast<uint64_t>(from) % 16 != 0)) {
        emulate::fail(emulate::Site{__FILE__, __LINE__}, "too many copies at once, or one that is not aligned");
    }
    copies.waiting[copies.begun].to = to;
    copies.waiting[copies.begun++].from = inside ? from : nullptr;
#endif
}
// Ends a group.
DEVICE void commit(Copies& copies) {
#ifdef __CUDACC_RTC__
    asm volatile("cp.async.commit_group;" ::: "memory");
#else
    if (copies.groups == Copies::MOST) {
        emulate::fail(emulate::Site{__FILE__, __LINE__}, "too many groups of copies at once");
    }
    copies.ends[copies.groups++] = copies.begun;
#endif
}
// Waits for all groups but the last `some`.
template <uint32_t some>
DEVICE void wait_for_all_but(Copies& copies) {
#ifdef __CUDACC_RTC__
    asm volatile("cp.async.wait_group %0;" ::"n"(some) : "memory");
#else
    if (copies.groups <= some) {
        return;
    }
    uint32_t done = copies.groups - some, end = copies.ends[done - 1];
    for (uint32_t i = 0; i < end; i++) {
        if (copies.waiting[i].from) {
            memcpy(copies.waiting[i].to, copies.waiting[i].from, 16);
        } else {
            memset(copies.waiting[i].to, 0, 16);
        }
    }
    for (uint32_t i = end; i < copies.begun; i++) {
        copies.waiting[i - end] = copies.waiting[i];
    }
    for (uint32_t i = done; i < copies.groups; i++) {
        copies.ends[i - done] = copies.ends[i] - end;
    }
    copies.begun -= end;
    copies.groups = some;
#endif
}
