//! How fast bytes leave for a process: as fast as its link carries them, with a few milliseconds of them waiting there.
//!
//! What waits in a link cannot be overtaken by something more urgent, and a link in which nothing waits may idle. What has
//! come is acknowledged, but acknowledgements wait in the link back behind all that the other sends: a window of bytes
//! that may be on their way would let two that send to each other take turns, and leave up to half of both links idle
//! (Zhang, Shenker and Clark, SIGCOMM 1991, found it in TCP). So bytes leave at the rate at which they have arrived lately, as
//! BBR's do (Cardwell et al., ACM Queue 14(5), 2016), by the receiver's clock, to which the way back is nothing; and a little
//! faster or slower by how long they wait, which is how much longer they take from clock to clock than at best (the
//! clocks need not agree), as with LEDBAT (RFC 6817).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long bytes shall wait in a link.
const WAIT: Duration = Duration::from_millis(4);
/// The rate is raised while they wait less than half of it, and lowered when they wait longer.
const FASTER: f64 = 1.25;
const SLOWEST: f64 = 0.1;
/// Bytes a second below which no rate falls.
const LEAST_RATE: f64 = 1e6;
/// Bytes on their way at most, whatever is known: in seconds of the rate, and at least.
const MOST: f64 = 0.02;
const FIRST: u64 = 512 << 10;
/// How late a piece may leave and be made up for: the thread sleeps between looks.
const LATE: Duration = Duration::from_micros(500);
/// Arrivals that a rate is taken from are so far apart, at least, in seconds.
const SPAN: f64 = 4e-3;
/// How long a rate counts.
const MEMORY: Duration = Duration::from_millis(500);
/// By how much clocks may drift apart.
const DRIFT: f64 = 1e-4;

/// What leaves for one process.
#[derive(Debug)]
pub(super) struct Pace {
    began: Instant,
    sent: u64,
    acknowledged: u64,
    /// Of pieces on their way: bytes sent up to their end, and when they left.
    pieces: VecDeque<(u64, Instant)>,
    /// There was nothing to send. Bytes behind `barrier` left after that.
    idle: bool,
    barrier: u64,
    /// What has come, and when by the receiver's clock.
    arrivals: VecDeque<(u64, f64)>,
    /// Rates in bytes a second and when they were seen, falling.
    rates: VecDeque<(f64, Instant)>,
    /// The shortest way from clock to clock, and when it was known; seconds that the last piece took longer.
    shortest: Option<(f64, Instant)>,
    waited: f64,
    /// When the next piece may leave.
    next: Instant,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            began: now,
            sent: 0,
            acknowledged: 0,
            pieces: VecDeque::new(),
            idle: true,
            barrier: 0,
            arrivals: VecDeque::new(),
            rates: VecDeque::new(),
            shortest: None,
            waited: 0.0,
            next: now,
        }
    }

    /// Bytes a second at which the other gets what is sent; nothing if that is not known yet.
    fn rate(&self) -> Option<f64> {
        self.rates.front().map(|(rate, _)| rate.max(LEAST_RATE))
    }

    /// Bytes that the link carries in a quarter of what may wait in it.
    pub(super) fn part(&self) -> u64 {
        self.rate().map_or(0, |rate| (rate * WAIT.as_secs_f64() / 4.0) as u64)
    }

    /// Whether a piece may leave.
    pub(super) fn is_open(&self, now: Instant) -> bool {
        let most = self.rate().map_or(FIRST, |rate| FIRST.max((rate * MOST) as u64));
        self.sent - self.acknowledged < most && (self.rates.is_empty() || now + LATE >= self.next)
    }

    /// Whether nothing is on its way.
    pub(super) fn is_empty(&self) -> bool {
        self.sent == self.acknowledged
    }

    /// A piece leaves.
    pub(super) fn send(&mut self, bytes: u64, now: Instant) {
        if std::mem::take(&mut self.idle) {
            self.barrier = self.sent;
            if self.is_empty() {
                self.waited = 0.0;
            }
        }
        self.sent += bytes;
        self.pieces.push_back((self.sent, now));
        if let Some(rate) = self.rate() {
            let wait = WAIT.as_secs_f64();
            let pace = match self.waited {
                waited if waited < wait / 2.0 => FASTER,
                waited if waited < wait => 1.0,
                waited => (wait / waited).max(SLOWEST),
            };
            self.next = self.next.max(now) + Duration::from_secs_f64(bytes as f64 / (rate * pace));
        }
    }

    /// There is nothing to send.
    pub(super) fn rest(&mut self) {
        self.idle = true;
    }

    /// The other has so many bytes in all; it says so at this time of its clock, if it says it at once, in seconds.
    pub(super) fn acknowledge(&mut self, bytes: u64, stamp: Option<f64>, now: Instant) {
        // What was said later may be heard earlier.
        let stamp = stamp.filter(|stamp| stamp.is_finite() && bytes > self.acknowledged);
        self.acknowledged = bytes.clamp(self.acknowledged, self.sent);
        let mut left = None;
        while let Some((_, at)) = self.pieces.front().filter(|(end, _)| *end <= self.acknowledged) {
            left = Some(*at);
            self.pieces.pop_front();
        }
        let Some(stamp) = stamp else { return };
        if let Some(left) = left {
            let way = stamp - left.saturating_duration_since(self.began).as_secs_f64();
            let drifted = |(shortest, at): (f64, Instant)| {
                shortest + DRIFT * now.saturating_duration_since(at).as_secs_f64()
            };
            let shortest = self.shortest.map_or(way, |known| drifted(known).min(way));
            (self.shortest, self.waited) = (Some((shortest, now)), way - shortest);
        }
        self.arrived(stamp, now);
    }

    fn arrived(&mut self, stamp: f64, now: Instant) {
        let come = self.acknowledged;
        // What was sent in a row arrives as fast as the link carries it; between rows nothing did.
        while self.arrivals.front().is_some_and(|(known, _)| come > self.barrier && *known <= self.barrier) {
            self.arrivals.pop_front();
        }
        self.arrivals.push_back((come, stamp));
        while self.arrivals.get(1).is_some_and(|(_, at)| *at <= stamp - SPAN) {
            self.arrivals.pop_front();
        }
        let since = self.arrivals.front().filter(|(_, at)| stamp - at >= SPAN);
        if let Some(rate) = since.map(|(before, at)| (come - before) as f64 / (stamp - at)) {
            while self.rates.back().is_some_and(|(known, _)| *known <= rate) {
                self.rates.pop_back();
            }
            self.rates.push_back((rate, now));
        }
        while self.rates.len() > 1
            && self.rates.front().is_some_and(|(_, at)| now.saturating_duration_since(*at) > MEMORY)
        {
            self.rates.pop_front();
        }
    }
}

#[cfg(test)]
mod tests;
