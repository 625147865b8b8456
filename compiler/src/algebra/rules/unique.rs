//! Each row once.

use super::text::{fetch, sum, update};
use super::{About, Condition, Context, Instance, Lookalike, Rule, Twin};

pub(super) static RULE: Rule = Rule {
    name: "unique",
    exact: true,
    about: About::Table,
    equations: &[
        "expand(fetch(once(ids)), inverse(once(ids), i)) = expand(fetch(each(ids)), inverse(each(ids), i))",
        "update(send(sum of expand_grad(g, inverse(once(ids), i)))) = update(send(sum of expand_grad(g, inverse(each(ids), i))))",
    ],
    when: "tables of which no sampled softmax compares entries, whose sequences are each used by one operation, and whose gradients travel as \
           they are",
    because: "A rank that asks for a row twice is sent it twice, and both are the row. The owner adds up what a rank sends of a \
              row before it adds up ranks; what is added before it is sent is added in the same order.",
    open: |context| context.repeats,
    instances,
    twins: &[
        Twin {
            why: "a sampled softmax tells a negative that equals its target by their common entry",
            is: Lookalike::Table(|context| context.repeats = false),
        },
        Twin {
            why: "where two operations use one sequence, both gradients of an occurrence are added before those of the next; of each row \
                  once, all of the first operation before the second's: another order of a sum",
            is: Lookalike::Term(
                "(update (total (ask 0 (entries 0 each (list (ids 0 T0 1 0)))) (send (sum (list (expand_grad (given 0 T0 4) (inverse (entries 0 each (list (ids 0 T0 1 0))) (ids 0 T0 1 0))) (pool_grad added (given 1 B 4) (inverse (entries 0 each (list (ids 0 T0 1 0))) (ids 0 T0 1 0)) (offsets 0)))) (entries 0 each (list (ids 0 T0 1 0))) (ask 0 (entries 0 each (list (ids 0 T0 1 0)))))))",
            ),
        },
        Twin {
            why: "places among other entries say nothing of these",
            is: Lookalike::Term(
                "(expand (return (gather (shard 0 0 4 owners) (ask 0 (entries 0 each (list (ids 0 T0 1 0))))) (ask 0 (entries 0 each (list (ids 0 T0 1 0)))) (entries 0 each (list (ids 0 T0 1 0)))) (inverse (entries 0 once (list (ids 0 T0 1 0))) (ids 0 T0 1 0)))",
            ),
        },
        Twin {
            why: "rows that nobody uses yet are as many as are asked for: another number of entries is another value",
            is: Lookalike::Term(
                "(return (gather (shard 0 0 4 owners) (ask 0 (entries 0 each (list (ids 0 T0 1 0))))) (ask 0 (entries 0 each (list (ids 0 T0 1 0)))) (entries 0 each (list (ids 0 T0 1 0))))",
            ),
        },
    ],
};

fn instances(context: &Context) -> Vec<Instance> {
    let entries = |how: &str| format!("(entries ?y {how} ?l)");
    let distinct: Vec<String> = (0..context.uses.len()).map(|n| format!("?i{n}")).collect();
    let side = |of: &dyn Fn(&str) -> String| Instance {
        left: of(&entries("once")),
        right: of(&entries("each")),
        condition: Condition::None,
    };
    let mut all = vec![
        side(&|e| format!("(expand {} (inverse {e} ?i))", fetch("?s", "?x", e))),
        side(&|e| format!("(pool ?m {} (inverse {e} ?i) ?o)", fetch("?s", "?x", e))),
    ];
    if !context.uses.is_empty() {
        let update = side(&|e| update(&sum(context, e), "?x", e));
        all.push(Instance { condition: Condition::Distinct(distinct), ..update });
    }
    all
}
