//! A device that ends operations late, for tests: the CPU, but an operation's work is done when it ends, after a
//! random number of polls, so that operations of other queues, engines and ranks end before those that were started
//! before them.
//!
//! Until then whatever it writes is [poisoned](poison). And when an operation starts, everything that it touches is held
//! against the [rules] of what must have ended: a use of an operand whose writer has not ended, a write where a reader
//! is not through, rows of a table that an update of another class may share, numbers of rows that are not known yet.
//! What breaks a rule is reported, whether it would have changed a result or not. Its [outboxes](outbox) are its own, with
//! rules of theirs.

pub mod outbox;
mod poison;
mod rules;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use fs_executor::device::cpu::Cpu;
use fs_executor::device::{
    Device, Env, Fault, Held, Inbox, Job, OpenError, Progress, PutAside, Stored, Urgent,
};
use fs_executor::transport::{HostOutbox, Message, Outbox as _, Reach};
use fs_schedule::{Action, Element, Engine, Place};
use parking_lot::Mutex;

use outbox::LateOutbox;
pub use rules::{Need, Rules};

/// What a test chooses, and where it finds what was noticed.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Of everything random.
    pub seed: u64,
    /// Most polls of an operation.
    pub polls: u32,
    /// One operation of the program in so many always takes thirty times as long; 0: none.
    pub slow: u64,
    /// Broken rules.
    pub reports: Arc<Mutex<Vec<String>>>,
    /// What transfers sent.
    pub sent: Arc<Mutex<Vec<Sent>>>,
}

/// What a rank sent to the others in a round of a transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// The rank.
    pub rank: usize,
    /// The operation.
    pub op: String,
    /// Its batch.
    pub batch: u64,
    /// The round.
    pub round: u64,
    /// Bytes, without what frames them.
    pub bytes: u64,
}

/// An operation that has not ended.
#[derive(Debug, Clone, Copy)]
pub struct Wait {
    polls: u32,
    pause: Duration,
}

/// How long it takes to forget what was kept.
const FORGETTING: std::time::Duration = std::time::Duration::from_millis(30);

/// See the module.
pub struct Mock {
    cpu: Cpu<f32>,
    rank: usize,
    options: Options,
    /// Of training and evaluation.
    rules: [Rules; 2],
    state: Mutex<State>,
}

/// What a vector of the arena holds: a buffer of a batch.
type Holder = (u32, u64);

#[derive(Debug, Default)]
struct State {
    random: u64,
    /// Batches that each operation has ended.
    ended: Vec<u64>,
    /// By element type, slot and copy.
    holders: BTreeMap<(Element, u32, u64), Holder>,
    /// By operation.
    saved: BTreeMap<usize, Vec<poison::Saved>>,
}

impl State {
    fn draw(&mut self) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.random >> 33
    }
}

impl Mock {
    fn rules(&self, job: &Job<'_>) -> &Rules {
        &self.rules[usize::from(!std::ptr::eq(job.program, &raw const job.env.schedule.train))]
    }

    fn report(&self, job: &Job<'_>, what: &str) {
        let text =
            format!("rank {}: `{}` of batch {} starts before {what}", self.rank, job.op.name, job.number);
        let mut reports = self.options.reports.lock();
        if reports.len() < 100 {
            reports.push(text);
        }
    }

    /// An operation starts: all that it needs must be there, and what it writes is useless from now on.
    fn begin(&self, job: &Job<'_>) -> Result<Wait, Fault> {
        let rules = self.rules(job);
        let mut state = self.state.lock();
        if job.op.action == Action::LoadBatch && job.number == 0 {
            state.ended = vec![0; job.program.ops.len()];
            state.holders.clear();
        }
        let late = |state: &State, op: usize, batch: Option<u64>| {
            batch.is_some_and(|batch| job.is_batch(batch) && state.ended[op] <= batch)
        };
        let name = |op: usize| &job.program.ops[op].name;
        for need in &rules.needs[job.index] {
            let batch = job.number.checked_add_signed(-need.batches);
            if late(&state, need.op, batch) {
                let batch = batch.unwrap_or(0);
                self.report(job, &format!("`{}` of batch {batch} has ended: {}", name(need.op), need.why));
            }
        }
        for (learners, batches) in &rules.sizes[job.index] {
            let batch = job.number.checked_add_signed(-batches);
            if learners.iter().all(|op| late(&state, *op, batch)) {
                self.report(job, &format!("`{}` has ended: a number of rows", name(learners[0])));
            }
        }
        let written = job.op.writes.iter().map(|o| (o, true));
        for (operand, writes) in job.op.reads.iter().map(|o| (o, false)).chain(written) {
            let (Place::Buffer(b), Some(batch)) = (operand.place, job.batch_of(*operand)) else { continue };
            let buffer = &job.program.buffers[b as usize];
            let key = (buffer.element, buffer.slot, batch % u64::from(buffer.copies.max(1)));
            let holder = state.holders.get(&key).copied();
            if holder == Some((b, batch)) {
                continue;
            }
            if !writes || operand.accumulate {
                self.report(job, &format!("{operand} of batch {batch} is there: {holder:?} has its place"));
                continue;
            }
            if let Some((other, of)) = holder {
                for (op, relative) in &rules.users[other as usize] {
                    if late(&state, *op, of.checked_add_signed(-relative)) {
                        let what = &job.program.buffers[other as usize].name;
                        let why = format!("`{}` is through with `{what}` of batch {of}", name(*op));
                        self.report(job, &why);
                    }
                }
            }
            state.holders.insert(key, (b, batch));
        }
        let saved = poison::poison(&self.cpu, job)?;
        state.saved.insert(job.index, saved);
        let slow = self.is_slow(job.index);
        let polls = state.draw() % (u64::from(self.options.polls) + 1);
        let pause = Duration::from_micros(state.draw() % 40);
        Ok(Wait { polls: polls as u32 * if slow { 30 } else { 1 }, pause })
    }

    /// An operation is about to end: what was put aside is there again.
    fn restore(&self, job: &Job<'_>) -> Result<(), Fault> {
        let saved = self.state.lock().saved.remove(&job.index).unwrap_or_default();
        poison::restore(&self.cpu, job, saved)
    }

    fn end(&self, job: &Job<'_>) {
        self.state.lock().ended[job.index] = job.number + 1;
    }

    /// Whether an operation is one of those that take long: on all ranks, or on some.
    fn is_slow(&self, op: usize) -> bool {
        let Options { seed, slow, .. } = self.options;
        let rank = if seed.is_multiple_of(2) { 0 } else { self.rank as u64 };
        let mut mixed = State { random: seed ^ (op as u64) << 20 ^ rank << 40, ..State::default() };
        slow > 0 && (mixed.draw() ^ mixed.draw()).is_multiple_of(slow)
    }

    /// Whether the CPU is to stop after every piece of a fill or drain.
    fn coin(&self) -> bool {
        self.state.lock().draw().is_multiple_of(2)
    }

    /// How long a transfer's further parts take.
    fn wait(&self) -> Wait {
        let mut state = self.state.lock();
        let polls = state.draw() % (u64::from(self.options.polls) + 1);
        Wait { polls: polls as u32, pause: Duration::from_micros(state.draw() % 40) }
    }
}

impl Wait {
    /// One poll less, if it is not over.
    fn next(self) -> Option<Self> {
        Some(Self { polls: self.polls.checked_sub(1)?, ..self })
    }
}

/// Shows all ranks' outboxes of a round.
fn all(job: &Job<'_>, inbox: Inbox<'_, LateOutbox>, show: fn(&LateOutbox)) {
    (0..job.env.ranks).for_each(|from| inbox(from, &mut |message| show(message.outbox())));
}

/// What looks at a message of the CPU's.
type Look<'a> = dyn FnMut(Message<'_, HostOutbox<f32>>) + 'a;

/// What the CPU reads of the others' outboxes.
fn sent(inbox: Inbox<'_, LateOutbox>) -> impl Fn(usize, &mut Look<'_>) {
    move |from, read| inbox(from, &mut |message| read(message.map(LateOutbox::entries)))
}

impl Device for Mock {
    type Real = f32;
    type Lane = <Cpu<f32> as Device>::Lane;
    type Ticket = Wait;
    type Cursor = Wait;
    type Outbox = LateOutbox;
    type Options = Options;

    const IN_ORDER: bool = true;

    fn open(env: &Env, options: &Options) -> Result<Self, OpenError> {
        let (s, mut random) = (&env.schedule, options.seed ^ 0x9e37_79b9_7f4a_7c15);
        random = random.wrapping_mul(env.rank as u64 * 2 + 3);
        let rules = |program| Rules::new(s, program);
        Ok(Self {
            cpu: Cpu::open(env, &())?,
            rank: env.rank,
            options: options.clone(),
            rules: [rules(&s.train), s.evaluation.as_ref().map_or_else(Rules::default, rules)],
            state: Mutex::new(State { random, ..State::default() }),
        })
    }

    fn lane(&self, engine: Engine) -> Self::Lane {
        self.cpu.lane(engine)
    }

    fn outbox(&self, _: Reach) -> LateOutbox {
        LateOutbox::new(self.rank, &self.options.reports)
    }

    fn start(&self, lane: &Self::Lane, job: &Job<'_>) -> Result<Progress<Wait>, Fault> {
        let wait = self.begin(job)?;
        self.poll(lane, job, wait)
    }

    fn poll(&self, lane: &Self::Lane, job: &Job<'_>, ticket: Wait) -> Result<Progress<Wait>, Fault> {
        if let Some(next) = ticket.next() {
            return Ok(Progress::Running(next, next.pause));
        }
        self.restore(job)?;
        match self.cpu.start(lane, job)? {
            Progress::Done => self.end(job),
            Progress::Running(never, _) => match never {},
        }
        Ok(Progress::Done)
    }

    fn rounds(&self, lane: &Self::Lane, job: &Job<'_>) -> Result<u64, Fault> {
        self.cpu.rounds(lane, job)
    }

    fn fill(
        &self,
        lane: &Self::Lane,
        job: &Job<'_>,
        (round, from): (u64, Option<Wait>),
        outbox: &mut LateOutbox,
        inbox: Inbox<'_, LateOutbox>,
        _: Urgent<'_>,
    ) -> Result<Progress<Wait>, Fault> {
        let wait = match from {
            Some(wait) => wait,
            None if round == 0 => self.begin(job)?,
            None => {
                all(job, inbox, LateOutbox::enter);
                self.wait()
            }
        };
        if let Some(next) = wait.next() {
            return Ok(Progress::Running(next, next.pause));
        }
        let urgent = self.coin();
        let mut from = None;
        let entries = outbox.fill();
        while let Progress::Running(cursor, _) =
            self.cpu.fill(lane, job, (round, from), entries, &sent(inbox), &mut || urgent)?
        {
            assert!(urgent && from < Some(cursor), "it stops only where something is urgent, and goes on");
            from = Some(cursor);
        }
        let others = (0..job.env.ranks).filter(|to| *to != self.rank);
        let bytes = others.map(|to| entries.wire(to)).sum();
        let (rank, op, batch) = (self.rank, job.op.name.clone(), job.number);
        self.options.sent.lock().push(Sent { rank, op, batch, round, bytes });
        outbox.end();
        if round > 0 {
            all(job, inbox, LateOutbox::leave);
        }
        Ok(Progress::Done)
    }

    fn drain(
        &self,
        lane: &Self::Lane,
        job: &Job<'_>,
        from: Option<Wait>,
        inbox: Inbox<'_, LateOutbox>,
        _: Urgent<'_>,
    ) -> Result<Progress<Wait>, Fault> {
        if from.is_none() {
            all(job, inbox, LateOutbox::enter);
            poison::poison_sent(&self.cpu, job)?;
        }
        if let Some(next) = from.unwrap_or_else(|| self.wait()).next() {
            return Ok(Progress::Running(next, next.pause));
        }
        self.restore(job)?;
        let urgent = self.coin();
        let mut from = None;
        while let Progress::Running(cursor, _) =
            self.cpu.drain(lane, job, from, &sent(inbox), &mut || urgent)?
        {
            assert!(urgent && from < Some(cursor), "it stops only where something is urgent, and goes on");
            from = Some(cursor);
        }
        all(job, inbox, LateOutbox::leave);
        self.end(job);
        Ok(Progress::Done)
    }

    fn len(&self, what: Stored) -> usize {
        self.cpu.len(what)
    }

    fn read(&self, what: Stored, elements: Range<usize>, take: &mut dyn FnMut(&[f32])) {
        self.cpu.read(what, elements, take);
    }

    fn write(&self, what: Stored, first: usize, values: &[f32]) {
        self.cpu.write(what, first, values);
    }

    fn capture(&self, on: bool) {
        self.cpu.capture(on);
    }

    fn keep(&self, from: u64, first: bool) {
        self.cpu.keep(from, first);
    }

    fn begin_taking(&self, patience: Duration) {
        self.cpu.begin_taking(patience);
    }

    fn take_rows(&self, table: usize, part: usize, rows: Range<usize>, out: &mut [Vec<f32>; 3]) {
        self.cpu.take_rows(table, part, rows, out);
    }

    fn take_parameter(&self, parameter: usize) -> [Vec<f32>; 3] {
        self.cpu.take_parameter(parameter)
    }

    fn forget(&self) {
        // Whoever may begin the next checkpoint, the first process, has time to before this one is forgotten.
        if self.rank > 0 {
            std::thread::sleep(FORGETTING);
        }
        self.cpu.forget();
    }

    fn crowded(&self) -> bool {
        self.cpu.crowded()
    }

    fn aside(&self) -> PutAside {
        self.cpu.aside()
    }

    fn held(&self) -> Held {
        self.cpu.held()
    }
}
