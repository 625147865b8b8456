//! Strategies change when things happen, and nothing else: the same bits as `serial` after training, for every
//! sharding, lookahead, number of microbatches and ranks, also when random operations are delayed by random times.

use std::sync::Arc;

use fs_compiler::distribution::TableOptions;
use fs_compiler::{At, CompileOptions, Strategy, compile_with};
use fs_dsl::checked::DType;
use fs_executor::data::{self, DataError, GlobalBatch, Source, Values};
use fs_executor::{Observer, Options, Record, Session, StepEvent};
use fs_schedule::{Engine, Schedule};
use fs_tests::models::{Features, models, windows};
use fs_tests::training::{self, Outcome, compile, compile_at, model};
use proptest::prelude::*;

fn train(schedule: &Schedule, ranks: usize, stress: Option<u64>) -> Outcome {
    train_on(&Arc::new(schedule.clone()), ranks, stress, None)
}

/// The same on other data than the schedule's.
fn train_on(
    schedule: &Arc<Schedule>,
    ranks: usize,
    stress: Option<u64>,
    source: Option<Box<dyn Source>>,
) -> Outcome {
    trained(schedule, ranks, stress, source).0
}

/// The same, and whether samples moved.
fn trained(
    schedule: &Arc<Schedule>,
    ranks: usize,
    stress: Option<u64>,
    source: Option<Box<dyn Source>>,
) -> (Outcome, bool) {
    let options = Options::default().ranks(ranks).evaluate(false).stress(stress);
    let session = match source {
        None => Session::<f32>::new(Schedule::clone(schedule), options),
        Some(source) => Session::<f32>::with_source(Arc::clone(schedule), options, source),
    };
    let mut session = session.unwrap_or_else(|e| panic!("{e}"));
    let trained = training::train(&mut session, &mut ());
    let (outcome, report) =
        trained.unwrap_or_else(|e| panic!("{:?} on {ranks} ranks: {e}", schedule.strategy));
    (outcome, report.balance.is_some_and(|b| b.moved_samples > 0.0))
}

/// Of a schedule that gives samples to ranks, of which some must move.
fn train_moving(schedule: &Schedule, ranks: usize) -> Outcome {
    let (outcome, moved) = trained(&Arc::new(schedule.clone()), ranks, None, None);
    let wanted = schedule.settings.balance.is_some() && ranks > 1;
    assert_eq!(moved, wanted, "{:?} on {ranks} ranks: samples moved", schedule.strategy);
    outcome
}

fn equal(text: &str, ranks: &[u32], lookaheads: &[u32], microbatches: &[u32], stress: &[Option<u64>]) {
    for ranks in ranks {
        for microbatches in microbatches {
            let serial = compile(text, Strategy::Serial, *ranks, 1, *microbatches);
            let expected = train_moving(&serial, *ranks as usize);
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

/// Tables that are told apart differently, or not at all, that send occurrences, live elsewhere or travel alone: the
/// same bits as all alike, serially.
#[test]
fn choices_by_table() {
    let text = model("row_wise", "adagrad(lr: 0.05)", 60, true);
    let loaded = fs_dsl::check_text("model.fs", &text);
    let program = loaded.program.as_ref().expect("a program");
    let named = |a: &'static str, b: &'static str| [("a".to_owned(), a), ("b".to_owned(), b)];
    for microbatches in [1, 2] {
        let expected = train(&compile(&text, Strategy::Serial, 3, 1, microbatches), 3, None);
        for (lookahead, unique, sharding, groups) in [
            (("2", "none"), (true, true), ("row_wise", "row_wise"), (0, 1)),
            (("1", "3"), (true, false), ("row_wise", "data_parallel"), (0, 0)),
            (("none", "2"), (false, true), ("column_wise", "row_wise"), (1, 1)),
            (("2", "1"), (true, true), ("data_parallel", "table_wise"), (0, 0)),
        ] {
            let lookahead =
                named(lookahead.0, lookahead.1).map(|(t, k)| (t, k.parse().expect("a lookahead")));
            let tables = TableOptions::default()
                .lookahead(lookahead)
                .unique([("a".to_owned(), unique.0), ("b".to_owned(), unique.1)])
                .sharding(named(sharding.0, sharding.1).map(|(t, s)| (t, s.to_owned())))
                .groups([("a".to_owned(), groups.0), ("b".to_owned(), groups.1)]);
            let options =
                CompileOptions::new(Strategy::Pec, 3).microbatches(microbatches).tables(tables.clone());
            let schedule =
                compile_with(program, &options).unwrap_or_else(|e| panic!("{tables:?}: {e}")).schedule;
            let different =
                schedule.exchanges.iter().filter(|e| e.lookahead != schedule.exchanges[0].lookahead);
            assert!(different.count() > 0, "tables differ");
            assert!(train(&schedule, 3, None) == expected, "{tables:?}, {microbatches} microbatches");
        }
    }
}

/// Rows told apart by windows of several microbatches, by as many for all tables or not: the same bits, and as many classes as
/// windows make.
#[test]
fn windows_of_microbatches() {
    for (sharding, microbatches) in
        [("row_wise", 4), ("table_wise", 2), ("column_wise", 4), ("data_parallel", 4), ("row_wise", 6)]
    {
        let text = model(sharding, "adagrad(lr: 0.05)", 60, true);
        let expected = train(&compile(&text, Strategy::Serial, 2, 1, microbatches), 2, None);
        let loaded = fs_dsl::check_text("model.fs", &text);
        let program = loaded.program.as_ref().expect("a program");
        for (a, b, lookahead) in [(1, 1, 1), (2, 2, 2), (2, 1, 1), (1, microbatches, 3), (64, 2, 1)] {
            let named = TableOptions::default().windows([("a".to_owned(), a), ("b".to_owned(), b)]);
            let options = CompileOptions::new(Strategy::Pec, 2).microbatches(microbatches).tables(named);
            let options = options.lookahead(lookahead);
            let schedule = compile_with(program, &options).unwrap_or_else(|e| panic!("{e}")).schedule;
            for x in &schedule.exchanges {
                let wanted = if x.table == 0 { a } else { b };
                assert_eq!(x.windows, Some(wanted).filter(|n| *n < microbatches), "{sharding}, {a} and {b}");
            }
            for stress in [None, Some(7)] {
                let outcome = train(&schedule, 2, stress);
                assert!(
                    outcome == expected,
                    "{sharding}, {microbatches} microbatches, windows {a} and {b}, {stress:?}"
                );
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

/// Under one plan, whatever is planned: strategies, lookaheads and delays decide nothing.
#[test]
fn balanced_samples() {
    for (sharding, ranks, microbatches) in [
        ("row_wise", &[2, 3, 4][..], &[1, 2, 3][..]),
        ("row_wise(placement: hashed)", &[3], &[2]),
        ("table_wise", &[2, 4], &[1, 2]),
        ("column_wise", &[3], &[1, 2]),
        ("data_parallel", &[2, 4], &[1, 3]),
    ] {
        for balance in ["on", "cost(c0: 0, c1: 0, c2: 1)"] {
            let text = model(sharding, "adagrad(lr: 0.05)", 60, true);
            let text = text.replace("train {", &format!("train {{ balance {balance} "));
            assert!(compile(&text, Strategy::Pec, 2, 1, 1).settings.balance.is_some());
            equal(&text, ranks, &[1, 2], microbatches, &[None, Some(3)]);
        }
    }
    // The last batch of a pass has one sample for seven ranks.
    let text = model("row_wise", "adagrad(lr: 0.05)", 60, true).replace("batch 12", "balance on  batch 14");
    equal(&text.replace("samples 31", "samples 15"), &[7], &[1, 2], &[1, 2], &[None]);
}

/// Who reads samples asks for their rows in place of who works on them: the bits of a serial run in which ids move and
/// every rank asks for itself.
#[test]
fn rows_asked_for_on_behalf_of_others() {
    for (sharding, unique, ranks, parts) in [
        ("row_wise", true, &[1, 2, 4][..], &[1, 2, 3][..]),
        ("row_wise", false, &[3], &[1, 2]),
        ("row_wise(placement: hashed)", true, &[3], &[2]),
        ("row_wise(placement: planned)", true, &[3], &[1]),
        ("table_wise", true, &[2, 4], &[1, 2]),
        ("column_wise", true, &[3], &[1, 2]),
    ] {
        let text = model(sharding, "adagrad(lr: 0.05)", 60, unique);
        let text = text.replace("train {", "train { balance cost(c0: 0, c1: 0, c2: 1) ");
        for (ranks, parts) in ranks.iter().flat_map(|ranks| parts.iter().map(move |parts| (*ranks, *parts))) {
            let of = |strategy, at, lookahead| compile_at(&text, strategy, at, (ranks, lookahead, parts));
            let expected = train_moving(&of(Strategy::Serial, Some(At::Ids), 1), ranks as usize);
            for (strategy, lookahead, stress) in [
                (Strategy::Serial, 1, None),
                (Strategy::Prefetch, 1, Some(1)),
                (Strategy::Pec, 1, None),
                (Strategy::Pec, 2, Some(3)),
                (Strategy::Pec, 3, None),
            ] {
                let folded = of(strategy, Some(At::Folded), lookahead);
                assert_eq!(At::of(&folded), Some(At::Folded));
                let outcome = train(&folded, ranks as usize, stress);
                let what = format!("{strategy:?}, lookahead {lookahead}, {ranks} ranks, {parts} parts");
                assert!(outcome == expected, "{what}, {sharding}, unique: {unique}");
            }
        }
    }
    // The last batch of a pass has one sample for seven ranks.
    let text = model("row_wise", "adagrad(lr: 0.05)", 60, true).replace("batch 12", "balance on  batch 14");
    let text = text.replace("samples 31", "samples 15");
    let of = |at| train_moving(&compile_at(&text, Strategy::Pec, Some(at), (7, 1, 2)), 7);
    assert!(of(At::Folded) == of(At::Ids));
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

/// Microbatches add up the same gradients in another order: losses, tables, parameters and optimizer states agree to
/// rounding.
#[test]
fn microbatches_agree_with_whole_batches() {
    for (optimizer, dense) in [
        ("sgd(lr: 0.05)", "sgd(lr: 1e-2)"),
        ("adagrad(lr: 0.05)", "sgd(lr: 1e-2)"),
        ("rowwise_adagrad(lr: 0.05)", "adam(lr: 1e-2)"),
        ("adam(lr: 0.05)", "adam(lr: 1e-2)"),
    ] {
        let text = model("row_wise", optimizer, 60, true).replace("adam(lr: 1e-2)", dense);
        for strategy in [Strategy::Serial, Strategy::Prefetch, Strategy::Pec] {
            let of = |m| train(&compile(&text, strategy, 2, 1, m), 2, None);
            let whole = of(1);
            for m in [2, 3, 4] {
                let parts = of(m);
                let name = format!("{strategy:?}, {optimizer}, {dense}, {m} microbatches");
                for (a, b) in parts.losses.iter().zip(&whole.losses) {
                    let (a, b) = (f64::from_bits(*a), f64::from_bits(*b));
                    assert!((a - b).abs() <= 1e-5 * b.abs(), "{name}: loss {a}, whole {b}");
                }
                for (i, (a, b)) in parts.state.iter().zip(&whole.state).enumerate() {
                    let largest = b.iter().map(|b| f32::from_bits(*b).abs()).fold(0.0, f32::max);
                    for (a, b) in a.iter().zip(b) {
                        let (a, b) = (f32::from_bits(*a), f32::from_bits(*b));
                        assert!((a - b).abs() <= 1e-5 * largest, "{name}: state {i}: {a}, whole {b}");
                    }
                }
            }
        }
    }
}

/// Delays take place: operations of microseconds take at least a part of what is drawn for them, 50 us on average.
#[test]
fn stress_delays() {
    let schedule = compile(&model("row_wise", "sgd(lr: 0.05)", 60, true), Strategy::Pec, 2, 1, 1);
    let compute = schedule.train.ops.iter().filter(|op| op.engine == Engine::Compute).count();
    let options = Options::default().evaluate(false).stress(1);
    let mut session = Session::<f32>::new(schedule, options).expect("it runs");
    let report = session.run(&mut ()).expect("it trains");
    let least = (report.steps as usize * compute) as f64 * 10e-6;
    assert!(report.seconds > least, "{} s, at least {least} are drawn", report.seconds);
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

/// Whatever the strategy, the parts of every step add up to it, and compute's part is what its operations took.
#[test]
fn accounts_add_up() {
    #[derive(Default)]
    struct Sums(u64, u64, f64);
    impl Observer for Sums {
        fn step(&mut self, event: &StepEvent) {
            for a in &event.accounts {
                assert_eq!(a.compute + a.exposed + a.straggler + a.host + a.other, a.time, "{event:?}");
                self.0 += a.compute;
                self.1 += a.exposed;
            }
            self.2 += event.seconds;
        }
    }
    let text = model("row_wise", "adagrad(lr: 0.05)", 60, true);
    let link = Some("400 Mbit/s, 100 us".parse().unwrap());
    for (strategy, lookahead, microbatches, link) in [
        (Strategy::Serial, 1, 1, None),
        (Strategy::Serial, 1, 1, link),
        (Strategy::Prefetch, 1, 2, link),
        (Strategy::Pec, 1, 1, None),
        (Strategy::Pec, 2, 1, link),
        (Strategy::Pec, 1, 3, link),
    ] {
        let schedule = compile(&text, strategy, 3, lookahead, microbatches);
        let transfer = |i: u32| schedule.train.ops[i as usize].action.is_transfer();
        let options = Options::default().ranks(3).evaluate(false).link(link).record(0..7);
        let mut session = Session::<f32>::new(schedule.clone(), options).unwrap();
        let mut sums = Sums::default();
        let started = std::time::Instant::now();
        let report = session.run(&mut sums).unwrap();
        let wall = started.elapsed().as_secs_f64();
        assert!(sums.2 > 0.0 && sums.2 <= wall, "steps of {} s in a run of {wall} s", sums.2);
        let records = session.take_records().concat();
        let compute =
            |r: &&Record| schedule.train.ops[r.op as usize].engine == Engine::Compute && !transfer(r.op);
        let worked: u64 = records.iter().filter(compute).map(|r| r.end - r.start).sum();
        assert_eq!(sums.0, worked, "{strategy:?}, {lookahead}, {microbatches}, {link:?}");
        let by_op: f64 = report.accounting.exposed.iter().map(|e| e.ms).sum();
        assert!((by_op * 21.0 - sums.1 as f64 * 1e-6).abs() <= 1e-6 * by_op, "{by_op} ms, {} ns", sums.1);
    }
}

/// Batches whose ids follow a rule: of step, token and sample.
struct Ruled(Box<dyn Source>, fn(u64, usize) -> i64);

impl Source for Ruled {
    fn describe(&self) -> String {
        "ids by a rule".into()
    }
    fn epoch_steps(&self) -> Option<u64> {
        None
    }
    fn fill(&mut self, step: u64, batch: &mut GlobalBatch) -> Result<(), DataError> {
        self.0.fill(step, batch)?;
        for values in &mut batch.inputs {
            if let Values::Ids(ids) = values {
                ids.iter_mut().enumerate().for_each(|(i, id)| *id = (self.1)(step, i));
            }
        }
        Ok(())
    }
}

/// Rows that are used again in certain batches only, and in the first and the last batch.
#[test]
fn ids_that_come_back_when_they_should() {
    type Rule = fn(u64, usize) -> i64;
    let rules: [(&str, Rule); 5] = [
        ("in batches n and n + 2 only", |step, i| (step % 2) as i64 * 20 + (i % 20) as i64),
        ("in batches n and n + 3 only", |step, i| (step % 3) as i64 * 13 + (i % 13) as i64),
        ("in no other batch", |step, i| step as i64 * 5 + (i % 5) as i64),
        ("in every batch", |_, i| (i % 40) as i64),
        ("in the first and in the last batch", |step, i| {
            if step == 0 || step == 6 { (i % 9) as i64 } else { step as i64 * 6 + (i % 6) as i64 }
        }),
    ];
    for (name, rule) in rules {
        for sharding in ["row_wise", "data_parallel"] {
            for microbatches in [1, 2] {
                let text = model(sharding, "adagrad(lr: 0.05)", 60, true);
                let train = |strategy, lookahead| {
                    let schedule = Arc::new(compile(&text, strategy, 2, lookahead, microbatches));
                    let source = Ruled(data::open(&schedule, None, None, 5).unwrap(), rule);
                    train_on(&schedule, 2, None, Some(Box::new(source)))
                };
                let expected = train(Strategy::Serial, 1);
                for lookahead in [1, 2, 3] {
                    assert!(
                        train(Strategy::Pec, lookahead) == expected,
                        "ids {name}, {sharding}, lookahead {lookahead}, {microbatches} microbatches"
                    );
                }
            }
        }
    }
}

/// Every optimizer with every sharding that it can have; the last batch of a pass has one sample, so ranks have none.
#[test]
fn optimizers_and_ranks_without_samples() {
    for optimizer in ["sgd(lr: 0.1)", "adagrad(lr: 0.05)", "rowwise_adagrad(lr: 0.05)", "adam(lr: 0.05)"] {
        for sharding in ["row_wise", "table_wise", "column_wise", "data_parallel"] {
            if (optimizer.starts_with("rowwise"), sharding) == (true, "column_wise") {
                continue;
            }
            let text = model(sharding, optimizer, 60, true).replace("samples 31", "samples 25");
            equal(&text, &[2], &[2], &[1], &[None]);
        }
    }
    let text = model("row_wise", "adagrad(lr: 0.05)", 60, true).replace("batch 12", "batch 14");
    equal(&text.replace("samples 31", "samples 15"), &[7], &[1, 2], &[1, 2], &[None]);
}

/// The examples with smaller tables and batches, a few steps each.
#[test]
fn examples_under_every_strategy() {
    for name in ["movielens.fs", "ranking.fs", "dlrm.fs"] {
        let path = fs_tests::root("examples").join(name);
        let program = fs_dsl::load(&path).program.expect("an example checks");
        let outcome = |strategy| {
            let compiled = compile_with(&program, &CompileOptions::new(strategy, 2));
            let mut schedule = compiled.unwrap_or_else(|e| panic!("{name}: {e}")).schedule;
            schedule.tables.iter_mut().for_each(|t| t.rows = t.rows.min(20_000));
            schedule.settings.batch = schedule.settings.batch.min(12);
            schedule.settings.duration = fs_schedule::Duration::Steps(4);
            let schedule = Arc::new(schedule);
            let source = data::open(&schedule, None, Some(&path), 5).unwrap_or_else(|e| panic!("{e}"));
            train_on(&schedule, 2, None, Some(source))
        };
        let expected = outcome(Strategy::Serial);
        for strategy in [Strategy::Prefetch, Strategy::Pec] {
            assert!(outcome(strategy) == expected, "{name}: {strategy:?} gives other bits than serial");
        }
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
            let options = Options::default().ranks(3).evaluate(false).stress(stress);
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

/// Whatever panics, on whichever engine and in whichever stage: one error that names it, and all threads end.
#[test]
fn a_panic_anywhere_ends_all_threads() {
    let text = model("row_wise", "adagrad(lr: 0.05)", 60, true);
    let schedule = compile(&text, Strategy::Pec, 3, 2, 2);
    for (i, op) in schedule.train.ops.iter().enumerate().step_by(3) {
        let panic_at = Some((i % 3, op.name.clone(), (i % 7) as u64));
        let options = Options::default().ranks(3).evaluate(false).panic_at(panic_at);
        let mut session = Session::<f32>::new(schedule.clone(), options).unwrap();
        let said = session.run(&mut ()).unwrap_err().to_string();
        assert_eq!(said, format!("rank {} failed in `{}`: told to panic", i % 3, op.name));
    }
}

/// Tables that are placed on certain ranks cannot be trained by others.
#[test]
fn other_ranks_than_tables_are_placed_on_are_refused() {
    let schedule = compile(&model("column_wise", "adagrad(lr: 0.05)", 60, true), Strategy::Pec, 2, 1, 1);
    let said = Session::<f32>::new(schedule, Options::default().ranks(3));
    let said = said.err().unwrap().to_string();
    assert!(said.contains("cannot run with 3; compile it for 3 ranks"), "{said}");
}

/// `cargo test -p fs-tests --test equality -- --ignored`: 1,056 runs, a few minutes.
#[test]
#[ignore = "takes minutes"]
fn a_thousand_delayed_runs() {
    let seeds: Vec<Option<u64>> = (1..=22).map(Some).collect();
    for sharding in ["row_wise", "table_wise", "column_wise", "data_parallel"] {
        // Four shardings, two numbers of ranks, two of microbatches, three schedules, 22 seeds.
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
        model in models(Features { shardings: true, microbatches: true, placements: true }),
        ranks in prop::sample::select(&[1u32, 2, 3, 4, 7][..]),
        lookahead in 1..4u32,
        stress in prop::option::of(1..1000u64),
        compute in prop::sample::select(&[DType::F32, DType::BF16][..]),
        picks in prop::collection::vec(any::<u8>(), 1..4),
    ) {
        let text = model.with_lookahead(lookahead).text();
        let loaded = fs_dsl::check_text("random.fs", &text);
        let mut program = loaded.program.expect("a random model checks");
        program.train.precision.compute = compute;
        // Ranks share a batch evenly.
        program.train.batch *= ranks;
        let windows = windows(&program, &picks);
        let outcome = |strategy, stress| {
            let options = CompileOptions::new(strategy, ranks).balance_at(model.at());
            // Whoever asks for rows, they are the same: the serial schedule asks as the place says.
            let options = if strategy == Strategy::Serial {
                options
            } else {
                options.tables(model.folds().windows(windows.clone()))
            };
            let compiled = compile_with(&program, &options);
            let schedule = compiled.unwrap_or_else(|e| panic!("{strategy:?}: {e}")).schedule;
            train(&schedule, ranks as usize, stress)
        };
        let expected = outcome(Strategy::Serial, None);
        for strategy in [Strategy::Prefetch, Strategy::Pec] {
            prop_assert!(outcome(strategy, stress) == expected, "{:?} gives other bits than serial", strategy);
        }
    }
}
