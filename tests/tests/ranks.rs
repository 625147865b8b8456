//! The number of ranks changes nothing but rounding; two runs with one seed change nothing at all.

use fs_executor::{Options, Report, Session};
use fs_schedule::{Duration, Schedule};
use fs_tests::training::state;
use fs_tests::{compile_file, root};

/// An example cut to a batch that 1, 2, 3 and 4 ranks divide, and to a few steps.
fn example(name: &str, batch: u32, steps: u64) -> Schedule {
    let mut schedule = compile_file(&root(&format!("examples/{name}.fs")));
    schedule.settings.batch = batch;
    schedule.settings.duration = Duration::Steps(steps);
    // Small enough for a test; ids are drawn below the number of rows.
    for table in &mut schedule.tables {
        table.rows = table.rows.min(20_000);
    }
    schedule
}

/// Report and every table and parameter, as bits.
fn train(schedule: &Schedule, ranks: usize) -> (Report, Vec<Vec<u32>>) {
    let options = Options::default().ranks(ranks).evaluate(false);
    let mut session = Session::<f32>::new(schedule.clone(), options).unwrap_or_else(|e| panic!("{e}"));
    let report = session.run(&mut ()).unwrap_or_else(|e| panic!("{e}"));
    let state = state(&session).unwrap_or_else(|e| panic!("{e}"));
    (report, state)
}

fn same_losses(name: &str, batch: u32, steps: u64) {
    let schedule = example(name, batch, steps);
    let (one, _) = train(&schedule, 1);
    assert_eq!(one.loss.len() as u64, steps);
    for ranks in 2..=4 {
        let (many, _) = train(&schedule, ranks);
        for (step, (a, b)) in one.loss.iter().zip(&many.loss).enumerate() {
            assert!((a - b).abs() <= 1e-4 * a.abs(), "{name}, step {step}: {a} on 1 rank, {b} on {ranks}");
        }
    }
}

fn same_bits(name: &str, batch: u32, steps: u64) {
    let schedule = example(name, batch, steps);
    for ranks in [1, 3] {
        let (a, b) = (train(&schedule, ranks), train(&schedule, ranks));
        assert_eq!(a.0.loss, b.0.loss, "{name}: losses of two runs on {ranks} ranks");
        assert!(a.1 == b.1, "{name}: tables, parameters and states of two runs on {ranks} ranks");
    }
}

#[test]
fn movielens_losses_do_not_depend_on_ranks() {
    same_losses("movielens", 24, 12);
}

#[test]
fn ranking_losses_do_not_depend_on_ranks() {
    same_losses("ranking", 12, 4);
}

#[test]
fn dlrm_losses_do_not_depend_on_ranks() {
    same_losses("dlrm", 48, 8);
}

#[test]
fn movielens_is_deterministic() {
    same_bits("movielens", 24, 5);
}

#[test]
fn ranking_is_deterministic() {
    same_bits("ranking", 12, 3);
}

#[test]
fn dlrm_is_deterministic() {
    same_bits("dlrm", 48, 4);
}
