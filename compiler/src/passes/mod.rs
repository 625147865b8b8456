//! Passes over the IR, declared in one table ([`PASSES`]) from which the pipeline parser, `fsc opt --help` and
//! docs/passes.md are made. Adding a pass is a file and a line in the table.

mod accumulate;
mod balance;
pub(crate) mod branches;
mod bucket_gradients;
mod canonicalize;
mod collective;
mod debug;
mod differentiate;
mod evaluation;
mod expected;
mod fuse_collectives;
mod fuse_elementwise;
mod group_collectives;
mod lower_exchanges;
pub mod manager;
mod microbatch;
mod mixed_precision;
mod option;
pub(crate) mod plan_sharding;
mod reference;
mod schedule;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::distribution::TypeError;
use crate::emit::EmitError;
use crate::ir::{AttrError, Module, OpData, OpError};

pub use fuse_collectives::GroupError;
pub use option::OptionError;
pub use plan_sharding::PlacementError;

/// A failed pass.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PassError {
    /// A function that the pass works on is not there.
    #[error("the module has no function `@{0}`")]
    Missing(&'static str),
    /// A constant of the module, or of an operation that stands for it.
    #[error(transparent)]
    Attr(#[from] AttrError),
    /// An operation that the pass cannot read.
    #[error("{op}: {broken}")]
    Operation {
        /// Its name.
        op: &'static str,
        /// What is wrong.
        #[source]
        broken: OpError,
    },
    /// A derivative that cannot be written.
    #[error("derivative of {of}: {broken}")]
    Derivative {
        /// The operation's name.
        of: &'static str,
        /// What is wrong.
        #[source]
        broken: OpError,
    },
    /// Terms of the plan of an exchange.
    #[error("a term does not fit: {0}")]
    Term(#[from] TypeError),
    /// Collectives that cannot travel as one.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// An option that cannot be followed.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// Tables that cannot be placed.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// A model that cannot be evaluated as it asks for.
    #[error(
        "evaluation asks for the item that follows, so the value that is scored must not depend on a `next` input; \
         leave that input out of it, or leave `evaluate` out of the workload"
    )]
    ScoresNext,
    /// The module has no schedule.
    #[error(transparent)]
    Emit(#[from] Box<EmitError>),
    /// A module that no model is lowered to, or passes in another order; a sentence. Only who writes IR by hand gets to
    /// read it, and nothing depends on which it is.
    #[error("{0}")]
    Form(Cow<'static, str>),
}

impl PassError {
    /// A module that the pass has no answer for; a sentence.
    pub(crate) fn new(message: impl Into<Cow<'static, str>>) -> Self {
        Self::Form(message.into())
    }
    /// A function that the pass works on is not there.
    pub(crate) fn missing(func: &'static str) -> Self {
        Self::Missing(func)
    }
    /// An operation that the pass cannot read.
    pub(crate) fn of(op: &OpData, broken: impl Into<OpError>) -> Self {
        Self::Operation { op: op.def.name, broken: broken.into() }
    }
}

/// Counters that a pass keeps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Statistics(pub BTreeMap<&'static str, usize>);

impl Statistics {
    /// Adds one.
    pub(crate) fn count(&mut self, name: &'static str) {
        *self.0.entry(name).or_insert(0) += 1;
    }
}

/// Options given in a pipeline: `name{key=value}`.
pub(crate) type Options = BTreeMap<String, String>;

/// The value of an option, if it is given.
fn option<T: std::str::FromStr>(options: &Options, option: &'static str) -> Result<Option<T>, OptionError> {
    let Some(text) = options.get(option) else { return Ok(None) };
    let wrong = |_| OptionError::Value { option, text: text.clone() };
    text.parse().map(Some).map_err(wrong)
}

/// The declaration of a pass.
#[derive(Debug)]
pub struct Pass {
    /// Its name in pipelines.
    pub name: &'static str,
    /// What it does, in a sentence or two.
    pub summary: &'static str,
    /// Options: name, default, meaning.
    pub options: &'static [(&'static str, &'static str, &'static str)],
    /// Counters: name, meaning.
    pub statistics: &'static [(&'static str, &'static str)],
    run: fn(&mut Module, &Options, &mut Statistics) -> Result<(), PassError>,
}

/// Every pass, in the order in which a pipeline would use them.
pub static PASSES: &[Pass] = &[
    Pass {
        name: "plan-sharding",
        summary: "Places tables: decides `auto` by memory, lookups and communication, and finds ranks for tables that are to have owners. Reasons are left in the module's attribute `placement`.",
        options: &[
            ("ranks", "1", "ranks to plan for"),
            (
                "node",
                "the settings'",
                "ranks of a node; with several nodes sums of gradients are made node by node",
            ),
            ("memory", "unlimited", "bytes of a rank that tables and their state may take"),
            ("latency_bytes", "262144", "bytes that a transfer could have moved in its latency"),
            (
                "sharding",
                "the tables'",
                "`items:data_parallel;users:auto`: where rows of these tables live instead",
            ),
            (
                "placement",
                "the tables'",
                "`items:hashed;users:range`: which rows the ranks of these row-wise tables own instead",
            ),
            (
                "hot",
                "no rows",
                "`items:256`: so many rows of these tables, of those that are asked for most, that all ranks have; fewer, if no more are known to be asked for more than once",
            ),
        ],
        statistics: &[
            ("row-wise", "tables placed so"),
            ("table-wise", "tables placed so"),
            ("column-wise", "tables placed so"),
            ("data-parallel", "tables placed so"),
            ("hashed", "row-wise tables whose rows are hashed"),
            ("planned", "row-wise tables whose hot rows are dealt"),
            ("with hot rows", "tables of which ranks have replicas of some rows"),
        ],
        run: plan_sharding::run,
    },
    Pass {
        name: "canonicalize",
        summary: "Folds operations that do nothing (a scale by 1, a dropout with p = 0, a split or concat of one part) and flattens nested sums. Only exact identities.",
        options: &[],
        statistics: &[
            ("folded", "operations replaced by one of their operands"),
            ("flattened", "sums merged into their user"),
        ],
        run: |m, _, s| canonicalize::run(m, s),
    },
    Pass {
        name: "dce",
        summary: "Removes operations without effect whose results nobody uses.",
        options: &[],
        statistics: &[("removed", "operations removed")],
        run: |m, _, s| canonicalize::eliminate_dead(m, s),
    },
    Pass {
        name: "mixed-precision",
        summary: "Lets the dense graph of `@forward` compute in bf16, if the model asks for it: results of all operations that have a form in bf16 become so, but for statistics, and casts stand where rows and features come in and before losses. Before evaluation and derivatives are made of it. Nothing for f32. See [precision](precision.md).",
        options: &[("compute", "the model's", "`f32` or `bf16`")],
        statistics: &[
            ("casts", "values that another precision was made of"),
            ("rounded", "operations whose results became bf16"),
        ],
        run: mixed_precision::run,
    },
    Pass {
        name: "make-evaluation",
        summary: "Makes `@evaluate` of `@forward`: the part that computes the sampled softmax's h, without dropout, ending in the ranking of all rows. Nothing for other losses.",
        options: &[],
        statistics: &[("functions", "evaluation functions made")],
        run: |m, _, s| evaluation::run(m, s),
    },
    Pass {
        name: "differentiate",
        summary: "Makes `@train` of `@forward`: the forward operations, their derivatives in reverse order, and the optimizers.",
        options: &[],
        statistics: &[("derivatives", "operations differentiated")],
        run: |m, _, s| differentiate::run(m, s),
    },
    Pass {
        name: "reference",
        summary: "Writes down what the step computes, in the module's attribute `reference`: what every schedule of the model is proved against. Right behind `differentiate`, before anything that strategies do differently. Changes no operation.",
        options: &[],
        statistics: &[("terms", "operations of a microbatch of training")],
        run: |m, _, s| reference::run(m, s),
    },
    Pass {
        name: "microbatch",
        summary: "Cuts the step into microbatches: forward and backward of the first, then of the second, and so on; gradients add up, updates come once. Nothing for one microbatch.",
        options: &[("microbatches", "the settings'", "their number, which the settings then say too")],
        statistics: &[("copied", "operations copied")],
        run: microbatch::run,
    },
    Pass {
        name: "lower-exchanges",
        summary: "Replaces lookups, pools, sampled softmax and sparse gradients by exchanges: ids to the owners, rows back, gradients to the owners, for every placement; in the training step by reuse distance if a lookahead is given.",
        options: &[
            (
                "unique",
                "true",
                "send each row once per rank; false: once per occurrence (tables of a sampled softmax stay unique); `true;items:false` says another for a table",
            ),
            (
                "lookahead",
                "none",
                "reuse distances up to this (in windows) are told apart and travel by class; none: all rows travel together; `1;items:none;users:2` says others for tables",
            ),
            (
                "windows",
                "the microbatches",
                "by so many windows of a batch rows are told apart, each of as many microbatches; more than microbatches: one each; `1;items:2` says another for a table",
            ),
            (
                "relay",
                "false",
                "rows come through a rank of one's own node, which asks for each once for all of it; needs ranks of several nodes (`node` of `plan-sharding`); `true;items:false` says another for a table",
            ),
        ],
        statistics: &[
            ("exchanges", "exchanges made, one per function and table, or part of a column-wise table"),
            ("lowered", "operations replaced"),
        ],
        run: lower_exchanges::run,
    },
    Pass {
        name: "accumulate",
        summary: "Turns a sum whose part is computed just for it into an addition in place, where the storage that it takes over is not read any more.",
        options: &[],
        statistics: &[("fused", "sums made in place")],
        run: |m, _, s| accumulate::run(m, s),
    },
    Pass {
        name: "fuse-elementwise",
        summary: "Makes one operation of two neighbours that a device does in one launch (a linear layer with bias and a function of it, a sum of two and its norm, a norm and what it is multiplied by), where a launch takes longer than what the second moves. Exact: both results are kept.",
        options: &[
            ("launch_bytes", "0", "bytes that memory moves in the time of a launch"),
            ("ranks", "1", "ranks that share a batch"),
        ],
        statistics: &[("fused", "operations made of two")],
        run: fuse_elementwise::run,
    },
    Pass {
        name: "group-collectives",
        summary: "Says which collectives travel together, by a number on each: same action, same class, point to point or to all, same lookahead, operands ready at the same place (no dense operation between), none needing another's result; or as asked.",
        options: &[
            (
                "groups",
                "none",
                "`items:0;users:0;others:1`: tables of one number travel together, wherever their operands are ready, and with no others",
            ),
            (
                "fold",
                "none",
                "as `balance` is told: ids that other ranks ask for do not travel with those that each asks for itself",
            ),
        ],
        statistics: &[("groups", "groups of several collectives")],
        run: group_collectives::run,
    },
    Pass {
        name: "fuse-collectives",
        summary: "Makes one collective of those with the same group number. Fails where they cannot travel as one: another action, class, lookahead or microbatch, the same exchange twice, or a result that is needed before the last of them.",
        options: &[],
        statistics: &[("fused", "collectives made of several")],
        run: |m, _, s| fuse_collectives::run(m, s),
    },
    Pass {
        name: "bucket-gradients",
        summary: "Cuts the sum of dense gradients and the update into buckets in the order in which backward produces gradients; each sum right behind its last gradient, each update behind the last use of its parameters.",
        options: &[
            (
                "bytes",
                "an eighth of all, between the least and 25 MiB",
                "a bucket is full when its gradients have this many bytes",
            ),
            ("least", "1 MiB, which is also the most", "bytes below which a bucket is not worth a transfer"),
        ],
        statistics: &[("buckets", "buckets made")],
        run: bucket_gradients::run,
    },
    Pass {
        name: "balance",
        summary: "Gives samples of `@train` to ranks so that all have about as much to do: lengths go to all ranks, each plans, samples go to the ranks that work on them, and everything else works on those; or rows are asked for where samples are read, and what is made of rows travels, or rows go straight to who works on the samples. Nothing without `balance` in the settings.",
        options: &[
            ("samples", "the settings'", "`on` or `off`: whatever the settings say"),
            (
                "at",
                "ids",
                "`ids`: before ids are looked at; `rows`: behind the output dist, values made of rows travel to the ranks that use them and their gradients back; `folded`: into the output dist, who reads samples asks for rows on behalf of who works on them",
            ),
            (
                "fold",
                "what at says",
                "who asks for a table's rows where `at` is `ids` or `folded`: `items:true;users:false`, those who read samples or those who work on them; `group-collectives` must know it, too",
            ),
        ],
        statistics: &[
            ("assigned", "operations that work on samples as assigned"),
            ("carried", "values and gradients that are brought elsewhere"),
            ("asked", "lists of rows that are asked for on behalf of others"),
        ],
        run: balance::run,
    },
    Pass {
        name: "schedule",
        summary: "Orders `@train` for a cluster: operations in issue order, each with engine, batch offset, priority, planned start and the reason why it stands there. Runs last.",
        options: &[
            ("strategy", "serial", "what blocks on what: serial, prefetch or pec"),
            ("cluster", "a local machine with all ranks", "the preset to plan for"),
            ("ranks", "those of the cluster; 1 without one", "ranks to plan for"),
            ("in_flight", "as many as help", "most batches in flight"),
        ],
        statistics: &[
            ("scheduled", "operations scheduled"),
            ("staged", "of them those that work on another batch than their step's"),
        ],
        run: schedule::run,
    },
];

/// The pass of a name, those of [`debug`] included.
pub(crate) fn find(name: &str) -> Option<&'static Pass> {
    PASSES.iter().chain(debug::DEBUG_PASSES).find(|p| p.name == name)
}

/// docs/passes.md.
pub fn document() -> String {
    let mut text = String::from(
        "# Passes\n\nGenerated from the table in `compiler/src/passes/mod.rs`; `fsc opt --pipeline \"a,b{k=v}\"` runs them.\n",
    );
    for pass in PASSES {
        let _ = write!(text, "\n## `{}`\n\n{}\n", pass.name, pass.summary);
        for (name, default, meaning) in pass.options {
            let _ = write!(text, "\n- option `{name}` (default `{default}`): {meaning}");
        }
        for (name, meaning) in pass.statistics {
            let _ = write!(text, "\n- counts `{name}`: {meaning}");
        }
        text.push('\n');
    }
    text
}
