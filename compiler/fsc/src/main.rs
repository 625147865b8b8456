//! `fsc`: checks, formats and compiles `.fs` models, runs passes on textual IR, verifies schedules.

/// Says something on standard error. Nobody is left to tell that it cannot be written: a full disk changes no result.
macro_rules! say {
    ($($words:tt)*) => {{
        let _ = std::io::Write::write_all(&mut std::io::stderr(), format!($($words)*).as_bytes());
    }};
}

/// Says something on standard error that steers no terminal.
macro_rules! tell {
    ($($words:tt)*) => { say!("{}\n", fs_schedule::terminal::entry(&format!($($words)*))) };
}

mod chakra;
mod commands;
mod compile;
mod explain;
mod failure;
mod inspect;
mod interrupt;
mod opt;
mod pictures;
mod tables;
mod viz;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand};
use failure::Failure;
use fs_compiler::sched::policy::{self, Policy};
use fs_kernels::allocator::{Ending, before_end};
use fs_schedule::terminal::{entry, inline, message, shown};
use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: Ending<MiMalloc> = Ending(MiMalloc);

/// Compiler for embedding communication: a model of a sequence recommender in, a checked static schedule out.
#[derive(Debug, Parser)]
#[command(name = "fsc", bin_name = "fsc", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Parse and check a model.
    Check {
        /// The model.
        model: PathBuf,
    },
    /// Format models in place.
    Fmt {
        /// Models.
        #[arg(required = true)]
        models: Vec<PathBuf>,
        /// Change nothing; fail if a file is not formatted.
        #[arg(long)]
        check: bool,
    },
    /// Compile a model to a schedule.
    Compile(compile::Args),
    /// Run passes on textual IR, or on a model's import.
    Opt(opt::Args),
    /// Check a schedule's rules, or name the broken one.
    Verify {
        /// The schedule.
        schedule: PathBuf,
        /// Accept a schedule that was edited by hand.
        #[arg(long)]
        ignore_digest: bool,
    },
    /// Explain a schedule: bounds, the longest cycle, why each operation is where it is; or a diagnostic's code.
    Explain(explain::Args),
    /// Draw a schedule, or two on one time axis.
    Viz(viz::Args),
    /// Show a schedule's timeline as text.
    Inspect(inspect::Args),
    /// Export a schedule as MLCommons Chakra execution traces, one file per rank.
    Chakra(chakra::Args),
}

/// Strategies on the command line.
#[derive(Debug, Clone, Copy)]
enum StrategyChoice {
    /// This one.
    Fixed(&'static dyn Policy),
    /// Whichever is predicted to be fastest.
    Auto,
}

/// The name that asks for the fastest.
const AUTO: &str = "auto";

/// Names of policies, and `auto`.
fn strategies() -> impl TypedValueParser<Value = StrategyChoice> {
    let auto = PossibleValue::new(AUTO).help("Whichever is predicted to be fastest");
    let fixed = policy::POLICIES.iter().map(|p| PossibleValue::new(p.name()).help(p.summary()));
    PossibleValuesParser::new(fixed.chain([auto]))
        .map(|name| policy::find(&name).map_or(StrategyChoice::Auto, StrategyChoice::Fixed))
}

fn main() -> ExitCode {
    before_end(
        "use a smaller model or fewer ranks, or raise the limit of memory",
        fs_schedule::file::remove_unfinished,
    );
    fs_compiler::passes::manager::take_panics();
    let command = match parsed() {
        Ok(cli) => cli.command,
        Err(code) => return code,
    };
    if let Err(e) = interrupt::watch() {
        say!("error: cannot watch for Ctrl-C: {e}\n");
        return ExitCode::FAILURE;
    }
    let outcome = match command {
        Command::Check { model } => commands::check(&model),
        Command::Fmt { models, check } => commands::fmt(&models, check),
        Command::Compile(args) => compile::run(&args),
        Command::Opt(args) => opt::run(&args),
        Command::Verify { schedule, ignore_digest } => commands::verify(&schedule, ignore_digest),
        Command::Explain(args) => explain::run(&args),
        Command::Viz(args) => viz::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Chakra(args) => chakra::run(&args),
    };
    interrupt::leave();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            say!("error: {}\n", entry(&failure.to_string()));
            ExitCode::FAILURE
        }
    }
}

/// The command line, or the exit status once it is said what is wrong with it.
fn parsed() -> Result<Cli, ExitCode> {
    Cli::try_parse().map_err(|error| {
        let code = ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(u8::MAX));
        // What was asked for: help, the version.
        if !error.use_stderr() {
            let _ = error.print();
            return code;
        }
        // It repeats arguments: the same is said of what is left of them in a line.
        let plain = std::env::args_os().skip(1).map(|argument| inline(&argument.to_string_lossy()));
        let plain = Cli::try_parse_from(std::iter::once("fsc".to_owned()).chain(plain)).err();
        match plain.filter(clap::Error::use_stderr) {
            Some(error) => say!("{}", message(&error.render().to_string())),
            None => say!("{}", entry(&error.render().to_string())),
        }
        code
    })
}

/// A result must not replace what it is made from, under whatever name.
fn keep_input(output: &Path, inputs: &[&Path]) -> Result<(), Failure> {
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    let Some(place) = real(output) else { return Ok(()) };
    match inputs.iter().find(|input| real(input).is_some_and(|r| r == place)) {
        Some(input) => Err(Failure::Usage(format!(
            "{} would replace {}, which is read; give the result another name",
            shown(output),
            shown(input)
        ))),
        None => Ok(()),
    }
}

/// Writes to standard output; a closed pipe is no error.
fn print(text: &str) -> Result<(), Failure> {
    use std::io::Write as _;
    match std::io::stdout().write_all(text.as_bytes()).and_then(|()| std::io::stdout().flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::Output(e)),
        _ => Ok(()),
    }
}
