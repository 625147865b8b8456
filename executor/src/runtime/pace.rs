//! When checkpoints are left.

use std::ops::Range;
use std::str::FromStr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Every {
    /// After so many steps.
    Steps(u64),
    /// When so much time has gone by since the last one was begun.
    Time(Duration),
}

/// It is neither a number of steps nor a time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("give a number of steps, such as 500, or a time: 30s, 10m, 2h")]
pub struct BadEvery;

impl FromStr for Every {
    type Err = BadEvery;

    fn from_str(text: &str) -> Result<Self, BadEvery> {
        let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
        let n: u64 = digits.parse().ok().filter(|n| *n > 0).ok_or(BadEvery)?;
        let seconds = match unit {
            "" => return Ok(Self::Steps(n)),
            "s" => Some(n),
            "m" => n.checked_mul(60),
            "h" => n.checked_mul(3600),
            _ => None,
        };
        let seconds = seconds.filter(|seconds| *seconds <= 1 << 28).ok_or(BadEvery)?;
        Ok(Self::Time(Duration::from_secs(seconds)))
    }
}

/// Says before which batch the next checkpoint cuts. Of several processes the first one's does.
#[derive(Debug)]
pub(crate) struct Pace {
    every: Every,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Step of batch 0 of this run.
    first: u64,
    /// When the last one was begun.
    last: Instant,
    /// One is being written.
    busy: bool,
    /// How many had to be left out for that.
    left_out: u64,
    /// Steps that all ranks of this process have ended.
    ended: u64,
    /// No step comes any more.
    hurry: bool,
}

impl Pace {
    pub(crate) fn new(every: Every) -> Self {
        let state =
            State { first: 0, last: Instant::now(), busy: false, left_out: 0, ended: 0, hurry: false };
        Self { every, state: Mutex::new(state) }
    }

    /// A run begins with this step.
    pub(crate) fn begin(&self, first: u64) {
        let mut state = self.state.lock();
        (state.first, state.busy, state.last) = (first, false, Instant::now());
        (state.ended, state.hurry) = (first, false);
    }

    /// All ranks of this process have ended so many steps.
    pub(crate) fn ended(&self, steps: u64) {
        self.state.lock().ended = steps;
    }

    /// Training has ended: what is being written is all that is waited for.
    pub(crate) fn hurry(&self) {
        self.state.lock().hurry = true;
    }

    /// How much of the time has gone by between the checkpoint of a step, which is being written since a while, and the next one.
    pub(crate) fn gone(&self, step: u64, since: Duration) -> f64 {
        let state = self.state.lock();
        if state.hurry {
            return f64::INFINITY;
        }
        match self.every {
            Every::Steps(n) => state.ended.saturating_sub(step) as f64 / n as f64,
            Every::Time(time) => since.as_secs_f64() / time.as_secs_f64().max(1e-9),
        }
    }

    /// One of some batches, none of which any rank may have begun, before which it is time to cut.
    pub(crate) fn choose(&self, free: Range<u64>) -> Option<u64> {
        let mut state = self.state.lock();
        // What a run begins with has been written, or can be had without it.
        let mut free = free.start.max(1)..free.end;
        let batch = match self.every {
            Every::Steps(n) => free.find(|batch| (state.first + batch).is_multiple_of(n))?,
            Every::Time(time) => free.next().filter(|_| state.last.elapsed() >= time)?,
        };
        if state.busy {
            state.left_out += u64::from(matches!(self.every, Every::Steps(_)));
            return None;
        }
        (state.busy, state.last) = (true, Instant::now());
        Some(batch)
    }

    /// The checkpoint that was begun is written, or given up.
    pub(crate) fn done(&self) {
        self.state.lock().busy = false;
    }

    /// Whether one is being written, as far as the first process knows.
    pub(crate) fn is_writing(&self) -> bool {
        self.state.lock().busy
    }

    /// How many were left out because one was being written.
    pub(crate) fn left_out(&self) -> u64 {
        self.state.lock().left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_times_are_read() {
        let read = |text: &str| text.parse::<Every>().ok();
        assert_eq!(read("100"), Some(Every::Steps(100)));
        assert_eq!(read("90s"), Some(Every::Time(Duration::from_secs(90))));
        assert_eq!(read("10m"), Some(Every::Time(Duration::from_mins(10))));
        assert_eq!(read("2h"), Some(Every::Time(Duration::from_hours(2))));
        for bad in
            ["", "0", "0s", "m", "-1", "1.5", "10 m", "1d", "99999999999999999999", "99999999999999999h"]
        {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn multiples_of_steps_are_cut_and_none_while_one_is_written() {
        let pace = Pace::new(Every::Steps(10));
        pace.begin(25);
        assert_eq!(pace.choose(0..5), None);
        assert_eq!(pace.choose(5..8), Some(5), "before step 30");
        assert_eq!(pace.choose(8..20), None, "busy");
        pace.done();
        assert_eq!(pace.choose(20..40), Some(25));
        assert_eq!(pace.left_out(), 1);
        // A run that begins at a multiple has nothing to save yet.
        pace.begin(30);
        assert_eq!(pace.choose(0..10), None);
        assert_eq!(pace.choose(10..11), Some(10));
    }

    #[test]
    fn times_go_by() {
        let pace = Pace::new(Every::Time(Duration::ZERO));
        pace.begin(0);
        assert_eq!(pace.choose(0..1), None);
        assert_eq!(pace.choose(0..9), Some(1));
        let pace = Pace::new(Every::Time(Duration::from_hours(1)));
        pace.begin(0);
        assert_eq!(pace.choose(1..9), None);
    }
}
