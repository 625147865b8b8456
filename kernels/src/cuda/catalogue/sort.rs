//! `sort.cu`: scans and stable sorting.

use super::dense::MOST_BLOCKS;
use super::{In, Out, Shape, catalogue};

fn items(n: u32) -> Shape {
    Shape::items(u64::from(n))
}

/// Numbers that a block scans.
pub const SCAN_TILE: u64 = 2048;
/// Items that a block sorts.
pub const SORT_TILE: u64 = 2048;

fn one() -> Shape {
    Shape::blocks(1, 1024)
}

fn scan_shape(n: u32) -> Shape {
    Shape::blocks(u64::from(n).div_ceil(SCAN_TILE), 256)
}

fn sort_shape(n: u32) -> Shape {
    Shape::blocks(u64::from(n).div_ceil(SORT_TILE), 256)
}

catalogue! { "sort.cu":
    /// `sums[b]` = the sum of the values of tile b.
    scan_tiles(
        n: u32, values: In<u32>, sums: Out<u32>,
    ) => scan_shape(n);
    /// The sums of what lies before, in place, and in `total` (if there is one) that of all. One block.
    scan_top(
        n: u32, sums: Out<u32>, total: Out<u32>,
    ) => one();
    /// `out[i]` = the sum of the values before i. `out` may be `values`.
    scan_apply(
        n: u32, values: In<u32>, sums: In<u32>, out: Out<u32>,
    ) => scan_shape(n);
    /// `counts[digit * tiles + tile]` = items of the tile with that digit.
    sort_count(
        n: u32, keys: In<u32>, shift: u32, counts: Out<u32>,
    ) => sort_shape(n);
    /// Puts keys and values in their places: `offsets` are the scanned counts. Without values the value of an item is
    /// its number.
    sort_place(
        n: u32, keys: In<u32>, values: In<u32>, shift: u32, offsets: In<u32>, keys_out: Out<u32>,
        values_out: Out<u32>,
    ) => sort_shape(n);
    /// Tells of keys that are not below `limit`.
    check_below(
        n: u32, keys: In<u32>, limit: u32, fault: Out<u32>,
    ) => items(n);
    /// `ends[g]` = how many of the rising keys are at most g, for g below `groups`.
    bounds_of(
        groups: u32, n: u32, keys: In<u32>, ends: Out<u32>,
    ) => items(groups);
    /// `counts[g] = ends[g]` less the end before: numbers of groups.
    counts_of(
        groups: u32, ends: In<u32>, counts: Out<u64>,
    ) => items(groups);
    /// `y[i] = x[at[i]]`: numbers of 32 bits.
    take_words(
        n: u32, x: In<u32>, limit: u32, at: In<u32>, y: Out<u32>, fault: Out<u32>,
    ) => items(n);
    /// `y[i] = x[at[i]]`: ids.
    take_ids(
        n: u32, x: In<i64>, limit: u32, at: In<u32>, y: Out<i64>, fault: Out<u32>,
    ) => items(n);
    /// `y[i] = x[at[i]]`: bytes.
    take_bytes(
        n: u32, x: In<u8>, limit: u32, at: In<u32>, y: Out<u8>, fault: Out<u32>,
    ) => items(n);
    /// `y[i] = value`.
    fill_words(
        value: u32, n: u64, y: Out<u32>,
    ) => Shape::blocks(n.div_ceil(256).min(MOST_BLOCKS), 256);
}
