//! Tables and dense parameters of a rank, with the states of their optimizers: on the device, and nowhere else.
//!
//! They are allocated when the device is opened, which says how much that takes where there is too little, and begin with
//! the initial values, which the host draws a piece at a time. The host has copies only of what it asks for ([`stored`](super::stored)).

use std::collections::{BTreeMap, BTreeSet};

use fs_kernels::cuda::Out;
use fs_kernels::cuda::driver::{Area, Driver, DriverError, Memory, Stream};
use fs_kernels::cuda::lists::Bitmap;
use fs_kernels::memory::{NoMemory, zeroed};
use fs_kernels::optimizer::{RowUpdate, state_sizes};
use fs_schedule::{Action, DenseOptimizer, Element, Op, Place, Schedule};

use super::lane::Order;
use super::refusal::{refused, too_little};
use super::{Cuda, Fault};
use crate::device::cpu::{initial_parameter, initial_rows};
use crate::device::shards::ShardRange;
use crate::device::{Env, OpenError, Stored, Values};
use crate::units::human;

/// A rank's shard of a part of a table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table {
    pub(super) values: Memory,
    /// First and second state of the optimizer, as far as its rule has them.
    pub(super) states: [Memory; 2],
    pub(super) rows: u32,
    pub(super) dim: u32,
    pub(super) update: RowUpdate,
}

/// A dense parameter.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dense {
    pub(super) values: Memory,
    pub(super) gradient: Memory,
    /// First and second state of the optimizer, as far as there are any.
    pub(super) states: [Memory; 2],
    /// Values as brain floats, if products read them so.
    pub(super) rounded: Memory,
    pub(super) elements: u64,
}

/// What training changes.
#[derive(Debug)]
pub(super) struct Trained {
    /// Of each part of each table.
    pub(super) tables: Vec<Vec<Table>>,
    pub(super) dense: Vec<Dense>,
    /// Sets of rows, all empty between operations. Updates of one shard in several streams each have their own.
    sets: BTreeMap<(u32, u32, Stream), Memory>,
}

/// A table, and a part of it.
type Shard = (u32, u32);

/// Numbers of a row in values, first and second state.
fn widths(kind: fs_kernels::optimizer::SparseKind, dim: u32) -> [u32; 3] {
    // Of a table with one row.
    let (first, second) = state_sizes(kind, 1, dim as usize);
    [dim, first as u32, second as u32]
}

impl Table {
    /// Numbers of a row in values, first and second state.
    pub(super) fn widths(&self) -> [u32; 3] {
        widths(self.update.kind, self.dim)
    }

    /// All rows of the values.
    pub(super) fn all(&self) -> Area {
        self.fields()[0].0
    }

    /// All rows of values, first and second state, and how many numbers each has; none of a state that there is not.
    pub(super) fn fields(&self) -> [(Area, u32); 3] {
        let [first, second] = self.states;
        let memory = [self.values, first, second];
        let widths = self.widths();
        [0, 1, 2].map(|n| {
            let width = 4 * u64::from(widths[n]);
            let area = Area { address: memory[n].address, width, rows: u64::from(self.rows), pitch: width };
            (area, widths[n])
        })
    }

    /// Values, or a state.
    pub(super) fn field(&self, values: Values) -> Memory {
        match values {
            Values::Weights => self.values,
            Values::First => self.states[0],
            Values::Second => self.states[1],
        }
    }
}

impl Dense {
    /// Values, or a state.
    pub(super) fn field(&self, values: Values) -> Memory {
        match values {
            Values::Weights => self.values,
            Values::First => self.states[0],
            Values::Second => self.states[1],
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.all().iter().map(|m| m.bytes).sum()
    }

    fn all(&self) -> [Memory; 5] {
        [self.values, self.gradient, self.states[0], self.states[1], self.rounded]
    }
}

/// Which states a dense parameter has.
fn dense_states(optimizer: DenseOptimizer) -> [bool; 2] {
    match optimizer {
        DenseOptimizer::Sgd { momentum: 0.0, .. } => [false, false],
        DenseOptimizer::Sgd { .. } => [true, false],
        DenseOptimizer::Adam { .. } => [true, true],
    }
}

/// Parameters that products of brain floats read.
fn rounded(schedule: &Schedule) -> Vec<bool> {
    let mut rounded = vec![false; schedule.parameters.len()];
    let programs = std::iter::once(&schedule.train).chain(&schedule.evaluation);
    for (program, op) in programs.flat_map(|program| program.ops.iter().map(move |op| (program, op))) {
        let multiplies =
            matches!(op.action, Action::Linear { .. } | Action::LinearUnary { .. } | Action::LinearGradInput);
        let [x, weight, ..] = &op.reads[..] else { continue };
        if let (Place::Buffer(b), Place::Parameter(p)) = (x.place, weight.place)
            && multiplies
            && program.buffers.get(b as usize).is_some_and(|b| b.element == Element::Bf16)
            && let Some(own) = rounded.get_mut(p as usize)
        {
            *own = true;
        }
    }
    rounded
}

/// Bytes of a set of rows, and of what numbers them.
fn set_bytes(rows: u64) -> u64 {
    4 * (Bitmap::words(rows) as u64 + u64::from(Bitmap::groups(rows)) + u64::from(Bitmap::tiles(rows)))
}

/// The shard that an operation updates, if it does.
fn updated(schedule: &Schedule, op: &Op) -> Option<Shard> {
    let Action::Apply { exchange, .. } = op.action else { return None };
    let exchange = schedule.exchanges.get(exchange as usize)?;
    Some((exchange.table, exchange.part))
}

/// Bytes of a rank's tables, dense parameters, gradients, optimizer states and sets of rows: what it holds before the first
/// batch.
pub(super) fn bytes(schedule: &Schedule, rank: usize, ranks: usize) -> u64 {
    let shape = |table: u32, part: u32| {
        let shard = ShardRange::of(&schedule.tables[table as usize], part, rank, ranks);
        (shard.rows.end - shard.rows.start, shard.columns.len() as u64)
    };
    let mut all: u64 = 0;
    for (t, table) in (0..).zip(&schedule.tables) {
        for part in 0..table.shards() {
            let (rows, dim) = shape(t, part);
            let width: u32 = widths(RowUpdate::from(table.optimizer).kind, dim as u32).iter().sum();
            all = all.saturating_add(rows.saturating_mul(4 * u64::from(width)));
        }
    }
    let updates = schedule.train.ops.iter().filter_map(|op| {
        updated(schedule, op)
            .filter(|(t, _)| (*t as usize) < schedule.tables.len())
            .map(|shard| (shard, op.engine, op.priority))
    });
    let sets: BTreeSet<_> = updates.collect();
    all = sets.iter().fold(all, |all, ((t, part), ..)| all.saturating_add(set_bytes(shape(*t, *part).0)));
    let states = dense_states(schedule.settings.optimizer).iter().filter(|has| **has).count() as u64;
    let rounded = rounded(schedule);
    schedule.parameters.iter().zip(&rounded).fold(all, |all, (p, rounded)| {
        let each = 4 * (2 + states) + 2 * u64::from(*rounded);
        all.saturating_add((u64::from(p.rows) * u64::from(p.columns)).saturating_mul(each))
    })
}

/// Memory for so many floats; none for none.
fn floats<D: Driver>(driver: &D, stream: Stream, n: u64) -> Result<Memory, DriverError> {
    if n == 0 { Ok(Memory::default()) } else { driver.allocate(stream, 4 * n) }
}

impl Trained {
    /// Allocates everything: zeros, but for values, which are undefined.
    pub(super) fn new<D: Driver>(
        driver: &D,
        stream: Stream,
        order: &Order,
        env: &Env,
    ) -> Result<Self, OpenError> {
        let needed = bytes(&env.schedule, env.rank, env.ranks);
        let free = driver.facts().free;
        let whose = format!("rank {} of {}", env.rank, env.ranks);
        let none = |free| refused(too_little(&whose, needed, &driver.facts().name, free));
        if needed > free {
            return Err(none(free));
        }
        Self::allocate(driver, stream, order, env).map_err(|error| match error {
            // Other ranks, or other programs, were quicker.
            DriverError::NoMemory { free, .. } => none(free),
            error => super::open_error(&error),
        })
    }

    fn allocate<D: Driver>(
        driver: &D,
        stream: Stream,
        order: &Order,
        env: &Env,
    ) -> Result<Self, DriverError> {
        let schedule = &env.schedule;
        let zeros = |n: u64| {
            let memory = floats(driver, stream, n)?;
            if memory.bytes > 0 {
                driver.fill(stream, memory.area(), 0)?;
            }
            Ok::<_, DriverError>(memory)
        };
        let table = |table: &fs_schedule::Table, part: u32| {
            let shard = ShardRange::of(table, part, env.rank, env.ranks);
            let (rows, dim) = (shard.rows.end - shard.rows.start, shard.columns.len() as u32);
            let update = RowUpdate::from(table.optimizer);
            let [values, first, second] = widths(update.kind, dim).map(|width| rows * u64::from(width));
            Ok::<_, DriverError>(Table {
                values: floats(driver, stream, values)?,
                states: [zeros(first)?, zeros(second)?],
                rows: rows as u32,
                dim,
                update,
            })
        };
        let parts = |t: &fs_schedule::Table| {
            (0..t.shards()).map(|part| table(t, part)).collect::<Result<Vec<_>, DriverError>>()
        };
        let tables = schedule.tables.iter().map(parts).collect::<Result<Vec<_>, DriverError>>()?;
        let states = dense_states(schedule.settings.optimizer);
        let dense = schedule.parameters.iter().zip(rounded(schedule)).map(|(p, rounded)| {
            let elements = u64::from(p.rows) * u64::from(p.columns);
            let [first, second] = states.map(|has| if has { elements } else { 0 });
            let rounded = if rounded { 2 * elements } else { 0 };
            Ok::<_, DriverError>(Dense {
                values: floats(driver, stream, elements)?,
                gradient: zeros(elements)?,
                states: [zeros(first)?, zeros(second)?],
                rounded: if rounded == 0 { Memory::default() } else { driver.allocate(stream, rounded)? },
                elements,
            })
        });
        let dense = dense.collect::<Result<_, _>>()?;
        let mut sets = BTreeMap::new();
        for op in &schedule.train.ops {
            let (Some((t, part)), Some(of)) = (updated(schedule, op), order.stream_of(op)) else { continue };
            let shard = tables.get(t as usize).and_then(|parts| parts.get(part as usize));
            if let Some(shard) = shard.filter(|shard| shard.rows > 0)
                && let std::collections::btree_map::Entry::Vacant(entry) = sets.entry((t, part, of))
            {
                entry.insert(zeros(set_bytes(u64::from(shard.rows)) / 4)?);
            }
        }
        Ok(Self { tables, dense, sets })
    }

    /// The empty set of a shard's rows that updates in a stream have, and its memory.
    pub(super) fn set(&self, (table, part): Shard, stream: Stream) -> Option<(Bitmap, Area)> {
        let memory = self.sets.get(&(table, part, stream))?;
        let limit = u64::from(self.tables.get(table as usize)?.get(part as usize)?.rows);
        let before = memory.address + 4 * Bitmap::words(limit) as u64;
        let sums = before + 4 * u64::from(Bitmap::groups(limit));
        let (bits, before, sums) = (Out::at(memory.address), Out::at(before), Out::at(sums));
        Some((Bitmap { limit, bits, before, sums }, memory.area()))
    }

    /// All of its memory.
    pub(super) fn memory(&self) -> impl Iterator<Item = Memory> + '_ {
        let tables = self.tables.iter().flatten().flat_map(|t| [t.values, t.states[0], t.states[1]]);
        let dense = self.dense.iter().flat_map(Dense::all);
        tables.chain(dense).chain(self.sets.values().copied()).filter(|memory| memory.bytes > 0)
    }
}

/// Numbers that go up at once.
const PIECE: usize = 1 << 20;

impl<D: Driver> Cuda<D> {
    /// Sends initial values up.
    pub(super) fn begin_values(&self, env: &Env) -> Result<(), OpenError> {
        let schedule = &env.schedule;
        let none = |NoMemory { bytes }| {
            refused(format!("initial values take {} of the host's memory", human(bytes)))
        };
        let lost = |fault: Fault| refused(fault.to_string());
        for (t, table) in schedule.tables.iter().enumerate() {
            for part in 0..table.shards() {
                let shard = ShardRange::of(table, part, env.rank, env.ranks);
                let (rows, dim) = ((shard.rows.end - shard.rows.start) as usize, shard.columns.len());
                let each = (PIECE / dim.max(1)).max(1);
                let mut piece = zeroed(each.min(rows) * dim).map_err(none)?;
                for first in (0..rows).step_by(each) {
                    let n = each.min(rows - first);
                    let own = &mut piece[..n * dim];
                    initial_rows(
                        (table, &env.maps[t], table.is_hot(part)),
                        &shard,
                        first as u64,
                        env.seed,
                        own,
                    );
                    let what = Stored::Table(t, part as usize, Values::Weights);
                    self.write_values(what, first * dim, own).map_err(lost)?;
                }
            }
        }
        for (p, parameter) in schedule.parameters.iter().enumerate() {
            let n = parameter.rows as usize * parameter.columns as usize;
            let mut values = zeroed(n).map_err(none)?;
            initial_parameter(parameter, env.seed, &mut values);
            self.write_values(Stored::Parameter(p, Values::Weights), 0, &values).map_err(lost)?;
        }
        Ok(())
    }
}
