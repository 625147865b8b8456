//! A run that stands still says where its ranks are and what they wait for, without being disturbed.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use fs_compiler::Strategy;
use fs_executor::data::{self, DataError, GlobalBatch, Source};
use fs_executor::stall::Watch;
use fs_executor::transport::wire::World;
use fs_executor::{Error, Options, Session};
use fs_schedule::Schedule;
use fs_tests::pipes::joined;
use fs_tests::training::{self, Outcome, compile, model};

/// The step before which data stop.
const HALT: u64 = 5;

/// Closed until it is opened.
#[derive(Default)]
struct Door(Mutex<(bool, bool)>, Condvar);

impl Door {
    /// Waits here until it is open.
    fn pass(&self) {
        let mut state = self.0.lock().expect("a lock");
        state.1 = true;
        self.1.notify_all();
        while !state.0 {
            state = self.1.wait(state).expect("a lock");
        }
    }

    /// Waits until somebody waits here.
    fn reached(&self) {
        let state = self.0.lock().expect("a lock");
        let patience = Duration::from_secs(20);
        let (state, _) = self.1.wait_timeout_while(state, patience, |s| !s.1).expect("a lock");
        assert!(state.1, "nobody comes to the door");
    }

    fn open(&self) {
        self.0.lock().expect("a lock").0 = true;
        self.1.notify_all();
    }
}

/// Opens a door at the end, also of a test that fails.
struct Opens(Arc<Door>);

impl Drop for Opens {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// Data that stop at a door.
struct Halting(Box<dyn Source>, Arc<Door>);

impl Source for Halting {
    fn describe(&self) -> String {
        self.0.describe()
    }
    fn epoch_steps(&self) -> Option<u64> {
        self.0.epoch_steps()
    }
    fn fill(&mut self, step: u64, batch: &mut GlobalBatch) -> Result<(), DataError> {
        if step == HALT {
            self.1.pass();
        }
        self.0.fill(step, batch)
    }
    fn digest(&self) -> Result<String, DataError> {
        self.0.digest()
    }
}

fn options() -> Options {
    Options::default().evaluate(false).timeout(Duration::from_mins(1))
}

fn session(schedule: &Schedule, options: Options, door: Option<&Arc<Door>>) -> Result<Session<f32>, Error> {
    let schedule = Arc::new(schedule.clone());
    let mut source = data::open(&schedule, None, None, schedule.settings.seed)?;
    if let Some(door) = door {
        source = Box::new(Halting(source, Arc::clone(door)));
    }
    Session::with_source(schedule, options, source)
}

/// What a watch has said.
#[derive(Clone, Default)]
struct Said(Arc<(Mutex<Vec<String>>, Condvar)>);

impl Said {
    fn watch(&self) -> Arc<Watch> {
        let own = self.clone();
        Watch::new(move |text| {
            own.0.0.lock().expect("a lock").push(text.to_owned());
            own.0.1.notify_all();
        })
    }

    fn all(&self) -> Vec<String> {
        self.0.0.lock().expect("a lock").clone()
    }

    /// The first text, once there is one.
    fn first(&self) -> String {
        let said = self.0.0.lock().expect("a lock");
        let patience = Duration::from_secs(20);
        let (said, late) =
            self.0.1.wait_timeout_while(said, patience, |said| said.is_empty()).expect("a lock");
        assert!(!late.timed_out(), "nothing was said");
        said[0].clone()
    }
}

/// Once the process has come to the door, asks; opens when it is answered. Everything goes on as if nobody had asked.
fn halted(
    schedule: &Schedule,
    processes: &[Vec<usize>],
    halts: usize,
    asks: usize,
) -> (String, Vec<Outcome>) {
    let (door, said) = (Arc::new(Door::default()), Said::default());
    let others: Vec<Said> = processes.iter().skip(1).map(|_| Said::default()).collect();
    let watches: Vec<_> = std::iter::once(&said).chain(&others).map(Said::watch).collect();
    let worlds: Vec<Option<World>> = match processes.len() {
        1 => vec![None],
        _ => joined(processes).expect("streams").into_iter().map(|(world, _)| Some(world)).collect(),
    };
    std::thread::scope(|scope| {
        let threads = worlds.into_iter().enumerate().map(|(process, world)| {
            let (watch, door) = (Arc::clone(&watches[process]), (process == halts).then_some(&door));
            scope.spawn(move || {
                let options = options().world(world).watch(watch).ranks(schedule.ranks as usize);
                let mut session = session(schedule, options, door).unwrap_or_else(|e| panic!("{e}"));
                training::train(&mut session, &mut ()).unwrap_or_else(|e| panic!("{e}")).0
            })
        });
        let threads: Vec<_> = threads.collect();
        let opens = Opens(Arc::clone(&door));
        door.reached();
        // What can go on does so before.
        std::thread::sleep(Duration::from_millis(300));
        let asked = Instant::now();
        watches[asks].ask();
        watches[asks].ask();
        let text = said.first();
        assert!(asked.elapsed() < Duration::from_millis(900), "nobody was silent: {:?}", asked.elapsed());
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(said.all().len(), 1, "who asks twice gets one answer");
        assert!(others.iter().all(|other| other.all().is_empty()), "one process speaks for all");
        drop(opens);
        let outcomes = threads.into_iter().map(|t| t.join().expect("a process")).collect();
        (text, outcomes)
    })
}

#[test]
fn a_run_says_what_its_ranks_wait_for() {
    let apart = vec![vec![0], vec![1], vec![2, 3]];
    for (strategy, lookahead) in [(Strategy::Serial, 1), (Strategy::Prefetch, 1), (Strategy::Pec, 2)] {
        let text = model("row_wise", "adagrad(lr: 0.05)", 60, true).replace("steps 7", "steps 9");
        let schedule = compile(&text, strategy, 4, lookahead, 1);
        // Batches are read as far ahead as there are places for them; ids of `pec` come a lookahead before its oldest batch ends.
        let oldest = if strategy == Strategy::Pec { 5 - lookahead } else { 5 };
        let next = oldest + schedule.train.in_flight;
        let mut alone = session(&schedule, options(), None).expect("a session");
        let expected = training::train(&mut alone, &mut ()).expect("it trains").0;
        let ask = |processes: &[Vec<usize>], halts: usize, asks: usize| {
            let (text, outcomes) = halted(&schedule, processes, halts, asks);
            assert!(outcomes.iter().all(|outcome| *outcome == expected), "asking has changed something");
            // Columns have the width of what is in them.
            let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
            lines.collect::<Vec<_>>().join("\n") + "\n"
        };
        let text = ask(&[vec![0, 1, 2, 3]], 0, 0);
        assert!(
            text.starts_with(
                "where the ranks are:\nranks 0-3\nhost load_batch of step 5 waits for samples that are read\n"
            ),
            "{text}"
        );
        let queue = if strategy == Strategy::Serial { "compute" } else { "compute, priority 1" };
        let unique = format!("\n{queue} a.unique of step 5 waits for load_batch of step 5\n");
        assert!(text.contains(&unique), "{text}");
        assert!(!text.contains("not all have begun"), "all are alike: {text}");
        for (halts, asks, late, others) in [
            (1, 0, "rank 1", "ranks 0, 2, 3"),
            (1, 2, "rank 1", "ranks 0, 2, 3"),
            (0, 0, "rank 0", "ranks 1-3"),
        ] {
            let text = ask(&apart, halts, asks);
            for part in [
                format!(
                    "first operation that not all have begun is a.unique of step 5: {others} have, {late} not\n"
                ),
                format!("\n{late}\nhost load_batch of step 5 waits for samples that are read\n"),
                format!(
                    "\n{others}\nhost load_batch of step {next} waits for a free place for its batch, in use until "
                ),
                format!("a+1.all_to_all_ids of step 5 waits for what {late} sends\n"),
            ] {
                assert!(text.contains(&part), "{strategy:?}: {part}\n{text}");
            }
        }
    }
}

/// Before there are ranks, and when they have ended.
#[test]
fn who_asks_between_runs_is_told_so() {
    let said = Said::default();
    let watch = said.watch();
    watch.ask();
    assert_eq!(said.first(), "where the ranks are: there are none yet\n");
    let schedule = compile(&model("row_wise", "sgd(lr: 0.1)", 60, true), Strategy::Serial, 2, 1, 1);
    let mut session = session(&schedule, options().watch(Arc::clone(&watch)), None).expect("a session");
    session.run(&mut ()).expect("it trains");
    watch.explain();
    assert_eq!(said.all().len(), 1, "there is nothing to explain");
    std::thread::sleep(Duration::from_millis(1100));
    watch.ask();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(said.all()[1..], ["where the ranks are:\n  ranks 0, 1: between runs\n"]);
}
