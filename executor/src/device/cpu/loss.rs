//! Losses: this rank's contribution, divided by what the *global* batch holds.

use fs_kernels::Real;
use fs_kernels::loss::{
    bce_with_logits as bce, sampled_softmax as sampled, sampled_softmax_grad as sampled_grad,
};
use fs_schedule::Normalize;

use super::{Call, Fault};

pub(super) fn bce_with_logits<T: Real>(c: &Call<T>, normalize: Normalize) -> Result<(), Fault> {
    let (logits, labels, norm) = (c.read(0)?, c.input_reals(1)?, c.norm(normalize));
    let mut loss = c.slice(0)?;
    let mut value = 0.0;
    if c.op.writes.len() > 1 {
        c.produce([1], |[glogits]| value = bce(logits.mat(), labels, norm, Some(glogits)))?;
    } else {
        value = bce(logits.mat(), labels, norm, None);
    }
    loss.slice().fill(T::from_f64(value));
    c.add_loss(value);
    Ok(())
}

pub(super) fn sampled_softmax<T: Real>(
    c: &Call<T>,
    negatives: u32,
    temperature: f64,
    normalize: Normalize,
) -> Result<(), Fault> {
    let (h, rows) = (c.read(0)?, c.read(1)?);
    let (targets, drawn) = (c.read_indices(2)?, c.read_indices(3)?);
    let (mut loss, mut gscores) = (c.slice(0)?, c.slice(1)?);
    let value = sampled(
        h.mat(),
        rows.mat(),
        targets.slice()?,
        drawn.slice()?,
        negatives as usize,
        temperature,
        c.norm(normalize),
        gscores.slice(),
    );
    loss.slice().fill(T::from_f64(value));
    c.add_loss(value);
    Ok(())
}

pub(super) fn sampled_softmax_grad<T: Real>(c: &Call<T>, negatives: u32) -> Result<(), Fault> {
    let (h, rows) = (c.read(0)?, c.read(1)?);
    let (targets, drawn, gscores) = (c.read_indices(2)?, c.read_indices(3)?, c.read(4)?);
    let mut writes = c.write([0, 1])?;
    let [(gh, gh_mode), (grows, grows_mode)] = writes.array()?;
    sampled_grad(
        h.mat(),
        rows.mat(),
        targets.slice()?,
        drawn.slice()?,
        negatives as usize,
        gscores.slice()?,
        gh,
        gh_mode,
        grows,
        grows_mode,
    );
    Ok(())
}
