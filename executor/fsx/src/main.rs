//! `fsx`: runs schedules from the command line.

mod checkpoint;
mod cli;
#[cfg(feature = "emulated")]
mod emulated;
mod files;
mod interrupt;
mod links;
mod net;
mod profile;
mod progress;
mod run;
mod summary;
mod top;
mod transport;
mod view;

use std::alloc::System;
use std::process::ExitCode;

use fs_kernels::allocator::{Ending, before_end};

#[global_allocator]
static ALLOCATOR: Ending<System> = Ending(System);

fn main() -> ExitCode {
    before_end(
        "use smaller batches or fewer ranks, or raise the limit of memory",
        fs_schedule::file::remove_unfinished,
    );
    cli::main()
}
