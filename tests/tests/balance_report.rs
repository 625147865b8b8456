//! What a run says of balance, worked out again by other means: shares of waiting from the lengths of its batches, bytes from
//! what a transport has carried.

use std::sync::Arc;

use fs_compiler::sched::explain::explain;
use fs_compiler::{At, Strategy};
use fs_executor::report::{Balance, Meeting};
use fs_executor::{Options, Report, Session, data};
use fs_schedule::{Action, Schedule};
use fs_tests::training::compile_at;

const RANKS: u32 = 3;

fn schedule(text: &str, strategy: Strategy, microbatches: u32, at: Option<At>) -> Schedule {
    compile_at(text, strategy, at, (RANKS, 1, microbatches))
}

fn run(schedule: &Schedule) -> Report {
    let options = Options::default().evaluate(false);
    let mut session = Session::<f32>::new(schedule.clone(), options).unwrap_or_else(|e| panic!("{e}"));
    session.run(&mut ()).unwrap_or_else(|e| panic!("{e}"))
}

fn balance(report: &Report) -> &Balance {
    report.balance.as_ref().expect("a balance")
}

/// Sequences that are looked up, pooled and sampled, features and labels.
fn model(balance: &str, batch: u32, lengths: &str) -> String {
    format!(
        "model all {{
          table a {{ rows 90  dim 8  init normal(0, 0.5)  optimizer adagrad(lr: 0.05)  sharding row_wise }}
          table b {{ rows 40  dim 4  init normal(0, 0.5)  optimizer sgd(lr: 0.05)  sharding table_wise }}
          input x: ids(a) {{ max 40 }}
          input y: ids(b) like x
          input following: next(x)
          let g = linear(positional(lookup(x)), 8) + linear(lookup(y), 8)
          loss sampled_softmax(g, a, following, negatives: 5, normalize: tokens)
        }}
        train {{ batch {batch}  steps 40  optimizer adam(lr: 1e-2)  balance {balance} }}
        workload w {{ generate {{ lengths {lengths}  ids zipf(1.05)  labels bernoulli(0.5) }} }}"
    )
}

/// Shares of waiting of samples that stay, by batch and by microbatch.
fn at_home(schedule: &Schedule, steps: u64) -> [f64; 2] {
    let cost = &schedule.settings.balance.as_ref().expect("a balance").cost;
    let schedule = Arc::new(schedule.clone());
    let mut source =
        data::open(&schedule, None, None, schedule.settings.seed).unwrap_or_else(|e| panic!("{e}"));
    let (ranks, parts) = (RANKS as usize, schedule.settings.microbatches as usize);
    let (mut mean, mut most) = (0.0, [0.0; 2]);
    let mut batch = data::GlobalBatch::default();
    for step in 0..steps {
        source.fill(step, &mut batch).unwrap_or_else(|e| panic!("{e}"));
        let costs: Vec<f64> = (0..batch.samples)
            .map(|sample| cost.of(batch.offsets.iter().map(|o| (o[sample + 1] - o[sample]) as u32)))
            .collect();
        mean += costs.iter().sum::<f64>() / ranks as f64;
        for (most, parts) in most.iter_mut().zip([1, parts]) {
            let part = |rank: usize, m: usize| {
                let each = costs.len() / ranks;
                let cut = |m: usize| rank * each + m * each / parts;
                costs[cut(m)..cut(m + 1)].iter().sum::<f64>()
            };
            *most +=
                (0..parts).map(|m| (0..ranks).map(|rank| part(rank, m)).fold(0.0, f64::max)).sum::<f64>();
        }
    }
    most.map(|most| 1.0 - mean / most)
}

/// In the report, in the summary's unit and in `fsc explain`: where transfers stop compute, ranks wait in every microbatch.
#[test]
fn shares_are_those_of_what_ranks_wait_after() {
    let text = model("on", 36, "lognormal(mean: 12, sigma: 1, max: 40)");
    for (strategy, microbatches, meeting) in [
        (Strategy::Serial, 1, Meeting::Batch),
        (Strategy::Serial, 4, Meeting::Microbatch),
        (Strategy::Pec, 4, Meeting::Batch),
    ] {
        let s = schedule(&text, strategy, microbatches, None);
        let report = run(&s);
        let b = balance(&report);
        assert_eq!((b.meeting, b.microbatches), (meeting, microbatches));
        let [batch, parts] = at_home(&s, 40);
        assert!((b.waiting_at_home - batch).abs() < 1e-9, "{b:?}: {batch} by lengths");
        assert!((b.waiting_in_microbatches_at_home - parts).abs() < 1e-9, "{b:?}: {parts} by lengths");
        assert_eq!(parts > batch + 0.01, microbatches > 1, "{b:?}");
        assert!(
            b.waiting < b.waiting_at_home && b.waiting_in_microbatches < b.waiting_in_microbatches_at_home
        );
        // What was expected was drawn from the same law.
        let expected = explain(&s).and_then(|e| e.balance).expect("lengths differ");
        let share = |most: f64| 1.0 - 1.0 / most;
        let (planned, home) = match meeting {
            Meeting::Batch => (b.waiting, b.waiting_at_home),
            Meeting::Microbatch => (b.waiting_in_microbatches, b.waiting_in_microbatches_at_home),
        };
        assert!((share(expected.at_home) - home).abs() < 0.04, "{expected:?} and {b:?}");
        assert!((share(expected.planned) - planned).abs() < 0.02, "{expected:?} and {b:?}");
        // What no plan avoids is the same number in both, and below both.
        assert!((share(expected.bound) - b.waiting_at_least).abs() < 0.02, "{expected:?} and {b:?}");
        assert!(b.waiting_at_least <= b.waiting.min(b.waiting_in_microbatches) + 1e-9, "{b:?}");
        let said = explain(&s).and_then(|e| e.text(None)).expect("an explanation");
        assert_eq!(said.contains("in each of 4 microbatches"), meeting == Meeting::Microbatch, "{said}");
    }
}

/// What was sent is what moving was said to take; what asking on behalf of others adds is what a run sends in all beyond
/// one in which every rank asks for itself.
#[test]
fn bytes_are_those_that_were_sent() {
    for (microbatches, unique) in [(1, "on"), (2, "on"), (1, "off")] {
        let text = model("cost(c0: 1, c1: 1, c2: 0)", 12, "uniform(0, 9)")
            .replace("steps 40", &format!("steps 7  unique_rows {unique}"));
        let runs = At::ALL.map(|at| {
            let s = schedule(&text, Strategy::Pec, microbatches, Some(at));
            (run(&s), s)
        });
        let all = |report: &Report| {
            report.ops.iter().map(|op| op.sent_bytes * f64::from(RANKS) / op.count.max(1) as f64).sum::<f64>()
        };
        let ids = all(&runs[0].0);
        for ((report, s), at) in runs.iter().zip(At::ALL) {
            let (b, what) = (balance(report), format!("{at}, {microbatches} microbatches, unique {unique}"));
            assert!(b.moved_samples > 0.0, "{what}");
            assert!((b.moved_bytes - b.asked_bytes - b.planned_bytes).abs() < 1e-6, "{what}: {b:?}");
            let expected = if at == At::Folded { all(report) - ids } else { 0.0 };
            assert!((b.asked_bytes - expected).abs() < 1e-6, "{what}: {b:?}, {expected} more sent");
            assert_eq!(expected > 0.0, at == At::Folded, "{what}");
            assert!(
                !b.asked_bytes.is_sign_negative() && !report.to_json().contains("-0.0,"),
                "{what}: {b:?}"
            );
            // Four bytes for each group of lengths of each sample, to everyone else.
            let groups = s.lengths.len() as f64;
            assert!(
                (b.lengths_bytes - 4.0 * groups * 12.0 * f64::from(RANKS - 1)).abs() < 1e-6,
                "{what}: {b:?}"
            );
            let there = s.train.ops.iter().any(|op| matches!(op.action, Action::DispatchRows { .. }));
            assert_eq!(there, at == At::Rows, "{what}");
        }
    }
}
