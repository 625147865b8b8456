//! Reading and writing safetensors files piece by piece, so that tables larger than memory's free half still load.
//!
//! Reads are positioned reads of the ranges asked for: constant memory, and a file that shrinks meanwhile is an
//! error instead of a signal, as it would be with a mapping.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

pub use safetensors::tensor::Dtype;
use safetensors::tensor::Metadata;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::DataError;
use super::digest::Digest;
use super::error::cut;

/// An open file and where its tensors lie.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    file: File,
    size: u64,
    tensors: BTreeMap<String, TensorInfo>,
    metadata: BTreeMap<String, String>,
}

/// A tensor's type, shape and place.
#[derive(Debug, Clone)]
pub struct TensorInfo {
    /// Element type.
    pub dtype: Dtype,
    /// Extents.
    pub shape: Vec<usize>,
    start: u64,
}

impl TensorInfo {
    /// Of a tensor that lies in several files.
    pub fn whole(dtype: Dtype, shape: Vec<usize>) -> Self {
        Self { dtype, shape, start: 0 }
    }

    /// Bytes of its elements.
    pub fn bytes(&self) -> u64 {
        (self.elements() * self.dtype.bitsize() / 8) as u64
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// For messages: `F32 [2, 3]`.
    pub fn describe(&self) -> String {
        const EXTENTS: usize = 8;
        let shown: Vec<String> = self.shape.iter().take(EXTENTS).map(ToString::to_string).collect();
        let rest = self.shape.len() - shown.len();
        let rest = if rest > 0 { format!(", and {rest} more") } else { String::new() };
        format!("{:?} [{}{rest}]", self.dtype, shown.join(", "))
    }
}

/// Element types that are read.
pub trait Element: Copy + Default {
    /// The type's name in a file.
    const DTYPE: Dtype;
    /// Bytes of one.
    const SIZE: usize;
    /// From little-endian bytes.
    fn decode(bytes: &[u8]) -> Self;
}

macro_rules! element {
    ($t:ty, $dtype:ident) => {
        impl Element for $t {
            const DTYPE: Dtype = Dtype::$dtype;
            const SIZE: usize = size_of::<$t>();
            fn decode(bytes: &[u8]) -> Self {
                bytes.try_into().map_or(Default::default(), <$t>::from_le_bytes)
            }
        }
    };
}
element!(f32, F32);
element!(f64, F64);
element!(i32, I32);
element!(i64, I64);
element!(u8, U8);

impl TensorFile {
    /// Of its tensors' names, types and shapes, its length, and blocks all over it: all of a file of up to a megabyte.
    pub fn digest(&self) -> Result<String, DataError> {
        const BLOCK: u64 = 4096;
        const BLOCKS: u64 = 256;
        let io = |source| DataError::Io { path: self.path.clone(), source };
        let mut digest = Digest::new();
        for (name, info) in &self.tensors {
            digest.bytes(name.as_bytes());
            digest.bytes(info.describe().as_bytes());
        }
        let size = self.file.metadata().map_err(io)?.len();
        digest.number(size);
        let mut block = [0; BLOCK as usize];
        let blocks = size.div_ceil(BLOCK);
        let read = blocks.min(BLOCKS);
        for n in 0..read {
            // Evenly, with the first and the last one.
            let at = (u128::from(n) * u128::from(blocks - 1) / u128::from(read - 1).max(1)) as u64 * BLOCK;
            let part = &mut block[..BLOCK.min(size.saturating_sub(at)) as usize];
            self.file.read_exact_at(part, at).map_err(io)?;
            digest.bytes(part);
        }
        Ok(digest.text())
    }

    /// Opens a file and reads its header.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let io = |source| DataError::Io { path: path.into(), source };
        let not = |reason: String| DataError::NotTensors { path: path.into(), reason };
        // Before it is opened: that of a pipe waits for whoever fills it.
        let metadata = std::fs::metadata(path).map_err(io)?;
        if metadata.is_dir() {
            return Err(DataError::Directory { path: path.into() });
        }
        if !metadata.is_file() {
            return Err(not("tensors are read from their places, so it must be a plain file".into()));
        }
        let file = File::open(path).map_err(io)?;
        let size = file.metadata().map_err(io)?.len();
        if size == 0 {
            return Err(DataError::Empty { path: path.into() });
        }
        let mut head = [0; 8];
        if size < 8 {
            return Err(not(format!("it has {size} bytes")));
        }
        file.read_exact_at(&mut head, 0).map_err(io)?;
        let length = u64::from_le_bytes(head);
        if length > size - 8 {
            return Err(not("its header is longer than the file".into()));
        }
        if length > LONGEST_HEADER {
            return Err(not(format!("its header has {length} bytes, more than {LONGEST_HEADER}")));
        }
        let mut header = vec![0; length as usize];
        file.read_exact_at(&mut header, 8).map_err(io)?;
        let metadata: Metadata = serde_json::from_slice(&header).map_err(|e| not(cut(&e.to_string())))?;
        if let Some(name) = repeated(&header) {
            return Err(not(format!("it has `{}` twice", cut(&name))));
        }
        let begin = 8 + length;
        let mut tensors = BTreeMap::new();
        let mut found: Vec<_> = metadata.tensors().into_iter().collect();
        found.sort_by(|a, b| a.0.cmp(&b.0));
        for (name, info) in found {
            if begin + info.data_offsets.1 as u64 > size {
                return Err(not(format!(
                    "tensor `{}` lies beyond its end; the file was cut off",
                    cut(&name)
                )));
            }
            let start = begin + info.data_offsets.0 as u64;
            tensors.insert(name, TensorInfo { dtype: info.dtype, shape: info.shape.clone(), start });
        }
        let end = begin + metadata.data_len() as u64;
        if size > end {
            return Err(not(format!("{} bytes follow its last tensor", size - end)));
        }
        let metadata = metadata.metadata().clone().into_iter().flatten().collect();
        Ok(Self { path: path.into(), file, size, tensors, metadata })
    }

    /// Length of the file, as it is by its header.
    pub fn bytes(&self) -> u64 {
        self.size
    }

    /// Replaces `out` by some bytes of a tensor.
    pub fn read_bytes(
        &self,
        info: &TensorInfo,
        range: std::ops::Range<u64>,
        out: &mut Vec<u8>,
    ) -> Result<(), DataError> {
        out.resize((range.end - range.start) as usize, 0);
        self.read_into(info, range.start, out)
    }

    /// Fills `out` with a tensor's bytes from a place on.
    pub fn read_into(&self, info: &TensorInfo, from: u64, out: &mut [u8]) -> Result<(), DataError> {
        let failed = |source: io::Error| DataError::Io { path: self.path.clone(), source };
        self.file.read_exact_at(out, info.start + from).map_err(failed)
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A text of the header's `__metadata__`, if there.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).map(String::as_str)
    }

    /// A tensor, if there.
    pub fn get(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// Names of all tensors.
    pub fn names(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }

    /// Names of all tensors, by their places in the file.
    pub fn in_order(&self) -> Vec<String> {
        let mut names: Vec<(u64, u64, &String)> =
            self.tensors.iter().map(|(name, info)| (info.start, info.bytes(), name)).collect();
        names.sort_unstable();
        names.into_iter().map(|(.., name)| name.clone()).collect()
    }

    /// A tensor that must be there with this element type.
    pub fn expect<E: Element>(&self, name: &str, shape: &str) -> Result<&TensorInfo, DataError> {
        let info = self.get(name).ok_or_else(|| DataError::MissingTensor {
            path: self.path.clone(),
            name: name.into(),
            names: self.names(),
        })?;
        if info.dtype == E::DTYPE {
            Ok(info)
        } else {
            Err(self.mismatch(name, info, &format!("{:?} {shape}", E::DTYPE)))
        }
    }

    /// The error that `info` is not what was expected.
    pub fn mismatch(&self, name: &str, info: &TensorInfo, expected: &str) -> DataError {
        DataError::Tensor {
            path: self.path.clone(),
            name: name.into(),
            found: info.describe(),
            expected: expected.into(),
        }
    }

    /// Appends elements `[first, first + count)` of a tensor to `out`; `bytes` is scratch.
    pub fn read<E: Element>(
        &self,
        info: &TensorInfo,
        first: usize,
        count: usize,
        bytes: &mut Vec<u8>,
        out: &mut Vec<E>,
    ) -> Result<(), DataError> {
        bytes.resize(count * E::SIZE, 0);
        let at = info.start + (first * E::SIZE) as u64;
        let failed = |source: io::Error| DataError::Io { path: self.path.clone(), source };
        self.file.read_exact_at(bytes, at).map_err(failed)?;
        out.extend(bytes.chunks_exact(E::SIZE).map(E::decode));
        Ok(())
    }
}

/// Bytes of the longest header, as the format's own readers have it.
const LONGEST_HEADER: u64 = 100 << 20;

/// A name that a header has twice, of a tensor or within one's entry; reading it into a map keeps the last one only.
fn repeated(header: &[u8]) -> Option<String> {
    struct Names(Option<String>);
    impl<'de> Deserialize<'de> for Names {
        fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
            d.deserialize_map(Keys { nested: true })
        }
    }
    struct Inner(Option<String>);
    impl<'de> Deserialize<'de> for Inner {
        fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
            d.deserialize_map(Keys { nested: false }).map(|Names(twice)| Self(twice))
        }
    }
    struct Keys {
        /// Values are maps too.
        nested: bool,
    }
    impl<'de> Visitor<'de> for Keys {
        type Value = Names;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a header")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Names, A::Error> {
            let (mut seen, mut twice) = (BTreeSet::new(), None);
            while let Some(name) = map.next_key::<String>()? {
                let within = if self.nested {
                    map.next_value::<Inner>()?.0
                } else {
                    map.next_value::<IgnoredAny>()?;
                    None
                };
                twice = twice.or(within);
                if twice.is_none() && seen.contains(&name) {
                    twice = Some(name.clone());
                }
                seen.insert(name);
            }
            Ok(Names(twice))
        }
    }
    serde_json::from_slice::<Names>(header).ok()?.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_told_up_to_a_few() {
        let said = |shape: Vec<usize>| TensorInfo { dtype: Dtype::F32, shape, start: 0 }.describe();
        assert_eq!(said(vec![]), "F32 []");
        assert_eq!(said(vec![2, 3]), "F32 [2, 3]");
        assert_eq!(said(vec![1; 100_000]), "F32 [1, 1, 1, 1, 1, 1, 1, 1, and 99992 more]");
    }
}
