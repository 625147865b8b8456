//! Attention by kernels: what they are given, and where their results go.

use fs_kernels::cuda::catalogue::attention::{Attention, Score};
use fs_kernels::cuda::driver::{Driver, Touch};
use fs_kernels::cuda::{In, Out};

use super::Fault;
use super::dense::Dense;
use super::kernels::{Enqueued, result};

impl<D: Driver> Dense<'_, D> {
    /// Queries, keys and values, and what is touched of them.
    fn heads(&mut self, score: Score, heads: u32, offsets: usize) -> Result<(Attention, [Touch; 3]), Fault> {
        let (q, k, v) = (self.read(0)?, self.read(1)?, self.read(2)?);
        let (offsets, sequences) = self.offsets(offsets)?;
        let (tokens, columns) = q.size();
        let attention = Attention {
            score,
            q: q.input(),
            k: k.input(),
            v: v.input(),
            offsets,
            sequences,
            tokens,
            heads,
            dim: columns as u32 / heads.max(1),
            precision: self.precision,
        };
        Ok((attention, [q, k, v].map(|x| Touch::In(x.area))))
    }

    pub(super) fn attention(&mut self, score: Score, heads: u32) -> Result<Enqueued, Fault> {
        let (attention, reads) = self.heads(score, heads, 3)?;
        let (y, add) = self.write(0)?;
        let mut touches = reads.to_vec();
        touches.push(result(&y, add));
        let mut stats = Out::NULL;
        if score != Score::Silu {
            let (at, _) = self.write(1)?;
            stats = Out::at(at.area.address);
            touches.push(Touch::Out(at.area));
        }
        let Some(call) = attention.forward(y.output(), u32::from(add), stats) else {
            return Ok(Enqueued::No);
        };
        self.run(&call, &touches)?;
        Ok(Enqueued::Done)
    }

    pub(super) fn attention_grad(&mut self, score: Score, heads: u32) -> Result<Enqueued, Fault> {
        let softmax = score != Score::Silu;
        let (attention, reads) = self.heads(score, heads, if softmax { 5 } else { 3 })?;
        let gy = self.read(if softmax { 6 } else { 4 })?;
        let mut touches = reads.to_vec();
        touches.push(Touch::In(gy.area));
        let (mut stats, mut dots) = (In::NULL, Out::NULL);
        if softmax {
            let (y, at) = (self.read(3)?, self.read(4)?);
            stats = In::at(at.area.address);
            dots = Out::at(self.scratch.words(attention.tokens * u64::from(heads))?.address);
            touches.push(Touch::In(at.area));
            let call = attention.dots(y.input(), gy.input(), dots);
            self.run(&call, &[Touch::In(y.area), Touch::In(gy.area)])?;
        }
        let [(gq, q_add), (gk, k_add), (gv, v_add)] = [self.write(0)?, self.write(1)?, self.write(2)?];
        let queries = attention.grad_q(gy.input(), stats, dots.read(), gq.output(), u32::from(q_add));
        let keys = attention.grad_kv(
            gy.input(),
            stats,
            dots.read(),
            (gk.output().0, gk.shape.stride as u64, u32::from(k_add)),
            (gv.output().0, gv.shape.stride as u64, u32::from(v_add)),
        );
        let (Some(queries), Some(keys)) = (queries, keys) else { return Ok(Enqueued::No) };
        self.run(&queries, &[&touches[..], &[result(&gq, q_add)]].concat())?;
        self.run(&keys, &[&touches[..], &[result(&gk, k_add), result(&gv, v_add)]].concat())?;
        Ok(Enqueued::Done)
    }
}
