//! The small commands: check, format, verify.

use std::io::IsTerminal as _;
use std::path::Path;

use fs_dsl::checked::Program;
use fs_schedule::file;
use fs_schedule::terminal::shown;

use super::failure::Failure;
use super::print;

/// Loads a model; diagnostics go to standard error.
pub(super) fn load(model: &Path) -> Result<Program, Failure> {
    let loaded = fs_dsl::load(model);
    say!("{}", fs_dsl::render(&loaded.diagnostics, &loaded.sources, std::io::stderr().is_terminal()));
    loaded.program.ok_or_else(|| {
        let n = loaded.diagnostics.iter().filter(|d| d.is_error()).count();
        Failure::Found(format!("{} has {n} error{}", shown(model), if n == 1 { "" } else { "s" }))
    })
}

/// Bytes of the largest text that is read: a model has less.
pub(super) const MOST_BYTES: u64 = 1 << 26;

pub(super) fn check(model: &Path) -> Result<(), Failure> {
    load(model).map(|_| ())
}

pub(super) fn fmt(models: &[impl AsRef<Path>], check: bool) -> Result<(), Failure> {
    let mut unformatted = Vec::new();
    for model in models {
        let path = model.as_ref();
        let text = file::read_text_file(path, MOST_BYTES).map_err(Failure::read(path))?;
        let name = shown(path);
        let formatted = fs_dsl::format_text(&name, &text).map_err(|diagnostics| {
            let sources = fs_dsl::source::SourceMap {
                files: vec![fs_dsl::source::SourceFile { path: name.clone(), text: text.clone() }],
            };
            say!("{}", fs_dsl::render(&diagnostics, &sources, std::io::stderr().is_terminal()));
            Failure::Found(format!("{} is not formatted: it has syntax errors", shown(path)))
        })?;
        if formatted == text {
            continue;
        }
        if check {
            unformatted.push(shown(path));
        } else {
            file::write_atomically(path, formatted.as_bytes()).map_err(Failure::write(path))?;
        }
    }
    if unformatted.is_empty() {
        Ok(())
    } else {
        Err(Failure::Found(format!("not formatted: {}", unformatted.join(", "))))
    }
}

pub(super) fn verify(schedule: &Path, ignore_digest: bool) -> Result<(), Failure> {
    let read = if ignore_digest { file::read_ignoring_digest(schedule) } else { file::read(schedule) };
    let s = read?;
    let path = shown(schedule);
    print(&format!("{path}: valid ({} operations a step)\n", s.train.ops.len()))
}
