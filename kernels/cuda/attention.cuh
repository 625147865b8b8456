// What both ways of computing attention share: which part of which sequence a block works on, and what becomes of a score.
#pragma once

#include "dense.cuh"

const uint32_t ATTENTION_THREADS = 128;

// A block's part of a sequence.
struct Part {
    // The sequence's first token, and its length.
    uint64_t begin;
    uint32_t length;
    // The block's first row.
    uint32_t first;
};

// Sequences are cut into tiles of `rows`. A block finds its own from the offsets alone, so the host need not know them: the tiles
// of sequence s are numbered from offsets[s] / rows + s, which leaves each of them enough numbers, since a sequence
// of n rows has at most n / rows + 1 tiles, fractions included. Numbers left over do nothing (false). There are tokens / rows
// + sequences numbers. `backwards`: the last tile first, which has most to do under a causal mask.
DEVICE bool part_of_block(
    const uint64_t* offsets, uint64_t sequences, uint64_t tiles_in_all, uint32_t rows, bool backwards, Part& part) {
    uint64_t number = blockIdx.x, low = 0, high = sequences;
    if (number >= tiles_in_all || sequences == 0) {
        return false;
    }
    while (high - low > 1) {
        uint64_t middle = (low + high) / 2;
        if (offsets[middle] / rows + middle <= number) {
            low = middle;
        } else {
            high = middle;
        }
    }
    uint64_t begin = offsets[low], length = offsets[low + 1] - begin;
    uint64_t tile = number - (begin / rows + low), tiles = ceiling(length, rows);
    if (tile >= tiles) {
        return false;
    }
    part.begin = begin;
    part.length = uint32_t(length);
    part.first = uint32_t(backwards ? tiles - 1 - tile : tile) * rows;
    return true;
}

// The columns of a head, from a sequence's first token on.
template <class T>
DEVICE View<T> head_of(T* data, uint64_t stride, uint64_t begin, uint32_t head, uint32_t dim) {
    auto head_view = view(data + begin * stride + uint64_t(head) * dim, stride);
    head_view.wide = head_view.wide && dim * sizeof(T) % 16 == 0;
    return head_view;
}

// 1 / (1 + e^-x): of the type's precision.
DEVICE float sigmoid_for(float, float x) {
    return sigmoid(x);
}
DEVICE float sigmoid_for(bf16, float x) {
    return fast_divide(1.0f, 1.0f + fast_exp(-x));
}
DEVICE float exp_for(float, float x) {
    return expf(x);
}
DEVICE float exp_for(bf16, float x) {
    return fast_exp(x);
}

// The derivative of silu(x) from sig = sigmoid(x): sig + x sig (1 - sig).
DEVICE float silu_slope(float x, float sig) {
    return fmaf(x * sig, 1.0f - sig, sig);
}
