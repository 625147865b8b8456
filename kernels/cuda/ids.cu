// Ids of a batch: which rows it needs, where each stands, and whose they are.
//
// A set of ids is a bitmap of the rows that there could be (bitmap.cuh): members come out sorted without sorting.
#include "bitmap.cuh"
#include "random.cuh"

// Adds ids below `limit`.
template <class T>
DEVICE void bitmap_add(Grid grid, uint32_t n, const T* ids, uint64_t limit, uint32_t* bits, uint32_t* fault, Fault what) {
    uint64_t i = thread_in_grid(grid);
    if (i >= n) {
        return;
    }
    uint64_t id = uint64_t(ids[i]);
    if (id >= limit) {
        raise_fault(fault, what);
        return;
    }
    uint32_t bit = 1u << (id % 32);
    // Most ids of a batch are there already.
    if (!(bits[id / 32] & bit)) {
        atomicOr(&bits[id / 32], bit);
    }
}
KERNEL_JOINED(bitmap_add_ids,
    (uint32_t n, const int64_t* ids, uint64_t limit, uint32_t* bits, uint32_t* fault),
    (n, ids, limit, bits, fault)) {
    bitmap_add(grid, n, ids, limit, bits, fault, FAULT_ID);
}
KERNEL_JOINED(bitmap_add_rows,
    (uint32_t n, const uint32_t* rows, uint64_t limit, uint32_t* bits, uint32_t* fault),
    (n, rows, limit, bits, fault)) {
    bitmap_add(grid, n, rows, limit, bits, fault, FAULT_ROW);
}

// Empties a set of these members.
template <class T>
DEVICE void bitmap_remove(Grid grid, uint32_t n, const T* ids, uint64_t limit, uint32_t* bits) {
    uint64_t i = thread_in_grid(grid);
    if (i < n && uint64_t(ids[i]) < limit) {
        bits[uint64_t(ids[i]) / 32] = 0;
    }
}
KERNEL_JOINED(bitmap_remove_ids,
    (uint32_t n, const int64_t* ids, uint64_t limit, uint32_t* bits),
    (n, ids, limit, bits)) {
    bitmap_remove(grid, n, ids, limit, bits);
}
KERNEL_JOINED(bitmap_remove_rows,
    (uint32_t n, const uint32_t* rows, uint64_t limit, uint32_t* bits),
    (n, rows, limit, bits)) {
    bitmap_remove(grid, n, rows, limit, bits);
}

// sums[b] = members in the groups of block b.
KERNEL_JOINED_OF(bitmap_tiles, 256,
    (uint32_t groups, const uint32_t* bits, uint32_t* sums),
    (groups, bits, sums)) {
    uint64_t group = thread_in_grid(grid);
    uint32_t members = 0, total;
    if (group < groups) {
        Group g = load_group(bits, group);
#pragma unroll
        for (uint32_t w = 0; w < GROUP_WORDS; w++) {
            members += __popc(g.words[w]);
        }
    }
    block_scan(members, total);
    if (threadIdx.x == 0) {
        sums[grid.block] = total;
    }
}

// before[group] = members in the groups before, from the scanned sums; if asked for, the members, ascending.
template <class T>
DEVICE void bitmap_number(
    Grid grid, uint32_t groups, const uint32_t* bits, const uint32_t* sums, uint32_t* before, T* members, uint32_t room,
    uint32_t* fault) {
    uint64_t group = thread_in_grid(grid);
    uint32_t count = 0, total;
    Group g = {};
    if (group < groups) {
        g = load_group(bits, group);
#pragma unroll
        for (uint32_t w = 0; w < GROUP_WORDS; w++) {
            count += __popc(g.words[w]);
        }
    }
    uint32_t at = sums[grid.block] + block_scan(count, total);
    if (group >= groups) {
        return;
    }
    before[group] = at;
    if (!members) {
        return;
    }
    if (at + count > room) {
        raise_fault(fault, FAULT_SIZE);
        return;
    }
#pragma unroll
    for (uint32_t w = 0; w < GROUP_WORDS; w++) {
        for (uint32_t rest = g.words[w]; rest != 0; rest &= rest - 1) {
            members[at++] = T(group * GROUP_BITS + w * 32 + __ffs(rest) - 1);
        }
    }
}
KERNEL_JOINED_OF(bitmap_number_ids, 256,
    (uint32_t groups, const uint32_t* bits, const uint32_t* sums, uint32_t* before, int64_t* members, uint32_t room,
     uint32_t* fault),
    (groups, bits, sums, before, members, room, fault)) {
    bitmap_number(grid, groups, bits, sums, before, members, room, fault);
}
KERNEL_JOINED_OF(bitmap_number_rows, 256,
    (uint32_t groups, const uint32_t* bits, const uint32_t* sums, uint32_t* before, uint32_t* members, uint32_t room,
     uint32_t* fault),
    (groups, bits, sums, before, members, room, fault)) {
    bitmap_number(grid, groups, bits, sums, before, members, room, fault);
}

// inverse[i] = where ids[i] stands among the members. Ids out of range were told of when they were added; theirs is 0.
template <class T>
DEVICE void bitmap_rank(
    Grid grid, uint32_t n, const T* ids, uint64_t limit, const uint32_t* bits, const uint32_t* before, uint32_t* inverse) {
    uint64_t i = thread_in_grid(grid);
    if (i < n) {
        uint64_t id = uint64_t(ids[i]);
        inverse[i] = id < limit ? rank_of(bits, before, id) : 0;
    }
}
KERNEL_JOINED(bitmap_rank_ids,
    (uint32_t n, const int64_t* ids, uint64_t limit, const uint32_t* bits, const uint32_t* before, uint32_t* inverse),
    (n, ids, limit, bits, before, inverse)) {
    bitmap_rank(grid, n, ids, limit, bits, before, inverse);
}
KERNEL_JOINED(bitmap_rank_rows,
    (uint32_t n, const uint32_t* rows, uint64_t limit, const uint32_t* bits, const uint32_t* before,
     uint32_t* inverse),
    (n, rows, limit, bits, before, inverse)) {
    bitmap_rank(grid, n, rows, limit, bits, before, inverse);
}

// counts[owner] = how many of ascending ids it holds: those from owner * rows_per_owner on.
KERNEL_JOINED(count_by_owner,
    (uint32_t owners, uint32_t n, const int64_t* ids, uint64_t rows_per_owner, uint64_t* counts),
    (owners, n, ids, rows_per_owner, counts)) {
    uint64_t owner = thread_in_grid(grid);
    if (owner >= owners) {
        return;
    }
    uint32_t found[2];
    for (uint32_t side = 0; side < 2; side++) {
        uint64_t limit = (owner + side) * rows_per_owner;
        uint32_t low = 0, high = n;
        while (low < high) {
            uint32_t middle = low + (high - low) / 2;
            if (uint64_t(ids[middle]) < limit) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        found[side] = low;
    }
    counts[owner] = found[1] - found[0];
}

// keys[i] = the owner of ids[i]; of an id that nobody has, the last.
KERNEL_JOINED(owners_of_ids,
    (uint32_t n, const int64_t* ids, uint64_t space, uint64_t rows_per_owner, uint32_t owners, uint64_t limit,
     uint32_t* keys, uint32_t* fault),
    (n, ids, space, rows_per_owner, owners, limit, keys, fault)) {
    uint64_t i = thread_in_grid(grid);
    if (i >= n) {
        return;
    }
    uint64_t id = uint64_t(ids[i]);
    if (id >= limit) {
        raise_fault(fault, FAULT_ID);
    }
    keys[i] = uint32_t(least(id % space / rows_per_owner, uint64_t(owners) - 1));
}

// Entries in their order: ids_out[i] = ids[order[i]], and where each position's entry stands.
KERNEL_JOINED(place_entries,
    (uint32_t n, const uint32_t* order, const int64_t* ids, int64_t* ids_out, uint32_t* inverse, uint32_t* fault),
    (n, order, ids, ids_out, inverse, fault)) {
    uint64_t i = thread_in_grid(grid);
    if (i >= n) {
        return;
    }
    uint32_t from = order[i];
    if (from >= n) {
        raise_fault(fault, FAULT_ROW);
        return;
    }
    ids_out[i] = ids[from];
    inverse[from] = uint32_t(i);
}

// In which window each entry is used first and last. Numbers while they are found; `uses` has two bytes an entry.
KERNEL_JOINED(uses_begin,
    (uint32_t entries, uint32_t* first, uint32_t* last),
    (entries, first, last)) {
    uint64_t entry = thread_in_grid(grid);
    if (entry < entries) {
        first[entry] = 255;
        last[entry] = 0;
    }
}
// Positions of a window end at its boundary.
KERNEL_JOINED(uses_mark,
    (uint32_t n, const uint32_t* inverse, uint32_t windows, const uint32_t* boundaries, uint32_t entries,
     uint32_t* first, uint32_t* last, uint32_t* fault),
    (n, inverse, windows, boundaries, entries, first, last, fault)) {
    uint64_t i = thread_in_grid(grid);
    if (i >= n) {
        return;
    }
    uint32_t window = 0, entry = inverse[i];
    while (window < windows && i >= boundaries[window]) {
        window++;
    }
    if (entry >= entries || window == windows) {
        raise_fault(fault, entry >= entries ? FAULT_ROW : FAULT_SIZE);
        return;
    }
    atomicMin(&first[entry], window);
    atomicMax(&last[entry], window);
}
KERNEL_JOINED(uses_end,
    (uint32_t entries, const uint32_t* first, const uint32_t* last, uint8_t* uses),
    (entries, first, last, uses)) {
    uint64_t entry = thread_in_grid(grid);
    if (entry < entries) {
        uses[2 * entry] = uint8_t(first[entry]);
        uses[2 * entry + 1] = uint8_t(last[entry]);
    }
}

// The first and last use of each entry by anybody, from those that each position is told.
KERNEL_JOINED(uses_join,
    (uint32_t n, const uint32_t* inverse, const uint8_t* uses, uint32_t entries, uint32_t* first, uint32_t* last,
     uint32_t* fault),
    (n, inverse, uses, entries, first, last, fault)) {
    uint64_t i = thread_in_grid(grid);
    if (i >= n) {
        return;
    }
    uint32_t entry = inverse[i];
    if (entry >= entries) {
        raise_fault(fault, FAULT_ROW);
        return;
    }
    atomicMin(&first[entry], uint32_t(uses[2 * i]));
    atomicMax(&last[entry], uint32_t(uses[2 * i + 1]));
}

// Slots of owner o become those of owner to[o]: owners come in another order. What is nobody's slot stays what it is.
KERNEL_JOINED(slots_in_order,
    (uint32_t n, int64_t* slots, uint64_t rows_per_owner, uint32_t owners, const uint32_t* to),
    (n, slots, rows_per_owner, owners, to)) {
    uint64_t i = thread_in_grid(grid);
    if (i >= n) {
        return;
    }
    uint64_t slot = uint64_t(slots[i]), owner = slot / rows_per_owner;
    if (owner < owners) {
        slots[i] = int64_t(to[owner] * rows_per_owner + slot % rows_per_owner);
    }
}

// rows[i] = ids[i] as a row of its owner's shard. Without rows_per_owner there is one owner.
KERNEL_JOINED(rows_of_entries,
    (uint32_t n, const int64_t* ids, uint64_t rows_per_owner, uint32_t owners, uint32_t* rows),
    (n, ids, rows_per_owner, owners, rows)) {
    uint64_t i = thread_in_grid(grid);
    if (i < n) {
        uint64_t id = uint64_t(ids[i]);
        uint64_t owner = rows_per_owner ? least(id / rows_per_owner, uint64_t(owners) - 1) : 0;
        rows[i] = uint32_t(id - owner * rows_per_owner);
    }
}

// A hashed or planned table: rows are permuted by a Feistel network over a power of two, walked until it lands inside; a few
// rows have other slots, which stand in a table with open addressing.
const uint64_t NOBODY = 0xffffffffffffffffu;

DEVICE uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}
// The value of a key among pairs of a key and a value, `places` (a power of two) of them; of a key that is not there, nobody.
DEVICE uint64_t value_of_key(const uint64_t* pairs, uint32_t places, uint64_t key) {
    for (uint64_t at = mix(key) & (places - 1);; at = (at + 1) & (places - 1)) {
        uint64_t found = pairs[2 * at];
        if (found == NOBODY || found == key) {
            return found == NOBODY ? NOBODY : pairs[2 * at + 1];
        }
    }
}

// permutation: n, bits of the low half, both masks, six keys. moved: pairs of a row and a slot, or none.
DEVICE uint64_t map_row(const uint64_t* permutation, const uint64_t* moved, uint32_t places, uint64_t x, bool back) {
    if (places > 0) {
        uint64_t slot = value_of_key(moved, places, x);
        if (slot != NOBODY) {
            return slot;
        }
    }
    uint64_t n = permutation[0], low_bits = permutation[1], low_mask = permutation[2], high_mask = permutation[3];
    const uint64_t* keys = permutation + 4;
    do {
        uint64_t low = x & low_mask, high = x >> low_bits;
        for (uint32_t round = 0; round < 3; round++) {
            if (back) {
                high ^= mix(low ^ keys[2 * (2 - round) + 1]) & high_mask;
                low ^= mix(high ^ keys[2 * (2 - round)]) & low_mask;
            } else {
                low ^= mix(high ^ keys[2 * round]) & low_mask;
                high ^= mix(low ^ keys[2 * round + 1]) & high_mask;
            }
        }
        x = high << low_bits | low;
    } while (x >= n);
    return x;
}

// slots[i] = the slot of ids[i] below `rows`, and with `users` that of the user's copy of the table: user * space more.
// Without a permutation slots are row numbers.
KERNEL_JOINED(slots_of_ids,
    (uint32_t n, const int64_t* ids, uint64_t rows, const uint64_t* permutation, const uint64_t* moved,
     uint32_t places, const uint32_t* users, uint64_t space, int64_t* slots, uint32_t* fault),
    (n, ids, rows, permutation, moved, places, users, space, slots, fault)) {
    uint64_t i = thread_in_grid(grid);
    if (i >= n) {
        return;
    }
    uint64_t id = uint64_t(ids[i]);
    if (id >= rows) {
        raise_fault(fault, FAULT_ID);
        slots[i] = -1;
        return;
    }
    uint64_t slot = permutation ? map_row(permutation, moved, places, id, false) : id;
    slots[i] = int64_t(slot + (users ? users[i] * space : 0));
}

// Hot rows have slots behind those of all owners: slots[i] = base + the number of ids[i] among them, if it is one. numbers:
// pairs of a row and its number. An id that no row has is none of them.
KERNEL_JOINED(slots_of_hot,
    (uint32_t n, const int64_t* ids, const uint64_t* numbers, uint32_t places, uint64_t base, int64_t* slots),
    (n, ids, numbers, places, base, slots)) {
    uint64_t i = thread_in_grid(grid);
    if (i >= n) {
        return;
    }
    uint64_t number = value_of_key(numbers, places, uint64_t(ids[i]));
    if (number != NOBODY) {
        slots[i] = int64_t(base + number);
    }
}

// Entries of which those below `base` come first: these, and behind them the others below `limit` as numbers from `base` on,
// each with its two bytes of uses, if there are any.
KERNEL_JOINED(shares_of_entries,
    (uint32_t n, const int64_t* ids, const uint8_t* uses, uint64_t base, uint64_t limit, int64_t* owned,
     uint8_t* owned_uses, int64_t* hot, uint8_t* hot_uses),
    (n, ids, uses, base, limit, owned, owned_uses, hot, hot_uses)) {
    uint64_t i = thread_in_grid(grid);
    if (i >= n || uint64_t(ids[i]) >= limit) {
        return;
    }
    uint64_t id = uint64_t(ids[i]);
    bool is_hot = id >= base;
    uint64_t to = i;
    if (is_hot) {
        uint32_t low = 0, high = uint32_t(i);
        while (low < high) {
            uint32_t middle = low + (high - low) / 2;
            if (uint64_t(ids[middle]) < base) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        to = i - low;
    }
    (is_hot ? hot : owned)[to] = int64_t(is_hot ? id - base : id);
    if (uses) {
        uint8_t* told = is_hot ? hot_uses : owned_uses;
        told[2 * to] = uses[2 * i];
        told[2 * to + 1] = uses[2 * i + 1];
    }
}

// The rows in slots, the other way round.
KERNEL_JOINED(rows_of_slots,
    (uint32_t n, const int64_t* slots, const uint64_t* permutation, const uint64_t* moved, uint32_t places,
     int64_t* rows),
    (n, slots, permutation, moved, places, rows)) {
    uint64_t i = thread_in_grid(grid);
    if (i < n) {
        uint64_t slot = uint64_t(slots[i]);
        rows[i] = int64_t(permutation ? map_row(permutation, moved, places, slot, true) : slot);
    }
}

// For each position of jagged samples (columns numbers a token), the value of its sample: out[p] = of_sample[stride * keys[s]].
KERNEL_JOINED(spread_over_positions,
    (uint32_t n, uint32_t samples, const uint32_t* offsets, uint32_t columns, const uint64_t* keys, uint32_t limit,
     const uint32_t* of_sample, uint32_t stride, uint32_t* out, uint32_t* fault),
    (n, samples, offsets, columns, keys, limit, of_sample, stride, out, fault)) {
    uint64_t p = thread_in_grid(grid);
    if (p >= n) {
        return;
    }
    uint32_t low = 0, high = samples;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (uint64_t(offsets[middle + 1]) * columns <= p) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low >= samples || keys[low] >= limit) {
        raise_fault(fault, FAULT_SIZE);
        return;
    }
    out[p] = of_sample[keys[low] * stride];
}

// `count` row numbers below table_rows for each row key; a draw depends on the key, the row key and its number only.
KERNEL_JOINED(negatives,
    (uint32_t n, uint32_t count, uint32_t key0, uint32_t key1, uint64_t table_rows, const uint64_t* row_keys,
     int64_t* out),
    (n, count, key0, key1, table_rows, row_keys, out)) {
    uint64_t i = thread_in_grid(grid);
    if (i >= uint64_t(n) * count) {
        return;
    }
    uint32_t row = uint32_t(i / count), draw = uint32_t(i % count);
    // 32 draws of a group: the first two words of its 16 counters, then the last two.
    uint32_t group = draw / (2 * COUNTERS), within = draw % (2 * COUNTERS), words[4];
    words_of_row(key0, key1, row_keys[row], group * COUNTERS + within % COUNTERS, words);
    uint32_t pair = within / COUNTERS * 2;
    // Chosen without an index that is known at run time only: the array stays in registers.
    uint64_t word = pair == 0 ? words[0] | uint64_t(words[1]) << 32 : words[2] | uint64_t(words[3]) << 32;
    out[i] = int64_t(__umul64hi(word, table_rows));
}
