//! What the threads of one rank share while they run a program: how far each operation is, and the batches.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Instant;

use fs_schedule::{Engine, Program};
use parking_lot::Mutex;

use super::account::{KINDS, Stamps};
use super::finished::{ENGINES, Finished};
use super::place::{Doing, Places};
use super::plan::{self, Plan};
use super::process::{Ending, Process};
use super::progress::Progress;
use crate::data::DataError;
use crate::data::reader::Batches;
use crate::device::{Device, Env, Fault, Job};

/// What the threads of one rank share while they run a program.
pub(crate) struct Rank<'a, D: Device> {
    /// What the host knows of it.
    pub env: &'a Env,
    /// Runs its operations.
    pub device: &'a D,
    /// What runs.
    pub program: &'a Program,
    /// The program, prepared.
    pub plan: &'a Plan,
    /// What the threads of this process share.
    pub process: &'a Process<D::Outbox>,
    /// Where batches come from.
    pub batches: Batches,
    /// Told of each batch that is done.
    pub finished: SyncSender<Finished>,
    /// Held until the last one is told.
    #[expect(dead_code, reason = "the last one to drop it tells")]
    pub ending: Arc<Ending>,
    /// What a run may choose.
    pub settings: Settings,
    /// Why there is no more data.
    pub data_error: Mutex<Option<Arc<DataError>>>,
    pub(super) progress: Arc<Progress>,
    /// Where its queues are, for whoever asks.
    pub(super) places: Arc<Places>,
    /// Operations that each batch in flight still has to run.
    pub(super) left: Vec<AtomicUsize>,
    /// Per batch in flight, the wait for its data.
    data_wait: Vec<AtomicU64>,
    /// When the data of the first batch was there.
    pub(super) begun: AtomicU64,
    pub(super) stamps: Stamps,
    /// Work of each of the plan's engines.
    pub(super) busy: Vec<AtomicU64>,
    /// For the device, per engine.
    pub(super) lanes: Vec<D::Lane>,
    /// Batches that are done and not yet accounted for.
    pub(super) open: Open,
}

/// What a run may choose.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings {
    /// Step of batch 0.
    pub first_step: u64,
    /// Random delays, for tests.
    pub stress: Option<u64>,
    /// Batches whose operations are recorded.
    pub record: std::ops::Range<u64>,
    /// Rank, operation and batch that panic, for tests.
    pub panic_at: Option<(usize, usize, u64)>,
}

/// Batches that are done and not yet accounted for, in the order in which they ended.
#[derive(Debug)]
pub(super) struct Open {
    count: AtomicUsize,
    list: Mutex<VecDeque<Done>>,
}

/// A batch that is done.
#[derive(Debug, Clone, Copy)]
pub(super) struct Done {
    /// When.
    pub(super) at: u64,
    /// Its last operation, and the step of it.
    pub(super) last: (usize, u64),
    finished: Finished,
}

impl Open {
    fn push(&self, done: Done) {
        let mut list = self.list.lock();
        list.push_back(done);
        self.count.store(list.len(), Ordering::Release);
    }

    /// The oldest one.
    pub(super) fn first(&self) -> Option<Done> {
        if self.is_empty() { None } else { self.list.lock().front().copied() }
    }

    /// Takes the oldest one.
    pub(super) fn pop(&self) -> Option<Done> {
        let mut list = self.list.lock();
        let done = list.pop_front();
        self.count.store(list.len(), Ordering::Release);
        done
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }
}

impl<'a, D: Device> Rank<'a, D> {
    /// Ready to run up to the gate's number of batches.
    pub(crate) fn new(
        (env, device): (&'a Env, &'a D),
        program: &'a Program,
        plan: &'a Plan,
        process: &'a Process<D::Outbox>,
        batches: Batches,
        finished: SyncSender<Finished>,
        ending: Arc<Ending>,
        settings: Settings,
    ) -> Self {
        let ring = env.batches.len();
        let zeros = |n: usize| (0..n).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
        Self {
            env,
            device,
            program,
            plan,
            process,
            batches,
            finished,
            ending,
            settings,
            data_error: Mutex::default(),
            progress: Arc::new(Progress::new(plan, process.gate.batches())),
            places: Arc::new(Places::new(plan.ops.len(), plan.queues.iter().map(Vec::len))),
            left: (0..ring).map(|_| AtomicUsize::new(0)).collect(),
            data_wait: zeros(ring),
            begun: AtomicU64::new(u64::MAX),
            // No operation is further ahead of another one than batches are in flight.
            stamps: Stamps::new(plan.ops.len(), 2 * plan::ring(program)),
            busy: zeros(plan.engines.len()),
            lanes: plan.engines.iter().map(|engine| device.lane(*engine)).collect(),
            open: Open { count: AtomicUsize::new(0), list: Mutex::new(VecDeque::with_capacity(2 * ring)) },
        }
    }

    pub(super) fn ring(&self, batch: u64) -> usize {
        (batch % self.left.len() as u64) as usize
    }

    /// How far its operations are, and where its queues are.
    pub(crate) fn standing(&self) -> (Arc<Progress>, Arc<Places>) {
        (Arc::clone(&self.progress), Arc::clone(&self.places))
    }

    /// Loads a batch; false if there is none. `note` is told what it waits for.
    pub(super) fn load(&self, batch: u64, note: impl Fn(Doing)) -> Result<bool, Fault> {
        note(Doing::Leave);
        if !self.process.gate.admit(batch, || self.process.failures.has_failed())? {
            self.progress.end.fetch_min(batch, Ordering::AcqRel);
            return Ok(false);
        }
        if self.process.gate.cut() == Some(batch) {
            self.device.keep(self.settings.first_step + batch, self.env.rank == 0);
        }
        let slot = self.ring(batch);
        if self.left[slot].swap(self.plan.ops.len(), Ordering::AcqRel) != 0 {
            return Err(Fault::Crowded { batch });
        }
        note(Doing::Reads);
        let asked = Instant::now();
        let data = match self.batches.next(self.process.control.timeout()) {
            Some(Ok(data)) => data,
            Some(Err(error)) => {
                *self.data_error.lock() = Some(Arc::clone(&error));
                return Err(error.into());
            }
            None => return Err(Fault::ReaderStopped),
        };
        note(Doing::Runs);
        self.data_wait[slot].store(asked.elapsed().as_nanos() as u64, Ordering::Relaxed);
        if batch == 0 {
            self.begun.store(self.process.clock.now(), Ordering::Release);
        }
        let step = self.settings.first_step + batch;
        // When something was enqueued says nothing of how long it took.
        let worked = if !D::HAS_CLOCK && self.env.measures(self.program) { self.worked(batch) } else { 0 };
        self.env.load(self.program, (batch, step), self.plan.losses, worked, data)?;
        Ok(true)
    }

    /// Nanoseconds that compute worked for the batch whose place this one takes; 0 if there was none, or not all of its
    /// times are kept.
    fn worked(&self, batch: u64) -> u64 {
        let Some(batch) = batch.checked_sub(self.left.len() as u64) else { return 0 };
        let plan = self.plan;
        let compute =
            |op: &usize| plan.engines[plan.ops[*op].engine] == Engine::Compute && !plan.ops[*op].transfer;
        let time = |op: usize| {
            let step = (batch as i64 + plan.stages.1 - plan.ops[op].stage) as u64;
            self.stamps.get(op, step).map(|times| times.end.saturating_sub(times.start))
        };
        (0..plan.ops.len()).filter(compute).map(time).sum::<Option<u64>>().unwrap_or(0)
    }

    /// An operation of a batch that is loaded.
    pub(super) fn job(&self, op: usize, batch: u64) -> Result<Job<'_>, Fault> {
        Job::new(self.env, self.program, op, batch, &self.progress.end, self.plan.ops[op].loss)
    }

    /// Counts an operation of a batch; if it was the last one, what is to be told of the batch is put down.
    pub(super) fn count(&self, (op, step, batch): (usize, u64, u64), at: u64) -> bool {
        let slot = self.ring(batch);
        if self.left[slot].fetch_sub(1, Ordering::AcqRel) != 1 {
            return false;
        }
        let Some(place) = self.env.batches[slot].try_read() else { return false };
        let finished = Finished {
            rank: self.env.rank,
            step: place.step,
            contribution: place.loss(),
            samples: place.share.batch().samples as u64,
            tokens: place.share.batch().tokens() as u64,
            data_wait: self.data_wait[slot].load(Ordering::Relaxed),
            ..Finished::default()
        };
        self.open.push(Done { at, last: (op, step), finished });
        true
    }

    /// What is to be told of a batch that is accounted for.
    pub(super) fn accounted(&self, done: &Done, (since, at, split): (u64, u64, [u64; KINDS])) -> Finished {
        let mut busy = [0; ENGINES];
        for (sum, engine) in busy.iter_mut().zip(&self.busy) {
            *sum = engine.load(Ordering::Relaxed);
        }
        Finished { since, at, split, busy, ..done.finished }
    }

    /// Tells of a batch.
    pub(super) fn report(&self, finished: Finished) {
        self.process.report(&finished);
        // Nobody listens any more only when the run is being torn down.
        let _ = self.finished.send(finished);
    }

    /// The loss of a batch, if it has come late.
    pub(super) fn late_loss(&self, finished: &Finished) -> Result<Option<f64>, Fault> {
        self.device.late_loss(finished.step - self.settings.first_step)
    }
}
