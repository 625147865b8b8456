//! From a checked program to a schedule: import, a strategy's pipeline of passes, and emission.

use fs_dsl::checked::{Cluster, Program};
use fs_schedule as s;

use crate::emit::{EmitError, emit_for, local};
use crate::import::{ImportError, import};
use crate::ir::Module;
use crate::ir::attr::{boolean, int};
use crate::passes::manager::{self, Log, PipelineError, RunError, Settings};
use crate::sched::{Target, policy};

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
    /// The imported module lacks a setting: a defect of the compiler.
    #[error("the imported model cannot be lowered: {0}")]
    Module(String),
    /// The lowered module has no schedule.
    #[error(transparent)]
    Emit(#[from] EmitError),
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
            unique_rows: boolean(&module.attrs, "unique_rows").map_err(CompileError::Module)?,
            lookahead: int(&module.attrs, "lookahead").map_err(CompileError::Module)?,
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

/// Bytes that a transfer between ranks could have moved in its latency.
fn latency_bytes(cluster: &Cluster, ranks: u32) -> u64 {
    let link = if ranks > cluster.gpus_per_node { cluster.inter } else { cluster.intra };
    (link.bandwidth * link.latency).ceil() as u64
}
