//! Which rank gets which list of a plan, so that as many bytes as possible are read where they are worked on: an
//! assignment problem, of which the best solution is found (`matching`). Most lists share bytes with few ranks, and most
//! have most where they are, so that takes little time.

use super::matching::{Matching, NOBODY};

/// Solves it, and keeps its storage.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Bytes of a list that a rank reads, with the rank; ascending by list, then rank.
    shared: Vec<(u64, u32)>,
    /// Where those of each list begin, and the end.
    starts: Vec<usize>,
    /// Only ranks of one kind can have each other's lists.
    kinds: Vec<usize>,
    /// Bytes that stay at home as lists are.
    own: u64,
    matching: Matching,
    /// Lists and ranks that share nothing with any that is left.
    left: (Vec<u32>, Vec<u32>),
}

impl Names {
    /// Begins anew.
    pub(super) fn clear(&mut self) {
        self.own = 0;
        self.shared.clear();
        self.kinds.clear();
        self.starts.clear();
        self.starts.push(0);
    }

    /// The next list, as of now the next rank's: its kind, and home and bytes of each of its samples.
    pub(super) fn list(&mut self, kind: usize, samples: impl Iterator<Item = (u32, u64)>) {
        let (start, list) = (self.shared.len(), self.kinds.len());
        for (home, bytes) in samples {
            if home as usize == list {
                self.own += bytes;
            }
            self.shared.push((bytes, home));
        }
        self.shared[start..].sort_unstable_by_key(|(_, home)| *home);
        let mut kept = start;
        for at in start + 1..self.shared.len() {
            if self.shared[at].1 == self.shared[kept].1 {
                self.shared[kept].0 += self.shared[at].0;
            } else {
                kept += 1;
                self.shared[kept] = self.shared[at];
            }
        }
        self.shared.truncate(if self.shared.len() > start { kept + 1 } else { start });
        self.starts.push(self.shared.len());
        self.kinds.push(kind);
    }

    /// Names the lists; whether that is better than as they are.
    pub(super) fn find(&mut self) -> bool {
        let (shared, starts, kinds) = (&self.shared, &self.starts, &self.kinds);
        self.matching.find(kinds.len(), |list| {
            let own = shared[starts[list]..starts[list + 1]].iter().copied();
            own.filter(move |(_, rank)| kinds[*rank as usize] == kinds[list])
        });
        let total: u64 = (0..self.kinds.len()).map(|list| self.bytes(list)).sum();
        if total <= self.own {
            return false;
        }
        self.leave();
        true
    }

    /// The rank that a list is for.
    pub(super) fn of(&self, list: usize) -> usize {
        self.matching.column_of[list] as usize
    }

    /// Bytes that a list shares with the rank that it is for.
    fn bytes(&self, list: usize) -> u64 {
        let own = &self.shared[self.starts[list]..self.starts[list + 1]];
        let rank = self.matching.column_of[list];
        own.binary_search_by_key(&rank, |(_, rank)| *rank).map_or(0, |at| own[at].0)
    }

    /// Lists that share nothing with any rank that is left stay if they can; the others go by number, among those of one kind.
    fn leave(&mut self) {
        let Matching { column_of, row_of, .. } = &mut self.matching;
        for (own, (rank, list)) in (0..).zip(column_of.iter_mut().zip(row_of.iter_mut())) {
            if *rank == NOBODY && *list == NOBODY {
                (*rank, *list) = (own, own);
            }
        }
        let (lists, ranks) = &mut self.left;
        for (left, of) in [(&mut *lists, &*column_of), (&mut *ranks, &*row_of)] {
            left.clear();
            left.extend((0..).zip(of).filter(|(_, of)| **of == NOBODY).map(|(own, _)| own));
            left.sort_unstable_by_key(|own: &u32| (self.kinds[*own as usize], *own));
        }
        for (list, rank) in lists.iter().zip(ranks.iter()) {
            column_of[*list as usize] = *rank;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{RandomKey, uniform_index};

    /// The greatest number of shared bytes over all orders.
    fn best(bytes: &[Vec<u64>], kinds: usize, list: usize, used: u32) -> u64 {
        let Some(own) = bytes.get(list) else { return 0 };
        let free = (0..own.len()).filter(|rank| used >> rank & 1 == 0 && rank % kinds == list % kinds);
        free.map(|rank| own[rank] + best(bytes, kinds, list + 1, used | 1 << rank)).max().unwrap_or(0)
    }

    #[test]
    fn few_lists_are_named_exactly() {
        let mut names = Names::default();
        for seed in 0..300 {
            let draw = |i: usize, most| uniform_index(RandomKey { seed, stream: 1, step: 0 }, i as u64, most);
            let (n, kinds) = (1 + draw(0, 6) as usize, 1 + seed as usize % 3);
            let bytes: Vec<Vec<u64>> =
                (0..n).map(|i| (0..n).map(|j| draw(1 + i * n + j, 1 + seed % 40)).collect()).collect();
            names.clear();
            for (list, own) in bytes.iter().enumerate() {
                names.list(list % kinds, (0..).zip(own.iter().copied()));
            }
            let better = names.find();
            let now = (0..n).map(|rank| bytes[rank][rank]).sum();
            let found =
                if better { (0..n).map(|list| bytes[list][names.of(list)]).sum::<u64>() } else { now };
            assert_eq!(found, best(&bytes, kinds, 0, 0), "{bytes:?}");
            assert_eq!(better, found > now);
        }
    }

    /// Two lists or three.
    #[test]
    fn many_lists_are_left_with_no_ring_that_should_exchange() {
        let (n, mut names) = (50, Names::default());
        for seed in 0..20 {
            let draw = |i: usize, most| uniform_index(RandomKey { seed, stream: 1, step: 0 }, i as u64, most);
            let homes: Vec<Vec<(u32, u64)>> = (0..n)
                .map(|list| {
                    (0..4).map(|i| (draw(8 * list + i, 50) as u32, draw(8 * list + 4 + i, 9))).collect()
                })
                .collect();
            names.clear();
            for (list, own) in homes.iter().enumerate() {
                names.list(list % 3, own.iter().copied());
            }
            assert!(names.find(), "samples are anywhere");
            let bytes = |list: usize, rank: usize| -> u64 {
                homes[list].iter().filter(|(home, _)| *home as usize == rank).map(|(_, bytes)| bytes).sum()
            };
            let mut ranks: Vec<usize> = (0..n).map(|list| names.of(list)).collect();
            // What it leaves more at home that a list goes to the rank of another.
            let gain = |a: usize, b: usize| bytes(a, ranks[b]) as i64 - bytes(a, ranks[a]) as i64;
            let alike = |a: usize| (a % 3..n).step_by(3);
            for a in 0..n {
                for b in alike(a) {
                    assert!(gain(a, b) + gain(b, a) <= 0, "{a} and {b}");
                    for c in alike(a) {
                        assert!(gain(a, b) + gain(b, c) + gain(c, a) <= 0, "{a}, {b} and {c}");
                    }
                }
            }
            assert!(ranks.iter().enumerate().all(|(list, rank)| list % 3 == rank % 3), "kinds stay");
            ranks.sort_unstable();
            assert!(ranks.into_iter().eq(0..n));
        }
    }
}
