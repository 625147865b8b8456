//! Which rank gets which list of a plan, so that as many bytes as possible are read where they are worked on: an
//! assignment problem.
//!
//! For up to [`EXACT`] ranks it is solved exactly (the Hungarian method by shortest augmenting paths; Kuhn 1955, Jonker and
//! Volgenant 1987). For more, pairs of ranks exchange lists while that helps: no exchange of two is left, longer rings may
//! be. Where most lists have little of what their ranks read, those that share most bytes with a rank go there first.

/// Ranks up to which the assignment is the best there is.
const EXACT: usize = 32;
const NOBODY: u32 = u32::MAX;

/// Solves it, and keeps its storage.
#[derive(Debug, Default)]
pub(super) struct Names {
    ranks: usize,
    /// Bytes of each list that its rank reads.
    own: Vec<u64>,
    /// Bytes of a list that another rank reads, with both; ascending by list, then rank.
    shared: Vec<(u64, u32, u32)>,
    /// Where those of each list begin, and the end.
    starts: Vec<usize>,
    /// Only ranks of one kind can have each other's lists.
    kinds: Vec<usize>,
    /// Per list the rank that it is for, and per rank its list.
    ranks_of: Vec<u32>,
    lists: Vec<u32>,
    /// Bytes that each list shares with the rank that it is for.
    now: Vec<u64>,
    sorted: Vec<(u64, u32, u32)>,
    hungarian: Hungarian,
}

impl Names {
    /// Begins anew.
    pub(super) fn clear(&mut self, ranks: usize) {
        self.ranks = ranks;
        self.own.clear();
        self.shared.clear();
        self.kinds.clear();
        self.starts.clear();
        self.starts.push(0);
    }

    /// The next list, as of now that rank's: its kind, and home and bytes of each of its samples.
    pub(super) fn list(&mut self, list: usize, kind: usize, samples: impl Iterator<Item = (u32, u64)>) {
        let start = self.shared.len();
        let mut own = 0;
        for (home, bytes) in samples {
            if home as usize == list {
                own += bytes;
            } else {
                self.shared.push((bytes, list as u32, home));
            }
        }
        self.own.push(own);
        self.shared[start..].sort_unstable_by_key(|(_, _, home)| *home);
        let mut kept = start;
        for at in start + 1..self.shared.len() {
            if self.shared[at].2 == self.shared[kept].2 {
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
        if self.ranks <= EXACT {
            self.exactly();
        } else {
            self.ranks_of.clear();
            self.ranks_of.extend(0..self.ranks as u32);
            let away = |list: usize| -> u64 {
                self.shared[self.starts[list]..self.starts[list + 1]].iter().map(|s| s.0).sum()
            };
            let scattered = (0..self.ranks).filter(|list| away(*list) > self.own[*list]).count();
            if 2 * scattered > self.ranks {
                self.greedily();
            }
            self.exchange();
        }
        self.total() > self.as_they_are()
    }

    /// The rank that a list is for.
    pub(super) fn of(&self, list: usize) -> usize {
        self.ranks_of[list] as usize
    }

    /// Bytes that a list shares with a rank.
    fn bytes(&self, list: usize, rank: u32) -> u64 {
        if rank as usize == list {
            return self.own[list];
        }
        let own = &self.shared[self.starts[list]..self.starts[list + 1]];
        own.binary_search_by_key(&rank, |(_, _, rank)| *rank).map_or(0, |at| own[at].0)
    }

    fn total(&self) -> u64 {
        self.ranks_of.iter().enumerate().map(|(list, rank)| self.bytes(list, *rank)).sum()
    }

    fn as_they_are(&self) -> u64 {
        self.own.iter().sum()
    }

    fn exactly(&mut self) {
        let n = self.ranks;
        self.hungarian.clear(n);
        // More than all bytes together, so a list is never for a rank of another kind.
        let shared = self.shared.iter().map(|(bytes, ..)| bytes);
        let never = 1 + shared.chain(&self.own).map(|bytes| i128::from(*bytes)).sum::<i128>();
        for list in 0..n {
            for rank in (0..n).filter(|rank| self.kinds[*rank] != self.kinds[list]) {
                self.hungarian.set(list, rank, never);
            }
        }
        for (bytes, list, rank) in &self.shared {
            if self.kinds[*list as usize] == self.kinds[*rank as usize] {
                self.hungarian.set(*list as usize, *rank as usize, -i128::from(*bytes));
            }
        }
        for (rank, bytes) in self.own.iter().enumerate() {
            self.hungarian.set(rank, rank, -i128::from(*bytes));
        }
        self.hungarian.solve(&mut self.ranks_of);
    }

    fn greedily(&mut self) {
        self.sorted.clear();
        self.sorted.extend_from_slice(&self.shared);
        self.sorted.extend(self.own.iter().zip(0..).map(|(bytes, rank)| (*bytes, rank, rank)));
        self.sorted.sort_unstable_by(|a, b| b.0.cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        for list in [&mut self.ranks_of, &mut self.lists] {
            list.clear();
            list.resize(self.ranks, NOBODY);
        }
        for (_, list, rank) in &self.sorted {
            let (of, whose) = (*list as usize, *rank as usize);
            let free = self.ranks_of[of] == NOBODY && self.lists[whose] == NOBODY;
            if free && self.kinds[of] == self.kinds[whose] {
                (self.ranks_of[of], self.lists[whose]) = (*rank, *list);
            }
        }
        // Who shares nothing that is left: by number, among those of one kind.
        for list in 0..self.ranks {
            if self.ranks_of[list] == NOBODY {
                let free =
                    |rank: &usize| self.lists[*rank] == NOBODY && self.kinds[*rank] == self.kinds[list];
                let rank = (0..self.ranks).find(free).unwrap_or(list);
                (self.ranks_of[list], self.lists[rank]) = (rank as u32, list as u32);
            }
        }
    }

    /// Pairs of lists exchange ranks while that leaves more at home.
    fn exchange(&mut self) {
        self.lists.clear();
        self.lists.resize(self.ranks, 0);
        for (list, rank) in self.ranks_of.iter().enumerate() {
            self.lists[*rank as usize] = list as u32;
        }
        self.now.clear();
        for (list, rank) in self.ranks_of.iter().enumerate() {
            let bytes = self.bytes(list, *rank);
            self.now.push(bytes);
        }
        let mut again = true;
        while again {
            again = false;
            for at in 0..self.shared.len() + self.ranks {
                let (bytes, list, rank) = self.shared.get(at).copied().unwrap_or_else(|| {
                    let rank = at - self.shared.len();
                    (self.own[rank], rank as u32, rank as u32)
                });
                // If two gain together one of them does alone, so only that one is looked at.
                if bytes <= self.now[list as usize] {
                    continue;
                }
                let (own, other) = (self.ranks_of[list as usize], self.lists[rank as usize]);
                if own == rank || self.kinds[own as usize] != self.kinds[rank as usize] {
                    continue;
                }
                let theirs = self.bytes(other as usize, own);
                if bytes + theirs > self.now[list as usize] + self.now[other as usize] {
                    (self.ranks_of[list as usize], self.ranks_of[other as usize]) = (rank, own);
                    (self.lists[rank as usize], self.lists[own as usize]) = (list, other);
                    (self.now[list as usize], self.now[other as usize]) = (bytes, theirs);
                    again = true;
                }
            }
        }
    }
}

/// The assignment of least cost, in time n^3.
#[derive(Debug, Default)]
struct Hungarian {
    n: usize,
    /// By row and column.
    costs: Vec<i128>,
    /// Of rows and columns, one more than there are: the first stands for none.
    rows: Vec<i128>,
    columns: Vec<i128>,
    /// Per column the row that has it, the column before it on the path, the least cost left, and whether it was seen.
    taken: Vec<usize>,
    before: Vec<usize>,
    least: Vec<i128>,
    seen: Vec<bool>,
}

impl Hungarian {
    fn clear(&mut self, n: usize) {
        self.n = n;
        self.costs.clear();
        self.costs.resize(n * n, 0);
        for list in [&mut self.rows, &mut self.columns, &mut self.least] {
            list.clear();
            list.resize(n + 1, 0);
        }
        for list in [&mut self.taken, &mut self.before] {
            list.clear();
            list.resize(n + 1, 0);
        }
        self.seen.clear();
        self.seen.resize(n + 1, false);
    }

    fn set(&mut self, row: usize, column: usize, cost: i128) {
        self.costs[row * self.n + column] = cost;
    }

    /// The column of each row.
    fn solve(&mut self, out: &mut Vec<u32>) {
        for row in 1..=self.n {
            self.taken[0] = row;
            self.least.fill(i128::MAX);
            self.seen.fill(false);
            let mut column = 0;
            while self.taken[column] != 0 {
                column = self.nearest(column);
            }
            while column != 0 {
                self.taken[column] = self.taken[self.before[column]];
                column = self.before[column];
            }
        }
        out.clear();
        out.resize(self.n, 0);
        for column in 1..=self.n {
            out[self.taken[column] - 1] = column as u32 - 1;
        }
    }

    /// From a column that was reached to the next.
    fn nearest(&mut self, column: usize) -> usize {
        self.seen[column] = true;
        let row = self.taken[column];
        let (mut delta, mut next) = (i128::MAX, 0);
        for c in 1..=self.n {
            if self.seen[c] {
                continue;
            }
            let left = self.costs[(row - 1) * self.n + c - 1] - self.rows[row] - self.columns[c];
            if left < self.least[c] {
                (self.least[c], self.before[c]) = (left, column);
            }
            if self.least[c] < delta {
                (delta, next) = (self.least[c], c);
            }
        }
        for c in 0..=self.n {
            if self.seen[c] {
                self.rows[self.taken[c]] += delta;
                self.columns[c] -= delta;
            } else {
                self.least[c] = self.least[c].saturating_sub(delta);
            }
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{RandomKey, uniform_index};

    /// The greatest number of shared bytes over all orders.
    fn best(bytes: &[Vec<u64>], list: usize, used: u32) -> u64 {
        let Some(own) = bytes.get(list) else { return 0 };
        let free = (0..own.len()).filter(|rank| used >> rank & 1 == 0);
        free.map(|rank| own[rank] + best(bytes, list + 1, used | 1 << rank)).max().unwrap_or(0)
    }

    #[test]
    fn few_lists_are_named_exactly() {
        let mut names = Names::default();
        for seed in 0..300 {
            let draw = |i: usize, most| uniform_index(RandomKey { seed, stream: 1, step: 0 }, i as u64, most);
            let n = 1 + draw(0, 6) as usize;
            let bytes: Vec<Vec<u64>> =
                (0..n).map(|i| (0..n).map(|j| draw(1 + i * n + j, 1 + seed % 40)).collect()).collect();
            names.clear(n);
            for (list, own) in bytes.iter().enumerate() {
                names.list(list, 0, (0..).zip(own.iter().copied()));
            }
            let better = names.find();
            let found: u64 = (0..n).map(|list| bytes[list][names.of(list)]).sum();
            assert_eq!(found, best(&bytes, 0, 0), "{bytes:?}");
            assert_eq!(better, found > (0..n).map(|rank| bytes[rank][rank]).sum());
        }
    }

    #[test]
    fn many_lists_are_left_with_no_pair_that_should_exchange() {
        let (n, mut names) = (50, Names::default());
        for seed in 0..20 {
            let draw = |i: usize, most| uniform_index(RandomKey { seed, stream: 1, step: 0 }, i as u64, most);
            let homes: Vec<Vec<(u32, u64)>> = (0..n)
                .map(|list| {
                    (0..4).map(|i| (draw(8 * list + i, 50) as u32, draw(8 * list + 4 + i, 9))).collect()
                })
                .collect();
            names.clear(n);
            for (list, own) in homes.iter().enumerate() {
                names.list(list, list % 3, own.iter().copied());
            }
            names.find();
            let bytes = |list: usize, rank: usize| -> u64 {
                homes[list].iter().filter(|(home, _)| *home as usize == rank).map(|(_, bytes)| bytes).sum()
            };
            let mut ranks: Vec<usize> = (0..n).map(|list| names.of(list)).collect();
            for a in 0..n {
                assert_eq!(a % 3, ranks[a] % 3, "kinds stay");
                for b in (0..a).filter(|b| b % 3 == a % 3) {
                    let now = bytes(a, ranks[a]) + bytes(b, ranks[b]);
                    assert!(bytes(a, ranks[b]) + bytes(b, ranks[a]) <= now, "{a} and {b}");
                }
            }
            ranks.sort_unstable();
            assert!(ranks.into_iter().eq(0..n));
        }
    }
}
