//! Two schedules of one model on the same data: is every bit equal, and which is faster?
//!
//! They run in turns, a block of steps each, so that whatever else the machine does meets both. The first and last
//! steps of a block, in which a pipeline fills and drains, are trained but not timed.

use fs_schedule::Schedule;
use serde::Serialize;

use crate::error::Error;
use crate::report::Spread;
use crate::session::{Options, Session, StepEvent};

/// What a comparison found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Ranks of both.
    pub ranks: usize,
    /// Steps of each.
    pub steps: u64,
    /// Everything is equal in every bit.
    pub equal: bool,
    /// First step whose losses differ.
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
}

/// How long to compare.
#[derive(Debug, Clone, Copy)]
pub struct Length {
    /// Pairs of blocks.
    pub blocks: u64,
    /// Steps of a block.
    pub steps: u64,
}

/// Runs both on the same data.
pub fn compare(
    first: Schedule,
    second: Schedule,
    options: &Options,
    length: Length,
) -> Result<Comparison, Error> {
    same_model(&first, &second)?;
    let edges = [&first, &second].map(|s| {
        let stages = s.train.ops.iter().map(|o| o.stage);
        (stages.clone().max().unwrap_or(0) - stages.min().unwrap_or(0)) as usize + 1
    });
    let edge = edges[0].max(edges[1]);
    let mut sessions =
        [Session::<f32>::new(first, options.clone())?, Session::<f32>::new(second, options.clone())?];
    if sessions[0].ranks() != sessions[1].ranks() {
        return Err(Error::Settings(format!(
            "the schedules were planned for {} and {} ranks; give --ranks",
            sessions[0].ranks(),
            sessions[1].ranks()
        )));
    }
    let mut losses = [Vec::new(), Vec::new()];
    let mut times = [Vec::new(), Vec::new()];
    for block in 0..length.blocks.max(1) {
        let order = if block % 2 == 0 { [0, 1] } else { [1, 0] };
        for which in order {
            let events = sessions[which].advance(length.steps, &mut ())?;
            losses[which].extend(events.iter().map(StepEvent::loss));
            let timed =
                if events.len() > 2 * edge { &events[edge..events.len() - edge] } else { &events[..] };
            times[which].push(Spread::of(timed.iter().map(|e| 1e3 * e.seconds).collect()).median);
        }
    }
    let bits = |x: &f64, y: &f64| x.to_bits() != y.to_bits();
    let differs = losses[0].iter().zip(&losses[1]).position(|(a, b)| bits(a, b));
    let difference =
        losses[0].iter().zip(&losses[1]).map(|(a, b)| (a - b).abs() / a.abs().max(f64::MIN_POSITIVE));
    let different = different(&sessions);
    let ratios = times[0].iter().zip(&times[1]).map(|(a, b)| b / a).collect();
    Ok(Comparison {
        ranks: sessions[0].ranks(),
        steps: losses[0].len() as u64,
        equal: differs.is_none() && different.is_empty() && losses[0].len() == losses[1].len(),
        loss_differs_at: differs.map(|at| at as u64),
        loss_difference: difference.fold(0.0, f64::max),
        different,
        first_ms: Spread::of(times[0].clone()),
        second_ms: Spread::of(times[1].clone()),
        ratio: Spread::of(ratios),
    })
}

/// Names of everything that is not equal.
fn different(sessions: &[Session<f32>; 2]) -> Vec<String> {
    let [a, b] = sessions;
    let equal =
        |x: &[f32], y: &[f32]| x.len() == y.len() && x.iter().zip(y).all(|(x, y)| x.to_bits() == y.to_bits());
    let mut names = Vec::new();
    let schedule = a.schedule();
    for (t, table) in schedule.tables.iter().enumerate() {
        if !equal(&a.table(t), &b.table(t)) {
            names.push(format!("table {}", table.name));
        }
        if a.table_state(t).iter().zip(&b.table_state(t)).any(|(x, y)| !equal(x, y)) {
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
    names
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
