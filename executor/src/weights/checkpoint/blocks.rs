//! Bytes of a file's tensor, held against their digests as they are read.

use std::ops::Range;
use std::path::Path;

use sha2::{Digest as _, Sha256};

use super::folder::bad;
use super::manifest::hex;
use crate::data::error::cut;
use crate::data::tensorfile::{Element, TensorFile, TensorInfo};
use crate::error::Error;

/// What a checkpoint says of the bytes of a tensor of a file.
#[derive(Debug, Clone, Copy)]
pub(in crate::weights) struct Digests<'a> {
    /// SHA-256 of each block.
    pub of: &'a [String],
    /// Bytes of a block.
    pub block: u64,
    /// The checkpoint, the file's name and the tensor's.
    pub names: (&'a Path, &'a str, &'a str),
}

/// Reads a tensor. Where it has digests, whole blocks are read, each once if it is read in order.
#[derive(Debug)]
pub(in crate::weights) struct Blocks<'a> {
    file: &'a TensorFile,
    info: &'a TensorInfo,
    digests: Option<Digests<'a>>,
    /// Which block is held.
    held: Option<u64>,
    block: Vec<u8>,
    bytes: Vec<u8>,
}

impl<'a> Blocks<'a> {
    pub(in crate::weights) fn new(
        file: &'a TensorFile,
        info: &'a TensorInfo,
        digests: Option<Digests<'a>>,
    ) -> Self {
        Self { file, info, digests, held: None, block: Vec::new(), bytes: Vec::new() }
    }

    /// The tensor.
    pub(in crate::weights) fn info(&self) -> &'a TensorInfo {
        self.info
    }

    /// The file.
    pub(in crate::weights) fn path(&self) -> &'a Path {
        self.file.path()
    }

    /// Some of its bytes.
    pub(in crate::weights) fn bytes(&mut self, range: Range<u64>) -> Result<&[u8], Error> {
        let Some(digests) = self.digests else {
            self.file.read_bytes(self.info, range, &mut self.bytes)?;
            return Ok(&self.bytes);
        };
        let part = |block: u64| {
            let (from, to) = (block * digests.block, (block + 1) * digests.block);
            (range.start.max(from) - from) as usize..(range.end.min(to) - from) as usize
        };
        let blocks = range.start / digests.block..range.end.div_ceil(digests.block);
        if blocks.end - blocks.start == 1 {
            self.hold(digests, blocks.start)?;
            return Ok(&self.block[part(blocks.start)]);
        }
        self.bytes.clear();
        for block in blocks {
            self.hold(digests, block)?;
            self.bytes.extend_from_slice(&self.block[part(block)]);
        }
        Ok(&self.bytes)
    }

    /// Appends some of its elements.
    pub(in crate::weights) fn elements<E: Element>(
        &mut self,
        range: Range<usize>,
        out: &mut Vec<E>,
    ) -> Result<(), Error> {
        let size = E::SIZE as u64;
        let bytes = self.bytes(range.start as u64 * size..range.end as u64 * size)?;
        out.extend(bytes.chunks_exact(E::SIZE).map(E::decode));
        Ok(())
    }

    /// Reads all of it, for its digests alone.
    pub(in crate::weights) fn verify(&mut self) -> Result<(), Error> {
        let Some(digests) = self.digests else { return Ok(()) };
        (0..self.info.bytes().div_ceil(digests.block)).try_for_each(|block| self.hold(digests, block))
    }

    fn hold(&mut self, digests: Digests<'_>, block: u64) -> Result<(), Error> {
        if self.held == Some(block) {
            return Ok(());
        }
        self.held = None;
        let from = block * digests.block;
        self.file.read_bytes(
            self.info,
            from..self.info.bytes().min(from + digests.block),
            &mut self.block,
        )?;
        let found = hex(&Sha256::digest(&self.block));
        if digests.of.get(block as usize) != Some(&found) {
            let (checkpoint, file, tensor) = digests.names;
            let reason = format!(
                "`{}` in its file `{}` is damaged: it has not the SHA-256 that the manifest says",
                cut(tensor),
                cut(file)
            );
            return Err(bad(checkpoint, &reason));
        }
        self.held = Some(block);
        Ok(())
    }
}
