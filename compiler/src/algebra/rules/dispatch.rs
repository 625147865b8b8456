//! Before the lookup, or behind it.

use super::text::{fetch, update};
use super::{About, Condition, Context, Instance, Lookalike, Rule, Twin, Use};

pub(super) static RULE: Rule = Rule {
    name: "dispatch",
    exact: false,
    about: About::Table,
    equations: &[
        "dispatch(expand(fetch(entries(ids)), inverse(ids))) = expand(fetch(entries(dispatch(ids))), inverse(dispatch(ids)))",
        "update(send(sum of expand_grad(combine(g), inverse(ids)))) = update(send(sum of expand_grad(g, inverse(dispatch(ids)))))",
    ],
    when: "tables whose rows have owners and travel together, all of whose sequences move",
    because: "A sample is made of the same rows wherever they are looked up, and the gradients of a row are the same numbers. But they are \
              added up first by the rank that reads the samples or by the one that works on them: the same sums in another order.",
    open: |_| true,
    instances,
    twins: &[
        Twin {
            why: "samples that stay are dispatched by nobody",
            is: Lookalike::Term(
                "(table (list (expand (return (gather (shard 0 0 4 owners) (ask 0 (entries 0 once (list (ids 0 T0 1 0) (ids 1 T0 1 0))))) (ask 0 (entries 0 once (list (ids 0 T0 1 0) (ids 1 T0 1 0)))) (entries 0 once (list (ids 0 T0 1 0) (ids 1 T0 1 0)))) (inverse (entries 0 once (list (ids 0 T0 1 0) (ids 1 T0 1 0))) (ids 0 T0 1 0))) (pool added (return (gather (shard 0 0 4 owners) (ask 0 (entries 0 once (list (ids 0 T0 1 0) (ids 1 T0 1 0))))) (ask 0 (entries 0 once (list (ids 0 T0 1 0) (ids 1 T0 1 0)))) (entries 0 once (list (ids 0 T0 1 0) (ids 1 T0 1 0)))) (inverse (entries 0 once (list (ids 0 T0 1 0) (ids 1 T0 1 0))) (ids 1 T0 1 0)) (offsets 1))) (list (update (total (ask 0 (entries 0 once (list (ids 0 T0 1 0) (ids 1 T0 1 0)))) (send (sum (list (expand_grad (given 0 T0 4) (inverse (entries 0 once (list (ids 0 T0 1 0) (ids 1 T0 1 0))) (ids 0 T0 1 0))) (pool_grad added (given 1 B 4) (inverse (entries 0 once (list (ids 0 T0 1 0) (ids 1 T0 1 0))) (ids 1 T0 1 0)) (offsets 1)))) (entries 0 once (list (ids 0 T0 1 0) (ids 1 T0 1 0))) (ask 0 (entries 0 once (list (ids 0 T0 1 0) (ids 1 T0 1 0)))))))))",
            ),
        },
        Twin {
            why: "gradients that do not come back are those of other samples",
            is: Lookalike::Term(
                "(table (list (dispatch (expand (return (gather (shard 0 0 4 owners) (ask 0 (entries 0 once (list (ids 0 T0 1 0) (ids 1 T0 1 0))))) (ask 0 (entries 0 once (list (ids 0 T0 1 0) (ids 1 T0 1 0)))) (entries 0 once (list (ids 0 T0 1 0) (ids 1 T0 1 0)))) (inverse (entries 0 once (list (ids 0 T0 1 0) (ids 1 T0 1 0))) (ids 0 T0 1 0))) (offsets 0)) (dispatch (pool added (return (gather (shard 0 0 4 owners) (ask 0 (entries 0 once (list (ids 0 T0 1 0) (ids 1 T0 1 0))))) (ask 0 (entries 0 once (list (ids 0 T0 1 0) (ids 1 T0 1 0)))) (entries 0 once (list (ids 0 T0 1 0) (ids 1 T0 1 0)))) (inverse (entries 0 once (list (ids 0 T0 1 0) (ids 1 T0 1 0))) (ids 1 T0 1 0)) (offsets 1)))) (list (update (total (ask 0 (entries 0 once (list (ids 0 T0 1 0) (ids 1 T0 1 0)))) (send (sum (list (expand_grad (given 0 T0 4) (inverse (entries 0 once (list (ids 0 T0 1 0) (ids 1 T0 1 0))) (ids 0 T0 1 0))) (pool_grad added (given 1 B 4) (inverse (entries 0 once (list (ids 0 T0 1 0) (ids 1 T0 1 0))) (ids 1 T0 1 0)) (offsets 1)))) (entries 0 once (list (ids 0 T0 1 0) (ids 1 T0 1 0))) (ask 0 (entries 0 once (list (ids 0 T0 1 0) (ids 1 T0 1 0)))))))))",
            ),
        },
        Twin {
            why: "begins and ends of another sequence are no places in this one",
            is: Lookalike::Term(
                "(table (list (expand (return (gather (shard 0 0 4 owners) (ask 0 (entries 0 once (list (dispatch (ids 0 T0 1 0) (offsets 0)) (dispatch (ids 1 T0 1 0) (offsets 1)))))) (ask 0 (entries 0 once (list (dispatch (ids 0 T0 1 0) (offsets 0)) (dispatch (ids 1 T0 1 0) (offsets 1))))) (entries 0 once (list (dispatch (ids 0 T0 1 0) (offsets 0)) (dispatch (ids 1 T0 1 0) (offsets 1))))) (inverse (entries 0 once (list (dispatch (ids 0 T0 1 0) (offsets 0)) (dispatch (ids 1 T0 1 0) (offsets 1)))) (dispatch (ids 0 T0 1 0) (offsets 0)))) (pool added (return (gather (shard 0 0 4 owners) (ask 0 (entries 0 once (list (dispatch (ids 0 T0 1 0) (offsets 0)) (dispatch (ids 1 T0 1 0) (offsets 1)))))) (ask 0 (entries 0 once (list (dispatch (ids 0 T0 1 0) (offsets 0)) (dispatch (ids 1 T0 1 0) (offsets 1))))) (entries 0 once (list (dispatch (ids 0 T0 1 0) (offsets 0)) (dispatch (ids 1 T0 1 0) (offsets 1))))) (inverse (entries 0 once (list (dispatch (ids 0 T0 1 0) (offsets 0)) (dispatch (ids 1 T0 1 0) (offsets 1)))) (dispatch (ids 1 T0 1 0) (offsets 1))) (dispatch (offsets 0)))) (list (update (total (ask 0 (entries 0 once (list (dispatch (ids 0 T0 1 0) (offsets 0)) (dispatch (ids 1 T0 1 0) (offsets 1))))) (send (sum (list (expand_grad (dispatch (given 0 T0 4) (offsets 0)) (inverse (entries 0 once (list (dispatch (ids 0 T0 1 0) (offsets 0)) (dispatch (ids 1 T0 1 0) (offsets 1)))) (dispatch (ids 0 T0 1 0) (offsets 0)))) (pool_grad added (dispatch (given 1 B 4)) (inverse (entries 0 once (list (dispatch (ids 0 T0 1 0) (offsets 0)) (dispatch (ids 1 T0 1 0) (offsets 1)))) (dispatch (ids 1 T0 1 0) (offsets 1))) (dispatch (offsets 1))))) (entries 0 once (list (dispatch (ids 0 T0 1 0) (offsets 0)) (dispatch (ids 1 T0 1 0) (offsets 1)))) (ask 0 (entries 0 once (list (dispatch (ids 0 T0 1 0) (offsets 0)) (dispatch (ids 1 T0 1 0) (offsets 1))))))))))",
            ),
        },
    ],
};

/// What becomes of the table, with each sequence as `ids` and what is made of its rows and gradients as `of` says.
fn table(context: &Context, how: &str, behind: bool) -> String {
    let exchange = context.exchange.to_string();
    let ids = |n: usize| if behind { format!("?i{n}") } else { format!("(dispatch ?i{n} ?o{n})") };
    let list: Vec<String> = (0..context.uses.len()).map(ids).collect();
    let entries = format!("(entries {exchange} {how} (list {}))", list.join(" "));
    let rows = fetch("?s", &exchange, &entries);
    let (mut uses, mut sums) = (Vec::new(), Vec::new());
    for (n, use_) in context.uses.iter().enumerate() {
        let place = format!("(inverse {entries} {})", ids(n));
        let pools = match use_ {
            Use::Each => None,
            Use::Sum => Some("added"),
            Use::Mean => Some("averaged"),
        };
        let (used, sum) = match (pools, behind) {
            (None, true) => (
                format!("(dispatch (expand {rows} {place}) ?o{n})"),
                format!("(expand_grad (combine ?g{n} ?o{n}) {place})"),
            ),
            (None, false) => (format!("(expand {rows} {place})"), format!("(expand_grad ?g{n} {place})")),
            (Some(pool), true) => (
                format!("(dispatch (pool {pool} {rows} {place} ?o{n}))"),
                format!("(pool_grad {pool} (combine ?g{n}) {place} ?o{n})"),
            ),
            (Some(pool), false) => (
                format!("(pool {pool} {rows} {place} (dispatch ?o{n}))"),
                format!("(pool_grad {pool} ?g{n} {place} (dispatch ?o{n}))"),
            ),
        };
        uses.push(used);
        sums.push(sum);
    }
    let sum = match &sums[..] {
        [one] => one.clone(),
        _ => format!("(sum (list {}))", sums.join(" ")),
    };
    format!("(table (list {}) (list {}))", uses.join(" "), update(&sum, &exchange, &entries))
}

fn instances(context: &Context) -> Vec<Instance> {
    let each = ["once", "each"].into_iter().filter(|how| *how == "once" || context.repeats);
    each.map(|how| Instance {
        left: table(context, how, true),
        right: table(context, how, false),
        condition: Condition::None,
    })
    .collect()
}
