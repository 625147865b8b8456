//! What is told of a search over tables: changes follow from each other and lead to what there is, and so do derivations from serial.

use std::collections::{BTreeMap, BTreeSet};

use fs_compiler::distribution::Choice;
use fs_compiler::sched::policy;
use fs_compiler::search::tables::{Outcome, Way, place};
use fs_compiler::search::{self, Candidate, candidates};
use fs_compiler::{CompileOptions, Strategy, compile_with};
use fs_schedule::{Schedule, Sharding};
use fs_tests::models::{Features, models};
use fs_tests::{checked, dividing};
use proptest::prelude::*;

const FEATURES: Features = Features { shardings: true, microbatches: true, placements: true };

/// A choice but for which ranks own it.
fn anywhere(choice: &Choice) -> Choice {
    let sharding = match &choice.sharding {
        Sharding::ColumnWise { .. } => Sharding::ColumnWise { ranks: Vec::new() },
        Sharding::TableWise { .. } => Sharding::TableWise { rank: 0 },
        other => other.clone(),
    };
    Choice { sharding, ..choice.clone() }
}

/// Each change of a table is from what the one before it made of it, and the last made what there is.
fn follow(outcome: &Outcome, s: &Schedule) {
    let mut now: BTreeMap<&str, Choice> = BTreeMap::new();
    for swap in &outcome.swaps {
        for table in &swap.tables {
            let known = now.get(table.as_str()).cloned();
            let then = match &swap.ways {
                (Way::Distributed(from), Way::Distributed(to)) => {
                    assert!(known.is_none_or(|known| known == anywhere(from)), "{table}: {swap}");
                    Some(anywhere(to))
                }
                (Way::Owned(from), Way::Owned(to)) => {
                    let was = known.as_ref().map(|known| place(&known.sharding));
                    assert!(
                        was.is_none_or(|was| from.split(" and ").any(|from| from == was)),
                        "{table}: {swap}"
                    );
                    // What else replicas or parts become is not said.
                    let sharding =
                        if to == "row-wise" { Sharding::RowWise } else { Sharding::TableWise { rank: 0 } };
                    let whole = was.is_some_and(|was| ["row-wise", "table-wise"].contains(&was));
                    known.filter(|_| whole).map(|known| Choice { sharding, ..known })
                }
                (Way::Travelling(_), Way::Travelling(_)) => known,
                _ => None,
            };
            match then {
                Some(then) => _ = now.insert(table, then),
                None => _ = now.remove(table.as_str()),
            }
        }
    }
    let ends = distributed(s);
    for (table, told) in now {
        assert_eq!(told, ends[table], "{table}");
    }
}

/// A change found beside one that is left out in the end is told from what there is without it: here columns or replicas, which buy nothing
/// once a table's owners change. That these changed, and not to what a climb tried, says that another was left out.
#[test]
fn a_change_is_told_without_those_that_were_left_out() {
    let models: [&[(u32, u32, &str, u32)]; 3] = [
        &[(438, 16, "adagrad", 1), (438, 64, "rowwise_adagrad", 10)],
        &[(920, 64, "rowwise_adagrad", 20), (438, 16, "rowwise_adagrad", 50)],
        &[(40_000, 32, "rowwise_adagrad", 50), (438, 64, "sgd", 1), (4382, 16, "adagrad", 10)],
    ];
    let mut left_out = 0;
    for tables in models {
        let declared = |(i, (rows, dim, optimizer, max)): (usize, &(u32, u32, &str, u32))| {
            format!(
                "table t{i} {{ rows {rows}  dim {dim}  optimizer {optimizer}(lr: 0.1)  sharding auto }}
                 input x{i}: ids(t{i}) {{ max {max} }}"
            )
        };
        let declared: Vec<String> = tables.iter().enumerate().map(declared).collect();
        let pools: Vec<String> = (0..tables.len()).map(|i| format!("pool(x{i})")).collect();
        let program = checked(&format!(
            "model m {{
               {} input y: label
               loss bce_with_logits(linear(concat({}), 1), y, normalize: samples)
             }}
             train {{ batch 8192  steps 2 }}
             workload w {{ generate {{ lengths lognormal(mean: 12, sigma: 1, max: 50)  ids zipf(1.05)  labels hash }} }}",
            declared.join("\n"),
            pools.join(", ")
        ));
        let cluster = fs_dsl::cluster::preset("local").expect("a preset");
        let options = CompileOptions::new(Strategy::Serial, 8).cluster(cluster);
        let (best, outcome) =
            search::tables::search(&program, &options, candidates(None)).expect("a schedule");
        assert_eq!(outcome.defects, 0);
        follow(&outcome, &best.compiled.schedule);
        let last = outcome.swaps.last().expect("changes");
        let [from, to] = [&last.ways.0, &last.ways.1].map(|way| match way {
            Way::Distributed(choice) => place(&choice.sharding),
            _ => "",
        });
        if (from, to, &last.rules[..]) == ("table-wise", "row-wise", &[][..]) {
            assert!(last.wire.0.to_bits() == last.wire.1.to_bits(), "{last}");
            left_out += 1;
        }
    }
    assert!(left_out >= 2, "{left_out}");
}

/// How each table is distributed, but for which ranks own it.
fn distributed(s: &Schedule) -> BTreeMap<&str, Choice> {
    let asks = s.exchanges.iter().filter(|x| x.leg.within().is_none());
    let of = asks.map(|x| {
        let table = &s.tables[x.table as usize];
        let (unique, lookahead, windows, folded) = (x.unique, x.lookahead, x.windows, x.folded);
        let relayed = x.leg.between().is_some();
        let sharding = table.sharding.clone();
        (table.name.as_str(), anywhere(&Choice { unique, lookahead, windows, sharding, relayed, folded }))
    });
    of.collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    /// How the serial schedule's way became the one that was found is told of tables that differ from a serial schedule's, and of no
    /// others; by the rules that what differs needs.
    #[test]
    fn what_became_of_serial_is_told(
        model in models(FEATURES),
        (preset, ranks) in prop::sample::select(vec![("local", 2u32), ("dgx_h100", 8), ("h100x256", 16), ("h100x256", 64)]),
        // Small models are seldom fastest with rows told apart.
        pec in prop::option::of(1..=2u32),
    ) {
        let text = model.text();
        let program = dividing(checked(&text), ranks);
        let cluster = fs_dsl::cluster::preset(preset).expect("a preset");
        let options = CompileOptions::new(Strategy::Serial, ranks).cluster(cluster);
        // Too many that cannot be are an error.
        let serial = compile_with(&program, &options);
        prop_assume!(serial.is_ok());
        let serial = serial.expect("as assumed");
        let pec = pec.map(|lookahead| vec![Candidate::new(policy::of(Strategy::Pec), lookahead)]);
        let candidates = pec.unwrap_or_else(|| candidates(None).collect());
        // It may have too many windows to tell apart.
        let found = search::tables::search(&program, &options, candidates);
        prop_assume!(found.is_ok());
        let (best, outcome) = found.expect("as assumed");
        let found = &best.compiled.schedule;
        follow(&outcome, found);
        // Without the only change there is what its strategy makes of the model by itself.
        if let [only] = &outcome.swaps[..] {
            let Candidate { policy, lookahead, windows, microbatches, .. } = best.tried[best.chosen].candidate;
            let plain = options.clone().policy(policy).lookahead(lookahead).windows(windows);
            let plain = compile_with(&program, &plain.microbatches(microbatches)).expect("a schedule").schedule;
            let p = plain.prediction.expect("a prediction");
            prop_assert_eq!(only.without, Some((p.step, p.sent.expect("bytes"))), "{}\n{}", only, text);
        }
        let (serial, now) = (distributed(&serial.schedule), distributed(found));
        let differ: BTreeSet<&str> = now.keys().copied().filter(|name| serial[name] != now[name]).collect();
        let mut told = BTreeSet::new();
        for derivation in &found.search.as_ref().expect("how it was found").derivations {
            let rules: BTreeSet<&str> = derivation.steps.iter().map(|step| step.rule.as_str()).collect();
            for name in &derivation.tables {
                let (was, is) = (&serial[name.as_str()], &now[name.as_str()]);
                let one = |place: &Sharding| (was.sharding == *place) != (is.sharding == *place);
                let replicated = one(&Sharding::DataParallel);
                let needed: BTreeSet<&str> = [
                    (was.unique != is.unique, "unique"),
                    (was.lookahead != is.lookahead, "partition"),
                    (was.relayed != is.relayed, "relay"),
                    (was.folded != is.folded && !replicated, "fold"),
                    (one(&Sharding::ColumnWise { ranks: Vec::new() }), "columns"),
                    (replicated, "replicate"),
                ]
                .into_iter()
                .filter_map(|(differs, rule)| differs.then_some(rule))
                .collect();
                prop_assert!(needed.is_subset(&rules), "{name}: {was:?} {is:?} {derivation:?}\n{text}");
                prop_assert!(told.insert(name.as_str()), "{name} twice");
            }
        }
        prop_assert_eq!(told, differ, "{}", text);
    }
}
