//! What ways to distribute a table are weighed by is what schedules send.

use fs_compiler::algebra::derive::{choice, derive};
use fs_compiler::distribution::Choice;
use fs_compiler::sched::policy;
use fs_compiler::search::Candidate;
use fs_compiler::search::tables::{alike, asking};
use fs_compiler::{CompileOptions, Strategy, compile_with};
use fs_dsl::checked::Cluster;
use fs_schedule::Schedule;
use fs_tests::models::{Features, models};
use fs_tests::{checked, dividing};
use proptest::prelude::*;

const FEATURES: Features = Features { shardings: true, microbatches: true, placements: true };

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    /// What a way is weighed by is what schedules send more or less with it, to all and to other nodes: of samples that stay, and of nodes
    /// that are full.
    #[test]
    fn ways_cost_what_schedules_send(
        model in models(FEATURES),
        // Rows that can be cut by columns.
        wide in any::<bool>(),
        (ranks, node) in prop::sample::select(vec![(2u32, 8u32), (3, 8), (4, 8), (4, 2), (6, 2), (6, 3), (2, 1)]),
        lookahead in prop::option::of(1..=3u32),
        strategy in prop::sample::select(vec![Strategy::Serial, Strategy::Pec, Strategy::Pec]),
        one in any::<bool>(),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 3),
    ) {
        let text = if wide { model.in_blocks() } else { model }.text();
        let program = dividing(checked(&text), ranks);
        let local = fs_dsl::cluster::preset("local").expect("a preset");
        let cluster = Cluster { nodes: ranks.div_ceil(node), gpus_per_node: node, ..local };
        let options = CompileOptions::new(strategy, ranks).lookahead(lookahead).windows(one.then_some(1));
        let options = options.cluster(cluster).balance(false);
        let now = compile_with(&program, &options);
        prop_assume!(now.is_ok());
        let now = now.expect("as assumed").schedule;
        let sent = |s: &Schedule| s.prediction.as_ref().and_then(|p| p.sent).expect("a prediction");
        let candidate = Candidate::new(policy::of(strategy), lookahead);
        let mut compared = 0;
        for class in alike(&program, &now, (&options, true), candidate) {
            let derived = derive(&class.context, &class.now, &class.sizes).expect("derived");
            let cost = |of: &Choice| {
                let way = derived.found.iter().find(|way| choice(way.commitment, &class.now) == *of);
                way.map(|way| way.cost).expect("a way")
            };
            let before = cost(&class.now);
            for pick in &picks {
                let to = choice(pick.get(&derived.found).commitment, &class.now);
                let asked = asking(&options.tables, &class.tables, (&class.now, &to), class.context.folds.is_none());
                let Ok(other) = compile_with(&program, &options.clone().tables(asked)) else { continue };
                compared += 1;
                let (after, count) = (cost(&to), class.tables.len() as f64);
                let (was, is) = (sent(&now), sent(&other.schedule));
                for (told, more) in [
                    (after.wire - before.wire, is.bytes - was.bytes),
                    (after.far - before.far, is.between_nodes - was.between_nodes),
                ] {
                    let close = (told * count - more).abs() <= 1e-3 * was.bytes;
                    prop_assert!(close, "{} {more} of {}: {:?} to {to:?} {:?} {before:?} {after:?}\n{text}", told * count, was.bytes, class.now, class.sizes);
                }
            }
        }
        prop_assume!(compared > 0);
    }
}
