//! `fsx`: runs schedules from the command line.

mod cli;
mod profile_cli;
mod progress;
mod summary;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
