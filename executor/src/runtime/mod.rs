//! Runs a schedule's operations on the ranks of this process.
//!
//! [`Env`] holds what a rank owns: buffers, table shards, dense parameters, the batches in flight. A [`Plan`] is a
//! program prepared to run; [`engine`] runs the queues of one engine of one rank on a thread of its own. [`Call`]
//! resolves one operation's operands to views of the rank's state, [`dispatch`] maps each action to its handler;
//! handlers are grouped by what they touch. Operations that only move data between ranks are not one call but
//! several, so that nobody waits for another rank inside one: [`collectives`]. Everything is generic over the number
//! type: `f32` trains, `f64` lets tests hold gradients against differences.

pub mod account;
pub mod arena;
mod attention;
pub mod call;
pub mod collectives;
mod dense;
pub mod dispatch;
pub mod engine;
pub mod fault;
mod loss;
mod optimizer;
pub mod plan;
pub mod process;
pub mod profile;
pub mod progress;
pub mod rank;
pub mod record;
pub mod share;
pub mod sizes;
mod sparse;
pub mod state;
pub mod tables;
mod transfer;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fs_kernels::partition::Partition;
use fs_kernels::reduce::ReducedRows;
use fs_kernels::unique::Unique;
use fs_kernels::{Real, Scratch};
use fs_schedule::reuse::Reuse;
use fs_schedule::{Schedule, Way};
use parking_lot::{Mutex, RwLock};

use crate::data::{GlobalBatch, Histories};
use crate::evaluate::rank_items::Ranking;

pub use call::{Call, Context};
pub use fault::Fault;
pub use plan::Plan;
pub use process::Process;
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
    /// Shards of each part of each table (parts: of column-wise tables, else one).
    pub tables: Vec<Vec<RwLock<Shard<T>>>>,
    /// Dense parameters.
    pub dense: Vec<Dense<T>>,
    /// The batches in flight: batch n at n modulo their number.
    pub batches: Vec<RwLock<Batch>>,
    /// Where gradients go instead of updates, when they are asked for.
    pub capture: Mutex<Option<Capture<T>>>,
    /// Per exchange the numbers of the classes of lookups and of gradients.
    pub classes: Vec<[Vec<u8>; 2]>,
    /// Entries that this rank asked for, per exchange and class of lookups.
    pub asked: Vec<Vec<AtomicU64>>,
    /// Users' histories, for evaluation.
    pub histories: Option<Arc<Histories>>,
    /// State of evaluation.
    pub ranking: Mutex<Ranking<T>>,
}

/// A rank's part of a batch in flight.
#[derive(Debug, Default)]
pub struct Batch {
    /// Counted from the first of the run.
    pub number: u64,
    /// The step that it trains.
    pub step: u64,
    /// The rank's share.
    pub share: Share,
    /// This rank's contributions to the loss (bits of f64), in the plan's order.
    pub losses: Vec<AtomicU64>,
    /// Data-parallel exchanges with microbatches: the last use by any rank of each entry's row.
    pub last_uses: Vec<Mutex<Vec<u8>>>,
}

impl Batch {
    /// This rank's contribution to the loss.
    pub fn loss(&self) -> f64 {
        self.losses.iter().fold(0.0, |sum, l| sum + f64::from_bits(l.load(Ordering::Relaxed)))
    }
}

/// Workspaces of one thread, reused from step to step.
#[derive(Debug)]
pub struct Work<T> {
    /// For attention.
    pub scratch: Scratch<T>,
    /// For deduplication.
    pub unique: Unique,
    /// Rows of a class.
    pub rows: Vec<u32>,
    /// For telling rows apart by reuse distance.
    pub partition: Partition,
    /// Positions by class.
    pub positions: Vec<Vec<u32>>,
    /// Entries by class and rank.
    pub numbers: Vec<u64>,
    /// For summing received gradients.
    pub reduced: ReducedRows<T>,
    /// Counts as the kernels take them.
    pub counts: Vec<usize>,
    /// Results that are added to an operand by a kernel that only overwrites.
    pub temporaries: Vec<Vec<T>>,
}

impl<T: Real> Default for Work<T> {
    fn default() -> Self {
        Self {
            scratch: Scratch::new(),
            unique: Unique::new(),
            rows: Vec::new(),
            partition: Partition::default(),
            positions: Vec::new(),
            numbers: Vec::new(),
            reduced: ReducedRows::new(),
            counts: Vec::new(),
            temporaries: Vec::new(),
        }
    }
}

/// Gradients of one batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Capture<T> {
    /// Per table and part: gradient of each row of this rank's shard.
    pub tables: Vec<Vec<Vec<T>>>,
}

impl<T: Real> Env<T> {
    /// Allocates and initialises everything on the calling thread.
    pub fn new(
        schedule: &Arc<Schedule>,
        rank: usize,
        ranks: usize,
        seed: u64,
        histories: Option<Arc<Histories>>,
    ) -> Self {
        let programs = std::iter::once(&schedule.train).chain(&schedule.evaluation);
        let shards = |t: &fs_schedule::Table| {
            let parts = 0..t.sharding.parts();
            parts.map(|part| RwLock::new(Shard::new(t, part, rank, ranks, seed))).collect()
        };
        let layout = Arc::new(sizes::Layout::new(schedule));
        let microbatches = schedule.settings.microbatches.max(1);
        let classes = |e: &fs_schedule::Exchange| {
            let reuse = e.lookahead.map(|lookahead| Reuse { lookahead, microbatches });
            [Way::Forward, Way::Backward].map(|way| sparse::class_table(reuse, way))
        };
        let ring = programs.clone().map(plan::ring).max().unwrap_or(1);
        let batch = || {
            let last_uses = schedule.exchanges.iter().map(|_| Mutex::default()).collect();
            let share = Share::new(&layout);
            RwLock::new(Batch { number: u64::MAX, share, last_uses, ..Batch::default() })
        };
        Self {
            schedule: Arc::clone(schedule),
            rank,
            ranks,
            seed,
            arena: arena::Arena::new(programs),
            tables: schedule.tables.iter().map(shards).collect(),
            dense: state::dense_parameters(schedule, seed),
            batches: (0..ring).map(|_| batch()).collect(),
            capture: Mutex::default(),
            classes: schedule.exchanges.iter().map(classes).collect(),
            asked: layout.classes().map(|n| (0..n).map(|_| AtomicU64::new(0)).collect()).collect(),
            histories,
            ranking: Mutex::default(),
        }
    }

    /// Puts a batch into its place in the ring.
    fn load(
        &self,
        cx: &Context<'_, T>,
        number: u64,
        step: u64,
        batch: Arc<GlobalBatch>,
    ) -> Result<(), Fault> {
        let place = self.batches[(number % self.batches.len() as u64) as usize].try_write();
        let mut place = place.ok_or_else(|| {
            Fault::Unsupported(format!("batch {number} comes while the one it replaces is in use"))
        })?;
        // Microbatches are cuts of training batches.
        let training = std::ptr::eq(cx.program, &raw const self.schedule.train);
        let cuts = if training { self.schedule.settings.microbatches as usize } else { 1 };
        place.losses.resize_with(cx.plan.losses, AtomicU64::default);
        place.losses.iter().for_each(|l| l.store(0, Ordering::Relaxed));
        (place.number, place.step) = (number, step);
        place.share.load(batch, self.rank, self.ranks, cuts);
        Ok(())
    }
}
