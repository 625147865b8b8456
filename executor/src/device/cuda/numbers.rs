//! Numbers that the host must learn of an operation: they come down, and until they have it is under way.

use fs_kernels::cuda::driver::Memory;
use fs_kernels::cuda::{In, Out};

use super::lane::Staging;

/// Numbers on their way to the host: a word that tells of errors, then counts.
#[derive(Debug)]
pub(super) struct Numbers {
    pub(super) staging: Staging,
    pub(super) counts: usize,
    pub(super) then: Then,
    /// What it still works with.
    pub(super) kept: Vec<Memory>,
}

/// What becomes of an operation once the numbers are there.
#[derive(Debug)]
pub(super) enum Then {
    /// Entries of each owner.
    Entries,
    /// Positions of each class and rank, of a list that is sorted by class.
    Positions(In<u32>),
    /// Entries on behalf of others.
    Asked(Listed),
    /// Requests of each user, of a transfer.
    Requests,
}

/// Entries by user, which are still to be put in the order of their owners.
#[derive(Debug, Clone, Copy)]
pub(super) struct Listed {
    pub(super) entries: Memory,
    pub(super) uses: Option<Memory>,
    /// They are: the numbers are those of each owner. Otherwise of each user and owner.
    pub(super) grouped: bool,
}

/// Numbers that come down: where a kernel puts them.
#[derive(Clone, Copy)]
pub(super) struct Room {
    pub(super) memory: Memory,
    pub(super) counts: usize,
}

impl Room {
    pub(super) fn fault(&self) -> Out<u32> {
        Out::at(self.memory.address)
    }

    pub(super) fn counts(&self) -> Out<u64> {
        Out::at(self.memory.address + 8)
    }
}

/// What a transfer keeps from one call to the next.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// Memory of the device.
    pub(super) memory: Vec<Memory>,
    /// Numbers of each exchange that come down.
    pub(super) numbers: Vec<Numbers>,
}
