//! Which steps are traced.
//!
//! Without a wish it is [`USUAL`] steps after the first [`WARM`]: by then the pipeline is full, buffers have grown and
//! caches are warm, and a run that is interrupted later still has them. Shorter runs are traced where they are most
//! even. What is held in memory is bounded, so a wish may be too large.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use fs_schedule::Schedule;

use crate::error::Error;

/// Steps that are traced without a wish.
pub(crate) const USUAL: u64 = 20;
/// Steps before them.
pub(crate) const WARM: u64 = 10;
/// Operations of all ranks that may be traced: their records take 100 MB, their text about a gigabyte.
pub(crate) const MOST: u64 = 2_000_000;
/// The same without a wish, so that viewers open the trace quickly.
const MOST_USUAL: u64 = 100_000;

/// Steps `A..B`: from A to B - 1, counted from 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Steps(pub Range<u64>);

/// A text that names no steps.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StepsError {
    /// Not two numbers.
    #[error("expected two step numbers A..B, for example 20..40 for the steps 20 to 39")]
    Form,
    /// Nothing between them.
    #[error("no step lies in {0}..{1}: the second number must be greater than the first")]
    Empty(u64, u64),
}

impl FromStr for Steps {
    type Err = StepsError;
    fn from_str(text: &str) -> Result<Self, StepsError> {
        let number = |text: &str| text.trim().parse().map_err(|_| StepsError::Form);
        let (start, end) = text.split_once("..").ok_or(StepsError::Form)?;
        let (start, end) = (number(start)?, number(end)?);
        if start < end { Ok(Self(start..end)) } else { Err(StepsError::Empty(start, end)) }
    }
}

impl fmt::Display for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.0.start, self.0.end)
    }
}

/// The steps to trace in a run of `steps` steps on `ranks` ranks, if `asked` for these or for any.
pub fn choose(
    asked: Option<&Steps>,
    schedule: &Schedule,
    ranks: usize,
    steps: u64,
) -> Result<Range<u64>, Error> {
    let ops = (schedule.train.ops.len() * ranks).max(1) as u64;
    if steps == 0 {
        return Err(Error::Settings("--trace needs a run of at least one step".into()));
    }
    let Some(Steps(asked)) = asked else { return Ok(usual(schedule, steps, (MOST_USUAL / ops).max(2))) };
    if asked.end > steps {
        return Err(Error::Settings(format!(
            "--trace-steps {}..{} goes beyond the run, whose {steps} steps are 0..{steps}",
            asked.start, asked.end
        )));
    }
    let most = MOST / ops;
    if asked.end - asked.start > most {
        return Err(Error::Settings(format!(
            "--trace-steps {}..{} is too long: a step runs {ops} operations on all ranks, and a trace holds {MOST}; trace at most {most} steps",
            asked.start, asked.end
        )));
    }
    Ok(asked.clone())
}

/// Steps in the steady state, at most `most`.
fn usual(schedule: &Schedule, steps: u64, most: u64) -> Range<u64> {
    let stages = schedule.train.ops.iter().map(|o| i64::from(o.stage));
    // Steps in which the pipeline fills, and as many in which it drains.
    let fill = (stages.clone().max().unwrap_or(0) - stages.min().unwrap_or(0)) as u64;
    let length = USUAL.min(most);
    let start = (WARM + fill).min(steps.saturating_sub(length + fill)).min(steps.saturating_sub(1));
    let end = (start + length).min(steps.saturating_sub(fill)).max(start + 1);
    start..end.min(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        assert_eq!("3..7".parse(), Ok(Steps(3..7)));
        assert_eq!(Steps(3..7).to_string(), "3..7");
        for text in
            ["", "3", "3-7", "3..", "..7", "a..b", "-1..3", "3..=7", "1..2..3", "99999999999999999999..2"]
        {
            assert_eq!(text.parse::<Steps>(), Err(StepsError::Form), "{text}");
        }
        assert_eq!("7..7".parse::<Steps>(), Err(StepsError::Empty(7, 7)));
        assert_eq!("8..7".parse::<Steps>(), Err(StepsError::Empty(8, 7)));
    }
}
