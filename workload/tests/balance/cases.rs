//! Batches to plan.
#![allow(dead_code, reason = "each program uses a part")]

use fs_workload::LengthDistribution;
use fs_workload::balance::{CostModel, GroupCost, Plan, Planner, Problem, SLACK};
use fs_workload::lengths::LengthLaw;
use fs_workload::random::{RandomKey, uniform_index};

/// Where lengths come from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Lengths {
    /// Ratings of each user of ml-latest-small, drawn with replacement.
    MovieLens,
    /// Lognormal of this sigma, mean 300, to 4,096.
    Lognormal(f64),
    /// Pareto of exponent 1.2 from 20 on, to 21,000.
    Heavy,
    /// Any of these, each as often.
    Uniform(u32, u32),
}

impl Lengths {
    /// Those of a table.
    pub(crate) const ALL: [Self; 5] =
        [Self::MovieLens, Self::Lognormal(0.8), Self::Lognormal(1.0), Self::Lognormal(1.2), Self::Heavy];

    /// For people.
    pub(crate) fn name(self) -> String {
        match self {
            Self::MovieLens => "MovieLens".into(),
            Self::Lognormal(sigma) => format!("lognormal {sigma}"),
            Self::Heavy => "heavy".into(),
            Self::Uniform(least, most) => format!("uniform {least} to {most}"),
        }
    }

    /// Lengths of a batch.
    pub(crate) fn draw(self, n: usize, seed: u64) -> Vec<u32> {
        let key = |i: usize| RandomKey { seed, stream: 3, step: i as u64 };
        match self {
            Self::MovieLens => {
                let histories = movielens();
                (0..n).map(|i| histories[uniform_index(key(i), 0, histories.len() as u64) as usize]).collect()
            }
            Self::Lognormal(sigma) => {
                let law = LengthDistribution::Lognormal { mean: 300.0, sigma, min: 1, max: None };
                let law = LengthLaw::new(law, 4096).expect("a law");
                (0..n).map(|i| law.draw(key(i))).collect()
            }
            Self::Heavy => {
                let length = |i| {
                    let u = (uniform_index(key(i), 0, 1 << 30) as f64 + 0.5) / f64::from(1 << 30);
                    (20.0 * u.powf(-1.0 / 1.2)).min(21_000.0) as u32
                };
                (0..n).map(length).collect()
            }
            Self::Uniform(least, most) => {
                let length = |i| least + uniform_index(key(i), 0, u64::from(most - least) + 1) as u32;
                (0..n).map(length).collect()
            }
        }
    }
}

fn movielens() -> Vec<u32> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/data/ml-latest-small/ratings.csv");
    let text = std::fs::read_to_string(path).expect("the example's ratings");
    let mut counts = std::collections::BTreeMap::new();
    for line in text.lines().skip(1) {
        *counts.entry(line.split(',').next().and_then(|user| user.parse::<u32>().ok())).or_insert(0) += 1;
    }
    counts.into_values().collect()
}

/// Work on a sequence in blocks of HSTU of width `dim`: products of 5 dim^2 a token, attention of dim a pair (half of
/// the pairs, two products).
pub(crate) fn hstu(dim: u32) -> CostModel {
    let d = f64::from(dim);
    CostModel { constant: 0.0, groups: vec![GroupCost { linear: 10.0 * d * d, square: 2.0 * d }] }
}

/// A batch with all that planning asks for.
pub(crate) struct Batch {
    pub costs: Vec<u64>,
    pub bytes: Vec<u64>,
    pub home: Vec<u32>,
    pub ranks: usize,
}

impl Batch {
    /// Ranks read as many samples each, of 8 bytes an id and 16 more.
    pub(crate) fn new(model: &CostModel, lengths: &[u32], ranks: usize) -> Self {
        let n = lengths.len();
        let costs: Vec<f64> = lengths.iter().map(|l| model.of([*l])).collect();
        let mut scaled = Vec::new();
        model.scaled(&costs, &mut scaled).expect("costs are finite");
        Self {
            costs: scaled,
            bytes: lengths.iter().map(|l| 8 * u64::from(*l) + 16).collect(),
            home: (0..n).map(|i| (i * ranks / n) as u32).collect(),
            ranks,
        }
    }

    pub(crate) fn problem(&self) -> Problem<'_> {
        Problem {
            ranks: self.ranks,
            home: &self.home,
            costs: &self.costs,
            bytes: &self.bytes,
            limit: None,
            equal_counts: false,
            microbatches: 1,
            slack: SLACK,
        }
    }

    pub(crate) fn plan(&self) -> Plan {
        Planner::default().plan(&self.problem()).expect("there is no limit").clone()
    }

    /// Share of a step in which the mean rank waits for the slowest, and bytes that are not at home.
    pub(crate) fn score(&self, to: &[u32]) -> (f64, u64) {
        let mut loads = vec![0u64; self.ranks];
        let mut bytes = 0;
        for (i, rank) in to.iter().enumerate() {
            loads[*rank as usize] += self.costs[i];
            bytes += if *rank == self.home[i] { 0 } else { self.bytes[i] };
        }
        let most = loads.iter().copied().max().unwrap_or(0) as f64;
        (1.0 - loads.iter().sum::<u64>() as f64 / self.ranks as f64 / most, bytes)
    }
}
