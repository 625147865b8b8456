//! Rows by how soon they are used again.

use fs_schedule::Way;
use fs_schedule::reuse::Reuse;

use super::text::{Classes, ask, fetch, update, update_all};
use super::{Condition, Context, Instance, Lookalike, Rule, Twin};

pub(super) static RULE: Rule = Rule {
    name: "partition",
    equations: &[
        "fetch(e) = merge(fetch of class 0, its positions, fetch of class 1, ...)",
        "update(send(g, e)) = join(update(send(split(g, class 0))), update(send(split(g, class 1))), ...)",
    ],
    when: "functions that update the table, under strategies that tell rows apart",
    because: "Every entry is in one class, at its owner and at the rank that asked. With several microbatches the rows of \
              a class arrive before the first that uses them; those that have not arrived yet are used by none.",
    open: |context| !context.lookaheads.is_empty(),
    instances,
    twins: &[
        Twin {
            why: "rows travel together under strategies that do not tell them apart, and in evaluation",
            is: Lookalike::Table(|context| context.lookaheads.clear()),
        },
        Twin {
            why: "a class left out is rows that are not there",
            is: Lookalike::Term(
                "(merge (list (return (gather (shard 0 0 4 owners) (ask 0 (entries 0 once (list (ids 0 T0 1 0)))) (positions forward 0 2 (partition forward 1 1 (ask 0 (entries 0 once (list (ids 0 T0 1 0)))) (ask 0 (entries 0 once (list (ids 0 T0 1 0))))))) (positions forward 0 2 (partition forward 1 1 (ask 0 (entries 0 once (list (ids 0 T0 1 0)))) (ask 0 (entries 0 once (list (ids 0 T0 1 0)))))) (positions forward 0 2 (answer (partition forward 1 1 (ask 0 (entries 0 once (list (ids 0 T0 1 0)))) (ask 0 (entries 0 once (list (ids 0 T0 1 0))))) (entries 0 once (list (ids 0 T0 1 0)))))) (positions forward 0 2 (answer (partition forward 1 1 (ask 0 (entries 0 once (list (ids 0 T0 1 0)))) (ask 0 (entries 0 once (list (ids 0 T0 1 0))))) (entries 0 once (list (ids 0 T0 1 0)))))))",
            ),
        },
        Twin {
            why: "rows are sent to those who asked, in their order, and to no others",
            is: Lookalike::Term(
                "(return (gather (shard 0 0 4 owners) (ask 0 (entries 0 once (list (ids 0 T0 1 0))))) (ask 0 (entries 0 once (list (ids 0 T0 1 0)))) (entries 0 once (list (ids 1 T0 1 0))))",
            ),
        },
    ],
};

fn instances(context: &Context) -> Vec<Instance> {
    let mut all = Vec::new();
    for lookahead in context.lookaheads.iter().copied() {
        let reuse = Reuse { lookahead, microbatches: context.microbatches };
        lookups(context, reuse, &mut all);
        for replicated in [false, true] {
            gradients(reuse, replicated, &mut all);
        }
    }
    all
}

fn lookups(context: &Context, reuse: Reuse, all: &mut Vec<Instance>) {
    let classes = |exchange: &str| Classes {
        reuse,
        way: Way::Forward,
        asked: ask(exchange, "?e"),
        entries: "?e",
        replicated: false,
    };
    if reuse.microbatches == 1 {
        let (left, right) = (fetch("?s", "?x", "?e"), classes("?x").merged("?s", 0));
        all.push(Instance { left, right, condition: Condition::None });
        return;
    }
    // What has not arrived yet is no value, so the rule is about what uses rows.
    for microbatch in 0..reuse.microbatches {
        let parts = [1, context.cuts.len()];
        for n in parts.into_iter().filter(|n| *n > 0) {
            let whole = |of: &dyn Fn(&str, &str) -> String| {
                let each: Vec<String> = (0..n).map(|p| of(&format!("?s{p}"), &format!("?x{p}"))).collect();
                if n == 1 { each.concat() } else { format!("(concat (list {}))", each.join(" ")) }
            };
            let together = whole(&|s, x| fetch(s, x, "?e"));
            let apart = whole(&|s, x| classes(x).merged(s, microbatch));
            let place = format!("(inverse ?e (ids ?a ?b ?c {microbatch}))");
            for (before, after) in [("(expand ", ")"), ("(pool ?m ", " ?o)")] {
                let used = |rows: &str| format!("{before}{rows} {place}{after}");
                all.push(Instance { left: used(&together), right: used(&apart), condition: Condition::None });
            }
        }
    }
}

fn gradients(reuse: Reuse, replicated: bool, all: &mut Vec<Instance>) {
    let (asked, send) =
        if replicated { ("(ask_all ?x ?e)".to_owned(), "send_all") } else { (ask("?x", "?e"), "send") };
    let classes = Classes { reuse, way: Way::Backward, asked, entries: "?e", replicated };
    let asked = &classes.asked;
    let of = |class: usize| {
        let (owner, asker) = (classes.at_owner(class), classes.at_asker(class));
        format!("(update (total {asked} ({send} (split ?g {asker}) {asker} {owner}) {owner}))")
    };
    let updates: Vec<String> = (0..classes.count()).map(of).collect();
    let right = match &updates[..] {
        [one] => one.clone(),
        _ => format!("(join (list {}))", updates.join(" ")),
    };
    let left = if replicated { update_all("?g", "?x", "?e") } else { update("?g", "?x", "?e") };
    all.push(Instance { left, right, condition: Condition::None });
}
