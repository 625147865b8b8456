//! What runs operations, and holds what they work on.
//!
//! A [`Device`] belongs to one rank. Buffers, shards of tables, dense parameters, their optimizer states and outboxes are
//! its own; the host knows how many rows things have, and reads and writes values only between runs, but for
//! what a checkpoint takes ([`Device::keep`]). An operation is
//! *started* and ends later: [`Device::start`] says that it is done or gives a ticket, which is polled. In between its
//! queue stands still (but see [`Device::IN_ORDER`]) and all others go on. What the host must learn from an operation (how
//! many distinct ids a batch has, how many rows others ask for, the loss) is stated through its [`Job`] before it ends;
//! operations that depend on it find the sizes there.
//!
//! Everything is generic over the device, without boxes: the [`Cpu`](cpu::Cpu) is done at once, its ticket has no
//! value, and the code for waiting does not exist.

pub(crate) mod aside;
mod copies;
pub mod cpu;
pub mod cuda;
mod fault;
mod job;
pub(crate) mod shards;
pub(crate) mod sums;

use std::ops::Range;
use std::time::Duration;

use fs_kernels::Real;
use fs_schedule::Engine;

use crate::transport::{Message, Outbox, Reach};

pub use copies::{CopyUse, TransferCopies};
pub use fault::Fault;
pub use job::{Batch, Env, Job};

/// Asked between pieces of a transfer: whether something more urgent can go on.
pub type Urgent<'u> = &'u mut dyn FnMut() -> bool;

/// Lets a closure read what a rank sent in the last round.
pub type Inbox<'f, O> = &'f dyn Fn(usize, &mut dyn FnMut(Message<'_, O>));

/// Runs one rank's operations.
pub trait Device: Sized + Send + Sync {
    /// Numbers that it computes with, as the host sees them.
    type Real: Real;
    /// What the thread of one engine needs: workspaces, a stream.
    type Lane: Send + Sync;
    /// An operation that has not ended.
    type Ticket: Send;
    /// How far an outbox is written, or others' are read.
    type Cursor: Copy + Send;
    /// What it has for other ranks in one turn of a channel, in memory of its own.
    type Outbox: Outbox + 'static;
    /// What a caller may choose.
    type Options: Clone + Default + Send + Sync;

    /// Whether tables and dense parameters take the host's memory.
    const IN_HOST_MEMORY: bool = true;

    /// Whether the values of losses come after the operations that make them have ended
    /// ([`late_loss`](Self::late_loss)), and are not stated through their jobs.
    const LATE_LOSSES: bool = false;

    /// Whether what is started of a queue is carried out in that order, whenever it ends: then what needs nothing of an operation
    /// of which the host has yet to learn sizes may be started behind it. What one launch starts ([`joined`](fs_schedule::Op::joined))
    /// is started one right after the other, and nothing else by that thread in between; then it goes on for others.
    const IN_ORDER: bool = false;

    /// Whether it notes when it does things, by a clock of its own ([`note_times`](Self::note_times)): the host's times are only those
    /// at which it enqueued them.
    const HAS_CLOCK: bool = false;

    /// A rank's device, with everything allocated and initialised. Called on a thread of the rank's own.
    fn open(env: &Env, options: &Self::Options) -> Result<Self, OpenError>;

    /// From now on it is noted what carries out copies of devices that are opened with these options.
    fn watch_copies(_options: &Self::Options) -> Result<(), OpenError> {
        let reason = "it makes no copies between engines; ask for them with `--backend cuda`".to_owned();
        Err(OpenError { device: "the CPU".into(), reason })
    }

    /// What has carried them out, once a run has ended; none if nobody has watched.
    fn copies(_options: &Self::Options) -> Result<Option<CopyUse>, OpenError> {
        Ok(None)
    }

    /// For the thread of an engine.
    fn lane(&self, engine: Engine) -> Self::Lane;

    /// Makes an outbox, to be written by this device, or to take in what comes for it as bytes. Called between runs.
    fn outbox(&self, reach: Reach) -> Self::Outbox;

    /// Starts an operation of which all dependencies have ended. Never waits for it. Sizes that the action's facts say
    /// it learns, and its part of the loss, are stated through `job` before it ends.
    fn start(&self, lane: &Self::Lane, job: &Job<'_>) -> Result<Progress<Self::Ticket>, Fault>;

    /// Asks after an operation that was started, on the same lane. Never waits for it.
    fn poll(
        &self,
        lane: &Self::Lane,
        job: &Job<'_>,
        ticket: Self::Ticket,
    ) -> Result<Progress<Self::Ticket>, Fault>;

    /// An operation that was done while others before it in its queue were under way now ends for others: what they did last comes
    /// before all that waits for it. Asked of devices that work [in order](Self::IN_ORDER).
    fn end_behind(&self, _job: &Job<'_>) -> Result<(), Fault> {
        Ok(())
    }

    /// From now on, which is between runs, it is noted when operations of these batches of training begin and end. `first`: the
    /// device of the first rank, which was told before.
    fn note_times(&self, _batches: Range<u64>, _first: &Self) -> Result<Noted, Fault> {
        Ok(Noted::No)
    }

    /// When an operation of a batch began and ended on the device, in nanoseconds since [`note_times`](Self::note_times) says, if that
    /// was noted. After the run has [settled](Self::settle).
    fn times(&self, _op: usize, _batch: u64) -> Result<Option<[i64; 2]>, Fault> {
        Ok(None)
    }

    /// This rank's part of the loss of a batch whose operations have all ended; `None` until it has come. Never waits. Asked, by
    /// one thread, of each batch of a run until it is there.
    fn late_loss(&self, batch: u64) -> Result<Option<f64>, Fault> {
        let _ = batch;
        Ok(Some(0.0))
    }

    /// Rounds of a transfer in its batch.
    fn rounds(&self, lane: &Self::Lane, job: &Job<'_>) -> Result<u64, Fault>;

    /// Writes this rank's outbox of a transfer's round: from the start, or from where an earlier call has stopped.
    /// Until it says that it is done nobody reads the outbox; what it reads of `inbox` stays as it is until then.
    /// `inbox` gives the others' of the round before. It may stop between pieces, and should when something is urgent.
    fn fill(
        &self,
        lane: &Self::Lane,
        job: &Job<'_>,
        at: (u64, Option<Self::Cursor>),
        outbox: &mut Self::Outbox,
        inbox: Inbox<'_, Self::Outbox>,
        urgent: Urgent<'_>,
    ) -> Result<Progress<Self::Cursor>, Fault>;

    /// Reads what the others posted in the last round: from the start, or from where an earlier call has stopped. What
    /// they posted stays as it is until it says that it is done.
    fn drain(
        &self,
        lane: &Self::Lane,
        job: &Job<'_>,
        from: Option<Self::Cursor>,
        inbox: Inbox<'_, Self::Outbox>,
        urgent: Urgent<'_>,
    ) -> Result<Progress<Self::Cursor>, Fault>;

    /// Waits for all that was started, at the end of a run. What has failed since its operation has ended is told here.
    fn settle(&self) -> Result<(), Fault> {
        Ok(())
    }

    /// Whether all that was read, written and taken is what it should be: of a device that is lost values are none.
    fn check(&self) -> Result<(), Fault> {
        Ok(())
    }

    /// Elements behind a name.
    fn len(&self, what: Stored) -> usize;

    /// Hands some elements to `take`, in order, in as many pieces as suit the device. Between runs only.
    fn read(&self, what: Stored, elements: Range<usize>, take: &mut dyn FnMut(&[Self::Real]));

    /// Replaces elements from `first` on. Between runs only.
    fn write(&self, what: Stored, first: usize, values: &[Self::Real]);

    /// From now on gradients are kept ([`Stored::Captured`], from zero on) and nothing is updated; or no longer so.
    fn capture(&self, on: bool);

    /// From the updates of a step on what they change is put aside, so that it can be taken as it was before. Of what all ranks have
    /// (dense parameters, data-parallel tables) only by the `first`. Called when no update of that step may have begun.
    fn keep(&self, from: u64, first: bool);

    /// From now on it is taken, so an update that finds no room for more waits until there is some, or goes on without: in a step
    /// it waits no longer than its `patience`.
    fn begin_taking(&self, patience: Duration);

    /// Hands over some rows of a shard as they were before the updates of the step of [`keep`](Self::keep): values, first and
    /// second state. Called when all updates of earlier steps have ended, while others go on; of each shard in order of
    /// rows. `out` is cleared.
    fn take_rows(&self, table: usize, part: usize, rows: Range<usize>, out: &mut [Vec<Self::Real>; 3]);

    /// The same of a dense parameter, once.
    fn take_parameter(&self, parameter: usize) -> [Vec<Self::Real>; 3];

    /// Nothing is put aside any more.
    fn forget(&self);

    /// Whether there is little room left for what is put aside: what takes it should not rest.
    fn crowded(&self) -> bool;

    /// What was put aside so far.
    fn aside(&self) -> PutAside;

    /// Memory in use, in bytes.
    fn held(&self) -> Held;

    /// All elements behind a name.
    fn all(&self, what: Stored) -> Vec<Self::Real> {
        let mut out = Vec::with_capacity(self.len(what));
        self.read(what, 0..self.len(what), &mut |piece| out.extend_from_slice(piece));
        out
    }
}

/// Whether a device notes when operations begin and end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Noted {
    /// It does not: a device that is the host does all in the host's time, which is known.
    No,
    /// It does, and times count from now.
    SinceNow,
    /// From when those of the first rank do: both have one clock.
    SinceFirst,
}

/// How far an operation is.
#[derive(Debug)]
pub enum Progress<Ticket> {
    /// It has ended: whoever depends on it may start.
    Done,
    /// It has not. To be asked again after that time, and after whatever is more urgent.
    Running(Ticket, Duration),
}

/// Values that a device holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    /// Of the rank's shard of a table's part, row-major.
    Table(usize, usize, Values),
    /// The gradients of that shard that were kept instead of updating it.
    Captured(usize, usize),
    /// Of a dense parameter, row-major.
    Parameter(usize, Values),
    /// Its gradient.
    Gradient(usize),
}

/// Which values of a table or parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// What is trained.
    Weights,
    /// First optimizer state: momentum, the first moment, sums of squares.
    First,
    /// Second optimizer state.
    Second,
}

/// Memory that a device holds beside the shards, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    /// Dense parameters with gradients and optimizer state.
    pub parameters: u64,
    /// Intermediate values.
    pub buffers: u64,
}

/// What updates have put aside for checkpoints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PutAside {
    /// Rows of tables.
    pub rows: u64,
    /// How long updates have waited for room.
    pub waited: Duration,
}

/// Why there is no device.
#[derive(Debug, thiserror::Error)]
#[error("{device}: {reason}")]
pub struct OpenError {
    /// What was asked for.
    pub device: String,
    /// What is missing.
    pub reason: String,
}
