//! `ids.cu`: ids of a batch.

use super::{In, Out, Shape, catalogue};

fn items(n: u32) -> Shape {
    Shape::items(u64::from(n))
}

catalogue! { "ids.cu":
    /// Adds ids to a set; those that are not below `limit` are told of.
    bitmap_add_ids(
        n: u32, ids: In<i64>, limit: u64, bits: Out<u32>, fault: Out<u32>,
    ) => items(n);
    /// Adds rows to a set; those that are not below `limit` are told of.
    bitmap_add_rows(
        n: u32, rows: In<u32>, limit: u64, bits: Out<u32>, fault: Out<u32>,
    ) => items(n);
    /// Empties a set that has these members only.
    bitmap_remove_ids(
        n: u32, ids: In<i64>, limit: u64, bits: Out<u32>,
    ) => items(n);
    /// Empties a set that has these members only.
    bitmap_remove_rows(
        n: u32, rows: In<u32>, limit: u64, bits: Out<u32>,
    ) => items(n);
    /// `sums[b]` = members in the groups of block b.
    bitmap_tiles(
        groups: u32, bits: In<u32>, sums: Out<u32>,
    ) => items(groups);
    /// `before[group]` = members in the groups before it, from the scanned sums; if asked for, all members, ascending.
    bitmap_number_ids(
        groups: u32, bits: In<u32>, sums: In<u32>, before: Out<u32>, members: Out<i64>, room: u32, fault: Out<u32>,
    ) => items(groups);
    /// `bitmap_number_ids` of rows.
    bitmap_number_rows(
        groups: u32, bits: In<u32>, sums: In<u32>, before: Out<u32>, members: Out<u32>, room: u32, fault: Out<u32>,
    ) => items(groups);
    /// `inverse[i]` = where `ids[i]` stands among the members.
    bitmap_rank_ids(
        n: u32, ids: In<i64>, limit: u64, bits: In<u32>, before: In<u32>, inverse: Out<u32>,
    ) => items(n);
    /// `bitmap_rank_ids` of rows.
    bitmap_rank_rows(
        n: u32, rows: In<u32>, limit: u64, bits: In<u32>, before: In<u32>, inverse: Out<u32>,
    ) => items(n);
    /// `counts[owner]` = how many of ascending ids it holds: those from owner * rows_per_owner on.
    count_by_owner(
        owners: u32, n: u32, ids: In<i64>, rows_per_owner: u64, counts: Out<u64>,
    ) => items(owners);
    /// `keys[i]` = the owner of `ids[i]`; of an id that nobody has, the last.
    owners_of_ids(
        n: u32, ids: In<i64>, space: u64, rows_per_owner: u64, owners: u32, limit: u64, keys: Out<u32>,
        fault: Out<u32>,
    ) => items(n);
    /// Entries in their order: `ids_out[i] = ids[order[i]]`, and where each position's entry stands.
    place_entries(
        n: u32, order: In<u32>, ids: In<i64>, ids_out: Out<i64>, inverse: Out<u32>, fault: Out<u32>,
    ) => items(n);
    /// Begins to find in which window each entry is used first and last.
    uses_begin(
        entries: u32, first: Out<u32>, last: Out<u32>,
    ) => items(entries);
    /// Notes the windows of positions; those of a window end at its boundary.
    uses_mark(
        n: u32, inverse: In<u32>, windows: u32, boundaries: In<u32>, entries: u32, first: Out<u32>,
        last: Out<u32>, fault: Out<u32>,
    ) => items(n);
    /// First and last window of each entry, as two bytes.
    uses_end(
        entries: u32, first: In<u32>, last: In<u32>, uses: Out<u8>,
    ) => items(entries);
    /// The first and last use of each entry by anybody, from those that each position is told.
    uses_join(
        n: u32, inverse: In<u32>, uses: In<u8>, entries: u32, first: Out<u32>, last: Out<u32>, fault: Out<u32>,
    ) => items(n);
    /// Slots of owner o become those of owner `to[o]`: owners come in another order. What is nobody's slot stays what it
    /// is.
    slots_in_order(
        n: u32, slots: Out<i64>, rows_per_owner: u64, owners: u32, to: In<u32>,
    ) => items(n);
    /// `rows[i] = ids[i]` as a row of its owner's shard. Without rows_per_owner there is one owner.
    rows_of_entries(
        n: u32, ids: In<i64>, rows_per_owner: u64, owners: u32, rows: Out<u32>,
    ) => items(n);
    /// `slots[i]` = the slot of `ids[i]` below `rows`, and with `users` that of the user's copy of the table: user *
    /// space more. Without a permutation slots are row numbers.
    slots_of_ids(
        n: u32, ids: In<i64>, rows: u64, permutation: In<u64>, moved: In<u64>, places: u32, users: In<u32>,
        space: u64, slots: Out<i64>, fault: Out<u32>,
    ) => items(n);
    /// `slots[i]` = base + the number of `ids[i]` among hot rows, if it is one of them; otherwise it stays.
    slots_of_hot(
        n: u32, ids: In<i64>, numbers: In<u64>, places: u32, base: u64, slots: Out<i64>,
    ) => items(n);
    /// Entries below `base`, which come first, and those from there to `limit` as numbers from `base` on, each with its two
    /// bytes of uses, if there are any.
    shares_of_entries(
        n: u32, ids: In<i64>, uses: In<u8>, base: u64, limit: u64, owned: Out<i64>, owned_uses: Out<u8>,
        hot: Out<i64>, hot_uses: Out<u8>,
    ) => items(n);
    /// The rows in slots, the other way round.
    rows_of_slots(
        n: u32, slots: In<i64>, permutation: In<u64>, moved: In<u64>, places: u32, rows: Out<i64>,
    ) => items(n);
    /// For each position of jagged samples (columns numbers a token), the value of its sample: `out[p] =
    /// of_sample[stride * keys[s]]`.
    spread_over_positions(
        n: u32, samples: u32, offsets: In<u32>, columns: u32, keys: In<u64>, limit: u32, of_sample: In<u32>,
        stride: u32, out: Out<u32>, fault: Out<u32>,
    ) => items(n);
    /// `count` row numbers below table_rows for each row key; a draw depends on the key, the row key and its number
    /// only.
    negatives(
        n: u32, count: u32, key0: u32, key1: u32, table_rows: u64, row_keys: In<u64>, out: Out<i64>,
    ) => Shape::items(u64::from(n) * u64::from(count));
}
