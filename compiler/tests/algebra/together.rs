//! Transfers of several tables, and sums of several dense gradients, are what they are alone when they are one.

use std::collections::BTreeMap;

use egg::{AstSize, EGraph, Extractor, Language as _, RecExpr, Runner};
use fs_compiler::algebra::analysis::{Kind, Kinds};
use fs_compiler::algebra::convert::{Table, to_nodes, to_term};
use fs_compiler::algebra::lang::Node;
use fs_compiler::algebra::rules::{About, RULES};
use fs_compiler::distribution::build::{Distribution, Numbered};
use fs_compiler::distribution::{Choice, Id, Op};
use fs_schedule::Extent;
use proptest::prelude::*;

use super::terms::{DIM, Data, Sizes, choices, sizes};

/// Columns and rows of dense gradients: some are less than ranks, some end within a rank's part.
const DENSE: [(u32, u32); 3] = [(1, 1), (3, 2), (5, 1)];

/// Everything that travels for two tables that are distributed as chosen, of which each has half of the sequences.
fn everything(data: &mut Data, s: Sizes, two: [&Choice; 2]) -> Vec<Id> {
    let mut roots = Vec::new();
    for (n, choice) in two.into_iter().enumerate() {
        let cuts = match choice.sharding {
            fs_schedule::Sharding::ColumnWise { .. } => vec![(0, 1), (1, DIM)],
            _ => vec![(0, DIM)],
        };
        let first = 10 * n as u32;
        let parts = (first..).zip(cuts).map(|(exchange, columns)| Numbered {
            exchange,
            between: choice.relayed.then_some(exchange + 5),
            columns,
        });
        let parts: Vec<Numbered> = parts.collect();
        let own: Vec<usize> = (0..data.ids.len()).filter(|i| i % s.sequences as usize == n).collect();
        let ids: Vec<Id> = own.iter().map(|i| data.ids[*i]).collect();
        let d = Distribution::build(&mut data.terms, n as u32, choice, &parts, &ids, Some(s.microbatches));
        let d = d.expect("well-typed");
        let mut sums = Vec::new();
        for i in own {
            let rows = d.rows(&mut data.terms, i as u32 / s.sequences).expect("well-typed");
            let place = data.add(Op::Inverse, &[d.entries, data.ids[i]]);
            roots.push(data.add(Op::Expand, &[rows, place]));
            sums.push(data.add(Op::ExpandGrad, &[data.gradients[i], place]));
        }
        let sum = if sums.len() == 1 { sums[0] } else { data.add(Op::Sum, &sums) };
        roots.push(d.update(&mut data.terms, sum).expect("well-typed"));
    }
    roots
}

/// Sums over ranks of dense gradients.
fn dense(data: &mut Data, s: Sizes) -> Vec<Id> {
    let mut sums = Vec::new();
    for (n, (columns, rows)) in (0..).zip(DENSE) {
        let source = 2000 + n;
        let number = |rank: usize, i: u32| {
            let mixed = (rank as u32 + 1).wrapping_mul(2_654_435_761).wrapping_add(i * 40_503 + source);
            (f32::from((mixed >> 16) as u16) - 32768.0) / 3.0
        };
        let of_rank = |rank| -> Vec<Vec<f32>> {
            (0..rows).map(|r| (0..columns).map(|c| number(rank, r * columns + c)).collect()).collect()
        };
        data.world.gradients.insert(source, (0..s.ranks).map(of_rank).collect());
        let given = data.add(Op::Given { source, rows: Extent::Fixed(rows), columns }, &[]);
        sums.push(data.add(Op::AllReduce, &[given]));
    }
    sums
}

/// Compares all nodes of all classes; how many of them are transfers that are one with another, by what they do.
fn same_values(graph: &EGraph<Node, Kinds>, data: &mut Data, joint: &mut BTreeMap<String, usize>) {
    let smallest = Extractor::new(graph, AstSize);
    for class in graph.classes() {
        assert_ne!(class.data, Kind::Ill, "{:?}", class.nodes);
        if class.nodes.len() < 2 || !matches!(class.data, Kind::Term { .. }) {
            continue;
        }
        let alone = class.nodes.iter().find(|node| node.to_string() != "joint").expect("a transfer");
        let alone = alone.join_recexprs(|child| smallest.find_best(child).1);
        let id = to_term(&alone, &mut data.terms).unwrap_or_else(|e| panic!("{e}: {alone}"));
        let wanted = data.eval(id);
        for node in class.nodes.iter().filter(|node| node.to_string() == "joint") {
            let nodes = node.join_recexprs(|child| smallest.find_best(child).1);
            let one = to_term(&nodes, &mut data.terms).unwrap_or_else(|e| panic!("{e}: {nodes}"));
            assert_eq!(wanted, data.eval(one), "{alone}\nand\n{nodes}");
            // A transfer by what it goes by.
            let last = alone.as_ref().last().expect("a transfer");
            let by = match last.to_string().as_str() {
                "return" => 1,
                "send" | "send_all" => 2,
                "answer" | "all_reduce" => 0,
                _ => last.children.len() - 1,
            };
            let by = alone[last.children[by]].to_string();
            *joint.entry(format!("{last} {by}")).or_default() += 1;
        }
    }
}

fn check(s: Sizes, joint: &mut BTreeMap<String, usize>) {
    let rule = RULES.into_iter().find(|rule| rule.about == About::Transfers).expect("there is one");
    let s = Sizes { sequences: 2, ..s };
    let all = choices(s);
    for (i, choice) in all.iter().enumerate() {
        // With what is distributed alike, and with something else.
        for other in [choice, &all[(i * 7 + s.seed as usize) % all.len()]] {
            let mut data = Data::of_thirds(s);
            let mut uses = everything(&mut data, s, [choice, other]);
            uses.extend(dense(&mut data, s));
            let start = to_nodes(&data.terms, &Table { uses, update: None }).expect("all have a place");
            let start: RecExpr<Node> = start;
            // What it says needs nothing of a table.
            let context = fs_compiler::algebra::rules::Context {
                columns: DIM,
                exchange: 0,
                uses: Vec::new(),
                microbatches: s.microbatches,
                lookaheads: Vec::new(),
                windows: vec![s.microbatches],
                cuts: Vec::new(),
                rows: s.wire.rows,
                repeats: false,
                moves: false,
                relays: false,
                moved: s.moved,
                folds: None,
                replicates: false,
            };
            let runner = Runner::default().with_expr(&start).with_node_limit(50_000);
            let runner = runner.with_time_limit(std::time::Duration::MAX).run(&rule.rewrites(&context));
            let why = runner.stop_reason.expect("it stopped");
            assert!(matches!(why, egg::StopReason::Saturated), "{why:?}");
            same_values(&runner.egraph, &mut data, joint);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever travels together by the rule arrives as if it had travelled alone.
    #[test]
    fn what_travels_together_arrives_as_it_would_alone(s in sizes()) {
        check(s, &mut BTreeMap::new());
    }

    /// So do any number of them.
    #[test]
    fn so_do_more_than_two(s in sizes(), take in 0usize..1000) {
        let s = Sizes { sequences: 2, ..s };
        let mut data = Data::of_thirds(s);
        let mut transfers = dense(&mut data, s);
        // Any order, each once.
        transfers.rotate_left(take % DENSE.len());
        let alone: Vec<_> = transfers.iter().map(|id| data.eval(*id)).collect();
        for (nth, alone) in (0..).zip(alone) {
            let joint = data.add(Op::Joint { nth }, &transfers);
            prop_assert_eq!(alone, data.eval(joint));
        }
        // The same of what four exchanges ask for.
        let entries: Vec<Id> = (0..4).map(|n| {
            let ids = data.ids[n % data.ids.len()];
            data.add(Op::Entries { exchange: n as u32, unique: n % 2 == 0, uses: false }, &[ids])
        }).collect();
        let asks: Vec<Id> = (0..).zip(entries).map(|(exchange, e)| data.add(Op::Ask { exchange }, &[e])).collect();
        let alone: Vec<_> = asks.iter().map(|id| data.eval(*id)).collect();
        for (nth, alone) in (0..).zip(alone) {
            let joint = data.add(Op::Joint { nth }, &asks);
            prop_assert_eq!(alone, data.eval(joint));
        }
    }
}

/// One microbatch of two sequences, whose samples stay and whose rows and gradients are not rounded.
fn plain(ranks: usize, nodes: usize) -> Sizes {
    let wire = fs_schedule::WirePrecision::default();
    Sizes { ranks, nodes, rows: 9, microbatches: 1, sequences: 2, lookahead: 1, seed: 3, wire, moved: false }
}

/// Every kind of transfer that the rule names is met.
#[test]
fn each_kind_is_found() {
    let s = plain(4, 2);
    let mut joint = BTreeMap::new();
    check(s, &mut joint);
    let kinds: Vec<&str> = joint.keys().map(String::as_str).collect();
    let wanted = [
        "all_reduce given",
        "answer partition",
        "answer pass_classes",
        "ask entries",
        "ask relayed",
        "ask_all entries",
        "ask_relay entries",
        "return ask",
        "return ask_relay",
        "return positions",
        "send ask",
        "send ask_relay",
        "send positions",
        "send_all ask_all",
        "send_all positions",
    ];
    assert_eq!(kinds, wanted);
}

/// What would wait for another kind, class or leg, and an exchange twice, are no transfer: the arena refuses them.
#[test]
fn others_are_refused() {
    let s = plain(2, 1);
    let mut data = Data::of_thirds(s);
    let list = |data: &mut Data, exchange, of: usize| {
        let ids = data.ids[of];
        data.add(Op::Entries { exchange, unique: true, uses: false }, &[ids])
    };
    let (a, b) = (list(&mut data, 0, 0), list(&mut data, 1, 1));
    let [ask_a, ask_b] = [(0, a), (1, b)].map(|(exchange, e)| data.add(Op::Ask { exchange }, &[e]));
    let other = data.add(Op::Ask { exchange: 0 }, &[b]);
    let all = data.add(Op::AskAll { exchange: 1 }, &[b]);
    let relay = data.add(Op::AskRelay { exchange: 1 }, &[b]);
    let shard = data.add(Op::Shard { table: 0, start: 0, end: DIM, replicated: false }, &[]);
    let gather = |data: &mut Data, ask| data.add(Op::Gather, &[shard, ask]);
    let (rows_a, rows_b) = (gather(&mut data, ask_a), gather(&mut data, ask_b));
    let back = data.add(Op::Return, &[rows_a, ask_a, a]);
    let mut joint = |of: &[Id]| data.terms.add(Op::Joint { nth: 0 }, of);
    assert!(joint(&[ask_a, ask_b]).is_ok());
    for wrong in [
        &[ask_a][..],
        &[ask_a, ask_a],
        &[ask_a, other],
        &[ask_a, all],
        &[ask_a, relay],
        &[ask_b, back],
        &[rows_a, rows_b],
    ] {
        let error = joint(wrong).expect_err("no transfer");
        assert_eq!(error.op, "joint");
    }
    assert!(data.terms.add(Op::Joint { nth: 2 }, &[ask_a, ask_b]).is_err());
}
