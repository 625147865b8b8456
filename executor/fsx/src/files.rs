//! Where the files lie that commands write.

use std::fs;
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
