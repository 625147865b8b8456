//! The CPU: operations are done when they are started, on the thread of their engine.
//!
//! [`Cpu`] holds a rank's memory. [`Call`] resolves one operation's operands to views of it, [`dispatch`] maps each
//! action to its handler; handlers are grouped by what they touch. Everything is generic over the number type: `f32`
//! trains, `f64` lets tests hold gradients against differences.

mod all_reduce;
pub mod arena;
mod asked;
mod attention;
mod balance;
mod call;
mod carry;
mod chunks;
mod collectives;
mod dense;
mod dispatch;
mod inbox;
mod loss;
mod optimizer;
mod owners;
mod picture;
mod pieces;
mod rails;
mod rank_items;
mod relay;
mod sparse;
mod state;
mod whole;

use std::convert::Infallible;
use std::ops::Range;
use std::time::Duration;

use fs_kernels::asked::Request;
use fs_kernels::memory::NoMemory;
use fs_kernels::partition::Partition;
use fs_kernels::reduce::ReducedRows;
use fs_kernels::unique::Unique;
use fs_kernels::{Real, Scratch};
use fs_schedule::{Engine, Sharding, Way};
use parking_lot::{Mutex, RwLock};

use super::{Device, Env, Fault, Held, Inbox, Job, OpenError, Progress, PutAside, Stored, Urgent, Values};
use crate::data::samples::Lists;
use crate::transport::{HostOutbox, Reach};
use crate::units::human;
use pieces::{Pieces, Stop};
use rank_items::Ranking;

pub(crate) use asked::shape;
pub(crate) use balance::cuts_home;
pub(crate) use call::Call;
pub(crate) use carry::{Route, routes};
pub(crate) use inbox::receive;
pub(crate) use rails::Rails;
pub(crate) use rank_items::{EPS, block, digits_of, put_down};
pub(crate) use sparse::{Found, bound_lists, reuse};
pub use state::{Dense, Shard};
pub(crate) use state::{initial_parameter, initial_rows};

/// A rank's memory.
pub struct Cpu<T: Real> {
    /// Buffers.
    pub arena: arena::Arena<T>,
    /// Shards of each part of each table (parts: of column-wise tables, else one).
    pub tables: Vec<Vec<RwLock<Shard<T>>>>,
    /// The same while checkpoints are written.
    pictures: Vec<Vec<picture::Picture<T>>>,
    /// Tables that all ranks have whole.
    replicated: Vec<bool>,
    /// Dense parameters.
    pub dense: Vec<Dense<T>>,
    /// Where gradients go instead of updates, when they are asked for: per table and part, like the shard.
    captured: Mutex<Option<Vec<Vec<Vec<T>>>>>,
    /// Which owners this rank asks through whom.
    pub(super) rails: rails::Rails,
    /// Per exchange the numbers of the classes of lookups and of gradients.
    pub(super) classes: Vec<[Vec<u8>; 2]>,
    /// Data-parallel exchanges with microbatches, per batch in flight: the last use by any rank of each entry's row.
    last_uses: Vec<Vec<Mutex<Vec<u8>>>>,
    /// State of evaluation.
    ranking: Mutex<Ranking<T>>,
}

/// Workspaces of one thread, reused from step to step.
#[derive(Debug)]
pub struct Work<T> {
    /// For attention.
    pub scratch: Scratch<T>,
    /// For deduplication.
    pub unique: Unique,
    /// Slots of ids, of tables whose slots are not row numbers.
    pub slots: Vec<i64>,
    /// What an owner is asked for on behalf of users.
    pub requests: Vec<Request>,
    /// Where the next entry of each owner goes.
    pub next: Vec<usize>,
    /// Uses of entries before they are grouped by owner.
    pub uses: Vec<u8>,
    /// Rows of a class.
    pub rows: Vec<u32>,
    /// For telling rows apart by reuse distance.
    pub partition: Partition,
    /// Samples that leave: to which rank, in which microbatch, which.
    pub order: Vec<(u32, u32, u64)>,
    /// Samples of a rank, their lengths as they travel, and the rank that reads each.
    pub homes: (Lists, Vec<u32>, Vec<u32>),
    /// Samples whose values travel.
    pub(self) carry: carry::Scratch,
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
            slots: Vec::new(),
            requests: Vec::new(),
            next: Vec::new(),
            uses: Vec::new(),
            rows: Vec::new(),
            partition: Partition::default(),
            order: Vec::new(),
            homes: Default::default(),
            carry: carry::Scratch::default(),
            positions: Vec::new(),
            numbers: Vec::new(),
            reduced: ReducedRows::new(),
            counts: Vec::new(),
            temporaries: Vec::new(),
        }
    }
}

impl<T: Real> Cpu<T> {
    /// What works for a device that has tables and dense parameters itself: they have their shapes here, and no values.
    pub(crate) fn without_values(env: &Env) -> Result<Self, OpenError> {
        Self::opened(env, false)
    }

    fn opened(env: &Env, values: bool) -> Result<Self, OpenError> {
        let Env { schedule, rank, ranks, seed, .. } = env;
        let programs = std::iter::once(&schedule.train).chain(&schedule.evaluation);
        let shards = |(t, map): (&fs_schedule::Table, &fs_schedule::RowMap)| {
            let parts = 0..t.shards();
            let shard = |part| {
                let of = (*rank, *ranks);
                let own =
                    if values { Shard::new(t, map, part, of, *seed)? } else { Shard::shape(t, part, of) };
                Ok(RwLock::new(own))
            };
            parts.map(shard).collect::<Result<Vec<_>, _>>().map_err(|e| no_memory(e, "table", &t.name, *rank))
        };
        let classes = |e: &fs_schedule::Exchange| {
            let reuse = e.reuse(schedule.settings.microbatches);
            [Way::Forward, Way::Backward].map(|way| sparse::class_table(reuse, way))
        };
        let last_uses = || schedule.exchanges.iter().map(|_| Mutex::default()).collect();
        let pictures =
            |t: &fs_schedule::Table| (0..t.shards()).map(|_| picture::Picture::default()).collect();
        Ok(Self {
            arena: arena::Arena::new(programs),
            pictures: schedule.tables.iter().map(pictures).collect(),
            replicated: schedule.tables.iter().map(|t| t.sharding == Sharding::DataParallel).collect(),
            tables: schedule.tables.iter().zip(env.maps.iter()).map(shards).collect::<Result<_, _>>()?,
            dense: if values {
                let all = state::dense_parameters(schedule, *seed);
                all.map_err(|(e, p)| no_memory(e, "parameter", &p.name, *rank))?
            } else {
                Vec::new()
            },
            captured: Mutex::default(),
            rails: rails::Rails::new(env.nodes, *rank, *ranks),
            classes: schedule.exchanges.iter().map(classes).collect(),
            last_uses: env.batches.iter().map(|_| last_uses()).collect(),
            ranking: Mutex::default(),
        })
    }

    /// Hands the elements behind a name to `visit`.
    fn with<R>(&self, what: Stored, visit: impl FnOnce(&[T]) -> R) -> R {
        match what {
            Stored::Table(t, part, values) => {
                let shard = self.tables[t][part].read();
                visit(match values {
                    Values::Weights => &shard.values,
                    Values::First => &shard.state1,
                    Values::Second => &shard.state2,
                })
            }
            Stored::Captured(t, part) => {
                let captured = self.captured.lock();
                visit(captured.as_ref().map_or(&[], |c| &c[t][part]))
            }
            Stored::Parameter(p, Values::Weights) => visit(&self.dense[p].values.read()),
            Stored::Parameter(p, Values::First) => visit(&self.dense[p].state.lock()[0]),
            Stored::Parameter(p, Values::Second) => visit(&self.dense[p].state.lock()[1]),
            Stored::Gradient(p) => visit(&self.dense[p].gradient.read()),
        }
    }

    /// Hands the elements behind a name to `visit`, to change them.
    fn with_mut(&self, what: Stored, visit: impl FnOnce(&mut [T])) {
        match what {
            Stored::Table(t, part, values) => {
                let mut shard = self.tables[t][part].write();
                visit(match values {
                    Values::Weights => &mut shard.values,
                    Values::First => &mut shard.state1,
                    Values::Second => &mut shard.state2,
                });
            }
            Stored::Captured(t, part) => {
                visit(self.captured.lock().as_mut().map_or(&mut [], |c| &mut c[t][part]));
            }
            Stored::Parameter(p, Values::Weights) => visit(&mut self.dense[p].values.write()),
            Stored::Parameter(p, Values::First) => visit(&mut self.dense[p].state.lock()[0]),
            Stored::Parameter(p, Values::Second) => visit(&mut self.dense[p].state.lock()[1]),
            Stored::Gradient(p) => visit(&mut self.dense[p].gradient.write()),
        }
    }
}

/// Said where the system gives less than it has promised, or others were quicker.
fn no_memory(error: NoMemory, what: &str, name: &str, rank: usize) -> OpenError {
    let reason = format!(
        "{what} `{name}` takes another {} on rank {rank}, which cannot be had; use fewer rows or columns, fewer ranks, or raise \
         the limit of memory",
        human(error.bytes)
    );
    OpenError { device: "too little memory".into(), reason }
}

impl<T: Real> Device for Cpu<T> {
    type Real = T;
    type Lane = Mutex<Work<T>>;
    type Ticket = Infallible;
    /// Pieces done.
    type Cursor = u64;
    type Outbox = HostOutbox<T>;
    type Options = ();

    fn open(env: &Env, (): &()) -> Result<Self, OpenError> {
        Self::opened(env, true)
    }

    fn lane(&self, _: Engine) -> Mutex<Work<T>> {
        Mutex::default()
    }

    fn outbox(&self, _: Reach) -> HostOutbox<T> {
        HostOutbox::default()
    }

    fn start(&self, lane: &Mutex<Work<T>>, job: &Job<'_>) -> Result<Progress<Infallible>, Fault> {
        let call = Call::new(self, lane, job);
        dispatch::execute(&call)?;
        call.round()?;
        Ok(Progress::Done)
    }

    fn poll(
        &self,
        _: &Mutex<Work<T>>,
        _: &Job<'_>,
        ticket: Infallible,
    ) -> Result<Progress<Infallible>, Fault> {
        match ticket {}
    }

    fn rounds(&self, lane: &Mutex<Work<T>>, job: &Job<'_>) -> Result<u64, Fault> {
        collectives::rounds(&Call::new(self, lane, job))
    }

    fn fill(
        &self,
        lane: &Mutex<Work<T>>,
        job: &Job<'_>,
        (round, from): (u64, Option<u64>),
        outbox: &mut HostOutbox<T>,
        inbox: Inbox<'_, HostOutbox<T>>,
        urgent: Urgent<'_>,
    ) -> Result<Progress<u64>, Fault> {
        let mut pieces = Pieces::new(from.unwrap_or(0), urgent);
        let done = collectives::fill(&Call::new(self, lane, job), round, outbox, inbox, &mut pieces);
        so_far(done, &pieces)
    }

    fn drain(
        &self,
        lane: &Mutex<Work<T>>,
        job: &Job<'_>,
        from: Option<u64>,
        inbox: Inbox<'_, HostOutbox<T>>,
        urgent: Urgent<'_>,
    ) -> Result<Progress<u64>, Fault> {
        let mut pieces = Pieces::new(from.unwrap_or(0), urgent);
        let done = collectives::drain(&Call::new(self, lane, job), inbox, &mut pieces);
        so_far(done, &pieces)
    }

    fn len(&self, what: Stored) -> usize {
        self.with(what, <[T]>::len)
    }

    fn read(&self, what: Stored, elements: Range<usize>, take: &mut dyn FnMut(&[T])) {
        self.with(what, |values| take(&values[elements]));
    }

    fn write(&self, what: Stored, first: usize, values: &[T]) {
        self.with_mut(what, |own| own[first..first + values.len()].copy_from_slice(values));
    }

    fn capture(&self, on: bool) {
        let zeros = |t: &Vec<RwLock<Shard<T>>>| {
            t.iter().map(|part| vec![T::ZERO; part.read().values.len()]).collect()
        };
        *self.captured.lock() = on.then(|| self.tables.iter().map(zeros).collect());
    }

    fn keep(&self, from: u64, first: bool) {
        let shards = self.tables.iter().map(Vec::len).sum();
        for ((table, pictures), replicated) in self.tables.iter().zip(&self.pictures).zip(&self.replicated) {
            if first || !replicated {
                table.iter().zip(pictures).for_each(|(shard, picture)| picture.keep(from, shard, shards));
            }
        }
        self.dense.iter().filter(|_| first).for_each(|dense| dense.whole.keep(from));
    }

    fn begin_taking(&self, patience: Duration) {
        self.pictures.iter().flatten().for_each(|picture| picture.begin(patience));
    }

    fn take_rows(&self, table: usize, part: usize, rows: Range<usize>, out: &mut [Vec<T>; 3]) {
        self.pictures[table][part].take(rows, &self.tables[table][part], out);
    }

    fn take_parameter(&self, parameter: usize) -> [Vec<T>; 3] {
        let dense = &self.dense[parameter];
        dense.whole.take(|| {
            let values = dense.values.read().clone();
            let [first, second] = dense.state.lock().clone();
            [values, first, second]
        })
    }

    fn forget(&self) {
        self.pictures.iter().flatten().for_each(picture::Picture::forget);
        self.dense.iter().for_each(|dense| dense.whole.forget());
    }

    fn crowded(&self) -> bool {
        self.pictures.iter().flatten().any(picture::Picture::crowded)
    }

    fn aside(&self) -> PutAside {
        self.pictures.iter().flatten().map(picture::Picture::counted).fold(PutAside::default(), |all, own| {
            PutAside { rows: all.rows + own.rows, waited: all.waited + own.waited }
        })
    }

    fn held(&self) -> Held {
        Held { parameters: self.dense.iter().map(Dense::bytes).sum(), buffers: self.arena.held() }
    }
}

/// How far a fill or drain is.
fn so_far(done: Result<(), Stop>, pieces: &Pieces<'_>) -> Result<Progress<u64>, Fault> {
    match done {
        Ok(()) => Ok(Progress::Done),
        Err(Stop::Paused) => Ok(Progress::Running(pieces.done, Duration::ZERO)),
        Err(Stop::Fault(fault)) => Err(fault),
    }
}
