//! A piece of work, what it touches, and how it is done.

use std::sync::Arc;

use super::super::super::Call;
use super::super::super::emulated::Emulation;
use super::super::{Area, DriverError, Matrix, Product, Touch, shape};
use super::memory;

/// Runs kernels.
pub trait Kernels: Send + Sync {
    /// Runs one. What its arguments address is there, and nobody else uses it meanwhile.
    fn run(&self, call: &Call) -> Result<(), String>;
}

/// No kernels: for work that is copies.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoKernels;

impl Kernels for NoKernels {
    fn run(&self, call: &Call) -> Result<(), String> {
        Err(format!("there is no kernel `{}`", call.kernel.name))
    }
}

impl Kernels for Arc<Emulation> {
    fn run(&self, call: &Call) -> Result<(), String> {
        // SAFETY: whoever launches says what the kernel touches, all of which the driver has handed out; the one worker is
        // the only one at it.
        unsafe { Emulation::run(self, call) }.map_err(|e| e.to_string())
    }
}

/// What a stream is to do.
#[derive(Debug, Clone)]
pub(super) enum Task {
    Record { event: usize, record: u64 },
    Wait { event: usize, record: u64 },
    Copy { engine: Option<Way>, copies: Vec<(Area, Area)> },
    Fill { area: Area, byte: u8 },
    Launch { call: Box<Call>, touches: Vec<Touch> },
    Product(Product),
    WriteValue { at: Area, value: u32 },
    WaitValue { at: Area, value: u32 },
    Release { address: u64 },
}

/// Which way a copy engine copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// To the device.
    In,
    /// To the host.
    Out,
}

/// How memory is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    Read,
    /// Whole: what was there is no longer needed.
    Overwritten,
    Changed,
}

impl Task {
    /// Tells of everything that it touches.
    pub(super) fn uses(&self, each: &mut dyn FnMut(Area, Use)) {
        match self {
            // Flags are what orders others, so nothing orders their uses.
            Self::Record { .. }
            | Self::Wait { .. }
            | Self::Release { .. }
            | Self::WaitValue { .. }
            | Self::WriteValue { .. } => {}
            Self::Copy { copies, .. } => {
                for (from, _) in copies {
                    each(*from, Use::Read);
                }
                for (_, to) in copies {
                    each(*to, Use::Overwritten);
                }
            }
            Self::Fill { area, .. } => each(*area, Use::Overwritten),
            Self::Product(p) => {
                each(p.a.0.area(), Use::Read);
                each(p.b.0.area(), Use::Read);
                each(p.c.area(), if p.add { Use::Changed } else { Use::Overwritten });
            }
            Self::Launch { touches, .. } => touches.iter().for_each(|touch| match touch {
                Touch::In(area) => each(*area, Use::Read),
                Touch::Out(area) => each(*area, Use::Overwritten),
                Touch::InOut(area) => each(*area, Use::Changed),
                Touch::Rows { all, list, at, written } => {
                    each(*list, Use::Read);
                    // Rows are known once the list is: this is asked when the work begins.
                    let number = |word: &[u8]| u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                    let listed: Vec<u32> = memory::bytes(*list).chunks_exact(4).map(number).collect();
                    let chosen: Vec<u32> = match at {
                        Some(at) => {
                            each(*at, Use::Read);
                            let places = memory::bytes(*at).chunks_exact(4).map(number);
                            places.filter_map(|n| listed.get(n as usize).copied()).collect()
                        }
                        None => listed,
                    };
                    for row in chosen.into_iter().map(u64::from) {
                        if row < all.rows {
                            each(all.rows(row, 1), if *written { Use::Changed } else { Use::Read });
                        }
                    }
                }
            }),
        }
    }

    /// All areas, whether or not it is known what of them is used.
    pub(super) fn areas(&self, each: &mut dyn FnMut(Area)) {
        match self {
            Self::Launch { touches, .. } => touches.iter().for_each(|touch| match touch {
                Touch::In(area) | Touch::Out(area) | Touch::InOut(area) => each(*area),
                Touch::Rows { all, list, at, .. } => {
                    each(*all);
                    each(*list);
                    if let Some(at) = at {
                        each(*at);
                    }
                }
            }),
            Self::WriteValue { at, .. } | Self::WaitValue { at, .. } => each(*at),
            other => other.uses(&mut |area, _| each(area)),
        }
    }

    /// Bytes that it moves.
    pub(super) fn bytes(&self) -> u64 {
        let mut sum = 0;
        self.uses(&mut |area, how| sum += area.bytes() * if how == Use::Changed { 2 } else { 1 });
        sum
    }

    /// Does it. All that it touches has been checked, and nobody else is at it.
    pub(super) fn run(&self, kernels: &dyn Kernels) -> Result<(), DriverError> {
        match self {
            Self::Record { .. } | Self::Wait { .. } | Self::WaitValue { .. } | Self::Release { .. } => {}
            Self::Copy { copies, .. } => copies.iter().for_each(|(from, to)| reshape(*from, *to)),
            Self::Fill { area, byte } => memory::fill(*area, *byte),
            Self::WriteValue { at, value } => memory::bytes_mut(*at).copy_from_slice(&value.to_le_bytes()),
            Self::Product(p) => multiply(p)?,
            Self::Launch { call, .. } => kernels.run(call).map_err(|reason| DriverError::Failed {
                call: format!("kernel `{}`", call.kernel.name),
                reason,
            })?,
        }
        Ok(())
    }
}

/// Packed bytes have one row; whoever has more says how they are cut.
fn reshape(from: Area, to: Area) {
    let cut = |area: Area, like: Area| Area { width: like.width, rows: like.rows, pitch: like.width, ..area };
    match (from.rows == to.rows, from.rows == 1) {
        (true, _) => memory::copy(from, to),
        (_, true) => memory::copy(cut(from, to), to),
        _ => memory::copy(from, cut(to, from)),
    }
}

/// The product, in the order of sums of the CPU's.
fn multiply(p: &Product) -> Result<(), DriverError> {
    let (m, n, k) = shape(p)?;
    if m == 0 || n == 0 {
        return Ok(());
    }
    let strides = |(matrix, transposed): (Matrix, bool)| {
        let stride = matrix.stride as isize;
        if transposed { (stride, 1) } else { (1, stride) }
    };
    let ((a_cs, a_rs), (b_cs, b_rs)) = (strides(p.a), strides(p.b));
    // SAFETY: the areas of the three matrices have been checked by the caller and nobody else is at them.
    unsafe {
        gemm::gemm(
            m as usize,
            n as usize,
            k as usize,
            p.c.address as *mut f32,
            1,
            p.c.stride as isize,
            p.add,
            p.a.0.address as *const f32,
            a_cs,
            a_rs,
            p.b.0.address as *const f32,
            b_cs,
            b_rs,
            1.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
    Ok(())
}
