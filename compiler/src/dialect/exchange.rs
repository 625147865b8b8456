//! Collectives with meaning: how ids, rows and their gradients travel between the ranks that use them and the
//! ranks that own them, all together or by classes of reuse distance.

use crate::ir::{OpDef, Resource, Sites, Updates};

pub(super) const OPS: &[OpDef] = &[
    OpDef::executable(
        "comm.unique",
        "`ids... -> entries, counts, uses?, inverse...` What to ask each owner for.",
    )
    .placing(Sites::Listed),
    OpDef::executable(
        "comm.all_to_all_ids",
        "`(entries, counts, uses?)... -> (rows, received counts, received uses?)...` Input dist.",
    ),
    OpDef::executable(
        "comm.unique_for",
        "`rank and microbatch, ids... -> entries, counts, for whom, uses?` What to ask each owner for on behalf of others.",
    )
    .reading(Resource::Batch),
    OpDef::executable(
        "comm.all_to_all_ids_for",
        "`(entries, counts, for whom, uses?)... -> (rows, received counts, received uses?)...` Input dist on behalf of others.",
    ),
    OpDef::executable(
        "comm.unique_asked",
        "`rows, received counts, uses? -> entries, counts, uses?, places` What a relay asks each owner for.",
    ),
    OpDef::executable("comm.pass_classes", "`classes, places -> classes` A relay's, of what its node asks for."),
    OpDef::executable(
        "comm.pass_rows",
        "`rows, places, (positions, positions)? -> y` A relay's, for each that its node asks for.",
    ),
    OpDef::executable(
        "comm.sum_asked",
        "`places, received counts, received gradients, (positions, positions)? -> grows` A node's sums at its relay.",
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
    OpDef::executable("comm.gather", "`table, rows, positions? -> y` Lookup at the owner.")
        .reading(Resource::Table),
    OpDef::executable("comm.all_to_all_rows", "`(y, received counts, counts)... -> rows...` Output dist."),
    OpDef::executable(
        "comm.merge",
        "`(rows, positions)... -> rows` Rows that arrived by class, in the order of the entries; `rows -> rows` without classes.",
    )
    .accumulating(&[0]),
    OpDef::executable("comm.expand", "`rows, inverse -> y` A row per id."),
    OpDef::executable("comm.expand_grad", "`gy, inverse -> grows` Sums per entry in position order.")
        .accumulating(&[0]),
    OpDef::executable("comm.pool", "`rows, inverse, offsets -> y` Sum or mean of a sample's rows."),
    OpDef::executable("comm.pool_grad", "`gy, inverse, offsets -> grows` Sums per entry in position order.")
        .accumulating(&[0]),
    OpDef::executable("comm.split", "`grows, positions? -> grows` The gradients of a class, or all, as they travel."),
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
    .reading(Resource::Table)
    .writing(Resource::Table)
    .updating(Updates::Last),
    OpDef::executable("comm.all_reduce", "`gradients... -> gradients...` Sum over ranks in rank order, of several nodes within each first.")
        .reading(Resource::Gradient)
        .writing(Resource::Gradient)
        .updating(Updates::All),
];
