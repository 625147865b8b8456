//! Bytes that ranks are expected to send each other, held against those that a run sends.

use std::fs;
use std::sync::Arc;

use fs_compiler::distribution::{Lookahead, TableOptions};
use fs_compiler::{CompileError, CompileOptions, compile_with, lowered};
use fs_dsl::checked::Cluster;
use fs_executor::data::planning::{Found, look};
use fs_executor::{Options, Session};
use fs_schedule::{Leg, Prediction, Schedule, Sent, Sharding, Strategy};
use fs_tests::batches::{ids, one_batch};
use proptest::prelude::*;
use tempfile::TempDir;

const STEPS: u64 = 3;

/// The same batch again and again, of rows that live as `sharding` says. Its samples are alike, so that ranks send as much as
/// each other and each asks itself for its share: what is expected is what happens.
fn model((sharding, precision): (&str, &str), seed: u64) -> (TempDir, fs_dsl::checked::Program) {
    let dir = TempDir::new().expect("a temporary folder");
    let length = 1 + (seed % 5) as usize;
    one_batch(&dir.path().join("b.safetensors"), &[length as i32; 12], &ids(length, 9, seed).repeat(12));
    let file = dir.path().join("m.fs");
    let text = format!(
        "model m {{
           table a {{ rows 30  dim 32  init normal(0, 0.5)  optimizer sgd(lr: 0.1)  sharding {sharding} }}
           input x: ids(a) {{ max 5 }}
           input y: label
           loss bce_with_logits(linear(pool(x, sum), 1), y, normalize: samples)
         }}
         train {{ batch 12  steps {STEPS}  optimizer sgd(lr: 0.1)  {precision} }}
         workload w {{ safetensors \"b.safetensors\" }}"
    );
    fs::write(&file, text).expect("written");
    let loaded = fs_dsl::load(&file);
    let told = fs_dsl::render(&loaded.diagnostics, &loaded.sources, false);
    (dir, loaded.program.unwrap_or_else(|| panic!("{told}")))
}

/// The schedule that is planned for what the data hold; none if choices do not go together.
fn planned(program: &fs_dsl::checked::Program, options: CompileOptions) -> Option<Schedule> {
    let plain = match lowered(program, &options) {
        Ok(plain) => Arc::new(plain),
        Err(CompileError::Pass(_)) => return None,
        Err(e) => panic!("{e}"),
    };
    let counts = match look(&plain, false).unwrap_or_else(|e| panic!("{e}")) {
        Found::Counts { counts, .. } => *counts,
        other => panic!("{other}"),
    };
    Some(compile_with(program, &options.counts(counts)).unwrap_or_else(|e| panic!("{e}")).schedule)
}

fn predicted(s: &Schedule) -> &Prediction {
    s.prediction.as_ref().expect("a prediction")
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * (1.0 + a.abs())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 60,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn runs_send_what_is_expected(
        seed in 0..1000u64,
        (ranks, node) in prop::sample::select(vec![(1u32, 1u32), (2, 2), (3, 4), (4, 4), (4, 2), (6, 2), (6, 3), (3, 2), (4, 3), (6, 4)]),
        sharding in prop::sample::select(vec!["row_wise", "table_wise", "column_wise", "data_parallel"]),
        precision in prop::sample::select(vec!["", "precision { output_dist bf16  gradient_dist bf16  all_reduce bf16 }", "precision { output_dist mxint8 }"]),
        strategy in prop::sample::select(vec![Strategy::Serial, Strategy::Prefetch, Strategy::Overlap, Strategy::Pec]),
        microbatches in 1..3u32,
        (unique, relay) in any::<(bool, bool)>(),
        lookahead in prop::option::of(1..3u32),
    ) {
        let (_dir, program) = model((sharding, precision), seed);
        let local = fs_dsl::cluster::preset("local").expect("a preset");
        let cluster = Cluster { nodes: ranks.div_ceil(node), gpus_per_node: node, ..local };
        let of = |value| [("a".to_owned(), value)];
        let mut tables = TableOptions::default().unique(of(unique)).lookahead([("a".to_owned(), Lookahead(lookahead))]);
        let owned = sharding != "data_parallel";
        if owned && cluster.nodes > 1 {
            tables = tables.relay(of(relay));
        }
        let options = CompileOptions::new(strategy, ranks).cluster(cluster).microbatches(microbatches);
        let found = planned(&program, options.balance(false).tables(tables));
        prop_assume!(found.is_some());
        let s = found.expect("as assumed");
        let Sent { bytes: sent, between_nodes } = predicted(&s).sent.expect("known");
        // Between nodes, of what each rank sends all alike: what goes to those of other nodes, counted by pairs.
        let w = f64::from(ranks);
        let pairs = (0..ranks).flat_map(|from| (0..ranks).map(move |to| from / node != to / node));
        let share = pairs.filter(|apart| *apart).count() as f64 / (w * w);
        let relayed = s.exchanges.iter().any(|x| x.leg != Leg::Whole);
        // Of sums node by node each node sends each element to its owner, and the owner sends the total to each other node.
        let nodes = f64::from(ranks.div_ceil(node));
        let by_node = s.settings.sums_by_node;
        prop_assert_eq!(by_node, node > 1 && nodes > 1.0);
        let far: f64 = s.train.ops.iter().map(|op| {
            if by_node && op.action.facts().sums_over_ranks() {
                return s.wire(&s.train, op).sent.eval(|_| f64::NAN) * 2.0 * (nodes - 1.0) / w;
            }
            let sizes: std::collections::BTreeMap<_, _> = predicted(&s).sizes.iter().cloned().collect();
            let of_mean = |symbol: fs_schedule::Symbol| {
                let name = symbol.to_string();
                let replicated = s.tables[0].sharding == Sharding::DataParallel && name.starts_with('R');
                sizes[&name.replace('R', "U")] * if replicated { w } else { 1.0 }
            };
            op.cost.wire.eval(of_mean) * share
        }).sum();
        prop_assert!(relayed || near(far, between_nodes), "{far} {between_nodes}");
        prop_assert!(between_nodes <= sent && (between_nodes > 0.0) == (ranks > node), "{between_nodes} of {sent}");
        let sums: Vec<String> = s.train.ops.iter().filter(|op| op.action.facts().sums_over_ranks()).map(|op| op.name.clone()).collect();
        prop_assert!(ranks == 1 || !sums.is_empty());
        let legs: std::collections::BTreeMap<String, Leg> = s.train.ops.iter().map(|op| {
            let first = op.action.exchanges().first().map_or(Leg::Whole, |e| s.exchanges[*e as usize].leg);
            (op.name.clone(), first)
        }).collect();
        let run = Options::default().steps(STEPS).evaluate(false);
        let mut session = Session::<f32>::new(s, run).expect("it runs");
        let report = session.run(&mut ()).expect("it trains");
        let found = report.ops.iter().map(|op| op.sent_bytes).sum::<f64>() / STEPS as f64;
        // Relays of a node that is not full have more or less to do than those of others.
        let about = relayed && ranks % node != 0;
        prop_assert!(near(found, sent) || (about && (found / sent - 1.0).abs() < 0.2), "sent {found}, expected {sent}");
        // Relays ask ranks of other nodes only, beside themselves; others send other nodes their share of what leaves them.
        let far: f64 = report.ops.iter().map(|op| op.sent_bytes * match legs[&op.name] {
            Leg::Between { .. } => 1.0,
            Leg::Within { .. } => 0.0,
            Leg::Whole if by_node && sums.contains(&op.name) => (nodes - 1.0) / (w - 1.0),
            Leg::Whole => share / (1.0 - 1.0 / w).max(f64::MIN_POSITIVE),
        }).sum::<f64>() / STEPS as f64;
        let fits = about || near(far, between_nodes);
        prop_assert!(fits, "sent other nodes {far}, expected {between_nodes}");
    }
}
