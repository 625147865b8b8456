//! The frame of a training step.

use crate::ir::{OpDef, Resource, Updates};

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
    OpDef::executable("train.dense_update", "`gradients..., parameters... ->` The dense optimizer's update.")
        .reading(Resource::Gradient)
        .reading(Resource::Parameter)
        .writing(Resource::Parameter)
        .updating(Updates::SecondHalf),
];
