//! Rules of the algebra: both sides mean the same on random data, twins are left alone, and what strategies do follows from
//! the plainest terms.

use egg::{AstSize, EGraph, Extractor, Language as _, Pattern, RecExpr, Rewrite, Runner};
use fs_compiler::algebra::analysis::{Kind, Kinds};
use fs_compiler::algebra::convert::{Table, to_nodes, to_term, to_terms};
use fs_compiler::algebra::lang::Node;
use fs_compiler::algebra::rules::{About, Context, Lookalike, RULES, Use};
use fs_compiler::algebra::size::{List, Size, Symbol};
use fs_compiler::distribution::ty::Sharded;
use fs_compiler::distribution::{Choice, Id, Op};
use fs_schedule::{Element, Extent, Sharding, Symbol as Sized, WirePrecision};
use proptest::prelude::*;

use super::terms::counted::Counted;
use super::terms::{DIM, Data, Sizes, choice, choices, sizes};

/// How the n-th sequence uses the table.
fn how(n: usize) -> Use {
    [Use::Each, Use::Sum, Use::Mean][n % 3]
}

/// A table that may use all rules.
fn context(s: Sizes) -> Context {
    Context {
        columns: DIM,
        exchange: 0,
        uses: (0..(s.microbatches * s.sequences) as usize).map(how).collect(),
        microbatches: s.microbatches,
        lookaheads: vec![s.lookahead],
        windows: s.windows(),
        cuts: vec![(0, 1), (1, DIM)],
        rows: s.wire.rows,
        repeats: s.repeats(),
        moves: true,
        relays: s.relays(),
        moved: s.moved,
        folds: None,
        replicates: true,
    }
}

/// What becomes of the table in a step, as chosen.
fn table(data: &mut Data, s: Sizes, choice: &Choice) -> Table {
    let d = data.build(choice, 0, s.microbatches);
    let (mut uses, mut sums) = (Vec::new(), Vec::new());
    for i in 0..data.ids.len() {
        let rows = d.rows(&mut data.terms, i as u32 / s.sequences).expect("well-typed");
        let place = data.add(Op::Inverse, &[d.entries, data.ids[i]]);
        let (offsets, gradients, pooled) = (data.offsets[i], data.gradients[i], data.pooled[i]);
        let (used, sum) = match how(i) {
            Use::Each => {
                (data.add(Op::Expand, &[rows, place]), data.add(Op::ExpandGrad, &[gradients, place]))
            }
            pools => {
                let mean = pools == Use::Mean;
                let used = data.add(Op::Pool { mean }, &[rows, place, offsets]);
                (used, data.add(Op::PoolGrad { mean }, &[pooled, place, offsets]))
            }
        };
        uses.push(used);
        sums.push(sum);
    }
    let sum = if sums.len() == 1 { sums[0] } else { data.add(Op::Sum, &sums) };
    let update = Some(d.update(&mut data.terms, sum).expect("well-typed"));
    Table { uses, update }
}

fn saturated(start: &RecExpr<Node>, rewrites: &[Rewrite<Node, Kinds>]) -> EGraph<Node, Kinds> {
    let runner = Runner::default().with_expr(start).with_iter_limit(30).with_node_limit(50_000);
    let runner = runner.with_time_limit(std::time::Duration::MAX).run(rewrites);
    let why = runner.stop_reason.expect("it stopped");
    assert!(matches!(why, egg::StopReason::Saturated), "{why:?}");
    runner.egraph
}

fn all_rules(context: &Context) -> Vec<Rewrite<Node, Kinds>> {
    let of_tables = RULES.iter().filter(|rule| rule.exact && rule.about == About::Table);
    of_tables.flat_map(|rule| rule.rewrites(context)).collect()
}

/// Evaluates every node of every class that has several: all must mean the same. How many were compared.
fn same_values(graph: &EGraph<Node, Kinds>, data: &mut Data) -> usize {
    let smallest = Extractor::new(graph, AstSize);
    let mut compared = 0;
    for class in graph.classes() {
        assert_ne!(class.data, Kind::Ill, "{:?}", class.nodes);
        if class.nodes.len() < 2 || !matches!(class.data, Kind::Term { .. }) {
            continue;
        }
        let mut first = None;
        for node in &class.nodes {
            let nodes = node.join_recexprs(|child| smallest.find_best(child).1);
            let id = to_term(&nodes, &mut data.terms).unwrap_or_else(|e| panic!("{e}: {nodes}"));
            let value = data.eval(id);
            let (wanted, of) = first.get_or_insert_with(|| (value.clone(), nodes.to_string()));
            assert_eq!(*wanted, value, "{of}\nand\n{nodes}");
            compared += 1;
        }
    }
    compared
}

/// Whether a class's size is what a single term of it says, which knows exchanges in place of lists.
fn is_extent(size: &Size, sharded: Sharded, extent: Option<Extent>) -> bool {
    let mut symbols = size.symbols();
    let (first, more) = (symbols.next(), symbols.collect::<Vec<_>>());
    let all = if sharded == Sharded::Replicated { vec![Symbol::Ranks] } else { Vec::new() };
    // Exchanges between relays and owners have the numbers behind those of both parts.
    let lists = |exchange: u32, list: List| (exchange >= 2) == (list == List::Relayed);
    let same = match (extent, first) {
        (None, None) => return true,
        (Some(Extent::Symbol(Sized::Samples)), Some(Symbol::Samples))
        | (Some(Extent::Symbol(Sized::Tokens(_))), Some(Symbol::Ids(_))) => true,
        (Some(Extent::Symbol(Sized::Sent(e) | Sized::Received(e))), Some(Symbol::Rows(list))) => {
            lists(e, list)
        }
        (
            Some(Extent::Symbol(Sized::SentClass(e, way, c) | Sized::ReceivedClass(e, way, c))),
            Some(Symbol::Class(list, class)),
        ) => lists(e, list) && (way, c) == (class.way, class.class),
        _ => false,
    };
    same && more == all
}

/// Holds the size of each class against how many there are of its value: of what ranks have of their samples and ask for, and of
/// relays' lists, on each rank; of what is sent there, on all together. How many were compared.
fn same_sizes(graph: &EGraph<Node, Kinds>, data: &mut Data, s: Sizes) -> usize {
    let smallest = Extractor::new(graph, AstSize);
    let mut compared = 0;
    for class in graph.classes() {
        assert_ne!(class.data, Kind::Ill, "{:?}", class.nodes);
        let Kind::Term(term) = &class.data else { continue };
        let (size, ty) = (&term.size, term.ty);
        let nodes = smallest.find_best(class.id).1;
        let id = to_term(&nodes, &mut data.terms).unwrap_or_else(|e| panic!("{e}: {nodes}"));
        let extent = data.terms.extent(id);
        assert!(is_extent(size, ty.sharded, extent), "{size} and {extent:?}: {nodes}");
        if size.symbols().next().is_none() {
            continue;
        }
        let counted = Counted { world: &data.world, sizes: s };
        let found: Vec<f64> = data.eval(id).iter().map(|part| Counted::rows(part) as f64).collect();
        let on = |rank| size.value(|symbol| counted.of(symbol, rank, ty.site));
        let all = size.value(|symbol| match symbol {
            Symbol::Ranks => s.ranks as f64,
            symbol => (0..s.ranks).map(|rank| counted.of(symbol, rank, ty.site)).sum(),
        });
        assert_eq!(found.iter().sum::<f64>(), all, "{size}: {nodes}");
        let listed = size
            .symbols()
            .any(|symbol| matches!(symbol, Symbol::Rows(List::Relayed) | Symbol::Class(List::Relayed, _)));
        for (rank, found) in found.iter().enumerate() {
            match ty.sharded {
                Sharded::Sample => assert_eq!(*found, on(rank), "rank {rank}: {size}: {nodes}"),
                Sharded::Relay if listed => assert_eq!(*found, on(rank), "rank {rank}: {size}: {nodes}"),
                Sharded::Replicated => assert_eq!(*found * s.ranks as f64, all, "{size}: {nodes}"),
                Sharded::Relay | Sharded::Owner => {}
            }
        }
        compared += 1;
    }
    compared
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// What a class's size says there is, whatever rules have found.
    #[test]
    fn sizes_are_counts(s in sizes()) {
        let mut data = Data::of_thirds(s);
        let start = table(&mut data, s, &choice(!s.repeats(), None, Sharding::RowWise));
        let start = to_nodes(&data.terms, &start).expect("all have a place");
        let graph = saturated(&start, &all_rules(&context(s)));
        prop_assert!(same_sizes(&graph, &mut data, s) > 10);
    }

    /// There and back is nothing, for whatever can be chosen.
    #[test]
    fn nodes_are_terms(s in sizes()) {
        let mut data = Data::of_thirds(s);
        for choice in choices(s) {
            let before = table(&mut data, s, &choice);
            let nodes = to_nodes(&data.terms, &before).expect("all have a place");
            let count = data.terms.len();
            prop_assert_eq!(&to_terms(&nodes, &mut data.terms).expect("terms"), &before, "{:?}", choice);
            prop_assert_eq!(data.terms.len(), count, "no other terms");
            let text = nodes.to_string();
            prop_assert_eq!(text.parse::<RecExpr<Node>>().expect("nodes").to_string(), text);
        }
    }

    /// Each rule by itself, on each start that it may meet.
    #[test]
    fn both_sides_mean_the_same(s in sizes()) {
        let mut data = Data::of_thirds(s);
        for choice in choices(s) {
            let start = table(&mut data, s, &choice);
            let start = to_nodes(&data.terms, &start).expect("all have a place");
            for rule in RULES.into_iter().filter(|rule| rule.exact) {
                let graph = saturated(&start, &rule.rewrites(&context(s)));
                same_values(&graph, &mut data);
            }
        }
    }

    /// All rules together.
    #[test]
    fn everything_reached_means_the_same(s in sizes()) {
        let mut data = Data::of_thirds(s);
        let start = table(&mut data, s, &choice(!s.repeats(), None, Sharding::RowWise));
        let start = to_nodes(&data.terms, &start).expect("all have a place");
        let graph = saturated(&start, &all_rules(&context(s)));
        let least = match (s.repeats(), s.wire.rows) {
            (true, _) => 20,
            // Columns stay together.
            (false, Element::Mxint8) => 4,
            (false, _) => 8,
        };
        prop_assert!(same_values(&graph, &mut data) > least);
    }

    /// What any choice builds by hand follows from the plainest terms: rows per occurrence, all together, at their owners.
    #[test]
    fn every_choice_follows(s in sizes()) {
        let mut data = Data::of_thirds(s);
        let plain = table(&mut data, s, &choice(!s.repeats(), None, Sharding::RowWise));
        let start = to_nodes(&data.terms, &plain).expect("all have a place");
        let graph = saturated(&start, &all_rules(&context(s)));
        for choice in choices(s) {
            let other = table(&mut data, s, &choice);
            let other = to_nodes(&data.terms, &other).expect("all have a place");
            let found = graph.lookup_expr(&other);
            prop_assert!(found.is_some() && found == graph.lookup_expr(&start), "{:?}: {}", choice, other);
        }
    }
}

/// What becomes of a table of which values are looked up where samples are read, and their gradients come back.
fn behind(data: &mut Data, s: Sizes) -> Table {
    let d = data.build(&choice(true, None, Sharding::RowWise), 0, s.microbatches);
    let rows = d.rows(&mut data.terms, s.microbatches - 1).expect("well-typed");
    let (mut uses, mut sums) = (Vec::new(), Vec::new());
    for i in 0..data.ids.len() {
        let place = data.add(Op::Inverse, &[d.entries, data.ids[i]]);
        let offsets = data.offsets[i];
        let moved = |data: &mut Data, op, of, each: bool| data.add(op, &[of, offsets][..=usize::from(each)]);
        let each = matches!(how(i), Use::Each);
        let given = if each { data.gradients[i] } else { data.pooled[i] };
        let given = moved(data, Op::Dispatch, given, each);
        let back = moved(data, Op::Combine, given, each);
        let (used, sum) = match how(i) {
            Use::Each => (data.add(Op::Expand, &[rows, place]), data.add(Op::ExpandGrad, &[back, place])),
            pools => {
                let mean = pools == Use::Mean;
                let used = data.add(Op::Pool { mean }, &[rows, place, offsets]);
                (used, data.add(Op::PoolGrad { mean }, &[back, place, offsets]))
            }
        };
        uses.push(moved(data, Op::Dispatch, used, each));
        sums.push(sum);
    }
    let sum = if sums.len() == 1 { sums[0] } else { data.add(Op::Sum, &sums) };
    let update = Some(d.update(&mut data.terms, sum).expect("well-typed"));
    Table { uses, update }
}

/// Rules that change the order of sums: sums of whole numbers are exact in any order, and equal; of thirds they differ somewhere.
#[test]
fn what_moves_behind_its_lookup_means_the_same_to_rounding() {
    let rules = || RULES.into_iter().filter(|rule| !rule.exact);
    assert_eq!(rules().map(|rule| rule.name).collect::<Vec<_>>(), ["dispatch"]);
    let mut differ = 0;
    for (seed, (microbatches, sequences), thirds) in (0..20).flat_map(|seed| {
        [(1, 1), (1, 2), (2, 1)]
            .into_iter()
            .flat_map(move |parts| [false, true].map(|thirds| (seed, parts, thirds)))
    }) {
        let wire = WirePrecision::default();
        let s = Sizes {
            ranks: 3,
            nodes: 1,
            rows: 5,
            microbatches,
            sequences,
            lookahead: 1,
            seed,
            wire,
            moved: false,
        };
        let mut data = if thirds { Data::of_thirds(s) } else { Data::new(s) };
        let start = behind(&mut data, s);
        let start = to_nodes(&data.terms, &start).expect("all have a place");
        let rewrites: Vec<_> = rules().flat_map(|rule| rule.rewrites(&context(s))).collect();
        let graph = saturated(&start, &rewrites);
        let root = graph.lookup_expr(&start).expect("the start");
        assert_eq!(graph[root].nodes.len(), 2, "behind the lookup, and before it: {start}");
        let smallest = Extractor::new(&graph, AstSize);
        let tables = graph[root].nodes.iter().map(|node| {
            let nodes = node.join_recexprs(|child| smallest.find_best(child).1);
            to_terms(&nodes, &mut data.terms).unwrap_or_else(|e| panic!("{e}: {nodes}"))
        });
        let tables: Vec<Table> = tables.collect();
        let values = |of: &[Id]| of.iter().map(|id| data.eval(*id)).collect::<Vec<_>>();
        assert_eq!(values(&tables[0].uses), values(&tables[1].uses), "rows are the same in every bit");
        let update = |table: &Table| data.eval(table.update.expect("it is updated"));
        let same = update(&tables[0]) == update(&tables[1]);
        // A mean's parts are no whole numbers.
        let whole = !thirds && (0..data.ids.len()).all(|i| how(i) != Use::Mean);
        assert!(same || !whole, "{s:?}");
        differ += usize::from(!same);
    }
    assert!(differ > 5, "{differ}");
}

/// Why rows that travel once per occurrence are no choice where gradients are rounded: with that rule, sums differ. Without
/// rounding they never do.
#[test]
fn occurrences_that_are_rounded_are_another_sum() {
    let differing = |gradients: Element| {
        (0..40).filter(move |seed| {
            let wire = WirePrecision { gradients, ..WirePrecision::default() };
            let s = Sizes {
                ranks: 3,
                nodes: 1,
                rows: 3,
                microbatches: 1,
                sequences: 2,
                lookahead: 1,
                seed: *seed,
                wire,
                moved: false,
            };
            let mut data = Data::of_thirds(s);
            let [once, each] = [true, false].map(|unique| {
                let update = table(&mut data, s, &choice(unique, None, Sharding::RowWise)).update;
                data.eval(update.expect("it is updated"))
            });
            once != each
        })
    };
    assert_eq!(differing(Element::Real).count(), 0);
    assert!(differing(Element::Bf16).count() > 20);
}

/// Why rows that travel in blocks are cut between these only: a part's numbers would have a power of two of their own.
#[test]
fn parts_of_a_block_are_another_row() {
    let differing = |rows: Element| {
        (0..40).filter(move |seed| {
            let wire = WirePrecision { rows, ..WirePrecision::default() };
            let s = Sizes {
                ranks: 2,
                nodes: 1,
                rows: 3,
                microbatches: 1,
                sequences: 1,
                lookahead: 1,
                seed: *seed,
                wire,
                moved: false,
            };
            let mut data = Data::of_thirds(s);
            let [whole, cut] =
                [Sharding::RowWise, Sharding::ColumnWise { ranks: vec![0, 1] }].map(|sharding| {
                    let used = table(&mut data, s, &choice(true, None, sharding)).uses[0];
                    data.eval(used)
                });
            whole != cut
        })
    };
    assert_eq!(differing(Element::Real).count() + differing(Element::Bf16).count(), 0);
    assert!(differing(Element::Mxint8).count() > 20);
}

/// A small table on two nodes of two ranks, whose samples move or stay.
fn four_ranks(moved: bool) -> Sizes {
    Sizes {
        ranks: 4,
        nodes: 2,
        rows: 5,
        microbatches: 1,
        sequences: 2,
        lookahead: 1,
        seed: 1,
        wire: WirePrecision::default(),
        moved,
    }
}

/// Each rule finds something in what each other choice builds, and nothing in its twins.
#[test]
fn twins_are_left_alone() {
    let s = four_ranks(true);
    let mut data = Data::of_thirds(s);
    let mut start = |sharding| {
        let table = table(&mut data, s, &choice(true, None, sharding));
        to_nodes(&data.terms, &table).expect("all have a place")
    };
    let (start, parts) = (start(Sharding::RowWise), start(Sharding::ColumnWise { ranks: vec![0, 0] }));
    let finds = |start: &RecExpr<Node>, rewrites: &[Rewrite<Node, Kinds>]| {
        let mut graph = EGraph::<Node, Kinds>::default();
        graph.add_expr(start);
        graph.rebuild();
        let before = graph.number_of_classes();
        let graph = saturated(start, rewrites);
        (graph.number_of_classes(), graph.total_number_of_nodes()) != (before, before)
    };
    for rule in RULES {
        let all = context(s);
        // Of a whole table there is but one exchange, and nothing that it could travel with.
        let start = if rule.about == About::Table { &start } else { &parts };
        assert!(finds(start, &rule.rewrites(&all)), "{} finds nothing", rule.name);
        assert!(!rule.twins.is_empty(), "{} has no twins", rule.name);
        for twin in rule.twins {
            match &twin.is {
                Lookalike::Table(change) => {
                    let mut other = all.clone();
                    change(&mut other);
                    assert_ne!(other, all, "{}: {}", rule.name, twin.why);
                    assert!(rule.rewrites(&other).is_empty(), "{}: {}", rule.name, twin.why);
                }
                Lookalike::Term(text) => {
                    let term: RecExpr<Node> = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
                    assert!(!finds(&term, &rule.rewrites(&all)), "{}: {}", rule.name, twin.why);
                }
            }
        }
    }
}

/// Equal nodes of other sizes are a rule that is wrong, even if their types are the same.
#[test]
fn what_changes_a_size_is_ill() {
    let s = four_ranks(false);
    let mut data = Data::of_thirds(s);
    let apart = choice(true, Some(1), Sharding::RowWise);
    let through = Choice { relayed: true, ..choice(true, None, Sharding::RowWise) };
    let starts = [apart, through].map(|choice| {
        let table = table(&mut data, s, &choice);
        to_nodes(&data.terms, &table).expect("all have a place")
    });
    let ill = |start: &RecExpr<Node>, rewrites: &[Rewrite<Node, Kinds>]| {
        let graph = Runner::default().with_expr(start).with_iter_limit(1).run(rewrites).egraph;
        graph.classes().any(|class| class.data == Kind::Ill)
    };
    for (why, left, right) in [
        ("entries are not ids", "(expand ?r (inverse ?e ?i))", "?r"),
        ("a sequence is not another", "(inverse ?e (ids 0 ?a ?b ?c))", "(inverse ?e (ids 1 ?a ?b ?c))"),
        ("a class is not another", "(positions ?w 0 ?n ?c)", "(positions ?w 1 ?n ?c)"),
        ("a class is not all", "(split ?g ?p)", "?g"),
        ("nor are rows of one", "(merge (list ?a ?p ?b ?q))", "?a"),
        ("a node's rows are not a rank's", "(pass_rows ?r ?p)", "?r"),
        ("nor are their gradients", "(sum_asked ?p ?a ?g)", "?g"),
    ] {
        let pattern = |text: &str| text.parse::<Pattern<Node>>().unwrap_or_else(|e| panic!("{text}: {e}"));
        let wrong = Rewrite::new(why, pattern(left), pattern(right)).expect("variables of both sides");
        assert!(starts.iter().all(|start| !ill(start, &[])));
        assert!(starts.iter().any(|start| ill(start, std::slice::from_ref(&wrong))), "{why}");
    }
    // Operands that are not as many as each other.
    let e = "(entries 0 once (list (ids 0 T0 1 0)))";
    let each = "(entries 0 each (list (ids 0 T0 1 0)))";
    let rows = |e: &str| format!("(return (gather (shard 0 0 4 owners) (ask 0 {e})) (ask 0 {e}) {e})");
    let used = |rows: &str, e: &str| format!("(expand {rows} (inverse {e} (ids 0 T0 1 0)))");
    for (text, is_ill) in [(used(&rows(e), e), false), (used(&rows(e), each), true)] {
        assert_eq!(ill(&text.parse().expect("nodes"), &[]), is_ill, "{text}");
    }
}

/// Sizes as text.
#[test]
fn sizes_are_said() {
    let size = |text: &str| {
        let mut graph = EGraph::<Node, Kinds>::default();
        let class = graph.add_expr(&text.parse().unwrap_or_else(|e| panic!("{text}: {e}")));
        match &graph[class].data {
            Kind::Term(term) => term.size.clone(),
            other => panic!("{text}: {other:?}"),
        }
    };
    let ids = "(ids 3 T0 1 0)";
    let e = &format!("(entries 0 once (list {ids}))");
    let each = &format!("(entries 0 each (list {ids}))");
    let asked = &format!("(ask 0 {e})");
    let classes = |way: &str, reuse: &str, asked: &str| format!("(partition {way} {reuse} {asked} {asked})");
    let relayed = &format!("(relayed 2 (ask_relay 0 {each}))");
    let told = format!("(answer {} {relayed})", classes("forward", "1 1 1", &format!("(ask 2 {relayed})")));
    let passed = format!("(pass_classes {told} (places {relayed} (ask_relay 0 {each})))");
    let rows = format!("(return (gather (shard 0 0 64 owners) {asked}) {asked} {e})");
    let place = format!("(inverse {e} {ids})");
    for (text, expected) in [
        (ids.to_owned(), "1*T3"),
        ("(given 3 B 4)".to_owned(), "1*B"),
        ("(given 3 7 4)".to_owned(), "7"),
        (e.clone(), "1*U"),
        (each.clone(), "1*Q"),
        (asked.clone(), "1*U"),
        (format!("(ask_for 0 each (list {ids} (offsets 3)))"), "1*Q"),
        (format!("(ask_all 0 {e})"), "1*U*W"),
        (format!("(ask 2 {relayed})"), "1*N"),
        ("(shard 0 0 64 owners)".to_owned(), "0"),
        (rows.clone(), "1*U"),
        (format!("(expand {rows} {place})"), "1*T3"),
        (format!("(pool added {rows} {place} (offsets 3))"), "1*B"),
        (format!("(expand_grad (given 3 T0 4) {place})"), "1*U"),
        (format!("(positions forward 1 2 {})", classes("forward", "1 1 1", asked)), "1*U.f1@1"),
        (format!("(positions backward 0 3 {})", classes("backward", "2 2 3", asked)), "1*U.b0@2:2x3"),
        (format!("(positions forward 0 2 {told})"), "1*N.f0@1"),
        (format!("(positions forward 0 2 {passed})"), "1*Q.f0@1~"),
    ] {
        assert_eq!(size(&text).to_string(), expected, "{text}");
    }
    // Bytes of rows of 64 columns.
    let class = format!("(positions forward 1 2 {})", classes("forward", "1 1 1", asked));
    assert_eq!(size(&class).times(256.0).to_string(), "256*U.f1@1");
}
