//! Entries of ranks, and what is counted of them: how soon rows are used again, which are asked for most, and of whom.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;

use fs_schedule::Nodes;
use fs_schedule::profile::ReuseCounts;
use fs_workload::placement::rows_per_rank;

/// Rows up to which a table gets a list with a place for each.
const DENSE: u64 = 1 << 25;

/// A number for each row; 0 is none.
pub(crate) enum Numbers {
    Dense(Vec<u32>),
    Sparse(HashMap<i64, u32>),
}

impl Numbers {
    pub(crate) fn new(rows: u64) -> Self {
        if rows <= DENSE { Self::Dense(vec![0; rows as usize]) } else { Self::Sparse(HashMap::new()) }
    }
    pub(crate) fn get(&self, row: i64) -> u32 {
        match self {
            Self::Dense(list) => usize::try_from(row).ok().and_then(|r| list.get(r)).copied().unwrap_or(0),
            Self::Sparse(map) => map.get(&row).copied().unwrap_or(0),
        }
    }
    pub(crate) fn set(&mut self, row: i64, number: u32) {
        match self {
            Self::Dense(list) => {
                if let Some(place) = usize::try_from(row).ok().and_then(|r| list.get_mut(r)) {
                    *place = number;
                }
            }
            Self::Sparse(map) => {
                map.insert(row, number);
            }
        }
    }
}

/// A rank's entry in a batch: its row, the first and last microbatch that use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) row: i64,
    pub(crate) first: u32,
    pub(crate) last: u32,
}

/// Entries of each rank in some consecutive batches.
pub(crate) type Entries = Vec<Vec<Vec<Entry>>>;

/// Entries by microbatch and distance, per rank and batch.
pub(crate) fn distances(
    entries: &Entries,
    window: Range<usize>,
    rows: u64,
    (microbatches, reach): (u32, u32),
) -> ReuseCounts {
    let zeros = || vec![vec![0.0; reach as usize + 1]; microbatches as usize];
    let (mut forward, mut backward) = (zeros(), zeros());
    let place = |distance: Option<u32>| {
        distance.filter(|d| (1..=reach).contains(d)).map_or(reach as usize, |d| d as usize - 1)
    };
    let each = 1.0 / (window.len() * entries.first().map_or(1, Vec::len)).max(1) as f64;
    // Units of time are microbatches, from 1, so that 0 is never.
    let unit = |batch: usize, m: u32| batch as u32 * microbatches + m + 1;
    let mut last = Numbers::new(rows);
    for (n, ranks) in entries.iter().enumerate() {
        if window.contains(&n) {
            for e in ranks.iter().flatten() {
                let before = last.get(e.row);
                let distance = (before > 0).then(|| unit(n, e.first) - before);
                forward[e.first as usize][place(distance)] += each;
            }
        }
        for e in ranks.iter().flatten() {
            let latest = last.get(e.row).max(unit(n, e.last));
            last.set(e.row, latest);
        }
    }
    let mut next = Numbers::new(rows);
    let mut ends = Numbers::new(rows);
    for (n, ranks) in entries.iter().enumerate().rev() {
        if window.contains(&n) {
            for e in ranks.iter().flatten() {
                let end = ends.get(e.row).max(unit(n, e.last));
                ends.set(e.row, end);
            }
            for e in ranks.iter().flatten() {
                let (end, after) = (ends.get(e.row), next.get(e.row));
                let distance = (after > 0).then(|| after - end);
                backward[((end - 1) % microbatches) as usize][place(distance)] += each;
            }
        }
        // Later batches come first here: the first use of this one replaces theirs.
        for e in ranks.iter().flatten() {
            ends.set(e.row, 0);
            let (first, known) = (unit(n, e.first), next.get(e.row));
            let of_this_batch = known >= unit(n, 0) && known <= unit(n, microbatches - 1);
            next.set(e.row, if of_this_batch { known.min(first) } else { first });
        }
    }
    ReuseCounts { microbatches, forward, backward }
}

/// Rows that were asked for more than once, the most asked for of many, with how often a rank asks in a batch.
pub(crate) fn hot(entries: &[Vec<Vec<Entry>>], ranks: usize, most: usize) -> Vec<(u64, f64)> {
    let mut rows: Vec<i64> = entries.iter().flatten().flatten().map(|e| e.row).collect();
    rows.sort_unstable();
    let counts = rows.chunk_by(|a, b| a == b).map(|same| (same[0], same.len() as u64));
    let mut hot: Vec<(i64, u64)> = counts.filter(|(_, n)| *n > 1).collect();
    hot.sort_by_key(|(row, n)| (Reverse(*n), *row));
    hot.truncate(most);
    hot.sort_unstable();
    let each = 1.0 / (entries.len() * ranks).max(1) as f64;
    hot.into_iter().map(|(row, n)| (row as u64, n as f64 * each)).collect()
}

/// What ranks use, and are asked for by others.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Asked {
    /// The most that a rank sends or receives in a batch, over what it would be if rows were spread evenly.
    pub busiest: f64,
    /// The most rows that a rank uses in a batch over the mean, whoever owns them.
    pub asking: f64,
    /// What each receives, over what it would be if rows were spread evenly.
    pub owners: Vec<f64>,
}

/// Of rows that are in these slots.
pub(crate) fn asked(
    entries: &[Vec<Vec<Entry>>],
    rows: u64,
    ranks: usize,
    slot: impl Fn(u64) -> u64,
) -> Asked {
    let shard = rows_per_rank(rows, ranks as u64);
    let (mut most, mut asking, mut used, mut even) = (0.0, 0.0, 0.0, 0.0);
    let mut owners = vec![0.0; ranks];
    for batch in entries {
        let mut traffic = vec![[0u64; 2]; ranks];
        for (rank, list) in batch.iter().enumerate() {
            for e in list {
                let owner = ((slot(e.row as u64) / shard) as usize).min(ranks - 1);
                if owner != rank {
                    traffic[rank][0] += 1;
                    traffic[owner][1] += 1;
                }
            }
        }
        most += traffic.iter().flatten().copied().max().unwrap_or(0) as f64;
        asking += batch.iter().map(Vec::len).max().unwrap_or(0) as f64;
        owners.iter_mut().zip(&traffic).for_each(|(sum, [_, received])| *sum += *received as f64);
        let sent: usize = batch.iter().map(Vec::len).sum();
        used += sent as f64 / ranks as f64;
        even += sent as f64 / ranks as f64 * (ranks as f64 - 1.0) / ranks as f64;
    }
    let over = |n: f64| if even > 0.0 { n / even } else { 1.0 };
    let asking = if used > 0.0 { asking / used } else { 1.0 };
    Asked { busiest: over(most), asking, owners: owners.into_iter().map(over).collect() }
}

pub(crate) fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (n, sum) = values.fold((0.0, 0.0), |(n, sum), v| (n + 1.0, sum + v));
    if n > 0.0 { sum / n } else { 0.0 }
}

/// What nodes use of these rows, each once: as if a node were a rank.
pub(crate) fn of_nodes(entries: &Entries, nodes: Nodes, rows: u64) -> Entries {
    let mut seen = Numbers::new(rows);
    let mut of_node = |ranks: &[Vec<Entry>]| {
        let mut list: Vec<Entry> = Vec::new();
        for e in ranks.iter().flatten() {
            match seen.get(e.row) {
                0 => {
                    list.push(*e);
                    seen.set(e.row, list.len() as u32);
                }
                n => {
                    let known = &mut list[n as usize - 1];
                    (known.first, known.last) = (known.first.min(e.first), known.last.max(e.last));
                }
            }
        }
        for e in &list {
            seen.set(e.row, 0);
        }
        list
    };
    let each = nodes.each() as usize;
    entries.iter().map(|ranks| ranks.chunks(each).map(&mut of_node).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fs_schedule::profile::DISTANCES;
    use fs_workload::placement::MOST_HOT;

    fn entry(row: i64, first: u32, last: u32) -> Entry {
        Entry { row, first, last }
    }

    /// Two ranks, two microbatches. Row 5: batch 0 by rank 0 in 0 and by rank 1 in 1, batch 1 by rank 0 in 0, batch
    /// 3 by rank 1 in 1. Row 7: batch 1 only.
    #[test]
    fn distances_are_those_of_the_classes() {
        let entries: Entries = vec![
            vec![vec![entry(5, 0, 0)], vec![entry(5, 1, 1)]],
            vec![vec![entry(5, 0, 0), entry(7, 0, 1)], vec![]],
            vec![vec![], vec![]],
            vec![vec![], vec![entry(5, 1, 1)]],
        ];
        let counts = distances(&entries, 0..4, 10, (2, DISTANCES));
        let far = DISTANCES as usize;
        let per = 1.0 / 8.0;
        // Batch 0 is new to both; batch 1 follows microbatch 1 at once; batch 3 five microbatches after batch 1's 0.
        assert_eq!(counts.forward[0][0], per);
        assert_eq!(counts.forward[0][far], 2.0 * per, "row 5 of batch 0 on rank 0, row 7");
        assert_eq!((counts.forward[1][far], counts.forward[1][4]), (per, per));
        // Both ranks' gradients of batch 0 are of the last use, in microbatch 1.
        assert_eq!(counts.backward[1][0], 2.0 * per);
        assert_eq!(counts.backward[0][4], per, "row 5 of batch 1 to microbatch 1 of batch 3");
        assert_eq!(counts.backward[1][far], 2.0 * per, "row 7, and row 5 of batch 3");
        let all: f64 = counts.forward.iter().chain(&counts.backward).flatten().sum();
        assert!((all - 2.0 * 5.0 * per).abs() < 1e-12);
    }

    #[test]
    fn the_busiest_rank() {
        // Four rows, two a rank: rank 0 asks for both of the other's, rank 1 for none of its.
        let entries = vec![vec![vec![entry(2, 0, 0), entry(3, 0, 0)], vec![entry(2, 0, 0), entry(3, 0, 0)]]];
        let of = |slot: fn(u64) -> u64| asked(&entries, 4, 2, slot);
        // Rank 1 owns what is asked for, and only rank 0 is another.
        assert_eq!(of(|row| row), Asked { busiest: 2.0, asking: 1.0, owners: vec![0.0, 2.0] });
        assert_eq!(of(|row| row ^ 1), Asked { busiest: 2.0, asking: 1.0, owners: vec![0.0, 2.0] });
        // In other slots each asks the other for one.
        assert_eq!(of(|row| (row + 1) % 4), Asked { busiest: 1.0, asking: 1.0, owners: vec![1.0, 1.0] });
        assert_eq!(hot(&entries, 2, MOST_HOT), [(2, 1.0), (3, 1.0)]);
    }

    #[test]
    fn nodes_use_a_row_once() {
        let entries: Entries =
            vec![vec![vec![entry(5, 1, 1), entry(7, 0, 0)], vec![entry(5, 0, 0)], vec![entry(5, 1, 1)]]];
        let nodes = of_nodes(&entries, Nodes::new(3, Some(2)), 10);
        assert_eq!(nodes, [[vec![entry(5, 0, 1), entry(7, 0, 0)], vec![entry(5, 1, 1)]]]);
    }
}
