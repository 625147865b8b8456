//! Through relays.

use super::text::{fetch, update};
use super::{About, Condition, Context, Instance, Lookalike, Rule, Twin};

pub(super) static RULE: Rule = Rule {
    name: "relay",
    exact: true,
    about: About::Table,
    equations: &[
        "fetch(e) = return(pass_rows(return(gather(shard, ask(r)), ask(r), r), places), ask_relay(e), e), where r = relayed(ask_relay(e))",
        "update(send(g, e)) = update(send(sum_asked(send(g, e, ask_relay(e))), r))",
    ],
    when: "ranks of several nodes, and tables whose rows have owners, for which each rank asks for itself, and of which there are at most 2^32",
    because: "What a rank asks its relay for the relay asks the owner for, once for all of its node, and sends on to each that asked. \
              A row's gradients are summed node by node wherever they are summed: at the owner, or by each node's relay before they \
              are sent.",
    open: |context| context.relays,
    instances,
    twins: &[
        Twin {
            why: "ranks of one node have no other node to ask, and where samples move others ask for what a rank needs",
            is: Lookalike::Table(|context| context.relays = false),
        },
        Twin {
            why: "replicas have all rows at home",
            is: Lookalike::Term(
                "(gather (shard 0 0 4 everywhere) (own (ask_all 0 (entries 0 once (list (ids 0 T0 1 0)))) (entries 0 once (list (ids 0 T0 1 0)))))",
            ),
        },
        Twin {
            why: "rows that a relay was sent for others are not those that a rank asked for",
            is: Lookalike::Term(
                "(return (pass_rows (return (gather (shard 0 0 4 owners) (ask 2 (relayed 2 (ask_relay 0 (entries 0 once (list (ids 1 T0 1 0))))))) (ask 2 (relayed 2 (ask_relay 0 (entries 0 once (list (ids 1 T0 1 0)))))) (relayed 2 (ask_relay 0 (entries 0 once (list (ids 1 T0 1 0)))))) (places (relayed 2 (ask_relay 0 (entries 0 once (list (ids 1 T0 1 0))))) (ask_relay 0 (entries 0 once (list (ids 1 T0 1 0)))))) (ask_relay 0 (entries 0 once (list (ids 1 T0 1 0)))) (entries 0 once (list (ids 0 T0 1 0))))",
            ),
        },
        Twin {
            why: "gradients that owners take for those of other rows are not those of a node's",
            is: Lookalike::Term(
                "(update (total (ask 0 (entries 0 once (list (ids 1 T0 1 0)))) (send (expand_grad (given 0 T0 4) (inverse (entries 0 once (list (ids 0 T0 1 0))) (ids 0 T0 1 0))) (entries 0 once (list (ids 0 T0 1 0))) (ask 0 (entries 0 once (list (ids 0 T0 1 0)))))))",
            ),
        },
        Twin {
            why: "what a relay does not ask for itself it cannot hand on: an owner of another exchange sends to that one's ranks",
            is: Lookalike::Term(
                "(return (gather (shard 0 0 4 owners) (ask 7 (entries 0 once (list (ids 0 T0 1 0))))) (ask 7 (entries 0 once (list (ids 0 T0 1 0)))) (entries 0 once (list (ids 0 T0 1 0))))",
            ),
        },
    ],
};

fn instances(context: &Context) -> Vec<Instance> {
    let mut all = Vec::new();
    for (exchange, relays) in (context.exchange..).zip(context.relayed("?e")) {
        let exchange = exchange.to_string();
        let (rows, sums) = (fetch("?s", &exchange, "?e"), update("?g", &exchange, "?e"));
        for (left, right) in [(rows, relays.fetch("?s")), (sums, relays.update("?g"))] {
            all.push(Instance { left, right, condition: Condition::None });
        }
    }
    all
}
