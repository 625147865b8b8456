//! What rows and dense parameters held before updates that a checkpoint does not see.
//!
//! While a checkpoint is written training goes on. An update of its step or of a later one first copies to the host what
//! the rows that it changes hold: a kernel collects them, and they come down in the stream of the update, which nobody
//! waits for. Whoever takes rows copies them from the table in a stream of its own, after all updates that were enqueued
//! before and before all that are enqueued later, and puts in their places those that had come down by then. Of a dense parameter
//! all comes down once. Between checkpoints this is one lock which nobody else wants.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fs_kernels::cuda::catalogue::optimizers;
use fs_kernels::cuda::driver::{Area, Driver, DriverError, Event, Memory, Stream, Touch};
use fs_kernels::cuda::{In, Out};
use parking_lot::Mutex;

use super::kernels::Scratch;
use super::lane::Staging;
use super::plain::values_of;
use super::tables::{Dense, Table};
use super::{Cuda, Fault};
use crate::device::PutAside;
use crate::device::aside::Aside;

/// Numbers that are on their way to the host, or there.
#[derive(Debug, Clone, Copy)]
struct Coming {
    staging: Staging,
    stream: Stream,
    /// Rows at the most.
    rows: usize,
}

/// What orders updates and those who take what there was.
#[derive(Debug, Default)]
struct Turns {
    /// Of each stream with updates.
    changed: BTreeMap<Stream, Event>,
    taken: Option<Event>,
}

impl Turns {
    /// An update comes after what was taken.
    fn update<D: Driver>(&self, driver: &D, stream: Stream) -> Result<(), DriverError> {
        self.taken.map_or(Ok(()), |event| driver.wait(stream, event))
    }

    /// An update has been enqueued.
    fn updated<D: Driver>(&mut self, driver: &D, stream: Stream) -> Result<(), DriverError> {
        let event = match self.changed.get(&stream) {
            Some(event) => *event,
            None => *self.changed.entry(stream).or_insert(driver.event()?),
        };
        driver.record(stream, event)
    }

    /// What is taken comes after the updates.
    fn take<D: Driver>(&self, driver: &D, stream: Stream) -> Result<(), DriverError> {
        self.changed.values().try_for_each(|event| driver.wait(stream, *event))
    }

    /// All copies of what is taken have been enqueued.
    fn took<D: Driver>(&mut self, driver: &D, stream: Stream) -> Result<(), DriverError> {
        let event = match self.taken {
            Some(event) => event,
            None => *self.taken.insert(driver.event()?),
        };
        driver.record(stream, event)
    }
}

/// A shard, or a dense parameter, while a checkpoint is written.
#[derive(Debug)]
struct Begun<A> {
    /// The first step whose updates are not seen.
    from: u64,
    /// Rows are being taken, so it is worth waiting for room: an update for so long.
    patience: Option<Duration>,
    /// Since when the update that comes next has found none.
    waits: Option<Instant>,
    /// Whoever takes knows of all updates that were enqueued before it was kept.
    joined: bool,
    aside: A,
}

/// Rows that are put aside, and those on their way.
#[derive(Debug)]
struct Rows {
    there: Aside<f32>,
    coming: VecDeque<Coming>,
    /// Of those that are coming, at the most.
    most: usize,
}

/// A dense parameter that has been put aside, or is to be.
#[derive(Debug, Clone, Copy)]
enum Whole {
    Now,
    Before(Coming),
    Taken,
}

/// What is kept of something, and who may be at it.
#[derive(Debug)]
struct Kept<A> {
    turns: Turns,
    begun: Option<Begun<A>>,
}

impl<A> Default for Kept<A> {
    fn default() -> Self {
        Self { turns: Turns::default(), begun: None }
    }
}

impl<A> Kept<A> {
    fn keep(&mut self, from: u64, aside: A) {
        self.begun = Some(Begun { from, patience: None, waits: None, joined: false, aside });
    }
}

/// What is kept of a rank's shards and parameters.
#[derive(Debug, Default)]
pub(super) struct Pictures {
    tables: Vec<Vec<Mutex<Kept<Rows>>>>,
    dense: Vec<Mutex<Kept<Whole>>>,
    /// Rows put aside so far, and nanoseconds that updates have waited for room.
    counted: [AtomicU64; 2],
}

impl Pictures {
    /// Of so many parts of each table, and parameters.
    pub(super) fn new(parts: impl Iterator<Item = usize>, dense: usize) -> Self {
        let tables = parts.map(|n| (0..n).map(|_| Mutex::default()).collect()).collect();
        Self { tables, dense: (0..dense).map(|_| Mutex::default()).collect(), counted: Default::default() }
    }

    /// Whether updates of a step put aside what they change.
    pub(super) fn keeps(&self, step: u64) -> bool {
        let keeps = |kept: &Mutex<Kept<Rows>>| kept.lock().begun.as_ref().is_some_and(|b| step >= b.from);
        self.tables.iter().flatten().any(keeps)
    }

    /// Updates that found no room have waited so long.
    pub(super) fn waited(&self, time: Duration) {
        self.counted[1].fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(super) fn counted(&self) -> PutAside {
        let [rows, waited] = &self.counted;
        PutAside {
            rows: rows.load(Ordering::Relaxed),
            waited: Duration::from_nanos(waited.load(Ordering::Relaxed)),
        }
    }

    /// Whether more than half of the room is taken.
    pub(super) fn crowded(&self) -> bool {
        let full = |kept: &Mutex<Kept<Rows>>| {
            let kept = kept.lock();
            kept.begun.as_ref().is_some_and(|b| b.aside.there.len() + b.aside.most > b.aside.there.most() / 2)
        };
        self.tables.iter().flatten().any(full)
    }

    /// From now on updates that find no room wait for it, those of all shards of a step together for about so long.
    pub(super) fn begin(&self, patience: Duration) {
        let shards = self.tables.iter().map(Vec::len).sum::<usize>().max(1) as u32;
        for kept in self.tables.iter().flatten() {
            if let Some(begun) = &mut kept.lock().begun {
                begun.patience = Some(patience / shards);
            }
        }
    }
}

/// An update that is being enqueued.
pub(super) struct Update<'u> {
    pub(super) stream: Stream,
    /// Of the batch, from 0.
    pub(super) step: u64,
    pub(super) table: (usize, usize),
    /// The rows, of which there are at the most so many; the list ends with such as there are not.
    pub(super) rows: (u32, Memory),
    /// Enqueues it.
    pub(super) change: &'u mut dyn FnMut() -> Result<(), Fault>,
}

/// Fields of rows, one after the other in page-locked memory, after a list of so many rows.
fn places(rows: u64, widths: [u32; 3]) -> ([u64; 3], u64) {
    let mut at = 4 * rows;
    let starts = widths.map(|width| {
        let start = at;
        at += 4 * rows * u64::from(width);
        start
    });
    (starts, at)
}

impl<D: Driver> Cuda<D> {
    /// From the updates of this step on what they change is put aside; `tables` says of which.
    pub(super) fn keep_from(&self, from: u64, tables: impl Fn(usize) -> bool, dense: bool) {
        let shards: usize = self.trained.tables.iter().map(Vec::len).sum();
        for (t, parts) in self.pictures.tables.iter().enumerate().filter(|(t, _)| tables(*t)) {
            for (table, kept) in self.trained.tables[t].iter().zip(parts) {
                let width = table.widths().iter().sum::<u32>() as usize;
                let there = Aside::new(width, self.room / shards.max(1));
                kept.lock().keep(from, Rows { there, coming: VecDeque::new(), most: 0 });
            }
        }
        for kept in self.pictures.dense.iter().filter(|_| dense) {
            kept.lock().keep(from, Whole::Now);
        }
    }

    /// Nothing is put aside any more.
    pub(super) fn forget_all(&self) -> Result<(), Fault> {
        for kept in self.pictures.tables.iter().flatten() {
            let begun = kept.lock().begun.take();
            for coming in begun.into_iter().flat_map(|b| b.aside.coming) {
                self.staging.give(&*self.driver, coming.stream, coming.staging)?;
            }
        }
        for kept in &self.pictures.dense {
            if let Some(Begun { aside: Whole::Before(coming), .. }) = kept.lock().begun.take() {
                self.staging.give(&*self.driver, coming.stream, coming.staging)?;
            }
        }
        Ok(())
    }

    /// Takes in rows that have come down, in the order of their updates.
    fn take_in_rows(&self, table: &Table, rows: &mut Rows) -> Result<(), Fault> {
        let widths = table.widths();
        while let Some(coming) = rows.coming.front().copied() {
            if !self.driver.has_come(coming.staging.free)? {
                break;
            }
            rows.coming.pop_front();
            rows.most -= coming.rows;
            let (starts, end) = places(coming.rows as u64, widths);
            let mut bytes = vec![0; end as usize];
            self.driver.read(coming.staging.pinned, 0, &mut bytes)?;
            self.staging.give(&*self.driver, coming.stream, coming.staging)?;
            let listed: Vec<u32> = values_of(&bytes[..4 * coming.rows]);
            let mut put = 0;
            for (n, row) in listed.into_iter().enumerate() {
                if row == optimizers::NO_ROW || !rows.there.wants(row) {
                    continue;
                }
                let mut own = rows.there.put(row);
                for (start, width) in starts.into_iter().zip(widths.map(|w| w as usize)) {
                    let at = start as usize + 4 * n * width;
                    let (head, rest) = own.split_at_mut(width);
                    head.copy_from_slice(&values_of::<f32>(&bytes[at..at + 4 * width]));
                    own = rest;
                }
                put += 1;
            }
            self.pictures.counted[0].fetch_add(put, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether an update of so many rows finds room for what it has to put aside. If it does not it is to ask again.
    pub(super) fn has_room(&self, (t, part): (usize, usize), step: u64) -> Result<bool, Fault> {
        let mut kept = self.pictures.tables[t][part].lock();
        let Some(begun) = kept.begun.as_mut().filter(|begun| step >= begun.from) else { return Ok(true) };
        let rows = &mut begun.aside;
        self.take_in_rows(&self.trained.tables[t][part], rows)?;
        // One that has more rows than there is room finds it all empty some day.
        let full = rows.there.len() + rows.most >= rows.there.most();
        let Some(patience) = begun.patience.filter(|_| full) else {
            begun.waits = None;
            return Ok(true);
        };
        let since = *begun.waits.get_or_insert_with(Instant::now);
        // Others wait for this rank, and have a limit.
        let goes_on = since.elapsed() >= patience;
        if goes_on {
            begun.waits = None;
        }
        Ok(goes_on)
    }

    /// Enqueues an update of rows, after what they hold has been put aside if that is to be taken.
    pub(super) fn update_rows(
        &self,
        scratch: &mut Scratch<'_, D>,
        update: &mut Update<'_>,
    ) -> Result<(), Fault> {
        let (driver, stream, (t, part)) = (&*self.driver, update.stream, update.table);
        let table = &self.trained.tables[t][part];
        let mut kept = self.pictures.tables[t][part].lock();
        kept.turns.update(driver, stream)?;
        if let Some(begun) = kept.begun.as_mut().filter(|begun| update.step >= begun.from) {
            let coming = self.collect(scratch, table, update)?;
            begun.aside.most += coming.rows;
            begun.aside.coming.push_back(coming);
        }
        (update.change)()?;
        if kept.begun.is_some() {
            kept.turns.updated(driver, stream)?;
        }
        Ok(())
    }

    /// Sends down what rows hold.
    fn collect(
        &self,
        scratch: &mut Scratch<'_, D>,
        table: &Table,
        update: &Update<'_>,
    ) -> Result<Coming, Fault> {
        let (driver, stream, (n, list)) = (&*self.driver, update.stream, update.rows);
        let (starts, end) = places(u64::from(n), table.widths());
        let staging = self.staging.take(driver, end)?;
        let listed = list.first(4 * u64::from(n));
        driver.download(stream, listed, (staging.pinned, 0))?;
        for ((all, width), start) in table.fields().into_iter().zip(starts).filter(|((_, w), _)| *w > 0) {
            let bytes = 4 * u64::from(n) * u64::from(width);
            let own = scratch.words(bytes / 4)?;
            let (rows, from, to) = (In::at(list.address), In::at(all.address), Out::at(own.address));
            let call = optimizers::keep_rows(n, width, rows, from, table.rows, to, self.fault());
            let read = Touch::Rows { all, list: listed, at: None, written: false };
            self.run(stream, &call, &[read])?;
            driver.download(stream, own.first(bytes), (staging.pinned, start))?;
        }
        driver.record(stream, staging.free)?;
        Ok(Coming { staging, stream, rows: n as usize })
    }

    /// The host has written some of a shard: the checkpoint of the end of a run takes it without any more waiting.
    pub(super) fn written(&self, (t, part): (usize, usize)) -> Result<(), Fault> {
        let kept = self.pictures.tables.get(t).and_then(|parts| parts.get(part));
        kept.map_or(Ok(()), |kept| Ok(kept.lock().turns.updated(&*self.driver, self.between)?))
    }

    /// Enqueues copies in the stream of those who take, after all updates so far and before all later ones.
    fn copy_down<A>(&self, kept: &mut Kept<A>, areas: &[Area]) -> Result<Staging, Fault> {
        let (driver, stream) = (&*self.driver, self.taking);
        self.settled.store(false, Ordering::Release);
        // Updates of before it was kept have left no events.
        if kept.begun.as_ref().is_none_or(|begun| !begun.joined) {
            self.order.all(driver, stream)?;
        }
        if let Some(begun) = &mut kept.begun {
            begun.joined = true;
        }
        kept.turns.take(driver, stream)?;
        let staging = self.staging.take(driver, areas.iter().map(|area| area.bytes()).sum())?;
        let mut at = 0;
        for area in areas.iter().filter(|area| !area.is_empty()) {
            driver.download(stream, *area, (staging.pinned, at))?;
            at += area.bytes();
        }
        driver.record(stream, staging.free)?;
        kept.turns.took(driver, stream)?;
        Ok(staging)
    }

    /// Waits until copies have come: on a thread that writes a checkpoint.
    fn come_down(&self, staging: Staging, stream: Stream, bytes: u64) -> Result<Vec<u8>, Fault> {
        while !self.driver.has_come(staging.free)? {
            std::thread::sleep(super::AGAIN);
        }
        let mut out = vec![0; bytes as usize];
        self.driver.read(staging.pinned, 0, &mut out)?;
        self.staging.give(&*self.driver, stream, staging)?;
        Ok(out)
    }

    /// Rows of a shard as they were: values, first and second state.
    pub(super) fn take_shard(
        &self,
        (t, part): (usize, usize),
        rows: Range<usize>,
        out: &mut [Vec<f32>; 3],
    ) -> Result<(), Fault> {
        let (table, kept) = (&self.trained.tables[t][part], &self.pictures.tables[t][part]);
        let areas = table.fields().map(|(all, _)| all.rows(rows.start as u64, rows.len() as u64).joined());
        let staging = self.copy_down(&mut kept.lock(), &areas)?;
        let bytes = self.come_down(staging, self.taking, areas.iter().map(|area| area.bytes()).sum())?;
        let mut rest = &bytes[..];
        for (out, area) in out.iter_mut().zip(areas) {
            let (own, others) = rest.split_at(area.bytes() as usize);
            (*out, rest) = (values_of(own), others);
        }
        if let Some(begun) = &mut kept.lock().begun {
            // All that was put aside before the copies has come down before them. Those of later updates are the same
            // numbers, or are not wanted any more.
            self.take_in_rows(table, &mut begun.aside)?;
            let widths = table.widths().map(|width| width as usize);
            begun.aside.there.take((rows.start, rows.end), widths, out);
        }
        Ok(())
    }

    /// Enqueues an update of a dense parameter, after all of it has been put aside if that is to be taken.
    pub(super) fn update_whole(
        &self,
        (p, step): (usize, u64),
        stream: Stream,
        change: impl FnOnce(&Dense) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let (driver, dense) = (&*self.driver, &self.trained.dense[p]);
        let mut kept = self.pictures.dense[p].lock();
        kept.turns.update(driver, stream)?;
        if let Some(begun) = kept.begun.as_mut().filter(|begun| step >= begun.from)
            && matches!(begun.aside, Whole::Now)
        {
            let fields = [dense.values, dense.states[0], dense.states[1]];
            let staging = self.staging.take(driver, fields.iter().map(|m| m.bytes).sum())?;
            let mut at = 0;
            for field in fields.iter().filter(|field| field.bytes > 0) {
                driver.download(stream, field.area(), (staging.pinned, at))?;
                at += field.bytes;
            }
            driver.record(stream, staging.free)?;
            begun.aside = Whole::Before(Coming { staging, stream, rows: 0 });
        }
        change(dense)?;
        if kept.begun.is_some() {
            kept.turns.updated(driver, stream)?;
        }
        Ok(())
    }

    /// A dense parameter as it was: values, first and second state.
    pub(super) fn take_whole(&self, p: usize) -> Result<[Vec<f32>; 3], Fault> {
        let (dense, kept) = (&self.trained.dense[p], &self.pictures.dense[p]);
        let fields = [dense.values, dense.states[0], dense.states[1]];
        let (staging, stream) = {
            let mut kept = kept.lock();
            let aside = kept.begun.as_mut().map(|begun| std::mem::replace(&mut begun.aside, Whole::Taken));
            match aside {
                Some(Whole::Before(coming)) => (coming.staging, coming.stream),
                _ => (self.copy_down(&mut kept, &fields.map(Memory::area))?, self.taking),
            }
        };
        let bytes = self.come_down(staging, stream, fields.iter().map(|m| m.bytes).sum())?;
        let mut rest = &bytes[..];
        Ok(fields.map(|field| {
            let (own, others) = rest.split_at(field.bytes as usize);
            rest = others;
            values_of(own)
        }))
    }
}
