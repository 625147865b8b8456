//! Several launches of one kernel as one: for other arguments each, with as many blocks as each has.
//!
//! A kernel that can do so has another one beside it (`KERNEL_JOINED` in `common.cuh`), with the same body. What that is launched
//! with is one argument by value, at most a few kilobytes: where the blocks of each launch end, then the words of the arguments
//! of each. A block finds by its number which launch it is a part of. So nothing has to be copied to the device
//! before it, and the numbers are those of the launches one after the other, in every bit.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use super::sources::{FAMILIES, JOINED, Precision};
use super::{Call, Kernel, Shape};

/// The most launches that one does the work of: `MOST_JOINED` of `common.cuh`.
pub const MOST: usize = 32;

/// Several launches as one.
#[derive(Clone, Debug)]
pub struct Joined {
    /// The kernel that each of them would be of.
    pub kernel: &'static Kernel,
    /// What activations are.
    pub precision: Precision,
    /// The blocks of all.
    pub shape: Shape,
    words: Vec<u64>,
}

impl Kernel {
    /// Whether one launch can do the work of several.
    pub fn joins(&self) -> bool {
        static NAMES: OnceLock<BTreeSet<&str>> = OnceLock::new();
        NAMES.get_or_init(|| FAMILIES.iter().flat_map(|source| source.joined()).collect()).contains(self.name)
    }

    /// The name of the kernel that does the work of several launches of this one.
    pub fn joined_name(&self) -> String {
        format!("{}{JOINED}", self.name)
    }
}

/// Whether one launch can do the work of both.
pub fn alike(a: &Call, b: &Call) -> bool {
    std::ptr::eq(a.kernel, b.kernel)
        && a.precision == b.precision
        && (a.shape.block, a.shape.shared) == (b.shape.block, b.shape.shared)
        && [a, b].iter().all(|call| call.shape.grid[1..] == [1, 1])
        && a.kernel.joins()
}

impl Joined {
    /// One launch for all of these, which are [`alike`], and at most [`MOST`]; none if they are not.
    pub fn of<'c>(calls: impl IntoIterator<Item = &'c Call>) -> Option<Self> {
        let calls: Vec<&Call> = calls.into_iter().collect();
        let first = *calls.first()?;
        if calls.len() > MOST || !calls.iter().all(|call| alike(first, call)) {
            return None;
        }
        let (mut ends, mut blocks) = ([0; MOST], 0u64);
        for (n, end) in ends.iter_mut().enumerate() {
            blocks += calls.get(n).map_or(0, |call| u64::from(call.shape.grid[0]));
            *end = u32::try_from(blocks).ok().filter(|end| i32::try_from(*end).is_ok())?;
        }
        let arguments = first.kernel.arguments.len();
        let mut words = Vec::with_capacity(MOST / 2 + MOST * arguments);
        // Two numbers of 32 bits, one after the other in memory.
        words.extend(ends.chunks_exact(2).map(|pair| {
            let (mut bytes, [a, b]) = ([0; 8], [pair[0], pair[1]].map(u32::to_ne_bytes));
            bytes[..4].copy_from_slice(&a);
            bytes[4..].copy_from_slice(&b);
            u64::from_ne_bytes(bytes)
        }));
        for call in calls {
            words.extend(call.words());
        }
        words.resize(MOST / 2 + MOST * arguments, 0);
        let shape = Shape { grid: [ends[MOST - 1], 1, 1], ..first.shape };
        Some(Self { kernel: first.kernel, precision: first.precision, shape, words })
    }

    /// The bytes of its only argument.
    pub fn words(&self) -> &[u64] {
        &self.words
    }
}
