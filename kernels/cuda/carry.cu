// Rows of samples on their way between lists: which row of one list is which of the other.
//
// A list of moves says which sample of a list comes next. Its rows, one after the other, are what travels; they are moved by
// `expand` (out of a list) and `scatter` (into one) with the row numbers that are made here.
#include "common.cuh"

// lengths[k] = rows of the k-th sample that moves: `offsets` of the list, or one each without. As many as there are moves.
KERNEL(lengths_of_moves)(
    uint32_t moves, const uint32_t* samples, uint32_t count, const uint32_t* offsets, uint32_t* lengths,
    uint32_t* fault) {
    uint64_t k = thread_in_grid();
    if (k >= moves) {
        return;
    }
    uint32_t sample = samples[k];
    if (sample >= count) {
        raise_fault(fault, FAULT_ROW);
        lengths[k] = 0;
        return;
    }
    lengths[k] = offsets ? offsets[sample + 1] - offsets[sample] : 1;
}

// rows[i] = the row of the list that is the i-th to travel; `starts` are the scanned lengths.
KERNEL(rows_of_moves)(
    uint32_t n, uint32_t moves, const uint32_t* starts, const uint32_t* samples, uint32_t count, const uint32_t* offsets,
    uint32_t* rows, uint32_t* fault) {
    uint64_t i = thread_in_grid();
    if (i >= n) {
        return;
    }
    // The last move that starts at or before i: those before it that are empty start there too.
    uint32_t low = 0, high = moves;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (starts[middle] <= i) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    uint32_t sample = low > 0 ? samples[low - 1] : count;
    if (sample >= count) {
        raise_fault(fault, FAULT_SIZE);
        return;
    }
    uint32_t within = uint32_t(i) - starts[low - 1], length = offsets ? offsets[sample + 1] - offsets[sample] : 1;
    if (within >= length) {
        raise_fault(fault, FAULT_SIZE);
        return;
    }
    rows[i] = (offsets ? offsets[sample] : sample) + within;
}

// Joins jagged lists into one: sample s of the result is that of each part, one after the other. Row i of part `part` goes to
// rows[i]; the result's sample begins at offsets[s], and earlier parts have `before[s]` rows of it.
KERNEL(rows_of_joined)(
    uint32_t n, uint32_t samples, const uint32_t* part, const uint32_t* offsets, const uint32_t* before, uint32_t* rows,
    uint32_t* fault) {
    uint64_t i = thread_in_grid();
    if (i >= n) {
        return;
    }
    uint32_t low = 0, high = samples;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (part[middle + 1] <= i) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low >= samples) {
        raise_fault(fault, FAULT_SIZE);
        return;
    }
    rows[i] = offsets[low] + before[low] + (uint32_t(i) - part[low]);
}
