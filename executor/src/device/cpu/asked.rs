//! Rows that are asked for on behalf of the ranks that work on samples: by who reads the samples, of the owners of the rows.
//!
//! An entry travels as two numbers, the row of the owner's shard and for whom it is, with two bytes of uses where rows are
//! told apart by them. The owner joins what all ranks ask for one user while it receives, so that what follows sees the
//! list that this user has found by itself.

use fs_kernels::Real;
use fs_kernels::asked::{Request, group_by_owner, join};
use fs_kernels::unique::{bucketize_by_owner, unique_by_owner, uses_of_entries};
use fs_schedule::action::Effect;
use fs_schedule::{Extent, InputKind, Place, Sharding, Site, Symbol};

use super::arena::{Few, Read, Whole};
use super::inbox::receive;
use super::owners::by_owner;
use super::pieces::check;
use super::sparse::bound;
use super::{Call, Fault, Work};
use crate::data::share::Column;
use crate::device::Inbox;
use crate::device::shards::rows_per_rank;
use crate::transport::{HostOutbox, Section, TransportError, Widths};

/// The length group of a list of ids, and how many ids a token has in it.
pub(crate) fn shape<T: Real>(c: &Call<T>, position: usize) -> Result<(usize, usize), Fault> {
    let inputs = &c.env.schedule.inputs;
    let group = |input: usize| match inputs[input].kind {
        InputKind::Ids { lengths, .. } => Some(lengths as usize),
        _ => None,
    };
    let found = match c.op.reads.get(position).map(|o| o.place) {
        Some(Place::Input(n)) => match inputs[n as usize].kind {
            InputKind::Next { of } => group(of as usize),
            _ => group(n as usize),
        }
        .map(|group| (group, 1)),
        _ => c.buffer_of(false, position).and_then(|b| match b.rows {
            Extent::Symbol(Symbol::Tokens(group)) => Some((group as usize, b.columns as usize)),
            _ => None,
        }),
    };
    found.ok_or_else(|| c.wrong(false, position, "ids of tokens"))
}

/// Lists what samples at home need, for each rank that works on some.
pub(super) fn unique_for<T: Real>(c: &Call<T>, exchange: u32) -> Result<(), Fault> {
    c.touches(Effect::ReadsBatch);
    let (plan, table) = c.exchange(exchange)?;
    let ranks = c.env.ranks;
    // Of whom rows are asked, and how many each has.
    let sole = table.sharding.owner(plan.part).map(|rank| rank as usize);
    let rows =
        if table.sharding == Sharding::RowWise { rows_per_rank(table.rows, ranks) } else { table.rows };
    let space = if sole.is_some() { table.rows } else { rows.saturating_mul(ranks as u64) }.max(1);
    let assignment = c.read_indices(0)?;
    let assignment = assignment.slice()?;
    let microbatches = c.env.schedule.settings.microbatches.max(1) as usize;
    let lists = c.op.reads.len() - 1;
    let each = (lists / microbatches).max(1);
    let part = |list: usize| (microbatches > 1).then_some((list / each) as u32);
    let out_of_range = |id: i64| Fault::IdOutOfRange { id, table: table.name.clone(), rows: table.rows };
    let map = &c.env.maps[plan.table as usize];
    let mut work = c.work.lock();
    let Work { unique, counts: boundaries, slots, next, uses, .. } = &mut *work;
    // Rows of all users as those of one table, in which each user has a copy of it.
    slots.clear();
    let mut ends: Few<usize> = Few::new();
    for list in 0..lists {
        let position = 1 + list;
        let start = slots.len();
        match c.input(position, part(list))? {
            Some(Column::Ids(ids)) => map.slots(ids, table.rows, slots),
            Some(_) => return Err(c.wrong(false, position, "ids")),
            None => map.slots(c.read_ids(position)?.slice()?, table.rows, slots),
        }
        .map_err(out_of_range)?;
        let (group, columns) = shape(c, position)?;
        let span = c.batch.share.part(Site::Home, part(list));
        let offsets = span.offsets(group);
        check("ids of samples", slots.len() - start, offsets.last().map_or(0, |n| n * columns))?;
        for (sample, range) in span.sample_keys().iter().zip(offsets.windows(2)) {
            let user = i64::from(assignment[2 * *sample as usize]);
            for slot in &mut slots[start + range[0] * columns..start + range[1] * columns] {
                *slot += user * space as i64;
            }
        }
        ends.push(slots.len());
    }
    let mut features: Few<&[i64]> = Few::new();
    let mut rest = slots.as_slice();
    let mut start = 0;
    for end in ends.as_slice() {
        let (own, others) = rest.split_at(end - start);
        features.push(own);
        (rest, start) = (others, *end);
    }
    let features = features.as_slice();
    let found = if plan.unique {
        unique_by_owner(features, space as usize, ranks, unique)
    } else {
        bucketize_by_owner(features, space as usize, ranks, unique)
    };
    found.map_err(|e| out_of_range(e.id))?;
    let n = unique.ids.len();
    c.learn(Symbol::Asked(exchange), n);
    let with_uses = c.op.writes.len() > 3;
    uses.clear();
    uses.resize(if with_uses { 2 * n } else { 0 }, 0);
    if with_uses {
        bound(c, exchange, features, boundaries)?;
        uses_of_entries(&unique.inverse, boundaries, n, uses);
    }
    let (mut entries, mut users, mut counts) = (c.write_ids(0)?, c.write_indices(2)?, c.write_counts(1)?);
    let (entries, users, counts) = (entries.slice(), users.slice(), counts.slice());
    check("ranks", counts.len(), ranks)?;
    let mut of_entries = if with_uses { Some(c.write_bytes(3)?) } else { None };
    let of_entries = of_entries.as_mut().map(Whole::slice).unwrap_or_default();
    let rows = if sole.is_some() { space } else { rows };
    group_by_owner(&unique.ids, space, rows, counts, next, |from, to, row, user| {
        (entries[to], users[to]) = (row, user);
        if with_uses {
            of_entries[2 * to..2 * to + 2].copy_from_slice(&uses[2 * from..2 * from + 2]);
        }
    });
    if let Some(owner) = sole {
        // All are one owner's.
        let missing = || Fault::NoOwner { table: table.name.clone(), owner, ranks };
        counts.fill(0);
        *counts.get_mut(owner).ok_or_else(missing)? = n as u64;
    }
    Ok(())
}

/// Operands and results of one exchange.
#[derive(Clone, Copy)]
struct Places {
    entries: usize,
    uses: bool,
    rows: usize,
}

impl Places {
    fn of<T: Real>(c: &Call<T>, n: usize, exchanges: usize) -> Self {
        let each = c.op.reads.len() / exchanges.max(1);
        Self { entries: each * n, uses: each > 3, rows: c.op.writes.len() / exchanges.max(1) * n }
    }
}

/// What this rank asks each owner for.
pub(super) fn fill<T: Real>(
    c: &Call<T>,
    (n, exchange, exchanges): (usize, u32, usize),
    section: &mut Section<T>,
) -> Result<(), Fault> {
    let at = Places::of(c, n, exchanges);
    let (entries, counts) = (c.read_ids(at.entries)?, c.read_counts(at.entries + 1)?);
    let users = c.read_indices(at.entries + 2)?;
    let uses = if at.uses { Some(c.read_bytes(at.entries + 3)?) } else { None };
    let (entries, users) = (entries.slice()?, users.slice()?);
    let uses = uses.as_ref().map(Read::slice).transpose()?;
    for (to, range, first) in by_owner(c, exchange, counts.slice()?, entries.len())? {
        if to == c.env.rank {
            section.counts.push(0);
            continue;
        }
        section.counts.push(range.len() as u64);
        let pairs = entries[range.clone()].iter().zip(&users[range.clone()]);
        section.indices.extend(pairs.flat_map(|(id, user)| [(id - first) as u32, *user]));
        if let Some(uses) = uses {
            section.bytes.extend_from_slice(&uses[2 * range.start..2 * range.end]);
        }
    }
    let bytes = if uses.is_some() { 2 } else { 0 };
    section.widths = Widths { indices: 2, bytes, ..Widths::default() };
    Ok(())
}

/// What all ranks ask this one for, as a list for each user; only now is it known how many there are.
pub(super) fn drain<T: Real>(
    c: &Call<T>,
    (n, exchange, exchanges): (usize, u32, usize),
    inbox: Inbox<'_, HostOutbox<T>>,
) -> Result<(), Fault> {
    let at = Places::of(c, n, exchanges);
    let mut requests = std::mem::take(&mut c.work.lock().requests);
    requests.clear();
    let outcome = gather(c, at, exchange, &mut requests, |from, requests| {
        receive(inbox, from, n, |part| {
            check("numbers of entries", part.indices.len(), 2 * part.count)?;
            check("uses of entries", part.bytes.len(), if at.uses { 2 * part.count } else { 0 })?;
            requests.extend(part.indices.chunks_exact(2).map(|pair| request(pair[0], pair[1])));
            let from = requests.len() - part.count;
            put_uses(&mut requests[from..], part.bytes);
            Ok::<_, Fault>(())
        })
    });
    let outcome = outcome.and_then(|()| state(c, at, exchange, &mut requests));
    c.work.lock().requests = requests;
    outcome
}

fn request(row: u32, user: u32) -> Request {
    Request { user, row, first: 0, last: 0 }
}

fn put_uses(requests: &mut [Request], uses: &[u8]) {
    for (request, pair) in requests.iter_mut().zip(uses.chunks_exact(2)) {
        (request.first, request.last) = (pair[0], pair[1]);
    }
}

/// This rank's own entries, and by `others` those of every other one.
fn gather<T: Real>(
    c: &Call<T>,
    at: Places,
    exchange: u32,
    requests: &mut Vec<Request>,
    mut others: impl FnMut(usize, &mut Vec<Request>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let me = c.env.rank;
    let (entries, counts) = (c.read_ids(at.entries)?, c.read_counts(at.entries + 1)?);
    let users = c.read_indices(at.entries + 2)?;
    let (entries, users) = (entries.slice()?, users.slice()?);
    let mut owners = by_owner(c, exchange, counts.slice()?, entries.len())?;
    let own = owners.find(|(owner, ..)| *owner == me);
    let (range, first) = own.map_or((0..0, 0), |(_, range, first)| (range, first));
    let pairs = entries[range.clone()].iter().zip(&users[range.clone()]);
    requests.extend(pairs.map(|(id, user)| request((id - first) as u32, *user)));
    if at.uses {
        let uses = c.read_bytes(at.entries + 3)?;
        put_uses(requests, &uses.slice()?[2 * range.start..2 * range.end]);
    }
    (0..c.env.ranks).filter(|from| *from != me).try_for_each(|from| others(from, requests))
}

/// The lists as results.
fn state<T: Real>(c: &Call<T>, at: Places, exchange: u32, requests: &mut Vec<Request>) -> Result<(), Fault> {
    join(requests, c.exchange(exchange)?.0.unique);
    let mut counts = c.write_counts(at.rows + 1)?;
    let counts = counts.slice();
    check("ranks", counts.len(), c.env.ranks)?;
    counts.fill(0);
    for request in &*requests {
        let nobody = || TransportError::Sizes(format!("somebody asks on behalf of rank {}", request.user));
        *counts.get_mut(request.user as usize).ok_or_else(nobody)? += 1;
    }
    c.learn(Symbol::Received(exchange), requests.len());
    c.served(exchange, requests.len());
    // Asking for itself, a user would have sent each entry of its list once: the row, and the uses where they are told.
    let entry = 4 + if at.uses { 2 } else { 0 };
    c.spared(entry * requests.iter().filter(|request| request.user as usize != c.env.rank).count());
    let mut rows = c.write_indices(at.rows)?;
    rows.slice().iter_mut().zip(&*requests).for_each(|(row, request)| *row = request.row);
    if at.uses {
        let mut uses = c.write_bytes(at.rows + 2)?;
        for (pair, request) in uses.slice().chunks_exact_mut(2).zip(&*requests) {
            pair.copy_from_slice(&[request.first, request.last]);
        }
    }
    Ok(())
}
