//! What holds for every model, strategy, lookahead and number of ranks, on random models: it compiles, verifies, the
//! IR and the schedule's file round-trip, and the same input gives the same bytes.
//!
//! `PROPTEST_CASES=5000 cargo test -p fs-tests --test schedules properties` looks further.

use fs_compiler::dialect;
use fs_compiler::ir::{Module, verify};
use fs_compiler::passes::manager::{Log, Settings, parse_pipeline, run};
use fs_compiler::{At, CompileOptions, Strategy, compile_with};
use fs_dsl::checked::Program;
use fs_schedule::{Schedule, file};
use fs_tests::dividing;
use fs_tests::models::{Features, Model, models};
use proptest::prelude::*;
use std::path::Path;

const FEATURES: Features = Features { shardings: true, microbatches: true, placements: true };
const STRATEGIES: &[Strategy] = &[Strategy::Serial, Strategy::Prefetch, Strategy::Pec];
const RANKS: &[u32] = &[1, 2, 3, 8];

fn config(cases: u32) -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|c| c.parse().ok());
    ProptestConfig { cases: asked.unwrap_or(cases), failure_persistence: None, ..ProptestConfig::default() }
}

fn check(text: &str) -> Program {
    let loaded = fs_dsl::check_text("random.fs", text);
    let said = fs_dsl::render(&loaded.diagnostics, &loaded.sources, false);
    assert_eq!(said, "", "a random model checks without a warning:\n{text}");
    loaded.program.expect("a program")
}

fn compile(program: &Program, strategy: Strategy, ranks: u32, at: At) -> (Schedule, Module) {
    let options = CompileOptions::new(strategy, ranks).balance_at(at);
    match compile_with(program, &options) {
        Ok(compiled) => (compiled.schedule, compiled.module),
        Err(e) => panic!("{strategy:?} on {ranks} ranks: {e}"),
    }
}

/// The module is valid, and its text reads back as the same module.
fn ir_round_trips(module: &Module) {
    let text = module.to_string();
    let again = dialect::parse(&text).unwrap_or_else(|e| panic!("printed IR parses: {e}\n{text}"));
    assert_eq!(again.to_string(), text);
    for module in [module, &again] {
        let errors = verify::verify(module);
        assert!(errors.is_empty(), "{}", verify::render(module, &errors));
    }
}

/// The schedule is valid, and its file reads back as the same schedule and the same bytes.
fn file_round_trips(schedule: &Schedule) {
    let violations = fs_schedule::verify::verify(schedule);
    assert!(violations.is_empty(), "{}", violations[0]);
    let text = file::to_text(schedule);
    let again = file::parse(Path::new("s.json"), text.as_bytes(), true).unwrap_or_else(|e| panic!("{e}"));
    let differ = file::to_text(&again).lines().zip(text.lines()).position(|(a, b)| a != b);
    assert_eq!(differ, None, "a line that is not read back as it was written");
}

/// Everything, for one model and strategy.
fn holds(model: &Model, strategy: Strategy, lookahead: u32, ranks: u32) {
    let text = model.with_lookahead(lookahead).text();
    let program = dividing(check(&text), ranks);
    let (schedule, module) = compile(&program, strategy, ranks, model.at());
    assert_eq!((schedule.strategy, schedule.ranks), (strategy, ranks));
    ir_round_trips(&module);
    file_round_trips(&schedule);
    let (again, _) = compile(&dividing(check(&text), ranks), strategy, ranks, model.at());
    assert!(file::to_text(&again) == file::to_text(&schedule), "two compilations give the same bytes");
}

proptest! {
    #![proptest_config(config(60))]

    #[test]
    fn compiles_verifies_and_round_trips(model in models(FEATURES), ranks in prop::sample::select(RANKS)) {
        for strategy in STRATEGIES {
            // Only partitioned schedules depend on the lookahead.
            let lookaheads = if *strategy == Strategy::Pec { 1..=3 } else { 1..=1 };
            for lookahead in lookaheads {
                holds(&model, *strategy, lookahead, ranks);
            }
        }
    }

    /// After every single pass, and passes one by one through text are the pipeline.
    #[test]
    fn every_pass_leaves_ir_that_round_trips(
        model in models(FEATURES), ranks in 1u32..=9, lookahead in 0u32..=3, bytes in 1u32..=500,
        compute in prop::sample::select(&["f32", "bf16"][..]),
    ) {
        let program = check(&model.text());
        let mut module = fs_compiler::import::import(&program).expect("imports");
        ir_round_trips(&module);
        let apart = if lookahead > 0 { format!(",lookahead={lookahead}") } else { String::new() };
        let unique = program.train.unique_rows;
        let pipeline = format!(
            "canonicalize,plan-sharding{{ranks={ranks}}},mixed-precision{{compute={compute}}},make-evaluation,differentiate,microbatch,lower-exchanges{{unique={unique}{apart}}},dce,accumulate,group-collectives,fuse-collectives,bucket-gradients{{bytes={bytes}}},dce"
        );
        for stage in parse_pipeline(&pipeline).expect("a pipeline") {
            let name = stage.pass.name;
            let mut reread = dialect::parse(&module.to_string()).expect("parses");
            for m in [&mut module, &mut reread] {
                if let Err(e) = run(m, std::slice::from_ref(&stage), Settings::default(), &mut Log::default()) {
                    panic!("{e}");
                }
            }
            ir_round_trips(&module);
            prop_assert_eq!(reread.to_string(), module.to_string(), "{} on what was read back", name);
        }
    }

    /// Formatting changes nothing but the digest of the source.
    #[test]
    fn the_formatted_model_is_the_same_model(model in models(FEATURES)) {
        let text = model.text();
        let pretty = fs_dsl::format_text("random.fs", &text).expect("formats");
        prop_assert_eq!(fs_dsl::format_text("random.fs", &pretty).expect("formats"), &pretty[..]);
        let [mut a, mut b] = [&text, &pretty].map(|t| compile(&dividing(check(t), 2), Strategy::Serial, 2, model.at()).0);
        a.sources.clear();
        b.sources.clear();
        prop_assert!(file::to_text(&a) == file::to_text(&b));
    }
}
