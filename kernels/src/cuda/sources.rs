//! The sources of all kernels, as part of the library.

use std::fmt::{self, Display, Formatter};

/// A source or header of `kernels/cuda`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its path below that folder.
    pub name: &'static str,
    /// What it says.
    pub text: &'static str,
}

macro_rules! sources {
    ($($name:literal),* $(,)?) => {
        &[$(Source { name: $name, text: include_str!(concat!("../../cuda/", $name)) }),*]
    };
}

/// Headers that sources include, for a device too.
pub const HEADERS: &[Source] = sources![
    "common.cuh",
    "bitmap.cuh",
    "random.cuh",
    "dense.cuh",
    "mma.cuh",
    "attention.cuh",
    "attention_fma.cuh",
    "attention_mma.cuh",
];

/// Sources with kernels, one for a family.
pub const FAMILIES: &[Source] = sources![
    "attention.cu",
    "carry.cu",
    "classes.cu",
    "dense_optimizers.cu",
    "dropout.cu",
    "elementwise.cu",
    "ids.cu",
    "initial.cu",
    "interaction.cu",
    "loss.cu",
    "matmul.cu",
    "mxint8.cu",
    "norm.cu",
    "optimizers.cu",
    "positional.cu",
    "ranking.cu",
    "rows.cu",
    "segments.cu",
    "sort.cu",
];

/// What NVRTC is told beside the architecture and the type of activations, separated by white space.
pub const OPTIONS: &str = include_str!("../../cuda/nvrtc.options");

/// What the emulation consists of beside the sources.
pub const EMULATION: &[Source] =
    sources!["emulate/emulate.hpp", "emulate/fiber.hpp", "emulate/emulate.cpp", "emulate/selftest.cu"];

/// What the name of a kernel ends with that does the work of several launches.
pub const JOINED: &str = "_joined";

impl Source {
    /// Whether others include it.
    pub fn is_header(self) -> bool {
        self.text.contains("#pragma once")
    }

    /// Names of the kernels in it, in order.
    pub fn kernels(self) -> impl Iterator<Item = &'static str> {
        self.declared(&["KERNEL(", "KERNEL_OF(", "KERNEL_JOINED(", "KERNEL_JOINED_OF("])
    }

    /// Names of those of which one launch can do the work of several: with [`JOINED`] behind the name it is another kernel.
    pub fn joined(self) -> impl Iterator<Item = &'static str> {
        self.declared(&["KERNEL_JOINED(", "KERNEL_JOINED_OF("])
    }

    fn declared(self, macros: &'static [&'static str]) -> impl Iterator<Item = &'static str> {
        self.text.lines().filter_map(|line| {
            let rest = macros.iter().find_map(|name| line.strip_prefix(name))?;
            rest.split([',', ')']).next()
        })
    }
}

/// What activations are: the `REAL` of the sources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Precision {
    /// 32 bits.
    #[default]
    F32,
    /// Brain floats of 16 bits.
    Bf16,
}

impl Precision {
    /// Bytes of a number.
    pub const fn bytes(self) -> usize {
        match self {
            Precision::F32 => 4,
            Precision::Bf16 => 2,
        }
    }

    /// The type's name in the sources.
    pub const fn name(self) -> &'static str {
        match self {
            Precision::F32 => "float",
            Precision::Bf16 => "bf16",
        }
    }
}

impl Display for Precision {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
