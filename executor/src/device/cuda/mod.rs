//! A GPU: operations are enqueued on streams and end later.
//!
//! [`Cuda`] is a rank's device over a [`Driver`]; several ranks may share one. What an operation needs that other streams
//! do is waited for on the device ([`lane`]), so [`start`](Device::start) has enqueued it, says that it is done, and the
//! host goes on. Only where the host must learn something of an operation it is under way until that has come down.

mod action;
mod dense;
mod kernels;
mod lane;
mod losses;
mod memory;
mod operands;
mod outbox;
mod plain;
mod ready;
mod staged;
mod transfer;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fs_kernels::cuda::driver::{Driver, DriverError, Memory, Stream};
use fs_schedule::{Action, Engine};
use parking_lot::Mutex;

use super::cpu::{Cpu, Work};
use super::{Device, Env, Fault, Held, Inbox, Job, OpenError, Progress, PutAside, Stored, Urgent, Values};
use crate::transport::{HostOutbox, Message, Reach};
use action::{By, by};
use kernels::{Enqueued, Table};
use lane::{Order, Staging, StagingPool};
use memory::{Buffers, Dense};
pub use outbox::CudaOutbox;
use plain::{bytes_of, values_of};
pub use ready::why_not;
use staged::{AGAIN, Down};

/// What a caller may choose.
pub struct Options<D> {
    /// Devices; rank r is on number r modulo how many there are. For now there must be one.
    pub drivers: Vec<Arc<D>>,
    /// The name of an operation whose dependencies are left out: that tests notice.
    pub careless: Option<String>,
}

impl<D> Clone for Options<D> {
    fn clone(&self) -> Self {
        Self { drivers: self.drivers.clone(), careless: self.careless.clone() }
    }
}

impl<D> Default for Options<D> {
    fn default() -> Self {
        Self { drivers: Vec::new(), careless: None }
    }
}

/// A rank on a GPU.
pub struct Cuda<D: Driver> {
    driver: Arc<D>,
    order: Order,
    /// For what is copied between runs.
    between: Stream,
    buffers: Buffers,
    dense: Vec<Dense>,
    /// This rank's shards of each part of each table.
    tables: Vec<Vec<Table>>,
    /// Where kernels say that something is out of range.
    fault: Memory,
    /// Outboxes may leave the process, so all that is sent passes through the host.
    through_host: AtomicBool,
    staging: StagingPool,
    of_host: [Vec<bool>; 2],
    /// What the host does for the device, and what it has for that.
    host: Cpu<f32>,
    hosts: Mutex<()>,
}

/// What the thread of an engine needs.
pub struct Lane {
    work: Mutex<Work<f32>>,
    /// Transfers whose operands are on their way to the host.
    transfers: Mutex<BTreeMap<usize, Down>>,
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
    /// Operands, of what the host does.
    Operands(Down),
    /// Its part of the loss.
    Loss(Staging),
}

fn staged(progress: Progress<Down>) -> Progress<Ticket> {
    match progress {
        Progress::Done => Progress::Done,
        Progress::Running(down, again) => Progress::Running(Ticket(Under::Operands(down)), again),
    }
}

fn open_error(error: &fs_kernels::cuda::driver::DriverError) -> OpenError {
    OpenError { device: "CUDA".into(), reason: error.to_string() }
}

impl<D: Driver> Cuda<D> {
    /// Waits for everything: between runs only.
    fn settle(&self) -> Result<(), Fault> {
        for stream in self.order.streams().chain([self.between]) {
            self.driver.synchronize(stream)?;
        }
        let staging = self.staging.take(&*self.driver, 4)?;
        self.driver.download(self.between, self.fault.first(4), (staging.pinned, 0))?;
        self.driver.synchronize(self.between)?;
        let mut fault = [0; 4];
        self.driver.read(staging.pinned, 0, &mut fault)?;
        self.staging.give(&*self.driver, self.between, staging)?;
        match u32::from_le_bytes(fault) {
            0 => Ok(()),
            bits => {
                Err(DriverError::Misuse(format!("a kernel met an index that is out of range ({bits:#x})"))
                    .into())
            }
        }
    }

    /// The memory of values that are on the device.
    fn memory(&self, what: Stored) -> Option<Memory> {
        match what {
            Stored::Parameter(p, Values::Weights) => self.dense.get(p).map(|d| d.values),
            Stored::Gradient(p) => self.dense.get(p).map(|d| d.gradient),
            Stored::Table(t, part, Values::Weights) => self.tables.get(t)?.get(part).map(|t| t.values),
            _ => None,
        }
    }

    /// Whether a transfer's data stays on the device.
    fn on_device(&self, job: &Job<'_>) -> bool {
        transfer::moves_rows(&job.op.action) && !self.through_host.load(Ordering::Relaxed)
    }

    fn read_memory(&self, memory: Memory, elements: Range<usize>) -> Result<Vec<f32>, Fault> {
        self.settle()?;
        let bytes = 4 * elements.len() as u64;
        let staging = self.staging.take(&*self.driver, bytes)?;
        self.driver.download(
            self.between,
            memory.from(4 * elements.start as u64, bytes),
            (staging.pinned, 0),
        )?;
        self.driver.synchronize(self.between)?;
        let mut out = vec![0; bytes as usize];
        self.driver.read(staging.pinned, 0, &mut out)?;
        self.staging.give(&*self.driver, self.between, staging)?;
        Ok(values_of(&out))
    }

    fn write_memory(&self, memory: Memory, first: usize, values: &[f32]) -> Result<(), Fault> {
        self.settle()?;
        let bytes = bytes_of(values);
        self.send(self.between, &bytes, memory.from(4 * first as u64, bytes.len() as u64))?;
        Ok(self.driver.synchronize(self.between)?)
    }
}

/// What looks at a message of the host's.
type Look<'a> = dyn FnMut(Message<'_, HostOutbox<f32>>) + 'a;

/// The host's parts of the others' outboxes.
fn sent(inbox: Inbox<'_, CudaOutbox>) -> impl Fn(usize, &mut Look<'_>) {
    move |from, read| inbox(from, &mut |message| read(message.map(|outbox| &outbox.host)))
}

impl<D: Driver> Device for Cuda<D> {
    type Real = f32;
    type Lane = Lane;
    type Ticket = Ticket;
    type Cursor = Cursor;
    type Outbox = CudaOutbox;
    type Options = Options<D>;

    fn open(env: &Env, options: &Options<D>) -> Result<Self, OpenError> {
        let [driver] = &options.drivers[..] else {
            let reason =
                format!("{} devices were given, and all ranks of a process share one", options.drivers.len());
            return Err(OpenError { device: "CUDA".into(), reason });
        };
        let host = Cpu::open(env, &())?;
        let driver = Arc::clone(driver);
        let all = || {
            let mut order = Order::new(&*driver, &env.schedule)?;
            order.careless.clone_from(&options.careless);
            let between = driver.stream(0)?;
            let elements = env.schedule.parameters.iter().map(|p| u64::from(p.rows) * u64::from(p.columns));
            let dense = elements.map(|n| Dense::new(&*driver, between, n)).collect::<Result<Vec<_>, _>>()?;
            let shard = |shard: &parking_lot::RwLock<super::cpu::Shard<f32>>| {
                let shard = shard.read();
                let values = driver.allocate(between, 4 * (shard.len() * shard.dim) as u64)?;
                Ok::<_, DriverError>(Table { values, rows: shard.len() as u32, dim: shard.dim as u32 })
            };
            let parts = |parts: &Vec<_>| parts.iter().map(shard).collect::<Result<Vec<_>, _>>();
            let tables = host.tables.iter().map(parts).collect::<Result<Vec<_>, _>>()?;
            let fault = driver.allocate(between, 4)?;
            driver.fill(between, fault.area(), 0)?;
            Ok((order, between, dense, tables, fault))
        };
        let (order, between, dense, tables, fault) = all().map_err(|e| open_error(&e))?;
        let own = Self {
            driver,
            order,
            between,
            buffers: Buffers::new(&env.schedule),
            dense,
            tables,
            fault,
            through_host: AtomicBool::new(false),
            staging: StagingPool::default(),
            of_host: operands::of_host(&env.schedule),
            host,
            hosts: Mutex::default(),
        };
        let parameters = (0..own.dense.len()).map(|p| Stored::Parameter(p, Values::Weights));
        let parts = own.tables.iter().map(Vec::len).enumerate();
        let shards = parts.flat_map(|(t, n)| (0..n).map(move |part| Stored::Table(t, part, Values::Weights)));
        for what in parameters.chain(shards) {
            let values = own.host.all(what);
            if let Some(memory) = own.memory(what).filter(|_| !values.is_empty()) {
                own.write_memory(memory, 0, &values)
                    .map_err(|e| OpenError { device: "CUDA".into(), reason: e.to_string() })?;
            }
        }
        Ok(own)
    }

    fn lane(&self, _: Engine) -> Lane {
        Lane { work: Mutex::default(), transfers: Mutex::default() }
    }

    fn outbox(&self, reach: Reach) -> CudaOutbox {
        self.through_host.fetch_or(reach == Reach::Bytes, Ordering::Relaxed);
        CudaOutbox::default()
    }

    fn start(&self, lane: &Lane, job: &Job<'_>) -> Result<Progress<Ticket>, Fault> {
        if job.op.action == Action::LoadBatch && job.number == 0 {
            // What ran before is another program, or had been read and written by the host.
            self.settle()?;
        }
        let stream = self.order.begin(&*self.driver, job)?;
        let done = match by(&job.op.action) {
            By::Device => match self.enqueue(job, stream)? {
                Enqueued::No => self.enqueue_dense(lane, job, stream)?,
                done => done,
            },
            By::Planner | By::Nobody => Enqueued::No,
        };
        if !matches!(done, Enqueued::No) {
            self.order.end(&*self.driver, job)?;
        }
        Ok(match done {
            Enqueued::Done => Progress::Done,
            Enqueued::Loss(staging) => Progress::Running(Ticket(Under::Loss(staging)), AGAIN),
            Enqueued::No => staged(self.start_staged(lane, job, stream)?),
        })
    }

    fn poll(&self, lane: &Lane, job: &Job<'_>, ticket: Ticket) -> Result<Progress<Ticket>, Fault> {
        match ticket.0 {
            Under::Operands(down) => Ok(staged(self.poll_staged(lane, job, down)?)),
            Under::Loss(staging) if !self.driver.has_come(staging.free)? => {
                Ok(Progress::Running(Ticket(Under::Loss(staging)), AGAIN))
            }
            Under::Loss(staging) => {
                let mut bytes = [0; 8];
                self.driver.read(staging.pinned, 0, &mut bytes)?;
                self.staging.give(&*self.driver, self.order.stream(job), staging)?;
                job.add_loss(f64::from_le_bytes(bytes));
                Ok(Progress::Done)
            }
        }
    }

    fn rounds(&self, lane: &Lane, job: &Job<'_>) -> Result<u64, Fault> {
        self.host.rounds(&lane.work, job)
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
        if self.on_device(job) {
            return self.fill_rows(job, from, outbox, urgent);
        }
        let stream = self.order.stream(job);
        if from.is_none() && round == 0 {
            self.order.begin(&*self.driver, job)?;
            if let Some(down) = self.down(job, stream)? {
                lane.transfers.lock().insert(job.index, down);
                return Ok(Progress::Running(Cursor::Down, AGAIN));
            }
        }
        let down = lane.transfers.lock().remove(&job.index);
        let _own = self.hosts.lock();
        if let Some(down) = down {
            if !self.is_down(&down)? {
                lane.transfers.lock().insert(job.index, down);
                return Ok(Progress::Running(Cursor::Down, AGAIN));
            }
            self.take_in(job, stream, &down)?;
        }
        let all =
            self.host.fill(&lane.work, job, (round, None), &mut outbox.host, &sent(inbox), &mut || false);
        match all? {
            Progress::Done => Ok(Progress::Done),
            // It stops only where something is urgent.
            Progress::Running(..) => Ok(Progress::Running(Cursor::Down, Duration::ZERO)),
        }
    }

    fn drain(
        &self,
        lane: &Lane,
        job: &Job<'_>,
        from: Option<Cursor>,
        inbox: Inbox<'_, CudaOutbox>,
        urgent: Urgent<'_>,
    ) -> Result<Progress<Cursor>, Fault> {
        if self.on_device(job) {
            return self.drain_rows(job, from, inbox, urgent);
        }
        let stream = self.order.stream(job);
        let _own = self.hosts.lock();
        let all = self.host.drain(&lane.work, job, None, &sent(inbox), &mut || false);
        if let Progress::Running(..) = all? {
            return Ok(Progress::Running(Cursor::Down, Duration::ZERO));
        }
        self.up(job, stream)?;
        self.order.end(&*self.driver, job)?;
        Ok(Progress::Done)
    }

    fn len(&self, what: Stored) -> usize {
        self.host.len(what)
    }

    fn read(&self, what: Stored, elements: Range<usize>, take: &mut dyn FnMut(&[f32])) {
        match self.memory(what) {
            // A device that is lost has no values: none are numbers then.
            Some(_) if elements.is_empty() => {}
            Some(memory) => take(
                &self
                    .read_memory(memory, elements.clone())
                    .unwrap_or_else(|_| vec![f32::NAN; elements.len()]),
            ),
            None => self.host.read(what, elements, take),
        }
    }

    fn write(&self, what: Stored, first: usize, values: &[f32]) {
        self.host.write(what, first, values);
        if let Some(memory) = self.memory(what).filter(|_| !values.is_empty()) {
            // What comes next on a device that is lost says so.
            let _ = self.write_memory(memory, first, values);
        }
    }

    fn capture(&self, on: bool) {
        self.host.capture(on);
    }

    fn keep(&self, from: u64, first: bool) {
        self.host.keep(from, first);
    }

    fn begin_taking(&self, patience: Duration) {
        self.host.begin_taking(patience);
    }

    fn take_rows(&self, table: usize, part: usize, rows: Range<usize>, out: &mut [Vec<f32>; 3]) {
        self.host.take_rows(table, part, rows, out);
    }

    fn take_parameter(&self, parameter: usize) -> [Vec<f32>; 3] {
        self.host.take_parameter(parameter)
    }

    fn forget(&self) {
        self.host.forget();
    }

    fn crowded(&self) -> bool {
        self.host.crowded()
    }

    fn aside(&self) -> PutAside {
        self.host.aside()
    }

    fn held(&self) -> Held {
        Held { parameters: self.dense.iter().map(Dense::bytes).sum(), buffers: self.buffers.held() }
    }
}

impl<D: Driver> Drop for Cuda<D> {
    fn drop(&mut self) {
        // Nothing is told of what fails here: the run has said all.
        let _ = self.settle();
        self.staging.clear(&*self.driver);
        let dense = self.dense.iter().flat_map(|d| [d.values, d.gradient]);
        let tables = self.tables.iter().flatten().map(|t| t.values);
        for memory in self.buffers.take().into_iter().chain(dense).chain(tables).chain([self.fault]) {
            let _ = self.driver.release(self.between, memory);
        }
        let _ = self.driver.synchronize(self.between);
    }
}
