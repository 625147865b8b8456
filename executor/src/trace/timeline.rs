//! Records of a run in order: what ran in the traced steps, what else ran at their edges, and where steps end.
//!
//! A rank's step ends when the last operation of its batch ends, as in the report's step time. Operations of
//! neighbouring batches that run beside those of the traced steps are kept apart, so that no engine seems idle at the
//! edges of the window.

use std::ops::Range;

use fs_schedule::Schedule;
use fs_schedule::trace::ProcessClock;

use crate::runtime::Plan;
use crate::runtime::record::Record;

/// Records of a run in order.
#[derive(Debug)]
pub struct Timeline<'a> {
    /// What ran.
    pub schedule: &'a Schedule,
    /// The traced steps; fewer than asked for if the run ended before.
    pub steps: Range<u64>,
    /// Per rank the records of the traced steps and of what started between the first and the last of them, by start.
    pub ranks: Vec<Vec<Record>>,
    /// Per rank where the traced steps begin, and where the last one ends.
    pub bounds: Vec<Vec<u64>>,
    /// Of several processes, the clocks of those but the first.
    pub clocks: Vec<ProcessClock>,
    /// The program, prepared.
    pub(crate) plan: Plan,
}

impl<'a> Timeline<'a> {
    /// Of the records of each rank.
    pub(crate) fn new(schedule: &'a Schedule, records: &[Vec<Record>], asked: Range<u64>) -> Self {
        let plan = Plan::new(&schedule.train);
        let done = |own: &Vec<Record>| own.iter().map(|r| r.batch + 1).max().unwrap_or(0);
        let end = records.iter().map(done).min().unwrap_or(0).min(asked.end);
        let steps = asked.start.min(end)..end;
        let within = |r: &&Record| steps.contains(&r.batch);
        let traced = || records.iter().flatten().filter(within);
        let from = traced().map(|r| r.start).min().unwrap_or(0);
        let until = traced().map(|r| r.end).max().unwrap_or(0);
        let kept = |r: &&Record| within(r) || (from..until).contains(&r.start);
        let ranks = records.iter().map(|own| own.iter().filter(kept).copied().collect()).collect();
        let bounds = records.iter().map(|own| bounds(&plan, own, &steps)).collect();
        Self { schedule, steps, ranks, bounds, clocks: Vec::new(), plan }
    }

    /// Whether an operation moves data between ranks.
    pub(crate) fn transfer(&self, op: u32) -> bool {
        self.schedule.train.ops.get(op as usize).is_some_and(|op| op.action.is_transfer())
    }

    /// Where the step began in whose time something started; `None` before the first traced one.
    pub(crate) fn step_start(&self, rank: usize, at: u64) -> Option<u64> {
        let bounds = &self.bounds[rank];
        bounds.partition_point(|bound| *bound <= at).checked_sub(1).map(|place| bounds[place])
    }
}

/// Where the traced steps of a rank begin, and where the last one ends.
fn bounds(plan: &Plan, records: &[Record], steps: &Range<u64>) -> Vec<u64> {
    let mut bounds = vec![0; (steps.end - steps.start) as usize + 1];
    for r in records {
        let place = (r.batch + 1).checked_sub(steps.start).and_then(|place| bounds.get_mut(place as usize));
        if let Some(bound) = place {
            *bound = r.end.max(*bound);
        }
    }
    if bounds[0] == 0 {
        // The first step of a run begins when its data is there.
        let load = records.iter().find(|r| r.batch == steps.start && plan.load == Some(r.op as usize));
        bounds[0] = load.map_or(0, |r| r.end);
    }
    bounds
}
