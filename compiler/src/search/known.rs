//! What is known of modules that were scheduled: climbs come by what another has tried, and what is asked for in other words may be the
//! same. A module is known by a digest of its text, which says all that a schedule is made from.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use fs_schedule::Sent;

use super::Cost;
use super::effort::Effort;
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
        // Of two that were found the shorter; of two that lost the one that had to beat less.
        let more = |before: &Told| {
            let both = before.lost_to.is_none() && told.lost_to.is_none();
            if both { told.cost < before.cost } else { most(before) <= most(&told) }
        };
        if before.is_none_or(more) {
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

#[cfg(test)]
mod tests {
    use fs_schedule::Strategy;

    use super::super::look::Looked;
    use super::super::{Search, candidates};
    use super::*;
    use crate::CompileOptions;

    fn cost(step: f64) -> Cost {
        Cost { beyond_in_flight: 0, beyond_memory: 0, step }
    }

    fn less_than(step: f64) -> Effort {
        Effort { beat: Some(cost(step)), only_better: true, far: None }
    }

    fn key(n: u64) -> Key {
        Key([n, 0], "serial")
    }

    #[test]
    fn what_lost_is_not_looked_for_again_unless_it_has_to_beat_more() {
        let known = Known::default();
        known.keep(key(1), Told::lost(cost(9.0), less_than(5.0)));
        let loses = |effort| known.loses(&key(1), effort);
        assert_eq!(loses(less_than(5.0)), Some(cost(9.0)));
        assert_eq!(loses(less_than(4.0)), Some(cost(9.0)));
        // It was given up before that was known.
        assert_eq!(loses(less_than(5.1)), None);
        assert_eq!(loses(Effort { far: Some(5.0), ..Effort::default() }), Some(cost(9.0)));
        assert_eq!(loses(Effort { far: Some(4.0), ..less_than(6.0) }), Some(cost(9.0)));
        // Who wants a schedule whatever it costs gets one.
        assert_eq!(loses(Effort::default()), None);
        assert_eq!(loses(Effort { only_better: false, ..less_than(5.0) }), None);
        assert_eq!(known.loses(&key(2), less_than(1.0)), None);
        assert_eq!(known.loses(&Key([1, 0], "pec"), less_than(1.0)), None);
    }

    #[test]
    fn what_was_found_loses_to_whatever_is_no_longer() {
        let known = Known::default();
        known.keep(key(1), Told::lost(cost(9.0), less_than(5.0)));
        // More is known of it now, and not less later.
        known.keep(key(1), Told::found(cost(7.0), Some(cost(8.0)), None));
        known.keep(key(1), Told::lost(cost(9.5), less_than(6.0)));
        assert_eq!(known.loses(&key(1), less_than(7.0)), Some(cost(7.0)));
        assert_eq!(known.loses(&key(1), less_than(7.1)), None);
        assert_eq!(known.of(&key(1)).and_then(|told| told.first), Some(cost(8.0)));
        known.keep(key(1), Told::found(cost(7.5), None, None));
        assert_eq!(known.loses(&key(1), less_than(7.0)), Some(cost(7.0)));
        known.keep(key(1), Told::found(cost(6.5), Some(cost(8.0)), None));
        assert_eq!(known.loses(&key(1), less_than(7.0)), None);
        // Of two that lost the one that had to beat less.
        known.keep(key(2), Told::lost(cost(9.0), less_than(6.0)));
        known.keep(key(2), Told::lost(cost(9.5), less_than(5.0)));
        assert_eq!(known.loses(&key(2), less_than(5.5)), Some(cost(9.0)));
    }

    /// What a search for the best order says of the first good one is what looking for no more than that finds; and a module is known again,
    /// by another search, too.
    #[test]
    fn first_orders_are_those_of_looking_for_no_more() {
        let (mut found, mut better, mut keys) = (0, 0, std::collections::BTreeMap::new());
        for (model, preset, ranks) in [
            ("dlrm", "local", 2),
            ("dlrm", "dgx_h100", 8),
            ("ranking", "local", 4),
            ("ranking", "h100x256", 16),
        ] {
            let path = format!("{}/../examples/{model}.fs", env!("CARGO_MANIFEST_DIR"));
            let program = fs_dsl::load(path.as_ref()).program.expect("it checks");
            let cluster = fs_dsl::cluster::preset(preset).expect("a preset");
            let options = CompileOptions::new(Strategy::Serial, ranks).cluster(cluster);
            let [once, again] = [(); 2].map(|()| Search::new(&program, &options).expect("a search"));
            for candidate in candidates(None) {
                let sought = |search: &Search<'_>, effort: Effort| {
                    search.sought_one(candidate, &search.said(), effort).expect("it is lowered")
                };
                let first = Effort { far: Some(0.0), ..Effort::default() };
                let (best, other) = (sought(&once, Effort::default()), sought(&again, first));
                let key = best.key;
                assert_eq!(key, other.key);
                let name = format!("{model} on {ranks} of {preset}, {}", candidate.describe());
                if let Some(same) = keys.insert(key, name.clone()) {
                    panic!("{name} is {same}");
                }
                let best = once.schedule(best).expect("it is scheduled");
                let best = best.found().expect("whatever it costs");
                let first = again.schedule(other).expect("it is scheduled");
                let Looked::Worse(first) = first else { panic!("{name}: any step is far") };
                found += 1;
                better += usize::from(best.cost < first);
                assert_eq!(best.first, Some(first), "{name}");
                // Whatever else is known of it.
                let far = Effort { far: Some(0.0), ..Effort::default() };
                let known = once.schedule(sought(&once, far)).expect("it is scheduled");
                assert!(matches!(known, Looked::Worse(same) if same == first), "{name}");
                assert!(best.cost <= first, "{name}");
                let told = once.known.of(&key).expect("it was kept");
                assert_eq!((told.cost, told.first), (best.cost, best.first), "{name}");
                assert!(told.sent.is_some_and(|sent| sent.bytes > 0.0), "{name}");
            }
        }
        assert!(better > 2 && better < found, "{better} of {found}");
    }
}
