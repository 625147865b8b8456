//! What it would buy to put samples together that share rows: the table of docs/balance.md, `cargo run --release -p
//! fs-workload --example clusters`.
//!
//! Batches one after the other are planned as always. Then samples of about equal cost are exchanged between ranks, or
//! between microbatches, wherever that leaves fewer bytes to send: a rank asks for a row once a batch, however many of its
//! samples use it. A row is *urgent* for a rank that uses it in its first microbatch if anybody used it in the last one of
//! the batch before: it can be asked for only once that batch has been applied.
#![allow(clippy::print_stdout, reason = "it prints a table")]

#[path = "../tests/balance/cases.rs"]
mod cases;

use std::collections::BTreeMap;
use std::time::Instant;

use fs_workload::balance::{Planner, Problem, SLACK};
use fs_workload::ids::IdSampler;
use fs_workload::lengths::LengthLaw;
use fs_workload::random::{RandomKey, uniform_f64, uniform_index};
use fs_workload::{IdDistribution, LengthDistribution};

/// Bytes of a row that goes to a rank, and of its gradient on its way back.
const ROW: u64 = 2 * 4 * 64;
/// Bytes of an id that moves to another rank.
const ID: u64 = 4;
/// Other samples that each sample is tried against, in each pass.
const TRIES: u64 = 48;
const PASSES: u64 = 4;

/// Unique ids of each sample, ascending, and its length.
type Sample = (Vec<u32>, u32);

/// Histories of ml-latest-small in a random order, the newest 200 of each.
fn movielens(batches: usize, size: usize) -> Vec<Vec<Sample>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/data/ml-latest-small/ratings.csv");
    let text = std::fs::read_to_string(path).expect("the example's ratings");
    let mut users: BTreeMap<u32, Vec<(u64, u32)>> = BTreeMap::new();
    for line in text.lines().skip(1) {
        let mut fields = line.split(',').map(|f| f.parse::<f64>().expect("a number") as u64);
        let [user, item, _, time] = std::array::from_fn(|_| fields.next().expect("a column"));
        users.entry(user as u32).or_default().push((time, item as u32));
    }
    let histories: Vec<Vec<u32>> = users
        .into_values()
        .map(|mut visits| {
            visits.sort_unstable();
            let from = visits.len().saturating_sub(200);
            visits[from..].iter().map(|v| v.1).collect()
        })
        .collect();
    let each = histories.len() / size;
    let mut all = Vec::new();
    for epoch in 0..batches.div_ceil(each) as u64 {
        let key = RandomKey { seed: epoch, stream: 4, step: 0 };
        let mut order: Vec<usize> = (0..histories.len()).collect();
        order.sort_by(|a, b| uniform_f64(key, *a as u64).total_cmp(&uniform_f64(key, *b as u64)));
        all.extend(
            order.chunks_exact(size).map(|c| c.iter().map(|u| sample(histories[*u].clone())).collect()),
        );
    }
    all.truncate(batches);
    all
}

fn zipf(batches: usize, size: usize, rows: u64) -> Vec<Vec<Sample>> {
    let law = LengthDistribution::Lognormal { mean: 200.0, sigma: 1.0, min: 1, max: None };
    let law = LengthLaw::new(law, 1024).expect("a law");
    let ids = IdSampler::new(IdDistribution::Zipf(1.05), rows, 1, 0).expect("a law");
    let draw = |batch: usize, i: usize| {
        let key = |stream| RandomKey { seed: batch as u64, stream, step: i as u64 };
        sample((0..law.draw(key(1)) as usize).map(|at| ids.draw(key(2), at) as u32).collect())
    };
    (0..batches).map(|batch| (0..size).map(|i| draw(batch, i)).collect()).collect()
}

fn sample(mut ids: Vec<u32>) -> Sample {
    let length = ids.len() as u32;
    ids.sort_unstable();
    ids.dedup();
    (ids, length)
}

/// Who works on what: rank * microbatches + microbatch.
struct Assigned {
    ranks: usize,
    microbatches: usize,
    unit: Vec<usize>,
}

/// Bytes and rows of batches.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    /// Rows that ranks ask for, each once a batch.
    rows: u64,
    /// The same counted in every microbatch.
    by_microbatch: u64,
    urgent: u64,
    moved_ids: u64,
    /// Greatest cost of a rank over the mean.
    most: f64,
}

impl Sums {
    fn bytes(&self) -> u64 {
        self.rows * ROW + self.moved_ids * ID
    }
}

fn count(batch: &[Sample], home: &[u32], costs: &[u64], a: &Assigned, last: &[u32]) -> (Sums, Vec<u32>) {
    let mut sums = Sums::default();
    let of = |keep: &dyn Fn(usize) -> bool| {
        let own = batch.iter().zip(&a.unit).filter(|(_, unit)| keep(**unit));
        let mut ids: Vec<u32> = own.flat_map(|((ids, _), _)| ids.iter().copied()).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    };
    for rank in 0..a.ranks {
        sums.rows += of(&|unit| unit / a.microbatches == rank).len() as u64;
        for m in 0..a.microbatches {
            let ids = of(&|unit| unit == rank * a.microbatches + m);
            sums.by_microbatch += ids.len() as u64;
            if m == 0 {
                sums.urgent += ids.iter().filter(|id| last.binary_search(id).is_ok()).count() as u64;
            }
        }
    }
    let mut loads = vec![0; a.ranks];
    for (i, unit) in a.unit.iter().enumerate() {
        loads[unit / a.microbatches] += costs[i];
        if unit / a.microbatches != home[i] as usize {
            sums.moved_ids += u64::from(batch[i].1);
        }
    }
    let mean = loads.iter().sum::<u64>() as f64 / a.ranks as f64;
    sums.most = *loads.iter().max().expect("ranks") as f64 / mean;
    (sums, of(&|unit| unit % a.microbatches == a.microbatches - 1))
}

/// Exchanges samples of about equal cost between groups (ranks, or microbatches of ranks) where fewer bytes remain.
fn cluster(batch: &[Sample], home: &[u32], costs: &[u64], a: &mut Assigned, by_microbatch: bool, seed: u64) {
    let group = |unit: usize, m: usize| if by_microbatch { unit } else { unit / m };
    let m = a.microbatches;
    let groups = a.ranks * if by_microbatch { m } else { 1 };
    let mut uses: Vec<BTreeMap<u32, u32>> = vec![BTreeMap::new(); groups];
    let (mut loads, mut of_ranks) = (vec![0u64; groups], vec![0u64; a.ranks]);
    for (i, unit) in a.unit.iter().enumerate() {
        loads[group(*unit, m)] += costs[i];
        of_ranks[unit / m] += costs[i];
        for id in &batch[i].0 {
            *uses[group(*unit, m)].entry(*id).or_default() += 1;
        }
    }
    let most = *loads.iter().max().expect("groups");
    let most_of_ranks = *of_ranks.iter().max().expect("ranks");
    for pass in 0..PASSES {
        for i in 0..batch.len() {
            for t in 0..TRIES {
                let key = RandomKey { seed, stream: 8 + pass as u32, step: i as u64 };
                let j = uniform_index(key, t, batch.len() as u64) as usize;
                let (from, to) = (group(a.unit[i], m), group(a.unit[j], m));
                let (rank, other) = (a.unit[i] / m, a.unit[j] / m);
                let over = |loads: &[u64], own: usize, out: usize, back: usize, most: u64| {
                    after_exchange(loads[own], costs[out], costs[back]) > most
                };
                if from == to
                    || over(&loads, from, i, j, most)
                    || over(&loads, to, j, i, most)
                    || rank != other
                        && (over(&of_ranks, rank, i, j, most_of_ranks)
                            || over(&of_ranks, other, j, i, most_of_ranks))
                {
                    continue;
                }
                // Rows that a group no longer asks for, and those that it asks for anew.
                let mut rows = 0i64;
                for (own, out, back) in [(from, i, j), (to, j, i)] {
                    let (out, back) = (&batch[out].0, &batch[back].0);
                    rows -=
                        out.iter().filter(|id| uses[own][id] == 1 && back.binary_search(id).is_err()).count()
                            as i64;
                    rows += back.iter().filter(|id| !uses[own].contains_key(id)).count() as i64;
                }
                let away = |sample: usize, unit: usize| {
                    if unit / m == home[sample] as usize { 0 } else { i64::from(batch[sample].1) }
                };
                let moved = away(i, a.unit[j]) + away(j, a.unit[i]) - away(i, a.unit[i]) - away(j, a.unit[j]);
                if rows * ROW as i64 + moved * ID as i64 >= 0 {
                    continue;
                }
                for (own, out, back) in [(from, i, j), (to, j, i)] {
                    loads[own] = after_exchange(loads[own], costs[out], costs[back]);
                    for id in &batch[out].0 {
                        let n = uses[own].get_mut(id).expect("used");
                        *n -= 1;
                        if *n == 0 {
                            uses[own].remove(id);
                        }
                    }
                    for id in &batch[back].0 {
                        *uses[own].entry(*id).or_default() += 1;
                    }
                }
                if rank != other {
                    of_ranks[rank] = after_exchange(of_ranks[rank], costs[i], costs[j]);
                    of_ranks[other] = after_exchange(of_ranks[other], costs[j], costs[i]);
                }
                a.unit.swap(i, j);
            }
        }
    }
}

fn after_exchange(load: u64, out: u64, back: u64) -> u64 {
    load - out + back
}

fn experiment(name: &str, batches: &[Vec<Sample>], ranks: usize, microbatches: usize) {
    let model = cases::hstu(64);
    // As planned, exchanged between ranks, exchanged between microbatches too.
    let mut sums = [Sums::default(); 3];
    let mut last: [Vec<u32>; 3] = Default::default();
    let mut times = [0.0; 3];
    // What it takes that all ranks know all ids.
    let mut known = 0;
    for (number, batch) in batches.iter().enumerate() {
        let n = batch.len();
        let home: Vec<u32> = (0..n).map(|i| (i * ranks / n) as u32).collect();
        let costs: Vec<f64> = batch.iter().map(|s| model.of([s.1])).collect();
        let mut scaled = Vec::new();
        model.scaled(&costs, &mut scaled).expect("costs");
        let bytes: Vec<u64> = batch.iter().map(|s| ID * u64::from(s.1)).collect();
        let problem = Problem {
            ranks,
            home: &home,
            costs: &scaled,
            bytes: &bytes,
            limit: None,
            equal_counts: false,
            microbatches,
            slack: SLACK,
        };
        let mut planner = Planner::default();
        let plan = planner.plan(&problem).expect("a plan");
        known += batch.iter().map(|s| s.0.len() as u64).sum::<u64>() * ID * (ranks as u64 - 1);
        for (kind, (sums, last)) in sums.iter_mut().zip(&mut last).enumerate() {
            let mut unit = vec![0; n];
            for rank in 0..ranks {
                for m in 0..microbatches {
                    plan.samples(rank, m).iter().for_each(|s| unit[*s as usize] = rank * microbatches + m);
                }
            }
            let mut a = Assigned { ranks, microbatches, unit };
            let begun = Instant::now();
            if kind > 0 {
                cluster(batch, &home, &scaled, &mut a, kind == 2, number as u64);
            }
            times[kind] += 1e3 * begun.elapsed().as_secs_f64() / batches.len() as f64;
            let (own, rows) = count(batch, &home, &scaled, &a, last);
            *last = rows;
            sums.rows += own.rows;
            sums.by_microbatch += own.by_microbatch;
            sums.moved_ids += own.moved_ids;
            sums.most += own.most / batches.len() as f64;
            // The first batch has none before it.
            sums.urgent += own.urgent;
        }
    }
    let [plain, others @ ..] = sums;
    let fewer = |a: u64, b: u64| 100.0 * (1.0 - b as f64 / a.max(1) as f64);
    for ((what, s), time) in ["ranks", "microbatches"].iter().zip(others).zip(&times[1..]) {
        if microbatches == 1 && *what == "microbatches" {
            continue;
        }
        println!(
            "| {name} | {ranks} x {} | {microbatches} | {what} | {:.1}% | {:.1}% | {:.1}% | {:.1}% | {:.1}% | {:.3} | {:.3} | {time:.0} ms |",
            batches[0].len() / ranks,
            fewer(plain.rows, s.rows),
            fewer(plain.by_microbatch, s.by_microbatch),
            fewer(plain.urgent, s.urgent),
            fewer(plain.bytes(), s.bytes()),
            100.0 * known as f64 / plain.bytes() as f64,
            plain.most,
            s.most,
        );
    }
}

fn main() {
    println!(
        "| ids | ranks x samples | microbatches | exchanged between | fewer rows | fewer rows of microbatches | fewer urgent | fewer bytes | bytes to know all ids | most over mean | after | takes |"
    );
    println!("|---|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|");
    for (ranks, each) in [(4, 16), (8, 8), (8, 32)] {
        for microbatches in [1, 4] {
            if each / microbatches < 4 {
                continue;
            }
            let size = ranks * each;
            experiment("MovieLens", &movielens(8, size), ranks, microbatches);
            for rows in [200_000u64, 50_000_000] {
                let name = format!("Zipf 1.05 over {rows}");
                experiment(&name, &zipf(8, size, rows), ranks, microbatches);
            }
        }
    }
}
