//! Elementwise operations on strided views, and their gradients.

use crate::mat::{Mat, MatMut, Write};
use crate::real::Real;
use crate::simd::{Kernel, Simd};

/// Activation functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unary {
    /// x sigmoid(x)
    Silu,
    /// max(x, 0)
    Relu,
    /// x Phi(x) with the exact normal distribution function Phi, PyTorch's default
    Gelu,
    /// 1 / (1 + e^-x)
    Sigmoid,
}

/// A function of two vectors; one of them may be ignored.
trait Map<T: Real>: Copy {
    fn apply<S: Simd<T = T>>(self, s: S, a: S::V, b: S::V) -> S::V;
}

macro_rules! map {
    ($name:ident $(($field:ty))?, |$me:ident, $s:ident, $a:ident, $b:ident| $body:expr) => {
        #[derive(Clone, Copy)]
        struct $name $(($field))?;
        impl<T: Real> Map<T> for $name {
            #[inline(always)]
            fn apply<S: Simd<T = T>>(self, $s: S, $a: S::V, $b: S::V) -> S::V {
                let $me = self;
                $body
            }
        }
    };
}

map!(First, |_me, _s, a, _b| a);
map!(Sum, |_me, s, a, b| s.add(a, b));
map!(Times, |_me, s, a, b| s.mul(a, b));
map!(ScaleBy(f64), |me, s, a, _b| s.mul(a, s.splat(S::T::from_f64(me.0))));
map!(Silu, |_me, s, x, _b| s.mul(x, s.sigmoid(x)));
map!(SiluGrad, |_me, s, x, g| {
    let sig = s.sigmoid(x);
    // silu'(x) = sig (1 + x (1 - sig))
    let one = s.splat(S::T::ONE);
    s.mul(g, s.mul(sig, s.fma(x, s.sub(one, sig), one)))
});
map!(Relu, |_me, s, x, _b| s.max(x, s.splat(S::T::ZERO)));
map!(ReluGrad, |_me, s, x, g| {
    let zero = s.splat(S::T::ZERO);
    s.select_gt(x, zero, g, zero)
});
map!(Sigmoid, |_me, s, x, _b| s.sigmoid(x));
map!(SigmoidGrad, |_me, s, x, g| {
    let sig = s.sigmoid(x);
    s.mul(g, s.mul(sig, s.sub(s.splat(S::T::ONE), sig)))
});
map!(Gelu, |_me, s, x, _b| s.mul(x, normal_cdf(s, x)));
map!(GeluGrad, |_me, s, x, g| {
    // gelu'(x) = Phi(x) + x phi(x), phi the normal density
    let half = s.splat(S::T::from_f64(-0.5));
    let density = s.mul(s.exp(s.mul(half, s.mul(x, x))), s.splat(S::T::from_f64(0.398_942_280_401_432_7)));
    s.mul(g, s.fma(x, density, normal_cdf(s, x)))
});

#[inline(always)]
fn normal_cdf<S: Simd>(s: S, x: S::V) -> S::V {
    let half = s.splat(S::T::from_f64(0.5));
    let e = s.erf(s.mul(x, s.splat(S::T::from_f64(std::f64::consts::FRAC_1_SQRT_2))));
    s.fma(half, e, half)
}

/// Runs a [`Map`] over two inputs of one shape.
struct Run<'a, M, T> {
    map: M,
    a: Mat<'a, T>,
    b: Mat<'a, T>,
    y: MatMut<'a, T>,
    mode: Write,
}

impl<T: Real, M: Map<T>> Kernel<T> for Run<'_, M, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<T = T>>(mut self, s: S) {
        let flat = (self.a.flat_shape(), self.b.flat_shape(), self.y.as_mat().flat_shape());
        let (rows, cols) = match flat {
            (Some(n), Some(_), Some(_)) => (1, n),
            _ => (self.y.rows(), self.y.cols()),
        };
        let (a_stride, b_stride, y_stride) = (self.a.stride(), self.b.stride(), self.y.stride());
        let (a, b, y) = (self.a.as_ptr(), self.b.as_ptr(), self.y.as_mut_ptr());
        let add = self.mode == Write::Add;
        for i in 0..rows {
            // SAFETY: the shapes are equal (checked by `run`), so every access lies in its view.
            unsafe {
                let (a, b, y) = (a.add(i * a_stride), b.add(i * b_stride), y.add(i * y_stride));
                let mut j = 0;
                while cols - j >= S::LANES {
                    let v = self.map.apply(s, s.load(a.add(j)), s.load(b.add(j)));
                    let v = if add { s.add(s.load(y.add(j)), v) } else { v };
                    s.store(y.add(j), v);
                    j += S::LANES;
                }
                if j < cols {
                    let n = cols - j;
                    let v = self.map.apply(s, s.load_part(a.add(j), n), s.load_part(b.add(j), n));
                    let v = if add { s.add(s.load_part(y.add(j), n), v) } else { v };
                    s.store_part(y.add(j), n, v);
                }
            }
        }
    }
}

fn run<T: Real, M: Map<T>>(map: M, a: Mat<T>, b: Mat<T>, y: MatMut<T>, mode: Write) {
    let shape = (y.rows(), y.cols());
    assert!(
        (a.rows(), a.cols()) == shape && (b.rows(), b.cols()) == shape,
        "operands {a:?} and {b:?} do not have the result's shape {y:?}"
    );
    if shape.0 > 0 && shape.1 > 0 {
        T::dispatch(Run { map, a, b, y, mode });
    }
}

/// y = kind(x)
pub fn unary<T: Real>(kind: Unary, x: Mat<T>, y: MatMut<T>) {
    match kind {
        Unary::Silu => run(Silu, x, x, y, Write::Set),
        Unary::Relu => run(Relu, x, x, y, Write::Set),
        Unary::Gelu => run(Gelu, x, x, y, Write::Set),
        Unary::Sigmoid => run(Sigmoid, x, x, y, Write::Set),
    }
}

/// Gradient of [`unary`]: gx = kind'(x) gy. The derivative of relu at 0 is 0.
pub fn unary_grad<T: Real>(kind: Unary, x: Mat<T>, gy: Mat<T>, gx: MatMut<T>, mode: Write) {
    match kind {
        Unary::Silu => run(SiluGrad, x, gy, gx, mode),
        Unary::Relu => run(ReluGrad, x, gy, gx, mode),
        Unary::Gelu => run(GeluGrad, x, gy, gx, mode),
        Unary::Sigmoid => run(SigmoidGrad, x, gy, gx, mode),
    }
}

/// `y = xs[0] + xs[1] + ...`, added from left to right; zeros where there are none.
pub fn add<T: Real>(xs: &[Mat<T>], mut y: MatMut<T>) {
    match xs {
        [] => y.fill(T::ZERO),
        [x] => run(First, *x, *x, y, Write::Set),
        [a, b, rest @ ..] => {
            run(Sum, *a, *b, y.reborrow(), Write::Set);
            for x in rest {
                accumulate(*x, y.reborrow());
            }
        }
    }
}

/// The same in brain floats: rounded after each operand, so that a sum of three has the bits of two sums of two.
pub fn add_rounded<T: Real>(xs: &[Mat<T>], mut y: MatMut<T>) {
    let (first, rest) = xs.split_at(xs.len().min(2));
    add(first, y.reborrow());
    round_to_bf16(y.reborrow());
    for x in rest {
        accumulate(*x, y.reborrow());
        round_to_bf16(y.reborrow());
    }
}

/// Every element becomes the nearest brain float, the even one of two.
pub fn round_to_bf16<T: Real>(mut y: MatMut<T>) {
    for i in 0..y.rows() {
        y.row_mut(i).iter_mut().for_each(|x| *x = x.to_bf16());
    }
}

/// y += bias in every row
pub fn add_bias<T: Real>(bias: &[T], mut y: MatMut<T>) {
    assert!(bias.len() == y.cols(), "{} biases for {} columns", bias.len(), y.cols());
    for i in 0..y.rows() {
        y.row_mut(i).iter_mut().zip(bias).for_each(|(y, b)| *y += *b);
    }
}

/// y += x
pub fn accumulate<T: Real>(x: Mat<T>, y: MatMut<T>) {
    run(First, x, x, y, Write::Add);
}

/// y = a b, element by element
pub fn mul<T: Real>(a: Mat<T>, b: Mat<T>, y: MatMut<T>) {
    run(Times, a, b, y, Write::Set);
}

/// Gradient of [`mul`]: ga = b gy, gb = a gy.
pub fn mul_grad<T: Real>(
    a: Mat<T>,
    b: Mat<T>,
    gy: Mat<T>,
    ga: MatMut<T>,
    ga_mode: Write,
    gb: MatMut<T>,
    gb_mode: Write,
) {
    run(Times, b, gy, ga, ga_mode);
    run(Times, a, gy, gb, gb_mode);
}

/// y = c x. It is its own gradient: gx = c gy.
pub fn scale<T: Real>(x: Mat<T>, c: f64, y: MatMut<T>, mode: Write) {
    run(ScaleBy(c), x, x, y, mode);
}

/// y = x
pub fn copy<T: Real>(x: Mat<T>, y: MatMut<T>, mode: Write) {
    run(First, x, x, y, mode);
}

/// `out[j]` = sum over rows of column j, added in row order.
pub(crate) fn sum_rows<T: Real>(x: Mat<T>, out: &mut [T], mode: Write) {
    assert!(out.len() == x.cols(), "{} sums for {} columns", out.len(), x.cols());
    if mode == Write::Set {
        out.fill(T::ZERO);
    }
    T::dispatch(SumRows { x, out });
}

struct SumRows<'a, T> {
    x: Mat<'a, T>,
    out: &'a mut [T],
}

impl<T: Real> Kernel<T> for SumRows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<T = T>>(self, s: S) {
        /// Vectors of columns summed in one pass over the rows.
        const WIDE: usize = 8;
        let (rows, cols, stride, x) = (self.x.rows(), self.x.cols(), self.x.stride(), self.x.as_ptr());
        let out = self.out.as_mut_ptr();
        if rows == 0 {
            return;
        }
        let mut j = 0;
        // SAFETY: columns j.. lie within the view and `out`, which has as many elements.
        unsafe {
            while cols - j >= WIDE * S::LANES {
                let mut sums = [s.splat(T::ZERO); WIDE];
                for v in 0..WIDE {
                    sums[v] = s.load(out.add(j + v * S::LANES));
                }
                for i in 0..rows {
                    for v in 0..WIDE {
                        sums[v] = s.add(sums[v], s.load(x.add(i * stride + j + v * S::LANES)));
                    }
                }
                for v in 0..WIDE {
                    s.store(out.add(j + v * S::LANES), sums[v]);
                }
                j += WIDE * S::LANES;
            }
            while j < cols {
                let n = (cols - j).min(S::LANES);
                let mut sum = s.load_part(out.add(j), n);
                for i in 0..rows {
                    sum = s.add(sum, s.load_part(x.add(i * stride + j), n));
                }
                s.store_part(out.add(j), n, sum);
                j += n;
            }
        }
    }
}
