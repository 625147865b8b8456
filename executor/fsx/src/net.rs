//! `fsx net`: measures the links between processes, for a profile.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use fs_executor::Error;
use fs_executor::net::{Asked, Links, NetError, measure};
use fs_schedule::file::check_writable;

use crate::interrupt::Interrupts;
use crate::transport::{Processes, Transport, end_together, seconds};

/// Arguments of `fsx net`.
#[derive(Args)]
pub(crate) struct Settings {
    /// A profile that `fsx profile` has written, whose link is replaced by what is measured
    #[arg(long, value_name = "FILE", requires = "output")]
    profile: Option<PathBuf>,
    /// Where to write that profile
    #[arg(long, short, value_name = "FILE", requires = "profile")]
    output: Option<PathBuf>,
    /// Seconds to measure, in about
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    seconds: f64,
    /// Seconds that anything of another process is waited for
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    timeout: f64,
    /// Time exchanges in which everybody sends so much to everybody: bytes, with k or M for 1024 or 1024^2 of them
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', value_parser = size, default_value = "4k,64k,1M,4M")]
    sizes: Vec<u64>,
    /// Print what is found as JSON
    #[arg(long)]
    json: bool,
    /// Print nothing
    #[arg(long, short)]
    quiet: bool,
}

/// Measures in all processes; the first one says and writes what was found.
pub(crate) fn run(settings: &Settings, interrupts: &Interrupts) -> Result<ExitCode, Error> {
    let timeout = seconds("--timeout", settings.timeout)?;
    let time = seconds("--seconds", settings.seconds)?;
    let processes = Processes::join(Some(Transport::Mpi), timeout)?;
    let asked = Asked { seconds: time.as_secs_f64(), sizes: settings.sizes.clone(), timeout };
    let outcome = all(settings, &processes, &asked).map(|()| ExitCode::SUCCESS);
    end_together(processes, outcome, interrupts)
}

/// Bytes of an exchange.
fn size(text: &str) -> Result<u64, String> {
    /// What a process can hold of many, and a frame can say.
    const MOST: u64 = 1 << 30;
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'M') => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    let bytes = digits.parse().ok().and_then(|n: u64| n.checked_mul(unit)).filter(|n| *n <= MOST);
    bytes.ok_or_else(|| format!("give bytes up to {}M, such as 65536, 64k or 1M", MOST >> 20))
}

fn all(settings: &Settings, processes: &Processes, asked: &Asked) -> Result<(), Error> {
    let write = |path: &PathBuf, source| Error::Write { what: "the profile", path: path.clone(), source };
    let mut given = None;
    if let (Some(from), Some(to), true) = (&settings.profile, &settings.output, processes.is_first()) {
        let unfit = |e: &dyn std::fmt::Display| Error::Settings(e.to_string());
        let profile = fs_schedule::profile::read(from).map_err(|e| unfit(&e))?;
        check_writable(to).map_err(|e| write(to, e))?;
        given = Some((profile, to));
    }
    let count = processes.place().1;
    let world = processes.world(count)?.ok_or(NetError::Alone)?;
    let Some(links) = measure(&world, asked)? else { return Ok(()) };
    if let Some((mut profile, to)) = given {
        let link = links.of_a_rank(profile.ranks as usize).map_err(|e| Error::Settings(e.to_string()))?;
        profile.transfers.link = Some(link);
        // What transfers took without these links says nothing of them.
        profile.ops.retain(|op| !fs_schedule::Action::is_name_of_transfer(&op.kind));
        profile.link = Some(links.describe());
        fs_schedule::profile::write(to, &profile).map_err(|e| write(to, e))?;
    }
    if !settings.quiet {
        let text = if settings.json {
            let text = serde_json::to_string_pretty(&links).unwrap_or_default();
            text + "\n"
        } else {
            summary(&links)
        };
        let printed = io::stdout().lock().write_all(text.as_bytes());
        printed.map_err(|source| Error::Write { what: "to", path: "standard output".into(), source })?;
    }
    Ok(())
}

/// Processes of which every pair is listed.
const LISTED: usize = 8;

fn summary(links: &Links) -> String {
    let mut t = String::new();
    let n = links.hosts.len();
    let _ = writeln!(t, "{}", links.describe());
    for (process, host) in links.hosts.iter().enumerate().take(LISTED) {
        let _ = writeln!(t, "process {process} on {host}");
    }
    let mut all: Vec<_> = links.directions.iter().collect();
    all.sort_by(|a, b| a.bandwidth.total_cmp(&b.bandwidth));
    let (shown, what) = if n <= LISTED { (all.len(), "") } else { (LISTED, ", the slowest") };
    let _ = writeln!(t, "\n{:<12} {:>10} {:>12}{what}", "from to", "us", "Mbit/s");
    if n <= LISTED {
        all.sort_by_key(|d| (d.from, d.to));
    }
    for d in all.iter().take(shown) {
        let pair = format!("{} -> {}", d.from, d.to);
        let _ = writeln!(t, "{pair:<12} {:>10.1} {:>12.0}", d.latency * 1e6, d.bandwidth / 125e3);
    }
    let _ = writeln!(t, "\nall to all   {:.0} Mbit/s out of each process", links.together / 125e3);
    if !links.exchanges.is_empty() {
        let _ = writeln!(
            t,
            "\n{:<12} {:>10} {:>12}  exchanges of all with all, one by one",
            "bytes", "us", "Mbit/s"
        );
    }
    for e in &links.exchanges {
        let _ = writeln!(t, "{:<12} {:>10.1} {:>12.0}", e.bytes, e.seconds * 1e6, e.bandwidth / 125e3);
    }
    t
}
