//! What a typical step takes, from records.
//!
//! Batches are jagged and ranks wait for each other, so a step is as long as its slowest rank's. That rank is the one
//! whose compute works longest on a batch. Batches are sorted by this; the middle half is *typical*. Means over the
//! typical batches, each on its slowest rank, add up to the interquartile mean of steps, and their sizes belong to
//! them. A disturbed step is not among them.
//!
//! Transfers may take another rank longer: the owner that all others ask most. They wait for it sooner or later.

use std::collections::BTreeMap;

use fs_schedule::profile::Busiest;
use fs_schedule::{Engine, Program};

use crate::runtime::record::Record;

/// A typical batch: its step, and its slowest rank.
pub(crate) type Instance = (u64, usize);

/// Times of operations in typical batches, in seconds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Typical {
    /// Batches with their slowest ranks.
    pub instances: Vec<Instance>,
    /// Nanoseconds that each rank's compute worked for these batches.
    pub worked: BTreeMap<Instance, u64>,
    /// Per operation: mean from start to end.
    pub whole: Vec<f64>,
    /// Per operation: mean from when all ranks had begun to the end.
    pub met: Vec<f64>,
    /// The same of each rank, whichever was slowest.
    pub met_each: Vec<Vec<f64>>,
    /// Mean time from one operation of an engine to the next that was ready.
    pub dispatch: f64,
    /// Mean time from the end of an operation to the start of another engine's that waited for it.
    pub wake: f64,
}

impl Typical {
    /// Seconds of a transfer, on the slowest rank or, if it takes longer there, on an owner with the most traffic.
    pub(crate) fn transfer(&self, op: usize, busiest: Busiest) -> f64 {
        let Busiest::Owner(owner) = busiest else { return self.met[op] };
        let there = self.met_each.get(owner as usize).and_then(|times| times.get(op));
        self.met[op].max(there.copied().unwrap_or(0.0))
    }
}

/// Of the records of all ranks; `engines` are those that the program uses, rising.
pub(crate) fn typical(program: &Program, engines: &[Engine], records: &[Vec<Record>]) -> Typical {
    let n = program.ops.len();
    let compute = |r: &Record| {
        engines.get(r.engine as usize) == Some(&Engine::Compute)
            && program.ops.get(r.op as usize).is_some_and(|op| !op.action.is_transfer())
    };
    // Work and executions of each batch on each rank.
    let mut work: BTreeMap<u64, Vec<(u64, usize)>> = BTreeMap::new();
    for (rank, list) in records.iter().enumerate() {
        for r in list {
            let of = &mut work.entry(r.batch).or_insert_with(|| vec![(0, 0); records.len()])[rank];
            of.1 += 1;
            if compute(r) {
                of.0 += r.end.saturating_sub(r.start);
            }
        }
    }
    let mut batches: Vec<(u64, Instance)> = work
        .iter()
        .filter(|(_, ranks)| ranks.iter().all(|r| r.1 == n))
        .filter_map(|(batch, ranks)| {
            let slowest = (0..ranks.len()).max_by_key(|r| ranks[*r].0)?;
            Some((ranks[slowest].0, (*batch, slowest)))
        })
        .collect();
    batches.sort_unstable();
    let (from, to) = (batches.len() / 4, batches.len() - batches.len() / 4);
    let instances: Vec<Instance> = batches[from..to].iter().map(|b| b.1).collect();
    let mut typical = Typical { whole: vec![0.0; n], met: vec![0.0; n], ..Typical::default() };
    if instances.is_empty() {
        return typical;
    }
    let chosen: BTreeMap<u64, usize> = instances.iter().copied().collect();
    let each = 1e-9 / instances.len() as f64;
    let (mut dispatch, mut wake) = ((0.0, 0u64), (0.0, 0u64));
    typical.met_each = vec![vec![0.0; n]; records.len()];
    for (rank, list) in records.iter().enumerate() {
        let mut last_end = vec![0u64; engines.len()];
        // Records come by start, and a transfer may be interrupted by another.
        for r in list {
            let engine = r.engine as usize;
            let before = last_end[engine];
            last_end[engine] = before.max(r.end);
            let Some(slowest) = chosen.get(&r.batch) else { continue };
            let op = r.op as usize;
            let met = r.end.saturating_sub(r.met.max(r.start)) as f64 * each;
            typical.met_each[rank][op] += met;
            if *slowest != rank {
                continue;
            }
            typical.whole[op] += r.end.saturating_sub(r.start) as f64 * each;
            typical.met[op] += met;
            if engines[engine] == Engine::Host || before == 0 || before > r.start {
                continue;
            }
            let sum = if r.ready > before { &mut wake } else { &mut dispatch };
            sum.0 += (r.start - r.ready.max(before)) as f64 * 1e-9;
            sum.1 += 1;
        }
    }
    typical.dispatch = dispatch.0 / dispatch.1.max(1) as f64;
    typical.wake = wake.0 / wake.1.max(1) as f64;
    let of_batch = |batch: u64| work.get(&batch).into_iter().flatten().enumerate();
    typical.worked = instances
        .iter()
        .flat_map(|(batch, _)| of_batch(*batch).map(|(rank, of)| ((*batch, rank), of.0)))
        .collect();
    typical.instances = instances;
    typical
}

#[cfg(test)]
mod tests {
    use super::*;
    use fs_schedule::{Action, Op};

    fn op(action: Action, engine: Engine) -> Op {
        Op::new("", action, engine)
    }

    /// Two ranks; work, transfer, work. Rank 1 is slower on odd batches, and batch 6 is disturbed.
    #[test]
    fn the_slowest_rank_of_the_middle_half() {
        let ops = vec![
            op(Action::Add, Engine::Compute),
            op(Action::AllReduce, Engine::CopyOut),
            op(Action::Add, Engine::Compute),
        ];
        let program = Program { in_flight: 1, buffers: Vec::new(), ops };
        let engines = [Engine::Compute, Engine::CopyOut];
        let mut records = vec![Vec::new(), Vec::new()];
        for (rank, list) in records.iter_mut().enumerate() {
            for batch in 0..8u64 {
                let slow = (batch % 2 == 1) == (rank == 1);
                let long = if batch == 6 { 900_000 } else { 1000 + batch };
                let work = if slow { long } else { 500 };
                let at = 1_000_000 * (batch + 1);
                let record = |op, engine, ready, start, met, end| Record {
                    op,
                    engine,
                    batch,
                    ready: at + ready,
                    start: at + start,
                    met: at + met,
                    end: at + end,
                };
                list.push(record(0, 0, 0, 0, 0, work));
                let there = if rank == 1 { 10 } else { 0 };
                list.push(record(1, 1, work, work + 30, long + 30, long + 80 + there));
                list.push(record(2, 0, long + 80, long + 90, long + 90, long + 290));
            }
        }
        let t = typical(&program, &engines, &records);
        let batches: Vec<u64> = t.instances.iter().map(|i| i.0).collect();
        assert_eq!(batches, [2, 3, 4, 5]);
        assert!(t.instances.iter().all(|(batch, rank)| (batch % 2 == 1) == (*rank == 1)));
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} for {b}");
        close(t.whole[0], 1003.5e-9);
        close(t.whole[1], 55e-9);
        close(t.met[1], 55e-9);
        // Rank 1 takes 60 for it, rank 0 less than slowest ranks do.
        close(t.transfer(1, Busiest::Owner(1)), 60e-9);
        close(t.transfer(1, Busiest::Owner(0)), 55e-9);
        close(t.transfer(1, Busiest::Asking), 55e-9);
        close(t.whole[2], 200e-9);
        // 30 to wake the transfer's engine, 10 to go on after it, nothing for the first of a batch.
        close(t.wake, 40e-9 / 3.0);
    }
}
