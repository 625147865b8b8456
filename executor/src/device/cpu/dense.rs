//! The dense graph: products, norms, pointwise functions, interactions.

use fs_kernels::{
    Mat, MatMut, Real, Write, dropout as masks, elementwise, interaction, matmul, norm,
    positional as position,
};
use fs_schedule::Function;

use super::arena::{Few, Read, Whole};
use super::{Call, Fault};

/// Adds the result of a kernel that overwrites a whole slice, where the operand asks for it.
fn produce_slice<T: Real>(c: &Call<T>, position: usize, kernel: impl FnOnce(&mut [T])) -> Result<(), Fault> {
    let mut target = c.slice_to_add(position)?;
    if c.mode(position) == Write::Set {
        kernel(target.slice());
        return Ok(());
    }
    let mut fresh = c.work.lock().temporaries.pop().unwrap_or_default();
    fresh.clear();
    fresh.resize(target.slice().len(), T::ZERO);
    kernel(&mut fresh);
    for (sum, value) in target.slice().iter_mut().zip(&fresh) {
        *sum += *value;
    }
    c.work.lock().temporaries.push(fresh);
    Ok(())
}

pub(super) fn features<T: Real>(c: &Call<T>) -> Result<(), Fault> {
    let values = c.input_reals(0)?;
    c.produce([0], |[mut y]| {
        let width = y.cols().max(1);
        for (i, row) in values.chunks_exact(width).enumerate() {
            for (y, x) in y.row_mut(i).iter_mut().zip(row) {
                *y = T::from_f64(f64::from(*x));
            }
        }
    })
}

pub(super) fn linear<T: Real>(c: &Call<T>, bias: bool) -> Result<(), Fault> {
    let x = c.read(0)?;
    let b = if bias { Some(c.read(2)?) } else { None };
    let b = b.as_ref().map(Read::slice).transpose()?;
    with_weight(c, |w| c.produce([0], |[y]| layer(x.mat(), w, b, y, c.is_bf16(true, 0))))
}

/// A linear layer; of brain floats the product is rounded, and again with the bias.
fn layer<T: Real>(x: Mat<T>, w: Mat<T>, bias: Option<&[T]>, mut y: MatMut<T>, brain: bool) {
    if !brain {
        return matmul::linear(x, w, bias, y);
    }
    matmul::linear(x, w, None, y.reborrow());
    elementwise::round_to_bf16(y.reborrow());
    if let Some(bias) = bias {
        elementwise::add_bias(bias, y.reborrow());
        elementwise::round_to_bf16(y);
    }
}

/// Lends the weight, operand 1, as products read it: rounded where activations are brain floats.
fn with_weight<T: Real>(c: &Call<T>, product: impl FnOnce(Mat<T>) -> Result<(), Fault>) -> Result<(), Fault> {
    let master = c.read(1)?;
    if !c.is_bf16(false, 0) {
        return product(master.mat());
    }
    let (rows, columns) = (master.mat().rows(), master.mat().cols());
    let mut rounded = c.work.lock().temporaries.pop().unwrap_or_default();
    rounded.clear();
    rounded.extend(master.slice()?.iter().map(|x| x.to_bf16()));
    let done = product(Mat::new(&rounded, rows, columns));
    c.work.lock().temporaries.push(rounded);
    done
}

pub(super) fn linear_grad_input<T: Real>(c: &Call<T>) -> Result<(), Fault> {
    let gy = c.read(0)?;
    with_weight(c, |w| {
        let mut writes = c.write([0])?;
        let (gx, mode) = writes.first()?;
        matmul::linear_grad_input(gy.mat(), w, gx, mode);
        Ok(())
    })
}

pub(super) fn linear_grad_weight<T: Real>(c: &Call<T>, bias: bool) -> Result<(), Fault> {
    let (gy, x) = (c.read(0)?, c.read(1)?);
    let mut writes = c.write([0])?;
    let (gw, mode) = writes.first()?;
    if bias && c.mode(1) != mode {
        return Err(Fault::MixedAddition);
    }
    let mut gb = if bias { Some(c.slice_to_add(1)?) } else { None };
    matmul::linear_grad_weight(gy.mat(), x.mat(), gw, gb.as_mut().map(Whole::slice), mode);
    Ok(())
}

/// Weight and bias of a norm that has them.
#[expect(clippy::type_complexity, reason = "two optional slices")]
fn slices<'a, T: Real>(
    scale: Option<&'a (Read<'_, T>, Read<'_, T>)>,
) -> Result<(Option<&'a [T]>, Option<&'a [T]>), Fault> {
    Ok(match scale {
        Some((weight, bias)) => (Some(weight.slice()?), Some(bias.slice()?)),
        None => (None, None),
    })
}

pub(super) fn layer_norm<T: Real>(c: &Call<T>, affine: bool, eps: f64) -> Result<(), Fault> {
    let x = c.read(0)?;
    let scale = if affine { Some((c.read(1)?, c.read(2)?)) } else { None };
    let (weight, bias) = slices(scale.as_ref())?;
    let mut stats = c.slice(1)?;
    c.produce([0], |[y]| norm::layer_norm(x.mat(), weight, bias, eps, y, stats.slice()))
}

pub(super) fn layer_norm_grad<T: Real>(c: &Call<T>, affine: bool) -> Result<(), Fault> {
    let x = c.read(0)?;
    let weight = if affine { Some(c.read(1)?) } else { None };
    let next = 1 + usize::from(affine);
    let (stats, gy) = (c.read(next)?, c.read(next + 1)?);
    let (weight, stats) = (weight.as_ref().map(Read::slice).transpose()?, stats.slice()?);
    let mut writes = c.write([0])?;
    let (gx, mode) = writes.first()?;
    if !affine {
        norm::layer_norm_grad(x.mat(), weight, stats, gy.mat(), gx, mode, None, None);
        return Ok(());
    }
    let mut inner = Ok(());
    produce_slice(c, 1, |gw| {
        inner = produce_slice(c, 2, |gb| {
            norm::layer_norm_grad(x.mat(), weight, stats, gy.mat(), gx, mode, Some(gw), Some(gb));
        });
    })?;
    inner
}

fn kind(function: Function) -> elementwise::Unary {
    match function {
        Function::Silu => elementwise::Unary::Silu,
        Function::Relu => elementwise::Unary::Relu,
        Function::Gelu => elementwise::Unary::Gelu,
        Function::Sigmoid => elementwise::Unary::Sigmoid,
    }
}

pub(super) fn unary<T: Real>(c: &Call<T>, function: Function) -> Result<(), Fault> {
    let x = c.read(0)?;
    c.produce([0], |[y]| elementwise::unary(kind(function), x.mat(), y))
}

/// A linear layer and a function of it.
pub(super) fn linear_unary<T: Real>(c: &Call<T>, function: Function) -> Result<(), Fault> {
    let (x, b) = (c.read(0)?, c.read(2)?);
    let b = b.slice()?;
    with_weight(c, |w| {
        c.produce([0, 1], |[mut z, y]| {
            layer(x.mat(), w, Some(b), z.reborrow(), c.is_bf16(true, 0));
            elementwise::unary(kind(function), z.as_mat(), y);
        })
    })
}

/// A sum and its norm.
pub(super) fn add_layer_norm<T: Real>(c: &Call<T>, affine: bool, eps: f64) -> Result<(), Fault> {
    let (a, b) = (c.read(0)?, c.read(1)?);
    let scale = if affine { Some((c.read(2)?, c.read(3)?)) } else { None };
    let (weight, bias) = slices(scale.as_ref())?;
    let mut stats = c.slice(2)?;
    c.produce([0, 1], |[mut sum, y]| {
        sum_of(c)(&[a.mat(), b.mat()], sum.reborrow());
        norm::layer_norm(sum.as_mat(), weight, bias, eps, y, stats.slice());
    })
}

/// A norm and its product with a gate.
pub(super) fn layer_norm_mul<T: Real>(c: &Call<T>, affine: bool, eps: f64) -> Result<(), Fault> {
    let x = c.read(0)?;
    let scale = if affine { Some((c.read(1)?, c.read(2)?)) } else { None };
    let (weight, bias) = slices(scale.as_ref())?;
    let gate = c.read(if affine { 3 } else { 1 })?;
    let mut stats = c.slice(2)?;
    c.produce([0, 1], |[mut z, y]| {
        norm::layer_norm(x.mat(), weight, bias, eps, z.reborrow(), stats.slice());
        // What is used on is what is written.
        if c.is_bf16(true, 0) {
            elementwise::round_to_bf16(z.reborrow());
        }
        elementwise::mul(z.as_mat(), gate.mat(), y);
    })
}

pub(super) fn unary_grad<T: Real>(c: &Call<T>, function: Function) -> Result<(), Fault> {
    let (x, gy) = (c.read(0)?, c.read(1)?);
    let mut writes = c.write([0])?;
    let (gx, mode) = writes.first()?;
    elementwise::unary_grad(kind(function), x.mat(), gy.mat(), gx, mode);
    Ok(())
}

pub(super) fn softmax<T: Real>(c: &Call<T>) -> Result<(), Fault> {
    let x = c.read(0)?;
    c.produce([0], |[y]| norm::softmax(x.mat(), y))
}

pub(super) fn softmax_grad<T: Real>(c: &Call<T>) -> Result<(), Fault> {
    let (y, gy) = (c.read(0)?, c.read(1)?);
    let mut writes = c.write([0])?;
    let (gx, mode) = writes.first()?;
    norm::softmax_grad(y.mat(), gy.mat(), gx, mode);
    Ok(())
}

/// How operands are summed into the first result.
fn sum_of<T: Real>(c: &Call<T>) -> fn(&[Mat<T>], MatMut<T>) {
    if c.is_bf16(true, 0) { elementwise::add_rounded } else { elementwise::add }
}

pub(super) fn add<T: Real>(c: &Call<T>) -> Result<(), Fault> {
    let reads = (0..c.op.reads.len()).map(|i| c.read(i)).collect::<Result<Few<_>, _>>()?;
    let xs: Few<Mat<T>> = reads.iter().map(Read::mat).collect();
    c.produce([0], |[y]| sum_of(c)(&xs, y))
}

pub(super) fn mul<T: Real>(c: &Call<T>) -> Result<(), Fault> {
    let (a, b) = (c.read(0)?, c.read(1)?);
    c.produce([0], |[y]| elementwise::mul(a.mat(), b.mat(), y))
}

pub(super) fn mul_grad<T: Real>(c: &Call<T>) -> Result<(), Fault> {
    let (a, b, gy) = (c.read(0)?, c.read(1)?, c.read(2)?);
    let mut writes = c.write([0, 1])?;
    let [(ga, ga_mode), (gb, gb_mode)] = writes.array()?;
    elementwise::mul_grad(a.mat(), b.mat(), gy.mat(), ga, ga_mode, gb, gb_mode);
    Ok(())
}

pub(super) fn scale<T: Real>(c: &Call<T>, factor: f64) -> Result<(), Fault> {
    let x = c.read(0)?;
    let mut writes = c.write([0])?;
    let (y, mode) = writes.first()?;
    elementwise::scale(x.mat(), factor, y, mode);
    Ok(())
}

pub(super) fn copy<T: Real>(c: &Call<T>) -> Result<(), Fault> {
    let x = c.read(0)?;
    let mut writes = c.write([0])?;
    let (y, mode) = writes.first()?;
    elementwise::copy(x.mat(), y, mode);
    Ok(())
}

pub(super) fn zero<T: Real>(c: &Call<T>) -> Result<(), Fault> {
    c.produce([0], |[mut y]| (0..y.rows()).for_each(|i| y.row_mut(i).fill(T::ZERO)))
}

pub(super) fn positional<T: Real>(c: &Call<T>) -> Result<(), Fault> {
    let (x, offsets, weight) = (c.read(0)?, c.offsets(1)?, c.read(2)?);
    c.produce([0], |[y]| position::positional(x.mat(), offsets, weight.mat(), y))
}

pub(super) fn positional_grad<T: Real>(c: &Call<T>) -> Result<(), Fault> {
    let (gy, offsets) = (c.read(0)?, c.offsets(1)?);
    c.produce([0], |[gweight]| position::positional_grad(gy.mat(), offsets, gweight))
}

pub(super) fn dropout<T: Real>(c: &Call<T>, p: f64, stream: u32, gradient: bool) -> Result<(), Fault> {
    let (x, keys, key) = (c.read(0)?, c.row_keys(0)?, c.key(stream));
    c.produce([0], |[y]| {
        if gradient {
            masks::dropout_grad(x.mat(), p, key, keys, y);
        } else {
            masks::dropout(x.mat(), p, key, keys, y);
        }
    })
}

pub(super) fn l2_normalize<T: Real>(c: &Call<T>, eps: f64) -> Result<(), Fault> {
    let x = c.read(0)?;
    let mut norms = c.slice(1)?;
    c.produce([0], |[y]| norm::l2_normalize(x.mat(), eps, y, norms.slice()))
}

pub(super) fn l2_normalize_grad<T: Real>(c: &Call<T>, eps: f64) -> Result<(), Fault> {
    let (y, norms, gy) = (c.read(0)?, c.read(1)?, c.read(2)?);
    let mut writes = c.write([0])?;
    let (gx, mode) = writes.first()?;
    norm::l2_normalize_grad(y.mat(), norms.slice()?, eps, gy.mat(), gx, mode);
    Ok(())
}

pub(super) fn dot_interaction<T: Real>(c: &Call<T>) -> Result<(), Fault> {
    let reads = (0..c.op.reads.len()).map(|i| c.read(i)).collect::<Result<Few<_>, _>>()?;
    let xs: Few<Mat<T>> = reads.iter().map(Read::mat).collect();
    c.produce([0], |[y]| interaction::dot_interaction(&xs, y))
}

pub(super) fn dot_interaction_grad<T: Real>(c: &Call<T>) -> Result<(), Fault> {
    let last = c.op.reads.len().saturating_sub(1);
    let reads = (0..last).map(|i| c.read(i)).collect::<Result<Few<_>, _>>()?;
    let xs: Few<Mat<T>> = reads.iter().map(Read::mat).collect();
    let gy = c.read(last)?;
    let mut writes = c.write(0..c.op.writes.len())?;
    let (mut gxs, modes): (Few<_>, Few<_>) = writes.views().into_iter().unzip();
    interaction::dot_interaction_grad(&xs, gy.mat(), &mut gxs, &modes);
    Ok(())
}
