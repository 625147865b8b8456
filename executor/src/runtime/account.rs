//! Where the time of a step goes.
//!
//! Every operation is stamped when it starts, when the last rank has begun (transfers) and when it ends. Whenever the
//! compute engine goes on after standing still, the gap is explained backwards: by the dependency that ended last,
//! then by what that one had waited for, until the gap is filled. The part of a transfer before all ranks had begun
//! is *straggler* time, the rest is *exposed* communication; work of the host is *host* time. What remains is the
//! runtime's own: waking up and choosing.

use std::sync::atomic::{AtomicU64, Ordering};

use fs_schedule::Engine;

use super::plan::Plan;

/// Times of an operation's last instance, in nanoseconds of the run.
#[derive(Debug, Default)]
pub struct Stamp {
    /// It started.
    pub start: AtomicU64,
    /// All ranks had begun.
    pub met: AtomicU64,
    /// It ended.
    pub end: AtomicU64,
}

impl Stamp {
    /// Sets all three.
    pub fn set(&self, start: u64, met: u64, end: u64) {
        self.start.store(start, Ordering::Relaxed);
        self.met.store(met, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
    }
}

/// Sums of a rank since the start of the run, in nanoseconds.
#[derive(Debug, Default)]
pub struct Totals {
    /// Transfers that compute waited for.
    pub exposed: AtomicU64,
    /// Ranks that began later.
    pub straggler: AtomicU64,
    /// The host.
    pub host: AtomicU64,
    /// Everything else that compute waited for.
    pub other: AtomicU64,
    /// Work of each of the plan's engines.
    pub busy: Vec<AtomicU64>,
}

/// Adds to a sum that one thread writes.
pub fn add(sum: &AtomicU64, n: u64) {
    sum.store(sum.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}

/// Longest chain of operations that explains one gap.
const CHAIN: usize = 64;

/// Explains why `op` did not run its `step` in the gap; `exposed` is per operation.
pub fn explain(
    plan: &Plan,
    stamps: &[Stamp],
    done: &[AtomicU64],
    (op, step): (usize, u64),
    gap: (u64, u64),
    totals: &Totals,
    exposed: &mut [u64],
) {
    let (begin, mut until) = gap;
    let (mut op, mut step) = (op, step as i64);
    let load = |n: &AtomicU64| n.load(Ordering::Relaxed);
    let (mut on_transfers, mut on_ranks, mut on_host, mut rest) = (0, 0, 0, 0);
    for link in 0..CHAIN {
        // The stamps are of the last instance: only if that is the one that was waited for do they tell anything.
        let last_of = |other: usize, wanted: i64| load(&done[other]) as i64 == wanted + 1;
        let deps =
            plan.ops[op].deps.iter().map(|(other, distance)| (*other as usize, step - *distance as i64));
        // A transfer also waits for the one before it in its queue.
        let before = plan.ops[op].before.filter(|_| link > 0).map(|b| (b, load(&done[b]) as i64 - 1));
        let latest = deps
            .chain(before)
            .filter(|(other, wanted)| *wanted >= 0 && last_of(*other, *wanted))
            .map(|(other, wanted)| (load(&stamps[other].end), other, wanted))
            .filter(|(end, ..)| link == 0 || *end <= until)
            .max();
        let Some((end, other, wanted)) = latest else { break };
        let end = end.min(until);
        rest += until - end.max(begin);
        if end <= begin {
            until = begin;
            break;
        }
        let start = load(&stamps[other].start).clamp(begin, end);
        if plan.ops[other].transfer {
            let met = load(&stamps[other].met).clamp(start, end);
            on_ranks += met - start;
            on_transfers += end - met;
            exposed[other] += end - met;
        } else if plan.engines[plan.ops[other].engine] == Engine::Host {
            on_host += end - start;
        } else {
            rest += end - start;
        }
        until = start;
        (op, step) = (other, wanted);
        if until <= begin {
            break;
        }
    }
    rest += until.saturating_sub(begin);
    for (sum, n) in [
        (&totals.exposed, on_transfers),
        (&totals.straggler, on_ranks),
        (&totals.host, on_host),
        (&totals.other, rest),
    ] {
        add(sum, n);
    }
}
