//! Reuse distance: the classes into which the rows of a batch fall, and when two operations can meet at a row.
//!
//! The unit is the *window*: one microbatch or several that follow each other, as many in each. Batch n has windows n*W to
//! n*W + W - 1 (W = 1: the batch itself). Rows are updated once per batch, after their last use in it, and are needed by a
//! rank at its first use. So
//!
//! - a rank's *lookup* of a row is `(b, d)`: first used in window b of this batch by that rank; last used, by any
//!   rank in a batch before, d windows earlier;
//! - the *gradient* of a row is `(a, e)`: last used, by any rank, in window a of this batch; next used, by any
//!   rank in a later batch, e windows later.
//!
//! Rows of a window are there before its first microbatch, their gradients are whole after its last. So windows of a microbatch
//! let rows be latest and gradients earliest, and wider ones make fewer classes, transfers and updates: what is told apart
//! changes nothing of what is computed.
//!
//! Distances up to the lookahead K are classes of their own; greater ones (and none at all) are one class. K = 1 and
//! W = 1 are the paper's overlapping and non-overlapping rows. A row used in batches n and n + D with nothing between
//! has d = e = D*W + b - a, where b is the first use of the rank for d, of all ranks for e.
//!
//! From this follow the orders that keep reads fresh: [`Reuse::apply_before_gather`] and its relatives say after how
//! many batches two classes can hold the same row at consecutive uses. Uses that are further apart follow by
//! transitivity.

use crate::attribute::Way;

/// Lookahead and windows of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reuse {
    /// K: distances up to it are told apart; 0: none are.
    pub lookahead: u32,
    /// W: windows of a batch.
    pub windows: u32,
    /// Microbatches of a window.
    pub each: u32,
}

/// A class of rows of one batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class {
    /// The window of the first use (lookups) or the last use (gradients) in the batch.
    pub window: u32,
    /// Reuse distance; `None`: greater than the lookahead.
    pub distance: Option<u32>,
}

impl Reuse {
    /// The most classes that an exchange may have.
    pub const MOST: usize = 255;

    /// With a window for each of so many microbatches.
    pub const fn new(lookahead: u32, microbatches: u32) -> Self {
        Self { lookahead, windows: microbatches, each: 1 }
    }

    /// With so many windows of so many microbatches, if these can be cut so.
    pub fn in_windows(lookahead: u32, microbatches: u32, windows: u32) -> Option<Self> {
        let fits = windows > 0 && microbatches.is_multiple_of(windows);
        fits.then(|| Self { lookahead, windows, each: microbatches / windows })
    }

    /// Microbatches of a batch.
    pub const fn microbatches(self) -> u32 {
        self.windows * self.each
    }

    /// The window of a microbatch.
    pub fn window(self, microbatch: u32) -> u32 {
        microbatch / self.each.max(1)
    }

    /// The last microbatch of a window.
    pub const fn end(self, window: u32) -> u32 {
        (window + 1) * self.each - 1
    }

    /// All classes of lookups or gradients. Class c of an operation is the c-th of these.
    pub fn classes(self, way: Way) -> Vec<Class> {
        let (k, w) = (self.lookahead, self.windows);
        let mut classes = Vec::new();
        for window in 0..w {
            // No row is closer than this: the batch before ends with window W - 1, the next starts with 0.
            let nearest = match way {
                Way::Forward => window + 1,
                Way::Backward => w - window,
            };
            classes.extend((nearest..=k).map(|d| Class { window, distance: Some(d) }));
            classes.push(Class { window, distance: None });
        }
        classes
    }

    /// Number of classes, without listing them.
    pub fn count(self, way: Way) -> usize {
        let (k, w) = (self.lookahead as usize, self.windows as usize);
        let _ = way; // Both ways have as many.
        w + (0..w).map(|b| k.saturating_sub(b)).sum::<usize>()
    }

    /// The index of the class with this window and distance (`None`: never used before, or after).
    pub fn class(self, way: Way, window: u32, distance: Option<u32>) -> Option<u32> {
        let distance = distance.filter(|d| *d <= self.lookahead);
        let wanted = Class { window, distance };
        self.classes(way).iter().position(|c| *c == wanted).map(|c| c as u32)
    }

    /// How many batches before (lookups) or after (gradients) must be known to tell classes apart.
    pub fn history(self) -> u32 {
        self.lookahead.div_ceil(self.windows.max(1))
    }

    fn members(self, way: Way, class: Option<u32>) -> Vec<Class> {
        let all = self.classes(way);
        match class {
            None => all,
            Some(c) => all.get(c as usize).copied().into_iter().collect(),
        }
    }

    fn fits(self, class: Class, distance: u32) -> bool {
        match class.distance {
            Some(d) => d == distance,
            None => distance > self.lookahead,
        }
    }

    /// Least D >= 1 such that a row with its gradient of batch n in `apply` can be looked up next in batch n + D, in
    /// `gather`. `None` operands are all classes; the result is `None` if they never meet.
    pub fn apply_before_gather(self, apply: Option<u32>, gather: Option<u32>) -> Option<u32> {
        let (applied, looked_up) = (self.members(Way::Backward, apply), self.members(Way::Forward, gather));
        (1..=self.history() + 1).find(|batches| {
            let span = batches * self.windows;
            applied.iter().any(|g| {
                looked_up.iter().any(|l| {
                    self.fits(*l, span + l.window - g.window)
                        && (0..=l.window).any(|first| self.fits(*g, span + first - g.window))
                })
            })
        })
    }

    /// Likewise for two updates: the next use of a row of `first` in batch n can be in `second` of batch n + D.
    pub fn apply_before_apply(self, first: Option<u32>, second: Option<u32>) -> Option<u32> {
        let (before, after) = (self.members(Way::Backward, first), self.members(Way::Backward, second));
        (1..=self.history() + 1).find(|batches| {
            let span = batches * self.windows;
            before.iter().any(|g| {
                after.iter().any(|h| (0..=h.window).any(|use_| self.fits(*g, span + use_ - g.window)))
            })
        })
    }

    /// True if a row of one batch can be in both: the lookup must then come before the update.
    pub fn gather_before_apply(self, gather: Option<u32>, apply: Option<u32>) -> bool {
        let (looked_up, applied) = (self.members(Way::Forward, gather), self.members(Way::Backward, apply));
        looked_up.iter().any(|l| applied.iter().any(|g| l.window <= g.window))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper's case: OL is class 0, NOL class 1.
    #[test]
    fn lookahead_one() {
        let r = Reuse::new(1, 1);
        assert_eq!(r.count(Way::Forward), 2);
        assert_eq!(r.history(), 1);
        assert_eq!(r.apply_before_gather(Some(0), Some(0)), Some(1));
        assert_eq!(r.apply_before_gather(Some(0), Some(1)), None, "an OL gradient's next lookup is OL");
        assert_eq!(
            r.apply_before_gather(Some(1), Some(0)),
            None,
            "a NOL gradient's row is not in the next batch"
        );
        assert_eq!(r.apply_before_gather(Some(1), Some(1)), Some(2), "used in n and n + 2");
        assert_eq!(r.apply_before_gather(None, None), Some(1));
    }

    /// Rows without slack are those of the last microbatch that the first of the next batch uses.
    #[test]
    fn microbatches() {
        let r = Reuse::new(1, 4);
        let gradients = r.classes(Way::Backward);
        assert_eq!(gradients.len(), 5);
        let urgent = r.class(Way::Backward, 3, Some(1));
        assert_eq!(r.apply_before_gather(urgent, r.class(Way::Forward, 0, Some(1))), Some(1));
        assert_eq!(r.apply_before_gather(urgent, r.class(Way::Forward, 0, None)), None);
        // Another rank may use the row in microbatch 0 too, which made it urgent.
        assert_eq!(r.apply_before_gather(urgent, r.class(Way::Forward, 2, None)), Some(1));
        assert!(!r.gather_before_apply(r.class(Way::Forward, 2, None), r.class(Way::Backward, 1, None)));
    }

    /// Windows cut microbatches evenly, and each has its own.
    #[test]
    fn windows() {
        for (microbatches, windows) in [(1, 1), (4, 1), (4, 2), (4, 4), (6, 2), (6, 3)] {
            let r = Reuse::in_windows(2, microbatches, windows).expect("they fit");
            assert_eq!((r.microbatches(), r.windows), (microbatches, windows));
            for window in 0..windows {
                let own: Vec<u32> = (0..microbatches).filter(|m| r.window(*m) == window).collect();
                assert_eq!(own.len() as u32, r.each);
                assert_eq!(own.last(), Some(&r.end(window)));
            }
            // What is told apart is as if windows were microbatches.
            assert_eq!(r.classes(Way::Forward), Reuse::new(2, windows).classes(Way::Forward));
            assert_eq!(r.history(), Reuse::new(2, windows).history());
        }
        assert_eq!(Reuse::in_windows(2, 4, 4), Some(Reuse::new(2, 4)));
        for (microbatches, windows) in [(4, 3), (4, 0), (2, 4)] {
            assert_eq!(Reuse::in_windows(2, microbatches, windows), None);
        }
    }

    /// Every answer against an enumeration of all use patterns of one row by two ranks.
    #[test]
    fn answers_agree_with_enumeration() {
        for (k, m) in [(1, 1), (2, 1), (3, 1), (1, 2), (2, 2), (3, 2), (1, 3), (4, 3)] {
            let r = Reuse::new(k, m);
            for way in [Way::Forward, Way::Backward] {
                assert_eq!(r.classes(way).len(), r.count(way));
            }
            let mut met_gather = std::collections::BTreeSet::new();
            let mut met_apply = std::collections::BTreeSet::new();
            let mut met_same = std::collections::BTreeSet::new();
            // A use pattern of a batch: per rank a set of microbatches, as bits.
            let sets: Vec<(u32, u32)> = (0..1u32 << m)
                .flat_map(|x| (0..1u32 << m).map(move |y| (x, y)))
                .filter(|(x, y)| x | y != 0)
                .collect();
            for batches in 1..=r.history() + 2 {
                for (before, after) in sets.iter().flat_map(|b| sets.iter().map(move |a| (b, a))) {
                    let last = (before.0 | before.1).ilog2();
                    let first_of_all = (after.0 | after.1).trailing_zeros();
                    let next = batches * m + first_of_all - last;
                    let gradient = r.class(Way::Backward, last, Some(next)).expect("a class");
                    for of_rank in [after.0, after.1].into_iter().filter(|s| *s != 0) {
                        let first = of_rank.trailing_zeros();
                        let lookup =
                            r.class(Way::Forward, first, Some(batches * m + first - last)).expect("a class");
                        met_gather.insert((gradient, lookup, batches));
                        // The batch's own gradient may have any class of its last use.
                        let own_last = (after.0 | after.1).ilog2();
                        for (c, class) in r.classes(Way::Backward).iter().enumerate() {
                            if class.window == own_last {
                                met_apply.insert((gradient, c as u32, batches));
                                met_same.insert((lookup, c as u32));
                            }
                        }
                    }
                }
            }
            let backward = r.count(Way::Backward) as u32;
            for a in 0..backward {
                for l in 0..r.count(Way::Forward) as u32 {
                    let least = met_gather.iter().filter(|t| (t.0, t.1) == (a, l)).map(|t| t.2).min();
                    assert_eq!(r.apply_before_gather(Some(a), Some(l)), least, "K={k} M={m} {a} {l}");
                    assert_eq!(
                        r.gather_before_apply(Some(l), Some(a)),
                        met_same.contains(&(l, a)),
                        "K={k} M={m}"
                    );
                }
                for b in 0..backward {
                    let least = met_apply.iter().filter(|t| (t.0, t.1) == (a, b)).map(|t| t.2).min();
                    assert_eq!(r.apply_before_apply(Some(a), Some(b)), least, "K={k} M={m} {a} {b}");
                }
            }
        }
    }
}
