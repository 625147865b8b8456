//! Engines: who goes first, where time goes, and how everything ends when something breaks.

mod common;

use common::{Build, empty, gradient, parameter, ranking};
use fs_executor::transport::link::EmulatedLink;
use fs_executor::{Account, Observer, Options, Record, Session, StepEvent};
use fs_schedule::{
    Action, Data, Dep, Engine, IdDistribution, LabelDistribution, LengthDistribution, Schedule,
};

/// Bytes a second, and what a message takes to arrive.
const LINK: EmulatedLink = EmulatedLink { bandwidth: 2e7, latency: 1e-3 };
/// Values of the large gradient.
const LARGE: u32 = 100_000;
/// The half of it that the first round carries to the other rank, in nanoseconds.
const ROUND: u64 = (LARGE as u64 / 2 * 4) * 1_000_000_000 / 20_000_000;

/// A large all-reduce and an urgent one on the same engine; the urgent one is ready once a third, on another engine,
/// has crossed the link.
fn two_transfers(chunk: Option<u64>) -> Schedule {
    let mut s = empty(4, 10, 4);
    s.data = Some(Data::Generate {
        lengths: LengthDistribution::Fixed(2),
        ids: IdDistribution::Zipf(1.0),
        labels: LabelDistribution::Hash,
        samples: None,
    });
    s.ranks = 2;
    s.parameters = [LARGE, 4, 4].iter().map(|n| parameter("p", 1, *n, 1)).collect();
    let mut b = Build::default();
    b.op("load", Action::LoadBatch, &[], &[]);
    for (i, name) in ["large", "urgent", "before"].into_iter().enumerate() {
        let g = gradient(i as u32);
        b.op(name, Action::AllReduce, &[g], &[g]);
    }
    let mut program = b.finish();
    let dep = |op, distance| Dep { op, distance };
    program.in_flight = 1;
    program.ops[0].deps = vec![dep(1, 1), dep(2, 1)];
    program.ops[1].deps = vec![dep(0, 0)];
    program.ops[1].chunk = chunk;
    program.ops[2].deps = vec![dep(3, 0)];
    program.ops[2].priority = 1;
    program.ops[3].deps = vec![dep(0, 0)];
    program.ops[3].engine = Engine::NicSend;
    s.train = program;
    s
}

/// The large and the urgent transfer of every step and rank in which the urgent one came later.
fn overtaking(chunk: Option<u64>) -> Vec<(Record, Record)> {
    let steps = 8;
    let options = Options::default().ranks(2).link(LINK).steps(steps).record(0..steps);
    let mut session = Session::<f32>::new(two_transfers(chunk), options).unwrap();
    session.run(&mut ()).unwrap();
    let mut pairs = Vec::new();
    for records in session.take_records() {
        for step in 0..steps {
            let find = |op| *records.iter().find(|r| r.op == op && r.batch == step).unwrap();
            pairs.push((find(1), find(2)));
        }
    }
    assert_eq!(pairs.len(), 16);
    pairs.retain(|(large, urgent)| urgent.ready > large.start);
    pairs
}

/// An urgent transfer passes a chunked one. How much the link has carried before it follows from the link alone,
/// whatever the machine does meanwhile.
#[test]
fn urgent_transfers_pass_chunks() {
    let passed = |(large, urgent): &(Record, Record)| urgent.end < large.start + ROUND;
    let with = overtaking(Some(4096));
    assert!(with.iter().any(passed), "{with:?}");
    let without = overtaking(None);
    assert!(!without.is_empty());
    assert!(!without.iter().any(passed), "without chunks the link is taken: {without:?}");
}

/// Whatever panics, on whichever rank and engine: one error that names it, and all threads end.
#[test]
fn a_panic_anywhere_ends_the_run_with_one_error() {
    let schedule = ranking(12, true);
    for (op, step) in schedule.train.ops.iter().zip([0, 1, 4].into_iter().cycle()) {
        for rank in [0, 2] {
            let panic_at = Some((rank, op.name.clone(), step));
            let options = Options::default().ranks(3).panic_at(panic_at);
            let mut session = Session::<f32>::new(schedule.clone(), options).unwrap();
            let said = session.run(&mut ()).unwrap_err().to_string();
            assert_eq!(said, format!("rank {rank} failed in `{}`: told to panic", op.name));
        }
    }
}

#[test]
fn a_link_through_which_nothing_gets_is_refused() {
    for link in [
        EmulatedLink { bandwidth: 0.0, latency: 0.0 },
        EmulatedLink { bandwidth: f64::NAN, latency: 0.0 },
        EmulatedLink { bandwidth: f64::INFINITY, latency: 0.0 },
        EmulatedLink { bandwidth: 1e6, latency: -1.0 },
    ] {
        let options = Options::default().ranks(2).link(link);
        let said = Session::<f32>::new(ranking(12, true), options).err().unwrap().to_string();
        assert!(said.contains("nothing gets through a link"), "{said}");
    }
}

/// What compute did in each step, per rank.
#[derive(Default)]
struct Accounts(Vec<Vec<Account>>);

impl Observer for Accounts {
    fn step(&mut self, event: &StepEvent) {
        self.0.push(event.accounts.clone());
    }
}

/// Collectives one after the other. Of two ranks the one that begins first waits for the other and then for the link,
/// the other one so much less: together they wait for the link twice, whatever the machine does meanwhile.
#[test]
fn exposed_time_is_what_the_link_takes() {
    const LATENCY: u64 = 4_000_000;
    let link = Some(EmulatedLink { bandwidth: 1e9, latency: LATENCY as f64 * 1e-9 });
    let options = Options::default().ranks(2).link(link);
    let mut session = Session::<f32>::new(ranking(12, true), options).unwrap();
    let mut accounts = Accounts::default();
    let report = session.run(&mut accounts).unwrap();
    assert_eq!(accounts.0.len(), 6);
    for step in &accounts.0 {
        // Ids, rows, gradients, and the two rounds of the all-reduce.
        let waited: u64 = step.iter().map(|a| a.exposed + a.straggler).sum();
        assert!(waited >= 2 * 5 * LATENCY, "{step:?}");
        for a in step {
            assert_eq!(a.compute + a.exposed + a.straggler + a.host + a.other, a.time);
        }
    }
    // By collective it is the same time.
    let by_op: f64 = report.accounting.exposed.iter().map(|e| e.ms).sum();
    let all: u64 = accounts.0.iter().flatten().map(|a| a.exposed).sum();
    assert!((by_op * 12.0 - all as f64 * 1e-6).abs() < 1e-6 * by_op, "{by_op} ms a step, {all} ns in all");
}
