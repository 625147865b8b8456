//! `fsc inspect`.

use std::io::IsTerminal as _;
use std::path::PathBuf;

use fs_compiler::viz::{Timeline, text};
use fs_schedule::file;

use super::failure::Failure;
use super::print;

/// Columns where nothing says how many there are.
const WIDTH: usize = 100;

/// Arguments of `fsc inspect`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The schedule.
    schedule: PathBuf,
    /// Columns (default: those of the terminal).
    #[arg(long, value_parser = clap::value_parser!(u16).range(text::LEAST_WIDTH as i64..=2000))]
    width: Option<u16>,
    /// Steps to show.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    steps: u32,
    /// ASCII only (default: where the locale is not UTF-8).
    #[arg(long)]
    ascii: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let s = file::read(&args.schedule)?;
    let t = Timeline::of(&s).map_err(Failure::of(&args.schedule))?;
    let colour = std::io::stdout().is_terminal() && !set("NO_COLOR") && !is("TERM", "dumb");
    let options = text::Options::new(args.width.map_or_else(width, usize::from))
        .steps(args.steps)
        .ascii(args.ascii || !utf8())
        .colour(colour);
    print(&text::draw(&t, &options))
}

fn set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|v| !v.is_empty())
}

fn is(variable: &str, value: &str) -> bool {
    std::env::var_os(variable).is_some_and(|v| v == value)
}

/// Columns of the terminal, else of the variable that shells set.
fn width() -> usize {
    let told = || std::env::var("COLUMNS").ok()?.trim().parse::<usize>().ok();
    let terminal = terminal_size::terminal_size().map(|(columns, _)| usize::from(columns.0));
    terminal.or_else(told).filter(|w| *w > 0).unwrap_or(WIDTH).clamp(text::LEAST_WIDTH, 2000)
}

/// Whether the locale writes UTF-8.
fn utf8() -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .find_map(|v| std::env::var(v).ok().filter(|v| !v.is_empty()));
    locale.is_some_and(|l| {
        let l = l.to_lowercase();
        l.contains("utf-8") || l.contains("utf8")
    })
}
