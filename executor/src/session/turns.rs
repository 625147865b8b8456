//! Training and evaluation in turns, so that of the checkpoints between them the best can be kept.

use fs_kernels::Real;

use super::phase::Results;
use super::{Observer, Session};
use crate::device::Device;
use crate::error::Error;
use crate::report::Validation;
use crate::runtime::record::Record;

/// What training gave.
pub(super) struct Trained {
    pub(super) results: Results,
    /// Its duration, without evaluation.
    pub(super) seconds: f64,
    pub(super) validations: Vec<Validation>,
}

impl<T: Real, D: Device<Real = T>> Session<T, D> {
    /// Trains for all steps, and evaluates and leaves a checkpoint after every so many.
    pub(super) fn train_in_turns(
        &mut self,
        every: u64,
        observer: &mut dyn Observer,
    ) -> Result<Trained, Error> {
        let begin = self.next_step;
        let end = begin.saturating_add(self.steps);
        let (mut all, mut seconds, mut validations) = (None::<Results>, 0.0, Vec::new());
        let mut records = (Vec::<Vec<Record>>::new(), Vec::new());
        loop {
            let steps = (every - self.next_step % every).min(end - self.next_step);
            observer.training(self.next_step - begin, end - begin);
            let (results, time) = self.train(steps, observer)?;
            seconds += time;
            let stopped = results.stopped;
            // Around the steps that are wanted others are recorded, which a turn may have alone.
            let wanted = |records: &[Vec<Record>]| {
                let steps = self.options.record.clone().unwrap_or_default();
                records.iter().flatten().filter(|r| steps.contains(&r.batch)).count()
            };
            if wanted(&self.records) > wanted(&records.0) {
                records = (std::mem::take(&mut self.records), std::mem::take(&mut self.clocks));
            }
            match &mut all {
                Some(all) => all.join(results),
                None => all = Some(results),
            }
            let evaluation = if stopped { None } else { self.evaluate(observer)? };
            self.leave_last(evaluation.map(|evaluation| evaluation.model))?;
            let step = self.next_step;
            validations.extend(evaluation.map(|evaluation| Validation { step, evaluation }));
            if self.next_step >= end || evaluation.is_none() {
                break;
            }
        }
        (self.records, self.clocks) = records;
        let mut results = all.unwrap_or_default();
        results.stopped |= self.next_step < end;
        Ok(Trained { results, seconds, validations })
    }
}
