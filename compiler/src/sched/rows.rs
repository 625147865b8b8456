//! How many different rows a batch uses, and how soon they are used again.
//!
//! Rows are used at rates that add up ([`fs_workload::ids`]), so a class of reuse distance is a product over the
//! windows that it spans.

use std::sync::Arc;

use fs_schedule::{IdDistribution, Reuse, Way};
use fs_workload::ids::{Draws, RowLaw, used};

use super::answers::Answers;

/// Expected entries of one rank's request for a batch, as a whole and by class.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entries {
    /// Entries.
    pub sent: f64,
    /// Those of each class of lookups.
    pub forward: Vec<f64>,
    /// Those of each class of gradients.
    pub backward: Vec<f64>,
}

impl Entries {
    /// For `ranks` ranks that all draw like this one; `unique`: a row is one entry however often it is drawn.
    fn expect(
        law: &RowLaw,
        of: Popular,
        draws: Draws,
        ranks: f64,
        unique: bool,
        reuse: Option<Reuse>,
    ) -> Self {
        let w = reuse.map_or(1, |r| r.windows.max(1));
        let forward = reuse.map_or_else(Vec::new, |r| r.classes(Way::Forward));
        let backward = reuse.map_or_else(Vec::new, |r| r.classes(Way::Backward));
        let k = reuse.map_or(0, |r| r.lookahead);
        let mut entries =
            Self { sent: 0.0, forward: vec![0.0; forward.len()], backward: vec![0.0; backward.len()] };
        let mut before = 0.0;
        for bin in law.bins() {
            let rows = of.rows(before, bin.rows);
            before += bin.rows;
            // Of a batch of this rank, of one of its windows, of a window of all ranks, of the others.
            let batch = law.rate(bin, draws);
            let expected = if unique { used(batch) } else { law.occurrences(bin, draws) };
            entries.sent += rows * expected;
            if forward.is_empty() {
                continue;
            }
            let own = batch / f64::from(w);
            let all = own * ranks;
            let others = own * (ranks - 1.0);
            for (c, class) in forward.iter().enumerate() {
                let b = class.window;
                let first =
                    if unique { (-own * f64::from(b)).exp() * used(own) } else { expected / f64::from(w) };
                let last = match class.distance {
                    Some(d) => (-all * f64::from(d - b - 1)).exp() * used(all),
                    None => (-all * f64::from(k.saturating_sub(b))).exp(),
                };
                entries.forward[c] += rows * first * last;
            }
            for (c, class) in backward.iter().enumerate() {
                let after = f64::from(w - 1 - class.window);
                // Used last in this window by any rank, and by this one at all.
                let any = (-all * after).exp() * used(all);
                let without = (-batch).exp() * (-others * after).exp() * used(others);
                let here = (any - without).max(0.0);
                let here = if unique { here } else { expected * here / used(batch).max(f64::MIN_POSITIVE) };
                let next = match class.distance {
                    Some(e) => (-all * f64::from(e - (w - class.window))).exp() * used(all),
                    None => (-all * f64::from((k + 1).saturating_sub(w - class.window))).exp(),
                };
                entries.backward[c] += rows * here * next;
            }
        }
        entries
    }
}

/// Which of a table's rows, by how often they are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Popular {
    /// All.
    #[default]
    All,
    /// So many of those that are asked for most.
    Hottest(u64),
}

impl Popular {
    /// How many of `rows` rows behind `before` more popular ones.
    fn rows(self, before: f64, rows: f64) -> f64 {
        match self {
            Self::All => rows,
            Self::Hottest(n) => (n as f64 - before).clamp(0.0, rows),
        }
    }
}

/// A table's law: how its ids are distributed over so many rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Law {
    /// The law of its ids.
    pub ids: IdDistribution,
    /// Its rows.
    pub rows: u64,
    /// Those of them that are asked for.
    pub of: Popular,
}

/// A law, in what it can be told from others by.
type Name = (u8, u64, u64);
/// What is asked of one: draws, ranks, whether a row is one entry, and how they are told apart.
type Question = (Name, Popular, [u64; 3], bool, Option<Reuse>);

impl Law {
    fn name(self) -> Name {
        match self.ids {
            IdDistribution::Uniform => (0, 0, self.rows),
            IdDistribution::Zipf(s) => (1, s.to_bits(), self.rows),
            IdDistribution::PopularityZipf(s) => (2, s.to_bits(), self.rows),
        }
    }
}

/// What follows from laws, kept: schedules of a search differ in how tables travel and hardly in what is drawn of them, and models
/// repeat tables.
#[derive(Debug, Default)]
pub(crate) struct Expected {
    laws: Answers<Name, Arc<RowLaw>>,
    entries: Answers<Question, Entries>,
}

impl Expected {
    /// The probabilities of a table's rows.
    pub(crate) fn law(&self, law: Law) -> Arc<RowLaw> {
        self.laws.of(law.name(), || RowLaw::new(law.ids, law.rows).into())
    }

    /// As [`Entries::expect`].
    pub(crate) fn entries(
        &self,
        law: Law,
        draws: Draws,
        ranks: f64,
        unique: bool,
        reuse: Option<Reuse>,
    ) -> Entries {
        let asked = [draws.by_law, draws.uniform, ranks].map(f64::to_bits);
        let expect = || Entries::expect(&self.law(law), law.of, draws, ranks, unique, reuse);
        self.entries.of((law.name(), law.of, asked, unique, reuse), expect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64, tolerance: f64) {
        assert!((a - b).abs() <= tolerance * b.abs().max(1e-12), "{a} for {b}");
    }

    #[test]
    fn every_draw_hits_the_only_row() {
        let reuse = Reuse::new(1, 2);
        let draws = Draws { by_law: 3.0, uniform: 2.0 };
        for unique in [true, false] {
            let e = Entries::expect(&RowLaw::uniform(1), Popular::All, draws, 2.0, unique, Some(reuse));
            close(e.sent, if unique { 1.0 } else { 5.0 }, 1e-9);
            close(e.forward.iter().sum(), e.sent, 1e-6);
            close(e.backward.iter().sum(), e.sent, 1e-6);
        }
    }

    #[test]
    fn classes_add_up_to_the_entries() {
        for (k, m, unique) in [(1, 1, true), (3, 1, true), (2, 4, true), (3, 2, false), (5, 2, true)] {
            let reuse = Reuse::new(k, m);
            let law = RowLaw::zipf(100_000, 1.05);
            let draws = Draws { by_law: 3000.0, uniform: 500.0 };
            let e = Entries::expect(&law, Popular::All, draws, 8.0, unique, Some(reuse));
            close(e.forward.iter().sum(), e.sent, 1e-9);
            close(e.backward.iter().sum(), e.sent, 1e-9);
        }
    }

    /// Whatever else was asked before, and again.
    #[test]
    fn what_is_kept_is_what_follows() {
        let expected = Expected::default();
        let laws = [
            Law { ids: IdDistribution::Uniform, rows: 500, of: Popular::All },
            Law { ids: IdDistribution::Zipf(1.05), rows: 500, of: Popular::All },
            Law { ids: IdDistribution::Zipf(1.2), rows: 500, of: Popular::All },
            Law { ids: IdDistribution::PopularityZipf(1.2), rows: 501, of: Popular::All },
        ];
        let draws = |by_law, uniform| Draws { by_law, uniform };
        let draws = [draws(300.0, 0.0), draws(0.0, 300.0), draws(300.0, 20.0)];
        let mut all = Vec::new();
        for _ in 0..2 {
            for (law, d) in laws.iter().flat_map(|law| draws.map(|d| (*law, d))) {
                for (ranks, unique) in [(2.0, true), (3.0, true), (2.0, false)] {
                    for reuse in
                        [None, Some(Reuse::new(1, 1)), Some(Reuse::new(2, 1)), Some(Reuse::new(1, 2))]
                    {
                        let kept = expected.entries(law, d, ranks, unique, reuse);
                        let law = RowLaw::new(law.ids, law.rows);
                        assert_eq!(kept, Entries::expect(&law, Popular::All, d, ranks, unique, reuse));
                        all.push(format!("{kept:?}"));
                    }
                }
            }
        }
        let (once, again) = all.split_at(all.len() / 2);
        assert_eq!(once, again);
        // Without classes ranks do not matter.
        let different = once.iter().collect::<std::collections::BTreeSet<_>>();
        assert!(different.len() >= once.len() * 3 / 4, "{} of {}", different.len(), once.len());
    }

    /// The share of unique rows of a batch that the batch before used: about 0.23 for 2048 histories of 1000 ids over
    /// 50 million rows with exponent 1.05 (simulated, with one rank that has them all).
    #[test]
    fn overlap_with_the_batch_before() {
        let reuse = Reuse::new(1, 1);
        let draws = Draws { by_law: 2048.0 * 1000.0, uniform: 0.0 };
        let e = Entries::expect(&RowLaw::zipf(50_000_000, 1.05), Popular::All, draws, 1.0, true, Some(reuse));
        close(e.forward[0] / e.sent, 0.23, 0.06);
        close(e.forward[0], e.backward[0], 1e-9);
    }

    /// Against drawing: two ranks, three microbatches, distances counted as the classes define them.
    #[test]
    fn classes_agree_with_drawing() {
        let (rows, per_micro, ranks, m, k) = (40usize, 9usize, 2usize, 3u32, 3u32);
        let reuse = Reuse::new(k, m);
        let mut state = 12345u64;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % rows
        };
        let (mut forward, mut backward) =
            (vec![0.0; reuse.count(Way::Forward)], vec![0.0; reuse.count(Way::Backward)]);
        let rounds = 4000;
        for _ in 0..rounds {
            // Microbatches of three batches before and three after, and the batch itself in the middle.
            let uses: Vec<Vec<Vec<bool>>> = (0..7 * m)
                .map(|_| {
                    (0..ranks)
                        .map(|_| {
                            let mut set = vec![false; rows];
                            (0..per_micro).for_each(|_| set[next()] = true);
                            set
                        })
                        .collect()
                })
                .collect();
            let at = |i: u32| &uses[i as usize];
            let any = |i: u32, r: usize| at(i).iter().any(|s| s[r]);
            let (start, end) = (3 * m, 4 * m);
            for r in 0..rows {
                if let Some(b) = (0..m).find(|b| at(start + b)[0][r]) {
                    let last = (0..start).rev().find(|i| any(*i, r)).map(|i| start + b - i);
                    forward[reuse.class(Way::Forward, b, last).unwrap() as usize] += 1.0;
                    let a = (0..m).rev().find(|a| any(start + a, r)).unwrap();
                    let after = (end..7 * m).find(|i| any(*i, r)).map(|i| i - (start + a));
                    backward[reuse.class(Way::Backward, a, after).unwrap() as usize] += 1.0;
                }
            }
        }
        let draws = Draws { by_law: (per_micro as u32 * m).into(), uniform: 0.0 };
        let e = Entries::expect(&RowLaw::uniform(rows as u64), Popular::All, draws, 2.0, true, Some(reuse));
        for (seen, expected) in forward.iter().zip(&e.forward).chain(backward.iter().zip(&e.backward)) {
            let seen: f64 = seen / f64::from(rounds);
            assert!((seen - expected).abs() < 0.05 + 0.03 * expected, "{seen} for {expected}");
        }
    }
}
