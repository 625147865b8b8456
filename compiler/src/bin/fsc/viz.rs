//! `fsc viz`.

use std::path::PathBuf;

use fs_compiler::viz::Timeline;
use fs_schedule::file;

use super::pictures;

/// Arguments of `fsc viz`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The schedule; two are drawn one above the other.
    #[arg(required = true, num_args = 1..=2)]
    schedules: Vec<PathBuf>,
    /// The picture: .svg or .dot.
    #[arg(short, long)]
    output: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<(), String> {
    let ending = args.output.extension().map(|e| e.to_string_lossy().to_lowercase()).unwrap_or_default();
    if !pictures::ENDINGS.contains(&ending.as_str()) {
        return Err(format!(
            "{}: the ending says what to draw, and must be .{}",
            args.output.display(),
            pictures::ENDINGS.join(" or .")
        ));
    }
    let mut drawn = Vec::new();
    for path in &args.schedules {
        let s = file::read(path).map_err(|e| e.to_string())?;
        drawn.push((path.clone(), Timeline::of(&s).map_err(|e| format!("{}: {e}", path.display()))?));
    }
    let text = pictures::draw(&ending, &drawn).unwrap_or_else(|| Err("nothing draws this".into()))?;
    file::write_atomically(&args.output, text.as_bytes())
        .map_err(|e| format!("cannot write {}: {e}", args.output.display()))
}
