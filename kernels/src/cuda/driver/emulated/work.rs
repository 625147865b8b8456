//! A piece of work, what it touches, and how it is done.

use std::sync::Arc;

use super::super::super::Call;
use super::super::super::catalogue::Kind;
use super::super::super::emulated::Emulation;
use super::super::super::joined::Joined;
use super::super::super::sources::Precision;
use super::super::{Area, DriverError, Matrix, Product, Touch, Way, shape};
use super::memory;
use crate::real::Real as _;

/// Runs kernels.
pub trait Kernels: Send + Sync {
    /// Whether there are kernels for activations of a precision.
    fn has(&self, precision: Precision) -> bool;
    /// Runs one. What its arguments address is there, and nobody else uses it meanwhile.
    fn run(&self, call: &Call) -> Result<(), String>;
    /// Runs several as one.
    fn run_joined(&self, joined: &Joined) -> Result<(), String> {
        Err(format!("there is no kernel `{}`", joined.kernel.joined_name()))
    }
}

/// No kernels: for work that is copies.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoKernels;

impl Kernels for NoKernels {
    fn has(&self, _: Precision) -> bool {
        true
    }
    fn run(&self, call: &Call) -> Result<(), String> {
        Err(format!("there is no kernel `{}`", call.kernel.name))
    }
}

impl Kernels for Arc<Emulation> {
    fn has(&self, precision: Precision) -> bool {
        self.precision() == precision
    }
    fn run(&self, call: &Call) -> Result<(), String> {
        if !self.has(call.precision) {
            return Err(format!("it is built for {}, not for {}", self.precision(), call.precision));
        }
        // SAFETY: whoever launches says what the kernel touches, all of which the driver has handed out; the one worker is
        // the only one at it.
        unsafe { Emulation::run(self, call) }.map_err(|e| e.to_string())
    }
    fn run_joined(&self, joined: &Joined) -> Result<(), String> {
        if !self.has(joined.precision) {
            return Err(format!("it is built for {}, not for {}", self.precision(), joined.precision));
        }
        // SAFETY: as above, and the driver has seen that none of them uses what another writes.
        unsafe { Emulation::run_joined(self, joined) }.map_err(|e| e.to_string())
    }
}

/// Those of both precisions.
impl Kernels for [Arc<Emulation>; 2] {
    fn has(&self, precision: Precision) -> bool {
        self.iter().any(|kernels| kernels.has(precision))
    }
    fn run(&self, call: &Call) -> Result<(), String> {
        let built = self.iter().find(|kernels| kernels.has(call.precision));
        built.ok_or_else(|| format!("there is none for {}", call.precision))?.run(call)
    }
    fn run_joined(&self, joined: &Joined) -> Result<(), String> {
        let built = self.iter().find(|kernels| kernels.has(joined.precision));
        built.ok_or_else(|| format!("there is none for {}", joined.precision))?.run_joined(joined)
    }
}

/// What kernels call the word whose bits they set from all streams at once.
const FAULT: &str = "fault";

/// What a stream is to do.
#[derive(Debug, Clone)]
pub(super) enum Task {
    Record {
        event: usize,
        record: u64,
    },
    Wait {
        event: usize,
        record: u64,
    },
    Copy {
        way: Way,
        copies: Vec<(Area, Area)>,
    },
    Fill {
        area: Area,
        byte: u8,
    },
    Launch {
        call: Box<Call>,
        touches: Vec<Touch>,
    },
    /// Several launches as one.
    Joined(Vec<Part>),
    Product(Product),
    WriteValue {
        at: Area,
        value: u32,
    },
    WaitValue {
        at: Area,
        value: u32,
    },
    Release {
        address: u64,
    },
}

/// One of several launches that are one.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) call: Box<Call>,
    pub(super) touches: Vec<Touch>,
    /// What it belongs to.
    pub(super) name: Arc<str>,
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
            Self::Launch { touches, .. } => used(touches, each),
            Self::Joined(parts) => parts.iter().for_each(|part| used(&part.touches, each)),
        }
    }

    /// Addresses that kernels are given of which its list says nothing, and whether it may write there. What it writes must be
    /// listed as written.
    pub(super) fn unlisted(&self) -> Vec<(u64, bool)> {
        match self {
            Self::Launch { call, touches } => left_out(call, touches),
            Self::Joined(parts) => {
                parts.iter().flat_map(|part| left_out(&part.call, &part.touches)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Two of several launches that are one, of which one uses what the other writes. `around`: the block of an address.
    pub(super) fn conflict(
        &self,
        around: impl Fn(u64) -> Option<Area>,
    ) -> Option<(Arc<str>, Arc<str>, Area)> {
        let Self::Joined(parts) = self else { return None };
        let mut all = Vec::new();
        for (n, part) in parts.iter().enumerate() {
            let mut use_of = |area: Area, written: bool| {
                let area = area.joined();
                all.extend((0..area.rows).map(|row| (area.rows(row, 1), n, written)));
            };
            used(&part.touches, &mut |area, how| use_of(area, how != Use::Read));
            for (address, written) in left_out(&part.call, &part.touches) {
                if let Some(area) = around(address) {
                    use_of(area, written);
                }
            }
        }
        all.retain(|(area, ..)| !area.is_empty());
        all.sort_by_key(|(area, ..)| area.address);
        // How far the uses of each reach, and those that write.
        let mut reach = vec![[0; 2]; parts.len()];
        for (area, n, written) in all {
            let other = (0..parts.len())
                .find(|other| *other != n && reach[*other][usize::from(!written)] > area.address);
            if let Some(other) = other {
                return Some((Arc::clone(&parts[other].name), Arc::clone(&parts[n].name), area));
            }
            let end = area.address + area.width;
            // By any use, and by one that writes.
            reach[n][0] = end.max(reach[n][0]);
            if written {
                reach[n][1] = end.max(reach[n][1]);
            }
        }
        None
    }

    /// Whether it belongs to what has this name, beside what its stream does.
    pub(super) fn is_of(&self, name: &str) -> bool {
        matches!(self, Self::Joined(parts) if parts.iter().any(|part| *part.name == *name))
    }

    /// All areas, whether or not it is known what of them is used.
    pub(super) fn areas(&self, each: &mut dyn FnMut(Area)) {
        match self {
            Self::Launch { touches, .. } => listed(touches, each),
            Self::Joined(parts) => parts.iter().for_each(|part| listed(&part.touches, each)),
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
            Self::Joined(parts) => {
                let unlike = || DriverError::Misuse("launches as one that are not alike".into());
                let joined = Joined::of(parts.iter().map(|part| &*part.call)).ok_or_else(unlike)?;
                kernels.run_joined(&joined).map_err(|reason| DriverError::Failed {
                    call: format!("kernel `{}`", joined.kernel.joined_name()),
                    reason,
                })?;
            }
        }
        Ok(())
    }
}

/// Tells of everything that a kernel touches.
fn used(touches: &[Touch], each: &mut dyn FnMut(Area, Use)) {
    for touch in touches {
        match touch {
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
        }
    }
}

/// Addresses that a kernel is given of which its list says nothing, and whether it may write there. What it writes must be listed
/// as written.
fn left_out(call: &Call, touches: &[Touch]) -> Vec<(u64, bool)> {
    let within = |area: &Area, address: u64| {
        let end = area.address + area.rows.saturating_sub(1) * area.pitch + area.width;
        (area.address..end).contains(&address)
    };
    let says = |address: u64, writes: bool| {
        touches.iter().any(|touch| match touch {
            Touch::In(area) => !writes && within(area, address),
            Touch::Out(area) | Touch::InOut(area) => within(area, address),
            Touch::Rows { all, list, at, written } => {
                (*written || !writes) && within(all, address)
                    || !writes && (within(list, address) || at.is_some_and(|at| within(&at, address)))
            }
        })
    };
    let given = call.addresses().filter(|(argument, address)| *address != 0 && argument.name != FAULT);
    let given = given.map(|(argument, address)| (address, matches!(argument.kind, Kind::Out(_))));
    given.filter(|(address, writes)| !says(*address, *writes)).collect()
}

/// All areas that a list names.
fn listed(touches: &[Touch], each: &mut dyn FnMut(Area)) {
    for touch in touches {
        match touch {
            Touch::In(area) | Touch::Out(area) | Touch::InOut(area) => each(*area),
            Touch::Rows { all, list, at, .. } => {
                each(*all);
                each(*list);
                if let Some(at) = at {
                    each(*at);
                }
            }
        }
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

/// The product, in the order of sums of the CPU's. Of brain floats it is made of floats, and rounded if that is what it is to be.
fn multiply(p: &Product) -> Result<(), DriverError> {
    let (m, n, k) = shape(p)?;
    if m == 0 || n == 0 {
        return Ok(());
    }
    if p.a.0.precision == Precision::F32 {
        // SAFETY: the areas of the three matrices have been checked by the caller and nobody else is at them.
        unsafe { multiply_floats(p, (m, n, k)) };
        return Ok(());
    }
    let (a, b) = (wide(&p.a.0), wide(&p.b.0));
    let mut c = match (p.c.precision, p.add) {
        (Precision::Bf16, true) => wide(&p.c),
        (Precision::Bf16, false) => vec![0.0; (m * n) as usize],
        (Precision::F32, _) => Vec::new(),
    };
    let floats = |of: &Matrix, at: *const f32| Matrix {
        address: at as u64,
        stride: of.columns,
        precision: Precision::F32,
        ..*of
    };
    let (own_a, own_b) = (floats(&p.a.0, a.as_ptr()), floats(&p.b.0, b.as_ptr()));
    let own_c = if p.c.precision == Precision::F32 { p.c } else { floats(&p.c, c.as_mut_ptr()) };
    // SAFETY: as above; what was made of brain floats is as large as they say.
    unsafe {
        multiply_floats(&Product { a: (own_a, p.a.1), b: (own_b, p.b.1), c: own_c, add: p.add }, (m, n, k));
    }
    if p.c.precision == Precision::Bf16 {
        for (row, sums) in (0..).zip(c.chunks_exact(n as usize)) {
            let to = memory::bytes_mut(p.c.area().rows(row, 1));
            for (to, sum) in to.chunks_exact_mut(2).zip(sums) {
                to.copy_from_slice(&((sum.to_bf16().to_bits() >> 16) as u16).to_le_bytes());
            }
        }
    }
    Ok(())
}

/// Brain floats as floats, without gaps between rows.
fn wide(m: &Matrix) -> Vec<f32> {
    let mut out = Vec::with_capacity((m.rows * m.columns) as usize);
    for row in 0..m.rows {
        let bytes = memory::bytes(m.area().rows(row, 1));
        let float = |x: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([x[0], x[1]])) << 16);
        out.extend(bytes.chunks_exact(2).map(float));
    }
    out
}

/// The product of floats.
///
/// # Safety
/// The three matrices are there, of floats, and nobody else is at them.
unsafe fn multiply_floats(p: &Product, (m, n, k): (u64, u64, u64)) {
    let strides = |(matrix, transposed): (Matrix, bool)| {
        let stride = matrix.stride as isize;
        if transposed { (stride, 1) } else { (1, stride) }
    };
    let ((a_cs, a_rs), (b_cs, b_rs)) = (strides(p.a), strides(p.b));
    // SAFETY: the caller's.
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
}
