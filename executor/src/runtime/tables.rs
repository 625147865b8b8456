//! Whole tables from the shards of all ranks, and back, whatever the sharding.

use std::ops::Range;

use fs_kernels::Real;
use fs_schedule::{RowMap, Schedule, Sharding, SparseOptimizer, Table};

use crate::device::shards::ShardRange;
use crate::device::{Device, Env, Stored, Values};
use crate::transport::frame::{BadFrame, Reader};

/// Numbers that every row of a table has: its values, their gradients, a state of its optimizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Field {
    /// The table.
    pub table: usize,
    /// `None` for the gradients that were kept.
    values: Option<Values>,
    each: Each,
    /// Rows of the table.
    pub rows: u64,
    /// Numbers that a row has.
    pub width: usize,
}

/// What has a number of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Each {
    /// An element.
    Element,
    /// A part's row: with several parts a row has several.
    Row,
    /// Nothing.
    Nothing,
}

impl Field {
    /// Values of a table, or a state of its optimizer; the optimizer's rule says how many numbers a row has of it.
    pub(crate) fn of(schedule: &Schedule, table: usize, values: Values) -> Self {
        let whole = &schedule.tables[table];
        let each = match (values, whole.optimizer) {
            (Values::Weights, _)
            | (Values::First, SparseOptimizer::Adagrad { .. } | SparseOptimizer::Adam { .. })
            | (Values::Second, SparseOptimizer::Adam { .. }) => Each::Element,
            (Values::First, SparseOptimizer::RowwiseAdagrad { .. }) => Each::Row,
            _ => Each::Nothing,
        };
        let width = match each {
            Each::Element => whole.dim as usize,
            Each::Row => whole.sharding.parts() as usize,
            Each::Nothing => 0,
        };
        Self { table, values: Some(values), each, rows: whole.rows, width }
    }

    /// Gradients that were kept instead of updating the table.
    pub(crate) fn captured(schedule: &Schedule, table: usize) -> Self {
        Self { values: None, ..Self::of(schedule, table, Values::Weights) }
    }

    /// Whether the numbers are a row's, and not an element's.
    pub(crate) fn by_row(&self) -> bool {
        self.each == Each::Row
    }

    /// Which of a table's numbers; none of gradients.
    pub(crate) fn values(&self) -> Option<Values> {
        self.values
    }

    fn stored(&self, part: usize) -> Stored {
        self.values
            .map_or(Stored::Captured(self.table, part), |values| Stored::Table(self.table, part, values))
    }

    /// Where a part's numbers are among a row's.
    pub(crate) fn columns(&self, part: usize, shape: &ShardRange) -> Range<usize> {
        match self.each {
            Each::Element => shape.columns.clone(),
            // Hot rows of a part are of its columns.
            Each::Row => part % self.width..part % self.width + 1,
            Each::Nothing => 0..0,
        }
    }

    /// The rows in pieces of about so many numbers.
    pub(crate) fn blocks(&self, numbers: usize) -> impl Iterator<Item = Range<u64>> + use<> {
        let (rows, each) = (self.rows, (numbers / self.width.max(1)).max(1) as u64);
        // A field without numbers has no pieces.
        let end = if self.width == 0 { 0 } else { rows };
        (0..end.div_ceil(each)).map(move |n| n * each..((n + 1) * each).min(rows))
    }
}

/// The shards of this process that, with those of others, are the table once: position of the rank, part, and what it
/// holds. None is empty.
pub(crate) fn holders<'a>(
    table: &'a Table,
    ranks: &'a [Env],
) -> impl Iterator<Item = (usize, usize, ShardRange)> + 'a {
    // Every rank has all of a data-parallel table.
    let replicated = table.sharding == Sharding::DataParallel;
    let holding = ranks.iter().enumerate().filter(move |(_, env)| !replicated || env.rank == 0);
    shards(table, holding)
}

fn shards<'a>(
    table: &'a Table,
    ranks: impl Iterator<Item = (usize, &'a Env)> + 'a,
) -> impl Iterator<Item = (usize, usize, ShardRange)> + 'a {
    shards_of(table, ranks, 0..table.sharding.parts() as usize)
}

/// Of some parts.
fn shards_of<'a>(
    table: &'a Table,
    ranks: impl Iterator<Item = (usize, &'a Env)> + 'a,
    parts: Range<usize>,
) -> impl Iterator<Item = (usize, usize, ShardRange)> + 'a {
    let all = ranks.flat_map(move |(at, env)| parts.clone().map(move |part| (at, env, part)));
    let shapes =
        all.map(move |(at, env, part)| (at, part, ShardRange::of(table, part as u32, env.rank, env.ranks)));
    shapes.filter(|(_, _, shape)| !shape.is_empty())
}

/// The hot rows among some rows of a table, with their numbers among all hot ones.
fn hot<'a>(table: &'a Table, rows: &Range<u64>) -> impl Iterator<Item = (u64, usize)> + use<'a> {
    let of = |row: u64| table.hot.partition_point(|hot| *hot < row);
    let own = of(rows.start)..of(rows.end);
    table.hot[own.clone()].iter().copied().zip(own)
}

/// Gives owners what replicas of hot rows have become: whatever reads rows then finds them where they belong. Between runs only.
pub(crate) fn settle<D: Device>((ranks, devices): (&[Env], &[D])) {
    for (env, device) in ranks.iter().zip(devices) {
        for (t, table) in env.schedule.tables.iter().enumerate().filter(|(_, t)| !t.hot.is_empty()) {
            let fields =
                [Values::Weights, Values::First, Values::Second].map(|v| Field::of(&env.schedule, t, v));
            let all = fields.into_iter().chain([Field::captured(&env.schedule, t)]);
            for field in all.filter(|field| field.width > 0) {
                for (_, part, shard) in shards(table, std::iter::once((0, env))) {
                    settle_part(device, (table, &env.maps[t]), field, (part, &shard));
                }
            }
        }
    }
}

/// Of one part's shard.
fn settle_part<D: Device>(
    device: &D,
    (table, map): (&Table, &RowMap),
    field: Field,
    (part, shard): (usize, &ShardRange),
) {
    let width = field.columns(part, shard).len();
    let replicas = field.stored(part + table.sharding.parts() as usize);
    // Nothing is kept of gradients, but where they are asked for.
    if device.len(replicas) == 0 {
        return;
    }
    let mut values = Vec::with_capacity(table.hot.len() * width);
    device.read(replicas, 0..table.hot.len() * width, &mut |own| values.extend_from_slice(own));
    for (row, own) in table.hot.iter().zip(values.chunks_exact(width.max(1))) {
        let slot = map.slot(*row);
        if shard.rows.contains(&slot) {
            device.write(field.stored(part), (slot - shard.rows.start) as usize * width, own);
        }
    }
}

/// Rows that are in both, if there are any.
fn common(a: &Range<u64>, b: &Range<u64>) -> Option<Range<u64>> {
    let (first, last) = (a.start.max(b.start), a.end.min(b.end));
    (first < last).then_some(first..last)
}

/// The rows of a shard among some rows of its table, in order: runs of rows whose slots follow each other, each with its
/// first slot.
fn runs<'a>(
    map: &'a RowMap,
    shard: &'a ShardRange,
    rows: &Range<u64>,
) -> impl Iterator<Item = (Range<u64>, u64)> + use<'a> {
    let (whole, each) = if map.is_range() { (common(&shard.rows, rows), 0..0) } else { (None, rows.clone()) };
    let slots = each.map(|row| (row..row + 1, map.slot(row)));
    let whole = whole.map(|rows| (rows.clone(), rows.start));
    whole.into_iter().chain(slots.filter(|(_, slot)| shard.rows.contains(slot)))
}

/// Which rows of a table this process holds.
pub(crate) struct Holding<'a> {
    /// Rows that all ranks have.
    hot: &'a [u64],
    map: &'a RowMap,
    slots: Vec<Range<u64>>,
}

impl<'a> Holding<'a> {
    /// Those of which it has some of these columns.
    pub(crate) fn new(ranks: &'a [Env], field: &Field, columns: &Range<usize>) -> Self {
        let table = &ranks[0].schedule.tables[field.table];
        let own = shards(table, ranks.iter().enumerate());
        let own = own.filter(|(_, part, shard)| {
            let has = field.columns(*part, shard);
            has.start.max(columns.start) < has.end.min(columns.end)
        });
        let slots = own.map(|(.., shard)| shard.rows).collect();
        Self { hot: &table.hot, map: &ranks[0].maps[field.table], slots }
    }

    /// Whether some of these rows are, or may be.
    pub(crate) fn some(&self, rows: &Range<u64>) -> bool {
        let here = |slots: &Range<u64>| !self.map.is_range() || common(slots, rows).is_some();
        let first = self.hot.partition_point(|hot| *hot < rows.start);
        self.hot.get(first).is_some_and(|hot| *hot < rows.end) || self.slots.iter().any(here)
    }

    /// Whether a row is.
    pub(crate) fn has(&self, row: u64) -> bool {
        let slot = if self.map.is_range() { row } else { self.map.slot(row) };
        self.hot.binary_search(&row).is_ok() || self.slots.iter().any(|slots| slots.contains(&slot))
    }
}

/// What the shards of this process have of some rows, written so that [`place`] can put it into a table.
pub(crate) fn pieces<D: Device>(
    (ranks, devices): (&[Env], &[D]),
    field: &Field,
    rows: &Range<u64>,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    let whole = &ranks[0].schedule.tables[field.table];
    for (at, part, shard) in holders(whole, ranks) {
        let columns = field.columns(part, &shard);
        let own: Vec<_> = runs(&ranks[at].maps[field.table], &shard, rows).collect();
        if own.is_empty() || columns.is_empty() {
            continue;
        }
        let header = [columns.start as u64, columns.end as u64, own.len() as u64];
        for n in header.into_iter().chain(own.iter().flat_map(|(rows, _)| [rows.start, rows.end])) {
            bytes.extend_from_slice(&n.to_le_bytes());
        }
        for (rows, slot) in own {
            let from = (slot - shard.rows.start) as usize;
            let elements = from * columns.len()..(from + (rows.end - rows.start) as usize) * columns.len();
            let mut write = |values: &[D::Real]| D::Real::write_le(values, &mut bytes);
            devices[at].read(field.stored(part), elements, &mut write);
        }
    }
    bytes
}

/// Puts what [`pieces`] has written into some rows of a table that have `width` numbers each; `out` grows to hold them.
pub(crate) fn place<T: Real>(
    bytes: &[u8],
    rows: &Range<u64>,
    width: usize,
    out: &mut Vec<T>,
) -> Result<(), BadFrame> {
    let mut reader = Reader::plain(bytes);
    let (mut values, mut runs) = (Vec::new(), Vec::new());
    while !reader.is_empty() {
        let (start, end) = (reader.size()?, reader.size()?);
        let bad = Err(BadFrame::Short("the rows of a table"));
        if !(start < end && end <= width) {
            return bad;
        }
        runs.clear();
        for _ in 0..reader.number()? {
            let (first, last) = (reader.number()?, reader.number()?);
            if !(rows.start <= first && first < last && last <= rows.end) {
                return bad;
            }
            runs.push((first, last));
        }
        out.resize(out.len().max((rows.end - rows.start) as usize * width), T::ZERO);
        for (first, last) in &runs {
            let n = (last - first) as usize * (end - start);
            values.clear();
            T::read_le(reader.bytes(n * size_of::<T>())?, &mut values);
            let targets = out[(first - rows.start) as usize * width..].chunks_exact_mut(width);
            for (target, row) in targets.zip(values.chunks_exact(end - start)) {
                target[start..end].copy_from_slice(row);
            }
        }
    }
    Ok(())
}

/// Appends some rows, put together from what every shard has of them.
pub(crate) fn read<D: Device>(
    (ranks, devices): (&[Env], &[D]),
    field: &Field,
    rows: &Range<u64>,
    out: &mut Vec<D::Real>,
) {
    let before = out.len();
    out.resize(before + (rows.end - rows.start) as usize * field.width, D::Real::ZERO);
    let block = &mut out[before..];
    let whole = &ranks[0].schedule.tables[field.table];
    for (rank, part, shard) in holders(whole, ranks) {
        let columns = field.columns(part, &shard);
        if columns.is_empty() {
            continue;
        }
        for (own, slot) in runs(&ranks[rank].maps[field.table], &shard, rows) {
            let from = (slot - shard.rows.start) as usize;
            let elements = from * columns.len()..(from + (own.end - own.start) as usize) * columns.len();
            let target = &mut block[(own.start - rows.start) as usize * field.width..];
            // Pieces end where the device likes.
            let mut at = 0;
            devices[rank].read(field.stored(part), elements, &mut |values| {
                if columns.len() == field.width {
                    target[at..at + values.len()].copy_from_slice(values);
                    at += values.len();
                    return;
                }
                for value in values {
                    target[at / columns.len() * field.width + columns.start + at % columns.len()] = *value;
                    at += 1;
                }
            });
        }
    }
}

/// Writes some columns of rows from `first` on to whoever holds them.
pub(crate) fn write<D: Device>(
    (ranks, devices): (&[Env], &[D]),
    field: &Field,
    (first, given): (u64, &Range<usize>),
    values: &[D::Real],
) {
    let width = given.len().max(1);
    let rows = first..first + (values.len() / width) as u64;
    let whole = &ranks[0].schedule.tables[field.table];
    let mut own_columns = Vec::new();
    for (rank, part, shard) in shards_of(whole, ranks.iter().enumerate(), 0..whole.shards() as usize) {
        let columns = field.columns(part, &shard);
        let both = columns.start.max(given.start)..columns.end.min(given.end);
        if both.is_empty() {
            continue;
        }
        let taken = both.start - given.start..both.end - given.start;
        let is_hot = whole.is_hot(part as u32);
        let map = &ranks[rank].maps[field.table];
        let owned = (!is_hot).then(|| runs(map, &shard, &rows)).into_iter().flatten();
        let owned = owned.map(|(own, slot)| (own, (slot - shard.rows.start) as usize));
        let replicas = is_hot.then(|| hot(whole, &rows)).into_iter().flatten();
        for (own, at) in owned.chain(replicas.map(|(row, at)| (row..row + 1, at))) {
            let block = &values[(own.start - first) as usize * width..(own.end - first) as usize * width];
            let at = at * columns.len();
            if columns == *given {
                devices[rank].write(field.stored(part), at, block);
            } else if both == columns {
                own_columns.clear();
                block.chunks_exact(width).for_each(|row| own_columns.extend_from_slice(&row[taken.clone()]));
                devices[rank].write(field.stored(part), at, &own_columns);
            } else {
                let starts = (at + both.start - columns.start..).step_by(columns.len());
                for (at, row) in starts.zip(block.chunks_exact(width)) {
                    devices[rank].write(field.stored(part), at, &row[taken.clone()]);
                }
            }
        }
    }
}
