//! Rows through relays: schedules of random models on several nodes are proved, run in random legal orders, and train to the
//! bits of the plain serial schedule of the same machine.

use std::collections::BTreeSet;

use fs_compiler::distribution::{Lookahead, TableOptions};
use fs_compiler::{At, CompileOptions, Strategy, compile_with};
use fs_dsl::checked::Program;
use fs_schedule::{Action, Data, Engine, Leg, Schedule, verify};
use fs_tests::interpreter::{Order, Workload, reference, run};
use fs_tests::models::{Features, models, windows};
use fs_tests::training::{compiled_if_it_can_be, nodes_of, trained};
use fs_tests::{checked, dividing};
use proptest::prelude::{Strategy as Strategies, *};

const FEATURES: Features = Features { shardings: true, microbatches: true, placements: true };
const STEPS: u64 = 3;

/// What is chosen for one table: through relays or not, unique rows, a lookahead, where rows live.
type Chosen = (bool, Option<bool>, Option<Option<u32>>, Option<&'static str>);

fn chosen() -> impl Strategies<Value = Chosen> {
    let lookahead = prop::option::of(prop::option::of(1..=3u32));
    let sharding =
        prop::option::of(prop::sample::select(vec!["row_wise", "table_wise", "column_wise", "auto"]));
    (prop::bool::weighted(0.8), prop::option::of(any::<bool>()), lookahead, sharding)
}

/// Choices for the tables of a program, taken in turn.
fn tables(program: &Program, chosen: &[Chosen]) -> TableOptions {
    let mut options = TableOptions::default();
    let names = program.model.iter().flat_map(|m| &m.tables).map(|t| t.name.clone());
    for (name, (relay, unique, lookahead, sharding)) in names.zip(chosen.iter().cycle()) {
        options.relay.insert(name.clone(), *relay);
        options.unique.extend(unique.map(|unique| (name.clone(), unique)));
        options.lookahead.extend(lookahead.map(|k| (name.clone(), Lookahead(k))));
        options.sharding.extend(sharding.map(|s| (name, s.to_owned())));
    }
    options
}

fn relayed(s: &Schedule) -> bool {
    s.exchanges.iter().any(|x| matches!(x.leg, Leg::Between { .. }))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if std::env::var_os("FS_THOROUGH").is_some() { 600 } else { 40 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn relays_change_no_bit(
        model in models(FEATURES),
        (ranks, node) in prop::sample::select(vec![(4u32, 2u32), (4, 3), (3, 2), (6, 2), (6, 3), (5, 2), (6, 4)]),
        lookahead in 1..=3u32,
        strategy in prop::sample::select(vec![Strategy::Serial, Strategy::Prefetch, Strategy::Pec, Strategy::Pec]),
        balance in prop::option::of(prop::sample::select(vec![At::Ids, At::Rows])),
        chosen in prop::collection::vec(chosen(), 1..4),
        picks in prop::collection::vec(any::<u8>(), 1..4),
        seed in any::<u64>(),
    ) {
        let text = model.text();
        let program = dividing(checked(&text), ranks);
        let machine = CompileOptions::new(Strategy::Serial, ranks)
            .cluster(nodes_of(node))
            .balance(balance.is_some())
            .balance_at(balance);
        // A model may ask for what cannot be: replicas have no relays, a row-wise optimizer no columns.
        let Some(plain) = compiled_if_it_can_be(&program, &machine) else { return Ok(()) };
        prop_assert_eq!(plain.settings.node, Some(node));
        prop_assert!(!relayed(&plain));
        let mut choices = tables(&program, &chosen).windows(windows(&program, &picks));
        let options = machine.clone().policy(fs_compiler::sched::policy::of(strategy));
        let options = options.lookahead(lookahead);
        let asked = |choices: &TableOptions| compiled_if_it_can_be(&program, &options.clone().tables(choices.clone()));
        let other = asked(&choices).or_else(|| {
            // Where tables live stays as the model says.
            choices.sharding.clear();
            asked(&choices)
        });
        let other = other.or_else(|| {
            let replicated = |name: &String| {
                plain.tables.iter().any(|t| t.name == *name && t.sharding == fs_schedule::Sharding::DataParallel)
            };
            choices.relay.retain(|name, _| !replicated(name));
            asked(&choices)
        });
        // Nothing but where tables live and replicas stands in the way of relays.
        let other = other.expect("a schedule with relays");
        prop_assert_eq!(verify::verify(&other), vec![], "{:?}\n{}", choices, text);
        for (e, x) in (0..).zip(&other.exchanges) {
            let t = &other.tables[x.table as usize];
            let wanted = choices.relay.get(&t.name).copied().unwrap_or(false);
            if t.sharding != fs_schedule::Sharding::DataParallel {
                prop_assert_eq!(!x.leg.is_whole(), wanted, "exchange {} of {}\n{}", e, t.name, text);
            }
        }
        // Within nodes nothing takes the network.
        for op in &other.train.ops {
            let first = op.action.exchanges().first().map(|e| other.exchanges[*e as usize].leg);
            if op.action.is_transfer() && matches!(first, Some(Leg::Within { .. })) {
                prop_assert_eq!(op.engine, Engine::CopyOut);
            }
        }
        // Otherwise the same, but without relays: what an abstract value is made of depends on columns and on occurrences.
        let mut direct = choices.clone();
        direct.relay.clear();
        let direct = asked(&direct).expect("as with relays");
        let work = Workload { seed, batches: 5, ranks };
        // The interpreter does not know normalised rows that are cut by columns.
        if let Ok(direct) = reference(&direct, &work) {
            let want = reference(&other, &work).unwrap_or_else(|e| panic!("{e}\n{choices:?}\n{text}"));
            let together = fs_tests::interpreter::State::together;
            prop_assert!(together(&want.states) == together(&direct.states), "{:?}\n{}", choices, text);
            let n = other.train.ops.len();
            for round in 0..2u64 {
                let held = |i: u64| (seed as usize).wrapping_mul(7919).wrapping_add(i as usize * 31) % n;
                let slow: BTreeSet<_> = (0..round).map(|i| (None, held(i))).collect();
                let order = Order { slow, seed: seed.wrapping_add(round), skipped_are_free: false };
                if let Err(e) = run(&other, &work, &want, &order) {
                    panic!("{e}\n{choices:?}\n{text}");
                }
            }
        }
        if matches!(plain.data, Some(Data::Generate { .. })) {
            prop_assert_eq!(trained(&other, STEPS, Some(seed)), trained(&plain, STEPS, None), "{:?}\n{}", choices, text);
        }
    }
}

/// A model of one table whose rows all ranks use, on two nodes of two.
fn small(relay: bool, strategy: Strategy) -> Schedule {
    let text = "model m {
           table a { rows 40  dim 4  init normal(0, 0.5)  optimizer sgd(lr: 0.1)  sharding row_wise }
           input x: ids(a) { max 5 }
           input y: label
           loss bce_with_logits(linear(pool(x, sum), 1), y, normalize: samples)
         }
         train { batch 64  steps 4  optimizer sgd(lr: 0.1) }
         workload w { generate { lengths uniform(5, 5)  ids uniform  labels bernoulli(0.5)  samples 640 } }";
    let options = CompileOptions::new(strategy, 4).cluster(nodes_of(2));
    let tables = TableOptions::default().relay([("a".to_owned(), relay)]);
    compile_with(&checked(text), &options.tables(tables)).expect("it compiles").schedule
}

/// Rows that all ranks use cross between nodes once a node: half as often as without relays, both ways.
#[test]
fn a_row_crosses_once_for_a_node() {
    let sent = |s: &Schedule, between: bool| {
        let symbol = s
            .exchanges
            .iter()
            .position(|x| if between { x.leg.within().is_some() } else { x.leg.within().is_none() })
            .expect("an exchange");
        let p = s.prediction.as_ref().expect("a prediction");
        p.sizes.iter().find(|(name, _)| **name == format!("U{symbol}")).map(|(_, n)| *n).expect("a size")
    };
    let (plain, through) = (small(false, Strategy::Serial), small(true, Strategy::Serial));
    // 80 draws of 40 rows: a rank uses nearly all, of which a relay asks for its half.
    let (rank, relay) = (sent(&plain, false), sent(&through, true));
    assert!((34.0..36.0).contains(&rank) && (19.0..20.0).contains(&relay), "{rank} {relay}");
    let one = |s: &Schedule, is: fn(&Action) -> bool| s.train.ops.iter().filter(|op| is(&op.action)).count();
    assert_eq!(one(&through, |a| matches!(a, Action::SumAsked { .. })), 1);
    assert_eq!(one(&plain, |a| matches!(a, Action::SumAsked { .. })), 0);
}

/// What cannot be is said, and what nobody asked for is not done.
#[test]
fn relays_need_nodes_and_owners() {
    let model = |sharding: &str| {
        checked(&format!(
            "model m {{
               table a {{ rows 40  dim 4  optimizer sgd(lr: 0.1)  sharding {sharding} }}
               input x: ids(a) {{ max 5 }}
               input y: label
               loss bce_with_logits(linear(pool(x, sum), 1), y, normalize: samples)
             }}
             train {{ batch 8  steps 4  optimizer sgd(lr: 0.1) }}"
        ))
    };
    let tables = TableOptions::default().relay([("a".to_owned(), true)]);
    let error = |sharding: &str, ranks, node| {
        let options =
            CompileOptions::new(Strategy::Pec, ranks).cluster(nodes_of(node)).tables(tables.clone());
        compile_with(&model(sharding), &options).expect_err("it cannot be").to_string()
    };
    let one = error("row_wise", 2, 2);
    assert!(one.contains("rows cannot come through relays: all ranks are of one node"), "{one}");
    // Nodes of one rank have nobody to ask for.
    let single = error("row_wise", 2, 1);
    assert!(single.contains("all ranks are of one node"), "{single}");
    let everywhere = error("data_parallel", 4, 2);
    assert!(
        everywhere.contains("table a cannot come through relays: every rank has all of them"),
        "{everywhere}"
    );
}
