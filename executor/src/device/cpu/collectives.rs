//! Operations that move data between ranks, in two halves: [`fill`] writes this rank's outbox, [`drain`] reads the
//! others' once all have posted. Nothing waits in between, so a thread that runs several collectives never blocks.
//!
//! A collective carries the data of one or more exchanges, a section each. Who gets what follows from the sharding:
//! entries of a row-wise table are sorted by owner and `counts` says how many each owner gets; all entries of a
//! table-wise table, or of a part of a column-wise one, go to its one owner; those of a data-parallel table go to
//! everyone. A rank's own part does not travel.

use fs_kernels::Real;
use fs_kernels::partition::{Uses, last_uses};
use fs_schedule::action::{Effect, Facts, Payload, Peers};
use fs_schedule::{Action, Symbol};

use super::arena::Read;
use super::chunks::{Chunk, copy, extend, place, place_part};
use super::inbox::receive;
use super::owners::{by_owner, span, spans, sum};
use super::pieces::{Pieces, Stop, check};
use super::{Call, Fault, all_reduce, asked, balance, carry, rank_items};
use crate::device::Inbox;
use crate::device::shards::shard_of;
use crate::transport::{HostOutbox, Widths};

/// What a collective moves.
enum Moves<'a> {
    Ids {
        exchanges: &'a [u32],
        everyone: bool,
    },
    /// On behalf of the ranks that work on samples.
    Asked {
        exchanges: &'a [u32],
    },
    Classes {
        exchanges: &'a [u32],
    },
    /// Rows to those who asked.
    Rows {
        exchanges: &'a [u32],
    },
    /// Gradients to owners, or to everyone.
    Grads {
        exchanges: &'a [u32],
        everyone: bool,
    },
    Reduce,
    /// Queries, scores and counts, to and fro.
    Rank,
    Lengths,
    Samples,
    /// To who works on samples, or back.
    Values,
}

fn moves(action: &Action) -> Result<Moves<'_>, Fault> {
    let Facts { transfer, of, .. } = action.facts();
    let transfer = transfer.ok_or(Fault::NotTransfer)?;
    let (exchanges, everyone) = (of.exchanges, transfer.peers == Peers::Everyone);
    Ok(match transfer.payload {
        Payload::Ids => Moves::Ids { exchanges, everyone },
        Payload::Asked => Moves::Asked { exchanges },
        Payload::Classes => Moves::Classes { exchanges },
        Payload::Rows => Moves::Rows { exchanges },
        Payload::Gradients => Moves::Grads { exchanges, everyone },
        Payload::Sums => Moves::Reduce,
        Payload::Ranks => Moves::Rank,
        Payload::Lengths => Moves::Lengths,
        Payload::Samples => Moves::Samples,
        Payload::Values => Moves::Values,
    })
}

/// Rounds in which a collective goes to and fro for this batch.
pub(super) fn rounds<T: Real>(c: &Call<T>) -> Result<u64, Fault> {
    match moves(&c.op.action)? {
        Moves::Rank => rank_items::rounds(c),
        Moves::Reduce => Ok(all_reduce::rounds(c)),
        _ => Ok(u64::from(c.op.action.rounds())),
    }
}

/// Writes this rank's outbox of a round. `inbox` gives the others' of the round before.
pub(super) fn fill<T: Real>(
    c: &Call<T>,
    round: u64,
    outbox: &mut HostOutbox<T>,
    inbox: Inbox<'_, HostOutbox<T>>,
    pieces: &mut Pieces<'_>,
) -> Result<(), Stop> {
    let me = c.env.rank;
    match moves(&c.op.action)? {
        Moves::Ids { exchanges, everyone } => {
            let each = c.op.reads.len() / exchanges.len();
            for (i, exchange) in exchanges.iter().enumerate() {
                if !pieces.next()? {
                    continue;
                }
                let (entries, counts) = (c.read_ids(each * i)?, c.read_counts(each * i + 1)?);
                let uses = if each > 2 { Some(c.read_bytes(each * i + 2)?) } else { None };
                let (entries, uses) = (entries.slice()?, uses.as_ref().map(Read::slice).transpose()?);
                let section = &mut outbox.sections[i];
                if everyone {
                    section.everyone = true;
                    section
                        .counts
                        .extend((0..c.env.ranks).map(|r| if r == me { 0 } else { entries.len() as u64 }));
                    section.indices.extend(entries.iter().map(|id| *id as u32));
                    section.bytes.extend_from_slice(uses.unwrap_or_default());
                } else {
                    let counts = counts.slice()?;
                    for (to, range, first) in by_owner(c, *exchange, counts, entries.len())? {
                        section.counts.push(if to == me { 0 } else { range.len() as u64 });
                        if to == me {
                            continue;
                        }
                        section.indices.extend(entries[range.clone()].iter().map(|id| (id - first) as u32));
                        if let Some(uses) = uses {
                            section.bytes.extend_from_slice(&uses[2 * range.start..2 * range.end]);
                        }
                    }
                }
                let bytes = if uses.is_some() { 2 } else { 0 };
                section.widths = Widths { indices: 1, bytes, ..Widths::default() };
            }
        }
        Moves::Asked { exchanges } => {
            for (i, exchange) in exchanges.iter().enumerate() {
                if pieces.next()? {
                    asked::fill(c, (i, *exchange, exchanges.len()), &mut outbox.sections[i])?;
                }
            }
        }
        Moves::Classes { exchanges } => {
            for i in 0..exchanges.len() {
                if !pieces.next()? {
                    continue;
                }
                let (classes, received) = (c.read_bytes(3 * i)?, c.read_counts(3 * i + 1)?);
                let (classes, received) = (classes.slice()?, received.slice()?);
                check("classes", classes.len(), sum(received))?;
                let section = &mut outbox.sections[i];
                for (to, range) in spans(received) {
                    section.counts.push(if to == me { 0 } else { range.len() as u64 });
                    if to != me {
                        section.bytes.extend_from_slice(&classes[range]);
                    }
                }
                section.widths.bytes = 1;
            }
        }
        Moves::Rows { exchanges } => {
            for i in 0..exchanges.len() {
                let (rows, received) = (c.read(3 * i)?, c.read_counts(3 * i + 1)?);
                let received = received.slice()?;
                check("rows to send", rows.mat().rows(), sum(received))?;
                let section = &mut outbox.sections[i];
                section.counts.clear();
                section.widths.reals = rows.shape().columns();
                section.coding = c.coding(3 * i);
                let chunk = Chunk::of(c, section.coding);
                for (to, range) in spans(received) {
                    section.counts.push(if to == me { 0 } else { range.len() as u64 });
                    if to != me {
                        extend(&mut section.reals, rows.mat(), range, chunk, pieces)?;
                    }
                }
            }
        }
        Moves::Grads { exchanges, everyone } => {
            for (i, exchange) in exchanges.iter().enumerate() {
                let (grads, counts) = (c.read(3 * i)?, c.read_counts(3 * i + 1)?);
                let (mat, counts) = (grads.mat(), counts.slice()?);
                let section = &mut outbox.sections[i];
                section.counts.clear();
                section.widths.reals = mat.cols();
                section.coding = c.coding(3 * i);
                let chunk = Chunk::of(c, section.coding);
                if everyone {
                    check("gradients to send", mat.rows(), sum(counts))?;
                    section.everyone = true;
                    section
                        .counts
                        .extend((0..c.env.ranks).map(|r| if r == me { 0 } else { mat.rows() as u64 }));
                    extend(&mut section.reals, mat, 0..mat.rows(), chunk, pieces)?;
                } else {
                    for (to, range, _) in by_owner(c, *exchange, counts, mat.rows())? {
                        section.counts.push(if to == me { 0 } else { range.len() as u64 });
                        if to != me {
                            extend(&mut section.reals, mat, range, chunk, pieces)?;
                        }
                    }
                }
            }
        }
        Moves::Reduce => all_reduce::fill(c, round, outbox, inbox, pieces)?,
        Moves::Rank => {
            if pieces.next()? {
                rank_items::fill(c, round, outbox, inbox)?;
            }
        }
        Moves::Lengths => {
            if pieces.next()? {
                balance::share_fill(c, outbox)?;
            }
        }
        Moves::Samples => balance::dispatch_fill(c, outbox, pieces)?,
        Moves::Values => carry::fill(c, outbox, pieces)?,
    }
    Ok(())
}

/// Reads what the others posted.
pub(super) fn drain<T: Real>(
    c: &Call<T>,
    inbox: Inbox<'_, HostOutbox<T>>,
    pieces: &mut Pieces<'_>,
) -> Result<(), Stop> {
    let me = c.env.rank;
    match moves(&c.op.action)? {
        Moves::Ids { exchanges, everyone } => {
            for (i, exchange) in exchanges.iter().enumerate() {
                if pieces.next()? {
                    drain_ids(c, i, *exchange, exchanges.len(), everyone, inbox)?;
                }
            }
        }
        Moves::Asked { exchanges } => {
            for (i, exchange) in exchanges.iter().enumerate() {
                if pieces.next()? {
                    asked::drain(c, (i, *exchange, exchanges.len()), inbox)?;
                }
            }
        }
        Moves::Classes { exchanges } => {
            for (i, exchange) in exchanges.iter().enumerate() {
                if !pieces.next()? {
                    continue;
                }
                let (own, received) = (c.read_bytes(3 * i)?, c.read_counts(3 * i + 1)?);
                let counts = c.read_counts(3 * i + 2)?;
                let (own, received) = (own.slice()?, received.slice()?);
                let mut classes = c.write_bytes(i)?;
                let classes = classes.slice();
                for (from, range, _) in by_owner(c, *exchange, counts.slice()?, classes.len())? {
                    let target = &mut classes[range];
                    if from == me {
                        copy(&own[span(received, me)], target)?;
                    } else {
                        receive(inbox, from, i, |part| copy(part.bytes, target))?;
                    }
                }
            }
        }
        Moves::Rows { exchanges } => {
            for (i, exchange) in exchanges.iter().enumerate() {
                let (own, received) = (c.read(3 * i)?, c.read_counts(3 * i + 1)?);
                let counts = c.read_counts(3 * i + 2)?;
                let kept = span(received.slice()?, me);
                let chunk = Chunk::of(c, c.coding(3 * i));
                let mut writes = c.write([i])?;
                let (mut target, _) = writes.first()?;
                for (from, range, _) in by_owner(c, *exchange, counts.slice()?, target.rows())? {
                    let part = target.rows_range_mut(range);
                    if from == me {
                        place(own.mat().rows_range(kept.clone()), part, chunk, pieces)?;
                    } else {
                        receive(inbox, from, i, |sent| place_part(&sent, part, chunk, pieces))?;
                    }
                }
            }
        }
        Moves::Grads { exchanges, everyone } => {
            for (i, exchange) in exchanges.iter().enumerate() {
                let (own, counts) = (c.read(3 * i)?, c.read_counts(3 * i + 1)?);
                let received = c.read_counts(3 * i + 2)?;
                let (received, n) = (received.slice()?, own.mat().rows());
                let chunk = Chunk::of(c, c.coding(3 * i));
                let kept = if everyone {
                    0..n
                } else {
                    let mut owners = by_owner(c, *exchange, counts.slice()?, n)?;
                    owners.find(|(owner, ..)| *owner == me).map_or(0..0, |(_, range, _)| range)
                };
                let mut writes = c.write([i])?;
                let (mut target, _) = writes.first()?;
                check("gradients to receive", target.rows(), sum(received))?;
                for (from, range) in spans(received) {
                    let part = target.rows_range_mut(range);
                    if from == me {
                        place(own.mat().rows_range(kept.clone()), part, chunk, pieces)?;
                    } else {
                        receive(inbox, from, i, |sent| place_part(&sent, part, chunk, pieces))?;
                    }
                }
            }
        }
        Moves::Reduce => all_reduce::drain(c, inbox, pieces)?,
        Moves::Rank => {
            if pieces.next()? {
                rank_items::drain(c, inbox)?;
            }
        }
        Moves::Lengths => {
            if pieces.next()? {
                balance::share_drain(c, inbox)?;
            }
        }
        Moves::Samples => {
            if pieces.next()? {
                balance::dispatch_drain(c, inbox)?;
            }
        }
        Moves::Values => carry::drain(c, inbox, pieces)?,
    }
    Ok(())
}

/// Received entries become rows of the own shard; only now is it known how many there are.
fn drain_ids<T: Real>(
    c: &Call<T>,
    i: usize,
    exchange: u32,
    exchanges: usize,
    everyone: bool,
    inbox: Inbox<'_, HostOutbox<T>>,
) -> Result<(), Fault> {
    let me = c.env.rank;
    let (each, wide) = (c.op.reads.len() / exchanges, c.op.writes.len() / exchanges);
    let (entries, counts) = (c.read_ids(each * i)?, c.read_counts(each * i + 1)?);
    let uses = if each > 2 { Some(c.read_bytes(each * i + 2)?) } else { None };
    let (entries, uses) = (entries.slice()?, uses.as_ref().map(Read::slice).transpose()?);
    let (kept, first) = if everyone {
        (0..entries.len(), 0)
    } else {
        let mut owners = by_owner(c, exchange, counts.slice()?, entries.len())?;
        owners.find(|(owner, ..)| *owner == me).map_or((0..0, 0), |(_, range, first)| (range, first))
    };
    let mut received = c.write_counts(wide * i + 1)?;
    let received = received.slice();
    check("ranks", received.len(), c.env.ranks)?;
    for (from, count) in received.iter_mut().enumerate() {
        *count =
            if from == me { kept.len() } else { receive(inbox, from, i, |part| Ok::<_, Fault>(part.count))? }
                as u64;
    }
    c.learn(Symbol::Received(exchange), sum(received));
    c.served(exchange, sum(received));
    let mut rows = c.write_indices(wide * i)?;
    let rows = rows.slice();
    for (from, range) in spans(received) {
        let target = &mut rows[range];
        if from == me {
            for (row, id) in target.iter_mut().zip(&entries[kept.clone()]) {
                *row = (id - first) as u32;
            }
        } else {
            receive(inbox, from, i, |part| copy(part.indices, target))?;
        }
    }
    if everyone {
        let mut own = c.write_indices(wide * i + 2)?;
        for (row, id) in own.slice().iter_mut().zip(entries) {
            *row = *id as u32;
        }
    }
    let Some(uses) = uses else { return Ok(()) };
    let mut all = c.write_bytes(wide * (i + 1) - 1)?;
    let all = all.slice();
    for (from, range) in spans(received) {
        let target = &mut all[2 * range.start..2 * range.end];
        if from == me {
            copy(&uses[2 * kept.start..2 * kept.end], target)?;
        } else {
            receive(inbox, from, i, |part| copy(part.bytes, target))?;
        }
    }
    if everyone {
        // Gradients of a row stay together: their class follows from its last use by any rank.
        let (plan, table) = c.exchange(exchange)?;
        let shard = shard_of(table, plan.part, c.env.ranks) as usize;
        c.touches(Effect::WritesUses);
        let mut last = c.last_uses(exchange).lock();
        let mut work = c.work.lock();
        let of_all = Uses { rows, uses: Some(all) };
        last_uses(of_all, span(received, me), shard, &mut work.partition, &mut last);
    }
    Ok(())
}
