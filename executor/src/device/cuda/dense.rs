//! The dense graph: products by the driver, all else by kernels.
//!
//! What a kernel needs of the batch (offsets of sequences, labels, keys of dropout) goes up from the host, which has it.

use fs_kernels::cuda::catalogue::attention::{Score, width};
use fs_kernels::cuda::catalogue::{Real, dropout, elementwise, interaction, norm, positional};
use fs_kernels::cuda::driver::{Driver, Matrix, Product, Stream, Touch};
use fs_kernels::cuda::sources::Precision;
use fs_kernels::cuda::{Call as Launched, In, Out};
use fs_schedule::{Action, Element, Function, Op, Operand, Place, Program};

use super::kernels::{Enqueued, Scratch, result};
use super::operands::Located;
use super::plain::{Plain, bytes_of};
use super::{Cuda, Fault, Job, Lane};
use crate::device::cpu::Call;

/// Whether kernels find room for all features of an interaction, and for the columns of a head.
pub(super) fn fits(program: &Program, op: &Op) -> bool {
    let features = interaction::MOST_FEATURES as usize;
    match op.action {
        Action::DotInteraction => op.reads.len() <= features,
        Action::DotInteractionGrad => op.writes.len() <= features,
        Action::SiluAttention { heads }
        | Action::SiluAttentionGrad { heads }
        | Action::SoftmaxAttention { heads, .. }
        | Action::SoftmaxAttentionGrad { heads, .. } => {
            let columns = op.reads.first().and_then(|queries| match (queries.columns, queries.place) {
                (Some((first, end)), _) => Some(end.saturating_sub(first)),
                (None, Place::Buffer(n)) => Some(program.buffers.get(n as usize)?.columns),
                _ => None,
            });
            columns.is_some_and(|columns| width(columns / heads.max(1)).is_some())
        }
        _ => true,
    }
}

/// What an operation's activations are: brain floats if any operand is.
fn precision(job: &Job<'_>) -> Precision {
    let brain = |operand: &Operand| match operand.place {
        Place::Buffer(n) => job.program.buffers.get(n as usize).is_some_and(|b| b.element == Element::Bf16),
        _ => false,
    };
    if job.op.reads.iter().chain(&job.op.writes).any(brain) { Precision::Bf16 } else { Precision::F32 }
}

pub(super) fn number(function: Function) -> u32 {
    match function {
        Function::Silu => 0,
        Function::Relu => 1,
        Function::Gelu => 2,
        Function::Sigmoid => 3,
    }
}

/// An operation of the dense graph that is being enqueued.
pub(super) struct Dense<'a, D: Driver> {
    pub(super) cuda: &'a Cuda<D>,
    pub(super) job: &'a Job<'a>,
    /// What the host knows of it.
    pub(super) call: Call<'a, f32>,
    pub(super) stream: Stream,
    pub(super) scratch: Scratch<'a, D>,
    /// Of its activations, all of them: operand rules see to that.
    pub(super) precision: Precision,
}

impl<D: Driver> Cuda<D> {
    /// Enqueues an operation of the dense graph, if it is one.
    pub(super) fn enqueue_dense(
        &self,
        lane: &Lane,
        job: &Job<'_>,
        stream: Stream,
    ) -> Result<Enqueued, Fault> {
        let (call, scratch) = (Call::new(&self.host, &lane.work, job), Scratch::new(self, stream));
        let precision = precision(job);
        let mut dense = Dense { cuda: self, job, call, stream, scratch, precision };
        let done = dense.enqueue();
        dense.scratch.end()?;
        done
    }
}

impl<D: Driver> Dense<'_, D> {
    pub(super) fn read(&self, position: usize) -> Result<Located, Fault> {
        self.cuda.read_operand(self.job, position, self.stream)
    }

    /// A result, and whether it is added to what is there.
    pub(super) fn write(&self, position: usize) -> Result<(Located, bool), Fault> {
        self.cuda.written_operand(self.job, position, self.stream)
    }

    pub(super) fn run(&self, call: &Launched, touches: &[Touch]) -> Result<(), Fault> {
        self.cuda.run(self.stream, &call.clone().of(self.precision), touches)
    }

    /// A weight, as products read it.
    pub(super) fn weight(&self, position: usize) -> Result<Located, Fault> {
        match self.precision {
            Precision::F32 => self.read(position),
            Precision::Bf16 => self.cuda.rounded_operand(self.job, position),
        }
    }

    /// Numbers of the host, on the device for the length of the operation.
    pub(super) fn up<E: Plain>(&mut self, values: &[E]) -> Result<u64, Fault> {
        let bytes = bytes_of(values);
        let memory = self.scratch.words((bytes.len() as u64).div_ceil(4))?;
        self.cuda.send(self.stream, &bytes, memory.first(bytes.len() as u64))?;
        Ok(memory.address)
    }

    /// Where sequences begin, and how many there are.
    pub(super) fn offsets(&mut self, position: usize) -> Result<(In<u64>, u64), Fault> {
        let offsets: Vec<u64> = self.call.offsets(position)?.iter().map(|o| *o as u64).collect();
        Ok((In::at(self.up(&offsets)?), (offsets.len() as u64).saturating_sub(1)))
    }

    fn enqueue(&mut self) -> Result<Enqueued, Fault> {
        match self.job.op.action {
            Action::Dense => self.features()?,
            Action::Linear { bias } => self.linear(bias)?,
            Action::LinearGradInput => {
                let (gy, w, (gx, add)) = (self.read(0)?, self.weight(1)?, self.write(0)?);
                self.product((gy, false), (w, false), gx, add)?;
            }
            Action::LinearGradWeight { bias } => self.linear_grad_weight(bias)?,
            Action::LayerNorm { affine, eps } => self.layer_norm(affine, eps)?,
            Action::LayerNormGrad { affine } => self.layer_norm_grad(affine)?,
            Action::Unary { function } => {
                self.map(|x, y, add, m, n| {
                    elementwise::unary(number(function), x.0, x.1, y.0, y.1, add, m, n)
                })?;
            }
            Action::Scale { factor } => {
                self.map(|x, y, add, m, n| elementwise::scale(factor as f32, x.0, x.1, y.0, y.1, add, m, n))?;
            }
            Action::Softmax => {
                self.map(|x, y, add, m, n| norm::softmax(x.0, x.1, y.0, y.1, add, m, n))?;
            }
            Action::UnaryGrad { function } => {
                self.map2(|x, gy, gx, add, m, n| {
                    elementwise::unary_grad(number(function), x.0, x.1, gy.0, gy.1, gx.0, gx.1, add, m, n)
                })?;
            }
            Action::SoftmaxGrad => {
                self.map2(|y, gy, gx, add, m, n| {
                    norm::softmax_grad(y.0, y.1, gy.0, gy.1, gx.0, gx.1, add, m, n)
                })?;
            }
            Action::Mul => {
                self.map2(|a, b, y, add, m, n| elementwise::mul(a.0, a.1, b.0, b.1, y.0, y.1, add, m, n))?;
            }
            Action::LinearUnary { function } => self.linear_unary(function)?,
            Action::AddLayerNorm { affine, eps } => self.add_layer_norm(affine, eps)?,
            Action::LayerNormMul { affine, eps } => self.layer_norm_mul(affine, eps)?,
            Action::MulGrad => self.mul_grad()?,
            Action::Add => self.add()?,
            Action::Cast => self.cast()?,
            Action::Positional => self.positional()?,
            Action::PositionalGrad => self.positional_grad()?,
            Action::Dropout { p, stream } | Action::DropoutGrad { p, stream } => self.dropout(p, stream)?,
            Action::L2Normalize { eps } => {
                let (x, (y, add), (norms, _)) = (self.read(0)?, self.write(0)?, self.write(1)?);
                let ((xs, x_stride), (ys, y_stride), (m, n)) = (x.input(), y.output(), x.size());
                let out = Out::at(norms.area.address);
                let call =
                    norm::l2_normalize(xs, x_stride, eps as f32, ys, y_stride, u32::from(add), out, m, n);
                self.run(&call, &[Touch::In(x.area), result(&y, add), Touch::Out(norms.area)])?;
            }
            Action::L2NormalizeGrad { eps } => {
                let (y, norms, gy, (gx, add)) = (self.read(0)?, self.read(1)?, self.read(2)?, self.write(0)?);
                let ((ys, y_stride), (gys, gy_stride)) = (y.input(), gy.input());
                let ((gxs, gx_stride), (m, n)) = (gx.output(), y.size());
                let (at, add_in) = (In::at(norms.area.address), u32::from(add));
                let call = norm::l2_normalize_grad(
                    ys, y_stride, at, eps as f32, gys, gy_stride, gxs, gx_stride, add_in, m, n,
                );
                let touches =
                    [Touch::In(y.area), Touch::In(norms.area), Touch::In(gy.area), result(&gx, add)];
                self.run(&call, &touches)?;
            }
            Action::DotInteraction => self.dot_interaction()?,
            Action::DotInteractionGrad => self.dot_interaction_grad()?,
            Action::SiluAttention { heads } => return self.attention(Score::Silu, heads),
            Action::SoftmaxAttention { heads, causal } => {
                return self.attention(Score::Softmax { causal }, heads);
            }
            Action::SiluAttentionGrad { heads } => return self.attention_grad(Score::Silu, heads),
            Action::SoftmaxAttentionGrad { heads, causal } => {
                return self.attention_grad(Score::Softmax { causal }, heads);
            }
            Action::BceWithLogits { normalize } => {
                let norm = self.call.norm(normalize);
                self.bce_with_logits(norm)?;
            }
            Action::SampledSoftmax { negatives, temperature, normalize } => {
                let norm = self.call.norm(normalize);
                self.sampled_softmax(negatives, temperature, norm)?;
            }
            Action::SampledSoftmaxGrad { negatives } => self.sampled_softmax_grad(negatives)?,
            _ => return Ok(Enqueued::No),
        }
        Ok(Enqueued::Done)
    }

    /// A kernel with one operand and a result of its shape.
    fn map<F>(&self, kernel: F) -> Result<(), Fault>
    where
        F: FnOnce((In<Real>, u64), (Out<Real>, u64), u32, u64, u64) -> Launched,
    {
        let (x, (y, add)) = (self.read(0)?, self.write(0)?);
        let (m, n) = y.size();
        let call = kernel(x.input(), y.output(), u32::from(add), m, n);
        self.run(&call, &[Touch::In(x.area), result(&y, add)])
    }

    /// A kernel with two operands and a result of their shape.
    fn map2<F>(&self, kernel: F) -> Result<(), Fault>
    where
        F: FnOnce((In<Real>, u64), (In<Real>, u64), (Out<Real>, u64), u32, u64, u64) -> Launched,
    {
        let (a, b, (y, add)) = (self.read(0)?, self.read(1)?, self.write(0)?);
        let (m, n) = y.size();
        let call = kernel(a.input(), b.input(), y.output(), u32::from(add), m, n);
        self.run(&call, &[Touch::In(a.area), Touch::In(b.area), result(&y, add)])
    }

    pub(super) fn product(
        &self,
        (a, a_transposed): (Located, bool),
        (b, b_transposed): (Located, bool),
        c: Located,
        add: bool,
    ) -> Result<(), Fault> {
        let summed = if a_transposed { a.shape.rows } else { a.shape.columns() };
        if c.area.is_empty() || summed == 0 && add {
            return Ok(());
        }
        if summed == 0 {
            return Ok(self.cuda.driver.fill(self.stream, c.area, 0)?);
        }
        let product =
            Product { a: (a.matrix(), a_transposed), b: (b.matrix(), b_transposed), c: c.matrix(), add };
        Ok(self.cuda.driver.product(self.stream, &product)?)
    }

    fn features(&mut self) -> Result<(), Fault> {
        let (y, add) = self.write(0)?;
        let values = self.call.input_reals(0)?;
        if !add {
            return self.cuda.send(self.stream, &bytes_of(values), y.area);
        }
        let values = values.to_vec();
        let x = In::at(self.up(&values)?);
        let ((to, stride), (m, n)) = (y.output(), y.size());
        self.run(&elementwise::copy(x, n, to, stride, 1, m, n), &[Touch::InOut(y.area)])
    }

    fn linear(&self, bias: bool) -> Result<(), Fault> {
        let (x, w, (y, add)) = (self.read(0)?, self.weight(1)?, self.write(0)?);
        self.product((x, false), (w, true), y, add)?;
        if bias {
            let b = self.read(2)?;
            let ((to, stride), (m, n)) = (y.output(), y.size());
            let call = elementwise::add_bias(In::at(b.area.address), to, stride, m, n);
            self.run(&call, &[Touch::In(b.area), Touch::InOut(y.area)])?;
        }
        Ok(())
    }

    fn linear_grad_weight(&mut self, bias: bool) -> Result<(), Fault> {
        let (gy, x, (gw, add)) = (self.read(0)?, self.read(1)?, self.write(0)?);
        self.product((gy, true), (x, false), gw, add)?;
        if bias {
            let (gb, add) = self.write(1)?;
            let ((from, stride), (m, n)) = (gy.input(), gy.size());
            let (chunk, chunks) = (norm::rows_of_chunk(m), norm::chunks(m));
            let partials = self.scratch.words(chunks * n)?;
            let out = Out::at(partials.address);
            self.run(&norm::column_sums(from, stride, chunk, out, m, n), &[Touch::In(gy.area)])?;
            self.fold(partials.address, n, chunks, (gb, add))?;
        }
        Ok(())
    }

    /// Sums of chunks become one.
    fn fold(
        &self,
        partials: u64,
        distance: u64,
        chunks: u64,
        (y, add): (Located, bool),
    ) -> Result<(), Fault> {
        let (out, n) = (Out::at(y.area.address), (y.shape.rows * y.shape.columns()) as u64);
        let call = norm::fold_partials(In::at(partials), distance, chunks, out, u32::from(add), n);
        self.run(&call, &[result(&y, add)])
    }

    fn layer_norm(&self, affine: bool, eps: f64) -> Result<(), Fault> {
        let (x, (y, add), (stats, _)) = (self.read(0)?, self.write(0)?, self.write(1)?);
        let (mut weight, mut bias) = (In::NULL, In::NULL);
        let mut touches = vec![Touch::In(x.area), result(&y, add), Touch::Out(stats.area)];
        if affine {
            let (w, b) = (self.read(1)?, self.read(2)?);
            (weight, bias) = (In::at(w.area.address), In::at(b.area.address));
            touches.extend([Touch::In(w.area), Touch::In(b.area)]);
        }
        let ((xs, x_stride), (ys, y_stride), (m, n)) = (x.input(), y.output(), x.size());
        let (eps, add, stats) = (eps as f32, u32::from(add), Out::at(stats.area.address));
        let call = norm::layer_norm(xs, x_stride, weight, bias, eps, ys, y_stride, add, stats, m, n);
        self.run(&call, &touches)
    }

    fn layer_norm_grad(&mut self, affine: bool) -> Result<(), Fault> {
        let next = 1 + usize::from(affine);
        let (x, stats, gy, (gx, add)) =
            (self.read(0)?, self.read(next)?, self.read(next + 1)?, self.write(0)?);
        let touched = [Touch::In(x.area), Touch::In(stats.area), Touch::In(gy.area)];
        let mut touches = touched.to_vec();
        touches.push(result(&gx, add));
        let mut weight = In::NULL;
        if affine {
            let w = self.read(1)?;
            weight = In::at(w.area.address);
            touches.push(Touch::In(w.area));
        }
        let ((xs, x_stride), (gys, gy_stride)) = (x.input(), gy.input());
        let ((gxs, gx_stride), (m, n)) = (gx.output(), x.size());
        let (stats, add) = (In::at(stats.area.address), u32::from(add));
        let call =
            norm::layer_norm_grad(xs, x_stride, weight, stats, gys, gy_stride, gxs, gx_stride, add, m, n);
        self.run(&call, &touches)?;
        if !affine {
            return Ok(());
        }
        let (gw, gb) = (self.write(1)?, self.write(2)?);
        let (chunk, chunks) = (norm::rows_of_chunk(m), norm::chunks(m));
        let partials = self.scratch.words(2 * chunks * n)?;
        let out = Out::at(partials.address);
        let call = norm::layer_norm_grad_columns(xs, x_stride, stats, gys, gy_stride, chunk, out, m, n);
        self.run(&call, &touched)?;
        self.fold(partials.address, 2 * n, chunks, gw)?;
        self.fold(partials.address + 4 * n, 2 * n, chunks, gb)
    }

    fn mul_grad(&self) -> Result<(), Fault> {
        let (a, b, gy) = (self.read(0)?, self.read(1)?, self.read(2)?);
        let ((ga, ga_add), (gb, gb_add)) = (self.write(0)?, self.write(1)?);
        let ((x, x_stride), (y, y_stride), (g, g_stride)) = (a.input(), b.input(), gy.input());
        let ((gx, gx_stride), (gz, gz_stride), (m, n)) = (ga.output(), gb.output(), a.size());
        let (gx_add, gz_add) = (u32::from(ga_add), u32::from(gb_add));
        let call = elementwise::mul_grad(
            x, x_stride, y, y_stride, g, g_stride, gx, gx_stride, gx_add, gz, gz_stride, gz_add, m, n,
        );
        let reads = [Touch::In(a.area), Touch::In(b.area), Touch::In(gy.area)];
        self.run(&call, &[&reads[..], &[result(&ga, ga_add), result(&gb, gb_add)]].concat())
    }

    /// To brain floats, or back.
    fn cast(&self) -> Result<(), Fault> {
        let (x, (y, add)) = (self.read(0)?, self.write(0)?);
        let (m, n) = y.size();
        let call = if y.element == Element::Bf16 {
            let ((from, stride), (to, to_stride)) = (x.input(), y.output());
            elementwise::real_from_float(from, stride, to, to_stride, u32::from(add), m, n)
        } else {
            let ((from, stride), (to, to_stride)) = (x.input(), y.output());
            elementwise::float_from_real(from, stride, to, to_stride, u32::from(add), m, n)
        };
        self.run(&call, &[Touch::In(x.area), result(&y, add)])
    }

    /// Eight operands at a time, from left to right.
    fn add(&self) -> Result<(), Fault> {
        let (y, add) = self.write(0)?;
        let xs = (0..self.job.op.reads.len()).map(|i| self.read(i)).collect::<Result<Vec<_>, _>>()?;
        let ((to, to_stride), (m, n)) = (y.output(), y.size());
        let mut left = &xs[..];
        let mut first = true;
        while !left.is_empty() {
            let taken = left.len().min(if first { 8 } else { 7 });
            let (now, later) = left.split_at(taken);
            left = later;
            let (mut operands, mut touches) = (Vec::with_capacity(8), Vec::with_capacity(9));
            if !first {
                operands.push((to.read(), to_stride));
            }
            operands.extend(now.iter().map(Located::input));
            touches.extend(now.iter().map(|x| Touch::In(x.area)));
            touches.push(if first { result(&y, add) } else { Touch::InOut(y.area) });
            let count = operands.len() as u32;
            operands.resize(8, (In::NULL, 0));
            let [a, b, c, d, e, f, g, h] = [0, 1, 2, 3, 4, 5, 6, 7].map(|i: usize| operands[i]);
            let call = elementwise::add(
                count,
                a.0,
                a.1,
                b.0,
                b.1,
                c.0,
                c.1,
                d.0,
                d.1,
                e.0,
                e.1,
                f.0,
                f.1,
                g.0,
                g.1,
                h.0,
                h.1,
                to,
                to_stride,
                u32::from(first && add),
                m,
                n,
            );
            self.run(&call, &touches)?;
            first = false;
        }
        Ok(())
    }

    fn positional(&mut self) -> Result<(), Fault> {
        let (x, w, (y, add)) = (self.read(0)?, self.read(2)?, self.write(0)?);
        let (offsets, sequences) = self.offsets(1)?;
        let ((xs, x_stride), (ys, y_stride), (m, n)) = (x.input(), y.output(), x.size());
        let (weight, positions) = (In::at(w.area.address), w.shape.rows as u64);
        let (add_in, fault) = (u32::from(add), self.cuda.fault());
        let call = positional::positional(
            xs, x_stride, offsets, sequences, weight, positions, ys, y_stride, add_in, m, n, fault,
        );
        self.run(&call, &[Touch::In(x.area), Touch::In(w.area), result(&y, add)])
    }

    fn positional_grad(&mut self) -> Result<(), Fault> {
        let (gy, (gw, add)) = (self.read(0)?, self.write(0)?);
        let (offsets, sequences) = self.offsets(1)?;
        let ((gys, stride), (positions, n)) = (gy.input(), gw.size());
        let out = Out::at(gw.area.address);
        let call =
            positional::positional_grad(gys, stride, offsets, sequences, out, u32::from(add), positions, n);
        self.run(&call, &[Touch::In(gy.area), result(&gw, add)])
    }

    fn dropout(&mut self, p: f64, stream: u32) -> Result<(), Fault> {
        let (x, (y, add)) = (self.read(0)?, self.write(0)?);
        let keys = self.call.row_keys(0)?.to_vec();
        let keys = In::at(self.up(&keys)?);
        let all = 4_294_967_296.0;
        let threshold = (p * all).clamp(0.0, all) as u64;
        let dropped = u32::from(threshold == 1 << 32);
        let (factor, add_in) = ((1.0 / (1.0 - p)) as f32, u32::from(add));
        let [key0, key1] = self.job.key(stream).mixed();
        let ((xs, x_stride), (ys, y_stride), (m, n)) = (x.input(), y.output(), x.size());
        let call = dropout::dropout(
            key0,
            key1,
            threshold as u32,
            dropped,
            factor,
            keys,
            xs,
            x_stride,
            ys,
            y_stride,
            add_in,
            m,
            n,
        );
        self.run(&call, &[Touch::In(x.area), result(&y, add)])
    }

    /// Addresses and strides of matrices, as lists on the device.
    fn lists(&mut self, of: &[Located]) -> Result<(In<u64>, In<u64>), Fault> {
        let addresses: Vec<u64> = of.iter().map(|x| x.area.address).collect();
        let strides: Vec<u64> = of.iter().map(|x| x.shape.stride as u64).collect();
        Ok((In::at(self.up(&addresses)?), In::at(self.up(&strides)?)))
    }

    fn dot_interaction(&mut self) -> Result<(), Fault> {
        let xs = (0..self.job.op.reads.len()).map(|i| self.read(i)).collect::<Result<Vec<_>, _>>()?;
        let (y, add) = self.write(0)?;
        let (addresses, strides) = self.lists(&xs)?;
        let columns = xs.first().map_or(0, |x| x.size().1);
        let ((to, stride), samples) = (y.output(), y.size().0);
        let (features, add_in) = (xs.len() as u32, u32::from(add));
        let call =
            interaction::dot_interaction(addresses, strides, features, to, stride, add_in, samples, columns);
        let mut touches: Vec<Touch> = xs.iter().map(|x| Touch::In(x.area)).collect();
        touches.push(result(&y, add));
        self.run(&call, &touches)
    }

    fn dot_interaction_grad(&mut self) -> Result<(), Fault> {
        let last = self.job.op.reads.len().saturating_sub(1);
        let xs = (0..last).map(|i| self.read(i)).collect::<Result<Vec<_>, _>>()?;
        let gy = self.read(last)?;
        let gxs = (0..self.job.op.writes.len()).map(|i| self.write(i)).collect::<Result<Vec<_>, _>>()?;
        let (targets, adds): (Vec<Located>, Vec<u8>) =
            gxs.iter().map(|(g, add)| (*g, u8::from(*add))).unzip();
        let (addresses, strides) = self.lists(&xs)?;
        let (to, to_strides) = self.lists(&targets)?;
        let adds = In::at(self.up(&adds)?);
        let columns = xs.first().map_or(0, |x| x.size().1);
        let ((gys, stride), samples) = (gy.input(), gy.size().0);
        let call = interaction::dot_interaction_grad(
            addresses,
            strides,
            xs.len() as u32,
            gys,
            stride,
            to,
            to_strides,
            adds,
            samples,
            columns,
        );
        let mut touches: Vec<Touch> = xs.iter().chain([&gy]).map(|x| Touch::In(x.area)).collect();
        touches.extend(gxs.iter().map(|(g, add)| result(g, *add)));
        self.run(&call, &touches)
    }
}

/// What kernels of the dense graph take.
impl Located {
    pub(super) fn input<T>(&self) -> (In<T>, u64) {
        (In::at(self.area.address), self.shape.stride as u64)
    }

    pub(super) fn output<T>(&self) -> (Out<T>, u64) {
        (Out::at(self.area.address), self.shape.stride as u64)
    }

    /// What its elements are, if they are floats.
    pub(super) fn precision(&self) -> Precision {
        if self.element == Element::Bf16 { Precision::Bf16 } else { Precision::F32 }
    }

    /// Rows and columns.
    pub(super) fn size(&self) -> (u64, u64) {
        (self.shape.rows as u64, self.shape.columns() as u64)
    }

    pub(super) fn matrix(&self) -> Matrix {
        let (rows, columns) = self.size();
        let (address, stride, precision) = (self.area.address, self.shape.stride as u64, self.precision());
        Matrix { address, rows, columns, stride, precision }
    }
}
