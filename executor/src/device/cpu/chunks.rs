//! Rows and entries on their way into outboxes and out of them, cut into a transfer's chunks.

use std::ops::Range;

use fs_kernels::{Mat, MatMut, Real, Write, elementwise};

use super::pieces::{Pieces, Stop, check};
use super::{Call, Fault};
use crate::transport::{Coding, Part};

/// Copies entries to their place.
pub(super) fn copy<E: Copy>(from: &[E], to: &mut [E]) -> Result<(), Fault> {
    check("entries of a rank", from.len(), to.len())?;
    to.copy_from_slice(from);
    Ok(())
}

/// Pieces of a transfer.
#[derive(Clone, Copy)]
pub(super) struct Chunk {
    /// Bytes of each, if it has several.
    bytes: Option<u64>,
    /// What reals are on their way.
    coding: Coding,
}

impl Chunk {
    /// Those of an operation.
    pub(super) fn of<T: Real>(c: &Call<T>, coding: Coding) -> Self {
        Self { bytes: c.op.chunk, coding }
    }

    /// Rows that fit into one.
    fn rows<T>(self, columns: usize) -> usize {
        let each = self.coding.bytes::<T>(columns).max(1);
        self.bytes.map_or(usize::MAX, |bytes| (bytes as usize / each).max(1))
    }
}

/// Appends rows, piece by piece.
pub(super) fn extend<T: Real>(
    to: &mut Vec<T>,
    from: Mat<T>,
    rows: Range<usize>,
    chunk: Chunk,
    pieces: &mut Pieces<'_>,
) -> Result<(), Stop> {
    let step = chunk.rows::<T>(from.cols());
    let mut start = rows.start;
    while start < rows.end {
        let end = rows.end.min(start.saturating_add(step));
        if pieces.next()? {
            let piece = from.rows_range(start..end);
            match piece.as_slice() {
                Some(slice) => to.extend_from_slice(slice),
                None => (0..piece.rows()).for_each(|i| to.extend_from_slice(piece.row(i))),
            }
        }
        start = end;
    }
    Ok(())
}

/// Copies rows to their place, piece by piece.
pub(super) fn place<T: Real>(
    from: Mat<T>,
    mut to: MatMut<T>,
    chunk: Chunk,
    pieces: &mut Pieces<'_>,
) -> Result<(), Stop> {
    check("rows of a rank", from.rows(), to.rows())?;
    let step = chunk.rows::<T>(to.cols());
    let mut start = 0;
    while start < from.rows() {
        let end = from.rows().min(start.saturating_add(step));
        if pieces.next()? {
            elementwise::copy(from.rows_range(start..end), to.rows_range_mut(start..end), Write::Set);
        }
        start = end;
    }
    Ok(())
}

/// The same of what was sent.
pub(super) fn place_part<T: Real>(
    sent: &Part<'_, T>,
    to: MatMut<T>,
    chunk: Chunk,
    pieces: &mut Pieces<'_>,
) -> Result<(), Stop> {
    let columns = to.cols();
    check("values of a rank", sent.reals.len(), sent.count * columns)?;
    place(Mat::new(sent.reals, sent.count, columns), to, chunk, pieces)
}
