//! Rows and gradients that travel as bf16, rows as mxint8, sums over ranks as bf16: worked out by hand, and the same bits for random models however rows travel.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use fs_compiler::distribution::{Lookahead, TableOptions};
use fs_compiler::search::{self, candidates};
use fs_compiler::{At, CompileOptions, Strategy, compile_with};
use fs_executor::transport::wire::World;
use fs_executor::{Options, Session};
use fs_schedule::verify::verify;
use fs_schedule::{Action, Data, Element, Leg, Place, Schedule, WirePrecision};
use fs_tests::interpreter::{Order, Workload, reference, run};
use fs_tests::models::{Features, models};
use fs_tests::pipes::joined;
use fs_tests::training::{compiled_if_it_can_be, model, nodes_of, state, trained};
use fs_tests::{checked, dividing, rounding};
use proptest::prelude::{Strategy as Strategies, *};

const FEATURES: Features = Features { shardings: true, microbatches: true, placements: true };

fn wires() -> impl Strategies<Value = WirePrecision> {
    let rows = prop::sample::select(vec![Element::Real, Element::Bf16, Element::Mxint8]);
    let floats = || prop::sample::select(vec![Element::Real, Element::Bf16]);
    let all = (rows, floats(), floats());
    let all = all.prop_map(|(rows, gradients, dense)| WirePrecision { rows, gradients, dense });
    all.prop_filter("something is rounded", |wire| !wire.is_plain())
}

/// What is chosen for one table: through relays or not, a lookahead, where rows live.
type Chosen = (bool, Option<Option<u32>>, Option<&'static str>);

fn chosen() -> impl Strategies<Value = Chosen> {
    let lookahead = prop::option::of(prop::option::of(1..=3u32));
    let sharding = vec!["row_wise", "table_wise", "column_wise", "data_parallel"];
    (any::<bool>(), lookahead, prop::option::of(prop::sample::select(sharding)))
}

/// What rows and gradients are where they travel: only what the model says.
fn elements(s: &Schedule) -> BTreeSet<(bool, Element)> {
    let mut found = BTreeSet::new();
    for op in &s.train.ops {
        let gradients = match op.action {
            Action::AllToAllRows { .. } => false,
            Action::AllToAllGrads { .. } | Action::AllGatherGrads { .. } => true,
            _ => continue,
        };
        for o in op.reads.iter().step_by(3).chain(&op.writes) {
            let Place::Buffer(b) = o.place else { panic!("{o} travels") };
            found.insert((gradients, s.train.buffers[b as usize].element));
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if std::env::var_os("FS_THOROUGH").is_some() { 600 } else { 24 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn however_rows_travel_they_are_rounded_alike(
        model in models(FEATURES),
        wire in wires(),
        (ranks, node) in prop::sample::select(vec![(1u32, 1u32), (2, 2), (3, 3), (4, 2), (4, 3), (3, 2), (6, 3), (5, 2)]),
        lookahead in 1..=3u32,
        strategy in prop::sample::select(vec![Strategy::Serial, Strategy::Prefetch, Strategy::Pec, Strategy::Pec]),
        balance in prop::option::of(prop::sample::select(vec![At::Ids, At::Rows, At::Folded])),
        chosen in prop::collection::vec(chosen(), 1..4),
        buckets in prop::option::of(1..200u64),
        seed in any::<u64>(),
    ) {
        let model = if wire.rows == Element::Mxint8 { model.in_blocks() } else { model };
        let text = rounding(&model.text(), wire);
        let program = dividing(checked(&text), ranks);
        let machine = |balance: Option<At>| {
            let options = CompileOptions::new(Strategy::Serial, ranks).cluster(nodes_of(node));
            options.balance(balance.is_some()).balance_at(balance)
        };
        let Some((machine, plain)) = [balance, None].into_iter().find_map(|balance| {
            Some((machine(balance), compiled_if_it_can_be(&program, &machine(balance))?))
        }) else { return Ok(()) };
        prop_assert_eq!(plain.settings.wire, wire);
        prop_assert_eq!(verify(&plain), vec![], "{}", text);
        let options = machine.policy(fs_compiler::sched::policy::of(strategy)).lookahead(lookahead);
        let options = options.bucket_bytes(buckets);
        let names: Vec<String> = program.model.iter().flat_map(|m| &m.tables).map(|t| t.name.clone()).collect();
        // Where tables live stays as the model says if that cannot be; replicas and single nodes have no relays.
        let found = [(true, true), (true, false), (false, true), (false, false)].into_iter().find_map(|(moved, relayed)| {
            let mut tables = TableOptions::default();
            for (name, (relay, lookahead, sharding)) in names.iter().zip(chosen.iter().cycle()) {
                tables.lookahead.extend(lookahead.map(|k| (name.clone(), Lookahead(k))));
                tables.sharding.extend(sharding.filter(|_| moved).map(|s| (name.clone(), s.to_owned())));
                if relayed && node < ranks && *sharding != Some("data_parallel") {
                    tables.relay.insert(name.clone(), *relay);
                }
            }
            Some((compiled_if_it_can_be(&program, &options.clone().tables(tables.clone()))?, tables))
        });
        let (other, tables) = found.expect("a schedule as the model says");
        prop_assert_eq!(verify(&other), vec![], "{:?}\n{}", tables, text);
        for (gradients, element) in elements(&other) {
            prop_assert_eq!(element, if gradients { wire.gradients } else { wire.rows });
        }
        let work = Workload { seed, batches: 5, ranks };
        // What the interpreter knows of the model without rounding (not normalised rows cut by columns) it knows with it.
        let real = text.replace("_dist bf16", "_dist f32").replace("_dist mxint8", "_dist f32");
        let real = compiled_if_it_can_be(&dividing(checked(&real), ranks), &options.tables(tables.clone()));
        if reference(&real.expect("as with rounding"), &work).is_ok() {
            let want = reference(&other, &work).unwrap_or_else(|e| panic!("{e}\n{tables:?}\n{text}"));
            let order = Order { slow: BTreeSet::new(), seed, skipped_are_free: false };
            if let Err(e) = run(&other, &work, &want, &order) {
                panic!("{e}\n{tables:?}\n{text}");
            }
        }
        if matches!(plain.data, Some(Data::Generate { .. })) {
            prop_assert_eq!(trained(&other, 3, Some(seed)), trained(&plain, 3, None), "{:?}\n{}", tables, text);
        }
    }
}

/// The nearest brain float, the even one of two.
fn rounded(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

/// Multiples, of which the greatest of these numbers takes 64 to 127, of a power of two.
fn in_block(row: [f32; 4]) -> [f32; 4] {
    let greatest = row.iter().map(|x| x.abs()).fold(0.0, f32::max);
    let mut unit = 1.0f32;
    while greatest >= 128.0 * unit {
        unit *= 2.0;
    }
    while greatest < 64.0 * unit {
        unit /= 2.0;
    }
    row.map(|x| (x / unit).round_ties_even().clamp(-127.0, 127.0) * unit)
}

/// One row of which each rank uses three occurrences a step, labels of 1: every token is alike.
fn alike(ranks: u32, node: u32, relay: bool, wire: WirePrecision) -> Schedule {
    let batch = ranks;
    let text = format!(
        "model alike {{
           table a {{ rows 1  dim 4  init constant(0.3)  optimizer sgd(lr: 1)  sharding row_wise }}
           input x: ids(a) {{ max 3 }}
           input click: label like x
           loss bce_with_logits(linear(lookup(x), 1, bias: false), click, normalize: samples)
         }}
         train {{ batch {batch}  steps 3  optimizer sgd(lr: 1) }}
         workload w {{ generate {{ lengths fixed(3)  ids uniform  labels bernoulli(0.9999999) }} }}"
    );
    let options = CompileOptions::new(Strategy::Pec, ranks).cluster(nodes_of(node));
    let tables = TableOptions::default().relay([("a".to_owned(), relay)]);
    let schedule = compile_with(&checked(&rounding(&text, wire)), &options.tables(tables)).unwrap().schedule;
    assert_eq!(schedule.exchanges.iter().any(|x| matches!(x.leg, Leg::Between { .. })), relay);
    schedule
}

/// What is rounded, how often, and what is not: three steps by hand, on one node and on two.
#[test]
fn three_steps_worked_out_by_hand() {
    let (real, brain, blocks) = (Element::Real, Element::Bf16, Element::Mxint8);
    let mut ends = BTreeSet::new();
    let all = [
        (real, real, real),
        (brain, real, real),
        (real, brain, real),
        (brain, brain, real),
        (blocks, real, real),
        (blocks, brain, real),
        (real, real, brain),
        (blocks, brain, brain),
    ];
    for (rows, gradients, dense) in all {
        for (ranks, node, relay) in [(1, 1, false), (3, 3, false), (6, 3, false), (6, 3, true)] {
            let wire = WirePrecision { rows, gradients, dense };
            let schedule = alike(ranks, node, relay, wire);
            let mut session = Session::<f32>::new(schedule, Options::default()).unwrap();
            let mut weight: Vec<f32> = session.parameter(0);
            let mut row = [0.3f32; 4];
            session.run(&mut ()).unwrap();
            for _ in 0..3 {
                let x = match rows {
                    Element::Bf16 => row.map(rounded),
                    Element::Mxint8 => in_block(row),
                    _ => row,
                };
                let z: f64 = (0..4).map(|i| f64::from(x[i]) * f64::from(weight[i])).sum();
                let e = (-z.abs()).exp();
                let sigmoid = if z >= 0.0 { 1.0 / (1.0 + e) } else { e / (1.0 + e) };
                let g = ((sigmoid - 1.0) / f64::from(ranks)) as f32;
                for i in 0..4 {
                    let round = |x: f32| if gradients == brain { rounded(x) } else { x };
                    let of_rank = round(g * weight[i] + g * weight[i] + g * weight[i]);
                    let sum = (0..node.min(ranks)).fold(0.0, |sum, _| sum + of_rank);
                    // Of several nodes each one's sum is rounded.
                    let all = if ranks > node { round(sum) + round(sum) } else { sum };
                    row[i] -= all;
                    weight[i] -= if dense == brain {
                        // Each rank's, and their sum.
                        let of_rank = rounded(g * x[i] + g * x[i] + g * x[i]);
                        rounded((0..ranks).fold(0.0, |sum, _| sum + of_rank))
                    } else {
                        (0..3 * ranks).fold(0.0, |sum, _| sum + g * x[i])
                    };
                }
            }
            let found = session.table(0).unwrap();
            let near = |a: &[f32]| a.iter().zip(&row).all(|(a, b)| (a - b).abs() < 3e-6);
            assert!(near(&found), "{wire:?} {ranks} ranks: {found:?} is not {row:?}");
            let found_weight = session.parameter(0);
            let near = |a: &[f32]| a.iter().zip(&weight).all(|(a, b)| (a - b).abs() < 3e-6);
            assert!(near(&found_weight), "{wire:?} {ranks} ranks: {found_weight:?} is not {weight:?}");
            // The table itself is kept as it is.
            assert!(found.iter().any(|x| rounded(*x) != *x), "{found:?}");
            if (ranks, node) == (6, 3) {
                let bits = found.iter().chain(&session.parameter(0)).map(|x| x.to_bits()).collect::<Vec<_>>();
                ends.insert(bits);
            }
        }
    }
    // Each of the eight is another training, with relays the same.
    assert_eq!(ends.len(), 8);
}

/// Between processes they take half of the bytes, or of 64 columns 66 for 256, and change nothing.
#[test]
fn between_processes_they_take_less() {
    let text = "model m {
           table a { rows 300  dim 64  init normal(0, 0.5)  optimizer adagrad(lr: 0.1)  sharding row_wise }
           input x: ids(a) { max 20 }
           input y: label
           loss bce_with_logits(linear(pool(x, sum), 1), y, normalize: samples)
         }
         train { batch 12  steps 3  optimizer sgd(lr: 0.1) }
         workload w { generate { lengths uniform(10, 20)  ids uniform  labels bernoulli(0.5)  samples 90 } }";
    let sent = |wire: WirePrecision, strategy: Strategy| {
        let options = CompileOptions::new(strategy, 3);
        let schedule = compile_with(&checked(&rounding(text, wire)), &options).unwrap().schedule;
        let alone = trained(&schedule, 3, None);
        let run = |world: World| {
            let options = Options::default().evaluate(false).steps(3).world(world);
            let mut session = Session::<f32>::new(schedule.clone(), options).unwrap();
            session.run(&mut ()).unwrap();
            state(&session).unwrap()
        };
        let worlds = joined(&[vec![0], vec![1, 2]]).unwrap();
        let pipes: Vec<_> = worlds.iter().map(|(_, pipes)| pipes.clone()).collect();
        let states: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                worlds.into_iter().map(|(world, _)| scope.spawn(move || run(world))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(states.iter().all(|state| *state == alone), "{wire:?} {strategy:?}");
        pipes.iter().map(|pipes| pipes.entries.load(Ordering::Relaxed)).sum::<u64>()
    };
    for strategy in [Strategy::Serial, Strategy::Pec] {
        let (real, brain, blocks) = (Element::Real, Element::Bf16, Element::Mxint8);
        let [plain, rows, gradients, both, blocks, least, sums] = [
            (real, real, real),
            (brain, real, real),
            (real, brain, real),
            (brain, brain, real),
            (blocks, real, real),
            (blocks, brain, real),
            (real, real, brain),
        ]
        .map(|(rows, gradients, dense)| sent(WirePrecision { rows, gradients, dense }, strategy));
        // As many rows as gradients, and half of each.
        assert_eq!(plain - rows, plain - gradients);
        assert_eq!(plain - both, 2 * (plain - rows));
        // Ids, classes and the sum over ranks are the rest.
        assert!(both * 100 < plain * 54, "{both} of {plain}");
        assert_eq!((plain - blocks) * 128, (plain - rows) * 190);
        assert_eq!(least, blocks - (plain - gradients));
        // 65 parameters, of which ranks add up 22, 22 and 21: 87 numbers cross the wire in each round of each of three steps.
        assert_eq!(plain - sums, 3 * 2 * 87 * 2);
    }
}

/// Tables, and what is made of rows, cost what f32 costs; what travels half.
#[test]
fn what_stays_f32_costs_as_much_as_before() {
    let narrow = WirePrecision { rows: Element::Bf16, gradients: Element::Bf16, ..WirePrecision::default() };
    let cost = |wire: WirePrecision, name: &str| {
        let schedule = alike(3, 3, false, wire);
        let ops = schedule.train.ops.iter().filter(|op| op.name.starts_with(name));
        let all = ops.map(|op| (op.cost.bytes.to_string(), op.cost.wire.to_string()));
        // Of several classes the first.
        all.min().unwrap()
    };
    for (name, plain, rounded) in [
        // Four columns: read as they are, written as they travel; a row number and a position.
        ("a.gather", "40*R0f0", "32*R0f0"),
        ("a.split", "36*U0b0", "28*U0b0"),
        // Gradients once, rows read and written, no states.
        ("a.apply", "8*W + 56*R0b0", "8*W + 48*R0b0"),
    ] {
        let found = [cost(WirePrecision::default(), name).0, cost(narrow, name).0];
        assert_eq!(found, [plain, rounded], "{name}");
    }
    assert_eq!(
        [cost(WirePrecision::default(), "a.all_to_all_rows").1, cost(narrow, "a.all_to_all_rows").1],
        ["16*R0f0", "8*R0f0"]
    );
}

/// Parts of a row that begin where blocks do are rounded as the row is; other parts are refused, and no search finds them.
#[test]
fn no_block_is_cut() {
    let text = |dim: u32| {
        let text = format!(
            "model m {{
               table a {{ rows 200  dim {dim}  init normal(0, 0.5)  optimizer sgd(lr: 0.1) }}
               input x: ids(a) {{ max 9 }}
               input y: label
               loss bce_with_logits(linear(pool(x, sum), 1), y, normalize: samples)
             }}
             train {{ batch 12  steps 3  optimizer sgd(lr: 0.1) }}
             workload w {{ generate {{ lengths uniform(2, 9)  ids uniform  labels bernoulli(0.5)  samples 90 }} }}"
        );
        rounding(
            &text,
            WirePrecision { rows: Element::Mxint8, gradients: Element::Real, ..WirePrecision::default() },
        )
    };
    let compiled = |dim: u32, ranks: u32, sharding: &str| {
        let tables = TableOptions::default().sharding([("a".to_owned(), sharding.to_owned())]);
        compile_with(&checked(&text(dim)), &CompileOptions::new(Strategy::Pec, ranks).tables(tables))
    };
    for (dim, ranks, parts) in [(96, 4, 3), (64, 2, 2), (128, 3, 2)] {
        let whole = compiled(dim, ranks, "row_wise").unwrap().schedule;
        let cut = compiled(dim, ranks, "column_wise").unwrap().schedule;
        assert_eq!(cut.exchanges.len(), parts);
        assert_eq!(trained(&cut, 3, Some(7)), trained(&whole, 3, None), "{dim} columns on {ranks} ranks");
        let mut other = cut;
        let fs_schedule::Sharding::ColumnWise { ranks } = &mut other.tables[0].sharding else {
            panic!("cut")
        };
        ranks.push(0);
        other.seal();
        let said: Vec<String> = verify(&other).iter().map(ToString::to_string).collect();
        assert!(said.iter().any(|s| s.contains("would share its block of a row")), "{said:?}");
    }
    for dim in [48, 32] {
        let said = compiled(dim, 2, "column_wise").unwrap_err().to_string();
        assert!(said.contains(&format!("table a of {dim} columns cannot be column-wise")), "{said}");
        let program = checked(&text(dim));
        let options = CompileOptions::new(Strategy::Serial, 2);
        let schedule = compile_with(&program, &options).unwrap().schedule;
        let candidate = candidates(None).next().unwrap();
        let found = search::tables::alike(&program, &schedule, (&options, true), candidate);
        assert!(found.iter().all(|alike| alike.context.cuts.is_empty()), "{found:?}");
    }
}

/// What cannot be is said before anything is compiled.
#[test]
fn occurrences_are_not_rounded_one_by_one() {
    let text = "model m {
           table a { rows 40  dim 4  optimizer sgd(lr: 0.1)  sharding row_wise }
           input x: ids(a) { max 5 }
           input y: label
           loss bce_with_logits(linear(pool(x, sum), 1), y, normalize: samples)
         }
         train { batch 8  steps 4  optimizer sgd(lr: 0.1) }";
    let tables = TableOptions::default().unique([("a".to_owned(), false)]);
    let options = CompileOptions::new(Strategy::Pec, 2).tables(tables);
    for (gradients, refused) in [(Element::Real, false), (Element::Bf16, true)] {
        let wire = WirePrecision { rows: Element::Bf16, gradients, ..WirePrecision::default() };
        let found = compile_with(&checked(&rounding(text, wire)), &options);
        let said = found.map_err(|e| e.to_string());
        assert_eq!(said.is_err(), refused);
        if let Err(said) = said {
            assert!(said.contains("rows of table a cannot travel once per occurrence"), "{said}");
        }
    }
    let wire = WirePrecision { rows: Element::Real, gradients: Element::Bf16, ..WirePrecision::default() };
    let text = rounding(text, wire).replace("steps 4", "steps 4  unique_rows off");
    let said =
        compile_with(&checked(&text), &CompileOptions::new(Strategy::Serial, 2)).unwrap_err().to_string();
    assert!(said.contains("gradients that travel rounded are summed by row"), "{said}");
}

/// Schedules for which it would be another training are refused.
#[test]
fn other_trainings_are_refused() {
    let wire = WirePrecision { rows: Element::Real, gradients: Element::Bf16, ..WirePrecision::default() };
    let schedule = alike(6, 3, false, wire);
    let open = |ranks: usize| Session::<f32>::new(schedule.clone(), Options::default().ranks(ranks));
    assert!(open(6).is_ok());
    let said = open(3).map(|_| ()).unwrap_err().to_string();
    assert!(said.contains("planned for nodes of 3 ranks, of which 3 ranks are one"), "{said}");
    let plain = alike(6, 3, false, WirePrecision::default());
    assert!(Session::<f32>::new(plain, Options::default().ranks(3)).is_ok());
    // One gradient an occurrence, each rounded.
    let mut each = schedule.clone();
    each.exchanges.iter_mut().for_each(|x| x.unique = false);
    each.seal();
    let said: Vec<String> = verify(&each).iter().map(ToString::to_string).collect();
    assert!(said.iter().any(|s| s.contains("a gradient for each occurrence")), "{said:?}");
    for element in [Element::Id, Element::Byte] {
        let mut other = schedule.clone();
        other.settings.wire.rows = element;
        other.seal();
        let said: Vec<String> = verify(&other).iter().map(ToString::to_string).collect();
        assert!(
            said.iter().any(|s| s.contains("gradients and dense sums as `real` or as `bf16`")),
            "{said:?}"
        );
    }
}

/// What a search finds is proved, and of the same model as what is asked for by name.
#[test]
fn a_search_keeps_to_what_the_model_rounds() {
    let text = &model("auto", "adagrad(lr: 0.05)", 60, true);
    let wire = WirePrecision { rows: Element::Bf16, gradients: Element::Bf16, ..WirePrecision::default() };
    for rows in [Element::Bf16, Element::Mxint8] {
        let wire = WirePrecision { rows, ..wire };
        let program = dividing(checked(&rounding(text, wire)), 4);
        let options = CompileOptions::new(Strategy::Serial, 4);
        let found = search::search(&program, &options, candidates(None)).unwrap().compiled;
        let found = found.schedule;
        assert_eq!(verify(&found), vec![]);
        let plain = compile_with(&program, &options).unwrap().schedule;
        assert_eq!(found.reference_digest(), plain.reference_digest());
    }
}

/// Rows once per occurrence are no way for a search where gradients are rounded, and are one where only rows are.
#[test]
fn a_search_knows_that_occurrences_are_no_way() {
    let text = "model m {
           table a { rows 40  dim 4  optimizer sgd(lr: 0.1)  sharding row_wise }
           input x: ids(a) { max 5 }
           input y: label
           loss bce_with_logits(linear(pool(x, sum), 1), y, normalize: samples)
         }
         train { batch 8  steps 4  optimizer sgd(lr: 0.1) }";
    for (gradients, repeats) in [(Element::Real, true), (Element::Bf16, false)] {
        let wire = WirePrecision { rows: Element::Bf16, gradients, ..WirePrecision::default() };
        let program = checked(&rounding(text, wire));
        let options = CompileOptions::new(Strategy::Serial, 2);
        let schedule = compile_with(&program, &options).unwrap().schedule;
        let candidate = candidates(None).next().unwrap();
        let found = search::tables::alike(&program, &schedule, (&options, true), candidate);
        let known: Vec<bool> = found.iter().map(|alike| alike.context.repeats).collect();
        assert_eq!(known, [repeats]);
    }
}
