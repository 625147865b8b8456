// Sets of rows: a bitmap of those that there could be.
//
// Eight words of it, a sector of memory, are a group; for each group the number of members before it is found by a scan, so
// that the rank of a member is one number and the bits of a sector.
#pragma once

#include "common.cuh"

const uint32_t GROUP_WORDS = 8, GROUP_BITS = 32 * GROUP_WORDS;

struct Group {
    uint32_t words[GROUP_WORDS];
};
DEVICE Group load_group(const uint32_t* bits, uint64_t group) {
    const uint4* p = reinterpret_cast<const uint4*>(bits + group * GROUP_WORDS);
    uint4 a = p[0], b = p[1];
    return Group{{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}

DEVICE bool is_member(const uint32_t* bits, uint64_t row) {
    return bits[row / 32] >> (row % 32) & 1;
}

// The members below `id`.
DEVICE uint32_t rank_of(const uint32_t* bits, const uint32_t* before, uint64_t id) {
    uint64_t group = id / GROUP_BITS;
    uint32_t word = uint32_t(id / 32) % GROUP_WORDS, rank = before[group];
    Group g = load_group(bits, group);
#pragma unroll
    for (uint32_t w = 0; w < GROUP_WORDS; w++) {
        if (w < word) {
            rank += __popc(g.words[w]);
        } else if (w == word) {
            rank += __popc(g.words[w] & ((1u << (id % 32)) - 1));
        }
    }
    return rank;
}
