//! Transfers that travel as one.

use super::{About, Condition, Context, Instance, Lookalike, Rule, Twin};

/// What a rank asks for of the first and of the second of two tables.
macro_rules! entries {
    (0) => {
        "(entries 0 once (list (ids 0 T0 1 0)))"
    };
    (1) => {
        "(entries 1 once (list (ids 1 T0 1 0)))"
    };
}

/// Gradients per row that it asks for.
macro_rules! sums {
    ($n:tt) => {
        concat!("(expand_grad (given ", $n, " T0 4) (inverse ", entries!($n), " (ids ", $n, " T0 1 0)))")
    };
}

/// What its owner is asked for.
macro_rules! asked {
    ($n:tt) => {
        concat!("(ask ", $n, " ", entries!($n), ")")
    };
}

/// Its rows.
macro_rules! rows {
    ($n:tt) => {
        concat!(
            "(return (gather (shard ",
            $n,
            " 0 4 owners) ",
            asked!($n),
            ") ",
            asked!($n),
            " ",
            entries!($n),
            ")"
        )
    };
}

/// The places of a class of lookups at an owner, and at the rank that asks.
macro_rules! places {
    ($class:tt, $n:tt) => {
        concat!(
            "(positions forward ",
            $class,
            " 2 (partition forward 1 1 1 ",
            asked!($n),
            " ",
            asked!($n),
            "))"
        )
    };
    ($class:tt, $n:tt, asker) => {
        concat!(
            "(positions forward ",
            $class,
            " 2 (answer (partition forward 1 1 1 ",
            asked!($n),
            " ",
            asked!($n),
            ") ",
            entries!($n),
            "))"
        )
    };
}

/// The rows of a class.
macro_rules! of_class {
    ($class:tt, $n:tt) => {
        concat!(
            "(return (gather (shard ",
            $n,
            " 0 4 owners) ",
            asked!($n),
            " ",
            places!($class, $n),
            ") ",
            places!($class, $n),
            " ",
            places!($class, $n, asker),
            ")"
        )
    };
}

pub(crate) static RULE: Rule = Rule {
    name: "together",
    exact: true,
    about: About::Transfers,
    equations: &[
        "all_to_all(a), all_to_all(b) = joint 0 (a, b), joint 1 (a, b)",
        "all_reduce(a), all_reduce(b) = joint 0 (a, b), joint 1 (a, b)",
    ],
    when: "transfers that do the same, for different exchanges (a rank's own ids, classes, rows or gradients; of one class, told apart up \
           to the same lookahead in as many windows, and on one leg of the way), and for sums of dense gradients",
    because: "Who receives knows how much of each there is, or is told, cuts what arrives there, and has of each what it would have had. Sums over \
              ranks are added element by element in the order of ranks, whichever rank adds, and whatever stands beside them.",
    open: |_| true,
    instances,
    twins: &[
        Twin {
            why: "rows come back while gradients leave: neither waits for the other's operands",
            is: Lookalike::Term(concat!(
                "(list ",
                rows!(0),
                " (send_all ",
                sums!(1),
                " ",
                entries!(1),
                " (ask_all 1 ",
                entries!(1),
                ")))"
            )),
        },
        Twin {
            why: "a class that must hurry does not wait for one that need not",
            is: Lookalike::Term(concat!("(list ", of_class!(0, 0), " ", of_class!(1, 0), ")")),
        },
        Twin {
            why: "what goes to owners goes to one rank, what replicas gather to all",
            is: Lookalike::Term(concat!("(list (ask 0 ", entries!(0), ") (ask_all 1 ", entries!(1), "))")),
        },
        Twin {
            why: "an exchange has one list of each kind",
            is: Lookalike::Term(concat!("(list (ask 0 ", entries!(0), ") (ask 0 ", entries!(1), "))")),
        },
        Twin {
            why: "a relay asks owners for what its node has asked it for",
            is: Lookalike::Term(concat!("(ask 2 (relayed 2 (ask_relay 0 ", entries!(0), ")))")),
        },
        Twin {
            why: "a sum of ranks' gradients does not wait for one that is none",
            is: Lookalike::Term("(list (all_reduce (given 0 1 4)) (given 1 1 4))"),
        },
    ],
};

/// Transfers of one kind: patterns whose variables end in the number of the member, but for what all have in common; and the
/// variable that tells members apart.
const KINDS: [(&str, &str); 14] = [
    ("(ask ?n# ?q#)", "?n#"),
    ("(ask_relay ?n# ?q#)", "?n#"),
    ("(ask_all ?n# ?q#)", "?n#"),
    ("(answer (partition ?w ?k ?m ?v (ask ?n# ?o#) ?a#) ?q#)", "?n#"),
    (
        "(answer (pass_classes (answer (partition ?w ?k ?m ?v ?a# ?b#) ?r#) (places ?p# (ask_relay ?n# ?o#))) ?q#)",
        "?n#",
    ),
    ("(return ?r# (ask ?n# ?o#) ?q#)", "?n#"),
    ("(return ?r# (ask_relay ?n# ?o#) ?q#)", "?n#"),
    ("(return ?r# (positions ?w ?c ?m ?a#) (positions ?w ?c ?m ?b#))", "?a#"),
    ("(send ?g# ?q# (ask ?n# ?o#))", "?n#"),
    ("(send ?g# ?q# (ask_relay ?n# ?o#))", "?n#"),
    ("(send ?g# (positions ?w ?c ?m ?a#) (positions ?w ?c ?m ?b#))", "?b#"),
    ("(send_all ?g# ?q# (ask_all ?n# ?o#))", "?n#"),
    ("(send_all ?g# (positions ?w ?c ?m ?a#) (positions ?w ?c ?m ?b#))", "?b#"),
    ("(all_reduce ?g#)", "?g#"),
];

fn instances(_: &Context) -> Vec<Instance> {
    let mut all = Vec::new();
    for (pattern, apart) in KINDS {
        let [a, b] = ["0", "1"].map(|n| pattern.replace('#', n));
        let apart = ["0", "1"].map(|n| apart.replace('#', n)).to_vec();
        let mut add = |left, right, values: &[&str]| {
            let values = values.iter().map(ToString::to_string).collect();
            all.push(Instance { left, right, condition: Condition::OneLeg { apart: apart.clone(), values } });
        };
        add(
            format!("?x = {a}, ?y = {b}"),
            "?x = (joint 0 (list ?x ?y)), ?y = (joint 1 (list ?x ?y))".to_owned(),
            &["?x", "?y"],
        );
        // What was one already was of one leg.
        for (nth, one) in [&a, &b].into_iter().enumerate() {
            add(format!("?x = (joint {nth} (list {a} {b}))"), format!("?x = {one}"), &[]);
        }
    }
    all
}
