//! A plan from scratch by differencing (Karmarkar and Karp 1982).
//!
//! Each sample begins as a partition of its own: it is on one rank, and nothing is on the others. The two partitions whose
//! greatest and least parts differ the most are joined, the greatest part of one with the least of the other, until one is
//! left. So it is decided late which samples meet, and of few samples a rank the parts come out more alike than largest
//! first, and than exchanges of two can make them. It takes at most as many steps as samples times ranks, most often few of
//! them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// Samples up to which it is tried: of more it may take too long.
pub(super) const MOST: usize = 1 << 12;

/// Parts up to which each is put into its place, in place of sorting all.
const FEW: usize = 8;

/// The end of a part's samples.
const NONE: u32 = u32::MAX;

/// What is on one rank.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    cost: u64,
    /// Its first sample and its last; there are none if there is no first one.
    ends: Option<(u32, u32)>,
}

/// Plans by differencing, and keeps its storage.
#[derive(Debug, Default)]
pub(super) struct Differ {
    /// Parts of all partitions there have been, dearest first; those that are not there are empty.
    parts: Vec<Part>,
    /// Where the parts of each are.
    all: Vec<Range<usize>>,
    /// Partitions that are left, by what their parts differ; of those that differ alike the oldest is first.
    left: BinaryHeap<(u64, Reverse<usize>)>,
    /// Per sample the one behind it in its part.
    next: Vec<u32>,
}

impl Differ {
    /// Gives samples of these costs to ranks.
    pub(super) fn find(&mut self, costs: &[u64], ranks: usize) {
        self.parts.clear();
        self.all.clear();
        self.left.clear();
        self.next.clear();
        self.next.resize(costs.len(), NONE);
        for (sample, cost) in (0..).zip(costs) {
            self.parts.push(Part { cost: *cost, ends: Some((sample, sample)) });
            self.end(sample as usize, ranks);
        }
        while let (Some((_, Reverse(a))), Some((_, Reverse(b)))) = (self.left.pop(), self.left.pop()) {
            self.join(a, b, ranks);
        }
    }

    /// Ranks and their samples.
    pub(super) fn found(&self) -> impl Iterator<Item = (usize, u32)> {
        let parts = self.all.last().map_or(&[][..], |last| &self.parts[last.clone()]).iter();
        parts.enumerate().flat_map(|(rank, part)| {
            let first = part.ends.map(|(first, _)| first);
            let follow = |sample: &u32| Some(self.next[*sample as usize]).filter(|next| *next != NONE);
            std::iter::successors(first, follow).map(move |sample| (rank, sample))
        })
    }

    /// All parts of the newest partition are there.
    fn end(&mut self, start: usize, ranks: usize) {
        let number = self.all.len();
        let own = &self.parts[start..];
        let least = own.get(ranks - 1).map_or(0, |part| part.cost);
        self.left.push((own[0].cost - least, Reverse(number)));
        self.all.push(start..self.parts.len());
    }

    /// Forgets partitions that were joined.
    fn tidy(&mut self) {
        let mut end = 0;
        for own in self.all.iter_mut().filter(|own| own.start < own.end) {
            self.parts.copy_within(own.clone(), end);
            *own = end..end + own.len();
            end = own.end;
        }
        self.parts.truncate(end);
    }

    fn join(&mut self, a: usize, b: usize, ranks: usize) {
        // There are no more parts than samples; what else is kept was joined.
        if self.parts.len() > 4 * self.next.len() {
            self.tidy();
        }
        let (a, b) = (std::mem::take(&mut self.all[a]), std::mem::take(&mut self.all[b]));
        // Most often `a` is the newest one, and goes no farther.
        let start = if a.end == self.parts.len() { a.start } else { self.parts.len() };
        if start != a.start {
            self.parts.extend_from_within(a.clone());
        }
        let (count, joined) = (ranks.min(a.len() + b.len()), b.len());
        self.parts.resize(start + count, Part::default());
        for (at, from) in (start..self.parts.len()).rev().zip(b) {
            let (own, joins) = (self.parts[at], self.parts[from]);
            self.parts[at].cost += joins.cost;
            self.parts[at].ends = match (own.ends, joins.ends) {
                (Some((first, last)), Some((behind, end))) => {
                    self.next[last as usize] = behind;
                    Some((first, end))
                }
                (own, joins) => own.or(joins),
            };
        }
        let parts = &mut self.parts[start..];
        if joined > FEW {
            parts.sort_unstable_by(|a, b| b.cmp(a));
        } else {
            // Only those that others joined are out of order.
            for at in count - joined..count {
                let to = parts[..at].partition_point(|other| *other >= parts[at]);
                parts[to..=at].rotate_right(1);
            }
        }
        self.end(start, ranks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{RandomKey, uniform_index};

    fn sums(differ: &Differ, costs: &[u64], ranks: usize) -> Vec<u64> {
        let (mut sums, mut seen) = (vec![0; ranks], vec![0; costs.len()]);
        for (rank, sample) in differ.found() {
            sums[rank] += costs[sample as usize];
            seen[sample as usize] += 1;
        }
        assert!(seen.iter().all(|n| *n == 1), "each sample once: {seen:?}");
        sums
    }

    /// The same in a few lines: sums only, sorted anew for each step.
    fn plainly(costs: &[u64], ranks: usize) -> Vec<u64> {
        let begin = |cost: &u64| {
            let mut sums = vec![0; ranks];
            sums[0] = *cost;
            sums
        };
        let mut all: Vec<(usize, Vec<u64>)> = costs.iter().map(begin).enumerate().collect();
        for number in costs.len().. {
            all.sort_by_key(|(number, sums)| (Reverse(sums[0] - sums[ranks - 1]), *number));
            if all.len() < 2 {
                break;
            }
            let (_, b) = all.remove(1);
            let (_, mut a) = all.remove(0);
            a.iter_mut().zip(b.iter().rev()).for_each(|(a, b)| *a += b);
            a.sort_unstable_by_key(|sum| Reverse(*sum));
            all.push((number, a));
        }
        all.remove(0).1
    }

    #[test]
    fn sums_are_those_of_differencing() {
        let mut differ = Differ::default();
        // Karmarkar and Karp's example.
        differ.find(&[8, 7, 6, 5, 4], 2);
        assert_eq!(sums(&differ, &[8, 7, 6, 5, 4], 2), [16, 14]);
        for seed in 0..300 {
            let draw = |i: usize, most| uniform_index(RandomKey { seed, stream: 1, step: 0 }, i as u64, most);
            let (n, ranks) = (1 + draw(0, 120) as usize, 1 + draw(1, 40) as usize);
            let most = [3, 60, 1 << 50][seed as usize % 3];
            let costs: Vec<u64> = (0..n).map(|i| draw(2 + i, most)).collect();
            differ.find(&costs, ranks);
            assert_eq!(sums(&differ, &costs, ranks), plainly(&costs, ranks), "{costs:?} on {ranks}");
        }
    }
}
