//! What is told of a search: numbers, of tables that are there.

use fs_schedule::search::{Derivation, OtherWay, Rewrite, Search, TriedStrategy};
use fs_schedule::{Schedule, Sent};

use super::{Cases, TIMES};

pub(super) fn told(all: &mut Cases, base: &Schedule) {
    let tables = vec![base.tables[0].name.clone()];
    let (from, to) = ("row-wise".to_owned(), "replicated".to_owned());
    let good = Search {
        strategies: vec![TriedStrategy { name: "serial".into(), step: Some(0.0), at_least: Some(1.0) }],
        rewrites: vec![Rewrite {
            tables: tables.clone(),
            from: from.clone(),
            to: to.clone(),
            rules: Vec::new(),
            step: [1.0, 0.0],
            bytes: [1.0, 0.0],
            between_nodes: Some([0.0; 2]),
            without: Some(1.0),
            without_sent: Some(Sent { bytes: 1.0, between_nodes: 1.0 }),
        }],
        others: vec![OtherWay { tables: tables.clone(), to: to.clone(), step: 0.0 }],
        derivations: vec![Derivation { tables, from, to, steps: Vec::new() }],
        kinds: 0,
        nodes: 0,
        ways: 0,
        scheduled: 0,
        limited: true,
    };
    let mut add = |name: &str, wrong, change: &dyn Fn(&mut Search)| {
        let mut told = good.clone();
        change(&mut told);
        all.add(name, base, wrong, |s| s.search = Some(told));
    };
    add("a search", None, &|_| {});
    for x in [f64::NAN, f64::INFINITY, -1e-9] {
        add("a strategy's step", TIMES, &|s| s.strategies[0].step = Some(x));
        add("a strategy's bound", TIMES, &|s| s.strategies[0].at_least = Some(x));
        for n in [0, 1] {
            add("a change's step", TIMES, &|s| s.rewrites[0].step[n] = x);
            add("a change's bytes", TIMES, &|s| s.rewrites[0].bytes[n] = x);
            add("a change's bytes between nodes", TIMES, &|s| {
                s.rewrites[0].between_nodes.as_mut().expect("some")[n] = x;
            });
        }
        add("a step without a change", TIMES, &|s| s.rewrites[0].without = Some(x));
        add("bytes without a change", TIMES, &|s| {
            s.rewrites[0].without_sent.as_mut().expect("some").bytes = x;
        });
        add("bytes between nodes without a change", TIMES, &|s| {
            s.rewrites[0].without_sent.as_mut().expect("some").between_nodes = x;
        });
        add("another way's step", TIMES, &|s| s.others[0].step = x);
    }
    add("nothing told of a change left out", None, &|s| {
        let change = &mut s.rewrites[0];
        (change.without, change.without_sent, change.between_nodes) = (None, None, None);
    });
    add("more bytes between nodes than in all without a change", TIMES, &|s| {
        s.rewrites[0].without_sent = Some(Sent { bytes: 1.0, between_nodes: 1.1 });
    });
    for n in [0, 1] {
        add("more bytes of a change between nodes than in all", TIMES, &|s| {
            s.rewrites[0].between_nodes.as_mut().expect("some")[n] = s.rewrites[0].bytes[n] + 1e-9;
        });
        add("all bytes of a change between nodes", None, &|s| {
            s.rewrites[0].between_nodes.as_mut().expect("some")[n] = s.rewrites[0].bytes[n];
        });
    }
    add("what is sent without a change, and no step", TIMES, &|s| s.rewrites[0].without = None);
    add("a step without a change, and nothing of what is sent", None, &|s| {
        s.rewrites[0].without_sent = None;
    });
    let twice = || vec![base.tables[0].name.clone(); 2];
    add("a change of a table twice", TIMES, &|s| s.rewrites[0].tables = twice());
    add("another way of a table twice", TIMES, &|s| s.others[0].tables = twice());
    add("what became of a table twice", TIMES, &|s| s.derivations[0].tables = twice());
    let nobody = || vec!["nobody".to_owned()];
    add("a change of a table that is not there", TIMES, &|s| s.rewrites[0].tables = nobody());
    add("another way of a table that is not there", TIMES, &|s| s.others[0].tables = nobody());
    add("what became of a table that is not there", TIMES, &|s| s.derivations[0].tables = nobody());
}
