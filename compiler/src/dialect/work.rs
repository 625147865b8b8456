//! The expected work of operations: elements, arithmetic, memory traffic, bytes that leave a rank.

use fs_schedule::op::{Element, Extent};
use fs_schedule::signature::Shape;
use fs_schedule::{Cost, Poly, Symbol};

use crate::ir::{Module, OpData, ValueId};

/// `c` per element of the first result.
pub(super) fn flops_per_result<const C: u32>(m: &Module, op: &OpData) -> Poly {
    op.results.first().map_or_else(Poly::zero, |v| elements(m, *v).times(f64::from(C)))
}

/// Elements of a value.
pub fn elements(m: &Module, v: ValueId) -> Poly {
    match m.ty(v).shape() {
        Some(Shape::Matrix { rows, columns, .. }) => extent(rows).times(columns.into()),
        Some(Shape::Parameter { rows, columns } | Shape::Gradient { rows, columns }) => {
            Poly::constant(f64::from(rows) * f64::from(columns))
        }
        Some(Shape::Ids { lengths, .. }) => Poly::term(1.0, &[Symbol::Tokens(lengths)]),
        Some(Shape::Dense { width }) => Poly::term(width.into(), &[Symbol::Samples]),
        Some(Shape::Labels { rows }) => extent(rows),
        Some(Shape::Offsets { .. }) => Poly::term(1.0, &[Symbol::Samples]),
        Some(Shape::Table { .. }) | None => Poly::zero(),
    }
}

/// Rows as a polynomial.
pub fn extent(rows: Extent) -> Poly {
    match rows {
        Extent::Symbol(s) => Poly::term(1.0, &[s]),
        Extent::Fixed(n) => Poly::constant(n.into()),
    }
}

/// The received gradients of an apply: the operand before the table.
pub(super) fn gradient(op: &OpData) -> Option<ValueId> {
    op.operands.len().checked_sub(2).map(|i| op.operands[i])
}

/// Bytes of an element of a value.
fn width(m: &Module, v: ValueId) -> f64 {
    match m.ty(v).shape() {
        Some(
            Shape::Matrix { element: Element::Id | Element::Count, .. }
            | Shape::Ids { .. }
            | Shape::Offsets { .. },
        ) => 8.0,
        Some(Shape::Matrix { element: Element::Byte, .. }) => 1.0,
        _ => 4.0,
    }
}

/// Bytes of a value.
fn bytes(m: &Module, v: ValueId) -> Poly {
    elements(m, v).times(width(m, v))
}

/// Bytes that an operation moves through memory: its operands and results once, but of what it picks by position
/// only the picked.
fn traffic(m: &Module, op: &OpData) -> Poly {
    let sum = |ids: &[ValueId]| ids.iter().map(|v| bytes(m, *v)).sum::<Poly>();
    let all = sum(&op.operands).plus(&sum(&op.results));
    // What is added into is read too.
    let added = op.into.iter().zip(&op.results).filter(|(base, _)| base.is_some());
    match op.def.name {
        "comm.gather" => {
            let rows = bytes(m, op.results[0]).times(2.0);
            rows.plus(&bytes(m, op.operands[op.operands.len() - 1]))
        }
        "comm.split" => bytes(m, op.results[0]).times(2.0).plus(&bytes(m, op.operands[1])),
        // An addition touches the rows that it brings only.
        "comm.merge" if op.into.first().is_some_and(Option::is_some) => sum(&op.operands).times(2.0),
        "comm.apply" => gradient(op).map_or(all, |g| {
            // Gradients are read, rows and about one state read and written; positions replace the list of rows.
            let index = op.operands[usize::from(op.operands.len() > 4)];
            bytes(m, g).times(5.0).plus(&bytes(m, index))
        }),
        _ => added.fold(all, |p, (_, r)| p.plus(&bytes(m, *r))),
    }
}

/// Bytes that leave a rank when destinations are spread evenly; of a gather to all, what arrives.
fn wire(m: &Module, op: &OpData) -> Poly {
    let sum = |ids: &mut dyn Iterator<Item = Poly>| ids.sum::<Poly>();
    let of_kind = |ids: &[ValueId], want: &[Element]| {
        let of = |v: &&ValueId| match m.ty(**v).shape() {
            Some(Shape::Matrix { element, .. }) => want.contains(&element),
            _ => false,
        };
        ids.iter().filter(of).copied().collect::<Vec<_>>()
    };
    match op.def.name {
        // Ids travel as rows of the owner's shard, four bytes each.
        "comm.all_to_all_ids" => {
            let sent = of_kind(&op.operands, &[Element::Id, Element::Byte]);
            sum(&mut sent.iter().map(|v| elements(m, *v).times(width(m, *v).min(4.0))))
        }
        "comm.all_gather_ids" => {
            // Own rows are among the results too, but come from nowhere.
            let each = if of_kind(&op.operands, &[Element::Byte]).is_empty() { 3 } else { 4 };
            let arrive = op.results.chunks(each).flat_map(|of| {
                of.iter().enumerate().filter(|(i, _)| matches!(i, 0 | 3)).map(|(_, v)| bytes(m, *v))
            });
            sum(&mut arrive.into_iter())
        }
        "comm.all_to_all_classes" => sum(&mut op.operands.iter().step_by(3).map(|v| bytes(m, *v))),
        "comm.all_to_all_rows" | "comm.all_to_all_grads" => {
            sum(&mut op.operands.iter().step_by(3).map(|v| bytes(m, *v)))
        }
        "comm.all_gather_grads" => sum(&mut op.results.iter().map(|v| bytes(m, *v))),
        "comm.all_reduce" => sum(&mut op.operands.iter().map(|v| bytes(m, *v).times(2.0))),
        _ => Poly::zero(),
    }
}

/// Expected work of an operation: its arithmetic, its operands and results once through memory, and for collectives
/// what leaves the rank when destinations are spread evenly (what arrives, if everything goes to everybody).
pub fn cost(m: &Module, op: &OpData) -> Cost {
    Cost { flops: (op.def.flops)(m, op), bytes: traffic(m, op), wire: wire(m, op) }
}
