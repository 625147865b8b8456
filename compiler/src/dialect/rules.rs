//! Rules that many operations share: those of the schedule's actions, and of operands and results.

use fs_schedule::signature::OperandType;
use fs_schedule::{Action, Element, Extent};

use crate::ir::attr::{typed, variant};
use crate::ir::{AttrError, Context, Module, OpData, OpDef, OpError, Type, Updates, ValueId};

impl OpDef {
    /// A pure operation that is an action of the schedule, without derivative, free of arithmetic.
    pub(super) const fn executable(name: &'static str, summary: &'static str) -> Self {
        Self::new(name, summary, executable)
    }
}

/// The schedule's action of an executable operation.
pub(crate) fn action(op: &OpData) -> Result<Action, OpError> {
    let tail = op.def.name.rsplit('.').next().unwrap_or_default();
    variant(tail, &op.attrs).map_err(OpError::Action)
}

/// The verifier of executable operations.
fn executable(m: &Context<'_>, op: &OpData) -> Result<(), OpError> {
    let unfit = |v: &ValueId| OpError::relation(format!("a {} operand is not executable", m.ty(*v)));
    let shape = |v: &ValueId| m.ty(*v).shape().ok_or_else(|| unfit(v));
    let shapes = |ids: &[ValueId]| ids.iter().map(shape).collect::<Result<Vec<OperandType>, OpError>>();
    let (reads, places) = op.operands.split_at(op.def.updates.reads(op.operands.len()));
    let writes = match op.def.updates {
        Updates::Nothing => shapes(&op.results)?,
        // Sums stand where gradients stood.
        Updates::All => shapes(&op.operands)?,
        // Written places that are not values: their state is the operand itself.
        Updates::Last | Updates::SecondHalf => {
            if !op.results.is_empty() {
                return Err(OpError::relation("has no results"));
            }
            shapes(places)?
        }
    };
    if op.def.updates == Updates::Last && writes.is_empty() {
        return Err(OpError::relation("needs a table"));
    }
    let cx = fs_schedule::action::Context {
        exchanges: &m.exchanges,
        columns: &m.columns,
        tables: m.tables,
        microbatches: if m.evaluating { 1 } else { m.microbatches },
        batch: m.batch,
        groups: m.groups,
        inputs: m.inputs.len() as u32,
        wire: m.wire,
    };
    Ok(action(op)?.check(&shapes(reads)?, &writes, &cx)?)
}

/// A required attribute of the schedule's vocabulary, for verifiers.
pub(super) fn require<T: serde::de::DeserializeOwned>(op: &OpData, name: &str) -> Result<T, AttrError> {
    typed(&op.attrs, name)
}

/// Precision, rows and columns of an operand of floats.
pub(super) fn floats(m: &Module, op: &OpData, i: usize) -> Result<(Element, Extent, u32), OpError> {
    let v = op.operands.get(i).ok_or(OpError::Missing(i))?;
    let of = || OpError::operand(i, format!("a real or bf16 matrix, is {}", m.ty(*v)));
    m.ty(*v).as_floats().ok_or_else(of)
}

/// Rows and columns of a real operand.
pub(super) fn real(m: &Module, op: &OpData, i: usize) -> Result<(Extent, u32), OpError> {
    let v = op.operands.get(i).ok_or(OpError::Missing(i))?;
    m.ty(*v).as_real().ok_or_else(|| OpError::operand(i, format!("a real matrix, is {}", m.ty(*v))))
}

/// Checks the number of operands and the result types.
pub(super) fn expect_results(
    m: &Module,
    op: &OpData,
    operands: usize,
    results: &[Type],
) -> Result<(), OpError> {
    if op.operands.len() != operands {
        return Err(OpError::Count { takes: operands, has: op.operands.len() });
    }
    let gives: Vec<Type> = op.results.iter().map(|v| m.ty(*v)).collect();
    if gives == results {
        return Ok(());
    }
    Err(OpError::Results { must: results.to_vec(), gives })
}
