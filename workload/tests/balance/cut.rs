//! Microbatches: cuts against the best there is, and that they are even.

use std::collections::BTreeSet;

use fs_workload::balance::{Plan, Planner, Problem};

use crate::cases::{Batch, Lengths, hstu};

/// What each rank's microbatches cost.
fn loads(costs: &[u64], plan: &Plan, ranks: usize) -> Vec<Vec<u64>> {
    let sum = |rank, m| plan.samples(rank, m).iter().map(|s| costs[*s as usize]).sum();
    (0..ranks).map(|rank| (0..plan.microbatches()).map(|m| sum(rank, m)).collect()).collect()
}

/// Over all cuts: the least sum over microbatches of the dearest rank's cost of those in which none costs more than `longest`, and
/// the least cost of a longest. What any ways to cut the first ranks, the second, ... come to together.
fn least(costs: &[u64], plan: &Plan, ranks: usize, longest: u64) -> (u64, u64) {
    let microbatches = plan.microbatches();
    let mut all = BTreeSet::from([vec![0; microbatches]]);
    for rank in 0..ranks {
        let mut cuts = BTreeSet::from([vec![0; microbatches]]);
        for s in (0..costs.len()).filter(|s| plan.rank[*s] as usize == rank) {
            let with = |cut: &Vec<u64>, m: usize| {
                let mut cut = cut.clone();
                cut[m] += costs[s];
                cut
            };
            cuts = cuts.iter().flat_map(|cut| (0..microbatches).map(move |m| with(cut, m))).collect();
        }
        let dearest = |a: &Vec<u64>, b: &Vec<u64>| a.iter().zip(b).map(|(a, b)| *a.max(b)).collect();
        all = all.iter().flat_map(|turns| cuts.iter().map(move |cut| dearest(turns, cut))).collect();
    }
    let most = |turns: &Vec<u64>| turns.iter().max().copied().unwrap_or(0);
    let sums = all.iter().filter(|turns| most(turns) <= longest).map(|turns| turns.iter().sum());
    (sums.min().unwrap_or(u64::MAX), all.iter().map(most).min().unwrap_or(0))
}

/// What the first microbatch may cost for nothing: an even share, or the dearest sample.
fn share(costs: &[u64], plan: &Plan) -> u64 {
    let dearest = costs.iter().copied().max().unwrap_or(0);
    plan.most.div_ceil(plan.microbatches() as u64).max(dearest)
}

fn cut(batch: &Batch, microbatches: usize) -> Plan {
    let problem = Problem { microbatches, ..batch.problem() };
    Planner::default().plan(&problem).expect("there is no limit").clone()
}

const LAWS: [(Lengths, u32); 4] = [
    (Lengths::MovieLens, 200),
    (Lengths::Lognormal(1.0), 4096),
    (Lengths::Lognormal(0.4), 4096),
    (Lengths::Heavy, 21_000),
];

/// By what share cuts take longer than those that take least and have no longer microbatch, in the mean and at worst; and over
/// what it may be how long the longest is, or over the least that it can be.
fn above((ranks, each, microbatches): (usize, usize, usize), seeds: u64) -> (f64, f64, f64) {
    let (mut all, mut worst, mut uneven, mut n) = (0.0, 0.0f64, 0.0f64, 0);
    for seed in 0..seeds {
        for (lengths, most) in LAWS {
            let lengths: Vec<u32> =
                lengths.draw(ranks * each, seed).into_iter().map(|l| l.min(most)).collect();
            let batch = Batch::new(&hstu(64), &lengths, ranks);
            let plan = cut(&batch, microbatches);
            let loads = loads(&batch.costs, &plan, ranks);
            let turns: Vec<u64> =
                (0..microbatches).map(|m| loads.iter().map(|load| load[m]).max().unwrap_or(0)).collect();
            assert_eq!(plan.most_in_turns, turns.iter().sum::<u64>());
            let longest = turns.iter().copied().max().unwrap_or(0);
            let may_be = share(&batch.costs, &plan) * 5 / 4;
            let (least, shortest) = least(&batch.costs, &plan, ranks, longest.max(may_be));
            assert!(plan.most_in_turns >= least, "better than the best");
            let over = plan.most_in_turns as f64 / least as f64 - 1.0;
            (all, worst, n) = (all + over, worst.max(over), n + 1);
            uneven = uneven.max(longest as f64 / shortest.max(may_be) as f64);
        }
    }
    (all / f64::from(n), worst, uneven)
}

/// Ranks, samples of each and microbatches.
const SMALL: [(usize, usize, usize); 6] = [(2, 4, 2), (3, 4, 2), (4, 4, 2), (2, 6, 2), (2, 5, 3), (2, 8, 2)];

#[test]
fn few_samples_are_cut_nearly_as_well_as_can_be() {
    for size in SMALL {
        let (mean, worst, uneven) = above(size, 8);
        assert!(
            mean < 0.012 && worst < 0.07,
            "{size:?}: {mean} above the least in the mean, {worst} at worst"
        );
        assert!(uneven <= 1.0, "{size:?}: the longest is {uneven} of what it may be");
    }
}

/// Of the dearest rank's cost, how much longer a step is for microbatches, and the longest one over what it costs for nothing.
fn longer((ranks, each, microbatches): (usize, usize, usize), lengths: Lengths, seed: u64) -> (f64, f64) {
    let batch = Batch::new(&hstu(512), &lengths.draw(ranks * each, seed), ranks);
    let plan = cut(&batch, microbatches);
    let longest = loads(&batch.costs, &plan, ranks).into_iter().flatten().max().unwrap_or(0);
    let longer = plan.most_in_turns as f64 / plan.most as f64 - 1.0;
    (longer, longest as f64 / share(&batch.costs, &plan) as f64)
}

#[test]
fn many_samples_meet_in_every_microbatch() {
    let laws = [0.3, 0.8, 1.2].map(Lengths::Lognormal);
    let laws = [Lengths::MovieLens, Lengths::Heavy].into_iter().chain(laws);
    // Of two samples a microbatch and fewer only that no microbatch is long can be promised.
    let few = [(8, 8, 4), (8, 8, 8), (8, 16, 2), (17, 6, 3)].map(|size| (size, f64::MAX));
    let many = [(8, 32, 4), (8, 32, 8), (32, 32, 4), (64, 64, 4)].map(|size| (size, 0.006));
    for ((size, most), law) in
        few.into_iter().chain(many).flat_map(|few| laws.clone().map(move |law| (few, law)))
    {
        for seed in 0..8 {
            let (longer, longest) = longer(size, law, seed);
            assert!(longer < most, "{size:?} {}: {longer}", law.name());
            assert!(longest < 1.26, "{size:?} {}: {longest}", law.name());
        }
    }
}

/// Samples without dear ones are not all put into one microbatch, which would take no longer.
#[test]
fn microbatches_are_even() {
    for size in [(2, 16, 2), (8, 32, 4), (32, 64, 4)] {
        let (ranks, each, microbatches) = size;
        for seed in 0..8 {
            let batch = Batch::new(&hstu(512), &Lengths::Lognormal(0.2).draw(ranks * each, seed), ranks);
            let plan = cut(&batch, microbatches);
            let longest = loads(&batch.costs, &plan, ranks).into_iter().flatten().max().unwrap_or(0);
            let even = plan.most as f64 / microbatches as f64;
            assert!((longest as f64) < 1.15 * even, "{size:?}: {:.2}", longest as f64 / even);
        }
    }
}
