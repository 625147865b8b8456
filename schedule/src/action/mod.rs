//! What an action is: one table, in which everything that compiler, verifier and executor ask of an action is said.
//!
//! [`table`] lists the actions with their fields; beside each stands an [`Entry`] in the file of its family, with
//!
//! - its [`Facts`]: what it is for, what runs it, whether and how it moves data between ranks, what it touches beside
//!   its operands, what it adds into, which sizes it learns, its arithmetic and its memory traffic;
//! - its operand rule: which shapes fit together.
//!
//! Nothing has a default, so an action does not compile until all is said, and nobody else has to know its name: who
//! needs to tell actions apart asks for a fact. What interprets an action (a device's handlers, the verifier's rules
//! of exchanges, the interpreter of the tests) matches on it.
//!
//! To add an action: a variant in [`table`], an entry in a family's file, a handler per device.

mod attention;
mod balance;
mod document;
mod embedding;
mod exchange;
mod fused;
mod ids;
mod interaction;
mod linear;
mod loss;
mod misfit;
mod norm;
mod operands;
mod pointwise;
mod relay;
mod rows;
mod sequence;
mod step;
mod table;

pub use document::document;
pub use fused::Part;
pub use misfit::Misfit;
pub use operands::{Context, Operands};
pub use table::Action;

use std::ops::Range;

use crate::attribute::{Normalize, Site, Way};
use crate::signature::OperandType;
use crate::size::Symbol;

/// A line of the table: everything that is said of an action.
trait Entry<'a> {
    /// What is known without operands.
    fn facts(&self) -> Facts<'a>;
    /// Which shapes fit together.
    fn operands(&self, o: &Operands<'_>, cx: &Context<'_>) -> Result<(), Misfit>;
}

/// What is known of an action without its operands.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Facts<'a> {
    /// The part of a step that it belongs to.
    pub phase: Phase,
    /// What runs it.
    pub runs: Runs,
    /// Programs that have a use for it.
    pub programs: Programs,
    /// What data it exchanges with other ranks, and how.
    pub transfer: Option<Transfer>,
    /// What it touches beside the buffers that it reads and writes.
    pub effects: &'static [Effect],
    /// How it writes its results.
    pub results: Results,
    /// Which real operands and results are lists of numbers.
    pub lists: Lists,
    /// The exchanges and classes of rows that it concerns.
    pub of: Of<'a>,
    /// Sizes that are known only when it has run.
    pub learns: Learns,
    /// The share of a batch that it works on.
    pub scope: Scope,
    /// Rows per entry of an exchange that it takes from, or sums into, by position.
    pub entries: Option<Entries>,
    /// What its loss is divided by, if it is one.
    pub loss: Option<Normalize>,
    /// Whether the numbers in its fields are in their ranges.
    pub in_range: bool,
    /// Its arithmetic.
    pub flops: Flops,
    /// Its memory traffic.
    pub memory: Memory,
}

/// The parts of a training step, in the order of one batch, and evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// The host brings a batch.
    Load,
    /// Samples go to the ranks that work on them.
    Balance,
    /// Ids go to the owners of their rows, and what tells rows apart: reads ids, never rows, parameters or gradients.
    InputDist,
    /// Lookup of rows and their way to who asked.
    OutputDist,
    /// Forward and backward pass.
    Model,
    /// Row gradients go to the owners, and the update there.
    GradientDist,
    /// Dense gradients are summed over ranks, and parameters updated.
    DenseUpdate,
    /// What only evaluation does.
    Evaluation,
}

/// What runs an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runs {
    /// The host engine.
    Host,
    /// The compute engine.
    Compute,
    /// A copy engine or network interface: it moves data between ranks and computes nothing but sums of it.
    Link,
}

/// Programs that have a use for an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Programs {
    /// Training and evaluation.
    Both,
    /// Training only: updates, and what tells rows apart by reuse.
    Training,
    /// Evaluation only.
    Evaluation,
}

/// An exchange of data with other ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// Who takes part.
    pub peers: Peers,
    /// What travels.
    pub payload: Payload,
    /// Rounds in which data go to and fro. Of [`Payload::Ranks`] those where ranks have whole rows, of [`Payload::Sums`] those of
    /// one node; what a table and a batch, or several nodes, need more is said by [`Schedule::rounds`](crate::Schedule::rounds).
    pub rounds: u32,
}

/// Who takes part in a transfer. All ranks run it; this says who gets what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peers {
    /// Point to point: each rank sends every owner its part.
    ToOwners,
    /// Point to point: each owner answers every rank that asked.
    FromOwners,
    /// Everyone gets what everyone sends.
    Everyone,
    /// Point to point: each rank sends samples to the ranks that work on them.
    ToAssigned,
    /// Point to point: who works on samples sends something of them to the ranks that read them.
    FromAssigned,
    /// Everyone gets the sum: first each rank's part goes to who sums it, then the sums to everyone.
    Reduce,
}

/// What travels, which decides the bytes of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    /// Rows of the owner's shard that are asked for, and in which windows they are used.
    Ids,
    /// The same, and the rank for which each is asked.
    Asked,
    /// A class of reuse distance per entry.
    Classes,
    /// Values of rows.
    Rows,
    /// Gradients of rows.
    Gradients,
    /// Gradients of dense parameters.
    Sums,
    /// Queries, scores of targets and how many rows score higher, of each sample.
    Ranks,
    /// Lengths of samples.
    Lengths,
    /// Inputs of samples.
    Samples,
    /// Values of samples or their tokens.
    Values,
}

/// Something that an action touches beside the buffers of its operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// Makes a batch current.
    LoadsBatch,
    /// Makes the samples that are assigned to the rank current.
    AssignsBatch,
    /// Reads inputs, offsets or the samples' keys of the batch.
    ReadsBatch,
    /// Draws random numbers, keyed by seed, step and sample: it reads the batch's keys without an operand that says so.
    Random,
    /// Looks rows of a table's shard up.
    ReadsTable,
    /// Reads buffers of other batches.
    ReadsBatches,
    /// Updates rows of a table's shard and their optimizer state.
    WritesTable,
    /// Reads dense parameters.
    ReadsParameter,
    /// Updates dense parameters and their optimizer state.
    WritesParameter,
    /// Reads gradients of dense parameters.
    ReadsGradient,
    /// Writes gradients of dense parameters.
    WritesGradient,
    /// Reads in which window any rank uses a row of a replicated table last.
    ReadsUses,
    /// Writes that.
    WritesUses,
    /// Adds to the step's loss.
    AddsLoss,
    /// Adds to the evaluation's counts.
    Ranks,
}

/// How an action writes its results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Results {
    /// Those that it can add into what is there.
    pub adds: &'static [usize],
    /// Those that are gradients of dense parameters which it makes.
    pub gradients: &'static [usize],
    /// Results are the operands, changed: it needs what is there, as an addition does.
    pub in_place: bool,
}

impl Results {
    /// All are overwritten.
    const FRESH: Self = Self { adds: &[], gradients: &[], in_place: false };
    /// Some can be added into.
    const fn adding(adds: &'static [usize]) -> Self {
        Self { adds, gradients: &[], in_place: false }
    }
}

/// Real operands and results that are lists of numbers rather than matrices: whole buffers, of which some columns are
/// no list. Those that are not real are lists all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lists {
    /// Of those read.
    pub reads: &'static [usize],
    /// Of those written.
    pub writes: &'static [usize],
}

impl Lists {
    /// All are matrices.
    const NONE: Self = Self { reads: &[], writes: &[] };
    const fn read(reads: &'static [usize]) -> Self {
        Self { reads, writes: &[] }
    }
    const fn written(writes: &'static [usize]) -> Self {
        Self { reads: &[], writes }
    }
}

/// The exchanges and classes of rows that an action concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Of<'a> {
    /// Exchanges.
    pub exchanges: &'a [u32],
    /// Lookups or gradients, if it tells.
    pub way: Option<Way>,
    /// Classes of reuse distance; none: all rows together.
    pub classes: &'a [u32],
}

impl Of<'_> {
    /// No exchange.
    const NONE: Of<'static> = Of { exchanges: &[], way: None, classes: &[] };
}

/// Sizes that are known only when an action has run: those of its results that are of this kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Learns {
    /// Which.
    pub sizes: Sizes,
    /// Whether the host must have them before what uses them can be started, which a device has to report.
    pub host_sync: bool,
}

impl Learns {
    /// Everything is known beforehand.
    const NOTHING: Self = Self { sizes: Sizes::None, host_sync: false };
}

/// Kinds of sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sizes {
    /// None.
    None,
    /// Entries that an exchange sends.
    Sent,
    /// Entries that an exchange receives.
    Received,
    /// Entries that an exchange asks for on behalf of others.
    Asked,
    /// Entries of each class.
    Classes,
    /// Samples and tokens that are assigned to a rank, in each microbatch.
    Assigned,
}

impl Sizes {
    /// Whether a size is of this kind.
    pub fn holds(self, symbol: Symbol) -> bool {
        match symbol {
            Symbol::Ranks | Symbol::Samples | Symbol::Tokens(_) | Symbol::Squares(_) => false,
            Symbol::Sent(_) => self == Self::Sent,
            Symbol::Received(_) => self == Self::Received,
            Symbol::Asked(_) => self == Self::Asked,
            Symbol::SentClass(..) | Symbol::ReceivedClass(..) => self == Self::Classes,
        }
    }
}

/// The share of a batch that an action works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The batch, whatever its microbatches.
    Batch,
    /// The batch, microbatch by microbatch: its operands are listed so.
    Listed,
    /// Entries of the batch; it may say which microbatch it serves.
    Entries,
    /// Samples of its microbatch.
    Samples,
}

/// An operand: of those read, or of those written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// The n-th that is read.
    Read(usize),
    /// The n-th that is written.
    Written(usize),
}

/// How an action uses rows per entry of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entries {
    /// The rows: read, or gradients of rows summed.
    pub rows: At,
    /// Operands that place ids among the entries.
    pub inverse: &'static [usize],
}

/// Arithmetic of an action.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Flops {
    /// None that counts.
    None,
    /// So many per element of an operand.
    Each(f64, At),
    /// So many per element of the first operand and column of the second.
    Product(f64, At, At),
    /// So many per pair of positions of a sequence and column of the first operand.
    Pairs(f64),
    /// A product of each two operands, per column.
    Crossed,
}

/// Memory traffic of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// Operands and results once; results that are added into are read too.
    Once,
    /// As that, where operands are listed for every microbatch and each is a part of the batch.
    Listed,
    /// By position from the first operand: the result is read and written, lists of rows and positions as far as they
    /// are used.
    Picked,
    /// By position into the result: an addition touches the rows that it brings only.
    Placed,
    /// A row is read for each that is written.
    Repeated,
    /// Received gradients once, the rows and optimizer states that they update twice.
    UpdatedRows,
    /// Gradients once, parameters and optimizer states twice.
    UpdatedParameters,
}

impl Facts<'_> {
    /// Whether it gives all ranks the sum of what they have.
    pub fn sums_over_ranks(&self) -> bool {
        self.transfer.is_some_and(|t| t.peers == Peers::Reduce)
    }

    /// Whether the host must learn something that compute finds out.
    pub fn tells_host(&self) -> bool {
        self.learns.host_sync && self.runs == Runs::Compute
    }

    /// Where the samples are whose values it takes, and where those that it gives, if it brings values elsewhere.
    pub fn carries(&self) -> Option<(Site, Site)> {
        let transfer = self.transfer.filter(|t| t.payload == Payload::Values)?;
        let assigned = transfer.peers == Peers::ToAssigned;
        Some(if assigned { (Site::Home, Site::Assigned) } else { (Site::Assigned, Site::Home) })
    }
    /// Whether it lists what samples at home need where they are worked on.
    pub fn asks_for_others(&self) -> bool {
        self.learns.sizes == Sizes::Asked
    }
    /// Of so many operands those that are listed microbatch by microbatch.
    pub fn listed(&self, reads: usize) -> Range<usize> {
        let first = usize::from(self.asks_for_others()).min(reads);
        if self.scope == Scope::Listed { first..reads } else { 0..0 }
    }
    /// Whether it may work on samples at home where others work on them as assigned: what brings them and what moves rows
    /// works for a rank rather than for samples, and what stands between rows and values works where its ids are.
    pub(crate) fn either_site(&self) -> bool {
        self.phase != Phase::Model || self.entries.is_some() || self.carries().is_some()
    }
}

impl Facts<'static> {
    /// An operation of the model: on the samples of its microbatch, whatever other ranks do.
    const fn model(
        programs: Programs,
        effects: &'static [Effect],
        results: Results,
        lists: Lists,
        flops: Flops,
        memory: Memory,
    ) -> Self {
        Self {
            phase: Phase::Model,
            runs: Runs::Compute,
            programs,
            transfer: None,
            effects,
            results,
            lists,
            of: Of::NONE,
            learns: Learns::NOTHING,
            scope: Scope::Samples,
            entries: None,
            loss: None,
            in_range: true,
            flops,
            memory,
        }
    }
}

impl Action {
    /// Its name in the schedule's text.
    pub fn name(&self) -> String {
        match serde_json::to_value(self) {
            Ok(serde_json::Value::String(name)) => name,
            Ok(serde_json::Value::Object(fields)) => fields.keys().next().cloned().unwrap_or_default(),
            _ => String::new(),
        }
    }

    /// The names of all actions.
    pub fn names() -> Vec<String> {
        Self::samples().iter().map(Self::name).collect()
    }

    /// Whether actions of this name are transfers.
    pub fn is_name_of_transfer(name: &str) -> bool {
        Self::samples().iter().any(|action| action.name() == name && action.facts().transfer.is_some())
    }

    /// What is known of it without its operands.
    pub fn facts(&self) -> Facts<'_> {
        self.entry(|entry| entry.facts())
    }

    /// Checks its operands' shapes.
    pub fn check(
        &self,
        reads: &[OperandType],
        writes: &[OperandType],
        cx: &Context<'_>,
    ) -> Result<(), Misfit> {
        self.entry(|entry| entry.operands(&Operands { reads, writes }, cx))
    }

    /// Whether it moves data between ranks and computes nothing but sums of it.
    pub fn is_transfer(&self) -> bool {
        self.facts().runs == Runs::Link
    }

    /// Rounds in which it exchanges data with other ranks, 0 if it does not; see [`Transfer::rounds`].
    pub fn rounds(&self) -> u32 {
        self.facts().transfer.map_or(0, |t| t.rounds)
    }

    /// Whether one launch can start it and the same for other rows: it is compute's, and of one exchange or between rows and values.
    pub fn may_join(&self) -> bool {
        let facts = self.facts();
        let between = matches!(facts.entries.map(|e| e.rows), Some(At::Read(0) | At::Written(0)));
        facts.runs == Runs::Compute && (facts.of.exchanges.len() == 1 || between)
    }

    /// Whether one launch can start it and another: the same, for the rows of another exchange or other classes of rows, or between
    /// rows and values.
    pub fn joins(&self, other: &Self) -> bool {
        let (a, b) = (self.facts().of, other.facts().of);
        std::mem::discriminant(self) == std::mem::discriminant(other)
            && (self.may_join() && other.may_join())
            && a.way == b.way
            && (a.exchanges.is_empty() || (a.exchanges, a.classes) != (b.exchanges, b.classes))
    }

    /// Exchanges that it concerns.
    pub fn exchanges(&self) -> &[u32] {
        self.facts().of.exchanges
    }

    /// Whether it has an effect.
    pub fn has(&self, effect: Effect) -> bool {
        self.facts().effects.contains(&effect)
    }
}
