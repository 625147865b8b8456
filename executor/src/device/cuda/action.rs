//! Who does what: kernels, copies, or the host.

use fs_schedule::{Action, Schedule};

use super::dense::fits;

/// Who does an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// A kernel, or a copy on the device.
    Device,
    /// The host, because it plans or has what is needed.
    Planner,
}

/// Who does an action. A new one is a line here, and if it is the device's one in [`kernels`](super::kernels).
pub(super) fn by(action: &Action) -> By {
    match action {
        Action::Gather { .. }
        | Action::Expand
        | Action::Split { .. }
        | Action::Merge { .. }
        | Action::ExpandGrad
        | Action::Pool { .. }
        | Action::PoolGrad { .. }
        | Action::Copy
        | Action::Cast
        | Action::Zero
        | Action::AllToAllRows { .. }
        | Action::AllToAllGrads { .. }
        | Action::AllGatherGrads { .. }
        | Action::Apply { .. }
        | Action::AllReduce
        | Action::DenseUpdate
        | Action::DispatchRows { .. }
        | Action::Combine { .. }
        | Action::CopyIds
        | Action::DrawNegatives { .. }
        | Action::Unique { .. }
        | Action::UniqueFor { .. }
        | Action::UniqueAsked { .. }
        | Action::PassClasses { .. }
        | Action::PassRows { .. }
        | Action::SumAsked { .. }
        | Action::AllToAllIds { .. }
        | Action::AllToAllIdsFor { .. }
        | Action::AllGatherIds { .. }
        | Action::Partition { .. }
        | Action::AllToAllClasses { .. }
        | Action::Positions { .. }
        | Action::Dense
        | Action::Linear { .. }
        | Action::LinearGradInput
        | Action::LinearGradWeight { .. }
        | Action::LayerNorm { .. }
        | Action::LayerNormGrad { .. }
        | Action::Unary { .. }
        | Action::UnaryGrad { .. }
        | Action::LinearUnary { .. }
        | Action::AddLayerNorm { .. }
        | Action::LayerNormMul { .. }
        | Action::Softmax
        | Action::SoftmaxGrad
        | Action::Add
        | Action::Mul
        | Action::MulGrad
        | Action::Scale { .. }
        | Action::Positional
        | Action::PositionalGrad
        | Action::Dropout { .. }
        | Action::DropoutGrad { .. }
        | Action::L2Normalize { .. }
        | Action::L2NormalizeGrad { .. }
        | Action::SiluAttention { .. }
        | Action::SiluAttentionGrad { .. }
        | Action::SoftmaxAttention { .. }
        | Action::SoftmaxAttentionGrad { .. }
        | Action::DotInteraction
        | Action::DotInteractionGrad
        | Action::BceWithLogits { .. }
        | Action::SampledSoftmax { .. }
        | Action::SampledSoftmaxGrad { .. }
        | Action::RankItems { .. } => By::Device,
        Action::LoadBatch | Action::ShareLengths | Action::Assign | Action::Dispatch { .. } => By::Planner,
    }
}

/// Actions of a schedule for which kernels have no room, each once, as the schedule names them.
pub(super) fn missing(schedule: &Schedule) -> Vec<String> {
    let programs = std::iter::once(&schedule.train).chain(&schedule.evaluation);
    let mut names: Vec<String> = programs
        .flat_map(|program| program.ops.iter().map(move |op| (program, op)))
        .filter(|(program, op)| !fits(program, op))
        .map(|(_, op)| op.action.name())
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}
