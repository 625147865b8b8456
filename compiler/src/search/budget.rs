//! How much of a search may still be spent, counted in operations that are simulated: what looking for orders costs, on any machine, so
//! that the outcome is the same on all. Where a step is bounded by work its best order is found at once and nothing of this is
//! hit; where latency bounds it every way is simulated thousands of times.

/// Operations that may be simulated for climbs from one start. About 15 million take a second.
const SIMULATED: u64 = 120_000_000;
/// The share of it that finding out where else climbs may begin may take.
const BEGINNINGS: u64 = 3;

/// What is left, for some stages that are to come: each may take an equal part of it, and leaves what it does not take to those after it.
#[derive(Debug)]
pub(super) struct Budget {
    began: u64,
    stages: u64,
}

impl Budget {
    /// From now on.
    pub(super) fn new(now: u64) -> Self {
        Self { began: now, stages: 0 }
    }

    /// Whether nothing is left for other beginnings.
    pub(super) fn no_beginning(&self, now: u64) -> bool {
        now >= self.began + SIMULATED / BEGINNINGS
    }

    /// Expects so many stages more.
    pub(super) fn expect(&mut self, stages: usize) {
        self.stages += stages as u64;
    }

    /// Until when the next stage may go on.
    pub(super) fn next(&mut self, now: u64) -> u64 {
        let left = (self.began + SIMULATED).saturating_sub(now);
        let until = now + left / self.stages.max(1);
        self.stages = self.stages.saturating_sub(1);
        until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_stage_leaves_is_left_to_others() {
        let mut budget = Budget::new(1000);
        assert!(!budget.no_beginning(1000) && budget.no_beginning(1000 + SIMULATED / 3));
        budget.expect(3);
        budget.expect(1);
        assert_eq!(budget.next(1000), 1000 + SIMULATED / 4);
        // It took nothing.
        assert_eq!(budget.next(1000), 1000 + SIMULATED / 3);
        let end = 1000 + SIMULATED;
        assert_eq!(budget.next(end - 10), end - 5);
        // The last has all that is left, and one that nobody expected nothing more than that.
        assert_eq!(budget.next(end - 8), end);
        assert_eq!(budget.next(end - 8), end);
        assert_eq!(budget.next(end + 5), end + 5);
    }
}
