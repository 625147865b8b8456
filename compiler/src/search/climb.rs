//! The climb: what a change of some tables makes of a step is compiled and scheduled, and the change that shortens it most is
//! made; so often as one does. The outcome is never worse than where it began.

use std::collections::BTreeSet;
use std::iter::Peekable;

use fs_schedule::Sent;

use super::asked::{Asked, Change};
use super::effort::Effort;
use super::known::Key;
use super::look::{ABREAST, Looked, Ordered, Sought};
use super::outcome::{Outcome, Swap, Way};
use super::{Best, Candidate, Cost, Search, gain};
use crate::compile::{CompileError, Compiled};

/// Most ways that are tried, each by a first good order.
const SCHEDULES: usize = 32;
/// Most of which the best order is looked for.
const FULLY: usize = 20;
/// By how much the first order of a way may be longer than that of what there is.
const QUICK: f64 = 1.05;
/// Fewer where each has many operations: about so many in all.
pub(super) const OPERATIONS: usize = 60_000;
/// Where a step has more than these climbs begin with the best strategy and with all tables elsewhere in some parts only.
const LARGE: usize = OPERATIONS / 2;

/// Whether a schedule has so many operations that few climbs are made.
pub(super) fn large(compiled: &Compiled) -> bool {
    compiled.schedule.train.ops.len() > LARGE
}

/// A change that may be made.
#[derive(Debug, Clone)]
pub(super) struct Move {
    /// Of these tables; of none: of dense gradients.
    pub tables: Vec<String>,
    /// What they are, and would be.
    pub ways: (Way, Way),
    /// How to ask for it.
    pub change: Change,
    /// Bytes that a rank sends of all of them, before and after, and those to other nodes.
    pub wire: (f64, f64),
    /// As said.
    pub far: (f64, f64),
    /// Another costs no more of anything: it is looked at where nothing else helps.
    pub covered: bool,
}

/// A climb, and where it is.
#[derive(Clone)]
pub(super) struct Climb<'a, 's> {
    pub(super) search: &'s Search<'a>,
    pub(super) candidate: Candidate,
    pub(super) best: Best,
    pub cost: Cost,
    /// What the first good order of what there is costs.
    first: Cost,
    /// What is asked for.
    pub asked: Asked,
    pub outcome: Outcome,
    made: Vec<(Vec<String>, Change)>,
    seen: BTreeSet<String>,
    /// Ways that may be tried and scheduled yet.
    left: (usize, usize),
    /// Operations that may have been simulated when another is begun.
    until: u64,
    /// Steps after each change are not known: one was left out, or several were made at once.
    pub(super) untold: bool,
}

/// Which change is left out, and what is asked for, costs and, if that was looked at, comes of it then.
type Shorter = (usize, Asked, Cost, Option<Compiled>);

/// What was found in place of what there is.
pub(super) struct Found {
    pub ordered: Ordered,
    pub asked: Asked,
    pub swap: Swap,
    pub change: Change,
}

impl<'a, 's> Climb<'a, 's> {
    /// From the best of all candidates.
    pub(super) fn new(search: &'s Search<'a>, cost: Cost, best: Best) -> Result<Self, CompileError> {
        let mut climb = Self::at(search, cost, best);
        climb.first = search.first(climb.candidate, &climb.asked)?.unwrap_or(cost);
        Ok(climb)
    }

    /// The same without knowing what a first good order costs.
    pub(super) fn at(search: &'s Search<'a>, cost: Cost, best: Best) -> Self {
        let (candidate, asked, first) = (best.tried[best.chosen].candidate, search.said(), cost);
        let (outcome, made, seen) = (Outcome::default(), Vec::new(), BTreeSet::new());
        let (left, until, untold) = ((0, 0), u64::MAX, false);
        let mut climb =
            Self { search, candidate, best, cost, first, asked, outcome, made, seen, left, until, untold };
        climb.allow(1, u64::MAX);
        climb
    }

    /// What is climbed from.
    pub(super) fn now(&self) -> (&Compiled, Candidate) {
        (&self.best.compiled, self.candidate)
    }

    /// Allows to try as many ways as there may be, or a part of them, until so many operations were simulated.
    pub(super) fn allow(&mut self, part: usize, until: u64) {
        self.until = until;
        let operations = self.best.compiled.schedule.train.ops.len().max(1);
        let most = SCHEDULES.min(OPERATIONS / operations).max(1);
        self.left = (if most < SCHEDULES { most / part } else { most }, FULLY / part);
    }

    /// Tries all moves and makes the one that shortens the step most; whether there is one.
    pub(super) fn step(&mut self, moves: impl IntoIterator<Item = Move>) -> Result<bool, CompileError> {
        let mut shortest: Option<Found> = None;
        let mut moves = moves.into_iter().peekable();
        let least = self.cost.longer(1.0 / gain(&self.search.options));
        loop {
            let beat = |shortest: &Option<Found>| shortest.as_ref().map_or(least, |f| f.ordered.cost);
            let some = self.next(&mut moves, shortest.is_some());
            if some.is_empty() {
                break;
            }
            for (way, asked, ordered) in self.tried(some, beat(&shortest)) {
                if ordered.cost < beat(&shortest) {
                    let swap = self.swap(&way, ordered.cost);
                    shortest = Some(Found { ordered, asked, swap, change: way.change });
                }
            }
        }
        let Some(found) = shortest else { return Ok(false) };
        self.take(found)?;
        Ok(true)
    }

    /// The moves that are tried next, at once; none if that is all, or all that may be tried. Those that another covers only where
    /// nothing else was found, so by themselves.
    fn next(&mut self, moves: &mut Peekable<impl Iterator<Item = Move>>, found: bool) -> Vec<(Move, Asked)> {
        let may = self.search.simulated() < self.until;
        let most = if may { ABREAST.min(self.left.0).min(self.left.1) } else { 0 };
        let mut next: Vec<(Move, Asked)> = Vec::new();
        while next.is_empty() || next.len() < most {
            let alike = |way: &Move| !way.covered || next.first().map_or(!found, |(first, _)| first.covered);
            let Some(way) = moves.next_if(alike) else { break };
            let asked = way.change.made(&way.tables, &self.asked);
            let words = format!("{asked:?}");
            if asked == self.asked || self.seen.contains(&words) {
                continue;
            }
            if most == 0 {
                self.outcome.limited = true;
                break;
            }
            self.seen.insert(words);
            next.push((way, asked));
        }
        self.left.0 -= next.len();
        self.outcome.tried += next.len();
        next
    }

    pub(super) fn swap(&self, way: &Move, cost: Cost) -> Swap {
        Swap {
            tables: way.tables.clone(),
            ways: way.ways.clone(),
            rules: way.change.rules(),
            step: (self.cost.step, cost.step),
            wire: way.wire,
            far: way.far,
            without: None,
        }
    }

    pub(super) fn take(&mut self, found: Found) -> Result<(), CompileError> {
        let Found { ordered: Ordered { cost, first, compiled }, asked, swap, change } = found;
        self.seen.insert(format!("{asked:?}"));
        self.note(swap, change);
        (self.cost, self.best.compiled, self.asked) = (cost, compiled, asked);
        self.first = match first {
            Some(first) => first,
            None => self.search.first(self.candidate, &self.asked)?.unwrap_or(cost),
        };
        Ok(())
    }

    pub(super) fn note(&mut self, swap: Swap, change: Change) {
        self.made.push((swap.tables.clone(), change));
        self.outcome.swaps.push(swap);
    }

    /// Those of some ways whose schedules beat a cost, with these.
    fn tried(&mut self, ways: Vec<(Move, Asked)>, beat: Cost) -> Vec<(Move, Asked, Ordered)> {
        // The best order of each is looked for if its first one is not much worse than that of what there is.
        let far = self.first.longer(QUICK);
        let effort = Effort { beat: Some(beat), far: far.to_beat(), only_better: true };
        let sought =
            self.search.sought(ways.iter().map(|(_, asked)| (self.candidate, asked, effort)).collect());
        // What cannot be placed or numbered so is no way for this model.
        let (ways, sought): (Vec<_>, Vec<_>) = ways
            .into_iter()
            .zip(sought)
            .filter_map(|(way, sought)| Some((way, self.search.worked(sought)?)))
            .unzip();
        let mut better = Vec::new();
        for ((way, asked), looked) in ways.into_iter().zip(self.search.schedule_all(sought)) {
            // A profile that was measured of tables elsewhere has no times for it: no way either.
            let (now, ordered) = match self.search.worked(looked) {
                Some(Looked::Found(found)) => (found.cost, Some(*found)),
                Some(Looked::Worse(cost)) => (cost, None),
                Some(Looked::Beyond(_)) | None => continue,
            };
            self.outcome.passed_over(&way.tables, &way.ways.1, now);
            if now >= far {
                continue;
            }
            self.left.1 -= 1;
            self.outcome.scheduled += 1;
            better.extend(ordered.filter(|_| now < beat).map(|ordered| (way, asked, ordered)));
        }
        better
    }

    /// Without changes that others have made worse than nothing.
    pub(super) fn lean(mut self) -> Self {
        while let Some(shorter) = self.shorter(false) {
            if !self.leave_out(shorter) {
                break;
            }
        }
        self
    }

    /// What came of it, with what a step takes without each of the changes.
    pub(super) fn end(mut self) -> (Cost, Best, Outcome) {
        while let Some(shorter) = self.shorter(true) {
            if !self.leave_out(shorter) {
                break;
            }
        }
        if self.untold {
            self.retell();
        }
        if let [only] = &mut self.outcome.swaps[..] {
            let began = self.search.told(self.candidate, &[self.search.said()]);
            only.without = began.into_iter().flatten().next().map(|(_, sent)| (only.step.0, sent));
        }
        self.outcome.told();
        (self.cost, self.best, self.outcome)
    }

    /// The change without which a step is shorter, if one, and what is asked for and found then; puts down what comes of each if that is
    /// to be told. Without the only one there is what the climb began with.
    fn shorter(&mut self, tell: bool) -> Option<Shorter> {
        let mut shortest: Option<Shorter> = None;
        if self.made.len() < 2 {
            return None;
        }
        let without: Vec<Asked> = (0..self.made.len()).map(|n| self.with(|i| i != n)).collect();
        for (chunk, some) in without.chunks(ABREAST).enumerate() {
            let least = shortest.as_ref().map_or(self.cost, |known| known.2);
            let found: Vec<Option<(Cost, Option<Compiled>)>> = if tell {
                let told = self.search.told(self.candidate, some);
                for (i, told) in told.iter().enumerate() {
                    self.outcome.swaps[chunk * ABREAST + i].without =
                        told.map(|(cost, sent)| (cost.step, sent));
                }
                told.into_iter().map(|told| told.map(|(cost, _)| (cost, None))).collect()
            } else {
                let quick = Effort { beat: Some(least), only_better: true, far: None };
                let found = self.alone(some, quick).into_iter();
                found.map(|found| found.map(|found| (found.cost, Some(found.compiled)))).collect()
            };
            for (i, (asked, found)) in some.iter().zip(found).enumerate() {
                // One that buys nothing is not told of.
                let nothing = tell && shortest.is_none();
                let least = shortest.as_ref().map_or(self.cost, |known| known.2);
                let worth = |cost: Cost| cost < least || (nothing && cost <= least);
                if let Some((cost, compiled)) = found.filter(|found| worth(found.0)) {
                    shortest = Some((chunk * ABREAST + i, asked.clone(), cost, compiled));
                }
            }
        }
        shortest
    }

    /// Whether it was.
    fn leave_out(&mut self, (n, asked, cost, compiled): Shorter) -> bool {
        let found = compiled.map(|compiled| (cost, compiled));
        let found = found.or_else(|| {
            let found = self.alone(std::slice::from_ref(&asked), Effort::default()).pop()??;
            Some((found.cost, found.compiled))
        });
        let Some((cost, compiled)) = found else { return false };
        (self.cost, self.best.compiled, self.asked) = (cost, compiled, asked);
        self.made.remove(n);
        self.outcome.swaps.remove(n);
        self.untold = true;
        true
    }

    /// Some of the changes.
    fn with(&self, which: impl Fn(usize) -> bool) -> Asked {
        let some = self.made.iter().enumerate().filter(|(n, _)| which(*n));
        some.fold(self.search.said(), |asked, (_, (tables, change))| change.made(tables, &asked))
    }

    /// The best schedules that are found of these.
    fn alone(&self, asked: &[Asked], effort: Effort) -> Vec<Option<Ordered>> {
        self.search.each(self.candidate, asked, effort)
    }

    /// What changes are and steps take after each.
    fn retell(&mut self) {
        let first = self.outcome.swaps.first().map_or(0.0, |first| first.step.0);
        let asked: Vec<Asked> = (0..self.made.len()).map(|n| self.with(|i| i < n)).collect();
        let mut found = self.alone(&asked, Effort::default());
        found.push(Some(Ordered { cost: self.cost, first: None, compiled: self.best.compiled.clone() }));
        let mut step = found[0].as_ref().map_or(first, |before| before.cost.step);
        for (n, asked) in asked.iter().enumerate() {
            let (before, after) = (&found[n], &found[n + 1]);
            let then = after.as_ref().map_or(step, |after| after.cost.step);
            let swap = &mut self.outcome.swaps[n];
            swap.step = (step, then);
            if let Some((before, after)) = before.as_ref().zip(after.as_ref()) {
                let (before, after) = (&before.compiled, &after.compiled);
                self.search.retell((swap, &self.made[n].1), self.candidate, (before, asked), after);
            }
            step = then;
        }
    }
}

impl Search<'_> {
    /// What a step costs with each of these choices, and what a rank sends in it.
    fn told(&self, candidate: Candidate, asked: &[Asked]) -> Vec<Option<(Cost, Sent)>> {
        let sought = self.sought(asked.iter().map(|asked| (candidate, asked, Effort::default())).collect());
        let sought: Vec<Option<Sought>> = sought.into_iter().map(|sought| self.worked(sought)).collect();
        let keys: Vec<Option<Key>> = sought.iter().map(|sought| Some(sought.as_ref()?.key)).collect();
        let known = |key: Key| self.known.of(&key).and_then(|told| Some((told.cost, told.sent?)));
        let mut begun = BTreeSet::new();
        let unknown = sought.into_iter().flatten();
        let unknown = unknown.filter(|sought| known(sought.key).is_none() && begun.insert(sought.key));
        // What comes of them is known then.
        self.schedule_all(unknown.collect());
        keys.into_iter().map(|key| known(key?)).collect()
    }

    /// The best schedules that are found with each of these choices.
    fn each(&self, candidate: Candidate, asked: &[Asked], effort: Effort) -> Vec<Option<Ordered>> {
        let mut found: Vec<Option<Ordered>> = asked.iter().map(|_| None).collect();
        let sought = self.sought(asked.iter().map(|asked| (candidate, asked, effort)).collect());
        let (places, sought): (Vec<usize>, Vec<Sought>) =
            sought.into_iter().enumerate().filter_map(|(i, sought)| Some((i, self.worked(sought)?))).unzip();
        for (i, looked) in places.into_iter().zip(self.schedule_all(sought)) {
            found[i] = self.worked(looked).and_then(Looked::found);
        }
        found
    }

    /// What options ask for.
    pub(super) fn said(&self) -> Asked {
        Asked { tables: self.options.tables.clone(), bucket_bytes: self.options.bucket_bytes }
    }

    /// What its first good order costs.
    fn first(&self, candidate: Candidate, asked: &Asked) -> Result<Option<Cost>, CompileError> {
        let effort = Effort { far: Some(0.0), ..Effort::default() };
        let Some(sought) = self.worked(self.sought_one(candidate, asked, effort)) else { return Ok(None) };
        if let Some(first) = self.known.of(&sought.key).and_then(|told| told.first) {
            return Ok(Some(first));
        }
        Ok(match self.schedule(sought)? {
            Looked::Found(found) => Some(found.cost),
            Looked::Worse(cost) => Some(cost),
            Looked::Beyond(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use fs_schedule::{Action, Schedule, Strategy};

    use super::super::candidates;
    use super::*;
    use crate::{CompileOptions, compile_with};

    /// Tables of many sizes and uses, wherever the compiler puts them.
    fn text(tables: usize, seed: usize) -> String {
        let declared = (0..tables).map(|i| {
            let drawn = |among: &[u32], step: usize| among[(seed + step * i + i * i / 3) % among.len()];
            let (rows, dim) = (drawn(&[300, 2_000, 40_000, 1_000_000], 1), drawn(&[8, 16, 32, 64, 128], 3));
            let optimizer = ["sgd", "adagrad", "rowwise_adagrad"][(seed + i) % 3];
            let max = drawn(&[1, 1, 2, 5, 10, 20, 50], 5);
            format!(
                "table t{i} {{ rows {rows}  dim {dim}  optimizer {optimizer}(lr: 0.1)  sharding auto }}
                 input x{i}: ids(t{i}) {{ max {max} }}"
            )
        });
        let pooled: Vec<String> = (0..tables).map(|i| format!("pool(x{i})")).collect();
        format!(
            "model m {{ {} input y: label
               loss bce_with_logits(linear(concat({}), 1), y, normalize: samples) }}
             train {{ batch 2048  steps 2 }}
             workload w {{ generate {{ lengths lognormal(mean: 12, sigma: 1, max: 50)  ids zipf(1.05) }} }}",
            declared.collect::<Vec<_>>().join("\n"),
            pooled.join(", ")
        )
    }

    /// Bytes that a rank sends in a step but for sums of dense gradients.
    fn sparse(s: &Schedule) -> f64 {
        let sums = s.train.ops.iter().filter(|op| op.action == Action::AllReduce).count();
        let dense: u64 = s.parameters.iter().map(|p| 4 * u64::from(p.rows) * u64::from(p.columns)).sum();
        let ranks = f64::from(s.ranks);
        let summed = if sums > 0 { 2.0 * dense as f64 * (ranks - 1.0) / ranks } else { 0.0 };
        s.prediction.as_ref().and_then(|p| p.sent).expect("bytes").bytes - summed
    }

    /// Without each of several changes there is what is compiled with the others, and a change of company sends what it is told to.
    #[test]
    fn what_is_told_of_a_change_is_what_there_is_without_it() {
        let (mut several, mut in_parts) = (0, 0);
        for (tables, seed, preset) in [
            (8, 3, "local"),
            (8, 7, "local"),
            (14, 2, "local"),
            (20, 2, "local"),
            (24, 1, "dgx_h100"),
            (30, 1, "dgx_h100"),
        ] {
            let program = fs_dsl::check_text("m.fs", &text(tables, seed)).program.expect("it checks");
            let cluster = fs_dsl::cluster::preset(preset).expect("a preset");
            let options = CompileOptions::new(Strategy::Serial, 8).cluster(cluster);
            let mut search = Search::new(&program, &options).expect("a search");
            search.most = 20_000_000;
            let (round, _) = search.over_both(&candidates(None).collect::<Vec<_>>(), None).expect("rounds");
            let (cost, best) = round.all().expect("a schedule");
            let climb = search.climbed(cost, best).expect("a climb");
            let (candidate, count) = (climb.candidate, climb.made.len());
            let compiled = |asked: Asked| {
                let options = options.clone().policy(candidate.policy).lookahead(candidate.lookahead);
                let options = options.tables(asked.tables).bucket_bytes(asked.bucket_bytes);
                compile_with(&program, &options).expect("a schedule").schedule
            };
            let without: Vec<Asked> = (0..count).map(|n| climb.with(|i| i != n)).collect();
            let after: Vec<Asked> = (0..count).map(|n| climb.with(|i| i <= n)).collect();
            let (.., outcome) = climb.end();
            // Else one was left out, and what there was without the others is not what is told.
            if count < 2 || outcome.swaps.len() != count {
                continue;
            }
            for ((swap, without), after) in outcome.swaps.iter().zip(without).zip(after) {
                several += 1;
                let p = compiled(without).prediction.expect("a prediction");
                assert_eq!(swap.without, Some((p.step, p.sent.expect("bytes"))), "{swap}");
                if swap.ways.1.to_string().contains(" parts") && swap.tables.len() == tables {
                    in_parts += 1;
                    assert_eq!(swap.wire.0.to_bits(), swap.wire.1.to_bits(), "{swap}");
                    let sends = sparse(&compiled(after));
                    assert!((swap.wire.1 - sends).abs() <= 1e-3 * sends, "{swap}: {sends}");
                }
            }
        }
        assert!(several >= 8 && in_parts >= 2, "{several} changes, {in_parts} in parts");
    }
}
