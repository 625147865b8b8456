//! Between which processes a run's ranks are, and how all of them end.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use fs_executor::Error;
use fs_executor::transport::launch::launched;
#[cfg(feature = "mpi")]
use fs_executor::transport::mpi::Job;
use fs_executor::transport::wire::World;
use fs_schedule::terminal::entry;

use crate::interrupt::Interrupts;

/// What hands data from rank to rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    /// All ranks are threads of this process
    Local,
    /// Ranks are in processes that mpirun or srun has started
    Mpi,
}

/// The processes of a run, of which this is one.
pub(crate) struct Processes {
    #[cfg(feature = "mpi")]
    job: Option<Job>,
}

impl Processes {
    /// Joins the processes that were started together with this one, if there are any; `transport` is what the user says.
    #[cfg(feature = "mpi")]
    pub(crate) fn join(transport: Option<Transport>, timeout: Duration) -> Result<Self, Error> {
        let several = launched().is_some_and(|l| l.processes > 1);
        let job = match transport {
            Some(Transport::Local) => None,
            None if !several => None,
            Some(Transport::Mpi) | None => Some(Job::join(timeout)?),
        };
        Ok(Self { job })
    }

    #[cfg(not(feature = "mpi"))]
    pub(crate) fn join(transport: Option<Transport>, _: Duration) -> Result<Self, Error> {
        let started = launched().filter(|l| l.processes > 1);
        if transport == Some(Transport::Local) {
            return Ok(Self {});
        }
        if transport.is_none() && started.is_none() {
            return Ok(Self {});
        }
        let why = started
            .map_or_else(String::new, |l| format!("{} has started {} processes, and ", l.by, l.processes));
        Err(Error::Settings(format!(
            "{why}this fsx was built without MPI: build it with `cargo build --release -p fsx --features mpi`, or give `--transport local` for a run of its own in each process"
        )))
    }

    /// The ranks of each process; none if this one runs all.
    #[cfg_attr(
        not(feature = "mpi"),
        expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "as with MPI")
    )]
    pub(crate) fn world(&self, ranks: usize) -> Result<Option<World>, Error> {
        #[cfg(feature = "mpi")]
        return Ok(self.job.as_ref().map(|job| job.world(ranks)).transpose()?);
        #[cfg(not(feature = "mpi"))]
        {
            let _ = ranks;
            Ok(None)
        }
    }

    /// This process, and of how many.
    #[cfg_attr(not(feature = "mpi"), expect(clippy::unused_self, reason = "as with MPI"))]
    pub(crate) fn place(&self) -> (usize, usize) {
        #[cfg(feature = "mpi")]
        return self.job.as_ref().map_or((0, 1), Job::place);
        #[cfg(not(feature = "mpi"))]
        (0, 1)
    }

    /// Whether this is the process that speaks to the user and writes files.
    pub(crate) fn is_first(&self) -> bool {
        self.place().0 == 0
    }

    /// Ends after success: once all others have, too.
    #[cfg_attr(
        not(feature = "mpi"),
        expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "as with MPI")
    )]
    pub(crate) fn finish(self) -> Result<(), Error> {
        #[cfg(feature = "mpi")]
        if let Some(job) = self.job {
            job.finish()?;
        }
        Ok(())
    }

    /// Ends after an error that this process has said: all others end, too.
    #[cfg_attr(not(feature = "mpi"), expect(clippy::unused_self, reason = "as with MPI"))]
    pub(crate) fn abort(self, error: &str) {
        #[cfg(feature = "mpi")]
        if let Some(job) = self.job {
            job.abort(error, 1);
        }
        #[cfg(not(feature = "mpi"))]
        let _ = error;
    }
}

/// So many seconds, which an option gives.
pub(crate) fn seconds(option: &str, given: f64) -> Result<Duration, Error> {
    let time = Duration::try_from_secs_f64(given).ok().filter(|t| !t.is_zero());
    time.ok_or_else(|| Error::Settings(format!("{option} {given}: give seconds, more than 0")))
}

/// In one piece: other processes may write to the same place.
pub(crate) fn say_error(text: &str) {
    let _ = io::stderr().write_all(format!("error: {text}\n").as_bytes());
}

/// Waits for the other processes, or ends them too after an error.
pub(crate) fn end_together(
    processes: Processes,
    outcome: Result<ExitCode, Error>,
    interrupts: &Interrupts,
) -> Result<ExitCode, Error> {
    match &outcome {
        Ok(_) => processes.finish()?,
        Err(error) if processes.place().1 > 1 => {
            let text = entry(&error.to_string());
            say_error(&text);
            // MPI ends the process wherever it is.
            let _held = interrupts.hold_report();
            processes.abort(&text);
        }
        Err(_) => {}
    }
    outcome
}
