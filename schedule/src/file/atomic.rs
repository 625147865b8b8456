//! Files that are there whole or not at all.
//!
//! A file is written beside its place and moved there once it is whole. What is not whole when a process ends is removed,
//! which its threads must not be able to hold up: among thousands of them one that holds a lock, of the memory too, may not
//! get its turn before the end.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// Writes beside the target and renames, so that a full disk or a crash never leaves half a file.
/// Something that is not a plain file (a pipe, a device) is written directly.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_atomically_with(path, |out| out.write_all(bytes))
}

/// The same for what is too large to hold as text: `fill` writes it piece by piece.
pub fn write_atomically_with(
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    if fs::metadata(path).is_ok_and(|m| !m.is_file()) {
        let mut out = io::BufWriter::new(fs::OpenOptions::new().write(true).open(path)?);
        fill(&mut out)?;
        return out.flush();
    }
    // What a link points to is replaced, not the link, and keeps its mode.
    let target = target_of(path)?;
    let path = target.as_path();
    let temporary = beside(path, "tmp");
    let (unfinished, file) = Unfinished::create(&temporary);
    let result = file.and_then(|file| {
        let mut out = io::BufWriter::new(file);
        fill(&mut out)?;
        replace(&out.into_inner()?, &temporary, path)
    });
    let result = result.inspect_err(|_| {
        let _ = fs::remove_file(&temporary);
    });
    drop(unfinished);
    result
}

/// Moves a file that is whole to its place.
fn replace(file: &fs::File, temporary: &Path, target: &Path) -> io::Result<()> {
    if let Ok(old) = fs::metadata(target) {
        file.set_permissions(old.permissions())?;
    }
    file.sync_all()?;
    fs::rename(temporary, target)
}

/// The place of a file that may be written once this process is being ended: without memory, and without waiting for
/// another thread. (Paths of more than some 300 bytes take memory even so.)
#[derive(Debug)]
pub struct Reserved {
    target: PathBuf,
    /// What becomes it; nothing where it is no plain file.
    temporary: Option<PathBuf>,
}

/// Held while a [`Reserved`] comes to be, and for good once what is unfinished is being removed.
static RESERVED: Mutex<()> = Mutex::new(());

impl Reserved {
    /// Finds the place.
    pub fn new(path: &Path) -> io::Result<Self> {
        if fs::metadata(path).is_ok_and(|m| !m.is_file()) {
            return Ok(Self { target: path.into(), temporary: None });
        }
        let target = target_of(path)?;
        let temporary = beside(&target, "last");
        let own = temporary.clone();
        with_room(&UNFINISHED).push(own);
        Ok(Self { target, temporary: Some(temporary) })
    }

    /// Like [`write_atomically_with`].
    pub fn write(&self, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        let Some(temporary) = &self.temporary else {
            let mut out = Small::new(fs::OpenOptions::new().write(true).open(&self.target)?);
            fill(&mut out)?;
            return out.flush();
        };
        let file = match patient(&RESERVED) {
            Some(_held) => fs::File::create(temporary)?,
            None => return Err(io::ErrorKind::WouldBlock.into()),
        };
        let mut out = Small::new(file);
        let result = fill(&mut out).and_then(|()| out.flush());
        result.and_then(|()| replace(&out.file, temporary, &self.target)).inspect_err(|_| {
            let _ = fs::remove_file(temporary);
        })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let mut all = locked(&UNFINISHED);
            if let Some(i) = all.iter().position(|p| p == temporary) {
                all.swap_remove(i);
            }
        }
    }
}

/// A file with a small buffer in place.
struct Small {
    file: fs::File,
    bytes: [u8; 4096],
    used: usize,
}

impl Small {
    fn new(file: fs::File) -> Self {
        Self { file, bytes: [0; 4096], used: 0 }
    }
}

impl Write for Small {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.used == self.bytes.len() {
            self.flush()?;
        }
        let free = &mut self.bytes[self.used..];
        let taken = bytes.len().min(free.len());
        free[..taken].copy_from_slice(&bytes[..taken]);
        self.used += taken;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_all(&self.bytes[..self.used])?;
        self.used = 0;
        Ok(())
    }
}

/// Finds out whether [`write_atomically`] can write a file, before there is something to write.
pub fn check_writable(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a directory")),
        Ok(found) if !found.is_file() => fs::OpenOptions::new().write(true).open(path).map(drop),
        _ => {
            let temporary = beside(&target_of(path)?, "check");
            let (_unfinished, file) = Unfinished::create(&temporary);
            drop(file?);
            fs::remove_file(&temporary)
        }
    }
}

/// A file beside another, of this process alone.
fn beside(target: &Path, what: &str) -> PathBuf {
    let mut name = target.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.{what}", std::process::id()));
    target.with_file_name(name)
}

/// Where a path leads through links, also if nothing is there yet.
fn target_of(path: &Path) -> io::Result<PathBuf> {
    /// Links behind links, as the system allows.
    const MOST_LINKS: usize = 40;
    let mut path = path.to_path_buf();
    for _ in 0..MOST_LINKS {
        let Ok(next) = fs::read_link(&path) else { return Ok(fs::canonicalize(&path).unwrap_or(path)) };
        path = path.parent().unwrap_or(Path::new("")).join(next);
    }
    Err(io::Error::other("its links lead in a circle"))
}

/// A folder that is gone once this is: for files that come to their places together. It goes with a process that is ended,
/// too.
#[derive(Debug)]
pub struct PartFolder(PathBuf);

impl PartFolder {
    /// Makes it.
    pub fn create(path: &Path) -> io::Result<Self> {
        let (own, listed) = (Self(path.into()), path.to_path_buf());
        let mut all = with_room(&UNFINISHED);
        if let Err(e) = fs::create_dir(path) {
            // It is not this one's.
            std::mem::forget(own);
            return Err(e);
        }
        all.push(listed);
        Ok(own)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Moves files of it to their places. A signal does not come between them; an error says which could not be moved.
    pub fn put(&self, files: &[(PathBuf, PathBuf)]) -> Result<(), (PathBuf, io::Error)> {
        let _held = locked(&UNFINISHED);
        files.iter().try_for_each(|(from, to)| fs::rename(from, to).map_err(|e| (to.clone(), e)))
    }
}

impl Drop for PartFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
        let mut all = locked(&UNFINISHED);
        if let Some(i) = all.iter().position(|p| *p == self.0) {
            all.swap_remove(i);
        }
    }
}

/// Folders that were made for what is written into them. Those that are still empty are gone once this is, and with a
/// process that is ended.
#[derive(Debug)]
pub struct MadeFolders(Vec<PathBuf>);

/// Folders that [`MadeFolders`] have made.
static MADE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

impl MadeFolders {
    /// Makes a folder, and those that it lies in, where they are missing.
    pub fn create(path: &Path) -> io::Result<Self> {
        let missing = path.ancestors().take_while(|p| !p.as_os_str().is_empty() && !p.exists());
        let missing: Vec<PathBuf> = missing.map(Path::to_path_buf).collect();
        let mut made = Self(Vec::new());
        for folder in missing.into_iter().rev() {
            made.0.push(folder.clone());
            let mut all = with_room(&MADE);
            match fs::create_dir(&folder) {
                Ok(()) => all.push(folder),
                // Somebody else has made it, or it is another word for one that was made here (`a/.`, `a/b/..`).
                Err(e) => {
                    made.0.pop();
                    if !folder.is_dir() {
                        return Err(e);
                    }
                }
            }
        }
        // What is no folder says so.
        fs::create_dir_all(path).map(|()| made)
    }
}

impl Drop for MadeFolders {
    fn drop(&mut self) {
        let mut all = locked(&MADE);
        for folder in self.0.iter().rev() {
            // One that something is in stays.
            let _ = fs::remove_dir(folder);
            if let Some(i) = all.iter().position(|p| p == folder) {
                all.remove(i);
            }
        }
    }
}

/// Files and folders that are being written.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A list with room for one more. Memory is asked for while nobody holds it: whoever asks in vain ends the process, and
/// then removes what is on it.
fn with_room<T>(list: &Mutex<Vec<T>>) -> MutexGuard<'_, Vec<T>> {
    loop {
        let held = locked(list);
        if held.len() < held.capacity() {
            return held;
        }
        let more = 2 * held.capacity() + 8;
        drop(held);
        let mut larger = Vec::with_capacity(more);
        let mut held = locked(list);
        if held.capacity() < more {
            larger.append(&mut held);
            std::mem::swap(&mut *held, &mut larger);
        }
    }
}

fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file in [`UNFINISHED`], for as long as it lives.
struct Unfinished<'a>(&'a Path);

impl<'a> Unfinished<'a> {
    /// Under the lock, so that no file comes to be once all are being removed.
    fn create(path: &'a Path) -> (Self, io::Result<fs::File>) {
        let listed = path.to_path_buf();
        let mut all = with_room(&UNFINISHED);
        all.push(listed);
        (Self(path), fs::File::create(path))
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        let mut all = locked(&UNFINISHED);
        if let Some(i) = all.iter().position(|p| p == self.0) {
            all.swap_remove(i);
        }
    }
}

/// Removes what is half written, for a process that is about to end: nothing is begun any more after it. Whoever is just
/// beginning a file is waited for, no longer than half a second each: among thousands of threads its turn may not come.
pub fn remove_unfinished() {
    const TRIES: u32 = 100;
    let reserved = patient(&RESERVED);
    let all = patient(&UNFINISHED);
    for path in all.iter().flat_map(|all| all.iter()) {
        // Whoever fills a folder may be about to begin a file in it.
        for _ in 0..TRIES {
            if fs::remove_file(path).is_ok() || !fs::symlink_metadata(path).is_ok_and(|m| m.is_dir()) {
                break;
            }
            let _ = fs::remove_dir_all(path);
        }
    }
    let made = patient(&MADE);
    for folder in made.iter().flat_map(|made| made.iter().rev()) {
        let _ = fs::remove_dir(folder);
    }
    // What another thread begins now waits for the end of the process.
    std::mem::forget((reserved, all, made));
}

/// A lock that is had within half a second.
fn patient<T>(lock: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    const TRIES: u32 = 500;
    for _ in 0..TRIES {
        match lock.try_lock() {
            Ok(held) => return Some(held),
            Err(TryLockError::Poisoned(held)) => return Some(held.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_written_through() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("far")).expect("a folder");
        symlink("far/target", at("link")).expect("a link");
        symlink("link", at("again")).expect("a link");
        // Nothing is there yet, then something is.
        for text in ["one", "two"] {
            write_atomically(&at("again"), text.as_bytes()).expect("written");
            assert_eq!(std::fs::read_to_string(at("far/target")).expect("the target"), text);
            assert!(at("link").is_symlink() && at("again").is_symlink());
        }
        assert_eq!(std::fs::read_dir(at("far")).expect("listed").count(), 1, "nothing is left beside it");
    }

    #[test]
    fn links_in_a_circle_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        symlink("b", at("a")).expect("a link");
        symlink("a", at("b")).expect("a link");
        let said = write_atomically(&at("a"), b"text").unwrap_err().to_string();
        assert!(said.contains("circle") && at("a").is_symlink() && at("b").is_symlink(), "{said}");
    }

    #[test]
    fn half_written_files_can_be_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("result");
        let _ = write_atomically_with(&path, |out| {
            out.write_all(b"half")?;
            let name = std::fs::read_dir(folder.path())?.next().expect("a file")?.path();
            assert!(UNFINISHED.lock().is_ok_and(|all| all.contains(&name)));
            Ok(())
        });
        let left = UNFINISHED.lock().map(|all| all.iter().filter(|p| p.starts_with(folder.path())).count());
        assert_eq!(left.ok(), Some(0));
    }
}
