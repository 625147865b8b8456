//! Where the time of a step went: measured, beside what the compiler expected.
//!
//! Times are means over ranks and medians over the steps in which the pipeline was full.

use fs_schedule::{Engine, Exchange, Schedule, Sharding, Way};
use fs_workload::placement::busiest;
use serde::Serialize;

use crate::fit::median;
use crate::runtime::profile::Profile;
use crate::step::StepEvent;

/// Where the time of a step went.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Accounting {
    /// By what clock its times are, but for the host's work.
    pub clock: Clock,
    /// Milliseconds that the host takes to enqueue a step's operations, in the mean of all steps and ranks, without what loads batches and
    /// transfers that wait for the device; 0 where the host does everything itself.
    pub issue_ms: f64,
    /// Steps counted.
    pub steps: usize,
    /// From one step's end to the next.
    pub step_ms: f64,
    /// Work of the compute engine.
    pub compute_ms: f64,
    /// Compute stood still for transfers that all ranks had begun.
    pub exposed_ms: f64,
    /// Compute stood still for ranks that began a transfer later.
    pub straggler_ms: f64,
    /// Compute stood still for the host.
    pub host_ms: f64,
    /// Compute stood still for anything else: waking up, engines of this rank.
    pub other_ms: f64,
    /// Work of each engine.
    pub engines: Vec<EngineTime>,
    /// Exposed communication of each collective, greatest first.
    pub exposed: Vec<Exposed>,
    /// How far apart the uses of rows were.
    pub rows: Vec<RowShare>,
    /// How evenly the owners of row-wise tables were asked.
    pub owners: Vec<OwnerShare>,
    /// What the schedule expected.
    pub predicted: Option<Predicted>,
}

/// By what time is told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Clock {
    /// The host's, which does everything, or waits until it is done.
    #[default]
    Host,
    /// That of a device that does what is enqueued. Then the accounts, and times of operations, are of some steps in full flow.
    Device,
}

/// Work of an engine in a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct EngineTime {
    /// The engine.
    pub engine: Engine,
    /// Milliseconds.
    pub ms: f64,
    /// Of the step.
    pub share: f64,
}

/// Exposed communication of a collective.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Exposed {
    /// Name of the operation.
    pub op: String,
    /// Milliseconds a step, mean over all steps.
    pub ms: f64,
}

/// Share of an exchange's entries in a class of lookups.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RowShare {
    /// The exchange's table.
    pub table: String,
    /// The first microbatch of the window of the first use.
    pub microbatch: u32,
    /// Microbatches of a window.
    pub microbatches: u32,
    /// Reuse distance in windows; without it beyond the lookahead.
    pub distance: Option<u32>,
    /// Of all entries.
    pub share: f64,
}

/// How evenly the ranks that share a table's rows were asked for them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OwnerShare {
    /// The table.
    pub table: String,
    /// How its rows are placed: `range`, `hashed` or `planned`.
    pub placement: &'static str,
    /// Rows that the busiest owner was asked for, over the mean of all.
    pub busiest: f64,
}

/// The schedule's expectation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Predicted {
    /// The cluster that it was made for.
    pub cluster: String,
    /// A step.
    pub step_ms: f64,
    /// Compute stands still.
    pub bubble_ms: f64,
    /// Work of each engine.
    pub engines: Vec<EngineTime>,
}

/// Entries of exchanges that a run counted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entries<'a> {
    /// That all ranks asked for, per exchange and class of lookups.
    pub asked: &'a [Vec<u64>],
    /// That owners were asked for, per rank and exchange.
    pub served: &'a [Vec<u64>],
}

/// The accounts of a run.
pub(crate) fn of(
    schedule: &Schedule,
    entries: Entries<'_>,
    (clock, steps): (Clock, &[StepEvent]),
    engines: &[Engine],
    profiles: &[Profile],
) -> Accounting {
    let ops = &schedule.train.ops;
    let stages = ops.iter().map(|o| o.stage);
    let fill = (stages.clone().max().unwrap_or(0) - stages.min().unwrap_or(0)) as usize + 1;
    // The others are in full flow.
    let full =
        if clock == Clock::Host && steps.len() > 3 * fill { &steps[fill..steps.len() - fill] } else { steps };
    let ms = |f: &dyn Fn(&StepEvent) -> f64| 1e3 * median(full.iter().map(f).collect());
    let step_ms = ms(&|s| s.seconds);
    let time = |engine: Engine, ms: f64, step: f64| EngineTime {
        engine,
        ms,
        share: if step > 0.0 { ms / step } else { 0.0 },
    };
    let times: Vec<EngineTime> =
        engines.iter().enumerate().map(|(i, engine)| time(*engine, ms(&|s| s.busy[i]), step_ms)).collect();
    let world = (profiles.len() * steps.len()).max(1) as f64;
    let mut exposed: Vec<Exposed> = ops
        .iter()
        .enumerate()
        .filter(|(_, op)| op.action.is_transfer())
        .map(|(i, op)| {
            let sum: f64 = profiles.iter().map(|p| p.ops[i].exposed.as_secs_f64()).sum();
            Exposed { op: op.name.clone(), ms: 1e3 * sum / world }
        })
        .collect();
    exposed.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    // What was predicted for other ranks says nothing of these.
    let planned = profiles.len() == schedule.ranks as usize;
    let predicted = schedule.prediction.as_ref().filter(|_| planned).map(|p| Predicted {
        cluster: p.cluster.clone(),
        step_ms: 1e3 * p.step,
        bubble_ms: 1e3 * p.bubble,
        engines: p.busy.iter().map(|b| time(b.engine, 1e3 * b.time, 1e3 * p.step)).collect(),
    });
    Accounting {
        clock,
        issue_ms: 0.0,
        steps: full.len(),
        step_ms,
        compute_ms: ms(&|s| s.compute),
        exposed_ms: ms(&|s| s.exposed),
        straggler_ms: ms(&|s| s.waited),
        host_ms: ms(&|s| s.host),
        other_ms: ms(&|s| s.other),
        engines: times,
        exposed,
        rows: rows(schedule, entries.asked),
        owners: owners(schedule, entries.served),
        predicted,
    }
}

fn owners(schedule: &Schedule, served: &[Vec<u64>]) -> Vec<OwnerShare> {
    let shared = |(e, x): (usize, &Exchange)| {
        // Relays own nothing, all ranks have hot rows, and what is only listed is asked of nobody.
        let hot = schedule.tables.get(x.table as usize).is_some_and(|t| t.is_hot(x.part));
        if x.leg.between().is_some() || hot || x.shares.is_some() {
            return None;
        }
        let table = schedule.tables.get(x.table as usize).filter(|t| t.sharding == Sharding::RowWise)?;
        let loads: Vec<f64> = served.iter().map(|of_rank| of_rank[e] as f64).collect();
        let (name, placement) = (table.name.clone(), table.placement.name());
        Some(OwnerShare { table: name, placement, busiest: busiest(&loads) })
    };
    // One rank owns everything, and is asked for it.
    let several = served.len() > 1;
    schedule.exchanges.iter().enumerate().filter(|_| several).filter_map(shared).collect()
}

/// `asked` are the entries that ranks asked for, per exchange and class.
fn rows(schedule: &Schedule, asked: &[Vec<u64>]) -> Vec<RowShare> {
    let mut shares = Vec::new();
    for (e, exchange) in schedule.exchanges.iter().enumerate() {
        let reuse = exchange.reuse(schedule.settings.microbatches);
        let Some(reuse) = reuse.filter(|_| exchange.leg.within().is_none()) else { continue };
        let sum = |c: usize| asked[e][c];
        let classes = reuse.classes(Way::Forward);
        let all: u64 = (0..classes.len()).map(sum).sum();
        if all == 0 {
            continue;
        }
        let table = schedule.tables.get(exchange.table as usize).map_or_else(String::new, |t| t.name.clone());
        shares.extend(classes.iter().enumerate().map(|(c, class)| RowShare {
            table: table.clone(),
            microbatch: class.window * reuse.each,
            microbatches: reuse.each,
            distance: class.distance,
            share: sum(c) as f64 / all as f64,
        }));
    }
    shares
}
