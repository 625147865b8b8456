//! A process's own time.
//!
//! Times are nanoseconds since the start of a run in this process. Those of two processes are never compared: what
//! another process says of its times are durations.

use std::time::{Duration, Instant};

/// Time since the start of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    started: Instant,
}

impl Clock {
    /// Starts now.
    pub(crate) fn start() -> Self {
        Self { started: Instant::now() }
    }

    /// Nanoseconds since the start.
    pub(crate) fn now(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// An instant as such a time; 0 for one before the start.
    pub(crate) fn at(&self, instant: Instant) -> u64 {
        instant.saturating_duration_since(self.started).as_nanos() as u64
    }

    /// When it started, in nanoseconds since `epoch`.
    pub(crate) fn since(&self, epoch: Instant) -> i64 {
        self.started.saturating_duration_since(epoch).as_nanos() as i64
    }

    /// That time as an instant.
    pub(crate) fn instant(&self, nanoseconds: u64) -> Instant {
        self.started + Duration::from_nanos(nanoseconds)
    }
}
