//! What trace tools compute of a trace, computed from its records.
//!
//! The definitions are HTA's: over the traced steps but the last, from the start of the first kernel to the end of the
//! last; the host does not count. *Idle* is the time in which nothing runs, *compute* that in which an operation
//! other than a transfer runs, and *overlap* the share of the time with a transfer in which something is computed too.
//! A transfer runs from its start on its rank, whether or not the other ranks have begun. The accounting asks another
//! question: what did the compute engine wait for? Both agree on how long it worked, up to the operations that cross
//! the ends of the window; what HTA calls idle and what it calls non-compute are together all that compute waited for.

use fs_schedule::Engine;
use serde::Serialize;

use super::Timeline;
use crate::step::{Account, StepEvent};

/// The traced steps, as trace tools see them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Traced {
    /// The first traced step.
    pub first_step: u64,
    /// The one after the last.
    pub end_step: u64,
    /// Mean duration of the steps that are counted: all but the last.
    pub step_ms: f64,
    /// Per rank.
    pub ranks: Vec<TracedRank>,
}

/// Shares of the time of one rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct TracedRank {
    /// From the first start to the last end, in milliseconds.
    pub ms: f64,
    /// Nothing runs.
    pub idle: f64,
    /// Something is computed.
    pub compute: f64,
    /// A transfer runs.
    pub communication: f64,
    /// Of that: something is computed too.
    pub overlap: f64,
    /// By the accounting, from step end to step end: compute works.
    pub accounted_compute: f64,
    /// By the accounting: compute waits, for whatever reason.
    pub accounted_bubble: f64,
}

impl Traced {
    /// Of a run with these steps; `None` if the run ended before the first traced step.
    pub(crate) fn of(timeline: &Timeline<'_>, steps: &[StepEvent]) -> Option<Self> {
        let (first_step, end_step) = (timeline.steps.start, timeline.steps.end);
        if first_step == end_step {
            return None;
        }
        // A single step is not left out.
        let last = if end_step - first_step > 1 { end_step - 1 } else { end_step };
        let counted: Vec<&StepEvent> =
            steps.iter().filter(|s| (first_step..last).contains(&s.step)).collect();
        let ranks = (0..timeline.ranks.len()).map(|rank| {
            let sum = |f: fn(&Account) -> u64| {
                counted.iter().filter_map(|s| s.accounts.get(rank)).map(f).sum::<u64>() as f64
            };
            let whole = sum(|a| a.time).max(1.0);
            TracedRank {
                accounted_compute: sum(|a| a.compute) / whole,
                accounted_bubble: sum(|a| a.exposed + a.straggler + a.host + a.other) / whole,
                ..of_rank(timeline, rank, last)
            }
        });
        let seconds: f64 = counted.iter().map(|s| s.seconds).sum();
        let step_ms = 1e3 * seconds / counted.len().max(1) as f64;
        Some(Self { first_step, end_step, step_ms, ranks: ranks.collect() })
    }
}

fn of_rank(timeline: &Timeline<'_>, rank: usize, last: u64) -> TracedRank {
    let bounds = &timeline.bounds[rank];
    let time = bounds[0]..bounds[(last - timeline.steps.start) as usize];
    let ops = &timeline.schedule.train.ops;
    let kernels = timeline.ranks[rank]
        .iter()
        .filter(|r| time.contains(&r.start) && ops[r.op as usize].engine != Engine::Host);
    // Positive where transfers run, and where something is computed.
    let mut changes: Vec<(u64, i32, i32)> = Vec::new();
    for r in kernels {
        let (transfers, computes) = if timeline.transfer(r.op) { (1, 0) } else { (0, 1) };
        changes.extend([(r.start, transfers, computes), (r.end, -transfers, -computes)]);
    }
    changes.sort_unstable();
    let (Some(first), Some(end)) = (changes.first(), changes.last()) else { return TracedRank::default() };
    let whole = (end.0 - first.0).max(1) as f64;
    let (mut transfers, mut computes) = (0, 0);
    let (mut idle, mut compute, mut communication, mut both) = (0, 0, 0, 0);
    for (change, next) in changes.iter().zip(&changes[1..]) {
        transfers += change.1;
        computes += change.2;
        let span = next.0 - change.0;
        match (transfers > 0, computes > 0) {
            (false, false) => idle += span,
            (true, false) => communication += span,
            (false, true) => compute += span,
            (true, true) => both += span,
        }
    }
    let share = |n: u64| n as f64 / whole;
    TracedRank {
        ms: whole * 1e-6,
        idle: share(idle),
        compute: share(compute + both),
        communication: share(communication + both),
        overlap: both as f64 / (communication + both).max(1) as f64,
        ..TracedRank::default()
    }
}
