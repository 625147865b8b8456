//! From lowered IR to a schedule: a strategy's pipeline of passes, then storage and order for each function.

mod deps;
mod storage;

use std::collections::BTreeMap;

use fs_dsl::checked::Program;
use fs_schedule as s;
use fs_schedule::op::{Op, Operand, Place};
use fs_schedule::signature::Shape;

use crate::dialect::{action, cost, from_attrs};
use crate::import::{ImportError, import};
use crate::ir::attr::{boolean, int, typed};
use crate::ir::{Module, OpData, ValueId};
use crate::passes::manager::{self, Log, PipelineError, RunError, Settings};
use storage::Storage;

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
    /// The strategy is not there yet.
    #[error("strategy `{0}` is not built yet; use `--strategy serial`")]
    Strategy(&'static str),
    /// The lowered module does not make a schedule: a defect of the compiler.
    #[error("the compiled model cannot be written as a schedule: {0}")]
    Emit(String),
}

/// What decides which passes run, beside the model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
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

impl Plan {
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
pub fn pipeline(plan: &Plan) -> String {
    let optional = |name: &str, value: Option<u64>| value.map_or(String::new(), |v| format!(",{name}={v}"));
    let sharding = format!(
        "ranks={}{}{}",
        plan.ranks,
        optional("memory", plan.memory),
        optional("latency_bytes", plan.latency_bytes)
    );
    let microbatches = plan.microbatches.map_or(String::new(), |m| format!("{{microbatches={m}}}"));
    let told_apart = plan.strategy == Strategy::Pec && plan.lookahead > 0;
    let exchanges = format!(
        "unique={}{}",
        plan.unique_rows,
        optional("lookahead", told_apart.then_some(plan.lookahead.into()))
    );
    let buckets = if plan.strategy == Strategy::Serial { "" } else { ",bucket-gradients" };
    format!(
        "canonicalize,plan-sharding{{{sharding}}},make-evaluation,differentiate,microbatch{microbatches},lower-exchanges{{{exchanges}}},dce,accumulate,fuse-collectives{buckets}"
    )
}

/// What compilation gives.
#[derive(Debug)]
pub struct Compiled {
    /// The schedule.
    pub schedule: s::Schedule,
    /// The lowered IR that it was written from.
    pub module: Module,
}

/// Compiles a checked program for a number of ranks.
pub fn compile(program: &Program, strategy: Strategy, ranks: u32) -> Result<Compiled, CompileError> {
    let mut module = import(program)?;
    match strategy {
        Strategy::Serial => {}
        Strategy::Prefetch => return Err(CompileError::Strategy("prefetch")),
        Strategy::Pec => return Err(CompileError::Strategy("pec")),
    }
    let plan = Plan::of(&module, strategy, ranks)?;
    let stages = manager::parse_pipeline(&pipeline(&plan))?;
    manager::run(&mut module, &stages, Settings::default(), &mut Log::default())?;
    let schedule = emit(&module, strategy, ranks)?;
    Ok(Compiled { schedule, module })
}

/// Writes a lowered module as a schedule.
pub fn emit(module: &Module, strategy: Strategy, ranks: u32) -> Result<s::Schedule, CompileError> {
    let fail = CompileError::Emit;
    let train = program(module, "train").map_err(fail)?;
    let evaluation =
        module.func("evaluate").map(|_| program(module, "evaluate")).transpose().map_err(fail)?;
    let engines = train.ops.iter().chain(evaluation.iter().flat_map(|e| &e.ops)).map(|op| op.engine);
    let engines: std::collections::BTreeSet<s::Engine> = engines.collect();
    let schedule = s::Schedule {
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
        engines: engines.into_iter().collect(),
        train,
        evaluation,
        prediction: None,
        rewrites: Vec::new(),
    };
    let violations = s::verify::verify(&schedule);
    match violations.first() {
        None => Ok(schedule),
        Some(v) => Err(CompileError::Emit(v.to_string())),
    }
}

/// The records behind declarations of one kind.
fn records<T: serde::de::DeserializeOwned>(module: &Module, kind: &str) -> Result<Vec<T>, CompileError> {
    module.decls_of(kind).map(|op| from_attrs(&op.attrs).map_err(CompileError::Emit)).collect()
}

/// One function as a program in its own order.
fn program(module: &Module, func: &str) -> Result<s::Program, String> {
    let body = &module.func(func).ok_or(format!("there is no function @{func}"))?.body;
    let mut storage = Storage::assign(module, body)?;
    let mut names: BTreeMap<String, u32> = BTreeMap::new();
    let mut ops: Vec<Op> = Vec::new();
    for id in body {
        let op = module.op(*id);
        match op.def.name {
            "model.split" => continue,
            "model.concat" => {
                // Parts that could not be computed in place are copied.
                for (value, target) in storage.concat_copies(module, op) {
                    let copied = Op {
                        action: s::Action::Copy,
                        reads: vec![storage.operand(value)?],
                        writes: vec![target],
                        ..template(module, op, unique_name(&mut names, &op.scope, "copy"))
                    };
                    ops.push(copied);
                }
                continue;
            }
            _ => {}
        }
        let kind = op.def.name.rsplit('.').next().unwrap_or_default();
        let mut new =
            Op { action: action(op)?, ..template(module, op, unique_name(&mut names, &op.scope, kind)) };
        (new.reads, new.writes) = operands(module, op, &storage)?;
        new.engine = engine(op);
        new.reason = reason(op).into();
        ops.push(new);
    }
    let buffers = storage.finish(&ops);
    let mut program = s::Program { in_flight: 1, buffers, ops };
    deps::add(&mut program);
    Ok(program)
}

fn template(module: &Module, op: &OpData, name: String) -> Op {
    Op {
        name,
        action: s::Action::Copy,
        reads: Vec::new(),
        writes: Vec::new(),
        engine: s::Engine::Compute,
        stage: 0,
        microbatch: op.microbatch,
        deps: Vec::new(),
        priority: 0,
        chunk: None,
        cost: cost(module, op),
        start: 0,
        time: 0,
        reason: String::from("serial: in the order of the model"),
    }
}

fn unique_name(names: &mut BTreeMap<String, u32>, scope: &str, kind: &str) -> String {
    let base = if scope.is_empty() { kind.to_owned() } else { format!("{scope}.{kind}") };
    let count = names.entry(base.clone()).or_insert(0);
    *count += 1;
    if *count == 1 { base } else { format!("{base}#{count}") }
}

fn engine(op: &OpData) -> s::Engine {
    match op.def.name {
        "train.load_batch" => s::Engine::Host,
        "comm.all_to_all_ids" | "comm.all_to_all_rows" | "comm.all_to_all_grads" | "comm.all_reduce" => {
            s::Engine::CopyOut
        }
        _ => s::Engine::Compute,
    }
}

fn reason(op: &OpData) -> &'static str {
    match engine(op) {
        s::Engine::Compute => "serial: in the order of the model",
        s::Engine::Host => "serial: the step starts with its batch",
        _ => "serial: everything waits for this transfer",
    }
}

/// Operands of an executable operation in the schedule's terms.
fn operands(module: &Module, op: &OpData, storage: &Storage) -> Result<(Vec<Operand>, Vec<Operand>), String> {
    let list = |ids: &[ValueId]| ids.iter().map(|v| storage.operand(*v)).collect::<Result<Vec<_>, _>>();
    match op.def.name {
        "comm.apply" => {
            let (table, reads) = op.operands.split_last().ok_or("needs a table")?;
            Ok((list(reads)?, list(&[*table])?))
        }
        "train.dense_update" => {
            let (gradients, params) = op.operands.split_at(op.operands.len() / 2);
            Ok((list(gradients)?, list(params)?))
        }
        _ => {
            let mut writes = list(&op.results)?;
            for (write, base) in writes.iter_mut().zip(&op.into) {
                write.accumulate = base.is_some();
            }
            debug_assert!(op.operands.iter().all(|v| module.ty(*v).shape().is_some()));
            Ok((list(&op.operands)?, writes))
        }
    }
}

/// The places of declared values and of gradients.
fn fixed_places(module: &Module, body: &[crate::ir::OpId]) -> Result<BTreeMap<ValueId, Place>, String> {
    let mut places = BTreeMap::new();
    let mut number: BTreeMap<&str, u32> = BTreeMap::new();
    for id in &module.decls {
        let op = module.op(*id);
        let n = number.entry(op.def.name).or_insert(0);
        for r in &op.results {
            let place = match module.ty(*r).shape() {
                Some(Shape::Table { .. }) => Place::Table(*n),
                Some(Shape::Parameter { .. }) => Place::Parameter(*n),
                Some(Shape::Offsets { .. }) => Place::Lengths(*n),
                Some(_) => Place::Input(*n),
                None => return Err("a declaration without a shape".into()),
            };
            places.insert(*r, place);
        }
        *n += 1;
    }
    // A gradient belongs to the parameter that the update pairs it with.
    for id in body.iter().rev() {
        let op = module.op(*id);
        if op.def.name == "train.dense_update" {
            let (gradients, params) = op.operands.split_at(op.operands.len() / 2);
            for (g, p) in gradients.iter().zip(params) {
                if let Some(Place::Parameter(n)) = places.get(p).copied() {
                    places.insert(*g, Place::Gradient(n));
                }
            }
        } else if op.def.name == "comm.all_reduce" {
            for (from, to) in op.operands.iter().zip(&op.results) {
                if let Some(place) = places.get(to).copied() {
                    places.insert(*from, place);
                }
            }
        }
    }
    Ok(places)
}
