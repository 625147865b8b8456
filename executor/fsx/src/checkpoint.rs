//! `fsx checkpoint`: what lies in a folder of checkpoints, whether it is whole, and what else can be made of it.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use fs_executor::Error;
use fs_executor::units::{grouped, human};
use fs_executor::weights::{Difference, Differences, Listed, checkpoints, convert, differences};
use fs_schedule::terminal::{entry, shown};
use serde::Serialize;

use crate::files::place_of;

/// Arguments of `fsx checkpoint`.
#[derive(Args)]
pub(crate) struct Settings {
    /// A folder of checkpoints, one of them, or with --to and --compare also a file of values
    #[arg(value_name = "DIR")]
    path: PathBuf,
    /// Hold every byte against the digests
    #[arg(long, conflicts_with_all = ["to", "compare"])]
    verify: bool,
    /// Write it to OUT: one file if the name ends in .safetensors, else as a checkpoint into that folder
    #[arg(long, value_name = "OUT", conflicts_with = "compare")]
    to: Option<PathBuf>,
    /// Without the optimizers' states
    #[arg(long, requires = "to")]
    weights_only: bool,
    /// Say in what it differs from another one, or from a file of values
    #[arg(long, value_name = "OTHER")]
    compare: Option<PathBuf>,
    /// Print what is found as JSON
    #[arg(long)]
    json: bool,
}

/// Success only if there is one and none is damaged, if it is written, or if nothing differs.
pub(crate) fn run(settings: &Settings) -> Result<ExitCode, Error> {
    let Settings { path, verify, to, weights_only, compare, .. } = settings;
    if let Some(to) = to {
        if place_of(path) == place_of(to) {
            return Err(Error::Settings(format!(
                "{} would be written over itself; give --to another name",
                shown(to)
            )));
        }
        let made = convert(path, to, *weights_only)?;
        let dropped = match made.dropped {
            0 => String::new(),
            n => format!(", without {n} states of optimizers"),
        };
        let text = format!("{}: {} tensors of {}{dropped}\n", shown(&made.path), made.tensors, shown(path));
        print(settings, &made, || text)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(other) = compare {
        let found = differences(path, other)?;
        print(settings, &found, || compared(&found, [path, other]))?;
        let same = found.tensors.is_empty() && found.steps[0] == found.steps[1];
        return Ok(if same { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let found = checkpoints(path, *verify)?;
    if found.is_empty() {
        return Err(Error::Weights(format!("there is no checkpoint in {}", shown(path))));
    }
    print(settings, &found, || text(&found, *verify))?;
    let damaged = found.iter().any(|checkpoint| checkpoint.damaged.is_some());
    Ok(if damaged { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print(settings: &Settings, found: &impl Serialize, text: impl FnOnce() -> String) -> Result<(), Error> {
    let text = if settings.json {
        let mut text = serde_json::to_string_pretty(found).unwrap_or_default();
        text.push('\n');
        text
    } else {
        text()
    };
    let printed = io::stdout().lock().write_all(text.as_bytes());
    printed.map_err(|source| Error::Write { what: "to", path: "standard output".into(), source })
}

fn text(found: &[Listed], verified: bool) -> String {
    let mut text = String::new();
    for checkpoint in found {
        let Listed { path, step, model, ranks, seed, bytes, scores, damaged, .. } = checkpoint;
        let _ = write!(text, "{}", shown(path));
        if let (Some(step), Some(model), Some(seed), Some(bytes)) = (step, model, seed, bytes) {
            let (model, bytes) = (entry(model), human(*bytes));
            let on = ranks.map_or_else(String::new, |ranks| format!(" on {ranks} rank(s)"));
            let _ = write!(text, ": {model} after {step} steps{on}, seed {seed}, {bytes}");
        }
        if let Some(scores) = scores {
            let s = &scores.unseen;
            let _ = write!(text, ", HR@10 {:.4}, HR@50 {:.4}, NDCG@10 {:.4}", s.hr_10, s.hr_50, s.ndcg_10);
        }
        let _ = match damaged {
            Some(reason) => writeln!(text, "\n  {}", entry(reason)),
            None if verified => writeln!(text, ", every byte as its digest says"),
            None => writeln!(text),
        };
        // Of one alone also what is in it.
        for tensor in checkpoint.tensors.iter().filter(|_| found.len() == 1) {
            let _ = writeln!(
                text,
                "  {:<40} {} in {} piece(s)",
                entry(&tensor.name),
                tensor.shape,
                tensor.pieces
            );
        }
    }
    text
}

fn compared(found: &Differences, [a, b]: [&Path; 2]) -> String {
    let (a, b) = (shown(a), shown(b));
    let mut text = String::new();
    if let [one, other] = found.steps
        && one != other
    {
        let steps = |steps: Option<u64>| steps.map_or("unknown".into(), |steps| steps.to_string());
        let _ = writeln!(text, "steps: {} in {a}, {} in {b}", steps(one), steps(other));
    }
    for Difference { name, shapes, elements, of, most } in &found.tensors {
        let name = entry(name);
        let _ = match (shapes, most) {
            ([Some(_), None], _) => writeln!(text, "{name}: only in {a}"),
            ([None, _], _) => writeln!(text, "{name}: only in {b}"),
            ([Some(one), Some(other)], _) if one != other => {
                writeln!(text, "{name}: {one} in {a}, {other} in {b}")
            }
            (_, most) => {
                let by = most.map_or_else(String::new, |most| format!(", by at most {most:.3e}"));
                writeln!(text, "{name}: {} of {} elements differ{by}", grouped(*elements), grouped(*of))
            }
        };
    }
    let (equal, all) = (found.equal, found.equal + found.tensors.len());
    let _ = writeln!(text, "{equal} of {all} tensors are equal in every bit");
    text
}
