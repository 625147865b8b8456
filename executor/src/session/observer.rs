//! Who is told what happens during a run: a progress view, a count, a test.

use crate::step::StepEvent;

/// Told what happens during a run.
pub trait Observer {
    /// Training begins, or goes on after an evaluation: of so many steps some are done.
    fn training(&mut self, _done: u64, _steps: u64) {}
    /// A step is done on all ranks.
    fn step(&mut self, _event: &StepEvent) {}
    /// The checkpoint of a step was not kept, the first one, and why. Only in the first process all parts are known.
    fn unusable(&mut self, _step: u64, _why: &str) {}
    /// Evaluation begins.
    fn evaluating(&mut self, _batches: u64) {}
    /// A batch is evaluated on all ranks.
    fn evaluated(&mut self, _event: &StepEvent) {}
}

/// Watches nothing.
impl Observer for () {}
