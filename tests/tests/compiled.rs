//! What the compiler emits is proved and runs: every example with every strategy, lookahead and number of
//! microbatches, verified, and executed abstractly in random legal orders.

use std::collections::BTreeSet;

use fs_compiler::{At, CompileOptions, compile_with};
use fs_schedule::verify::verify;
use fs_schedule::{Schedule, Strategy};
use fs_tests::interpreter::{Order, Workload, reference, run};

/// A small model of two towers with every kind of lookup, and sharding as given.
fn model(shardings: [&str; 3]) -> String {
    let [a, b, c] = shardings;
    format!(
        "model small {{
           table users {{ rows 40 dim 8 optimizer sgd(lr: 0.1) sharding {a} }}
           table items {{ rows 60 dim 8 optimizer sgd(lr: 0.1) sharding {b} }}
           table words {{ rows 30 dim 8 optimizer sgd(lr: 0.1) sharding {c} }}
           input user: ids(users) {{ max 2 }}
           input clicked: ids(items) {{ max 5 }}
           input query: ids(words) {{ max 3 }}
           input click: label
           let x = concat(pool(user), pool(clicked, mean), pool(query))
           loss bce_with_logits(mlp(x, [8, 1]), click, normalize: samples)
         }}
         train {{ batch 8 steps 4 optimizer sgd(lr: 0.1) }}"
    )
}

fn programs() -> Vec<(String, fs_dsl::checked::Program)> {
    let mut out = Vec::new();
    for name in ["movielens.fs", "ranking.fs", "dlrm.fs"] {
        let loaded = fs_dsl::load(&fs_tests::root("examples").join(name));
        out.push((name.into(), loaded.program.expect("examples check")));
    }
    for shardings in [
        ["row_wise", "row_wise", "row_wise"],
        ["table_wise", "column_wise", "data_parallel"],
        ["data_parallel", "row_wise", "column_wise"],
    ] {
        let loaded = fs_dsl::check_text("small.fs", &model(shardings));
        let rendered = fs_dsl::render(&loaded.diagnostics, &loaded.sources, false);
        out.push((format!("{shardings:?}"), loaded.program.unwrap_or_else(|| panic!("{rendered}"))));
    }
    out
}

fn schedules() -> impl Iterator<Item = (String, Schedule)> {
    programs().into_iter().flat_map(|(name, program)| {
        let mut out = Vec::new();
        // Samples that move, before their ids are looked at and behind the output dist.
        for at in At::ALL {
            for (strategy, lookahead, microbatches) in [
                (Strategy::Serial, 1, 1),
                (Strategy::Serial, 1, 2),
                (Strategy::Serial, 1, 4),
                (Strategy::Prefetch, 1, 1),
                (Strategy::Overlap, 1, 2),
                (Strategy::Pec, 1, 2),
                (Strategy::Pec, 2, 1),
                (Strategy::Pec, 3, 4),
            ] {
                let options = CompileOptions::new(strategy, 2)
                    .lookahead(lookahead)
                    .microbatches(microbatches)
                    .balance(true)
                    .balance_at(at);
                let name = format!("{name}, {strategy:?} at {at}, K = {lookahead}, M = {microbatches}");
                let schedule =
                    compile_with(&program, &options).unwrap_or_else(|e| panic!("{name}: {e}")).schedule;
                out.push((name, schedule));
            }
        }
        let strategies = [(Strategy::Serial, 1), (Strategy::Prefetch, 1), (Strategy::Overlap, 1)];
        let strategies = strategies.into_iter().chain([1, 2, 3].map(|k| (Strategy::Pec, k)));
        for (strategy, lookahead) in strategies {
            for microbatches in [1, 2, 4] {
                let options =
                    CompileOptions::new(strategy, 2).lookahead(lookahead).microbatches(microbatches);
                let name = format!("{name}, {strategy:?}, K = {lookahead}, M = {microbatches}");
                let schedule =
                    compile_with(&program, &options).unwrap_or_else(|e| panic!("{name}: {e}")).schedule;
                out.push((name, schedule));
            }
        }
        out
    })
}

#[test]
fn compiled_schedules_are_exact_in_every_order() {
    for (n, (name, s)) in (0u64..).zip(schedules()) {
        assert_eq!(verify(&s), vec![], "{name}");
        let work = Workload { seed: n, batches: 6, ranks: 2 };
        let want = reference(&s, &work).unwrap_or_else(|e| panic!("{name}: {e}"));
        for seed in 0..6 {
            let slow = (0..seed % 3).map(|i| (None, (7919 * (n + i + seed) as usize) % s.train.ops.len()));
            let order = Order { slow: slow.collect::<BTreeSet<_>>(), seed, skipped_are_free: false };
            if let Err(e) = run(&s, &work, &want, &order) {
                panic!("{name}: {e} in {order:?}");
            }
        }
    }
}

/// Whatever the strategy, tables and parameters end as in the serial schedule with as many microbatches.
#[test]
fn compiled_strategies_end_in_the_serial_state() {
    let mut serial = Vec::new();
    for (name, s) in schedules() {
        let work = Workload { seed: 5, batches: 5, ranks: 2 };
        let states = reference(&s, &work).unwrap_or_else(|e| panic!("{name}: {e}")).states;
        if s.strategy == Strategy::Serial {
            if serial.len() == 3 {
                serial.clear();
            }
            serial.push((s.settings.microbatches, states));
        } else {
            let same = serial.iter().find(|(m, _)| *m == s.settings.microbatches);
            assert_eq!(Some(&states), same.map(|(_, s)| s), "{name}");
        }
    }
}
