//! `fsc compile`.

use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fs_compiler::distribution::TableOptions;
use fs_compiler::sched::explain::explain;
use fs_compiler::sched::{BoundBy, policy};
use fs_compiler::search::tables::Outcome;
use fs_compiler::search::{self, Best, Candidate, Tried, Verdict};
use fs_compiler::{At, CompileOptions, Compiled, lowered, paths};
use fs_data::planning::{self, Found};
use fs_dsl::checked::{Balancing, Cluster, DataSource, Microbatches, Program};
use fs_schedule::terminal::{self, shown};
use fs_schedule::{Strategy, file, profile};

use super::commands::load;
use super::failure::Failure;
use super::tables::{self, TableArg};
use super::{AUTO, StrategyChoice, keep_input, print, strategies};

/// Arguments of `fsc compile`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The model.
    model: PathBuf,
    /// Where to write the schedule (default: the model's name with `.json`).
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// How to order operations: one way, or what is predicted to be fastest, looked for on as many threads as there are
    /// processors, or as the environment's `RAYON_NUM_THREADS` says.
    #[arg(long, value_parser = strategies(), default_value = "auto")]
    strategy: StrategyChoice,
    /// Ranks to plan for (default: the GPUs of the cluster; 1 without one).
    #[arg(long)]
    ranks: Option<u32>,
    /// Cluster to plan for: a preset, or a block of the model's file (default: the first block, else `local` with
    /// the given ranks).
    #[arg(long, value_parser = terminal::word)]
    cluster: Option<String>,
    /// Reuse distances that `pec` tells apart, in windows (default: as the model says).
    #[arg(long)]
    lookahead: Option<u32>,
    /// Windows of a batch by which `pec` tells rows apart, each of as many microbatches (default: one, or each microbatch, as is
    /// predicted to be faster).
    #[arg(long)]
    windows: Option<u32>,
    /// Parts of a batch, or `auto`: as many as a step is predicted to be shortest with, which decides how sums of gradients
    /// round (default: as the model says).
    #[arg(long, value_name = "N|auto", value_parser = microbatches)]
    microbatches: Option<Microbatches>,
    /// Most batches in flight (default: as many as help and memory allows).
    #[arg(long)]
    in_flight: Option<u32>,
    /// Give samples to the ranks that have least to do (default: as the model says).
    #[arg(long, value_enum, value_name = "on|off")]
    balance: Option<Switch>,
    /// Where samples go to other ranks, if they do: `ids`, before ids are looked at; `rows`, behind the output dist, as
    /// what is made of rows; `folded`, into the output dist: who reads samples asks for rows in place of who works on
    /// them (default: where a step is predicted to be shortest).
    #[arg(long, value_name = "ids|rows|folded")]
    balance_at: Option<At>,
    /// Bytes of dense gradients that are summed over ranks at once, where a strategy sums them in parts (default: an eighth of
    /// all, if that is worth a transfer; the strategy `auto` tries others as well).
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    bucket_bytes: Option<u64>,
    /// Other choices for one table, any of: items:unique=off,lookahead=2,windows=1,sharding=row_wise,placement=hashed,hot=256,relay=on,fold=on,group=0. May be repeated.
    #[arg(long = "table", value_name = "NAME:KEY=VALUE,...")]
    tables: Vec<TableArg>,
    /// Times and sizes that `fsx profile` measured, instead of what follows from cluster and workload.
    #[arg(long)]
    profile: Option<PathBuf>,
    /// Do not read the data that the model names: assume the laws of its workload of lengths and ids.
    #[arg(long, value_enum, value_name = "workload")]
    assume: Option<Assume>,
    /// Count the data anew, and keep no file with what was counted.
    #[arg(long)]
    no_cache: bool,
    /// Write the lowered IR to this file too (`-` for standard output).
    #[arg(long)]
    emit_ir: Option<PathBuf>,
    /// Print the summary as JSON on standard output.
    #[arg(long)]
    json: bool,
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Switch {
    /// On.
    On,
    /// Off.
    Off,
}

/// What stands for data that are not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Assume {
    /// The laws of the workload.
    Workload,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    if args.ranks == Some(0) {
        return Err(Failure::usage("--ranks must be at least 1"));
    }
    if args.in_flight == Some(0) {
        return Err(Failure::usage("--in-flight must be at least 1"));
    }
    let to_stdout = |p: Option<&PathBuf>| p.is_some_and(|p| p == Path::new("-"));
    if args.json && (to_stdout(args.output.as_ref()) || to_stdout(args.emit_ir.as_ref())) {
        return Err(Failure::usage(
            "--json prints to standard output, so the schedule and the IR must go to files",
        ));
    }
    let default = args.model.with_extension("json");
    let output = args.output.as_ref().unwrap_or(&default);
    if args.emit_ir.as_ref() == Some(output) {
        let place = if output == Path::new("-") { "standard output".into() } else { shown(output) };
        return Err(Failure::usage(format!(
            "the schedule and the IR would both go to {place}; give one another name"
        )));
    }
    let mut inputs = vec![args.model.as_path()];
    inputs.extend(args.profile.as_deref());
    for path in std::iter::once(output).chain(&args.emit_ir) {
        keep_input(path, &inputs)?;
    }
    let program = load(&args.model)?;
    for path in std::iter::once(output).chain(&args.emit_ir) {
        writable(path)?;
    }
    let cluster = args.cluster.as_ref().map(|name| cluster(&program, name)).transpose()?;
    let profile = args.profile.as_ref().map(|path| profile::read(path)).transpose();
    let profile = profile?;
    let options = CompileOptions::new(Strategy::Serial, args.ranks)
        .cluster(cluster)
        .lookahead(args.lookahead)
        .windows(args.windows)
        .in_flight(args.in_flight)
        .balance(args.balance.map(|s| s == Switch::On))
        .balance_at(args.balance_at)
        .bucket_bytes(args.bucket_bytes)
        .tables(tables::options(&args.tables, &program).map_err(|e| Failure::usage(e.to_string()))?)
        .profile(profile);
    let stays = args.balance.map_or(program.train.balance == Balancing::Off, |s| s == Switch::Off);
    if stays {
        moves(args, &options.tables)?;
    }
    // The process ends soon after: what it holds is given back then, not piece by piece.
    let mut compiled = ManuallyDrop::new(compiled(args, &program, &options)?);
    if let StrategyChoice::Fixed(policy) = args.strategy
        && !policy.tells_rows_apart()
    {
        let tables = !(options.tables.lookahead.is_empty() && options.tables.windows.is_empty());
        let said = [
            ("--lookahead", args.lookahead.is_some()),
            ("--windows", args.windows.is_some()),
            ("--table", tables),
        ];
        for (flag, _) in said.into_iter().filter(|(_, said)| *said) {
            tell!(
                "warning: {flag} says how rows are told apart, which `{}` does not; `pec` and `auto` do",
                policy.name()
            );
        }
    }
    let microbatches = compiled.schedule.settings.microbatches.max(1);
    let apart = !matches!(args.strategy, StrategyChoice::Fixed(policy) if !policy.tells_rows_apart());
    let asked = args.windows.iter().chain(options.tables.windows.values()).max();
    if let Some(windows) = asked.filter(|windows| apart && **windows > microbatches) {
        tell!(
            "warning: {windows} windows are more than a batch has microbatches ({microbatches}): each is one"
        );
    }
    if let StrategyChoice::Fixed(policy) = args.strategy
        && args.bucket_bytes.is_some()
        && !policy.buckets_gradients()
    {
        tell!(
            "warning: --bucket-bytes says in what parts dense gradients are summed; `{}` sums them at once",
            policy.name()
        );
    }
    if compiled.schedule.settings.balance.is_none() {
        moves(args, &options.tables)?;
    }
    if let Some(path) = &args.emit_ir {
        let text = compiled.module.to_string();
        if path == Path::new("-") {
            print(&text)?;
        } else {
            file::write_atomically(path, text.as_bytes()).map_err(Failure::write(path))?;
        }
    }
    for source in &compiled.schedule.sources {
        keep_input(output, &[Path::new(&source.path)])?;
    }
    let folder = if output == Path::new("-") { None } else { paths::folder_of(output) };
    paths::anchor(&mut compiled.schedule, &program, &args.model, folder.as_deref())
        .map_err(|e| Failure::usage(e.to_string()))?;
    if program.workload.is_none() {
        let model = shown(&args.model);
        tell!("warning: {model} has no `workload` block: `fsx run` will need `--data FILE`");
    }
    let s = &compiled.schedule;
    let text = file::to_text(s);
    if terminal::steers(&text) {
        return Err(Failure::Usage(format!(
            "{}: a path or a column's name has control characters, which no schedule may have; rename it",
            shown(&args.model)
        )));
    }
    if output == Path::new("-") {
        print(&text)?;
    } else {
        file::write_text(output, &text).map_err(Failure::write(output))?;
    }
    let Some(mut explanation) = explain(s) else { return Ok(()) };
    if let Some(warning) = &explanation.warning {
        tell!("warning: {warning}");
    }
    if args.json {
        explanation.operations.clear();
        let text = serde_json::to_string_pretty(&explanation)?;
        return print(&format!("{text}\n"));
    }
    if output != Path::new("-") {
        tell!(
            "{}: {} operations a step, {} tables, {} parameters, {} strategy -> {}",
            s.model,
            s.train.ops.len(),
            s.tables.len(),
            s.parameters.iter().map(|p| u64::from(p.rows) * u64::from(p.columns)).sum::<u64>(),
            policy::of(s.strategy).name(),
            shown(output)
        );
    }
    say!("{}", explanation.summary());
    Ok(())
}

/// Refuses what says where samples move, or who then asks for rows: none do.
fn moves(args: &Args, tables: &TableOptions) -> Result<(), Failure> {
    if args.balance_at.is_some() {
        return Err(Failure::usage("--balance-at says where samples move, but none do; add `--balance on`"));
    }
    if tables.fold.values().any(|on| *on) {
        return Err(Failure::usage(
            "--table fold=on says who asks for rows of samples that move, but none do; add `--balance on`",
        ));
    }
    Ok(())
}

/// Whether a file can be written: better known before a long search. What is no file waits for who reads it.
fn writable(path: &Path) -> Result<(), Failure> {
    let other = std::fs::metadata(path).is_ok_and(|m| !m.is_file() && !m.is_dir());
    if other || path == Path::new("-") {
        return Ok(());
    }
    file::check_writable(path).map_err(Failure::write(path))
}

/// A number of microbatches, or `auto`; whether there can be so many is said where they are made.
fn microbatches(text: &str) -> Result<Microbatches, &'static str> {
    if text == AUTO {
        return Ok(Microbatches::Auto);
    }
    text.parse().map(Microbatches::Fixed).map_err(|_| "expected a whole number from 1 to 64, or `auto`")
}

/// The schedule that is asked for, in as many microbatches as are asked for: by arguments, else by the model.
fn compiled(args: &Args, program: &Program, options: &CompileOptions) -> Result<Compiled, Failure> {
    let asked = args.microbatches.unwrap_or(program.train.microbatches);
    let fixed = match (asked, &options.profile) {
        (Microbatches::Fixed(_), _) => args.microbatches.and_then(Microbatches::fixed),
        (Microbatches::Auto, None) => return climb(args, program, options),
        // Its times are those of operations on parts of one size.
        (Microbatches::Auto, Some(profile)) => {
            let number = profile.microbatches;
            // What is wrong with one that cannot be is told of the profile.
            let fits = (1..=64).contains(&number) && program.train.batch.is_multiple_of(number);
            let number = if fits { number } else { 1 };
            let parts = |n: u32| format!("{n} microbatch{}", if n == 1 { "" } else { "es" });
            tell!(
                "note: the profile was measured in {}, which says nothing of other numbers: compiled in {}",
                parts(profile.microbatches),
                parts(number)
            );
            Some(number)
        }
    };
    let options = with_data(args, program, options.clone().microbatches(fixed), &mut String::new())?;
    Ok(match args.strategy {
        StrategyChoice::Fixed(policy) => {
            let candidate = Candidate::new(policy, args.lookahead);
            let best = search::search(program, &options, [candidate])?;
            if best.tried.len() > 1 {
                best.tried.iter().for_each(|t| tell!("windows: {}", said(t)));
            }
            best.compiled
        }
        StrategyChoice::Auto => {
            let candidates = search::candidates(args.lookahead);
            let (best, outcome) = search::tables::search(program, &options, candidates)?;
            best.tried.iter().for_each(|t| tell!("auto: {}", said(t)));
            tell_outcome(&outcome);
            best.compiled
        }
    })
}

/// In as many microbatches as a step is predicted to be shortest with.
fn climb(args: &Args, program: &Program, options: &CompileOptions) -> Result<Compiled, Failure> {
    let tried = search::microbatches::numbers(program, options)?;
    let mut told = String::new();
    let of = |m| with_data(args, program, options.clone().microbatches(m), &mut told);
    let tell_tried = |best: &Best| best.tried.iter().for_each(|t| tell!("auto: {}", said(t)));
    let StrategyChoice::Fixed(policy) = args.strategy else {
        let candidates: Vec<Candidate> = search::candidates(args.lookahead).collect();
        let (best, outcome, changed) = search::microbatches::with_tables(program, tried, &candidates, of)?;
        tell_tried(&best);
        if changed.len() > 1 {
            for (candidate, step) in changed {
                tell!("auto: {}, single tables changed: {:.3} ms a step", candidate.describe(), step * 1e3);
            }
        }
        tell_outcome(&outcome);
        return Ok(best.compiled);
    };
    let candidate = Candidate::new(policy, args.lookahead);
    let best = search::microbatches::search(program, tried, &[candidate], of)?;
    tell_tried(&best);
    Ok(best.compiled)
}

fn tell_outcome(outcome: &Outcome) {
    outcome.swaps.iter().for_each(|swap| tell!("auto: {swap}"));
    tell!("auto: {outcome}");
}

/// The options with what the data hold that the model names, and what is told of that unless it was told already. A profile
/// has looked at them already.
fn with_data(
    args: &Args,
    program: &Program,
    options: CompileOptions,
    told: &mut String,
) -> Result<CompileOptions, Failure> {
    let named = program.workload.as_ref().is_some_and(|w| !matches!(w.source, DataSource::Generate { .. }));
    if !named || args.assume.is_some() || options.profile.is_some() {
        return Ok(options);
    }
    let lowered = Arc::new(lowered(program, &options)?);
    let found = planning::look(&lowered, !args.no_cache).map_err(|e| {
        Failure::Found(format!("{e}\n(to compile without reading the data: `--assume workload`)"))
    })?;
    let text = match found {
        Found::Nothing => return Ok(options),
        Found::NotCounted { .. } => format!("note: {found}"),
        Found::Counts { .. } => found.to_string(),
    };
    // Of other numbers of microbatches batches begin elsewhere, which is worth no line.
    let again = *told == text || (!told.is_empty() && matches!(found, Found::Counts { .. }));
    if !again {
        tell!("{text}");
        *told = text;
    }
    Ok(match found {
        Found::Counts { counts, .. } => options.counts(*counts),
        Found::Nothing | Found::NotCounted { .. } => options,
    })
}

/// What became of a candidate.
fn said(tried: &Tried) -> String {
    let name = tried.candidate.describe();
    match tried.verdict {
        Verdict::Scheduled(cost) => {
            let exceeds = cost.exceeds().map_or_else(String::new, |why| format!(", but {why}"));
            format!("{name}: {:.3} ms a step{exceeds}", cost.step * 1e3)
        }
        Verdict::Pruned(bound) => {
            let why = match bound.from {
                BoundBy::Engine(engine) => format!("the work of {}", engine.name()),
                BoundBy::Cycle => "its longest cycle".into(),
                BoundBy::Joint => "what engines must do between transfers".into(),
            };
            format!("{name}: at least {:.3} ms a step by {why}, not scheduled", bound.step * 1e3)
        }
    }
}

/// A cluster of the model's file, or a preset.
fn cluster(program: &Program, name: &str) -> Result<Cluster, Failure> {
    let declared = program.clusters.iter().find(|c| c.name == name).cloned();
    declared.or_else(|| fs_dsl::cluster::preset(name)).ok_or_else(|| {
        let known = program.clusters.iter().map(|c| c.name.as_str());
        let known: Vec<&str> = known.chain(fs_dsl::cluster::PRESETS.iter().copied()).collect();
        Failure::Usage(format!("there is no cluster `{name}`; there are {}", known.join(", ")))
    })
}
