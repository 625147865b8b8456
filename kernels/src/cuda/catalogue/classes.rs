//! `classes.cu`: classes of reuse distance, and requests of others.

use super::{In, Out, Shape, catalogue};

fn items(n: u32) -> Shape {
    Shape::items(u64::from(n))
}

fn one() -> Shape {
    Shape::blocks(1, 1024)
}

catalogue! { "classes.cu":
    /// Begins values of rows, to find the greatest or the smallest.
    values_begin(
        n: u32, greatest: u32, values: Out<u32>,
    ) => items(n);
    /// The greatest last use, or the smallest first use, of each row.
    values_mark(
        n: u32, rows: In<u32>, shard: u64, uses: In<u8>, greatest: u32, bits: In<u32>, before: In<u32>,
        values: Out<u32>,
    ) => items(n);
    /// `out[i]` = the value of `rows[i]`; 0 if it is no member.
    values_of(
        n: u32, rows: In<u32>, shard: u64, bits: In<u32>, before: In<u32>, values: In<u32>, out: Out<u8>,
        fault: Out<u32>,
    ) => items(n);
    /// Notes the distance of entries whose rows the batch `batches` away uses, unless a nearer one did. Forward: from
    /// the other batch's last use to the own first; backward: from the own last to the other's first. Without values
    /// uses are 0.
    distance_mark(
        n: u32, rows: In<u32>, shard: u64, uses: In<u8>, stride: u32, batches: u32, windows: u32, forward: u32,
        bits: In<u32>, before: In<u32>, values: In<u32>, distance: Out<u32>, fault: Out<u32>,
    ) => items(n);
    /// The class of each entry, from a table: a row for each window, a column for each distance and one for farther
    /// ones.
    classes_of(
        n: u32, uses: In<u8>, stride: u32, distance: In<u32>, lookahead: u32, windows: u32, table: In<u8>,
        classes: Out<u8>, fault: Out<u32>,
    ) => items(n);
    /// `keys[i]` = the class of an entry, to sort by.
    class_keys(
        n: u32, classes: In<u8>, count: u32, keys: Out<u32>, fault: Out<u32>,
    ) => items(n);
    /// `numbers[class * ranks + rank]` = positions of the class that are the rank's: sorted positions of a class end at
    /// its end, entries of a rank at its.
    count_by_class(
        classes: u32, ranks: u32, positions: In<u32>, class_ends: In<u32>, rank_ends: In<u32>, numbers: Out<u64>,
    ) => Shape::items(u64::from(classes) * u64::from(ranks));
    /// `found[i]` = where `places[asked[i]]` stands among ascending places of a class. One that is not there is told of,
    /// and stands behind all.
    places_in_class(
        n: u32, asked: In<u32>, places: In<u32>, limit: u32, there: In<u32>, count: u32, found: Out<u32>,
        fault: Out<u32>,
    ) => items(n);
    /// `ends[r]` = entries of the ranks up to r. One block; as many as there are ranks.
    ends_of_counts(
        ranks: u32, counts: In<u64>, ends: Out<u32>,
    ) => one();
    /// Entries user * space + row in their order: the row, the user, and uses if they are told.
    place_asked(
        n: u32, order: In<u32>, entries: In<i64>, space: u64, uses: In<u8>, rows: Out<i64>, users: Out<u32>,
        uses_out: Out<u8>, fault: Out<u32>,
    ) => items(n);
    /// Rows and users travel as pairs.
    pack_asked(
        n: u32, ids: In<i64>, users: In<u32>, rows_per_owner: u64, owners: u32, pairs: Out<u32>,
    ) => items(n);
    /// `keys[i]` = a number of request `order[i]` (of request i without an order), to sort by: the row, the user, or
    /// first and last use as one number.
    request_keys(
        n: u32, order: In<u32>, pairs: In<u32>, uses: In<u8>, which: u32, keys: Out<u32>,
    ) => items(n);
    /// `flags[i]` = 1 where a sorted request is kept: every one, or the first for its user and row.
    join_flags(
        n: u32, order: In<u32>, pairs: In<u32>, distinct: u32, ranks: u32, flags: Out<u32>, fault: Out<u32>,
    ) => items(n);
    /// The lists: rows, users, and uses from the first of all to the last. `places` are the scanned flags.
    join_requests(
        n: u32, order: In<u32>, pairs: In<u32>, uses: In<u8>, distinct: u32, places: In<u32>, rows: Out<u32>,
        users: Out<u32>, uses_out: Out<u8>,
    ) => items(n);
}
