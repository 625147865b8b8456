//! Strategies change when things happen, and nothing else: the same bits as `serial` after training, for every
//! sharding, lookahead, number of microbatches and ranks, also when random operations are delayed by random times.

use std::sync::Arc;

use fs_compiler::{CompileOptions, Strategy, compile_with};
use fs_executor::data::{self, DataError, GlobalBatch, Source, Values};
use fs_executor::{Options, Session};
use fs_schedule::Schedule;
use fs_tests::models::{Features, models};
use proptest::prelude::*;

/// What must be equal: losses, then tables, parameters and optimizer states, all as bits.
#[derive(PartialEq, Debug)]
struct Outcome {
    losses: Vec<u64>,
    state: Vec<Vec<u32>>,
}

fn compile(text: &str, strategy: Strategy, ranks: u32, lookahead: u32, microbatches: u32) -> Schedule {
    let loaded = fs_dsl::check_text("model.fs", text);
    let Some(program) = &loaded.program else {
        panic!("{}", fs_dsl::render(&loaded.diagnostics, &loaded.sources, false))
    };
    let options = CompileOptions {
        lookahead: Some(lookahead),
        microbatches: Some(microbatches),
        ..CompileOptions::new(strategy, ranks)
    };
    match compile_with(program, &options) {
        Ok(compiled) => compiled.schedule,
        Err(e) => panic!(
            "{strategy:?}, {ranks} ranks, lookahead {lookahead}, {microbatches} microbatches: {e}\n{text}"
        ),
    }
}

fn train(schedule: &Schedule, ranks: usize, stress: Option<u64>) -> Outcome {
    let options = Options { ranks: Some(ranks), evaluate: false, stress, ..Options::default() };
    let mut session = Session::<f32>::new(schedule.clone(), options).unwrap_or_else(|e| panic!("{e}"));
    let report =
        session.run(&mut ()).unwrap_or_else(|e| panic!("{:?} on {ranks} ranks: {e}", schedule.strategy));
    let bits = |v: Vec<f32>| v.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
    let mut state: Vec<Vec<u32>> = (0..schedule.tables.len()).map(|t| bits(session.table(t))).collect();
    state.extend((0..schedule.parameters.len()).map(|p| bits(session.parameter(p))));
    state.extend((0..schedule.tables.len()).flat_map(|t| session.table_state(t).map(bits)));
    state.extend((0..schedule.parameters.len()).flat_map(|p| session.parameter_state(p).map(bits)));
    Outcome { losses: report.loss.iter().map(|l| l.to_bits()).collect(), state }
}

/// Two tables, one looked up twice, sequences that may be empty, fewer samples in the last batch of a pass than ranks.
fn model(sharding: &str, optimizer: &str, rows: u32, unique: bool) -> String {
    format!(
        "model small {{
          table a {{ rows {rows}  dim 8  init normal(0, 0.5)  optimizer {optimizer}  sharding {sharding} }}
          table b {{ rows 40  dim 8  init hash(scale: 0.3)  optimizer {optimizer}  sharding {sharding} }}
          input x: ids(a) {{ max 9 }}
          input y: ids(b) like x
          input z: ids(a) like x
          input click: label like x
          let h = lookup(x) + lookup(y) + scale(lookup(z), 0.5)
          let g = h + linear(layer_norm(h), 8)
          loss bce_with_logits(linear(g, 1), click, normalize: tokens)
        }}
        train {{ batch 12  steps 7  optimizer adam(lr: 1e-2)  unique_rows {unique} }}
        workload w {{ generate {{ lengths uniform(0, 7)  ids zipf(1.05)  labels hash  samples 31 }} }}"
    )
}

fn equal(text: &str, ranks: &[u32], lookaheads: &[u32], microbatches: &[u32], stress: &[Option<u64>]) {
    for ranks in ranks {
        for microbatches in microbatches {
            let serial = compile(text, Strategy::Serial, *ranks, 1, *microbatches);
            let expected = train(&serial, *ranks as usize, None);
            assert!(expected.losses.iter().all(|l| f64::from_bits(*l).is_finite()));
            let mut others = vec![(1, compile(text, Strategy::Prefetch, *ranks, 1, *microbatches))];
            others.extend(
                lookaheads.iter().map(|k| (*k, compile(text, Strategy::Pec, *ranks, *k, *microbatches))),
            );
            for (lookahead, schedule) in &others {
                for stress in stress {
                    let outcome = train(schedule, *ranks as usize, *stress);
                    assert!(
                        outcome == expected,
                        "{:?}, {ranks} ranks, lookahead {lookahead}, {microbatches} microbatches, stress {stress:?}: \
                         losses {} equal, states {:?} differ\n{text}",
                        schedule.strategy,
                        if outcome.losses == expected.losses { "are" } else { "are not" },
                        (0..expected.state.len())
                            .filter(|i| outcome.state[*i] != expected.state[*i])
                            .collect::<Vec<_>>(),
                    );
                }
            }
        }
    }
}

#[test]
fn row_wise() {
    equal(
        &model("row_wise", "rowwise_adagrad(lr: 0.05)", 60, true),
        &[1, 2, 3, 4],
        &[1, 2, 3],
        &[1],
        &[None],
    );
}

#[test]
fn one_row_per_occurrence() {
    equal(&model("row_wise", "adam(lr: 0.05)", 500, false), &[3], &[1, 3], &[1, 2], &[None]);
}

#[test]
fn table_wise() {
    equal(&model("table_wise", "adagrad(lr: 0.05)", 60, true), &[1, 3], &[1, 2], &[1], &[None]);
}

#[test]
fn column_wise() {
    equal(&model("column_wise", "adam(lr: 0.05)", 60, true), &[2, 4], &[1, 2], &[1], &[None]);
}

#[test]
fn data_parallel() {
    equal(&model("data_parallel", "sgd(lr: 0.1)", 60, true), &[1, 3], &[1, 2], &[1], &[None]);
}

#[test]
fn microbatches() {
    for sharding in ["row_wise", "table_wise", "column_wise", "data_parallel"] {
        equal(&model(sharding, "adagrad(lr: 0.05)", 60, true), &[2], &[1, 3], &[2, 4], &[None]);
    }
    // Replicas learn the last use by any rank from each other.
    equal(&model("data_parallel", "sgd(lr: 0.1)", 20, true), &[3, 4], &[1, 2], &[3], &[None]);
}

#[test]
fn rows_that_never_and_always_overlap() {
    for rows in [1, 1_000_000] {
        equal(&model("row_wise", "rowwise_adagrad(lr: 0.05)", rows, true), &[3], &[1, 2], &[1], &[None]);
    }
}

#[test]
fn delayed_operations() {
    for sharding in ["row_wise", "column_wise", "data_parallel"] {
        let text = model(sharding, "adagrad(lr: 0.05)", 60, true);
        equal(&text, &[3], &[1, 2], &[1, 2], &[Some(1), Some(2), Some(3)]);
    }
}

/// All shardings start from the same tables and add up gradients alike.
#[test]
fn shardings_give_the_same_bits() {
    let of = |sharding: &str| {
        let schedule = compile(&model(sharding, "adagrad(lr: 0.05)", 60, true), Strategy::Pec, 3, 1, 1);
        train(&schedule, 3, None)
    };
    let expected = of("row_wise");
    for sharding in ["table_wise", "column_wise", "data_parallel"] {
        assert!(of(sharding) == expected, "{sharding}");
    }
}

/// Microbatches add up the same gradients in another order.
/// Owners sum occurrences in the order in which unique rows are summed before they are sent.
#[test]
fn occurrences_sum_like_unique_rows() {
    for sharding in ["row_wise", "table_wise", "data_parallel"] {
        let text = |unique| model(sharding, "rowwise_adagrad(lr: 0.05)", 20, unique);
        for ranks in [1, 2, 3] {
            let train =
                |unique| train(&compile(&text(unique), Strategy::Pec, ranks, 1, 1), ranks as usize, None);
            assert!(train(true) == train(false), "{sharding}, {ranks} ranks");
        }
    }
}

#[test]
fn microbatches_agree_with_whole_batches() {
    let text = model("row_wise", "adagrad(lr: 0.05)", 60, true);
    let losses = |m| train(&compile(&text, Strategy::Pec, 2, 1, m), 2, None).losses;
    let expected = losses(1);
    for m in [2, 3, 4] {
        for (a, b) in losses(m).iter().zip(&expected) {
            let (a, b) = (f64::from_bits(*a), f64::from_bits(*b));
            assert!((a - b).abs() <= 1e-5 * b.abs(), "{m} microbatches: {a}, whole {b}");
        }
    }
}

/// Data that goes wrong in its fourth batch.
struct Broken(Box<dyn Source>, fn(&mut GlobalBatch));

impl Source for Broken {
    fn describe(&self) -> String {
        "broken data".into()
    }
    fn epoch_steps(&self) -> Option<u64> {
        None
    }
    fn fill(&mut self, step: u64, batch: &mut GlobalBatch) -> Result<(), DataError> {
        self.0.fill(step, batch)?;
        if step == 3 {
            self.1(batch);
        }
        Ok(())
    }
}

/// With several batches in flight on several engines, a failure still ends everything, with one error.
#[test]
fn failures_end_all_threads() {
    let text = model("row_wise", "adagrad(lr: 0.05)", 60, true);
    for microbatches in [1, 2] {
        let schedule = Arc::new(compile(&text, Strategy::Pec, 3, 2, microbatches));
        let run = |harm: fn(&mut GlobalBatch), stress| {
            let source = Broken(data::open(&schedule, None, None, 5).unwrap(), harm);
            let options = Options { ranks: Some(3), evaluate: false, stress, ..Options::default() };
            let session = Session::<f32>::with_source(Arc::clone(&schedule), options, Box::new(source));
            session.unwrap().run(&mut ()).unwrap_err().to_string()
        };
        for stress in [None, Some(7)] {
            let said = run(
                |batch| {
                    let Values::Ids(ids) = &mut batch.inputs[0] else { return };
                    ids[0] = 999_999;
                },
                stress,
            );
            let expected = "id 999999 is out of range for table `a` with 60 rows";
            assert!(said.starts_with("rank 0 failed in `a.unique`: ") && said.ends_with(expected), "{said}");
            // Offsets that fall make the last rank panic.
            let said = run(|batch| *batch.offsets[0].last_mut().unwrap() = 0, stress);
            assert!(said.starts_with("rank 2 failed in `load_batch`: "), "{said}");
            assert_eq!(run(|_| panic!("out of paper"), stress), "reading data failed: out of paper");
        }
    }
}

/// `cargo test -p fs-tests --test equality -- --ignored`: a few minutes.
#[test]
#[ignore = "takes minutes"]
fn a_thousand_delayed_runs() {
    let seeds: Vec<Option<u64>> = (1..=32).map(Some).collect();
    for sharding in ["row_wise", "table_wise", "column_wise", "data_parallel"] {
        equal(&model(sharding, "adagrad(lr: 0.05)", 60, true), &[2, 3], &[1, 3], &[1, 2], &seeds);
    }
}

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|c| c.parse().ok()).unwrap_or(24)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_models(
        model in models(Features { shardings: true, microbatches: true }),
        ranks in prop::sample::select(&[1u32, 2, 3, 4, 7][..]),
        lookahead in 1..4u32,
        stress in prop::option::of(1..1000u64),
    ) {
        let text = model.with_lookahead(lookahead).text();
        let loaded = fs_dsl::check_text("random.fs", &text);
        let program = loaded.program.expect("a random model checks");
        let outcome = |strategy, stress| {
            let compiled = compile_with(&program, &CompileOptions::new(strategy, ranks));
            let mut schedule = compiled.unwrap_or_else(|e| panic!("{strategy:?}: {e}")).schedule;
            // Ranks share a batch evenly.
            schedule.settings.batch *= ranks;
            train(&schedule, ranks as usize, stress)
        };
        let expected = outcome(Strategy::Serial, None);
        for strategy in [Strategy::Prefetch, Strategy::Pec] {
            prop_assert!(outcome(strategy, stress) == expected, "{:?} gives other bits than serial", strategy);
        }
    }
}
