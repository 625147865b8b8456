//! What a checkpoint says of itself, and of each of its files: `manifest.json`, which is written last.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use fs_kernels::Real;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::weights::header::Planned;
use crate::weights::layout::{About, Run};

/// The file's name. A folder without it is no checkpoint.
pub(crate) const MANIFEST: &str = "manifest.json";
/// The format of checkpoints written now.
pub(crate) const FORMAT: u32 = 1;
/// Bytes of a tensor that have a digest of their own, so that a part of it can be read and verified.
pub(crate) const BLOCK: u64 = 4 << 20;
/// Bytes of the longest manifest that is read.
pub(crate) const LONGEST: u64 = 256 << 20;

/// A checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// SHA-256 of the text with zeros in this place.
    pub digest: String,
    /// The format's version.
    pub format: u32,
    /// What files of values say of themselves: program, model, shape, seed, step, vocabularies.
    pub about: About,
    /// What it says of the run that left it.
    #[serde(flatten)]
    pub run: Run,
    /// Names of the tensors in the order that a file of all of them has.
    pub order: Vec<String>,
    /// Bytes that have a digest of their own.
    pub block: u64,
    /// Tensors that are whole once all their pieces are put together.
    pub tensors: BTreeMap<String, Tensor>,
    /// The files, by name.
    pub files: BTreeMap<String, FileOf>,
}

/// In the place of a digest.
const UNSEALED: &str = "0000000000000000000000000000000000000000000000000000000000000000";

impl Manifest {
    /// The text of the file, with its digest.
    pub(crate) fn seal(mut self) -> serde_json::Result<Vec<u8>> {
        UNSEALED.clone_into(&mut self.digest);
        let mut text = serde_json::to_string_pretty(&self)?;
        text.push('\n');
        let digest = hex(&Sha256::digest(&text));
        if text.len() as u64 > LONGEST {
            return Err(serde::ser::Error::custom(format!("its manifest is longer than {LONGEST} bytes")));
        }
        Ok(text.replacen(UNSEALED, &digest, 1).into_bytes())
    }

    /// Whether a text that it was read from is as it was written.
    pub(crate) fn is_whole(&self, text: &[u8]) -> bool {
        let (own, len) = (self.digest.as_bytes(), UNSEALED.len());
        let Some(at) = text.windows(len).position(|part| part == own) else { return false };
        let mut digest = Sha256::new();
        digest.update(&text[..at]);
        digest.update(UNSEALED);
        digest.update(&text[at + len..]);
        hex(&digest.finalize()) == self.digest
    }
}

/// A tensor of the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tensor {
    /// Its element type, as in safetensors files.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// What it is made of.
    pub pieces: Vec<Piece>,
}

impl Tensor {
    /// Of a tensor that a file has whole, under its own name.
    pub(crate) fn whole(file: &str, (name, dtype, shape): &Planned) -> Self {
        let piece = Piece {
            file: file.into(),
            name: name.clone(),
            rows: Some([0, shape.first().map_or(0, |n| *n as u64)]),
            numbers: None,
            columns: [0, shape.iter().skip(1).product()],
        };
        Self { dtype: format!("{dtype:?}"), shape: shape.clone(), pieces: vec![piece] }
    }
}

/// What a file has of a tensor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Piece {
    /// The file.
    pub file: String,
    /// The tensor's name there.
    pub name: String,
    /// First of its rows and the one after its last; without them it says in the tensor [`numbers`](Self::numbers) which it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<[u64; 2]>,
    /// A tensor of that file: the number of each row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numbers: Option<String>,
    /// First of its columns and the one after its last, of tensors with columns.
    pub columns: [usize; 2],
}

/// A file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileOf {
    /// Its length.
    pub bytes: u64,
    /// SHA-256 of each [`BLOCK`] of a tensor's bytes, by its name there; the last block may be shorter.
    pub sha256: BTreeMap<String, Vec<String>>,
}

/// What a process has written: its part of a manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    /// Pieces of tensors.
    pub tensors: BTreeMap<String, Tensor>,
    /// Its files.
    pub files: BTreeMap<String, FileOf>,
    /// Why no run would go on from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unusable: Option<String>,
}

impl Part {
    /// Looks at numbers of a tensor: those that are not finite are never read again.
    pub(crate) fn look<T: Real>(&mut self, name: &str, values: &[T]) {
        if self.unusable.is_none() && values.iter().any(|x| !x.to_f64().is_finite()) {
            self.unusable = Some(format!("`{name}` has numbers that are not finite"));
        }
    }

    /// Takes in what another has written.
    pub(crate) fn join(&mut self, other: Part) {
        for (name, tensor) in other.tensors {
            match self.tensors.get_mut(&name) {
                Some(own) => own.pieces.extend(tensor.pieces),
                None => {
                    self.tensors.insert(name, tensor);
                }
            }
        }
        self.files.extend(other.files);
        self.unusable = self.unusable.take().or(other.unusable);
    }
}

/// A digest as hexadecimal digits.
pub(crate) fn hex(digest: &[u8]) -> String {
    digest.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
