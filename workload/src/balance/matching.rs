//! A matching of rows with columns whose edges weigh the most together, exactly: shortest augmenting paths from one row
//! after the other (Kuhn 1955, Jonker and Volgenant 1987), over the edges that there are.
//!
//! Rows and columns have prices, none below zero, which together are no less than the weight of an edge between them, and no
//! more where the edge is taken; who has no partner has the price zero. Then nothing weighs more. A row that comes in asks
//! for the most it could have, and the shortest way is looked for to bring its price down so far that it gets a column,
//! goes without, or another row does. Searches end soon where few rows want the same column; at worst each goes over all edges.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// No partner.
pub(super) const NOBODY: u32 = u32::MAX;

/// Finds matchings, and keeps its storage.
#[derive(Debug, Default)]
pub(super) struct Matching {
    /// Per row its column, per column its row.
    pub column_of: Vec<u32>,
    pub row_of: Vec<u32>,
    /// Prices.
    rows: Vec<u64>,
    columns: Vec<u64>,
    /// Per column the length of the way there, and the row before it.
    way: Vec<u64>,
    before: Vec<u32>,
    /// Columns that have been seen on this search, and those whose ways are the shortest.
    seen: Vec<u32>,
    reached: Vec<u32>,
    next: BinaryHeap<Reverse<(u64, u32)>>,
}

/// Where a way ends.
#[derive(Clone, Copy)]
enum End {
    /// At a column that nobody has.
    Column(u32),
    /// At a row that goes without.
    Row(u32),
}

impl Matching {
    /// Matches as many rows and columns; of each row the weights of its edges and their columns are given.
    pub(super) fn find<I: Iterator<Item = (u64, u32)>>(&mut self, n: usize, edges: impl Fn(usize) -> I) {
        for list in [&mut self.rows, &mut self.columns] {
            list.clear();
            list.resize(n, 0);
        }
        for list in [&mut self.column_of, &mut self.row_of, &mut self.before] {
            list.clear();
            list.resize(n, NOBODY);
        }
        self.way.clear();
        self.way.resize(n, u64::MAX);
        for row in 0..n {
            self.insert(row, &edges);
        }
    }

    fn insert<I: Iterator<Item = (u64, u32)>>(&mut self, new: usize, edges: &impl Fn(usize) -> I) {
        let worth = |(weight, column): (u64, u32)| weight.saturating_sub(self.columns[column as usize]);
        self.rows[new] = edges(new).map(worth).max().unwrap_or(0);
        let (mut length, mut end) = (self.rows[new], End::Row(new as u32));
        let (mut row, mut so_far) = (new, 0);
        loop {
            for (weight, column) in edges(row) {
                let at = column as usize;
                let dear = self.rows[row] + self.columns[at] - weight;
                let way = dear.saturating_add(so_far);
                if way >= self.way[at].min(length) {
                    continue;
                }
                if self.way[at] == u64::MAX {
                    self.seen.push(column);
                }
                (self.way[at], self.before[at]) = (way, row as u32);
                if self.row_of[at] == NOBODY {
                    (length, end) = (way, End::Column(column));
                } else {
                    self.next.push(Reverse((way, column)));
                }
            }
            let Some(column) = self.nearest(length) else { break };
            self.reached.push(column);
            (row, so_far) = (self.row_of[column as usize] as usize, self.way[column as usize]);
            if so_far + self.rows[row] < length {
                (length, end) = (so_far + self.rows[row], End::Row(row as u32));
            }
        }
        self.rows[new] -= length;
        for column in self.reached.drain(..) {
            let less = length - self.way[column as usize];
            self.columns[column as usize] += less;
            self.rows[self.row_of[column as usize] as usize] -= less;
        }
        self.follow(new as u32, end);
        for column in self.seen.drain(..) {
            self.way[column as usize] = u64::MAX;
        }
        self.next.clear();
    }

    /// The next column of those that are taken, if it is nearer than that.
    fn nearest(&mut self, length: u64) -> Option<u32> {
        while let Some(Reverse((way, column))) = self.next.pop() {
            if way >= length {
                return None;
            }
            if way == self.way[column as usize] {
                return Some(column);
            }
        }
        None
    }

    /// Rows on the way move on by one column.
    fn follow(&mut self, new: u32, end: End) {
        let mut column = match end {
            End::Row(row) if row == new => return,
            End::Row(row) => std::mem::replace(&mut self.column_of[row as usize], NOBODY),
            End::Column(column) => column,
        };
        loop {
            let row = self.before[column as usize];
            self.row_of[column as usize] = row;
            let left = std::mem::replace(&mut self.column_of[row as usize], column);
            if row == new {
                break;
            }
            column = left;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{RandomKey, uniform_index};

    #[test]
    fn nothing_weighs_more() {
        let mut matching = Matching::default();
        for seed in 0..400 {
            let draw = |i: usize, most| uniform_index(RandomKey { seed, stream: 1, step: 0 }, i as u64, most);
            let (n, each) = (1 + draw(0, 80) as usize, draw(1, 9) as usize);
            let most = [2, 30, 1 << 62][seed as usize % 3];
            let edges: Vec<Vec<(u64, u32)>> = (0..n)
                .map(|row| {
                    let mut own: Vec<u32> =
                        (0..each).map(|i| draw(2 + row * 16 + i, n as u64) as u32).collect();
                    own.sort_unstable();
                    own.dedup();
                    own.into_iter().map(|c| (draw(2000 + row * n + c as usize, most), c)).collect()
                })
                .collect();
            matching.find(n, |row| edges[row].iter().copied());
            let Matching { rows, columns, column_of, row_of, .. } = &matching;
            let mut weight = 0;
            for (row, own) in edges.iter().enumerate() {
                for (w, c) in own {
                    let prices = rows[row] + columns[*c as usize];
                    assert!(prices >= *w, "prices are too low");
                    weight += if column_of[row] == *c { u128::from(*w) } else { 0 };
                }
                assert!(column_of[row] == NOBODY || row_of[column_of[row] as usize] as usize == row);
            }
            // By prices no matching weighs more than they are together.
            let prices: u128 = rows.iter().chain(columns).map(|p| u128::from(*p)).sum();
            assert_eq!(weight, prices, "seed {seed}");
        }
    }
}
