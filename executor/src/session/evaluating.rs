//! Evaluation between runs: held-out items are ranked, batch by batch.

use std::sync::Arc;
use std::time::Instant;

use fs_kernels::Real;
use fs_schedule::{Evaluate, Schedule};

use super::{Observer, Session};
use crate::data::{DataError, GlobalBatch, Histories, Source};
use crate::device::Device;
use crate::error::Error;
use crate::evaluate::{Outcome, popularity, scores};
use crate::report::Evaluation;

impl<T: Real, D: Device<Real = T>> Session<T, D> {
    /// Evaluates now, if the schedule and the data can and it is not switched off.
    pub fn evaluate(&mut self, observer: &mut dyn Observer) -> Result<Option<Evaluation>, Error> {
        let started = Instant::now();
        let Some(outcomes) = self.outcomes(observer)? else { return Ok(None) };
        let popularity = self.histories.as_deref().map(popularity::outcomes).unwrap_or_default();
        Ok(Some(Evaluation {
            users: outcomes.len(),
            model: scores(&outcomes),
            popularity: scores(&popularity),
            seconds: started.elapsed().as_secs_f64(),
        }))
    }

    /// Where the held-out item of each user ranks now, by user; `None` where [`evaluate`](Self::evaluate) gives nothing.
    pub fn outcomes(&mut self, observer: &mut dyn Observer) -> Result<Option<Vec<Outcome>>, Error> {
        let schedule = Arc::clone(&self.schedule);
        let histories = match (&self.histories, schedule.evaluate) {
            (Some(histories), Some(Evaluate::LeaveLastOut)) if self.options.evaluate => Arc::clone(histories),
            _ => return Ok(None),
        };
        let Some(program) = &schedule.evaluation else { return Ok(None) };
        let batch = schedule.settings.batch as usize;
        let batches = histories.users().div_ceil(batch.max(1)) as u64;
        let mut questions = Questions { schedule: Arc::clone(&schedule), histories, batch };
        for env in &self.ranks {
            env.outcomes.lock().clear();
        }
        observer.evaluating(batches);
        let source: &mut dyn Source = &mut questions;
        let results =
            self.phase(program, 0..batches, Some(source), None, &mut |event| observer.evaluated(event))?;
        if results.stopped {
            return Ok(None);
        }
        let mut outcomes: Vec<Outcome> = std::mem::take(&mut *self.ranks[0].outcomes.lock());
        outcomes.sort_by_key(|o| o.user);
        Ok(Some(outcomes))
    }
}

/// Evaluation batches: users in order, each with the newest part of its history.
struct Questions {
    schedule: Arc<Schedule>,
    histories: Arc<Histories>,
    batch: usize,
}

impl Source for Questions {
    fn describe(&self) -> String {
        "held-out items".into()
    }

    fn epoch_steps(&self) -> Option<u64> {
        Some(self.histories.users().div_ceil(self.batch) as u64)
    }

    fn fill(&mut self, step: u64, batch: &mut GlobalBatch) -> Result<(), DataError> {
        batch.reset(&self.schedule, step);
        let start = step as usize * self.batch;
        let end = (start + self.batch).min(self.histories.users());
        batch.begin(end.saturating_sub(start));
        for user in start..end {
            self.histories.push_question(&self.schedule, user, user - start, batch);
        }
        Ok(())
    }
}
