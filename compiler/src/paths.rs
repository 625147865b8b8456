//! Paths in schedules, written so that where and how the compiler was called leaves no trace.
//!
//! Sources are named relative to the model's folder. The data file is named relative to the schedule's folder, as
//! paths in files usually are: model, data and schedule can be moved together. A path that the model itself gives as
//! absolute stays absolute. All have `/` between their parts.

use std::fs;
use std::path::{Component, Path, PathBuf};

use fs_dsl::checked::{DataSource, Program};
use fs_schedule::terminal::shown;
use fs_schedule::{Data, Schedule};
use fs_workload::names::steers;

/// A path that no schedule can hold.
#[derive(Debug, thiserror::Error)]
#[error(
    "the path of the data, {}, has characters that no schedule can hold; rename the folder, or give the data's whole path", shown(.0)
)]
pub struct Unnamed(PathBuf);

/// Rewrites the paths of a schedule that was compiled from `program` for a file in `folder`; `None` if it goes into no
/// file, then the data is named relative to the model's folder too. `given` is the model's path, as it was loaded.
pub fn anchor(
    schedule: &mut Schedule,
    program: &Program,
    given: &Path,
    folder: Option<&Path>,
) -> Result<(), Unnamed> {
    let Some(model) = program.sources.files.first() else { return Ok(()) };
    let home = Path::new(&model.path).parent().unwrap_or(Path::new(""));
    for source in &mut schedule.sources {
        source.path = text(&relative(&lexical(home), &lexical(Path::new(&source.path))));
    }
    let Some(DataSource::Csv { path: written, .. } | DataSource::Safetensors { path: written }) =
        program.workload.as_ref().map(|w| &w.source)
    else {
        return Ok(());
    };
    if Path::new(written).is_absolute() {
        return Ok(());
    }
    // Sources have the names that may be shown, which are others then.
    if given.to_str() != Some(&model.path) {
        return Err(Unnamed(given.with_file_name(written)));
    }
    if let Some(Data::Csv { path, .. } | Data::Safetensors { path }) = &mut schedule.data {
        // Two ways to write one folder must not look like two folders: links are followed where they exist.
        let (from, to) = (real(folder.unwrap_or(home)), real(Path::new(path)));
        let way = relative(&from, &to);
        if way.to_str().is_none_or(|way| way.contains(steers)) {
            return Err(Unnamed(to));
        }
        *path = text(&way);
    }
    Ok(())
}

/// The folder of an output file; `None` for a device or the like.
pub fn folder_of(output: &Path) -> Option<PathBuf> {
    if fs::metadata(output).is_ok_and(|m| !m.is_file()) {
        return None;
    }
    // Outputs are written through links.
    let file = fs::canonicalize(output).unwrap_or_else(|_| output.into());
    Some(file.parent().unwrap_or(Path::new("")).into())
}

/// Absolute, without `.` and `..`, whatever exists.
fn lexical(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in std::path::absolute(Path::new(".").join(path)).unwrap_or_else(|_| path.into()).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                out.pop();
            }
            other => out.push(other),
        }
    }
    out
}

/// Absolute, links followed as far as the path exists.
fn real(path: &Path) -> PathBuf {
    let path = Path::new(".").join(path);
    for ancestor in path.ancestors() {
        if let (Ok(found), Ok(rest)) = (fs::canonicalize(ancestor), path.strip_prefix(ancestor)) {
            return lexical(&found.join(rest));
        }
    }
    lexical(&path)
}

/// From one absolute path to another.
fn relative(from: &Path, to: &Path) -> PathBuf {
    let (from, to): (Vec<_>, Vec<_>) = (from.components().collect(), to.components().collect());
    let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let up = from[common..].iter().map(|_| Component::ParentDir);
    up.chain(to[common..].iter().copied()).collect()
}

fn text(path: &Path) -> String {
    let parts: Vec<_> = path.components().map(|c| c.as_os_str().to_string_lossy()).collect();
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_folder_to_file() {
        for (from, to, path) in [
            ("/a/b", "/a/b/c.csv", "c.csv"),
            ("/a/b", "/a/d/c.csv", "../d/c.csv"),
            ("/a/b/e", "/a/c.csv", "../../c.csv"),
            ("/", "/a/c.csv", "a/c.csv"),
            ("/ab", "/a/c.csv", "../a/c.csv"),
        ] {
            assert_eq!(text(&relative(Path::new(from), Path::new(to))), path);
        }
    }

    #[test]
    fn spellings_of_one_path() {
        let here = std::env::current_dir().expect("a working directory");
        for spelling in ["x/y.fs", "./x/y.fs", "x/../x/./y.fs", "nothing/../x/y.fs"] {
            assert_eq!(lexical(Path::new(spelling)), here.join("x/y.fs"));
        }
        assert_eq!(lexical(&here.join("x//y.fs")), here.join("x/y.fs"));
        assert_eq!(lexical(Path::new("")), here);
        assert_eq!(real(Path::new("")), fs::canonicalize(&here).expect("it exists"));
        assert!(real(Path::new("no/such/../file.csv")).ends_with("no/file.csv"));
    }
}
