//! What the links between processes carry: latency and bandwidth of every pair, and of all at once.
//!
//! Frames travel as those of a run do, over the same wire, so what is measured is what a run can get. One pair at a time
//! has the links to itself: half of the median round trip of an empty frame is its latency; then one sends frames of
//! 1 MiB, twice as many each time, until they take long enough to tell, and the other answers the last. In the end all
//! send to all, as the exchanges of a step do: the slowest process says what each gets then.
//!
//! Then exchanges of given sizes are timed one by one ([`sizes`]).
//!
//! All processes go through the same pairs in the same order. Between them all meet at the first process, which keeps
//! what was found.

mod post;
mod sizes;

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::fit::median;
use crate::transport::wire::World;
use post::{Post, Tag};

pub use sizes::Exchange;

/// Bytes of a frame whose bandwidth is measured.
const FRAME: usize = 1 << 20;
/// Frames at most on their way at once: they all lie in memory.
const FRAMES: u64 = 64;
/// Round trips of a pair: those that are not counted, and those that are.
const TRIPS: (u64, u64) = (10, 101);
/// Seconds that frames in one direction of a pair shall take, at most.
const LONGEST: f64 = 0.2;

/// Why links cannot be measured.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NetError {
    /// One process has no links.
    #[error(
        "there is one process, which has no links: start several, `mpirun -n 4 fsx net` or `srun --mpi=pmix -n 4 fsx net`"
    )]
    Alone,
    /// Nothing came.
    #[error("nothing has come from process {process} for {seconds} s")]
    Timeout {
        /// Who is waited for.
        process: usize,
        /// For how long.
        seconds: f64,
    },
    /// A process is gone.
    #[error("process {process} is gone: {reason}")]
    Lost {
        /// Which.
        process: usize,
        /// What its wire says.
        reason: String,
    },
    /// A process that measures something else.
    #[error("process {process} has sent what was not asked for: do all processes run the same fsx?")]
    Unasked {
        /// Which.
        process: usize,
    },
}

/// What goes from one process to another.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Direction {
    /// Sends.
    pub from: usize,
    /// Receives.
    pub to: usize,
    /// Seconds until an empty frame is there.
    pub latency: f64,
    /// Bytes per second while nobody else sends.
    pub bandwidth: f64,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Links {
    /// The host of each process.
    pub hosts: Vec<String>,
    /// Both directions of each pair.
    pub directions: Vec<Direction>,
    /// Bytes per second that leave each process, and reach it, while all send to all.
    pub together: f64,
    /// Exchanges by size.
    pub exchanges: Vec<Exchange>,
}

/// What is measured, and for how long.
#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    /// Seconds for all of it, in about.
    pub seconds: f64,
    /// Bytes from each process to each other one, of exchanges that are timed.
    pub sizes: Vec<u64>,
    /// How long anything is waited for.
    pub timeout: Duration,
}

/// Measures the links of a world. The first process gets what was found. All processes must ask for the same.
///
/// # Errors
/// If there is one process, or another one is lost or does something else.
pub fn measure(world: &World, asked: &Asked) -> Result<Option<Links>, NetError> {
    let n = world.processes.len();
    if n < 2 {
        return Err(NetError::Alone);
    }
    let post = Post::new(world, asked.timeout);
    let own = world.process;
    // Twice as many frames take about as long as all before.
    let each = (asked.seconds / (n * n + asked.sizes.len()) as f64 / 2.0).min(LONGEST);
    let mut found = Vec::new();
    let hosts = post.gather(host().as_bytes())?;
    for a in 0..n {
        for b in (0..n).filter(|b| *b != a) {
            post.meet(0)?;
            if own == a {
                found.push(direction(&post, (a, b), each)?);
                post.send(b, Tag::Enough, 0, 0);
            } else if own == b {
                answer(&post, a)?;
            }
        }
    }
    let own: Vec<u8> =
        found.iter().flat_map(|d| [d.to as f64, d.latency, d.bandwidth]).flat_map(f64::to_le_bytes).collect();
    let gathered = post.gather(&own)?;
    let directions: Vec<Direction> = gathered.iter().enumerate().flat_map(|(p, b)| read(p, b)).collect();
    let slowest = directions.iter().map(|d| d.bandwidth).fold(f64::INFINITY, f64::min);
    // The first process knows how many; at the slowest link's speed they take the time of a pair.
    let count = if world.process == 0 { (each * slowest / FRAME as f64) as u64 } else { 0 };
    let count = post.meet(count.clamp(1, (FRAMES / (n as u64 - 1)).max(1)))?;
    let took = all_to_all(&post, n, count)?;
    let slowest = post.gather(&took.to_le_bytes())?;
    let slowest = slowest.iter().filter_map(|b| Some(f64::from_le_bytes(b.as_slice().try_into().ok()?)));
    let slowest = slowest.fold(0.0, f64::max);
    let exchanges = sizes::exchanges(&post, &asked.sizes, each)?;
    // So that nobody leaves whose frames others need.
    post.meet(0)?;
    if world.process != 0 {
        return Ok(None);
    }
    Ok(Some(Links {
        hosts: hosts.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect(),
        directions,
        together: ((n - 1) as u64 * count * FRAME as u64) as f64 / slowest.max(1e-9),
        exchanges,
    }))
}

/// Round trips, then more and more frames; the other answers.
fn direction(post: &Post, (from, to): (usize, usize), each: f64) -> Result<Direction, NetError> {
    let mut trips = Vec::new();
    for trip in 0..TRIPS.0 + TRIPS.1 {
        let start = Instant::now();
        post.send(to, Tag::Ask, trip, 0);
        post.take(to, Tag::Answer)?;
        if trip >= TRIPS.0 {
            trips.push(start.elapsed().as_secs_f64());
        }
    }
    let latency = median(trips) / 2.0;
    let mut count = 1;
    loop {
        let start = Instant::now();
        for left in (0..count).rev() {
            post.send(to, Tag::Frame, left, FRAME);
        }
        post.take(to, Tag::Answer)?;
        let took = (start.elapsed().as_secs_f64() - latency).max(1e-9);
        if took >= each / 2.0 || count >= FRAMES {
            return Ok(Direction { from, to, latency, bandwidth: (count as usize * FRAME) as f64 / took });
        }
        count *= 2;
    }
}

/// Answers every question, and the last frame of each series.
fn answer(post: &Post, from: usize) -> Result<(), NetError> {
    loop {
        match post.next(from, &[Tag::Ask, Tag::Frame, Tag::Enough])? {
            (Tag::Ask, ..) | (Tag::Frame, 0, _) => post.send(from, Tag::Answer, 0, 0),
            (Tag::Enough, ..) => return Ok(()),
            _ => {}
        }
    }
}

/// Sends `count` frames to everyone and waits for theirs; the seconds until the last is there.
fn all_to_all(post: &Post, n: usize, count: u64) -> Result<f64, NetError> {
    let own = post.process();
    let start = Instant::now();
    for left in (0..count).rev() {
        for step in 1..n {
            post.send((own + step) % n, Tag::Frame, left, FRAME);
        }
    }
    for other in (0..n).filter(|p| *p != own) {
        for _ in 0..count {
            post.take(other, Tag::Frame)?;
        }
    }
    Ok(start.elapsed().as_secs_f64())
}

fn read(from: usize, bytes: &[u8]) -> Vec<Direction> {
    let numbers: Vec<f64> =
        bytes.as_chunks::<8>().0.iter().map(|number| f64::from_le_bytes(*number)).collect();
    let each = numbers.as_chunks::<3>().0.iter();
    each.map(|[to, latency, bandwidth]| Direction {
        from,
        to: *to as usize,
        latency: *latency,
        bandwidth: *bandwidth,
    })
    .collect()
}

fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "unknown".into() } else { name.trim().into() }
}

impl Links {
    /// What a rank gets while all send to all, for a [profile](fs_schedule::Profile): median latency in seconds, and bytes per
    /// second. Ranks of a process share its links, and need none among themselves.
    ///
    /// # Errors
    /// If there are fewer ranks than processes.
    pub fn of_a_rank(&self, ranks: usize) -> Result<fs_schedule::profile::LinkCost, TooFewRanks> {
        let processes = self.hosts.len();
        if ranks < processes {
            return Err(TooFewRanks { ranks, processes });
        }
        let latency = median(self.directions.iter().map(|d| d.latency).collect());
        let own = ranks.div_ceil(processes);
        let leaves = (ranks - own) as f64 / (ranks - 1).max(1) as f64;
        let bandwidth = self.together / (own as f64 * leaves).max(1e-9);
        Ok(fs_schedule::profile::LinkCost { latency, bandwidth })
    }

    /// Where its figures come from, in a few words.
    pub fn describe(&self) -> String {
        let mut hosts: Vec<&str> = self.hosts.iter().map(String::as_str).collect();
        hosts.sort_unstable();
        hosts.dedup();
        format!("measured between {} processes on {} host(s)", self.hosts.len(), hosts.len())
    }
}

/// A profile of fewer ranks than there are processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the profile is of {ranks} rank(s), and links of {processes} processes were measured: start at most one a rank"
)]
pub struct TooFewRanks {
    /// Ranks of the profile.
    pub ranks: usize,
    /// Processes.
    pub processes: usize,
}
