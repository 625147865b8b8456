//! `fsx top`: watches a run that another terminal, or a job without one, has started with `--status FILE`.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use console::Term;
use fs_executor::Error;
use fs_schedule::terminal::{inline, shown};
use serde::{Deserialize, Serialize};

use crate::view::View;

/// Time between looks at the file.
const LOOK: Duration = Duration::from_millis(500);
/// A run that says nothing for so long has a reason.
const QUIET: f64 = 10.0;
/// Bytes of the largest status file that is read.
const MOST_BYTES: u64 = 1 << 20;
/// Lines that are shown at most.
const MOST_LINES: usize = 100;
/// The value of [`Status::format`].
const FORMAT: &str = "fs-status";

/// The content of a status file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Status {
    format: String,
    /// When it was written, in seconds since 1970.
    at: f64,
    /// The run.
    view: View,
}

#[derive(Args)]
pub(crate) struct Top {
    /// The file that `fsx run --status FILE` writes
    status: PathBuf,
    /// Show it once and end
    #[arg(long)]
    once: bool,
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

impl Status {
    pub(crate) fn of(view: &View) -> Self {
        Self { format: FORMAT.into(), at: now(), view: view.clone() }
    }

    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        let mut text = serde_json::to_vec(self)?;
        text.push(b'\n');
        fs_schedule::file::write_atomically(path, &text)
    }

    fn read(path: &Path) -> Result<Self, Error> {
        let wrong = |reason: String| {
            Error::Settings(format!(
                "{} is not the status of a run: {reason}; start one with `fsx run SCHEDULE.json --status {0}`",
                shown(path)
            ))
        };
        let text = fs_schedule::file::read_text_file(path, MOST_BYTES).map_err(|e| wrong(e.to_string()))?;
        if fs_schedule::terminal::steers(&text) {
            return Err(wrong("a text in it has characters that steer a terminal".into()));
        }
        let status: Self = serde_json::from_str(&text).map_err(|e| wrong(inline(&e.to_string())))?;
        if status.format == FORMAT { Ok(status) } else { Err(wrong("its `format` is another".into())) }
    }

    /// Lines that fit into `width` columns, at a time.
    fn lines(&self, width: usize, at: f64) -> Vec<String> {
        let mut lines = vec![self.view.title.chars().take(width).collect()];
        lines.extend(self.view.lines(width));
        lines.truncate(MOST_LINES);
        let since = at - self.at;
        if since > QUIET && !self.view.ended() {
            lines.push(format!("no news for {since:.0} s"));
        }
        lines
    }
}

/// Whether the terminal says that it cannot move its cursor.
pub(crate) fn dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|term| term == "dumb")
}

/// Shows the run until it ends.
pub(crate) fn top(settings: &Top) -> Result<ExitCode, Error> {
    let term = Term::stdout();
    let failed = |source| Error::Write { what: "to", path: "standard output".into(), source };
    let live = io::stdout().is_terminal() && !settings.once && !dumb();
    let mut drawn = 0;
    loop {
        let status = Status::read(&settings.status)?;
        let width = if io::stdout().is_terminal() { usize::from(term.size().1) } else { 100 };
        if live {
            term.clear_last_lines(drawn).map_err(failed)?;
        }
        let mut lines = status.lines(width, now());
        if live {
            // What has scrolled away cannot be taken back. The last line is the cursor's.
            lines.truncate(usize::from(term.size().0).saturating_sub(1).max(1));
        }
        drawn = lines.len();
        writeln!(io::stdout().lock(), "{}", lines.join("\n")).map_err(failed)?;
        if settings.once || status.view.ended() {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(if live { LOOK } else { 10 * LOOK });
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_is_written_is_read_and_silence_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("status.json");
        let mut view = View { title: "hstu, pec".into(), ..View::default() };
        view.begin("training", 0, 4);
        view.advance(10, 1.0);
        let status = Status::of(&view);
        status.write(&path).unwrap();
        assert_eq!(Status::read(&path).unwrap(), status);
        let lines = status.lines(40, status.at + 1.0);
        assert_eq!(lines[0], "hstu, pec");
        assert!(lines[1].starts_with("training 1/4  [") && lines[1].ends_with("eta 3 s"), "{lines:?}");
        assert_eq!(status.lines(40, status.at + 61.0).last().unwrap(), "no news for 61 s");
    }

    #[test]
    fn other_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("status.json");
        for text in [None, Some(""), Some("{"), Some("{\"format\": \"fs-schedule\"}"), Some("[1]")] {
            if let Some(text) = text {
                fs::write(&path, text).unwrap();
            }
            let said = Status::read(&path).unwrap_err().to_string();
            assert!(said.contains("status.json is not the status of a run"), "{said}");
        }
    }
}
