//! Updates of tables and dense parameters.

use fs_kernels::reduce::sum_received;
use fs_kernels::{Mat, Real};

use super::{Call, Fault, Work};

pub(super) fn apply<T: Real>(c: &Call<T>) -> Result<(), Fault> {
    let (rows, counts, gradients) = (c.read_indices(0)?, c.read_counts(1)?, c.read(2)?);
    let (number, table) = c.table(true, 0)?;
    let mut work = c.env.work.lock();
    let Work { reduced, counts: sizes, .. } = &mut *work;
    sizes.clear();
    sizes.extend(counts.slice()?.iter().map(|&n| n as usize));
    sum_received(rows.slice()?, sizes, gradients.mat(), reduced);
    let mut shard = table.try_write().ok_or_else(|| Fault::Conflict(format!("t{number}")))?;
    let sums = Mat::new(&reduced.grads, reduced.rows.len(), shard.dim);
    if let Some(capture) = &mut *c.env.capture.lock() {
        let dim = shard.dim;
        for (i, &row) in reduced.rows.iter().enumerate() {
            let target = &mut capture.tables[number][row as usize * dim..(row as usize + 1) * dim];
            for (sum, g) in target.iter_mut().zip(sums.row(i)) {
                *sum += *g;
            }
        }
        return Ok(());
    }
    shard.update(c.current.step + 1, &reduced.rows, sums);
    Ok(())
}

pub(super) fn dense_update<T: Real>(c: &Call<T>) -> Result<(), Fault> {
    if c.env.capture.lock().is_some() {
        return Ok(());
    }
    for position in 0..c.op.reads.len() {
        c.env.dense[c.gradient(position)?].update(c.env.schedule.settings.optimizer, c.current.step + 1);
    }
    Ok(())
}
