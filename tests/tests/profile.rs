//! What a profile of one schedule says of others, held against what they do. No clock is asked: sizes and shares of
//! rows are the data's, and predictions are held against the profile's own numbers.

use std::collections::BTreeSet;
use std::sync::Arc;

use fs_compiler::distribution::TableOptions;
use fs_compiler::{CompileOptions, compile_with};
use fs_dsl::checked::Program;
use fs_executor::data::count::Counter;
use fs_executor::data::{GlobalBatch, Values, open};
use fs_executor::transport::link::EmulatedLink;
use fs_executor::{Options, Session, profile};
use fs_schedule::profile::{Busiest, Work};
use fs_schedule::{Action, InputKind, Op, Profile, Schedule, Sharding, Strategy, Symbol, Way};

const STEPS: u64 = 24;

fn example(name: &str) -> Program {
    fs_dsl::load(&fs_tests::root("examples").join(name)).program.expect("examples check")
}

fn compile(program: &Program, profile: Option<&Profile>, strategy: Strategy, k: u32, m: u32) -> Schedule {
    let options = CompileOptions::new(strategy, 2).lookahead(k).microbatches(m).profile(profile.cloned());
    compile_with(program, &options).unwrap_or_else(|e| panic!("{e}")).schedule
}

fn measured(schedule: Schedule) -> Profile {
    let link: EmulatedLink = "10 GB/s, 1 us".parse().expect("a link");
    let options = Options::default().steps(STEPS).link(link).evaluate(false);
    let mut session = Session::<f32>::new(schedule, options).unwrap_or_else(|e| panic!("{e}"));
    profile::measure(&mut session, STEPS).unwrap_or_else(|e| panic!("{e}"))
}

/// Shares of rows by class as the compiler expects them from a profile of `serial`, and as `pec` finds them.
#[test]
fn reuse_distances_follow_from_serial() {
    let program = example("dlrm.fs");
    let profile = measured(compile(&program, None, Strategy::Serial, 1, 1));
    profile.check().expect("what was measured is in range");
    for (k, m) in [(1, 1), (3, 1), (2, 2), (4, 4)] {
        let schedule = compile(&program, Some(&profile), Strategy::Pec, k, m);
        let expected: Vec<(Symbol, f64)> = schedule
            .prediction
            .as_ref()
            .expect("a prediction")
            .sizes
            .iter()
            .map(|(s, n)| (s.parse().expect("a symbol"), *n))
            .collect();
        let options = Options::default().steps(60).evaluate(false);
        let mut session = Session::<f32>::new(schedule.clone(), options).expect("it runs");
        let report = session.run(&mut ()).expect("it trains");
        for (e, x) in schedule.exchanges.iter().enumerate().filter(|(_, x)| x.lookahead.is_some()) {
            let table = &schedule.tables[x.table as usize].name;
            let found: Vec<f64> =
                report.accounting.rows.iter().filter(|r| r.table == *table).map(|r| r.share).collect();
            let class = |c: usize| {
                let symbol = Symbol::SentClass(e as u32, Way::Forward, c as u32);
                expected.iter().find(|(s, _)| *s == symbol).map_or(0.0, |(_, n)| *n)
            };
            let all: f64 = (0..found.len()).map(class).sum();
            for (c, share) in found.iter().enumerate() {
                let predicted = class(c) / all;
                // Other batches; the first of the run have none before.
                assert!(
                    (predicted - share).abs() < 0.03,
                    "{table}, K {k}, M {m}, class {c}: {predicted} for {share}"
                );
            }
        }
    }
}

/// Serial does one thing after the other: every operation takes what it took, and a step is their sum. With tables of
/// all kinds, on ranks that own different ones, and in microbatches as well.
#[test]
fn serial_adds_up() {
    for microbatches in [1, 4] {
        let program = example("dlrm.fs");
        let schedule = compile(&program, None, Strategy::Serial, 1, microbatches);
        let profile = measured(schedule);
        assert_eq!(profile.microbatches, microbatches);
        let schedule = compile(&program, Some(&profile), Strategy::Serial, 1, microbatches);
        let mut sum = 0.0;
        for op in &schedule.train.ops {
            let known = profile.ops.iter().find(|o| o.name == op.name).expect("it ran").time;
            let (dispatch, wake) = (profile.overhead.dispatch, profile.overhead.wake);
            let between = match op.action {
                Action::LoadBatch => dispatch + 2.0 * wake,
                _ if op.action.is_transfer() => 2.0 * wake,
                _ => dispatch,
            };
            let time = op.time as f64 * 1e-9;
            // In whole nanoseconds, and at least one.
            assert!((known + between - time).abs() <= 1.5e-9, "{}: {time} for {known} + {between}", op.name);
            sum += time;
        }
        let step = schedule.prediction.as_ref().expect("a prediction").step;
        assert!((step - sum).abs() < 1e-9 * schedule.train.ops.len() as f64, "{step} for {sum}");
    }
}

/// Every kind of operation of every strategy has a time, though only `serial` ran.
#[test]
fn nothing_is_left_to_assumptions() {
    let program = example("dlrm.fs");
    let profile = measured(compile(&program, None, Strategy::Serial, 1, 1));
    for (strategy, k, m) in
        [(Strategy::Prefetch, 1, 1), (Strategy::Pec, 1, 1), (Strategy::Pec, 3, 2), (Strategy::Pec, 2, 8)]
    {
        let schedule = compile(&program, Some(&profile), strategy, k, m);
        let prediction = schedule.prediction.expect("a prediction");
        assert!(prediction.cluster.starts_with("profiled machine (2 ranks on"), "{}", prediction.cluster);
        let assumed = prediction.limits.iter().find(|l| l.contains("the profile") || l.contains("assumed"));
        assert_eq!(assumed, None, "{strategy:?}, K {k}, M {m}");
    }
    // What was not counted is said.
    let schedule = compile(&program, Some(&profile), Strategy::Pec, 1, 16);
    let limits = schedule.prediction.expect("a prediction").limits;
    assert!(limits.iter().any(|l| l.contains("did not count rows of `users`")), "{limits:?}");
}

/// A schedule that was planned for other ranks than those that run it moves what theirs move.
#[test]
fn bytes_are_of_the_ranks_that_ran() {
    let model = "model small {
      table a { rows 400  dim 8  optimizer sgd(lr: 0.1)  sharding row_wise }
      input x: ids(a) { max 9 }
      input click: label like x
      loss bce_with_logits(linear(lookup(x), 1), click, normalize: tokens)
    }
    train { batch 12  steps 100 }
    workload w { generate { lengths uniform(1, 7)  ids zipf(1.05)  labels hash } }";
    let program = fs_dsl::check_text("model.fs", model).program.expect("it checks");
    let sent = |planned: u32| {
        let compiled = compile_with(&program, &CompileOptions::new(Strategy::Serial, planned));
        let schedule = compiled.unwrap_or_else(|e| panic!("{e}")).schedule;
        let options = Options::default().ranks(2).steps(STEPS).evaluate(false);
        let mut session = Session::<f32>::new(schedule, options).unwrap_or_else(|e| panic!("{e}"));
        let profile = profile::measure(&mut session, STEPS).unwrap_or_else(|e| panic!("{e}"));
        let transfers = profile.ops.iter().filter(|op| op.kind.starts_with("all_to_all"));
        transfers.map(|op| op.bytes).collect::<Vec<f64>>()
    };
    let expected = sent(2);
    assert!(expected.len() >= 3 && expected.iter().all(|bytes| *bytes > 0.0), "{expected:?}");
    for planned in [1, 4] {
        let found = sent(planned);
        let same = found.iter().zip(&expected).all(|(a, b)| (a / b - 1.0).abs() < 0.1);
        assert!(found.len() == expected.len() && same, "planned for {planned}: {found:?}, {expected:?}");
    }
}

/// A profile of one plan predicts the other, either way and on shared cores: work is in proportion to tokens here, of which
/// the second rank reads twice as many as the first.
#[test]
fn a_profile_of_one_plan_predicts_the_other() {
    let model = |balance: &str| {
        let text = format!(
            "model small {{
              table a {{ rows 400  dim 8  optimizer sgd(lr: 0.1) }}
              input x: ids(a) {{ max 40 }}
              input click: label like x
              loss bce_with_logits(linear(relu(linear(lookup(x), 64)), 1), click, normalize: tokens)
            }}
            train {{ batch 16  steps 100  {balance} }}
            workload w {{ generate {{ lengths uniform(1, 40)  ids zipf(1.05) }} }}"
        );
        fs_dsl::check_text("model.fs", &text).program.expect("it checks")
    };
    let (off, on) = (model("balance off"), model("balance on"));
    let found = measured(compile(&off, None, Strategy::Serial, 1, 1));
    assert!(!found.balanced && found.cores.is_some_and(|n| n > 0));
    assert!(found.lengths.len() == 1 && found.lengths[0].len() == STEPS as usize * 16);
    assert!(found.lengths[0].iter().all(|n| (1..=40).contains(n)));
    assert!(measured(compile(&on, None, Strategy::Serial, 1, 1)).balanced);
    // Times in proportion to arithmetic, and lengths that are the same in every batch.
    let mut profile = found;
    for kind in &mut profile.kinds {
        (kind.fixed, kind.per_flop, kind.per_byte) = (0.0, 1e-9, 0.0);
    }
    (profile.overhead.dispatch, profile.overhead.wake, profile.sharing) = (0.0, 0.0, 0.0);
    profile.samples = None;
    profile.lengths = vec![[[10; 8], [20; 8]].concat().repeat(4)];
    let tokens = |p: &Profile| p.sizes.iter().find(|s| s.0 == "T0").expect("tokens").1;
    let predicted = |program: &Program, profile: &Profile| {
        let s = compile(program, Some(profile), Strategy::Serial, 1, 1);
        let sizes = &s.prediction.as_ref().expect("a prediction").sizes;
        let tokens = sizes.iter().find(|s| s.0 == "T0").expect("tokens").1;
        // Updates of rows, which are no more with more tokens, were measured to take about as long as the longest of these.
        let op = s.train.ops.iter().filter(|op| op.action.name() == "linear");
        (tokens, op.map(|op| op.time).max().expect("work") as f64)
    };
    let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 0.01, "{a} for {b}");
    for (cores, on_time, off_time) in [(2, 0.75, 1.0 / 0.75), (1, 1.0, 1.0)] {
        profile.cores = Some(cores);
        profile.balanced = false;
        let (home, home_time) = predicted(&off, &profile);
        close(home, tokens(&profile));
        let (planned, planned_time) = predicted(&on, &profile);
        close(planned / home, 0.75);
        // On one core nobody gains: what a rank waits for is what the other has of the core.
        close(planned_time / home_time, on_time);
        profile.balanced = true;
        let (planned, planned_time) = predicted(&on, &profile);
        close(planned, tokens(&profile));
        let (home, home_time) = predicted(&off, &profile);
        close(home / planned, 1.0 / 0.75);
        close(home_time / planned_time, off_time);
    }
    // Lists that are not the model's are refused.
    profile.lengths[0][3] = 41;
    let refused = profile.fits(&compile(&off, None, Strategy::Serial, 1, 1)).expect_err("too long");
    assert!(refused.to_string().contains("has 41 ids, but has at most 40"), "{refused}");
}

/// Who owns a row.
type Owner<'a> = &'a dyn Fn(i64) -> usize;

/// What each rank is asked for of tables with all kinds of owners, counted once more and plainly.
#[test]
fn traffic_is_added_up_by_ranks() {
    let text = "model small {
      table shared { rows 400  dim 8  optimizer sgd(lr: 0.1)  sharding row_wise }
      table more { rows 40  dim 4  optimizer sgd(lr: 0.1)  sharding row_wise }
      table first { rows 100  dim 16  optimizer sgd(lr: 0.1)  sharding table_wise }
      table second { rows 100  dim 8  optimizer sgd(lr: 0.1)  sharding table_wise }
      input a: ids(shared) { max 30 }
      input b: ids(more) { max 30 }
      input c: ids(first) { max 30 }
      input d: ids(second) { max 30 }
      input click: label
      loss bce_with_logits(linear(concat(pool(a), pool(b), pool(c), pool(d)), 1), click, normalize: samples)
    }
    train { batch 32  steps 100 }
    workload w { generate { lengths uniform(1, 30)  ids zipf(1.05, numbered: by_popularity)  labels hash } }";
    let checked = fs_dsl::check_text("model.fs", text);
    let program = checked
        .program
        .unwrap_or_else(|| panic!("{}", fs_dsl::render(&checked.diagnostics, &checked.sources, false)));
    let placements = ["shared", "more"].map(|t| (t.to_owned(), "range".to_owned()));
    let options =
        CompileOptions::new(Strategy::Serial, 4).tables(TableOptions::default().placement(placements));
    let s = Arc::new(compile_with(&program, &options).unwrap_or_else(|e| panic!("{e}")).schedule);
    let owners = [2, 3].map(|table: usize| match s.tables[table].sharding {
        Sharding::TableWise { rank } => rank,
        _ => panic!("one owner"),
    });
    assert_ne!(owners[0], owners[1]);
    let (ranks, steps) = (4, 0..40);
    let seed = s.settings.seed;
    let mut source = open(&s, None, None, seed).expect("data");
    // Per table and rank: bytes of a row, rows that others ask it for, and that it asks others for.
    let shapes: [(usize, f64, Owner<'_>); 4] = [
        (0, 32.0, &|row| row as usize / 100),
        (1, 16.0, &|row| row as usize / 10),
        (2, 64.0, &|_| owners[0] as usize),
        (3, 32.0, &|_| owners[1] as usize),
    ];
    let (mut asked, mut asks, mut most) = ([[0.0; 4]; 4], [0.0; 4], [0.0; 2]);
    for step in steps.clone() {
        let mut batch = GlobalBatch::default();
        source.fill(step, &mut batch).expect("a batch");
        let mut each = [[0.0; 4]; 2];
        for (table, bytes, owner) in shapes {
            let Values::Ids(ids) = &batch.inputs[table] else { panic!("ids") };
            let group = match s.inputs[table].kind {
                InputKind::Ids { lengths, .. } => lengths as usize,
                _ => panic!("ids"),
            };
            let offsets = &batch.offsets[group];
            for rank in 0..ranks {
                let rows: BTreeSet<i64> =
                    ids[offsets[rank * 8]..offsets[rank * 8 + 8]].iter().copied().collect();
                for row in rows {
                    asks[table] += bytes / 160.0;
                    if table < 2 {
                        each[table][rank] += 1.0;
                    }
                    if owner(row) != rank {
                        asked[table][owner(row)] += bytes / 40.0;
                    }
                }
            }
        }
        for (most, each) in most.iter_mut().zip(each) {
            *most += each.iter().copied().fold(0.0, f64::max) / 40.0;
        }
    }
    let rows = Counter::new(&s, source.as_mut(), seed, ranks).count(steps).unwrap_or_else(|e| panic!("{e}"));
    let of = |e: u32| {
        let table = &s.tables[s.exchanges[e as usize].table as usize].name;
        rows.iter().find(|rows| rows.table == *table)
    };
    let size = |_: &Op, symbol| match symbol {
        Symbol::Sent(e) => of(e).map_or(0.0, |rows| rows.sent),
        other => panic!("{other} is no matter"),
    };
    let work = Work::new(&s, ranks as u32, size, of);
    let close = |a: f64, b: f64, by: f64| assert!((a / b - 1.0).abs() < by, "{a} for {b}");
    let rows_of =
        |action: &Action| matches!(action, Action::AllToAllRows { .. } | Action::AllToAllGrads { .. });
    let transfers: Vec<&Op> = s.train.ops.iter().filter(|op| rows_of(&op.action)).collect();
    assert!(transfers.len() >= 2);
    // Nobody sends itself anything: of what all ask each other three quarters travel, if rows are spread evenly.
    let sum: f64 = asks.iter().sum::<f64>() * 0.75;
    for op in &transfers {
        let all = op.action.exchanges().len() == 4;
        assert!(all, "they travel together");
        for rank in 0..4 {
            let shared = asked[0][rank as usize] + asked[1][rank as usize];
            // The owner of a whole table is asked by three others, who use about as much of it as all four.
            let whole: f64 =
                (2..4).filter(|table| owners[table - 2] == rank).map(|table| 4.0 * 0.75 * asks[table]).sum();
            close(work.of(op, Busiest::Owner(rank)).1, (shared + whole).max(sum), 1e-9);
        }
    }
    assert_eq!(work.busiest(), Busiest::Owner(owners[0]));
    for table in 2..4 {
        close(asked[table][owners[table - 2] as usize], 4.0 * 0.75 * asks[table], 0.05);
    }
    for (name, most) in ["shared", "more"].iter().zip(most) {
        let found = rows.iter().find(|rows| rows.table == *name).expect("counted");
        let table = usize::from(*name == "more");
        for (owner, asked) in found.owners.iter().zip(asked[table]) {
            close(*owner, asked / (0.75 * asks[table]), 1e-9);
        }
        close(found.asking.expect("counted"), most / found.sent, 1e-9);
    }
    // As unevenly as that, twice and not at all.
    let of_asking = |times: f64| {
        let work = Work::new(&s, ranks as u32, size, of).uneven(times);
        work.of(transfers[0], Busiest::Asking).1
    };
    let (plain, twice) = (of_asking(1.0), of_asking(2.0));
    assert!(plain > sum && (of_asking(0.0) / sum - 1.0).abs() < 1e-9, "{plain} for {sum}");
    close(twice, 2.0 * plain, 1e-9);
}
