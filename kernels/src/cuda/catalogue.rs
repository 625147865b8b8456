//! What each kernel is called with, and how many threads that takes: one table for each family.
//!
//! An entry gives a function with the kernel's arguments that makes a [`Call`], and the [`Kernel`] that describes it. A
//! test holds every entry against the types that the C++ compiler sees in the source.

pub mod attention;
pub mod carry;
pub mod classes;
mod dense;
pub mod dense_optimizers;
pub mod dropout;
pub mod elementwise;
pub mod ids;
pub mod initial;
pub mod interaction;
pub mod loss;
pub mod matmul;
pub mod mxint8;
pub mod norm;
pub mod optimizers;
pub mod positional;
pub mod ranking;
pub mod rows;
pub mod segments;
pub mod sort;

use std::ffi::c_void;
use std::marker::PhantomData;

use super::sources::Precision;

/// All kernels.
pub fn kernels() -> impl Iterator<Item = &'static Kernel> {
    let families = [
        attention::KERNELS,
        carry::KERNELS,
        classes::KERNELS,
        dense_optimizers::KERNELS,
        dropout::KERNELS,
        elementwise::KERNELS,
        ids::KERNELS,
        initial::KERNELS,
        interaction::KERNELS,
        loss::KERNELS,
        matmul::KERNELS,
        mxint8::KERNELS,
        norm::KERNELS,
        optimizers::KERNELS,
        positional::KERNELS,
        ranking::KERNELS,
        rows::KERNELS,
        segments::KERNELS,
        sort::KERNELS,
    ];
    families.into_iter().flatten().copied()
}

/// What is known of a kernel.
#[derive(Debug)]
pub struct Kernel {
    /// Its name.
    pub name: &'static str,
    /// The source that it stands in.
    pub source: &'static str,
    /// Its arguments.
    pub arguments: &'static [Argument],
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argument {
    /// What the catalogue calls it.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
}

/// How an argument is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// By value.
    Value(Number),
    /// As the address of numbers that are read.
    In(Number),
    /// As the address of numbers that are written, and perhaps read.
    Out(Number),
}

/// A type of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named like Rust's types")]
pub enum Number {
    U8,
    I32,
    U32,
    I64,
    U64,
    F32,
    F64,
    /// What activations are.
    Real,
}

impl Number {
    /// Its name, as the emulation says it.
    pub const fn name(self, precision: Precision) -> &'static str {
        match (self, precision) {
            (Number::U8, _) => "u8",
            (Number::I32, _) => "i32",
            (Number::U32, _) => "u32",
            (Number::I64, _) => "i64",
            (Number::U64, _) => "u64",
            (Number::F32, _) | (Number::Real, Precision::F32) => "f32",
            (Number::F64, _) => "f64",
            (Number::Real, Precision::Bf16) => "bf16",
        }
    }
}

impl Kind {
    /// The type in C++, as the emulation says it.
    pub fn name(self, precision: Precision) -> String {
        match self {
            Kind::Value(n) => n.name(precision).to_owned(),
            Kind::In(n) => format!("const {}*", n.name(precision)),
            Kind::Out(n) => format!("{}*", n.name(precision)),
        }
    }
}

/// Marks addresses of activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Real {}

/// A type that stands behind an address.
pub trait Element {
    /// Which.
    const NUMBER: Number;
}

/// The address, on the device, of numbers that a kernel reads. Zero where a kernel allows none.
#[derive(Debug)]
pub struct In<T>(pub u64, PhantomData<T>);

/// The address, on the device, of numbers that a kernel writes. Zero where a kernel allows none.
#[derive(Debug)]
pub struct Out<T>(pub u64, PhantomData<T>);

impl<T> Copy for In<T> {}
impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Out<T> {}
impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> In<T> {
    /// None.
    pub const NULL: Self = In(0, PhantomData);
    /// Numbers at an address of the device.
    pub const fn at(address: u64) -> Self {
        In(address, PhantomData)
    }
}

impl<T> Out<T> {
    /// None.
    pub const NULL: Self = Out(0, PhantomData);
    /// Numbers at an address of the device.
    pub const fn at(address: u64) -> Self {
        Out(address, PhantomData)
    }
    /// The same, to be read.
    pub const fn read(self) -> In<T> {
        In(self.0, PhantomData)
    }
}

/// What can be an argument.
pub trait Pass: Copy {
    /// How the kernel takes it.
    const KIND: Kind;
    /// Its bytes, the first ones of a word.
    fn word(self) -> u64;
}

macro_rules! numbers {
    ($($t:ty => $n:ident, $word:expr;)*) => {$(
        impl Element for $t {
            const NUMBER: Number = Number::$n;
        }
        impl Pass for $t {
            const KIND: Kind = Kind::Value(Number::$n);
            fn word(self) -> u64 {
                let word: fn($t) -> u64 = $word;
                // The kernel reads as many bytes as its type has from the word's first on.
                u64::from_ne_bytes(word(self).to_le_bytes())
            }
        }
    )*};
}
numbers! {
    i32 => I32, |x| u64::from(x as u32);
    u32 => U32, u64::from;
    i64 => I64, |x| x as u64;
    u64 => U64, |x| x;
    f32 => F32, |x| u64::from(x.to_bits());
    f64 => F64, f64::to_bits;
}
impl Element for u8 {
    const NUMBER: Number = Number::U8;
}
impl Element for Real {
    const NUMBER: Number = Number::Real;
}
impl<T: Element> Pass for In<T> {
    const KIND: Kind = Kind::In(T::NUMBER);
    fn word(self) -> u64 {
        self.0
    }
}
impl<T: Element> Pass for Out<T> {
    const KIND: Kind = Kind::Out(T::NUMBER);
    fn word(self) -> u64 {
        self.0
    }
}

/// Blocks of a grid, threads of a block, and bytes of dynamic shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of each.
    pub block: [u32; 3],
    /// Dynamic shared memory of each.
    pub shared: u32,
}

impl Shape {
    /// `blocks` blocks in one dimension.
    pub fn blocks(blocks: u64, threads: u32) -> Self {
        Shape { grid: [blocks.min(i32::MAX as u64) as u32, 1, 1], block: [threads, 1, 1], shared: 0 }
    }

    /// A thread for each of `n` items.
    pub fn items(n: u64) -> Self {
        Self::blocks(n.div_ceil(256), 256)
    }

    /// A warp for each of `n` items.
    pub fn warps(n: u64) -> Self {
        Self::blocks(n.div_ceil(8), 256)
    }

    /// Tiles of `rows` rows of `cols` columns: columns by fours along x, and `each` rows for a thread.
    pub fn tiles(rows: u64, cols: u64, each: u64) -> Self {
        if cols == 0 {
            return Self::blocks(0, 256);
        }
        let across = cols.div_ceil(4).next_power_of_two().min(32) as u32;
        let down = 256 / across;
        let blocks = rows.div_ceil(u64::from(down) * each);
        Shape { block: [across, down, 1], ..Self::blocks(blocks, 256) }
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.grid.contains(&0)
    }
}

/// The most arguments that a kernel has.
pub const MOST_ARGUMENTS: usize = 40;

/// A kernel with its arguments, ready to be launched. The memory behind addresses is the caller's business.
#[derive(Clone, Debug)]
pub struct Call {
    /// Which kernel.
    pub kernel: &'static Kernel,
    /// How many threads; perhaps none.
    pub shape: Shape,
    /// What activations are: the build of the kernel that runs.
    pub precision: Precision,
    words: [u64; MOST_ARGUMENTS],
}

impl Call {
    /// A call of a kernel with the words of its arguments.
    pub fn new(kernel: &'static Kernel, shape: Shape, arguments: &[u64]) -> Self {
        let mut words = [0; MOST_ARGUMENTS];
        words[..arguments.len()].copy_from_slice(arguments);
        Call { kernel, shape, precision: Precision::F32, words }
    }

    /// The same for activations of a precision.
    #[must_use]
    pub fn of(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// The same in at most so many blocks, for kernels whose blocks share the work, however many they are.
    #[must_use]
    pub fn at_most(self, blocks: u64) -> Self {
        let Shape { grid: [x, y, z], block, shared } = self.shape;
        let x = u64::from(x).min(blocks) as u32;
        Self { shape: Shape { grid: [x, y, z], block, shared }, ..self }
    }

    /// Lends an array with the address of each argument, as a launch wants it.
    pub fn with_arguments<R>(&self, f: impl FnOnce(&mut [*mut c_void]) -> R) -> R {
        let mut pointers = [std::ptr::null_mut(); MOST_ARGUMENTS];
        for (pointer, word) in pointers.iter_mut().zip(&self.words) {
            *pointer = std::ptr::from_ref(word).cast_mut().cast();
        }
        f(&mut pointers[..self.kernel.arguments.len()])
    }

    /// The words of its arguments.
    pub fn words(&self) -> &[u64] {
        &self.words[..self.kernel.arguments.len()]
    }

    /// The addresses among its arguments, and whether the kernel may write there.
    pub fn addresses(&self) -> impl Iterator<Item = (&'static Argument, u64)> + '_ {
        self.kernel.arguments.iter().zip(self.words).filter(|(a, _)| !matches!(a.kind, Kind::Value(_)))
    }
}

/// Declares kernels of a source: for each a function that makes a call, and an entry of `KERNELS`.
macro_rules! catalogue {
    ($source:literal: $($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),* $(,)?) => $shape:expr;)*) => {
        /// The kernels of this family.
        pub const KERNELS: &[&$crate::cuda::catalogue::Kernel] = &[$(&table::$name),*];

        #[allow(non_upper_case_globals, reason = "named like the kernels")]
        mod table {
            #[allow(unused_imports, reason = "what arguments need")]
            use super::*;
            $(
                pub(super) static $name: $crate::cuda::catalogue::Kernel = $crate::cuda::catalogue::Kernel {
                    name: stringify!($name),
                    source: $source,
                    arguments: &[$($crate::cuda::catalogue::Argument {
                        name: stringify!($arg),
                        kind: <$type as $crate::cuda::catalogue::Pass>::KIND,
                    }),*],
                };
            )*
        }

        $(
            $(#[$doc])*
            pub fn $name($($arg: $type),*) -> $crate::cuda::catalogue::Call {
                let shape: $crate::cuda::catalogue::Shape = $shape;
                $crate::cuda::catalogue::Call::new(
                    &table::$name,
                    shape,
                    &[$($crate::cuda::catalogue::Pass::word($arg)),*],
                )
            }
        )*
    };
}
pub(crate) use catalogue;
