//! What a device enqueues, replayed in virtual time: when work would begin and end if operations took what the schedule
//! expects.
//!
//! [`Noting`] is a driver that notes the waits, records and operations of every stream while another one does the work; where
//! an operation's own work begins it has a duration, its planned one, and needs its rank's engine. [`Noted::replay`] then lets
//! streams go on in order, events come, and each engine do one thing at a time, the most urgent first; a transfer whose data are under
//! way holds up its stream and leaves its engine to others. So streams, events
//! and the order of calls are those of the executor's device, and nothing depends on how fast the host was, but for one thing that
//! can be asked for: what the host must learn of an operation it knows a while after that has ended, and what the schedule
//! lets wait for such an operation, what needs it in its own queue included, begins no earlier.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::thread::ThreadId;

use fs_kernels::cuda::driver::{
    Area, Driver, DriverError, Event, Facts, Launch, Memory, Pinned, Product, Stream,
};
use fs_kernels::cuda::sources::Precision;
use fs_schedule::{Op, Program, Schedule, Symbol};
use parking_lot::Mutex;

/// What a stream was told.
#[derive(Debug, Clone, Copy)]
enum Item {
    /// An event, by number, and which record of it.
    Wait(usize, u64),
    Record(usize, u64),
    Work(Work),
}

/// An operation's work.
#[derive(Debug, Clone, Copy)]
struct Work {
    /// A number for the rank and its engine.
    engine: usize,
    op: usize,
    /// How often the operation ran before.
    batch: u64,
}

/// A stream.
#[derive(Debug, Default)]
struct Queue {
    items: Vec<Item>,
    /// An operation that has been named and has begun no work, and by whom: others record events here, too.
    named: Option<(Work, ThreadId)>,
}

#[derive(Debug, Default)]
struct Notes {
    queues: BTreeMap<Stream, Queue>,
    /// Numbers of events.
    events: HashMap<Event, usize>,
    /// How often each was recorded.
    records: Vec<u64>,
    /// Names of threads: of a rank, a hyphen and the engine.
    engines: Vec<String>,
    /// The rank of each, as a number of its own.
    ranks: Vec<usize>,
    /// By engine and operation.
    ran: BTreeMap<(usize, usize), u64>,
}

impl Notes {
    fn number(&mut self, event: Event) -> usize {
        let records = &mut self.records;
        *self.events.entry(event).or_insert_with(|| {
            records.push(0);
            records.len() - 1
        })
    }

    fn rank(&self, engine: usize) -> usize {
        self.ranks[engine]
    }

    /// The stream's own thread does something for the operation that was named.
    fn begin(&mut self, stream: Stream) {
        let queue = self.queues.entry(stream).or_default();
        if let Some((work, _)) = queue.named.take_if(|(_, by)| *by == std::thread::current().id()) {
            queue.items.push(Item::Work(work));
        }
    }
}

/// See the module.
pub struct Noting<D> {
    own: D,
    schedule: Arc<Schedule>,
    notes: Mutex<Notes>,
}

impl<D: Driver> Noting<D> {
    /// Notes what a driver is told of a schedule's training.
    pub fn new(own: D, schedule: &Arc<Schedule>) -> Self {
        Self { own, schedule: Arc::clone(schedule), notes: Mutex::default() }
    }

    /// When each operation of each step ended on the slowest rank, in nanoseconds: by batch, then by operation.
    pub fn replay(&self) -> Result<Vec<Vec<u64>>, String> {
        self.replay_late(0)
    }

    /// The same where the host learns what it must so many nanoseconds after an operation has ended.
    pub fn replay_late(&self, lag: u64) -> Result<Vec<Vec<u64>>, String> {
        let (notes, ops) = (self.notes.lock(), &self.schedule.train.ops);
        let heads = notes.queues.keys().map(|stream| (*stream, (0, None))).collect();
        let replay = Replay {
            ops,
            notes: &notes,
            heads,
            come: vec![0; notes.records.len()],
            chunks: ops.iter().map(|op| chunk(&self.schedule, op)).collect(),
            running: notes.engines.iter().map(|_| None).collect(),
            under_way: BTreeMap::new(),
            ends: Vec::new(),
            now: 0,
            lag,
            learned: learned(&self.schedule.train),
            batches: notes.ran.values().copied().max().unwrap_or(0),
            ended: BTreeMap::new(),
        };
        replay.run()
    }

    fn work(&self, stream: Stream) {
        self.notes.lock().begin(stream);
    }
}

/// An engine at work.
struct Running {
    stream: Stream,
    work: Work,
    until: u64,
    /// It lets another pass then.
    stops: Option<u64>,
    since: u64,
}

/// Nanoseconds after which a transfer lets an urgent one pass.
fn chunk(schedule: &Schedule, op: &Op) -> Option<u64> {
    let bytes = op.chunk? as f64;
    let sizes = schedule.prediction.as_ref().map_or(&[][..], |p| &p.sizes);
    let size = |symbol: Symbol| {
        let own = sizes.iter().find(|(name, _)| *name == symbol.to_string());
        own.map_or(f64::from(schedule.ranks), |(_, size)| *size)
    };
    let share = bytes / op.cost.wire.eval(size).max(bytes);
    Some(((op.time as f64 * share) as u64).max(1))
}

struct Replay<'a> {
    ops: &'a [Op],
    notes: &'a Notes,
    /// Where each stream stands, and what is left of the work there, once it has begun.
    heads: BTreeMap<Stream, (usize, Option<u64>)>,
    /// How many records of each event have come.
    come: Vec<u64>,
    /// Nanoseconds after which an operation lets an urgent one pass.
    chunks: Vec<Option<u64>>,
    running: Vec<Option<Running>>,
    /// Of which streams the work has left its engine and goes on until then: data are under way.
    under_way: BTreeMap<Stream, (Work, u64)>,
    ends: Vec<Vec<u64>>,
    now: u64,
    /// Nanoseconds until the host knows what it must learn.
    lag: u64,
    /// What each operation waits for of which the host must learn something, and of how many batches before its own.
    learned: Vec<Vec<(usize, i64)>>,
    batches: u64,
    /// When these have ended: by rank, operation and batch.
    ended: BTreeMap<(usize, usize, u64), u64>,
}

/// What stands before an operation in its queue, the nearest first, and how many steps before.
fn before(ops: &[Op], i: usize) -> impl Iterator<Item = (usize, i64)> {
    let queue = move |j: usize| (ops[j].engine, ops[j].priority) == (ops[i].engine, ops[i].priority);
    let all = (0..i).rev().map(|j| (j, 0)).chain((i..ops.len()).rev().map(|j| (j, 1)));
    all.filter(move |(j, _)| queue(*j))
}

fn learned(program: &Program) -> Vec<Vec<(usize, i64)>> {
    let ops = &program.ops;
    let own = |(i, op): (usize, &Op)| {
        // What an operation depends on has ended for the host only after what stands before that in its queue.
        let deps = op.deps.iter().map(|d| {
            let (other, steps) = (d.op as usize, i64::from(d.distance));
            let last = before(ops, other)
                .find(|(j, _)| ops[*j].action.facts().tells_host())
                .map(|(j, more)| (j, steps + more));
            if ops[other].action.facts().tells_host() { Some((other, steps)) } else { last }
        });
        let own = before(ops, i)
            .filter(|(j, _)| ops[*j].action.facts().tells_host() && program.needs(op, &ops[*j]));
        let all = deps.flatten().chain(own);
        all.map(|(j, steps)| (j, steps + i64::from(op.stage) - i64::from(ops[j].stage))).collect()
    };
    ops.iter().enumerate().map(own).collect()
}

impl Replay<'_> {
    /// Takes streams on past waits and records; whether any has moved.
    fn pass(&mut self, stream: Stream) -> bool {
        let notes = self.notes;
        let items = &notes.queues[&stream].items;
        let mut moved = false;
        loop {
            let at = self.heads[&stream].0;
            match items.get(at) {
                Some(Item::Wait(event, record)) if self.come[*event] >= *record => {}
                Some(Item::Record(event, record)) => self.come[*event] = self.come[*event].max(*record),
                _ => return moved,
            }
            self.heads.insert(stream, (at + 1, None));
            moved = true;
        }
    }

    /// The work that a stream stands before.
    fn head(&self, stream: Stream) -> Option<(Work, u64)> {
        if self.under_way.contains_key(&stream) {
            return None;
        }
        let (at, left) = self.heads[&stream];
        match self.notes.queues[&stream].items.get(at) {
            Some(Item::Work(work)) => Some((*work, left.unwrap_or(self.ops[work.op].time))),
            _ => None,
        }
    }

    /// When the host can have begun an operation; none if that is not known yet.
    fn begun(&self, work: &Work) -> Option<u64> {
        let rank = self.notes.rank(work.engine);
        let mut at = 0;
        for (op, batches) in &self.learned[work.op] {
            // In the first and last steps some have no batch.
            let batch = u64::try_from(work.batch as i64 - batches).ok().filter(|batch| *batch < self.batches);
            let Some(batch) = batch else { continue };
            at = at.max(*self.ended.get(&(rank, *op, batch))? + self.lag);
        }
        Some(at)
    }

    /// The next time at which the host begins something that streams stand before.
    fn host(&self) -> Option<u64> {
        let heads = self.heads.keys().filter_map(|stream| self.begun(&self.head(*stream)?.0));
        heads.filter(|at| *at > self.now).min()
    }

    /// The most urgent work that an engine could do now.
    fn urgent(&self, engine: usize, but: Option<Stream>) -> Option<(Stream, Work, u64)> {
        let ready = self.heads.keys().filter(|stream| Some(**stream) != but);
        let ready = ready.filter_map(|stream| {
            let (work, left) = self.head(*stream).filter(|(work, _)| work.engine == engine)?;
            self.begun(&work).filter(|at| *at <= self.now)?;
            Some((*stream, work, left))
        });
        ready.min_by_key(|(_, work, _)| (-self.ops[work.op].priority, work.batch, work.op))
    }

    fn run(mut self) -> Result<Vec<Vec<u64>>, String> {
        let streams: Vec<Stream> = self.heads.keys().copied().collect();
        loop {
            while streams.iter().any(|stream| self.pass(*stream)) {}
            for engine in 0..self.running.len() {
                self.dispatch(engine);
            }
            let running = self.running.iter().flatten().map(|r| r.stops.unwrap_or(r.until));
            let under_way = self.under_way.values().map(|(_, until)| *until);
            let Some(next) = running.chain(under_way).chain(self.host()).min() else { break };
            self.now = next;
            for stream in &streams {
                if let Some((work, _)) =
                    self.under_way.get(stream).copied().filter(|(_, until)| *until == next)
                {
                    self.under_way.remove(stream);
                    self.end(*stream, &work);
                }
            }
            for engine in 0..self.running.len() {
                self.stop(engine);
            }
        }
        let stuck =
            streams.iter().find(|stream| self.heads[*stream].0 < self.notes.queues[*stream].items.len());
        match stuck {
            Some(stream) => Err(format!(
                "{stream:?} never goes on beyond {:?}",
                self.notes.queues[stream].items[self.heads[stream].0]
            )),
            None => Ok(self.ends),
        }
    }

    /// Begins work on an engine that has none, or has the work under way let more urgent work pass.
    fn dispatch(&mut self, engine: usize) {
        let Some(running) = &self.running[engine] else {
            let Some((stream, work, left)) = self.urgent(engine, None) else { return };
            let (since, until) = (self.now, self.now + left);
            self.running[engine] = Some(Running { stream, work, until, stops: None, since });
            return;
        };
        let (op, since, until) = (&self.ops[running.work.op], running.since, running.until);
        let chunk = self.chunks[running.work.op].filter(|_| running.stops.is_none());
        let Some(chunk) = chunk else { return };
        let other = self.urgent(engine, Some(running.stream));
        if other.is_some_and(|(_, work, _)| self.ops[work.op].priority > op.priority) {
            let boundary = since + (self.now - since).div_ceil(chunk).max(1) * chunk;
            if let Some(running) = self.running[engine].as_mut().filter(|_| boundary < until) {
                running.stops = Some(boundary);
            }
        }
    }

    fn stop(&mut self, engine: usize) {
        let now = self.now;
        let over = |r: &mut Running| r.stops.unwrap_or(r.until) == now;
        let Some(Running { stream, work, until, stops, .. }) = self.running[engine].take_if(over) else {
            return;
        };
        let at = self.heads[&stream].0;
        if stops.is_some() {
            self.heads.insert(stream, (at, Some(until - now)));
            return;
        }
        match self.ops[work.op].lag {
            0 => self.end(stream, &work),
            lag => drop(self.under_way.insert(stream, (work, now + lag))),
        }
    }

    /// Work has ended for its stream.
    fn end(&mut self, stream: Stream, work: &Work) {
        let (at, now) = (self.heads[&stream].0, self.now);
        self.heads.insert(stream, (at + 1, None));
        if self.ops[work.op].action.facts().tells_host() {
            self.ended.insert((self.notes.rank(work.engine), work.op, work.batch), now);
        }
        let batch = work.batch as usize;
        if self.ends.len() <= batch {
            self.ends.resize(batch + 1, vec![0; self.ops.len()]);
        }
        self.ends[batch][work.op] = self.ends[batch][work.op].max(now);
    }
}

impl<D: Driver> Driver for Noting<D> {
    fn facts(&self) -> &Facts {
        self.own.facts()
    }

    fn prepare(&self, precision: Precision) -> Result<(), DriverError> {
        self.own.prepare(precision)
    }

    fn stream(&self, priority: i32) -> Result<Stream, DriverError> {
        let stream = self.own.stream(priority)?;
        self.notes.lock().queues.insert(stream, Queue::default());
        Ok(stream)
    }

    fn event(&self) -> Result<Event, DriverError> {
        self.own.event()
    }

    fn timer(&self) -> Result<Event, DriverError> {
        self.own.timer()
    }

    fn elapsed(&self, from: Event, to: Event) -> Result<i64, DriverError> {
        self.own.elapsed(from, to)
    }

    fn record(&self, stream: Stream, event: Event) -> Result<(), DriverError> {
        let mut notes = self.notes.lock();
        notes.begin(stream);
        let event_number = notes.number(event);
        notes.records[event_number] += 1;
        let item = Item::Record(event_number, notes.records[event_number]);
        notes.queues.entry(stream).or_default().items.push(item);
        self.own.record(stream, event)
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<(), DriverError> {
        let mut notes = self.notes.lock();
        let number = notes.number(event);
        let item = Item::Wait(number, notes.records[number]);
        notes.queues.entry(stream).or_default().items.push(item);
        self.own.wait(stream, event)
    }

    fn has_come(&self, event: Event) -> Result<bool, DriverError> {
        self.own.has_come(event)
    }

    fn allocate(&self, stream: Stream, bytes: u64) -> Result<Memory, DriverError> {
        self.own.allocate(stream, bytes)
    }

    fn release(&self, stream: Stream, memory: Memory) -> Result<(), DriverError> {
        self.own.release(stream, memory)
    }

    fn pin(&self, bytes: u64) -> Result<Pinned, DriverError> {
        self.own.pin(bytes)
    }

    fn unpin(&self, pinned: Pinned) -> Result<(), DriverError> {
        self.own.unpin(pinned)
    }

    fn read(&self, pinned: Pinned, offset: u64, to: &mut [u8]) -> Result<(), DriverError> {
        self.own.read(pinned, offset, to)
    }

    fn write(&self, pinned: Pinned, offset: u64, from: &[u8]) -> Result<(), DriverError> {
        self.own.write(pinned, offset, from)
    }

    fn upload(&self, stream: Stream, from: (Pinned, u64), to: Area) -> Result<(), DriverError> {
        self.work(stream);
        self.own.upload(stream, from, to)
    }

    fn download(&self, stream: Stream, from: Area, to: (Pinned, u64)) -> Result<(), DriverError> {
        self.work(stream);
        self.own.download(stream, from, to)
    }

    fn copy(&self, stream: Stream, copies: &[(Area, Area)]) -> Result<(), DriverError> {
        self.work(stream);
        self.own.copy(stream, copies)
    }

    fn fill(&self, stream: Stream, area: Area, byte: u8) -> Result<(), DriverError> {
        self.work(stream);
        self.own.fill(stream, area, byte)
    }

    fn launch(&self, stream: Stream, launch: &Launch<'_>) -> Result<(), DriverError> {
        self.work(stream);
        self.own.launch(stream, launch)
    }

    fn launch_joined(&self, stream: Stream, launches: &[(Launch<'_>, &str)]) -> Result<(), DriverError> {
        self.work(stream);
        self.own.launch_joined(stream, launches)
    }

    fn upload_all(&self, stream: Stream, copies: &[((Pinned, u64), Area)]) -> Result<(), DriverError> {
        self.work(stream);
        self.own.upload_all(stream, copies)
    }

    fn download_all(&self, stream: Stream, copies: &[(Area, (Pinned, u64))]) -> Result<(), DriverError> {
        self.work(stream);
        self.own.download_all(stream, copies)
    }

    fn product(&self, stream: Stream, product: &Product) -> Result<(), DriverError> {
        self.work(stream);
        self.own.product(stream, product)
    }

    fn write_value(&self, stream: Stream, at: Memory, value: u32) -> Result<(), DriverError> {
        self.work(stream);
        self.own.write_value(stream, at, value)
    }

    fn wait_value(&self, stream: Stream, at: Memory, value: u32) -> Result<(), DriverError> {
        self.own.wait_value(stream, at, value)
    }

    fn name(&self, stream: Stream, what: &str) {
        self.own.name(stream, what);
        let thread = std::thread::current();
        let op = self.schedule.train.ops.iter().position(|op| op.name == what);
        let (Some(op), Some(engine)) = (op, thread.name()) else { return };
        let mut notes = self.notes.lock();
        if self.schedule.train.ops[op].joined {
            // What has no work of its own has its share of the launch of all.
            notes.begin(stream);
        }
        // A rank has a thread for each engine.
        let engine = notes.engines.iter().position(|own| own == engine).unwrap_or_else(|| {
            let rank = |name: &str| name.rsplit_once('-').map(|(rank, _)| rank.to_owned());
            let own = notes.engines.iter().position(|other| rank(other) == rank(engine));
            let own = own.map_or(notes.engines.len(), |n| notes.ranks[n]);
            notes.ranks.push(own);
            notes.engines.push(engine.to_owned());
            notes.engines.len() - 1
        });
        let ran = notes.ran.entry((engine, op)).or_default();
        let batch = *ran;
        *ran += 1;
        let work = Work { engine, op, batch };
        notes.queues.entry(stream).or_default().named = Some((work, thread.id()));
    }

    fn resume(&self, stream: Stream, what: &str) {
        self.own.resume(stream, what);
    }

    fn synchronize(&self, stream: Stream) -> Result<(), DriverError> {
        self.own.synchronize(stream)
    }
}
