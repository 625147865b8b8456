//! Neighbours in one launch.

use fs_kernels::cuda::catalogue::{elementwise, norm};
use fs_kernels::cuda::driver::{Driver, Touch};
use fs_kernels::cuda::{In, Out};
use fs_schedule::Function;

use super::Fault;
use super::dense::{Dense, number};

/// Weight and bias of a norm, and that they are read.
type Scale = (In<f32>, In<f32>, Vec<Touch>);

impl<D: Driver> Dense<'_, D> {
    pub(super) fn linear_unary(&self, function: Function) -> Result<(), Fault> {
        let (x, w, b) = (self.read(0)?, self.weight(1)?, self.read(2)?);
        let ((z, _), (y, _)) = (self.write(0)?, self.write(1)?);
        self.product((x, false), (w, true), z, false)?;
        let ((zs, z_stride), (ys, y_stride), (m, n)) = (z.output(), y.output(), y.size());
        let bias = In::at(b.area.address);
        let call = elementwise::bias_unary(number(function), bias, zs, z_stride, ys, y_stride, m, n);
        self.run(&call, &[Touch::In(b.area), Touch::InOut(z.area), Touch::Out(y.area)])
    }

    pub(super) fn add_layer_norm(&self, affine: bool, eps: f64) -> Result<(), Fault> {
        let (a, b) = (self.read(0)?, self.read(1)?);
        let ((sum, _), (y, _), (stats, _)) = (self.write(0)?, self.write(1)?, self.write(2)?);
        let (weight, bias, mut touches) = self.scale(affine, 2)?;
        touches.extend([Touch::In(a.area), Touch::In(b.area)]);
        touches.extend([Touch::Out(sum.area), Touch::Out(y.area), Touch::Out(stats.area)]);
        let ((xs, a_stride), (bs, b_stride), (m, n)) = (a.input(), b.input(), y.size());
        let ((sums, sum_stride), (ys, y_stride)) = (sum.output(), y.output());
        let (eps, out) = (eps as f32, Out::at(stats.area.address));
        let call = norm::add_layer_norm(
            xs, a_stride, bs, b_stride, weight, bias, eps, sums, sum_stride, ys, y_stride, out, m, n,
        );
        self.run(&call, &touches)
    }

    pub(super) fn layer_norm_mul(&self, affine: bool, eps: f64) -> Result<(), Fault> {
        let (x, gate) = (self.read(0)?, self.read(if affine { 3 } else { 1 })?);
        let ((z, _), (y, _), (stats, _)) = (self.write(0)?, self.write(1)?, self.write(2)?);
        let (weight, bias, mut touches) = self.scale(affine, 1)?;
        touches.extend([Touch::In(x.area), Touch::In(gate.area)]);
        touches.extend([Touch::Out(z.area), Touch::Out(y.area), Touch::Out(stats.area)]);
        let ((xs, x_stride), (gates, gate_stride), (m, n)) = (x.input(), gate.input(), y.size());
        let ((zs, z_stride), (ys, y_stride)) = (z.output(), y.output());
        let (eps, out) = (eps as f32, Out::at(stats.area.address));
        let call = norm::layer_norm_mul(
            xs,
            x_stride,
            weight,
            bias,
            eps,
            gates,
            gate_stride,
            zs,
            z_stride,
            ys,
            y_stride,
            out,
            m,
            n,
        );
        self.run(&call, &touches)
    }

    /// Weight and bias of a norm that has them, which are operands from `first` on.
    fn scale(&self, affine: bool, first: usize) -> Result<Scale, Fault> {
        if !affine {
            return Ok((In::NULL, In::NULL, Vec::new()));
        }
        let (w, b) = (self.read(first)?, self.read(first + 1)?);
        Ok((In::at(w.area.address), In::at(b.area.address), vec![Touch::In(w.area), Touch::In(b.area)]))
    }
}
