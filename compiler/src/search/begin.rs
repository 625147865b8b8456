//! Climbs that begin with changes, in the strategy that these make the shortest, which need not be the one that is shortest without them.
//!
//! What begins otherwise does not know of the rest, so all are looked at at once, a strategy of each at a time: the next has to beat
//! what came of those before it.

use fs_schedule::Engine;

use super::asked::{Asked, Change};
use super::climb::{Climb, Found, Move, OPERATIONS};
use super::effort::Effort;
use super::look::{ABREAST, Looked, Ordered, Sought};
use super::{Best, Cost, Tried, Verdict};
use crate::compile::CompileError;
use crate::sched::BoundBy;

/// How many times as long a strategy's step may be that is tried.
const FAR: f64 = 1.5;
/// Where a step has more operations than these only one lookahead of each strategy is tried.
const MANY: usize = OPERATIONS / 4;

/// Changes that a climb may begin with.
pub(super) struct Beginning<'m> {
    /// One after the other.
    pub ways: Vec<&'m Move>,
    /// Of those with the same number the shortest is climbed from.
    pub of: usize,
    /// What it has to beat.
    pub beat: Cost,
}

/// One of them, as far as it was looked at.
struct Begun<'m> {
    beginning: Beginning<'m>,
    asked: Asked,
    /// Places of strategies among those that were tried.
    strategies: Vec<usize>,
    shortest: Option<(usize, Ordered)>,
}

impl Begun<'_> {
    /// What another order of it has to beat.
    fn least(&self) -> Cost {
        self.shortest.as_ref().map_or(self.beginning.beat, |found| found.1.cost)
    }
}

impl Climb<'_, '_> {
    /// Others that begin with changes of this one, for each number the first whose step none of the same number beats by so much as
    /// makes another worth it (`shorter`); none where all are too long. Looked at until so many operations were simulated: whether
    /// something was left out for it.
    pub(super) fn begin(
        &self,
        beginnings: Vec<Beginning<'_>>,
        shorter: impl Fn(Cost) -> Cost,
        until: u64,
    ) -> Result<(Vec<Option<Self>>, bool), CompileError> {
        let count = beginnings.iter().map(|beginning| beginning.of + 1).max().unwrap_or(0);
        let mut begun: Vec<Begun<'_>> = beginnings.into_iter().map(|b| self.begun(b)).collect();
        let rounds = begun.iter().map(|begun| begun.strategies.len()).max().unwrap_or(0);
        let mut left_out = false;
        'rounds: for round in 0..rounds {
            for some in 0..begun.len().div_ceil(ABREAST) {
                if self.search.simulated() >= until {
                    left_out = true;
                    break 'rounds;
                }
                let some = some * ABREAST..((some + 1) * ABREAST).min(begun.len());
                self.round(&mut begun, some, round, &shorter);
            }
        }
        let mut climbs: Vec<Option<Begun<'_>>> = (0..count).map(|_| None).collect();
        for begun in begun.into_iter().filter(|begun| begun.shortest.is_some()) {
            let best = &mut climbs[begun.beginning.of];
            if best.as_ref().is_none_or(|best| begun.least() < shorter(best.least())) {
                *best = Some(begun);
            }
        }
        let climbs = climbs.into_iter().map(|begun| begun.map_or(Ok(None), |begun| self.other(begun)));
        Ok((climbs.collect::<Result<_, _>>()?, left_out))
    }

    /// What is known of one before anything is looked at.
    fn begun<'m>(&self, beginning: Beginning<'m>) -> Begun<'m> {
        let ways = &beginning.ways;
        let made = |asked: Asked, way: &&Move| way.change.made(&way.tables, &asked);
        let asked = ways.iter().fold(self.asked.clone(), made);
        // What all of compute's work excludes no other transfers allow, but fewer updates may: of parts of parameters, of replicas, of
        // columns.
        let fewer = |way: &&Move| matches!(way.change, Change::Buckets(_) | Change::Owners { .. });
        let updates = ways.iter().any(fewer);
        let may = |tried: &Tried| match tried.verdict {
            Verdict::Scheduled(cost) => cost < self.cost.longer(FAR),
            Verdict::Pruned(bound) => updates || bound.from != BoundBy::Engine(Engine::Compute),
        };
        let cut = |tried: &Tried| (tried.candidate.microbatches, tried.candidate.windows);
        let now = (self.candidate.microbatches, self.candidate.windows);
        let worth = |tried: &Tried| cut(tried) == now && tried.candidate.policy.reorders() && may(tried);
        let tried = &self.best.tried;
        let mut strategies: Vec<usize> = (0..tried.len()).filter(|i| worth(&tried[*i])).collect();
        if self.best.compiled.schedule.train.ops.len() > MANY {
            // Each with the lookahead that is shortest here, of several that are the first.
            let policy = |i: usize| tried[i].candidate.policy.name();
            strategies.sort_by(|i, j| {
                // What is only known to take at least so long comes behind what has a schedule.
                let pruned = |i: usize| matches!(tried[i].verdict, Verdict::Pruned(_));
                let shorter = tried[*i].verdict.step().total_cmp(&tried[*j].verdict.step());
                policy(*i).cmp(policy(*j)).then(pruned(*i).cmp(&pruned(*j))).then(shorter)
            });
            strategies.dedup_by_key(|i| policy(*i));
            strategies.sort_unstable();
        }
        Begun { beginning, asked, strategies, shortest: None }
    }

    /// Looks at the next strategy of some of them.
    fn round(
        &self,
        begun: &mut [Begun<'_>],
        some: std::ops::Range<usize>,
        round: usize,
        shorter: impl Fn(Cost) -> Cost,
    ) {
        let (mut places, mut asked) = (Vec::new(), Vec::new());
        for i in some {
            let of = begun[i].beginning.of;
            // What else begins so has found.
            let others = begun.iter().enumerate().filter(|(n, b)| *n != i && b.beginning.of == of);
            let found = others.filter(|(_, b)| b.shortest.is_some()).map(|(_, b)| shorter(b.least()));
            let least = found.fold(begun[i].least(), |least, cost| if cost < least { cost } else { least });
            let Some(strategy) = begun[i].strategies.get(round).copied() else { continue };
            let candidate = self.best.tried[strategy].candidate;
            let effort = Effort { beat: Some(least), only_better: true, far: None };
            places.push((i, strategy));
            asked.push((candidate, &begun[i].asked, effort));
        }
        let sought = places.into_iter().zip(self.search.sought(asked));
        // What cannot be lowered so begins otherwise.
        let (places, sought): (Vec<(usize, usize)>, Vec<Sought>) =
            sought.filter_map(|(place, sought)| Some((place, self.search.worked(sought)?))).unzip();
        for ((i, strategy), looked) in places.into_iter().zip(self.search.schedule_all(sought)) {
            let found = self.search.worked(looked).and_then(Looked::found);
            if let Some(found) = found.filter(|found| found.cost < begun[i].least()) {
                begun[i].shortest = Some((strategy, found));
            }
        }
    }

    /// The climb that begins so, if its step is short enough.
    fn other(&self, begun: Begun<'_>) -> Result<Option<Self>, CompileError> {
        let Begun { beginning: Beginning { ways, .. }, asked, shortest, .. } = begun;
        let Some(((last, before), (chosen, ordered))) = ways.split_last().zip(shortest) else {
            return Ok(None);
        };
        let candidate = self.best.tried[chosen].candidate;
        // Of a strategy that nothing was expected of nothing is known.
        let alone = match self.best.tried[chosen].verdict {
            Verdict::Scheduled(alone) => alone,
            Verdict::Pruned(_) => {
                let sought = self.search.sought_one(candidate, &self.asked, Effort::default());
                let alone =
                    self.search.worked(sought).map(|sought| self.search.schedule(sought)).transpose()?;
                alone.and_then(Looked::found).map_or(ordered.cost, |alone| alone.cost)
            }
        };
        let best = Best { compiled: ordered.compiled.clone(), chosen, tried: self.best.tried.clone() };
        let mut other = Self::at(self.search, alone, best);
        other.untold = ways.len() > 1;
        for way in before {
            let swap = other.swap(way, ordered.cost);
            other.note(swap, way.change.clone());
        }
        let swap = other.swap(last, ordered.cost);
        other.take(Found { ordered, asked, swap, change: last.change.clone() })?;
        Ok(Some(other))
    }
}
