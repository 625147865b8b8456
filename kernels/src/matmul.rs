//! Matrix products of dense layers.
//!
//! In training the tall side is the tokens and the weights are small, so the micro-kernel of this crate reads
//! the operands where they lie. Only y = x w^T has no operand that lies right: w is transposed into a workspace, or
//! where x is small beside it (a microbatch of few samples) x is, and y comes out transposed. Either way an element is
//! the same sum in the same order. Where weights are too large for the second-level cache, the `gemm` library's packing
//! pays and it does the product.

use crate::mat::{Mat, MatMut, Write};
use crate::micro::Product;
use crate::real::Real;
use crate::simd::{Kernel, Simd};

/// Elements of the second operand up to which reading it in place is faster than packing.
const SMALL: usize = 160 * 1024;
/// How many times larger w must be than x and y together for these to be transposed in its place.
const LARGER: usize = 2;

fn assert_shape(what: &str, rows: usize, cols: usize, expect_rows: usize, expect_cols: usize) {
    assert!(
        (rows, cols) == (expect_rows, expect_cols),
        "{what} is {rows} x {cols}, not {expect_rows} x {expect_cols}"
    );
}

/// y = x w^T + b; x is [n, in], w is [out, in], y is [n, out].
pub fn linear<T: Real>(x: Mat<T>, w: Mat<T>, b: Option<&[T]>, mut y: MatMut<T>) {
    let (n, inputs, outputs) = (x.rows(), x.cols(), w.rows());
    assert_shape("w", w.rows(), w.cols(), outputs, inputs);
    assert_shape("y", y.rows(), y.cols(), n, outputs);
    if let Some(b) = b {
        assert!(b.len() == outputs, "{} biases for {outputs} outputs", b.len());
    }
    if n == 0 || outputs == 0 {
        return;
    }
    if outputs * inputs > SMALL && n >= 16 {
        if let Some(b) = b {
            for i in 0..n {
                y.row_mut(i).copy_from_slice(b);
            }
        }
        let mode = if b.is_some() { Write::Add } else { Write::Set };
        // SAFETY: shapes checked above; w is read by columns.
        unsafe {
            library(n, outputs, inputs, x.as_ptr(), (x.stride(), 1), w.as_ptr(), (1, w.stride()), y, mode);
        };
        return;
    }
    if LARGER * n * (inputs + outputs) <= inputs * outputs {
        narrow(x, w, b, y);
    } else {
        tall(x, w, b, y);
    }
}

/// [`linear`] of many rows: w is transposed.
fn tall<T: Real>(x: Mat<T>, w: Mat<T>, b: Option<&[T]>, mut y: MatMut<T>) {
    let (n, inputs, outputs) = (x.rows(), x.cols(), w.rows());
    let (y_row, y) = (y.stride(), y.as_mut_ptr());
    T::with_workspace(|workspace| {
        let [all] = workspace.parts([room::<T>(inputs, outputs)]);
        let packed = &mut all[..inputs * outputs];
        T::dispatch(Transpose { from: w, to: MatMut::new(packed, inputs, outputs) });
        // SAFETY: the caller has checked shapes; `packed` is [in, out].
        unsafe {
            Product {
                m: n,
                n: outputs,
                k: inputs,
                a: x.as_ptr(),
                a_row: x.stride(),
                a_step: 1,
                b: packed.as_ptr(),
                b_row: outputs,
                c: y,
                c_row: y_row,
                start: b.map_or(std::ptr::null(), <[T]>::as_ptr),
                start_row: 0,
            }
            .run();
        }
    });
}

/// [`linear`] of few rows: y^T = w x^T + b, so w is read where it lies.
fn narrow<T: Real>(x: Mat<T>, w: Mat<T>, b: Option<&[T]>, y: MatMut<T>) {
    let (n, inputs, outputs) = (x.rows(), x.cols(), w.rows());
    // Whole vectors, so that no tile is a part of one; what is beyond the rows of x is not looked at.
    let width = n.next_multiple_of(T::dispatch(Lanes));
    T::with_workspace(|workspace| {
        let [all] = workspace.parts([room::<T>(inputs, outputs)]);
        let (packed, rest) = all.split_at_mut(inputs * width);
        let product = &mut rest[..outputs * width];
        packed.fill(T::ZERO);
        T::dispatch(Transpose { from: x, to: MatMut::new(packed, inputs, width).into_columns(0..n) });
        if let Some(b) = b {
            for (row, b) in product.chunks_exact_mut(width).zip(b) {
                row.fill(*b);
            }
        }
        let c = product.as_mut_ptr();
        // SAFETY: the caller has checked shapes; `packed` is [in, width] and `product` [out, width].
        unsafe {
            Product {
                m: outputs,
                n: width,
                k: inputs,
                a: w.as_ptr(),
                a_row: w.stride(),
                a_step: 1,
                b: packed.as_ptr(),
                b_row: width,
                c,
                c_row: width,
                start: if b.is_some() { c.cast_const() } else { std::ptr::null() },
                start_row: width,
            }
            .run();
        }
        T::dispatch(Transpose { from: Mat::new(product, outputs, width).columns(0..n), to: y });
    });
}

/// c = a b^T; a is [n, d], b is [m, d], c is [n, m].
pub fn matmul_nt<T: Real>(a: Mat<T>, b: Mat<T>, c: MatMut<T>) {
    linear(a, b, None, c);
}

/// Gradient of [`linear`] with respect to x: gx = gy w; gy is [n, out], w is [out, in], gx is [n, in].
pub fn linear_grad_input<T: Real>(gy: Mat<T>, w: Mat<T>, gx: MatMut<T>, mode: Write) {
    let (n, inputs, outputs) = (gy.rows(), w.cols(), gy.cols());
    assert_shape("w", w.rows(), w.cols(), outputs, inputs);
    assert_shape("gx", gx.rows(), gx.cols(), n, inputs);
    // SAFETY: shapes checked above.
    unsafe { product(n, inputs, outputs, gy.as_ptr(), (gy.stride(), 1), w, gx, mode) };
}

/// Gradients of [`linear`] with respect to its parameters: gw = gy^T x and gb = column sums of gy; gy is
/// [n, out], x is [n, in], gw is [out, in], gb has out elements. `mode` holds for both.
pub fn linear_grad_weight<T: Real>(gy: Mat<T>, x: Mat<T>, gw: MatMut<T>, gb: Option<&mut [T]>, mode: Write) {
    let (n, inputs, outputs) = (gy.rows(), x.cols(), gy.cols());
    assert_shape("x", x.rows(), x.cols(), n, inputs);
    assert_shape("gw", gw.rows(), gw.cols(), outputs, inputs);
    // SAFETY: shapes checked above; gy is read by columns.
    unsafe { product(outputs, inputs, n, gy.as_ptr(), (1, gy.stride()), x, gw, mode) };
    if let Some(gb) = gb {
        crate::elementwise::sum_rows(gy, gb, mode);
    }
}

/// c = a b or c += a b; a is m x k with the given (row, column) strides.
///
/// # Safety
/// `a` covers m x k elements, `b` is k x n and `c` is m x n.
unsafe fn product<T: Real>(
    m: usize,
    n: usize,
    k: usize,
    a: *const T,
    a_strides: (usize, usize),
    b: Mat<T>,
    mut c: MatMut<T>,
    mode: Write,
) {
    if k == 0 && mode == Write::Set {
        c.fill(T::ZERO);
    }
    if m == 0 || n == 0 || k == 0 {
        return;
    }
    let wide = n * k.min(m) > SMALL && m >= 16;
    // SAFETY: the caller's.
    unsafe {
        if wide {
            library(m, n, k, a, a_strides, b.as_ptr(), (b.stride(), 1), c, mode);
            return;
        }
        let c_row = c.stride();
        let c = c.as_mut_ptr();
        Product {
            m,
            n,
            k,
            a,
            a_row: a_strides.0,
            a_step: a_strides.1,
            b: b.as_ptr(),
            b_row: b.stride(),
            c,
            c_row,
            start: if mode == Write::Add { c.cast_const() } else { std::ptr::null() },
            start_row: c_row,
        }
        .run();
    }
}

/// The library's product of operands with (row, column) strides.
///
/// # Safety
/// The operands cover m x k, k x n and m x n elements.
unsafe fn library<T: Real>(
    m: usize,
    n: usize,
    k: usize,
    a: *const T,
    a_strides: (usize, usize),
    b: *const T,
    b_strides: (usize, usize),
    mut c: MatMut<T>,
    mode: Write,
) {
    let c_row = c.stride() as isize;
    // SAFETY: the caller's.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            c.as_mut_ptr(),
            1,
            c_row,
            mode == Write::Add,
            a,
            a_strides.1 as isize,
            a_strides.0 as isize,
            b,
            b_strides.1 as isize,
            b_strides.0 as isize,
            T::ONE,
            T::ONE,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

/// Elements of workspace that [`linear`] asks for, whatever the number of rows: batches vary, and a later one must not
/// need more.
fn room<T: Real>(inputs: usize, outputs: usize) -> usize {
    let weights = inputs * outputs;
    weights.max(weights / LARGER + T::dispatch(Lanes) * (inputs + outputs))
}

/// Elements in a vector.
struct Lanes;

impl<T: Real> Kernel<T> for Lanes {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd<T = T>>(self, _s: S) -> usize {
        S::LANES
    }
}

/// Writes the transpose of a matrix.
struct Transpose<'a, T> {
    from: Mat<'a, T>,
    to: MatMut<'a, T>,
}

impl<T: Real> Kernel<T> for Transpose<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<T = T>>(self, s: S) {
        let Self { from, mut to } = self;
        let (rows, cols) = (from.rows(), from.cols());
        assert_shape("the transpose", to.rows(), to.cols(), cols, rows);
        let (stride, to_stride) = (from.stride(), to.stride());
        let (x, y) = (from.as_ptr(), to.as_mut_ptr());
        let (whole_rows, whole_cols) = (rows / S::LANES * S::LANES, cols / S::LANES * S::LANES);
        for i in (0..whole_rows).step_by(S::LANES) {
            for j in (0..whole_cols).step_by(S::LANES) {
                // SAFETY: the square from (i, j) lies in `from`, and the one from (j, i) in `to`.
                unsafe { s.transpose(x.add(i * stride + j), stride, y.add(j * to_stride + i), to_stride) };
            }
        }
        for i in 0..rows {
            let done = if i < whole_rows { whole_cols } else { 0 };
            for (j, x) in from.row(i).iter().enumerate().skip(done) {
                // SAFETY: element (j, i) lies in `to`, which has the shape of the transpose.
                unsafe { *y.add(j * to_stride + i) = *x };
            }
        }
    }
}
