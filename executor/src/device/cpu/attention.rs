//! Attention over jagged sequences.

use fs_kernels::Real;
use fs_kernels::attention::{silu_attention, silu_attention_grad, softmax_attention, softmax_attention_grad};

use super::{Call, Fault};

pub(super) fn silu<T: Real>(c: &Call<T>, heads: u32) -> Result<(), Fault> {
    let (q, k, v, offsets) = (c.read(0)?, c.read(1)?, c.read(2)?, c.offsets(3)?);
    let mut work = std::mem::take(&mut c.work.lock().scratch);
    let done = c.produce([0], |[y]| {
        silu_attention(q.mat(), k.mat(), v.mat(), offsets, heads as usize, y, &mut work);
    });
    c.work.lock().scratch = work;
    done
}

pub(super) fn silu_grad<T: Real>(c: &Call<T>, heads: u32) -> Result<(), Fault> {
    let (q, k, v, offsets, gy) = (c.read(0)?, c.read(1)?, c.read(2)?, c.offsets(3)?, c.read(4)?);
    let mut work = std::mem::take(&mut c.work.lock().scratch);
    let done = c.produce([0, 1, 2], |[gq, gk, gv]| {
        silu_attention_grad(
            q.mat(),
            k.mat(),
            v.mat(),
            offsets,
            heads as usize,
            gy.mat(),
            gq,
            gk,
            gv,
            &mut work,
        );
    });
    c.work.lock().scratch = work;
    done
}

pub(super) fn softmax<T: Real>(c: &Call<T>, heads: u32, causal: bool) -> Result<(), Fault> {
    let (q, k, v, offsets) = (c.read(0)?, c.read(1)?, c.read(2)?, c.offsets(3)?);
    let mut stats = c.slice(1)?;
    let mut work = std::mem::take(&mut c.work.lock().scratch);
    let done = c.produce([0], |[y]| {
        let heads = heads as usize;
        softmax_attention(q.mat(), k.mat(), v.mat(), offsets, heads, causal, y, stats.slice(), &mut work);
    });
    c.work.lock().scratch = work;
    done
}

pub(super) fn softmax_grad<T: Real>(c: &Call<T>, heads: u32, causal: bool) -> Result<(), Fault> {
    let (q, k, v) = (c.read(0)?, c.read(1)?, c.read(2)?);
    // Operand 3 is the result: other kernels need it, this one recomputes what it needs from the statistics.
    let (stats, offsets, gy) = (c.read(4)?, c.offsets(5)?, c.read(6)?);
    let stats = stats.slice()?;
    let mut work = std::mem::take(&mut c.work.lock().scratch);
    let done = c.produce([0, 1, 2], |[gq, gk, gv]| {
        softmax_attention_grad(
            q.mat(),
            k.mat(),
            v.mat(),
            stats,
            offsets,
            heads as usize,
            causal,
            gy.mat(),
            gq,
            gk,
            gv,
            &mut work,
        );
    });
    c.work.lock().scratch = work;
    done
}
