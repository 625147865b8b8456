//! Arguments, and what they ask for to an exit status: 0 if all that was asked for is done, 1 for errors, 2 for wrong usage, 128
//! and the signal's number if a signal ended it before.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use fs_executor::transport::link::EmulatedLink;
use fs_executor::{Error, Options, compare};
use fs_schedule::terminal::{entry, inline, message};

use crate::interrupt::Interrupts;
use crate::links::{LINK_HELP, note_idle_link};
use crate::run::{Run, together};
use crate::top::{Top, top};
use crate::transport::say_error;
use crate::{checkpoint, net, profile, summary};

#[derive(Parser)]
#[command(
    name = "fsx",
    bin_name = "fsx",
    version,
    about = "Runs schedules that fsc has compiled",
    max_term_width = 100
)]
#[command(after_help = STATUS_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const STATUS_HELP: &str = "\
Exit status: 0 if all that was asked for is done, also if a signal came when nothing was left to stop; 1 after an error, or \
if what is compared differs; 2 after wrong usage; 128 and the signal's number if a signal ended it before (130 after Ctrl-C, \
143 after SIGTERM, 129 after SIGHUP).";

#[derive(Subcommand)]
enum Command {
    /// Train, then evaluate if the schedule says how
    Run(Box<Run>),
    /// Train schedules of one model in turns: is every bit equal, and which is faster?
    Compare(Compare),
    /// List checkpoints, verify, convert or compare them
    Checkpoint(checkpoint::Settings),
    /// Watch a run that was started with `fsx run --status FILE`
    Top(Top),
    /// Measure what operations and transfers take here, for `fsc compile --profile`
    Profile(profile::Settings),
    /// Measure the links between processes that mpirun or srun has started, and put them into a profile
    Net(net::Settings),
}

#[derive(Args)]
struct Compare {
    /// Two or more schedules; the first is what the others are compared with
    #[arg(required = true, num_args = 2.., value_name = "SCHEDULE")]
    schedules: Vec<PathBuf>,
    /// Number of ranks, as threads of this process [default: what the schedules were planned for]
    #[arg(long, value_name = "N")]
    ranks: Option<usize>,
    /// Steps of each schedule, rounded up to whole blocks
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,
    /// Steps that one schedule runs before it is the other's turn
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    block: u64,
    /// Data file instead of the schedules'
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Seed of everything random instead of the schedules'
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    #[arg(long, value_name = "LINK", help = LINK_HELP)]
    link: Option<EmulatedLink>,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
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
        let plain = Cli::try_parse_from(std::iter::once("fsx".to_owned()).chain(plain)).err();
        let said = match plain.filter(clap::Error::use_stderr) {
            Some(error) => message(&error.render().to_string()),
            None => entry(&error.render().to_string()),
        };
        let _ = io::stderr().write_all(said.as_bytes());
        code
    })
}

pub(crate) fn main() -> ExitCode {
    // A panic on a rank's thread becomes the run's error; its own message would be a second one.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !std::thread::current().name().is_some_and(|name| name.starts_with("rank-")) {
            hook(info);
        }
    }));
    let command = match parsed() {
        Ok(cli) => cli.command,
        Err(code) => return code,
    };
    let interrupts = match Interrupts::watch() {
        Ok(interrupts) => interrupts,
        Err(error) => {
            say_error(&entry(&error.to_string()));
            return ExitCode::FAILURE;
        }
    };
    let outcome = match command {
        Command::Run(run) => together(&run, &interrupts),
        Command::Compare(settings) => compare(&settings),
        Command::Checkpoint(settings) => checkpoint::run(&settings),
        Command::Top(settings) => top(&settings),
        Command::Profile(settings) => profile::run(&settings),
        Command::Net(settings) => net::run(&settings, &interrupts),
    };
    let code = outcome.unwrap_or_else(|error| {
        // Names of data files' columns, users and tensors are in it as they were found.
        say_error(&entry(&error.to_string()));
        ExitCode::FAILURE
    });
    // Until here a signal ends it, whoever does not take its last words.
    interrupts.leave();
    code
}

/// Success only if everything is equal.
fn compare(settings: &Compare) -> Result<ExitCode, Error> {
    let schedules = settings.schedules.iter().map(|path| fs_schedule::read(path));
    let schedules = schedules.collect::<Result<Vec<_>, _>>()?;
    let options = Options::default()
        .ranks(settings.ranks)
        .seed(settings.seed)
        .data(settings.data.clone())
        .schedule_file(settings.schedules.first().cloned())
        .link(settings.link);
    let block = settings.block.clamp(1, settings.steps.max(1));
    let length = compare::Length { blocks: settings.steps.div_ceil(block), steps: block };
    let found = compare::compare_all(schedules, &options, length)?;
    note_idle_link(settings.link, found.ranks);
    let shown = if settings.json {
        let mut text = serde_json::to_string_pretty(&found).unwrap_or_default();
        text.push('\n');
        text
    } else {
        summary::comparison(&found, &settings.schedules)
    };
    let printed = io::stdout().lock().write_all(shown.as_bytes());
    printed.map_err(|source| Error::Write { what: "to", path: "standard output".into(), source })?;
    Ok(if found.equal { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
