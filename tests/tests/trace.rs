//! Traces of real runs: everything that ran is in them once, in an order that the schedule allows, and viewers find
//! what they need.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fs_compiler::{CompileOptions, Strategy, compile_with};
use fs_executor::Account;
use fs_executor::trace::Target;
use fs_executor::transport::link::EmulatedLink;
use fs_executor::{Observer, Options, Session, StepEvent};
use fs_schedule::trace::{self, Event, EventType, Execution, LAUNCHES, STEPS, TRANSFER, Trace};
use fs_schedule::{Engine, Schedule};

const STEPS_OF_RUN: u64 = 12;
/// Of one that is stopped.
const LONG: u64 = 2000;

fn model(name: &str) -> String {
    format!(
        "model {name} {{
          table a {{ rows 300  dim 8  init normal(0, 0.5)  optimizer rowwise_adagrad(lr: 0.05)  sharding row_wise }}
          table b {{ rows 40  dim 8  init hash(scale: 0.3)  optimizer sgd(lr: 0.1)  sharding data_parallel }}
          input x: ids(a) {{ max 9 }}
          input y: ids(b) like x
          input click: label like x
          let h = lookup(x) + lookup(y)
          let g = h + linear(layer_norm(h), 8)
          loss bce_with_logits(linear(g, 1), click, normalize: tokens)
        }}
        train {{ batch 12  steps {STEPS_OF_RUN}  optimizer adam(lr: 1e-2) }}
        workload w {{ generate {{ lengths uniform(0, 9)  ids zipf(1.05)  labels hash  samples 100 }} }}"
    )
}

fn compile(name: &str, strategy: Strategy, ranks: u32, microbatches: u32) -> Schedule {
    compile_on("local", name, strategy, ranks, microbatches)
}

fn compile_on(cluster: &str, name: &str, strategy: Strategy, ranks: u32, microbatches: u32) -> Schedule {
    let loaded = fs_dsl::check_text("model.fs", &model(name));
    let Some(program) = &loaded.program else {
        panic!("{}", fs_dsl::render(&loaded.diagnostics, &loaded.sources, false))
    };
    let options = CompileOptions::new(strategy, ranks).microbatches(microbatches);
    let options = options.cluster(fs_dsl::cluster::preset(cluster));
    let schedule = compile_with(program, &options).unwrap_or_else(|e| panic!("{e}")).schedule;
    // With its digest, as from a file.
    let text = fs_schedule::to_text(&schedule);
    fs_schedule::file::parse(Path::new("s.json"), text.as_bytes(), true).unwrap_or_else(|e| panic!("{e}"))
}

/// A session after its run, and the accounts of each step's ranks.
struct Run {
    session: Session<f32>,
    accounts: BTreeMap<u64, Vec<Account>>,
}

#[derive(Default)]
struct Watch {
    accounts: BTreeMap<u64, Vec<Account>>,
    stop: Option<(u64, Arc<AtomicBool>)>,
}

impl Observer for Watch {
    fn step(&mut self, event: &StepEvent) {
        self.accounts.insert(event.step, event.accounts.clone());
        if let Some((at, stop)) = &self.stop
            && event.step >= *at
        {
            stop.store(true, Ordering::Relaxed);
        }
    }
}

fn run(schedule: &Schedule, steps: Range<u64>, options: Options) -> Run {
    let options = options.evaluate(false).record(steps);
    let mut session = Session::new(schedule.clone(), options).unwrap_or_else(|e| panic!("{e}"));
    let mut watch = Watch::default();
    session.run(&mut watch).unwrap_or_else(|e| panic!("{e}"));
    Run { session, accounts: watch.accounts }
}

fn written(run: &Run, path: &Path) -> Trace {
    let (timeline, _) = run.session.timeline().unwrap();
    Target::new(path).write(&timeline).unwrap();
    let trace = trace::read(path).unwrap_or_else(|e| panic!("{e}"));
    trace.check(path, run.session.schedule()).unwrap();
    trace
}

/// Whole nanoseconds of a time in microseconds.
fn ns(us: f64) -> i64 {
    (us * 1e3).round() as i64
}

fn slices(trace: &Trace) -> impl Iterator<Item = (&Event, i64, i64)> {
    let complete = trace.events.iter().filter(|e| e.ph == EventType::Complete);
    complete.map(|e| (e, ns(e.ts), ns(e.ts) + ns(e.dur.unwrap())))
}

/// Everything that holds of the trace of steps `steps` of a run.
fn check(run: &Run, trace: &Trace, steps: &Range<u64>) {
    let schedule = run.session.schedule();
    let (ops, ranks) = (&schedule.train.ops, run.session.ranks() as u32);
    let executions: Vec<Execution> = trace.executions().collect();
    let found: BTreeMap<(u32, u32, u64), &Execution> =
        executions.iter().map(|e| ((e.rank, e.index, e.step), e)).collect();
    assert_eq!(found.len(), executions.len(), "nothing twice");
    let expected = (0..ranks)
        .flat_map(|r| (0..ops.len() as u32).map(move |o| (r, o)))
        .flat_map(|(r, o)| steps.clone().map(move |s| (r, o, s)));
    assert_eq!(found.keys().copied().collect::<BTreeSet<_>>(), expected.collect::<BTreeSet<_>>());
    for ((rank, index, step), e) in &found {
        let op = &ops[*index as usize];
        assert_eq!((e.op, e.engine), (op.name.as_str(), op.engine));
        let what = format!("rank {rank}, step {step}, {}", e.op);
        let [ready, start, met, end] = [e.ready, e.start, e.met, e.end].map(ns);
        assert!(ready <= start && start <= met && met <= end, "{what}: {e:?}");
        if op.action.is_transfer() {
            let others = (0..ranks).map(|other| found[&(other, *index, *step)]);
            let last = others.map(|o| ns(o.start)).max().unwrap();
            assert!(met >= last, "{what}: it met before the last rank began");
            // Sums have a second round, of which each rank's own part may be early.
            if op.action != fs_schedule::Action::AllReduce {
                assert_eq!(met, last, "{what}");
            }
        } else {
            assert_eq!(met, start, "{what}");
        }
        let mut latest = None;
        // All of a launch waits where its first does.
        let first = (0..=*index as usize).rev().find(|i| !ops[*i].joined).unwrap();
        for dep in &ops[first].deps {
            let other = &ops[dep.op as usize];
            let batch = *step as i64 + i64::from(other.stage) - i64::from(op.stage) - i64::from(dep.distance);
            if let Some(before) = found.get(&(*rank, dep.op, batch as u64)) {
                assert!(ns(before.end) <= ready, "{what} was ready before {} ended", before.op);
                latest = latest.max(Some(ns(before.end)));
            } else {
                assert!(batch < 0 || !steps.contains(&(batch as u64)), "{what}");
                latest = latest.max(Some(ready));
            }
        }
        let load = ops.iter().position(|o| o.action == fs_schedule::Action::LoadBatch).unwrap() as u32;
        if load != *index {
            latest = latest.max(Some(ns(found[&(*rank, load, *step)].end)));
        }
        assert!(latest.is_none_or(|latest| latest == ready), "{what}: nothing ended when it became ready");
    }
    threads(trace);
    boundaries(run, trace, steps);
    launches(trace);
    arrows(trace, &found, ops, ranks, steps);
}

/// A viewer stacks slices of one thread: none may cross, and here none may even meet.
fn threads(trace: &Trace) {
    let mut lanes: BTreeMap<(u32, u32), Vec<(i64, i64)>> = BTreeMap::new();
    let mut engines: BTreeMap<(u32, u32), BTreeSet<Engine>> = BTreeMap::new();
    for (event, start, end) in slices(trace).filter(|(e, ..)| e.tid != LAUNCHES) {
        lanes.entry((event.pid, event.tid)).or_default().push((start, end));
        engines.entry((event.pid, event.tid)).or_default().extend(event.args.engine);
    }
    for (lane, mut slices) in lanes {
        slices.sort_unstable();
        assert!(slices.windows(2).all(|w| w[0].1 <= w[1].0), "{lane:?} overlaps");
        assert!(engines[&lane].len() == usize::from(lane.1 != STEPS), "one engine in a lane");
        let named =
            |e: &&Event| e.ph == EventType::Metadata && (e.pid, e.tid) == lane && e.name == "thread_name";
        assert_eq!(trace.events.iter().filter(named).count(), 1, "{lane:?} has a name");
    }
}

/// Steps as PyTorch's profiler marks them, exactly as long as the accounts say.
fn boundaries(run: &Run, trace: &Trace, steps: &Range<u64>) {
    for rank in 0..run.session.ranks() {
        let mut marks: Vec<(String, i64, i64)> = slices(trace)
            .filter(|(e, ..)| e.tid == STEPS && e.pid as usize == rank)
            .map(|(e, start, end)| (e.name.clone(), start, end))
            .collect();
        marks.sort_by_key(|m| m.1);
        let names: Vec<String> = steps.clone().map(|step| format!("ProfilerStep#{step}")).collect();
        assert_eq!(marks.iter().map(|m| m.0.clone()).collect::<Vec<_>>(), names);
        assert!(marks.windows(2).all(|w| w[0].2 == w[1].1), "no time between steps");
        for (step, (_, start, end)) in steps.clone().zip(&marks) {
            let (time, accounted) = (end - start, run.accounts[&step][rank].time as i64);
            if step > 0 {
                assert_eq!(time, accounted, "step {step} of rank {rank}");
                continue;
            }
            // The accounts of the first step begin when its data was there, just before it was loaded.
            let load = slices(trace).find(|(e, ..)| {
                e.pid as usize == rank && e.args.engine == Some(Engine::Host) && e.args.step == Some(0)
            });
            let (_, began, loaded) = load.unwrap();
            assert_eq!(loaded, *start);
            assert!((time..=end - began).contains(&accounted), "{time} {accounted} of rank {rank}");
        }
    }
}

/// What HTA needs.
fn launches(trace: &Trace) {
    let runtime: Vec<_> = slices(trace).filter(|(e, ..)| e.cat == "cuda_runtime").collect();
    let kernels: Vec<_> = slices(trace).filter(|(e, ..)| e.cat == "kernel").collect();
    let by_id: BTreeMap<u64, i64> =
        runtime.iter().map(|(e, start, _)| (e.args.correlation.unwrap(), *start)).collect();
    assert_eq!(by_id.len(), runtime.len(), "each launch once");
    let mut marks: BTreeMap<u32, Vec<(i64, i64)>> = BTreeMap::new();
    for (event, from, until) in slices(trace).filter(|(e, ..)| e.tid == STEPS) {
        marks.entry(event.pid).or_default().push((from, until));
    }
    let mut launched = 0;
    let ids: BTreeSet<u64> = kernels.iter().filter_map(|(e, ..)| e.args.correlation).collect();
    assert_eq!(ids.len(), kernels.len(), "each kernel has an id of its own");
    for (event, start, _) in &kernels {
        assert!(event.args.stream.unwrap() > 0);
        let transfer = event.name.starts_with(TRANSFER);
        assert_eq!(transfer, event.args.engine != Some(Engine::Compute), "{}", event.name);
        let own = &marks[&event.pid];
        let mark = own.iter().find(|(from, until)| from <= start && start < until);
        let launch = by_id.get(&event.args.correlation.unwrap());
        let begun = own.iter().map(|m| m.0).min().unwrap();
        assert_eq!(launch.is_some(), *start >= begun, "kernels of traced time have a launch, others none");
        if let (Some(launch), Some((from, _))) = (launch, mark) {
            launched += 1;
            let ready = ns(event.args.ready_us.unwrap()).max(*from);
            assert!((ready..ready + 1000).contains(launch) && launch % 1000 == 0, "{}", event.name);
        }
    }
    assert!(launched > 0);
}

/// An arrow from each sender of a transfer to each receiver.
fn arrows(
    trace: &Trace,
    found: &BTreeMap<(u32, u32, u64), &Execution>,
    ops: &[fs_schedule::Op],
    ranks: u32,
    steps: &Range<u64>,
) {
    let mut ends: BTreeMap<u64, Vec<&Event>> = BTreeMap::new();
    for event in trace.events.iter().filter(|e| matches!(e.ph, EventType::FlowStart | EventType::FlowEnd)) {
        ends.entry(event.id.unwrap()).or_default().push(event);
    }
    let mut lanes: BTreeMap<(u32, u32), Vec<&Execution>> = BTreeMap::new();
    for event in trace.events.iter().filter(|e| e.args.op.is_some()) {
        let execution = found[&(event.pid, event.args.index.unwrap(), event.args.step.unwrap())];
        lanes.entry((event.pid, event.tid)).or_default().push(execution);
    }
    let mut pairs = BTreeSet::new();
    for (id, ends) in &ends {
        let [a, b] = ends[..] else { panic!("arrow {id} has {} ends", ends.len()) };
        let (from, to) = if a.ph == EventType::FlowStart { (a, b) } else { (b, a) };
        assert_eq!((from.ph, to.ph, to.bp.as_deref()), (EventType::FlowStart, EventType::FlowEnd, Some("e")));
        assert!(from.ts <= to.ts, "arrows point forward in time");
        let around = |event: &Event| {
            let lane = lanes.get(&(event.pid, event.tid)).map_or(&[][..], Vec::as_slice);
            let at = ns(event.ts);
            let slice = lane.iter().find(|e| ns(e.start) <= at && at < ns(e.end));
            *slice.unwrap_or_else(|| panic!("arrow {id} hangs in the air"))
        };
        let (sent, received) = (around(from), around(to));
        assert_eq!((sent.index, sent.step), (received.index, received.step));
        assert!(pairs.insert((sent.index, sent.step, sent.rank, received.rank)), "each pair once");
    }
    let transfers = ops.iter().filter(|op| op.action.is_transfer()).count() as u64;
    assert_eq!(pairs.len() as u64, transfers * (steps.end - steps.start) * u64::from(ranks * (ranks - 1)));
}

#[test]
fn every_execution_is_in_it_once() {
    let folder = tempfile::tempdir().unwrap();
    let link = EmulatedLink { bandwidth: 2e7, latency: 3e-4 };
    let cases = [
        (Strategy::Serial, 2, 1, None, None, 4..9),
        (Strategy::Prefetch, 3, 1, Some(link), None, 5..8),
        (Strategy::Pec, 2, 1, Some(link), None, 4..9),
        (Strategy::Pec, 3, 2, None, Some(7), 4..7),
        (Strategy::Pec, 2, 2, Some(link), None, 0..STEPS_OF_RUN),
        (Strategy::Pec, 1, 1, None, None, 9..STEPS_OF_RUN),
    ];
    for (case, (strategy, ranks, microbatches, link, stress, steps)) in cases.into_iter().enumerate() {
        let schedule = compile("small", strategy, ranks, microbatches);
        let options = Options::default().link(link).stress(stress);
        let run = run(&schedule, steps.clone(), options);
        let trace = written(&run, &folder.path().join(format!("{case}.json")));
        check(&run, &trace, &steps);
    }
}

#[test]
fn what_one_launch_starts_is_ready_when_its_first_is() {
    let folder = tempfile::tempdir().unwrap();
    let schedule = compile_on("dgx_h100", "small", Strategy::Overlap, 2, 1);
    assert!(schedule.train.ops.iter().any(|op| op.joined));
    let link = EmulatedLink { bandwidth: 2e7, latency: 3e-4 };
    let run = run(&schedule, 4..9, Options::default().link(Some(link)));
    check(&run, &written(&run, &folder.path().join("t.json")), &(4..9));
}

#[test]
fn a_folder_holds_the_same_rank_by_rank() {
    let folder = tempfile::tempdir().unwrap();
    let schedule = compile("small", Strategy::Pec, 3, 1);
    let run = run(&schedule, 3..6, Options::default());
    let whole = written(&run, &folder.path().join("all.json"));
    let target = Target::Folder(folder.path().join("ranks"));
    // A folder that nothing is written into goes with what has made it.
    let _made = target.prepare(3).unwrap();
    let parts = written(&run, &folder.path().join("ranks"));
    let key = |e: &Execution| (e.rank, e.index, e.step, ns(e.start), ns(e.end), ns(e.ready), ns(e.met));
    let sorted = |t: &Trace| t.executions().map(|e| key(&e)).collect::<BTreeSet<_>>();
    assert_eq!(sorted(&whole), sorted(&parts));
    assert!(parts.events.iter().all(|e| !matches!(e.ph, EventType::FlowStart | EventType::FlowEnd)));
    for (rank, path) in target.files(3).iter().enumerate() {
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.lines().next().unwrap().contains(&format!("\"rank\": {rank}, ")), "HTA looks for this");
        let own = trace::parse(path, text.as_bytes()).unwrap();
        assert!(own.events.iter().all(|e| e.pid == rank as u32));
        threads(&own);
        launches(&own);
    }
    std::fs::remove_file(&target.files(3)[1]).unwrap();
    let said = trace::read(&folder.path().join("ranks")).unwrap_err().to_string();
    assert!(said.contains("cannot read trace") && said.contains("rank-1.json"), "{said}");
    std::fs::copy(&target.files(3)[2], &target.files(3)[1]).unwrap();
    let said = trace::read(&folder.path().join("ranks")).unwrap_err().to_string();
    assert!(said.contains("rank-1.json") && said.contains("does not belong to the run"), "{said}");
    std::fs::write(folder.path().join("ranks/old.json"), "{}").unwrap();
    let said = target.prepare(3).unwrap_err().to_string();
    assert!(said.contains("old.json") && said.contains("another folder"), "{said}");
}

#[test]
fn a_run_that_is_stopped_has_what_it_did() {
    let folder = tempfile::tempdir().unwrap();
    for (at, asked, least) in [(5, 3..11, 3), (2, 9..11, 0)] {
        let stop = Arc::new(AtomicBool::new(false));
        // Many more than a busy machine runs until it hears of the stop.
        let options = Options::default().steps(LONG).stop(Arc::clone(&stop)).record(asked.clone());
        let mut session = Session::<f32>::new(compile("small", Strategy::Pec, 2, 1), options).unwrap();
        let mut watch = Watch { stop: Some((at, stop)), ..Watch::default() };
        let report = session.run(&mut watch).unwrap();
        assert!(report.interrupted && report.steps < LONG);
        let steps = session.timeline().unwrap().0.steps;
        let held = steps.end - steps.start;
        assert_eq!(held, report.steps.saturating_sub(asked.start).min(asked.end - asked.start));
        assert!(held >= least);
        assert_eq!(report.traced.is_some(), held > 0);
        let run = Run { session, accounts: watch.accounts };
        let trace = written(&run, &folder.path().join("t.json"));
        if held > 0 {
            check(&run, &trace, &steps);
        } else {
            assert_eq!(trace.executions().count(), 0);
        }
    }
}

#[test]
fn other_files_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.json");
    let schedule = compile("small", Strategy::Serial, 2, 1);
    let trace = written(&run(&schedule, 2..4, Options::default()), &path);
    let text = std::fs::read_to_string(&path).unwrap();
    let parse = |text: &str| trace::parse(&path, text.as_bytes()).map_err(|e| e.to_string());
    let whole = text.trim_end().len();
    for length in (1..30).map(|i| i * whole / 30).chain([1, whole - 1, whole - 2]) {
        let said = parse(&text[..length]).unwrap_err();
        assert!(said.contains("t.json is truncated") && said.contains("fsx run --trace"), "{length}: {said}");
    }
    let other = compile("another", Strategy::Serial, 2, 1);
    let said = trace.check(&path, &other).unwrap_err().to_string();
    assert!(said.contains("of another schedule: of model `small`"), "{said}");
    let chrome = "{\"traceEvents\": [{\"ph\": \"X\", \"name\": \"a\", \"ts\": 1, \"dur\": 2, \"pid\": 0, \"tid\": 0}]}";
    for (text, why) in
        [("", "it is empty"), ("[1, 2]", "is not a trace of fsx"), (chrome, "missing field `schedule`")]
    {
        let said = parse(text).unwrap_err();
        assert!(said.contains(why), "{why}: {said}");
    }
    let with = |from: &str, to: &str| parse(&text.replacen(from, to, 1)).unwrap_err();
    assert!(with("\"index\":", "\"indes\":").contains("is incomplete"));
    assert!(with("\"world_size\": 2", "\"world_size\": 3").contains("distributedInfo"));
    let renamed = parse(&text.replacen("\"op\":\"", "\"op\":\"x", 1)).unwrap();
    let said = renamed.check(&path, &schedule).unwrap_err().to_string();
    assert!(said.contains("the schedule has no operation"), "{said}");
    let missing = trace::read(&folder.path().join("none.json")).unwrap_err().to_string();
    assert!(missing.contains("cannot read trace") && missing.contains("none.json"), "{missing}");
}
