//! `fsc chakra`.

use std::fs;
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use fs_compiler::chakra::Export;
use fs_schedule::file::{self, MadeFolders, PartFolder};
use fs_schedule::terminal::{inline, shown, word};

use super::failure::Failure;

/// Bytes; most file systems take 255 with the ending.
const LONGEST_NAME: usize = 200;

/// Arguments of `fsc chakra`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The schedule.
    schedule: PathBuf,
    /// Folder for the traces; made if it is not there. Files are NAME.RANK.et.
    #[arg(short, long)]
    output: PathBuf,
    /// Batches to trace, from the first to the last: stages fill and drain.
    #[arg(long, default_value_t = 4)]
    steps: u64,
    /// Name of the files (default: the schedule's).
    #[arg(long, value_parser = word)]
    name: Option<String>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let s = file::read(&args.schedule)?;
    let export = Export::new(&s, args.steps).map_err(Failure::of(&args.schedule))?;
    let stem = || args.schedule.file_stem().map(|n| n.to_string_lossy().into_owned());
    let name = args.name.clone().or_else(stem).filter(|n| !n.is_empty()).unwrap_or_else(|| s.model.clone());
    if name.contains(['/', '\\']) {
        return Err(Failure::Usage(format!(
            "--name is the start of file names, not a path: `{}`",
            inline(&name)
        )));
    }
    if name.starts_with('.') || name.len() > LONGEST_NAME || name.chars().any(char::is_control) {
        let start = inline(&name.chars().take(40).collect::<String>());
        return Err(Failure::Usage(format!(
            "--name `{start}` makes bad file names: at most {LONGEST_NAME} bytes, no control characters, no dot first"
        )));
    }
    let _made = MadeFolders::create(&args.output).map_err(Failure::write(&args.output))?;
    // All files or none: they are put in place once the last one is written.
    let part = PartFolder::create(&part_in(&args.output, &name)).map_err(Failure::write(&args.output))?;
    let outcome = write(&export, s.ranks, &part, &args.output, &name);
    drop(part);
    let bytes = outcome?;
    let prefix = args.output.join(&name);
    tell!(
        "{}: {} step{} of {} rank{}, {:.1} MB -> {}.0.et{}",
        s.model,
        args.steps,
        if args.steps == 1 { "" } else { "s" },
        s.ranks,
        if s.ranks == 1 { "" } else { "s" },
        bytes as f64 / 1e6,
        shown(&prefix),
        if s.ranks == 1 { String::new() } else { format!(" to {}.{}.et", shown(&prefix), s.ranks - 1) }
    );
    let beyond = args.output.join(format!("{name}.{}.et", s.ranks));
    if beyond.exists() {
        tell!("warning: {} is of another export and was left there", shown(&beyond));
    }
    Ok(())
}

fn part_in(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!(".{name}.{}.tmp", std::process::id()))
}

/// Writes the files of all ranks into `part`, then moves them. Returns their bytes.
fn write(
    export: &Export<'_>,
    ranks: u32,
    part: &PartFolder,
    folder: &Path,
    name: &str,
) -> Result<u64, Failure> {
    let began = Instant::now();
    let shows = std::io::stderr().is_terminal();
    let mut bytes = 0;
    let mut shown = false;
    for rank in 0..ranks {
        let path = part.path().join(format!("{name}.{rank}.et"));
        let content = export.file(rank);
        fs::write(&path, &content).map_err(Failure::write(&path))?;
        bytes += content.len() as u64;
        let passed = began.elapsed().as_secs_f64();
        if shows && passed > 2.0 {
            let left = passed / f64::from(rank + 1) * f64::from(ranks - rank - 1);
            say!("\r{} of {ranks} ranks, {left:.0} s left  ", rank + 1);
            shown = true;
        }
    }
    if shown {
        say!("\n");
    }
    let place = |rank| format!("{name}.{rank}.et");
    let moves = (0..ranks).map(|rank| (part.path().join(place(rank)), folder.join(place(rank))));
    let moves: Vec<(PathBuf, PathBuf)> = moves.collect();
    // What would refuse a file refuses all of them.
    if let Some((_, to)) = moves.iter().find(|(_, to)| to.is_dir()) {
        return Err(Failure::write(to)(io::Error::other("it is a folder")));
    }
    part.put(&moves).map_err(|(to, e)| Failure::write(&to)(e))?;
    Ok(bytes)
}
