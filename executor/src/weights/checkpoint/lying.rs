//! Where a part of a tensor lies: the rows and columns that one file has of it.

use super::blocks::{Blocks, Digests};
use crate::data::DataError;
use crate::data::tensorfile::{TensorFile, TensorInfo};

/// Rows and columns of a tensor that lie in one file.
#[derive(Debug, Clone, Copy)]
pub(in crate::weights) struct Lying<'a> {
    file: &'a TensorFile,
    pub(in crate::weights) info: &'a TensorInfo,
    digests: Option<Digests<'a>>,
    /// Which rows they are.
    pub which: Which<'a>,
    /// Number of rows.
    pub rows: u64,
    /// The first column.
    pub column: usize,
    /// Number of columns.
    pub columns: usize,
}

/// Numbers of rows.
#[derive(Debug, Clone, Copy)]
pub(in crate::weights) enum Which<'a> {
    /// From this one on.
    From(u64),
    /// Those that a tensor of the file says.
    Numbers(&'a TensorInfo, Option<Digests<'a>>),
}

impl<'a> Lying<'a> {
    /// From this column on, of these rows.
    pub(in crate::weights) fn new(
        file: &'a TensorFile,
        (info, digests): (&'a TensorInfo, Option<Digests<'a>>),
        which: Which<'a>,
        column: usize,
    ) -> Self {
        let rows = info.shape.first().copied().unwrap_or(1) as u64;
        Self { file, info, digests, which, rows, column, columns: info.shape.iter().skip(1).product() }
    }

    /// The values.
    pub(in crate::weights) fn values(&self) -> Blocks<'a> {
        Blocks::new(self.file, self.info, self.digests)
    }

    /// Fills `out` with the values' bytes from a place on, which are not held against digests.
    pub(in crate::weights) fn raw(&self, from: u64, out: &mut [u8]) -> Result<(), DataError> {
        self.file.read_into(self.info, from, out)
    }

    /// Numbers of rows, if they are not in order.
    pub(in crate::weights) fn numbers(&self) -> Option<Blocks<'a>> {
        match self.which {
            Which::From(_) => None,
            Which::Numbers(info, digests) => Some(Blocks::new(self.file, info, digests)),
        }
    }
}
