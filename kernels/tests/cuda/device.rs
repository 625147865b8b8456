//! Memory that kernels work on, and launches: emulated, or with FS_CUDA_DRIVER=cuda on the first GPU. There all memory is the host's,
//! page-locked, which kernels find at the same address; tests of the emulation itself stay with that.

use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use fs_kernels::cuda::catalogue::Real;
use fs_kernels::cuda::driver::{Driver, Launch, Pinned, Stream, real};
use fs_kernels::cuda::emulated::{Build, Emulation, EmulationError};
use fs_kernels::cuda::joined::Joined;
use fs_kernels::cuda::sources::Precision;
use fs_kernels::cuda::{Call, In, Out, Shape};

/// Both precisions of activations.
pub(crate) const PRECISIONS: [Precision; 2] = [Precision::F32, Precision::Bf16];

/// A GPU, once for each precision, with a stream.
fn gpus() -> Option<&'static [(real::Real, Stream); 2]> {
    static GPUS: OnceLock<Option<[(real::Real, Stream); 2]>> = OnceLock::new();
    let open = |precision| {
        let gpu = real::Real::open(0, precision, Path::new(env!("CARGO_TARGET_TMPDIR")));
        let gpu = gpu.unwrap_or_else(|e| panic!("FS_CUDA_DRIVER=cuda: {e}"));
        let stream = gpu.stream(0).unwrap();
        (gpu, stream)
    };
    let asked = || match std::env::var("FS_CUDA_DRIVER").as_deref() {
        Ok("cuda") => Some(PRECISIONS.map(open)),
        Err(_) | Ok("emulated") => None,
        Ok(other) => panic!("FS_CUDA_DRIVER is cuda or emulated, not {other}"),
    };
    GPUS.get_or_init(asked).as_ref()
}

/// The kernels, and the word in which they tell of faults.
pub(crate) struct Device {
    pub emulation: Arc<Emulation>,
    pub precision: Precision,
    fault: Memory<u32>,
    launches: AtomicU64,
}

impl Device {
    /// With or without sanitizers, as the variable FS_CUDA_SANITIZED says.
    pub(crate) fn new(precision: Precision) -> Self {
        let sanitized = std::env::var_os("FS_CUDA_SANITIZED").is_some();
        let build = Build { precision, sanitized };
        let emulation = Emulation::load(build, Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap();
        Device { emulation, precision, fault: Memory::of(&[0]), launches: AtomicU64::new(0) }
    }

    /// The fault word.
    pub(crate) fn fault(&self) -> Out<u32> {
        Out::at(self.fault.start() as u64)
    }

    /// Runs kernels one after the other.
    #[track_caller]
    pub(crate) fn run(&self, calls: impl IntoIterator<Item = Call>) {
        assert_eq!(self.faults(calls), 0, "a fault");
    }

    /// The same, and what faults they tell of.
    #[track_caller]
    pub(crate) fn faults(&self, calls: impl IntoIterator<Item = Call>) -> u32 {
        for call in calls {
            self.launch(&call).unwrap();
        }
        // SAFETY: the word is ours, and no launch runs.
        unsafe { self.fault.start().replace(0) }
    }

    /// Runs kernels as one.
    pub(crate) fn launch_joined(&self, calls: &[Call]) -> Result<(), EmulationError> {
        let own = PRECISIONS.iter().position(|precision| *precision == self.precision);
        let calls: Vec<Call> = calls.iter().map(|call| call.clone().of(self.precision)).collect();
        if let Some((gpu, stream)) = own.and_then(|i| gpus().map(|gpus| &gpus[i])) {
            let launches: Vec<_> =
                calls.iter().map(|call| (Launch { call, touches: &[] }, "a test")).collect();
            let launched = gpu.launch_joined(*stream, &launches);
            let done = launched.and_then(|()| gpu.synchronize(*stream));
            return done.map_err(|e| EmulationError::Launch(format!("{}: {e}", calls[0].kernel.name)));
        }
        let joined = Joined::of(&calls).unwrap();
        // SAFETY: tests pass addresses of memory that lives until they have looked at it.
        unsafe { self.emulation.run_joined(&joined) }
    }

    /// Runs a kernel: every other time, if that can be, as one of several of which the others have nothing to do.
    pub(crate) fn launch(&self, call: &Call) -> Result<(), EmulationError> {
        if call.kernel.joins() && self.launches.fetch_add(1, Ordering::Relaxed) % 2 == 1 {
            let nothing = Call::new(call.kernel, Shape { grid: [0, 1, 1], ..call.shape }, call.words());
            return self.launch_joined(&[nothing.clone(), call.clone(), nothing]);
        }
        self.launch_as_it_is(call)
    }

    /// Runs a kernel by itself.
    pub(crate) fn launch_as_it_is(&self, call: &Call) -> Result<(), EmulationError> {
        let own = PRECISIONS.iter().position(|precision| *precision == self.precision);
        if let Some((gpu, stream)) = own.and_then(|i| gpus().map(|gpus| &gpus[i])) {
            let call = &call.clone().of(self.precision);
            let launched = gpu.launch(*stream, &Launch { call, touches: &[] });
            let done = launched.and_then(|()| gpu.synchronize(*stream));
            return done.map_err(|e| EmulationError::Launch(format!("{}: {e}", call.kernel.name)));
        }
        // SAFETY: tests pass addresses of memory that lives until they have looked at it.
        unsafe { self.emulation.run(call) }
    }

    /// Activations.
    pub(crate) fn reals(&self, values: &[f32]) -> Reals {
        match self.precision {
            Precision::F32 => Reals::F32(Memory::of(values)),
            Precision::Bf16 => Reals::Bf16(Memory::of(&values.iter().map(|x| brain(*x)).collect::<Vec<_>>())),
        }
    }

    /// Poisoned activations.
    pub(crate) fn poisoned_reals(&self, n: usize) -> Reals {
        self.reals(&vec![POISON; n])
    }

    /// What a number is once it is an activation.
    pub(crate) fn rounded(&self, x: f32) -> f32 {
        match self.precision {
            Precision::F32 => x,
            Precision::Bf16 => brain_float(x),
        }
    }
}

/// The nearest brain float.
pub(crate) fn brain_float(x: f32) -> f32 {
    f32::from_bits(u32::from(brain(x)) << 16)
}

/// A number that no test computes: minus two to the power of 100, also as a brain float.
pub(crate) const POISON: f32 = f32::from_bits(0xf180_0000);

/// The nearest brain float, the even one of two.
fn brain(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() { 0x7fff } else { ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16 }
}

/// Numbers in memory of their own, exactly as long as they are: what is read past it is found by the sanitizer.
pub(crate) enum Memory<T: Copy> {
    Host(Box<[T]>),
    Shared { pinned: Pinned, start: *mut T, n: usize },
}

impl<T: Copy> Memory<T> {
    pub(crate) fn of(values: &[T]) -> Self {
        let Some([(gpu, _), _]) = gpus() else { return Memory::Host(values.into()) };
        let (pinned, start) = gpu.shared(size_of_val(values) as u64).unwrap();
        let start = start.cast::<T>();
        // SAFETY: as many bytes were just allocated, aligned to a page.
        unsafe { start.copy_from_nonoverlapping(values.as_ptr(), values.len()) };
        Memory::Shared { pinned, start, n: values.len() }
    }
    pub(crate) fn filled(n: usize, value: T) -> Self {
        Memory::of(&vec![value; n])
    }
    fn start(&self) -> *mut T {
        match self {
            Memory::Host(values) => values.as_ptr().cast_mut(),
            Memory::Shared { start, .. } => *start,
        }
    }
    pub(crate) fn read(&self) -> In<T> {
        In::at(self.start() as u64)
    }
    pub(crate) fn write(&mut self) -> Out<T> {
        Out::at(self.start() as u64)
    }
}

impl<T: Copy> Drop for Memory<T> {
    fn drop(&mut self) {
        if let (Memory::Shared { pinned, .. }, Some([(gpu, _), _])) = (&*self, gpus()) {
            let _ = gpu.unpin(*pinned);
        }
    }
}

impl<T: Copy> Deref for Memory<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        match self {
            Memory::Host(values) => values,
            // SAFETY: all of it was written when it was made, and no launch runs.
            Memory::Shared { start, n, .. } => unsafe { std::slice::from_raw_parts(*start, *n) },
        }
    }
}
impl<T: Copy> DerefMut for Memory<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Memory::Host(values) => values,
            // SAFETY: as above, and nobody else has it.
            Memory::Shared { start, n, .. } => unsafe { std::slice::from_raw_parts_mut(*start, *n) },
        }
    }
}

/// Activations in memory.
pub(crate) enum Reals {
    F32(Memory<f32>),
    Bf16(Memory<u16>),
}

impl Reals {
    pub(crate) fn read(&self) -> In<Real> {
        match self {
            Reals::F32(m) => In::at(m.start() as u64),
            Reals::Bf16(m) => In::at(m.start() as u64),
        }
    }
    pub(crate) fn write(&mut self) -> Out<Real> {
        match self {
            Reals::F32(m) => Out::at(m.start() as u64),
            Reals::Bf16(m) => Out::at(m.start() as u64),
        }
    }
    pub(crate) fn values(&self) -> Vec<f32> {
        match self {
            Reals::F32(m) => m.to_vec(),
            Reals::Bf16(m) => m.iter().map(|x| f32::from_bits(u32::from(*x) << 16)).collect(),
        }
    }
}
