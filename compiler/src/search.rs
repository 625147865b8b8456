//! The search for the fastest schedule of a program over candidates: policies, each with how many reuse distances it
//! tells apart.
//!
//! The program is imported once, and passes that choices share run once ([`Branches`]). A candidate whose lower
//! bounds (ResMII, RecMII) are no less than the best step so far is not scheduled. Candidates are taken in the order
//! given and the first of equal ones wins, so the outcome is the same every time. What is best for all tables alike can
//! then be changed for some ([`tables`]). Where the number of microbatches is left to the compiler, all of this is done for
//! one number after the other ([`microbatches`]).

mod alike;
mod asked;
mod begin;
mod budget;
mod climb;
mod derived;
mod effort;
mod known;
mod look;
pub mod microbatches;
mod outcome;
mod owners;
mod places;
mod retold;
mod starts;
pub mod tables;
mod travel;
mod uses;
mod ways;

use std::cell::Cell;

use fs_dsl::checked::Program;
use fs_schedule::{Reuse, Way};

use effort::Effort;
use known::Known;
use look::{ABREAST, Looked, Ordered, Sought};

use crate::compile::balance::Decided;
use crate::compile::{Aim, CompileError, CompileOptions, Compiled, balance};
use crate::emit;
use crate::import::{import, settings::microbatches as microbatches_of};
use crate::ir::Module;
use crate::passes::branches::Branches;
use crate::sched::limits::human;
use crate::sched::policy::{POLICIES, Policy};
use crate::sched::{Bound, Takes};

/// Lookaheads to try where rows are told apart and nobody asked for one.
const LOOKAHEADS: [u32; 3] = [1, 2, 3];
/// How many times as long a step must be without a change: less is nothing that a prediction knows.
const GAIN: f64 = 1.001;
/// The same where times are of a run: steps of ranks that wait for each other differ more from what is predicted.
const MEASURED_GAIN: f64 = 1.005;

/// How many times as long the step of a candidate may be that is a start, too.
const NEAR: f64 = 1.05;

fn gain(options: &CompileOptions) -> f64 {
    if options.profile.is_some() { MEASURED_GAIN } else { GAIN }
}

/// What is tried.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Candidate {
    /// What waits for what.
    pub policy: &'static dyn Policy,
    /// Reuse distances that are told apart, in windows; `None`: as the model says.
    pub lookahead: Option<u32>,
    /// Windows of a batch by which rows are told apart; `None`: as options say, or each microbatch is one.
    pub windows: Option<u32>,
    /// Parts of a batch; `None`: as options or the model say.
    pub microbatches: Option<u32>,
}

impl Candidate {
    /// A policy with a lookahead.
    pub fn new(policy: &'static dyn Policy, lookahead: impl Into<Option<u32>>) -> Self {
        Self { policy, lookahead: lookahead.into(), windows: None, microbatches: None }
    }

    /// In so many parts of a batch.
    #[must_use]
    pub fn microbatches(mut self, parts: impl Into<Option<u32>>) -> Self {
        self.microbatches = parts.into();
        self
    }

    /// With rows told apart by so many windows of a batch.
    #[must_use]
    pub fn windows(mut self, windows: impl Into<Option<u32>>) -> Self {
        self.windows = windows.into();
        self
    }

    /// For people: `pec with lookahead 2`, `serial in 4 microbatches`.
    pub fn describe(&self) -> String {
        let with = self.lookahead.filter(|_| self.policy.tells_rows_apart());
        let with = with.map_or_else(String::new, |k| format!(" with lookahead {k}"));
        let apart = self.windows.filter(|_| self.policy.tells_rows_apart());
        let apart =
            apart.map_or_else(String::new, |n| format!(", {n} window{}", if n == 1 { "" } else { "s" }));
        let parts = self
            .microbatches
            .map_or_else(String::new, |m| format!(" in {m} microbatch{}", if m == 1 { "" } else { "es" }));
        format!("{}{with}{apart}{parts}", self.policy.name())
    }
}

/// Every policy, those that tell rows apart with some lookaheads, or the one that is asked for.
pub fn candidates(lookahead: Option<u32>) -> impl Iterator<Item = Candidate> {
    POLICIES.iter().flat_map(move |p| {
        let several = p.tells_rows_apart() && lookahead.is_none();
        let lookaheads = if several { LOOKAHEADS.map(Some).to_vec() } else { vec![lookahead] };
        lookaheads.into_iter().map(|k| Candidate::new(*p, k))
    })
}

/// What became of a candidate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict {
    /// It was scheduled.
    Scheduled(Cost),
    /// It was not: no order of it can be faster than the best before it, or by so much as more microbatches must be.
    Pruned(Bound),
}

impl Verdict {
    /// Seconds of a step, or what it takes at least.
    fn step(self) -> f64 {
        match self {
            Self::Scheduled(cost) => cost.step,
            Self::Pruned(bound) => bound.step,
        }
    }
}

/// What schedules are compared by: the least in this order is the best.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Cost {
    /// Batches in flight beyond those asked for.
    pub beyond_in_flight: u32,
    /// Bytes of device memory, if they are more than the cluster has.
    pub beyond_memory: u64,
    /// Seconds of a step.
    pub step: f64,
}

impl Cost {
    /// Of what a step takes on a machine with so much memory, with so many batches in flight asked for.
    fn of(takes: Takes, memory: u64, in_flight: Option<u32>) -> Self {
        Self {
            beyond_in_flight: in_flight.map_or(0, |most| takes.in_flight.saturating_sub(most)),
            beyond_memory: if takes.memory > memory { takes.memory } else { 0 },
            step: takes.step,
        }
    }

    /// With a step so many times as long.
    fn longer(self, factor: f64) -> Self {
        Self { step: self.step * factor, ..self }
    }

    /// Which limit it exceeds, if one.
    pub fn exceeds(self) -> Option<String> {
        match (self.beyond_in_flight, self.beyond_memory) {
            (0, 0) => None,
            (0, needs) => Some(format!("needs {}, more than there is", human(needs))),
            (1, _) => Some("has a batch in flight more than asked for".into()),
            (batches, _) => Some(format!("has {batches} batches in flight more than asked for")),
        }
    }

    /// Seconds that another schedule's step must be less than to be better, if this one is within limits.
    fn to_beat(self) -> Option<f64> {
        (self.beyond_in_flight == 0 && self.beyond_memory == 0).then_some(self.step)
    }
}

/// A candidate and what became of it.
#[derive(Debug, Clone, Copy)]
pub struct Tried {
    /// The candidate.
    pub candidate: Candidate,
    /// What became of it.
    pub verdict: Verdict,
}

impl Tried {
    /// For people: the candidate, and why it is not taken although its step may be the shortest.
    pub fn describe(&self) -> String {
        let name = self.candidate.describe();
        match self.verdict {
            Verdict::Scheduled(cost) => {
                cost.exceeds().map_or_else(|| name.clone(), |why| format!("{name} ({why})"))
            }
            Verdict::Pruned(_) => name,
        }
    }
}

/// The outcome of a search.
#[derive(Debug, Clone)]
pub struct Best {
    /// The best schedule.
    pub compiled: Compiled,
    /// What it is a schedule of: its place among those tried.
    pub chosen: usize,
    /// All candidates, in the order given.
    pub tried: Vec<Tried>,
}

/// What is compiled again and again, with other options.
struct Search<'a> {
    program: &'a Program,
    options: CompileOptions,
    /// As imported.
    module: Module,
    /// Lowered from it.
    lowered: Branches,
    aim: Aim,
    decided: Decided,
    /// Nobody has said where samples move.
    folds: bool,
    /// Operations that may be simulated for the climbs from one start.
    most: u64,
    /// What was scheduled.
    known: Known,
    /// Ways that a defect of the compiler has ended.
    defects: Cell<usize>,
}

impl<'a> Search<'a> {
    fn new(program: &'a Program, options: &CompileOptions) -> Result<Self, CompileError> {
        let mut module = import(program)?;
        let aim = Aim::new(program, options)?;
        aim.count(&mut module);
        let decided = balance::decide(program, &module, &aim, options);
        let folds = options.balance_at.is_none();
        let options = decided.options(options);
        let (most, known) = (budget::SIMULATED, Known::default());
        let lowered = Branches::new(module.clone());
        let defects = Cell::new(0);
        Ok(Self { program, options, module, lowered, aim, decided, folds, most, known, defects })
    }

    /// What came of a way; nothing where the model has no such way. A search does without what a defect of the compiler ends, and counts
    /// it.
    fn worked<T>(&self, way: Result<T, CompileError>) -> Option<T> {
        if way.as_ref().is_err_and(CompileError::is_defect) {
            self.defects.set(self.defects.get() + 1);
        }
        way.ok()
    }

    /// Operations that were simulated so far to find orders.
    fn simulated(&self) -> u64 {
        self.aim.simulated()
    }

    /// The options of a candidate.
    fn asked(&self, candidate: &Candidate) -> CompileOptions {
        let options = self.options.clone().policy(candidate.policy).lookahead(candidate.lookahead);
        let parts = candidate.microbatches.or(options.microbatches);
        let windows = candidate.windows.or(options.windows);
        options.microbatches(parts).windows(windows)
    }

    /// The same with one window where nobody has said how many and there are several microbatches.
    fn in_one_window(&self, candidate: &Candidate) -> Option<Candidate> {
        let open = candidate.windows.or(self.options.windows).is_none();
        let several = self.parts(candidate) > 1 && candidate.policy.tells_rows_apart();
        (open && several).then(|| candidate.windows(1))
    }

    /// Microbatches of a candidate.
    fn parts(&self, candidate: &Candidate) -> u32 {
        let asked = candidate.microbatches.or(self.options.microbatches);
        asked.unwrap_or_else(|| microbatches_of(&self.program.train))
    }

    /// Whether its rows can be told apart; one that is tried in one window as well need not be.
    fn possible(&self, candidate: &Candidate) -> bool {
        let cut = candidate.microbatches(self.parts(candidate));
        self.in_one_window(candidate).is_none() || can_be_told_apart(self.program, &self.options, &cut)
    }

    /// Candidates, each behind itself in one window: where that takes as long it has fewer operations.
    fn in_windows(&self, candidates: impl IntoIterator<Item = Candidate>) -> Vec<Candidate> {
        let both =
            |c: Candidate| self.in_one_window(&c).into_iter().chain(Some(c).filter(|c| self.possible(c)));
        candidates.into_iter().flat_map(both).collect()
    }

    /// What becomes of candidates, and then of those in one window: where one of these is best, or not much worse, too.
    fn over_both(
        &self,
        candidates: &[Candidate],
        beat: Option<Cost>,
    ) -> Result<(Round, Option<Scheduled>), CompileError> {
        let mut round = self.over(candidates.iter().filter(|c| self.possible(c)).copied(), beat)?;
        let near = round.best.as_ref().map(|best| best.0.longer(NEAR)).or(beat);
        let one = self.over(candidates.iter().filter_map(|c| self.in_one_window(c)), near)?;
        let before = round.tried.len();
        round.tried.extend(one.tried);
        Ok((round, one.best.map(|(cost, chosen, compiled)| (cost, before + chosen, compiled))))
    }

    /// What becomes of candidates of which one is asked to beat a cost, if there is one.
    fn over(
        &self,
        candidates: impl IntoIterator<Item = Candidate>,
        beat: Option<Cost>,
    ) -> Result<Round, CompileError> {
        let (mut best, mut tried) = (None::<Scheduled>, Vec::new());
        let candidates: Vec<Candidate> = candidates.into_iter().collect();
        // Telling rows apart is more work for all engines, which may not be worth looking at once others are known.
        let alike = candidates.chunk_by(|a, b| a.policy.tells_rows_apart() == b.policy.tells_rows_apart());
        for some in alike.flat_map(|alike| alike.chunks(ABREAST)) {
            let beat = |best: &Option<Scheduled>| best.as_ref().map(|b| b.0).or(beat);
            let effort = Effort { beat: beat(&best), ..Effort::default() };
            let said = self.said();
            let sought = self.sought(some.iter().map(|candidate| (*candidate, &said, effort)).collect());
            let sought = sought.into_iter().collect::<Result<Vec<Sought>, CompileError>>()?;
            for (candidate, looked) in some.iter().zip(self.schedule_all(sought)) {
                let least = beat(&best);
                let verdict = match looked? {
                    Looked::Found(found) => {
                        let Ordered { cost, compiled, .. } = *found;
                        let beaten = least.filter(|least| cost >= *least).and_then(Cost::to_beat);
                        let bound = beaten.and_then(|step| Bound::of(&compiled.schedule, step));
                        if least.is_none_or(|least| cost < least) {
                            best = Some((cost, tried.len(), compiled));
                        }
                        // One before it was as short as it can be.
                        bound.map_or(Verdict::Scheduled(cost), Verdict::Pruned)
                    }
                    Looked::Worse(cost) => Verdict::Scheduled(cost),
                    Looked::Beyond(bound) => Verdict::Pruned(bound),
                };
                tried.push(Tried { candidate: *candidate, verdict });
            }
        }
        Ok(Round { best, tried })
    }
}

/// Whether a candidate in so many microbatches makes no more classes of rows than can be told apart.
fn can_be_told_apart(program: &Program, options: &CompileOptions, candidate: &Candidate) -> bool {
    if !candidate.policy.tells_rows_apart() {
        return true;
    }
    let lookahead = candidate.lookahead.unwrap_or(program.train.lookahead);
    let named = options.tables.lookahead.values().filter_map(|k| k.0);
    let most = named.chain([lookahead]).max().unwrap_or(lookahead);
    let microbatches = candidate.microbatches.unwrap_or(1);
    let windows = candidate.windows.or(options.windows).map_or(microbatches, |n| n.min(microbatches));
    Reuse::new(most, windows).count(Way::Forward) <= Reuse::MOST
}

/// A schedule with what it costs and its place among candidates.
type Scheduled = (Cost, usize, Compiled);

/// What became of some candidates.
struct Round {
    /// The best of those that beat what they were asked to: its cost, its place and its schedule.
    best: Option<Scheduled>,
    tried: Vec<Tried>,
}

impl Round {
    /// If nothing had to be beaten.
    fn all(self) -> Result<(Cost, Best), CompileError> {
        let (cost, chosen, compiled) = self.best.ok_or(CompileError::NoCandidate)?;
        Ok((cost, Best { compiled, chosen, tried: self.tried }))
    }
}

/// The schedule with the shortest predicted step of those within memory and the batches asked for, or else the one that
/// exceeds them least. Policy and lookahead are the candidates', everything else the options'. Where samples go to other
/// ranks is chosen before, and is the same for all.
pub fn search(
    program: &Program,
    options: &CompileOptions,
    candidates: impl IntoIterator<Item = Candidate>,
) -> Result<Best, CompileError> {
    let search = Search::new(program, options)?;
    let (_, best) = search.over(search.in_windows(candidates), None)?.all()?;
    // What is thrown away needs no proof.
    emit::proved(&best.compiled.schedule)?;
    Ok(best)
}
