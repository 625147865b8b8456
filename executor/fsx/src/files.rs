//! Files that commands write: where they lie, and whether they can be written.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// Where a path leads, also if only its folder is there yet.
pub(crate) fn place_of(path: &Path) -> PathBuf {
    let whole = fs::canonicalize(path).ok();
    let within = || {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        Some(fs::canonicalize(folder.unwrap_or(Path::new("."))).ok()?.join(path.file_name()?))
    };
    whole.or_else(within).or_else(|| std::path::absolute(path).ok()).unwrap_or_else(|| path.into())
}

/// Finds out before training whether a result can be written after it.
pub(crate) fn check_writable(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a directory")),
        Ok(found) if !found.is_file() => OpenOptions::new().write(true).open(path).map(drop),
        _ => {
            // Results are written beside and renamed, so the folder must take a file.
            let mut name = path.file_name().unwrap_or_default().to_os_string();
            name.push(format!(".{}.check", std::process::id()));
            let beside = path.with_file_name(name);
            OpenOptions::new().write(true).create_new(true).open(&beside)?;
            fs::remove_file(beside)
        }
    }
}
