//! By how much the clocks of two processes differ, for those who lay their times beside each other afterwards.
//!
//! The first process asks another one for its time, again and again. An answer was given between the question and
//! its arrival; of the quickest one it is taken to have been given halfway, so it is wrong by half of that round trip at most.
//! Clocks drift: who asks at two times knows how they ran between them. Nothing that decides anything in a run uses this.

/// Another process's clock beside the first one's, at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reading {
    /// The moment, on the first process's clock, in nanoseconds.
    pub at: i64,
    /// How far the other clock is ahead.
    pub ahead: i64,
    /// The round trip of the question.
    pub round_trip: i64,
}

impl Reading {
    /// Of a question asked and answered at these times of the first process, and the other one's time.
    pub(crate) fn of(asked: i64, answered: i64, other: i64) -> Self {
        let at = asked + (answered - asked) / 2;
        Self { at, ahead: other - at, round_trip: answered - asked }
    }

    /// A time of the other process as one of the first, between this reading and a later one (or beyond).
    pub(crate) fn translate(self, later: Self, time: i64) -> i64 {
        // By the other clock.
        let (from, to) = (self.at + self.ahead, later.at + later.ahead);
        let span = to - from;
        if span <= 0 {
            return time - self.ahead;
        }
        let drift = i128::from(later.ahead - self.ahead) * i128::from(time - from) / i128::from(span);
        time - self.ahead - i64::try_from(drift).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_a_clock_that_drifts_are_translated() {
        let first = Reading::of(1_000, 1_200, 500_000);
        assert_eq!(first, Reading { at: 1_100, ahead: 498_900, round_trip: 200 });
        // A second later by the first clock it has gained 100 us.
        let later = Reading { at: 1_000_001_100, ahead: 598_900, round_trip: 300 };
        let translate = |time: i64| first.translate(later, time);
        assert_eq!(translate(500_000), 1_100);
        assert_eq!(translate(1_000_600_000), 1_000_001_100);
        assert_eq!(translate(500_550_000), 500_001_100, "halfway");
        assert_eq!(first.translate(first, 500_100), 1_200, "there is but one");
    }
}
