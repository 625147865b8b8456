//! How far apart two processes' clocks are.
//!
//! Of all messages the quickest tells: what it says of its sender's clock is late by the time that it took, which for a small one
//! on an idle link is next to nothing.

/// By how much clocks may drift apart: nanoseconds in so many.
const DRIFT: i64 = 10_000;

/// What is known of another process's clock. Times are nanoseconds since each one's own beginning.
#[derive(Debug, Default)]
pub(super) struct Apart {
    /// This clock's time less the other's, as far as the quickest message showed, and when that was.
    quickest: Option<(i64, i64)>,
}

impl Apart {
    /// A message that left at `there` is here at `here`.
    pub(super) fn heard(&mut self, there: u64, here: u64) {
        let (way, now) = (here.cast_signed().saturating_sub(there.cast_signed()), here.cast_signed());
        let known = self.quickest.map(|(least, at)| least.saturating_add((now - at).max(0) / DRIFT));
        self.quickest = Some((known.map_or(way, |known| known.min(way)), now));
    }

    /// What this clock showed when the other one's showed `there`: not after `now`.
    pub(super) fn here(&self, there: u64, now: u64) -> u64 {
        let here = self.quickest.map(|(way, _)| there.cast_signed().saturating_add(way));
        here.map_or(now, |here| here.max(1).cast_unsigned().min(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quickest_message_tells() {
        let mut apart = Apart::default();
        assert_eq!(apart.here(5, 70), 70, "nothing is known");
        // The other clock is 1000 ahead.
        apart.heard(1_500, 900);
        apart.heard(2_000, 1_003);
        apart.heard(3_000, 2_900);
        assert_eq!(apart.here(2_500, 9_000), 1_503);
        assert_eq!(apart.here(20_000, 9_000), 9_000, "not after now");
        assert_eq!(apart.here(1, 9_000), 1, "not before the beginning");
        // Clocks drift.
        apart.heard(10_001_000, 10_000_999);
        assert_eq!(apart.here(10_001_000, 20_000_000), 10_000_999);
    }
}
