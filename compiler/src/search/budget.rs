//! How much of a search may still be spent, counted in operations that are simulated: what looking for orders costs, on any machine, so
//! that the outcome is the same on all. Where a step is bounded by work its best order is found at once and nothing of this is
//! hit; where latency bounds it every way is simulated thousands of times.

/// Operations that may be simulated for climbs from one start. About 20 million take a second of one thread. When ways were looked at one
/// after the other, which takes a quarter less, twice 50 million shortened a step by 0.01% on average (72 searches, at most 0.7%).
pub(super) const SIMULATED: u64 = 64_000_000;
/// Operations of a step from and up to which so many are simulated. Of shorter ones each order costs less; of longer ones, which have
/// many tables, each table matters less. They get as many times less as they are shorter or longer, but longer ones no less than a share.
const OPERATIONS: [usize; 2] = [100, 1_000];
const LEAST: f64 = 0.3;
/// Of what is left, the share that finding out where else climbs may begin may take, of one kind of beginnings after the other.
const BEGINNINGS: u64 = 4;

/// What is left, for some stages that are to come: each may take an equal part of it, and leaves what it does not take to those after it.
#[derive(Debug)]
pub(super) struct Budget {
    end: u64,
    stages: u64,
}

impl Budget {
    /// So many operations from now on, for steps of so many.
    pub(super) fn new(now: u64, most: u64, operations: usize) -> Self {
        let times = |a: usize, b: usize| a as f64 / b as f64;
        let [short, long] = OPERATIONS;
        let share = times(long, operations.max(long)).max(LEAST) * times(operations.min(short), short);
        // Without a limit there is none of any step.
        let most = if most == u64::MAX { most } else { (most as f64 * share) as u64 };
        Self { end: now.saturating_add(most), stages: 0 }
    }

    /// Until when other beginnings may be looked for.
    pub(super) fn beginnings(&self, now: u64) -> u64 {
        now + self.end.saturating_sub(now) / BEGINNINGS
    }

    /// Expects so many stages more.
    pub(super) fn expect(&mut self, stages: usize) {
        self.stages += stages as u64;
    }

    /// Expects so many stages less.
    pub(super) fn spare(&mut self, stages: usize) {
        self.stages -= (stages as u64).min(self.stages);
    }

    /// Until when what comes next may go on, which is so many stages at once.
    pub(super) fn next(&mut self, now: u64, stages: usize) -> u64 {
        let part = self.end.saturating_sub(now) / self.stages.max(1);
        let stages = (stages as u64).min(self.stages.max(1));
        self.stages -= stages.min(self.stages);
        now + part * stages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_stage_leaves_is_left_to_others() {
        let mut budget = Budget::new(1000, 1200, 1000);
        assert_eq!((budget.beginnings(1000), budget.beginnings(1600)), (1300, 1750));
        budget.expect(7);
        budget.expect(1);
        budget.spare(2);
        assert_eq!(budget.next(1000, 1), 1200);
        // It took nothing.
        assert_eq!(budget.next(1000, 1), 1240);
        assert_eq!(budget.next(1000, 2), 1600);
        assert_eq!(budget.next(2100, 1), 2150);
        // The last has all that is left, and one that nobody expected nothing more than that.
        assert_eq!(budget.next(2150, 1), 2200);
        assert_eq!(budget.next(2190, 1), 2200);
        assert_eq!(budget.next(2190, 2), 2200);
        assert_eq!((budget.next(2300, 1), budget.beginnings(2300)), (2300, 2300));
    }

    #[test]
    fn shorter_and_longer_steps_get_less() {
        let of = |operations| Budget::new(5, 1000, operations).next(5, 1);
        let (short, long) = ([0, 3, 60, 99], [100, 1000, 1001, 2000, 3333, 3400, 1_000_000]);
        assert_eq!(short.map(of), [5, 35, 605, 995]);
        assert_eq!(long.map(of), [1005, 1005, 1004, 505, 305, 305, 305]);
    }

    #[test]
    fn without_a_limit_nothing_ends() {
        let mut budget = Budget::new(7, u64::MAX, 1_000_000);
        budget.expect(3);
        assert!(budget.next(7, 2) > 1 << 60 && budget.next(7, 1) == u64::MAX);
    }
}
