//! The table of docs/balance.md: `cargo run --release -p fs-workload --example balance`.
#![allow(clippy::print_stdout, reason = "it prints a table")]

#[path = "../tests/balance/cases.rs"]
mod cases;
#[path = "../tests/balance/peers.rs"]
mod peers;

use cases::{Batch, Lengths};
use std::time::Instant;

fn main() {
    println!(
        "| ranks x samples | D | lengths | bound | random | largest first | Karmarkar-Karp | ours | bytes, largest first | bytes, ours | fewer | planned in |"
    );
    println!("|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    let most: usize = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(1024);
    for ranks in [8, 32, 256, 1024].into_iter().filter(|r| *r <= most) {
        for samples in [8, 32, 64] {
            for dim in [64, 512] {
                for lengths in Lengths::ALL {
                    row(ranks, samples, dim, lengths);
                }
            }
        }
    }
}

fn row(ranks: usize, samples: usize, dim: u32, lengths: Lengths) {
    let seeds = if ranks > 100 { 3 } else { 8 };
    let mut sums = [0.0; 8];
    // Of the seed that takes longest the best of five.
    let mut time = 0.0;
    for seed in 1..=seeds {
        let batch = Batch::new(&cases::hstu(dim), &lengths.draw(ranks * samples, seed), ranks);
        let (random, _) = batch.score(&peers::random(&batch.costs, ranks, seed));
        let (largest, away) = batch.score(&peers::largest_first(&batch.costs, ranks));
        let (kk, _) = batch.score(&peers::karmarkar_karp(&batch.costs, ranks));
        let plan = batch.plan();
        let (ours, moved) = batch.score(&plan.rank);
        let bound = 1.0 - plan.total as f64 / ranks as f64 / plan.bound as f64;
        let mut best = f64::MAX;
        for _ in 0..5 {
            let mut planner = fs_workload::balance::Planner::default();
            planner.plan(&batch.problem()).expect("no limit");
            let start = Instant::now();
            planner.plan(&batch.problem()).expect("no limit");
            best = best.min(start.elapsed().as_secs_f64());
        }
        time = f64::max(time, best);
        for (sum, x) in sums.iter_mut().zip([bound, random, largest, kk, ours, away as f64, moved as f64]) {
            *sum += x / f64::from(seeds as u32);
        }
    }
    let [bound, random, largest, kk, ours, away, moved, _] = sums;
    println!(
        "| {ranks} x {samples} | {dim} | {} | {:.2}% | {:.2}% | {:.2}% | {:.2}% | {:.2}% | {:.2} MB | {:.2} MB | {:.0}% | {:.3} ms |",
        lengths.name(),
        100.0 * bound,
        100.0 * random,
        100.0 * largest,
        100.0 * kk,
        100.0 * ours,
        away / 1e6,
        moved / 1e6,
        100.0 * (1.0 - moved / away),
        time * 1e3,
    );
}
