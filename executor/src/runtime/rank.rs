//! What the threads of one rank share while they run a program: how far each operation is, and the batches.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::Instant;

use fs_kernels::Real;
use fs_schedule::Program;
use parking_lot::Mutex;

use super::account::{Stamp, Totals};
use super::plan::Plan;
use super::{Context, Env, Fault, Work};
use crate::data::DataError;
use crate::data::reader::Delivery;
use crate::transport::local::Hub;

/// What the threads of one rank share while they run a program.
pub struct Rank<'a, T: Real> {
    /// The rank's state.
    pub env: &'a Env<T>,
    /// What runs.
    pub program: &'a Program,
    /// The program, prepared.
    pub plan: &'a Plan,
    /// The other ranks.
    pub hub: &'a Hub<T>,
    /// Decides for all ranks how many batches there are.
    pub gate: &'a Gate,
    /// Where batches come from.
    pub batches: Mutex<Receiver<Delivery>>,
    /// Step of batch 0.
    pub first_step: u64,
    /// Told of each batch that is done.
    pub finished: SyncSender<Finished>,
    /// Random delays, for tests.
    pub stress: Option<u64>,
    /// Batches whose operations are recorded.
    pub record: std::ops::Range<u64>,
    /// Why there is no more data.
    pub data_error: Mutex<Option<Arc<DataError>>>,
    pub(super) end: AtomicU64,
    /// Steps that each operation has done.
    pub(super) done: Vec<AtomicU64>,
    /// Operations that each batch in flight still has to run.
    pub(super) left: Vec<AtomicUsize>,
    data_wait: Vec<AtomicU64>,
    pub(super) stamps: Vec<Stamp>,
    pub(super) totals: Totals,
    pub(super) works: Vec<Mutex<Work<T>>>,
}

/// A rank's part of a finished batch; times in nanoseconds of the run, sums since its start.
#[derive(Debug, Clone, Default)]
pub struct Finished {
    /// The rank.
    pub rank: usize,
    /// The step.
    pub step: u64,
    /// Its part of the loss.
    pub contribution: f64,
    /// Samples of the global batch.
    pub samples: u64,
    /// Tokens of the global batch.
    pub tokens: u64,
    /// When its last operation ended.
    pub at: u64,
    /// When its data was there.
    pub loaded: u64,
    /// Wait for its data.
    pub data_wait: u64,
    /// Exposed communication, straggler time, host time, everything else that compute waited for.
    pub waits: [u64; 4],
    /// Work of each of the plan's engines.
    pub busy: [u64; ENGINES],
}

/// Kinds of engines.
pub const ENGINES: usize = 6;

/// Says for all ranks alike whether a batch will be trained. The first rank that asks decides.
#[derive(Debug)]
pub struct Gate {
    /// Set from outside to stop.
    pub stop: Arc<AtomicBool>,
    /// Batches decided on, and how many there are at most.
    decided: Mutex<(u64, u64)>,
}

impl Gate {
    /// For at most `batches` batches.
    pub fn new(stop: &Arc<AtomicBool>, batches: u64) -> Self {
        Self { stop: Arc::clone(stop), decided: Mutex::new((0, batches)) }
    }

    fn admit(&self, batch: u64) -> bool {
        let mut decided = self.decided.lock();
        if batch >= decided.0 && batch < decided.1 {
            if self.stop.load(Ordering::Relaxed) {
                decided.1 = batch;
            } else {
                decided.0 = batch + 1;
            }
        }
        batch < decided.1
    }

    /// Batches in the end.
    pub fn batches(&self) -> u64 {
        self.decided.lock().1
    }
}

impl<'a, T: Real> Rank<'a, T> {
    /// Ready to run up to `batches` batches.
    pub fn new(
        env: &'a Env<T>,
        program: &'a Program,
        plan: &'a Plan,
        hub: &'a Hub<T>,
        gate: &'a Gate,
        batches: Receiver<Delivery>,
        finished: SyncSender<Finished>,
        (first_step, stress, record): (u64, Option<u64>, std::ops::Range<u64>),
    ) -> Self {
        let ring = env.batches.len();
        let zeros = |n: usize| (0..n).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
        let totals = Totals { busy: zeros(plan.engines.len()), ..Totals::default() };
        Self {
            env,
            program,
            plan,
            hub,
            gate,
            batches: Mutex::new(batches),
            first_step,
            finished,
            stress,
            record,
            data_error: Mutex::default(),
            end: AtomicU64::new(gate.batches()),
            done: zeros(plan.ops.len()),
            left: (0..ring).map(|_| AtomicUsize::new(0)).collect(),
            data_wait: zeros(2 * ring),
            stamps: plan.ops.iter().map(|_| Stamp::default()).collect(),
            totals,
            works: plan.engines.iter().map(|_| Mutex::default()).collect(),
        }
    }

    /// The batch of an operation in a step, counted from the plan's first; `None` if there is none.
    pub(super) fn batch(&self, op: usize, step: u64) -> Option<u64> {
        let batch = step as i64 - self.plan.stages.1 + self.plan.ops[op].stage;
        (batch >= 0 && (batch as u64) < self.end.load(Ordering::Acquire)).then_some(batch as u64)
    }

    /// Whether everything that an operation waits for is done.
    pub(super) fn ready(&self, op: usize, step: u64) -> bool {
        let done = |op: usize, step: u64| self.done[op].load(Ordering::Acquire) > step;
        // Whether there is a batch, and what is in it, is known once it is loaded.
        let loaded = match (self.plan.load, self.batch(op, step)) {
            (Some(load), Some(batch)) if load != op => {
                done(load, (batch as i64 + self.plan.stages.1 - self.plan.ops[load].stage) as u64)
            }
            _ => true,
        };
        loaded
            && self.plan.ops[op]
                .deps
                .iter()
                .all(|(other, distance)| step < *distance || done(*other as usize, step - distance))
    }

    pub(super) fn ring(&self, batch: u64) -> usize {
        (batch % self.left.len() as u64) as usize
    }

    /// Loads a batch; false if there is none.
    pub(super) fn load(&self, cx: &Context<'_, T>, batch: u64) -> Result<bool, Fault> {
        if !self.gate.admit(batch) {
            self.end.fetch_min(batch, Ordering::AcqRel);
            return Ok(false);
        }
        let slot = self.ring(batch);
        if self.left[slot].swap(self.plan.ops.len(), Ordering::AcqRel) != 0 {
            return Err(Fault::Unsupported(format!(
                "batch {batch} replaces one that has not finished: more batches are in flight than the schedule says"
            )));
        }
        let asked = Instant::now();
        let data = match self.batches.lock().recv() {
            Ok(Ok(data)) => data,
            Ok(Err(error)) => {
                let message = error.to_string();
                *self.data_error.lock() = Some(error);
                return Err(Fault::Unsupported(message));
            }
            Err(_) => return Err(Fault::Unsupported("the reader stopped".into())),
        };
        self.data_wait[2 * slot].store(asked.elapsed().as_nanos() as u64, Ordering::Relaxed);
        self.data_wait[2 * slot + 1].store(self.hub.now(), Ordering::Relaxed);
        self.env.load(cx, batch, self.first_step + batch, data)?;
        Ok(true)
    }

    /// Tells what is to be told of a batch whose last operation has ended.
    pub(super) fn report(&self, batch: u64, at: u64) {
        let slot = self.ring(batch);
        let Some(place) = self.env.batches[slot].try_read() else { return };
        let load = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let mut busy = [0; ENGINES];
        for (sum, engine) in busy.iter_mut().zip(&self.totals.busy) {
            *sum = load(engine);
        }
        let Totals { exposed, straggler, host, other, .. } = &self.totals;
        // Nobody listens any more only when the run is being torn down.
        let _ = self.finished.send(Finished {
            rank: self.env.rank,
            step: place.step,
            contribution: place.loss(),
            samples: place.share.batch().samples as u64,
            tokens: place.share.batch().tokens() as u64,
            at,
            loaded: load(&self.data_wait[2 * slot + 1]),
            data_wait: load(&self.data_wait[2 * slot]),
            waits: [load(exposed), load(straggler), load(host), load(other)],
            busy,
        });
    }
}
