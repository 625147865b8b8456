//! The paper's figure 9 on a laptop: exposed communication over the share of rows that overlap with the batch before.
//!
//! `cargo bench -p fs-tests --bench overlap -- [--quick] [--json F] [--svg F] [--only NAME] [--share S] [--steps N]
//! [--link "200 Mbit/s, 50 us"] [--keep FOLDER]`; `--keep` writes every schedule and report.
//!
//! Two ranks train `tests/models/overlap.fs` over emulated links. First the compute time of a step is measured, then
//! the links are made so slow that communication of `serial` takes half of it. Then for each overlap share `serial` is
//! profiled, in as many microbatches as are compared, `serial` and several kinds of `pec` are compiled with these
//! profiles, and run on the same batches.
//!
//! Compute that stands still is accounted for by the executor: *exposed* for transfers that all ranks had begun,
//! *straggler* for ranks that began later, *host*, and everything *else* (waking up, other engines of the rank). Their
//! sum is the bubble. Urgent bytes are those of transfers of rows that the microbatch before used, or the next one
//! needs: with one microbatch the rows that overlap.

#![allow(clippy::print_stdout, reason = "the table is what this program is for")]

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use fs_compiler::{CompileOptions, Strategy, compile_with};
use fs_dsl::checked::Program;
use fs_executor::data::count::Counter;
use fs_executor::transport::link::EmulatedLink;
use fs_executor::{Options, Report, Session};
use fs_schedule::{Action, Profile, Reuse, Schedule, Way};
use fs_tests::chart::{Line, draw};
use fs_tests::overlap::{Overlap, OverlapSource, Recorded, Returning};
use fs_tests::root;
use serde_json::{Value, json};

const RANKS: usize = 2;
const SHARES: [f64; 7] = [0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9];
const QUICK: [f64; 3] = [0.0, 0.15, 0.6];
/// Of the emulated links.
const LATENCY: f64 = 50e-6;
/// Communication of `serial` over its compute.
const COMMUNICATION: f64 = 0.5;
/// Steps of a profile, and batches that it and the counting of rows need.
const PROFILED: u64 = 12;
const BATCHES: u64 = 64;
const COUNTED: std::ops::Range<u64> = 10..22;

/// What is compiled.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Variant {
    name: &'static str,
    strategy: Strategy,
    lookahead: u32,
    microbatches: u32,
    unique: bool,
}

const fn variant(
    name: &'static str,
    strategy: Strategy,
    lookahead: u32,
    microbatches: u32,
    unique: bool,
) -> Variant {
    Variant { name, strategy, lookahead, microbatches, unique }
}

const SERIAL: Variant = variant("serial", Strategy::Serial, 1, 1, true);
const VARIANTS: [Variant; 9] = [
    SERIAL,
    variant("pec", Strategy::Pec, 1, 1, true),
    variant("pec, lookahead 2", Strategy::Pec, 2, 1, true),
    variant("pec, lookahead 3", Strategy::Pec, 3, 1, true),
    variant("pec, 2 microbatches", Strategy::Pec, 1, 2, true),
    variant("pec, 4 microbatches", Strategy::Pec, 1, 4, true),
    variant("pec, 8 microbatches", Strategy::Pec, 1, 8, true),
    variant("serial, one row per occurrence", Strategy::Serial, 1, 1, false),
    variant("pec, one row per occurrence", Strategy::Pec, 1, 1, false),
];

/// What is asked for on the command line.
#[derive(Debug, Default)]
struct Arguments {
    quick: bool,
    json: Option<PathBuf>,
    svg: Option<PathBuf>,
    /// Only variants whose name contains this, and `serial`.
    only: Option<String>,
    steps: Option<u64>,
    share: Option<f64>,
    /// Instead of calibrating.
    link: Option<EmulatedLink>,
    /// Reports and schedules go here.
    keep: Option<PathBuf>,
}

fn arguments() -> Result<Arguments, String> {
    let mut found = Arguments::default();
    let mut list = std::env::args().skip(1);
    while let Some(arg) = list.next() {
        let mut value = || list.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--quick" => found.quick = true,
            "--json" => found.json = Some(value()?.into()),
            "--svg" => found.svg = Some(value()?.into()),
            "--only" => found.only = Some(value()?),
            "--keep" => found.keep = Some(value()?.into()),
            "--share" => found.share = Some(value()?.parse().map_err(|e| format!("--share: {e}"))?),
            "--link" => found.link = Some(value()?.parse().map_err(|e| format!("--link: {e}"))?),
            "--steps" => found.steps = Some(value()?.parse().map_err(|e| format!("--steps: {e}"))?),
            // What cargo passes to every benchmark.
            "--bench" => {}
            _ => return Err(format!("unknown argument {arg}; see the head of tests/benches/overlap.rs")),
        }
    }
    Ok(found)
}

/// One measured run.
#[derive(Debug, Clone)]
struct Row {
    variant: Variant,
    share: f64,
    /// As the executor counted it, where it tells rows apart.
    measured_share: Option<f64>,
    step: f64,
    predicted: f64,
    compute: f64,
    exposed: f64,
    straggler: f64,
    host: f64,
    other: f64,
    /// Bytes a step and rank.
    urgent: [f64; 2],
    sent: f64,
}

impl Row {
    fn bubble(&self) -> f64 {
        self.exposed + self.straggler + self.host + self.other
    }
}

/// A schedule for the machine that a profile describes, or for the preset `local`.
fn compile(program: &Program, v: Variant, profile: Option<&Profile>) -> Result<Schedule, String> {
    let mut program = program.clone();
    program.train.unique_rows = v.unique;
    let options = CompileOptions::new(v.strategy, RANKS as u32)
        .lookahead(v.lookahead)
        .microbatches(v.microbatches)
        .profile(profile.cloned());
    compile_with(&program, &options).map(|c| c.schedule).map_err(|e| format!("{}: {e}", v.name))
}

fn session(
    schedule: &Schedule,
    data: &Recorded,
    link: Option<EmulatedLink>,
    steps: u64,
) -> Result<Session<f32>, String> {
    let options = Options::default().steps(steps).link(link).evaluate(false);
    let source = Box::new(data.clone());
    Session::with_source(Arc::new(schedule.clone()), options, source).map_err(|e| e.to_string())
}

fn train(
    schedule: &Schedule,
    data: &Recorded,
    link: Option<EmulatedLink>,
    steps: u64,
) -> Result<Report, String> {
    session(schedule, data, link, steps)?.run(&mut ()).map_err(|e| e.to_string())
}

/// A profile with the rows of other data.
fn with_rows(program: &Program, profile: &Profile, unique: bool, data: &Recorded) -> Result<Profile, String> {
    let schedule = Arc::new(compile(program, Variant { unique, ..SERIAL }, None)?);
    let mut source = data.clone();
    let mut counter = Counter::new(&schedule, &mut source, 0, RANKS);
    let rows = counter.count(COUNTED).map_err(|e| e.to_string())?;
    Ok(Profile { rows, ..profile.clone() })
}

/// What a serial schedule in as many microbatches costs over the link.
fn measure(program: &Program, v: Variant, data: &Recorded, link: EmulatedLink) -> Result<Profile, String> {
    let (unique, microbatches) = (v.unique, v.microbatches);
    let schedule = compile(program, Variant { microbatches, unique, ..SERIAL }, None)?;
    let mut session = session(&schedule, data, Some(link), PROFILED)?;
    fs_executor::profile::measure(&mut session, PROFILED).map_err(|e| e.to_string())
}

fn batches(schedule: &Schedule, share: f64, steps: u64) -> Result<Recorded, String> {
    let what =
        Overlap { share, returning: Returning::Popular, exponent: 1.05, length: 256, ranks: RANKS, seed: 1 };
    let source = OverlapSource::new(&Arc::new(schedule.clone()), what).map_err(|e| e.to_string())?;
    source.record(steps).map_err(|e| e.to_string())
}

/// Bytes a step and rank of the rows, and of the gradients, without slack.
fn urgent(schedule: &Schedule, report: &Report) -> [f64; 2] {
    let mut bytes = [0.0; 2];
    for (op, total) in schedule.train.ops.iter().zip(&report.ops) {
        let (exchanges, class, way) = match &op.action {
            Action::AllToAllRows { exchanges, class } => (exchanges, class, Way::Forward),
            Action::AllToAllGrads { exchanges, class } => (exchanges, class, Way::Backward),
            _ => continue,
        };
        let lookahead = exchanges.first().and_then(|e| schedule.exchanges[*e as usize].lookahead);
        let without_slack = match (class, lookahead) {
            (Some(class), Some(lookahead)) => {
                let reuse = Reuse::new(lookahead, schedule.settings.microbatches.max(1));
                reuse.classes(way)[*class as usize].distance == Some(1)
            }
            _ => true,
        };
        if without_slack {
            bytes[usize::from(way == Way::Backward)] += total.sent_bytes / report.steps as f64;
        }
    }
    bytes
}

fn sent(report: &Report) -> f64 {
    report.ops.iter().map(|op| op.sent_bytes).sum::<f64>() / report.steps as f64
}

fn row(variant: Variant, share: f64, schedule: &Schedule, report: &Report) -> Row {
    let a = &report.accounting;
    let near = a.rows.iter().filter(|r| r.distance == Some(1)).map(|r| r.share).sum::<f64>();
    let told_apart = !a.rows.is_empty() && variant.microbatches == 1;
    // The first batch has none before it.
    let found = near * report.steps as f64 / (report.steps as f64 - 1.0);
    Row {
        variant,
        share,
        measured_share: told_apart.then_some(found),
        step: a.step_ms,
        predicted: a.predicted.as_ref().map_or(0.0, |p| p.step_ms),
        compute: a.compute_ms,
        exposed: a.exposed_ms,
        straggler: a.straggler_ms,
        host: a.host_ms,
        other: a.other_ms,
        urgent: urgent(schedule, report),
        sent: sent(report),
    }
}

/// The link for which communication of `serial` takes half of its compute.
fn calibrate(program: &Program, steps: u64) -> Result<EmulatedLink, String> {
    let schedule = compile(program, SERIAL, None)?;
    let data = batches(&schedule, 0.15, steps)?;
    let report = train(&schedule, &data, None, steps)?;
    let compute = report.accounting.compute_ms / 1e3;
    let mut link = EmulatedLink { bandwidth: sent(&report) / (COMMUNICATION * compute), latency: LATENCY };
    let slow = train(&schedule, &data, Some(link), steps)?;
    let ratio = slow.accounting.exposed_ms / (COMMUNICATION * slow.accounting.compute_ms);
    // In whole Mbit/s.
    link.bandwidth = (link.bandwidth * ratio / 125e3).round() * 125e3;
    println!(
        "compute {:.1} ms a step, {:.0} KB sent a step and rank; links: {link}",
        1e3 * compute,
        sent(&report) / 1e3
    );
    Ok(link)
}

fn print_head() {
    println!(
        "{:32} {:>5} {:>6} {:>7} {:>9} {:>7} | {:>7} {:>6} {:>5} {:>5} {:>6} | {:>6} | {:>8} {:>8} {:>8}",
        "strategy",
        "share",
        "found",
        "step ms",
        "predicted",
        "compute",
        "exposed",
        "strag.",
        "host",
        "other",
        "bubble",
        "ratio",
        "rows KB",
        "grads KB",
        "all KB"
    );
}

fn print(r: &Row, serial: Option<&Row>) {
    println!(
        "{:32} {:>5.2} {:>6} {:>7.2} {:>9.2} {:>7.2} | {:>7.2} {:>6.2} {:>5.2} {:>5.2} {:>6.2} | {:>6} | {:>8.1} {:>8.1} {:>8.1}",
        r.variant.name,
        r.share,
        r.measured_share.map_or_else(String::new, |s| format!("{s:.3}")),
        r.step,
        r.predicted,
        r.compute,
        r.exposed,
        r.straggler,
        r.host,
        r.other,
        r.bubble(),
        serial.map_or_else(String::new, |s| format!("{:.3}", r.exposed / s.exposed)),
        r.urgent[0] / 1e3,
        r.urgent[1] / 1e3,
        r.sent / 1e3,
    );
}

fn run() -> Result<(), String> {
    let arguments = arguments()?;
    let loaded = fs_dsl::load(&root("tests/models/overlap.fs"));
    let said = fs_dsl::render(&loaded.diagnostics, &loaded.sources, false);
    let program = loaded.program.ok_or(said)?;
    let steps = arguments.steps.unwrap_or(if arguments.quick { 16 } else { 30 });
    let link = match arguments.link {
        Some(link) => link,
        None => calibrate(&program, steps)?,
    };
    let all = if arguments.quick { &QUICK[..] } else { &SHARES[..] };
    let shares = arguments.share.map_or_else(|| all.to_vec(), |s| vec![s]);
    print_head();
    let mut rows: Vec<Row> = Vec::new();
    for share in shares {
        let schedule = compile(&program, SERIAL, None)?;
        let data = batches(&schedule, share, steps.max(BATCHES))?;
        let mut serial = None;
        let mut profiles: Vec<((bool, u32), Profile)> = Vec::new();
        for v in VARIANTS {
            let wanted = arguments.only.as_ref().is_none_or(|o| v.name.contains(o.as_str()));
            if !wanted && v != SERIAL {
                continue;
            }
            let key = (v.unique, v.microbatches);
            if profiles.iter().all(|p| p.0 != key) {
                let times = measure(&program, v, &data, link)?;
                profiles.push((key, with_rows(&program, &times, v.unique, &data)?));
            }
            let profile = profiles.iter().find(|p| p.0 == key).map(|p| &p.1);
            let schedule = compile(&program, v, profile)?;
            let report = train(&schedule, &data, Some(link), steps)?;
            let found = row(v, share, &schedule, &report);
            let reference = rows.iter().rev().find(|r| serial_of(r, &found)).or(serial.as_ref());
            print(&found, reference);
            if let Some(folder) = &arguments.keep {
                let name = format!("{share}-{}", v.name.replace(", ", "-").replace(' ', "_"));
                let failed = |e: &dyn std::fmt::Display| format!("{}: {e}", folder.to_string_lossy());
                fs_schedule::file::write(&folder.join(format!("{name}.json")), &schedule)
                    .map_err(|e| failed(&e))?;
                report.write(&folder.join(format!("{name}.report.json"))).map_err(|e| failed(&e))?;
            }
            if v == SERIAL {
                serial = Some(found.clone());
            }
            rows.push(found);
        }
    }
    if let Some(path) = &arguments.json {
        let text = serde_json::to_string_pretty(&to_json(&rows, link)).map_err(|e| e.to_string())?;
        std::fs::write(path, text + "\n").map_err(|e| format!("{}: {e}", path.to_string_lossy()))?;
    }
    if let Some(path) = &arguments.svg {
        std::fs::write(path, figure(&rows)).map_err(|e| format!("{}: {e}", path.to_string_lossy()))?;
    }
    Ok(())
}

/// The curves.
fn figure(rows: &[Row]) -> String {
    let lines: Vec<Line> = VARIANTS
        .iter()
        .map(|v| {
            let of = rows.iter().filter(|r| r.variant == *v);
            Line { name: v.name.into(), points: of.map(|r| (r.share, r.exposed)).collect() }
        })
        .filter(|line| !line.points.is_empty() && !line.name.starts_with("serial, "))
        .collect();
    let title = "Exposed communication over the overlap with the batch before";
    draw(title, "share of rows that the batch before used", "exposed, ms a step", 1.0, &lines)
}

/// Whether a row is what another is compared with: `serial` that sends rows in the same way.
fn serial_of(candidate: &Row, row: &Row) -> bool {
    candidate.share == row.share
        && candidate.variant.strategy == Strategy::Serial
        && candidate.variant.unique == row.variant.unique
        && row.variant.strategy != Strategy::Serial
}

fn to_json(rows: &[Row], link: EmulatedLink) -> Value {
    let list: Vec<Value> = rows
        .iter()
        .map(|r| {
            json!({
                "strategy": r.variant.name,
                "lookahead": r.variant.lookahead,
                "microbatches": r.variant.microbatches,
                "unique_rows": r.variant.unique,
                "share": r.share,
                "measured_share": r.measured_share,
                "step_ms": r.step,
                "predicted_step_ms": r.predicted,
                "compute_ms": r.compute,
                "exposed_ms": r.exposed,
                "straggler_ms": r.straggler,
                "host_ms": r.host,
                "other_ms": r.other,
                "bubble_ms": r.bubble(),
                "urgent_row_bytes": r.urgent[0],
                "urgent_gradient_bytes": r.urgent[1],
                "sent_bytes": r.sent,
            })
        })
        .collect();
    json!({ "ranks": RANKS, "link": link.to_string(), "runs": list })
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            let mut text = String::new();
            let _ = writeln!(text, "overlap: {message}");
            eprint!("{text}");
            ExitCode::FAILURE
        }
    }
}
