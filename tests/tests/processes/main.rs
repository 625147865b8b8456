//! Ranks of several processes that hand each other nothing but bytes train to the same bits as ranks that share
//! memory: all strategies, on all shardings. Whatever breaks in one process ends all with the right error.

mod second;

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fs_compiler::{At as Moved, Strategy};
use fs_executor::trace::Target;
use fs_executor::transport::wire::{Sink, Wire, World};
use fs_executor::{Error, Observer, Options, Report, Session, StepEvent};
use fs_schedule::{Schedule, trace};
use fs_tests::pipes::joined;
use fs_tests::training::{self, bits, compile, compile_at, model};

/// What must be equal, as bits: what training gives, and the loss and gradients of the next batch.
#[derive(PartialEq, Debug)]
struct Outcome {
    trained: training::Outcome,
    loss: u64,
    gradients: Vec<Vec<u32>>,
}

/// Trains and looks at everything; of several processes all do.
fn outcome(session: &mut Session<f32>) -> Result<(Outcome, Report), Error> {
    let (trained, report) = training::train(session, &mut ())?;
    let gradients = session.loss_and_gradients(report.steps)?;
    let loss = gradients.loss.to_bits();
    let gradients = gradients.tables.iter().chain(&gradients.parameters).map(|g| bits(g)).collect();
    Ok((Outcome { trained, loss, gradients }, report))
}

fn options() -> Options {
    Options::default().evaluate(false).timeout(Duration::from_mins(1))
}

fn together(schedule: &Schedule, options: Options) -> (Outcome, Report) {
    let mut session = Session::<f32>::new(schedule.clone(), options).unwrap_or_else(|e| panic!("{e}"));
    outcome(&mut session).unwrap_or_else(|e| panic!("{e}"))
}

/// Runs `body` in a thread for each process.
fn apart<R: Send>(processes: &[Vec<usize>], body: impl Fn(usize, World) -> R + Sync) -> Vec<R> {
    let worlds = joined(processes).expect("streams");
    std::thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = worlds
            .into_iter()
            .enumerate()
            .map(|(process, (world, _))| scope.spawn(move || body(process, world)))
            .collect();
        threads.into_iter().map(|t| t.join().expect("a process")).collect()
    })
}

fn check(text: &str, processes: &[Vec<usize>], lookaheads: &[u32], microbatches: u32) {
    check_at(text, None, processes, (lookaheads, microbatches));
}

fn check_at(
    text: &str,
    at: Option<Moved>,
    processes: &[Vec<usize>],
    (lookaheads, microbatches): (&[u32], u32),
) {
    let ranks = processes.iter().map(Vec::len).sum::<usize>() as u32;
    let compile = |strategy, lookahead| compile_at(text, strategy, at, (ranks, lookahead, microbatches));
    let mut schedules = vec![compile(Strategy::Serial, 1), compile(Strategy::Prefetch, 1)];
    schedules.extend(lookaheads.iter().map(|k| compile(Strategy::Pec, *k)));
    for schedule in schedules {
        let (expected, _) = together(&schedule, options());
        let found = apart(processes, |_, world| {
            let mut session = Session::<f32>::new(schedule.clone(), options().world(world))?;
            outcome(&mut session).map(|(outcome, _)| outcome)
        });
        for (process, found) in found.into_iter().enumerate() {
            let found = found.unwrap_or_else(|e| panic!("{:?}, process {process}: {e}", schedule.strategy));
            assert!(found == expected, "{:?}, process {process} of {processes:?}\n{text}", schedule.strategy);
        }
    }
}

/// Samples go to other processes, too.
fn balanced() -> String {
    model("row_wise", "adagrad(lr: 0.05)", 60, true).replace("train {", "train { balance on")
}

#[test]
fn bytes_train_to_the_same_bits() {
    check(&model("row_wise", "rowwise_adagrad(lr: 0.05)", 60, true), &[vec![0], vec![1]], &[1, 2], 1);
    check(&model("row_wise", "adam(lr: 0.05)", 60, false), &[vec![0, 2], vec![1]], &[1, 3], 2);
    check(&model("table_wise", "adagrad(lr: 0.05)", 60, true), &[vec![0], vec![1], vec![2]], &[1], 1);
    check(&model("column_wise", "adam(lr: 0.05)", 60, true), &[vec![0, 1], vec![2, 3]], &[2], 1);
    check(&model("data_parallel", "sgd(lr: 0.1)", 60, true), &[vec![1], vec![0, 2]], &[1], 3);
    check(&balanced(), &[vec![0], vec![1], vec![2]], &[1, 2], 1);
    check(&balanced(), &[vec![0, 2], vec![1]], &[2], 2);
    for parts in [1, 2] {
        check_at(&balanced(), Some(Moved::Folded), &[vec![0, 2], vec![1]], (&[1, 2], parts));
    }
}

/// Over emulated links too, and with operations that are delayed; the parts of every step add up to it.
#[test]
fn links_and_delays_change_nothing() {
    #[derive(Default)]
    struct Sums(u64);
    impl Observer for Sums {
        fn step(&mut self, event: &StepEvent) {
            assert_eq!(event.accounts.len(), 3);
            for a in &event.accounts {
                assert_eq!(a.compute + a.exposed + a.straggler + a.host + a.other, a.time, "{event:?}");
            }
            self.0 += 1;
        }
    }
    let schedule = compile(&model("row_wise", "adagrad(lr: 0.05)", 60, true), Strategy::Pec, 3, 1, 1);
    let expected: Vec<u64> = together(&schedule, options()).1.loss.iter().map(|l| l.to_bits()).collect();
    for stress in [None, Some(3)] {
        let found = apart(&[vec![0], vec![1, 2]], |_, world| {
            let link = Some("400 Mbit/s, 100 us".parse().expect("a link"));
            let options = options().world(world).link(link).stress(stress);
            let mut session = Session::<f32>::new(schedule.clone(), options).expect("a session");
            let mut sums = Sums::default();
            let report = session.run(&mut sums).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(sums.0, 7);
            report.loss.iter().map(|l| l.to_bits()).collect::<Vec<_>>()
        });
        assert!(found.iter().all(|losses| *losses == expected));
    }
}

/// What a report says was sent is what went over the wire, less the headers of messages.
#[test]
fn the_bytes_that_are_reported_are_carried() {
    let of = |sharding| model(sharding, "sgd(lr: 0.1)", 60, true);
    for (sharding, text, at) in [
        ("row_wise", of("row_wise"), None),
        ("data_parallel", of("data_parallel"), None),
        ("folded", balanced(), Some(Moved::Folded)),
    ] {
        let schedule = compile_at(&text, Strategy::Pec, at, (3, 1, 1));
        let worlds = joined(&[vec![0], vec![1], vec![2]]).expect("streams");
        let reports: Vec<(Report, u64, u64)> = std::thread::scope(|scope| {
            let threads = worlds.into_iter().map(|(world, pipes)| {
                let schedule = schedule.clone();
                scope.spawn(move || {
                    let options = options().world(world);
                    let mut session = Session::<f32>::new(schedule, options).expect("a session");
                    let report = session.run(&mut ()).unwrap_or_else(|e| panic!("{e}"));
                    let (entries, messages) = (&pipes.entries, &pipes.messages);
                    (report, entries.load(Ordering::Relaxed), messages.load(Ordering::Relaxed))
                })
            });
            let threads: Vec<_> = threads.collect();
            threads.into_iter().map(|t| t.join().expect("a process")).collect()
        });
        let carried: u64 = reports.iter().map(|(_, entries, _)| entries).sum();
        let messages: u64 = reports.iter().map(|(.., messages)| messages).sum();
        let local = together(&schedule, options()).1;
        for report in reports.iter().map(|(report, ..)| report).chain([&local]) {
            let said: f64 = report.ops.iter().map(|op| op.sent_bytes).sum::<f64>() * 3.0;
            assert_eq!(said.round() as u64, carried, "{sharding}");
        }
        // To each of two others, in each round of each step.
        let transfers = schedule.train.ops.iter().filter(|op| op.action.is_transfer());
        let rounds: u64 = transfers.map(|op| u64::from(op.action.rounds())).sum();
        assert_eq!(messages, rounds * 7 * 3 * 2);
    }
}

/// Items are ranked alike, and values saved are the same file.
#[test]
fn evaluation_and_saving_gather_from_all() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let data = folder.path().join("visits.csv");
    let mut text = String::from("user,item\n");
    for user in 0..24usize {
        for at in 0..4 + user % 9 {
            writeln!(text, "u{user},{}", (user * 7 + at * at * 5 + at * user) % 60).expect("text grows");
        }
    }
    std::fs::write(&data, text).expect("the data is written");
    for (sharding, similarity) in [
        ("row_wise", "dot"),
        ("row_wise(placement: hashed)", "cosine"),
        ("column_wise", "cosine"),
        ("column_wise", "dot"),
        ("data_parallel", "cosine"),
    ] {
        let text = format!(
            "model last {{
              table items {{ rows 60  dim 6  init normal(0, 0.5)  optimizer adagrad(lr: 0.1)  sharding {sharding} }}
              input history: ids(items) {{ max 50 }}
              input following: next(history)
              loss sampled_softmax(lookup(history), items, following, negatives: 3, temperature: 1, similarity: {similarity}, normalize: tokens)
            }}
            train {{ batch 12  epochs 2 }}
            workload visits {{ csv \"visits.csv\" {{ user \"user\"  item \"item\" }}  evaluate leave_last_out }}"
        );
        let schedule = compile(&text, Strategy::Pec, 3, 1, 1);
        let run = |world: Option<World>, file: &Path| -> Result<_, Error> {
            let options = options().world(world).data(data.clone()).evaluate(true);
            let mut session = Session::<f32>::new(schedule.clone(), options)?;
            let report = session.run(&mut ())?;
            session.save(file)?;
            let evaluation = report.evaluation.expect("an evaluation");
            let state = (session.next_step(), training::state(&session)?);
            Ok((report.loss, evaluation.users, evaluation.model, evaluation.popularity, state))
        };
        let file = |name: &str| folder.path().join(name);
        let expected = run(None, &file("together")).unwrap_or_else(|e| panic!("{sharding}: {e}"));
        for processes in [&[vec![0], vec![1, 2]][..], &[vec![0], vec![1], vec![2]]] {
            let found =
                apart(processes, |process, world| run(Some(world), &file(&format!("apart{process}"))));
            for found in found {
                assert_eq!(found.unwrap_or_else(|e| panic!("{sharding}: {e}")), expected);
            }
            // Other processes start from what these have saved.
            let started = apart(processes, |_, world| {
                let (world, init) = (Some(world), Some(file("together")));
                let options = options().world(world).init(init).data(data.clone());
                let session = Session::<f32>::new(schedule.clone(), options)?;
                Ok::<_, Error>((session.next_step(), training::state(&session)?))
            });
            for started in started {
                let started = started.unwrap_or_else(|e| panic!("{sharding}: {e}"));
                assert!(started == expected.4, "{sharding}: what was saved is not where training starts");
            }
            let read = |name| std::fs::read(file(name)).expect("saved values");
            assert_eq!(read("apart0"), read("together"), "{sharding}");
            assert!(!file("apart1").exists(), "the first process writes");
        }
    }
}

/// Pieces of tables go to the process that writes, and to no other.
#[test]
fn what_is_saved_is_sent_to_the_writer_only() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let schedule = compile(&model("row_wise", "sgd(lr: 0.1)", 60, true), Strategy::Serial, 3, 1, 1);
    let worlds = joined(&[vec![0], vec![1], vec![2]]).expect("streams");
    let sent: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let threads = worlds.into_iter().enumerate().map(|(process, (world, pipes))| {
            let (schedule, file) = (schedule.clone(), folder.path().join(process.to_string()));
            scope.spawn(move || {
                let options = options().world(world);
                let mut session = Session::<f32>::new(schedule, options).expect("a session");
                session.advance(2, &mut ()).unwrap_or_else(|e| panic!("{e}"));
                let count = || pipes.gathered.iter().map(|n| n.load(Ordering::Relaxed)).collect::<Vec<u64>>();
                let before = count();
                session.save(&file).unwrap_or_else(|e| panic!("{e}"));
                count().iter().zip(before).map(|(after, before)| after - before).collect()
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|t| t.join().expect("a process")).collect()
    });
    // Two tables of 100 rows of 8 columns, a third of them each.
    let third = 100 * 8 * 4 / 3;
    assert!(sent[1][0] > third - 100 && sent[2][0] > third - 100, "{sent:?}");
    for (from, to) in [(0, 1), (0, 2), (1, 2), (2, 1)] {
        assert!(sent[from][to] < 400, "from {from} to {to}: {sent:?}");
    }
}

/// Data that differ are noticed before the first step, with one sentence for all.
#[test]
fn processes_read_the_same_data() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let lines = |last: u32| format!("user,item\nu,1\nu,2\nu,3\nv,4\nv,{last}\nv,1\n");
    for (process, last) in [(0, 2), (1, 3)] {
        std::fs::write(folder.path().join(format!("{process}.csv")), lines(last)).expect("the data");
    }
    let text = "model last {
          table items { rows 60  dim 6  init normal(0, 0.5)  optimizer sgd(lr: 0.1) }
          input history: ids(items) { max 50 }
          input following: next(history)
          loss sampled_softmax(lookup(history), items, following, negatives: 3, temperature: 1, similarity: dot, normalize: tokens)
        }
        train { batch 2  steps 3 }
        workload visits { csv \"visits.csv\" { user \"user\"  item \"item\" } }";
    let schedule = compile(text, Strategy::Serial, 2, 1, 1);
    let run = |process: usize, world: World| -> Result<Report, Error> {
        let data = Some(folder.path().join(format!("{process}.csv")));
        let options = options().world(world).data(data);
        Session::<f32>::new(schedule.clone(), options)?.run(&mut ())
    };
    let said = apart(&[vec![0], vec![1]], run).map_said();
    assert!(said[0].starts_with("the ranks do not run the same: the digest of the data is "), "{said:?}");
    assert!(said[0].contains(" on rank 0 and ") && said[0].ends_with(" on rank 1"), "{said:?}");
    assert_eq!(said[0], said[1]);
    // The same file, whatever its name.
    std::fs::write(folder.path().join("1.csv"), lines(2)).expect("the data");
    for report in apart(&[vec![0], vec![1]], run) {
        assert_eq!(report.unwrap_or_else(|e| panic!("{e}")).steps, 3);
    }
}

/// The errors of runs that fail.
trait Said {
    fn map_said(self) -> Vec<String>;
}

impl Said for Vec<Result<Report, Error>> {
    fn map_said(self) -> Vec<String> {
        self.into_iter().map(|outcome| outcome.expect_err("it fails").to_string()).collect()
    }
}

/// Sends some frames, and then nothing any more.
#[derive(Debug)]
struct Muted(Arc<dyn Wire>, AtomicU64);

impl Wire for Muted {
    fn start(&self, sink: Arc<dyn Sink>) {
        self.0.start(sink);
    }
    fn send(&self, process: usize, frame: &[u8]) {
        let count = |left: u64| left.checked_sub(1);
        if self.1.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count).is_ok() {
            self.0.send(process, frame);
        }
    }
}

/// Everyone waits for one of three processes, in operations of their own; all give the same error.
#[test]
fn a_timeout_is_the_same_error_everywhere() {
    let schedule = compile(&model("row_wise", "adagrad(lr: 0.05)", 60, true), Strategy::Pec, 3, 2, 2);
    for (stress, frames) in (0..).zip([60, 71, 83, 94]) {
        let said = apart(&[vec![0], vec![1], vec![2]], |process, world| {
            let wire: Arc<dyn Wire> = match process {
                2 => Arc::new(Muted(Arc::clone(&world.wire), AtomicU64::new(frames))),
                _ => Arc::clone(&world.wire),
            };
            let world = Some(World { wire, ..world });
            let timeout = Duration::from_secs(1);
            let options = options().world(world).timeout(timeout).steps(100_000).stress(stress);
            Session::<f32>::new(schedule.clone(), options)?.run(&mut ())
        })
        .map_said();
        // Who is asked for whom it has waited says how long so far.
        let waited = said[0].split_once("has waited 1").is_some_and(|(_, rest)| rest.contains(" s for rank"));
        assert!(waited, "{said:?}");
        assert!(said[0] == said[1] && said[1] == said[2], "after {frames} frames: {said:?}");
    }
}

/// Whoever wants to stop, all processes do after the same step.
#[test]
fn a_stop_takes_effect_everywhere() {
    struct Stopper(Arc<AtomicBool>, bool);
    impl Observer for Stopper {
        fn step(&mut self, event: &StepEvent) {
            if self.1 && event.step == 5 {
                self.0.store(true, Ordering::Relaxed);
            }
        }
    }
    let schedule = compile(&model("row_wise", "sgd(lr: 0.1)", 60, true), Strategy::Pec, 3, 1, 1);
    for stopper in [0, 1] {
        let reports = apart(&[vec![0], vec![1, 2]], |process, world| {
            let stop = Arc::new(AtomicBool::new(false));
            let options = options().world(world).steps(100_000).stop(Arc::clone(&stop));
            let mut session = Session::<f32>::new(schedule.clone(), options).expect("a session");
            let report =
                session.run(&mut Stopper(stop, process == stopper)).unwrap_or_else(|e| panic!("{e}"));
            (report.interrupted, report.loss)
        });
        assert!(reports[0].0 && reports[0].1.len() < 100_000);
        assert_eq!(reports[0], reports[1]);
    }
}

/// A panic in one process is the error of all; so are settings that differ.
#[test]
fn failures_are_told_to_all() {
    let schedule = compile(&model("row_wise", "sgd(lr: 0.1)", 60, true), Strategy::Pec, 2, 1, 1);
    let op = schedule.train.ops.iter().find(|op| op.action.is_transfer()).expect("a transfer").name.clone();
    let run = |world: World, seed: u64| -> Result<Report, Error> {
        let panic_at = Some((1, op.clone(), 3));
        let options = options().world(world).panic_at(panic_at).seed(seed);
        Session::<f32>::new(schedule.clone(), options)?.run(&mut ())
    };
    for said in apart(&[vec![0], vec![1]], |_, world| run(world, 1)) {
        assert_eq!(
            said.expect_err("it panics").to_string(),
            format!("rank 1 failed in `{op}`: told to panic")
        );
    }
    for said in apart(&[vec![0], vec![1]], |process, world| run(world, process as u64)) {
        let said = said.expect_err("seeds differ").to_string();
        assert!(said.contains("the seed is "), "{said}");
    }
}

/// A batch that cannot be given to ranks is one error for all; so is what breaks one rank's plan.
#[test]
fn plans_that_fail_are_told_to_all() {
    let mut schedule = compile(&balanced(), Strategy::Pec, 2, 1, 1);
    let run = |schedule: &Schedule, panic_at: Option<(usize, String, u64)>| {
        let said = apart(&[vec![0], vec![1]], |_, world| {
            let options = options().world(world).panic_at(panic_at.clone());
            let mut session =
                Session::<f32>::new(schedule.clone(), options).unwrap_or_else(|e| panic!("{e}"));
            session.run(&mut ()).expect_err("it fails").to_string()
        });
        assert_eq!(said[0], said[1], "one message");
        said[0].clone()
    };
    for op in ["share_lengths", "assign", "dispatch"] {
        let said = run(&schedule, Some((1, op.into(), 3)));
        assert_eq!(said, format!("rank 1 failed in `{op}`: told to panic"));
    }
    // No rank can hold the longest sample.
    schedule.settings.balance.as_mut().expect("a balance").limit = Some(fs_schedule::RankLimit::Tokens(3));
    let said = run(&schedule, None);
    let rest = said.split_once(" failed in `assign`: step 0: sample ").expect("it names the sample").1;
    assert!(
        rest.contains(", which rank ") && rest.contains(", but a rank can hold 3; raise the limit"),
        "{said}"
    );
}

/// Records of all processes come to the first one, on its clock, whenever each process began.
#[test]
fn traces_of_several_processes_are_one() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let file = folder.path().join("t.json");
    let schedule = compile(&model("row_wise", "adagrad(lr: 0.05)", 60, true), Strategy::Pec, 3, 1, 1);
    let late = Duration::from_millis(150);
    let found = apart(&[vec![0], vec![1, 2]], |process, world| {
        std::thread::sleep(late * process as u32);
        let options = options().world(world).record(2..5);
        let mut session = Session::<f32>::new(schedule.clone(), options).expect("a session");
        let report = session.run(&mut ()).unwrap_or_else(|e| panic!("{e}"));
        let traced = report.traced.map_or(0, |traced| traced.ranks.len());
        let clocks = session.timeline().map(|(timeline, asked)| {
            assert_eq!(timeline.steps, asked);
            Target::File(file.clone()).write(&timeline).expect("the trace is written");
            timeline.clocks.clone()
        });
        (clocks, traced, session.take_records())
    });
    let [(Some(clocks), 3, records), (None, 0, own)] = &found[..] else {
        panic!("the first process alone has a timeline, of all ranks");
    };
    assert_eq!(own.len(), 2, "the others have their own records");
    assert_eq!((clocks.len(), &clocks[0].ranks), (1, &vec![1, 2]));
    for (ahead, trip) in clocks[0].ahead_ns.into_iter().zip(clocks[0].round_trip_ns) {
        let late = late.as_nanos() as i64;
        assert!(-2 * late < ahead && ahead < -late / 2 && trip > 0 && trip < late, "{clocks:?}");
    }
    // Nothing ends before all have begun it; half a round trip is how wrong clocks may be.
    let wrong = clocks[0].round_trip_ns.into_iter().max().expect("two") as u64;
    let of = |rank: usize, op: u32, batch: u64| {
        let found = records[rank].iter().find(|r| (r.op, r.batch) == (op, batch));
        *found.unwrap_or_else(|| panic!("operation {op} of step {batch} on rank {rank}"))
    };
    for (op, what) in (0..).zip(&schedule.train.ops) {
        for batch in 2..5 {
            let all = [0, 1, 2].map(|rank| of(rank, op, batch));
            assert!(all.iter().all(|r| r.ready <= r.start && r.start <= r.end));
            let begun = all.iter().map(|r| r.start).max().expect("three");
            let early = all.iter().find(|r| what.action.is_transfer() && r.end + wrong < begun);
            assert!(early.is_none(), "{}: {all:?}, clocks {clocks:?}", what.name);
        }
    }
    let trace = trace::read(&file).expect("a trace");
    trace.check(&file, &schedule).expect("a trace of this schedule");
    assert_eq!(trace.ranks().into_iter().collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(trace.executions().count(), 3 * 3 * schedule.train.ops.len());
    assert_eq!(&trace.schedule.clocks, clocks);
}
