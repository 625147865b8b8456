//! Collectives with meaning: how ids, rows and their gradients travel between the ranks that use them and the
//! ranks that own them, all together or by classes of reuse distance.

use fs_schedule::op::Element;
use fs_schedule::signature::Shape;
use fs_schedule::{Cost, Poly};

use super::{OpDef, elements, flops_per_result};
use crate::ir::{Module, OpData, ValueId};

pub(super) const OPS: &[OpDef] = &[
    OpDef::executable(
        "comm.unique",
        "`ids... -> entries, counts, uses?, inverse...` What to ask each owner for.",
    ),
    OpDef::executable(
        "comm.all_to_all_ids",
        "`(entries, counts, uses?)... -> (rows, received counts, received uses?)...` Input dist.",
    ),
    OpDef::executable(
        "comm.all_gather_ids",
        "`(entries, counts, uses?)... -> (rows, received counts, own rows, received uses?)...` Input dist of replicated tables.",
    ),
    OpDef::executable(
        "comm.partition",
        "`rows, uses?, (rows, uses?) of other batches -> classes` Reuse distance of each row.",
    ),
    OpDef::executable(
        "comm.all_to_all_classes",
        "`(classes, received counts, counts)... -> classes...` Owners tell who asked.",
    ),
    OpDef::executable(
        "comm.positions",
        "`classes, counts -> (positions, counts)...` Entries of each class, in order.",
    ),
    OpDef::executable("comm.gather", "`table, rows, positions? -> y` Lookup at the owner."),
    OpDef::executable("comm.all_to_all_rows", "`(y, received counts, counts)... -> rows...` Output dist."),
    OpDef::executable(
        "comm.merge",
        "`(rows, positions)... -> rows` Rows that arrived by class, in the order of the entries.",
    )
    .accumulating(&[0]),
    OpDef::executable("comm.expand", "`rows, inverse -> y` A row per id."),
    OpDef::executable("comm.expand_grad", "`gy, inverse -> grows` Sums per entry in position order.")
        .with_flops(flops_per_result::<1>)
        .accumulating(&[0]),
    OpDef::executable("comm.pool", "`rows, inverse, offsets -> y` Sum or mean of a sample's rows.")
        .with_flops(flops_per_result::<1>),
    OpDef::executable("comm.pool_grad", "`gy, inverse, offsets -> grows` Sums per entry in position order.")
        .with_flops(flops_per_result::<1>)
        .accumulating(&[0]),
    OpDef::executable("comm.split", "`grows, positions -> grows` The gradients of a class."),
    OpDef::executable(
        "comm.all_to_all_grads",
        "`(grows, counts, received counts)... -> received gradients...` Gradient dist.",
    ),
    OpDef::executable(
        "comm.all_gather_grads",
        "`(grows, counts, received counts)... -> received gradients...` Gradient dist of replicated tables.",
    ),
    OpDef::executable(
        "comm.apply",
        "`rows, positions?, received counts, received gradients, table ->` Sums in rank order and updates.",
    )
    .with_flops(apply_flops),
    OpDef::executable("comm.all_reduce", "`gradients... -> gradients...` Sum over ranks in rank order."),
];

/// A sum and about three operations of the update per received element.
fn apply_flops(m: &Module, op: &OpData) -> Poly {
    gradient(op).map_or_else(Poly::zero, |g| elements(m, g).times(4.0))
}

/// The received gradients of an apply: the operand before the table.
fn gradient(op: &OpData) -> Option<ValueId> {
    op.operands.len().checked_sub(2).map(|i| op.operands[i])
}

/// Bytes of an element of a value.
pub(super) fn width(m: &Module, v: ValueId) -> f64 {
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
pub(super) fn bytes(m: &Module, v: ValueId) -> Poly {
    elements(m, v).times(width(m, v))
}

/// Bytes that an operation moves through memory: its operands and results once, but of what it picks by position
/// only the picked.
pub(super) fn traffic(m: &Module, op: &OpData) -> Poly {
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
pub(super) fn wire(m: &Module, op: &OpData) -> Poly {
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

/// Expected work of an operation: its arithmetic, memory traffic and transfers.
pub(super) fn cost(m: &Module, op: &OpData) -> Cost {
    Cost { flops: (op.def.flops)(m, op), bytes: traffic(m, op), wire: wire(m, op) }
}
