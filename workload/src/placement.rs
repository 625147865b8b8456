//! Where the rows of a row-wise table live.
//!
//! A placement is a bijection from rows to *slots*, of which each rank owns a block of equal length (the last ones may
//! be shorter). Who asks for a row turns its id into a slot; owner and local row follow from the slot alone, so nobody
//! else needs to know the placement. Ranges have the row's number as its slot. Hashed tables permute all rows. Planned
//! tables deal their hottest rows to ranks one by one and hash the rest: a hot row takes the next slot of its rank's
//! block, and the rows that are hashed there move to the slots that hot rows left.
//!
//! Compiler, verifier and executor share this file, so that they mean the same by a placement.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::ids::RowLaw;
use crate::permute::{Permutation, mix};

/// How rows are spread over the ranks that share a table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema))]
#[cfg_attr(feature = "schema", serde(rename_all = "snake_case", deny_unknown_fields))]
pub enum RowPlacement {
    /// Rank r owns rows `[r * ceil(rows / W), (r + 1) * ceil(rows / W))`.
    #[default]
    Range,
    /// The same blocks, of rows in the order of a fixed permutation.
    Hashed,
    /// Hashed, but for hot rows that are dealt out.
    Planned {
        /// Per rank the hot rows that it owns, rising.
        hot: Vec<Vec<u64>>,
    },
}

impl RowPlacement {
    /// Whether slots are row numbers.
    pub fn is_range(&self) -> bool {
        *self == Self::Range
    }

    /// In the language's words.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Range => "range",
            Self::Hashed => "hashed",
            Self::Planned { .. } => "planned",
        }
    }
}

/// Hot rows that a table may have.
pub const MOST_HOT: usize = 4096;

/// Why hot rows cannot be placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// A list for each rank, no more and no less.
    #[error("hot rows of {lists} ranks, there are {ranks}")]
    Ranks {
        /// Lists.
        lists: usize,
        /// Ranks.
        ranks: u64,
    },
    /// More than [`MOST_HOT`].
    #[error("{0} hot rows, the most is {MOST_HOT}")]
    Many(usize),
    /// A row that the table lacks.
    #[error("hot row {row}, there are {rows}")]
    Beyond {
        /// The row.
        row: u64,
        /// Rows of the table.
        rows: u64,
    },
    /// The same row twice, or a list that does not rise.
    #[error("hot row {0} is there twice, or out of order")]
    Twice(u64),
    /// More rows than the rank's block holds.
    #[error("{hot} hot rows on rank {rank}, which owns {rows}")]
    Crowded {
        /// The rank.
        rank: usize,
        /// Its hot rows.
        hot: usize,
        /// Its rows.
        rows: u64,
    },
}

/// Slots that each rank owns; the last ranks may own fewer.
pub fn rows_per_rank(rows: u64, ranks: u64) -> u64 {
    rows.div_ceil(ranks.max(1)).max(1)
}

/// The slots of a rank, from the first up to, but without, the last.
pub fn slots_of(rows: u64, rank: u64, ranks: u64) -> std::ops::Range<u64> {
    let each = rows_per_rank(rows, ranks);
    let end = |rank: u64| rank.saturating_mul(each).min(rows);
    end(rank)..end(rank.saturating_add(1))
}

/// Where the rows of one table are: rows to slots, and back.
#[derive(Debug, Clone)]
pub struct RowMap {
    /// `None`: slots are row numbers.
    permutation: Option<Permutation>,
    /// The slots of planned rows, and of those that they displace, and their rows by slot.
    moved: Option<(Moved, Moved)>,
}

/// The hot rows of a table, by row: which of them each is.
#[derive(Debug, Clone)]
pub struct HotRows {
    numbers: Moved,
}

impl HotRows {
    /// Of some; `None` of none.
    pub fn new(rows: &[u64]) -> Option<Self> {
        let numbers = rows.iter().enumerate().map(|(n, row)| (*row, n as u64));
        (!rows.is_empty()).then(|| Self { numbers: Moved::new(numbers) })
    }

    /// Which of them a row is; `None`: none.
    #[inline]
    pub fn number(&self, row: u64) -> Option<u64> {
        self.numbers.get(row)
    }

    /// For a device: rows with their numbers, as [`RowWords::slots`] has rows and slots.
    pub fn words(&self) -> Vec<u64> {
        self.numbers.words()
    }
}

/// A placement as numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RowWords {
    /// See [`Permutation::words`].
    pub permutation: [u64; 10],
    /// Rows that have other slots than their own, each followed by its slot: open addressing in a power of two of places
    /// from the hash (SplitMix64's finaliser) on, `u64::MAX` where nobody is. Empty if there are none.
    pub slots: Vec<u64>,
    /// Those slots and their rows, likewise.
    pub rows: Vec<u64>,
}

/// The random stream of placements; no other stream permutes as it does.
const STREAM: u32 = 0xF500_0002;

impl RowMap {
    /// Of a table of `rows` rows on `ranks` ranks.
    pub fn new(placement: &RowPlacement, rows: u64, ranks: u64) -> Result<Self, PlacementError> {
        let hot = match placement {
            RowPlacement::Range => return Ok(Self { permutation: None, moved: None }),
            RowPlacement::Hashed => &[][..],
            RowPlacement::Planned { hot } => {
                check(hot, rows, ranks)?;
                hot
            }
        };
        let permutation = Permutation::new(rows, 0, STREAM);
        let moved = (!hot.is_empty()).then(|| moved(&permutation, hot, rows, ranks));
        Ok(Self { permutation: Some(permutation), moved })
    }

    /// Whether slots are row numbers.
    pub fn is_range(&self) -> bool {
        self.permutation.is_none()
    }

    /// The slot of a row, which must be one of the table's.
    pub fn slot(&self, row: u64) -> u64 {
        let Some(permutation) = &self.permutation else { return row };
        let moved = self.moved.as_ref().and_then(|(slots, _)| slots.get(row));
        moved.unwrap_or_else(|| permutation.apply(row))
    }

    /// The row in a slot, which must be one of the table's.
    pub fn row(&self, slot: u64) -> u64 {
        let Some(permutation) = &self.permutation else { return slot };
        let moved = self.moved.as_ref().and_then(|(_, rows)| rows.get(slot));
        moved.unwrap_or_else(|| permutation.invert(slot))
    }

    /// The placement as numbers, for a device to look rows up by; none where slots are row numbers.
    pub fn words(&self) -> Option<RowWords> {
        let permutation = self.permutation.as_ref()?.words();
        let (slots, rows) = match &self.moved {
            Some((slots, rows)) => (slots.words(), rows.words()),
            None => (vec![], vec![]),
        };
        Some(RowWords { permutation, slots, rows })
    }

    /// Appends the slots of ids; the first that is none of the table's `rows` is given back.
    pub fn slots(&self, ids: &[i64], rows: u64, out: &mut Vec<i64>) -> Result<(), i64> {
        match (&self.permutation, &self.moved) {
            (None, _) => append(ids, rows, out, |row| row),
            (Some(permutation), None) => append(ids, rows, out, |row| permutation.apply(row)),
            (Some(permutation), Some((slots, _))) => {
                append(ids, rows, out, |row| slots.get(row).unwrap_or_else(|| permutation.apply(row)))
            }
        }
    }
}

/// One loop a placement, so that ids do not ask for it one by one.
fn append(ids: &[i64], rows: u64, out: &mut Vec<i64>, slot: impl Fn(u64) -> u64) -> Result<(), i64> {
    out.reserve(ids.len());
    for id in ids {
        if *id as u64 >= rows {
            return Err(*id);
        }
        out.push(slot(*id as u64) as i64);
    }
    Ok(())
}

/// Whether each rank can own its hot rows.
fn check(hot: &[Vec<u64>], rows: u64, ranks: u64) -> Result<(), PlacementError> {
    if hot.len() as u64 != ranks {
        return Err(PlacementError::Ranks { lists: hot.len(), ranks });
    }
    let count = hot.iter().map(Vec::len).sum();
    if count > MOST_HOT {
        return Err(PlacementError::Many(count));
    }
    for (rank, list) in hot.iter().enumerate() {
        if let Some(row) = list.iter().find(|row| **row >= rows) {
            return Err(PlacementError::Beyond { row: *row, rows });
        }
        if let Some(pair) = list.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(PlacementError::Twice(pair[1]));
        }
        let own = slots_of(rows, rank as u64, ranks);
        if list.len() as u64 > own.end - own.start {
            return Err(PlacementError::Crowded { rank, hot: list.len(), rows: own.end - own.start });
        }
    }
    let mut all: Vec<u64> = hot.iter().flatten().copied().collect();
    all.sort_unstable();
    match all.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(PlacementError::Twice(pair[0])),
        None => Ok(()),
    }
}

/// Slots of the rows that are not where they are hashed to, and the rows of those slots.
fn moved(permutation: &Permutation, hot: &[Vec<u64>], rows: u64, ranks: u64) -> (Moved, Moved) {
    let targets = hot.iter().enumerate().flat_map(|(rank, list)| {
        let first = slots_of(rows, rank as u64, ranks).start;
        (first..).zip(list).map(|(slot, row)| (*row, slot))
    });
    let mut pairs: Vec<(u64, u64)> = targets.collect();
    let sorted = |mut list: Vec<u64>| {
        list.sort_unstable();
        list
    };
    let taken = sorted(pairs.iter().map(|pair| pair.1).collect());
    let dealt = sorted(pairs.iter().map(|pair| pair.0).collect());
    let outside = |list: &[u64], n: &u64| list.binary_search(n).is_err();
    // As many slots are left as rows are displaced: both are those that hot rows hash to or take, less what they share.
    let left =
        sorted(dealt.iter().map(|row| permutation.apply(*row)).filter(|n| outside(&taken, n)).collect());
    // In the order of their slots: in their own, the popular ones would all move to the first rank.
    let displaced: Vec<u64> =
        taken.iter().map(|slot| permutation.invert(*slot)).filter(|n| outside(&dealt, n)).collect();
    pairs.extend(displaced.into_iter().zip(left));
    (Moved::new(pairs.iter().copied()), Moved::new(pairs.iter().map(|(row, slot)| (*slot, *row))))
}

/// A small map of numbers: open addressing, at most a quarter full.
#[derive(Debug, Clone)]
struct Moved {
    places: Vec<(u64, u64)>,
}

/// No row has this number.
const NOBODY: u64 = u64::MAX;

impl Moved {
    fn new(pairs: impl ExactSizeIterator<Item = (u64, u64)>) -> Self {
        let mut places = vec![(NOBODY, 0); (4 * pairs.len()).next_power_of_two()];
        let mask = places.len() - 1;
        for pair in pairs {
            let mut at = mix(pair.0) as usize & mask;
            while places[at].0 != NOBODY {
                at = (at + 1) & mask;
            }
            places[at] = pair;
        }
        Self { places }
    }

    fn words(&self) -> Vec<u64> {
        self.places.iter().flat_map(|(key, value)| [*key, *value]).collect()
    }

    #[inline]
    fn get(&self, key: u64) -> Option<u64> {
        let mask = self.places.len() - 1;
        let mut at = mix(key) as usize & mask;
        loop {
            match self.places[at] {
                (found, value) if found == key => return Some(value),
                (NOBODY, _) => return None,
                _ => at = (at + 1) & mask,
            }
        }
    }
}

/// Deals hot rows to ranks: the most requested first, each to the rank that is asked for the least so far and has room.
/// `hot` are rows with their expected requests, `rest` the requests for all other rows, which are hashed. More than
/// [`MOST_HOT`] rows are left hashed.
pub fn deal(hot: &[(u64, f64)], rest: f64, rows: u64, ranks: u64) -> RowPlacement {
    let mut order = hot.to_vec();
    order.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    order.dedup_by_key(|row| row.0);
    let left: f64 = order.iter().skip(MOST_HOT).map(|row| row.1).sum();
    order.truncate(MOST_HOT);
    let mut lists: Vec<Vec<u64>> = vec![Vec::new(); ranks.max(1) as usize];
    let own: Vec<u64> = (0..lists.len() as u64)
        .map(|rank| slots_of(rows, rank, ranks))
        .map(|slots| slots.end - slots.start)
        .collect();
    // Ranks with room by their load: of numbers that are not negative, bits are in the order of values.
    let load = |own: u64| (rest + left).max(0.0) * own as f64 / rows.max(1) as f64;
    let open = own.iter().enumerate().filter(|(_, own)| **own > 0);
    let mut least: BinaryHeap<Reverse<(u64, usize)>> =
        open.map(|(rank, own)| Reverse((load(*own).to_bits(), rank))).collect();
    for (row, requests) in order {
        let Some(Reverse((load, rank))) = least.pop() else { break };
        lists[rank].push(row);
        if (lists[rank].len() as u64) < own[rank] {
            least.push(Reverse(((f64::from_bits(load) + requests.max(0.0)).to_bits(), rank)));
        }
    }
    for list in &mut lists {
        list.sort_unstable();
    }
    RowPlacement::Planned { hot: lists }
}

/// Rows, from the most popular on, whose owners are looked up one by one.
const COUNTED: u64 = 4 * MOST_HOT as u64;

/// Expected requests to each owner of a table whose rows are numbered by popularity. `requests` are those for one row of
/// each of the law's bins. Rows far down are taken in lots: of a lot by its blocks, or evenly where rows are hashed.
pub fn owner_loads(map: &RowMap, law: &RowLaw, rows: u64, ranks: u64, requests: &[f64]) -> Vec<f64> {
    let mut loads = vec![0.0; ranks.max(1) as usize];
    let each = rows_per_rank(rows, ranks);
    let mut first = 0u64;
    let mut spread = 0.0;
    for (bin, requests) in law.bins().iter().zip(requests) {
        let end = (first + bin.rows as u64).min(rows);
        if map.is_range() {
            let mut at = first;
            while at < end {
                let rank = at / each;
                let until = end.min((rank + 1) * each);
                loads[rank as usize] += (until - at) as f64 * requests;
                at = until;
            }
        } else {
            let counted = end.min(COUNTED).max(first);
            for row in first..counted {
                loads[(map.slot(row) / each) as usize] += requests;
            }
            spread += (end - counted) as f64 * requests;
        }
        first = end;
    }
    for (rank, load) in (0..).zip(&mut loads) {
        let slots = slots_of(rows, rank, ranks);
        *load += spread * (slots.end - slots.start) as f64 / rows.max(1) as f64;
    }
    loads
}

/// The greatest load over the mean; 1 of none.
pub fn busiest(loads: &[f64]) -> f64 {
    let sum: f64 = loads.iter().sum();
    let most = loads.iter().copied().fold(0.0, f64::max);
    if sum > 0.0 { most * loads.len() as f64 / sum } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Draws, IdDistribution, IdSampler};
    use crate::random::RandomKey;
    use proptest::prelude::*;

    /// Hot rows with weights, for a table of so many rows on so many ranks.
    fn table() -> impl Strategy<Value = (u64, u64, Vec<(u64, f64)>)> {
        (1..400u64, 1..9u64).prop_flat_map(|(rows, ranks)| {
            let hot = prop::collection::btree_map(0..rows, 0.01..1.0f64, 0..60);
            (Just(rows), Just(ranks), hot.prop_map(|hot| hot.into_iter().collect()))
        })
    }

    proptest! {
        #[test]
        fn every_row_has_a_slot_of_its_own((rows, ranks, hot) in table()) {
            let planned = deal(&hot, 3.0, rows, ranks);
            for placement in [RowPlacement::Range, RowPlacement::Hashed, planned] {
                let map = RowMap::new(&placement, rows, ranks).unwrap();
                let mut hit = vec![false; rows as usize];
                for row in 0..rows {
                    let slot = map.slot(row);
                    prop_assert!(!hit[slot as usize]);
                    hit[slot as usize] = true;
                    prop_assert_eq!(map.row(slot), row);
                }
                let ids: Vec<i64> = (0..rows as i64).collect();
                let mut slots = Vec::new();
                map.slots(&ids, rows, &mut slots).unwrap();
                prop_assert!(slots.iter().zip(0..).all(|(slot, row)| *slot as u64 == map.slot(row)));
                for id in [-1, rows as i64] {
                    prop_assert_eq!(map.slots(&[0, id], rows, &mut slots), Err(id));
                }
            }
        }

        #[test]
        fn hot_rows_are_where_they_were_dealt((rows, ranks, hot) in table()) {
            let placement = deal(&hot, 3.0, rows, ranks);
            let map = RowMap::new(&placement, rows, ranks).unwrap();
            let RowPlacement::Planned { hot: lists } = placement else { panic!("planned") };
            prop_assert_eq!(lists.iter().map(Vec::len).sum::<usize>(), hot.len());
            for (rank, list) in lists.iter().enumerate() {
                for row in list {
                    prop_assert_eq!(map.slot(*row) / rows_per_rank(rows, ranks), rank as u64);
                }
            }
        }
    }

    #[test]
    fn lists_that_cannot_be_are_refused() {
        let refused = |hot: Vec<Vec<u64>>| RowMap::new(&RowPlacement::Planned { hot }, 5, 2).unwrap_err();
        assert_eq!(refused(vec![vec![1]]), PlacementError::Ranks { lists: 1, ranks: 2 });
        assert_eq!(refused(vec![vec![5], vec![]]), PlacementError::Beyond { row: 5, rows: 5 });
        assert_eq!(refused(vec![vec![1, 1], vec![]]), PlacementError::Twice(1));
        assert_eq!(refused(vec![vec![2, 1], vec![]]), PlacementError::Twice(1));
        assert_eq!(refused(vec![vec![1], vec![1]]), PlacementError::Twice(1));
        let crowded = PlacementError::Crowded { rank: 1, hot: 3, rows: 2 };
        assert_eq!(refused(vec![vec![], vec![0, 1, 2]]), crowded);
        let many: Vec<u64> = (0..=MOST_HOT as u64).collect();
        let placement = RowPlacement::Planned { hot: vec![many] };
        assert_eq!(RowMap::new(&placement, 1 << 20, 1).unwrap_err(), PlacementError::Many(MOST_HOT + 1));
        let full = RowPlacement::Planned { hot: vec![vec![0, 1, 4], vec![2, 3]] };
        assert!(RowMap::new(&full, 5, 2).is_ok());
        // Of five rows on four ranks the last owns none.
        let none = RowPlacement::Planned { hot: vec![vec![], vec![], vec![], vec![0]] };
        let crowded = PlacementError::Crowded { rank: 3, hot: 1, rows: 0 };
        assert_eq!(RowMap::new(&none, 5, 4).unwrap_err(), crowded);
    }

    /// What owners are expected to be asked for, against ids that are drawn.
    #[test]
    fn expected_loads_are_those_of_drawn_ids() {
        let (rows, ranks, n, lots) = (50_000u64, 4u64, 3000usize, 24u64);
        let ids = IdDistribution::PopularityZipf(1.05);
        let (law, draws) = (RowLaw::new(ids, rows), Draws { by_law: n as f64, uniform: 0.0 });
        let sampler = IdSampler::new(ids, rows, 5, 0).unwrap();
        let each: Vec<f64> = law.bins().iter().map(|bin| law.requests(bin, draws, true)).collect();
        let mut first = 0;
        let mut hot = Vec::new();
        for (bin, requests) in law.bins().iter().zip(&each) {
            hot.extend((first..first + bin.rows as u64).map(|row| (row, *requests)));
            first += bin.rows as u64;
        }
        let rest = hot.split_off(MOST_HOT).iter().map(|row| row.1).sum();
        let planned = deal(&hot, rest, rows, ranks);
        let mut found = Vec::new();
        for placement in [RowPlacement::Range, RowPlacement::Hashed, planned] {
            let map = RowMap::new(&placement, rows, ranks).unwrap();
            let expected = owner_loads(&map, &law, rows, ranks, &each);
            let mut seen = vec![0.0; ranks as usize];
            for lot in 0..lots {
                let key = RandomKey { seed: 5, stream: 3, step: lot };
                let mut rows_of: Vec<i64> = (0..n).map(|position| sampler.draw(key, position)).collect();
                rows_of.sort_unstable();
                rows_of.dedup();
                for row in rows_of {
                    seen[(map.slot(row as u64) / rows_per_rank(rows, ranks)) as usize] += 1.0 / lots as f64;
                }
            }
            for (seen, expected) in seen.iter().zip(&expected) {
                assert!((seen - expected).abs() < 0.04 * expected, "{placement:?}: {seen} for {expected}");
            }
            found.push(busiest(&expected));
        }
        let [range, hashed, planned] = found[..] else { panic!("three placements") };
        assert!(range > 2.0 && hashed < 1.1 && planned < 1.001, "{found:?}");
    }

    #[test]
    fn nothing_asked_for_is_even() {
        assert_eq!((busiest(&[]), busiest(&[0.0, 0.0]), busiest(&[3.0, 1.0])), (1.0, 1.0, 1.5));
    }
}
