//! What training changes: table shards with their optimizer state, dense parameters with gradients and theirs.

use std::ops::Range;

use fs_kernels::memory::{Block, NoMemory, zeroed};
use fs_kernels::optimizer::{RowUpdate, state_sizes};
use fs_kernels::random::{RandomKey, fill};
use fs_kernels::{MatMut, Real};
use fs_schedule::{DenseOptimizer, Parameter, RowMap, Schedule, Table};
use parking_lot::{Mutex, RwLock};

use super::whole::Whole;
use crate::device::shards;

/// What a rank holds of a table, or of a part of a column-wise one: a range of rows and of columns.
#[derive(Debug)]
pub struct Shard<T> {
    /// Slots of the whole table: row numbers, unless its rows are hashed or planned.
    pub rows: Range<u64>,
    /// Columns of the whole table.
    pub columns: Range<usize>,
    /// Number of columns held.
    pub dim: usize,
    /// Values, row-major.
    pub values: Block<T>,
    /// First optimizer state.
    pub state1: Block<T>,
    /// Second optimizer state.
    pub state2: Block<T>,
    optimizer: RowUpdate,
}

/// Rows drawn at once where only some of their columns are kept.
const DRAWN: usize = 256;

/// Initial values of rows of a shard, or of that of hot rows, from `first` on, which is counted from its first row: as many as there is room for.
pub(crate) fn initial_rows<T: Real>(
    (table, map, hot): (&Table, &RowMap, bool),
    shard: &shards::ShardRange,
    first: u64,
    seed: u64,
    out: &mut [T],
) {
    let (init, key) = (table.init, RandomKey { seed, stream: table.stream, step: 0 });
    let (first, dim, whole) = (shard.rows.start + first, shard.columns.len(), table.dim as usize);
    if hot {
        // Rows of anywhere, of which some columns are kept.
        let mut drawn = vec![T::ZERO; whole];
        for (number, row) in (first as usize..).zip(out.chunks_exact_mut(dim.max(1))) {
            fill(init, key, table.hot[number], whole, &mut drawn);
            row.copy_from_slice(&drawn[shard.columns.clone()]);
        }
    } else if !map.is_range() {
        // Only row-wise tables are not, and their shards have whole rows.
        for (slot, row) in (first..).zip(out.chunks_exact_mut(dim.max(1))) {
            fill(init, key, map.row(slot), dim, row);
        }
    } else if dim == whole {
        fill(init, key, first, dim, out);
    } else if dim > 0 {
        // An element depends on its row and its column in the whole table.
        let mut drawn = vec![T::ZERO; DRAWN * whole];
        for (i, block) in out.chunks_mut(DRAWN * dim).enumerate() {
            let n = block.len() / dim;
            fill(init, key, first + (i * DRAWN) as u64, whole, &mut drawn[..n * whole]);
            for (kept, row) in block.chunks_exact_mut(dim).zip(drawn.chunks_exact(whole)) {
                kept.copy_from_slice(&row[shard.columns.clone()]);
            }
        }
    }
}

/// Initial values of a dense parameter.
pub(crate) fn initial_parameter<T: Real>(parameter: &Parameter, seed: u64, values: &mut [T]) {
    let key = RandomKey { seed, stream: parameter.stream, step: 0 };
    fill(parameter.init, key, 0, parameter.columns as usize, values);
}

impl<T: Real> Shard<T> {
    /// A shard with its initial values, written on the calling thread.
    pub(crate) fn new(
        table: &Table,
        map: &RowMap,
        part: u32,
        (rank, ranks): (usize, usize),
        seed: u64,
    ) -> Result<Self, NoMemory> {
        let mut shard = Self::shape(table, part, (rank, ranks));
        let (n, dim) = (shard.len(), shard.dim);
        let (first, second) = state_sizes(shard.optimizer.kind, n, dim);
        shard.values = Block::try_zeros(n.saturating_mul(dim))?;
        // Before any of it is written: what is written takes memory for good.
        (shard.state1, shard.state2) = (Block::try_zeros(first)?, Block::try_zeros(second)?);
        let range = shards::ShardRange { rows: shard.rows.clone(), columns: shard.columns.clone() };
        initial_rows((table, map, table.is_hot(part)), &range, 0, seed, &mut shard.values);
        Ok(shard)
    }

    /// A shard whose values and states lie elsewhere.
    pub(crate) fn shape(table: &Table, part: u32, (rank, ranks): (usize, usize)) -> Self {
        let shards::ShardRange { rows, columns } = shards::ShardRange::of(table, part, rank, ranks);
        let (dim, optimizer) = (columns.len(), RowUpdate::from(table.optimizer));
        let [values, state1, state2] = [(); 3].map(|()| Block::default());
        Self { rows, columns, dim, values, state1, state2, optimizer }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        (self.rows.end - self.rows.start) as usize
    }

    /// Whether this rank owns none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Updates distinct rows with their summed gradients; `step` counts from 1.
    pub(crate) fn update(&mut self, step: u64, rows: &[u32], gradients: fs_kernels::Mat<'_, T>) {
        let n = self.len();
        let table = MatMut::new(&mut self.values, n, self.dim);
        let (first, second) = (&mut self.state1, &mut self.state2);
        fs_kernels::optimizer::sparse_update(&self.optimizer, step, table, first, second, rows, gradients);
    }
}

/// A dense parameter, the same on every rank.
#[derive(Debug)]
pub struct Dense<T> {
    /// Values, row-major.
    pub values: RwLock<Vec<T>>,
    /// Gradient of the current step.
    pub gradient: RwLock<Vec<T>>,
    /// The optimizer's state: momentum, or both moments.
    pub state: Mutex<[Vec<T>; 2]>,
    /// All of that while checkpoints are written.
    pub(crate) whole: Whole<T>,
}

impl<T: Real> Dense<T> {
    /// A parameter with its initial values.
    pub(crate) fn new(parameter: &Parameter, optimizer: DenseOptimizer, seed: u64) -> Result<Self, NoMemory> {
        let n = parameter.rows as usize * parameter.columns as usize;
        let mut values = zeroed(n)?;
        initial_parameter(parameter, seed, &mut values);
        let [first, second] = match optimizer {
            DenseOptimizer::Sgd { momentum: 0.0, .. } => [0, 0],
            DenseOptimizer::Sgd { .. } => [n, 0],
            DenseOptimizer::Adam { .. } => [n, n],
        };
        Ok(Self {
            values: RwLock::new(values),
            gradient: RwLock::new(zeroed(n)?),
            state: Mutex::new([zeroed(first)?, zeroed(second)?]),
            whole: Whole::default(),
        })
    }

    /// One step of the optimizer; `step` counts from 1.
    pub(crate) fn update(&self, optimizer: DenseOptimizer, step: u64) {
        let mut held = self.whole.hold();
        let (mut w, g, mut state) = (self.values.write(), self.gradient.read(), self.state.lock());
        if let Some(was) = &mut *held {
            was.before(step - 1, &w, &state);
        }
        let [first, second] = &mut *state;
        match optimizer {
            DenseOptimizer::Sgd { lr, momentum, weight_decay } => {
                let buffer = (momentum != 0.0).then_some(first.as_mut_slice());
                fs_kernels::optimizer::dense_sgd(&mut w, &g, buffer, lr, momentum, weight_decay);
            }
            DenseOptimizer::Adam { lr, beta1, beta2, eps, weight_decay } => {
                fs_kernels::optimizer::dense_adam(
                    &mut w,
                    &g,
                    first,
                    second,
                    lr,
                    beta1,
                    beta2,
                    eps,
                    weight_decay,
                    step,
                );
            }
        }
    }

    /// Bytes of values, gradient and state.
    pub(crate) fn bytes(&self) -> u64 {
        let state = self.state.lock().iter().map(Vec::len).sum::<usize>();
        ((self.values.read().len() + self.gradient.read().len() + state) * size_of::<T>()) as u64
    }
}

/// All dense parameters of a schedule.
pub(crate) fn dense_parameters<T: Real>(
    schedule: &Schedule,
    seed: u64,
) -> Result<Vec<Dense<T>>, (NoMemory, &Parameter)> {
    let one = |p| Dense::new(p, schedule.settings.optimizer, seed).map_err(|e| (e, p));
    schedule.parameters.iter().map(one).collect()
}
