//! A device that is not there: its memory is the host's, its kernels run on the CPU, and its work is done late.
//!
//! Streams are queues. One worker takes the head of any of them that can go on, at random (or in the order of a virtual
//! time), poisons what the head will overwrite, and does it the next time it comes to that stream; work of other streams comes in between. So
//! what is used before it is there, or written while it is read, gives other results; and whatever is used twice with nothing
//! to order the two uses is an error that names both ([`hazards`]), whichever came first this time. What a kernel is given and the
//! list of what it touches leaves out counts as touched, all of its block. Copies
//! to and from the host go through one queue each, in the order in which they could begin, whatever their streams' priority.
//!
//! Virtual time says when work would begin and end with given costs: not before what it waits for, nor while the
//! engine that it needs is at other work.

mod calls;
mod hazards;
mod memory;
mod work;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{Area, Copies, DriverError, Facts, Mover, Pinned, Stream, Way, add_copy, shape};
use hazards::{Clock, History, Stamp};
use memory::{Block, Blocks, POISON};
pub use work::{Kernels, NoKernels};
use work::{Task, Use};

/// What a test chooses.
#[derive(Clone)]
pub struct Options {
    /// What it says of itself.
    pub facts: Facts,
    /// Of the order of work.
    pub seed: u64,
    /// Before one piece of work in sixteen, at random, the worker rests up to so long.
    pub rest: Duration,
    /// What work costs, in virtual time.
    pub costs: Costs,
    /// Work goes on in the order of virtual time, not at random.
    pub in_order: bool,
    /// When the device is lost: all later calls fail.
    pub lost_after: Option<Lost>,
}

/// After what a device is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// After so many calls.
    Calls(u64),
    /// After so many launches of kernels: in an operation, where calls may be of what is between operations.
    Launches(u64),
}

/// What work costs, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// Any piece of it.
    pub each: f64,
    /// A byte to or from the host.
    pub link_byte: f64,
    /// A byte of the device's memory.
    pub byte: f64,
    /// A multiplication with its addition.
    pub multiply: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            facts: Facts {
                name: "emulated".into(),
                memory: 1 << 32,
                free: 1 << 32,
                multiprocessors: 4,
                copy_engines: 2,
                capability: (9, 0),
            },
            seed: 0,
            rest: Duration::ZERO,
            costs: Costs { each: 4e-6, link_byte: 1.0 / 50e9, byte: 1.0 / 2.5e12, multiply: 1.0 / 25e12 },
            in_order: false,
            lost_after: None,
        }
    }
}

/// See the module.
pub struct Emulated {
    shared: Arc<Shared>,
    worker: Option<JoinHandle<()>>,
}

struct Shared {
    options: Options,
    state: Mutex<State>,
    /// There is work, or an end.
    work: Condvar,
    /// Work was done.
    done: Condvar,
    kernels: Box<dyn Kernels>,
}

#[derive(Default)]
struct State {
    streams: Vec<Queue>,
    events: Vec<Point>,
    blocks: Blocks,
    pinned: BTreeMap<u32, (Block, u64)>,
    next_pinned: u32,
    history: History,
    /// Streams and threads of the host so far.
    users: usize,
    /// Threads of the host: which user each is, and what it knows to be done. One does not know what another has asked
    /// after, since nothing of the device's says that it does.
    hosts: HashMap<ThreadId, (usize, Clock)>,
    /// Streams whose heads want a copy engine, per way, in the order in which they could begin.
    engines: [VecDeque<usize>; 2],
    /// When each of the engines and the multiprocessors are free, in virtual time.
    free: [f64; 3],
    /// The virtual time that the host has seen.
    now: f64,
    random: u64,
    /// The first error. All calls fail from then on.
    error: Option<DriverError>,
    /// Calls so far.
    calls: u64,
    /// Copies, kernels and products that were done, by the name of what they belong to.
    done: BTreeMap<Arc<str>, u64>,
    /// Launches so far, by kernel.
    launches: BTreeMap<&'static str, u64>,
    /// Copies that were done, if they are watched.
    copies: Option<Vec<Copies>>,
    /// Work of this name is held back.
    held: Option<Arc<str>>,
    /// The host does not see that events have come that were recorded for what has this name.
    unseen: Option<Arc<str>>,
    ends: bool,
}

/// A stream.
struct Queue {
    /// Which user of memory it is.
    user: usize,
    priority: i32,
    tasks: VecDeque<Piece>,
    /// What its work so far knows of.
    clock: Clock,
    name: Arc<str>,
    /// When its last work ended, in virtual time.
    end: f64,
    /// Its head is being done.
    busy: bool,
}

struct Piece {
    task: Task,
    clock: Clock,
    stamp: Stamp,
    issued: f64,
    begun: bool,
}

/// An event.
#[derive(Default, Clone)]
struct Point {
    recorded: u64,
    come: u64,
    clock: Clock,
    /// What it was recorded for last.
    name: Option<Arc<str>>,
    /// When it has come: in virtual time, and by the clock of the host.
    at: f64,
    since: Option<Instant>,
}

impl Emulated {
    /// A device that runs such kernels.
    pub fn new(options: Options, kernels: Box<dyn Kernels>) -> Self {
        let state = State { random: options.seed ^ 0x9e37_79b9_7f4a_7c15, ..State::default() };
        let (work, done) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { options, state: Mutex::new(state), work, done, kernels });
        let own = Arc::clone(&shared);
        let worker = std::thread::Builder::new().name("emulated device".into()).spawn(move || own.serve());
        Self { shared, worker: worker.ok() }
    }

    /// The virtual time at which all work so far has ended.
    pub fn ended(&self) -> f64 {
        self.shared.state.lock().streams.iter().map(|s| s.end).fold(0.0, f64::max)
    }

    /// The virtual time at which the work of a stream so far has ended.
    pub fn ended_of(&self, stream: Stream) -> f64 {
        self.shared.state.lock().streams[stream.0 as usize].end
    }

    /// Work that belongs to what has this name is held back from now on, or none is any more.
    pub fn hold(&self, name: Option<&str>) {
        self.shared.state.lock().held = name.map(Into::into);
        self.shared.work.notify_one();
    }

    /// The host does not see from now on that events have come that were recorded for what has this name, or sees all again.
    pub fn hide(&self, name: Option<&str>) {
        self.shared.state.lock().unseen = name.map(Into::into);
    }

    /// Copies, kernels and products done that belong to what has this name.
    pub fn done(&self, name: &str) -> u64 {
        self.shared.state.lock().done.get(name).copied().unwrap_or(0)
    }

    /// Launches so far, by kernel; several that are one count once.
    pub fn launches(&self) -> BTreeMap<&'static str, u64> {
        self.shared.state.lock().launches.clone()
    }

    /// Calls so far, but for questions whether something has come: how many of these there are depends on how fast the host is.
    pub fn calls(&self) -> u64 {
        self.shared.state.lock().calls
    }

    fn state(&self) -> Result<MutexGuard<'_, State>, DriverError> {
        let mut state = self.shared.state.lock();
        state.calls += 1;
        let lost = match self.shared.options.lost_after {
            None => false,
            Some(Lost::Calls(calls)) => state.calls > calls,
            Some(Lost::Launches(launches)) => state.launches.values().sum::<u64>() > launches,
        };
        if lost && state.error.is_none() {
            let reason = "the GPU is lost: it has fallen off the bus".into();
            state.error = Some(DriverError::Failed { call: "a call".into(), reason });
            self.shared.done.notify_all();
        }
        drop(state);
        self.looked()
    }

    /// The state, unless something has failed.
    fn looked(&self) -> Result<MutexGuard<'_, State>, DriverError> {
        let state = self.shared.state.lock();
        match &state.error {
            Some(error) => Err(error.clone()),
            None => Ok(state),
        }
    }

    fn count(&self, kernel: &'static str) {
        *self.shared.state.lock().launches.entry(kernel).or_default() += 1;
    }

    /// Puts a piece of work into a stream's queue.
    fn push(&self, stream: Stream, task: Task) -> Result<(), DriverError> {
        let mut state = self.state()?;
        let mut wrong = None;
        task.areas(&mut |area| wrong = wrong.take().or(state.known(area).err()));
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        state.push(stream, task);
        self.shared.work.notify_one();
        Ok(())
    }

    /// A range of page-locked memory.
    fn pinned(state: &State, (pinned, offset): (Pinned, u64), bytes: u64) -> Result<Area, DriverError> {
        let block = state.pinned.get(&pinned.0);
        let block = block.filter(|(_, size)| offset.checked_add(bytes).is_some_and(|end| end <= *size));
        let (block, _) = block.ok_or_else(|| {
            DriverError::Misuse(format!("{bytes} bytes from {offset} on, beyond page-locked memory"))
        })?;
        Ok(Area { address: block.address() + offset, width: bytes, rows: 1, pitch: bytes })
    }

    /// The host uses page-locked memory: it must know that nobody else is at it.
    fn host(
        &self,
        pinned: (Pinned, u64),
        bytes: usize,
        written: bool,
    ) -> Result<(MutexGuard<'_, State>, Area), DriverError> {
        let mut state = self.state()?;
        let area = Self::pinned(&state, pinned, bytes as u64)?;
        let (user, own) = state.host();
        let stamp = Stamp { user: *user, at: own.advance(*user), name: "the host".into() };
        let clock = own.clone();
        if let Some(first) = state.history.touch(area, written, &clock, &stamp) {
            return Err(state.unordered(&first, "the host", area));
        }
        Ok((state, area))
    }
}

impl Drop for Emulated {
    fn drop(&mut self) {
        self.shared.state.lock().ends = true;
        self.shared.work.notify_all();
        if let Some(worker) = self.worker.take() {
            // It has nothing to say.
            let _ = worker.join();
        }
    }
}

impl State {
    /// The thread that asks: which user it is, and what it knows.
    fn host(&mut self) -> &mut (usize, Clock) {
        let users = &mut self.users;
        self.hosts.entry(std::thread::current().id()).or_insert_with(|| {
            *users += 1;
            (*users - 1, Clock::default())
        })
    }

    fn draw(&mut self) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.random >> 33
    }

    /// Whether an area lies in memory that was handed out, of the device or page-locked.
    fn known(&self, area: Area) -> Result<(), DriverError> {
        let within = |(block, bytes): &(Block, u64)| {
            let start = block.address();
            start <= area.address && area.address + area.bytes() <= start + bytes
        };
        if area.rows <= 1 && self.pinned.values().any(within) { Ok(()) } else { self.blocks.check(area) }
    }

    fn unordered(&mut self, first: &str, second: &str, area: Area) -> DriverError {
        let what = area.to_string();
        let error = DriverError::Unordered { first: first.into(), second: second.into(), what };
        self.error.get_or_insert(error).clone()
    }

    fn push(&mut self, stream: Stream, task: Task) {
        let (host, now) = (self.host().1.clone(), self.now);
        let queue = &mut self.streams[stream.0 as usize];
        queue.clock.join(&host);
        if let Task::Wait { event, .. } = &task {
            queue.clock.join(&self.events[*event].clock);
        }
        let user = queue.user;
        let at = queue.clock.advance(user);
        if let Task::Record { event, .. } = &task {
            self.events[*event].clock = queue.clock.clone();
        }
        let stamp = Stamp { user, at, name: Arc::clone(&queue.name) };
        let clock = queue.clock.clone();
        queue.tasks.push_back(Piece { task, clock, stamp, issued: now, begun: false });
    }

    /// Whether the head of a stream can go on, and from when on in virtual time.
    fn ready(&self, stream: usize) -> Option<f64> {
        let queue = &self.streams[stream];
        let piece = queue.tasks.front().filter(|_| !queue.busy)?;
        let from = queue.end.max(piece.issued);
        match &piece.task {
            Task::Wait { event, record } => {
                let event = &self.events[*event];
                (event.come >= *record).then(|| from.max(event.at))
            }
            Task::WaitValue { at, value } => {
                let word = memory::bytes(*at);
                let found = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                (found.wrapping_sub(*value) as i32 >= 0).then_some(from)
            }
            _ => Some(from),
        }
    }

    /// The engine that the head of a stream needs.
    fn engine(&self, stream: usize) -> Option<usize> {
        match self.streams[stream].tasks.front()?.task {
            Task::Copy { way: Way::In, .. } => Some(0),
            Task::Copy { way: Way::Out, .. } => Some(1),
            Task::Copy { .. }
            | Task::Fill { .. }
            | Task::Launch { .. }
            | Task::Joined(_)
            | Task::Product(_) => Some(2),
            _ => None,
        }
    }

    /// The stream that goes on next.
    fn choose(&mut self, in_order: bool) -> Option<usize> {
        let mut ready: Vec<(usize, f64)> =
            (0..self.streams.len()).filter_map(|s| Some((s, self.ready(s)?))).collect();
        if let Some(held) = &self.held {
            let is_held = |piece: &Piece| piece.stamp.name == *held || piece.task.is_of(held);
            ready.retain(|(s, _)| !self.streams[*s].tasks.front().is_some_and(is_held));
        }
        // Those that can begin now stand in line, in the order of virtual time.
        ready.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
        for (stream, _) in &ready {
            if let Some(engine) = self.engine(*stream).filter(|e| *e < 2)
                && !self.engines[engine].contains(stream)
            {
                self.engines[engine].push_back(*stream);
            }
        }
        ready.retain(|(s, _)| {
            self.engine(*s).filter(|e| *e < 2).is_none_or(|e| self.engines[e].front() == Some(s))
        });
        if ready.is_empty() {
            return None;
        }
        if !in_order {
            let n = self.draw() as usize % ready.len();
            return Some(ready[n].0);
        }
        let begins = |(s, from): &(usize, f64)| from.max(self.engine(*s).map_or(0.0, |e| self.free[e]));
        // Only kernels are preferred by priority.
        let urgent = |s: usize| self.engine(s).filter(|e| *e == 2).map_or(0, |_| self.streams[s].priority);
        let key = |x: &(usize, f64)| (begins(x), -urgent(x.0));
        let least = ready.iter().min_by(|a, b| {
            let (a, b) = (key(a), key(b));
            a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))
        });
        least.map(|(s, _)| *s)
    }

    /// The head of a stream begins: nothing that it touches may be in use, and what it overwrites is useless from now on.
    fn begin(&mut self, stream: usize) -> Result<(), DriverError> {
        let Some(piece) = self.streams[stream].tasks.front() else { return Ok(()) };
        let (task, clock, stamp) = (piece.task.clone(), piece.clock.clone(), piece.stamp.clone());
        let mut found = None;
        let mut overwritten = Vec::new();
        let history = &mut self.history;
        task.uses(&mut |area, how| {
            let unknown = history.touch(area, how != Use::Read, &clock, &stamp);
            found = found.take().or(unknown.map(|first| (first, area)));
            if how == Use::Overwritten {
                overwritten.push(area);
            }
        });
        // What a kernel is given and its list leaves out is taken to be used whole.
        for (address, writes) in task.unlisted() {
            let Some(area) = self.blocks.around(address) else { continue };
            let unknown = history.touch(area, writes, &clock, &stamp);
            found = found.take().or(unknown.map(|first| (first, area)));
        }
        if let Some((first, area)) = found {
            return Err(self.unordered(&first, &stamp.name, area));
        }
        if let Some((first, second, area)) = task.conflict(|address| self.blocks.around(address)) {
            return Err(self.unordered(&first, &second, area));
        }
        // A copy within one area, and a result that is its own operand, keep what is there.
        let mut reads = Vec::new();
        task.uses(&mut |area, how| {
            if how == Use::Read {
                reads.push(area);
            }
        });
        for area in overwritten {
            let end = |a: &Area| a.address + a.rows.saturating_sub(1) * a.pitch + a.width;
            if !reads.iter().any(|r| r.address < end(&area) && area.address < end(r)) {
                memory::fill(area, POISON);
            }
        }
        Ok(())
    }

    /// The head of a stream has ended.
    fn end(&mut self, stream: usize, costs: &Costs) {
        let engine = self.engine(stream);
        let from = self.ready_at(stream);
        let Some(piece) = self.streams[stream].tasks.pop_front() else { return };
        if let Task::Joined(parts) = &piece.task {
            for part in parts {
                *self.done.entry(Arc::clone(&part.name)).or_default() += 1;
            }
        } else if engine.is_some() {
            *self.done.entry(Arc::clone(&piece.stamp.name)).or_default() += 1;
        }
        let cost = match &piece.task {
            Task::Record { .. } | Task::Wait { .. } | Task::WaitValue { .. } | Task::Release { .. } => 0.0,
            Task::WriteValue { .. } => costs.each,
            Task::Copy { way: Way::In | Way::Out, copies } => {
                costs.each + copies.iter().map(|(from, _)| from.bytes()).sum::<u64>() as f64 * costs.link_byte
            }
            Task::Product(p) => {
                let flops = shape(p).map_or(0, |(m, n, k)| m * n * k) as f64;
                costs.each + (flops * costs.multiply).max(piece.task.bytes() as f64 * costs.byte)
            }
            task => costs.each + task.bytes() as f64 * costs.byte,
        };
        let begin = from.max(engine.map_or(0.0, |e| self.free[e]));
        let end = begin + cost;
        if let Some(engine) = engine {
            self.free[engine] = end;
            if engine < 2 {
                self.engines[engine].pop_front();
            }
        }
        self.streams[stream].end = end;
        self.streams[stream].busy = false;
        if let (Task::Copy { way, copies }, Some(sums)) = (&piece.task, &mut self.copies) {
            // What the engines of the virtual time are.
            let by = match engine {
                Some(number @ 0..2) => Mover::CopyEngine(number as u32),
                _ => Mover::Multiprocessors,
            };
            let bytes = copies.iter().map(|(from, _)| from.bytes()).sum();
            let nanoseconds = (cost * 1e9).round() as u64;
            let name = piece.stamp.name.to_string();
            add_copy(sums, Copies { name, way: *way, by, copies: copies.len() as u64, bytes, nanoseconds });
        }
        match piece.task {
            Task::Record { event, record } => {
                let event = &mut self.events[event];
                if event.come < record {
                    (event.come, event.at, event.since) = (record, end, Some(Instant::now()));
                }
            }
            Task::Release { address } => {
                if let Some((block, bytes)) = self.blocks.remove(address) {
                    self.history.forget(block.address(), block.address() + bytes);
                }
            }
            _ => {}
        }
    }

    fn ready_at(&self, stream: usize) -> f64 {
        let queue = &self.streams[stream];
        let piece = queue.tasks.front();
        let from = queue.end.max(piece.map_or(0.0, |p| p.issued));
        match piece.map(|p| &p.task) {
            Some(Task::Wait { event, .. }) => from.max(self.events[*event].at),
            _ => from,
        }
    }
}

impl Shared {
    /// What the worker does until the driver is dropped.
    fn serve(&self) {
        let mut state = self.state.lock();
        while !state.ends {
            let chosen = if state.error.is_some() { None } else { state.choose(self.options.in_order) };
            let Some(stream) = chosen else {
                self.work.wait(&mut state);
                continue;
            };
            if !self.options.rest.is_zero() && state.draw().is_multiple_of(16) {
                let rest = self.options.rest.mul_f64(state.draw() as f64 / (1u64 << 31) as f64);
                MutexGuard::unlocked(&mut state, || std::thread::sleep(rest));
            }
            let Some(piece) = state.streams[stream].tasks.front_mut() else { continue };
            if !piece.begun {
                piece.begun = true;
                if let Err(error) = state.begin(stream) {
                    state.error.get_or_insert(error);
                    self.done.notify_all();
                    continue;
                }
                // Others may go on before it is done.
                if !self.options.in_order {
                    continue;
                }
            }
            let Some(piece) = state.streams[stream].tasks.front() else { continue };
            let task = piece.task.clone();
            state.streams[stream].busy = true;
            let outcome = MutexGuard::unlocked(&mut state, || task.run(&*self.kernels));
            if let Err(error) = outcome {
                state.error.get_or_insert(error);
            }
            state.end(stream, &self.options.costs);
            self.done.notify_all();
        }
    }
}
