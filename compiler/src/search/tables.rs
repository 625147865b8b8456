//! How single tables are distributed: what the algebra derives for each, tried one class of alike tables after the other.
//!
//! Tables are alike that differ in name only. For a class the algebra ([`crate::algebra`]) gives ways, with what they cost in
//! bytes, urgent bytes, touched bytes, transfers and memory. Each is compiled and scheduled in place of what the class has, and
//! stays if the predicted step is shorter, so the outcome is never worse than where the search began. Ways that no other
//! covers come first, and among them the classes that send most; after a change all begins anew, until nothing changes or so many
//! schedules were made as there may be.

use fs_dsl::checked::Program;

use super::alike::choices;
pub use super::alike::{Alike, alike};
use super::asked::anywhere;
pub use super::asked::asking;
use super::budget::{Budget, SIMULATED};
use super::climb::{Climb, large};
use super::derived::{self, Changed};
pub use super::outcome::{Other, Outcome, Swap, Way, place};
use super::starts::Starts;
use super::travel::{self, Kind};
use super::ways::{Graphs, kind, moves, ways};
use super::{Best, Candidate, Cost, GAIN, Round, Scheduled, Search, owners};
use crate::compile::{CompileError, CompileOptions};
use crate::emit;

/// Stages of a climb behind its first: with other owners, and with other company twice.
const ENDING: usize = 3;
/// How many times as long a step may be that is looked at to the end. Of 144 such climbs of 71 searches 46 were the shortest in the
/// end; this misses one of them, which was less than 0.1% shorter, and saves a tenth of all that is simulated (counted while ways were
/// given up after a first simulation, which was not kept).
const CLOSE: f64 = 1.02;

/// As [`super::search`], and then with other choices for single tables where that is faster.
///
/// # Errors
/// As there.
pub fn search(
    program: &Program,
    options: &CompileOptions,
    candidates: impl IntoIterator<Item = Candidate>,
) -> Result<(Best, Outcome), CompileError> {
    search_within(program, options, candidates, SIMULATED)
}

/// The same with at most so many operations simulated for the climbs from one start, about.
///
/// # Errors
/// As there.
pub fn search_within(
    program: &Program,
    options: &CompileOptions,
    candidates: impl IntoIterator<Item = Candidate>,
    most: u64,
) -> Result<(Best, Outcome), CompileError> {
    let mut search = Search::new(program, options)?;
    search.most = most;
    let candidates: Vec<Candidate> = candidates.into_iter().collect();
    let (round, one) = search.over_both(&candidates, None)?;
    let (_, mut best, outcome) = search.improve_both(round, one)?;
    best.compiled.schedule.search = Some(outcome.record(&best));
    emit::proved(&best.compiled.schedule)?;
    Ok((best, outcome))
}

impl Search<'_> {
    /// From the best with a window for each microbatch, and from the best with one for all of them if there is one: where each begins
    /// it ends as if the other were not there. Of large ones only from the shorter.
    pub(super) fn improve_both(
        &self,
        mut round: Round,
        one: Option<Scheduled>,
    ) -> Result<(Cost, Best, Outcome), CompileError> {
        let mut found: Option<(Cost, Best, Outcome)> = None;
        let mut starts: Vec<Scheduled> = [round.best.take(), one].into_iter().flatten().collect();
        if let [each, one] = &starts[..]
            && (large(&each.2) || large(&one.2))
        {
            starts.remove(usize::from(each.0.longer(1.0 / GAIN) <= one.0));
        }
        for (cost, chosen, compiled) in starts {
            let mut other = self.improve(cost, Best { compiled, chosen, tried: round.tried.clone() })?;
            if let Some(mut before) = found.take() {
                if before.0.longer(1.0 / GAIN) <= other.0 {
                    std::mem::swap(&mut before, &mut other);
                }
                other.2.also(&before.2);
            }
            found = Some(other);
        }
        let mut found = found.ok_or(CompileError::NoCandidate)?;
        (found.2.simulated, found.2.defects) = (self.simulated(), self.defects.get());
        Ok(found)
    }

    /// What became of the best of all candidates, and how.
    pub(super) fn improve(&self, cost: Cost, best: Best) -> Result<(Cost, Best, Outcome), CompileError> {
        let began = choices(&best.compiled.schedule);
        let (cost, best, mut outcome) = self.climbed(cost, best)?.end();
        let classes = self.alike(&best.compiled, best.tried[best.chosen].candidate);
        let each = classes.iter().flat_map(|class| class.tables.iter().map(move |name| (name, class)));
        let changed = each.filter_map(|(name, class)| {
            let (from, to) = (anywhere(began.get(name)?), anywhere(&class.now));
            Some(Changed { name, context: &class.context, from, to })
        });
        outcome.derivations = derived::of(changed);
        outcome.limited |= large(&best.compiled);
        Ok((cost, best, outcome))
    }

    /// From the best strategy, and from the best with all tables in other company or elsewhere, if that is not much worse. Where one
    /// climb ends another may not come by, so the best end counts.
    pub(super) fn climbed(&self, cost: Cost, best: Best) -> Result<Climb<'_, '_>, CompileError> {
        let mut graphs = Graphs::default();
        let start = Climb::new(self, cost, best)?;
        let (now, candidate) = start.now();
        let mut budget = Budget::new(self.simulated(), self.most, now.schedule.train.ops.len());
        let classes = self.alike(now, candidate);
        let Starts { company, elsewhere, left_out } =
            self.starts(&start, (&classes, &ways(&classes, &mut graphs)), &budget)?;
        budget.expect((1 + elsewhere.len()) * (1 + ENDING) + company.len());
        let mut top = self.distributed(start, &mut graphs, &mut budget)?;
        top.outcome.limited |= left_out;
        for other in company {
            let mut other = self.distributed(other, &mut graphs, &mut budget)?;
            if other.cost < top.cost {
                std::mem::swap(&mut top, &mut other);
            }
            top.outcome.also(&other.outcome);
        }
        let mut best = self.ended(top, &mut graphs, &mut budget)?;
        // Where these lead is looked at to the end if they are not much worse by then, so that one may be worse on the way and none is in
        // the end.
        for other in elsewhere {
            let mut other = self.distributed(other, &mut graphs, &mut budget)?;
            if other.cost < best.cost.longer(CLOSE) {
                other = self.ended(other, &mut graphs, &mut budget)?;
            } else {
                budget.spare(ENDING);
            }
            if other.cost < best.cost {
                std::mem::swap(&mut best, &mut other);
            }
            best.outcome.also(&other.outcome);
        }
        Ok(best)
    }

    /// With other owners and company, or with other company only: the better end.
    fn ended<'c, 's>(
        &'s self,
        top: Climb<'c, 's>,
        graphs: &mut Graphs,
        budget: &mut Budget,
    ) -> Result<Climb<'c, 's>, CompileError> {
        // Other owners may lead to a worse end than none: what company there is to be gained differs.
        let (before, owned) = (top.outcome.clone(), self.owned(top.clone(), graphs, budget)?);
        let changed = owned.outcome.swaps.len() > before.swaps.len();
        if !changed {
            return Ok(self.accompanied(owned, graphs, (budget, 2))?.lean());
        }
        let mut best = self.accompanied(top, graphs, (budget, 1))?.lean();
        let mut other = self.accompanied(owned, graphs, (budget, 1))?.lean();
        if other.cost < best.cost {
            std::mem::swap(&mut best, &mut other);
        }
        best.outcome.also(&other.outcome.since(&before));
        Ok(best)
    }

    /// With other parts of the dense gradients and then with other distributions of single tables, as far as each goes. Parts come first
    /// because there are few of them and they may gain most, and the shorter a step is the less is looked for in ways that are longer.
    fn distributed<'c, 's>(
        &'s self,
        mut climb: Climb<'c, 's>,
        graphs: &mut Graphs,
        budget: &mut Budget,
    ) -> Result<Climb<'c, 's>, CompileError> {
        climb.allow(1, budget.next(self.simulated(), 1));
        loop {
            let (now, _) = climb.now();
            let sums = travel::sums(&now.schedule, &climb.asked, &self.options);
            if !climb.step(sums)? {
                break;
            }
        }
        loop {
            let (now, candidate) = climb.now();
            let classes = self.alike(now, candidate);
            let ways = ways(&classes, graphs);
            (climb.outcome.classes, climb.outcome.nodes) = (classes.len(), graphs.nodes());
            climb.outcome.limited |= graphs.cut();
            if !climb.step(moves(&ways))? {
                return Ok(climb);
            }
        }
    }

    /// With other owners.
    fn owned<'c, 's>(
        &'s self,
        mut climb: Climb<'c, 's>,
        graphs: &mut Graphs,
        budget: &mut Budget,
    ) -> Result<Climb<'c, 's>, CompileError> {
        climb.allow(2, budget.next(self.simulated(), 1));
        loop {
            let (now, candidate) = climb.now();
            let classes = self.alike(now, candidate);
            let ways = ways(&classes, graphs);
            let placed = classes.iter().filter(|class| class.context.moves);
            let placed: Vec<_> = placed.map(|class| (&class.now.sharding, kind(class, &ways))).collect();
            if !climb.step(owners::moves(&placed))? {
                return Ok(climb);
            }
        }
    }

    /// With other company.
    fn accompanied<'c, 's>(
        &'s self,
        mut climb: Climb<'c, 's>,
        graphs: &mut Graphs,
        (budget, stages): (&mut Budget, usize),
    ) -> Result<Climb<'c, 's>, CompileError> {
        climb.allow(2, budget.next(self.simulated(), stages));
        loop {
            let (now, candidate) = climb.now();
            let classes = self.alike(now, candidate);
            let ways = ways(&classes, graphs);
            let kinds: Vec<Kind<'_>> = classes.iter().map(|class| kind(class, &ways)).collect();
            let moves = travel::moves(&kinds, &now.schedule, &climb.asked, &self.options);
            if !climb.step(moves)? {
                return Ok(climb);
            }
        }
    }
}
