//! The frame of a training step.

use fs_schedule::Site;

use crate::ir::{OpDef, Resource, Sites, Updates};

pub(super) const OPS: &[OpDef] = &[
    OpDef::executable("train.load_batch", "Makes this rank's share of the next batch current.")
        .writing(Resource::Batch),
    OpDef::executable(
        "train.share_lengths",
        "`offsets... -> lengths` All ranks learn the lengths of all samples.",
    )
    .reading(Resource::Batch),
    OpDef::executable(
        "train.assign",
        "`lengths -> rank and microbatch of each sample` Even work for all ranks.",
    ),
    OpDef::executable(
        "train.dispatch",
        "`rank and microbatch, inputs... ->` Samples go to the ranks that work on them.",
    )
    .reading(Resource::Batch)
    .writing(Resource::Batch),
    OpDef::executable(
        "train.dispatch_rows",
        "`rank and microbatch, x -> x` What is made of rows goes to the ranks that work on the samples.",
    )
    .placing(Sites::Between(Site::Home, Site::Assigned)),
    OpDef::executable(
        "train.combine",
        "`rank and microbatch, gx -> gx` Gradients go back to the ranks that read the samples.",
    )
    .placing(Sites::Between(Site::Assigned, Site::Home)),
    OpDef::executable("train.copy_ids", "`ids -> ids` Ids of an input in a buffer.").reading(Resource::Batch),
    OpDef::executable("train.dense_update", "`gradients..., parameters... ->` The dense optimizer's update.")
        .reading(Resource::Gradient)
        .reading(Resource::Parameter)
        .writing(Resource::Parameter)
        .updating(Updates::SecondHalf),
];
