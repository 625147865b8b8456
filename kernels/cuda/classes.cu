// Classes of reuse distance, positions by class, and lists that ranks ask for on behalf of others.
//
// Rows of another batch are a bitmap; where there are several windows each has a value, its first or
// last use, at its rank among the members.
#include "bitmap.cuh"

// Begins values of rows, to find the greatest or the smallest.
KERNEL_JOINED(values_begin,
    (uint32_t n, uint32_t greatest, uint32_t* values),
    (n, greatest, values)) {
    uint64_t i = thread_in_grid(grid);
    if (i < n) {
        values[i] = greatest ? 0 : 255;
    }
}
// The greatest last use, or the smallest first use, of each row.
KERNEL_JOINED(values_mark,
    (uint32_t n, const uint32_t* rows, uint64_t shard, const uint8_t* uses, uint32_t greatest, const uint32_t* bits,
     const uint32_t* before, uint32_t* values),
    (n, rows, shard, uses, greatest, bits, before, values)) {
    uint64_t i = thread_in_grid(grid);
    if (i >= n || rows[i] >= shard) {
        return;
    }
    uint32_t* at = &values[rank_of(bits, before, rows[i])];
    if (greatest) {
        atomicMax(at, uint32_t(uses[2 * i + 1]));
    } else {
        atomicMin(at, uint32_t(uses[2 * i]));
    }
}
// out[i] = the value of rows[i]; 0 if it is no member.
KERNEL_JOINED(values_of,
    (uint32_t n, const uint32_t* rows, uint64_t shard, const uint32_t* bits, const uint32_t* before,
     const uint32_t* values, uint8_t* out, uint32_t* fault),
    (n, rows, shard, bits, before, values, out, fault)) {
    uint64_t i = thread_in_grid(grid);
    if (i >= n) {
        return;
    }
    if (rows[i] >= shard) {
        raise_fault(fault, FAULT_ROW);
        return;
    }
    out[i] = is_member(bits, rows[i]) ? uint8_t(values[rank_of(bits, before, rows[i])]) : 0;
}

// The use of an entry: a byte of every `stride`, from the first on; 0 where uses are not told.
DEVICE uint32_t use_of(const uint8_t* uses, uint32_t stride, uint64_t entry) {
    return uses ? uses[stride * entry] : 0;
}

// Notes the distance of entries whose rows the batch `batches` away uses, unless a nearer one did. Forward: from the other
// batch's last use to the own first; backward: from the own last to the other's first. Without values uses are 0.
KERNEL_JOINED(distance_mark,
    (uint32_t n, const uint32_t* rows, uint64_t shard, const uint8_t* uses, uint32_t stride, uint32_t batches,
     uint32_t windows, uint32_t forward, const uint32_t* bits, const uint32_t* before, const uint32_t* values,
     uint32_t* distance, uint32_t* fault),
    (n, rows, shard, uses, stride, batches, windows, forward, bits, before, values, distance, fault)) {
    uint64_t i = thread_in_grid(grid);
    if (i >= n) {
        return;
    }
    uint32_t row = rows[i];
    if (row >= shard) {
        raise_fault(fault, FAULT_ROW);
        return;
    }
    if (distance[i] == 0 && is_member(bits, row)) {
        uint32_t own = use_of(uses, stride, i), other = values ? values[rank_of(bits, before, row)] : 0;
        distance[i] = batches * windows + (forward ? own - other : other - own);
    }
}

// The class of each entry, from a table: a row for each window, a column for each distance and one for farther ones.
KERNEL_JOINED(classes_of,
    (uint32_t n, const uint8_t* uses, uint32_t stride, const uint32_t* distance, uint32_t lookahead,
     uint32_t windows, const uint8_t* table, uint8_t* classes, uint32_t* fault),
    (n, uses, stride, distance, lookahead, windows, table, classes, fault)) {
    uint64_t i = thread_in_grid(grid);
    if (i >= n) {
        return;
    }
    uint32_t window = use_of(uses, stride, i), far = distance[i];
    if (window >= windows) {
        raise_fault(fault, FAULT_CLASS);
        return;
    }
    uint32_t column = far == 0 || far > lookahead ? lookahead : far - 1;
    classes[i] = table[window * (lookahead + 1) + column];
}

// keys[i] = the class of an entry, to sort by.
KERNEL_JOINED(class_keys,
    (uint32_t n, const uint8_t* classes, uint32_t count, uint32_t* keys, uint32_t* fault),
    (n, classes, count, keys, fault)) {
    uint64_t i = thread_in_grid(grid);
    if (i >= n) {
        return;
    }
    keys[i] = classes[i];
    if (classes[i] >= count) {
        raise_fault(fault, FAULT_CLASS);
    }
}

// numbers[class * ranks + rank] = positions of the class that are the rank's: sorted positions of a class end at its end,
// entries of a rank at its.
KERNEL_JOINED(count_by_class,
    (uint32_t classes, uint32_t ranks, const uint32_t* positions, const uint32_t* class_ends,
     const uint32_t* rank_ends, uint64_t* numbers),
    (classes, ranks, positions, class_ends, rank_ends, numbers)) {
    uint64_t k = thread_in_grid(grid);
    if (k >= uint64_t(classes) * ranks) {
        return;
    }
    uint32_t c = uint32_t(k / ranks), rank = uint32_t(k % ranks), found[2];
    uint32_t start = c > 0 ? class_ends[c - 1] : 0;
    for (uint32_t side = 0; side < 2; side++) {
        uint32_t limit = side ? rank_ends[rank] : rank > 0 ? rank_ends[rank - 1] : 0;
        uint32_t low = start, high = class_ends[c];
        while (low < high) {
            uint32_t middle = low + (high - low) / 2;
            if (positions[middle] < limit) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        found[side] = low;
    }
    numbers[k] = found[1] - found[0];
}

// found[i] = where places[asked[i]] stands among ascending places of a class. One that is not there is told of, and stands
// behind all.
KERNEL_JOINED(places_in_class,
    (uint32_t n, const uint32_t* asked, const uint32_t* places, uint32_t limit, const uint32_t* there, uint32_t count,
     uint32_t* found, uint32_t* fault),
    (n, asked, places, limit, there, count, found, fault)) {
    uint64_t i = thread_in_grid(grid);
    if (i >= n) {
        return;
    }
    uint32_t at = asked[i], low = 0, high = at < limit ? count : 0;
    uint32_t place = at < limit ? places[at] : 0;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (there[middle] < place) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    bool known = at < limit && low < count && there[low] == place;
    if (!known) {
        raise_fault(fault, FAULT_ROW);
    }
    found[i] = known ? low : count;
}

// ends[r] = entries of the ranks up to r. One block; as many as there are ranks.
KERNEL_JOINED_OF(ends_of_counts, 1024,
    (uint32_t ranks, const uint64_t* counts, uint32_t* ends),
    (ranks, counts, ends)) {
    uint32_t before = 0;
    for (uint32_t start = 0; start < ranks; start += blockDim.x) {
        uint32_t r = start + threadIdx.x, total;
        uint32_t own = r < ranks ? uint32_t(counts[r]) : 0;
        uint32_t below = block_scan(own, total);
        if (r < ranks) {
            ends[r] = before + below + own;
        }
        before += total;
    }
}

// Entries user * space + row in their order: the row, the user, and uses if they are told.
KERNEL_JOINED(place_asked,
    (uint32_t n, const uint32_t* order, const int64_t* entries, uint64_t space, const uint8_t* uses, int64_t* rows,
     uint32_t* users, uint8_t* uses_out, uint32_t* fault),
    (n, order, entries, space, uses, rows, users, uses_out, fault)) {
    uint64_t i = thread_in_grid(grid);
    if (i >= n) {
        return;
    }
    uint32_t from = order[i];
    if (from >= n) {
        raise_fault(fault, FAULT_ROW);
        return;
    }
    uint64_t entry = uint64_t(entries[from]);
    rows[i] = int64_t(entry % space);
    users[i] = uint32_t(entry / space);
    if (uses) {
        uses_out[2 * i] = uses[2 * uint64_t(from)];
        uses_out[2 * i + 1] = uses[2 * uint64_t(from) + 1];
    }
}

// Rows and users travel as pairs.
KERNEL_JOINED(pack_asked,
    (uint32_t n, const int64_t* ids, const uint32_t* users, uint64_t rows_per_owner, uint32_t owners,
     uint32_t* pairs),
    (n, ids, users, rows_per_owner, owners, pairs)) {
    uint64_t i = thread_in_grid(grid);
    if (i < n) {
        uint64_t id = uint64_t(ids[i]);
        uint64_t owner = rows_per_owner ? least(id / rows_per_owner, uint64_t(owners) - 1) : 0;
        pairs[2 * i] = uint32_t(id - owner * rows_per_owner);
        pairs[2 * i + 1] = users[i];
    }
}

// keys[i] = a number of request order[i] (of request i without an order), to sort by: the row, the user, or first and last
// use as one number.
KERNEL_JOINED(request_keys,
    (uint32_t n, const uint32_t* order, const uint32_t* pairs, const uint8_t* uses, uint32_t which, uint32_t* keys),
    (n, order, pairs, uses, which, keys)) {
    uint64_t i = thread_in_grid(grid);
    if (i >= n) {
        return;
    }
    uint64_t at = order ? order[i] : i;
    if (which < 2) {
        keys[i] = pairs[2 * at + which];
    } else {
        keys[i] = uses ? uses[2 * at] * 256u + uses[2 * at + 1] : 0;
    }
}

// flags[i] = 1 where a sorted request is kept: every one, or the first for its user and row.
KERNEL_JOINED(join_flags,
    (uint32_t n, const uint32_t* order, const uint32_t* pairs, uint32_t distinct, uint32_t ranks, uint32_t* flags,
     uint32_t* fault),
    (n, order, pairs, distinct, ranks, flags, fault)) {
    uint64_t i = thread_in_grid(grid);
    if (i >= n) {
        return;
    }
    const uint32_t* own = pairs + 2 * uint64_t(order[i]);
    if (own[1] >= ranks) {
        raise_fault(fault, FAULT_SIZE);
    }
    bool again = false;
    if (distinct && i > 0) {
        const uint32_t* last = pairs + 2 * uint64_t(order[i - 1]);
        again = last[0] == own[0] && last[1] == own[1];
    }
    flags[i] = again ? 0 : 1;
}

// The lists: rows, users, and uses from the first of all to the last. `places` are the scanned flags.
KERNEL_JOINED(join_requests,
    (uint32_t n, const uint32_t* order, const uint32_t* pairs, const uint8_t* uses, uint32_t distinct,
     const uint32_t* places, uint32_t* rows, uint32_t* users, uint8_t* uses_out),
    (n, order, pairs, uses, distinct, places, rows, users, uses_out)) {
    uint64_t i = thread_in_grid(grid);
    if (i >= n) {
        return;
    }
    const uint32_t* own = pairs + 2 * uint64_t(order[i]);
    auto same = [&](uint64_t j) {
        const uint32_t* other = pairs + 2 * uint64_t(order[j]);
        return other[0] == own[0] && other[1] == own[1];
    };
    if (distinct && i > 0 && same(i - 1)) {
        return;
    }
    uint32_t place = places[i];
    rows[place] = own[0];
    users[place] = own[1];
    if (uses) {
        // Sorted by uses too, so the first of all comes first.
        const uint8_t* pair = uses + 2 * uint64_t(order[i]);
        uint8_t last = pair[1];
        for (uint64_t j = i + 1; distinct && j < n && same(j); j++) {
            last = greatest(last, uses[2 * uint64_t(order[j]) + 1]);
        }
        uses_out[2 * uint64_t(place)] = pair[0];
        uses_out[2 * uint64_t(place) + 1] = last;
    }
}
