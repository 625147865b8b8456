//! From actions to handlers. A new kind of operation is one line here and one function beside its relatives.

use fs_kernels::Real;
use fs_schedule::Action;

use super::{Call, Fault, asked, attention, balance, dense, loss, optimizer, relay, sparse};

/// Runs an operation that is no transfer.
pub(crate) fn execute<T: Real>(c: &Call<T>) -> Result<(), Fault> {
    match &c.op.action {
        Action::DrawNegatives { table, count, lengths, stream } => {
            sparse::draw_negatives(c, *table, *lengths, *count, *stream)
        }
        Action::Unique { exchange } => sparse::unique(c, *exchange),
        Action::UniqueFor { exchange } => asked::unique_for(c, *exchange),
        Action::UniqueAsked { exchange } => relay::unique_asked(c, *exchange),
        Action::PassClasses { .. } => relay::pass_classes(c),
        Action::PassRows { class, .. } => relay::pass_rows(c, *class),
        Action::SumAsked { class, .. } => relay::sum_asked(c, *class),
        Action::Partition { exchange, way } => sparse::partition(c, *exchange, *way),
        Action::Positions { exchange, way } => sparse::positions(c, *exchange, *way),
        Action::Gather { exchange, class } => sparse::gather(c, *exchange, *class),
        Action::Merge { classes, .. } => sparse::merge(c, classes.len()),
        Action::Split { exchange, class } => sparse::split(c, *exchange, *class),
        Action::Expand => sparse::expand(c),
        Action::ExpandGrad => sparse::expand_grad(c),
        Action::Pool { mode } => sparse::pool(c, *mode),
        Action::PoolGrad { mode } => sparse::pool_grad(c, *mode),
        Action::Apply { exchange, class } => optimizer::apply(c, *exchange, *class),
        Action::DenseUpdate => optimizer::dense_update(c),
        Action::Dense => dense::features(c),
        Action::Linear { bias } => dense::linear(c, *bias),
        Action::LinearGradInput => dense::linear_grad_input(c),
        Action::LinearGradWeight { bias } => dense::linear_grad_weight(c, *bias),
        Action::LayerNorm { affine, eps } => dense::layer_norm(c, *affine, *eps),
        Action::LayerNormGrad { affine } => dense::layer_norm_grad(c, *affine),
        Action::Unary { function } => dense::unary(c, *function),
        Action::LinearUnary { function } => dense::linear_unary(c, *function),
        Action::AddLayerNorm { affine, eps } => dense::add_layer_norm(c, *affine, *eps),
        Action::LayerNormMul { affine, eps } => dense::layer_norm_mul(c, *affine, *eps),
        Action::UnaryGrad { function } => dense::unary_grad(c, *function),
        Action::Softmax => dense::softmax(c),
        Action::SoftmaxGrad => dense::softmax_grad(c),
        Action::Add => dense::add(c),
        Action::Mul => dense::mul(c),
        Action::MulGrad => dense::mul_grad(c),
        Action::Scale { factor } => dense::scale(c, *factor),
        // A cast copies: numbers are of one type here, and brain floats are rounded once they are written.
        Action::Copy | Action::Cast => dense::copy(c),
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
        // The host's share of the batch is all that there is.
        Action::LoadBatch => Ok(()),
        Action::Assign => balance::assign(c),
        Action::CopyIds => balance::copy_ids(c),
        Action::AllToAllIds { .. }
        | Action::AllToAllIdsFor { .. }
        | Action::AllGatherIds { .. }
        | Action::AllToAllClasses { .. }
        | Action::AllToAllRows { .. }
        | Action::AllToAllGrads { .. }
        | Action::AllGatherGrads { .. }
        | Action::AllReduce
        | Action::ShareLengths
        | Action::Dispatch { .. }
        | Action::DispatchRows { .. }
        | Action::Combine { .. }
        | Action::RankItems { .. } => Err(Fault::InParts),
    }
}
