//! Executing schedules in random legal orders: nothing goes wrong in valid ones, something does in each that lacks
//! order, so the verifier's rules of order are both enough and needed.

use std::collections::BTreeSet;

use fs_schedule::{Schedule, Strategy};
use fs_tests::interpreter::{Order, Reference, Workload, reference, run};
use fs_tests::mutations::{bases, mutations};
use fs_tests::schedules::{Recipe, build};

/// Orders for a schedule: without preference, and with a few operations held back, on all ranks or one.
fn orders(s: &Schedule, count: u64, seed: u64) -> impl Iterator<Item = Order> {
    let n = s.train.ops.len() as u64;
    let mut state = seed;
    let mut next = move |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    (0..count).map(move |i| {
        let held = i % 4;
        let slow = (0..held).map(|_| {
            let rank = (next(2) == 0).then(|| next(2) as u32);
            (rank, next(n) as usize)
        });
        Order { slow: slow.collect(), seed: seed ^ i, skipped_are_free: false }
    })
}

fn workload(seed: u64) -> Workload {
    Workload { seed, batches: 7, ranks: 2 }
}

/// No order of a valid schedule gives anything but the reference's results.
#[test]
fn valid_schedules_are_exact_in_every_order() {
    let mut runs = 0;
    for (n, (name, plan)) in (0..).zip(bases()) {
        let s = build(&plan);
        for seed in 0..3 {
            let work = workload(31 * n + seed);
            let want = reference(&s, &work).unwrap_or_else(|e| panic!("{name}: {e}"));
            for order in orders(&s, 12, 1000 * n + seed) {
                if let Err(e) = run(&s, &work, &want, &order) {
                    panic!("{name}: {e} in {order:?}");
                }
                runs += 1;
            }
        }
    }
    assert!(runs > 3000, "{runs}");
}

/// Splitting rows by reuse distance, moving work between steps and fusing transfers end in the bits of the serial
/// schedule.
#[test]
fn strategies_end_in_the_serial_state() {
    for (n, (name, plan)) in (0..).zip(bases()) {
        let serial = Recipe { strategy: Strategy::Serial, lookahead: None, fused: false, ..plan.clone() };
        let work = workload(n);
        let states =
            |p: &Recipe| reference(&build(p), &work).unwrap_or_else(|e| panic!("{name}: {e}")).states;
        assert_eq!(states(&plan), states(&serial), "{name}");
    }
}

/// Looks for an order that goes wrong: each operation held back in turn, on all ranks and on one.
fn fault(s: &Schedule, work: &Workload, want: &Reference) -> Option<String> {
    for op in 0..s.train.ops.len() {
        for rank in [None, Some(0)] {
            let order =
                Order { slow: BTreeSet::from([(rank, op)]), seed: op as u64, skipped_are_free: false };
            if let Err(e) = run(s, work, want, &order) {
                return Some(e);
            }
        }
    }
    orders(s, 50, 7).find_map(|order| run(s, work, want, &order).err())
}

/// Each kind of missing order shows in some execution.
#[test]
fn missing_order_shows() {
    let bases: Vec<_> = bases().into_iter().map(|(name, plan)| (name, build(&plan))).collect();
    let mut failures = Vec::new();
    for (k, m) in mutations().enumerate().filter(|(_, m)| m.order) {
        let mut tried = 0;
        // Different schedules for different kinds, a few of each.
        for (name, good) in bases.iter().cycle().skip(7 * k).step_by(11).take(bases.len()) {
            let mut bad = good.clone();
            if (m.corrupt)(&mut bad).is_none() {
                continue;
            }
            let found = (0..6).find_map(|seed| {
                let work = workload(100 + seed);
                let want = reference(good, &work).unwrap_or_else(|e| panic!("{name}: {e}"));
                fault(&bad, &work, &want)
            });
            if found.is_none() {
                failures.push(format!("{name}: {}", m.name));
            }
            tried += 1;
            if tried == 4 {
                break;
            }
        }
        assert!(tried > 0, "{}: no schedule has a place for it", m.name);
    }
    assert_eq!(failures, Vec::<String>::new());
}

/// At the ends of a run, instances whose batch does not exist must keep their turn: chains of order pass through them.
/// Were waits for them free, schedules that are right in the middle would go wrong at the start or the end.
#[test]
fn skipped_instances_keep_their_turn() {
    let plan = Recipe::new(Strategy::Pec, Some(1), 1);
    let s = build(&plan);
    let work = workload(3);
    let want = reference(&s, &work).expect("a valid schedule");
    let wrong = (0..s.train.ops.len()).any(|op| {
        let slow = BTreeSet::from([(None, op)]);
        run(&s, &work, &want, &Order { slow, seed: op as u64, skipped_are_free: true }).is_err()
    });
    assert!(wrong, "dropping waits for skipped instances loses order");
}
