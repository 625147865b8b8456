//! A folder of checkpoints: their names, who may write, which are whole.
//!
//! A checkpoint is written into a folder whose name ends in `.part`, its manifest last, everything is made durable, and then
//! it is renamed. What is removed loses its manifest first. So at any moment what has a name of a checkpoint and a manifest is whole.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fs_schedule::file::write_atomically;
use fs_schedule::terminal::shown;

use super::best::{Best, best, scored};
use super::manifest::{MANIFEST, Manifest};
use crate::data::error::some;
use crate::error::Error;
use crate::evaluate::metric::Metric;

/// Held by the run that writes into a folder.
const LOCK: &str = "lock";
const PREFIX: &str = "step-";
const PART: &str = ".part";
/// For how long another one may be at giving a checkpoint its name, and how often that is looked at.
const PATIENCE: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(5);

/// A folder that this run writes checkpoints into.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// Given up with the process, however that ends.
    _lock: Option<File>,
}

/// The name of a checkpoint.
fn name(step: u64) -> String {
    format!("{PREFIX}{step:012}")
}

/// The step of a checkpoint's folder.
fn step_of(path: &Path) -> Option<u64> {
    let own = path.file_name()?.to_str()?;
    // As it is written, so that no two names are of one step.
    own.strip_prefix(PREFIX)?.parse().ok().filter(|step| name(*step) == own)
}

/// The step that a checkpoint's name says, if it has such a name.
pub(super) fn named(path: &Path) -> Option<u64> {
    step_of(path)
}

/// The checkpoint that a path is, or lies in.
pub(crate) fn within(path: &Path) -> Option<PathBuf> {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.into());
    absolute.ancestors().find(|folder| folder.join(MANIFEST).exists()).map(Path::to_path_buf)
}

/// Checkpoints of a folder that have a manifest, newest first.
pub(crate) fn whole(folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if let Some(step) = step_of(&path).filter(|_| path.join(MANIFEST).is_file()) {
            found.push((step, path));
        }
    }
    found.sort_unstable_by(|a, b| b.cmp(a));
    Ok(found)
}

/// Gives a checkpoint that only lacks its name, because its run was killed just then, that name; so whoever goes on from the
/// newest one finds it. Several may try at once, and a run that writes there does it itself.
pub(crate) fn settle(folder: &Path) {
    let until = Instant::now() + PATIENCE;
    loop {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let unnamed = entries.filter(|entry| entry.path().join(MANIFEST).is_file()).find_map(|entry| {
            let name = entry.file_name();
            step_of(Path::new(name.to_str()?.strip_suffix(PART)?))
        });
        let Some(step) = unnamed else { return };
        let Ok(lock) = File::options().write(true).open(folder.join(LOCK)) else { return };
        match lock.try_lock() {
            Ok(()) => {
                // What cannot be renamed, in a folder that cannot be written, is as if it were not there.
                let _ = Folder { path: folder.into(), _lock: Some(lock) }.finish(step);
                return;
            }
            Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(LOOK),
            Err(_) => return,
        }
    }
}

impl Folder {
    /// Makes it where it is missing, and keeps other runs out of it if `lock`; what runs that were ended have left is removed.
    pub(crate) fn open(path: &Path, lock: bool) -> Result<Self, Error> {
        let failed = |source| Error::Write { what: "checkpoints", path: path.into(), source };
        if !lock {
            return Ok(Self { path: path.into(), _lock: None });
        }
        // One that goes would take what is in it along.
        if let Some(within) = within(path) {
            return Err(Error::Settings(format!(
                "{} lies in the checkpoint {}; write checkpoints into a folder of their own",
                shown(path),
                shown(&within)
            )));
        }
        let before = Self::before(path);
        fs::create_dir_all(path).map_err(failed)?;
        let file = File::options().create(true).truncate(false).write(true).open(path.join(LOCK));
        let file = file.map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::Settings(format!(
                    "another run writes checkpoints into {}; wait for it, or give this one another folder",
                    shown(path)
                )));
            }
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        let folder = Self { path: path.into(), _lock: Some(file) };
        match folder.clean() {
            Ok(()) => Ok(folder),
            Err(source) => {
                folder.undo(before);
                Err(failed(source))
            }
        }
    }

    /// For a run that begins with a step, or goes on from a checkpoint: with later ones there, of another run or of one that it
    /// goes back in, what it leaves would not be the newest; and among those of another run nobody knows which are whose.
    pub(crate) fn check(&self, first: u64, goes_on: Option<&Path>) -> Result<(), Error> {
        let failed = |source| Error::Write { what: "checkpoints", path: self.path.clone(), source };
        let Some((step, newest)) = whole(&self.path).map_err(failed)?.into_iter().next() else {
            return Ok(());
        };
        let real = |path: &Path| fs::canonicalize(path).ok();
        let own = goes_on
            .and_then(Path::parent)
            .map(|parent| if parent.as_os_str().is_empty() { Path::new(".") } else { parent });
        let of_this_run = own.is_some_and(|own| real(own).is_some() && real(own) == real(&self.path));
        if of_this_run && step <= first {
            return Ok(());
        }
        let (newest, folder) = (shown(&newest), shown(&self.path));
        Err(Error::Settings(if step > first {
            format!(
                "{newest} is there already, and this run begins with step {first}; go on from it with --resume {folder}, or give \
                 this run another folder"
            )
        } else {
            format!(
                "{newest} is another run's; go on from that with --resume {folder}, or give this run another folder"
            )
        }))
    }

    /// Removes what is no checkpoint and was to become or has been one; one that only lacks its name gets it.
    fn clean(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let part = name.strip_suffix(PART).and_then(|rest| step_of(Path::new(rest)));
            match (part, path.join(MANIFEST).is_file()) {
                (Some(step), true) => self.finish(step)?,
                (None, false) if step_of(&path).is_none() => {}
                // Not a run's, and in the way of one that will have this name.
                (_, false) if !path.is_dir() => return Err(io::Error::other(in_the_way(&path))),
                (None, false) if !is_own(&path)? => return Err(io::Error::other(in_the_way(&path))),
                (_, false) => fs::remove_dir_all(&path)?,
                (None, true) => {}
            }
        }
        Ok(())
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The best of those that were evaluated.
    pub(crate) fn best(&self, metric: Metric) -> Option<Best> {
        best(&whole(&self.path).ok()?, metric)
    }

    /// Where a checkpoint is once it is whole.
    pub(crate) fn named(&self, step: u64) -> PathBuf {
        self.path.join(name(step))
    }

    /// Where a checkpoint is written.
    pub(crate) fn part(&self, step: u64) -> PathBuf {
        self.path.join(name(step) + PART)
    }

    /// Gives a checkpoint, which is whole and durable, its name; one that had it goes.
    fn finish(&self, step: u64) -> io::Result<()> {
        let to = self.named(step);
        remove(&to)?;
        fs::rename(self.part(step), &to)?;
        sync(&self.path)
    }

    /// Writes the manifest of a checkpoint whose files are written, and gives it its name.
    pub(crate) fn seal(&self, step: u64, manifest: Manifest) -> io::Result<()> {
        let path = self.part(step);
        // Files are durable, and their names must be before the manifest is.
        sync(&path)?;
        write_atomically(&path.join(MANIFEST), &manifest.seal()?)?;
        sync(&path)?;
        self.finish(step)
    }

    /// What opening the folder has made goes again, where nothing was written into it: what was not there [`before`](Self::before).
    pub(crate) fn undo(self, (folder, lock): (bool, bool)) {
        // What cannot be removed does no harm.
        if !lock {
            let _ = fs::remove_file(self.path.join(LOCK));
        }
        if !folder {
            let _ = fs::remove_dir(&self.path);
        }
    }

    /// Whether a folder and its lock are there.
    pub(crate) fn before(path: &Path) -> (bool, bool) {
        (path.exists(), path.join(LOCK).exists())
    }

    /// Keeps the newest ones, and the best one by a metric: if this run has none, by that of the run it goes on from.
    pub(crate) fn prune(&self, (keep, metric): (usize, Option<Metric>)) -> io::Result<()> {
        let found = whole(&self.path)?;
        if found.len() <= keep.max(1) {
            return Ok(());
        }
        let metric = metric.or_else(|| found.iter().find_map(|(_, path)| scored(path).kept_by));
        let best = metric.and_then(|metric| best(&found, metric));
        let best = best.map(|best| best.step);
        let mut old = found.iter().skip(keep.max(1)).filter(|(step, _)| best != Some(*step));
        old.try_for_each(|(_, path)| remove(path))
    }
}

fn in_the_way(path: &Path) -> String {
    let is = if path.is_dir() { "has other files than a checkpoint and" } else { "is a file with" };
    format!("{} {is} the name of one; move it elsewhere", shown(path))
}

/// Whether a folder without a manifest has only what a run that was ended leaves of a checkpoint that it removed.
fn is_own(path: &Path) -> io::Result<bool> {
    let mut entries = fs::read_dir(path)?;
    entries.try_fold(true, |all, entry| {
        let entry = entry?.path();
        let kind = entry.extension().and_then(|kind| kind.to_str());
        Ok(all && entry.is_file() && matches!(kind, Some("safetensors" | "json")))
    })
}

/// Removes a checkpoint, if it is there: at no moment is a part of it taken for whole.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path.join(MANIFEST)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        other => other?,
    }
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Makes the entries of a folder durable.
pub(crate) fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// The error that a checkpoint cannot be used, and which other could.
pub(super) fn bad(path: &Path, reason: &str) -> Error {
    let folder = path.parent().unwrap_or_else(|| Path::new("."));
    let others = whole(folder).unwrap_or_default();
    let others: Vec<String> =
        others.iter().filter(|(_, other)| other != path).map(|(_, other)| shown(other)).collect();
    let advice = if others.is_empty() { String::new() } else { format!("; others: {}", some(&others)) };
    Error::Weights(format!("the checkpoint {} cannot be used: {reason}{advice}", shown(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, name: &str, whole: bool) {
        let path = folder.join(name);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("rank-00000.safetensors"), "values").unwrap();
        if whole {
            fs::write(path.join(MANIFEST), "{}").unwrap();
        }
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_is_not_whole_is_none_and_goes() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path();
        write(at, "step-000000000100", true);
        write(at, "step-000000000200", false);
        write(at, "step-000000000300.part", false);
        write(at, "step-300", true);
        write(at, "step-0000000000500", true);
        write(at, "other.part", false);
        let steps = |at: &Path| whole(at).unwrap().iter().map(|(step, _)| *step).collect::<Vec<_>>();
        assert_eq!(steps(at), [100]);
        let folder = Folder::open(at, true).unwrap();
        assert_eq!(names(at), ["lock", "other.part", "step-0000000000500", "step-000000000100", "step-300"]);
        // Everything was written, but for the name.
        write(at, "step-000000000400.part", true);
        drop(folder);
        let folder = Folder::open(at, true).unwrap();
        write(at, "step-000000000100.part", true);
        folder.finish(100).unwrap();
        assert_eq!(steps(at), [400, 100]);
        folder.prune((1, None)).unwrap();
        assert_eq!(names(at), ["lock", "other.part", "step-0000000000500", "step-000000000400", "step-300"]);
    }

    #[test]
    fn two_runs_do_not_share_one() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("a/b");
        let first = Folder::open(&at, true).unwrap();
        let said = Folder::open(&at, true).unwrap_err().to_string();
        assert!(said.contains("another run writes checkpoints into"), "{said}");
        drop(first);
        Folder::open(&at, true).unwrap();
    }
}
