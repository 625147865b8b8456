//! What running an operation costs beside its kernel, and what handing over to another engine's thread costs.
//!
//! `cargo bench -p fs-executor --bench dispatch`. Schedules of many operations that do next to nothing run on one
//! rank; the step's time divided by their number is the time of one. Beside them stand the floors: an uncontended
//! atomic addition with one reading of the clock, and waking a parked thread.
#![allow(clippy::print_stdout, missing_docs, reason = "a benchmark prints")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use common::{Build, empty};
use fs_executor::fit::median;
use fs_executor::transport::link::EmulatedLink;
use fs_executor::{Options, Session};
use fs_schedule::{
    Action, Data, Dep, Element, Engine, IdDistribution, LabelDistribution, LengthDistribution, Schedule,
};

const OPS: usize = 2000;
const STEPS: u64 = 200;

/// A program of `OPS` tiny operations after the loading of a batch, which `place` puts onto engines and gives
/// dependencies.
fn tiny(place: impl Fn(usize) -> (Engine, Vec<Dep>)) -> Schedule {
    let mut s = empty(4, 10, 4);
    s.data = Some(Data::Generate {
        lengths: LengthDistribution::Fixed(2),
        ids: IdDistribution::Zipf(1.0),
        labels: LabelDistribution::Hash,
        samples: None,
    });
    s.inputs = vec![fs_schedule::Input {
        name: "items".into(),
        kind: fs_schedule::InputKind::Ids { table: 0, lengths: 0 },
    }];
    let mut b = Build::default();
    b.op("load", Action::LoadBatch, &[], &[]);
    let buffers: Vec<_> = (0..8).map(|i| b.buffer(&format!("b{i}"), Element::Real, "1", 1)).collect();
    for i in 0..OPS {
        b.op(&format!("zero{i}"), Action::Zero, &[], &[buffers[i % 8]]);
    }
    let mut program = b.finish();
    program.in_flight = 1;
    program.ops[0].deps = vec![Dep { op: OPS as u32, distance: 1 }];
    for i in 0..OPS {
        let (engine, deps) = place(i);
        let op = &mut program.ops[i + 1];
        (op.engine, op.deps) = (engine, deps);
    }
    s.train = program;
    s
}

/// Median time of an operation, in nanoseconds.
fn per_op(schedule: &Schedule) -> f64 {
    let options = Options::default().ranks(1).steps(STEPS).evaluate(false);
    let mut session = Session::<f32>::new(schedule.clone(), options).expect("a session");
    let report = session.run(&mut ()).expect("a run");
    report.step_ms.median * 1e6 / OPS as f64
}

/// Median of 101 times of `n` turns, per turn, in nanoseconds.
fn time(n: u32, mut turn: impl FnMut()) -> f64 {
    let times = (0..101).map(|_| {
        let began = Instant::now();
        (0..n).for_each(|_| turn());
        began.elapsed().as_nanos() as f64 / f64::from(n)
    });
    median(times.collect())
}

/// One way of handing a token to a parked thread and back.
fn park() -> f64 {
    let (token, turns) = (AtomicU64::new(0), 20_000);
    let main = thread::current();
    thread::scope(|scope| {
        let token = &token;
        let other = scope.spawn(move || {
            for i in 0..turns {
                while token.load(Ordering::Acquire) != 2 * i + 1 {
                    thread::park();
                }
                token.store(2 * i + 2, Ordering::Release);
                main.unpark();
            }
        });
        let began = Instant::now();
        for i in 0..turns {
            token.store(2 * i + 1, Ordering::Release);
            other.thread().unpark();
            while token.load(Ordering::Acquire) != 2 * i + 2 {
                thread::park();
            }
        }
        began.elapsed().as_nanos() as f64 / (2 * turns) as f64
    })
}

/// Processor time of this process so far, in seconds.
fn processor() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).unwrap_or(f64::NAN);
    (ticks(11) + ticks(12)) / 100.0
}

fn main() {
    let atomic = AtomicU64::new(0);
    let add = time(10_000, || {
        black_box(atomic.fetch_add(1, Ordering::SeqCst));
    });
    let clock = time(10_000, || {
        black_box(Instant::now());
    });
    let dep = |i: usize| Dep { op: i as u32, distance: 0 };
    let same = per_op(&tiny(|_| (Engine::Compute, Vec::new())));
    let chain = per_op(&tiny(|i| (Engine::Compute, vec![dep(i), dep(i.saturating_sub(1))])));
    let both = |i: usize| if i.is_multiple_of(2) { Engine::Compute } else { Engine::CopyOut };
    let turns = per_op(&tiny(|i| (both(i), vec![dep(i)])));
    let free = per_op(&tiny(|i| (both(i), if i + 1 == OPS { vec![dep(i)] } else { Vec::new() })));
    println!("an operation on one engine, nothing to wait for       {same:8.0} ns");
    println!("the same with two dependencies, done                  {chain:8.0} ns");
    println!(
        "floor: atomic addition + reading of the clock         {:8.0} ns ({add:.1} + {clock:.1})",
        add + clock
    );
    println!("two engines side by side, per operation               {free:8.0} ns");
    println!("two engines in turns, per operation                   {turns:8.0} ns");
    println!("floor: waking a parked thread, one way                {:8.0} ns", park());

    // Idle: transfers over a link with a great latency.
    for latency in [1e-4, 1e-3, 1e-2] {
        let link = Some(EmulatedLink { bandwidth: 1e9, latency });
        let steps = (0.2 / latency) as u64;
        let options = Options::default().ranks(2).link(link).steps(steps).evaluate(false);
        let mut session = Session::<f32>::new(common::ranking(12, true), options).expect("a session");
        let (began, worked) = (Instant::now(), processor());
        session.run(&mut ()).expect("a run");
        let (elapsed, worked) = (began.elapsed().as_secs_f64(), processor() - worked);
        println!(
            "link latency {:6.1} ms: processors busy for {:5.2} of {elapsed:.2} s",
            1e3 * latency,
            worked
        );
    }
}
