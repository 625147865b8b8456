//! Training in tests: a small model, compiled as asked, and everything that must be equal after it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use fs_compiler::{At, CompileError, CompileOptions, Strategy, compile_with};
use fs_dsl::checked::{Cluster, Program};
use fs_executor::device::Device;
use fs_executor::session::{Checkpoint, Every};
use fs_executor::{Error, Observer, Options, Report, Session};
use fs_schedule::Schedule;
use tempfile::TempDir;

use crate::binary;

/// Every sharding, and every placement of rows.
pub const SHARDINGS: [&str; 6] = [
    "row_wise",
    "table_wise",
    "column_wise",
    "data_parallel",
    "row_wise(placement: hashed)",
    "row_wise(placement: planned)",
];

/// Sparse optimizers with no, one and two numbers of state an element, and with one a row.
pub const OPTIMIZERS: [&str; 4] =
    ["sgd(lr: 0.1)", "rowwise_adagrad(lr: 0.1)", "adagrad(lr: 0.1)", "adam(lr: 0.01)"];

/// Two tables, one looked up twice, sequences that may be empty, fewer samples in the last batch of a pass than ranks,
/// microbatches that may be empty.
pub fn model(sharding: &str, optimizer: &str, rows: u32, unique: bool) -> String {
    format!(
        "model small {{
          table a {{ rows {rows}  dim 8  init normal(0, 0.5)  optimizer {optimizer}  sharding {sharding} }}
          table b {{ rows 40  dim 8  init hash(scale: 0.3)  optimizer {optimizer}  sharding {sharding} }}
          input x: ids(a) {{ max 9 }}
          input y: ids(b) like x
          input z: ids(a) like x
          input click: label like x
          let h = lookup(x) + lookup(y) + scale(lookup(z), 0.5)
          let g = h + linear(layer_norm(h), 8)
          loss bce_with_logits(linear(g, 1), click, normalize: tokens)
        }}
        train {{ batch 12  steps 7  optimizer adam(lr: 1e-2)  unique_rows {unique} }}
        workload w {{ generate {{ lengths uniform(0, 7)  ids zipf(1.05)  labels hash  samples 31 }} }}"
    )
}

/// The schedule of a model's text, which must check and compile.
pub fn compile(text: &str, strategy: Strategy, ranks: u32, lookahead: u32, microbatches: u32) -> Schedule {
    compile_at(text, strategy, None, (ranks, lookahead, microbatches))
}

/// The same with samples that move there, if they do.
pub fn compile_at(text: &str, strategy: Strategy, at: Option<At>, numbers: (u32, u32, u32)) -> Schedule {
    compile_as(text, strategy, (at, None), numbers)
}

/// The same for GPUs, where one launch starts the same of several tables.
pub fn compile_on_gpus(
    text: &str,
    strategy: Strategy,
    ranks: u32,
    lookahead: u32,
    microbatches: u32,
) -> Schedule {
    let cluster = fs_dsl::cluster::preset("dgx_h100");
    compile_as(text, strategy, (None, cluster), (ranks, lookahead, microbatches))
}

fn compile_as(
    text: &str,
    strategy: Strategy,
    (at, cluster): (Option<At>, Option<Cluster>),
    (ranks, lookahead, microbatches): (u32, u32, u32),
) -> Schedule {
    let loaded = fs_dsl::check_text("model.fs", text);
    let Some(program) = &loaded.program else {
        panic!("{}", fs_dsl::render(&loaded.diagnostics, &loaded.sources, false))
    };
    let options = CompileOptions::new(strategy, ranks).lookahead(lookahead).microbatches(microbatches);
    let options = options.balance_at(at).cluster(cluster);
    match compile_with(program, &options) {
        Ok(compiled) => compiled.schedule,
        Err(e) => panic!(
            "{strategy:?}, {ranks} ranks, lookahead {lookahead}, {microbatches} microbatches: {e}\n{text}"
        ),
    }
}

/// A session of it, which must begin.
pub fn session(schedule: &Schedule, options: Options) -> Session<f32> {
    Session::new(schedule.clone(), options).unwrap_or_else(|e| panic!("{e}"))
}

/// Options of a run that is not evaluated.
pub fn options() -> Options {
    Options::default().evaluate(false)
}

/// Small machines with so many ranks each, of which some make a cluster.
pub fn nodes_of(ranks: u32) -> Cluster {
    let local = fs_dsl::cluster::preset("local").expect("a preset");
    Cluster { nodes: 8, gpus_per_node: ranks, ..local }
}

/// The schedule of a program, unless a pass or the import says that it cannot be.
pub fn compiled_if_it_can_be(program: &Program, options: &CompileOptions) -> Option<Schedule> {
    match compile_with(program, options) {
        Ok(compiled) => Some(compiled.schedule),
        Err(CompileError::Pass(_) | CompileError::Import(_)) => None,
        Err(e) => panic!("{e}"),
    }
}

/// The state after so many steps, with operations delayed at random if that is asked for.
pub fn trained(schedule: &Schedule, steps: u64, stress: Option<u64>) -> Vec<Vec<u32>> {
    let mut session = session(schedule, options().steps(steps).stress(stress));
    session.run(&mut ()).unwrap_or_else(|e| panic!("{e}"));
    state(&session).unwrap_or_else(|e| panic!("{e}"))
}

/// States after each number of steps, up to so many.
pub fn states(schedule: &Schedule, steps: u64) -> Vec<Vec<Vec<u32>>> {
    let mut session = session(schedule, options());
    let now = |session: &Session<f32>| state(session).unwrap_or_else(|e| panic!("{e}"));
    let mut states = vec![now(&session)];
    for _ in 0..steps {
        session.advance(1, &mut ()).unwrap_or_else(|e| panic!("{e}"));
        states.push(now(&session));
    }
    states
}

/// Checkpoints of a folder by their steps, and nothing else but the lock.
pub fn checkpoints(folder: &Path) -> Vec<(u64, PathBuf)> {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{e}")).flatten();
    let mut found = Vec::new();
    for path in entries.map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match name.strip_prefix("step-") {
            Some(step) => found.push((step.parse().unwrap_or_else(|_| panic!("{name}")), path)),
            None => assert_eq!(name, "lock"),
        }
    }
    found.sort();
    found
}

/// Leaves checkpoints in a folder after every so many steps.
pub fn leaving(folder: &Path, every: u64, keep: usize) -> Checkpoint {
    Checkpoint { folder: folder.into(), every: Every::Steps(every), keep, best: None }
}

/// Numbers as they are kept, so that two that print alike are told apart.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Tables, parameters and optimizer states, as bits. Of several processes all must ask.
pub fn state<D: Device<Real = f32>>(session: &Session<f32, D>) -> Result<Vec<Vec<u32>>, Error> {
    let (tables, parameters) = (session.schedule().tables.len(), session.schedule().parameters.len());
    let mut state = Vec::new();
    for t in 0..tables {
        state.push(bits(&session.table(t)?));
        state.extend(session.table_state(t)?.iter().map(|s| bits(s)));
    }
    for p in 0..parameters {
        state.push(bits(&session.parameter(p)));
        state.extend(session.parameter_state(p).iter().map(|s| bits(s)));
    }
    Ok(state)
}

/// What must be equal, as bits: losses, then tables, parameters and optimizer states.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Of each step.
    pub losses: Vec<u64>,
    /// As [`state`] gives it.
    pub state: Vec<Vec<u32>>,
}

/// Trains and looks at everything; of several processes all do.
pub fn train<D: Device<Real = f32>>(
    session: &mut Session<f32, D>,
    observer: &mut dyn Observer,
) -> Result<(Outcome, Report), Error> {
    let report = session.run(observer)?;
    let losses = report.loss.iter().map(|l| l.to_bits()).collect();
    Ok((Outcome { losses, state: state(session)? }, report))
}

/// A schedule of a model of so many rows, in a folder of its own.
pub fn place(rows: u32, ranks: u32) -> TempDir {
    let folder = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
    let text = model("row_wise", "adam(lr: 0.01)", rows, true).replace("steps 7", "steps 60");
    let schedule = compile(&text, Strategy::Pec, ranks, 1, 1);
    fs_schedule::file::write(&folder.path().join("s.json"), &schedule).unwrap_or_else(|e| panic!("{e}"));
    folder
}

/// `fsx run` of that schedule, with these arguments.
pub fn fsx(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary("fsx"));
    command.current_dir(folder).args(["run", "s.json", "--no-evaluate"]).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// What a program has said on standard error.
pub fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// A folder `c` with checkpoints of steps 12, 16 and 20.
pub fn three() -> TempDir {
    let folder = place(60, 2);
    // Those of the ends of runs: of others some may be passed over.
    for steps in ["12", "16", "20"] {
        let run = ["--resume", "c", "--checkpoint", "c", "--every", "1h", "--keep", "3", "--steps", steps];
        let out = fsx(folder.path(), &run).output().unwrap_or_else(|e| panic!("{e}"));
        assert!(out.status.success(), "{}", said(&out));
    }
    folder
}

/// The name of a step's checkpoint.
pub fn step(step: u64) -> String {
    format!("step-{step:012}")
}
