//! Who asks for rows of samples that move.

use super::text::ask;
use super::{About, Condition, Context, Instance, Lookalike, Rule, Twin};

pub(super) static RULE: Rule = Rule {
    name: "fold",
    exact: true,
    about: About::Table,
    equations: &["ask(entries(dispatch(ids))) = ask_for(ids)"],
    when: "tables whose rows have owners, of models whose samples move before their ids are looked at (of who asks, what somebody has said stays)",
    because: "A rank's list is the rows that its samples use, ascending for each owner, whoever finds them. Who reads the samples lists for \
              each rank that works on some of them what those use, and the owner joins what all ask for one rank: the same rows in the same order, \
              with the first and last microbatch of all that use them. So lists do not wait for samples.",
    open: |context| context.moved,
    instances,
    twins: &[
        Twin {
            why: "samples stay, or values made of rows move in their place",
            is: Lookalike::Table(|context| context.moved = false),
        },
        Twin {
            why: "ids that stay are asked for by their own rank",
            is: Lookalike::Term("(ask 0 (entries 0 once (list (ids 0 T0 1 0) (ids 1 T0 1 0))))"),
        },
        Twin {
            why: "a rank needs the rows of all its sequences",
            is: Lookalike::Term("(ask 0 (entries 0 once (list (dispatch (ids 0 T0 1 0) (offsets 0)))))"),
        },
        Twin {
            why: "replicas have all rows at home, and are told what all use",
            is: Lookalike::Term(
                "(ask_all 0 (entries 0 once (list (dispatch (ids 0 T0 1 0) (offsets 0)) (dispatch (ids 1 T0 1 0) (offsets 1)))))",
            ),
        },
        Twin {
            why: "what a relay asks for is its node's, of whom nobody else knows",
            is: Lookalike::Term(
                "(ask 2 (relayed 2 (ask_relay 0 (entries 0 once (list (dispatch (ids 0 T0 1 0) (offsets 0)) (dispatch (ids 1 T0 1 0) (offsets 1)))))))",
            ),
        },
    ],
};

fn instances(context: &Context) -> Vec<Instance> {
    let count = context.uses.len();
    let moved: Vec<String> = (0..count).map(|n| format!("(dispatch ?i{n} ?o{n})")).collect();
    let at_home: Vec<String> = (0..count).map(|n| format!("?i{n} ?o{n}")).collect();
    let mut all = Vec::new();
    for exchange in context.exchange..context.between(context.exchange) {
        for how in ["once", "each"] {
            // All parts of a table send the entries of the first.
            let entries = format!("(entries {} {how} (list {}))", context.exchange, moved.join(" "));
            all.push(Instance {
                left: ask(&exchange.to_string(), &entries),
                right: format!("(ask_for {exchange} {how} (list {}))", at_home.join(" ")),
                condition: Condition::None,
            });
        }
    }
    all
}
