//! Values move between shardings and numbers of ranks: what one run saves another starts from, to the bit.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use fs_compiler::{CompileOptions, Strategy, compile_with};
use fs_executor::{Options, Session};
use fs_schedule::{Schedule, Sharding};

const SHARDINGS: [&str; 4] = ["row_wise", "table_wise", "column_wise", "data_parallel"];

fn compile(sharding: &str, ranks: u32) -> Schedule {
    let text = format!(
        "model small {{
          table a {{ rows 37  dim 8  init normal(0, 0.5)  optimizer adagrad(lr: 0.1)  sharding {sharding} }}
          input x: ids(a) {{ max 9 }}
          input click: label like x
          loss bce_with_logits(linear(lookup(x), 1), click, normalize: tokens)
        }}
        train {{ batch 12  steps 3  optimizer adam(lr: 1e-2) }}
        workload w {{ generate {{ lengths uniform(0, 7)  ids uniform  labels hash }} }}"
    );
    let loaded = fs_dsl::check_text("model.fs", &text);
    let Some(program) = &loaded.program else {
        panic!("{}", fs_dsl::render(&loaded.diagnostics, &loaded.sources, false))
    };
    compile_with(program, &CompileOptions::new(Strategy::Pec, ranks)).unwrap().schedule
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn saved_values_start_any_other_sharding() {
    let folder = tempfile::tempdir().unwrap();
    for (n, from) in SHARDINGS.iter().enumerate() {
        let options = || Options { evaluate: false, ..Options::default() };
        let mut trained = Session::<f32>::new(compile(from, [1, 2, 3, 4][n]), options()).unwrap();
        let initial = bits(&trained.table(0).unwrap());
        trained.run(&mut ()).unwrap();
        let table = bits(&trained.table(0).unwrap());
        assert_ne!(table, initial, "{from}: nothing was trained");
        let path = folder.path().join(format!("{from}.safetensors"));
        trained.save(&path).unwrap();
        for (to, ranks) in SHARDINGS.iter().flat_map(|to| [2, 3].map(|ranks| (to, ranks))) {
            let schedule = compile(to, ranks);
            if let Sharding::ColumnWise { ranks } = &schedule.tables[0].sharding {
                assert!(ranks.len() > 1, "one part only");
            }
            let started =
                Session::<f32>::new(schedule, Options { init: Some(path.clone()), ..options() }).unwrap();
            assert_eq!(bits(&started.table(0).unwrap()), table, "{from} to {to} on {ranks} ranks");
            assert_eq!(bits(&started.parameter(0)), bits(&trained.parameter(0)), "{from} to {to}");
            assert!(started.unmatched().in_model.is_empty() && started.unmatched().in_file.is_empty());
        }
    }
}
