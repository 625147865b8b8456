//! The input side of a lookup: which rows a batch needs, grouped by the rank that owns them.

use crate::idset::{IdSet, pays};
use crate::real::Real;
use crate::simd::{Kernel, Simd};

/// An id that no row has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("id {id} at position {position} is not a row of a table of {rows} rows")]
pub struct IdOutOfRange {
    /// The id.
    pub id: i64,
    /// Where it stands in the concatenated features.
    pub position: usize,
    /// How many rows all owners hold.
    pub rows: usize,
}

/// What [`unique_by_owner`] and [`bucketize_by_owner`] find, and their workspace, which grows once.
#[derive(Debug, Default)]
pub struct Unique {
    /// The rows to ask for, grouped by owner: ascending, or in order of occurrence.
    pub ids: Vec<i64>,
    /// How many of them each owner holds.
    pub counts: Vec<usize>,
    /// For each position of the concatenated features, where its id stands in `ids`.
    pub inverse: Vec<u32>,
    set: IdSet,
    sorted: Vec<(i64, u32)>,
    next: Vec<usize>,
}

impl Unique {
    /// An empty result.
    pub fn new() -> Self {
        Self::default()
    }
}

fn total_rows(rows_per_owner: usize, owners: usize) -> usize {
    assert!(rows_per_owner > 0 && owners > 0, "{owners} owners of {rows_per_owner} rows hold no row");
    rows_per_owner.saturating_mul(owners)
}

/// The distinct ids of `features` (concatenated in order), ascending and so grouped by owner, where row `id` lies
/// at rank `id / rows_per_owner`.
pub fn unique_by_owner(
    features: &[&[i64]],
    rows_per_owner: usize,
    owners: usize,
    out: &mut Unique,
) -> Result<(), IdOutOfRange> {
    let rows = total_rows(rows_per_owner, owners);
    out.ids.clear();
    out.inverse.clear();
    out.inverse.resize(features.iter().map(|f| f.len()).sum(), 0);
    if pays(rows, out.inverse.len()) {
        let found = f32::dispatch(ByBitmap { features, rows, out });
        out.set.clear();
        found?;
    } else {
        by_sorting(features, rows, out)?;
    }
    count_by_owner(rows_per_owner, owners, out);
    Ok(())
}

/// Of ascending ids how many each owner holds.
fn count_by_owner(rows_per_owner: usize, owners: usize, out: &mut Unique) {
    out.counts.clear();
    let mut start = 0;
    for owner in 1..=owners {
        let limit = rows_per_owner.saturating_mul(owner);
        let end = start + out.ids[start..].partition_point(|id| (*id as usize) < limit);
        out.counts.push(end - start);
        start = end;
    }
}

struct ByBitmap<'a> {
    features: &'a [&'a [i64]],
    rows: usize,
    out: &'a mut Unique,
}

impl Kernel<f32> for ByBitmap<'_> {
    type Output = Result<(), IdOutOfRange>;

    #[inline(always)]
    fn run<S: Simd<T = f32>>(self, _s: S) -> Self::Output {
        let Unique { ids, inverse, set, .. } = self.out;
        set.reserve(self.rows);
        let mut position = 0;
        for feature in self.features {
            for id in *feature {
                if *id as u64 >= self.rows as u64 {
                    return Err(IdOutOfRange { id: *id, position, rows: self.rows });
                }
                set.insert(*id as usize);
                position += 1;
            }
        }
        set.number(|id| ids.push(id as i64));
        let mut inverse = inverse.iter_mut();
        for feature in self.features {
            for (id, at) in feature.iter().zip(&mut inverse) {
                *at = set.rank(*id as usize);
            }
        }
        Ok(())
    }
}

/// For tables so large that a bitmap would cost more than the batch.
fn by_sorting(features: &[&[i64]], rows: usize, out: &mut Unique) -> Result<(), IdOutOfRange> {
    sort(features, rows, out)?;
    for (id, position) in &out.sorted {
        if out.ids.last() != Some(id) {
            out.ids.push(*id);
        }
        out.inverse[*position as usize] = (out.ids.len() - 1) as u32;
    }
    Ok(())
}

/// Ids with their positions, ascending.
fn sort(features: &[&[i64]], rows: usize, out: &mut Unique) -> Result<(), IdOutOfRange> {
    out.sorted.clear();
    for (position, id) in features.iter().flat_map(|f| f.iter()).enumerate() {
        if *id as u64 >= rows as u64 {
            return Err(IdOutOfRange { id: *id, position, rows });
        }
        out.sorted.push((*id, position as u32));
    }
    out.sorted.sort_unstable();
    Ok(())
}

/// [`unique_by_owner`] without removing duplicates: every occurrence is an entry, ascending by id, those of one id in order
/// of occurrence.
pub fn occurrences_by_owner(
    features: &[&[i64]],
    rows_per_owner: usize,
    owners: usize,
    out: &mut Unique,
) -> Result<(), IdOutOfRange> {
    let rows = total_rows(rows_per_owner, owners);
    sort(features, rows, out)?;
    out.ids.clear();
    out.inverse.clear();
    out.inverse.resize(out.sorted.len(), 0);
    for (at, (id, position)) in (0..).zip(&out.sorted) {
        out.ids.push(*id);
        out.inverse[*position as usize] = at;
    }
    count_by_owner(rows_per_owner, owners, out);
    Ok(())
}

/// [`unique_by_owner`] without removing duplicates: every occurrence is an entry, grouped by owner, in order of
/// occurrence for each.
pub fn bucketize_by_owner(
    features: &[&[i64]],
    rows_per_owner: usize,
    owners: usize,
    out: &mut Unique,
) -> Result<(), IdOutOfRange> {
    let rows = total_rows(rows_per_owner, owners);
    let all = || features.iter().flat_map(|f| f.iter());
    out.counts.clear();
    out.counts.resize(owners, 0);
    out.inverse.clear();
    for (position, id) in all().enumerate() {
        if *id as u64 >= rows as u64 {
            return Err(IdOutOfRange { id: *id, position, rows });
        }
        let owner = *id as u64 / rows_per_owner as u64;
        out.counts[owner as usize] += 1;
        // The owner for now, its entry's place below.
        out.inverse.push(owner as u32);
    }
    out.next.clear();
    let mut start = 0;
    for count in &out.counts {
        out.next.push(start);
        start += count;
    }
    out.ids.clear();
    out.ids.resize(start, 0);
    for (id, at) in all().zip(&mut out.inverse) {
        let place = &mut out.next[*at as usize];
        out.ids[*place] = *id;
        *at = *place as u32;
        *place += 1;
    }
    Ok(())
}

/// In which window each entry is used first and last (two bytes an entry), where the first `boundaries[0]`
/// positions are of window 0, those up to `boundaries[1]` of window 1, and so on.
pub fn uses_of_entries(inverse: &[u32], boundaries: &[usize], entries: usize, uses: &mut [u8]) {
    assert!(
        uses.len() == 2 * entries && boundaries.last().copied().unwrap_or(0) == inverse.len(),
        "uses of {entries} entries in {} positions",
        inverse.len()
    );
    for pair in uses.chunks_exact_mut(2) {
        pair.copy_from_slice(&[u8::MAX, 0]);
    }
    let mut start = 0;
    for (window, end) in boundaries.iter().enumerate() {
        for entry in &inverse[start..*end] {
            let pair = &mut uses[2 * *entry as usize..][..2];
            pair[0] = pair[0].min(window as u8);
            pair[1] = window as u8;
        }
        start = *end;
    }
}
