//! Memory for tables: on cache lines, and on huge pages where the system has them.
//!
//! Rows of a table far larger than the caches are read at random. With pages of 4 KiB nearly every row misses the
//! address translation as well as the caches, and a row that starts in the middle of a cache line touches one line
//! more than it fills. [`Block`] mends both: it starts on a cache line, and asks for huge pages before the first
//! touch, since that is when pages are chosen.

use std::alloc::{Layout, alloc_zeroed};
use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::Real;
use crate::allocator::tolerant;

/// Bytes of a cache line, on which every block starts.
pub(crate) const LINE: usize = 64;
/// Bytes of a page, on which large blocks start: caches fetch lines in pairs, so that a row of four lines that starts
/// on an odd one costs six, and a row that crosses pages is translated twice.
pub(crate) const PAGE: usize = 4096;
/// Blocks from this size on start on a page.
const PAGED_FROM: usize = 256 << 10;
/// Blocks below this size do without huge pages: they would be less than two of them.
#[cfg(target_os = "linux")]
const HUGE_FROM: usize = 4 << 20;

/// Memory that the system does not give.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes of memory cannot be had")]
pub struct NoMemory {
    /// How much was asked for.
    pub bytes: u64,
}

/// `len` zeros, of which those that are never used take no memory; an error where there is none, not the end of the process.
pub fn zeroed<T: Real>(len: usize) -> Result<Vec<T>, NoMemory> {
    let bytes = (len as u64).saturating_mul(size_of::<T>() as u64);
    let none = NoMemory { bytes };
    let layout = Layout::array::<T>(len).map_err(|_| none)?;
    if layout.size() == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the layout has a size. Nothing else owns the memory, which was had from the allocator of boxes with the layout of
    // one of `len` elements, and all of them are initialised: `Real` is sealed, and its types, floating-point
    // numbers, are zero where all bits are.
    unsafe {
        let start = tolerant(|| alloc_zeroed(layout)).cast::<T>();
        if start.is_null() {
            Err(none)
        } else {
            Ok(Box::from_raw(std::ptr::slice_from_raw_parts_mut(start, len)).into_vec())
        }
    }
}

/// A slice that starts on a cache line and lies on huge pages where the system gives them.
pub struct Block<T> {
    /// The elements, with up to a page before them and room after them. It never grows, so they never move.
    buffer: Vec<T>,
    start: usize,
    len: usize,
}

impl<T: Copy + Default> Block<T> {
    /// `len` zeros. Their memory is taken when they are first used, as with `vec!`.
    pub fn zeros(len: usize) -> Self {
        let (align, room) = Self::place(len);
        // Zeros come untouched from the system, so the advice comes before their pages exist.
        Self::within(vec![T::default(); len.saturating_add(room)], len, align, room)
    }

    /// Where a block starts, and how many elements more that takes.
    fn place(len: usize) -> (usize, usize) {
        let align = if len.saturating_mul(size_of::<T>()) < PAGED_FROM { LINE } else { PAGE };
        (align, align / size_of::<T>().clamp(1, LINE))
    }

    fn within(mut buffer: Vec<T>, len: usize, align: usize, room: usize) -> Self {
        let start = buffer.as_ptr().align_offset(align).min(room);
        advise_huge(&mut buffer);
        Block { buffer, start, len }
    }

    /// Changes the length; contents are unspecified afterwards. Memory moves only to grow, and is kept.
    pub(crate) fn resize(&mut self, len: usize) {
        if self.buffer.len() < self.start + len {
            // A quarter more, so that lengths that vary a little settle.
            let held = len + len / 4;
            *self = Block::default();
            *self = Block::zeros(held);
        }
        self.len = len;
    }
}

impl<T: Real> Block<T> {
    /// [`Block::zeros`] of what may be more than there is: tables and the states of their optimizers.
    pub fn try_zeros(len: usize) -> Result<Self, NoMemory> {
        let (align, room) = Self::place(len);
        Ok(Self::within(zeroed(len.saturating_add(room))?, len, align, room))
    }
}

impl<T> Default for Block<T> {
    fn default() -> Self {
        Block { buffer: Vec::new(), start: 0, len: 0 }
    }
}

impl<T> Deref for Block<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.buffer[self.start..self.start + self.len]
    }
}

impl<T> DerefMut for Block<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.buffer[self.start..self.start + self.len]
    }
}

impl<T> fmt::Debug for Block<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block[{}]", self.len)
    }
}

/// Asks the system to back the memory of `data` with huge pages from now on. Pages that were touched already may
/// stay as they are. Small slices are left alone; where there are no huge pages nothing happens.
pub(crate) fn advise_huge<T>(data: &mut [T]) {
    #[cfg(target_os = "linux")]
    {
        let bytes = size_of_val(data);
        if bytes < HUGE_FROM {
            return;
        }
        let start = data.as_mut_ptr().cast::<u8>();
        // Only whole pages of the slice: the advice must not reach a neighbour's memory.
        let skipped = start.align_offset(PAGE);
        let len = bytes.saturating_sub(skipped) / PAGE * PAGE;
        // SAFETY: the range consists of whole pages inside `data`, which is borrowed mutably, so the pages are
        // mapped; MADV_HUGEPAGE changes neither contents nor protection. Failing (no such pages configured) is fine.
        unsafe {
            libc::madvise(start.wrapping_add(skipped).cast(), len, libc::MADV_HUGEPAGE);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = data;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_start_on_a_line_and_are_zero() {
        for len in [0, 1, 15, 16, 17, 1000, 3 << 20] {
            let mut block = Block::<f32>::zeros(len);
            assert_eq!((block.len(), block.as_ptr() as usize % LINE), (len, 0));
            assert!(block.iter().all(|x| *x == 0.0));
            block.fill(2.0);
            assert!(block.iter().all(|x| *x == 2.0));
            assert!(len < 1 << 20 || block.as_ptr().addr().is_multiple_of(PAGE));
            let other = Block::<f64>::try_zeros(len).expect("there is so much");
            assert!(other.iter().all(|x| *x == 0.0));
            assert_eq!((other.len(), other.as_ptr() as usize % LINE), (len, 0));
        }
        let mut block = Block::<f32>::default();
        for len in [3, 0, 100, 90, 5000] {
            block.resize(len);
            assert_eq!((block.len(), block.as_ptr() as usize % LINE), (len, 0));
            block.fill(1.0);
        }
        assert!(Block::<f32>::default().is_empty());
    }

    #[test]
    fn what_cannot_be_had_is_an_error() {
        for len in [usize::MAX, usize::MAX / 8, 1 << 60] {
            let bytes = (len as u64).saturating_mul(4);
            assert_eq!(zeroed::<f32>(len).err(), Some(NoMemory { bytes }));
            assert!(Block::<f64>::try_zeros(len).is_err());
        }
        assert_eq!(zeroed::<f64>(0), Ok(vec![]));
        assert_eq!(zeroed::<f64>(3), Ok(vec![0.0; 3]));
    }

    #[test]
    fn advice_keeps_contents_at_any_offset() {
        let mut bytes: Vec<u8> = (0..(9 << 20)).map(|i| (i % 251) as u8).collect();
        for skip in [0, 1, 4095, 4096, 4097] {
            advise_huge(&mut bytes[skip..]);
        }
        advise_huge(&mut bytes[..100]);
        advise_huge::<u8>(&mut []);
        assert!(bytes.iter().enumerate().all(|(i, b)| *b == (i % 251) as u8));
    }
}
