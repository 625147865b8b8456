//! Losses by kernels. The host must learn their values, which come down late ([`late`](super::late)).

use fs_kernels::cuda::catalogue::{loss, sort};
use fs_kernels::cuda::driver::{Driver, Memory, Touch};
use fs_kernels::cuda::lists::{Sorting, bits_below, scan_room, sort_by};
use fs_kernels::cuda::{In, Out};

use super::Fault;
use super::dense::Dense;
use super::kernels::result;

impl<D: Driver> Dense<'_, D> {
    pub(super) fn bce_with_logits(&mut self, norm: f64) -> Result<(), Fault> {
        let x = self.read(0)?;
        let labels = self.call.input_reals(1)?.to_vec();
        let labels = In::at(self.up(&labels)?);
        let n = x.shape.rows as u64;
        let terms = self.scratch.words(2 * n)?;
        let (mut to, mut stride, mut add) = (Out::NULL, 0, false);
        let mut touches = vec![Touch::In(x.area)];
        if self.job.op.writes.len() > 1 {
            let (g, added) = self.write(1)?;
            ((to, stride), add) = (g.output(), added);
            touches.push(result(&g, added));
        }
        let (xs, x_stride) = x.input();
        let (out, add) = (Out::at(terms.address), u32::from(add));
        self.run(&loss::bce_with_logits(xs, x_stride, labels, norm, out, to, stride, add, n), &touches)?;
        self.total(terms, norm, n)
    }

    pub(super) fn sampled_softmax(
        &mut self,
        negatives: u32,
        temperature: f64,
        norm: f64,
    ) -> Result<(), Fault> {
        let (h, rows, targets, drawn) = (self.read(0)?, self.read(1)?, self.read(2)?, self.read(3)?);
        let (scores, _) = self.write(1)?;
        let (m, n) = h.size();
        let terms = self.scratch.words(2 * m)?;
        let ((hs, h_stride), (row, row_stride)) = (h.input(), rows.input());
        let call = loss::sampled_softmax(
            hs,
            h_stride,
            row,
            row_stride,
            rows.shape.rows as u64,
            In::at(targets.area.address),
            In::at(drawn.area.address),
            negatives,
            (1.0 / temperature) as f32,
            norm / temperature,
            Out::at(terms.address),
            Out::at(scores.area.address),
            m,
            n,
            self.cuda.fault(),
        );
        let reads = [h, rows, targets, drawn].map(|x| Touch::In(x.area));
        self.run(&call, &[&reads[..], &[Touch::Out(scores.area)]].concat())?;
        self.total(terms, norm, m)
    }

    /// The loss, in its buffer and on its way to the host.
    fn total(&mut self, terms: Memory, norm: f64, n: u64) -> Result<(), Fault> {
        let (loss, _) = self.write(0)?;
        let total = self.cuda.driver.allocate(self.stream, 8)?;
        let (from, to, sum) = (In::at(terms.address), Out::at(loss.area.address), Out::at(total.address));
        let touches = [Touch::Out(loss.area), Touch::Out(total.first(8))];
        self.run(&loss::sum_terms(from, norm, to, sum, n), &touches)?;
        self.cuda.send_loss(self.job, self.stream, total)
    }

    pub(super) fn sampled_softmax_grad(&mut self, negatives: u32) -> Result<(), Fault> {
        let (h, rows, targets, drawn) = (self.read(0)?, self.read(1)?, self.read(2)?, self.read(3)?);
        let scores = self.read(4)?;
        let ((gh, gh_add), (grows, grows_add)) = (self.write(0)?, self.write(1)?);
        let ((m, n), row_count) = (h.size(), rows.shape.rows as u64);
        let ((row, row_stride), (to, to_stride)) = (rows.input(), gh.output());
        let dlogits = In::at(scores.area.address);
        let call = loss::sampled_softmax_grad(
            row,
            row_stride,
            row_count,
            In::at(targets.area.address),
            In::at(drawn.area.address),
            negatives,
            dlogits,
            to,
            to_stride,
            u32::from(gh_add),
            m,
            n,
            self.cuda.fault(),
        );
        let reads = [rows, targets, drawn, scores].map(|x| Touch::In(x.area));
        self.run(&call, &[&reads[..], &[result(&gh, gh_add)]].concat())?;
        // Where each row stands among targets followed by negatives.
        let (first, second) = (targets.flat(), drawn.flat());
        let count = ((first.bytes() + second.bytes()) / 4) as u32;
        let keys = self.scratch.words(u64::from(count))?;
        let copies = [(first, keys.first(first.bytes())), (second, keys.from(first.bytes(), second.bytes()))];
        self.cuda.driver.copy(self.stream, &copies)?;
        let counts = Sorting::counts(count);
        let work = Sorting {
            keys: [self.scratch.out(count)?, self.scratch.out(count)?],
            values: [self.scratch.out(count)?, self.scratch.out(count)?],
            counts: self.scratch.out(counts)?,
            sums: self.scratch.out(scan_room(counts) as u32)?,
        };
        let (calls, sorted) = sort_by(count, bits_below(row_count), In::at(keys.address), In::NULL, &work, 0);
        for call in calls {
            self.run(&call, &[])?;
        }
        let starts = self.scratch.words(row_count + 1)?;
        self.cuda.driver.fill(self.stream, starts.first(4), 0)?;
        self.run(&sort::bounds_of(row_count as u32, count, sorted.keys, Out::at(starts.address + 4)), &[])?;
        let ((hs, h_stride), (out, out_stride)) = (h.input(), grows.output::<f32>());
        let call = loss::sampled_softmax_grad_rows(
            hs,
            h_stride,
            In::at(starts.address),
            sorted.values,
            negatives,
            dlogits,
            out,
            out_stride,
            u32::from(grows_add),
            m,
            row_count,
            n,
        );
        self.run(&call, &[Touch::In(h.area), Touch::In(scores.area), result(&grows, grows_add)])
    }
}
