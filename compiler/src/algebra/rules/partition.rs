//! Rows by how soon they are used again.

use fs_schedule::Way;
use fs_schedule::reuse::Reuse;

use super::text::{Classes, Relays, ask, fetch, update, update_all};
use super::{About, Condition, Context, Instance, Lookalike, Rule, Twin};

pub(super) static RULE: Rule = Rule {
    name: "partition",
    exact: true,
    about: About::Table,
    equations: &[
        "fetch(e) = merge(fetch of class 0, its positions, fetch of class 1, ...)",
        "update(send(g, e)) = join(update(send(split(g, class 0))), update(send(split(g, class 1))), ...)",
    ],
    when: "functions that update the table, under strategies that tell rows apart",
    because: "Every entry is in one class, at its owner and at the rank that asked. With several windows the rows of \
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
                "(merge (list (return (gather (shard 0 0 4 owners) (ask 0 (entries 0 once (list (ids 0 T0 1 0)))) (positions forward 0 2 (partition forward 1 1 1 (ask 0 (entries 0 once (list (ids 0 T0 1 0)))) (ask 0 (entries 0 once (list (ids 0 T0 1 0))))))) (positions forward 0 2 (partition forward 1 1 1 (ask 0 (entries 0 once (list (ids 0 T0 1 0)))) (ask 0 (entries 0 once (list (ids 0 T0 1 0)))))) (positions forward 0 2 (answer (partition forward 1 1 1 (ask 0 (entries 0 once (list (ids 0 T0 1 0)))) (ask 0 (entries 0 once (list (ids 0 T0 1 0))))) (entries 0 once (list (ids 0 T0 1 0)))))) (positions forward 0 2 (answer (partition forward 1 1 1 (ask 0 (entries 0 once (list (ids 0 T0 1 0)))) (ask 0 (entries 0 once (list (ids 0 T0 1 0))))) (entries 0 once (list (ids 0 T0 1 0)))))))",
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
    for reuse in context.reuses() {
        lookups(context, reuse, false, &mut all);
        for replicated in [false, true] {
            let asked = if replicated { "(ask_all ?x ?e)".to_owned() } else { ask("?x", "?e") };
            let left = if replicated { update_all("?g", "?x", "?e") } else { update("?g", "?x", "?e") };
            gradients(reuse, (replicated, None), asked, left, &mut all);
        }
        if context.relays {
            lookups(context, reuse, true, &mut all);
            for relays in context.relayed("?e") {
                let (asked, left) = (relays.owned.clone(), relays.update("?g"));
                gradients(reuse, (false, Some(relays)), asked, left, &mut all);
            }
        }
    }
    all
}

/// Rows of exchanges that begin with these entries, from owners or through relays.
fn lookups(context: &Context, reuse: Reuse, relayed: bool, all: &mut Vec<Instance>) {
    let way = Way::Forward;
    let plain = |x: String| {
        let classes =
            Classes { reuse, way, asked: ask(&x, "?e"), entries: "?e", replicated: false, relays: None };
        (x, classes)
    };
    let through = |relays: Relays| {
        let asked = relays.owned.clone();
        Classes { reuse, way, asked, entries: "?e", replicated: false, relays: Some(relays) }
    };
    // Together and by class, of the n-th part.
    let sides = |n: usize, of: usize, shard: &str, microbatch: u32| {
        if relayed {
            let relays = context.relayed("?e").swap_remove(n);
            (relays.fetch(shard), through(relays).merged(shard, microbatch))
        } else {
            let (x, classes) = plain(if of == 1 { "?x".to_owned() } else { format!("?x{n}") });
            (fetch(shard, &x, "?e"), classes.merged(shard, microbatch))
        }
    };
    if reuse.windows == 1 {
        let parts = if relayed { context.relayed("?e").len() } else { 1 };
        for n in 0..parts {
            let (left, right) = sides(n, 1, "?s", 0);
            all.push(Instance { left, right, condition: Condition::None });
        }
        return;
    }
    // What has not arrived yet is no value, so the rule is about what uses rows.
    for microbatch in 0..reuse.microbatches() {
        let parts = [1, context.cuts.len()];
        for n in parts.into_iter().filter(|n| *n > 0) {
            let each: Vec<(String, String)> =
                (0..n).map(|p| sides(p, n, &format!("?s{p}"), microbatch)).collect();
            let whole = |each: Vec<String>| {
                if n == 1 { each.concat() } else { format!("(concat (list {}))", each.join(" ")) }
            };
            let (together, apart): (Vec<String>, Vec<String>) = each.into_iter().unzip();
            let (together, apart) = (whole(together), whole(apart));
            let ids = format!("(ids ?a ?b ?c {microbatch})");
            let ids = if context.moved { format!("(dispatch {ids} ?d)") } else { ids };
            let place = format!("(inverse ?e {ids})");
            for (before, after) in [("(expand ", ")"), ("(pool ?m ", " ?o)")] {
                let used = |rows: &str| format!("{before}{rows} {place}{after}");
                all.push(Instance { left: used(&together), right: used(&apart), condition: Condition::None });
            }
        }
    }
}

fn gradients(
    reuse: Reuse,
    (replicated, relays): (bool, Option<Relays>),
    asked: String,
    left: String,
    all: &mut Vec<Instance>,
) {
    let classes = Classes { reuse, way: Way::Backward, asked, entries: "?e", replicated, relays };
    let updates: Vec<String> = (0..classes.count()).map(|class| classes.updated("?g", class)).collect();
    let right = match &updates[..] {
        [one] => one.clone(),
        _ => format!("(join (list {}))", updates.join(" ")),
    };
    all.push(Instance { left, right, condition: Condition::None });
}
