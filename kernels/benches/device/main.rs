//! CUDA kernels beside what the device gives: the figures of docs/measurements.md that need a GPU.
//!
//! `cargo bench -p fs-kernels --features emulated --bench device -- --driver cuda [--gpu N] [--json FILE]`. With
//! `--driver emulated` the same calls run on the CPU, small: nothing that it prints is a figure, but all of it has run
//! (`cargo test --workspace --bench device -- --driver emulated` builds nothing that tests have not).
//!
//! Every case is repeated until it takes 20 ms and timed in seven blocks, the host waiting for the device after each; the
//! median counts. Work is useful bytes (each read once, each result written once) or operations, as docs/cuda.md writes the
//! floor of each family; its share is of the copy of 1 GiB on the device that is timed in the same run.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark's output is its purpose")]

mod attention;
#[path = "../memory/draw.rs"]
#[allow(dead_code, reason = "shared with another benchmark")]
mod draw;
mod meter;
mod overlap;
mod permutation;
mod rows;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use fs_kernels::cuda::driver::emulated::{self, Emulated};
use fs_kernels::cuda::driver::real::Real;
use fs_kernels::cuda::driver::{Driver, DriverError};
use fs_kernels::cuda::emulated::{Build, Emulation};
use fs_kernels::cuda::sources::Precision;

use meter::{Figure, Meter, Work};

const USAGE: &str = "usage: --driver cuda|emulated [--gpu N] [--json FILE]";

struct Given {
    emulated: bool,
    gpu: u32,
    json: Option<PathBuf>,
}

fn given() -> Result<Given, String> {
    let mut given = Given { emulated: false, gpu: 0, json: None };
    let (mut driver, mut arguments) = (None, std::env::args().skip(1));
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value; {USAGE}"));
        match argument.as_str() {
            // Cargo says so to every benchmark.
            "--bench" => {}
            "--driver" => driver = Some(value()?),
            "--gpu" => given.gpu = value()?.parse().map_err(|_| format!("--gpu takes a number; {USAGE}"))?,
            "--json" => given.json = Some(value()?.into()),
            other => return Err(format!("{other} is not known; {USAGE}")),
        }
    }
    given.emulated = match driver.as_deref() {
        Some("cuda") => false,
        Some("emulated") => true,
        _ => return Err(USAGE.into()),
    };
    Ok(given)
}

/// All figures of kernels for activations of a type.
fn measure<D: Driver>(driver: &D, precision: Precision, small: bool) -> Result<Vec<Figure>, DriverError> {
    let mut meter = Meter::new(driver, precision, small)?;
    meter.copies()?;
    rows::measure(&mut meter)?;
    attention::measure(&mut meter)?;
    permutation::measure(&mut meter)?;
    overlap::measure(&mut meter)?;
    Ok(meter.figures)
}

fn all(given: &Given) -> Result<serde_json::Value, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let mut figures = Vec::new();
    let mut facts = None;
    for precision in [Precision::F32, Precision::Bf16] {
        let found = if given.emulated {
            let kernels = Emulation::load(Build { precision, sanitized: false }, &folder.join("emulated"));
            let kernels: Arc<Emulation> = kernels.map_err(|e| e.to_string())?;
            let driver = Emulated::new(emulated::Options::default(), Box::new(kernels));
            facts = Some(driver.facts().clone());
            measure(&driver, precision, true)
        } else {
            let driver =
                Real::open(given.gpu, precision, &folder.join("cubin")).map_err(|e| e.to_string())?;
            for note in driver.notes() {
                eprintln!("note: {note}");
            }
            facts = Some(driver.facts().clone());
            measure(&driver, precision, false)
        };
        figures.extend(found.map_err(|e| e.to_string())?);
    }
    let facts = facts.ok_or("no device")?;
    println!("{}, capability {}.{}\n", facts.name, facts.capability.0, facts.capability.1);
    if given.emulated {
        println!("emulated: what follows has run, and says nothing of a device\n");
    }
    println!("| activations | what | ms | work | rate | share of the copy |");
    println!("|---|---|---:|---:|---:|---:|");
    for figure in &figures {
        println!("{figure}");
    }
    Ok(serde_json::json!({
        "device": facts.name,
        "capability": [facts.capability.0, facts.capability.1],
        "multiprocessors": facts.multiprocessors,
        "copy_engines": facts.copy_engines,
        "emulated": given.emulated,
        "figures": figures.iter().map(Figure::json).collect::<Vec<_>>(),
    }))
}

fn main() -> ExitCode {
    let done = given().and_then(|given| {
        let found = all(&given)?;
        let Some(path) = &given.json else { return Ok(()) };
        std::fs::write(path, format!("{found:#}\n"))
            .map_err(|e| format!("{}: {e}", path.to_string_lossy().escape_debug()))
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

impl std::fmt::Display for Figure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (work, rate) = match self.work {
            Work::Bytes(n) => (format!("{:.3} MB", n / 1e6), format!("{:.1} GB/s", n / self.seconds / 1e9)),
            Work::Operations(n) => {
                (format!("{:.3} GFLOP", n / 1e9), format!("{:.1} TFLOP/s", n / self.seconds / 1e12))
            }
            Work::Items(n) => (format!("{n}"), format!("{:.1} M/s", n / self.seconds / 1e6)),
            Work::None => {
                (String::new(), self.of_alone.map_or(String::new(), |of| format!("{of:.4} of alone")))
            }
        };
        let share = self.share.map_or(String::new(), |share| format!("{share:.2}"));
        let (kind, ms) = (self.precision.name(), self.seconds * 1e3);
        write!(f, "| {kind} | {} | {ms:.4} | {work} | {rate} | {share} |", self.what)
    }
}
