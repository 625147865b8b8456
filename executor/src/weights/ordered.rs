//! A tensor's rows in order, wherever they lie.

use std::ops::Range;

use super::checkpoint::lying::{Lying, Which};
use super::origin::Origin;
use crate::data::tensorfile::TensorInfo;
use crate::error::Error;

/// Reads a tensor by rows. Bytes are not held against digests: rows of hashed tables are read one by one.
pub(super) struct Ordered<'a> {
    info: TensorInfo,
    pieces: Vec<Lying<'a>>,
    /// Of pieces whose rows are in no order: which has each row, and where.
    index: Vec<(u32, u64)>,
    rows: u64,
    /// Bytes of an element.
    size: usize,
}

impl<'a> Ordered<'a> {
    /// Of a tensor; `None` if there is none of that name.
    pub(super) fn new(origin: &'a Origin, name: &str) -> Result<Option<Self>, Error> {
        let Some(info) = origin.get(name) else { return Ok(None) };
        if !info.dtype.bitsize().is_multiple_of(8) {
            let expected = "elements of whole bytes";
            return Err(origin.mismatch(name, &info, expected).into());
        }
        let pieces = origin.lying(name);
        let rows = info.shape.first().copied().unwrap_or(1) as u64;
        let size = info.dtype.bitsize() / 8;
        let mut index = Vec::new();
        for (p, piece) in pieces.iter().enumerate() {
            let Some(mut numbers) = piece.numbers() else { continue };
            index.resize(rows as usize, (0, 0));
            let mut which: Vec<i64> = Vec::new();
            numbers.elements(0..piece.rows as usize, &mut which)?;
            for (at, row) in which.into_iter().enumerate() {
                // That each row is there once was looked at when it was opened.
                if let Some(place) = usize::try_from(row).ok().and_then(|row| index.get_mut(row)) {
                    *place = (p as u32, at as u64);
                }
            }
        }
        Ok(Some(Self { info, pieces, index, rows, size }))
    }

    /// Type and shape.
    pub(super) fn info(&self) -> &TensorInfo {
        &self.info
    }

    /// Hands over the bytes of all rows in order, in pieces of about so many bytes.
    pub(super) fn blocks(&self, bytes: usize) -> impl Iterator<Item = Range<u64>> + use<> {
        // Rows without elements are not read.
        let rows = if self.row() == 0 { 0 } else { self.rows };
        let each = (bytes / self.row().max(1)).max(1) as u64;
        (0..rows.div_ceil(each)).map(move |n| n * each..rows.min((n + 1) * each))
    }

    /// Bytes of a row.
    fn row(&self) -> usize {
        self.info.shape.iter().skip(1).product::<usize>() * self.size
    }

    /// Replaces `out` by the bytes of some rows.
    pub(super) fn read(&self, rows: &Range<u64>, out: &mut Vec<u8>) -> Result<(), Error> {
        let whole = self.row();
        out.clear();
        out.resize((rows.end - rows.start) as usize * whole, 0);
        if !self.index.is_empty() {
            for (row, out) in rows.clone().zip(out.chunks_exact_mut(whole.max(1))) {
                let (piece, at) = self.index[row as usize];
                let from = at * whole as u64;
                self.pieces[piece as usize].raw(from, out)?;
            }
            return Ok(());
        }
        let mut bytes = Vec::new();
        for piece in &self.pieces {
            let Which::From(first) = piece.which else { continue };
            let (from, to) = (rows.start.max(first), rows.end.min(first + piece.rows));
            if from >= to {
                continue;
            }
            let own = piece.columns.max(1) * self.size;
            let target = &mut out[(from - rows.start) as usize * whole..(to - rows.start) as usize * whole];
            if own == whole {
                piece.raw((from - first) * own as u64, target)?;
                continue;
            }
            bytes.resize((to - from) as usize * own, 0);
            piece.raw((from - first) * own as u64, &mut bytes)?;
            let at = piece.column * self.size;
            for (target, row) in target.chunks_exact_mut(whole).zip(bytes.chunks_exact(own)) {
                target[at..at + own].copy_from_slice(row);
            }
        }
        Ok(())
    }
}
