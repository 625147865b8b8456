//! Where a trace goes: one file of all ranks, or a folder with a file per rank.
//!
//! Perfetto shows ranks beside each other, with arrows between them, if they are in one file. HTA compares ranks, and
//! takes a folder in which each has its own. A path that ends in a separator, or is a folder, means the latter.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use fs_schedule::file::MadeFolders;
use fs_schedule::terminal::shown;
use fs_schedule::trace::{Distributed, Origin, rank_file, write};

use super::{Timeline, events};
use crate::error::Error;

/// Where a trace goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// One file of all ranks.
    File(PathBuf),
    /// A folder of one file per rank.
    Folder(PathBuf),
}

impl Target {
    /// What a path means.
    pub fn new(path: &Path) -> Self {
        let separated = path.as_os_str().to_string_lossy().ends_with(std::path::is_separator);
        if separated || path.is_dir() { Self::Folder(path.into()) } else { Self::File(path.into()) }
    }

    /// The files, with the rank of each; all are in one with rank 0.
    pub fn files(&self, ranks: usize) -> Vec<PathBuf> {
        match self {
            Self::File(path) => vec![path.clone()],
            Self::Folder(path) => (0..ranks).map(|rank| rank_file(path, rank as u32)).collect(),
        }
    }

    /// Makes the folder, and checks that nothing else in it would be taken for a rank. If it is still empty when what is
    /// returned is dropped, it goes.
    pub fn prepare(&self, ranks: usize) -> Result<Option<MadeFolders>, Error> {
        let Self::Folder(folder) = self else { return Ok(None) };
        let failed = |source| Error::Write { what: "the trace", path: folder.clone(), source };
        let made = MadeFolders::create(folder).map_err(failed)?;
        let own = self.files(ranks);
        let mut others: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_some_and(|e| e == "json" || e == "gz") && !own.contains(&path) {
                others.push(path);
            }
        }
        others.sort();
        match others.first() {
            Some(other) => Err(Error::Settings(format!(
                "{} is not of this run, but trace tools would take it for one of its ranks; give --trace another folder",
                shown(other)
            ))),
            None => Ok(Some(made)),
        }
    }

    /// Writes the trace; each file whole or not at all.
    pub fn write(&self, timeline: &Timeline<'_>) -> Result<(), Error> {
        let ranks = timeline.ranks.len();
        let clocks = timeline.clocks.clone();
        let origin = Origin { clocks, ..Origin::new(timeline.schedule, ranks as u32) };
        let one = |path: &Path, rank: usize, shown: std::ops::Range<usize>| {
            let distributed = Distributed { rank: rank as u32, world_size: ranks as u32 };
            let failed = |source: io::Error| Error::Write { what: "the trace", path: path.into(), source };
            write(path, &origin, distributed, events::of(timeline, shown)).map_err(failed)
        };
        match self {
            Self::File(path) => one(path, 0, 0..ranks),
            Self::Folder(_) => self
                .files(ranks)
                .iter()
                .enumerate()
                .try_for_each(|(rank, path)| one(path, rank, rank..rank + 1)),
        }
    }
}
