//! Sums of dense gradients over ranks. Who adds up what is [`Sums`]' rule; here gradients and sums come into outboxes and out of them.

use fs_kernels::{Mat, MatMut, Real, elementwise};

use super::chunks::{Chunk, copy, extend};
use super::inbox::receive;
use super::pieces::{Pieces, Stop, check};
use super::{Call, Fault};
use crate::device::Inbox;
use crate::device::sums::{Content, Sums};
use crate::transport::{Coding, HostOutbox};

/// Rounds, which do not depend on how many elements there are: a GPU's are not the host's.
pub(super) fn rounds<T: Real>(c: &Call<T>) -> u64 {
    Sums::new(c.env, 0).rounds()
}

/// What is sent of dense gradients and their sums ([`Sums`]), rounded as it travels.
pub(super) fn fill<T: Real>(
    c: &Call<T>,
    round: u64,
    outbox: &mut HostOutbox<T>,
    inbox: Inbox<'_, HostOutbox<T>>,
    pieces: &mut Pieces<'_>,
) -> Result<(), Stop> {
    let (sums, ranks) = (sums(c)?, c.env.ranks);
    let section = &mut outbox.sections[0];
    section.widths.reals = 1;
    section.coding = Coding::of(c.env.schedule.settings.wire.dense);
    section.everyone = sums.everyone(round);
    section.counts.clear();
    section.counts.extend((0..ranks).map(|to| sums.count(round, to) as u64));
    let coding = section.coding;
    match sums.content(round) {
        Content::Own => {
            for own in sums.own() {
                let mut begin = 0;
                for position in 0..c.op.reads.len() {
                    let parameter = c.gradient(position)?;
                    let n = elements(c, parameter);
                    let (start, end) = (own.start.max(begin), own.end.min(begin + n));
                    if start < end {
                        let gradient = c.cpu.dense[parameter].gradient.try_read();
                        let gradient =
                            gradient.ok_or_else(|| Fault::Conflict(c.op.reads[position].to_string()))?;
                        let (chunk, part) = (Chunk::of(c, coding), start - begin..end - begin);
                        extend(&mut section.reals, Mat::new(&gradient, n, 1), part, chunk, pieces)?;
                    }
                    begin += n;
                }
            }
        }
        Content::Sum => {
            let n = sums.sums(round);
            section.reals.resize(n, T::ZERO);
            let target = &mut section.reals;
            for (i, from) in sums.added(round).enumerate() {
                if !pieces.next()? {
                    continue;
                }
                receive(inbox, from, 0, |part| {
                    check("values of an all-reduce", part.reals.len(), n)?;
                    if i == 0 {
                        target.copy_from_slice(part.reals);
                    } else {
                        for (sum, value) in target.iter_mut().zip(part.reals) {
                            *sum += *value;
                        }
                    }
                    Ok::<(), Fault>(())
                })?;
            }
        }
        Content::Joined => {
            section.reals.resize(sums.sums(1), T::ZERO);
            let mut rest = &mut section.reals[..];
            for (from, n) in sums.joined() {
                let (target, behind) = rest.split_at_mut(n);
                rest = behind;
                if pieces.next()? {
                    receive(inbox, from, 0, |part| copy(part.reals, target))?;
                }
            }
        }
    }
    round_to(coding, &mut section.reals);
    Ok(())
}

/// What is left of numbers on their way.
fn round_to<T: Real>(coding: Coding, values: &mut [T]) {
    if coding == Coding::Brain {
        let n = values.len();
        elementwise::round_to_bf16(MatMut::new(values, 1, n));
    }
}

/// Takes in sums.
pub(super) fn drain<T: Real>(
    c: &Call<T>,
    inbox: Inbox<'_, HostOutbox<T>>,
    pieces: &mut Pieces<'_>,
) -> Result<(), Stop> {
    let of_all = sums(c)?;
    let mut begin = 0;
    for position in 0..c.op.reads.len() {
        let parameter = c.gradient(position)?;
        let gradient = &c.cpu.dense[parameter].gradient;
        if !pieces.next()? {
            begin += elements(c, parameter);
            continue;
        }
        let gradient = gradient.try_write();
        let mut gradient = gradient.ok_or_else(|| Fault::Conflict(c.op.reads[position].to_string()))?;
        let end = begin + gradient.len();
        for (from, all) in of_all.comes() {
            let mut before = 0;
            for sums in of_all.shares(from) {
                let (start, stop) = (sums.start.max(begin), sums.end.min(end));
                if start < stop {
                    let target = &mut gradient[start - begin..stop - begin];
                    let first = before + start - sums.start;
                    receive(inbox, from, 0, |part| {
                        check("sums of an all-reduce", part.reals.len(), all)?;
                        copy(&part.reals[first..first + target.len()], target)
                    })?;
                }
                before += sums.len();
            }
        }
        begin = end;
    }
    Ok(())
}

/// How its elements are summed.
fn sums<T: Real>(c: &Call<T>) -> Result<Sums, Fault> {
    let total =
        (0..c.op.reads.len()).try_fold(0, |sum, i| Ok::<_, Fault>(sum + elements(c, c.gradient(i)?)))?;
    Ok(Sums::new(c.env, total))
}

fn elements<T: Real>(c: &Call<T>, parameter: usize) -> usize {
    let p = &c.env.schedule.parameters[parameter];
    p.rows as usize * p.columns as usize
}
