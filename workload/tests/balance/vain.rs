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

/// Whether nothing of a batch's plan is away in vain.
fn check(t: &Ties) -> Result<(), TestCaseError> {
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
            let now =
                (bytes(i, rank) + bytes(j, home), usize::from(!own(i, rank)) + usize::from(!own(j, home)));
            let then = (bytes(i, home) + bytes(j, rank), usize::from(!own(j, rank)));
            prop_assert!(!fits || then >= now, "samples {} and {} are away in vain: {:?}", i, j, plan.rank);
        }
    }
    // Nor do ranks hold each other's lists in vain, two of them or any ring.
    let (mut shared, mut counts) = (vec![vec![0i64; t.ranks]; t.ranks], vec![0; t.ranks]);
    for i in 0..n {
        shared[plan.rank[i] as usize][t.home[i] as usize] += t.bytes[i] as i64;
        counts[plan.rank[i] as usize] += 1;
    }
    // What more is at home if a list goes to another's rank; then if that one goes on as well, and so on.
    let mut gain = vec![vec![None; t.ranks]; t.ranks];
    for a in 0..t.ranks {
        for b in (0..t.ranks).filter(|b| !t.equal_counts || counts[*b] == counts[a]) {
            gain[a][b] = Some(shared[a][b] - shared[a][a]);
        }
    }
    for over in 0..t.ranks {
        for a in 0..t.ranks {
            let Some(first) = gain[a][over] else { continue };
            let thence = gain[over].clone();
            for (gain, then) in gain[a].iter_mut().zip(thence) {
                *gain = (*gain).max(then.map(|then| first + then));
            }
            prop_assert!(gain[a][a] <= Some(0), "a ring of lists leads through {} and {}", a, over);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn no_sample_is_away_in_vain(t in batches()) {
        check(&t)?;
    }
}

/// Batches whose lists are best left as they are, but for two.
#[test]
fn no_two_lists_are_left_on_each_others_ranks() {
    let anywhere = |ranks, costs: &[u64], home: &[u32], slack| Ties {
        ranks,
        costs: costs.to_vec(),
        bytes: costs.iter().map(|cost| cost + 1).collect(),
        sizes: vec![0; costs.len()],
        home: home.to_vec(),
        limit: None,
        equal_counts: false,
        slack,
    };
    let costs = [
        99, 102, 101, 100, 99, 100, 102, 101, 102, 99, 102, 99, 100, 101, 102, 101, 101, 102, 100, 102, 102,
        100, 100, 99, 101, 101, 102, 100, 102, 102, 99, 100, 102, 100, 99, 101, 101, 99, 101, 99, 100, 102,
        99, 99, 101, 102, 101, 102, 100, 101, 100, 101, 101, 99, 100, 102, 101,
    ];
    let home = [
        2, 14, 12, 31, 28, 18, 26, 5, 24, 7, 18, 13, 10, 12, 33, 3, 31, 9, 6, 30, 9, 14, 5, 5, 24, 22, 14,
        26, 30, 18, 32, 22, 19, 8, 18, 24, 3, 23, 26, 29, 31, 14, 5, 2, 19, 19, 5, 8, 0, 32, 18, 12, 25, 28,
        25, 14, 9,
    ];
    check(&anywhere(35, &costs, &home, 0.0)).expect("nothing is away in vain");
    let costs = [
        100, 101, 99, 101, 99, 101, 101, 101, 101, 102, 100, 100, 100, 100, 100, 99, 101, 101, 102, 99, 100,
        102, 101, 100, 99, 102, 99, 99, 99, 101, 100, 99, 102, 101, 100, 101, 102, 100, 102, 102, 100, 102,
        99, 100, 99, 102, 100, 102, 100, 100, 101, 99, 102, 100, 101, 101, 102, 99, 101, 101, 102, 100, 100,
    ];
    let home = [
        18, 2, 0, 19, 29, 8, 13, 31, 30, 12, 5, 21, 20, 26, 21, 9, 29, 13, 5, 15, 29, 28, 15, 16, 8, 29, 29,
        25, 29, 29, 15, 17, 7, 19, 22, 28, 24, 29, 31, 16, 2, 2, 7, 22, 25, 13, 10, 13, 26, 31, 17, 15, 30,
        28, 13, 29, 19, 4, 3, 29, 28, 32, 7,
    ];
    check(&anywhere(33, &costs, &home, 2.0)).expect("nothing is away in vain");
    // Equal counts, equal bytes.
    let costs = [
        1111, 1874, 2264, 545, 1608, 1262, 2040, 838, 3614, 101, 2169, 3214, 846, 1142, 724, 2937, 3416,
        1512, 2443, 3888, 414, 1429, 710, 3953, 190, 1826, 3477, 3782, 2897, 2554, 2127, 1165, 3250, 3541,
        3929, 128, 3699, 1471, 3657, 1624, 1795, 838, 3233, 1791, 683, 729, 347, 465, 3140, 1087, 2313, 1522,
        1234, 3472, 3388, 2053, 3395, 3134,
    ];
    let home = [
        30, 19, 11, 13, 23, 24, 23, 17, 7, 29, 4, 2, 9, 1, 6, 4, 0, 6, 11, 21, 13, 8, 30, 26, 28, 28, 30, 25,
        14, 32, 20, 16, 12, 19, 26, 31, 31, 5, 31, 4, 14, 13, 22, 9, 6, 14, 5, 10, 11, 10, 1, 13, 22, 5, 12,
        16, 3, 23,
    ];
    let bytes = vec![16; costs.len()];
    check(&Ties { bytes, equal_counts: true, ..anywhere(33, &costs, &home, 2.0) })
        .expect("nothing is away in vain");
}
