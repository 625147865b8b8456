//! A folder of checkpoints: their names, who may write, which are whole.
//!
//! A checkpoint is written into a folder whose name ends in `.part`, its manifest last, everything is made durable, and then
//! it is renamed. What is removed is renamed first, to a name that ends in `.removed`. So at any moment what has a name of a
//! checkpoint is whole, as far as runs are concerned; without a manifest it is damaged or somebody's, and nobody removes it.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fs_schedule::file::{read_some, write_atomically};
use fs_schedule::terminal::shown;

use super::best::{Best, best, scored};
use super::manifest::{LONGEST, MANIFEST, Manifest};
use crate::data::error::some;
use crate::error::Error;
use crate::evaluate::metric::Metric;

/// Held by the run that writes into a folder.
pub(super) const LOCK: &str = "lock";
const PREFIX: &str = "step-";
/// What is being written.
const PART: &str = ".part";
/// What is being removed.
const REMOVED: &str = ".removed";
/// For how long another one may be at giving a checkpoint its name, and how often that is looked at.
const PATIENCE: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(5);
/// For how long a run that starts waits for somebody who does only that.
const NAMING: Duration = Duration::from_millis(200);
/// How often a folder is looked at in which all checkpoints go.
const LOOKS: u32 = 4;
/// How often a lock is taken that goes at that moment with the run that has made it.
const TRIES: usize = 100;

/// A folder that this run writes checkpoints into. If none is, what opening it has made goes with it.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// Given up with the process, however that ends.
    lock: Option<File>,
    /// What was not there before: folders, the innermost first, and the lock.
    made: (Vec<PathBuf>, bool),
    /// Whether a checkpoint came to be.
    used: AtomicBool,
}

/// The name of a checkpoint.
fn name(step: u64) -> String {
    format!("{PREFIX}{step:012}")
}

/// The step that a checkpoint's name says, if a path has such a name.
pub(super) fn step_of(path: &Path) -> Option<u64> {
    let own = path.file_name()?.to_str()?;
    // As it is written, so that no two names are of one step.
    own.strip_prefix(PREFIX)?.parse().ok().filter(|step| name(*step) == own)
}

/// The step of a name with something behind it.
fn step_before(path: &Path, ending: &str) -> Option<u64> {
    step_of(Path::new(path.file_name()?.to_str()?.strip_suffix(ending)?))
}

/// The checkpoint that a path is, or lies in.
pub(crate) fn within(path: &Path) -> Option<PathBuf> {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.into());
    absolute.ancestors().find(|folder| is_whole(folder) && is_ours(folder)).map(Path::to_path_buf)
}

/// What has a name that is a checkpoint's in this folder, and is what a path is or lies in.
pub(crate) fn within_name(path: &Path, folder: &Path) -> Option<PathBuf> {
    let taken = |path: &Path| {
        step_of(path).or_else(|| step_before(path, PART)).or_else(|| step_before(path, REMOVED)).is_some()
    };
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.into());
    let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| absolute(path));
    let (path, folder) = (absolute(path), real(folder));
    let mut around = path.ancestors().filter(|place| taken(place));
    around.find(|place| place.parent().is_some_and(|parent| real(parent) == folder)).map(Path::to_path_buf)
}

/// Whether a folder with a file of a manifest's name is a checkpoint: others have such files, too.
fn is_ours(folder: &Path) -> bool {
    let manifest = || read_some(&folder.join(MANIFEST), LONGEST).ok();
    step_of(folder).is_some()
        || manifest().is_some_and(|text| serde_json::from_slice::<Manifest>(&text).is_ok())
}

/// Whether a folder has a manifest.
pub(super) fn is_whole(folder: &Path) -> bool {
    folder.join(MANIFEST).is_file()
}

/// All that has the name of a checkpoint, newest first.
pub(super) fn named(folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        found.extend(step_of(&path).map(|step| (step, path)));
    }
    found.sort_unstable_by(|a, b| b.cmp(a));
    Ok(found)
}

/// Checkpoints of a folder that have a manifest, newest first.
pub(crate) fn whole(folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut tries = LOOKS;
    loop {
        let mut found = named(folder)?;
        let before = found.len();
        found.retain(|(_, path)| is_whole(path));
        tries -= 1;
        // A run that removes the last one that was seen has left a newer one first.
        if !found.is_empty() || before == 0 || tries == 0 {
            return Ok(found);
        }
    }
}

/// Why what has the name of a checkpoint is none; `None` if it is one, or has gone meanwhile.
pub(super) fn amiss(path: &Path) -> Option<String> {
    match fs::metadata(path.join(MANIFEST)) {
        Ok(of) if of.is_file() => None,
        Ok(_) => Some(format!("its {MANIFEST} is not a file")),
        // What is removed has another name first.
        Err(_) if fs::symlink_metadata(path).is_err() => None,
        Err(_) if !path.is_dir() => Some("it is not a folder".into()),
        Err(e) if e.kind() == ErrorKind::NotFound => Some(format!("its {MANIFEST} is missing")),
        Err(e) => Some(format!("its {MANIFEST} cannot be read: {e}")),
    }
}

/// All that has the name of a checkpoint, newest first, after those that only lack their names have been given them. Where that
/// cannot be done, in a folder that cannot be written, they are there by the names that they have.
pub(super) fn settled(folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut left = settle(folder);
    let mut found = named(folder)?;
    left.retain(|(step, path)| is_whole(path) && found.iter().all(|(of, _)| of != step));
    found.append(&mut left);
    found.sort_unstable_by(|a, b| b.cmp(a));
    Ok(found)
}

/// Gives checkpoints that only lack their names, because their run was killed just then, those names; so whoever goes on from the
/// newest one finds it. Several may try at once, and a run that writes there does it itself. Returns those that could not be given
/// theirs.
pub(crate) fn settle(folder: &Path) -> Vec<(u64, PathBuf)> {
    let until = Instant::now() + PATIENCE;
    loop {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let unnamed = entries.map(|entry| entry.path()).filter(|path| is_whole(path));
        let mut unnamed: Vec<_> =
            unnamed.filter_map(|path| Some((step_before(&path, PART)?, path))).collect();
        if unnamed.is_empty() {
            return unnamed;
        }
        let mut own = Folder::at(folder);
        match own.lock() {
            Ok(()) => {
                unnamed.retain(|(step, _)| own.finish(*step).is_err());
                return unnamed;
            }
            Err(NotLocked::Held) if Instant::now() < until => std::thread::sleep(LOOK),
            // It is the other's, who will.
            Err(NotLocked::Held) => return Vec::new(),
            Err(NotLocked::Failed(_)) => return unnamed,
        }
    }
}

/// Waits while a run writes into a folder, but not for long. Makes nothing there.
pub(crate) fn wait_for_writer(folder: &Path) {
    let (until, place) = (Instant::now() + PATIENCE, folder.join(LOCK));
    let held = || {
        // To open a pipe is to wait for whoever reads it.
        fs::metadata(&place).ok().filter(fs::Metadata::is_file)?;
        let file = File::options().write(true).open(&place).ok()?;
        matches!(file.try_lock(), Err(TryLockError::WouldBlock)).then_some(())
    };
    while held().is_some() && Instant::now() < until {
        std::thread::sleep(LOOK);
    }
}

/// Why a folder is not this run's.
enum NotLocked {
    Held,
    Failed(io::Error),
}

impl Folder {
    /// Makes it where it is missing, and keeps other runs out of it if `lock`; what runs that were ended have left is removed.
    pub(crate) fn open(path: &Path, lock: bool) -> Result<Self, Error> {
        let failed = |source| Error::Write { what: "checkpoints", path: path.into(), source };
        let mut folder = Self::at(path);
        if !lock {
            return Ok(folder);
        }
        // One that goes would take what is in it along.
        if let Some(within) = within(path) {
            return Err(Error::Settings(format!(
                "{} lies in the checkpoint {}; write checkpoints into a folder of their own",
                shown(path),
                shown(&within)
            )));
        }
        // Whoever only gives a checkpoint its name soon lets go. A run that ends was waited for before this one chose what it goes on
        // from (`wait_for_writer`): what comes behind that would be passed over.
        let until = Instant::now() + NAMING;
        let locked = loop {
            match folder.lock() {
                Err(NotLocked::Held) if Instant::now() < until => std::thread::sleep(LOOK),
                other => break other,
            }
        };
        locked.map_err(|error| match error {
            NotLocked::Held => Error::Settings(format!(
                "another run writes checkpoints into {}; wait for it, or give this one another folder",
                shown(path)
            )),
            NotLocked::Failed(source) => failed(source),
        })?;
        folder.clean().map_err(failed)?;
        Ok(folder)
    }

    /// Of a place, which nothing was done to.
    fn at(path: &Path) -> Self {
        Self { path: path.into(), lock: None, made: (Vec::new(), false), used: AtomicBool::new(false) }
    }

    /// Keeps others out, for as long as this lives.
    fn lock(&mut self) -> Result<(), NotLocked> {
        let place = self.path.join(LOCK);
        for _ in 0..TRIES {
            let missing = self.path.ancestors().filter(|folder| !folder.as_os_str().is_empty());
            let missing: Vec<PathBuf> =
                missing.take_while(|folder| !folder.exists()).map(Path::to_path_buf).collect();
            // Before they are made, as making them may fail half-way.
            self.made = (missing, !place.exists());
            fs::create_dir_all(&self.path).map_err(NotLocked::Failed)?;
            // To open a pipe is to wait for whoever reads it.
            if fs::metadata(&place).is_ok_and(|of| !of.is_file()) {
                let message = format!("`{LOCK}` there is not a file");
                return Err(NotLocked::Failed(io::Error::new(ErrorKind::InvalidInput, message)));
            }
            let file = match File::options().create(true).truncate(false).write(true).open(&place) {
                Ok(file) => file,
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                Err(e) => return Err(NotLocked::Failed(e)),
            };
            match file.try_lock() {
                // Of a run that has taken it along meanwhile it keeps nobody out.
                Ok(()) if !is_at(&file, &place) => {}
                Ok(()) => {
                    self.lock = Some(file);
                    return Ok(());
                }
                Err(TryLockError::WouldBlock) => {
                    // It is the other's.
                    self.made = (Vec::new(), false);
                    return Err(NotLocked::Held);
                }
                Err(TryLockError::Error(e)) => return Err(NotLocked::Failed(e)),
            }
        }
        Err(NotLocked::Held)
    }

    /// For a run that begins with a step, or goes on from a checkpoint: with later ones there, of another run or of one that it
    /// goes back in, what it leaves would not be the newest; and among those of another run nobody knows which are whose.
    pub(crate) fn check(&self, first: u64, goes_on: Option<&Path>) -> Result<(), Error> {
        let failed = |source| Error::Write { what: "checkpoints", path: self.path.clone(), source };
        let Some((step, newest)) = whole(&self.path).map_err(failed)?.into_iter().next() else {
            return Ok(());
        };
        if step <= first && goes_on.is_some_and(|path| self.has(path)) {
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

    /// Whether a checkpoint lies in it.
    pub(crate) fn has(&self, checkpoint: &Path) -> bool {
        let real = |path: &Path| fs::canonicalize(path).ok();
        real(parent(checkpoint)).is_some_and(|parent| real(&self.path) == Some(parent))
    }

    /// Removes what is no checkpoint and was to become or has been one; one that only lacks its name gets it.
    fn clean(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            match (step_before(&path, PART), step_before(&path, REMOVED)) {
                (Some(step), _) if is_whole(&path) => self.finish(step)?,
                (Some(_), _) | (_, Some(_)) if is_own(&path)? => fs::remove_dir_all(&path)?,
                (None, None) if step_of(&path).is_none() || is_whole(&path) => {}
                // Not a run's, and in the way of one that will have this name.
                _ => return Err(in_the_way(&path)),
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
        if is_whole(&to) {
            remove(&to)?;
        } else if fs::symlink_metadata(&to).is_ok() {
            return Err(in_the_way(&to));
        }
        fs::rename(self.part(step), &to)?;
        self.used.store(true, Ordering::Relaxed);
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

impl Drop for Folder {
    fn drop(&mut self) {
        if self.used.load(Ordering::Relaxed) {
            return;
        }
        // What cannot be removed does no harm, and a folder with something in it stays.
        let (folders, lock) = &self.made;
        if *lock && self.lock.is_some() {
            let _ = fs::remove_file(self.path.join(LOCK));
        }
        for folder in folders {
            let _ = fs::remove_dir(folder);
        }
    }
}

/// Whether an open file is what has this name.
fn is_at(file: &File, path: &Path) -> bool {
    let of = |of: fs::Metadata| (of.dev(), of.ino());
    file.metadata().map(of).ok().is_some_and(|own| fs::metadata(path).map(of).is_ok_and(|at| at == own))
}

/// The error that something has the name of a checkpoint, or of a part of one, and is none.
fn in_the_way(path: &Path) -> io::Error {
    let is = match amiss(path) {
        _ if !path.is_dir() => "is not a folder".to_owned(),
        Some(reason) if step_of(path).is_some() => format!("cannot be used: {reason}"),
        _ => "has other files than a checkpoint".to_owned(),
    };
    io::Error::other(format!("{} has the name of a checkpoint and {is}; move it elsewhere", shown(path)))
}

/// Whether a folder has only what a run that was ended leaves of a checkpoint that it wrote or removed.
fn is_own(path: &Path) -> io::Result<bool> {
    if !fs::symlink_metadata(path)?.is_dir() {
        return Ok(false);
    }
    let mut entries = fs::read_dir(path)?;
    entries.try_fold(true, |all, entry| {
        let entry = entry?.path();
        let kind = entry.extension().and_then(|kind| kind.to_str());
        Ok(all && entry.is_file() && matches!(kind, Some("safetensors" | "json" | "tmp")))
    })
}

/// Removes a checkpoint, if it is there: at no moment is a part of it taken for whole, nor for one that was damaged.
fn remove(path: &Path) -> io::Result<()> {
    let mut removed = path.as_os_str().to_owned();
    removed.push(REMOVED);
    let absent_is_fine = |done: io::Result<()>| match done {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        other => other.map(|()| true),
    };
    absent_is_fine(fs::remove_dir_all(&removed))?;
    if absent_is_fine(fs::rename(path, &removed))? {
        // The name must not come back once files are gone.
        sync(parent(path))?;
        absent_is_fine(fs::remove_dir_all(&removed))?;
    }
    Ok(())
}

/// The folder that something lies in.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes the entries of a folder durable.
pub(crate) fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// The error that a checkpoint cannot be used, and which other could.
pub(in crate::weights) fn bad(path: &Path, reason: &str) -> Error {
    let others = whole(parent(path)).unwrap_or_default();
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
        write(at, "step-000000000200.removed", true);
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
        // Without a manifest it may be somebody's, under its own name and where it is in the way of one that becomes whole.
        write(at, "step-000000000500", false);
        write(at, "step-000000000500.part", true);
        assert_eq!(steps(at), [400]);
        for said in [folder.finish(500), folder.clean()].map(|done| done.unwrap_err().to_string()) {
            assert!(said.contains("its manifest.json is missing; move it elsewhere"), "{said}");
        }
        assert_eq!(fs::read_dir(at.join("step-000000000500")).unwrap().count(), 1);
    }

    /// What a lock was taken on that has gone with its run keeps nobody out.
    #[test]
    fn a_lock_is_where_others_look_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("lock");
        let file = File::create(&at).unwrap();
        assert!(is_at(&file, &at));
        fs::remove_file(&at).unwrap();
        assert!(!is_at(&file, &at));
        File::create(&at).unwrap();
        assert!(!is_at(&file, &at));
    }

    #[test]
    fn two_runs_do_not_share_one() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("a/b");
        let first = Folder::open(&at, true).unwrap();
        let said = Folder::open(&at, true).unwrap_err().to_string();
        assert!(said.contains("another run writes checkpoints into"), "{said}");
        assert!(at.join(LOCK).exists());
        drop(first);
        // It has left nothing there.
        assert!(!dir.path().join("a").exists());
        Folder::open(&at, true).unwrap();
    }
}
