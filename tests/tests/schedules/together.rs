//! Whichever tables travel together, and in however many parts dense gradients are summed: the same bits; and what `auto`
//! takes of it is never slower.

use fs_compiler::distribution::{At, TableOptions};
use fs_compiler::search::{self, Cost, Verdict, candidates};
use fs_compiler::{CompileOptions, Compiled, Strategy, compile_with};
use fs_dsl::checked::{Cluster, Program};
use fs_executor::{Options, Session};
use fs_schedule::action::Action;
use fs_schedule::{Data, Schedule, verify};
use fs_tests::models::{Features, models};
use fs_tests::training::state;
use fs_tests::{checked, dividing};
use proptest::prelude::*;

const FEATURES: Features = Features { shardings: true, microbatches: true, placements: true };

fn trained(schedule: &Schedule) -> Vec<Vec<u32>> {
    let options = Options::default().evaluate(false).steps(3);
    let mut session = Session::<f32>::new(schedule.clone(), options).unwrap_or_else(|e| panic!("{e}"));
    session.run(&mut ()).unwrap_or_else(|e| panic!("{e}"));
    state(&session).expect("state")
}

fn sums(s: &Schedule) -> usize {
    s.train.ops.iter().filter(|op| matches!(op.action, Action::AllReduce)).count()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Random models with tables in random groups and buckets of any size, by any strategy, through relays where there are
    /// several nodes.
    #[test]
    fn any_company_trains_to_the_same_bits(
        model in models(FEATURES),
        (ranks, node) in prop::sample::select(vec![(2u32, 8u32), (3, 8), (4, 8), (4, 2)]),
        strategy in prop::sample::select(vec![Strategy::Serial, Strategy::Prefetch, Strategy::Overlap, Strategy::Pec]),
        numbers in prop::collection::vec(0u32..3, 8),
        relayed in prop::collection::vec(any::<bool>(), 8),
        bytes in prop::option::of(prop_oneof![Just(1u64), 16..400u64, Just(u64::MAX)]),
        at in prop::sample::select(vec![None, None, Some(At::Ids), Some(At::Folded), Some(At::Rows)]),
    ) {
        let text = model.text();
        let program = dividing(checked(&text), ranks);
        let local = fs_dsl::cluster::preset("local").expect("a preset");
        let options = |strategy| {
            let cluster = Cluster { gpus_per_node: node, ..local.clone() };
            CompileOptions::new(strategy, ranks).cluster(cluster).balance(at.is_some()).balance_at(at)
        };
        let Ok(plain) = compile_with(&program, &options(Strategy::Serial)) else { return Ok(()) };
        prop_assume!(matches!(plain.schedule.data, Some(Data::Generate { .. })));
        let names: Vec<String> = plain.schedule.tables.iter().map(|t| t.name.clone()).collect();
        let mut tables = TableOptions::default().groups(names.iter().cloned().zip(numbers.iter().copied()));
        // Who asks on behalf of others asks no relay.
        if plain.schedule.settings.node.is_some() && at != Some(At::Folded) {
            let on = plain.schedule.tables.iter().zip(&relayed).filter(|(t, on)| {
                **on && t.sharding != fs_schedule::Sharding::DataParallel
            });
            tables = tables.relay(on.map(|(t, _)| (t.name.clone(), true)));
        }
        let asked = options(strategy).tables(tables).bucket_bytes(bytes);
        let other = compile_with(&program, &asked).unwrap_or_else(|e| panic!("{asked:?}: {e}\n{text}"));
        prop_assert_eq!(verify::verify(&other.schedule), vec![], "{:?}\n{}", numbers, text);
        // One sum where all are asked for at once, of strategies that cut it.
        if bytes == Some(u64::MAX) {
            prop_assert!(sums(&other.schedule) <= 1, "{}", text);
        }
        prop_assert_eq!(trained(&other.schedule), trained(&plain.schedule), "{:?} {:?}\n{}", numbers, bytes, text);
    }
}

/// A narrow table that is needed first, and a wide one that is needed last.
fn late(batch: u32) -> Program {
    checked(&format!(
        "model late {{
          table items {{ rows 100_000  dim 64  init hash(scale: 0.05)  optimizer sgd(lr: 0.05)  sharding row_wise }}
          table extra {{ rows 5_000_000  dim 256  init hash(scale: 0.05)  optimizer sgd(lr: 0.05)  sharding row_wise }}
          input item: ids(items) {{ max 256  keep last }}
          input other: ids(extra) like item
          input click: label like item
          let a = silu(linear(lookup(item), 64, name: \"a\"))
          let b = silu(linear(a, 64, name: \"b\"))
          let logits = linear(b, 1, name: \"c\") + linear(lookup(other), 1, name: \"d\")
          loss bce_with_logits(logits, click, normalize: 3200)
        }}
        train {{ batch {batch}  steps 10  optimizer adam(lr: 1e-3)  balance off }}
        workload w {{ generate {{ lengths lognormal(mean: 50, sigma: 1, max: 256)  ids zipf(1.05)  labels hash }} }}"
    ))
}

fn step(compiled: &Compiled) -> f64 {
    compiled.schedule.prediction.as_ref().expect("a prediction").step
}

/// A table that is needed late travels apart, which no strategy does by itself; and what is asked for by hand stays.
#[test]
fn what_is_needed_late_travels_apart() {
    let (mut taken, mut stayed) = (0, 0);
    for (batch, preset, ranks) in
        [(1024, "dgx_h100", 8), (2048, "h100x256", 256), (512, "h100x256", 64), (8, "dgx_h100", 8)]
    {
        let program = late(batch);
        let cluster = fs_dsl::cluster::preset(preset).expect("a preset");
        let options = CompileOptions::new(Strategy::Serial, ranks).cluster(cluster);
        let auto =
            |o: &CompileOptions| search::tables::search(&program, o, candidates(None)).expect("a schedule");
        let (best, outcome) = auto(&options);
        assert_eq!(verify::verify(&best.compiled.schedule), vec![]);
        for tried in &best.tried {
            if let Verdict::Scheduled(Cost { step: named, .. }) = tried.verdict {
                assert!(step(&best.compiled) <= named, "{preset}: {}", tried.candidate.describe());
            }
        }
        let together: Vec<_> = outcome.swaps.iter().filter(|swap| swap.rules == ["together"]).collect();
        for swap in &together {
            assert!(swap.step.1 < swap.step.0, "{swap}");
            let without = swap.without.expect("it could be scheduled");
            assert!(without.0 > step(&best.compiled), "{swap}: {without:?}");
            assert!(swap.wire.0 > 0.0, "{swap}");
        }
        taken += together.len();
        stayed += usize::from(together.is_empty());
        // Whoever says who travels with whom is heard.
        let both = TableOptions::default().groups([("items".to_owned(), 0), ("extra".to_owned(), 0)]);
        let (said, outcome) = auto(&options.clone().tables(both).bucket_bytes(1 << 20));
        assert!(outcome.swaps.iter().all(|swap| !swap.rules.contains(&"together")), "{preset}");
        let (found, by_hand) = (step(&best.compiled), step(&said.compiled));
        assert!(found <= by_hand * 1.001, "{preset}, {ranks} ranks: {found} {by_hand}");
    }
    assert!(taken > 0 && stayed > 0, "{taken} {stayed}");
}
