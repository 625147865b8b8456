//! Times of what a schedule may not run: telling rows apart, splitting and merging them.
//!
//! `serial` moves rows together, so a profile of it would not know what their classes cost. The kernels are run on
//! drawn rows of each exchange's numbers, and their times become points of their kinds, with bytes as the schedule's
//! cost formulas count them.

use std::time::Instant;

use fs_kernels::partition::{self, Classes, Partition, Uses};
use fs_kernels::{Mat, MatMut, embedding};
use fs_schedule::Schedule;
use fs_schedule::profile::Rows;

use crate::device::shards::rows_per_rank;
use crate::fit::median;

/// Repetitions; the median counts.
const TIMES: usize = 7;
/// Shares of an exchange's rows that are tried.
const SHARES: [f64; 3] = [1.0, 0.5, 0.15];
/// Entries that are tried at most: more take in proportion.
const MOST: usize = 1 << 20;

/// A measured kernel: kind, bytes, seconds.
pub(crate) type Probe = (&'static str, f64, f64);

/// Probes of every exchange of one table; models repeat tables.
pub(crate) fn probes(schedule: &Schedule, rows: &[Rows], ranks: usize) -> Vec<Probe> {
    let mut done: Vec<(u64, u32, usize)> = Vec::new();
    let mut out = Vec::new();
    for (x, of) in schedule.exchanges.iter().filter_map(|x| {
        let table = schedule.tables.get(x.table as usize)?;
        Some((x, rows.iter().find(|r| r.table == table.name && r.part == x.part)?))
    }) {
        let Some(table) = schedule.tables.get(x.table as usize) else { continue };
        let (columns, n) = (x.columns(&schedule.tables), (of.sent as usize).clamp(1, MOST));
        if columns == 0 || done.contains(&(table.rows, columns, n)) {
            continue;
        }
        done.push((table.rows, columns, n));
        let shard = (rows_per_rank(table.rows, ranks) as usize).min(1 << 28);
        for share in SHARES {
            let n = ((n as f64 * share) as usize).max(1);
            one(n, shard, columns as usize, ranks, &mut out);
        }
    }
    out
}

/// Numbers below `limit`, spread by Weyl's sequence.
fn spread(n: usize, limit: usize, offset: u64) -> Vec<u32> {
    let place = |i: u64| (((i + offset).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) * limit as u64) >> 32;
    (0..n as u64).map(|i| place(i) as u32).collect()
}

fn one(n: usize, shard: usize, columns: usize, ranks: usize, out: &mut Vec<Probe>) {
    let (own, before) = (spread(n, shard, 0), spread(n, shard, n as u64 / 2));
    let table: [u8; 2] = [0, 1];
    let classes = Classes { lookahead: 1, windows: 1, table: &table };
    let (mut work, mut class) = (Partition::default(), vec![0u8; n]);
    let uses = |rows| Uses { rows, uses: None };
    let seconds = timed(|| {
        partition::forward(uses(&own), &[uses(&before)], shard, classes, &mut work, &mut class);
    });
    // As the cost formula has it: two lists of rows read, one of classes written.
    out.push(("partition", 9.0 * n as f64, seconds));
    let mut counts = vec![0u64; ranks];
    counts[0] = n as u64;
    let (mut positions, mut numbers) = (Vec::new(), Vec::new());
    let seconds = timed(|| partition::positions(&class, &counts, 2, &mut positions, &mut numbers));
    out.push(("positions", (n + 4 * n + 24 * ranks) as f64, seconds));
    let at: Vec<u32> = (0..n as u32).filter(|i| i % 2 == 0).collect();
    let rest: Vec<u32> = (0..n as u32).filter(|i| i % 2 == 1).collect();
    let (whole, mut half) = (vec![1f32; n * columns], vec![0f32; at.len() * columns]);
    let row = 4 * columns;
    let seconds = timed(|| {
        let to = MatMut::new(&mut half, at.len(), columns);
        embedding::gather(Mat::new(&whole, n, columns), &at, to);
    });
    out.push(("split", ((2 * row + 4) * at.len()) as f64, seconds));
    let mut merged = whole;
    let other = vec![0f32; rest.len() * columns];
    let seconds = timed(|| {
        let parts = [(&half, &at), (&other, &rest)];
        for (values, at) in parts {
            partition::scatter(Mat::new(values, at.len(), columns), at, MatMut::new(&mut merged, n, columns));
        }
    });
    out.push(("merge", ((2 * row + 4) * n) as f64, seconds));
}

/// Median seconds of a call.
fn timed(mut body: impl FnMut()) -> f64 {
    body();
    let times = (0..TIMES).map(|_| {
        let started = Instant::now();
        body();
        started.elapsed().as_secs_f64()
    });
    median(times.collect())
}
