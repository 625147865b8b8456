//! Checkpoints as they are read: held against their manifest, then piece by piece.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use fs_schedule::file::read_some;
use fs_schedule::terminal::shown;

use super::blocks::{Blocks, Digests};
use super::folder::{amiss, bad, is_whole, settled, step_of};
use super::lying::{Lying, Which};
use super::manifest::{FORMAT, LONGEST, MANIFEST, Manifest, Piece};
use crate::data::DataError;
use crate::data::error::cut;
use crate::data::tensorfile::{Dtype, TensorFile, TensorInfo};
use crate::error::Error;
use crate::weights::layout::{MOST_STEPS, PIECE, VERSION};

/// Bytes of the longest block, which is held in memory.
const LONGEST_BLOCK: u64 = 64 << 20;

/// A checkpoint whose files are there, of the lengths and with the tensors that its manifest says.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    pub path: PathBuf,
    pub manifest: Manifest,
    files: BTreeMap<String, TensorFile>,
}

/// The version of a manifest.
#[derive(serde::Deserialize)]
struct Version {
    format: u32,
}

/// The checkpoint that a path means: itself, or the newest one of the folder. If that one has lost its manifest, it is named and
/// not passed over: who goes on from an older one is to know it.
pub(crate) fn find(path: &Path) -> Result<PathBuf, Error> {
    let at = shown(path);
    let failed = |source| Error::Weights(format!("cannot read the checkpoints {at}: {source}"));
    if is_whole(path) {
        return Ok(path.into());
    }
    if path.is_file() {
        return Err(Error::Weights(format!(
            "{at} is no checkpoint: it is a file; --init starts a run from a file of values"
        )));
    }
    for (_, found) in settled(path).map_err(failed)? {
        if is_whole(&found) {
            return Ok(found);
        }
        if let Some(reason) = amiss(&found) {
            return Err(bad(&found, &reason));
        }
    }
    if step_of(path).is_some()
        && let Some(reason) = amiss(path)
    {
        return Err(bad(path, &reason));
    }
    Err(Error::Weights(format!(
        "there is no checkpoint in {at}; a run leaves some there with --checkpoint {at} --every 100"
    )))
}

impl Checkpoint {
    /// Opens one.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let bad = |reason: String| bad(path, &reason);
        let text = read_some(&path.join(MANIFEST), LONGEST)
            .map_err(|e| bad(format!("its {MANIFEST} cannot be read: {e}")))?;
        // First, because what else there is depends on it.
        let unread =
            |e: serde_json::Error| bad(format!("its {MANIFEST} is damaged: {}", cut(&e.to_string())));
        let Version { format } = serde_json::from_slice(&text).map_err(unread)?;
        if format != FORMAT {
            return Err(bad(format!(
                "its format has version {format}, this program reads version {FORMAT}: use the program that wrote it"
            )));
        }
        let manifest: Manifest = serde_json::from_slice(&text).map_err(unread)?;
        if !manifest.is_whole(&text) {
            return Err(bad(format!("its {MANIFEST} is damaged: it has not the SHA-256 that it says")));
        }
        let (step, version) = (manifest.about.step, manifest.about.version);
        if version > VERSION {
            let by = cut(&manifest.about.program);
            return Err(bad(format!(
                "its values have version {version}, this program reads up to {VERSION}: {by} wrote it"
            )));
        }
        if step > MOST_STEPS {
            return Err(bad(format!("it says that it was trained for {step} steps")));
        }
        if let Some(named) = step_of(path).filter(|named| *named != step) {
            return Err(bad(format!(
                "its name says step {named} and its {MANIFEST} step {step}; give it its name back"
            )));
        }
        let mut files = BTreeMap::new();
        for (name, of) in &manifest.files {
            if name.contains(['/', '\\']) || name.starts_with('.') {
                return Err(bad(format!("it names a file `{}` elsewhere", cut(name))));
            }
            // What is said of data files would lead elsewhere.
            let unread = |error: DataError| match error {
                DataError::Io { source, .. } => {
                    bad(format!("its file `{}` cannot be read: {source}", cut(name)))
                }
                DataError::Directory { .. } => bad(format!("its file `{}` is a folder", cut(name))),
                DataError::Empty { .. } => bad(format!("its file `{}` is empty", cut(name))),
                DataError::NotTensors { reason, .. } => {
                    bad(format!("its file `{}` is not a safetensors file: {reason}", cut(name)))
                }
                other => bad(other.to_string()),
            };
            let file = TensorFile::open(&path.join(name)).map_err(unread)?;
            let bytes = file.bytes();
            if bytes != of.bytes {
                return Err(bad(format!("its file `{name}` has {bytes} bytes instead of {}", of.bytes)));
            }
            files.insert(name.clone(), file);
        }
        let checkpoint = Self { path: path.into(), manifest, files };
        checkpoint.check()?;
        Ok(checkpoint)
    }

    /// Holds the pieces of each tensor against it: each element is in one of them.
    fn check(&self) -> Result<(), Error> {
        let bad = |reason: String| Err(bad(&self.path, &reason));
        self.check_digests()?;
        let (order, tensors) = (&self.manifest.order, &self.manifest.tensors);
        if order.len() != tensors.len()
            || !order.iter().collect::<BTreeSet<_>>().into_iter().eq(tensors.keys())
        {
            return bad("the order of its tensors is not one of them".into());
        }
        // Which numbers of rows were looked at: all tensors of a table have the same.
        let mut numbered: BTreeSet<Vec<(&str, &str)>> = BTreeSet::new();
        for (name, tensor) in &self.manifest.tensors {
            let name = cut(name);
            let rows = tensor.shape.first().copied().unwrap_or(0) as u64;
            let columns = tensor.shape.iter().skip(1).fold(1usize, |all, n| all.saturating_mul(*n));
            let whole = rows.saturating_mul(columns as u64);
            if tensor.shape.iter().try_fold(1usize, |all, n| all.checked_mul((*n).max(1))).is_none() {
                return bad(format!("the shape of `{name}` is too large"));
            }
            let mut elements = 0u64;
            for piece in &tensor.pieces {
                let Some(info) = self.info(piece) else {
                    let (file, own) = (cut(&piece.file), cut(&piece.name));
                    return bad(format!("its file `{file}` lacks `{own}`, a part of `{name}`"));
                };
                let [from, to] = piece.columns;
                let own = info.shape.first().copied().unwrap_or(0) as u64;
                let width: usize = info.shape.iter().skip(1).product();
                let fits = from < to.max(1) && to <= columns && to - from == width;
                let has = match (piece.rows, &piece.numbers) {
                    (Some([first, last]), None) => first <= last && last <= rows && last - first == own,
                    (None, Some(numbers)) => {
                        self.files.get(&piece.file).and_then(|file| file.get(numbers)).is_some_and(|of| {
                            of.dtype == Dtype::I64 && of.elements() as u64 == own && own <= rows
                        })
                    }
                    _ => false,
                };
                let dtype = format!("{:?}", info.dtype);
                if !fits || !has || dtype != tensor.dtype {
                    let found = info.describe();
                    return bad(format!(
                        "its file `{}` has {found} for a part of `{name}`",
                        cut(&piece.file)
                    ));
                }
                elements += own * width as u64;
            }
            if elements != whole {
                return bad(format!("its files have {elements} of {whole} elements of `{name}`"));
            }
            if tensor.pieces.iter().any(|piece| piece.numbers.is_some()) {
                let of = |piece: &'_ Piece| piece.columns == [0, columns.max(1)] && piece.numbers.is_some();
                let all = tensor.pieces.iter().all(of);
                let numbers: Vec<(&str, &str)> = tensor
                    .pieces
                    .iter()
                    .filter_map(|piece| Some((piece.file.as_str(), piece.numbers.as_deref()?)))
                    .collect();
                if !all || (!numbered.contains(&numbers) && !self.each_once(&numbers, rows)?) {
                    return bad(format!("its files do not have each row of `{name}` once"));
                }
                numbered.insert(numbers);
            } else if overlap(&tensor.pieces) {
                return bad(format!("its files have parts of `{name}` twice"));
            }
        }
        Ok(())
    }

    /// Holds what is said of bytes against the files: of each block of each tensor something is said.
    fn check_digests(&self) -> Result<(), Error> {
        let block = self.manifest.block;
        if !(8..=LONGEST_BLOCK).contains(&block) || !block.is_multiple_of(8) {
            return Err(bad(&self.path, &format!("its blocks have {block} bytes")));
        }
        for (name, says) in &self.manifest.files {
            let Some(file) = self.files.get(name) else { continue };
            let blocks = |tensor: &str| file.get(tensor).map(|info| info.bytes().div_ceil(block));
            let said = |tensor: &str| says.sha256.get(tensor).map(|of| of.len() as u64);
            let both = file.names().into_iter().chain(says.sha256.keys().cloned());
            if let Some(other) = both.into_iter().find(|tensor| blocks(tensor) != said(tensor)) {
                let reason =
                    format!("`{}` in its file `{}` is not what its digests are of", cut(&other), cut(name));
                return Err(bad(&self.path, &reason));
            }
        }
        Ok(())
    }

    /// Whether these tensors have each number of so many rows once.
    fn each_once(&self, numbers: &[(&str, &str)], rows: u64) -> Result<bool, Error> {
        let numbered =
            |(file, name): &(&str, &str)| self.files.get(*file)?.get(name).map(|info| info.elements() as u64);
        // Before there is room for them, so that there are as many as there are bytes.
        if numbers.iter().filter_map(numbered).sum::<u64>() != rows {
            return Ok(false);
        }
        let mut seen = vec![false; rows as usize];
        let mut some = Vec::<i64>::new();
        for (file, name) in numbers {
            let Some(mut blocks) = self.blocks(file, name) else { return Ok(false) };
            let len = blocks.info().elements();
            for start in (0..len).step_by(PIECE) {
                some.clear();
                blocks.elements(start..len.min(start + PIECE), &mut some)?;
                for row in &some {
                    let place = usize::try_from(*row).ok().and_then(|row| seen.get_mut(row));
                    if place.is_none_or(|place| std::mem::replace(place, true)) {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(seen.into_iter().all(|seen| seen))
    }

    fn info(&self, piece: &Piece) -> Option<&TensorInfo> {
        self.files.get(&piece.file)?.get(&piece.name)
    }

    /// A tensor's type and shape as a whole.
    pub(crate) fn get(&self, name: &str) -> Option<TensorInfo> {
        let tensor = self.manifest.tensors.get(name)?;
        let dtype = [Dtype::F32, Dtype::F64, Dtype::I64, Dtype::U8];
        let dtype = dtype.into_iter().find(|dtype| format!("{dtype:?}") == tensor.dtype)?;
        Some(TensorInfo::whole(dtype, tensor.shape.clone()))
    }

    /// Names of all tensors.
    pub(crate) fn names(&self) -> Vec<String> {
        self.manifest.tensors.keys().cloned().collect()
    }

    /// What a tensor is made of.
    pub(crate) fn pieces(&self, name: &str) -> &[Piece] {
        self.manifest.tensors.get(name).map_or(&[], |tensor| &tensor.pieces)
    }

    /// What of a tensor a piece has.
    pub(in crate::weights) fn lying<'a>(&'a self, piece: &'a Piece) -> Option<Lying<'a>> {
        let file = self.files.get(&piece.file)?;
        let of = |name: &'a str| Some((file.get(name)?, self.digests(&piece.file, name)));
        let which = match (piece.rows, &piece.numbers) {
            (Some([first, _]), _) => Which::From(first),
            (None, numbers) => {
                let (info, digests) = of(numbers.as_deref()?)?;
                Which::Numbers(info, digests)
            }
        };
        Some(Lying::new(file, of(&piece.name)?, which, piece.columns[0]))
    }

    /// What is said of the bytes of a file's tensor.
    fn digests<'a>(&'a self, file: &'a str, tensor: &'a str) -> Option<Digests<'a>> {
        let of = self.manifest.files.get(file)?.sha256.get(tensor)?;
        Some(Digests { of, block: self.manifest.block, names: (&self.path, file, tensor) })
    }

    /// A file's tensor, held against its digests.
    pub(in crate::weights) fn blocks<'a>(&'a self, file: &'a str, tensor: &'a str) -> Option<Blocks<'a>> {
        let of = self.files.get(file)?;
        Some(Blocks::new(of, of.get(tensor)?, self.digests(file, tensor)))
    }

    /// Holds all bytes against the digests.
    pub(crate) fn verify(&self) -> Result<(), Error> {
        for (name, says) in &self.manifest.files {
            for tensor in says.sha256.keys() {
                let blocks = self.blocks(name, tensor);
                blocks.map_or(Ok(()), |mut blocks| blocks.verify())?;
            }
        }
        Ok(())
    }
}

/// Whether two pieces have a row and a column in common.
fn overlap(pieces: &[Piece]) -> bool {
    let area = |piece: &Piece| Some((piece.rows?, piece.columns));
    let mut areas: Vec<_> = pieces.iter().filter_map(area).collect();
    areas.retain(|(rows, columns)| rows[0] < rows[1] && columns[0] < columns[1]);
    areas.sort_unstable();
    // Those that reach to the row that is looked at: no two have a column in common, so there are few.
    let mut open: Vec<([u64; 2], [usize; 2])> = Vec::new();
    areas.into_iter().any(|(rows, columns)| {
        open.retain(|(other, _)| other[1] > rows[0]);
        let common = open.iter().any(|(_, other)| columns[0].max(other[0]) < columns[1].min(other[1]));
        open.push((rows, columns));
        common
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_overlap_if_an_element_is_twice(
            areas in prop::collection::vec((0u64..6, 0u64..4, 0usize..4, 0usize..3), 0..7)
        ) {
            let piece = |(row, rows, column, columns): (u64, u64, usize, usize)| Piece {
                file: String::new(),
                name: String::new(),
                rows: Some([row, row + rows]),
                numbers: None,
                columns: [column, column + columns],
            };
            let pieces: Vec<Piece> = areas.into_iter().map(piece).collect();
            let mut times = [[0; 8]; 10];
            for piece in &pieces {
                let [first, last] = piece.rows.unwrap_or_default();
                for row in &mut times[first as usize..last as usize] {
                    row[piece.columns[0]..piece.columns[1]].iter_mut().for_each(|n| *n += 1);
                }
            }
            prop_assert_eq!(overlap(&pieces), times.iter().flatten().any(|n| *n > 1));
        }
    }
}
