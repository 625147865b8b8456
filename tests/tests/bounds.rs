//! Predicted steps beside their bounds, for every example on every preset: docs/bounds.md, compared as generated.
//! `UPDATE_EXPECT=1` rewrites it.

use std::fmt::Write as _;
use std::fs;

use fs_compiler::{CompileOptions, Strategy, compile_with, search};
use fs_dsl::checked::{Cluster, Program, Sharding};
use fs_schedule::{Prediction, Schedule, SparseOptimizer};
use fs_tests::{dividing, root};

const EXAMPLES: [&str; 4] = ["movielens", "ranking", "dlrm", "histories"];
const STRATEGIES: [(&str, Strategy); 4] = [
    ("serial", Strategy::Serial),
    ("prefetch", Strategy::Prefetch),
    ("overlap", Strategy::Overlap),
    ("pec", Strategy::Pec),
];

/// The prediction of a verified schedule; none if it does not fit.
fn predicted(
    program: &Program,
    cluster: Cluster,
    strategy: Option<Strategy>,
    what: &str,
) -> Option<Prediction> {
    let options = CompileOptions::new(strategy.unwrap_or(Strategy::Serial), None).cluster(cluster);
    let compiled = match strategy {
        Some(_) => compile_with(program, &options).map(|compiled| compiled.schedule),
        None => search::tables::search(program, &options, search::candidates(None))
            .map(|(best, _)| best.compiled.schedule),
    };
    let schedule: Schedule = match compiled {
        Ok(schedule) => schedule,
        Err(e) => {
            assert!(e.to_string().contains(" GB"), "{what}: {e}");
            return None;
        }
    };
    let violations = fs_schedule::verify::verify(&schedule);
    assert!(violations.is_empty(), "{what}: {violations:?}");
    Some(schedule.prediction.expect("a prediction"))
}

/// All tables otherwise than the example has them. Row-wise states allow no parts of columns.
fn sharded(mut program: Program, sharding: Sharding) -> Program {
    for table in program.model.iter_mut().flat_map(|m| &mut m.tables) {
        table.sharding = sharding;
        if let (Sharding::ColumnWise, SparseOptimizer::RowwiseAdagrad { lr, eps }) =
            (sharding, table.optimizer)
        {
            table.optimizer = SparseOptimizer::Adagrad { lr, eps };
        }
    }
    program
}

#[test]
fn predicted_steps_are_near_their_bounds() {
    let mut rows = String::new();
    let mut beyond = Vec::new();
    for name in EXAMPLES {
        let path = root(&format!("examples/{name}.fs"));
        let program = fs_dsl::load(&path).program.expect("examples check");
        for &preset in fs_dsl::cluster::PRESETS {
            for (strategy_name, strategy) in STRATEGIES {
                let cluster = fs_dsl::cluster::preset(preset).expect("a preset");
                let program = dividing(program.clone(), cluster.nodes * cluster.gpus_per_node);
                let batch = program.train.batch;
                let _ = write!(rows, "| {name} | {preset} | {batch} | {strategy_name} | ");
                let what = format!("{name} {preset} {strategy_name}");
                let Some(p) = predicted(&program, cluster, Some(strategy), &what) else {
                    rows += "does not fit | | | | |\n";
                    continue;
                };
                let ratio = p.step / p.bound();
                if strategy == Strategy::Pec && ratio > 1.05 {
                    beyond.push((name, preset, ratio));
                }
                let [step, resources, recurrence, bound] =
                    [p.step, p.resource_bound, p.recurrence_bound, p.bound()].map(|x| x * 1e3);
                let _ = writeln!(
                    rows,
                    "{step:.3} | {resources:.3} | {recurrence:.3} | {bound:.3} | {ratio:.3} |"
                );
            }
        }
    }
    let mut text = String::from(HEAD);
    text += &rows;
    text += OTHERWISE;
    let shardings = [
        ("row-wise", Sharding::RowWise { placement: None }),
        ("table-wise", Sharding::TableWise),
        ("column-wise", Sharding::ColumnWise),
        ("replicated", Sharding::DataParallel),
    ];
    for name in EXAMPLES {
        let path = root(&format!("examples/{name}.fs"));
        let program = fs_dsl::load(&path).program.expect("examples check");
        let cluster = fs_dsl::cluster::preset("h100x256").expect("a preset");
        let program = dividing(program, cluster.nodes * cluster.gpus_per_node);
        for (sharding_name, sharding) in shardings {
            let program = sharded(program.clone(), sharding);
            let _ = write!(text, "| {name} | {sharding_name} |");
            for (strategy_name, strategy) in
                [("overlap", Some(Strategy::Overlap)), ("pec", Some(Strategy::Pec)), ("auto", None)]
            {
                let what = format!("{name} {sharding_name} {strategy_name}");
                let Some(p) = predicted(&program, cluster.clone(), strategy, &what) else {
                    text += " does not fit |";
                    continue;
                };
                let ratio = p.step / p.bound();
                if strategy != Some(Strategy::Overlap) && ratio > 1.05 {
                    beyond.push((name, sharding_name, ratio));
                }
                let _ = write!(text, " {:.3}, {ratio:.3} |", p.step * 1e3);
            }
            text += "\n";
        }
    }
    assert!(beyond.is_empty(), "farther than 5% from their bounds: {beyond:?}");
    let file = root("docs/bounds.md");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(&file, &text).expect("docs can be written");
    }
    assert!(
        fs::read_to_string(&file).unwrap_or_default() == text,
        "docs/bounds.md is out of date; run UPDATE_EXPECT=1 cargo test -p fs-tests --test bounds"
    );
}

const HEAD: &str = "# Predicted steps and their bounds

Generated by `tests/tests/bounds.rs`, which also verifies every schedule. Times in milliseconds, from the cluster
presets and the workloads' expected sizes; the last column is the step over the greatest bound: what the busiest engine does,
the longest cycle, or chains of dependencies with what an engine must do between them
([scheduling](scheduling.md#bounds-of-engine-and-cycle-together)). A batch is the example's
own; where that does not divide over the ranks of a preset, each rank has as many samples as the example's batch.

No step of `pec` is farther than 5% from its greatest bound.

`serial` waits for every transfer and `prefetch` for all but ids and dense sums, by definition; the recurrence bound is
that of the data, so they stay above it where transfers matter. A launch costs the host link's latency, so tiny steps
are bound by the number of operations: there `pec`, which has more of them, is slower than `overlap`, which waits for data only, too,
but moves all rows together (`--strategy auto` compares).

| example | cluster | batch | strategy | step | resource bound | recurrence bound | greatest bound | ratio |
|---|---|---|---|---|---|---|---|---|
";

const OTHERWISE: &str = "
## Tables otherwise

`h100x256`, all tables of an example in one way: the step in milliseconds, and over its greatest bound. `auto` may still put them through
relays, ask for rows otherwise and travel otherwise. Column-wise tables have `adagrad`, because a row-wise state allows no parts. No step of `pec`
and `auto` is farther than 5% from its greatest bound.

| example | tables | overlap | pec | auto |
|---|---|---|---|---|
";
