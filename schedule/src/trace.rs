//! The trace of a run: when every operation of some steps ran, in the Chrome trace format.
//!
//! The executor writes it, Perfetto and Holistic Trace Analysis (HTA) open it, and the compiler draws it beside its
//! prediction. Only events with `args.op` are executions of operations of the traced steps; the rest is there for the
//! viewers: names of lanes, step boundaries, launches, arrows, and operations of neighbouring steps at the edges of
//! the window. A trace is one file of all ranks, or a folder of one file per rank, as HTA takes it.
//!
//! Viewers draw slices of one thread as a stack, so a thread is one queue of an engine, where operations never
//! overlap: the first queue of an engine has the engine's position in the schedule as `tid`, each further one
//! [`LANES`] more than the one before.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use fs_workload::encoding::unmarked;
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::file::{read_within_memory, write_atomically_with};
use crate::limits;
use crate::model::Engine;
use crate::program::{Schedule, Strategy};
use crate::terminal::{inline, shown};

/// Threads of a process that show queues of one priority order: `tid` modulo this is the engine's position.
pub const LANES: u32 = 16;
/// The thread of launches, and of step boundaries.
pub const LAUNCHES: u32 = 1 << 16;
/// The thread of step boundaries.
pub const STEPS: u32 = LAUNCHES + 1;
/// What the names of transfers begin with: HTA takes `nccl...Kernel` for communication.
pub const TRANSFER: &str = "ncclKernel:";
/// Bytes of the largest trace that is read.
pub(crate) const MOST_BYTES: u64 = 1 << 31;

/// A trace file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// What ran.
    pub schedule: Origin,
    /// Whose trace it is.
    #[serde(rename = "distributedInfo")]
    pub distributed: Distributed,
    /// Events in no particular order.
    #[serde(rename = "traceEvents", deserialize_with = "events")]
    pub events: Vec<Event>,
}

/// Microseconds since a run's start that no run lasts: thirty years.
const LATEST: f64 = 1e15;

/// What is said where events take more memory than there is.
const NO_MEMORY: &str = "its events do not fit into memory";

/// Events, of which each is far larger than its text: memory is looked at whenever there must be more for them.
fn events<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Event>, D::Error> {
    struct Events;
    impl<'de> Visitor<'de> for Events {
        type Value = Vec<Event>;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("events")
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Vec<Event>, A::Error> {
            /// Events for which there is room at first.
            const FIRST: usize = 1 << 12;
            /// Bytes of an event, twice while they move, with what the allocator adds to its texts.
            const EACH: usize = 2 * size_of::<Event>() + 4 * 32;
            let mut events: Vec<Event> = Vec::new();
            while let Some(event) = from.next_element()? {
                if events.len() == events.capacity() {
                    let more = events.len().max(FIRST);
                    let need = ((events.len() + more) * EACH) as u64;
                    if limits::available(Path::new("/")).is_some_and(|free| free < need) {
                        return Err(A::Error::custom(NO_MEMORY));
                    }
                    events.reserve_exact(more);
                }
                events.push(event);
            }
            Ok(events)
        }
    }
    from.deserialize_seq(Events)
}

/// The schedule of a trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Name of the model.
    pub model: String,
    /// The schedule's digest.
    pub digest: String,
    /// How its operations were ordered.
    pub strategy: Strategy,
    /// Ranks that ran.
    pub ranks: u32,
    /// Of a run of several processes, the clocks of those but the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clocks: Vec<ProcessClock>,
}

/// What is known of the clock of a process whose times were translated to the first one's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessClock {
    /// The ranks of the process.
    pub ranks: Vec<u32>,
    /// How far it was ahead before and after the run, in nanoseconds; a straight line between the two was taken off. Clocks
    /// count from when the process met the others.
    pub ahead_ns: [i64; 2],
    /// The round trips by which that was measured: it is wrong by half of them at most.
    pub round_trip_ns: [i64; 2],
}

/// Where a file stands among those of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Distributed {
    /// The rank; 0 for a file of all ranks.
    pub rank: u32,
    /// Number of ranks.
    pub world_size: u32,
}

/// Kinds of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum EventType {
    /// A slice: it has a duration.
    #[default]
    #[serde(rename = "X")]
    Complete,
    /// Names and order of processes and threads.
    #[serde(rename = "M")]
    Metadata,
    /// An arrow starts.
    #[serde(rename = "s")]
    FlowStart,
    /// An arrow ends.
    #[serde(rename = "f")]
    FlowEnd,
    /// Anything else, which nobody here writes.
    #[serde(other)]
    Other,
}

/// An event; times in microseconds since the start of training.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Event {
    /// What it is.
    pub ph: EventType,
    /// What is shown.
    #[serde(default)]
    pub name: String,
    /// Category.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cat: String,
    /// Rank.
    #[serde(default)]
    pub pid: u32,
    /// Thread.
    #[serde(default)]
    pub tid: u32,
    /// When it begins.
    #[serde(default)]
    pub ts: f64,
    /// How long it takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dur: Option<f64>,
    /// Ties the ends of an arrow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// `e`: an arrow ends at the slice that it points into.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bp: Option<String>,
    /// More.
    #[serde(default)]
    pub args: Args,
}

/// Arguments of events.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Args {
    /// Name of the operation: set on its executions in the traced steps, and nowhere else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<String>,
    /// Its position in the training program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// The step whose batch it worked on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// What executed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<Engine>,
    /// Its dependencies had ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_us: Option<f64>,
    /// The last rank had begun it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub met_us: Option<f64>,
    /// HTA: the queue of a device, from 1; the host's work has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<u32>,
    /// HTA: ties an execution to its launch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation: Option<u64>,
    /// Metadata: a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Metadata: a place in the order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sort_index: Option<u32>,
}

/// One execution of an operation on one rank; times in microseconds since the start of training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Execution<'a> {
    /// The rank.
    pub rank: u32,
    /// Name of the operation.
    pub op: &'a str,
    /// Its position in the training program.
    pub index: u32,
    /// The step whose batch it worked on.
    pub step: u64,
    /// What executed it.
    pub engine: Engine,
    /// Its dependencies had ended.
    pub ready: f64,
    /// It started.
    pub start: f64,
    /// The last rank had begun it.
    pub met: f64,
    /// It ended.
    pub end: f64,
}

/// Why a trace cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file can't be read.
    #[error("cannot read trace {path}: {source}", path = shown(.path))]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Larger than what is read.
    #[error(
        "trace {path} is larger than {MOST_BYTES} bytes; trace fewer steps with `fsx run --trace-steps A..B`",
        path = shown(.path)
    )]
    Large {
        /// The file.
        path: PathBuf,
    },
    /// More than there is memory for.
    #[error(
        "trace {path} does not fit into the memory that this process may take; trace fewer steps with `fsx run --trace-steps A..B`, or raise the limit",
        path = shown(.path)
    )]
    Memory {
        /// The file.
        path: PathBuf,
    },
    /// It ends in the middle.
    #[error("trace {path} is truncated: {reason}; write it again with `fsx run --trace`", path = shown(.path))]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Where it ends.
        reason: String,
    },
    /// Something else.
    #[error(
        "{path} is not a trace of fsx: {reason}; write one with `fsx run SCHEDULE.json --trace TRACE.json`",
        path = shown(.path)
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Of another schedule.
    #[error(
        "trace {path} is of another schedule: of model `{model}` with digest {found}, not {wanted}; trace a run of this schedule",
        path = shown(.path)
    )]
    Other {
        /// The file.
        path: PathBuf,
        /// The model that was traced.
        model: String,
        /// The digest in the trace.
        found: String,
        /// The schedule's.
        wanted: String,
    },
}

impl Origin {
    /// Of a run of a schedule on some ranks.
    pub fn new(schedule: &Schedule, ranks: u32) -> Self {
        let (model, digest) = (schedule.model.clone(), schedule.digest.clone());
        Self { model, digest, strategy: schedule.strategy, ranks, clocks: Vec::new() }
    }
}

impl Trace {
    /// The executions of operations in the traced steps, in the order of the file.
    pub fn executions(&self) -> impl Iterator<Item = Execution<'_>> {
        self.events.iter().filter_map(|event| {
            let args = &event.args;
            let (start, end) = (event.ts, event.ts + event.dur?);
            Some(Execution {
                rank: event.pid,
                op: args.op.as_deref()?,
                index: args.index?,
                step: args.step?,
                engine: args.engine?,
                ready: args.ready_us.unwrap_or(start),
                start,
                met: args.met_us.unwrap_or(start),
                end,
            })
        })
    }

    /// The error, if this is not a trace of `schedule`; `path` is for the message.
    pub fn check(&self, path: &Path, schedule: &Schedule) -> Result<(), TraceError> {
        if self.schedule.digest != schedule.digest {
            return Err(TraceError::Other {
                path: path.into(),
                model: inline(&self.schedule.model),
                found: inline(&self.schedule.digest),
                wanted: schedule.digest.clone(),
            });
        }
        let named = |e: &Execution<'_>| {
            let op = schedule.train.ops.get(e.index as usize);
            op.is_some_and(|op| op.name == e.op && op.engine == e.engine)
        };
        let wrong = |reason: String| Err(TraceError::Format { path: path.into(), reason });
        if let Some(e) = self.executions().find(|e| !named(e)) {
            return wrong(format!("the schedule has no operation {} called `{}`", e.index, inline(e.op)));
        }
        let possible = |e: &Execution<'_>| e.start >= 0.0 && e.end >= e.start && e.end < LATEST;
        if let Some(e) = self.executions().find(|e| !possible(e)) {
            return wrong(format!(
                "`{}` of step {} runs from {} to {} us",
                inline(e.op),
                e.step,
                e.start,
                e.end
            ));
        }
        let mut all: Vec<_> = self.executions().map(|e| (e.rank, e.step, e.index)).collect();
        all.sort_unstable();
        if let Some(pair) = all.windows(2).find(|pair| pair[0] == pair[1]) {
            let (rank, step, index) = pair[0];
            let name = schedule.train.ops.get(index as usize).map_or("", |op| op.name.as_str());
            return wrong(format!("`{name}` of step {step} on rank {rank} is there twice"));
        }
        let mut starts = self.executions().map(|e| e.start);
        let first = starts.next();
        if all.len() > 1 && starts.all(|start| Some(start) == first) {
            return wrong("all its operations start at the same time".into());
        }
        Ok(())
    }

    /// Ranks that have executions.
    pub fn ranks(&self) -> BTreeSet<u32> {
        self.executions().map(|e| e.rank).collect()
    }
}

/// The name of a rank's file in a folder.
pub fn rank_file(folder: &Path, rank: u32) -> PathBuf {
    folder.join(format!("rank-{rank}.json"))
}

/// Reads a trace: a file of all ranks, or a folder of one file per rank.
pub fn read(path: &Path) -> Result<Trace, TraceError> {
    if !fs::metadata(path).is_ok_and(|m| m.is_dir()) {
        return parse(path, &bytes(path)?);
    }
    let first = rank_file(path, 0);
    let mut whole = parse(&first, &bytes(&first)?)?;
    for rank in 1..whole.distributed.world_size {
        let file = rank_file(path, rank);
        let part = parse(&file, &bytes(&file)?)?;
        if part.schedule != whole.schedule || part.distributed.rank != rank {
            let reason = "it does not belong to the run of its folder's rank-0.json".into();
            return Err(TraceError::Format { path: file, reason });
        }
        whole.events.extend(part.events);
    }
    Ok(whole)
}

fn bytes(path: &Path) -> Result<Vec<u8>, TraceError> {
    read_within_memory(path, MOST_BYTES + 1).map_err(|source| match source.kind() {
        io::ErrorKind::OutOfMemory => TraceError::Memory { path: path.into() },
        _ => TraceError::Io { path: path.into(), source },
    })
}

/// The text of one file; `path` is for messages.
pub fn parse(path: &Path, bytes: &[u8]) -> Result<Trace, TraceError> {
    let wrong = |reason: String| TraceError::Format { path: path.into(), reason };
    if bytes.len() as u64 > MOST_BYTES {
        return Err(TraceError::Large { path: path.into() });
    }
    let bytes = unmarked(bytes).map_err(|e| wrong(e.to_string()))?;
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(wrong("it is empty".into()));
    }
    let trace: Trace = serde_json::from_slice(bytes).map_err(|error| {
        if error.is_eof() {
            TraceError::Truncated { path: path.into(), reason: inline(&error.to_string()) }
        } else if error.to_string().starts_with(NO_MEMORY) {
            TraceError::Memory { path: path.into() }
        } else {
            wrong(inline(&error.to_string()))
        }
    })?;
    let ranks = trace.schedule.ranks;
    if trace.distributed.world_size != ranks || trace.distributed.rank >= ranks {
        return Err(wrong("its `distributedInfo` does not fit its number of ranks".into()));
    }
    for (number, event) in trace.events.iter().enumerate().filter(|(_, e)| e.args.op.is_some()) {
        let args = &event.args;
        let whole = event.ph == EventType::Complete
            && args.index.is_some()
            && args.step.is_some()
            && args.engine.is_some()
            && event.pid < ranks;
        let times = [Some(event.ts), event.dur, args.ready_us.or(Some(0.0)), args.met_us.or(Some(0.0))];
        if !whole || !times.iter().all(|t| t.is_some_and(|t| t.is_finite() && t >= 0.0)) {
            let name = inline(args.op.as_deref().unwrap_or_default());
            return Err(wrong(format!("event {number}, an execution of `{name}`, is incomplete")));
        }
    }
    Ok(trace)
}

/// Writes one file, atomically, event by event.
pub fn write(
    path: &Path,
    origin: &Origin,
    distributed: Distributed,
    events: impl Iterator<Item = Event>,
) -> io::Result<()> {
    write_atomically_with(path, |out| text(out, origin, distributed, events))
}

fn text(
    out: &mut dyn Write,
    origin: &Origin,
    distributed: Distributed,
    events: impl Iterator<Item = Event>,
) -> io::Result<()> {
    // HTA looks for the rank with white space after the colon, before it reads the whole file.
    let Distributed { rank, world_size } = distributed;
    writeln!(out, "{{\"distributedInfo\": {{\"rank\": {rank}, \"world_size\": {world_size}}},")?;
    write!(out, "\"schedule\": ")?;
    serde_json::to_writer(&mut *out, origin)?;
    write!(out, ",\n\"displayTimeUnit\": \"ms\",\n\"traceEvents\": [")?;
    for (i, event) in events.enumerate() {
        out.write_all(if i == 0 { b"\n" } else { b",\n" })?;
        serde_json::to_writer(&mut *out, &event)?;
    }
    out.write_all(b"\n]}\n")
}
