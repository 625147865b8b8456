//! Where climbs begin: with the best strategy, and with all tables in other company or elsewhere, in whichever strategy is the shortest
//! then, if that is not much worse.

use super::alike::Alike;
use super::begin::Beginning;
use super::budget::Budget;
use super::climb::{Climb, Move, large};
use super::travel::{self, Kind};
use super::ways::{Possible, kind, placed};
use super::{Cost, Search, gain, places};
use crate::compile::CompileError;

/// Up to so many operations of a step climbs go on both from a change and from it with the parts that make it shorter.
const BOTH: usize = 1_000;

/// Other beginnings than the best strategy.
pub(super) struct Starts<'a, 's> {
    /// With all tables in other company.
    pub company: Vec<Climb<'a, 's>>,
    /// With all tables elsewhere, and maybe in parts.
    pub elsewhere: Vec<Climb<'a, 's>>,
    /// Some were not looked at, because too many operations were simulated.
    pub left_out: bool,
}

impl<'a> Search<'a> {
    /// Where climbs begin beside the best strategy, of whose classes of tables all ways are known.
    pub(super) fn starts<'s>(
        &'s self,
        start: &Climb<'a, 's>,
        (classes, ways): (&[Alike], &[(&Alike, Possible)]),
        budget: &Budget,
    ) -> Result<Starts<'a, 's>, CompileError> {
        let (now, _) = start.now();
        let kinds: Vec<Kind<'_>> = classes.iter().map(|class| kind(class, ways)).collect();
        let company = travel::starts(&kinds, &now.schedule, &start.asked, &self.options);
        let places = places::starts(&ways.iter().map(placed).collect::<Vec<_>>());
        let parts = travel::begun(&kinds, &now.schedule, &start.asked, &self.options);
        let limit = || budget.beginnings(self.simulated());
        let (few, long) = (!large(now), now.schedule.train.ops.len() > BOTH);
        let company = if few { &company[..] } else { &[] };
        let (company, left_out) = self.begun(start, company, None, &[], limit())?;
        let parts = if few { &parts[..] } else { &parts[..parts.len().min(1)] };
        // Of long steps parts come first, which promise more, and only the shorter of both is climbed from.
        let (first, unlooked) = self.begun(start, &places, long.then_some(parts), &[], limit())?;
        let known: Vec<Option<Cost>> = first.iter().map(|climb| climb.as_ref().map(|c| c.cost)).collect();
        let others_of = if few || parts.is_empty() { &places[..] } else { &[] };
        let in_parts = (!long).then_some(parts);
        let (mut second, unseen) = self.begun(start, others_of, in_parts, &known, limit())?;
        let mut elsewhere = Vec::new();
        for (i, climb) in first.into_iter().enumerate() {
            let other = second.get_mut(i).and_then(Option::take);
            elsewhere.extend(climb.filter(|_| !long || other.is_none()));
            elsewhere.extend(other);
        }
        let company = company.into_iter().flatten().collect();
        Ok(Starts { company, elsewhere, left_out: left_out || unlooked || unseen })
    }

    /// Others that begin with each of some changes, or with each and the parts that make it the shortest, where that is not too long and
    /// shorter than what is known of the change. All of this until so many operations were simulated: whether something was left out
    /// for it.
    fn begun<'c, 's>(
        &'s self,
        start: &Climb<'c, 's>,
        changes: &[(Move, f64)],
        parts: Option<&[Move]>,
        known: &[Option<Cost>],
        until: u64,
    ) -> Result<(Vec<Option<Climb<'c, 's>>>, bool), CompileError> {
        let shorter = |cost: Cost| cost.longer(1.0 / gain(&self.options));
        let mut beginnings = Vec::new();
        for (of, (change, times)) in changes.iter().enumerate() {
            let most = start.cost.longer(*times);
            let known = known.get(of).copied().flatten().map(shorter);
            let beat = known.map_or(most, |known| if known < most { known } else { most });
            let together: Vec<Vec<&Move>> = match parts {
                None => vec![vec![change]],
                Some(parts) => parts.iter().map(|part| vec![change, part]).collect(),
            };
            beginnings.extend(together.into_iter().map(|ways| Beginning { ways, of, beat }));
        }
        let (mut found, left_out) = start.begin(beginnings, shorter, until)?;
        found.resize_with(changes.len(), || None);
        Ok((found, left_out))
    }
}
