//! Device memory of a rank over one period.
//!
//! What is always there (tables, parameters, inputs of the batches in flight), plus every buffer from the start of its
//! first use to the end of its last, uses by neighbouring batches included. A buffer that lives longer than a step
//! counts once per batch that holds it.

use fs_schedule::Schedule;
use serde::Serialize;

use super::views::{OpView, buffers};
use crate::sched::limits::{Fixed, buffer_bytes};
use crate::sched::sizes::Sizes;

/// Bytes over a period.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Curve {
    /// Tables with optimizer state.
    pub tables: f64,
    /// Dense parameters with gradients and optimizer state.
    pub parameters: f64,
    /// Inputs of all batches in flight.
    pub inputs: f64,
    /// Memory that is set aside, as predicted: all of the above, and the arenas of buffers.
    pub reserved: f64,
    /// From each time on (nanoseconds in the period; the first is 0) so many bytes of buffers live.
    pub live: Vec<(f64, f64)>,
}

impl Curve {
    /// Tables, parameters and inputs.
    pub fn base(&self) -> f64 {
        self.tables + self.parameters + self.inputs
    }
    /// The most that is live at once, with the base.
    pub fn peak(&self) -> f64 {
        self.base() + self.live.iter().map(|l| l.1).fold(0.0, f64::max)
    }
}

/// Starts are whole nanoseconds and steps need not be: a buffer is taken to be free a little earlier, or it would seem
/// to overlap the next one in its memory.
const ROUNDING: f64 = 2.0;

/// The curve of a schedule; `step` in nanoseconds.
pub(super) fn curve(s: &Schedule, sizes: &Sizes, step: f64, ops: &[OpView]) -> Curve {
    let fixed = Fixed::of(s, sizes);
    let bytes = buffer_bytes(s, sizes);
    // First start and last end in the time of batch 0.
    let mut lives = vec![(f64::INFINITY, f64::NEG_INFINITY); bytes.len()];
    for (op, view) in s.train.ops.iter().zip(ops) {
        for (b, batch) in buffers(op) {
            let Some(life) = lives.get_mut(b as usize) else { continue };
            let shift = f64::from(op.stage + batch) * step;
            life.0 = life.0.min(view.start as f64 - shift);
            life.1 = life.1.max(view.end - shift);
        }
    }
    let mut always = 0.0;
    let mut changes: Vec<(f64, f64)> = Vec::new();
    for ((first, last), bytes) in lives.into_iter().zip(bytes) {
        let length = last - first - ROUNDING;
        if length <= 0.0 || bytes <= 0.0 {
            continue;
        }
        let turns = (length / step).floor();
        always += turns * bytes;
        let begin = first.rem_euclid(step);
        let end = begin + length - turns * step;
        changes.push((begin, bytes));
        if end < step {
            changes.push((end, -bytes));
        } else {
            always += bytes;
            changes.push((end - step, -bytes));
        }
    }
    // Frees before claims of the same time: neighbours in time share memory.
    changes.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let mut live = vec![(0.0, always)];
    let mut now = always;
    for (at, change) in changes {
        now += change;
        match live.last_mut() {
            Some(l) if l.0 == at => l.1 = now,
            _ => live.push((at, now)),
        }
    }
    Curve {
        tables: fixed.tables,
        parameters: fixed.parameters,
        inputs: fixed.batch * f64::from(s.train.in_flight),
        reserved: s.prediction.as_ref().map_or(0.0, |p| p.memory as f64),
        live,
    }
}
