//! The thread of a process that writes its part of checkpoints while training goes on.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use fs_schedule::file::write_atomically;

use super::folder::Folder;
use super::manifest::{BLOCK, FORMAT, Manifest, Part};
use super::throttle::{Throttle, given_up};
use super::write::{State, make};
use crate::device::Device;
use crate::evaluate::Scores;
use crate::evaluate::metric::Metric;
use crate::runtime::pace::Pace;
use crate::transport::control::Control;
use crate::transport::peers::at_work;
use crate::weights::layout::{About, Run};

/// How often a process looks whether the others have written theirs.
const LOOK: Duration = Duration::from_millis(5);

/// Part of the time for which ranks wait for each other that updates of a step wait for a checkpoint: others wait for them.
/// A step updates rows in a few classes, each of which waits by itself.
const PATIENCE: u32 = 16;

/// What a run writes checkpoints with.
pub(crate) struct Writing<'a, D: Device> {
    pub folder: &'a Folder,
    /// How many of them are kept, and of which metric the best one too.
    pub keep: (usize, Option<Metric>),
    pub state: State<'a, D>,
    /// What each says of itself, but for the step.
    pub about: About,
    /// What the data is, and its digest.
    pub data: (String, String),
    /// Speaks to the other processes, which write their parts.
    pub control: &'a dyn Control,
}

/// Why a checkpoint was not written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the checkpoint {}: {source}; what is whole there stays as it is", fs_schedule::terminal::shown(.path))]
pub(crate) struct NotWritten {
    path: PathBuf,
    source: io::Error,
}

impl<D: Device> Writing<'_, D> {
    /// Writes those that are asked for, by their steps, until nobody asks any more.
    pub(crate) fn serve(
        &self,
        steps: &Receiver<u64>,
        pace: &Pace,
        ended: &(dyn Fn() -> bool + Sync),
        done: &mut dyn FnMut(Written),
    ) -> Result<(), NotWritten> {
        let crowded = || self.state.devices.iter().any(Device::crowded);
        let bytes = self.state.bytes();
        let result = steps.iter().try_for_each(|step| {
            let throttle = Throttle::beside(pace, (step, bytes), &crowded, ended);
            done(self.write(step, None, &throttle)?);
            Ok(())
        });
        // Updates may be waiting for room.
        self.state.devices.iter().for_each(Device::forget);
        match result {
            // Whoever ended the run says why.
            Err(_) if ended() => Ok(()),
            result => result,
        }
    }

    /// Writes one, with scores if it was evaluated; of several processes all must call it.
    pub(crate) fn write(
        &self,
        step: u64,
        scores: Option<Scores>,
        throttle: &Throttle<'_>,
    ) -> Result<Written, NotWritten> {
        let path = self.folder.part(step);
        let since = Instant::now();
        let written = self.write_into(&path, (step, scores), throttle);
        let written =
            written.map(|(bytes, unusable)| Written { step, bytes, time: since.elapsed(), unusable });
        written.map_err(|source| {
            self.state.devices.iter().for_each(Device::forget);
            if self.control.process() == 0 {
                let _ = fs::remove_dir_all(&path);
            }
            NotWritten { path, source }
        })
    }

    fn write_into(
        &self,
        path: &Path,
        (step, scores): (u64, Option<Scores>),
        throttle: &Throttle<'_>,
    ) -> io::Result<(u64, Option<String>)> {
        let (own, processes) = (self.control.process(), self.control.processes().len());
        let timeout = self.control.timeout();
        let part_of = |process: usize| path.join(format!("process-{process}.json"));
        let wait = |there: &dyn Fn() -> bool| {
            let (mut since, mut seen) = (Instant::now(), 0);
            while !there() {
                if (throttle.given_up)() {
                    return Err(given_up());
                }
                // Whoever is at work says so, be it that nothing is seen of it here: a disk may take long to sync.
                since = self.control.heard_working().map_or(since, |heard| heard.max(since));
                if since.elapsed() > timeout {
                    let now = written(path);
                    if now == seen {
                        return Err(nobody_writes(timeout));
                    }
                    (since, seen) = (Instant::now(), now);
                }
                std::thread::sleep(LOOK);
            }
            Ok(())
        };
        if own == 0 {
            at_work(self.control, || make(path))?;
        } else {
            wait(&|| path.is_dir())?;
        }
        let mut part = at_work(self.control, || self.state.write(path, throttle, timeout / PATIENCE))?;
        // Before anybody can see that it is written: who does may begin the next one, whose rows are not to be forgotten.
        self.state.devices.iter().for_each(Device::forget);
        let bytes = |part: &Part| part.files.values().map(|file| file.bytes).sum();
        if own > 0 {
            at_work(self.control, || write_atomically(&part_of(own), &serde_json::to_vec(&part)?))?;
            return Ok((bytes(&part), part.unusable));
        }
        for other in 1..processes {
            let file = part_of(other);
            wait(&|| file.exists())?;
            let theirs: Part = serde_json::from_slice(&fs::read(&file)?)?;
            part.join(theirs);
            fs::remove_file(&file)?;
        }
        let bytes = bytes(&part);
        if part.unusable.is_some() {
            // It would push out one that a run can go on from.
            at_work(self.control, || fs::remove_dir_all(path))?;
            return Ok((bytes, part.unusable));
        }
        let manifest = Manifest {
            digest: String::new(),
            format: FORMAT,
            about: About { step, ..self.about.clone() },
            run: Run {
                schedule: self.state.schedule.digest.clone(),
                model: self.state.schedule.reference.digest.clone(),
                ranks: self.control.processes().iter().map(Vec::len).sum(),
                data: self.data.clone(),
                // Of all ranks' the same, but for when it is looked at.
                fitted: self.state.ranks[0].fitted(),
                kept_by: scores.as_ref().and(self.keep.1),
                scores,
            },
            order: self.state.order(),
            block: BLOCK,
            tensors: part.tensors,
            files: part.files,
        };
        at_work(self.control, || {
            self.folder.seal(step, manifest)?;
            self.folder.prune(self.keep)
        })?;
        Ok((bytes, None))
    }
}

/// Bytes of the files of a folder.
fn written(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|of| of.len()).sum()
}

/// What other processes should write is not seen to grow.
fn nobody_writes(timeout: Duration) -> io::Error {
    io::Error::other(format!(
        "for {} s nothing of the other processes has come there; all processes of a run must see the same folder",
        timeout.as_secs_f64()
    ))
}

/// A checkpoint that is whole; in processes but the first, their part of it.
#[derive(Debug, Clone)]
pub(crate) struct Written {
    pub step: u64,
    pub bytes: u64,
    pub time: Duration,
    /// Why it was not kept: what no run would go on from.
    pub unusable: Option<String>,
}

/// Checkpoints that are whole.
pub(crate) struct Totals {
    /// The step of the newest one of the folder.
    pub newest: Option<u64>,
    /// The step of the last one that was written, kept or not: all processes know the same.
    pub last: Option<u64>,
    pub number: u64,
    /// Bytes of the newest one.
    pub bytes: u64,
    /// From cuts until their checkpoints were whole.
    pub time: Duration,
    /// The first one that was not kept, by its step, and why.
    pub unusable: Option<(u64, String)>,
    /// It is to be said.
    unsaid: bool,
}

impl Totals {
    /// None yet, in a run that goes on from the newest one of the folder if there is one.
    pub(crate) fn new(newest: Option<u64>) -> Self {
        Self {
            newest,
            last: newest,
            number: 0,
            bytes: 0,
            time: Duration::ZERO,
            unusable: None,
            unsaid: false,
        }
    }

    /// The first one that was not kept, once.
    pub(crate) fn news(&mut self) -> Option<(u64, String)> {
        std::mem::take(&mut self.unsaid).then(|| self.unusable.clone()).flatten()
    }

    /// Counts one more.
    pub(crate) fn add(&mut self, written: Written) {
        self.last = Some(written.step);
        if let Some(why) = written.unusable {
            self.unsaid |= self.unusable.is_none();
            self.unusable.get_or_insert((written.step, why));
            return;
        }
        self.newest = Some(written.step);
        self.number += 1;
        self.bytes = written.bytes;
        self.time += written.time;
    }
}

/// Tells the thread that writes when all ranks of this process have ended the batches before a cut.
pub(crate) struct Ended {
    /// Batches that each has ended.
    own: Vec<(usize, u64)>,
    first: u64,
    told: Option<u64>,
    steps: Sender<u64>,
}

impl Ended {
    /// Of these ranks, from a step on.
    pub(crate) fn new(ranks: &[usize], first: u64, steps: Sender<u64>) -> Self {
        Self { own: ranks.iter().map(|rank| (*rank, 0)).collect(), first, told: None, steps }
    }

    /// A rank has ended a step; a checkpoint cuts before `cut`, a batch of this run. Says how many steps all have ended.
    pub(crate) fn step(&mut self, rank: usize, step: u64, cut: Option<u64>) -> u64 {
        if let Some((_, ended)) = self.own.iter_mut().find(|(own, _)| *own == rank) {
            *ended = step + 1 - self.first;
        }
        if let Some(cut) = cut.filter(|cut| self.told != Some(*cut) && self.own.iter().all(|(_, n)| n >= cut))
        {
            self.told = Some(cut);
            // Whoever has gone has failed, and says so.
            let _ = self.steps.send(self.first + cut);
        }
        self.first + self.own.iter().map(|(_, n)| *n).min().unwrap_or(0)
    }
}
