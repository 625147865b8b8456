//! Samples on their way to the ranks that work on them: lengths to everyone, the plan, values.
//!
//! A sample's values travel as numbers of 32 bits (ids, and the bits of features and labels), a section for each input.
//! Samples for a rank go microbatch by microbatch, ascending in each: so the receiver has them in its list.

use fs_kernels::Real;
use fs_schedule::action::Effect;
use fs_schedule::{InputKind, Op, Place, Program, Site, Table};

use super::inbox::receive;
use super::pieces::{Pieces, Stop, check};
use super::{Call, Fault};
use crate::data::Values;
use crate::data::assign::homes;
use crate::data::samples::{Dealt, Lists};
use crate::data::share::Column;
use crate::device::Inbox;
use crate::transport::{HostOutbox, Widths};

/// The lengths of a sample at home.
fn lengths<T: Real>(c: &Call<T>, sample: u64, columns: usize, out: &mut Vec<u32>) {
    let share = &c.batch.share;
    out.extend((0..columns).map(|group| share.length(group, sample).unwrap_or(0) as u32));
}

/// This rank's lengths for everyone.
pub(super) fn share_fill<T: Real>(c: &Call<T>, outbox: &mut HostOutbox<T>) -> Result<(), Fault> {
    c.touches(Effect::ReadsBatch);
    let (me, columns) = (c.env.rank, columns(c)?);
    let section = &mut outbox.sections[0];
    let own = c.batch.share.lists(Site::Home).map(Lists::samples).unwrap_or_default();
    section.everyone = true;
    section.widths = Widths { indices: columns, ..Widths::default() };
    section.counts.extend((0..c.env.ranks).map(|to| if to == me { 0 } else { own.len() as u64 }));
    let worked = worked_rows(c, columns);
    if worked > 0 {
        section
            .counts
            .iter_mut()
            .enumerate()
            .filter(|(to, _)| *to != me)
            .for_each(|(_, n)| *n += worked as u64);
        section.indices.extend([c.batch.worked as u32, (c.batch.worked >> 32) as u32]);
        section.indices.resize(worked * columns, 0);
    }
    for sample in own {
        lengths(c, *sample, columns, &mut section.indices);
    }
    Ok(())
}

/// Rows before the lengths in which a rank says how long it worked: two numbers.
fn worked_rows<T: Real>(c: &Call<T>, columns: usize) -> usize {
    if c.env.measures(c.program) { 2usize.div_ceil(columns) } else { 0 }
}

fn columns<T: Real>(c: &Call<T>) -> Result<usize, Fault> {
    let buffer = c.buffer_of(true, 0).ok_or_else(|| c.wrong(true, 0, "a buffer of lengths"))?;
    Ok(buffer.columns as usize)
}

/// Everyone's lengths, by sample.
pub(super) fn share_drain<T: Real>(c: &Call<T>, inbox: Inbox<'_, HostOutbox<T>>) -> Result<(), Fault> {
    let (me, columns, batch) = (c.env.rank, columns(c)?, c.dealt());
    let mut all = c.write_indices(0)?;
    let all = all.slice();
    all.fill(0);
    check("samples of a batch", batch.samples.min(all.len() / columns), batch.samples)?;
    let (mut lists, mut own, home) = std::mem::take(&mut c.work.lock().homes);
    let worked = worked_rows(c, columns);
    for from in 0..c.env.ranks {
        lists.clear();
        c.env.deal.home(Dealt { rank: from, ..batch }, &mut lists);
        let mut put = |numbers: &[u32]| {
            check("lengths of a rank", numbers.len(), (worked + lists.samples().len()) * columns)?;
            let (time, numbers) = numbers.split_at(worked * columns);
            if let [low, high, ..] = *time {
                let (time, batch) = (u64::from(low) | u64::from(high) << 32, Dealt { rank: from, ..batch });
                c.env.assigner.lock().hear(&c.env.schedule, batch, c.env.batches.len(), time);
            }
            for (sample, lengths) in lists.samples().iter().zip(numbers.chunks_exact(columns)) {
                let at = *sample as usize * columns;
                all[at..at + columns].copy_from_slice(lengths);
            }
            Ok::<_, Fault>(())
        };
        if from == me {
            own.clear();
            if worked > 0 {
                own.extend([c.batch.worked as u32, (c.batch.worked >> 32) as u32]);
                own.resize(worked * columns, 0);
            }
            for sample in lists.samples() {
                lengths(c, *sample, columns, &mut own);
            }
            put(&own)?;
        } else {
            receive(inbox, from, 0, |part| put(part.indices))?;
        }
    }
    c.work.lock().homes = (lists, own, home);
    Ok(())
}

/// Whether samples at home are cut as those that are assigned: where work is done there by microbatch.
pub(crate) fn cuts_home(program: &Program, microbatches: usize) -> bool {
    let lists = |op: &Op| microbatches > 1 && op.action.facts().asks_for_others();
    program.ops.iter().any(|op| op.site.is_home() && (op.microbatch.is_some() || lists(op)))
}

/// Plans, and makes the rank's lists of samples known.
pub(super) fn assign<T: Real>(c: &Call<T>) -> Result<(), Fault> {
    let (lengths, batch) = (c.read_indices(0)?, c.dealt());
    let lengths = lengths.slice()?;
    let mut out = c.write_indices(0)?;
    let out = out.slice();
    c.env.assigner.lock().assign(&c.env.schedule, &*c.env.deal, batch, lengths, out)?;
    let (groups, columns) = (c.env.schedule.lengths.len(), lengths.len() / (out.len() / 2).max(1));
    let (me, out) = (c.env.rank as u32, &*out);
    let fill = |lists: &mut Lists| {
        for m in 0..batch.microbatches as u32 {
            let own = |sample: &usize| out[2 * sample..2 * sample + 2] == [me, m];
            lists.push((0..batch.samples).filter(own));
        }
    };
    let length = |sample: u64, group: usize| lengths[sample as usize * columns + group] as usize;
    if cuts_home(c.program, batch.microbatches) {
        let home = c.batch.share.lists(Site::Home).map(Lists::samples).unwrap_or_default();
        let fill = |lists: &mut Lists| {
            for m in 0..batch.microbatches as u32 {
                let own = home.iter().filter(|sample| out[2 * **sample as usize + 1] == m);
                lists.push(own.map(|sample| *sample as usize));
            }
        };
        if !c.batch.share.cut(&c.env.schedule, fill)? {
            return Err(Fault::Assigned);
        }
    }
    if c.batch.share.assign(fill, groups, length) { Ok(()) } else { Err(Fault::Assigned) }
}

/// Samples of this rank for those who work on them.
pub(super) fn dispatch_fill<T: Real>(
    c: &Call<T>,
    outbox: &mut HostOutbox<T>,
    pieces: &mut Pieces<'_>,
) -> Result<(), Stop> {
    c.touches(Effect::ReadsBatch);
    let mut order = std::mem::take(&mut c.work.lock().order);
    order.clear();
    // Kept also if it stops here for something more urgent.
    let outcome = fill_samples(c, outbox, pieces, &mut order);
    c.work.lock().order = order;
    outcome
}

/// The same; `order` is for the samples that leave: to which rank, in which microbatch, which.
fn fill_samples<T: Real>(
    c: &Call<T>,
    outbox: &mut HostOutbox<T>,
    pieces: &mut Pieces<'_>,
    order: &mut Vec<(u32, u32, u64)>,
) -> Result<(), Stop> {
    let (schedule, share) = (&c.env.schedule, &c.batch.share);
    let assignment = c.read_indices(0)?;
    let assignment = assignment.slice()?;
    let me = c.env.rank as u32;
    for sample in share.lists(Site::Home).map(Lists::samples).unwrap_or_default() {
        let at = 2 * *sample as usize;
        if assignment[at] != me {
            order.push((assignment[at], assignment[at + 1], *sample));
        }
    }
    order.sort_unstable();
    for (n, input) in inputs(c).enumerate() {
        if !pieces.next()? {
            continue;
        }
        let section = &mut outbox.sections[n];
        section.counts.resize(c.env.ranks, 0);
        section.widths = Widths { indices: 1, ..Widths::default() };
        let wide = schedule.input_words(input) == 2;
        let table = schedule.input_table(input);
        for (to, _, sample) in &*order {
            let before = section.indices.len();
            let found = share.sample(schedule, input, *sample);
            if let (Some(table), Some(Column::Ids(ids))) = (table, &found) {
                known(ids, table)?;
            }
            match found {
                Some(Column::Ids(ids)) if wide => {
                    section.indices.extend(ids.iter().flat_map(|id| [*id as u32, (*id >> 32) as u32]));
                }
                Some(Column::Ids(ids)) => section.indices.extend(ids.iter().map(|id| *id as u32)),
                Some(Column::Reals(reals)) => section.indices.extend(reals.iter().map(|x| x.to_bits())),
                None => return Err(c.wrong(false, 1 + n, "an input of the batch").into()),
            }
            section.counts[*to as usize] += (section.indices.len() - before) as u64;
        }
    }
    Ok(())
}

/// The inputs that travel, in order.
fn inputs<T: Real>(c: &Call<T>) -> impl Iterator<Item = usize> {
    c.op.reads.iter().filter_map(|o| match o.place {
        Place::Input(n) => Some(n as usize),
        _ => None,
    })
}

/// Ids of an input in a buffer.
pub(super) fn copy_ids<T: Real>(c: &Call<T>) -> Result<(), Fault> {
    let Some(Column::Ids(ids)) = c.input(0, c.op.microbatch)? else {
        return Err(c.wrong(false, 0, "ids of an input"));
    };
    copy(ids, Some(c.write_ids(0)?.slice()))
}

/// The samples that this rank works on, from those who read them.
pub(super) fn dispatch_drain<T: Real>(c: &Call<T>, inbox: Inbox<'_, HostOutbox<T>>) -> Result<(), Fault> {
    c.touches(Effect::AssignsBatch);
    let mut outcome = Ok(());
    let brought = c.batch.share.bring(|values| outcome = gather(c, inbox, values));
    outcome?;
    if brought { Ok(()) } else { Err(Fault::Assigned) }
}

fn gather<T: Real>(
    c: &Call<T>,
    inbox: Inbox<'_, HostOutbox<T>>,
    values: &mut Vec<Values>,
) -> Result<(), Fault> {
    let (schedule, share, me) = (&c.env.schedule, &c.batch.share, c.env.rank);
    let list = share.lists(Site::Assigned).map(Lists::samples).unwrap_or_default();
    let (mut lists, lengths, mut home) = std::mem::take(&mut c.work.lock().homes);
    homes(&*c.env.deal, c.dealt(), &mut lists, &mut home);
    let span = share.part(Site::Assigned, None);
    values.resize_with(schedule.inputs.len(), || Values::Ids(Vec::new()));
    for (n, input) in inputs(c).enumerate() {
        let own = &mut values[input];
        let group = |input: usize| match schedule.inputs[input].kind {
            InputKind::Ids { lengths, .. } | InputKind::TokenLabel { lengths } => Some(lengths as usize),
            _ => None,
        };
        let (group, width) = match schedule.inputs[input].kind {
            InputKind::Next { of } => (group(of as usize), 0),
            InputKind::Dense { width } => (None, width as usize),
            InputKind::SampleLabel => (None, 1),
            InputKind::Ids { .. } | InputKind::TokenLabel { .. } => (group(input), 0),
        };
        let places = |k: usize| match group.map(|g| span.offsets(g)) {
            Some(offsets) => offsets[k]..offsets[k + 1],
            None => k * width..(k + 1) * width,
        };
        let total = if list.is_empty() { 0 } else { places(list.len() - 1).end };
        let ids = matches!(schedule.inputs[input].kind, InputKind::Ids { .. } | InputKind::Next { .. });
        let each = schedule.input_words(input);
        own.resize_as(ids, total);
        for (k, sample) in list.iter().enumerate().filter(|(_, s)| home[**s as usize] as usize == me) {
            let found = share.sample(schedule, input, *sample);
            let found = found.ok_or_else(|| c.wrong(false, 1 + n, "an input of the batch"))?;
            match (&mut *own, found) {
                (Values::Ids(own), Column::Ids(ids)) => copy(ids, own.get_mut(places(k)))?,
                (Values::Reals(own), Column::Reals(reals)) => copy(reals, own.get_mut(places(k)))?,
                _ => return Err(c.wrong(false, 1 + n, "an input of this kind")),
            }
        }
        for from in (0..c.env.ranks).filter(|from| *from != me) {
            receive(inbox, from, n, |part| {
                let mut left = part.indices;
                for (k, _) in list.iter().enumerate().filter(|(_, s)| home[**s as usize] as usize == from) {
                    let n = places(k).len() * each;
                    let (now, rest) = left.split_at_checked(n).ok_or_else(|| short(from, input))?;
                    left = rest;
                    match own {
                        Values::Ids(own) if each == 2 => {
                            for (id, halves) in own[places(k)].iter_mut().zip(now.chunks_exact(2)) {
                                *id = i64::from(halves[0]) | i64::from(halves[1]) << 32;
                            }
                        }
                        Values::Ids(own) => {
                            own[places(k)].iter_mut().zip(now).for_each(|(id, n)| *id = i64::from(*n));
                        }
                        Values::Reals(own) => {
                            own[places(k)].iter_mut().zip(now).for_each(|(x, n)| *x = f32::from_bits(*n));
                        }
                    }
                }
                check("numbers of samples", left.len(), 0)
            })?;
        }
    }
    c.work.lock().homes = (lists, lengths, home);
    Ok(())
}

/// Ids travel in as many bits as their table's rows take, so those that it does not have must not leave.
fn known(ids: &[i64], table: &Table) -> Result<(), Fault> {
    match ids.iter().find(|id| !u64::try_from(**id).is_ok_and(|id| id < table.rows)) {
        Some(id) => Err(Fault::IdOutOfRange { id: *id, table: table.name.clone(), rows: table.rows }),
        None => Ok(()),
    }
}

fn short(from: usize, input: usize) -> Fault {
    crate::transport::TransportError::Sizes(format!("rank {from} sent too little of input {input}")).into()
}

fn copy<E: Copy>(from: &[E], to: Option<&mut [E]>) -> Result<(), Fault> {
    let to = to.unwrap_or_default();
    check("values of a sample", from.len(), to.len())?;
    to.copy_from_slice(from);
    Ok(())
}
