//! The cost model: how long operations take, however that is known.
//!
//! Two models: a [cluster's description](super::latency) and a [profile](super::measured) of a run. The scheduler sees
//! this trait only.

use std::fmt::Debug;

use fs_schedule::{Engine, Op, Schedule};

use super::sizes::Sizes;

/// Least chunks' duration in units of the link's latency: a chunk that is much shorter than what it costs to start
/// one would waste the link.
const CHUNK_LATENCIES: f64 = 8.0;
/// Bytes of the least chunk.
const LEAST_CHUNK: f64 = 8192.0;

/// What an operation takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Time {
    /// Seconds that it occupies its engine.
    pub whole: f64,
    /// Of those the seconds of its launch, which what is launched with another is spared.
    pub launch: f64,
    /// Seconds after that in which its data are under way: others wait, its engine is free.
    pub latency: f64,
    /// Seconds after that until the host has learned of it what others need.
    pub learned: f64,
    /// Seconds of a processor core that a transfer takes besides.
    pub core: f64,
    /// Bytes on the link that decides, of transfers.
    pub wire: f64,
}

impl Time {
    /// Of an operation that occupies its engine so long, and nothing else.
    pub(crate) fn of(whole: f64) -> Self {
        Self { whole, launch: 0.0, latency: 0.0, learned: 0.0, core: 0.0, wire: 0.0 }
    }
}

/// How long operations take.
pub(crate) trait CostModel: Debug + Sync {
    /// Where it is from: the cluster's name, or what was measured.
    fn describe(&self) -> String;
    /// Sizes to expect.
    fn sizes(&self, s: &Schedule) -> Sizes;
    /// Time of an operation at these sizes.
    fn time(&self, s: &Schedule, sizes: &Sizes, op: &Op) -> Time;
    /// Bytes per second and seconds of latency of the link between ranks.
    fn link(&self) -> (f64, f64);
    /// By how much compute is slowed by what overlaps with it.
    fn slowdown(&self, _engines: &[Engine], _times: &[Time], _overlaps: &dyn Fn(usize) -> bool) -> f64 {
        1.0
    }
    /// Seconds that the host should have, to learn what it must of an operation and to start what comes then, where work that
    /// does not need it is at hand.
    fn room(&self) -> f64 {
        0.0
    }
    /// What it assumed, in sentences.
    fn assumptions(&self, s: &Schedule, sizes: &Sizes) -> Vec<String>;

    /// Bytes of a chunk of a transfer: short against a step of so many seconds, long against the latency of the link.
    fn chunk(&self, step: f64) -> u64 {
        let (bandwidth, latency) = self.link();
        let seconds = (CHUNK_LATENCIES * latency).max(step / 200.0);
        ((bandwidth * seconds).max(LEAST_CHUNK) as u64).next_power_of_two()
    }
}

/// Nanoseconds, at least one.
pub(super) fn nanoseconds(seconds: f64) -> u64 {
    ((seconds * 1e9).round() as u64).max(1)
}
