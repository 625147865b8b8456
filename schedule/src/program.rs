//! A schedule: one program for all ranks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::action::{Action, Context};
use crate::model::{
    Counted, Data, Engine, Evaluate, Exchange, Input, Lengths, Parameter, RowPlacement, Settings, Sharding,
    Table,
};
use crate::op::{Buffer, Dep, Op};
use crate::operand::{Element, Operand, Place};
use crate::reference::Reference;
use crate::search::Search;
use crate::sent::Sent;

/// The version of the format that this crate reads and writes.
pub const VERSION: u32 = 10;
/// The value of [`Schedule::format`].
pub const FORMAT: &str = "fs-schedule";

/// One program for all ranks. See docs/schedule.md.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// Always [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// `sha256:` and the digest of the file's text with the digest's own digits replaced by zeros.
    pub digest: String,
    /// Name of the model.
    pub model: String,
    /// How the operations were ordered.
    pub strategy: Strategy,
    /// The number of ranks that the plan was made for.
    pub ranks: u32,
    /// The texts that this was compiled from.
    pub sources: Vec<Source>,
    /// Training settings.
    pub settings: Settings,
    /// Where samples come from, if the model's file says so.
    pub data: Option<Data>,
    /// Evaluation after training.
    pub evaluate: Option<Evaluate>,
    /// Groups of sequences that share lengths: `l<n>` and the symbols `T<n>`, `Q<n>`.
    pub lengths: Vec<Lengths>,
    /// What a sample holds: `i<n>`.
    pub inputs: Vec<Input>,
    /// Embedding tables: `t<n>`.
    pub tables: Vec<Table>,
    /// Dense parameters `p<n>` and their gradients `g<n>`.
    pub parameters: Vec<Parameter>,
    /// One per table that is looked up (per part of a column-wise table): who asks whom for which rows. Symbols
    /// `U<n>`, `R<n>`.
    pub exchanges: Vec<Exchange>,
    /// What executes operations.
    pub engines: Vec<Engine>,
    /// What a step computes, whatever the order: the model that the programs are proved against.
    pub reference: Reference,
    /// One training step.
    pub train: Program,
    /// One evaluation batch.
    pub evaluation: Option<Program>,
    /// Expected times on the cluster that the schedule was planned for.
    pub prediction: Option<Prediction>,
    /// In which data lengths and ids were counted, if they were: what it is planned with follows from these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted: Option<Counted>,
    /// How it was found, if others were compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<Search>,
}

/// A list of operations over buffers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// Batches whose inputs, offsets and sizes are held at once: batch m replaces batch m - in_flight.
    pub in_flight: u32,
    /// Buffers `b<n>`.
    pub buffers: Vec<Buffer>,
    /// Operations; dependencies within a step point backwards.
    pub ops: Vec<Op>,
}

impl Default for Program {
    fn default() -> Self {
        Self { in_flight: 1, buffers: Vec::new(), ops: Vec::new() }
    }
}

/// How operations are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// Blocks on every collective.
    Serial,
    /// Moves only the input dist ahead.
    Prefetch,
    /// Rows of a batch travel together, and nothing waits but for data.
    Overlap,
    /// Prioritised embedding communication.
    Pec,
}

/// A text that a schedule was compiled from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// As the user wrote it.
    pub path: String,
    /// `sha256:` and 64 digits.
    pub digest: String,
}

/// What the compiler expects on a cluster. Times are in seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Prediction {
    /// The cluster that was planned for.
    pub cluster: String,
    /// One step.
    pub step: f64,
    /// Work of the busiest engine in one step.
    pub resource_bound: f64,
    /// That engine.
    pub resource: Engine,
    /// Longest dependency cycle per step that it spans.
    pub recurrence_bound: f64,
    /// That cycle: each operation with the batches that its dependency on the one before spans.
    pub cycle: Vec<Dep>,
    /// Where chains of dependencies and what an engine must do between them take longer than either bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joint: Option<JointBound>,
    /// Idle time of the compute engine in one step.
    pub bubble: f64,
    /// Busy time of each engine in one step.
    pub busy: Vec<Busy>,
    /// Device memory of a rank at the assumed sizes, in bytes: tables, parameters and buffers.
    pub memory: u64,
    /// What a rank sends to others in a step, on average over ranks; not known of schedules of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<Sent>,
    /// What kept the schedule from being better, in sentences.
    pub limits: Vec<String>,
    /// The sizes assumed: symbol and mean value, of the rank that takes longest.
    pub sizes: Vec<(String, f64)>,
    /// How unevenly samples load ranks, where their lengths differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stragglers: Option<Stragglers>,
}

impl Prediction {
    /// Seconds that no order of the same operations is shorter than: the greatest bound.
    pub fn bound(&self) -> f64 {
        self.resource_bound.max(self.recurrence_bound).max(self.joint.map_or(0.0, |joint| joint.time))
    }
}

/// A bound on the step: a cycle of chains of dependencies, each from the start of one operation to the end of another, or the same, and of
/// all that an engine does after one such end and before the next such start, whatever the order.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JointBound {
    /// Seconds of a step.
    pub time: f64,
    /// Where its longest chain starts: a position.
    pub from: u32,
    /// Where that ends.
    pub to: u32,
}

/// What ranks are expected to have to do in a step, as multiples of the mean over ranks: means over batches of samples with
/// the lengths that are expected.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stragglers {
    /// The rank with most to do, if every sample stays where it is read.
    pub at_home: f64,
    /// The rank with most to do, if samples are given to ranks.
    pub planned: f64,
    /// No plan is below this.
    pub bound: f64,
    /// Share of the samples' bytes that move.
    pub moved: f64,
    /// Ranks from the one with most to do to the one with least: all, or some that stand for many.
    pub ranks: Vec<RankWork>,
    /// What decided whether samples are given to ranks, if the model leaves it to the compiler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compared: Option<Compared>,
    /// Whether the limit that is asked for can be kept; none where it was in all batches that were drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unkept: Option<Unkept>,
}

/// A limit of what ranks can hold that some batches do not keep. With one of them the rest is of samples at home.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Unkept {
    /// Batches that were drawn.
    pub drawn: u32,
    /// Those of them for which no plan was found that keeps it.
    pub batches: u32,
    /// A limit that plans were found to keep in all of them, in its unit: no more than a hundredth above the least.
    pub least: u64,
}

/// What a rank is expected to have to do. It is the n-th of each batch, not the same one in all.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RankWork {
    /// If every sample stays where it is read.
    pub at_home: f64,
    /// If samples are given to ranks.
    pub planned: f64,
}

/// Predicted steps of the same model under `serial`, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Compared {
    /// Every sample stays where it is read.
    pub at_home: f64,
    /// Samples are given to ranks.
    pub planned: f64,
}

/// Busy time of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Busy {
    /// The engine.
    pub engine: Engine,
    /// Seconds in one step.
    pub time: f64,
}

impl Program {
    /// The place that ids come from: an input, though it was copied into a buffer, or the buffer that they were drawn
    /// into.
    pub fn ids_of(&self, operand: &Operand) -> Place {
        let copied =
            |op: &&Op| op.action == Action::CopyIds && op.writes.iter().any(|w| w.place == operand.place);
        let from = matches!(operand.place, Place::Buffer(_)).then(|| self.ops.iter().find(copied)).flatten();
        from.and_then(|op| op.reads.first()).map_or(operand.place, |o| o.place)
    }

    /// Whether an operation needs that an earlier one of its queue has ended, and not only that it is carried out before: it may use
    /// what that one makes, sizes that are learned of it, or memory that it has. Of any batches; rather too often than not.
    pub fn needs(&self, later: &Op, earlier: &Op) -> bool {
        let exchanges = (later.action.facts().of.exchanges, earlier.action.facts().of.exchanges);
        let slot = |operand: &Operand| match operand.place {
            Place::Buffer(b) => self.buffers.get(b as usize).map(|b| (b.element, b.slot)),
            _ => None,
        };
        let shares = |a: &[Operand], b: &[Operand]| {
            a.iter().filter_map(slot).any(|own| b.iter().any(|other| slot(other) == Some(own)))
        };
        exchanges.0.iter().any(|own| exchanges.1.contains(own))
            || shares(&later.reads, &earlier.writes)
            || shares(&later.writes, &earlier.writes)
            || shares(&later.writes, &earlier.reads)
    }
}

impl Schedule {
    /// Whether anything is brain floats: activations, or rows, gradients or sums on their way.
    pub fn has_bf16(&self) -> bool {
        let mut buffers = std::iter::once(&self.train).chain(&self.evaluation).flat_map(|p| &p.buffers);
        self.settings.wire.dense == Element::Bf16 || buffers.any(|b| b.element == Element::Bf16)
    }

    /// What operand rules need to know; `columns` are those that each exchange moves.
    pub fn context<'a>(&'a self, columns: &'a [u32], microbatches: u32) -> Context<'a> {
        Context {
            exchanges: &self.exchanges,
            columns,
            tables: self.tables.len(),
            microbatches,
            batch: self.settings.batch,
            groups: self.lengths.len() as u32,
            inputs: self.inputs.len() as u32,
            wire: self.settings.wire,
        }
    }

    /// The digest of the reference with the declarations that decide what is trained: inputs, lengths, parameters, tables
    /// without their placement but with how often a row travels, settings, data without its paths, evaluation. Left out
    /// is what may differ between schedules that train the same bits.
    pub fn reference_digest(&self) -> String {
        let tables: Vec<_> = (0..)
            .zip(&self.tables)
            .map(|(n, t): (u32, _)| {
                // Relays ask for each row once, whatever ranks ask them for.
                let asks = self.exchanges.iter().find(|e| e.table == n && e.leg.within().is_none());
                let unique = asks.map(|e| e.unique);
                let (sharding, placement) = (Sharding::RowWise, RowPlacement::Range);
                (Table { sharding, placement, hot: Vec::new(), ..t.clone() }, unique)
            })
            .collect();
        let data = self.data.clone().map(|data| match data {
            Data::Csv { user, item, time, rating, min_interactions, .. } => {
                Data::Csv { path: String::new(), user, item, time, rating, min_interactions }
            }
            Data::Safetensors { .. } => Data::Safetensors { path: String::new() },
            generated @ Data::Generate { .. } => generated,
        });
        // How ranks lie on nodes is the machine's, as their number is.
        let settings = Settings { node: None, sums_by_node: false, ..self.settings.clone() };
        let r = &self.reference;
        let all = json!([
            [r.actions, r.train, r.updates, r.evaluation, r.sums],
            [self.lengths, self.inputs, self.parameters, tables],
            [settings, data, self.evaluate],
        ]);
        crate::digest::sha256(all.to_string().as_bytes())
    }
}
