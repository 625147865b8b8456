//! Nothing is away from home in vain: of no plan can a single sample go home, or two exchange places so that fewer bytes are
//! away, without a greater cost, a broken limit or other counts.

use fs_workload::balance::{Limit, Planner, Problem};
use proptest::prelude::*;

/// A batch with many samples of equal cost, or of none.
#[derive(Debug, Clone)]
struct Ties {
    ranks: usize,
    costs: Vec<u64>,
    bytes: Vec<u64>,
    sizes: Vec<u64>,
    home: Vec<u32>,
    /// Of the mean of a rank, in hundredths.
    limit: Option<u64>,
    equal_counts: bool,
    slack: f64,
}

fn batches() -> impl Strategy<Value = Ties> {
    let costs = prop_oneof![
        // Histories cut at a maximum.
        Just(vec![0u64, 1, 7, 50, 50, 50, 50, 50]),
        Just(vec![0, 0, 0, 3]),
        Just(vec![5]),
        Just(vec![100, 101, 102, 99]),
        prop::collection::vec(0..4000u64, 30),
    ];
    let ranks = prop_oneof![2..6usize, 2..17usize, 2..65usize];
    (costs, ranks, 0..12usize, any::<u64>()).prop_flat_map(|(costs, ranks, each, seed)| {
        let n = (ranks * each).min(300);
        let samples = prop::collection::vec((0..costs.len(), 0..3u64, 0..40u64, 0..ranks as u32), n..=n);
        let options = (
            prop::option::of(100..250u64),
            any::<bool>(),
            prop_oneof![Just(0.0), Just(2.0), Just(40.0)],
            any::<bool>(),
        );
        (samples, options).prop_map(move |(samples, (limit, equal_counts, slack, even))| Ties {
            ranks,
            costs: samples.iter().map(|s| costs[s.0]).collect(),
            // Bytes in proportion to costs, the same for all, or any.
            bytes: samples.iter().map(|s| [costs[s.0] + 1, 16, s.1 * s.2][seed as usize % 3]).collect(),
            sizes: samples.iter().map(|s| s.2).collect(),
            home: samples
                .iter()
                .enumerate()
                .map(|(i, s)| if even { (i * ranks / n.max(1)) as u32 } else { s.3 })
                .collect(),
            limit,
            equal_counts,
            slack,
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn no_sample_is_away_in_vain(t in batches()) {
        let most = t.limit.map_or(u64::MAX, |hundredths| {
            let mean = t.sizes.iter().sum::<u64>().div_ceil(t.ranks as u64);
            (mean * hundredths / 100).max(t.sizes.iter().copied().max().unwrap_or(0))
        });
        let problem = Problem {
            ranks: t.ranks,
            home: &t.home,
            costs: &t.costs,
            bytes: &t.bytes,
            limit: t.limit.map(|_| Limit { sizes: &t.sizes, most }),
            equal_counts: t.equal_counts,
            microbatches: 1,
            slack: t.slack,
        };
        let mut planner = Planner::default();
        let Ok(plan) = planner.plan(&problem) else { return Ok(()) };
        let n = t.costs.len();
        let (mut loads, mut sizes) = (vec![0u64; t.ranks], vec![0u64; t.ranks]);
        for i in 0..n {
            loads[plan.rank[i] as usize] += t.costs[i];
            sizes[plan.rank[i] as usize] += t.sizes[i];
        }
        for i in (0..n).filter(|i| plan.rank[*i] != t.home[*i]) {
            let (rank, home) = (plan.rank[i] as usize, t.home[i] as usize);
            let alone = loads[home] + t.costs[i] <= plan.most && sizes[home] + t.sizes[i] <= most;
            prop_assert!(t.equal_counts || !alone, "sample {} could have stayed on {}: {:?}", i, home, plan.rank);
            // Places exchanged with any sample there.
            for j in (0..n).filter(|j| plan.rank[*j] as usize == home) {
                let fits = loads[home] + t.costs[i] - t.costs[j] <= plan.most
                    && loads[rank] + t.costs[j] - t.costs[i] <= plan.most
                    && sizes[home] + t.sizes[i] - t.sizes[j] <= most
                    && sizes[rank] + t.sizes[j] - t.sizes[i] <= most;
                let own = |j: usize, at: usize| t.home[j] as usize == at;
                let bytes = |j: usize, at: usize| if own(j, at) { 0 } else { t.bytes[j] };
                let now = (bytes(i, rank) + bytes(j, home), usize::from(!own(i, rank)) + usize::from(!own(j, home)));
                let then = (bytes(i, home) + bytes(j, rank), usize::from(!own(j, rank)));
                prop_assert!(!fits || then >= now, "samples {} and {} are away in vain: {:?}", i, j, plan.rank);
            }
        }
        // Nor do two ranks hold each other's lists in vain.
        let count = |rank: usize| (0..n).filter(|i| plan.rank[*i] as usize == rank).count();
        let shared = |list: usize, rank: usize| -> u64 {
            let own = (0..n).filter(|i| plan.rank[*i] as usize == list && t.home[*i] as usize == rank);
            own.map(|i| t.bytes[i]).sum()
        };
        for a in 0..t.ranks.min(20) {
            for b in (0..a).filter(|b| !t.equal_counts || count(*b) == count(a)) {
                let then = shared(a, b) + shared(b, a);
                prop_assert!(then <= shared(a, a) + shared(b, b), "lists of {} and {} are exchanged", a, b);
            }
        }
    }
}
