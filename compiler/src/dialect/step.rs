//! The frame of a training step.

use super::OpDef;

pub(super) const OPS: &[OpDef] = &[
    OpDef::executable("train.load_batch", "Makes this rank's share of the next batch current."),
    OpDef::executable("train.dense_update", "`gradients..., parameters... ->` The dense optimizer's update."),
];
