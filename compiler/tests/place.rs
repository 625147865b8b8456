//! Where samples go to other ranks: where a step is predicted to be shorter, the same place for every strategy.

use std::collections::BTreeMap;

use fs_compiler::distribution::TableOptions;
use fs_compiler::sched::explain::explain;
use fs_compiler::search::{candidates, search};
use fs_compiler::{At, CompileOptions, Strategy, compile_with};
use fs_dsl::checked::{Cluster, Program};
use fs_schedule::verify::verify;
use fs_schedule::{Action, Op, Schedule};

const STRATEGIES: [Strategy; 3] = [Strategy::Serial, Strategy::Prefetch, Strategy::Pec];

fn program(text: &str) -> Program {
    let loaded = fs_dsl::check_text("model.fs", text);
    loaded
        .program
        .unwrap_or_else(|| panic!("{}", fs_dsl::render(&loaded.diagnostics, &loaded.sources, false)))
}

/// Long histories that are pooled into a few columns, over a slow link: a row of values is less than the ids.
fn pooled(balance: &str) -> Program {
    program(&format!(
        "model pooled {{
           table a {{ rows 20000  dim 4  init normal(0, 0.5)  optimizer sgd(lr: 0.05)  sharding row_wise }}
           input x: ids(a) {{ max 400 }}
           input click: label
           loss bce_with_logits(linear(pool(x), 1), click, normalize: samples)
         }}
         train {{ batch 64  steps 6  optimizer sgd(lr: 0.1)  {balance} }}
         workload w {{ generate {{ lengths lognormal(mean: 200, sigma: 1, max: 400)  ids uniform }} }}
         cluster slow {{ nodes 2  gpus_per_node 1  intra {{ bandwidth 1 Gbit/s  latency 1 us }}
           inter {{ bandwidth 100 Mbit/s  latency 1 us }}  host {{ bandwidth 100 Gbit/s  latency 1 us }}
           flops {{ f32 1 TFLOP/s }}  memory 8 GiB  memory_bandwidth 100 GB/s }}"
    ))
}

/// Wide rows of every token.
fn tokens() -> Program {
    program(
        "model tokens {
           table a { rows 2000  dim 64  init normal(0, 0.5)  optimizer sgd(lr: 0.05)  sharding row_wise }
           input x: ids(a) { max 40 }
           input click: label like x
           loss bce_with_logits(linear(lookup(x), 1), click, normalize: tokens)
         }
         train { batch 64  steps 6  optimizer sgd(lr: 0.1)  balance on }
         workload w { generate { lengths lognormal(mean: 20, sigma: 1, max: 40)  ids uniform } }",
    )
}

fn place(s: &Schedule) -> At {
    At::of(s).expect("samples that move")
}

fn schedule(program: &Program, strategy: Strategy, at: Option<At>) -> Schedule {
    let options = CompileOptions::new(strategy, 2).balance_at(at);
    compile_with(program, &options).unwrap_or_else(|e| panic!("{e}")).schedule
}

#[test]
fn samples_go_where_a_step_is_shorter() {
    for (program, wanted, other) in
        [(pooled("balance cost(1, 1, 0)"), At::Rows, At::Ids), (tokens(), At::Ids, At::Rows)]
    {
        let step = |at| schedule(&program, Strategy::Serial, Some(at)).prediction.expect("a prediction").step;
        assert!(step(wanted) < step(other), "{wanted}: {} and {}", step(wanted), step(other));
        for strategy in STRATEGIES {
            let s = schedule(&program, strategy, None);
            assert_eq!(place(&s), wanted, "{strategy:?}");
            let said = explain(&s).and_then(|e| e.text(None)).expect("an explanation");
            let line = said.lines().find(|l| l.starts_with("samples move at ")).expect("where samples move");
            assert!(line.starts_with(&format!("samples move at `{wanted}`: ")), "{line}");
            for other in [other, At::Folded] {
                assert!(line.contains(&format!("at `{other}`")), "{line}");
            }
            // Nothing but the reason differs from what was asked for.
            let mut asked = schedule(&program, strategy, Some(wanted));
            for (op, own) in asked.train.ops.iter_mut().zip(&s.train.ops) {
                op.reason.clone_from(&own.reason);
            }
            assert_eq!(fs_schedule::to_text(&asked), fs_schedule::to_text(&s), "{strategy:?}");
        }
        let best = search(&program, &CompileOptions::new(Strategy::Serial, 2), candidates(Some(1)));
        assert_eq!(place(&best.expect("a schedule").compiled.schedule), wanted);
    }
}

#[test]
fn a_place_can_be_asked_for() {
    for at in At::ALL {
        let s = schedule(&tokens(), Strategy::Pec, Some(at));
        assert_eq!(place(&s), at);
        let said = explain(&s).and_then(|e| e.text(None)).expect("an explanation");
        // As asked, beside what was predicted of all.
        let line = said.lines().find(|l| l.starts_with("samples move at ")).expect("where samples move");
        assert!(line.starts_with(&format!("samples move at `{at}`, as asked: ")), "{line}");
        assert!(At::ALL.iter().all(|other| line.contains(&format!("at `{other}`"))), "{line}");
        let moves = ["they move in `dispatch`", "what is not looked up moves in `dispatch`"];
        let rows = usize::from(at == At::Rows);
        assert!(said.contains(moves[rows]) && !said.contains(moves[1 - rows]), "{said}");
        for part in ["what is made of rows in `dispatch_", "its gradients come back in `combine"] {
            assert_eq!(said.contains(part), at == At::Rows, "{said}");
        }
        assert_eq!(at.to_string().parse(), Ok(at));
    }
    assert!("token".parse::<At>().expect_err("no place").to_string().contains("not at `token`"));
    // Who moves nothing has no place.
    let s = schedule(&pooled(""), Strategy::Pec, None);
    assert_eq!(
        explain(&s).and_then(|e| e.text(None)).map(|said| said.contains("samples move at")),
        Some(false)
    );
}

/// Two tables whose rows have owners, and replicas.
fn tables() -> Program {
    program(
        "model tables {
           table a { rows 2000  dim 16  init normal(0, 0.5)  optimizer sgd(lr: 0.05)  sharding row_wise }
           table b { rows 3000  dim 16  init normal(0, 0.5)  optimizer sgd(lr: 0.05)  sharding row_wise }
           table c { rows 20  dim 4  init normal(0, 0.5)  optimizer sgd(lr: 0.05)  sharding data_parallel }
           input x: ids(a) { max 40 }
           input y: ids(b) like x
           input z: ids(c) like x
           input click: label
           loss bce_with_logits(linear(concat(pool(x), pool(y), pool(z)), 1), click, normalize: samples)
         }
         train { batch 64  steps 6  optimizer sgd(lr: 0.1)  balance on }
         workload w { generate { lengths lognormal(mean: 20, sigma: 1, max: 40)  ids uniform } }",
    )
}

/// Who asks for rows may be said of each table; ids that others ask for travel apart from those that each rank asks for itself.
#[test]
fn tables_are_folded_one_by_one() {
    let program = tables();
    // Nodes of several ranks have relays, and a table that comes through them a second exchange.
    let relayed = |fold| {
        let named = TableOptions::default().relay([("a".to_owned(), true)]).fold([("a".to_owned(), fold)]);
        let local = fs_dsl::cluster::preset("local").expect("a preset");
        let nodes = Cluster { nodes: 2, gpus_per_node: 2, ..local };
        let options = CompileOptions::new(Strategy::Pec, 4).cluster(nodes).balance_at(Some(At::Folded));
        compile_with(&program, &options.tables(named))
    };
    let folded = relayed(false).expect("compiles").schedule.exchanges;
    assert_eq!(folded.iter().map(|x| x.folded).collect::<Vec<_>>(), [false, false, true, false]);
    let refused = relayed(true).expect_err("relays ask for themselves");
    assert!(format!("{refused:?}").contains("relays of their nodes"), "{refused:?}");
    let compiled = |strategy, at: Option<At>, fold: &[(&str, bool)]| {
        let fold = fold.iter().map(|(name, on)| ((*name).to_owned(), *on));
        let named = TableOptions::default().fold(fold);
        compile_with(&program, &CompileOptions::new(strategy, 2).balance_at(at).tables(named))
    };
    for strategy in STRATEGIES {
        for (at, fold, [own, others], said) in [
            (At::Ids, &[][..], [&[0, 1][..], &[]], ""),
            (At::Ids, &[("b", false)], [&[0, 1], &[]], ""),
            (At::Ids, &[("a", true)], [&[1], &[0]], "rows of `a` are asked for by those who read them"),
            (
                At::Ids,
                &[("a", true), ("b", true)],
                [&[], &[0, 1]],
                "rows of `a`, `b` are asked for by those who read them",
            ),
            (At::Folded, &[], [&[], &[0, 1]], ""),
            (
                At::Folded,
                &[("a", false)],
                [&[0], &[1]],
                "rows of `a` are asked for by those who work on them",
            ),
        ] {
            let s = compiled(strategy, Some(at), fold).unwrap_or_else(|e| panic!("{e}")).schedule;
            assert_eq!(verify(&s), vec![], "{strategy:?}, at {at}, {fold:?}");
            let folded: Vec<bool> = s.exchanges.iter().map(|x| x.folded).collect();
            assert_eq!(folded, [others.contains(&0), others.contains(&1), false], "at {at}, {fold:?}");
            let asked = |op: &Op| match &op.action {
                Action::AllToAllIds { exchanges } => Some((false, exchanges.clone())),
                Action::AllToAllIdsFor { exchanges } => Some((true, exchanges.clone())),
                _ => None,
            };
            let found: BTreeMap<bool, Vec<u32>> = s.train.ops.iter().filter_map(asked).collect();
            let wanted = [(false, own.to_vec()), (true, others.to_vec())];
            let wanted: BTreeMap<_, _> = wanted.into_iter().filter(|(_, list)| !list.is_empty()).collect();
            assert_eq!(found, wanted, "{strategy:?}, at {at}, {fold:?}");
            let text = explain(&s).and_then(|e| e.text(None)).expect("an explanation");
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            let tells = text.contains("are asked for by");
            assert!(tells != said.is_empty() && text.contains(said), "{text}");
        }
    }
    // What is said of one table is said of `ids`: the others stay with it.
    let s = compiled(Strategy::Pec, None, &[("b", true)]).expect("compiles").schedule;
    assert_eq!(s.exchanges.iter().map(|x| x.folded).collect::<Vec<_>>(), [false, true, false]);
    let replicas = "rows of table c cannot be asked for by those who read samples: every rank has all";
    for (at, name, wanted) in [
        (At::Ids, "c", replicas),
        (At::Folded, "c", replicas),
        (
            At::Rows,
            "a",
            "rows of table a cannot be asked for by those who read samples: samples move at `rows`",
        ),
        (At::Ids, "d", "there is no table `d`"),
    ] {
        let error = compiled(Strategy::Serial, Some(at), &[(name, true)]).expect_err(wanted);
        let chain = std::iter::successors(Some(&error as &dyn std::error::Error), |e| e.source());
        let said = chain.map(ToString::to_string).collect::<Vec<_>>().join(": ");
        assert!(said.contains(wanted), "{said}");
    }
}
