//! The verifier catches corrupted schedules: each kind of corruption by its own rule, on every base schedule that has
//! a place for it. docs/exactness.md lists the kinds; `UPDATE_EXPECT=1` writes the list anew.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;

use fs_compiler::distribution::TableOptions;
use fs_compiler::{At, CompileOptions, compile_with};
use fs_schedule::action::{Facts, Payload, Phase};
use fs_schedule::verify::{RULES, verify};
use fs_schedule::{Element, Engine, Op, Schedule, Strategy, WirePrecision};
use fs_tests::mutations::{
    BALANCED, BALANCED_MODEL, CARRIED, CLASSES_MODEL, FOLDED, HOT, Mutation, RANKING, RELAYED, RELAYED_MODEL,
    ROUNDED, bases, mutations,
};
use fs_tests::schedules::build;

fn examples() -> Vec<Schedule> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../examples");
    ["movielens.fs", "ranking.fs", "dlrm.fs"]
        .iter()
        .map(|name| {
            let program = fs_dsl::load(&root.join(name)).program.expect("examples check");
            fs_compiler::compile(&program, Strategy::Serial, 2).expect("examples compile").schedule
        })
        .collect()
}

/// An example in parts, with rows by reuse distance.
fn example(name: &str, lookahead: u32, microbatches: u32) -> Schedule {
    let program = fs_dsl::load(&fs_tests::root("examples").join(name)).program.expect("examples check");
    let options = CompileOptions::new(Strategy::Pec, 2).lookahead(lookahead).microbatches(microbatches);
    compile_with(&program, &options).expect("examples compile").schedule
}

#[test]
fn examples_are_valid() {
    for s in examples() {
        assert_eq!(verify(&s), vec![], "{}", s.model);
    }
}

#[test]
fn schedules_by_hand_are_valid() {
    for (name, plan) in bases() {
        assert_eq!(verify(&build(&plan)), vec![], "{name}");
    }
}

/// Of the dependencies none is implied by the others, so each is needed: dropped or a step farther, some rule breaks.
#[test]
fn every_dependency_counts() {
    let mut tried = 0;
    for (name, plan) in bases().into_iter().step_by(4) {
        let s = build(&plan);
        for (i, op) in s.train.ops.iter().enumerate() {
            for n in 0..op.deps.len() {
                let mut dropped = s.clone();
                dropped.train.ops[i].deps.remove(n);
                assert_ne!(verify(&dropped), vec![], "{name}: `{}` without {:?}", op.name, op.deps[n]);
                let mut farther = s.clone();
                farther.train.ops[i].deps[n].distance += 1;
                assert_ne!(verify(&farther), vec![], "{name}: `{}` with {:?} + 1", op.name, op.deps[n]);
                tried += 1;
            }
        }
    }
    assert!(tried > 500, "{tried}");
}

#[test]
fn every_corruption_is_caught_by_its_rule() {
    let mut bases: Vec<(String, Schedule)> =
        bases().into_iter().map(|(name, plan)| (name, build(&plan))).collect();
    // Rows are pooled in none of these.
    bases.push(("dlrm.fs".into(), example("dlrm.fs", 2, 2)));
    let mut table = String::from("| kind of corruption | caught by | base schedules |\n|---|---|---:|\n");
    let mut failures = String::new();
    let mut rules = BTreeSet::new();
    for m in mutations() {
        let mut count = 0;
        for (base, s) in &bases {
            let mut bad = s.clone();
            if (m.corrupt)(&mut bad).is_none() {
                continue;
            }
            assert_ne!(bad, *s, "{base}: {} changes something", m.name);
            count += 1;
            let violations = verify(&bad);
            if !violations.iter().any(|v| v.rule == m.rule) {
                let found: Vec<String> = violations.iter().take(3).map(ToString::to_string).collect();
                let _ = writeln!(failures, "{base}: {} must break `{}`, breaks {found:#?}", m.name, m.rule);
            }
        }
        if count == 0 {
            let _ = writeln!(failures, "{}: no base schedule has a place for it", m.name);
        }
        rules.insert(m.rule);
        let order = if m.order { " (order)" } else { "" };
        let _ = writeln!(table, "| {}{order} | `{}` | {count} |", m.name, m.rule);
    }
    assert_eq!(failures, "");
    let untested: Vec<_> = RULES.iter().filter(|r| !rules.contains(*r)).collect();
    assert!(untested.is_empty(), "rules without a corruption: {untested:?}");
    assert!(mutations().count() >= 96);
    let _ = write!(table, "\n{} kinds, {} base schedules.\n", mutations().count(), bases.len());
    listed(&table);
}

/// The same kinds on what the compiler emits.
#[test]
fn corruptions_of_compiled_schedules_are_caught() {
    let mut tried = 0;
    for (name, lookahead, microbatches) in [("movielens.fs", 1, 1), ("dlrm.fs", 2, 2), ("ranking.fs", 3, 1)] {
        let s = example(name, lookahead, microbatches);
        for m in mutations() {
            let mut bad = s.clone();
            if (m.corrupt)(&mut bad).is_some() {
                let violations = verify(&bad);
                let caught = violations.iter().any(|v| v.rule == m.rule);
                assert!(
                    caught,
                    "{name}: {} must break `{}`, breaks {:?}",
                    m.name,
                    m.rule,
                    violations.first()
                );
                tried += 1;
            }
        }
    }
    assert!(tried > 150, "{tried}");
}

/// A corrupted schedule breaks its rule, whatever else it breaks.
fn breaks(bad: &Schedule, m: &Mutation, strategy: Strategy) {
    let violations = verify(bad);
    let (found, first) = (violations.iter().any(|v| v.rule == m.rule), violations.first());
    assert!(found, "{strategy:?}: {} must break `{}`, breaks {first:?}", m.name, m.rule);
}

/// Dependencies of an operation without which something would be wrong: others only say where work on ids, which has a queue of
/// its own, is planned among what else compute does.
fn needed<'a>(s: &'a Schedule, op: &'a Op) -> impl Iterator<Item = usize> + 'a {
    (0..op.deps.len()).filter(|n| {
        let other = &s.train.ops[op.deps[*n].op as usize];
        (op.engine, other.engine) != (Engine::Compute, Engine::Compute) || op.priority <= other.priority
    })
}

/// Corruptions of a model that ranks items, each by its own rule.
#[test]
fn corruptions_of_a_ranking_model_are_caught() {
    let program = fs_dsl::load(&fs_tests::root("examples/movielens.fs")).program.expect("examples check");
    for strategy in [Strategy::Serial, Strategy::Prefetch, Strategy::Pec] {
        let s = fs_compiler::compile(&program, strategy, 2).expect("examples compile").schedule;
        for m in RANKING {
            let mut bad = s.clone();
            assert!((m.corrupt)(&mut bad).is_some(), "{strategy:?}: {} has a place", m.name);
            breaks(&bad, m, strategy);
        }
    }
}

/// Samples that go to other ranks: every listed corruption is caught by its rule, and no dependency can be left out.
#[test]
fn corruptions_of_balance_break_their_rules() {
    let mut tried = 0;
    let program = fs_dsl::check_text("model.fs", BALANCED_MODEL).program.expect("the model checks");
    for (strategy, microbatches) in
        [(Strategy::Serial, 1), (Strategy::Prefetch, 2), (Strategy::Pec, 1), (Strategy::Pec, 3)]
    {
        let options = CompileOptions::new(strategy, 3).microbatches(microbatches);
        let s = compile_with(&program, &options).expect("the model compiles").schedule;
        assert_eq!(verify(&s), vec![]);
        for m in BALANCED {
            let mut bad = s.clone();
            // What waits for nothing but samples waits for more in a serial order.
            if (m.corrupt)(&mut bad).is_none() {
                assert!(m.order && strategy == Strategy::Serial, "{strategy:?}: {} has a place", m.name);
                continue;
            }
            breaks(&bad, m, strategy);
        }
        // Serial orders wait for more than they must.
        let brings = |i: usize| s.train.ops[i].action.facts().phase == Phase::Balance;
        for (i, op) in s.train.ops.iter().enumerate().filter(|_| strategy == Strategy::Pec) {
            for n in needed(&s, op).filter(|n| brings(i) || brings(op.deps[*n].op as usize)) {
                let mut dropped = s.clone();
                dropped.train.ops[i].deps.remove(n);
                assert_ne!(verify(&dropped), vec![], "{strategy:?}: `{}` without {:?}", op.name, op.deps[n]);
                tried += 1;
            }
        }
    }
    assert!(tried >= 8, "{tried}");
}

/// Samples that move to a place: every listed corruption is caught by its rule, in some schedule at least, and no
/// dependency of what moves can be left out.
fn break_rules(at: At, list: &[Mutation], least: usize, moves: fn(&Facts<'_>) -> bool) {
    let (mut tried, mut placed) = (0, BTreeSet::new());
    for text in [BALANCED_MODEL, CLASSES_MODEL] {
        let program = fs_dsl::check_text("model.fs", text).program.expect("the model checks");
        for (strategy, microbatches, unlike) in [
            (Strategy::Serial, 1, None),
            (Strategy::Prefetch, 2, Some("b")),
            (Strategy::Pec, 1, None),
            (Strategy::Pec, 3, Some("a")),
        ] {
            let options = CompileOptions::new(strategy, 3).microbatches(microbatches).balance_at(at);
            // Of rows that are asked for on behalf of others, those of one table are not.
            let unlike = unlike.filter(|_| at == At::Folded).map(|table| (table.to_owned(), false));
            let options = options.tables(TableOptions::default().fold(unlike));
            let s = compile_with(&program, &options).expect("the model compiles").schedule;
            assert_eq!(verify(&s), vec![]);
            for m in list {
                let mut bad = s.clone();
                if (m.corrupt)(&mut bad).is_some() {
                    breaks(&bad, m, strategy);
                    placed.insert(m.name);
                }
            }
            let moves = |i: usize| {
                let facts = s.train.ops[i].action.facts();
                facts.phase == Phase::Balance || moves(&facts)
            };
            for (i, op) in s.train.ops.iter().enumerate().filter(|_| strategy == Strategy::Pec) {
                for n in needed(&s, op).filter(|n| moves(i) || moves(op.deps[*n].op as usize)) {
                    let mut dropped = s.clone();
                    dropped.train.ops[i].deps.remove(n);
                    let (name, dep) = (&op.name, op.deps[n]);
                    assert_ne!(verify(&dropped), vec![], "{strategy:?}: `{name}` without {dep:?}");
                    tried += 1;
                }
            }
        }
    }
    assert!(tried >= least, "{tried}");
    let missing: Vec<_> = list.iter().map(|m| m.name).filter(|name| !placed.contains(name)).collect();
    assert!(missing.is_empty(), "no schedule has a place for {missing:?}");
}

/// Rows through relays: every listed corruption is caught by its rule, in some schedule at least, and no dependency of what
/// relays do can be left out.
#[test]
fn corruptions_of_relays_break_their_rules() {
    let (mut tried, mut placed) = (0, BTreeSet::new());
    let program = fs_dsl::check_text("model.fs", RELAYED_MODEL).program.expect("the model checks");
    for (strategy, microbatches) in
        [(Strategy::Serial, 1), (Strategy::Prefetch, 2), (Strategy::Pec, 1), (Strategy::Pec, 3)]
    {
        let options = CompileOptions::new(strategy, 4).microbatches(microbatches);
        let s = fs_tests::through_relays(&program, options).expect("the model compiles");
        assert_eq!(verify(&s), vec![]);
        for m in RELAYED {
            let mut bad = s.clone();
            if (m.corrupt)(&mut bad).is_some() {
                breaks(&bad, m, strategy);
                placed.insert(m.name);
            }
        }
        let relays = |i: usize| {
            use fs_schedule::Action::{PassClasses, PassRows, SumAsked, UniqueAsked};
            let action = &s.train.ops[i].action;
            matches!(action, UniqueAsked { .. } | PassClasses { .. } | PassRows { .. } | SumAsked { .. })
        };
        for (i, op) in s.train.ops.iter().enumerate().filter(|_| strategy == Strategy::Pec) {
            for n in needed(&s, op).filter(|n| relays(i) || relays(op.deps[*n].op as usize)) {
                let mut dropped = s.clone();
                dropped.train.ops[i].deps.remove(n);
                let (name, dep) = (&op.name, op.deps[n]);
                assert_ne!(verify(&dropped), vec![], "{strategy:?}: `{name}` without {dep:?}");
                tried += 1;
            }
        }
    }
    assert!(tried >= 20, "{tried}");
    let missing: Vec<_> = RELAYED.iter().map(|m| m.name).filter(|name| !placed.contains(name)).collect();
    assert!(missing.is_empty(), "no schedule has a place for {missing:?}");
}

/// Replicas of hot rows: every listed corruption is caught by its rule, in some schedule at least, and no dependency of what is
/// done with them can be left out.
#[test]
fn corruptions_of_hot_rows_break_their_rules() {
    let (mut tried, mut placed) = (0, BTreeSet::new());
    let program = fs_dsl::check_text("model.fs", RELAYED_MODEL).program.expect("the model checks");
    for (strategy, microbatches, hot) in
        [(Strategy::Serial, 1, 4), (Strategy::Prefetch, 2, 4), (Strategy::Pec, 1, 3), (Strategy::Pec, 3, 4)]
    {
        let options = CompileOptions::new(strategy, 3).microbatches(microbatches).balance(false);
        let s = fs_tests::with_hot_rows(&program, options.clone(), hot).expect("the model compiles");
        let tables = options.tables.clone().hot([("a".to_owned(), hot)]);
        let one = compile_with(&program, &options.tables(tables)).expect("the model compiles").schedule;
        for s in [&s, &one] {
            assert_eq!(verify(s), vec![]);
            for m in HOT {
                let mut bad = s.clone();
                if (m.corrupt)(&mut bad).is_some() {
                    breaks(&bad, m, strategy);
                    placed.insert(m.name);
                }
            }
        }
        let replicas = |i: usize| {
            let of = s.train.ops[i].action.facts().of.exchanges;
            of.iter().any(|e| {
                let x = &s.exchanges[*e as usize];
                s.tables[x.table as usize].is_hot(x.part)
            })
        };
        for (i, op) in s.train.ops.iter().enumerate().filter(|_| strategy == Strategy::Pec) {
            for n in needed(&s, op).filter(|n| replicas(i) || replicas(op.deps[*n].op as usize)) {
                let mut dropped = s.clone();
                dropped.train.ops[i].deps.remove(n);
                let (name, dep) = (&op.name, op.deps[n]);
                assert_ne!(verify(&dropped), vec![], "{strategy:?}: `{name}` without {dep:?}");
                tried += 1;
            }
        }
    }
    assert!(tried >= 20, "{tried}");
    let missing: Vec<_> = HOT.iter().map(|m| m.name).filter(|name| !placed.contains(name)).collect();
    assert!(missing.is_empty(), "no schedule has a place for {missing:?}");
}

/// Rows as bf16 or in blocks of 8 bits and gradients as bf16, straight to their ranks and through relays: every corruption that has a place is caught by its
/// rule, and each has one.
#[test]
fn corruptions_of_rounded_rows_break_their_rules() {
    let mut placed = BTreeSet::new();
    for (strategy, microbatches, rows) in [
        (Strategy::Serial, 1, Element::Bf16),
        (Strategy::Prefetch, 2, Element::Bf16),
        (Strategy::Overlap, 1, Element::Bf16),
        (Strategy::Pec, 3, Element::Bf16),
        (Strategy::Serial, 1, Element::Mxint8),
        (Strategy::Pec, 2, Element::Mxint8),
    ] {
        // No block is cut, whichever form rows have.
        let wide = RELAYED_MODEL.replace("dim 8", "dim 128");
        let wire = WirePrecision { rows, gradients: Element::Bf16, ..WirePrecision::default() };
        let text = fs_tests::rounding(&wide, wire);
        let program = fs_dsl::check_text("model.fs", &text).program.expect("the model checks");
        let options = CompileOptions::new(strategy, 4).microbatches(microbatches);
        let relayed = fs_tests::through_relays(&program, options.clone()).expect("the model compiles");
        let straight = compile_with(&program, &options.balance(false)).expect("the model compiles").schedule;
        for s in [straight, relayed] {
            assert_eq!(verify(&s), vec![]);
            for m in ROUNDED {
                let mut bad = s.clone();
                if (m.corrupt)(&mut bad).is_some() {
                    breaks(&bad, m, strategy);
                    placed.insert(m.name);
                }
            }
        }
    }
    let missing: Vec<_> = ROUNDED.iter().map(|m| m.name).filter(|name| !placed.contains(name)).collect();
    assert!(missing.is_empty(), "no schedule has a place for {missing:?}");
}

/// Values that are brought to other ranks, and gradients that come back.
#[test]
fn corruptions_of_carried_rows_break_their_rules() {
    break_rules(At::Rows, CARRIED, 30, |facts| facts.carries().is_some());
}

/// Rows that are asked for on behalf of others.
#[test]
fn corruptions_of_rows_asked_for_others_break_their_rules() {
    let asks = |facts: &Facts<'_>| {
        facts.asks_for_others() || facts.transfer.is_some_and(|t| t.payload == Payload::Asked)
    };
    break_rules(At::Folded, FOLDED, 20, asks);
}

/// One model, one reference: whatever the strategy, the number of ranks, the lookahead and the placement.
#[test]
fn references_are_the_models() {
    for name in ["movielens.fs", "ranking.fs", "dlrm.fs"] {
        let program = fs_dsl::load(&fs_tests::root("examples").join(name)).program.expect("examples check");
        let of = |strategy, ranks, lookahead, microbatches| {
            let options =
                CompileOptions::new(strategy, ranks).lookahead(lookahead).microbatches(microbatches);
            compile_with(&program, &options).expect("examples compile").schedule.reference
        };
        let one = of(Strategy::Serial, 1, 1, 1);
        assert!(!one.train.is_empty() && !one.updates.is_empty(), "{name}");
        for (strategy, ranks, lookahead) in [
            (Strategy::Prefetch, 1, 1),
            (Strategy::Pec, 2, 1),
            (Strategy::Pec, 4, 3),
            (Strategy::Serial, 4, 2),
        ] {
            assert_eq!(of(strategy, ranks, lookahead, 1), one, "{name}: {strategy:?}, {ranks} ranks");
        }
        let parts = of(Strategy::Pec, 2, 2, 2);
        assert_eq!(parts.train, one.train, "{name}: a microbatch is the model");
        assert_ne!(parts.digest, one.digest, "{name}: microbatches round differently");
    }
}

/// The part of docs/exactness.md between the markers is the table.
fn listed(table: &str) {
    const START: &str = "<!-- mutations: start -->\n";
    const END: &str = "<!-- mutations: end -->";
    let path = fs_tests::root("docs/exactness.md");
    let text = std::fs::read_to_string(&path).expect("the document is there");
    let (head, rest) = text.split_once(START).expect("it has a place for the table");
    let (old, tail) = rest.split_once(END).expect("which ends");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, format!("{head}{START}{table}{END}{tail}")).expect("it can be written");
    } else {
        assert_eq!(old, table, "run again with UPDATE_EXPECT=1");
    }
}

#[test]
fn text_round_trips_and_every_changed_byte_is_noticed() {
    let path = std::path::Path::new("s.json");
    for s in examples() {
        let text = fs_schedule::to_text(&s);
        let again = fs_schedule::file::parse(path, text.as_bytes(), true).expect("a written schedule loads");
        assert_eq!(fs_schedule::to_text(&again), text, "same input, same bytes");
        // Digests of data, which stand below, are not the schedule's.
        let other = text.replacen("\"digest\": \"sha256:", "\"digest\": \"sha1:", 1);
        let said = fs_schedule::file::parse(path, other.as_bytes(), true).unwrap_err().to_string();
        assert!(said.contains("it has no `digest` of the form"), "{said}");
        // A prime stride visits every kind of place in the text.
        for at in (0..text.len()).step_by(211) {
            let mut bytes = text.clone().into_bytes();
            bytes[at] = if bytes[at] == b'7' { b'8' } else { b'7' };
            assert!(fs_schedule::file::parse(path, &bytes, true).is_err(), "byte {at} of {}", s.model);
        }
        for cut in [0, 1, text.len() / 2, text.len() - 2] {
            assert!(fs_schedule::file::parse(path, &text.as_bytes()[..cut], true).is_err(), "cut at {cut}");
        }
    }
}
