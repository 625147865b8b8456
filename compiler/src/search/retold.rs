//! Changes as they are once others were left out.
//!
//! A change is a difference, and is told as it was found: between what there was then and what it made of that. Where one before it is
//! left out in the end it makes something else of something else, so that is told anew, from schedules with all changes before it
//! and with it, too.

use std::collections::{BTreeMap, BTreeSet};

use fs_schedule::Sharding;

use super::alike::choices;
use super::asked::{Asked, Change, between};
use super::outcome::{Swap, Way, place, words};
use super::ways::{Graphs, ways};
use super::{Candidate, Search, travel};
use crate::compile::Compiled;
use crate::distribution::Choice;

/// A choice in words that are the same wherever rows of a table live that stays whole, as its terms are.
fn like(choice: &Choice) -> String {
    let sharding = match &choice.sharding {
        Sharding::TableWise { .. } => Sharding::RowWise,
        other => other.clone(),
    };
    words(&Choice { sharding, ..choice.clone() })
}

/// One way, or several in words.
fn told(ways: &BTreeMap<String, Choice>) -> Way {
    match ways.first_key_value() {
        Some((_, only)) if ways.len() == 1 => Way::Distributed(only.clone()),
        _ => Way::Several(ways.keys().cloned().collect::<Vec<_>>().join(" and ")),
    }
}

impl Search<'_> {
    /// Tells a change from the schedule before it, with what was asked for, and the one after it. What nothing is known of stays as it
    /// was told.
    pub(super) fn retell(
        &self,
        (swap, change): (&mut Swap, &Change),
        candidate: Candidate,
        (before, asked): (&Compiled, &Asked),
        after: &Compiled,
    ) {
        match change {
            Change::Buckets(_) => swap.ways.0 = travel::summed(&before.schedule, asked.bucket_bytes),
            Change::Groups(_) => {
                let first = swap.tables.first().map_or("", String::as_str);
                swap.ways.0 = travel::said(first, &asked.tables.groups);
                if let Some(now) = self.compared(&swap.tables, candidate, before, before) {
                    (swap.wire, swap.far) = (now.wire, now.far);
                }
            }
            Change::Distribution { .. } | Change::Owners { .. } => {
                let Some(now) = self.compared(&swap.tables, candidate, before, after) else { return };
                (swap.wire, swap.far) = (now.wire, now.far);
                swap.rules = now.rules.into_iter().collect();
                if matches!(change, Change::Owners { .. }) {
                    let places: BTreeSet<&str> = now.from.values().map(|c| place(&c.sharding)).collect();
                    swap.ways.0 = Way::Owned(places.into_iter().collect::<Vec<_>>().join(" and "));
                } else {
                    swap.ways = (told(&now.from), told(&now.to));
                }
            }
        }
    }

    /// How tables are distributed in two schedules, and what they send; nothing if that is no way of theirs.
    fn compared(
        &self,
        tables: &[String],
        candidate: Candidate,
        before: &Compiled,
        after: &Compiled,
    ) -> Option<Compared> {
        let classes = self.alike(before, candidate);
        let mut graphs = Graphs::default();
        let possible = ways(&classes, &mut graphs);
        let then = choices(&after.schedule);
        let changed: BTreeSet<&String> = tables.iter().collect();
        let mut all = Compared::default();
        for class in &classes {
            // Tables that are alike before need not be after.
            let mut ends: BTreeMap<String, (Choice, usize)> = BTreeMap::new();
            for name in class.tables.iter().filter(|name| changed.contains(name)) {
                let to = then.get(name)?;
                ends.entry(words(to)).or_insert_with(|| (to.clone(), 0)).1 += 1;
            }
            for (named, (to, count)) in ends {
                let of = |choice: &Choice| {
                    let mut own = possible.iter().filter(|(c, _)| c.tables == class.tables);
                    own.find(|(_, way)| like(&way.choice) == like(choice)).map(|(_, way)| way)
                };
                let (was, is) = (of(&class.now)?, of(&to)?);
                let share = count as f64 / class.tables.len() as f64;
                all.wire = (all.wire.0 + was.wire * share, all.wire.1 + is.wire * share);
                all.far = (all.far.0 + was.far * share, all.far.1 + is.far * share);
                if like(&class.now) != like(&to) {
                    all.rules.extend(between(&class.context, &class.now, &is.choice));
                }
                all.from.insert(words(&class.now), class.now.clone());
                all.to.insert(named, to);
            }
        }
        (!all.from.is_empty()).then_some(all)
    }
}

/// How tables are distributed before and after a change.
#[derive(Debug, Default)]
struct Compared {
    /// By words.
    from: BTreeMap<String, Choice>,
    to: BTreeMap<String, Choice>,
    /// By which one follows from the other.
    rules: BTreeSet<&'static str>,
    /// Bytes that a rank sends of all of them, before and after, and those to other nodes.
    wire: (f64, f64),
    far: (f64, f64),
}
