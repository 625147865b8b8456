//! The timeline that all pictures draw: complete, free of overlaps, and right about what waits for what.

use std::path::Path;

use fs_compiler::viz::palette::Purpose;
use fs_compiler::viz::timeline::{Reason, Timeline, VizError};
use fs_compiler::{CompileOptions, Strategy, compile_with};
use fs_dsl::checked::Cluster;
use fs_schedule::{Action, Engine, Schedule};

fn options(strategy: Strategy, cluster: Option<Cluster>, microbatches: Option<u32>) -> CompileOptions {
    let ranks = if cluster.is_some() { None } else { Some(2) };
    CompileOptions::new(strategy, ranks).cluster(cluster).microbatches(microbatches)
}

fn example(name: &str, options: &CompileOptions) -> Schedule {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(name);
    let program = fs_dsl::load(&path).program.expect("examples are right");
    compile_with(&program, options).expect("examples compile").schedule
}

/// A link that is slow against compute: transfers in chunks, idle compute.
fn slow() -> Cluster {
    let mut slow = fs_dsl::cluster::preset("dgx_h100").expect("a preset");
    slow.intra.bandwidth /= 40.0;
    slow
}

/// Examples by strategies, clusters and microbatches.
fn schedules() -> Vec<(String, Schedule)> {
    let mut all = Vec::new();
    for name in ["movielens.fs", "dlrm.fs", "ranking.fs", "histories.fs"] {
        for strategy in [Strategy::Serial, Strategy::Prefetch, Strategy::Pec] {
            for (cluster, microbatches) in [(None, None), (Some(slow()), None), (Some(slow()), Some(2))] {
                let s = example(name, &options(strategy, cluster, microbatches));
                all.push((format!("{name} {strategy:?} {microbatches:?}"), s));
            }
        }
    }
    all
}

/// Nanoseconds below which differences are rounding, after so many operations.
fn rounding(n: usize) -> f64 {
    2.0 + n as f64 * 1e-3
}

#[test]
fn lanes_hold_every_operation_once_without_overlap() {
    let mut cut = 0;
    for (what, s) in schedules() {
        let t = Timeline::of(&s).expect("compiled schedules have predictions");
        let mut work = vec![0.0; t.ops.len()];
        let mut ends = vec![(0, 0); t.ops.len()];
        for (l, lane) in t.lanes.iter().enumerate() {
            let mut free = lane.pieces.iter().map(|p| p.end).fold(f64::NEG_INFINITY, f64::max) - t.step;
            for p in &lane.pieces {
                let op = &t.ops[p.op as usize];
                assert_eq!(op.lane as usize, l, "{what}: {} is on its engine's lane", op.name);
                assert!((0.0..t.step).contains(&p.start) && p.end >= p.start, "{what}: {p:?}");
                assert!(p.start >= free - 1e-6, "{what}: {} overlaps what runs before it", op.name);
                free = free.max(p.end);
                work[p.op as usize] += p.end - p.start;
                ends[p.op as usize].0 += u32::from(p.first);
                ends[p.op as usize].1 += u32::from(p.last);
            }
            let idle: f64 = lane.gaps.iter().map(|g| g.end - g.start).sum();
            let whole = idle + lane.pieces.iter().map(|p| p.end - p.start).sum::<f64>();
            assert!(
                (whole - t.step).abs() < rounding(lane.pieces.len()),
                "{what}: {} + idle = {whole}",
                lane.name
            );
        }
        cut += t.lanes.iter().map(|l| l.pieces.len()).sum::<usize>() - t.ops.len();
        for (op, (work, ends)) in t.ops.iter().zip(work.into_iter().zip(ends)) {
            assert!((work - op.time as f64).abs() < 2.0, "{what}: {} works {work} of {}", op.name, op.time);
            assert_eq!(ends, (1, 1), "{what}: {} begins and ends once", op.name);
        }
        let idle: f64 = t.compute().expect("compute").gaps.iter().map(|g| g.end - g.start).sum();
        assert!((idle - t.bubble).abs() < rounding(t.ops.len()), "{what}: idle {idle}, bubble {}", t.bubble);
    }
    assert!(cut > 0, "some transfer lets an urgent one pass");
}

#[test]
fn what_an_operation_needs_has_ended() {
    for (what, s) in schedules() {
        let t = Timeline::of(&s).expect("a timeline");
        let mut reasons = std::collections::BTreeSet::new();
        for op in &t.ops {
            let mut latest = f64::INFINITY;
            for l in &op.deps {
                reasons.insert(l.reason);
                let end = t.ops[l.op as usize].end - f64::from(l.distance) * t.step;
                assert!(
                    end <= op.start as f64 + 2.0,
                    "{what}: {} before {}",
                    op.name,
                    t.ops[l.op as usize].name
                );
                assert!(end <= latest + 1e-6, "{what}: dependencies of {} by falling end", op.name);
                latest = end;
            }
        }
        for reason in [Reason::Data, Reason::Rows, Reason::Parameter, Reason::Batch, Reason::Queue] {
            assert!(reasons.contains(&reason), "{what}: no {reason:?}");
        }
        for (op, view) in s.train.ops.iter().zip(&t.ops) {
            for d in &op.deps {
                let shown = view.deps.iter().find(|l| (l.op, l.distance) == (d.op, d.distance));
                assert!(shown.is_some_and(|l| l.stated), "{what}: {} shows what it states", op.name);
            }
        }
    }
}

#[test]
fn instances_repeat_every_step() {
    let s = example("histories.fs", &options(Strategy::Pec, Some(slow()), None));
    let t = Timeline::of(&s).expect("a timeline");
    let mut begun = vec![0; t.ops.len()];
    for lane in &t.lanes {
        let mut last = f64::NEG_INFINITY;
        for i in t.instances(lane, 0..4) {
            assert!(i.start >= last, "by start");
            last = i.start;
            let op = &t.ops[i.op as usize];
            assert_eq!(i.batch, i.step + i64::from(op.stage));
            if i.first {
                assert!((i.start - op.start as f64 - i.step as f64 * t.step).abs() < 2.0, "{}", op.name);
            }
            if i.start >= 0.0 {
                begun[i.op as usize] += i32::from(i.first);
            }
        }
    }
    assert!(begun.iter().all(|n| *n == 4), "{begun:?}");
    assert!(t.ops.iter().any(|o| o.stage > 0) && t.ops.iter().any(|o| o.stage < 0), "batches overlap");
}

#[test]
fn idle_compute_names_what_it_waits_for() {
    let s = example("movielens.fs", &options(Strategy::Serial, Some(slow()), None));
    let t = Timeline::of(&s).expect("a timeline");
    let compute = t.compute().expect("compute");
    let waits: Vec<&str> =
        compute.gaps.iter().filter_map(|g| Some(t.ops[g.waits_for?.op as usize].action.as_str())).collect();
    for action in ["all_to_all_ids", "all_to_all_rows", "all_to_all_grads", "all_reduce"] {
        assert!(waits.contains(&action), "serial waits for {action}, not only for {waits:?}");
    }
    for gap in &compute.gaps {
        let cause = gap.waits_for.expect("serial waits for something");
        let (_, step) = gap.op.expect("an operation ends it");
        let on = &t.ops[cause.op as usize];
        let end = on.end + f64::from(step - cause.distance as i32) * t.step;
        assert!(end > gap.start && end <= gap.end + 2.0, "{} ends within the wait", on.name);
        assert!(gap.text.contains(&on.name), "{}", gap.text);
    }
}

#[test]
fn kinds_follow_what_operations_are_for() {
    let kind = |t: &Timeline, name: &str| {
        let op = t.ops.iter().find(|o| o.name == name);
        op.unwrap_or_else(|| {
            panic!("no {name} among {:?}", t.ops.iter().map(|o| &o.name).collect::<Vec<_>>())
        })
        .kind
    };
    let pec = example("movielens.fs", &options(Strategy::Pec, None, None));
    let t = Timeline::of(&pec).expect("a timeline");
    assert_eq!(kind(&t, "movies.gather"), Purpose::Ol);
    assert_eq!(kind(&t, "movies.all_to_all_rows"), Purpose::Ol);
    assert_eq!(kind(&t, "movies.gather#2"), Purpose::Nol);
    assert_eq!(kind(&t, "movies.apply#2"), Purpose::Gradient);
    assert_eq!(kind(&t, "movies.partition"), Purpose::InputDist);
    assert_eq!(kind(&t, "load_batch"), Purpose::Host);
    assert_eq!(kind(&t, "all_reduce"), Purpose::AllReduce);
    assert_eq!(kind(&t, "sampled_softmax"), Purpose::Forward);
    assert_eq!(kind(&t, "sampled_softmax_grad"), Purpose::Backward);
    let serial = example("movielens.fs", &options(Strategy::Serial, None, None));
    let t = Timeline::of(&serial).expect("a timeline");
    assert_eq!(kind(&t, "movies.gather"), Purpose::Rows);
    // What comes after the loss in a batch is backward, whatever its action, and nothing before it is.
    for (what, s) in schedules() {
        let t = Timeline::of(&s).expect("a timeline");
        for (op, view) in s.train.ops.iter().zip(&t.ops) {
            let action = view.action.as_str();
            if action.ends_with("_grad") || action.starts_with("linear_grad") {
                assert_eq!(view.kind, Purpose::Backward, "{what}: {}", op.name);
            }
            if matches!(op.action, Action::SiluAttention { .. } | Action::Expand | Action::Pool { .. }) {
                assert_eq!(view.kind, Purpose::Forward, "{what}: {}", op.name);
            }
        }
    }
}

#[test]
fn memory_stays_within_what_is_set_aside() {
    for (what, s) in schedules() {
        let t = Timeline::of(&s).expect("a timeline");
        let m = &t.memory;
        assert!(m.base() > 0.0 && m.peak() > m.base(), "{what}");
        assert!(m.peak() <= m.reserved * (1.0 + 1e-9), "{what}: {} of {}", m.peak(), m.reserved);
        assert!(m.live.windows(2).all(|w| w[0].0 < w[1].0), "{what}: times rise");
        assert!(m.live[0].0 == 0.0 && m.live.iter().all(|l| l.1 >= -1e-3 && l.0 < t.step), "{what}");
    }
}

#[test]
fn the_cycle_closes_over_the_batches_that_it_spans() {
    for (what, s) in schedules() {
        let t = Timeline::of(&s).expect("a timeline");
        let steps: i64 = t.cycle.iter().map(|c| i64::from(c.distance)).sum();
        let batches: i64 = t.cycle.iter().map(|c| i64::from(c.batches)).sum();
        assert_eq!(steps, batches, "{what}: stages cancel around a cycle");
        assert!(t.cycle.iter().all(|c| t.ops[c.op as usize].on_cycle), "{what}");
        assert_eq!(t.ops.iter().filter(|o| o.on_cycle).count(), t.cycle.len(), "{what}");
    }
}

#[test]
fn what_cannot_be_drawn_is_an_error() {
    let good = example("movielens.fs", &options(Strategy::Serial, None, None));
    let broken = |change: &dyn Fn(&mut Schedule)| {
        let mut s = good.clone();
        change(&mut s);
        Timeline::of(&s).expect_err("it cannot be drawn")
    };
    assert_eq!(broken(&|s| s.prediction = None), VizError::NoPrediction);
    assert_eq!(broken(&|s| s.train.ops.clear()), VizError::Empty);
    for step in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-9] {
        let error = broken(&|s| s.prediction.as_mut().expect("a prediction").step = step);
        assert!(matches!(error, VizError::Times { .. }), "{step}: {error:?}");
    }
    let late = broken(&|s| s.train.ops[3].start = u64::MAX);
    assert!(matches!(late, VizError::Times { .. }), "{late:?}");
    let busy = broken(&|s| {
        let op = s.train.ops.iter_mut().find(|o| o.engine == Engine::Compute).expect("compute");
        op.time = 2 * (s.prediction.as_ref().expect("a prediction").step * 1e9) as u64;
    });
    assert!(matches!(busy, VizError::Busy { engine: "compute", .. }), "{busy:?}");
}
