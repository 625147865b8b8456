//! What terms do: the operations of the language, with what they say beside their operands.

use fs_schedule::{Extent, Way};

use super::ty::Precision;

/// What a term does. Operands stand in each variant's text, in the order of the node's children; `x?` may be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    /// Columns `start..end` of a table's rows, where they live: at their owners, or everywhere. `->`
    Shard {
        /// The table.
        table: u32,
        /// First column.
        start: u32,
        /// One behind the last column.
        end: u32,
        /// Every rank has all rows.
        replicated: bool,
    },
    /// The hot ones of a table's rows, in columns `start..end`: every rank has them. `->`
    Replicas {
        /// The table.
        table: u32,
        /// First column.
        start: u32,
        /// One behind the last column.
        end: u32,
    },
    /// Ids that the samples of a rank use. `->`
    Ids {
        /// Which, as the user of the arena numbers them.
        source: u32,
        /// Rows of ids.
        rows: Extent,
        /// Ids per row.
        columns: u32,
        /// The microbatch that uses them.
        microbatch: u32,
    },
    /// Where each sample's ids begin and end. `->`
    Offsets {
        /// Which, as the user of the arena numbers them.
        source: u32,
    },
    /// Gradients of what was made of rows: per id or per sample. `->`
    Given {
        /// Which, as the user of the arena numbers them.
        source: u32,
        /// Rows.
        rows: Extent,
        /// Columns.
        columns: u32,
    },
    /// Gradients per entry that something else computed: a sampled softmax, or a sum of microbatches. `entries ->`
    Gradients {
        /// Which, as the user of the arena numbers them.
        source: u32,
        /// Columns.
        columns: u32,
    },
    /// The rows that a rank asks for, by owner. `ids... ->`
    Entries {
        /// The exchange whose sizes they have.
        exchange: u32,
        /// Each row once, or once per occurrence.
        unique: bool,
        /// With the windows that use each first and last.
        uses: bool,
    },
    /// Those entries whose rows have owners, which are the first, or those of hot rows, the last. `entries ->`
    Share {
        /// The exchange whose sizes they have.
        exchange: u32,
        /// Which.
        hot: bool,
    },
    /// Where each id's row stands among the entries. `entries, ids ->`
    Inverse,
    /// All-to-all of entries: who asks an owner for which of its rows. `entries ->`
    Ask {
        /// The exchange whose sizes the owners see.
        exchange: u32,
    },
    /// The same, asked by those who read samples on behalf of those who work on them. `ids, their offsets, ... ->`
    AskFor {
        /// The exchange whose sizes the owners see.
        exchange: u32,
        /// Each row once for each rank, or once per occurrence.
        unique: bool,
        /// With the windows that use each first and last.
        uses: bool,
    },
    /// All-to-all of entries within the node: who asks a relay for which rows. `entries ->`
    AskRelay {
        /// The exchange whose sizes the relays see.
        exchange: u32,
    },
    /// What a relay asks the owners for: each row once that its node asks for. `asked of the relay ->`
    Relayed {
        /// The exchange whose sizes they have.
        exchange: u32,
        /// With the windows that use each first and last.
        uses: bool,
    },
    /// Where each row that a node asks for stands among those. `relayed, asked of the relay ->`
    Places,
    /// All-gather of entries: what everybody asks for. `entries ->`
    AskAll {
        /// The exchange whose sizes every rank sees.
        exchange: u32,
    },
    /// The rank's own part of what was gathered. `asked, entries ->`
    Own,
    /// The class of each row by its reuse. `rows, asked by all, of the batches around ->`
    Partition {
        /// Lookups look back, gradients ahead.
        way: Way,
        /// Distances up to it are told apart, in windows.
        lookahead: u32,
        /// Windows of a batch.
        windows: u32,
        /// Microbatches of a window.
        each: u32,
    },
    /// All-to-all of classes: owners tell those who asked. `classes, entries ->`
    Answer,
    /// The relay's classes of what its node asks for. `classes, places ->`
    PassClasses,
    /// Where the rows of a class stand. `classes ->`
    Positions {
        /// Of lookups or gradients.
        way: Way,
        /// The class.
        class: u32,
        /// Of so many.
        of: u32,
    },
    /// Rows of a shard. `shard, rows, positions? ->`
    Gather,
    /// All-to-all of rows, from the lists of the owners to those of the askers. `rows, at owner, at asker ->`
    Return,
    /// Rows at the relay for each that its node asks for: all, or those of a class, of which lists say where they stand at
    /// both sides. `rows, places, (among relayed, among asked)? ->`
    PassRows,
    /// Rows of classes in the order of the entries, together with those that are there. `before?, (rows, positions)... ->`
    Merge,
    /// Rows in the order of all entries: of those with owners all, or of classes as in a merge; and the hot ones.
    /// `(rows or (rows, positions)...), hot rows, entries ->`
    Unite,
    /// Columns side by side. `parts... ->`
    Concat,
    /// A row per id. `rows, inverse ->`
    Expand,
    /// Sum or mean of a sample's rows. `rows, inverse, offsets ->`
    Pool {
        /// Sum or mean.
        mean: bool,
    },
    /// Sums per entry, in the order of the ids. `gradients, inverse ->`
    ExpandGrad,
    /// Likewise of pooled rows. `gradients, inverse, offsets ->`
    PoolGrad {
        /// Sum or mean.
        mean: bool,
    },
    /// Sums of gradients of the same entries, from left to right. `gradients... ->`
    Sum,
    /// A range of columns. `gradients ->`
    Columns {
        /// First column.
        start: u32,
        /// One behind the last column.
        end: u32,
    },
    /// The gradients of a class. `gradients, positions ->`
    Split,
    /// The gradients of a share of the entries. `gradients, share ->`
    Cut {
        /// The exchange that moves them.
        exchange: u32,
    },
    /// All-to-all of gradients, to the owners. `gradients, at asker, at owner ->`
    Send,
    /// A node's sums of gradients per row that its relay asks for: within each rank by position, then by rank.
    /// `places, asked of the relay, received, (among asked, among relayed)? ->`
    SumAsked,
    /// All-gather of gradients, to all replicas. `gradients, at asker, at all ->`
    SendAll,
    /// What an update adds up: per row, within each rank by position, then by rank, then by node. `asked, received, positions? ->`
    Total,
    /// What is added up, wherever the rows are: sums per row of the whole table. `total ->`
    Update,
    /// Of rows of which each is in one operand. `updates... ->`
    Join,
    /// Of columns side by side, of the same rows. `updates... ->`
    Beside,
    /// From the ranks that have the samples to those that work on them: one per sample, or one per id with the offsets at
    /// home. `x, offsets? ->`
    Dispatch,
    /// Back. `x, offsets? ->`
    Combine,
    /// Sums of dense gradients over ranks, in their order. `gradients ->`
    AllReduce,
    /// One of several transfers that are one: of ids, classes, rows, gradients or dense gradients. `transfers... ->`
    Joint {
        /// Which.
        nth: u32,
    },
    /// Another precision. `x ->`
    Cast {
        /// Which.
        to: Precision,
    },
}

impl Op {
    /// Its name in text.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Shard { .. } => "shard",
            Self::Replicas { .. } => "replicas",
            Self::Ids { .. } => "ids",
            Self::Offsets { .. } => "offsets",
            Self::Given { .. } => "given",
            Self::Gradients { .. } => "gradients",
            Self::Entries { unique: true, .. } => "unique",
            Self::Entries { unique: false, .. } => "occurrences",
            Self::Share { hot: false, .. } => "with_owners",
            Self::Share { hot: true, .. } => "hot",
            Self::Inverse => "inverse",
            Self::Ask { .. } => "ask",
            Self::AskFor { .. } => "ask_for",
            Self::AskRelay { .. } => "ask_relay",
            Self::Relayed { .. } => "relayed",
            Self::Places => "places",
            Self::AskAll { .. } => "ask_all",
            Self::Own => "own",
            Self::Partition { .. } => "partition",
            Self::Answer => "answer",
            Self::PassClasses => "pass_classes",
            Self::Positions { .. } => "positions",
            Self::Gather => "gather",
            Self::Return => "return",
            Self::PassRows => "pass_rows",
            Self::Merge => "merge",
            Self::Unite => "unite",
            Self::Concat => "concat",
            Self::Expand => "expand",
            Self::Pool { .. } => "pool",
            Self::ExpandGrad => "expand_grad",
            Self::PoolGrad { .. } => "pool_grad",
            Self::Sum => "sum",
            Self::Columns { .. } => "columns",
            Self::Split => "split",
            Self::Cut { .. } => "cut",
            Self::Send => "send",
            Self::SumAsked => "sum_asked",
            Self::SendAll => "send_all",
            Self::Total => "total",
            Self::Update => "update",
            Self::Join => "join",
            Self::Beside => "beside",
            Self::Dispatch => "dispatch",
            Self::Combine => "combine",
            Self::AllReduce => "all_reduce",
            Self::Joint { .. } => "joint",
            Self::Cast { .. } => "cast",
        }
    }
}
