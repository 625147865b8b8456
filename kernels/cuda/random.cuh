// Counter-based random numbers, Philox 4x32-10: the words of workload/src/random.rs, bit for bit.
#pragma once

#include "common.cuh"

// The four words of one counter.
DEVICE void philox(uint32_t (&counter)[4], uint32_t key0, uint32_t key1) {
#pragma unroll
    for (uint32_t round = 0; round < 10; round++) {
        uint32_t high0 = __umulhi(0xD2511F53u, counter[0]), low0 = 0xD2511F53u * counter[0];
        uint32_t high1 = __umulhi(0xCD9E8D57u, counter[2]), low1 = 0xCD9E8D57u * counter[2];
        counter[0] = high1 ^ counter[1] ^ key0;
        counter[2] = high0 ^ counter[3] ^ key1;
        counter[1] = low1;
        counter[3] = low0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
}

// How the CPU's kernels spread words over the columns of a row: counters in groups of 16, so that the words
// of group g are for the columns 64 g ..: first the first words of its 16 counters, then their second words, ...
const uint32_t COUNTERS = 16;

// The words of counter `block` of a row.
DEVICE void words_of_row(uint32_t key0, uint32_t key1, uint64_t row, uint32_t block, uint32_t (&words)[4]) {
    words[0] = uint32_t(row);
    words[1] = uint32_t(row >> 32);
    words[2] = block;
    words[3] = 0;
    philox(words, key0, key1);
}
