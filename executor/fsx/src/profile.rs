//! `fsx profile`: measures what a model costs here, for `fsc compile --profile`.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use fs_executor::transport::link::EmulatedLink;
use fs_executor::{Error, Options, Session, data, profile};
use fs_schedule::Profile;
use fs_schedule::file::check_writable;
use fs_schedule::terminal::shown;

use crate::files::place_of;
use crate::links::{LINK_HELP, note_idle_link};

/// Arguments of `fsx profile`.
#[derive(Args)]
pub(crate) struct Settings {
    /// A schedule of the model; `serial` tells most, because nothing disturbs anything else
    schedule: PathBuf,
    /// Where to write the profile
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Number of ranks, as threads of this process [default: what the schedule was planned for]
    #[arg(long, value_name = "N")]
    ranks: Option<usize>,
    /// Steps to measure; with a link as many again without it [default: two seconds of them, 60 to 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(4..=1_000_000))]
    steps: Option<u64>,
    /// Data file instead of the schedule's
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Seed of everything random instead of the schedule's
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    #[arg(long, value_name = "LINK", help = LINK_HELP)]
    link: Option<EmulatedLink>,
    /// Print nothing
    #[arg(long, short)]
    quiet: bool,
}

/// Measures, writes, and says what was found.
pub(crate) fn run(settings: &Settings) -> Result<ExitCode, Error> {
    let path = &settings.output;
    let failed = |source| Error::Write { what: "the profile", path: path.clone(), source };
    let schedule = fs_schedule::read(&settings.schedule)?;
    let own = data::file(&schedule, Some(&settings.schedule));
    let read = [Some(&settings.schedule), settings.data.as_ref(), own.as_ref()];
    if read.into_iter().flatten().any(|p| place_of(p) == place_of(path)) {
        let message = format!("{} is read, so the profile needs another name", shown(path));
        return Err(Error::Settings(message));
    }
    check_writable(path).map_err(failed)?;
    // Not a training run: as long as it takes, whatever the model says.
    let steps = settings.steps.unwrap_or(profile::STEPS.end);
    let options = Options::default()
        .ranks(settings.ranks)
        .seed(settings.seed)
        .data(settings.data.clone())
        .schedule_file(settings.schedule.clone())
        .link(settings.link)
        .steps(steps)
        .evaluate(false);
    let mut session = Session::<f32>::new(schedule, options)?;
    if !settings.quiet {
        note_idle_link(settings.link, session.ranks());
    }
    let steps = match settings.steps {
        Some(steps) => steps,
        None => profile::enough(&mut session)?,
    };
    let found = profile::measure(&mut session, steps)?;
    fs_schedule::profile::write(path, &found).map_err(failed)?;
    if !settings.quiet {
        let text = summary(&found, &shown(path));
        let printed = io::stdout().lock().write_all(text.as_bytes());
        printed.map_err(|source| Error::Write { what: "to", path: "standard output".into(), source })?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Scatter of steps that is worth a word.
const SCATTERED: f64 = 0.3;
/// Kinds that are listed.
const KINDS: usize = 12;

fn summary(p: &Profile, path: &str) -> String {
    let mut t = String::new();
    let us = |s: f64| s * 1e6;
    let _ = writeln!(t, "{}: {} steps of {:.2} ms, {}", p.model, p.steps, p.step * 1e3, p.describe());
    let _ = writeln!(
        t,
        "between operations {:.1} us, {:.1} us from one engine to another",
        us(p.overhead.dispatch),
        us(p.overhead.wake)
    );
    let x = &p.transfers;
    let speed = |per_byte: f64| {
        if per_byte > 0.0 { format!("{:.2} GB/s", 1e-9 / per_byte) } else { "any speed".into() }
    };
    let _ = writeln!(t, "transfers  {:.1} us and {} of a core's time", us(x.fixed), speed(x.per_byte));
    if let Some(link) = x.link {
        let _ = writeln!(t, "link       {:.0} Mbit/s, {:.1} us", link.bandwidth / 125e3, us(link.latency));
    }
    let _ = writeln!(
        t,
        "\n{:<24} {:>10} {:>12} {:>12} {:>8} {:>8}",
        "kind", "fixed us", "GFLOP/s", "GB/s", "points", "error"
    );
    let rate = |x: f64| if x > 0.0 { format!("{:.1}", 1e-9 / x) } else { "-".into() };
    let total = |kind: &str| p.ops.iter().filter(|o| o.kind == kind).map(|o| o.time).sum::<f64>();
    let mut kinds: Vec<_> = p.kinds.iter().collect();
    kinds.sort_by(|a, b| total(&b.kind).total_cmp(&total(&a.kind)));
    for k in kinds.into_iter().take(KINDS) {
        let _ = writeln!(
            t,
            "{:<24} {:>10.1} {:>12} {:>12} {:>8} {:>7.1}%",
            k.kind,
            us(k.fixed),
            rate(k.per_flop),
            rate(k.per_byte),
            k.points,
            100.0 * k.error
        );
    }
    if p.scatter > SCATTERED {
        let _ = writeln!(
            t,
            "\nnote: steps scatter by {:.0}% of their median; if something else used the machine, measure again",
            100.0 * p.scatter
        );
    }
    let _ = writeln!(t, "\nuse it with `fsc compile MODEL.fs --profile {path}`");
    t
}
