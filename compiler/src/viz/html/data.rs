//! What the page's scripts read: schedules as columns of numbers, texts said once.

use std::collections::BTreeMap;

use fs_schedule::Engine;
use serde::{Serialize, Serializer};

use super::Shown;
use crate::viz::measured::Measured;
use crate::viz::palette::Purpose;
use crate::viz::timeline::{Lane, OpView, Reason, Timeline, strategy_name};

/// The JSON of the page's schedules, with nothing that could end a script.
pub(super) fn text(shown: &[Shown], labels: &[String], steps: u32) -> String {
    let mut texts = Texts::default();
    texts.get("");
    let schedules =
        shown.iter().zip(labels).map(|(s, label)| schedule(s, label, steps, &mut texts)).collect();
    let data = Data { kinds: Purpose::ALL.map(kind), reasons: REASONS, schedules, texts: texts.list };
    // Only ill-formed maps and failing writers make this fail; there are none.
    serde_json::to_string(&data).unwrap_or_default().replace('<', "\\u003c")
}

/// Reasons of links; columns hold positions.
const REASONS: [Reason; 6] =
    [Reason::Data, Reason::Rows, Reason::Parameter, Reason::Batch, Reason::Order, Reason::Queue];

#[derive(Serialize)]
struct Data<'a> {
    kinds: [KindData; 9],
    reasons: [Reason; 6],
    schedules: Vec<ScheduleData<'a>>,
    texts: Vec<String>,
}

#[derive(Serialize)]
struct KindData {
    name: &'static str,
    meaning: &'static str,
    colour: &'static str,
    ink: &'static str,
    pattern: crate::viz::palette::Pattern,
    letter: char,
}

fn kind(k: Purpose) -> KindData {
    KindData {
        name: k.name(),
        meaning: k.meaning(),
        colour: k.colour(),
        ink: k.ink(),
        pattern: k.pattern(),
        letter: k.letter(),
    }
}

/// Texts with their numbers.
#[derive(Default)]
struct Texts {
    known: BTreeMap<String, u32>,
    list: Vec<String>,
}

impl Texts {
    fn get(&mut self, text: &str) -> u32 {
        if let Some(n) = self.known.get(text) {
            return *n;
        }
        let n = self.list.len() as u32;
        self.known.insert(text.to_owned(), n);
        self.list.push(text.to_owned());
        n
    }
}

/// A number with at most two decimals, integers without any.
#[derive(Clone, Copy)]
struct Number(f64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let rounded = (self.0 * 100.0).round() / 100.0;
        if rounded == rounded.trunc() && rounded.abs() < 9e15 {
            s.serialize_i64(rounded as i64)
        } else {
            s.serialize_f64(rounded)
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ScheduleData<'a> {
    label: &'a str,
    model: &'a str,
    strategy: &'static str,
    digest: &'a str,
    cluster: &'a str,
    ranks: u32,
    microbatches: u32,
    in_flight: u32,
    /// Nanoseconds of a step, unrounded: it is multiplied.
    step: f64,
    steps: u32,
    first: i64,
    resource_bound: Number,
    resource: &'static str,
    recurrence_bound: Number,
    joint_bound: Number,
    bubble: Number,
    limits: &'a [String],
    sizes: &'a [(String, f64)],
    ops: Ops<'a>,
    links: Links,
    lanes: Vec<LaneData>,
    cycle: Vec<(u32, i32, u32)>,
    memory: Memory,
    measured: Option<MeasuredData>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Ops<'a> {
    name: Vec<&'a str>,
    action: Vec<u32>,
    kind: Vec<u8>,
    class: Vec<u32>,
    lane: Vec<u32>,
    stage: Vec<i32>,
    microbatch: Option<Vec<i64>>,
    priority: Vec<i32>,
    chunk: Option<Vec<u64>>,
    start: Vec<u64>,
    time: Vec<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lag: Option<Vec<u64>>,
    end: Vec<Number>,
    flops_text: Vec<u32>,
    flops: Vec<Number>,
    bytes_text: Vec<u32>,
    bytes: Vec<Number>,
    wire_text: Vec<u32>,
    wire: Vec<Number>,
    reason: Vec<u32>,
    cycle: Vec<u8>,
}

/// Links into operation i are `from[i]..from[i + 1]` of the other columns.
#[derive(Serialize)]
struct Links {
    from: Vec<u32>,
    op: Vec<u32>,
    distance: Vec<u32>,
    reason: Vec<u8>,
    stated: Vec<u8>,
}

#[derive(Serialize)]
struct LaneData {
    name: &'static str,
    compute: bool,
    busy: Number,
    op: Vec<u32>,
    step: Vec<i32>,
    start: Vec<Number>,
    end: Vec<Number>,
    gaps: Vec<GapData>,
}

#[derive(Serialize)]
struct GapData {
    start: Number,
    end: Number,
    /// The operation after it, or -1.
    op: i64,
    /// Operation and steps before.
    waits: Option<(u32, u32)>,
}

#[derive(Serialize)]
struct Memory {
    tables: Number,
    parameters: Number,
    inputs: Number,
    reserved: Number,
    times: Vec<Number>,
    bytes: Vec<Number>,
}

#[derive(Serialize)]
struct MeasuredData {
    step: Option<Number>,
    steps: u32,
    origins: Vec<Number>,
    ranks: Vec<RunData>,
    /// Start, time, measured time, count.
    differences: Vec<Option<(Number, Number, Number, u32)>>,
}

#[derive(Serialize)]
struct RunData {
    rank: u32,
    lanes: Vec<RunLane>,
}

#[derive(Serialize)]
struct RunLane {
    lane: u32,
    name: &'static str,
    op: Vec<u32>,
    step: Vec<i64>,
    start: Vec<Number>,
    end: Vec<Number>,
}

fn schedule<'a>(shown: &'a Shown, label: &'a str, steps: u32, texts: &mut Texts) -> ScheduleData<'a> {
    let t = &shown.timeline;
    let measured = shown.measured.as_ref();
    ScheduleData {
        label,
        model: &t.model,
        strategy: strategy_name(t.strategy),
        digest: &t.digest,
        cluster: &t.cluster,
        ranks: t.ranks,
        microbatches: t.microbatches,
        in_flight: t.in_flight,
        step: t.step,
        steps: measured.map_or(steps, |m| m.steps.max(1)),
        first: measured.map_or(0, |m| m.first),
        resource_bound: Number(t.resource_bound),
        resource: t.resource.name(),
        recurrence_bound: Number(t.recurrence_bound),
        joint_bound: Number(t.joint_bound.unwrap_or(0.0)),
        bubble: Number(t.bubble),
        limits: &t.limits,
        sizes: &t.sizes,
        ops: ops(&t.ops, texts),
        links: links(&t.ops),
        lanes: t.lanes.iter().map(lane).collect(),
        cycle: t.cycle.iter().map(|c| (c.op, c.distance, c.batches)).collect(),
        memory: Memory {
            tables: Number(t.memory.tables),
            parameters: Number(t.memory.parameters),
            inputs: Number(t.memory.inputs),
            reserved: Number(t.memory.reserved),
            times: t.memory.live.iter().map(|l| Number(l.0)).collect(),
            bytes: t.memory.live.iter().map(|l| Number(l.1)).collect(),
        },
        measured: measured.map(|m| run(t, m)),
    }
}

fn ops<'a>(ops: &'a [OpView], texts: &mut Texts) -> Ops<'a> {
    let column = |of: &dyn Fn(&OpView) -> f64| ops.iter().map(|o| Number(of(o))).collect::<Vec<_>>();
    let mut said = |of: &dyn Fn(&'a OpView) -> &'a str| ops.iter().map(|o| texts.get(of(o))).collect();
    let kind = |o: &OpView| Purpose::ALL.iter().position(|k| *k == o.kind).unwrap_or(0) as u8;
    let parts = ops.iter().any(|o| o.microbatch.is_some());
    let lags = ops.iter().any(|o| o.lag > 0);
    let chunks = ops.iter().any(|o| o.chunk.is_some());
    Ops {
        name: ops.iter().map(|o| o.name.as_str()).collect(),
        action: said(&|o| &o.action),
        kind: ops.iter().map(kind).collect(),
        class: said(&|o| o.class.as_deref().unwrap_or("")),
        lane: ops.iter().map(|o| o.lane).collect(),
        stage: ops.iter().map(|o| o.stage).collect(),
        microbatch: parts.then(|| ops.iter().map(|o| o.microbatch.map_or(-1, i64::from)).collect()),
        priority: ops.iter().map(|o| o.priority).collect(),
        chunk: chunks.then(|| ops.iter().map(|o| o.chunk.unwrap_or(0)).collect()),
        start: ops.iter().map(|o| o.start).collect(),
        time: ops.iter().map(|o| o.time).collect(),
        lag: lags.then(|| ops.iter().map(|o| o.lag).collect()),
        end: column(&|o| o.end),
        flops_text: said(&|o| &o.size.flops.0),
        flops: column(&|o| o.size.flops.1),
        bytes_text: said(&|o| &o.size.bytes.0),
        bytes: column(&|o| o.size.bytes.1),
        wire_text: said(&|o| &o.size.wire.0),
        wire: column(&|o| o.size.wire.1),
        reason: said(&|o| &o.reason),
        cycle: ops.iter().map(|o| u8::from(o.on_cycle)).collect(),
    }
}

fn links(ops: &[OpView]) -> Links {
    let mut links =
        Links { from: vec![0], op: Vec::new(), distance: Vec::new(), reason: Vec::new(), stated: Vec::new() };
    for o in ops {
        for l in &o.deps {
            links.op.push(l.op);
            links.distance.push(l.distance);
            links.reason.push(REASONS.iter().position(|r| *r == l.reason).unwrap_or(0) as u8);
            links.stated.push(u8::from(l.stated));
        }
        links.from.push(links.op.len() as u32);
    }
    links
}

fn lane(l: &Lane) -> LaneData {
    let gap = |g: &crate::viz::timeline::Gap| GapData {
        start: Number(g.start),
        end: Number(g.end),
        op: g.op.map_or(-1, |o| i64::from(o.0)),
        waits: g.waits_for.map(|w| (w.op, w.distance)),
    };
    let compute = l.engine == Engine::Compute;
    LaneData {
        name: l.name,
        compute,
        busy: Number(l.busy),
        op: l.pieces.iter().map(|p| p.op).collect(),
        step: l.pieces.iter().map(|p| p.step).collect(),
        start: l.pieces.iter().map(|p| Number(p.start)).collect(),
        end: l.pieces.iter().map(|p| Number(p.end)).collect(),
        // Only idle compute is shaded.
        gaps: if compute { l.gaps.iter().map(gap).collect() } else { Vec::new() },
    }
}

fn run(t: &Timeline, m: &Measured) -> MeasuredData {
    let lane = |(lane, list): &(u32, Vec<crate::viz::measured::Executed>)| RunLane {
        lane: *lane,
        name: t.lanes.get(*lane as usize).map_or("", |l| l.name),
        op: list.iter().map(|e| e.op).collect(),
        step: list.iter().map(|e| e.step).collect(),
        start: list.iter().map(|e| Number(e.start)).collect(),
        end: list.iter().map(|e| Number(e.end)).collect(),
    };
    MeasuredData {
        step: m.step.map(Number),
        steps: m.steps,
        origins: m.origins.iter().map(|o| Number(*o)).collect(),
        ranks: m
            .ranks
            .iter()
            .map(|r| RunData { rank: r.rank, lanes: r.lanes.iter().map(lane).collect() })
            .collect(),
        differences: m
            .differences
            .iter()
            .map(|d| d.map(|d| (Number(d.start), Number(d.time), Number(d.measured), d.count)))
            .collect(),
    }
}
