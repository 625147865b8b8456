//! Runs a schedule's operations on one rank.
//!
//! [`Env`] holds what a rank owns: buffers, table shards, dense parameters, its share of the batch, its end of the
//! transport. [`Call`] resolves one operation's operands to views of them. [`dispatch`] maps each action to its
//! handler; handlers are grouped by what they touch. Everything is generic over the number type: `f32` trains,
//! `f64` lets tests hold gradients against differences.

pub mod arena;
mod attention;
pub mod call;
mod collectives;
mod dense;
pub mod dispatch;
pub mod fault;
mod loss;
mod optimizer;
pub mod profile;
pub mod share;
mod sparse;
pub mod state;

use std::sync::Arc;

use fs_kernels::reduce::ReducedRows;
use fs_kernels::unique::Unique;
use fs_kernels::{Real, Scratch};
use fs_schedule::Schedule;
use parking_lot::{Mutex, RwLock};

use crate::data::{GlobalBatch, Histories};
use crate::evaluate::rank_items::Ranking;
use crate::transport::Transport;

pub use call::Call;
pub use fault::Fault;
pub use share::Share;
pub use state::{Dense, Shard};

/// What a rank owns.
pub struct Env<T: Real> {
    /// The schedule.
    pub schedule: Arc<Schedule>,
    /// This rank.
    pub rank: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Seed of everything random.
    pub seed: u64,
    /// Buffers.
    pub arena: arena::Arena<T>,
    /// Table shards.
    pub tables: Vec<RwLock<Shard<T>>>,
    /// Dense parameters.
    pub dense: Vec<Dense<T>>,
    /// This rank's end of the transport.
    pub transport: Mutex<Box<dyn Transport<T>>>,
    /// The current batch's share and step.
    pub current: RwLock<Current>,
    /// The batch that `LoadBatch` makes current.
    pub next: Mutex<Option<(u64, Arc<GlobalBatch>)>>,
    /// Workspaces of kernels.
    pub work: Mutex<Work<T>>,
    /// This rank's contribution to the step's loss.
    pub loss: Mutex<f64>,
    /// Where gradients go instead of updates, when they are asked for.
    pub capture: Mutex<Option<Capture<T>>>,
    /// Users' histories, for evaluation.
    pub histories: Option<Arc<Histories>>,
    /// State of evaluation.
    pub ranking: Mutex<Ranking<T>>,
}

/// The step that a rank is in.
#[derive(Debug, Default)]
pub struct Current {
    /// From 0.
    pub step: u64,
    /// Its share of the batch.
    pub share: Share,
}

/// Workspaces, reused from step to step.
#[derive(Debug)]
pub struct Work<T> {
    /// For attention.
    pub scratch: Scratch<T>,
    /// For deduplication.
    pub unique: Unique,
    /// Local rows to ask for.
    pub rows: Vec<u32>,
    /// Local rows asked for by all ranks.
    pub received: Vec<u32>,
    /// For summing received gradients.
    pub reduced: ReducedRows<T>,
    /// Counts as the kernels take them.
    pub counts: Vec<usize>,
    /// Results that are added to an operand by a kernel that only overwrites.
    pub temporaries: Vec<Vec<T>>,
}

/// Gradients of one batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Capture<T> {
    /// Per table: gradient of each row of this rank's shard.
    pub tables: Vec<Vec<T>>,
}

impl<T: Real> Env<T> {
    /// Allocates and initialises everything on the calling thread.
    pub fn new(
        schedule: &Arc<Schedule>,
        transport: Box<dyn Transport<T>>,
        seed: u64,
        histories: Option<Arc<Histories>>,
    ) -> Self {
        let (rank, ranks) = (transport.rank(), transport.ranks());
        let programs = std::iter::once(&schedule.train).chain(&schedule.evaluation);
        let work = Work {
            scratch: Scratch::new(),
            unique: Unique::new(),
            rows: Vec::new(),
            received: Vec::new(),
            reduced: ReducedRows::new(),
            counts: Vec::new(),
            temporaries: Vec::new(),
        };
        Self {
            schedule: Arc::clone(schedule),
            rank,
            ranks,
            seed,
            arena: arena::Arena::new(programs),
            tables: schedule.tables.iter().map(|t| RwLock::new(Shard::new(t, rank, ranks, seed))).collect(),
            dense: state::dense_parameters(schedule, seed),
            transport: Mutex::new(transport),
            current: RwLock::default(),
            next: Mutex::default(),
            work: Mutex::new(work),
            loss: Mutex::new(0.0),
            capture: Mutex::default(),
            histories,
            ranking: Mutex::default(),
        }
    }

    /// Makes the batch that waits in `next` current.
    fn load(&self) -> Result<(), Fault> {
        let next = self.next.lock().take();
        let (step, batch) =
            next.ok_or_else(|| Fault::Unsupported("a program loads more than one batch".into()))?;
        let mut current = self.current.try_write().ok_or_else(|| Fault::Conflict("batch".into()))?;
        current.step = step;
        current.share.load(&self.schedule, batch, self.rank, self.ranks);
        Ok(())
    }
}
