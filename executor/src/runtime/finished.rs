//! What a rank tells of a batch that it has done, also to other processes.

use super::account::Split;
use crate::transport::frame::{BadFrame, Reader, Writer};

/// Kinds of engines.
pub(crate) const ENGINES: usize = 6;

/// A rank's part of a finished batch; times in nanoseconds of the run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Finished {
    /// The rank.
    pub rank: usize,
    /// The step.
    pub step: u64,
    /// Its part of the loss.
    pub contribution: f64,
    /// Samples of the global batch.
    pub samples: u64,
    /// Tokens of the global batch.
    pub tokens: u64,
    /// Where its time starts: the end of the batch before; for the first when its data was there.
    pub since: u64,
    /// Where it ends: with its last operation.
    pub at: u64,
    /// Wait for its data.
    pub data_wait: u64,
    /// What that time went to.
    pub split: Split,
    /// Work of each of the plan's engines since the start of the run.
    pub busy: [u64; ENGINES],
}

impl Finished {
    /// Writes it for another process: durations, and no times of this one.
    pub(crate) fn write(&self, writer: Writer<'_>) {
        let numbers = [
            self.rank as u64,
            self.step,
            self.contribution.to_bits(),
            self.samples,
            self.tokens,
            self.at - self.since,
            self.data_wait,
        ];
        let numbers = numbers.iter().chain(&self.split).chain(&self.busy);
        numbers.fold(writer, |writer, n| writer.number(*n));
    }

    /// Reads what another process has written and this one has seen at `seen`: then it ended, by this clock.
    pub(crate) fn read(mut reader: Reader<'_>, seen: u64) -> Result<Self, BadFrame> {
        let mut finished = Self {
            rank: reader.size()?,
            step: reader.number()?,
            contribution: f64::from_bits(reader.number()?),
            samples: reader.number()?,
            tokens: reader.number()?,
            ..Self::default()
        };
        let time = reader.number()?;
        (finished.since, finished.at) = (seen.saturating_sub(time), seen.max(time));
        finished.data_wait = reader.number()?;
        for n in finished.split.iter_mut().chain(&mut finished.busy) {
            *n = reader.number()?;
        }
        reader.end()?;
        Ok(finished)
    }
}
