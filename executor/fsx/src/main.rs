//! `fsx`: runs schedules from the command line.

mod cli;
mod files;
mod interrupt;
mod links;
mod net;
mod profile;
mod progress;
mod summary;
mod top;
mod transport;
mod view;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
