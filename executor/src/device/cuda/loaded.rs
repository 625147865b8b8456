//! What operations of several streams find on the device beside their operands: the ids of the batch, uses by any rank, row
//! maps, classes.
//!
//! Ids go up once a batch, when the operation that makes them current does: those at home with `LoadBatch`, or with `Assign` where
//! that cuts them by microbatch; those as assigned with `Dispatch`. A place of the ring of batches is written again when all who
//! read it have: each reader's stream leaves an event, for which the writer's waits.

use std::collections::BTreeMap;

use fs_kernels::cuda::In;
use fs_kernels::cuda::driver::{Area, Driver, DriverError, Event, Memory, Stream};
use fs_schedule::action::Effect;
use fs_schedule::{Action, Op, Place, Program, Site};
use parking_lot::Mutex;

use super::plain::bytes_of;
use super::{Cuda, Env, Fault, Job, Lane};
use crate::data::share::Column;
use crate::device::cpu::{Call, cuts_home};

/// Memory that one stream writes and others read.
#[derive(Debug, Default)]
struct Kept {
    memory: Memory,
    /// Of each stream that reads it: when it last had.
    read: BTreeMap<Stream, Event>,
}

impl Kept {
    /// Room for so many bytes, which the stream may write from now on.
    fn room<D: Driver>(&mut self, driver: &D, stream: Stream, bytes: u64) -> Result<Memory, DriverError> {
        let mut others = self.read.iter().filter(|(reader, _)| **reader != stream);
        others.try_for_each(|(_, event)| driver.wait(stream, *event))?;
        if self.memory.bytes < bytes {
            if self.memory.bytes > 0 {
                driver.release(stream, self.memory)?;
            }
            self.memory = Memory::default();
            self.memory = driver.allocate(stream, bytes + bytes / 16 + 256)?;
        }
        Ok(self.memory)
    }

    /// The stream has enqueued all that reads it.
    fn read_by<D: Driver>(&mut self, driver: &D, stream: Stream) -> Result<(), DriverError> {
        let event = match self.read.get(&stream) {
            Some(event) => *event,
            None => *self.read.entry(stream).or_insert(driver.event()?),
        };
        driver.record(stream, event)
    }
}

/// One of the things that are kept, of a place of the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Name {
    /// Ids of an input of the samples of a site.
    Input(Site, usize),
    /// Of a data-parallel exchange with microbatches: the last use by any rank of each of the own entries' rows.
    LastUses(u32),
}

/// The hot rows of a table with their numbers, as kernels take them.
#[derive(Debug, Clone, Copy)]
pub(super) struct HotNumbers {
    pub(super) pairs: In<u64>,
    pub(super) places: u32,
}

/// Slots of a table whose rows are hashed or planned, as kernels take it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slots {
    pub(super) permutation: In<u64>,
    pub(super) moved: In<u64>,
    pub(super) places: u32,
}

impl Slots {
    fn of(permutation: Memory, moved: Memory) -> Self {
        let at = |memory: Memory| if memory.bytes == 0 { In::NULL } else { In::at(memory.address) };
        Self { permutation: at(permutation), moved: at(moved), places: (moved.bytes / 16) as u32 }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Shelf {
    /// By place in the ring of batches.
    ring: Vec<BTreeMap<Name, Mutex<Kept>>>,
    /// Per program the inputs whose ids are read on the device.
    wanted: [Vec<(Site, usize)>; 2],
    /// Per program whether samples at home are cut when they are assigned.
    cut: [bool; 2],
    /// Per table the permutation of its rows and the rows that lie elsewhere.
    maps: Vec<[Memory; 2]>,
    /// Per table its hot rows, each with its number.
    hot: Vec<Memory>,
    /// Per exchange the numbers of the classes of lookups and of gradients.
    pub(super) classes: Vec<[Memory; 2]>,
}

/// Whether a kernel or a copy on the device reads ids of an input.
fn reads_ids(op: &Op) -> bool {
    matches!(op.action, Action::Unique { .. } | Action::UniqueFor { .. } | Action::CopyIds)
}

fn wanted(program: &Program) -> Vec<(Site, usize)> {
    let ops = program.ops.iter().filter(|op| reads_ids(op));
    let inputs = ops.flat_map(|op| {
        op.reads.iter().filter_map(|operand| match operand.place {
            Place::Input(n) => Some((op.site, n as usize)),
            _ => None,
        })
    });
    let mut wanted: Vec<_> = inputs.collect();
    wanted.sort_unstable();
    wanted.dedup();
    wanted
}

/// Numbers that are written once, when the device is opened.
type Constants = Vec<(Memory, Vec<u8>)>;

impl Shelf {
    /// With what is to be copied into it before anything runs.
    pub(super) fn new<D: Driver>(
        driver: &D,
        stream: Stream,
        env: &Env,
        classes: &[[Vec<u8>; 2]],
    ) -> Result<(Self, Constants), DriverError> {
        let schedule = &env.schedule;
        let mut constants = Vec::new();
        let mut keep = |bytes: Vec<u8>| {
            if bytes.is_empty() {
                return Ok(Memory::default());
            }
            let memory = driver.allocate(stream, bytes.len() as u64)?;
            constants.push((memory, bytes));
            Ok::<_, DriverError>(memory)
        };
        let mut maps = Vec::new();
        for map in env.maps.iter() {
            let words = map.words();
            let none = || (vec![], vec![]);
            let (permutation, slots) = words.map_or_else(none, |w| (w.permutation.to_vec(), w.slots));
            maps.push([keep(bytes_of(&permutation))?, keep(bytes_of(&slots))?]);
        }
        let mut hot = Vec::new();
        for rows in &env.hot {
            hot.push(keep(rows.as_ref().map_or_else(Vec::new, |rows| bytes_of(&rows.words())))?);
        }
        let mut own = Vec::new();
        for [forward, backward] in classes {
            own.push([keep(forward.clone())?, keep(backward.clone())?]);
        }
        let programs: Vec<&Program> = std::iter::once(&schedule.train).chain(&schedule.evaluation).collect();
        let of = |n: usize| programs.get(n).map(|p| wanted(p)).unwrap_or_default();
        let wanted = [of(0), of(1)];
        let assigns = |n: usize| {
            let program = programs.get(n).filter(|p| p.ops.iter().any(|op| op.action == Action::Assign));
            program.is_some_and(|p| cuts_home(p, schedule.settings.microbatches.max(1) as usize))
        };
        let names = || {
            let inputs = wanted.iter().flatten().map(|(site, input)| Name::Input(*site, *input));
            let uses = (0..schedule.exchanges.len()).map(|n| Name::LastUses(n as u32));
            inputs.chain(uses).map(|name| (name, Mutex::default())).collect()
        };
        let ring = env.batches.iter().map(|_| names()).collect();
        let cut = [assigns(0), assigns(1)];
        Ok((Self { ring, wanted, cut, maps, hot, classes: own }, constants))
    }

    fn place(&self, batch: u64, name: Name) -> Result<&Mutex<Kept>, Fault> {
        let found = self.ring.get((batch % self.ring.len().max(1) as u64) as usize);
        found.and_then(|place| place.get(&name)).ok_or_else(|| Fault::Unwritten(format!("{name:?}")))
    }

    /// How kernels find slots of rows of a table.
    pub(super) fn slots(&self, table: usize) -> Slots {
        let [permutation, slots] = self.maps.get(table).copied().unwrap_or_default();
        Slots::of(permutation, slots)
    }

    /// How kernels find hot rows of a table, if it has some.
    pub(super) fn hot(&self, table: usize) -> Option<HotNumbers> {
        let memory = self.hot.get(table).filter(|memory| memory.bytes > 0)?;
        Some(HotNumbers { pairs: In::at(memory.address), places: (memory.bytes / 16) as u32 })
    }

    fn constants(&self) -> impl Iterator<Item = Memory> + '_ {
        self.maps.iter().flatten().chain(&self.hot).chain(self.classes.iter().flatten()).copied()
    }

    /// All memory, which is gone from then on.
    pub(super) fn take(&self) -> Vec<Memory> {
        let kept =
            self.ring.iter().flat_map(BTreeMap::values).map(|kept| std::mem::take(&mut kept.lock().memory));
        kept.chain(self.constants()).filter(|memory| memory.bytes > 0).collect()
    }

    /// Bytes held.
    pub(super) fn held(&self) -> u64 {
        let kept = self.ring.iter().flat_map(BTreeMap::values).map(|kept| kept.lock().memory.bytes);
        kept.chain(self.constants().map(|memory| memory.bytes)).sum()
    }
}

impl<D: Driver> Cuda<D> {
    /// What an operation of the host has made current goes up.
    pub(super) fn keep_up(&self, lane: &Lane, job: &Job<'_>, stream: Stream) -> Result<(), Fault> {
        let program = usize::from(!std::ptr::eq(job.program, &raw const job.env.schedule.train));
        let cut = self.shelf.cut[program];
        let action = &job.op.action;
        let site = match action {
            Action::LoadBatch if !cut => Site::Home,
            Action::Assign if cut => Site::Home,
            Action::Dispatch { .. } => Site::Assigned,
            // Where ids passed through the host.
            Action::AllGatherIds { exchanges } if action.has(Effect::WritesUses) => {
                if job.op.reads.len() <= 2 * exchanges.len() {
                    return Ok(());
                }
                let call = Call::new(&self.host, &lane.work, job);
                for exchange in exchanges {
                    let uses = call.last_uses(*exchange).lock().clone();
                    self.keep_bytes(job, Name::LastUses(*exchange), stream, &uses)?;
                }
                return Ok(());
            }
            _ => return Ok(()),
        };
        for (_, input) in self.shelf.wanted[program].iter().filter(|(of, _)| *of == site) {
            let column = job.batch.share.input(&job.env.schedule, *input, site, None);
            let Some(Column::Ids(ids)) = column else { continue };
            self.keep_bytes(job, Name::Input(site, *input), stream, &bytes_of(ids))?;
        }
        Ok(())
    }

    fn keep_bytes(&self, job: &Job<'_>, name: Name, stream: Stream, bytes: &[u8]) -> Result<(), Fault> {
        let area = self.keep(job, name, stream, bytes.len() as u64)?;
        self.send(stream, bytes, area)
    }

    /// Where work of a stream may put what is kept under a name for the job's batch.
    pub(super) fn keep(&self, job: &Job<'_>, name: Name, stream: Stream, bytes: u64) -> Result<Area, Fault> {
        let mut kept = self.shelf.place(job.number, name)?.lock();
        Ok(kept.room(&*self.driver, stream, bytes)?.first(bytes))
    }

    /// Where it is.
    pub(super) fn kept(&self, job: &Job<'_>, name: Name, bytes: std::ops::Range<u64>) -> Result<Area, Fault> {
        let memory = self.shelf.place(job.number, name)?.lock().memory;
        if memory.bytes < bytes.end {
            return Err(Fault::Unwritten(format!("{name:?}")));
        }
        Ok(memory.from(bytes.start, bytes.end - bytes.start))
    }

    /// All work of the stream that reads it has been enqueued.
    pub(super) fn kept_read(&self, job: &Job<'_>, name: Name, stream: Stream) -> Result<(), Fault> {
        Ok(self.shelf.place(job.number, name)?.lock().read_by(&*self.driver, stream)?)
    }
}
