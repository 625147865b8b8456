//! How many bytes may be on their way to a process: as many as its link takes in a few milliseconds.
//!
//! What is on its way cannot be overtaken by something more urgent, and what is not on its way leaves the link idle. So the
//! window follows the rate at which bytes were acknowledged, as BBR's does (Cardwell et al., ACM Queue 14(5), 2016): of
//! each acknowledged piece the bytes delivered since it left, over the time since then, of which the greatest lately counts.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// What is on its way at most takes the link so long.
const DEPTH: Duration = Duration::from_millis(4);
/// The bounds of a window.
const LEAST: u64 = 128 << 10;
const MOST: u64 = 64 << 20;
/// The window until something is known.
const FIRST: u64 = 512 << 10;
/// How long a rate counts.
const MEMORY: Duration = Duration::from_millis(500);

/// The window towards one process.
#[derive(Debug)]
pub(super) struct Window {
    sent: u64,
    acknowledged: u64,
    /// Of pieces on their way: bytes sent up to their end, when they left, and bytes acknowledged then.
    pieces: VecDeque<(u64, Instant, u64)>,
    /// Rates in bytes a second and when they were seen, falling.
    rates: VecDeque<(f64, Instant)>,
}

impl Window {
    pub(super) fn new() -> Self {
        Self { sent: 0, acknowledged: 0, pieces: VecDeque::new(), rates: VecDeque::new() }
    }

    /// Bytes that may be on their way.
    pub(super) fn size(&self) -> u64 {
        self.rates.front().map_or(FIRST, |(rate, _)| (rate * DEPTH.as_secs_f64()) as u64).clamp(LEAST, MOST)
    }

    /// Whether a piece may leave.
    pub(super) fn is_open(&self) -> bool {
        self.sent - self.acknowledged < self.size()
    }

    /// Whether nothing is on its way.
    pub(super) fn is_empty(&self) -> bool {
        self.sent == self.acknowledged
    }

    /// A piece leaves.
    pub(super) fn send(&mut self, bytes: u64, now: Instant) {
        self.sent += bytes;
        self.pieces.push_back((self.sent, now, self.acknowledged));
    }

    /// The other has so many bytes in all.
    pub(super) fn acknowledge(&mut self, bytes: u64, now: Instant) {
        self.acknowledged = bytes.clamp(self.acknowledged, self.sent);
        let mut rate: f64 = 0.0;
        while let Some((end, left, before)) = self.pieces.front().copied() {
            if end > self.acknowledged {
                break;
            }
            self.pieces.pop_front();
            let time = now.saturating_duration_since(left).as_secs_f64().max(1e-6);
            rate = rate.max((self.acknowledged - before) as f64 / time);
        }
        if rate > 0.0 {
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
mod tests {
    use super::*;

    /// A link of a constant rate and delay that works off what was sent, in order.
    fn play(rate: f64, delay: Duration, seconds: f64) -> (Window, f64) {
        let (start, mut window) = (Instant::now(), Window::new());
        let (piece, mut now, mut free) = (32_768_u64, start, start);
        let mut under_way: VecDeque<(Instant, u64)> = VecDeque::new();
        let mut total = 0;
        while now < start + Duration::from_secs_f64(seconds) {
            while window.is_open() {
                window.send(piece, now);
                total += piece;
                free = free.max(now) + Duration::from_secs_f64(piece as f64 / rate);
                under_way.push_back((free + delay, total));
            }
            let Some((at, bytes)) = under_way.pop_front() else { break };
            now = at;
            window.acknowledge(bytes, now);
        }
        (window, total as f64 / seconds)
    }

    /// The link stays busy, and what is on its way takes it no more than a few milliseconds or the least window.
    #[test]
    fn windows_follow_the_link() {
        for (rate, delay) in [(1.25e7, 100e-6), (1.25e8, 50e-6), (1.25e9, 20e-6), (2.5e10, 10e-6)] {
            let (window, got) = play(rate, Duration::from_secs_f64(delay), 0.5);
            assert!(got > 0.95 * rate, "{rate}: {got}");
            let most = (rate * DEPTH.as_secs_f64() * 1.1).max(LEAST as f64);
            assert!(window.size() as f64 <= most, "{rate}: {}", window.size());
        }
    }

    #[test]
    fn more_than_was_sent_is_not_believed() {
        let (mut window, now) = (Window::new(), Instant::now());
        window.send(1000, now);
        window.acknowledge(5000, now + Duration::from_millis(1));
        assert!(window.is_empty());
        window.acknowledge(10, now + Duration::from_millis(2));
        assert!(window.is_empty());
    }
}
