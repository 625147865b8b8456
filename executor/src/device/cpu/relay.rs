//! What a relay does for its node: it asks owners once for what its ranks ask it for, hands rows on, and sums gradients.

use fs_kernels::Real;
use fs_kernels::embedding::expand;
use fs_kernels::reduce::sum_by_group;
use fs_kernels::unique::unique_by_owner;
use fs_schedule::{Sharding, Symbol};

use super::pieces::check;
use super::sparse::tell;
use super::{Call, Fault, Work};
use crate::device::shards::rows_per_rank;

/// Each row once that the node asks for, by owner.
pub(super) fn unique_asked<T: Real>(c: &Call<T>, exchange: u32) -> Result<(), Fault> {
    let (plan, table) = c.exchange(exchange)?;
    let with_uses = c.op.reads.len() > 2;
    let (rows, owners) = match table.sharding {
        Sharding::RowWise => (rows_per_rank(table.rows, c.env.ranks), c.env.ranks),
        _ => (table.rows, 1),
    };
    let asked = c.read_indices(0)?;
    let asked = asked.slice()?;
    let mut work = c.work.lock();
    let Work { unique, slots, .. } = &mut *work;
    slots.clear();
    slots.extend(asked.iter().map(|row| i64::from(*row)));
    let found = unique_by_owner(&[slots.as_slice()], rows as usize, owners, unique);
    found.map_err(|e| Fault::IdOutOfRange { id: e.id, table: table.name.clone(), rows: table.rows })?;
    let n = unique.ids.len();
    c.learn(Symbol::Sent(exchange), n);
    c.write_ids(0)?.slice().copy_from_slice(&unique.ids);
    tell(c, (plan, table), None, &unique.counts, 1)?;
    if with_uses {
        let uses = c.read_bytes(2)?;
        let uses = uses.slice()?;
        check("uses of entries", uses.len(), 2 * asked.len())?;
        let mut all = c.write_bytes(2)?;
        let all = all.slice();
        // First and last of any rank of the node.
        all.chunks_exact_mut(2).for_each(|pair| pair.copy_from_slice(&[u8::MAX, 0]));
        for (at, pair) in unique.inverse.iter().zip(uses.chunks_exact(2)) {
            let to = &mut all[2 * *at as usize..][..2];
            (to[0], to[1]) = (to[0].min(pair[0]), to[1].max(pair[1]));
        }
    }
    c.write_indices(2 + usize::from(with_uses))?.slice().copy_from_slice(&unique.inverse);
    Ok(())
}

/// Classes of what the node asks for, from those of what the relay asks for.
pub(super) fn pass_classes<T: Real>(c: &Call<T>) -> Result<(), Fault> {
    let (classes, places) = (c.read_bytes(0)?, c.read_indices(1)?);
    let (classes, places) = (classes.slice()?, places.slice()?);
    let mut passed = c.write_bytes(0)?;
    for (passed, at) in passed.slice().iter_mut().zip(places) {
        *passed = *classes.get(*at as usize).ok_or_else(lost)?;
    }
    Ok(())
}

/// Rows for each that asked.
pub(super) fn pass_rows<T: Real>(c: &Call<T>, class: Option<u32>) -> Result<(), Fault> {
    let (rows, places) = (c.read(0)?, c.read_indices(1)?);
    let places = places.slice()?;
    if class.is_none() {
        return c.produce([0], |[y]| expand(rows.mat(), places, y));
    }
    let (there, asked) = (c.read_indices(2)?, c.read_indices(3)?);
    let mut work = c.work.lock();
    within_class(places, there.slice()?, asked.slice()?, &mut work.rows)?;
    let picked = work.rows.as_slice();
    c.produce([0], |[y]| expand(rows.mat(), picked, y))
}

/// Sums of what the node's ranks send.
pub(super) fn sum_asked<T: Real>(c: &Call<T>, class: Option<u32>) -> Result<(), Fault> {
    let (places, counts, gradients) = (c.read_indices(0)?, c.read_counts(1)?, c.read(2)?);
    let places = places.slice()?;
    let lists = class.map(|_| Ok::<_, Fault>((c.read_indices(3)?, c.read_indices(4)?))).transpose()?;
    let mut work = c.work.lock();
    let Work { reduced, counts: sizes, rows: picked, .. } = &mut *work;
    sizes.clear();
    sizes.extend(counts.slice()?.iter().map(|n| *n as usize));
    let groups = match &lists {
        None => places,
        Some((asked, there)) => {
            within_class(places, there.slice()?, asked.slice()?, picked)?;
            picked
        }
    };
    check("gradients of a node", groups.len(), gradients.mat().rows())?;
    check("gradients of its ranks", groups.len(), sizes.iter().sum())?;
    c.produce([0], |[y]| sum_by_group(groups, sizes, gradients.mat(), y, reduced))
}

/// Where what is asked for of a class stands among what is there of it: both lists ascend.
fn within_class(places: &[u32], there: &[u32], asked: &[u32], found: &mut Vec<u32>) -> Result<(), Fault> {
    found.clear();
    for at in asked {
        let place = places.get(*at as usize).ok_or_else(lost)?;
        found.push(there.binary_search(place).map_err(|_| lost())? as u32);
    }
    Ok(())
}

/// Lists that do not belong together.
fn lost() -> Fault {
    crate::transport::TransportError::Sizes("a relay was asked for a row that it has not asked for".into())
        .into()
}
