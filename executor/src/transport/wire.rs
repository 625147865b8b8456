//! What carries bytes between the processes of a world.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Instant;

/// Carries frames between processes: whole, and those of two processes in order but for data. Nothing here waits for
/// another process. What was sent before it is dropped still leaves: others may need it once this process has ended.
pub trait Wire: Debug + Send + Sync {
    /// From now on hands what comes to `sink`, from threads of the wire's own. Called once.
    fn start(&self, sink: Arc<dyn Sink>);

    /// Takes a frame for a process. That a process cannot be reached is told to the sink.
    fn send(&self, process: usize, frame: &[u8]);

    /// The same of a frame with data, of about so many `bytes`, which `write` appends to what it is given: `buffer`, or that in which
    /// it will leave. Frames of greater priority may pass it, and it may pass all others of data.
    fn send_data(
        &self,
        process: usize,
        (priority, bytes): (i32, usize),
        buffer: &mut Vec<u8>,
        write: &mut dyn FnMut(&mut Vec<u8>),
    ) {
        let _ = (priority, bytes);
        buffer.clear();
        write(buffer);
        self.send(process, buffer);
    }
}

/// Takes what a wire brings.
pub trait Sink: Send + Sync {
    /// A frame of a process; `seen` is when its first byte was here, or, of data, when they were handed over, if that is
    /// known.
    fn frame(&self, process: usize, frame: &[u8], seen: Instant);

    /// Nothing more will come of a process.
    fn lost(&self, process: usize, reason: &str);
}

/// Which ranks there are and which of them this process runs.
#[derive(Debug, Clone)]
pub struct World {
    /// The ranks that each process runs; together they are all ranks once.
    pub processes: Vec<Vec<usize>>,
    /// This process.
    pub process: usize,
    /// To the others.
    pub wire: Arc<dyn Wire>,
}

/// A world in which ranks are missing or given twice.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadWorld {
    /// A rank that is run by none or by two.
    #[error("rank {0} is run by {1} processes of the world")]
    Rank(usize, usize),
    /// Ranks of a process that do not rise.
    #[error("the ranks of process {0} are not in order")]
    Order(usize),
    /// A process without ranks, or none of this number.
    #[error("process {0} of the world runs no rank")]
    Idle(usize),
}

impl World {
    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.processes.iter().map(Vec::len).sum()
    }

    /// Checks that every rank is run once.
    pub fn check(&self) -> Result<(), BadWorld> {
        for (process, own) in self.processes.iter().enumerate() {
            if own.is_empty() {
                return Err(BadWorld::Idle(process));
            }
            if !own.is_sorted() {
                return Err(BadWorld::Order(process));
            }
        }
        if self.process >= self.processes.len() {
            return Err(BadWorld::Idle(self.process));
        }
        for rank in 0..self.ranks() {
            let runs = self.processes.iter().flatten().filter(|r| **r == rank).count();
            if runs != 1 {
                return Err(BadWorld::Rank(rank, runs));
            }
        }
        Ok(())
    }
}
