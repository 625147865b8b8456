//! Updates of tables and dense parameters.

use fs_kernels::reduce::{Node, sum_received};
use fs_kernels::{Mat, Real};
use fs_schedule::Element;

use super::{Call, Fault, Work};

pub(super) fn apply<T: Real>(c: &Call<T>, exchange: u32, class: Option<u32>) -> Result<(), Fault> {
    let more = usize::from(class.is_some());
    let rows = c.read_indices(0)?;
    let at = if class.is_some() { Some(c.read_indices(1)?) } else { None };
    let (counts, gradients) = (c.read_counts(1 + more)?, c.read(2 + more)?);
    let part = c.exchange(exchange)?.0.part;
    let (number, table) = c.table(true, 0, part)?;
    let mut work = c.work.lock();
    let Work { reduced, counts: sizes, rows: listed, .. } = &mut *work;
    sizes.clear();
    sizes.extend(counts.slice()?.iter().map(|&n| n as usize));
    let mut rows = rows.slice()?;
    if let Some(at) = &at {
        listed.clear();
        listed.extend(at.slice()?.iter().map(|entry| rows[*entry as usize]));
        rows = listed;
    }
    let settings = &c.env.schedule.settings;
    let rounds = settings.node.is_some() && settings.wire.gradients == Element::Bf16;
    let node = Node { ranks: c.env.nodes.each() as usize, rounds };
    sum_received(rows, sizes, node, gradients.mat(), reduced);
    let conflict = || Fault::Conflict(format!("t{number}"));
    let picture = &c.cpu.pictures[number][part as usize];
    let _held = picture.before(c.batch.step, &reduced.rows, table, conflict)?;
    let mut shard = table.try_write().ok_or_else(conflict)?;
    let sums = Mat::new(&reduced.grads, reduced.rows.len(), shard.dim);
    if let Some(capture) = &mut *c.cpu.captured.lock() {
        let dim = shard.dim;
        let captured = &mut capture[number][part as usize];
        for (i, &row) in reduced.rows.iter().enumerate() {
            let target = &mut captured[row as usize * dim..(row as usize + 1) * dim];
            for (sum, g) in target.iter_mut().zip(sums.row(i)) {
                *sum += *g;
            }
        }
        return Ok(());
    }
    shard.update(c.batch.step + 1, &reduced.rows, sums);
    Ok(())
}

pub(super) fn dense_update<T: Real>(c: &Call<T>) -> Result<(), Fault> {
    if c.cpu.captured.lock().is_some() {
        return Ok(());
    }
    for position in 0..c.op.reads.len() {
        c.cpu.dense[c.gradient(position)?].update(c.env.schedule.settings.optimizer, c.batch.step + 1);
    }
    Ok(())
}
