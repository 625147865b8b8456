//! From a checked program to a schedule: import, a strategy's pipeline of passes, and emission.

pub(crate) mod balance;
mod pipeline;

use fs_dsl::checked::{Cluster, Program};
use fs_schedule as s;

use crate::distribution::{At, TableOptions};
use crate::emit::{EmitError, Emitted, declared, emit_for, local, unlimited};
use crate::import::settings::{divides, microbatches};
use crate::import::{ImportError, import};
use crate::ir::Module;
use crate::ir::attr::{AttrError, boolean};
use crate::passes::manager::{self, PipelineError, RunError, Stage, Stop};
use crate::passes::plan_sharding;
use crate::sched::memo::Memo;
use crate::sched::policy::{self, Policy};
use crate::sched::{self, SchedError, Target};

pub use pipeline::{PipelineOptions, pipeline};

/// The strategies that can be asked for.
pub use fs_schedule::Strategy;

/// Why a program has no schedule.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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
    /// A search without candidates.
    #[error("there is no strategy to try")]
    NoCandidate,
    /// A schedule for nobody.
    #[error("a schedule is for at least one rank")]
    NoRanks,
    /// A number of reuse distances or microbatches that nothing counts up to.
    #[error("{option} must be in 1..=64, is {value}")]
    Beyond {
        /// What was asked for.
        option: &'static str,
        /// How many.
        value: u32,
    },
    /// The imported module lacks a setting: a defect of the compiler.
    #[error("the imported model cannot be lowered: {0}")]
    Module(#[from] AttrError),
    /// The lowered module has no schedule.
    #[error(transparent)]
    Emit(#[from] EmitError),
}

impl CompileError {
    /// Whether the compiler is at fault, and not what it was asked for.
    pub fn is_defect(&self) -> bool {
        match self {
            Self::Pass(error) => !matches!(*error.stop, Stop::Failed(_)),
            Self::Emit(error) => {
                matches!(error, EmitError::Form(_) | EmitError::Schedule(SchedError::Defect(_)))
            }
            Self::Pipeline(_) | Self::Module(_) => true,
            Self::Import(_) | Self::NoCandidate | Self::NoRanks | Self::Beyond { .. } => false,
        }
    }
}

/// How to compile.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CompileOptions {
    /// What waits for what.
    pub policy: &'static dyn Policy,
    /// Ranks to plan for; `None`: those of the profile, the GPUs of the cluster, or one rank without either.
    pub ranks: Option<u32>,
    /// The machine to plan for; `None`: the model's first cluster, else the preset `local` with all ranks on one node.
    pub cluster: Option<Cluster>,
    /// Reuse distances that are told apart, in windows; `None`: as the model says.
    pub lookahead: Option<u32>,
    /// Windows of a batch by which rows are told apart, if fewer than microbatches; `None`: each microbatch is one.
    pub windows: Option<u32>,
    /// Parts of a batch; `None`: as the model says, and one where it says `auto`: [`crate::search::microbatches`] chooses.
    pub microbatches: Option<u32>,
    /// Most batches in flight; `None`: as many as help.
    pub in_flight: Option<u32>,
    /// Whether samples go to the ranks that have least to do; `None`: as the model says.
    pub balance: Option<bool>,
    /// Where they go; `None`: where a step is predicted to be shortest.
    pub balance_at: Option<At>,
    /// Bytes of dense gradients that are summed at once, where a strategy cuts their sum up; `None`: an eighth of all, if that is
    /// worth a transfer.
    pub bucket_bytes: Option<u64>,
    /// Times and sizes that were measured, instead of those that follow from cluster and workload.
    pub profile: Option<s::Profile>,
    /// What was counted in the model's data for these ranks and microbatches; without effect beside a profile.
    pub counts: Option<s::counts::Counts>,
    /// What holds for some tables instead of what holds for all.
    pub tables: TableOptions,
}

impl CompileOptions {
    /// A strategy for a number of ranks, everything else as the model says.
    pub fn new(strategy: Strategy, ranks: impl Into<Option<u32>>) -> Self {
        Self {
            policy: policy::of(strategy),
            ranks: ranks.into(),
            cluster: None,
            lookahead: None,
            windows: None,
            microbatches: None,
            in_flight: None,
            balance: None,
            balance_at: None,
            bucket_bytes: None,
            profile: None,
            counts: None,
            tables: TableOptions::default(),
        }
    }

    /// An error where more is asked for than is counted up to.
    fn countable(&self) -> Result<(), CompileError> {
        let of_tables = &self.tables;
        let asked = [
            ("lookahead", self.lookahead.into_iter().collect::<Vec<u32>>()),
            ("windows", self.windows.into_iter().collect()),
            ("microbatches", self.microbatches.into_iter().collect()),
            ("lookahead of a table", of_tables.lookahead.values().filter_map(|k| k.0).collect()),
            ("windows of a table", of_tables.windows.values().copied().collect()),
        ];
        let beyond = |(option, values): (&'static str, Vec<u32>)| {
            let value = values.into_iter().find(|n| !(1..=64).contains(n))?;
            Some(CompileError::Beyond { option, value })
        };
        asked.into_iter().find_map(beyond).map_or(Ok(()), Err)
    }

    /// Under another policy, which needs no entry in the table.
    #[must_use]
    pub fn policy(mut self, policy: &'static dyn Policy) -> Self {
        self.policy = policy;
        self
    }

    /// For this machine.
    #[must_use]
    pub fn cluster(mut self, cluster: impl Into<Option<Cluster>>) -> Self {
        self.cluster = cluster.into();
        self
    }

    /// Telling apart so many reuse distances.
    #[must_use]
    pub fn lookahead(mut self, distances: impl Into<Option<u32>>) -> Self {
        self.lookahead = distances.into();
        self
    }

    /// By so many windows of a batch.
    #[must_use]
    pub fn windows(mut self, windows: impl Into<Option<u32>>) -> Self {
        self.windows = windows.into();
        self
    }

    /// In so many parts of a batch.
    #[must_use]
    pub fn microbatches(mut self, parts: impl Into<Option<u32>>) -> Self {
        self.microbatches = parts.into();
        self
    }

    /// With samples given to the ranks that have least to do, or not.
    #[must_use]
    pub fn balance(mut self, on: impl Into<Option<bool>>) -> Self {
        self.balance = on.into();
        self
    }

    /// With at most so many batches in flight.
    #[must_use]
    pub fn in_flight(mut self, most: impl Into<Option<u32>>) -> Self {
        self.in_flight = most.into();
        self
    }

    /// With samples that move there.
    #[must_use]
    pub fn balance_at(mut self, at: impl Into<Option<At>>) -> Self {
        self.balance_at = at.into();
        self
    }

    /// With so many bytes of dense gradients summed at once.
    #[must_use]
    pub fn bucket_bytes(mut self, bytes: impl Into<Option<u64>>) -> Self {
        self.bucket_bytes = bytes.into();
        self
    }

    /// With other choices for some tables.
    #[must_use]
    pub fn tables(mut self, tables: TableOptions) -> Self {
        self.tables = tables;
        self
    }

    /// With these times and sizes.
    #[must_use]
    pub fn profile(mut self, profile: impl Into<Option<s::Profile>>) -> Self {
        self.profile = profile.into();
        self
    }

    /// With these lengths and ids.
    #[must_use]
    pub fn counts(mut self, counts: impl Into<Option<s::counts::Counts>>) -> Self {
        self.counts = counts.into();
        self
    }
}

/// What compilation gives.
#[derive(Debug, Clone)]
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

/// Compiles a checked program. Whether samples go to other ranks, and where, is decided unless options or model say it.
pub fn compile_with(program: &Program, options: &CompileOptions) -> Result<Compiled, CompileError> {
    let mut module = import(program)?;
    let aim = Aim::new(program, options)?;
    aim.count(&mut module);
    let decided = balance::decide(program, &module, &aim, options);
    let options = &decided.options(options);
    let stages = aim.stages(&module, options)?;
    manager::run_to_compile(&mut module, &stages)?;
    let asked = sched::Options::new(options.policy).in_flight(options.in_flight);
    match emit_for(&mut module, aim.target(), aim.ranks, &asked)? {
        Emitted::Schedule(schedule, _) => {
            let mut compiled = Compiled { schedule: *schedule, module };
            decided.note(&mut compiled);
            Ok(compiled)
        }
        Emitted::Refused(_) => Err(unlimited().into()),
    }
}

/// What a program declares for these options, and the operations of a step before anything is decided of their order:
/// all that it takes to read and count its data. Samples are where they are read.
pub fn lowered(program: &Program, options: &CompileOptions) -> Result<s::Schedule, CompileError> {
    let mut module = import(program)?;
    let aim = Aim::new(program, options)?;
    // Rows that are to be planned are planned by what is yet to be counted.
    let uncounted = |table: String| s::profile::Rows {
        table,
        part: 0,
        sent: 0.0,
        busiest: 1.0,
        hashed: None,
        asking: None,
        owners: Vec::new(),
        hashed_owners: Vec::new(),
        hot: Vec::new(),
        reuse: Vec::new(),
        relayed: None,
    };
    let tables = program.model.iter().flat_map(|m| &m.tables);
    plan_sharding::count(&mut module, &tables.map(|t| uncounted(t.name.clone())).collect::<Vec<_>>());
    let plain = options.clone().policy(policy::of(Strategy::Serial)).balance(false).balance_at(None);
    let stages = aim.stages(&module, &plain)?;
    manager::run_to_compile(&mut module, &stages)?;
    Ok(declared(&module, Strategy::Serial, aim.ranks)?.0)
}

/// What a program is compiled for.
#[derive(Debug)]
pub(crate) struct Aim {
    /// The machine.
    pub cluster: Cluster,
    /// Its ranks that are used.
    pub ranks: u32,
    pub profile: Option<s::Profile>,
    pub counts: Option<s::counts::Counts>,
    memo: Memo,
}

impl Aim {
    /// As options, profile and program say, in this order.
    pub(crate) fn new(program: &Program, options: &CompileOptions) -> Result<Self, CompileError> {
        let declared = options.cluster.clone().or_else(|| program.clusters.first().cloned());
        let profiled = options.profile.as_ref().map(|p| p.ranks);
        let ranks = match (options.ranks.or(profiled), &declared) {
            (Some(0), _) => return Err(CompileError::NoRanks),
            (Some(ranks), _) => ranks,
            (None, Some(c)) => c.nodes.saturating_mul(c.gpus_per_node).max(1),
            (None, None) => 1,
        };
        divides(program, ranks)?;
        options.countable()?;
        let cluster = declared.unwrap_or_else(|| local(ranks));
        // What was counted for others says nothing of these.
        let of = (ranks, options.microbatches.unwrap_or_else(|| microbatches(&program.train)));
        let counts = options.counts.clone().filter(|counts| (counts.ranks, counts.microbatches) == of);
        Ok(Self { cluster, ranks, profile: options.profile.clone(), counts, memo: Memo::default() })
    }

    /// What is scheduled for.
    pub(crate) fn target(&self) -> Target<'_> {
        Target {
            cluster: &self.cluster,
            profile: self.profile.as_ref(),
            counts: self.counts.as_ref(),
            memo: Some(&self.memo),
        }
    }

    /// Operations that were simulated so far to find orders.
    pub(crate) fn simulated(&self) -> u64 {
        self.memo.simulated()
    }

    /// Puts down in an imported module what was counted of rows.
    pub(crate) fn count(&self, module: &mut Module) {
        if let Some(profile) = &self.profile {
            plan_sharding::count(module, &profile.rows);
        } else if let Some(counts) = &self.counts {
            let unique = boolean(&module.attrs, "unique_rows").unwrap_or(true);
            let rows = counts.tables.iter().filter_map(|t| counts.rows_of(&t.unique.table, unique).cloned());
            plan_sharding::count(module, &rows.collect::<Vec<_>>());
        }
    }

    /// The passes that lower an imported module.
    pub(crate) fn stages(
        &self,
        module: &Module,
        options: &CompileOptions,
    ) -> Result<Vec<Stage>, CompileError> {
        options.countable()?;
        let asked = PipelineOptions::of(module, options.policy, self.ranks)?;
        let lookahead = options.lookahead.unwrap_or(asked.lookahead);
        let plan = asked
            .lookahead(lookahead)
            .windows(options.windows)
            .microbatches(options.microbatches)
            .node(Some(self.cluster.gpus_per_node).filter(|node| (2..self.ranks).contains(node)))
            .memory(self.cluster.memory)
            .latency_bytes(latency_bytes(&self.cluster, self.ranks))
            .launch_bytes(launch_bytes(&self.cluster))
            .balance(options.balance)
            .balance_at(options.balance_at)
            .bucket_bytes(options.bucket_bytes)
            .tables(options.tables.clone());
        Ok(manager::parse_pipeline(&pipeline(&plan))?)
    }
}

/// Bytes that a transfer between ranks could have moved in its latency.
fn latency_bytes(cluster: &Cluster, ranks: u32) -> u64 {
    let link = if ranks > cluster.gpus_per_node { cluster.inter } else { cluster.intra };
    (link.bandwidth * link.latency).ceil() as u64
}

/// Bytes that a rank's memory moves in the time from the host's request to the start of a kernel.
fn launch_bytes(cluster: &Cluster) -> u64 {
    (cluster.memory_bandwidth * cluster.host.latency).ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model of one pooled sequence `p` and a label `y`.
    fn program(body: &str) -> Program {
        let text = format!(
            "model m {{
               table a {{ rows 50  dim 4  init normal(0, 0.5)  optimizer sgd(lr: 0.1)  sharding row_wise }}
               input x: ids(a) {{ max 5 }}
               input y: label
               let p = pool(x, sum)
               {body}
             }}
             train {{ batch 8  steps 2  optimizer sgd(lr: 0.1) }}
             workload w {{ generate {{ lengths uniform(0, 5)  ids uniform  labels bernoulli(0.5)  samples 16 }} }}"
        );
        fs_dsl::check_text("m.fs", &text).program.expect("the model checks")
    }

    /// Sums in place round otherwise than sums of rounded values: the reference tells them apart, and a schedule cannot
    /// pass for one that makes them the other way.
    #[test]
    fn references_say_how_sums_round() {
        let program = program(
            "let g = linear(p, 4) + linear(p, 4)
             loss bce_with_logits(linear(g, 1), y, normalize: samples)",
        );
        let options = CompileOptions::new(Strategy::Serial, 2).microbatches(2);
        let in_place = compile_with(&program, &options).expect("it compiles").schedule;
        let aim = Aim::new(&program, &options).expect("an aim");
        let mut module = import(&program).expect("it is imported");
        let mut stages = aim.stages(&module, &options).expect("stages");
        stages.retain(|stage| stage.pass.name != "accumulate");
        manager::run_to_compile(&mut module, &stages).expect("passes run");
        let asked = sched::Options::new(options.policy);
        let Emitted::Schedule(mut apart, _) =
            emit_for(&mut module, aim.target(), 2, &asked).expect("it is proved")
        else {
            panic!("no bound was asked for")
        };
        let (one, other) = (&in_place.reference, &apart.reference);
        assert_eq!((&one.train, &one.updates), (&other.train, &other.updates));
        assert_ne!(one.sums, other.sums);
        assert_ne!(one.digest, other.digest);
        apart.reference = one.clone();
        assert_eq!(apart.reference_digest(), one.digest);
        let violations = s::verify::verify(&apart);
        assert!(violations.iter().all(|v| v.rule == "model"), "{violations:?}");
        assert!(violations.iter().any(|v| v.message.contains("sums round as")), "{violations:?}");
    }

    /// Of an expression that is written twice one sum may be made in place and the other not.
    #[test]
    fn expressions_may_be_written_twice() {
        let program = program(
            "let u = relu(p) + 2 * p
             let r = relu(p)
             loss bce_with_logits(linear(u, 1) + linear((r + 2 * p) * r, 1), y, normalize: samples)",
        );
        for strategy in [Strategy::Serial, Strategy::Pec] {
            let schedule = compile(&program, strategy, 2).expect("it compiles").schedule;
            assert!(schedule.reference.sums[0].contains('b'), "{:?}", schedule.reference.sums);
        }
    }
}
