//! `fsc viz`.

use std::path::{Path, PathBuf};

use fs_compiler::viz::measured::Measured;
use fs_compiler::viz::{Timeline, html};
use fs_schedule::terminal::shown;
use fs_schedule::{file, trace};

use super::failure::Failure;
use super::{keep_input, pictures};

/// Arguments of `fsc viz`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The schedule; two are drawn one above the other.
    #[arg(required = true, num_args = 1..=2)]
    schedules: Vec<PathBuf>,
    /// The picture: .html (interactive), .svg or .dot.
    #[arg(short, long)]
    output: PathBuf,
    /// Draw a run beneath its prediction: what `fsx run --trace` wrote for this schedule (.html only).
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Steps to draw (default: 3 in .html, 2 in .svg, or those of the trace).
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64), conflicts_with = "trace")]
    steps: Option<u32>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let ending = args.output.extension().map(|e| e.to_string_lossy().to_lowercase()).unwrap_or_default();
    let interactive = matches!(ending.as_str(), "html" | "htm");
    if !interactive && !pictures::ENDINGS.contains(&ending.as_str()) {
        return Err(Failure::Usage(format!(
            "{}: the ending says what to draw, and must be .html or .{}",
            shown(&args.output),
            pictures::ENDINGS.join(" or .")
        )));
    }
    if !interactive && args.trace.is_some() {
        return Err(Failure::usage("--trace is for .html files only"));
    }
    if ending == "dot" && args.steps.is_some() {
        return Err(Failure::usage("--steps is for timelines; a .dot file holds the graph of one step"));
    }
    if args.trace.is_some() && args.schedules.len() > 1 {
        return Err(Failure::usage("--trace goes with one schedule, the one that ran"));
    }
    let inputs: Vec<&Path> = args.schedules.iter().chain(&args.trace).map(PathBuf::as_path).collect();
    keep_input(&args.output, &inputs)?;
    let mut drawn = Vec::new();
    let mut measured = None;
    for path in &args.schedules {
        let s = file::read(path)?;
        let timeline = Timeline::of(&s).map_err(Failure::of(path))?;
        if let Some(at) = &args.trace {
            let ran = trace::read(at)?;
            ran.check(at, &s)?;
            if ran.schedule.ranks != s.ranks {
                let (ran, planned) = (ran.schedule.ranks, s.ranks);
                tell!("note: the trace is of {ran} rank(s), the prediction beside it is for {planned}");
            }
            let there = ran.ranks();
            if there.len() < ran.schedule.ranks as usize && !there.is_empty() {
                let there: Vec<String> = there.iter().map(u32::to_string).collect();
                tell!("note: of {} ranks the trace shows {}", ran.schedule.ranks, there.join(", "));
            }
            measured = Some(Measured::of(&timeline, &ran).ok_or_else(|| {
                Failure::Found(format!(
                    "trace {} holds no executions of operations; trace steps that ran, with `fsx run --trace-steps`",
                    shown(at)
                ))
            })?);
        }
        drawn.push((path.clone(), timeline));
    }
    let text = match pictures::draw(&ending, &drawn, args.steps) {
        Some(text) => text?,
        None => page(drawn, measured, args.steps.unwrap_or(html::STEPS)),
    };
    file::write_atomically(&args.output, text.as_bytes()).map_err(Failure::write(&args.output))
}

fn page(drawn: Vec<(PathBuf, Timeline)>, mut measured: Option<Measured>, steps: u32) -> String {
    let name = |path: &Path| path.file_stem().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    let shown: Vec<html::Shown> = drawn
        .into_iter()
        .map(|(path, timeline)| html::Shown { timeline, measured: measured.take(), name: name(&path) })
        .collect();
    html::page(&shown, steps)
}
