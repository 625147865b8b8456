//! Collectives with meaning: how ids, rows and their gradients travel between the ranks that use them and the
//! ranks that own them.

use super::{OpDef, flops_per_result};

pub(super) const OPS: &[OpDef] = &[
    OpDef::executable("comm.unique", "`ids... -> entries, counts, inverse...` What to ask each owner for."),
    OpDef::executable("comm.all_to_all_ids", "`entries, counts -> rows, received counts` Input dist."),
    OpDef::executable("comm.gather", "`table, rows -> y` Lookup at the owner."),
    OpDef::executable("comm.all_to_all_rows", "`y, received counts, counts -> rows` Output dist."),
    OpDef::executable("comm.expand", "`rows, inverse -> y` A row per id."),
    OpDef::executable("comm.expand_grad", "`gy, inverse -> grows` Sums per entry in position order.")
        .with_flops(flops_per_result::<1>)
        .accumulating(&[0]),
    OpDef::executable("comm.pool", "`rows, inverse, offsets -> y` Sum or mean of a sample's rows.")
        .with_flops(flops_per_result::<1>),
    OpDef::executable("comm.pool_grad", "`gy, inverse, offsets -> grows` Sums per entry in position order.")
        .with_flops(flops_per_result::<1>)
        .accumulating(&[0]),
    OpDef::executable(
        "comm.all_to_all_grads",
        "`grows, counts, received counts -> received gradients` Gradient dist.",
    ),
    OpDef::executable(
        "comm.apply",
        "`rows, received counts, received gradients, table ->` Sums in rank order and updates.",
    ),
    OpDef::executable("comm.all_reduce", "`gradients... -> gradients...` Sum over ranks in rank order."),
];
