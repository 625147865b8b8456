//! Few samples: plans against the best there is, found by trying all.

use fs_workload::balance::{Planner, Problem};

use crate::cases::{Batch, Lengths, hstu};
use crate::peers;

/// The least greatest cost of a rank over all assignments, with as many samples on each as `counts` says if there are any.
fn optimum(costs: &[u64], ranks: usize, counts: Option<&[usize]>) -> u64 {
    struct Search<'a> {
        costs: Vec<u64>,
        counts: Option<&'a [usize]>,
        loads: Vec<u64>,
        held: Vec<usize>,
        bound: u64,
        best: u64,
    }
    impl Search<'_> {
        fn place(&mut self, at: usize) {
            if self.best == self.bound {
                return;
            }
            let Some(cost) = self.costs.get(at).copied() else {
                self.best = self.loads.iter().copied().max().unwrap_or(0);
                return;
            };
            // What is left unused by ranks that are full.
            let room = (0..self.loads.len())
                .filter(|r| self.counts.is_none_or(|counts| self.held[*r] < counts[*r]))
                .map(|r| (self.best - 1).saturating_sub(self.loads[r]))
                .fold(0, u64::saturating_add);
            if room < self.costs[at..].iter().sum() {
                return;
            }
            for rank in 0..self.loads.len() {
                let alike = |r: usize| {
                    let counts = self.counts.is_none_or(|counts| counts[r] == counts[rank]);
                    self.loads[r] == self.loads[rank] && self.held[r] == self.held[rank] && counts
                };
                let full = self.counts.is_some_and(|counts| self.held[rank] == counts[rank]);
                if full || self.loads[rank] + cost >= self.best || (0..rank).any(alike) {
                    continue;
                }
                self.loads[rank] += cost;
                self.held[rank] += 1;
                self.place(at + 1);
                self.held[rank] -= 1;
                self.loads[rank] -= cost;
            }
        }
    }
    let mut sorted = costs.to_vec();
    sorted.sort_unstable_by_key(|cost| std::cmp::Reverse(*cost));
    let bound = sorted.iter().sum::<u64>().div_ceil(ranks as u64).max(sorted.first().copied().unwrap_or(0));
    let (loads, held) = (vec![0; ranks], vec![0; ranks]);
    // Largest first is a way, but may not be one with equal counts.
    let first = peers::largest_first(costs, ranks);
    let mut sums = vec![0; ranks];
    first.iter().zip(costs).for_each(|(rank, cost)| sums[*rank as usize] += cost);
    let best = if counts.is_some() { u64::MAX } else { sums.into_iter().max().unwrap_or(0) };
    let mut search = Search { costs: sorted, counts, loads, held, bound, best };
    search.place(0);
    search.best
}

/// Ranks and samples that are tried: all in one, homes of as many samples each and of any.
const SIZES: [(usize, usize); 10] =
    [(2, 4), (2, 8), (2, 12), (2, 16), (3, 9), (3, 12), (4, 8), (4, 12), (4, 16), (6, 12)];

struct Gap {
    compared: usize,
    worse: usize,
    most: f64,
}

/// How much longer than by the best plan a step is: of so many seeds, in parts of the best.
fn gap((ranks, n): (usize, usize), seeds: u64, equal_counts: bool, uneven: bool) -> Gap {
    let mut gap = Gap { compared: 0, worse: 0, most: 0.0 };
    let mut planner = Planner::default();
    for seed in 0..seeds {
        for (lengths, cut) in [
            (Lengths::MovieLens, 200),
            (Lengths::Lognormal(1.0), 4096),
            (Lengths::Lognormal(0.4), 4096),
            (Lengths::Heavy, 21_000),
        ] {
            let lengths: Vec<u32> = lengths.draw(n, seed).into_iter().map(|l| l.min(cut)).collect();
            let mut batch = Batch::new(&hstu(64), &lengths, ranks);
            if uneven {
                batch.home = (0..n).map(|i| ((i * i + seed as usize * i) % ranks) as u32).collect();
            }
            let mut counts = vec![0; ranks];
            batch.home.iter().for_each(|home| counts[*home as usize] += 1);
            let problem = Problem { equal_counts, ..batch.problem() };
            let plan = planner.plan(&problem).expect("there is no limit");
            let best = optimum(&batch.costs, ranks, equal_counts.then_some(&counts));
            assert!(plan.most >= best, "better than the best");
            let over = plan.most as f64 / best as f64 - 1.0;
            gap.compared += 1;
            // 0.2% of the bound is what nothing is moved for.
            gap.worse += usize::from(over > 0.0021);
            gap.most = gap.most.max(over);
        }
    }
    gap
}

/// Homes of as many samples each; the same with equal counts; homes of any, with equal counts.
const KINDS: [(bool, bool); 3] = [(false, false), (true, false), (true, true)];

#[test]
fn few_samples_are_planned_nearly_as_well_as_can_be() {
    for size in SIZES {
        for (equal_counts, uneven) in KINDS {
            let seeds = if size.1 > 12 { 1 } else { 8 };
            let gap = gap(size, seeds, equal_counts, uneven);
            let case = format!("{size:?}, equal counts {equal_counts}, homes of any number {uneven}");
            let (most, share) = if uneven { (0.006, 0.2) } else { (0.0025, 0.05) };
            assert!(gap.most <= most, "{case}: {:.2}% more than the best", 100.0 * gap.most);
            let allowed = (share * gap.compared as f64).max(1.0);
            assert!(gap.worse as f64 <= allowed, "{case}: {} are worse", gap.worse);
        }
    }
}

/// The table of docs/balance.md: `cargo test --release -p fs-workload --test balance -- --ignored --nocapture`.
#[test]
#[ignore = "takes a minute and prints a table"]
#[allow(clippy::print_stdout, reason = "it prints a table")]
fn what_remains_for_few_samples() {
    println!("| ranks | samples | as they fit | equal counts | equal counts, homes of any number |");
    println!("|---:|---:|---|---|---|");
    for (ranks, n) in SIZES {
        let seeds = if n > 12 { 20 } else { 100 };
        let said = KINDS.map(|(equal_counts, uneven)| {
            let gap = gap((ranks, n), seeds, equal_counts, uneven);
            format!("{} of {}, {:.2}%", gap.worse, gap.compared, 100.0 * gap.most)
        });
        println!("| {ranks} | {n} | {} |", said.join(" | "));
    }
}
