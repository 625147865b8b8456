//! From times of one batch to a step that repeats (the kernel of a software pipeline): stages and list order.
//!
//! If operation x of batch m starts at `position(x) + m * ii` (ii: the initiation interval), the step that begins at
//! time t0 of batch 0 holds one instance of each operation, of the batch `stage` ahead. The list is in the order of
//! starts. Positions that a simulation found are only nearly periodic, so they are first moved apart (later, never
//! earlier) until every dependency holds between any two batches; then so does the list's order, because an operation
//! starts after everything that it waits for, and takes time.

use super::bounds::Deadlock;
use super::graph::Graph;
use super::joined::Units;

/// A step that repeats.
#[derive(Debug, Clone)]
pub(crate) struct Frozen {
    /// Initiation interval: nanoseconds from one batch to the next, as planned.
    pub ii: i64,
    /// Start of each operation in batch 0.
    pub position: Vec<i64>,
    /// Batch offset of each operation.
    pub stage: Vec<i32>,
    /// Operations in the order of the list.
    pub order: Vec<u32>,
}

/// Sweeps after which positions that still move prove a cycle: far more than batches are ever in flight.
const SWEEPS: usize = 400;

/// Freezes positions into a step that begins at `origin(positions)`.
pub(crate) fn freeze(
    graph: &Graph,
    time: &[u64],
    mut position: Vec<i64>,
    ii: i64,
    origin: impl Fn(&[i64]) -> i64,
) -> Result<Frozen, Deadlock> {
    let mut sweeps = 0;
    loop {
        let mut changed = false;
        for e in &graph.edges {
            let (from, to) = (e.from as usize, e.to as usize);
            let least = position[from] + graph.until(time, from) as i64 - ii * i64::from(e.distance);
            if position[to] < least {
                position[to] = least;
                changed = true;
            }
        }
        if !changed {
            break;
        }
        sweeps += 1;
        if sweeps > SWEEPS {
            return Err(Deadlock(Vec::new()));
        }
    }
    let t0 = origin(&position);
    let stage: Vec<i32> = position.iter().map(|p| -((p - t0).div_euclid(ii)) as i32).collect();
    let mut order: Vec<u32> = (0..graph.n as u32).collect();
    order.sort_by_key(|i| ((position[*i as usize] - t0).rem_euclid(ii), *i));
    Ok(Frozen { ii, position, stage, order })
}

impl Frozen {
    /// The same for the operations of units.
    pub(crate) fn spread(&self, units: &Units) -> Self {
        let order = self.order.iter().flat_map(|unit| units.members[*unit as usize].iter().copied());
        Self {
            ii: self.ii,
            position: units.spread(&self.position),
            stage: units.spread(&self.stage),
            order: order.collect(),
        }
    }

    /// Steps between `from` of a batch and `to` of the batch `distance` later.
    pub(crate) fn steps(&self, from: usize, to: usize, distance: i32) -> i32 {
        distance + self.stage[from] - self.stage[to]
    }
}
