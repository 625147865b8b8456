//! Every setting of every keyword, in one table that checking and documentation share.

use crate::signature::{Param, ParamKind};
use crate::units::Dimension;

/// A keyword with settings in braces.
#[derive(Debug)]
pub(crate) struct Keyword {
    /// As written.
    pub(crate) name: &'static str,
    /// One sentence.
    pub(crate) doc: &'static str,
    /// What may stand in its braces (or parentheses, for kinds of input).
    pub(crate) params: &'static [Param],
}

const DTYPES: &[&str] = &["f32", "f16", "bf16"];
const ROWS: &[&str] = &["f32", "f16", "bf16", "mxint8"];
const DTYPE: ParamKind = ParamKind::Choice(DTYPES);

pub(crate) const TABLE: &[Param] = &[
    Param::required("rows", ParamKind::Count { min: 1, max: 1 << 40 }, "Ids are 0 to `rows` - 1."),
    Param::required("dim", ParamKind::Count { min: 1, max: 65_536 }, "Columns of a row."),
    Param::default("init", ParamKind::Init, "normal(0, 0.02)", "Values before training."),
    Param::required("optimizer", ParamKind::SparseOptimizer, "Updates the rows that a batch used."),
    Param::default(
        "sharding",
        ParamKind::Sharding,
        "auto",
        "Placement over ranks; `auto` leaves it to the compiler.",
    ),
    Param::default("dtype", DTYPE, "f32", "Type of the stored values."),
];

pub(crate) const IDS: &[Param] = &[
    Param::required("max", ParamKind::POSITIVE, "Longer sequences are truncated to this."),
    Param::default(
        "keep",
        ParamKind::Choice(&["last", "first"]),
        "last",
        "The end that survives truncation.",
    ),
];

/// Kinds of input, with what stands in their parentheses.
pub(crate) const INPUT_KINDS: &[Keyword] = &[
    Keyword {
        name: "ids",
        doc: "A sequence of ids, one per token. It has lengths of its own, unless `like` names another input.",
        params: &[Param::required("table", ParamKind::Table, "The table whose rows the ids name.")],
    },
    Keyword {
        name: "next",
        doc: "For every token of another sequence the id that follows: what next-item prediction learns. A history of n + 1 ids becomes n tokens.",
        params: &[Param::required("of", ParamKind::Ids, "The sequence.")],
    },
    Keyword {
        name: "dense",
        doc: "Dense features, the same number for every sample. The name stands for their value.",
        params: &[Param::required("width", ParamKind::POSITIVE, "Their number.")],
    },
    Keyword {
        name: "label",
        doc: "A label per sample, or per token of the sequence after `like`.",
        params: &[],
    },
];

pub(crate) const TRAIN: &[Param] = &[
    Param::default("batch", ParamKind::POSITIVE, "32", "Samples of a global batch, over all ranks."),
    Param::optional(
        "epochs",
        ParamKind::POSITIVE,
        "Passes over the data (1 if neither this nor `steps` is given).",
    ),
    Param::optional(
        "steps",
        ParamKind::Count { min: 1, max: 1 << 40 },
        "Global batches, instead of `epochs`.",
    ),
    Param::default("optimizer", ParamKind::DenseOptimizer, "adam(1e-3)", "Updates the dense parameters."),
    Param::default(
        "balance",
        ParamKind::Balance,
        "auto",
        "Moves samples between ranks to even out their cost; `auto` leaves it to the compiler.",
    ),
    Param::default(
        "lookahead",
        ParamKind::Count { min: 1, max: 64 },
        "1",
        "Reuse distances that `pec` tells apart, in windows of a batch (microbatches, or all of them): rows that were last used longer ago move early.",
    ),
    Param::default(
        "microbatches",
        ParamKind::CountOrAuto { min: 1, max: 64 },
        "1",
        "Parts of a batch, whose gradients are summed before the update; `auto` leaves their number, and so how sums round, to the compiler.",
    ),
    Param::default(
        "unique_rows",
        ParamKind::Switch,
        "on",
        "Send a row once per rank, not once per occurrence.",
    ),
    Param::default("seed", ParamKind::Count { min: 0, max: 1 << 53 }, "0", "Of everything random."),
];

pub(crate) const PRECISION: &[Param] = &[
    Param::default(
        "compute",
        ParamKind::Choice(&["f32", "bf16"]),
        "f32",
        "Activations and their gradients in the dense graph; all that is kept stays f32.",
    ),
    Param::default(
        "output_dist",
        ParamKind::Choice(ROWS),
        "f32",
        "Rows on their way from their owners; `f16` is not built.",
    ),
    Param::default(
        "gradient_dist",
        DTYPE,
        "f32",
        "Row gradients on their way to the owners, each rank's sums; `f16` is not built.",
    ),
    Param::default(
        "all_reduce",
        DTYPE,
        "f32",
        "Gradients of dense parameters, each rank's and their sums; `f16` is not built.",
    ),
];

pub(crate) const WORKLOAD: &[Param] = &[Param::optional(
    "evaluate",
    ParamKind::Choice(&["leave_last_out"]),
    "After training: a user's last interaction is the target, the rest the history.",
)];

pub(crate) const CSV: &[Param] = &[
    Param::required("user", ParamKind::Text, "Column of the user."),
    Param::required("item", ParamKind::Text, "Column of the item; ids are numbered by first appearance."),
    Param::optional(
        "time",
        ParamKind::Text,
        "Column that orders a user's interactions, compared as its text says to 18 digits behind the point (whole numbers only from 2^53 on); ties and files without it follow the order of lines.",
    ),
    Param::optional("rating", ParamKind::Text, "Column that must be a finite number on every line."),
    Param::optional(
        "min_interactions",
        ParamKind::POSITIVE,
        "Users with fewer are left out, instead of an error.",
    ),
];

pub(crate) const GENERATE: &[Param] = &[
    Param::required("lengths", ParamKind::Lengths, "Lengths of the sequences."),
    Param::default("ids", ParamKind::IdDistribution, "uniform", "Ids of the sequences."),
    Param::default("labels", ParamKind::LabelDistribution, "hash", "Labels."),
    Param::optional(
        "samples",
        ParamKind::Count { min: 1, max: 1 << 40 },
        "Distinct samples before the data repeats; without it there is no end: train by `steps`.",
    ),
];

pub(crate) const CLUSTER: &[Param] = &[
    Param::default("nodes", ParamKind::POSITIVE, "1", "Machines."),
    Param::required("gpus_per_node", ParamKind::Count { min: 1, max: 1024 }, "Ranks of a machine."),
    Param::default("copy_engines", ParamKind::Count { min: 0, max: 64 }, "2", "Copy engines of a GPU."),
    Param::default("nics", ParamKind::Count { min: 0, max: 64 }, "1", "Network interfaces per GPU."),
    Param::default(
        "sms",
        ParamKind::Count { min: 0, max: 4096 },
        "0",
        "Streaming multiprocessors of a GPU; 0 for a CPU.",
    ),
    Param::default(
        "comm_sms",
        ParamKind::Count { min: 0, max: 4096 },
        "0",
        "SMs that a collective kernel takes.",
    ),
    Param::required("memory", ParamKind::Quantity(Dimension::Bytes), "Memory of a GPU."),
    Param::required(
        "memory_bandwidth",
        ParamKind::Quantity(Dimension::Bandwidth),
        "Bandwidth of that memory.",
    ),
    Param::default(
        "host_sync",
        ParamKind::Quantity(Dimension::Time),
        "0 us",
        "Until the host has learnt a size that the GPU found, beside the operation that found it.",
    ),
];

pub(crate) const LINK: &[Param] = &[
    Param::required("bandwidth", ParamKind::Quantity(Dimension::Bandwidth), "Per GPU and direction."),
    Param::required("latency", ParamKind::Quantity(Dimension::Time), "From the start to the first byte."),
];

pub(crate) const FLOPS: &[Param] = &[
    Param::optional("f32", ParamKind::Quantity(Dimension::Rate), "Peak rate in single precision."),
    Param::optional("f16", ParamKind::Quantity(Dimension::Rate), "Peak rate in half precision."),
    Param::optional("bf16", ParamKind::Quantity(Dimension::Rate), "Peak rate in bfloat16."),
];

/// Every keyword with settings, for documentation.
pub(crate) const KEYWORDS: &[Keyword] = &[
    Keyword { name: "table", doc: "`table name { .. }` in a model: an embedding table.", params: TABLE },
    Keyword {
        name: "ids",
        doc: "`input name: ids(table) { .. }`: an input with lengths of its own.",
        params: IDS,
    },
    Keyword { name: "train", doc: "`train { .. }`: how to train.", params: TRAIN },
    Keyword {
        name: "precision",
        doc: "In `train`: what the dense graph computes in (docs/precision.md), and the types that collectives send (docs/wire.md).",
        params: PRECISION,
    },
    Keyword {
        name: "workload",
        doc: "`workload name { .. }`: where samples come from: exactly one of `csv \"file\" { .. }`, `safetensors \"file\"` and `generate { .. }`. Files are relative to the file that names them.",
        params: WORKLOAD,
    },
    Keyword {
        name: "csv",
        doc: "In `workload`: a file of interactions, one a line, with a header; columns are named here.",
        params: CSV,
    },
    Keyword { name: "generate", doc: "In `workload`: samples drawn from distributions.", params: GENERATE },
    Keyword {
        name: "cluster",
        doc: "`cluster name { .. }`: a machine. `cluster name from preset { .. }` starts from a preset, and all settings become optional; `cluster preset` alone names one.",
        params: CLUSTER,
    },
    Keyword {
        name: "intra, inter, host",
        doc: "In `cluster`: the link between GPUs of a node, between nodes, and between a GPU and its host. `inter` may be left out with one node.",
        params: LINK,
    },
    Keyword { name: "flops", doc: "In `cluster`: peak rates; at least one.", params: FLOPS },
];
