//! Rows everywhere.

use super::text::{fetch, update, update_all};
use super::{About, Condition, Context, Instance, Lookalike, Rule, Twin};

pub(crate) static RULE: Rule = Rule {
    name: "replicate",
    exact: true,
    about: About::Table,
    equations: &[
        "return(gather(shard at owners, ask(e)), ask(e), e) = gather(shard everywhere, own(ask_all(e), e))",
        "update(total(ask(e), send(g, e, ask(e)))) = update(total(ask_all(e), send_all(g, e, ask_all(e))))",
    ],
    when: "tables whose place the model leaves open, which are not cut by columns, and which have at most 2^32 rows (what does not fit into memory is dropped where it is scheduled)",
    because: "Replicas that are equal and are given the same gradients in the same order stay equal, and are what the owner would \
              have. What is read everywhere must be updated everywhere, so both equations are used or none (the extraction's commitment).",
    open: |context| context.moves && context.replicates,
    instances,
    twins: &[
        Twin {
            why: "the model says where the table lives",
            is: Lookalike::Table(|context| context.moves = false),
        },
        Twin {
            why: "it has more rows than places among them have numbers",
            is: Lookalike::Table(|context| context.replicates = false),
        },
        Twin {
            why: "a part of a table's columns has its own owner and its own exchange",
            is: Lookalike::Term(
                "(return (gather (shard 0 0 2 owners) (ask 0 (entries 0 once (list (ids 0 T0 1 0))))) (ask 0 (entries 0 once (list (ids 0 T0 1 0)))) (entries 0 once (list (ids 0 T0 1 0))))",
            ),
        },
        Twin {
            why: "gradients of some columns update these only",
            is: Lookalike::Term(
                "(update (total (ask 0 (entries 0 once (list (ids 0 T0 1 0)))) (send (columns 0 2 (expand_grad (given 0 T0 4) (inverse (entries 0 once (list (ids 0 T0 1 0))) (ids 0 T0 1 0)))) (entries 0 once (list (ids 0 T0 1 0))) (ask 0 (entries 0 once (list (ids 0 T0 1 0)))))))",
            ),
        },
    ],
};

fn instances(context: &Context) -> Vec<Instance> {
    let (columns, exchange) = (context.columns, context.exchange.to_string());
    let shard = |place: &str| format!("(shard ?t 0 {columns} {place})");
    vec![
        Instance {
            left: fetch(&shard("owners"), &exchange, "?e"),
            right: format!("(gather {} (own (ask_all {exchange} ?e) ?e))", shard("everywhere")),
            condition: Condition::None,
        },
        Instance {
            left: update("?g", &exchange, "?e"),
            right: update_all("?g", &exchange, "?e"),
            condition: Condition::Whole("?g"),
        },
    ]
}
