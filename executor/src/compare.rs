//! Schedules of one model on the same data: is every bit equal, and which is faster?
//!
//! They run in turns, a block of steps each, so that whatever else the machine does meets all of them. The first and
//! last steps of a block, in which a pipeline fills and drains, are trained but not timed. The first schedule is what
//! the others are compared with.

use fs_schedule::{Engine, Schedule, Strategy};
use serde::Serialize;

use crate::error::Error;
use crate::report::Spread;
use crate::session::{Options, Session};
use crate::step::StepEvent;

/// What a comparison found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Ranks of all.
    pub ranks: usize,
    /// Steps of each.
    pub steps: u64,
    /// Rounds of blocks.
    pub rounds: u64,
    /// Everything is equal in every bit.
    pub equal: bool,
    /// First step whose losses differ from the first schedule's.
    pub loss_differs_at: Option<u64>,
    /// Greatest relative difference of losses.
    pub loss_difference: f64,
    /// What differs after the last step: tables, parameters, optimizer states.
    pub different: Vec<String>,
    /// Median step of the first, per block, in milliseconds.
    pub first_ms: Spread,
    /// Of the second.
    pub second_ms: Spread,
    /// Step of the second over step of the first, per pair of blocks.
    pub ratio: Spread,
    /// Each schedule, in the order that they were given.
    pub schedules: Vec<Row>,
}

/// One of the compared schedules. Times are in milliseconds; of a block its median step counts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Its strategy.
    pub strategy: Strategy,
    /// Microbatches of a batch.
    pub microbatches: u32,
    /// Step, over blocks.
    pub step_ms: Spread,
    /// Step over that of the first schedule, per round of blocks.
    pub ratio: Spread,
    /// Compute stood still for transfers that all ranks had begun: median of steps.
    pub exposed_ms: f64,
    /// Compute stood still for ranks that began a transfer later.
    pub straggler_ms: f64,
    /// Work of the compute engine.
    pub compute_ms: f64,
    /// What the schedule expected of a step.
    pub predicted_ms: Option<f64>,
    /// Losses and everything trained are equal to the first schedule's in every bit.
    pub equal: bool,
    /// First step whose losses differ from the first schedule's.
    pub loss_differs_at: Option<u64>,
    /// Greatest relative difference of losses.
    pub loss_difference: f64,
    /// What differs after the last step.
    pub different: Vec<String>,
}

/// How long to compare.
#[derive(Debug, Clone, Copy)]
pub struct Length {
    /// Rounds of blocks.
    pub blocks: u64,
    /// Steps of a block.
    pub steps: u64,
}

/// What one schedule did.
#[derive(Default)]
struct Run {
    losses: Vec<f64>,
    blocks: Vec<f64>,
    timed: Vec<StepEvent>,
}

/// Runs two or more on the same data.
pub fn compare_all(schedules: Vec<Schedule>, options: &Options, length: Length) -> Result<Comparison, Error> {
    let Some((first, others)) = schedules.split_first().filter(|(_, others)| !others.is_empty()) else {
        return Err(Error::Settings("a comparison needs at least two schedules".into()));
    };
    others.iter().try_for_each(|other| same_model(first, other))?;
    let edge = schedules.iter().map(edge).max().unwrap_or(1);
    let sessions = schedules.into_iter().map(|s| Session::<f32>::new(s, options.clone()));
    let mut sessions = sessions.collect::<Result<Vec<_>, _>>()?;
    let ranks = sessions[0].ranks();
    if let Some(other) = sessions.iter().map(Session::ranks).find(|r| *r != ranks) {
        return Err(Error::Settings(format!(
            "the schedules were planned for {ranks} and {other} ranks; give --ranks"
        )));
    }
    let mut runs: Vec<Run> = sessions.iter().map(|_| Run::default()).collect();
    for block in 0..length.blocks.max(1) {
        let mut order: Vec<usize> = (0..sessions.len()).collect();
        if block % 2 == 1 {
            order.reverse();
        }
        for which in order {
            let mut events = sessions[which].advance(length.steps, &mut ())?;
            let run = &mut runs[which];
            run.losses.extend(events.iter().map(StepEvent::loss));
            if events.len() > 2 * edge {
                events = events.split_off(edge);
                events.truncate(events.len() - edge);
            }
            run.blocks.push(Spread::of(events.iter().map(|e| 1e3 * e.seconds).collect()).median);
            run.timed.extend(events);
        }
    }
    let rows = (0..sessions.len()).map(|i| row(&sessions[0], &runs[0], &sessions[i], &runs[i], i == 0));
    let rows: Vec<Row> = rows.collect::<Result<_, _>>()?;
    let compared = &rows[1..];
    let mut different: Vec<String> = Vec::new();
    for name in compared.iter().flat_map(|r| &r.different) {
        if !different.contains(name) {
            different.push(name.clone());
        }
    }
    Ok(Comparison {
        ranks,
        steps: runs[0].losses.len() as u64,
        rounds: runs[0].blocks.len() as u64,
        equal: compared.iter().all(|r| r.equal),
        loss_differs_at: compared.iter().filter_map(|r| r.loss_differs_at).min(),
        loss_difference: compared.iter().map(|r| r.loss_difference).fold(0.0, f64::max),
        different,
        first_ms: rows[0].step_ms,
        second_ms: rows[1].step_ms,
        ratio: rows[1].ratio,
        schedules: rows,
    })
}

/// Steps in which a schedule's pipeline fills or drains.
fn edge(s: &Schedule) -> usize {
    let stages = s.train.ops.iter().map(|o| o.stage);
    (stages.clone().max().unwrap_or(0) - stages.min().unwrap_or(0)) as usize + 1
}

fn row(a: &Session<f32>, first: &Run, b: &Session<f32>, run: &Run, same: bool) -> Result<Row, Error> {
    let bits = |(x, y): (&f64, &f64)| x.to_bits() != y.to_bits();
    let losses = || first.losses.iter().zip(&run.losses);
    let differs = losses().position(bits);
    let difference = losses().map(|(a, b)| (a - b).abs() / a.abs().max(f64::MIN_POSITIVE));
    let different = if same { Vec::new() } else { different(a, b)? };
    let schedule = b.schedule();
    let ms =
        |f: &dyn Fn(&StepEvent) -> f64| Spread::of(run.timed.iter().map(|e| 1e3 * f(e)).collect()).median;
    let mut engines: Vec<Engine> = schedule.train.ops.iter().map(|o| o.engine).collect();
    engines.sort_unstable();
    engines.dedup();
    let compute = engines.iter().position(|e| *e == Engine::Compute);
    Ok(Row {
        strategy: schedule.strategy,
        microbatches: schedule.settings.microbatches.max(1),
        step_ms: Spread::of(run.blocks.clone()),
        ratio: Spread::of(first.blocks.iter().zip(&run.blocks).map(|(a, b)| b / a).collect()),
        exposed_ms: ms(&|e| e.exposed),
        straggler_ms: ms(&|e| e.waited),
        compute_ms: compute.map_or(0.0, |at| ms(&|e| e.busy[at])),
        predicted_ms: schedule
            .prediction
            .as_ref()
            .filter(|_| b.ranks() == schedule.ranks as usize)
            .map(|p| 1e3 * p.step),
        equal: differs.is_none() && different.is_empty() && first.losses.len() == run.losses.len(),
        loss_differs_at: differs.map(|at| at as u64),
        loss_difference: difference.fold(0.0, f64::max),
        different,
    })
}

/// Names of everything that is not equal.
fn different(a: &Session<f32>, b: &Session<f32>) -> Result<Vec<String>, Error> {
    let equal =
        |x: &[f32], y: &[f32]| x.len() == y.len() && x.iter().zip(y).all(|(x, y)| x.to_bits() == y.to_bits());
    let mut names = Vec::new();
    let schedule = a.schedule();
    for (t, table) in schedule.tables.iter().enumerate() {
        if !equal(&a.table(t)?, &b.table(t)?) {
            names.push(format!("table {}", table.name));
        }
        if a.table_state(t)?.iter().zip(&b.table_state(t)?).any(|(x, y)| !equal(x, y)) {
            names.push(format!("optimizer state of table {}", table.name));
        }
    }
    for (p, parameter) in schedule.parameters.iter().enumerate() {
        if !equal(&a.parameter(p), &b.parameter(p)) {
            names.push(format!("parameter {}", parameter.name));
        }
        if a.parameter_state(p).iter().zip(&b.parameter_state(p)).any(|(x, y)| !equal(x, y)) {
            names.push(format!("optimizer state of parameter {}", parameter.name));
        }
    }
    Ok(names)
}

/// Both must train the same thing; placement and order may differ.
fn same_model(a: &Schedule, b: &Schedule) -> Result<(), Error> {
    let fail = |what: &str| Err(Error::Settings(format!("the schedules cannot be compared: {what} differ")));
    let tables = |s: &Schedule| -> Vec<_> {
        s.tables.iter().map(|t| (t.name.clone(), t.rows, t.dim, t.stream)).collect()
    };
    if a.model != b.model {
        return fail("their models");
    }
    if tables(a) != tables(b) || a.parameters != b.parameters {
        return fail("their tables or parameters");
    }
    if a.inputs != b.inputs || a.lengths != b.lengths {
        return fail("their inputs");
    }
    if a.data != b.data {
        return fail("their data");
    }
    let (x, y) = (&a.settings, &b.settings);
    if (x.batch, x.seed, x.optimizer) != (y.batch, y.seed, y.optimizer) {
        return fail("their batch size, seed or optimizer");
    }
    Ok(())
}
