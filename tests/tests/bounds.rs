//! Predicted steps beside their bounds, for every example on every preset: docs/bounds.md, compared as generated.
//! `UPDATE_EXPECT=1` rewrites it.

use std::fmt::Write as _;
use std::fs;

use fs_compiler::{CompileOptions, Strategy, compile_with};
use fs_dsl::checked::{Cluster, Program};
use fs_tests::{dividing, root};

const EXAMPLES: [&str; 4] = ["movielens", "ranking", "dlrm", "histories"];
const STRATEGIES: [(&str, Strategy); 4] = [
    ("serial", Strategy::Serial),
    ("prefetch", Strategy::Prefetch),
    ("overlap", Strategy::Overlap),
    ("pec", Strategy::Pec),
];

/// Where `pec` may be farther than 5% from its greater bound, and why.
const BEYOND: [(&str, &str, &str); 1] = [(
    "movielens",
    "h100x256",
    "32 samples a rank are launches and latency. The chain of a batch
  (forward, backward, gradients, update, rows of the next batch) is as long as compute's own work, so little hides its
  waits (`fsc explain`): the sum of dense gradients leaves behind the last gradients of rows, and compute idles until its hops
  have ended.",
)];

/// Samples a rank of that pair from which on it is within 5%, too.
const ENOUGH: [u32; 2] = [256, 1024];

/// Step, resource bound, recurrence bound and the greatest bound of a verified schedule; none if it does not fit.
fn predicted(program: &Program, cluster: Cluster, strategy: Strategy, what: &str) -> Option<[f64; 4]> {
    let schedule = match compile_with(program, &CompileOptions::new(strategy, None).cluster(cluster)) {
        Ok(compiled) => compiled.schedule,
        Err(e) => {
            assert!(e.to_string().contains("memory") || e.to_string().contains("need"), "{what}: {e}");
            return None;
        }
    };
    let violations = fs_schedule::verify::verify(&schedule);
    assert!(violations.is_empty(), "{what}: {violations:?}");
    let p = schedule.prediction.expect("a prediction");
    assert!(p.step >= p.bound() * (1.0 - 1e-9), "{what}: below its bound");
    Some([p.step, p.resource_bound, p.recurrence_bound, p.bound()])
}

#[test]
fn predicted_steps_are_near_their_bounds() {
    let mut rows = String::new();
    let mut beyond = Vec::new();
    for name in EXAMPLES {
        let path = root(&format!("examples/{name}.fs"));
        let program = fs_dsl::load(&path).program.expect("examples check");
        for preset in fs_dsl::cluster::PRESETS {
            for (strategy_name, strategy) in STRATEGIES {
                let cluster = fs_dsl::cluster::preset(preset).expect("a preset");
                let program = dividing(program.clone(), cluster.nodes * cluster.gpus_per_node);
                let batch = program.train.batch;
                let _ = write!(rows, "| {name} | {preset} | {batch} | {strategy_name} | ");
                let what = format!("{name} {preset} {strategy_name}");
                let Some([step, resources, recurrence, bound]) = predicted(&program, cluster, strategy, &what)
                else {
                    rows += "does not fit | | | | |\n";
                    continue;
                };
                let ratio = step / bound;
                if strategy == Strategy::Pec && ratio > 1.05 {
                    beyond.push((name, *preset, ratio));
                }
                let [step, resources, recurrence, bound] =
                    [step, resources, recurrence, bound].map(|x| x * 1e3);
                let _ = writeln!(
                    rows,
                    "{step:.3} | {resources:.3} | {recurrence:.3} | {bound:.3} | {ratio:.3} |"
                );
            }
        }
    }
    let found: Vec<(&str, &str)> = beyond.iter().map(|(name, preset, _)| (*name, *preset)).collect();
    let explained: Vec<(&str, &str)> = BEYOND.iter().map(|(name, preset, _)| (*name, *preset)).collect();
    assert_eq!(found, explained, "those beyond 5% are explained, and only those");
    let mut text = String::from(HEAD);
    for ((name, preset, ratio), (.., why)) in beyond.iter().zip(BEYOND) {
        let _ =
            write!(text, "- {name} on {preset}, {:.2}%: {why}\n  With more samples", (ratio - 1.0) * 100.0);
        let cluster = fs_dsl::cluster::preset(preset).expect("a preset");
        let mut program =
            fs_dsl::load(&root(&format!("examples/{name}.fs"))).program.expect("examples check");
        for (samples, joint) in ENOUGH.into_iter().zip([":", ","]) {
            program.train.batch = samples * cluster.nodes * cluster.gpus_per_node;
            let what = format!("{name} {preset} {samples}");
            let found = predicted(&program, cluster.clone(), Strategy::Pec, &what).expect("it fits");
            let ratio = found[0] / found[3];
            assert!(ratio <= 1.05, "{what}: {ratio}");
            let _ = write!(text, "{joint} {:.2}% with {samples} a rank", (ratio - 1.0) * 100.0);
        }
        text += ".\n";
    }
    text += TABLE;
    text += &rows;
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
the longest cycle, or a chain of dependencies with what the busiest engine must do beside it
([scheduling](scheduling.md#bounds-of-engine-and-cycle-together)). A batch is the example's
own; where that does not divide over the ranks of a preset, each rank has as many samples as the example's batch.

`pec` is to be within 5% of its greatest bound. Where it is not:

";

const TABLE: &str = "
`serial` waits for every transfer and `prefetch` for all but ids and dense sums, by definition; the recurrence bound is
that of the data, so they stay above it where transfers matter. A launch costs the host link's latency, so tiny steps
are bound by the number of operations: there `pec`, which has more of them, is slower than `overlap`, which waits for data only, too,
but moves all rows together (`--strategy auto` compares).

| example | cluster | batch | strategy | step | resource bound | recurrence bound | greatest bound | ratio |
|---|---|---|---|---|---|---|---|---|
";
