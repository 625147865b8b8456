//! Columns apart.

use fs_schedule::Element;

use super::text::{fetch, update};
use super::{About, Condition, Context, Instance, Lookalike, Rule, Twin};

pub(super) static RULE: Rule = Rule {
    name: "columns",
    exact: true,
    about: About::Table,
    equations: &[
        "fetch(shard, e) = concat(fetch(columns a of shard, e), fetch(columns b of shard, e), ...)",
        "update(send(g, e)) = beside(update(send(columns a of g, e)), update(send(columns b of g, e)), ...)",
    ],
    when: "tables whose place the model leaves open, and whose optimizer looks at each column by itself; where rows travel in \
           blocks of columns ([wire](wire.md)), cuts between those",
    because: "A row is its columns side by side, and so is its gradient. Each part has its own exchange, and sends the \
              entries of the first.",
    open: |context| {
        let between = |(start, _): &(u32, u32)| context.rows.cuts_at(*start);
        context.moves && context.cuts.len() > 1 && context.cuts.iter().all(between)
    },
    instances,
    twins: &[
        Twin {
            why: "the model says where the table lives",
            is: Lookalike::Table(|context| context.moves = false),
        },
        Twin {
            why: "rowwise_adagrad keeps the mean of a whole row, which no part sees",
            is: Lookalike::Table(|context| context.cuts.clear()),
        },
        Twin {
            why: "numbers of a block share a power of two, which no part knows",
            is: Lookalike::Table(|context| context.rows = Element::Mxint8),
        },
        Twin {
            why: "what is a part already is not cut again",
            is: Lookalike::Term(
                "(update (total (ask 0 (entries 0 once (list (ids 0 T0 1 0)))) (send (columns 0 2 (expand_grad (given 0 T0 4) (inverse (entries 0 once (list (ids 0 T0 1 0))) (ids 0 T0 1 0)))) (entries 0 once (list (ids 0 T0 1 0))) (ask 0 (entries 0 once (list (ids 0 T0 1 0)))))))",
            ),
        },
        Twin {
            why: "replicas have all columns at home",
            is: Lookalike::Term(
                "(gather (shard 0 0 4 everywhere) (own (ask_all 0 (entries 0 once (list (ids 0 T0 1 0)))) (entries 0 once (list (ids 0 T0 1 0)))))",
            ),
        },
    ],
};

fn instances(context: &Context) -> Vec<Instance> {
    let (columns, first) = (context.columns, context.exchange);
    let part = |n: usize| (first + n as u32).to_string();
    let shard = |(a, b): (u32, u32)| format!("(shard ?t {a} {b} owners)");
    let rows = context.cuts.iter().enumerate().map(|(n, cut)| fetch(&shard(*cut), &part(n), "?e"));
    let sums = context.cuts.iter().enumerate();
    let sums = sums.map(|(n, (a, b))| update(&format!("(columns {a} {b} ?g)"), &part(n), "?e"));
    vec![
        Instance {
            left: fetch(&shard((0, columns)), &part(0), "?e"),
            right: format!("(concat (list {}))", rows.collect::<Vec<_>>().join(" ")),
            condition: Condition::None,
        },
        Instance {
            left: update("?g", &part(0), "?e"),
            right: format!("(beside (list {}))", sums.collect::<Vec<_>>().join(" ")),
            condition: Condition::Whole("?g"),
        },
    ]
}
