//! Memory that kernels work on, and launches.

use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::Arc;

use fs_kernels::cuda::catalogue::Real;
use fs_kernels::cuda::emulated::{Build, Emulation, EmulationError};
use fs_kernels::cuda::sources::Precision;
use fs_kernels::cuda::{Call, In, Out};

/// Both precisions of activations.
pub(crate) const PRECISIONS: [Precision; 2] = [Precision::F32, Precision::Bf16];

/// The emulated kernels, and the word in which they tell of faults.
pub(crate) struct Device {
    pub emulation: Arc<Emulation>,
    pub precision: Precision,
    fault: Memory<u32>,
}

impl Device {
    /// With or without sanitizers, as the variable FS_CUDA_SANITIZED says.
    pub(crate) fn new(precision: Precision) -> Self {
        let sanitized = std::env::var_os("FS_CUDA_SANITIZED").is_some();
        let build = Build { precision, sanitized };
        let emulation = Emulation::load(build, Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap();
        Device { emulation, precision, fault: Memory::of(&[0]) }
    }

    /// The fault word.
    pub(crate) fn fault(&self) -> Out<u32> {
        Out::at(self.fault.0.as_ptr() as u64)
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
        unsafe { self.fault.0.as_ptr().cast_mut().replace(0) }
    }

    /// Runs a kernel.
    pub(crate) fn launch(&self, call: &Call) -> Result<(), EmulationError> {
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
            Precision::Bf16 => f32::from_bits(u32::from(brain(x)) << 16),
        }
    }
}

/// A number that no test computes: minus two to the power of 100, also as a brain float.
pub(crate) const POISON: f32 = f32::from_bits(0xf180_0000);

/// The nearest brain float, the even one of two.
fn brain(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() { 0x7fff } else { ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16 }
}

/// Numbers in memory of their own, exactly as long as they are: what is read past it is found by the sanitizer.
pub(crate) struct Memory<T>(Box<[T]>);

impl<T: Copy> Memory<T> {
    pub(crate) fn of(values: &[T]) -> Self {
        Memory(values.into())
    }
    pub(crate) fn filled(n: usize, value: T) -> Self {
        Memory(vec![value; n].into())
    }
    pub(crate) fn read(&self) -> In<T> {
        In::at(self.0.as_ptr() as u64)
    }
    pub(crate) fn write(&mut self) -> Out<T> {
        Out::at(self.0.as_mut_ptr() as u64)
    }
}

impl<T> Deref for Memory<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.0
    }
}
impl<T> DerefMut for Memory<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
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
            Reals::F32(m) => In::at(m.0.as_ptr() as u64),
            Reals::Bf16(m) => In::at(m.0.as_ptr() as u64),
        }
    }
    pub(crate) fn write(&mut self) -> Out<Real> {
        match self {
            Reals::F32(m) => Out::at(m.0.as_mut_ptr() as u64),
            Reals::Bf16(m) => Out::at(m.0.as_mut_ptr() as u64),
        }
    }
    pub(crate) fn values(&self) -> Vec<f32> {
        match self {
            Reals::F32(m) => m.to_vec(),
            Reals::Bf16(m) => m.iter().map(|x| f32::from_bits(u32::from(*x) << 16)).collect(),
        }
    }
}
