//! Planning time: `cargo bench -p fs-workload --bench balance`.

#[path = "../tests/balance/cases.rs"]
mod cases;

use cases::{Batch, Lengths, hstu};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use fs_workload::balance::{Planner, Problem};

fn planning(c: &mut Criterion) {
    let mut group = c.benchmark_group("plan");
    for (ranks, samples) in
        [(16, 64), (32, 64), (64, 64), (256, 64), (512, 64), (1024, 64), (4096, 64), (256, 32)]
    {
        for lengths in [Lengths::MovieLens, Lengths::Lognormal(1.2)] {
            let batch = Batch::new(&hstu(512), &lengths.draw(ranks * samples, 1), ranks);
            let mut planner = Planner::default();
            group.throughput(Throughput::Elements((ranks * samples) as u64));
            let id = BenchmarkId::new(lengths.name(), format!("{ranks}x{samples}"));
            group.bench_with_input(id, &batch, |b, batch| {
                b.iter(|| planner.plan(&batch.problem()).map(|plan| plan.most));
            });
        }
    }
    group.finish();
}

/// The same, cut into microbatches.
fn cutting(c: &mut Criterion) {
    let mut group = c.benchmark_group("cut");
    for (ranks, samples, microbatches) in [(256, 32, 4), (1024, 64, 1), (1024, 64, 4), (1024, 64, 8)] {
        for lengths in [Lengths::MovieLens, Lengths::Lognormal(1.2)] {
            let batch = Batch::new(&hstu(512), &lengths.draw(ranks * samples, 1), ranks);
            let mut planner = Planner::default();
            let id = BenchmarkId::new(lengths.name(), format!("{ranks}x{samples} in {microbatches}"));
            group.bench_with_input(id, &batch, |b, batch| {
                let problem = Problem { microbatches, ..batch.problem() };
                b.iter(|| planner.plan(&problem).map(|plan| plan.most_in_turns));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, planning, cutting);
criterion_main!(benches);
