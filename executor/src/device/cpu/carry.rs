//! Values of samples between the ranks that read them and those that work on them.
//!
//! A rank sends the rows of each sample to the rank that has the sample at the other site, which puts them where its own
//! list has the sample. Both sides go through what one rank sends another in the order of the samples' numbers, whatever
//! the order of their lists. Nothing is computed, so what goes there and back is what it was.

use std::ops::Range;

use fs_kernels::{Mat, Real, Write, elementwise};
use fs_schedule::{Extent, Site, Symbol};

use super::inbox::receive;
use super::pieces::{Pieces, Stop, check};
use super::{Call, Fault};
use crate::data::assign::homes;
use crate::data::samples::Lists;
use crate::data::share::Span;
use crate::device::Inbox;
use crate::transport::HostOutbox;

/// Workspace, used again from step to step.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    lists: Lists,
    /// The rank that reads each sample.
    homes: Vec<u32>,
    here: Vec<Move>,
    there: Vec<Move>,
}

/// A sample of a list: the rank that has it at the other site, its number, its place in the list. In this order one rank's
/// stand together, ascending.
type Move = (u32, u64, usize);

/// Which rows of a buffer are a sample's.
#[derive(Clone, Copy)]
struct Rows<'a> {
    span: Span<'a>,
    group: Option<usize>,
}

impl<'a> Rows<'a> {
    /// Of the values that an operation takes, or of those that it gives.
    fn of<T: Real>(c: &'a Call<'_, T>, written: bool) -> Result<Self, Fault> {
        let (from, to) = c.op.action.facts().carries().ok_or(Fault::NotTransfer)?;
        let (site, position) = if written { (to, 0) } else { (from, 1) };
        let wrong = || c.wrong(written, position, "a buffer with a row per sample or token");
        let group = match c.buffer_of(written, position).ok_or_else(wrong)?.rows {
            Extent::Symbol(Symbol::Samples) => None,
            Extent::Symbol(Symbol::Tokens(group)) => Some(group as usize),
            _ => return Err(wrong()),
        };
        Ok(Self { span: c.batch.share.part(site, c.op.microbatch), group })
    }

    fn sample(&self, place: usize) -> Range<usize> {
        match self.group.map(|group| self.span.offsets(group)) {
            Some(offsets) => offsets[place]..offsets[place + 1],
            None => place..place + 1,
        }
    }

    fn moves(&self, rank: impl Fn(u64) -> u32, moves: &mut Vec<Move>) {
        moves.clear();
        let samples = self.span.sample_keys().iter().enumerate();
        moves.extend(samples.map(|(place, sample)| (rank(*sample), *sample, place)));
        moves.sort_unstable();
    }
}

/// The samples that one rank has at the other site.
fn of_rank(moves: &[Move], rank: usize) -> &[Move] {
    let rank = rank as u32;
    &moves[moves.partition_point(|m| m.0 < rank)..moves.partition_point(|m| m.0 <= rank)]
}

/// Lists the samples that the operation takes, and those that it gives, each with its rank at the other site.
fn plan<T: Real>(c: &Call<T>, scratch: &mut Scratch) -> Result<(), Fault> {
    let (from, _) = c.op.action.facts().carries().ok_or(Fault::NotTransfer)?;
    let assignment = c.read_indices(0)?;
    let assignment = assignment.slice()?;
    let Scratch { lists, homes: own, here, there } = scratch;
    homes(&*c.env.deal, c.dealt(), lists, own);
    let assigned = |sample: u64| assignment[2 * sample as usize];
    let home = |sample: u64| own[sample as usize];
    let (taken, given) = (Rows::of(c, false)?, Rows::of(c, true)?);
    match from {
        Site::Home => {
            taken.moves(assigned, here);
            given.moves(home, there);
        }
        Site::Assigned => {
            taken.moves(home, here);
            given.moves(assigned, there);
        }
    }
    Ok(())
}

/// The samples of a list with their ranks at the other site, one rank's together, ascending.
#[derive(Debug)]
pub(crate) struct Route {
    /// The rank at the other site, and the place in the list.
    pub(crate) moves: Vec<(usize, u32)>,
    /// Rows of each place, one after the other: where they begin; without any each has one.
    pub(crate) offsets: Option<Vec<u32>>,
    /// Samples of the list.
    pub(crate) samples: usize,
}

impl Route {
    /// Rows that a sample has.
    pub(crate) fn rows(&self, place: u32) -> usize {
        let place = place as usize;
        self.offsets.as_ref().map_or(1, |offsets| (offsets[place + 1] - offsets[place]) as usize)
    }
}

/// What an operation takes, and what it gives: for a device that moves rows by itself.
pub(crate) fn routes<T: Real>(c: &Call<T>) -> Result<[Route; 2], Fault> {
    let mut scratch = std::mem::take(&mut c.work.lock().carry);
    let planned = plan(c, &mut scratch).and_then(|()| {
        let route = |moves: &[Move], written| {
            let rows = Rows::of(c, written)?;
            let offsets =
                rows.group.map(|group| rows.span.offsets(group).iter().map(|o| *o as u32).collect());
            let moves = moves.iter().map(|(rank, _, place)| (*rank as usize, *place as u32)).collect();
            Ok::<_, Fault>(Route { moves, offsets, samples: rows.span.sample_keys().len() })
        };
        Ok([route(&scratch.here, false)?, route(&scratch.there, true)?])
    });
    c.work.lock().carry = scratch;
    planned
}

/// Runs with the lists of samples.
fn planned<T: Real>(c: &Call<T>, run: impl FnOnce(&Scratch) -> Result<(), Stop>) -> Result<(), Stop> {
    // Taken out, so that the engine's workspace is free meanwhile.
    let mut scratch = std::mem::take(&mut c.work.lock().carry);
    let result = plan(c, &mut scratch).map_err(Stop::from).and_then(|()| run(&scratch));
    c.work.lock().carry = scratch;
    result
}

/// Values of this rank's samples for the ranks that have them at the other site.
pub(super) fn fill<T: Real>(
    c: &Call<T>,
    outbox: &mut HostOutbox<T>,
    pieces: &mut Pieces<'_>,
) -> Result<(), Stop> {
    let (x, rows, me) = (c.read(1)?, Rows::of(c, false)?, c.env.rank);
    let x = x.mat();
    let section = &mut outbox.sections[0];
    section.widths.reals = x.cols();
    section.counts.clear();
    section.counts.resize(c.env.ranks, 0);
    planned(c, |scratch| {
        for (to, _, place) in scratch.here.iter().filter(|m| m.0 as usize != me) {
            let range = rows.sample(*place);
            section.counts[*to as usize] += range.len() as u64;
            if pieces.next()? {
                range.for_each(|row| section.reals.extend_from_slice(x.row(row)));
            }
        }
        Ok(())
    })
}

/// Values of this rank's samples at the other site, from the ranks that had them.
pub(super) fn drain<T: Real>(
    c: &Call<T>,
    inbox: Inbox<'_, HostOutbox<T>>,
    pieces: &mut Pieces<'_>,
) -> Result<(), Stop> {
    let (x, me) = (c.read(1)?, c.env.rank);
    let (taken, given) = (Rows::of(c, false)?, Rows::of(c, true)?);
    let mut writes = c.write([0])?;
    let (mut y, _) = writes.first()?;
    let columns = y.cols();
    planned(c, |scratch| {
        for from in 0..c.env.ranks {
            let moves = of_rank(&scratch.there, from);
            if from == me {
                let own = of_rank(&scratch.here, me);
                check("samples that stay", own.len(), moves.len())?;
                for ((.., source), (.., place)) in own.iter().zip(moves) {
                    let (source, place) = (taken.sample(*source), given.sample(*place));
                    check("values of a sample", source.len(), place.len())?;
                    if pieces.next()? {
                        elementwise::copy(x.mat().rows_range(source), y.rows_range_mut(place), Write::Set);
                    }
                }
                continue;
            }
            receive(inbox, from, 0, |part| {
                let wanted: usize = moves.iter().map(|m| given.sample(m.2).len()).sum();
                check("values of a rank", part.reals.len(), wanted * columns)?;
                let sent = Mat::new(part.reals, wanted, columns);
                let mut at = 0;
                for (.., place) in moves {
                    let place = given.sample(*place);
                    let source = at..at + place.len();
                    at = source.end;
                    if pieces.next()? {
                        elementwise::copy(sent.rows_range(source), y.rows_range_mut(place), Write::Set);
                    }
                }
                Ok::<(), Stop>(())
            })?;
        }
        Ok(())
    })
}
