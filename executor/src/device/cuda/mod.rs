//! A GPU: operations are enqueued on streams and end later.
//!
//! [`Cuda`] is a rank's device over a [`Driver`]; several ranks may share one. What an operation needs that other streams
//! do is waited for on the device ([`lane`]), so [`start`](Device::start) has enqueued it, says that it is done, and the
//! host goes on. Only where the host must learn something of an operation it is under way until that has come down.

mod action;
mod allreduce;
mod asked;
mod attention;
mod carry;
mod classes;
mod dense;
mod fused;
mod hot;
mod ids;
mod ids_transfer;
mod joined;
mod kept;
mod kernels;
mod lane;
mod late;
mod loaded;
mod losses;
mod memory;
mod moves;
mod numbers;
mod operands;
mod outbox;
mod plain;
mod questions;
mod ranking;
mod ranking_moves;
mod ready;
mod refusal;
mod relay;
mod stored;
mod tables;
mod through_host;
mod timed;
mod transfer;
mod update;
mod watched;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fs_kernels::cuda::driver::{Driver, Memory, Stream};
use fs_kernels::cuda::sources::Precision;
use fs_schedule::ranking::SCORES;
use fs_schedule::{Action, Engine, Program, Sharding};
use parking_lot::Mutex;

use super::aside;
use super::cpu::{Cpu, Work};
use super::{
    CopyUse, Device, Env, Fault, Held, Inbox, Job, Noted, OpenError, Progress, PutAside, Stored, Urgent,
};
use crate::transport::Reach;
use action::{By, by};
use dense::fits;
use joined::Joining;
use kept::Pictures;
use kernels::Enqueued;
use lane::{Order, StagingPool};
pub use late::LATE_LOSS;
use late::Losses;
use loaded::Shelf;
use memory::Buffers;
use numbers::{Numbers, Pending};
pub use outbox::CudaOutbox;
use ranking::Ranking;
pub use ready::{on, open};
use stored::Captured;
use tables::{Dense, Trained};
use through_host::{AGAIN, Down};

/// What a caller may choose.
pub struct Options<D> {
    /// Devices; rank r is on number r modulo how many there are. For now there must be one.
    pub drivers: Vec<Arc<D>>,
    /// Bytes of rows that updates of a rank may put aside for a checkpoint before they wait until some are written.
    pub room: usize,
    /// Scores that a rank holds at once when items are ranked; the same on all ranks of all processes.
    pub scores: usize,
    /// The name of an operation whose dependencies are left out: that tests notice.
    pub careless: Option<String>,
}

impl<D> Clone for Options<D> {
    fn clone(&self) -> Self {
        let careless = self.careless.clone();
        Self { drivers: self.drivers.clone(), room: self.room, scores: self.scores, careless }
    }
}

impl<D> Default for Options<D> {
    fn default() -> Self {
        Self { drivers: Vec::new(), room: aside::MOST, scores: SCORES, careless: None }
    }
}

/// A rank on a GPU.
pub struct Cuda<D: Driver> {
    driver: Arc<Joining<D>>,
    order: Order,
    /// For what is copied between runs.
    between: Stream,
    /// For what checkpoints take.
    taking: Stream,
    /// Nothing has been enqueued since all streams were waited for.
    settled: AtomicBool,
    buffers: Buffers,
    trained: Trained,
    pictures: Pictures,
    /// Bytes that may be put aside.
    room: usize,
    captured: Captured,
    /// Gradients are kept instead of updating anything.
    capturing: AtomicBool,
    /// Where kernels say that something is out of range.
    fault: Memory,
    /// Outboxes may leave the process, so all that is sent passes through the host.
    through_host: AtomicBool,
    staging: StagingPool,
    of_host: [Vec<bool>; 2],
    /// Tables that all ranks have whole.
    replicated: Vec<bool>,
    /// Ids of batches, and what else operations find beside their operands.
    shelf: Shelf,
    losses: Losses,
    /// Why something that was read, written or taken is not what it should be.
    failed: Mutex<Option<String>>,
    ranking: Mutex<Ranking>,
    /// Scores that it holds at once.
    scores: usize,
    /// What the host does for the device, and what it has for that.
    host: Cpu<f32>,
    hosts: Mutex<()>,
}

/// What the thread of an engine needs.
pub struct Lane {
    work: Mutex<Work<f32>>,
    /// Transfers whose operands are on their way to the host.
    transfers: Mutex<BTreeMap<usize, Down>>,
    /// What transfers on the device keep from one call to the next.
    pending: Mutex<BTreeMap<usize, Pending>>,
}

/// How far a transfer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cursor {
    /// What it sends comes to the host.
    Down,
    /// So many pieces are enqueued.
    Piece(usize),
}

/// An operation that has not ended.
#[derive(Debug)]
pub struct Ticket(Under);

/// What it waits for.
#[derive(Debug)]
enum Under {
    /// That the device catches up: it is a batch that is loaded.
    Behind,
    /// Room for what it has to put aside, and since when.
    Room(Instant),
    /// Sizes.
    Numbers(Numbers),
}

fn open_error(error: &fs_kernels::cuda::driver::DriverError) -> OpenError {
    OpenError { device: "CUDA".into(), reason: error.to_string() }
}

impl<D: Driver> Cuda<D> {
    /// Whether outboxes leave the process.
    fn leaves(&self) -> bool {
        self.through_host.load(Ordering::Relaxed)
    }

    /// Whether a transfer's data stays on the device. Sums of an all-reduce do, or cannot be had.
    fn on_device(&self, job: &Job<'_>) -> Result<bool, Fault> {
        let leaves = self.leaves();
        let all_reduce = job.op.action == Action::AllReduce;
        if all_reduce && leaves {
            let reason = "its sums are made on one device, and some ranks are in other processes";
            return Err(Fault::NoKernel { action: job.op.action.name(), reason });
        }
        Ok(all_reduce || moves::stays(&job.op.action) && !leaves)
    }

    /// Whether updates are left out, because gradients are kept.
    fn captures(&self) -> bool {
        self.capturing.load(Ordering::Relaxed)
    }

    /// Does what the host plans; a batch is loaded once the device is not too far behind.
    fn plan_in_time(&self, lane: &Lane, job: &Job<'_>, stream: Stream) -> Result<Progress<Ticket>, Fault> {
        if job.op.action == Action::LoadBatch && self.is_behind(job)? {
            return Ok(Progress::Running(Ticket(Under::Behind), AGAIN));
        }
        self.plan(lane, job, stream).map(|()| Progress::Done)
    }

    /// Notes why what was asked for cannot be had.
    fn noted<T>(&self, done: Result<T, Fault>) -> Option<T> {
        done.map_err(|fault| self.failed.lock().get_or_insert(fault.to_string()).clone()).ok()
    }

    /// Enqueues what the device does.
    fn enqueue_all(&self, lane: &Lane, job: &Job<'_>, stream: Stream) -> Result<Enqueued, Fault> {
        let none = |reason| Fault::NoKernel { action: job.op.action.name(), reason };
        if !fits(job.program, job.op) {
            return Err(none("it has more columns or features than kernels have room for"));
        }
        match job.op.action {
            Action::Apply { .. } => return self.apply(job, stream),
            Action::DenseUpdate => return self.dense_update(job, stream),
            _ => {}
        }
        let done = match self.enqueue(job, stream)? {
            Enqueued::No => match self.enqueue_ids(lane, job, stream)? {
                Enqueued::No => self.enqueue_dense(lane, job, stream)?,
                done => done,
            },
            done => done,
        };
        match done {
            Enqueued::No => Err(none("it is the device's, and there is no kernel for it as it stands here")),
            done => Ok(done),
        }
    }

    /// What is left to wait for once an operation's work is enqueued, or finds no room.
    fn under_way(&self, job: &Job<'_>, done: Enqueued, since: Instant) -> Result<Progress<Ticket>, Fault> {
        if !matches!(done, Enqueued::Crowded) {
            self.order.end(&*self.driver, job)?;
        }
        let under = match done {
            Enqueued::Crowded => Under::Room(since),
            Enqueued::Numbers(numbers) => Under::Numbers(numbers),
            Enqueued::Done | Enqueued::No => return Ok(Progress::Done),
        };
        Ok(Progress::Running(Ticket(under), AGAIN))
    }

    /// Starts an operation, perhaps one of a group.
    fn start_one(&self, lane: &Lane, job: &Job<'_>) -> Result<Progress<Ticket>, Fault> {
        if job.op.action == Action::LoadBatch && job.number == 0 {
            self.begin_run()?;
        }
        self.settled.store(false, Ordering::Release);
        let stream = self.order.begin(&*self.driver, job)?;
        match by(&job.op.action) {
            By::Device => {
                let done = self.enqueue_all(lane, job, stream)?;
                self.under_way(job, done, Instant::now())
            }
            By::Planner => self.plan_in_time(lane, job, stream),
        }
    }
}

/// Whether one launch starts an operation of a program and the one before it.
fn is_joined(program: &Program, op: usize) -> bool {
    program.ops.get(op).is_some_and(|op| op.joined)
}

impl<D: Driver> Device for Cuda<D> {
    type Real = f32;
    type Lane = Lane;
    type Ticket = Ticket;
    type Cursor = Cursor;
    type Outbox = CudaOutbox;
    type Options = Options<D>;

    const IN_HOST_MEMORY: bool = false;
    const LATE_LOSSES: bool = true;
    const IN_ORDER: bool = true;
    const HAS_CLOCK: bool = true;

    fn open(env: &Env, options: &Options<D>) -> Result<Self, OpenError> {
        let [driver] = &options.drivers[..] else {
            let reason =
                format!("{} devices were given, and all ranks of a process share one", options.drivers.len());
            return Err(OpenError { device: "CUDA".into(), reason });
        };
        let host = Cpu::without_values(env)?;
        let driver = Arc::new(Joining::new(Arc::clone(driver)));
        if env.schedule.has_bf16() {
            driver.prepare(Precision::Bf16).map_err(|e| open_error(&e))?;
        }
        let begin = || {
            let mut order = Order::new(&*driver, &env.schedule, env.batches.len())?;
            order.careless.clone_from(&options.careless);
            let (between, taking) = (driver.stream(0)?, driver.stream(0)?);
            let fault = driver.allocate(between, 4)?;
            driver.fill(between, fault.area(), 0)?;
            let (shelf, constants) = Shelf::new(&*driver, between, env, &host.classes)?;
            Ok((order, [between, taking], Losses::new(&*driver)?, fault, shelf, constants))
        };
        let (order, [between, taking], losses, fault, shelf, constants) =
            begin().map_err(|e| open_error(&e))?;
        let trained = Trained::new(&*driver, between, &order, env)?;
        let pictures = Pictures::new(trained.tables.iter().map(Vec::len), trained.dense.len());
        let own = Self {
            driver,
            order,
            between,
            taking,
            settled: AtomicBool::new(false),
            buffers: Buffers::new(&env.schedule),
            trained,
            pictures,
            room: options.room,
            captured: Captured::default(),
            capturing: AtomicBool::new(false),
            fault,
            through_host: AtomicBool::new(false),
            staging: StagingPool::default(),
            of_host: operands::of_host(&env.schedule),
            shelf,
            losses,
            failed: Mutex::default(),
            ranking: Mutex::default(),
            scores: options.scores,
            replicated: env.schedule.tables.iter().map(|t| t.sharding == Sharding::DataParallel).collect(),
            host,
            hosts: Mutex::default(),
        };
        let failed = |e: Fault| OpenError { device: "CUDA".into(), reason: e.to_string() };
        for (memory, bytes) in constants {
            own.send(own.between, &bytes, memory.area()).map_err(failed)?;
        }
        own.driver.synchronize(own.between).map_err(|e| open_error(&e))?;
        own.begin_values(env)?;
        Ok(own)
    }

    fn watch_copies(options: &Options<D>) -> Result<(), OpenError> {
        watched::watch(options)
    }

    fn copies(options: &Options<D>) -> Result<Option<CopyUse>, OpenError> {
        watched::copies(options)
    }

    fn lane(&self, _: Engine) -> Lane {
        Lane { work: Mutex::default(), transfers: Mutex::default(), pending: Mutex::default() }
    }

    fn outbox(&self, reach: Reach) -> CudaOutbox {
        self.through_host.fetch_or(reach == Reach::Bytes, Ordering::Relaxed);
        CudaOutbox::default()
    }

    fn start(&self, lane: &Lane, job: &Job<'_>) -> Result<Progress<Ticket>, Fault> {
        let (stream, more) = (self.order.stream(job), is_joined(job.program, job.index + 1));
        if !job.op.joined {
            self.driver.part(stream)?;
            // Work of others comes between what an update puts aside and what it changes.
            let keeps = matches!(job.op.action, Action::Apply { .. }) && self.pictures.keeps(job.batch.step);
            if more && !keeps {
                self.driver.join(stream)?;
            }
        }
        let started = self.start_one(lane, job);
        if more && started.is_ok() {
            return started;
        }
        let told = self.driver.part(stream);
        started.and_then(|started| told.map(|()| started).map_err(Fault::from))
    }

    fn poll(&self, lane: &Lane, job: &Job<'_>, ticket: Ticket) -> Result<Progress<Ticket>, Fault> {
        match ticket.0 {
            Under::Room(since) => {
                let done = self.enqueue_all(lane, job, self.order.stream(job))?;
                if !matches!(done, Enqueued::Crowded) {
                    self.pictures.waited(since.elapsed());
                }
                self.under_way(job, done, since)
            }
            Under::Numbers(numbers) => Ok(match self.learn(lane, job, numbers)? {
                Some(numbers) => Progress::Running(Ticket(Under::Numbers(numbers)), AGAIN),
                None => Progress::Done,
            }),
            Under::Behind => self.plan_in_time(lane, job, self.order.stream(job)),
        }
    }

    fn end_behind(&self, job: &Job<'_>) -> Result<(), Fault> {
        // Its event was recorded before what those enqueued when they had learned.
        Ok(self.order.mark(&*self.driver, job)?)
    }

    fn note_times(&self, batches: Range<u64>, first: &Self) -> Result<Noted, Fault> {
        let others = self.driver.is(&first.driver) && !std::ptr::eq(self, first);
        let noted = match (batches.is_empty(), others) {
            (true, _) => Noted::No,
            (false, true) => Noted::SinceFirst,
            (false, false) => Noted::SinceNow,
        };
        let first = others.then_some(&first.order.timed);
        self.order.timed.note(&*self.driver, self.between, (self.order.ops(), batches), first)?;
        Ok(noted)
    }

    fn times(&self, op: usize, batch: u64) -> Result<Option<[i64; 2]>, Fault> {
        let share = self.order.share(op);
        let of = |op| self.order.timed.of(&*self.driver, op, batch);
        let own = of(op)?;
        Ok(if share.group.len() > 1 {
            share.of(own, &share.group.clone().map(of).collect::<Result<Vec<_>, _>>()?)
        } else {
            own
        })
    }

    fn late_loss(&self, batch: u64) -> Result<Option<f64>, Fault> {
        self.loss_of(batch)
    }

    fn settle(&self) -> Result<(), Fault> {
        self.settle_all()?;
        self.check()
    }

    fn check(&self) -> Result<(), Fault> {
        self.failed.lock().as_ref().map_or(Ok(()), |why| Err(Fault::Device(why.clone().into())))
    }

    fn rounds(&self, lane: &Lane, job: &Job<'_>) -> Result<u64, Fault> {
        match job.op.action {
            Action::RankItems { .. } => self.rounds_of_ranking(lane, job),
            _ => self.host.rounds(&lane.work, job),
        }
    }

    fn fill(
        &self,
        lane: &Lane,
        job: &Job<'_>,
        (round, from): (u64, Option<Cursor>),
        outbox: &mut CudaOutbox,
        inbox: Inbox<'_, CudaOutbox>,
        urgent: Urgent<'_>,
    ) -> Result<Progress<Cursor>, Fault> {
        if matches!(job.op.action, Action::RankItems { .. }) {
            return self.fill_ranking(lane, job, (round, from), outbox, inbox);
        }
        if self.on_device(job)? {
            return if job.op.action == Action::AllReduce {
                self.fill_sums(job, (round, from), outbox, inbox, urgent)
            } else {
                self.fill_here(lane, job, from, outbox, urgent)
            };
        }
        self.fill_through_host(lane, job, (round, from), outbox, inbox)
    }

    fn drain(
        &self,
        lane: &Lane,
        job: &Job<'_>,
        from: Option<Cursor>,
        inbox: Inbox<'_, CudaOutbox>,
        urgent: Urgent<'_>,
    ) -> Result<Progress<Cursor>, Fault> {
        if matches!(job.op.action, Action::RankItems { .. }) {
            return self.drain_ranking(job, inbox);
        }
        if self.on_device(job)? {
            return if job.op.action == Action::AllReduce {
                self.drain_sums(job, from, inbox, urgent)
            } else {
                self.drain_here(lane, job, from, inbox, urgent)
            };
        }
        self.drain_through_host(lane, job, inbox)
    }

    fn len(&self, what: Stored) -> usize {
        self.numbers(what)
    }

    fn read(&self, what: Stored, elements: Range<usize>, take: &mut dyn FnMut(&[f32])) {
        let mut read = 0;
        let done = self.read_values(what, elements.clone(), &mut |piece| {
            read += piece.len();
            take(piece);
        });
        if self.noted(done).is_none() {
            // A device that is lost has no values: none are numbers then.
            take(&vec![f32::NAN; elements.len() - read]);
        }
    }

    fn write(&self, what: Stored, first: usize, values: &[f32]) {
        self.noted(self.write_values(what, first, values));
    }

    fn capture(&self, on: bool) {
        self.capturing.store(on, Ordering::Relaxed);
        self.noted(self.capture_gradients(on));
    }

    fn keep(&self, from: u64, first: bool) {
        self.keep_from(from, |table| first || !self.replicated[table], first);
    }

    fn begin_taking(&self, patience: Duration) {
        self.pictures.begin(patience);
    }

    fn take_rows(&self, table: usize, part: usize, rows: Range<usize>, out: &mut [Vec<f32>; 3]) {
        if self.noted(self.take_shard((table, part), rows, out)).is_none() {
            // Of a device that is lost nothing can be taken, and a file that lacks something is not whole.
            out.iter_mut().for_each(Vec::clear);
        }
    }

    fn take_parameter(&self, parameter: usize) -> [Vec<f32>; 3] {
        self.noted(self.take_whole(parameter)).unwrap_or_default()
    }

    fn forget(&self) {
        self.noted(self.forget_all());
    }

    fn crowded(&self) -> bool {
        self.pictures.crowded()
    }

    fn aside(&self) -> PutAside {
        self.pictures.counted()
    }

    fn held(&self) -> Held {
        let parameters = self.trained.dense.iter().map(Dense::bytes).sum();
        Held { parameters, buffers: self.buffers.held() + self.shelf.held() + self.ranking.lock().held() }
    }
}

impl<D: Driver> Drop for Cuda<D> {
    fn drop(&mut self) {
        // Nothing is told of what fails here: the run has said all.
        let _ = self.settle_all();
        self.drop_losses();
        self.staging.clear(&*self.driver);
        let _ = self.capture_gradients(false);
        let kept = self.buffers.take().into_iter().chain(self.shelf.take()).chain(self.ranking.lock().take());
        for memory in kept.chain(self.trained.memory()).chain([self.fault]) {
            let _ = self.driver.release(self.between, memory);
        }
        let _ = self.driver.synchronize(self.between);
    }
}
