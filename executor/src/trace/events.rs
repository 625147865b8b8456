//! Events of a trace.
//!
//! Perfetto shows a process per rank, and in it a thread per queue, one for the steps, and one for launches. HTA sees
//! streams: it takes a kernel whose name begins with `nccl` for communication, any other for computation, and drops
//! kernels without a launch and those launched in the last step. So a kernel has a launch exactly if it started in a
//! traced step, at the time when it was ready but not before that step: then what HTA computes is of the whole time of
//! all traced steps but the last.

use std::collections::BTreeMap;
use std::ops::Range;

use fs_schedule::Engine;
use fs_schedule::trace::{Args, Event, EventType, LANES, LAUNCHES, STEPS, TRANSFER};

use super::Timeline;
use crate::runtime::record::Record;

/// Streams of a rank in a file of all ranks.
const STREAMS: u32 = 1 << 12;

/// Where the operations of a program are shown.
struct Lanes {
    /// Per operation the thread.
    of: Vec<u32>,
    /// Threads with their names.
    names: BTreeMap<u32, String>,
}

/// Nanoseconds in microseconds.
fn us(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e3
}

/// The events of some ranks.
pub(super) fn of<'a>(timeline: &'a Timeline<'_>, shown: Range<usize>) -> impl Iterator<Item = Event> + 'a {
    let lanes = lanes(timeline);
    let metadata: Vec<Event> = shown.clone().flat_map(|rank| metadata(&lanes, rank as u32)).collect();
    let steps = shown.clone().flat_map(|rank| steps(timeline, rank));
    let many = shown.len() > 1;
    let first: Vec<u64> = shown.clone().fold(vec![1], |mut first, rank| {
        first.push(first[first.len() - 1] + timeline.ranks[rank].len() as u64);
        first
    });
    let executions = shown.clone().enumerate().flat_map(move |(nth, rank)| {
        let (first, lanes) = (first[nth], lanes.of.clone());
        timeline.ranks[rank]
            .iter()
            .enumerate()
            .flat_map(move |(i, record)| execution(timeline, &lanes, rank, record, first + i as u64))
    });
    // Of one rank's file the other ends are missing.
    let arrows = many.then(|| arrows(timeline)).into_iter().flatten();
    metadata.into_iter().chain(steps).chain(executions).chain(arrows)
}

fn lanes(timeline: &Timeline<'_>) -> Lanes {
    let (plan, ops) = (&timeline.plan, &timeline.schedule.train.ops);
    let mut lanes = Lanes { of: vec![0; ops.len()], names: BTreeMap::new() };
    for (engine, queues) in plan.engines.iter().zip(&plan.queues) {
        let position = timeline.schedule.engines.iter().position(|e| e == engine);
        for (nth, queue) in queues.iter().enumerate() {
            let lane = position.unwrap_or_default() as u32 + LANES * nth as u32;
            let mut name = engine.name().to_owned();
            if queues.len() > 1 {
                name = format!("{name}, priority {}", queue.priority);
            }
            lanes.names.insert(lane, name);
            for op in &queue.ops {
                lanes.of[*op as usize] = lane;
            }
        }
    }
    lanes
}

/// Names and order of a rank and its threads.
fn metadata(lanes: &Lanes, rank: u32) -> Vec<Event> {
    let event = |what: &str, tid: u32, args: Args| Event {
        ph: EventType::Metadata,
        name: what.into(),
        pid: rank,
        tid,
        args,
        ..Event::default()
    };
    let name = |name: &str| Args { name: Some(name.into()), ..Args::default() };
    let place = |place: u32| Args { sort_index: Some(place), ..Args::default() };
    let mut events = vec![
        event("process_name", 0, name(&format!("rank {rank}"))),
        event("process_sort_index", 0, place(rank)),
        event("thread_name", STEPS, name("steps")),
        event("thread_sort_index", STEPS, place(0)),
        event("thread_name", LAUNCHES, name("ready")),
        event("thread_sort_index", LAUNCHES, place(u32::MAX >> 1)),
    ];
    for (lane, text) in &lanes.names {
        // Queues of one engine beside each other.
        let order = 1 + (lane % LANES) * (1 << 12) + lane / LANES;
        events.extend([
            event("thread_name", *lane, name(text)),
            event("thread_sort_index", *lane, place(order)),
        ]);
    }
    events
}

/// Boundaries of a rank's steps, as PyTorch's profiler names them.
fn steps<'a>(timeline: &'a Timeline<'_>, rank: usize) -> impl Iterator<Item = Event> + 'a {
    let bounds = &timeline.bounds[rank];
    timeline.steps.clone().zip(bounds.windows(2)).map(move |(step, bound)| Event {
        name: format!("ProfilerStep#{step}"),
        cat: "user_annotation".into(),
        pid: rank as u32,
        tid: STEPS,
        ts: us(bound[0]),
        dur: Some(us(bound[1].saturating_sub(bound[0]))),
        ..Event::default()
    })
}

/// An execution, and its launch.
fn execution(
    timeline: &Timeline<'_>,
    lanes: &[u32],
    rank: usize,
    r: &Record,
    correlation: u64,
) -> impl Iterator<Item = Event> + use<> {
    let op = &timeline.schedule.train.ops[r.op as usize];
    let lane = lanes[r.op as usize];
    let traced = timeline.steps.contains(&r.batch);
    let device = op.engine != Engine::Host;
    let correlation = Some(correlation).filter(|_| device);
    let name = if timeline.transfer(r.op) { format!("{TRANSFER}{}", op.name) } else { op.name.clone() };
    let args = Args {
        op: traced.then(|| op.name.clone()),
        index: traced.then_some(r.op),
        step: Some(r.batch),
        engine: Some(op.engine),
        ready_us: Some(us(r.ready)),
        met_us: Some(us(r.met)),
        stream: device.then_some(1 + lane + STREAMS * rank as u32),
        correlation,
        ..Args::default()
    };
    let slice = Event {
        name,
        cat: if device { "kernel" } else { "cpu_op" }.into(),
        pid: rank as u32,
        tid: lane,
        ts: us(r.start),
        dur: Some(us(r.end - r.start)),
        args,
        ..Event::default()
    };
    let begun = timeline.step_start(rank, r.start).filter(|_| device);
    let launch = begun.map(|begun| Event {
        name: "launch".into(),
        cat: "cuda_runtime".into(),
        pid: rank as u32,
        tid: LAUNCHES,
        // HTA rounds times up and ends down: whole microseconds keep the duration from being negative.
        ts: us(r.ready.max(begun)).ceil(),
        dur: Some(0.0),
        args: Args { correlation, ..Args::default() },
        ..Event::default()
    });
    std::iter::once(slice).chain(launch)
}

/// Arrows from each sender of a transfer to each receiver.
fn arrows<'a>(timeline: &'a Timeline<'_>) -> impl Iterator<Item = Event> + 'a {
    let lanes = lanes(timeline).of;
    let ops = timeline.schedule.train.ops.len();
    let length = (timeline.steps.end - timeline.steps.start) as usize;
    // Where each rank's execution of a traced step stands.
    let mut places = vec![vec![None::<u32>; ops * length]; timeline.ranks.len()];
    let place = move |r: &Record| (r.batch - timeline.steps.start) as usize * ops + r.op as usize;
    let crossing = move |r: &Record| timeline.steps.contains(&r.batch) && timeline.transfer(r.op);
    for (own, records) in places.iter_mut().zip(&timeline.ranks) {
        for (i, r) in records.iter().enumerate().filter(|(_, r)| crossing(r)) {
            own[place(r)] = Some(i as u32);
        }
    }
    let world = timeline.ranks.len();
    let pairs = timeline.ranks.iter().enumerate().flat_map(move |(from, records)| {
        let sent = records.iter().filter(move |r| crossing(r));
        sent.flat_map(move |r| (0..world).filter(move |to| *to != from).map(move |to| (from, r, to)))
    });
    let found = pairs.filter_map(move |(from, sent, to)| {
        let received = &timeline.ranks[to][places[to][place(sent)]? as usize];
        Some((from, sent, to, received))
    });
    found.enumerate().flat_map(move |(id, (from, sent, to, received))| {
        let lane = lanes[sent.op as usize];
        let end = |ph: EventType, rank: usize, at: u64| Event {
            ph,
            name: "transfer".into(),
            cat: "transfer".into(),
            pid: rank as u32,
            tid: lane,
            ts: us(at),
            id: Some(id as u64 + 1),
            bp: (ph == EventType::FlowEnd).then(|| "e".into()),
            ..Event::default()
        };
        // Inside the slices, whose ends belong to nobody.
        let arrived = received.end.saturating_sub(1).max(received.start);
        [end(EventType::FlowStart, from, sent.start), end(EventType::FlowEnd, to, arrived)]
    })
}
