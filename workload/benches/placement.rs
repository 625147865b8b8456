//! What turning ids into slots costs, an id: one table of so many rows, ids by Zipf's law.
#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use fs_workload::ids::{IdDistribution, IdSampler};
use fs_workload::placement::{MOST_HOT, RowMap, RowPlacement, deal};
use fs_workload::random::RandomKey;

const IDS: usize = 20_000;

fn slots(c: &mut Criterion) {
    let mut group = c.benchmark_group("slots");
    group.throughput(Throughput::Elements(IDS as u64));
    for rows in [1u64 << 17, 200_000, 50_000_000] {
        let sampler = IdSampler::new(IdDistribution::PopularityZipf(1.05), rows, 1, 0).unwrap();
        let key = RandomKey { seed: 1, stream: 2, step: 0 };
        let ids: Vec<i64> = (0..IDS).map(|position| sampler.draw(key, position)).collect();
        let hot: Vec<(u64, f64)> = (0..MOST_HOT as u64).map(|row| (row, 1.0 / (row + 1) as f64)).collect();
        for placement in [RowPlacement::Hashed, deal(&hot, 10.0, rows, 8)] {
            let map = RowMap::new(&placement, rows, 8).unwrap();
            let mut out = Vec::new();
            group.bench_function(BenchmarkId::new(placement.name(), rows), |b| {
                b.iter(|| {
                    out.clear();
                    map.slots(&ids, rows, &mut out).unwrap();
                    out.last().copied()
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, slots);
criterion_main!(benches);
