//! Rows by reuse distance, and moving those of one class.
//!
//! The owner of rows compares the rows of a batch with those of the batches around it. Membership is one bit a row of
//! the shard ([`IdSet`]): measured against sorting (benchmark `memory`), it costs a few nanoseconds an entry;
//! for few entries of more than 2^25 rows the lists are sorted. Everything here is deterministic: entries keep their
//! order within a class.

use crate::idset::{IdSet, pays};
use crate::mat::{Mat, MatMut};
use crate::real::Real;
use crate::rows::{Fetch, assert_rows, copy_rows};

/// The rows of a batch as an owner knows them: an entry each, with the windows of its first and last use (two
/// bytes an entry) where there are several.
#[derive(Debug, Clone, Copy)]
pub struct Uses<'a> {
    /// Local rows.
    pub rows: &'a [u32],
    /// First and last window of each; `None`: always 0.
    pub uses: Option<&'a [u8]>,
}

impl Uses<'_> {
    fn first(&self, entry: usize) -> u8 {
        self.uses.map_or(0, |u| u[2 * entry])
    }
    fn last(&self, entry: usize) -> u8 {
        self.uses.map_or(0, |u| u[2 * entry + 1])
    }
}

/// A value for each row of a set: the greatest or the smallest that was given.
#[derive(Debug, Default)]
struct RowValues {
    set: IdSet,
    values: Vec<u8>,
    /// For shards too large for a bitmap: rows and values, sorted.
    sorted: Vec<(u32, u8)>,
    large: bool,
}

impl RowValues {
    /// The greatest (smallest) value of each row among the entries.
    fn fill(&mut self, uses: &Uses<'_>, shard: usize, greatest: bool) {
        let value = |i: usize| if greatest { uses.last(i) } else { uses.first(i) };
        self.large = !pays(shard, uses.rows.len());
        if self.large {
            self.sorted.clear();
            self.sorted.extend(uses.rows.iter().enumerate().map(|(i, row)| (*row, value(i))));
            // The value that counts stands first among those of its row.
            self.sorted.sort_unstable_by_key(|(row, v)| (*row, if greatest { u8::MAX - v } else { *v }));
            self.sorted.dedup_by_key(|(row, _)| *row);
            return;
        }
        self.set.reserve(shard);
        for row in uses.rows {
            self.set.insert(*row as usize);
        }
        if uses.uses.is_none() {
            return;
        }
        let mut n = 0;
        self.set.number(|_| n += 1);
        self.values.clear();
        self.values.resize(n, if greatest { 0 } else { u8::MAX });
        for (i, row) in uses.rows.iter().enumerate() {
            let at = &mut self.values[self.set.rank(*row as usize) as usize];
            *at = if greatest { value(i).max(*at) } else { value(i).min(*at) };
        }
    }

    /// The value of a row, if it is there.
    #[inline]
    fn get(&self, row: u32, valued: bool) -> Option<u8> {
        if self.large {
            let at = self.sorted.binary_search_by_key(&row, |(r, _)| *r).ok()?;
            return Some(self.sorted[at].1);
        }
        if !self.set.contains(row as usize) {
            return None;
        }
        Some(if valued { self.values[self.set.rank(row as usize) as usize] } else { 0 })
    }

    fn clear(&mut self) {
        if !self.large {
            self.set.clear();
        }
    }
}

/// Workspace of [`forward`] and [`backward`], which grows once.
#[derive(Debug, Default)]
pub struct Partition {
    other: RowValues,
    own: RowValues,
    /// Distance of each entry, 0 while unknown.
    distance: Vec<u32>,
}

/// Reuse distances become classes through a table: `classes[window * (lookahead + 1) + distance - 1]`, the last
/// of each window for everything farther.
#[derive(Debug, Clone, Copy)]
pub struct Classes<'a> {
    /// Greatest distance that is told apart.
    pub lookahead: u32,
    /// Windows of a batch.
    pub windows: u32,
    /// Class of each (window, distance).
    pub table: &'a [u8],
}

impl Classes<'_> {
    #[inline]
    fn of(&self, window: u8, distance: u32) -> u8 {
        let far = self.lookahead;
        let d = if distance == 0 || distance > far { far } else { distance - 1 };
        self.table[(u32::from(window) * (far + 1) + d) as usize]
    }
}

/// Class of each entry's lookup: by its own first use, and the last use of its row in `before` (nearest batch first).
/// All rows are below `shard`.
pub fn forward(
    own: Uses<'_>,
    before: &[Uses<'_>],
    shard: usize,
    classes: Classes<'_>,
    work: &mut Partition,
    out: &mut [u8],
) {
    check(&own, before, shard, out.len());
    let Partition { other, distance, .. } = work;
    distance.clear();
    distance.resize(own.rows.len(), 0);
    for (batches, uses) in (1u32..).zip(before) {
        other.fill(uses, shard, true);
        for (i, row) in own.rows.iter().enumerate() {
            if distance[i] == 0
                && let Some(last) = other.get(*row, uses.uses.is_some())
            {
                distance[i] = batches * classes.windows + u32::from(own.first(i)) - u32::from(last);
            }
        }
        other.clear();
    }
    for (i, class) in out.iter_mut().enumerate() {
        *class = classes.of(own.first(i), distance[i]);
    }
}

/// Class of each entry's gradient: by the last use of its row in this batch by any rank, and the first use in `after`
/// (nearest batch first). `last`, if given, holds the last uses instead (for entries of one rank only).
pub fn backward(
    own: Uses<'_>,
    last: Option<&[u8]>,
    after: &[Uses<'_>],
    shard: usize,
    classes: Classes<'_>,
    work: &mut Partition,
    out: &mut [u8],
) {
    check(&own, after, shard, out.len());
    let Partition { other, own: rows, distance } = work;
    let valued = own.uses.is_some() && last.is_none();
    if valued {
        rows.fill(&own, shard, true);
    }
    let last_use = |i: usize, row: u32| match last {
        Some(last) => last[i],
        None if valued => rows.get(row, true).unwrap_or(0),
        None => 0,
    };
    distance.clear();
    distance.resize(own.rows.len(), 0);
    for (batches, uses) in (1u32..).zip(after) {
        other.fill(uses, shard, false);
        for (i, row) in own.rows.iter().enumerate() {
            if distance[i] == 0
                && let Some(first) = other.get(*row, uses.uses.is_some())
            {
                distance[i] = batches * classes.windows + u32::from(first) - u32::from(last_use(i, *row));
            }
        }
        other.clear();
    }
    for (i, (class, row)) in out.iter_mut().zip(own.rows).enumerate() {
        *class = classes.of(last_use(i, *row), distance[i]);
    }
    if valued {
        rows.clear();
    }
}

/// The last use of each entry's row by any entry, for some of the entries: what [`backward`] works with.
pub fn last_uses(
    all: Uses<'_>,
    some: std::ops::Range<usize>,
    shard: usize,
    work: &mut Partition,
    out: &mut Vec<u8>,
) {
    check(&all, &[], shard, all.rows.len());
    work.own.fill(&all, shard, true);
    out.clear();
    out.extend(all.rows[some].iter().map(|row| work.own.get(*row, all.uses.is_some()).unwrap_or(0)));
    work.own.clear();
}

fn check(own: &Uses<'_>, others: &[Uses<'_>], shard: usize, classes: usize) {
    assert!(classes == own.rows.len(), "{classes} classes for {} rows", own.rows.len());
    for uses in others.iter().chain([own]) {
        assert_rows(uses.rows.iter().copied(), shard);
        let fits = uses.uses.is_none_or(|u| u.len() == 2 * uses.rows.len());
        assert!(fits, "uses of other entries than the {} rows", uses.rows.len());
    }
}

/// For each of `n` classes the positions of its entries, in order, and how many of them each rank has. Entries are
/// grouped by rank, `counts` of each. Class c's results are `positions[c]` and `numbers[c * ranks..][..ranks]`.
pub fn positions(
    classes: &[u8],
    counts: &[u64],
    n: usize,
    positions: &mut Vec<Vec<u32>>,
    numbers: &mut Vec<u64>,
) {
    let total = counts.iter().sum::<u64>() as usize;
    assert!(classes.len() == total, "{} classes of {total} entries", classes.len());
    positions.resize_with(n.max(positions.len()), Vec::new);
    positions.iter_mut().for_each(Vec::clear);
    numbers.clear();
    numbers.resize(n * counts.len(), 0);
    let mut start = 0;
    for (rank, count) in counts.iter().enumerate() {
        let end = start + *count as usize;
        for (i, class) in (start..end).zip(&classes[start..end]) {
            let c = *class as usize;
            assert!(c < n, "class {c} of {n}");
            positions[c].push(i as u32);
            numbers[c * counts.len() + rank] += 1;
        }
        start = end;
    }
}

/// `y[i] = table[rows[at[i]]]`: a lookup of listed entries.
pub fn gather_at<T: Real>(table: Mat<T>, rows: &[u32], at: &[u32], y: MatMut<T>) {
    assert!(
        (y.rows(), y.cols()) == (at.len(), table.cols()),
        "{y:?} cannot hold {} rows of {table:?}",
        at.len()
    );
    copy_rows(at.len(), table, |i| rows[at[i] as usize], y, |i| i as u32, Fetch::Source);
}

/// `y[at[i]] = rows[i]`: rows that arrived by class take their places. `at` holds no position twice.
pub fn scatter<T: Real>(rows: Mat<T>, at: &[u32], y: MatMut<T>) {
    assert!(
        rows.rows() == at.len() && rows.cols() == y.cols(),
        "{rows:?} do not fit {} places in {y:?}",
        at.len()
    );
    // Places of a class lie close together: every fourth or more of a range, in order.
    let dense =
        at.is_sorted() && at.first().zip(at.last()).is_some_and(|(a, b)| ((b - a) / 4) as usize <= at.len());
    copy_rows(at.len(), rows, |i| i as u32, y, |i| at[i], if dense { Fetch::Source } else { Fetch::Target });
}
