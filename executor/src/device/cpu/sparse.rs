//! Ids and rows: deduplication, lookup, classes of reuse distance, expansion, pooling.

use fs_kernels::elementwise;
use fs_kernels::embedding::{self, Pool};
use fs_kernels::partition::{self, Classes, Uses};
use fs_kernels::random::negatives;
use fs_kernels::unique::{bucketize_by_owner, occurrences_by_owner, unique_by_owner, uses_of_entries};
use fs_kernels::{Mat, Real, Write};
use fs_schedule::action::Effect;
use fs_schedule::reuse::Reuse;
use fs_schedule::{Exchange, Extent, PoolMode, Sharding, Symbol, Table, Way};

use super::arena::{Few, Read};
use super::owners::asked_of;
use super::pieces::check;
use super::rails::Rails;
use super::{Call, Fault, Work, dense};
use crate::data::share::Column;
use crate::device::shards::{rows_per_rank, shard_of};

pub(super) fn draw_negatives<T: Real>(
    c: &Call<T>,
    table: u32,
    lengths: u32,
    count: u32,
    stream: u32,
) -> Result<(), Fault> {
    let rows = c.env.schedule.tables.get(table as usize).ok_or(Fault::NoTable { table })?.rows;
    let mut ids = c.write_ids(0)?;
    negatives(c.key(stream), rows, c.span().token_keys(lengths as usize), count as usize, ids.slice());
    Ok(())
}

pub(super) fn unique<T: Real>(c: &Call<T>, exchange: u32) -> Result<(), Fault> {
    let (list, table) = c.exchange(exchange)?;
    let ranks = c.env.ranks;
    let plan = match list.shares {
        Some(shares) => c.exchange(shares.owned)?.0,
        None => list,
    };
    // Without several owners all entries are one group, given to the one owner (or kept).
    let (rows, owners) = match &table.sharding {
        Sharding::RowWise => (rows_per_rank(table.rows, ranks), ranks),
        _ => (table.rows, 1),
    };
    // Hot rows are behind all that owners have, as if more owners had them.
    let hot = list.shares.and_then(|_| c.env.hot[plan.table as usize].as_ref());
    let replicas = if hot.is_some() { (table.hot.len() as u64).div_ceil(rows.max(1)) as usize } else { 0 };
    let behind = (rows as usize).saturating_mul(owners);
    // All entries, if there are shares of them. Then entries and counts of each, the uses, if there are any, then an inverse for each
    // read operand.
    let found = Found::of(list, c.op.reads.len(), c.op.writes.len());
    let (with_uses, inverses) = (found.uses, found.inverses());
    // Buffers stay locked while their ids are read.
    let mut buffers: Few<Option<Read<i64>>> = Few::new();
    let mut features: Few<&[i64]> = Few::new();
    let microbatch = |position: usize| c.buffer_of(true, inverses + position).and_then(|b| b.microbatch);
    for position in 0..c.op.reads.len() {
        let input = c.input(position, microbatch(position))?;
        buffers.push(if input.is_some() { None } else { Some(c.read_ids(position)?) });
    }
    for (position, buffer) in buffers.iter().enumerate() {
        features.push(match (buffer, c.input(position, microbatch(position))?) {
            (Some(buffer), _) => buffer.slice()?,
            (None, Some(Column::Ids(ids))) => ids,
            _ => return Err(c.wrong(false, position, "ids")),
        });
    }
    let mut work = c.work.lock();
    let Work { unique, counts: boundaries, slots, uses, .. } = &mut *work;
    let out_of_range = |id: i64| Fault::IdOutOfRange { id, table: table.name.clone(), rows: table.rows };
    let map = &c.env.maps[plan.table as usize];
    let mut placed: Few<&[i64]> = Few::new();
    // Of several owners, those that one relay stands for are asked one after the other.
    let rails = (owners > 1 && plan.leg.between().is_some()).then_some(&c.cpu.rails);
    let features = if map.is_range() && rails.is_none() && hot.is_none() {
        features.as_slice()
    } else {
        // From here on rows are called by their slots; what is learnt of them is the same.
        slots.clear();
        features.iter().try_for_each(|ids| map.slots(ids, table.rows, slots)).map_err(out_of_range)?;
        if let Some(hot) = hot {
            let ids = features.iter().flat_map(|ids| ids.iter());
            for (slot, id) in slots.iter_mut().zip(ids) {
                if let Some(number) = hot.number(*id as u64) {
                    *slot = behind as i64 + number as i64;
                }
            }
        }
        if let Some(rails) = rails {
            rails.by_relay(slots, rows as i64);
        }
        let mut rest = slots.as_slice();
        for ids in &features {
            let (own, others) = rest.split_at(ids.len());
            placed.push(own);
            rest = others;
        }
        placed.as_slice()
    };
    let listed = match (plan.unique, plan.folded) {
        (true, _) => unique_by_owner(features, rows as usize, owners + replicas, unique),
        (false, true) => occurrences_by_owner(features, rows as usize, owners + replicas, unique),
        (false, false) => bucketize_by_owner(features, rows as usize, owners + replicas, unique),
    };
    listed.map_err(|e| out_of_range(e.id))?;
    if let Some(rails) = rails {
        rails.by_owner(&mut unique.ids, rows as i64);
    }
    let owned: usize = unique.counts[..owners].iter().sum();
    let (with_owners, of_all) = unique.ids.split_at(owned);
    if let Some(id) = with_owners.iter().find(|id| **id as u64 >= table.rows) {
        return Err(out_of_range(*id));
    }
    c.learn(Symbol::Sent(exchange), unique.ids.len());
    if let Some(shares) = list.shares {
        c.learn(Symbol::Sent(shares.owned), owned);
        c.learn(Symbol::Sent(shares.hot), of_all.len());
        c.write_ids(0)?.slice().copy_from_slice(&unique.ids);
        let at = found.at(1);
        for (entry, slot) in c.write_ids(at)?.slice().iter_mut().zip(of_all) {
            *entry = slot - behind as i64;
        }
        let mut counts = c.write_counts(at + 1)?;
        let counts = counts.slice();
        check("ranks", counts.len(), ranks)?;
        counts.fill(0);
        counts[c.env.rank] = of_all.len() as u64;
    }
    let at = found.at(0);
    c.write_ids(at)?.slice().copy_from_slice(with_owners);
    tell(c, (plan, table), rails, &unique.counts[..owners], at + 1)?;
    if with_uses {
        bound(c, exchange, features, boundaries)?;
        let n = unique.ids.len();
        let mut of_owned = c.write_bytes(at + 2)?;
        if list.shares.is_some() {
            uses.clear();
            uses.resize(2 * n, 0);
            uses_of_entries(&unique.inverse, boundaries, n, uses);
            let (with_owners, of_all) = uses.split_at(2 * owned);
            of_owned.slice().copy_from_slice(with_owners);
            c.write_bytes(found.at(1) + 2)?.slice().copy_from_slice(of_all);
        } else {
            uses_of_entries(&unique.inverse, boundaries, n, of_owned.slice());
        }
    }
    let mut inverse = unique.inverse.as_slice();
    for (i, ids) in features.iter().enumerate() {
        let (own, rest) = inverse.split_at(ids.len());
        c.write_indices(inverses + i)?.slice().copy_from_slice(own);
        inverse = rest;
    }
    Ok(())
}

/// Where `unique` puts what.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    /// With the windows that use each entry first and last.
    pub uses: bool,
    shares: bool,
}

impl Found {
    /// Of an operation on the entries of an exchange, with so many operands and results.
    pub(crate) fn of(list: &Exchange, reads: usize, writes: usize) -> Self {
        let shares = list.shares.is_some();
        let plain = if shares { 5 } else { 2 };
        Self { uses: writes > reads + plain, shares }
    }

    /// Entries of a share, behind which stand their counts, then their uses.
    pub(crate) fn at(self, share: usize) -> usize {
        usize::from(self.shares) + share * (2 + usize::from(self.uses))
    }

    /// The first list of places.
    pub(crate) fn inverses(self) -> usize {
        self.at(1 + usize::from(self.shares))
    }
}

/// How many of the entries go to which rank.
pub(super) fn tell<T: Real>(
    c: &Call<T>,
    (plan, table): (&Exchange, &Table),
    rails: Option<&Rails>,
    found: &[usize],
    position: usize,
) -> Result<(), Fault> {
    let mut counts = c.write_counts(position)?;
    let counts = counts.slice();
    check("ranks", counts.len(), c.env.ranks)?;
    counts.fill(0);
    if table.sharding == Sharding::RowWise {
        for (place, n) in found.iter().enumerate() {
            counts[rails.map_or(place, |rails| rails.relay(place))] += *n as u64;
        }
    } else {
        let of = asked_of(c, plan, table)?.unwrap_or(c.env.rank);
        counts[of] = found.iter().sum::<usize>() as u64;
    }
    Ok(())
}

/// Where the positions of each window's ids end, of an exchange that tells them apart.
pub(super) fn bound<T: Real>(
    c: &Call<T>,
    exchange: u32,
    features: &[&[i64]],
    boundaries: &mut Vec<usize>,
) -> Result<(), Fault> {
    bound_lists(reuse(c, exchange)?.windows, features.iter().map(|f| f.len()), boundaries);
    Ok(())
}

/// The same of lists of which only the lengths are known: as many for each window.
pub(crate) fn bound_lists(
    windows: u32,
    lengths: impl ExactSizeIterator<Item = usize>,
    boundaries: &mut Vec<usize>,
) {
    let lists = lengths.len().max(1);
    let each = (lists / (windows.max(1) as usize).min(lists)).max(1);
    boundaries.clear();
    let mut end = 0;
    for (n, length) in lengths.enumerate() {
        if n % each == 0 {
            boundaries.push(end);
        }
        end += length;
        if let Some(last) = boundaries.last_mut() {
            *last = end;
        }
    }
}

/// The reuse distances of an exchange.
pub(crate) fn reuse<T: Real>(c: &Call<T>, exchange: u32) -> Result<Reuse, Fault> {
    let reuse = c.exchange(exchange)?.0.reuse(c.env.schedule.settings.microbatches);
    reuse.ok_or(Fault::Undivided { exchange })
}

pub(super) fn partition<T: Real>(c: &Call<T>, exchange: u32, way: Way) -> Result<(), Fault> {
    let reuse = reuse(c, exchange)?;
    let (plan, table) = c.exchange(exchange)?;
    let shard = shard_of(table, plan.part, c.env.ranks) as usize;
    let each = 1 + usize::from(reuse.windows > 1);
    let history = reuse.history() as usize;
    let batches = 1 + history;
    // Of batches that do not exist nothing is known: their rows were not used.
    let there = (1..batches).take_while(|h| c.exists(h * each)).count() + 1;
    let mut rows = Few::new();
    let mut uses = Few::new();
    for batch in 0..there {
        rows.push(c.read_indices(batch * each)?);
        uses.push(if each > 1 { Some(c.read_bytes(batch * each + 1)?) } else { None });
    }
    let mut all = Few::new();
    for (rows, uses) in rows.iter().zip(&uses) {
        all.push(Uses { rows: rows.slice()?, uses: uses.as_ref().map(Read::slice).transpose()? });
    }
    let numbers = &c.cpu.classes[exchange as usize][usize::from(way == Way::Backward)];
    let classes = Classes { lookahead: reuse.lookahead, windows: reuse.windows, table: numbers };
    let mut out = c.write_bytes(0)?;
    let mut work = c.work.lock();
    let work = &mut work.partition;
    if way == Way::Forward {
        partition::forward(all[0], &all[1..], shard, classes, work, out.slice());
        return Ok(());
    }
    let own = c.buffer_of(true, 0).is_some_and(|b| b.rows == Extent::Symbol(Symbol::Sent(plan.entries)));
    c.touches(Effect::ReadsUses);
    let last = c.last_uses(exchange).lock();
    let last = (own && each > 1).then_some(last.as_slice());
    partition::backward(all[0], last, &all[1..], shard, classes, work, out.slice());
    Ok(())
}

/// The class of each window and distance, as [`Classes`] has it; nothing where rows are not told apart.
pub(super) fn class_table(reuse: Option<Reuse>, way: Way) -> Vec<u8> {
    let Some(reuse) = reuse else { return Vec::new() };
    let columns = reuse.lookahead as usize + 1;
    let mut table = vec![0; columns * reuse.windows as usize];
    for (number, class) in reuse.classes(way).iter().enumerate() {
        let distance = class.distance.map_or(reuse.lookahead, |d| d - 1);
        table[class.window as usize * columns + distance as usize] = number as u8;
    }
    table
}

pub(super) fn positions<T: Real>(c: &Call<T>, exchange: u32, way: Way) -> Result<(), Fault> {
    let n = reuse(c, exchange)?.count(way);
    let entries = c.exchange(exchange)?.0.entries;
    let (classes, counts) = (c.read_bytes(0)?, c.read_counts(1)?);
    let counts = counts.slice()?;
    let owner = c.buffer_of(false, 0).is_some_and(|b| b.rows == Extent::Symbol(Symbol::Received(exchange)));
    let mut work = c.work.lock();
    let Work { positions, numbers, .. } = &mut *work;
    partition::positions(classes.slice()?, counts, n, positions, numbers);
    for (class, (found, numbers)) in
        positions.iter().zip(numbers.chunks_exact(counts.len().max(1))).enumerate()
    {
        let number = class as u32;
        let size = if owner {
            Symbol::ReceivedClass(exchange, way, number)
        } else {
            Symbol::SentClass(entries, way, number)
        };
        c.learn(size, found.len());
        if !owner && way == Way::Forward {
            c.asked(exchange, class, found.len());
        }
        c.write_indices(2 * class)?.slice().copy_from_slice(found);
        c.write_counts(2 * class + 1)?.slice().copy_from_slice(numbers);
    }
    Ok(())
}

pub(super) fn gather<T: Real>(c: &Call<T>, exchange: u32, class: Option<u32>) -> Result<(), Fault> {
    let (_, table) = c.table(false, 0, c.exchange(exchange)?.0.part)?;
    let rows = c.read_indices(1)?;
    let at = if class.is_some() { Some(c.read_indices(2)?) } else { None };
    let shard = table.read();
    let values = Mat::new(&shard.values, shard.len(), shard.dim);
    let (rows, at) = (rows.slice()?, at.as_ref().map(Read::slice).transpose()?);
    c.produce([0], |[y]| match at {
        Some(at) => partition::gather_at(values, rows, at, y),
        None => embedding::gather(values, rows, y),
    })
}

pub(super) fn merge<T: Real>(c: &Call<T>, classes: usize) -> Result<(), Fault> {
    // The first merge of a share brings the hot rows, which are behind the others.
    let arrived = if classes == 0 { 1 } else { 2 * classes };
    let hot = if c.op.reads.len() > arrived { Some(c.read(arrived)?) } else { None };
    if classes == 0 && hot.is_none() {
        return dense::copy(c);
    }
    let mut writes = c.write([0])?;
    let (mut all, mode) = writes.first()?;
    let mut owned = all.rows();
    if let Some(hot) = &hot {
        let hot = hot.mat();
        owned = owned.checked_sub(hot.rows()).ok_or(Fault::NotTransfer)?;
        elementwise::copy(hot, all.rows_range_mut(owned..owned + hot.rows()), Write::Set);
    }
    let mut y = all.rows_range_mut(0..owned);
    if classes == 0 {
        let rows = c.read(0)?;
        elementwise::copy(rows.mat(), y, Write::Set);
        return Ok(());
    }
    let mut parts = Few::new();
    for i in 0..classes {
        parts.push((c.read(2 * i)?, c.read_indices(2 * i + 1)?));
    }
    let placed: usize = parts.iter().map(|(rows, _)| rows.mat().rows()).sum();
    if mode == Write::Set && placed < y.rows() {
        y.fill(T::ZERO);
    }
    for (rows, at) in &parts {
        partition::scatter(rows.mat(), at.slice()?, y.reborrow());
    }
    Ok(())
}

pub(super) fn split<T: Real>(c: &Call<T>, exchange: u32, class: Option<u32>) -> Result<(), Fault> {
    let grows = c.read(0)?;
    let own = share_of(c, exchange, grows.mat())?;
    if class.is_none() {
        let mut writes = c.write([0])?;
        let (y, mode) = writes.first()?;
        elementwise::copy(own, y, mode);
        return Ok(());
    }
    let at = c.read_indices(1)?;
    let at = at.slice()?;
    c.produce([0], |[y]| embedding::gather(own, at, y))
}

/// Of gradients of all entries those of an exchange's share; all, if it has none.
fn share_of<'m, T: Real>(c: &Call<T>, exchange: u32, all: Mat<'m, T>) -> Result<Mat<'m, T>, Fault> {
    let (plan, table) = c.exchange(exchange)?;
    if plan.of.is_none() {
        return Ok(all);
    }
    let n = c.batch.share.size(Symbol::Sent(plan.entries), c.op.site, None);
    let rest = all.rows().checked_sub(n).ok_or(Fault::NotTransfer)?;
    Ok(all.rows_range(if table.is_hot(plan.part) { rest..all.rows() } else { 0..n }))
}

pub(super) fn expand<T: Real>(c: &Call<T>) -> Result<(), Fault> {
    let (rows, inverse) = (c.read(0)?, c.read_indices(1)?);
    let inverse = inverse.slice()?;
    c.produce([0], |[y]| embedding::expand(rows.mat(), inverse, y))
}

pub(super) fn expand_grad<T: Real>(c: &Call<T>) -> Result<(), Fault> {
    let (gy, inverse) = (c.read(0)?, c.read_indices(1)?);
    let mut writes = c.write([0])?;
    let (grows, mode) = writes.first()?;
    embedding::expand_grad(gy.mat(), inverse.slice()?, grows, mode);
    Ok(())
}

fn kind(mode: PoolMode) -> Pool {
    match mode {
        PoolMode::Sum => Pool::Sum,
        PoolMode::Mean => Pool::Mean,
    }
}

pub(super) fn pool<T: Real>(c: &Call<T>, mode: PoolMode) -> Result<(), Fault> {
    let (rows, inverse, offsets) = (c.read(0)?, c.read_indices(1)?, c.offsets(2)?);
    let inverse = inverse.slice()?;
    c.produce([0], |[y]| embedding::pool(rows.mat(), inverse, offsets, kind(mode), y))
}

pub(super) fn pool_grad<T: Real>(c: &Call<T>, pooling: PoolMode) -> Result<(), Fault> {
    let (gy, inverse, offsets) = (c.read(0)?, c.read_indices(1)?, c.offsets(2)?);
    let mut writes = c.write([0])?;
    let (grows, mode) = writes.first()?;
    embedding::pool_grad(gy.mat(), inverse.slice()?, offsets, kind(pooling), grows, mode);
    Ok(())
}
