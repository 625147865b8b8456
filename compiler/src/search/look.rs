//! Looking for orders of what is asked for, of several at once on as many threads as there are: it is lowered, and the module scheduled.
//!
//! All of several start from what was known before any of them, and what comes of them is put down one after the other in their
//! order: so what is found depends neither on how many threads there are nor on which is done first. How many are looked at
//! at once ([`ABREAST`]) does not depend on the machine either.

use std::collections::BTreeSet;

use super::asked::Asked;
use super::effort::Effort;
use super::known::{Key, Told};
use super::{Candidate, Cost, Search};
use crate::compile::{Aim, CompileError, CompileOptions, Compiled};
use crate::emit::{self, Emitted};
use crate::ir::Module;
use crate::sched::policy::Policy;
use crate::sched::{self, Bound, Refused, Takes};
use crate::threads::abreast;

/// How many are looked at at once at most, before what comes of them counts for others.
pub(super) const ABREAST: usize = 8;

/// A lowered module whose best order under a policy is looked for.
#[derive(Debug, Clone)]
pub(super) struct Sought {
    module: Module,
    /// What the module is known by.
    pub key: Key,
    policy: &'static dyn Policy,
    effort: Effort,
}

impl Sought {
    pub(super) fn new(module: Module, policy: &'static dyn Policy, effort: Effort) -> Self {
        Self { key: Key::of(&module, policy), module, policy, effort }
    }
}

/// What came of looking for an order.
pub(super) enum Looked {
    /// A schedule.
    Found(Box<Ordered>),
    /// None that costs less than is thrown away: the least of what was found, as far as was looked.
    Worse(Cost),
    /// None can.
    Beyond(Bound),
}

impl Looked {
    /// The schedule, if there is one.
    pub(super) fn found(self) -> Option<Ordered> {
        match self {
            Self::Found(found) => Some(*found),
            Self::Worse(_) | Self::Beyond(_) => None,
        }
    }
}

/// A schedule, and what it costs.
pub(super) struct Ordered {
    pub cost: Cost,
    /// What its first good order does, if that is known.
    pub first: Option<Cost>,
    pub compiled: Compiled,
}

/// What is sought, and what came of it.
type Emission = (Sought, Result<Emitted, CompileError>);

impl Search<'_> {
    /// Candidates with choices for single tables, to be looked for with some efforts; an error where a model cannot be lowered so.
    pub(super) fn sought(
        &self,
        several: Vec<(Candidate, &Asked, Effort)>,
    ) -> Vec<Result<Sought, CompileError>> {
        let asked = several.into_iter().map(|(candidate, asked, effort)| {
            let options = self.asked(&candidate);
            let options = options.tables(asked.tables.clone()).bucket_bytes(asked.bucket_bytes);
            (options, candidate.policy, effort)
        });
        let (aim, imported, lowered) = (&self.aim, &self.module, &self.lowered);
        abreast(
            asked.collect(),
            |(options, policy, effort): (CompileOptions, &'static dyn Policy, Effort)| {
                let module = lowered.lowered(&aim.stages(imported, &options)?)?;
                Ok(Sought::new(module, policy, effort))
            },
        )
    }

    /// The same of one.
    pub(super) fn sought_one(
        &self,
        candidate: Candidate,
        asked: &Asked,
        effort: Effort,
    ) -> Result<Sought, CompileError> {
        self.sought(vec![(candidate, asked, effort)]).remove(0)
    }

    /// Schedules a lowered module, unless no order of it can beat a cost or it is known to be thrown away.
    pub(super) fn schedule(&self, sought: Sought) -> Result<Looked, CompileError> {
        match self.loses(&sought.key, sought.effort) {
            Some(cost) => Ok(Looked::Worse(cost)),
            None => self.put_down(emission(&self.aim, self.options.in_flight, sought)),
        }
    }

    /// The same of several, none of which has to beat another.
    pub(super) fn schedule_all(&self, several: Vec<Sought>) -> Vec<Result<Looked, CompileError>> {
        let mut begun = BTreeSet::new();
        let (mut begins, mut waits) = (Vec::new(), Vec::new());
        for (i, sought) in several.into_iter().enumerate() {
            // One that is asked for in other words has its answer when the first of them has.
            if self.loses(&sought.key, sought.effort).is_none() && begun.insert(sought.key) {
                begins.push((i, sought));
            } else {
                waits.push((i, sought));
            }
        }
        let (aim, in_flight) = (&self.aim, self.options.in_flight);
        let emitted = abreast(begins, |(i, sought)| (i, emission(aim, in_flight, sought)));
        let mut looked: Vec<(usize, Result<Looked, CompileError>)> =
            emitted.into_iter().map(|(i, emission)| (i, self.put_down(emission))).collect();
        looked.extend(waits.into_iter().map(|(i, sought)| (i, self.schedule(sought))));
        looked.sort_by_key(|(i, _)| *i);
        looked.into_iter().map(|(_, looked)| looked).collect()
    }

    /// What a module costs that is known to be thrown away. Of the first good order something else may be known than what it costs.
    fn loses(&self, key: &Key, effort: Effort) -> Option<Cost> {
        self.known.loses(key, effort).filter(|_| !effort.only_first())
    }

    /// Keeps what came of a module.
    fn put_down(&self, (sought, emitted): Emission) -> Result<Looked, CompileError> {
        let key = sought.key;
        let of = |takes| Cost::of(takes, self.aim.cluster.memory, self.options.in_flight);
        Ok(match emitted? {
            Emitted::Schedule(schedule, first) => {
                let (p, in_flight) = (schedule.prediction.as_ref(), schedule.train.in_flight);
                let (step, memory) = p.map_or((f64::INFINITY, 0), |p| (p.step, p.memory));
                let (cost, first) = (of(Takes { step, memory, in_flight }), first.map(of));
                self.known.keep(key, Told::found(cost, first, p.and_then(|p| p.sent)));
                let mut compiled = Compiled { schedule: *schedule, module: sought.module };
                self.decided.note(&mut compiled);
                Looked::Found(Box::new(Ordered { cost, first, compiled }))
            }
            Emitted::Refused(Refused::Worse(takes)) => {
                self.known.keep(key, Told::lost(of(takes), sought.effort));
                Looked::Worse(of(takes))
            }
            Emitted::Refused(Refused::Beyond(bound)) => Looked::Beyond(bound),
        })
    }
}

/// Looks for an order of a module, which is scheduled then.
fn emission(aim: &Aim, in_flight: Option<u32>, mut sought: Sought) -> Emission {
    let effort = sought.effort;
    let asked = sched::Options::new(sought.policy)
        .in_flight(in_flight)
        .below(effort.beat.and_then(Cost::to_beat))
        .far(effort.far)
        .only_better(effort.only_better);
    let emitted = emit::schedule(&mut sought.module, aim.target(), aim.ranks, &asked);
    (sought, emitted.map_err(CompileError::from))
}

#[cfg(test)]
mod tests {
    use fs_schedule::Strategy;

    use super::*;
    use crate::passes::manager::parse_pipeline;
    use crate::search::tables::Outcome;

    /// A way that a model does not have is none; one that a defect has ended is none either, and told.
    #[test]
    fn what_a_defect_ends_is_counted() {
        let path = format!("{}/../examples/movielens.fs", env!("CARGO_MANIFEST_DIR"));
        let program = fs_dsl::load(path.as_ref()).program.expect("it checks");
        let search = Search::new(&program, &CompileOptions::new(Strategy::Serial, 2)).expect("a search");
        let lowered = |passes: &str| {
            let stages = parse_pipeline(passes).expect("passes");
            search.worked(search.lowered.lowered(&stages).map_err(CompileError::from)).is_some()
        };
        let counted = |passes: &str| (lowered(passes), search.defects.get());
        assert_eq!(counted("canonicalize"), (true, 0));
        assert_eq!(counted("debug-fail"), (false, 0));
        assert_eq!(counted("debug-panic"), (false, 1));
        assert_eq!(counted("debug-invalidate"), (false, 2));
        assert!(search.worked::<()>(Err(CompileError::NoRanks)).is_none() && search.defects.get() == 2);
        let outcome = Outcome { defects: 2, ..Outcome::default() };
        assert!(
            outcome
                .to_string()
                .ends_with("0 taken; 2 ended by a defect of the compiler, which is worth a report")
        );
        assert!(Outcome::default().to_string().ends_with("0 taken"));
    }
}
