//! Puts all changes that cargo-mutants lists for some files into these files at once, each behind a switch.
//!
//! cargo-mutants builds and tests one change at a time: a thousand changes to a crate on which most others stand are a
//! thousand builds. Here they are one build (mutant schemata, Untch, Offutt and Harrold, 1993): `a < b` with the changes 7
//! and 8 becomes `match on() { 7 => a == b, 8 => a > b, _ => a < b }`, where `on()` reads `FS_MUTANT`. In the arm of a
//! change everything else is as it was, since one change is on at a time; so the text grows by the depth of nesting only.
//!
//! `fs-mutants LIST ROOT` reads what `cargo mutants --list --json` printed (a number stands for each entry, from 1) and
//! rewrites the files below ROOT. It prints the numbers that can't be switched at run time (constants, `let` chains), one a line; `run.py` tests those by a build of their own.

mod edit;
mod find;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use find::Change;

fn rewritten(list: &str, root: &Path) -> Result<Vec<usize>, String> {
    let text = std::fs::read_to_string(list).map_err(|e| format!("{list}: {e}"))?;
    let entries: Vec<serde_json::Value> = serde_json::from_str(&text).map_err(|e| format!("{list}: {e}"))?;
    let mut files: BTreeMap<String, Vec<Change>> = BTreeMap::new();
    for (at, entry) in entries.iter().enumerate() {
        let change =
            Change::new(at + 1, entry).ok_or_else(|| format!("{list}: entry {at} is not a mutant"))?;
        files.entry(change.file.clone()).or_default().push(change);
    }
    let mut left = Vec::new();
    for (file, changes) in files {
        let path = root.join(&file);
        let source = std::fs::read_to_string(&path).map_err(|e| format!("{file}: {e}"))?;
        let (edits, not) = find::edits(&source, &changes).map_err(|e| format!("{file}: {e}"))?;
        std::fs::write(&path, edit::apply(&source, &edits)).map_err(|e| format!("{file}: {e}"))?;
        left.extend(not);
    }
    left.sort_unstable();
    Ok(left)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [list, root] = arguments.as_slice() else {
        eprintln!("usage: fs-mutants LIST ROOT");
        return ExitCode::from(2);
    };
    match rewritten(list, Path::new(root)) {
        Ok(left) => {
            for n in left {
                let _ = writeln!(std::io::stdout(), "{n}");
            }
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}
