//! Neighbours as one operation ([`Action::parts`](fs_schedule::Action::parts)); made behind derivatives, so they have none.

use crate::ir::OpDef;

pub(super) const OPS: &[OpDef] = &[
    OpDef::executable("train.linear_unary", "`x, weight, bias -> z, y` z = x W^T + b, and a function of it."),
    OpDef::executable(
        "train.add_layer_norm",
        "`a, b, (weight, bias)? -> sum, y, stats` a + b, and its norm.",
    ),
    OpDef::executable(
        "train.layer_norm_mul",
        "`x, (weight, bias)?, gate -> z, y, stats` The norm z of x, and its product with the gate.",
    ),
];
