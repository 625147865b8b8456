//! What holds for the lowered IR of every model, before anything is ordered: every strategy lowers it to valid IR, and
//! all of them sum alike.
//!
//! Bits depend on which sums start from which values. Strategies differ in how rows travel, never in how gradients are
//! summed, so the operations that sum must be the same, in the same order, added into the same places.

use fs_compiler::Strategy;
use fs_compiler::compile::{PipelineOptions, pipeline};
use fs_compiler::dialect;
use fs_compiler::distribution::{Lookahead, TableOptions};
use fs_compiler::ir::Module;
use fs_compiler::passes::manager::{Log, Settings, parse_pipeline, run};
use fs_compiler::sched::policy;
use fs_dsl::checked::Program;
use fs_tests::checked;
use fs_tests::models::{Features, models, windows};
use proptest::prelude::{Strategy as Strategies, *};

const FEATURES: Features = Features { shardings: true, microbatches: true, placements: true };

/// Lowered with a verification after every pass; `None`: the model asks for what cannot be.
fn lower(
    program: &Program,
    strategy: Strategy,
    lookahead: u32,
    ranks: u32,
    tables: &TableOptions,
) -> Option<Module> {
    let mut module = fs_compiler::import::import(program).ok()?;
    let plan = PipelineOptions::of(&module, policy::of(strategy), ranks)
        .expect("settings")
        .lookahead(lookahead)
        .tables(tables.clone());
    let stages = parse_pipeline(&pipeline(&plan)).expect("a pipeline");
    if let Err(e) = run(&mut module, &stages, Settings::default(), &mut Log::default()) {
        panic!("{strategy:?} {lookahead} {ranks}: {e}");
    }
    Some(module)
}

/// The operations that compute gradients and sums, and whether they add into a value.
fn sums(module: &Module) -> Vec<(&'static str, String, Option<u32>, Vec<bool>)> {
    let body = module.func("train").map_or(&[][..], |f| &f.body);
    let ops = body.iter().map(|id| module.op(*id));
    let sums = ops.filter(|op| {
        op.def.name.contains("grad") && !op.def.name.starts_with("comm.all_") || op.def.name == "model.add"
    });
    let into = |op: &fs_compiler::ir::OpData| {
        let all: Vec<bool> = op.into.iter().map(Option::is_some).collect();
        if all.iter().any(|b| *b) { all } else { Vec::new() }
    };
    sums.map(|op| (op.def.name, op.scope.clone(), op.microbatch, into(op))).collect()
}

/// What is chosen for one table: unique rows, a lookahead or none, where its rows live; `None`: as for all.
type Chosen = (Option<bool>, Option<Option<u32>>, Option<&'static str>);

fn chosen() -> impl Strategies<Value = Chosen> {
    let lookahead = prop::option::of(prop::option::of(1..=4u32));
    let sharding =
        prop::option::of(prop::sample::select(vec!["row_wise", "table_wise", "data_parallel", "auto"]));
    (prop::option::of(any::<bool>()), lookahead, sharding)
}

/// Choices for the tables of a program, taken in turn.
fn options(program: &Program, chosen: &[Chosen]) -> TableOptions {
    let mut options = TableOptions::default();
    let tables = program.model.iter().flat_map(|m| &m.tables).map(|t| t.name.clone());
    for (name, (unique, lookahead, sharding)) in tables.zip(chosen.iter().cycle()) {
        options.unique.extend(unique.map(|unique| (name.clone(), unique)));
        options.lookahead.extend(lookahead.map(|k| (name.clone(), Lookahead(k))));
        options.sharding.extend(sharding.map(|s| (name, s.to_owned())));
    }
    options
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn strategies_sum_alike(
        model in models(FEATURES),
        lookahead in 1..=4u32,
        ranks in 1..=9u32,
        chosen in prop::collection::vec(chosen(), 1..4),
        picks in prop::collection::vec(any::<u8>(), 1..4),
    ) {
        let program = checked(&model.text());
        let tables = options(&program, &chosen).windows(windows(&program, &picks));
        let Some(serial) = lower(&program, Strategy::Serial, lookahead, ranks, &tables) else { return Ok(()) };
        for strategy in [Strategy::Prefetch, Strategy::Pec] {
            let module = lower(&program, strategy, lookahead, ranks, &tables).expect("imports as before");
            prop_assert_eq!(sums(&module), sums(&serial), "{:?}", strategy);
            let text = module.to_string();
            prop_assert_eq!(dialect::parse(&text).expect("parses").to_string(), text);
        }
    }
}
