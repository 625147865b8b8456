//! Operations of a schedule, their dependencies and the buffers between them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::action::{Action, Payload};
use crate::attribute::Site;
use crate::model::{Cost, Engine};
use crate::operand::{Element, Extent, Operand};

/// One operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Op {
    /// Unique within its program, tells where it comes from: `layers.0.uvqk.linear`.
    pub name: String,
    /// What it does.
    pub action: Action,
    /// Operands read, in the order of [`Action`]'s documentation.
    pub reads: Vec<Operand>,
    /// Operands written, likewise.
    pub writes: Vec<Operand>,
    /// What executes it.
    pub engine: Engine,
    /// Batch offset: an operation of stage s in step n works on batch n + s.
    pub stage: i32,
    /// The microbatch that it works on; `None`: the whole batch. Inputs, offsets and the sizes `B`, `T<n>`, `Q<n>` of
    /// an operation are those of its microbatch.
    pub microbatch: Option<u32>,
    /// Where its samples are: its inputs, offsets and the sizes `B`, `T<n>`, `Q<n>` are of the samples that its rank
    /// has there.
    #[serde(default, skip_serializing_if = "Site::is_home")]
    pub site: Site,
    /// What must have finished.
    pub deps: Vec<Dep>,
    /// Whether one launch starts it and the operation before it in the list: the same for other rows. They begin when the
    /// first of those may, none before another, and may end together.
    #[serde(default, skip_serializing_if = "is_false")]
    pub joined: bool,
    /// Greater goes first among the ready ones of an engine.
    pub priority: i32,
    /// Bytes after which a transfer lets an urgent one pass; `None` is one piece.
    pub chunk: Option<u64>,
    /// Expected work.
    pub cost: Cost,
    /// Planned start within the step, in nanoseconds.
    pub start: u64,
    /// Planned nanoseconds that it occupies its engine.
    pub time: u64,
    /// Planned nanoseconds after that until what waits for it may start, its own queue included: data are under way and the
    /// engine is free for others, or the host learns sizes.
    #[serde(default, skip_serializing_if = "is_no_time")]
    pub lag: u64,
    /// Why it stands here.
    pub reason: String,
}

impl Op {
    /// Nanoseconds within the step at which what waits for it may start, as planned.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.time).saturating_add(self.lag)
    }

    /// Sections of what it sends to a rank, if it is a transfer: one for each exchange or input.
    pub fn sections(&self) -> usize {
        let facts = self.action.facts();
        match facts.transfer.map(|t| t.payload) {
            Some(Payload::Samples) => self.reads.len().saturating_sub(1),
            _ => facts.of.exchanges.len(),
        }
        .max(1)
    }
    /// An operation of a whole batch that nothing is known of yet but what it does and where.
    pub fn new(name: &str, action: Action, engine: Engine) -> Self {
        Self {
            name: name.into(),
            action,
            reads: Vec::new(),
            writes: Vec::new(),
            engine,
            stage: 0,
            microbatch: None,
            site: Site::Home,
            deps: Vec::new(),
            joined: false,
            priority: 0,
            chunk: None,
            cost: Cost::default(),
            start: 0,
            time: 0,
            lag: 0,
            reason: String::new(),
        }
    }
}

/// A dependency on an operation of the same program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Dep {
    /// Its position in the list.
    pub op: u32,
    /// 0: the instance of the same step; d: the one of d steps before.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub distance: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(flag: &bool) -> bool {
    !*flag
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_no_time(n: &u64) -> bool {
    *n == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// Storage of intermediate values: a matrix whose rows are a symbol.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Buffer {
    /// Value that it holds.
    pub name: String,
    /// Type of its elements.
    pub element: Element,
    /// Number of rows.
    pub rows: Extent,
    /// Number of columns.
    pub columns: u32,
    /// The microbatch whose rows it holds; `None`: the whole batch's.
    pub microbatch: Option<u32>,
    /// Where the samples are whose rows it holds.
    #[serde(default, skip_serializing_if = "Site::is_home")]
    pub site: Site,
    /// Batches that hold it at once: batch m uses copy m mod `copies`.
    pub copies: u32,
    /// Buffers of one element type with the same slot share memory; their lifetimes do not overlap. Slots lie one
    /// after the other in the arena of their element type. Buffers with several copies share with none.
    pub slot: u32,
    /// The operation that uses it first, in the order of one batch (falling stage, then position).
    pub first: u32,
    /// The operation that uses it last, likewise.
    pub last: u32,
}
