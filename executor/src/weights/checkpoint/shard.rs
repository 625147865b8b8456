//! The files of a checkpoint: tensors whose places are known from the start, so that rows can be written as they are taken.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use fs_kernels::Real;
use sha2::{Digest as _, Sha256};

use super::manifest::{BLOCK, FileOf, hex};
use crate::weights::header::{Planned, bytes, head};

/// A safetensors file that is being written.
pub(crate) struct Shard {
    file: File,
    tensors: Vec<Begun>,
    bytes: u64,
}

/// A tensor of which some is written.
struct Begun {
    name: String,
    /// Where its next bytes go, and where it ends.
    at: u64,
    end: u64,
    /// Of the blocks that are whole, and of the one that is not, with its bytes so far.
    digests: Vec<String>,
    digest: Sha256,
    block: u64,
}

impl Begun {
    fn count(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (head, rest) = bytes.split_at(bytes.len().min((BLOCK - self.block) as usize));
            self.digest.update(head);
            self.block += head.len() as u64;
            if self.block == BLOCK {
                self.close();
            }
            bytes = rest;
        }
    }

    fn close(&mut self) {
        self.digests.push(hex(&std::mem::take(&mut self.digest).finalize()));
        self.block = 0;
    }
}

impl Shard {
    /// Begins a file of these tensors.
    pub(crate) fn create(path: &Path, planned: &[Planned]) -> io::Result<Self> {
        let head = head(planned, None)?;
        let file = File::create_new(path)?;
        file.write_all_at(&head, 0)?;
        let mut at = head.len() as u64;
        let begun = |tensor: &Planned| {
            let from = at;
            at += bytes(tensor);
            Begun {
                name: tensor.0.clone(),
                at: from,
                end: at,
                digests: Vec::new(),
                digest: Sha256::new(),
                block: 0,
            }
        };
        let tensors = planned.iter().map(begun).collect();
        Ok(Self { file, tensors, bytes: at })
    }

    /// Appends bytes to the nth tensor.
    pub(crate) fn append(&mut self, tensor: usize, bytes: &[u8]) -> io::Result<()> {
        let own = &mut self.tensors[tensor];
        if own.end - own.at < bytes.len() as u64 {
            let message = format!("`{}` has more values than room", own.name);
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        own.count(bytes);
        self.file.write_all_at(bytes, own.at)?;
        own.at += bytes.len() as u64;
        Ok(())
    }

    /// The same of numbers; `bytes` is scratch.
    pub(crate) fn append_reals<T: Real>(
        &mut self,
        tensor: usize,
        values: &[T],
        bytes: &mut Vec<u8>,
    ) -> io::Result<()> {
        bytes.clear();
        T::write_le(values, bytes);
        self.append(tensor, bytes)
    }

    /// Makes the file durable.
    pub(crate) fn finish(self) -> io::Result<FileOf> {
        if let Some(short) = self.tensors.iter().find(|t| t.at != t.end) {
            let message = format!("`{}` lacks {} bytes", short.name, short.end - short.at);
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        self.file.sync_all()?;
        let closed = |mut t: Begun| {
            if t.block > 0 {
                t.close();
            }
            (t.name, t.digests)
        };
        let sha256: BTreeMap<String, Vec<String>> = self.tensors.into_iter().map(closed).collect();
        Ok(FileOf { bytes: self.bytes, sha256 })
    }
}
