//! From a checked program to a schedule: a strategy's pipeline of passes, a list of operations for each function, and
//! the scheduler's order.

mod listing;
mod storage;

use fs_dsl::checked::{Cluster, Program};
use fs_schedule as s;

use crate::dialect::from_attrs;
use crate::import::{ImportError, import};
use crate::ir::attr::{boolean, int, typed};
use crate::ir::{Module, OpId};
use crate::passes::manager::{self, Log, PipelineError, RunError, Settings};
use crate::sched::{self, SchedError, Target, policy};

/// The strategies that can be asked for.
pub use fs_schedule::Strategy;

/// Why a program has no schedule.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The program asks for what is not possible.
    #[error("{0}")]
    Import(#[from] ImportError),
    /// A pass failed.
    #[error("{0}")]
    Pass(#[from] RunError),
    /// The strategy's pipeline is malformed: a defect of the compiler.
    #[error("{0}")]
    Pipeline(#[from] PipelineError),
    /// Options that do not fit the program or each other.
    #[error("{0}")]
    Options(String),
    /// The scheduler failed.
    #[error("{0}")]
    Schedule(#[from] SchedError),
    /// A profile that does not fit.
    #[error("{0}")]
    Profile(#[from] s::ProfileError),
    /// The lowered module does not make a schedule: a defect of the compiler.
    #[error("the compiled model cannot be written as a schedule: {0}")]
    Emit(String),
}

/// What decides which passes run, beside the model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PipelineOptions {
    /// The strategy.
    pub strategy: Strategy,
    /// Each row once per rank.
    pub unique_rows: bool,
    /// Reuse distances (in microbatches) that `pec` tells apart; 0: rows travel together.
    pub lookahead: u32,
    /// Parts of a batch; `None`: as the model's settings say.
    pub microbatches: Option<u32>,
    /// Ranks to place tables on.
    pub ranks: u32,
    /// Bytes of a rank for tables and their state.
    pub memory: Option<u64>,
    /// Bytes that a transfer could have moved in its latency.
    pub latency_bytes: Option<u64>,
}

impl PipelineOptions {
    /// As an imported module's settings say.
    pub fn of(module: &Module, strategy: Strategy, ranks: u32) -> Result<Self, CompileError> {
        Ok(Self {
            strategy,
            unique_rows: boolean(&module.attrs, "unique_rows").map_err(CompileError::Emit)?,
            lookahead: int(&module.attrs, "lookahead").map_err(CompileError::Emit)?,
            microbatches: None,
            ranks,
            memory: None,
            latency_bytes: None,
        })
    }
}

/// The passes that a plan runs on an imported module, up to and without the order of operations.
pub fn pipeline(plan: &PipelineOptions) -> String {
    let optional = |name: &str, value: Option<u64>| value.map_or(String::new(), |v| format!(",{name}={v}"));
    let sharding = format!(
        "ranks={}{}{}",
        plan.ranks,
        optional("memory", plan.memory),
        optional("latency_bytes", plan.latency_bytes)
    );
    let microbatches = plan.microbatches.map_or(String::new(), |m| format!("{{microbatches={m}}}"));
    let policy = policy::of(plan.strategy);
    let told_apart = policy.tells_rows_apart() && plan.lookahead > 0;
    let exchanges = format!(
        "unique={}{}",
        plan.unique_rows,
        optional("lookahead", told_apart.then_some(plan.lookahead.into()))
    );
    let buckets = match (policy.buckets_gradients(), plan.latency_bytes) {
        (false, _) => String::new(),
        (true, None) => ",bucket-gradients".into(),
        // A bucket is worth its transfer if sending it takes much longer than starting to.
        (true, Some(bytes)) => format!(",bucket-gradients{{least={}}}", bytes.saturating_mul(8)),
    };
    format!(
        "canonicalize,plan-sharding{{{sharding}}},make-evaluation,differentiate,microbatch{microbatches},lower-exchanges{{{exchanges}}},dce,accumulate,fuse-collectives{buckets}"
    )
}

/// How to compile.
#[derive(Debug, Clone)]
pub struct CompileOptions {
    /// The strategy.
    pub strategy: Strategy,
    /// Ranks to plan for; `None`: the GPUs of the cluster, or one rank without a cluster.
    pub ranks: Option<u32>,
    /// The machine to plan for; `None`: the model's first cluster, else the preset `local` with all ranks on one node.
    pub cluster: Option<Cluster>,
    /// Reuse distances that `pec` tells apart, in microbatches; `None`: as the model says.
    pub lookahead: Option<u32>,
    /// Parts of a batch; `None`: as the model says.
    pub microbatches: Option<u32>,
    /// Most batches in flight; `None`: as many as help.
    pub in_flight: Option<u32>,
    /// Times and sizes that were measured, instead of those that follow from cluster and workload.
    pub profile: Option<s::Profile>,
}

impl CompileOptions {
    /// A strategy for a number of ranks, everything else as the model says.
    pub fn new(strategy: Strategy, ranks: u32) -> Self {
        Self {
            strategy,
            ranks: Some(ranks),
            cluster: None,
            lookahead: None,
            microbatches: None,
            in_flight: None,
            profile: None,
        }
    }
}

/// What compilation gives.
#[derive(Debug)]
pub struct Compiled {
    /// The schedule.
    pub schedule: s::Schedule,
    /// The lowered IR that it was written from; its training function is in the schedule's order.
    pub module: Module,
}

/// Compiles a checked program with everything but strategy and ranks as the model says.
pub fn compile(program: &Program, strategy: Strategy, ranks: u32) -> Result<Compiled, CompileError> {
    compile_with(program, &CompileOptions::new(strategy, ranks))
}

/// Compiles a checked program.
pub fn compile_with(program: &Program, options: &CompileOptions) -> Result<Compiled, CompileError> {
    let mut module = import(program)?;
    let declared = options.cluster.clone().or_else(|| program.clusters.first().cloned());
    let profiled = options.profile.as_ref().map(|p| p.ranks);
    let ranks = match (options.ranks.or(profiled), &declared) {
        (Some(0), _) => return Err(CompileError::Options("a schedule is for at least one rank".into())),
        (Some(ranks), _) => ranks,
        (None, Some(c)) => c.nodes.saturating_mul(c.gpus_per_node).max(1),
        (None, None) => 1,
    };
    let cluster = declared.unwrap_or_else(|| local(ranks));
    for (name, value) in [("lookahead", options.lookahead), ("microbatches", options.microbatches)] {
        if let Some(n) = value.filter(|n| !(1..=64).contains(n)) {
            return Err(CompileError::Options(format!("{name} must be in 1..=64, is {n}")));
        }
    }
    let asked = PipelineOptions::of(&module, options.strategy, ranks)?;
    let plan = PipelineOptions {
        lookahead: options.lookahead.unwrap_or(asked.lookahead),
        microbatches: options.microbatches,
        memory: Some(cluster.memory),
        latency_bytes: Some(latency_bytes(&cluster, ranks)),
        ..asked
    };
    let stages = manager::parse_pipeline(&pipeline(&plan))?;
    manager::run(&mut module, &stages, Settings::default(), &mut Log::default())?;
    let target = Target { cluster: &cluster, profile: options.profile.as_ref() };
    let schedule = emit_for(&mut module, target, ranks, options.strategy, options.in_flight)?;
    Ok(Compiled { schedule, module })
}

/// A CPU with so many ranks.
pub fn local(ranks: u32) -> Cluster {
    let preset = fs_dsl::cluster::preset("local").unwrap_or_else(|| unreachable!("`local` is a preset"));
    Cluster { gpus_per_node: ranks.max(1), ..preset }
}

/// Bytes that a transfer between ranks could have moved in its latency.
fn latency_bytes(cluster: &Cluster, ranks: u32) -> u64 {
    let link = if ranks > cluster.gpus_per_node { cluster.inter } else { cluster.intra };
    (link.bandwidth * link.latency).ceil() as u64
}

/// Writes a lowered module as a schedule for a local machine.
pub fn emit(module: &Module, strategy: Strategy, ranks: u32) -> Result<s::Schedule, CompileError> {
    emit_for(&mut module.clone(), &local(ranks), ranks, strategy, None)
}

/// Writes a lowered module as a schedule for a cluster, and leaves the order in the module.
pub fn emit_for<'a>(
    module: &mut Module,
    target: impl Into<Target<'a>>,
    ranks: u32,
    strategy: Strategy,
    in_flight: Option<u32>,
) -> Result<s::Schedule, CompileError> {
    let schedule = schedule(module, target, ranks, strategy, in_flight)?;
    let violations = s::verify::verify(&schedule);
    match violations.first() {
        None => Ok(schedule),
        Some(v) => Err(CompileError::Emit(v.to_string())),
    }
}

/// Lists a module's functions, schedules them, and leaves the order in the module.
pub fn schedule<'a>(
    module: &mut Module,
    target: impl Into<Target<'a>>,
    ranks: u32,
    strategy: Strategy,
    in_flight: Option<u32>,
) -> Result<s::Schedule, CompileError> {
    let fail = CompileError::Emit;
    let target = target.into();
    let (train, origins) = listing::list(module, "train").map_err(fail)?;
    let mut schedule = s::Schedule {
        format: s::FORMAT.into(),
        version: s::VERSION,
        digest: String::new(),
        model: module.name.clone(),
        strategy,
        ranks,
        sources: typed(&module.attrs, "sources").map_err(fail)?,
        settings: typed(&module.attrs, "settings").map_err(fail)?,
        data: typed(&module.attrs, "data").map_err(fail)?,
        evaluate: typed(&module.attrs, "evaluate").map_err(fail)?,
        lengths: records(module, "model.lengths")?,
        inputs: records(module, "model.input")?,
        tables: records(module, "model.table")?,
        parameters: records(module, "model.param")?,
        exchanges: records(module, "comm.exchange")?,
        engines: Vec::new(),
        train,
        evaluation: None,
        prediction: None,
        rewrites: Vec::new(),
    };
    if let Some(profile) = target.profile {
        profile.fits(&schedule)?;
    }
    if module.func("evaluate").is_some() {
        let (evaluation, _) = listing::list(module, "evaluate").map_err(fail)?;
        let mut other = s::Schedule { train: evaluation, strategy: Strategy::Serial, ..schedule.clone() };
        sched::schedule(
            &mut other,
            target.cluster,
            &sched::Options { policy: policy::of(Strategy::Serial), in_flight: None },
        )?;
        schedule.evaluation = Some(other.train);
    }
    let order =
        sched::schedule(&mut schedule, target, &sched::Options { policy: policy::of(strategy), in_flight })?;
    place(module, &schedule, &order, &origins);
    let programs = std::iter::once(&schedule.train).chain(&schedule.evaluation);
    let engines: std::collections::BTreeSet<s::Engine> =
        programs.flat_map(|p| &p.ops).map(|op| op.engine).collect();
    schedule.engines = engines.into_iter().collect();
    Ok(schedule)
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
        let waits = own.is_none() || op.def.name == "model.concat";
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
            start: op.start,
            time: if at.contains_key(id) { op.time } else { 0 },
            reason: op.reason.clone(),
        });
    }
    if let Some(f) = module.func_mut("train") {
        f.body = keyed.into_iter().map(|(_, _, id)| id).collect();
    }
}

/// The records behind declarations of one kind.
fn records<T: serde::de::DeserializeOwned>(module: &Module, kind: &str) -> Result<Vec<T>, CompileError> {
    module.decls_of(kind).map(|op| from_attrs(&op.attrs).map_err(CompileError::Emit)).collect()
}
