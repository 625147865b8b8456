//! What a schedule says about the model: tables, dense parameters, inputs, data and settings.

pub use fs_workload::balance::{CostModel, GroupCost};
pub use fs_workload::{
    DenseOptimizer, IdDistribution, Init, LabelDistribution, LengthDistribution, PlacementError, RowMap,
    RowPlacement, SparseOptimizer, States,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::operand::Element;
use crate::reuse::Reuse;
use crate::size::Poly;

/// Training settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Samples of a global batch.
    pub batch: u32,
    /// Parts of a rank's share of a batch that run one after the other before rows are updated.
    pub microbatches: u32,
    /// How long to train.
    pub duration: Duration,
    /// Seed of everything random.
    pub seed: u64,
    /// Optimizer of the dense parameters.
    pub optimizer: DenseOptimizer,
    /// How samples are given to ranks in training; none: each works on those that it reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub balance: Option<Balance>,
    /// Ranks of a node, if the ranks are of several ([`Nodes`](crate::Nodes)): gradients of a row are summed node by node, and
    /// rows may come through a node's relays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
    /// Dense gradients are summed node by node, too: in rank order within each, then in the order of nodes. Else in rank order at once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sums_by_node: bool,
    /// What rows and their gradients are on their way.
    #[serde(default, skip_serializing_if = "WirePrecision::is_plain")]
    pub wire: WirePrecision,
}

/// What rows, their gradients and dense gradients are on their way, of every table and wherever they live: f32, or rounded to bf16, to the
/// nearest and to the even one of two; rows also to MXINT8, 8 bits a number and a power of two for each 32 of a row. A rank uses
/// rows as they arrive. Of gradients each rank's sums are rounded, and with several nodes each node's sums of those; of dense
/// ones each rank's, and their sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WirePrecision {
    /// Rows.
    #[schemars(schema_with = "of_rows")]
    pub rows: Element,
    /// Their gradients.
    #[schemars(schema_with = "of_floats")]
    pub gradients: Element,
    /// Gradients of dense parameters, and their sums over ranks.
    #[serde(default = "real", skip_serializing_if = "is_real")]
    #[schemars(schema_with = "of_floats")]
    pub dense: Element,
}

fn real() -> Element {
    Element::Real
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_real(element: &Element) -> bool {
    *element == Element::Real
}

/// The elements that rows can be, as the schema has them.
fn of_rows(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "string", "enum": [Element::Real, Element::Bf16, Element::Mxint8] })
}

/// The elements that are floats, as the schema has them.
fn of_floats(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "string", "enum": [Element::Real, Element::Bf16] })
}

impl WirePrecision {
    /// Everything as it is kept.
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for WirePrecision {
    fn default() -> Self {
        Self { rows: Element::Real, gradients: Element::Real, dense: Element::Real }
    }
}

/// How samples are given to ranks, so that all have about as much to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Balance {
    /// What working on a sample costs by its lengths, in any unit.
    pub cost: CostModel,
    /// How far above the mean (or the dearest sample) a rank's cost may lie without anything being moved for it, in
    /// thousandths.
    pub slack: f64,
    /// What the samples of a rank may take up together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<RankLimit>,
    /// Every rank works on as many samples as it reads.
    pub equal_counts: bool,
    /// While training, costs follow the times that ranks measure: two runs then plan otherwise and differ in the last bits.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fit: bool,
}

impl Default for Balance {
    /// By costs that are still to be found.
    fn default() -> Self {
        let slack = fs_workload::balance::SLACK;
        Self { cost: CostModel::default(), slack, limit: None, equal_counts: false, fit: false }
    }
}

/// What a rank can hold of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RankLimit {
    /// Ids, of all length groups together.
    Tokens(u64),
    /// Bytes of ids, features and labels, as they travel between ranks.
    Bytes(u64),
}

impl RankLimit {
    /// The limit, in its unit.
    pub fn most(self) -> u64 {
        match self {
            Self::Tokens(most) | Self::Bytes(most) => most,
        }
    }
    /// Its unit, for people.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Tokens(_) => "tokens",
            Self::Bytes(_) => "bytes",
        }
    }
}

/// How long to train.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Duration {
    /// Global batches.
    Steps(u64),
    /// Passes over the data.
    Epochs(u32),
}

/// A group of sequences with the same lengths.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Lengths {
    /// Name of the input that introduced it.
    pub name: String,
    /// Longest sequence.
    pub max: u32,
    /// Which end survives truncation.
    pub keep: Keep,
}

/// Truncation side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// The oldest ids.
    First,
    /// The newest ids.
    Last,
}

/// Something a sample holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// Name.
    pub name: String,
    /// What it is.
    pub kind: InputKind,
}

/// Kinds of input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum InputKind {
    /// A jagged sequence of row ids.
    Ids {
        /// Table.
        table: u32,
        /// Length group.
        lengths: u32,
    },
    /// For each position of another sequence the id that follows.
    Next {
        /// Input (of kind ids) that it continues; same table and lengths.
        of: u32,
    },
    /// Dense features.
    Dense {
        /// Features per sample.
        width: u32,
    },
    /// One label per sample.
    SampleLabel,
    /// One label per token.
    TokenLabel {
        /// Length group.
        lengths: u32,
    },
}

/// An embedding table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Name.
    pub name: String,
    /// Rows over all ranks.
    pub rows: u64,
    /// Columns.
    pub dim: u32,
    /// Placement.
    pub sharding: Sharding,
    /// Which rows of a row-wise table each rank owns; ranges if it is left out, and of all other tables.
    #[serde(default, skip_serializing_if = "RowPlacement::is_range")]
    pub placement: RowPlacement,
    /// Hot rows, rising: every rank has a replica of each, which training reads and updates in place of the owner's row.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hot: Vec<u64>,
    /// Update rule.
    pub optimizer: SparseOptimizer,
    /// Values before training.
    pub init: Init,
    /// Random stream of the initial values.
    pub stream: u32,
}

/// Placement of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Sharding {
    /// Rank r owns the rows in slots `[r * ceil(rows / W), (r + 1) * ceil(rows / W))`; the table's `placement` says which
    /// row is in which slot.
    RowWise,
    /// One rank owns everything.
    TableWise {
        /// The owner.
        rank: u32,
    },
    /// Each part is a range of columns with one owner.
    ColumnWise {
        /// Owners of the n parts; part i has columns `[i * dim / n, (i + 1) * dim / n)`.
        ranks: Vec<u32>,
    },
    /// Every rank holds everything and applies the same updates.
    DataParallel,
}

impl Sharding {
    /// Number of parts, each with an exchange of its own.
    pub fn parts(&self) -> u32 {
        match self {
            Self::ColumnWise { ranks } => ranks.len() as u32,
            _ => 1,
        }
    }
    /// The rank that owns all rows of a part; `None` if ranks share them or all have them, as those of the part behind the last.
    pub fn owner(&self, part: u32) -> Option<u32> {
        match self {
            Self::TableWise { rank } if part == 0 => Some(*rank),
            Self::ColumnWise { ranks } => ranks.get(part as usize).copied(),
            Self::TableWise { .. } | Self::RowWise | Self::DataParallel => None,
        }
    }
}

impl Table {
    /// True if the plan is for one number of ranks only.
    pub fn fixes_ranks(&self) -> bool {
        let owned = matches!(self.sharding, Sharding::TableWise { .. } | Sharding::ColumnWise { .. });
        owned || matches!(self.placement, RowPlacement::Planned { .. })
    }
    /// Which slot of the table each of its rows is in, on so many ranks.
    pub fn row_map(&self, ranks: u32) -> Result<RowMap, PlacementError> {
        RowMap::new(&self.placement, self.rows, ranks.into())
    }
    /// Parts that ranks have shards of: those that have owners, and behind them one for the [hot](Self::hot) rows of each, if there
    /// are any.
    pub fn shards(&self) -> u32 {
        let parts = self.sharding.parts();
        if self.hot.is_empty() { parts } else { parts.saturating_mul(2) }
    }
    /// Whether a part is of hot rows.
    pub fn is_hot(&self, part: u32) -> bool {
        part >= self.sharding.parts()
    }
    /// Whether every rank has all rows of a part.
    pub fn replicates(&self, part: u32) -> bool {
        self.sharding == Sharding::DataParallel || self.is_hot(part)
    }
    /// Columns `[start, end)` of a part.
    pub fn part_columns(&self, part: u32) -> (u32, u32) {
        let part = if self.is_hot(part) { part - self.sharding.parts() } else { part };
        let parts = u64::from(self.sharding.parts().max(1));
        let at = |i: u64| (i * u64::from(self.dim) / parts) as u32;
        (at(part.into()), at(u64::from(part) + 1))
    }
}

/// A dense parameter, replicated on all ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Parameter {
    /// Name with its scope: `layers.0.uvqk.weight`.
    pub name: String,
    /// Rows; linear weights are `[out, in]`.
    pub rows: u32,
    /// Columns.
    pub columns: u32,
    /// One-dimensional outside (`rows` is 1).
    pub vector: bool,
    /// Values before training.
    pub init: Init,
    /// Random stream of the initial values.
    pub stream: u32,
}

/// The exchange of a table's rows: each rank asks the owners for the rows its samples use. A column-wise table has
/// one exchange per part; parts after the first send the entries of the first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Exchange {
    /// The table.
    pub table: u32,
    /// Part of a column-wise table, else 0; of hot rows so many more as there are such parts.
    pub part: u32,
    /// The exchange whose entries it sends: itself, or that of the table's first part.
    pub entries: u32,
    /// Each row once per rank, or once per occurrence.
    pub unique: bool,
    /// Training rows travel by reuse distance (in windows) up to this one; `None`: all together. See [`crate::reuse`].
    pub lookahead: Option<u32>,
    /// Windows of a batch, fewer than microbatches, which they cut evenly; `None`: each microbatch is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub windows: Option<u32>,
    /// In training, who reads samples asks for the rows on behalf of the ranks that work on them. A rank's entries are then
    /// ascending rows for each owner, also where there is one per occurrence: the owner finds the same list.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub folded: bool,
    /// Between whom it is.
    #[serde(default, skip_serializing_if = "Leg::is_whole")]
    pub leg: Leg,
    /// Its entries are of rows with owners and of hot ones, which two exchanges move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shares: Option<Shares>,
    /// The exchange whose entries it has a share of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<u32>,
}

/// The shares of a rank's entries of a table with hot rows: first those that owners are asked for, then those of hot rows. The
/// exchanges of the hot rows of a table's parts follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Shares {
    /// The exchange with the owners, of the table's first part.
    pub owned: u32,
    /// That of the replicas of its hot rows.
    pub hot: u32,
}

impl Shares {
    /// The exchange of the hot rows of a part.
    pub fn hot_of(&self, part: u32) -> u32 {
        self.hot.saturating_add(part)
    }
}

/// Between whom an exchange is. On several nodes a rank can ask a *relay* for rows, the rank of its own node that
/// [`Nodes::relay`](crate::Nodes::relay) says. The relay asks the owner, once for all that its node asks for, hands the rows on,
/// and sums the node's gradients: two exchanges of a table's rows instead of one.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Leg {
    /// Between those who use rows and their owners.
    #[default]
    Whole,
    /// Between those who use rows and their node's relays.
    Within {
        /// The exchange between these and the owners.
        between: u32,
    },
    /// Between relays and owners. Its entries are of what the relay's node asks for.
    Between {
        /// The exchange between those who use rows and the relays.
        within: u32,
    },
}

impl Leg {
    /// Whether it is the whole way.
    pub fn is_whole(&self) -> bool {
        *self == Self::Whole
    }
    /// The exchange between relays and owners, of one within a node.
    pub fn between(&self) -> Option<u32> {
        match self {
            Self::Within { between } => Some(*between),
            _ => None,
        }
    }
    /// The exchange within a node, of one between relays and owners.
    pub fn within(&self) -> Option<u32> {
        match self {
            Self::Between { within } => Some(*within),
            _ => None,
        }
    }
}

impl Exchange {
    /// The exchange that lists all entries of which it moves some: itself, unless there are hot rows.
    pub fn list(&self) -> u32 {
        self.of.unwrap_or(self.entries)
    }

    /// Whether every rank has all rows that it moves gradients of.
    pub fn replicated(&self, tables: &[Table]) -> bool {
        tables.get(self.table as usize).is_some_and(|t| t.replicates(self.part))
    }

    /// How the rows of a batch of so many microbatches are told apart; `None`: they travel together.
    pub fn reuse(&self, microbatches: u32) -> Option<Reuse> {
        let microbatches = microbatches.max(1);
        Reuse::in_windows(self.lookahead?, microbatches, self.windows.unwrap_or(microbatches))
    }

    /// Columns that it moves: those of its part of the table.
    pub fn columns(&self, tables: &[Table]) -> u32 {
        tables.get(self.table as usize).map_or(0, |t| {
            let (start, end) = t.part_columns(self.part);
            end.saturating_sub(start)
        })
    }
}

/// What executes operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// The host's own work: reading data, planning.
    Host,
    /// The compute stream.
    Compute,
    /// Copies into this device.
    CopyIn,
    /// Copies out of this device.
    CopyOut,
    /// Network, sending.
    NicSend,
    /// Network, receiving.
    NicReceive,
}

impl Engine {
    /// Its name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Compute => "compute",
            Self::CopyIn => "copy in",
            Self::CopyOut => "copy out",
            Self::NicSend => "network",
            Self::NicReceive => "network in",
        }
    }
}

/// Where samples come from. Paths are relative to the schedule's folder, else to the working directory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Data {
    /// A file of interactions with a header line.
    Csv {
        /// The file.
        path: String,
        /// Column of the user.
        user: String,
        /// Column of the item; numbered by first appearance in the file.
        item: String,
        /// Column that orders a user's interactions; ties by line.
        time: Option<String>,
        /// Column that must hold finite numbers.
        rating: Option<String>,
        /// Users with fewer interactions are left out; without it they are an error.
        min_interactions: Option<u32>,
    },
    /// Batches: `lengths` i32 `[steps, world, batch]`, `ids` i64 `[sequences, tokens]`, `labels` f32.
    Safetensors {
        /// The file.
        path: String,
    },
    /// Drawn from distributions.
    Generate {
        /// Sequence lengths.
        lengths: LengthDistribution,
        /// Ids.
        ids: IdDistribution,
        /// Labels.
        labels: LabelDistribution,
        /// Distinct samples before the data repeats.
        samples: Option<u64>,
    },
}

/// Evaluation after training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Evaluate {
    /// A user's last interaction is the target, the rest the history.
    LeaveLastOut,
}

/// Expected work of an operation, in the sizes of the batch.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// Floating-point operations.
    pub flops: Poly,
    /// Bytes read and written in device memory.
    pub bytes: Poly,
    /// Bytes that leave this rank.
    pub wire: Poly,
}

/// In which data the lengths and ids were counted that a schedule was planned with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Counted {
    /// Tells the data apart from others.
    pub digest: String,
    /// The first batch that was counted.
    pub first: u64,
    /// How many were.
    pub batches: u64,
}
