//! Lists made by several kernels: scans, stable sorting, sets of ids, sums by group.
//!
//! Each function returns the calls to launch one after the other on one stream. Workspace is the caller's; what each needs
//! is said where it is passed.

use super::catalogue::segments::{self, most_long};
use super::catalogue::{Call, In, Out, Real, ids, sort};

/// Numbers that [`scan`] needs for the sums of tiles.
pub fn scan_room(n: u32) -> usize {
    u64::from(n).div_ceil(sort::SCAN_TILE) as usize
}

/// `out[i]` = the sum of the values before i, and in `total`, if there is one, that of all. `out` may be `values`;
/// `sums` has [`scan_room`] numbers.
pub fn scan(
    n: u32,
    values: In<u32>,
    out: Out<u32>,
    sums: Out<u32>,
    total: Out<u32>,
) -> impl Iterator<Item = Call> {
    let tiles = scan_room(n) as u32;
    [
        sort::scan_tiles(n, values, sums),
        sort::scan_top(tiles, sums, total),
        sort::scan_apply(n, values, sums.read(), out),
    ]
    .into_iter()
}

/// Workspace of [`sort_by`] for n items.
#[derive(Clone, Copy, Debug)]
pub struct Sorting {
    /// Twice n keys: what was sorted is in one of them.
    pub keys: [Out<u32>; 2],
    /// Twice n values.
    pub values: [Out<u32>; 2],
    /// [`Sorting::counts`] numbers.
    pub counts: Out<u32>,
    /// [`scan_room`] of the counts.
    pub sums: Out<u32>,
}

impl Sorting {
    /// Counts of digits for n items.
    pub fn counts(n: u32) -> u32 {
        256 * u64::from(n).div_ceil(sort::SORT_TILE) as u32
    }
}

/// What was sorted.
#[derive(Clone, Copy, Debug)]
pub struct Sorted {
    /// Rising keys.
    pub keys: In<u32>,
    /// The value of each.
    pub values: In<u32>,
    /// Which of the workspace's two pairs that is.
    pub half: usize,
}

/// Sorts by keys below `2^bits`, those of one key in the order that they have. Values may be none: then they are the items'
/// numbers. Neither keys nor values lie in the half of the workspace that is written first, which is number `half`.
pub fn sort_by(
    n: u32,
    bits: u32,
    keys: In<u32>,
    values: In<u32>,
    work: &Sorting,
    mut half: usize,
) -> (Vec<Call>, Sorted) {
    let (mut calls, mut sorted) = (vec![], Sorted { keys, values, half });
    let tiles = Sorting::counts(n);
    for pass in 0..bits.div_ceil(8).max(1) {
        let shift = 8 * pass;
        calls.push(sort::sort_count(n, sorted.keys, shift, work.counts));
        calls.extend(scan(tiles, work.counts.read(), work.counts, work.sums, Out::NULL));
        let (keys, values) = (work.keys[half], work.values[half]);
        let offsets = work.counts.read();
        calls.push(sort::sort_place(n, sorted.keys, sorted.values, shift, offsets, keys, values));
        sorted = Sorted { keys: keys.read(), values: values.read(), half };
        half = 1 - half;
    }
    (calls, sorted)
}

/// Bits of numbers below n.
pub const fn bits_below(n: u64) -> u32 {
    64 - n.saturating_sub(1).leading_zeros()
}

/// Rows that a group of a [`Bitmap`] has.
pub const GROUP: u64 = 256;

/// A set of ids below `limit`, and what it needs to number them.
#[derive(Clone, Copy, Debug)]
pub struct Bitmap {
    /// What could be members.
    pub limit: u64,
    /// [`Bitmap::words`] zeros, aligned to 16 bytes.
    pub bits: Out<u32>,
    /// [`Bitmap::groups`] numbers.
    pub before: Out<u32>,
    /// [`Bitmap::tiles`] numbers.
    pub sums: Out<u32>,
}

impl Bitmap {
    /// Groups of a set of numbers below `limit`.
    pub const fn groups(limit: u64) -> u32 {
        limit.div_ceil(GROUP) as u32
    }
    /// Words of a set of numbers below `limit`.
    pub const fn words(limit: u64) -> usize {
        8 * Self::groups(limit) as usize
    }
    /// Blocks that number the members.
    pub const fn tiles(limit: u64) -> u32 {
        Self::groups(limit).div_ceil(256)
    }

    /// Finds how many members each block of groups has, those before it, and in `total` all.
    fn count(&self, total: Out<u32>) -> [Call; 2] {
        [
            ids::bitmap_tiles(Self::groups(self.limit), self.bits.read(), self.sums),
            sort::scan_top(Self::tiles(self.limit), self.sums, total),
        ]
    }

    /// Makes it the set of n ids: the members, ascending, of which there is room for as many, their number, and where each
    /// id stands among them. It is empty again afterwards.
    pub fn unique_ids(
        &self,
        n: u32,
        list: In<i64>,
        members: Out<i64>,
        inverse: Out<u32>,
        total: Out<u32>,
        fault: Out<u32>,
    ) -> Vec<Call> {
        let mut calls = self.of_ids(n, list, members, inverse, total, fault);
        calls.push(ids::bitmap_remove_ids(n, list, self.limit, self.bits));
        calls
    }

    /// The same without emptying it, for whoever needs it once.
    pub fn of_ids(
        &self,
        n: u32,
        list: In<i64>,
        members: Out<i64>,
        inverse: Out<u32>,
        total: Out<u32>,
        fault: Out<u32>,
    ) -> Vec<Call> {
        let (groups, bits, sums) = (Self::groups(self.limit), self.bits.read(), self.sums.read());
        let mut calls = vec![ids::bitmap_add_ids(n, list, self.limit, self.bits, fault)];
        calls.extend(self.count(total));
        calls.push(ids::bitmap_number_ids(groups, bits, sums, self.before, members, n, fault));
        calls.push(ids::bitmap_rank_ids(n, list, self.limit, bits, self.before.read(), inverse));
        calls
    }

    /// The same of n rows, each of which becomes an id.
    pub fn ids_of_rows(
        &self,
        n: u32,
        list: In<u32>,
        members: Out<i64>,
        inverse: Out<u32>,
        fault: Out<u32>,
    ) -> [Call; 5] {
        let (groups, bits, sums) = (Self::groups(self.limit), self.bits.read(), self.sums.read());
        let [tiles, top] = self.count(Out::NULL);
        [
            ids::bitmap_add_rows(n, list, self.limit, self.bits, fault),
            tiles,
            top,
            ids::bitmap_number_ids(groups, bits, sums, self.before, members, n, fault),
            ids::bitmap_rank_rows(n, list, self.limit, bits, self.before.read(), inverse),
        ]
    }

    /// Makes it the set of n rows, numbered, with members if asked for; it is emptied by
    /// [`bitmap_remove_rows`](ids::bitmap_remove_rows).
    pub fn of_rows(
        &self,
        n: u32,
        list: In<u32>,
        members: Out<u32>,
        total: Out<u32>,
        fault: Out<u32>,
    ) -> Vec<Call> {
        let (groups, bits, sums) = (Self::groups(self.limit), self.bits.read(), self.sums.read());
        let mut calls = vec![ids::bitmap_add_rows(n, list, self.limit, self.bits, fault)];
        calls.extend(self.count(total));
        calls.push(ids::bitmap_number_rows(groups, bits, sums, self.before, members, n, fault));
        calls
    }
}

/// Positions sorted by group, and room for the list of long groups.
#[derive(Clone, Copy, Debug)]
pub struct Segments {
    /// How many positions there are.
    pub n: u32,
    /// How many groups there are.
    pub groups: u32,
    /// Positions, those of the first group first.
    pub positions: In<u32>,
    /// Where each group's end.
    pub ends: In<u32>,
    /// As many numbers as there are groups.
    pub long: Out<u32>,
    /// One number, 0 when [`segment_sum`], [`received_sum`] or [`node_sum`] begins.
    pub count: Out<u32>,
}

impl Segments {
    /// Lists the long groups, if there can be one.
    fn list_long(&self) -> Call {
        let groups = if most_long(self.n, 1) > 0 { self.groups } else { 0 };
        segments::long_groups(groups, self.ends, segments::LONGEST, self.long, self.count)
    }
}

/// Activations' gradients by position, or by bag of positions.
#[derive(Clone, Copy, Debug)]
pub struct Gradients {
    /// Numbers.
    pub x: In<Real>,
    /// From row to row.
    pub stride: u64,
    /// The bag of each position, if there are bags.
    pub bags: In<u32>,
    /// Where each bag begins.
    pub offsets: In<u32>,
    /// Whether a bag's gradient is divided by its length.
    pub mean: bool,
}

/// `y[g]` = (or += with `add`) the sum of the rows of group g in position order.
pub fn segment_sum(
    s: &Segments,
    cols: u32,
    x: &Gradients,
    y: Out<f32>,
    y_stride: u64,
    add: bool,
) -> [Call; 3] {
    let Segments { groups, positions, ends, long, count, .. } = *s;
    let (add, mean, longest) = (u32::from(add), u32::from(x.mean), segments::LONGEST);
    let Gradients { x, stride, bags, offsets, .. } = *x;
    [
        s.list_long(),
        segments::segment_sum(
            groups, cols, x, stride, bags, offsets, mean, positions, ends, y, y_stride, add, longest,
        ),
        segments::segment_sum_long(
            cols,
            x,
            stride,
            bags,
            offsets,
            mean,
            positions,
            ends,
            y,
            y_stride,
            add,
            long.read(),
            count.read(),
        )
        .at_most(most_long(s.n, cols)),
    ]
}

/// Who sends gradients.
#[derive(Clone, Copy, Debug)]
pub struct Senders {
    /// Where each source's positions end.
    pub ends: In<u32>,
    /// How many sources there are.
    pub count: u32,
    /// So many one after the other are a node's.
    pub node: u32,
    /// Whether each node's sum is rounded to bf16 before it is added, as a relay would send it.
    pub round: bool,
}

/// `y[g]` = the sum of received gradients of group g: within each source in position order, then over the sources of a
/// node, then over nodes.
pub fn received_sum(
    s: &Segments,
    cols: u32,
    (x, stride): (In<Real>, u64),
    senders: Senders,
    y: Out<f32>,
    y_stride: u64,
) -> [Call; 3] {
    let Segments { groups, positions, ends, long, count, .. } = *s;
    let Senders { ends: sources, count: source_count, node, round } = senders;
    let (longest, round) = (segments::LONGEST, u32::from(round));
    [
        s.list_long(),
        segments::received_sum(
            groups,
            cols,
            x,
            stride,
            positions,
            ends,
            sources,
            source_count,
            node,
            round,
            y,
            y_stride,
            longest,
        ),
        segments::received_sum_long(
            cols,
            x,
            stride,
            positions,
            ends,
            sources,
            source_count,
            node,
            round,
            y,
            y_stride,
            long.read(),
            count.read(),
        )
        .at_most(most_long(s.n, cols)),
    ]
}

/// The same of `sources.1` sources of one node, whose positions end at `sources.0`: sums that travel on as the gradients
/// came.
pub fn node_sum(
    s: &Segments,
    cols: u32,
    (x, stride): (In<Real>, u64),
    sources: (In<u32>, u32),
    y: Out<Real>,
    y_stride: u64,
) -> [Call; 3] {
    let Segments { groups, positions, ends, long, count, .. } = *s;
    let longest = segments::LONGEST;
    let (sources, source_count) = sources;
    [
        s.list_long(),
        segments::node_sum(
            groups,
            cols,
            x,
            stride,
            positions,
            ends,
            sources,
            source_count,
            y,
            y_stride,
            longest,
        ),
        segments::node_sum_long(
            cols,
            x,
            stride,
            positions,
            ends,
            sources,
            source_count,
            y,
            y_stride,
            long.read(),
            count.read(),
        )
        .at_most(most_long(s.n, cols)),
    ]
}
