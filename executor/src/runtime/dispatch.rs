//! From actions to handlers. A new kind of operation is one line here and one function beside its relatives.

use std::time::Instant;

use fs_kernels::Real;
use fs_schedule::{Action, Op, Program};

use super::profile::Profile;
use super::{Call, Env, Fault, attention, collectives, dense, loss, optimizer, sparse};
use crate::evaluate::rank_items;

/// An operation that failed.
#[derive(Debug, thiserror::Error)]
#[error("`{op}`: {fault}")]
pub struct Stopped {
    /// Its name.
    pub op: String,
    /// Why.
    #[source]
    pub fault: Fault,
}

/// Runs the operations in order. `at` is told which one is next, so that a panic can be placed.
pub fn run<T: Real>(
    env: &Env<T>,
    program: &Program,
    profile: &mut Profile,
    at: &mut usize,
) -> Result<(), Stopped> {
    for (index, op) in program.ops.iter().enumerate() {
        *at = index;
        let waited = env.transport.lock().waited();
        let start = Instant::now();
        execute(env, program, op).map_err(|fault| Stopped { op: op.name.clone(), fault })?;
        let waited = env.transport.lock().waited().saturating_sub(waited);
        profile.record(index, start.elapsed(), waited);
    }
    Ok(())
}

fn execute<T: Real>(env: &Env<T>, program: &Program, op: &Op) -> Result<(), Fault> {
    if op.action == Action::LoadBatch {
        return env.load();
    }
    let call = Call::new(env, program, op)?;
    let c = &call;
    match &op.action {
        Action::LoadBatch => Ok(()),
        Action::DrawNegatives { table, count, lengths, stream } => {
            sparse::draw_negatives(c, *table, *lengths, *count, *stream)
        }
        Action::Unique { exchange } => sparse::unique(c, *exchange),
        Action::Gather { class: None, .. } => sparse::gather(c),
        Action::Expand => sparse::expand(c),
        Action::ExpandGrad => sparse::expand_grad(c),
        Action::Pool { mode } => sparse::pool(c, *mode),
        Action::PoolGrad { mode } => sparse::pool_grad(c, *mode),
        Action::AllToAllIds { exchanges } if exchanges.len() == 1 => {
            collectives::all_to_all_ids(c, exchanges[0])
        }
        Action::AllToAllRows { exchanges, class: None }
        | Action::AllToAllGrads { exchanges, class: None }
            if exchanges.len() == 1 =>
        {
            collectives::all_to_all(c)
        }
        Action::AllReduce => collectives::all_reduce(c),
        Action::Apply { class: None, .. } => optimizer::apply(c),
        Action::DenseUpdate => optimizer::dense_update(c),
        Action::Dense => dense::features(c),
        Action::Linear { bias } => dense::linear(c, *bias),
        Action::LinearGradInput => dense::linear_grad_input(c),
        Action::LinearGradWeight { bias } => dense::linear_grad_weight(c, *bias),
        Action::LayerNorm { affine, eps } => dense::layer_norm(c, *affine, *eps),
        Action::LayerNormGrad { affine } => dense::layer_norm_grad(c, *affine),
        Action::Unary { function } => dense::unary(c, *function),
        Action::UnaryGrad { function } => dense::unary_grad(c, *function),
        Action::Softmax => dense::softmax(c),
        Action::SoftmaxGrad => dense::softmax_grad(c),
        Action::Add => dense::add(c),
        Action::Mul => dense::mul(c),
        Action::MulGrad => dense::mul_grad(c),
        Action::Scale { factor } => dense::scale(c, *factor),
        Action::Copy => dense::copy(c),
        Action::Zero => dense::zero(c),
        Action::Positional => dense::positional(c),
        Action::PositionalGrad => dense::positional_grad(c),
        Action::Dropout { p, stream } => dense::dropout(c, *p, *stream, false),
        Action::DropoutGrad { p, stream } => dense::dropout(c, *p, *stream, true),
        Action::L2Normalize { eps } => dense::l2_normalize(c, *eps),
        Action::L2NormalizeGrad { eps } => dense::l2_normalize_grad(c, *eps),
        Action::DotInteraction => dense::dot_interaction(c),
        Action::DotInteractionGrad => dense::dot_interaction_grad(c),
        Action::SiluAttention { heads } => attention::silu(c, *heads),
        Action::SiluAttentionGrad { heads } => attention::silu_grad(c, *heads),
        Action::SoftmaxAttention { heads, causal } => attention::softmax(c, *heads, *causal),
        Action::SoftmaxAttentionGrad { heads, causal } => attention::softmax_grad(c, *heads, *causal),
        Action::BceWithLogits { normalize } => loss::bce_with_logits(c, *normalize),
        Action::SampledSoftmax { negatives, temperature, normalize } => {
            loss::sampled_softmax(c, *negatives, *temperature, *normalize)
        }
        Action::SampledSoftmaxGrad { negatives } => loss::sampled_softmax_grad(c, *negatives),
        Action::RankItems { cosine } => rank_items::rank_items(c, *cosine),
        Action::AllToAllIds { .. }
        | Action::AllGatherIds { .. }
        | Action::Partition { .. }
        | Action::AllToAllClasses { .. }
        | Action::Positions { .. }
        | Action::Gather { .. }
        | Action::AllToAllRows { .. }
        | Action::Merge { .. }
        | Action::Split { .. }
        | Action::AllToAllGrads { .. }
        | Action::AllGatherGrads { .. }
        | Action::Apply { .. } => {
            Err(Fault::Unsupported("this version of fsx runs schedules of `--strategy serial` only".into()))
        }
    }
}
