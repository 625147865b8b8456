//! What is known of modules that were scheduled: climbs come by what another has tried, and what is asked for in other words may be the
//! same. A module is known by a digest of its text, which says all that a schedule is made from.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use fs_schedule::Sent;

use super::{Cost, Effort};
use crate::ir::Module;
use crate::sched::policy::Policy;

/// A module and a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key([u64; 2], &'static str);

impl Key {
    pub(super) fn of(module: &Module, policy: &dyn Policy) -> Self {
        // Two hashes of the same text, so that no two of some hundred modules have both by chance.
        let mut hashers = [DefaultHasher::new(), DefaultHasher::new()];
        hashers[1].write_u8(1);
        module.lines(|_, line| hashers.iter_mut().for_each(|hasher| line.hash(hasher)));
        Self(hashers.map(|hasher| hasher.finish()), policy.name())
    }
}

/// What is known of one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Told {
    /// What it costs in the best order that was found.
    pub cost: Cost,
    /// What it costs in the first good one, if that is known.
    pub first: Option<Cost>,
    /// What a rank sends, if it was written down.
    pub sent: Option<Sent>,
    /// What it had to beat, if it did not and no more than that was found out.
    lost_to: Option<Cost>,
}

impl Told {
    /// Of what has a schedule.
    pub(super) fn found(cost: Cost, first: Option<Cost>, sent: Option<Sent>) -> Self {
        Self { cost, first, sent, lost_to: None }
    }

    /// Of what was looked for with some effort and has none.
    pub(super) fn lost(cost: Cost, effort: Effort) -> Self {
        Self { cost, first: None, sent: None, lost_to: effort.least() }
    }
}

/// All that is known.
#[derive(Debug, Default)]
pub(super) struct Known(RefCell<BTreeMap<Key, Told>>);

impl Known {
    /// Keeps what is told of a module, unless more is known.
    pub(super) fn keep(&self, key: Key, told: Told) {
        let mut known = self.0.borrow_mut();
        let before = known.get(&key);
        let most = |told: &Told| told.lost_to.map_or(f64::INFINITY, |lost| lost.step);
        if before.is_none_or(|before| most(before) <= most(&told)) {
            known.insert(key, told);
        }
    }

    pub(super) fn of(&self, key: &Key) -> Option<Told> {
        self.0.borrow().get(key).copied()
    }

    /// What a module costs that is known not to be worth an effort.
    pub(super) fn loses(&self, key: &Key, effort: Effort) -> Option<Cost> {
        let (known, least) = (self.of(key)?, effort.least()?);
        // What lost to less may have been given up too early.
        let enough = known.lost_to.is_none_or(|lost| least <= lost);
        (enough && known.cost >= least).then_some(known.cost)
    }
}
