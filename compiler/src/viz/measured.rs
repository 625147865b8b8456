//! A traced run beside its prediction.
//!
//! Predicted and measured steps have different lengths, so they are compared within a step: a measured step begins
//! where its operations would, in the median over operations and ranks, if they started as planned. Only steps that
//! were traced (nearly) whole count; at the edges of a trace the operations of neighbouring batches are missing.

use std::collections::BTreeMap;

use fs_schedule::trace::Trace;

use super::timeline::Timeline;

/// What ran, aligned with a timeline. Times are in nanoseconds since the start of the first whole step.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// The step of the run that is drawn as step 0.
    pub first: i64,
    /// Number of whole steps.
    pub steps: u32,
    /// Median time from one step to the next; `None` with a single step.
    pub step: Option<f64>,
    /// Where whole steps begin, in order from `first`.
    pub origins: Vec<f64>,
    /// What every rank did, by rank.
    pub ranks: Vec<Run>,
    /// Of each operation, if it was traced in a whole step.
    pub differences: Vec<Option<Difference>>,
}

/// What a rank did.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// The rank.
    pub rank: u32,
    /// By lane of the timeline; lanes without work are left out.
    pub lanes: Vec<(u32, Vec<Executed>)>,
}

/// One execution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Executed {
    /// The operation.
    pub op: u32,
    /// Its step, relative to the first.
    pub step: i64,
    /// From here.
    pub start: f64,
    /// To here.
    pub end: f64,
}

/// Measured minus predicted, medians over ranks and whole steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Difference {
    /// Of the start within the step.
    pub start: f64,
    /// Of the duration.
    pub time: f64,
    /// The measured duration.
    pub measured: f64,
    /// Executions.
    pub count: u32,
}

/// Part of the executions of the fullest step that a whole one has.
const WHOLE: f64 = 0.9;

/// The middle of a list; the mean of both middles of an even one.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    let upper = *values.get(n / 2)?;
    Some(if n % 2 == 1 { upper } else { f64::midpoint(values[n / 2 - 1], upper) })
}

impl Measured {
    /// Aligns a trace, which must be of the timeline's schedule ([`Trace::check`]). `None` if it has no executions.
    pub fn of(t: &Timeline, trace: &Trace) -> Option<Self> {
        let mut all: Vec<(u32, Executed)> = Vec::new();
        for e in trace.executions() {
            let Some(op) = t.ops.get(e.index as usize) else { continue };
            let step = e.step as i64 - i64::from(op.stage);
            let (start, end) = (e.start * 1e3, e.end * 1e3);
            all.push((e.rank, Executed { op: e.index, step, start, end }));
        }
        let offset = |e: &Executed| e.start - t.ops[e.op as usize].start as f64;
        let mut offsets: BTreeMap<i64, Vec<f64>> = BTreeMap::new();
        for (_, e) in &all {
            offsets.entry(e.step).or_default().push(offset(e));
        }
        let most = offsets.values().map(Vec::len).max()?;
        let origins: BTreeMap<i64, f64> = offsets
            .into_iter()
            .filter(|(_, list)| list.len() as f64 >= WHOLE * most as f64)
            .filter_map(|(step, list)| Some((step, median(list)?)))
            .collect();
        let (first, zero) = origins.first_key_value().map(|(s, o)| (*s, *o))?;
        let between = |(a, b): ((&i64, &f64), (&i64, &f64))| (b.1 - a.1) / (b.0 - a.0) as f64;
        let step = median(origins.iter().zip(origins.iter().skip(1)).map(between).collect());
        let mut of_op: Vec<(Vec<f64>, Vec<f64>)> = vec![Default::default(); t.ops.len()];
        for (_, e) in &all {
            if let Some(origin) = origins.get(&e.step) {
                let (starts, times) = &mut of_op[e.op as usize];
                starts.push(offset(e) - origin);
                times.push(e.end - e.start);
            }
        }
        let difference = |(i, (starts, times)): (usize, (Vec<f64>, Vec<f64>))| {
            let count = starts.len() as u32;
            let (start, measured) = (median(starts)?, median(times)?);
            Some(Difference {
                start,
                time: measured - (t.ops[i].time + t.ops[i].lag) as f64,
                measured,
                count,
            })
        };
        let differences = of_op.into_iter().enumerate().map(difference).collect();
        let mut ranks: BTreeMap<u32, BTreeMap<u32, Vec<Executed>>> = BTreeMap::new();
        for (rank, e) in all {
            let (start, end) = (e.start - zero, e.end - zero);
            // Operations of earlier steps would stand for steps that are not whole.
            if e.step >= first {
                let lane = t.ops[e.op as usize].lane;
                let moved = Executed { step: e.step - first, start, end, ..e };
                ranks.entry(rank).or_default().entry(lane).or_default().push(moved);
            }
        }
        let ranks = ranks.into_iter().map(|(rank, mut lanes)| {
            for list in lanes.values_mut() {
                list.sort_by(|a, b| a.start.total_cmp(&b.start).then(a.op.cmp(&b.op)));
            }
            Run { rank, lanes: lanes.into_iter().collect() }
        });
        Some(Self {
            first,
            steps: origins.len() as u32,
            step,
            origins: origins.values().map(|o| o - zero).collect(),
            ranks: ranks.collect(),
            differences,
        })
    }
}
