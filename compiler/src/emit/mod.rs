//! From a lowered module to a schedule: a list of operations for each function, buffers, and the scheduler's order.

mod listing;
mod storage;
mod views;

use fs_dsl::checked::Cluster;
use fs_schedule as s;
use s::Strategy;
use s::verify::Violation;

use crate::ir::attr::{record, typed};
use crate::ir::{AttrError, Module, OpError, OpId, Type, View};
use crate::sched::{self, Options, Outcome, Refused, SchedError, Takes, Target, policy};

/// Why a lowered module has no schedule.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmitError {
    /// The scheduler failed.
    #[error("{0}")]
    Schedule(#[from] SchedError),
    /// A profile that does not fit.
    #[error("{0}")]
    Profile(#[from] s::ProfileError),
    /// The module does not make a schedule: a defect of the compiler.
    #[error("the compiled model cannot be written as a schedule: {0}")]
    Form(#[from] FormError),
}

/// Why a module does not make a schedule.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FormError {
    /// A function is missing.
    #[error("there is no function @{0}")]
    NoFunction(&'static str),
    /// A value that no buffer holds.
    #[error("{op} gives {ty}, which has no storage")]
    NoStorage {
        /// What gives it.
        op: &'static str,
        /// Its type.
        ty: Type,
    },
    /// A value that nothing on the list gives.
    #[error("a value without storage")]
    NoBuffer,
    /// A declaration that no operand can name.
    #[error("{0} declares nothing that has a shape")]
    NoShape(&'static str),
    /// A constant of the module.
    #[error(transparent)]
    Attr(#[from] AttrError),
    /// An operation that is no action.
    #[error(transparent)]
    Op(#[from] OpError),
    /// The schedule that came of it is not proved.
    #[error("{0}")]
    Unproved(Violation),
    /// The scheduler met a limit that there was not.
    #[error("the scheduler gave up without having been given a limit")]
    Unlimited,
}

impl From<AttrError> for EmitError {
    fn from(e: AttrError) -> Self {
        Self::Form(e.into())
    }
}

/// A CPU with so many ranks.
pub(crate) fn local(ranks: u32) -> Cluster {
    let preset = fs_dsl::cluster::preset("local").unwrap_or_else(|| unreachable!("`local` is a preset"));
    Cluster { gpus_per_node: ranks.max(1), ..preset }
}

/// What came of writing a module as a schedule.
#[derive(Debug)]
pub(crate) enum Emitted {
    /// The schedule, and what its first good order takes, if that is known.
    Schedule(Box<s::Schedule>, Option<Takes>),
    /// There is no order that is wanted; the module is as it was.
    Refused(Refused),
}

/// Writes a lowered module as a schedule for a local machine.
pub fn emit(module: &Module, strategy: Strategy, ranks: u32) -> Result<s::Schedule, EmitError> {
    let options = Options::new(policy::of(strategy));
    match emit_for(&mut module.clone(), &local(ranks), ranks, &options)? {
        Emitted::Schedule(schedule, _) => Ok(*schedule),
        Emitted::Refused(_) => Err(unlimited()),
    }
}

/// Nothing is beyond a limit that was not given.
pub(crate) fn unlimited() -> EmitError {
    FormError::Unlimited.into()
}

/// Writes a lowered module as a schedule for a cluster, verifies it, and leaves the order in the module.
pub(crate) fn emit_for<'a>(
    module: &mut Module,
    target: impl Into<Target<'a>>,
    ranks: u32,
    options: &Options,
) -> Result<Emitted, EmitError> {
    let emitted = schedule(module, target, ranks, options)?;
    if let Emitted::Schedule(schedule, _) = &emitted {
        proved(schedule)?;
    }
    Ok(emitted)
}

/// Refuses a schedule that the verifier does not prove.
pub(crate) fn proved(schedule: &s::Schedule) -> Result<(), EmitError> {
    match s::verify::verify(schedule).first() {
        None => Ok(()),
        Some(violation) => Err(FormError::Unproved(violation.clone()).into()),
    }
}

/// What a lowered module declares, and its training operations as they are listed: nothing is priced or ordered yet.
pub(crate) fn declared(
    module: &Module,
    strategy: Strategy,
    ranks: u32,
) -> Result<(s::Schedule, Vec<OpId>), EmitError> {
    let (train, origins) = listing::list(module, "train")?;
    let schedule = s::Schedule {
        format: s::FORMAT.into(),
        version: s::VERSION,
        digest: String::new(),
        model: module.name.clone(),
        strategy,
        ranks,
        sources: typed(&module.attrs, "sources")?,
        settings: typed(&module.attrs, "settings")?,
        data: typed(&module.attrs, "data")?,
        evaluate: typed(&module.attrs, "evaluate")?,
        lengths: records(module, "model.lengths")?,
        inputs: records(module, "model.input")?,
        tables: records(module, "model.table")?,
        parameters: records(module, "model.param")?,
        exchanges: records(module, "comm.exchange")?,
        engines: Vec::new(),
        reference: s::Reference::default(),
        train,
        evaluation: None,
        prediction: None,
        counted: None,
        search: None,
    };
    Ok((schedule, origins))
}

/// Training operations as they are listed, each with its expected work.
pub(crate) struct Priced {
    schedule: s::Schedule,
    /// What they were listed from.
    origins: Vec<OpId>,
}

/// Training operations in order, with their prediction.
pub(crate) struct Ordered {
    /// Has everything of training but what the whole of it says: its reference.
    pub schedule: s::Schedule,
    /// Operations as they were listed.
    order: Vec<u32>,
    /// What those were listed from.
    origins: Vec<OpId>,
    /// What the first good order takes, if that is known.
    first: Option<Takes>,
}

/// Lists a module's training function.
pub(crate) fn priced(
    module: &Module,
    target: Target<'_>,
    ranks: u32,
    strategy: Strategy,
) -> Result<Priced, EmitError> {
    let (mut schedule, origins) = declared(module, strategy, ranks)?;
    schedule.counted = target.evidence().counts.map(|counts| counts.of.clone());
    if let Some(profile) = target.profile {
        profile.fits(&schedule)?;
    }
    price(&mut schedule);
    if schedule.settings.balance.is_some() {
        sched::balance::complete(&mut schedule, target.evidence());
        price(&mut schedule);
    }
    Ok(Priced { schedule, origins })
}

impl Priced {
    /// As if its operations were those of one of so many microbatches.
    #[must_use]
    pub(crate) fn in_microbatches(mut self, microbatches: u32) -> Self {
        self.schedule.settings.microbatches = microbatches;
        self
    }

    /// How unevenly samples are expected to load ranks, whatever the order.
    pub(crate) fn stragglers(&self, target: Target<'_>) -> Option<s::Stragglers> {
        target.stragglers(&self.schedule)
    }

    /// Schedules what is listed; or no step that was found is as short as was asked for.
    pub(crate) fn ordered(
        self,
        target: Target<'_>,
        options: &Options,
    ) -> Result<Result<Ordered, Refused>, EmitError> {
        let Self { mut schedule, origins } = self;
        Ok(match sched::schedule(&mut schedule, target, options)? {
            Outcome::Scheduled { order, first } => Ok(Ordered { schedule, order, origins, first }),
            Outcome::Refused(why) => Err(why),
        })
    }
}

/// Lists a module's functions, schedules them, and leaves the order in the module.
pub(crate) fn schedule<'a>(
    module: &mut Module,
    target: impl Into<Target<'a>>,
    ranks: u32,
    options: &Options,
) -> Result<Emitted, EmitError> {
    let target = target.into();
    let priced = priced(module, target, ranks, options.policy.strategy())?;
    let Ordered { mut schedule, order, origins, first } = match priced.ordered(target, options)? {
        Ok(ordered) => ordered,
        Err(why) => return Ok(Emitted::Refused(why)),
    };
    // What a schedule says and its order does not depend on.
    schedule.reference = optional(module, "reference")?;
    if module.func("evaluate").is_some() {
        let (evaluation, _) = listing::list(module, "evaluate")?;
        // Scheduled as if it were the training program, which waits aside with its prediction.
        let train = std::mem::replace(&mut schedule.train, evaluation);
        let prediction = schedule.prediction.take();
        price(&mut schedule);
        sched::schedule(&mut schedule, target.cluster, &Options::new(policy::of(Strategy::Serial)))?;
        schedule.evaluation = Some(std::mem::replace(&mut schedule.train, train));
        schedule.prediction = prediction;
    }
    place(module, &schedule, &order, &origins);
    let programs = std::iter::once(&schedule.train).chain(&schedule.evaluation);
    let engines: std::collections::BTreeSet<s::Engine> =
        programs.flat_map(|p| &p.ops).map(|op| op.engine).collect();
    schedule.engines = engines.into_iter().collect();
    schedule.seal();
    Ok(Emitted::Schedule(Box::new(schedule), first))
}

/// Expected work of every operation, by the table of actions.
fn price(schedule: &mut s::Schedule) {
    let costs: Vec<s::Cost> =
        schedule.train.ops.iter().map(|op| schedule.cost(&schedule.train, op)).collect();
    for (op, cost) in schedule.train.ops.iter_mut().zip(costs) {
        op.cost = cost;
    }
}

/// Writes the order into the training function: operations in issue order, each with its placement. Views (splits,
/// concats computed in place) stand where their operand or result does.
fn place(module: &mut Module, schedule: &s::Schedule, order: &[u32], origins: &[OpId]) {
    use std::collections::BTreeMap;
    // Of an operation that became several the last one counts.
    let mut at: BTreeMap<OpId, usize> = BTreeMap::new();
    for (place, i) in order.iter().enumerate() {
        at.insert(origins[*i as usize], place);
    }
    let Some(body) = module.func("train").map(|f| f.body.clone()) else { return };
    let rank = |place: usize| (-schedule.train.ops[place].stage, place);
    // A view comes right after the last of what it reads, in the order of a batch.
    let mut defined: BTreeMap<crate::ir::ValueId, usize> = BTreeMap::new();
    let mut keyed: Vec<(usize, usize, OpId)> = Vec::with_capacity(body.len());
    for (i, id) in body.iter().enumerate() {
        let op = module.op(*id);
        let reads = op.operands.iter().filter_map(|v| defined.get(v)).copied();
        let own = at.get(id).copied();
        // A concat of which only some parts are copied has to wait for the others, too.
        let waits = own.is_none() || op.def.view == Some(View::Concat);
        let place = own.into_iter().chain(reads.filter(|_| waits)).max_by_key(|p| rank(*p)).unwrap_or(0);
        keyed.push((place, i, *id));
        for r in &module.op(*id).results {
            defined.insert(*r, place);
        }
    }
    keyed.sort_unstable();
    for (place, _, id) in &keyed {
        let Some(op) = schedule.train.ops.get(*place) else { continue };
        module.op_mut(*id).placement = Some(crate::ir::Placement {
            engine: op.engine,
            stage: op.stage,
            priority: op.priority,
            chunk: op.chunk,
            joined: op.joined && at.contains_key(id),
            start: op.start,
            time: if at.contains_key(id) { op.time } else { 0 },
            lag: if at.contains_key(id) { op.lag } else { 0 },
            reason: op.reason.clone(),
        });
    }
    if let Some(f) = module.func_mut("train") {
        f.body = keyed.into_iter().map(|(_, _, id)| id).collect();
    }
}

/// An attribute of the module, or what stands for its absence.
fn optional<T: serde::de::DeserializeOwned + Default>(module: &Module, name: &str) -> Result<T, AttrError> {
    match module.attrs.get(name) {
        None => Ok(T::default()),
        Some(_) => typed(&module.attrs, name),
    }
}

/// The records behind declarations of one kind.
fn records<T: serde::de::DeserializeOwned>(module: &Module, kind: &str) -> Result<Vec<T>, EmitError> {
    module.decls_of(kind).map(|op| Ok(record(&op.attrs)?)).collect()
}
