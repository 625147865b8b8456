//! Hot rows: schedules of random models with replicas of some rows are proved, run in random legal orders, and train to the
//! bits of the plain serial schedule of the same machine. What they save, leave and are evaluated by is the same as well.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use fs_compiler::distribution::{Lookahead, TableOptions};
use fs_compiler::{At, CompileOptions, Strategy, compile_with};
use fs_dsl::checked::Program;
use fs_schedule::{Action, Data, Schedule, Sharding, verify};
use fs_tests::interpreter::{Order, State, Workload, reference, run};
use fs_tests::models::{Features, models, windows};
use fs_tests::training::{
    OPTIMIZERS, checkpoints, compiled_if_it_can_be, leaving, model, nodes_of, options, session, state,
    states, trained,
};
use fs_tests::{binary, checked, dividing};
use proptest::prelude::{Strategy as Strategies, *};

const FEATURES: Features = Features { shardings: true, microbatches: true, placements: true };
const STEPS: u64 = 3;

/// What is chosen for one table: hot rows, relays, unique rows, a lookahead, where rows live.
type Chosen = (u32, Option<bool>, Option<bool>, Option<Option<u32>>, Option<&'static str>);

fn chosen() -> impl Strategies<Value = Chosen> {
    let lookahead = prop::option::of(prop::option::of(1..=3u32));
    let sharding =
        prop::option::of(prop::sample::select(vec!["row_wise", "table_wise", "column_wise", "auto"]));
    let hot = prop::sample::select(vec![0, 1, 2, 3, 5, 8, 20, 4096]);
    let relay = prop::option::weighted(0.3, Just(true));
    (hot, relay, prop::option::of(any::<bool>()), lookahead, sharding)
}

/// Choices for the tables of a program, taken in turn.
fn tables(program: &Program, chosen: &[Chosen]) -> TableOptions {
    let mut options = TableOptions::default();
    let names = program.model.iter().flat_map(|m| &m.tables).map(|t| t.name.clone());
    for (name, (hot, relay, unique, lookahead, sharding)) in names.zip(chosen.iter().cycle()) {
        options.hot.insert(name.clone(), *hot);
        options.relay.extend(relay.map(|relay| (name.clone(), relay)));
        options.unique.extend(unique.map(|unique| (name.clone(), unique)));
        options.lookahead.extend(lookahead.map(|k| (name.clone(), Lookahead(k))));
        options.sharding.extend(sharding.map(|s| (name, s.to_owned())));
    }
    options
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if std::env::var_os("FS_THOROUGH").is_some() { 600 } else { 40 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn hot_rows_change_no_bit(
        model in models(FEATURES),
        (ranks, node) in prop::sample::select(vec![(1u32, 1u32), (2, 2), (3, 3), (4, 4), (4, 2), (5, 2), (6, 3)]),
        lookahead in 1..=3u32,
        strategy in prop::sample::select(vec![Strategy::Serial, Strategy::Prefetch, Strategy::Pec, Strategy::Pec]),
        balance in prop::option::of(prop::sample::select(vec![At::Ids, At::Rows, At::Folded])),
        chosen in prop::collection::vec(chosen(), 1..4),
        picks in prop::collection::vec(any::<u8>(), 1..4),
        seed in any::<u64>(),
    ) {
        let text = model.text();
        let program = dividing(checked(&text), ranks);
        let machine = CompileOptions::new(Strategy::Serial, ranks)
            .cluster(nodes_of(node))
            .balance(balance.is_some())
            .balance_at(balance);
        // A model may ask for what cannot be: replicas have no hot rows, a row-wise optimizer no columns.
        let Some(plain) = compiled_if_it_can_be(&program, &machine) else { return Ok(()) };
        let mut choices = tables(&program, &chosen).windows(windows(&program, &picks));
        let options = machine.clone().policy(fs_compiler::sched::policy::of(strategy));
        let options = options.lookahead(lookahead);
        let asked = |choices: &TableOptions| compiled_if_it_can_be(&program, &options.clone().tables(choices.clone()));
        let replicated = |name: &String| {
            plain.tables.iter().any(|t| t.name == *name && t.sharding == Sharding::DataParallel)
        };
        // What cannot be is left out, one after the other: relays, where tables live, hot rows of replicas.
        let other = asked(&choices);
        let other = other.or_else(|| {
            choices.relay.clear();
            asked(&choices)
        });
        let other = other.or_else(|| {
            choices.sharding.clear();
            choices.hot.retain(|name, _| !replicated(name));
            asked(&choices)
        });
        // Of data that are not generated nobody knows which rows are hot, and nobody folds where all tables have hot ones.
        let Some(other) = other else {
            let hot = |t: &fs_schedule::Table| choices.hot.get(&t.name).is_some_and(|n| *n > 0);
            let all = plain.tables.iter().all(|t| t.sharding == Sharding::DataParallel || hot(t));
            prop_assert!(
                (balance == Some(At::Folded) && all) || !matches!(plain.data, Some(Data::Generate { .. })),
                "{:?}\n{}", choices, text
            );
            return Ok(());
        };
        prop_assert_eq!(verify::verify(&other), vec![], "{:?}\n{}", choices, text);
        for t in &other.tables {
            let wanted = choices.hot.get(&t.name).copied().unwrap_or(0);
            prop_assert_eq!(t.hot.len() as u64, t.rows.min(wanted.into()), "{}\n{}", t.name, text);
        }
        // Without classes, so that only hot rows differ: what an abstract value is made of depends on columns and on occurrences.
        let mut direct = choices.clone();
        direct.hot.clear();
        let Some(direct) = asked(&direct) else { return Ok(()) };
        let work = Workload { seed, batches: 5, ranks };
        // The interpreter does not know normalised rows that are cut by columns.
        if let Ok(direct) = reference(&direct, &work) {
            let want = reference(&other, &work).unwrap_or_else(|e| panic!("{e}\n{choices:?}\n{text}"));
            prop_assert!(
                State::together(&want.states) == State::together(&direct.states),
                "{:?}\n{}", choices, text
            );
            let n = other.train.ops.len();
            for round in 0..2u64 {
                let held = |i: u64| (seed as usize).wrapping_mul(7919).wrapping_add(i as usize * 31) % n;
                let slow: BTreeSet<_> = (0..round).map(|i| (None, held(i))).collect();
                let order = Order { slow, seed: seed.wrapping_add(round), skipped_are_free: false };
                if let Err(e) = run(&other, &work, &want, &order) {
                    panic!("{e}\n{choices:?}\n{text}");
                }
            }
        }
        if matches!(plain.data, Some(Data::Generate { .. })) {
            prop_assert_eq!(trained(&other, STEPS, Some(seed)), trained(&plain, STEPS, None), "{:?}\n{}", choices, text);
        }
    }
}

/// The small model with hot rows in both tables.
fn small(text: &str, strategy: Strategy, (ranks, lookahead): (u32, u32), hot: u32) -> Schedule {
    let tables = TableOptions::default().hot(["a", "b"].map(|name| (name.to_owned(), hot)));
    let options = CompileOptions::new(strategy, ranks).lookahead(lookahead).tables(tables);
    compile_with(&checked(text), &options).unwrap_or_else(|e| panic!("{e}")).schedule
}

const OWNED: [&str; 4] = ["row_wise", "table_wise", "column_wise", "row_wise(placement: planned)"];

/// However engines are late, whatever rows are hot: what is left on the way is the state after a step, and any other hot rows,
/// or none, go on from it to the same bits.
#[test]
fn checkpoints_have_the_replicas() {
    for (n, sharding) in OWNED.into_iter().enumerate() {
        for (m, strategy) in [Strategy::Serial, Strategy::Pec].into_iter().enumerate() {
            // The state of a row-wise optimizer is of whole rows.
            let optimizer = if sharding == "column_wise" { OPTIMIZERS[3] } else { OPTIMIZERS[(n + m) % 4] };
            let text = model(sharding, optimizer, 60, true);
            let ranks = [3, 2, 2, 3][n];
            let of = |hot| small(&text, strategy, (ranks, 1 + m as u32), hot);
            let (plain, schedule) = (of(0), of(9));
            let steps = 14;
            let want = states(&plain, steps);
            assert_eq!(states(&schedule, steps), want, "{sharding} {strategy:?}");
            let folder = tempfile::tempdir().unwrap();
            let leaves = options().steps(steps).stress(Some(7)).checkpoint(leaving(folder.path(), 3, 99));
            session(&schedule, leaves).run(&mut ()).unwrap();
            for (step, path) in checkpoints(folder.path()) {
                for other in [&schedule, &plain, &of(25)] {
                    let mut started = session(other, options().init(path.clone()));
                    let case = format!("{sharding} {strategy:?} {step}");
                    assert_eq!(state(&started).unwrap(), want[step as usize], "{case}");
                    started.advance(steps - step, &mut ()).unwrap();
                    assert_eq!(state(&started).unwrap(), want[steps as usize], "{case}");
                }
            }
        }
    }
}

/// Gradients that are asked for once are those of plain owners.
#[test]
fn gradients_are_those_of_owners() {
    let text = model("row_wise", OPTIMIZERS[1], 60, true);
    let of = |hot| {
        let schedule = small(&text, Strategy::Pec, (3, 1), hot);
        let mut session = session(&schedule, options());
        session.advance(2, &mut ()).unwrap();
        let gradients = session.loss_and_gradients(2).unwrap();
        (gradients.loss.to_bits(), gradients.tables, gradients.parameters)
    };
    assert_eq!(of(9), of(0));
}

/// Through the binaries, of rows that are counted in the data: ranking looks tables up where rows have owners, which have what
/// replicas have become; and files are the same bytes.
#[test]
fn evaluations_and_files_see_the_replicas() {
    let folder = tempfile::tempdir().unwrap();
    let mut visits = String::from("user,item\n");
    for (user, at) in (0..40u32).flat_map(|user| (0..6 + user % 7).map(move |at| (user, at))) {
        // Some items are everybody's.
        let item = if at % 2 == 0 { at / 2 } else { 3 + (user * 7 + at * 5) % 50 };
        writeln!(visits, "u{user},{item}").unwrap();
    }
    fs::write(folder.path().join("visits.csv"), visits).unwrap();
    let text = "model last {
           table items { rows 60  dim 8  init normal(0, 0.5)  optimizer adagrad(lr: 0.3)  sharding row_wise }
           input history: ids(items) { max 9 }
           input following: next(history)
           let h = lookup(history) + linear(layer_norm(lookup(history)), 8)
           loss sampled_softmax(h, items, following, negatives: 3, temperature: 1, normalize: tokens)
         }
         train { batch 12  epochs 3  optimizer adam(lr: 1e-2) }
         workload visits { csv \"visits.csv\" { user \"user\"  item \"item\" }  evaluate leave_last_out }";
    fs::write(folder.path().join("m.fs"), text).unwrap();
    let run = |program: &str, args: &[&str]| {
        let output = Command::new(binary(program)).args(args).current_dir(folder.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {args:?}: {said}");
    };
    let outcome = |strategy: &str, sharding: &str, hot: u32| {
        let table = format!("items:hot={hot},sharding={sharding}");
        run(
            "fsc",
            &["compile", "m.fs", "--ranks", "3", "--strategy", strategy, "--table", &table, "-o", "s.json"],
        );
        run("fsx", &["run", "s.json", "--save", "w.safetensors", "--report", "r.json"]);
        let schedule = fs::read_to_string(folder.path().join("s.json")).unwrap();
        let schedule: serde_json::Value = serde_json::from_str(&schedule).unwrap();
        let report = fs::read_to_string(folder.path().join("r.json")).unwrap();
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        let weights = fs::read(folder.path().join("w.safetensors")).unwrap();
        (schedule["tables"][0]["hot"].clone(), report["evaluation"]["model"].clone(), weights)
    };
    for sharding in ["row_wise", "column_wise"] {
        let (none, plain, weights) = outcome("serial", sharding, 0);
        assert!(none.is_null() && plain.is_object(), "{none} {plain}");
        for (strategy, hot) in [("serial", 6), ("pec", 6), ("pec", 60)] {
            let (rows, evaluation, saved) = outcome(strategy, sharding, hot);
            assert_eq!(rows.as_array().map(Vec::len), Some(hot as usize), "{rows}");
            assert_eq!(evaluation, plain, "{strategy} {sharding} {hot}");
            assert!(saved == weights, "{strategy} {sharding} {hot}");
        }
    }
}

/// Which rows are hot follows from the law, and one exchange of all ranks moves them.
#[test]
fn the_most_popular_rows_are_hot() {
    let text = model("row_wise", OPTIMIZERS[0], 60, true)
        .replace("zipf(1.05)", "zipf(1.05, numbered: by_popularity)");
    let schedule = small(&text, Strategy::Pec, (3, 1), 5);
    for t in &schedule.tables {
        assert_eq!(t.hot, [0, 1, 2, 3, 4], "{}", t.name);
    }
    let count = |is: fn(&Action) -> bool| schedule.train.ops.iter().filter(|op| is(&op.action)).count();
    assert!(count(|a| matches!(a, Action::AllGatherGrads { .. })) > 0);
    let plain = small(&text, Strategy::Pec, (3, 1), 0);
    assert!(plain.exchanges.iter().all(|x| x.of.is_none() && x.shares.is_none()));
}

/// What cannot be is said.
#[test]
fn hot_rows_need_owners_and_a_law() {
    let error = |sharding: &str, hot: u32, workload: &str, at: Option<At>| {
        let text = model(sharding, OPTIMIZERS[0], 9000, true);
        let text = match workload {
            "" => text,
            other => format!("{} {other}", text.split("workload").next().unwrap()),
        };
        let tables = TableOptions::default().hot([("a".to_owned(), hot)]);
        let tables = if at.is_some() { tables.fold([("a".to_owned(), true)]) } else { tables };
        let options =
            CompileOptions::new(Strategy::Pec, 3).tables(tables).balance(at.is_some()).balance_at(at);
        compile_with(&checked(&text), &options).expect_err("it cannot be").to_string()
    };
    let everywhere = error("data_parallel", 4, "", None);
    assert!(everywhere.contains("every rank has all of its rows; leave out `hot`"), "{everywhere}");
    // What the compiler would replicate it gives owners.
    let text = model("auto", OPTIMIZERS[0], 60, true);
    let open = small(&text, Strategy::Pec, (2, 1), 4);
    assert!(open.tables.iter().all(|t| t.sharding != Sharding::DataParallel && t.hot.len() == 4));
    let many = error("row_wise", 4097, "", None);
    assert!(many.contains("4097 hot rows, the most is 4096"), "{many}");
    let unknown = error("row_wise", 4, "workload w { safetensors \"x.safetensors\" }", None);
    assert!(unknown.contains("nothing says which rows are asked for most"), "{unknown}");
    let folded = error("row_wise", 4, "", Some(At::Folded));
    assert!(folded.contains("every rank has its hot rows"), "{folded}");
}
