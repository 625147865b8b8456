//! What the search over tables chooses from trains to the same bits, and is never slower than where it began.

use std::collections::BTreeSet;

use fs_compiler::algebra::convert::to_nodes;
use fs_compiler::algebra::derive::{Ways, choice, table};
use fs_compiler::distribution::{At, TableOptions, Terms};
use fs_compiler::sched::explain::explain;
use fs_compiler::sched::policy;
use fs_compiler::search::tables::{Way, alike, asking};
use fs_compiler::search::{self, Candidate, Cost, Verdict, candidates};
use fs_compiler::{CompileOptions, Strategy, compile_with};
use fs_dsl::checked::Cluster;
use fs_executor::{Options, Session};
use fs_schedule::{Data, Schedule, Sent, Sharding, verify};
use fs_tests::models::{Features, models};
use fs_tests::training::state;
use fs_tests::{checked, dividing, root};
use proptest::prelude::*;

const FEATURES: Features = Features { shardings: true, microbatches: true, placements: true };
const STEPS: u64 = 3;

fn trained(schedule: &Schedule) -> Vec<Vec<u32>> {
    let options = Options::default().evaluate(false).steps(STEPS);
    let mut session = Session::<f32>::new(schedule.clone(), options).unwrap_or_else(|e| panic!("{e}"));
    session.run(&mut ()).unwrap_or_else(|e| panic!("{e}"));
    state(&session).expect("state")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Each way that is derived for a table is the terms of the choice that it is taken for, and a schedule of a random model
    /// with it is proved and trains to the bits of the plain serial one.
    #[test]
    fn ways_train_to_the_same_bits(
        model in models(FEATURES),
        // Rows that can be cut by columns.
        wide in any::<bool>(),
        (ranks, node) in prop::sample::select(vec![(1u32, 8u32), (2, 8), (3, 8), (4, 8), (4, 2), (3, 2), (4, 2)]),
        lookahead in prop::option::of(1..=3u32),
        strategy in prop::sample::select(vec![Strategy::Serial, Strategy::Prefetch, Strategy::Pec]),
        at in prop::sample::select(vec![None, Some(At::Ids), Some(At::Ids), Some(At::Folded), Some(At::Rows)]),
        // Whether who asks for rows of samples that move is left open, or said by the place.
        open in any::<bool>(),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 3),
    ) {
        let text = if wide { model.in_blocks() } else { model }.text();
        let program = dividing(checked(&text), ranks);
        let local = fs_dsl::cluster::preset("local").expect("a preset");
        let cluster = Cluster { gpus_per_node: node, ..local };
        // Samples stay, or move at a place; the order of sums follows from it.
        let moving = |o: CompileOptions| o.balance(at.is_some()).balance_at(at);
        let windows = (picks[0].index(2) == 0).then_some(1);
        let options = CompileOptions::new(strategy, ranks).lookahead(lookahead).windows(windows);
        let options = moving(options.cluster(cluster.clone()));
        // A model may ask for what cannot be.
        let serial = moving(CompileOptions::new(Strategy::Serial, ranks).cluster(cluster));
        let plain = compile_with(&program, &serial);
        prop_assume!(plain.is_ok());
        let plain = plain.expect("as assumed");
        prop_assume!(matches!(plain.schedule.data, Some(Data::Generate { .. })));
        let now = compile_with(&program, &options).expect("compiled before").schedule;
        let candidate = Candidate::new(policy::of(strategy), lookahead);
        let (mut bits, mut others) = (None, 0);
        for class in alike(&program, &now, (&options, open), candidate) {
            let ways = Ways::of(&class.context, &class.now).expect("ways");
            let derived = ways.at(&class.sizes);
            prop_assert!(derived.saturated, "{} nodes", derived.nodes);
            let mut choices = Vec::new();
            // Of what is said to cost no less than another that other is there.
            for (n, found) in derived.found.iter().enumerate() {
                let others = derived.found.iter().enumerate().filter(|(m, _)| *m != n);
                prop_assert!(!found.covered || others.clone().any(|(_, o)| o.cost.covers(&found.cost)));
            }
            for found in &derived.found {
                let choice = choice(found.commitment, &class.now);
                let mut terms = Terms::default();
                let built = table(&mut terms, &class.context, &choice).expect("terms");
                let built = to_nodes(&terms, &built).expect("nodes").to_string();
                prop_assert_eq!(ways.nodes(found).to_string(), built, "{:?}", choice);
                prop_assert!(!choices.contains(&choice), "{:?} twice", choice);
                choices.push(choice);
            }
            prop_assert!(choices.contains(&class.now), "{:?} is no way to itself", class.now);
            // Both are open where samples move and somebody is asked.
            let asked = choices.iter().filter(|c| c.sharding != Sharding::DataParallel && !c.relayed);
            let folded: BTreeSet<bool> = asked.map(|c| c.folded).collect();
            let both = class.context.moved && class.context.folds.is_none() && !folded.is_empty();
            prop_assert_eq!(folded.len() == 2, both, "{:?} {:?}", choices, class.context);
            for pick in &picks {
                let choice = pick.get(&choices);
                let folds = class.context.folds.is_none();
                let asked = asking(&options.tables, &class.tables, (&class.now, choice), folds);
                // Where tables may live is known to who places them; who asks for rows that stay may be anyone.
                let stays = choice.sharding == class.now.sharding && choice.relayed == class.now.relayed;
                let other = match compile_with(&program, &options.clone().tables(asked)) {
                    Ok(other) => other,
                    Err(error) if stays => panic!("{choice:?}: {error}\n{text}"),
                    Err(_) => continue,
                };
                prop_assert_eq!(verify::verify(&other.schedule), vec![], "{:?}", choice);
                for x in &other.schedule.exchanges {
                    let asks = x.leg.within().is_none();
                    if asks && class.tables.contains(&other.schedule.tables[x.table as usize].name) {
                        let made = (x.unique, x.lookahead, x.leg.between().is_some(), x.folded);
                        let wanted = (choice.unique, choice.lookahead, choice.relayed, choice.folded);
                        prop_assert_eq!(made, wanted, "{:?}\n{}", choice, text);
                    }
                }
                let bits = bits.get_or_insert_with(|| trained(&plain.schedule));
                prop_assert_eq!(&trained(&other.schedule), &*bits, "{:?} {:?}\n{}", class.tables, choice, text);
                others += usize::from(*choice != class.now);
            }
        }
        prop_assume!(others > 0);
    }
}

/// Of examples on machines that have room for them: no step is longer, what is said of swaps is true, and twice is the same.
#[test]
fn it_is_never_slower_and_always_the_same() {
    let (mut swaps, mut others, mut alone) = (0, 0, 0);
    for (name, preset) in
        [("ranking", "local"), ("dlrm", "dgx_h100"), ("ranking", "h100x256"), ("movielens", "h100x256")]
    {
        let cluster = fs_dsl::cluster::preset(preset).expect("a preset");
        let program = fs_dsl::load(&root(&format!("examples/{name}.fs"))).program.expect("checks");
        let ranks = cluster.nodes * cluster.gpus_per_node;
        let program = dividing(program, ranks);
        let options = CompileOptions::new(Strategy::Serial, None).cluster(cluster);
        let search = || search::tables::search(&program, &options, candidates(None)).expect("a schedule");
        let (best, outcome) = search();
        assert_eq!(outcome.defects, 0, "{name}");
        let step = best.compiled.schedule.prediction.as_ref().expect("a prediction").step;
        for tried in &best.tried {
            if let Verdict::Scheduled(Cost { step: named, .. }) = tried.verdict {
                assert!(step <= named, "{name}: {step} is longer than {}", tried.candidate.describe());
            }
        }
        let mut before = f64::INFINITY;
        for swap in &outcome.swaps {
            assert!(swap.step.1 < swap.step.0 && swap.step.0 <= before, "{name}: {swap}");
            let elsewhere = |from: &str| from.contains("replicated") || from.contains("column-wise");
            let owned = matches!(&swap.ways, (Way::Owned(from), _) if !elsewhere(from));
            assert!(swap.rules.is_empty() == owned && swap.ways.0 != swap.ways.1, "{name}: {swap}");
            assert!(swap.wire.0 >= 0.0 && swap.wire.1 >= 0.0, "{name}: {swap}");
            before = swap.step.1;
        }
        if let Some(last) = outcome.swaps.last() {
            assert!(last.step.1.to_bits() == step.to_bits(), "{name}: {last}");
        }
        let found = best.compiled.schedule.search.as_ref().expect("how it was found");
        assert_eq!((found.strategies.len(), found.rewrites.len()), (best.tried.len(), outcome.swaps.len()));
        // It may be of another strategy than the one that is shortest without changes.
        let first = match best.tried[best.chosen].verdict {
            Verdict::Scheduled(Cost { step, .. }) => step,
            Verdict::Pruned(bound) => panic!("{name}: {bound:?}"),
        };
        for rewrite in &found.rewrites {
            // Each left out by itself; of one there is nothing else.
            let without = rewrite.without.expect("it could be scheduled before");
            let Sent { bytes: sent, between_nodes } = rewrite.without_sent.expect("as scheduled");
            let only = found.rewrites.len() == 1;
            assert!(without > step && (!only || without.to_bits() == first.to_bits()), "{name}: {rewrite:?}");
            assert!(sent > 0.0 && between_nodes <= sent, "{name}: {rewrite:?}");
            // The bytes of the change alone: owners of whole tables and company send as many.
            if only {
                let prediction = best.compiled.schedule.prediction.as_ref().expect("a prediction");
                let sends = prediction.sent.expect("known").bytes;
                let [before, after] = rewrite.bytes;
                assert!(
                    ((sent - sends) - (before - after)).abs() <= 0.02 * sent,
                    "{name}: {sent} {sends} {rewrite:?}"
                );
                alone += 1;
            }
        }
        for other in &found.others {
            assert!(other.step * 1.001 >= step, "{name}: {other:?} is shorter than {step}");
        }
        let text = explain(&best.compiled.schedule).and_then(|e| e.text(None)).expect("a prediction");
        let said = |words: &str| text.lines().filter(|line| line.contains(words)).count();
        assert_eq!(said(", by ").min(1), found.rewrites.len().min(1), "{text}");
        assert_eq!(said("not taken: "), found.others.len(), "{text}");
        others += found.others.len();
        let json = fs_schedule::to_text(&best.compiled.schedule);
        let read: Schedule = serde_json::from_str(&json).expect("a schedule");
        assert_eq!(read.search.as_ref(), Some(found));
        swaps += outcome.swaps.len();
        let (again, same) = search();
        assert_eq!(outcome.swaps, same.swaps, "{name}");
        assert_eq!(again.compiled.schedule, best.compiled.schedule, "{name}");
    }
    assert!(swaps > 0 && others > 0 && alone > 0, "nothing was ever better, or nothing was ever tried");
}

/// A whole table moves from one rank to all where that is faster and the model leaves it open, and nowhere else; it trains to the
/// same bits.
#[test]
fn owners_change_where_the_model_leaves_them_open() {
    let search = |second: &str, named: Option<(&str, &str)>| {
        let text = format!(
            "model m {{
               table large {{ rows 100_000  dim 64  optimizer adagrad(lr: 0.1)  sharding row_wise }}
               input x: ids(large) {{ max 10 }}
               table small {{ rows 50_000  dim 32  optimizer adagrad(lr: 0.1)  {second} }}
               input y: ids(small) {{ max 1 }}
               input click: label
               loss bce_with_logits(linear(concat(pool(x), pool(y)), 1), click, normalize: samples)
             }}
             train {{ batch 1024  steps 2 }}
             workload w {{ generate {{ lengths lognormal(mean: 20, sigma: 1, max: 50)  ids zipf(1.05)  labels hash }} }}"
        );
        let program = checked(&text);
        let cluster = fs_dsl::cluster::preset("local").expect("a preset");
        let named = named.map(|(table, sharding)| (table.to_owned(), sharding.to_owned()));
        let options = CompileOptions::new(Strategy::Serial, 4)
            .cluster(cluster)
            .tables(TableOptions::default().sharding(named));
        let (best, outcome) =
            search::tables::search(&program, &options, candidates(None)).expect("a schedule");
        let plain = compile_with(&program, &options).expect("a schedule").schedule;
        let owned = outcome.swaps.iter().find(|swap| matches!(swap.ways.1, Way::Owned(_))).cloned();
        (best.compiled.schedule, plain, owned)
    };
    let (s, plain, owned) = search("sharding auto", None);
    let at = |s: &Schedule| s.tables[1].sharding.clone();
    assert!(matches!(at(&plain), Sharding::TableWise { .. }) && at(&s) == Sharding::RowWise, "{owned:?}");
    let owned = owned.expect("another owner");
    assert_eq!((&owned.tables[..], &owned.rules[..]), (&["small".to_owned()][..], &[][..]));
    assert!(owned.step.1 < owned.step.0 && owned.to_string().contains("(by the same terms)"), "{owned}");
    let text = explain(&s).and_then(|e| e.text(None)).expect("a prediction");
    assert!(text.contains("small: row-wise instead of table-wise, by the same terms"), "{text}");
    assert_eq!(verify::verify(&s), vec![]);
    assert_eq!(trained(&s), trained(&plain));
    for (second, named) in [("sharding table_wise", None), ("sharding auto", Some(("small", "table_wise")))] {
        let (s, _, owned) = search(second, named);
        assert!(owned.is_none() && matches!(at(&s), Sharding::TableWise { .. }), "{owned:?}");
    }
}

/// Tables that the model leaves open go to owners of whole ones together where that is faster, if all ranks have them and if they are
/// cut by columns; where the model says otherwise they stay. They train to the same bits.
#[test]
fn all_tables_change_their_place_together() {
    let search = |tables: u32, columns: u32, sharding: &str| {
        let table = |i: u32| {
            let rows = 1000 + 100 * i;
            format!(
                "table t{i} {{ rows {rows}  dim {columns}  optimizer sgd(lr: 0.1)  sharding {sharding} }}
                 input x{i}: ids(t{i}) {{ max 10 }}"
            )
        };
        let declared: Vec<String> = (0..tables).map(table).collect();
        let pooled: Vec<String> = (0..tables).map(|i| format!("pool(x{i})")).collect();
        let text = format!(
            "model m {{ {} input click: label
               loss bce_with_logits(linear(concat({}), 1), click, normalize: samples) }}
             train {{ batch 144  steps 2  balance off }}
             workload w {{ generate {{ lengths lognormal(mean: 20, sigma: 1, max: 50)  ids zipf(1.05)  labels hash }} }}",
            declared.join("\n"),
            pooled.join(", ")
        );
        let program = checked(&text);
        let cluster = fs_dsl::cluster::preset("h100x256").expect("a preset");
        let options = CompileOptions::new(Strategy::Serial, 9).cluster(cluster);
        let (best, outcome) =
            search::tables::search(&program, &options, candidates(None)).expect("a schedule");
        let plain = compile_with(&program, &options).expect("a schedule").schedule;
        let owned = outcome.swaps.into_iter().find(|swap| matches!(swap.ways.1, Way::Owned(_)));
        (best.compiled.schedule, plain, owned)
    };
    for (tables, columns, was, rule) in
        [(6, 32, "data_parallel", "replicate"), (2, 128, "column_wise", "columns")]
    {
        let (s, plain, owned) = search(tables, columns, "auto");
        let owned = owned.expect("other owners");
        assert_eq!((owned.tables.len() as u32, &owned.rules[..]), (tables, &[rule][..]), "{owned}");
        let there = |s: &Schedule| s.tables.iter().filter(|t| t.sharding == Sharding::RowWise).count() as u32;
        assert_eq!((there(&plain), there(&s)), (0, tables), "{owned}");
        assert_eq!(verify::verify(&s), vec![]);
        assert_eq!(trained(&s), trained(&plain));
        let (s, _, owned) = search(tables, columns, was);
        assert!(owned.is_none() && there(&s) == 0, "{was}: {owned:?}");
    }
}

/// Many tables travel in some parts where compute can work on one while the next is under way, but for what somebody has said of
/// company. They train to the same bits.
#[test]
fn many_tables_travel_in_parts() {
    let declared = (0..40).map(|i| {
        let rows = 10_000 + 97 * i;
        format!("table t{i} {{ rows {rows}  dim 16  optimizer sgd(lr: 0.1)  sharding row_wise }} input x{i}: ids(t{i}) {{ max 10 }}")
    });
    let pooled: Vec<String> = (0..40).map(|i| format!("pool(x{i}, sum)")).collect();
    let text = format!(
        "model m {{ {} input click: label
           loss bce_with_logits(linear(relu(linear({}, 64)), 1), click, normalize: samples) }}
         train {{ batch 256  steps 2 }}
         workload w {{ generate {{ lengths uniform(1, 10)  ids zipf(1.05)  labels bernoulli(0.5) }} }}",
        declared.collect::<Vec<_>>().join("\n"),
        pooled.join(" + ")
    );
    let program = checked(&text);
    let cluster = fs_dsl::cluster::preset("local").expect("a preset");
    let options = CompileOptions::new(Strategy::Serial, 8).cluster(cluster);
    let shortest = |options: &CompileOptions| {
        let steps = candidates(None).filter_map(|c| {
            let options = options.clone().policy(c.policy).lookahead(c.lookahead);
            Some(compile_with(&program, &options).ok()?.schedule.prediction?.step)
        });
        steps.reduce(f64::min).expect("a step")
    };
    let (best, outcome) = search::tables::search(&program, &options, candidates(None)).expect("a schedule");
    let s = best.compiled.schedule;
    let parts: Vec<_> =
        outcome.swaps.iter().filter(|swap| swap.ways.1.to_string().contains(" parts")).collect();
    let [parts] = parts[..] else { panic!("{:?}", outcome.swaps) };
    assert_eq!(parts.tables.len(), 40, "{parts}");
    let step = s.prediction.as_ref().expect("a prediction").step;
    let plain = shortest(&options);
    assert!(step < 0.9 * plain, "{step} for {plain}");
    assert_eq!(verify::verify(&s), vec![]);
    let serial = compile_with(&program, &options).expect("a schedule").schedule;
    assert_eq!(trained(&s), trained(&serial));
    // With one group for all of them nothing is left to try.
    let together = TableOptions::default().groups((0..40).map(|i| (format!("t{i}"), 0)));
    let said = options.tables(together);
    let (best, outcome) = search::tables::search(&program, &said, candidates(None)).expect("a schedule");
    assert!(
        outcome.swaps.iter().all(|swap| !matches!(swap.ways.1, Way::Travelling(_)) || swap.tables.is_empty())
    );
    assert!(best.compiled.schedule.prediction.expect("a prediction").step > step);
}

/// Which strategy is shortest depends on where tables live and in how many parts they travel: row-wise `pec` is, which hides that all wait
/// for all, and in three parts `overlap`, without what telling rows apart takes.
#[test]
fn places_and_parts_are_looked_for_together() {
    let tables = [
        (3_257, 64, "rowwise_adagrad", 5),
        (28_470, 32, "rowwise_adagrad", 5),
        (4_868, 8, "adagrad", 20),
        (126, 8, "sgd", 2),
        (60_000, 64, "rowwise_adagrad", 10),
        (109, 32, "rowwise_adagrad", 5),
        (975, 128, "rowwise_adagrad", 2),
        (7_971, 16, "sgd", 10),
    ];
    let declared = tables.iter().enumerate().map(|(i, (rows, dim, optimizer, max))| {
        format!(
            "table t{i} {{ rows {rows}  dim {dim}  optimizer {optimizer}(lr: 0.1)  sharding auto }}
             input x{i}: ids(t{i}) {{ max {max} }}"
        )
    });
    let pooled: Vec<String> = (0..tables.len()).map(|i| format!("pool(x{i})")).collect();
    let text = format!(
        "model m {{ {} input click: label
           loss bce_with_logits(linear(concat({}), 1), click, normalize: samples) }}
         train {{ batch 2048  steps 2 }}
         workload w {{ generate {{ lengths lognormal(mean: 12, sigma: 1, max: 50)  ids zipf(1.05)  labels hash }} }}",
        declared.collect::<Vec<_>>().join("\n"),
        pooled.join(", ")
    );
    let program = checked(&text);
    let cluster = fs_dsl::cluster::preset("local").expect("a preset");
    let options = CompileOptions::new(Strategy::Serial, 8).cluster(cluster);
    let named = (0..tables.len()).map(|i| (format!("t{i}"), "row_wise".to_owned()));
    let row_wise = TableOptions::default().sharding(named);
    let of = |strategy, tables: TableOptions| {
        let options = options.clone().policy(policy::of(strategy)).lookahead(1).tables(tables);
        compile_with(&program, &options).expect("a schedule").schedule.prediction.expect("a prediction").step
    };
    let [overlap, pec] = [Strategy::Overlap, Strategy::Pec].map(|strategy| of(strategy, row_wise.clone()));
    let (best, outcome) = search::tables::search(&program, &options, candidates(None)).expect("a schedule");
    let s = best.compiled.schedule;
    assert!(pec < overlap && s.strategy == Strategy::Overlap, "{pec} {overlap} {:?}", s.strategy);
    let ways: Vec<String> = outcome.swaps.iter().map(|swap| swap.ways.1.to_string()).collect();
    assert!(ways.starts_with(&["row-wise".into(), "travelling in 3 parts".into()]), "{ways:?}");
    let step = s.prediction.as_ref().expect("a prediction").step;
    assert!(step < 0.8 * pec, "{step} for {pec}");
    // A change that makes a step longer is there for the sake of others.
    let worth = |s: &Schedule| {
        let text = explain(s).and_then(|e| e.text(None)).expect("a prediction");
        text.matches("a step instead of").count() == ways.len()
            && text.contains("; worth it with what follows")
    };
    let mut longer = s.clone();
    let first = &mut longer.search.as_mut().expect("how it was found").rewrites[0];
    first.step.reverse();
    assert_eq!((worth(&s), worth(&longer)), (false, true));
    assert_eq!(verify::verify(&s), vec![]);
    assert_eq!(trained(&s), trained(&compile_with(&program, &options).expect("a schedule").schedule));
}

/// With several microbatches: in one window where that is shorter, never longer than with a window for each, and as is asked for;
/// all train to the same bits.
#[test]
fn windows_change_where_a_step_is_shorter() {
    let text = "model m {
           table t0 { rows 1_000_000  dim 16  optimizer sgd(lr: 0.1)  sharding table_wise }
           input x0: ids(t0) { max 10 }
           input y: label
           loss bce_with_logits(mlp(concat(pool(x0), pool(x0)), [256, 256, 1]), y, normalize: samples)
         }
         train { batch 1024  steps 2 }
         workload w { generate { lengths lognormal(mean: 20, sigma: 1, max: 50)  ids zipf(1.05)  labels hash } }";
    let program = checked(text);
    let cluster = fs_dsl::cluster::preset("local").expect("a preset");
    let options = CompileOptions::new(Strategy::Serial, 16).cluster(cluster).microbatches(4);
    let searched = |options: &CompileOptions| {
        let (best, _) = search::tables::search(&program, options, candidates(None)).expect("a schedule");
        assert_eq!(verify::verify(&best.compiled.schedule), vec![]);
        best
    };
    let (free, each, one) =
        (searched(&options), searched(&options.clone().windows(4)), searched(&options.clone().windows(1)));
    let windows = |best: &search::Best| best.compiled.schedule.exchanges[0].windows;
    assert_eq!((windows(&free), windows(&each), windows(&one)), (Some(1), None, Some(1)));
    let step = |best: &search::Best| best.compiled.schedule.prediction.as_ref().expect("a prediction").step;
    assert!(step(&free) < 0.95 * step(&each), "{} of {}", step(&free), step(&each));
    assert!(
        free.tried.iter().any(|t| t.candidate.windows.is_none())
            && free.tried[free.chosen].candidate.windows == Some(1)
    );
    let told = free.tried[free.chosen].candidate.describe();
    assert!(told.contains(", 1 window"), "{told}");
    let serial = compile_with(&program, &options).expect("a schedule").schedule;
    for best in [&free, &each, &one] {
        assert_eq!(trained(&best.compiled.schedule), trained(&serial));
    }
}

/// Many lists of one table, in one window or not: what they can become is found as fast, and is the same as for some of them.
#[test]
fn many_lists_of_a_table_cost_as_few_ways() {
    let text = |lists: usize| {
        let each = |of: &dyn Fn(usize) -> String, by: &str| (0..lists).map(of).collect::<Vec<_>>().join(by);
        format!(
            "model m {{
               table a {{ rows 100_000  dim 64  optimizer adagrad(lr: 0.1) }}
               {}
               input y: label
               loss bce_with_logits(linear(concat({}), 1), y, normalize: samples)
             }}
             train {{ batch 2048  steps 5 }}
             workload w {{ generate {{ lengths fixed(5)  ids zipf(1.05)  labels hash }} }}",
            each(&|i| format!("input x{i}: ids(a) {{ max 10 }}"), "\n"),
            each(&|i| format!("pool(x{i})"), ", ")
        )
    };
    let cluster = fs_dsl::cluster::preset("h100x256").expect("a preset");
    let nodes = |lists: usize, microbatches: u32| {
        let options =
            CompileOptions::new(Strategy::Serial, 32).cluster(cluster.clone()).microbatches(microbatches);
        let found = search::tables::search(&checked(&text(lists)), &options, candidates(None));
        found.expect("a schedule").1.nodes
    };
    assert_eq!(nodes(24, 1), nodes(48, 1));
    assert_eq!(nodes(24, 4), nodes(48, 4));
}

/// Two operations on one sequence: rows once or per occurrence are other orders of a sum, so the one is no way to the other.
#[test]
fn what_two_operations_use_keeps_its_entries() {
    let text = |uses: &str| {
        format!(
            "model twice {{
              table a {{ rows 5  dim 4  init normal(0, 0.5)  optimizer sgd(lr: 0.3)  sharding row_wise }}
              input x: ids(a) {{ max 9 }}
              input click: label
              loss bce_with_logits(linear({uses}, 1), click, normalize: samples)
            }}
            train {{ batch 12  steps 3  balance off  optimizer adam(lr: 1e-2) }}
            workload w {{ generate {{ lengths uniform(5, 9)  ids uniform  labels hash }} }}"
        )
    };
    for (uses, same) in [("pool(x)", true), ("concat(pool(x), pool(x, mean))", false)] {
        let program = checked(&text(uses));
        let of = |unique: bool| {
            let options = CompileOptions::new(Strategy::Serial, 2);
            let named = TableOptions::default().unique([("a".to_owned(), unique)]);
            compile_with(&program, &options.tables(named)).expect("compiles").schedule
        };
        let (once, each) = (of(true), of(false));
        assert_eq!(trained(&once) == trained(&each), same, "{uses}");
        let options = CompileOptions::new(Strategy::Serial, 2);
        let classes =
            alike(&program, &once, (&options, true), Candidate::new(policy::of(Strategy::Serial), None));
        assert_eq!(classes.iter().map(|c| c.context.repeats).collect::<Vec<_>>(), [same], "{uses}");
    }
}

/// Where latency bounds a step every way is simulated again and again: a search ends after so many of these, says that there was more to
/// try, and is no worse than where it began.
#[test]
fn what_a_search_simulates_is_limited() {
    let tables = (0..10).map(|i| {
        let rows = [50, 5000, 500_000][i % 3];
        let optimizer = ["adagrad(lr: 0.1)", "sgd(lr: 0.1)", "rowwise_adagrad(lr: 0.1)", "adam(lr: 0.1)"][i % 4];
        let max = [1, 5, 50, 20, 10][i % 5];
        let open = if i % 2 == 0 { "sharding auto" } else { "" };
        format!("table t{i} {{ rows {rows}  dim 64  optimizer {optimizer}  {open} }} input x{i}: ids(t{i}) {{ max {max} }}")
    });
    let tables: Vec<String> = tables.collect();
    let pools: Vec<String> = (0..10).map(|i| format!("pool(x{i}, sum)")).collect();
    let text = format!(
        "model m {{ {} input f: dense(13) input y: label
         let top = mlp(concat(mlp(f, [64, 64], last: relu), {}), [64, 64, 1])
         loss bce_with_logits(top, y, normalize: samples) }}
         train {{ batch 16  steps 2 }}
         workload w {{ generate {{ lengths lognormal(mean: 8, sigma: 1, max: 50)  ids zipf(1.05) }} }}",
        tables.join("\n"),
        pools.join(", ")
    );
    let local = fs_dsl::cluster::preset("local").expect("a preset");
    let options = CompileOptions::new(Strategy::Serial, 4).cluster(local);
    let program = checked(&text);
    let within =
        |most| search::tables::search_within(&program, &options, candidates(None), most).expect("a schedule");
    let step = |best: &search::Best| best.compiled.schedule.prediction.as_ref().expect("a prediction").step;
    let most = 5_000_000;
    let ((best, outcome), (free, whole)) = (within(most), within(u64::MAX));
    for tried in &best.tried {
        if let Verdict::Scheduled(Cost { step: named, .. }) = tried.verdict {
            assert!(step(&best) <= named, "{}: {named}, found {}", tried.candidate.describe(), step(&best));
        }
    }
    assert!(step(&free) <= step(&best));
    assert!(outcome.limited && best.compiled.schedule.search.as_ref().is_some_and(|s| s.limited));
    // Strategies come first, and what changes bought is told at the end.
    let beside = whole.simulated / 4;
    let told = format!("{} with {most}, {} without a limit", outcome.simulated, whole.simulated);
    assert!(outcome.simulated < most + beside && whole.simulated > 5 * most, "{told}");
    let (again, same) = within(most);
    assert_eq!((again.compiled.schedule, same.simulated), (best.compiled.schedule, outcome.simulated));
}
