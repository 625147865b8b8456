//! Starting from a saved model.
//!
//! First a file is held against the model and the data ([`Loading::prepare`]): what of it can be used, and which rows
//! the data's ids have. Then, once devices are there, its values are copied into them ([`Loading::fill`]).

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use fs_kernels::Real;
use fs_schedule::Schedule;
use fs_schedule::terminal::shown;

use super::layout::{About, KEY, PIECE, SavedTensor, VERSION, What, entries, table_name, vocabulary_names};
use super::taken::{Ids, Taken};
use crate::data::error::{cut, some};
use crate::data::tensorfile::{Dtype, TensorFile, TensorInfo};
use crate::data::{DataError, Source, Vocabulary};
use crate::device::{Device, Env, Stored};
use crate::error::Error;
use crate::memory;
use crate::runtime::tables;

/// More steps than any run has.
const MOST_STEPS: u64 = 1 << 48;
/// Ids that are named in messages.
const NAMED: usize = 8;

/// A file that fits the model, before its values are read.
#[derive(Debug)]
pub(crate) struct Loading {
    file: TensorFile,
    copies: Vec<Copied>,
    /// What is used, and what not.
    pub taken: Taken,
    /// The file's vocabulary, where the data has none of its own.
    pub kept: Option<Arc<Vocabulary>>,
}

/// A tensor to be copied.
#[derive(Debug)]
struct Copied {
    entry: SavedTensor,
    /// Its name in the file.
    name: String,
    info: TensorInfo,
    /// Of a table: the rows that are taken.
    rows: [Range<u64>; 2],
}

/// Of a file's vocabulary and the data's: ids of the file, and of both together.
#[derive(Debug, Clone, Copy)]
struct Known {
    file: u64,
    all: u64,
}

impl Loading {
    /// Holds a file against the model, and gives the data's ids the rows that it says.
    ///
    /// Dense parameters are tensors `NAME`, tables `table.NAME`, their states follow after a `/`. A file that holds a
    /// whole run marks what training started from with `init.`: then only `init.NAME` and `init.table.NAME` are taken.
    /// Shapes must fit; a file with no values of the model is an error.
    pub(crate) fn prepare(schedule: &Schedule, path: &Path, source: &mut dyn Source) -> Result<Self, Error> {
        let file = TensorFile::open(path)?;
        let about = about(&file)?;
        let vocabulary = match &about {
            Some(about) => vocabulary(&file, about)?,
            None => None,
        };
        let by_id = match &about {
            Some(about) if vocabulary.is_some() && source.vocabulary().is_some() => {
                about.vocabulary.keys().cloned().collect()
            }
            _ => BTreeSet::new(),
        };
        let (ids, known, kept) = adopt(vocabulary, source)?;
        let whole_run = file.names().iter().any(|n| n.starts_with("init."));
        let tensor = |name: &str| if whole_run { format!("init.{name}") } else { name.to_owned() };
        // Of a whole run only the start could have been taken; the rest is not left over. Vocabularies are no values.
        let offered = file
            .names()
            .into_iter()
            .filter(|n| !n.starts_with("vocabulary/") && (!whole_run || n.starts_with("init.")));
        let mut left: BTreeSet<String> = offered.collect();
        let mut taken = Taken {
            file: path.into(),
            step: 0,
            trained: about.as_ref().map(|a| a.step),
            used: Vec::new(),
            in_file: Vec::new(),
            in_model: Vec::new(),
            no_state: Vec::new(),
            resized: Vec::new(),
            ids,
        };
        let mut copies = Vec::new();
        let mut values = 0;
        for entry in entries(schedule) {
            let name = tensor(&entry.name);
            let Some(info) = file.get(&name).cloned() else {
                match entry.state {
                    false => taken.in_model.push(entry.name),
                    // What a run starts from needs none.
                    true if whole_run => {}
                    true => taken.no_state.push(entry.name),
                }
                continue;
            };
            left.remove(&name);
            values += usize::from(!entry.state);
            let known = match entry.what {
                What::Table(field) => known.filter(|_| by_id.contains(&schedule.tables[field.table].name)),
                What::Parameter(..) => None,
            };
            let copied = fit(&file, (entry, name, info), known)?;
            let other_rows =
                matches!(copied.entry.what, What::Table(f) if copied.info.shape[0] as u64 != f.rows);
            if other_rows && !copied.entry.state {
                taken.resized.push(copied.entry.name.clone());
            }
            taken.used.push(copied.name.clone());
            copies.push(copied);
        }
        if values == 0 {
            return Err(Error::Weights(format!(
                "{} has values for none of the model's tables and parameters; it holds: {}",
                shown(path),
                some(&file.names())
            )));
        }
        taken.in_file = left.into_iter().collect();
        // What is not whole is no run to go on with: corrections for young moments must begin again.
        if let Some(about) = about.filter(|_| taken.in_model.is_empty() && taken.no_state.is_empty()) {
            taken.step = about.step;
        }
        Ok(Self { file, copies, taken, kept })
    }

    /// Copies the values to whoever holds them, piece by piece.
    pub(crate) fn fill<D: Device>(&self, (ranks, devices): (&[Env], &[D])) -> Result<(), Error> {
        for copied in &self.copies {
            match copied.entry.what {
                What::Parameter(p, of) => {
                    let mut values: Vec<D::Real> = Vec::with_capacity(copied.info.len());
                    self.read(copied, 0..copied.info.len(), |piece| values.extend_from_slice(piece))?;
                    for device in devices {
                        device.write(Stored::Parameter(p, of), 0, &values);
                    }
                }
                What::Table(field) => {
                    let width = field.width as u64;
                    for rows in &copied.rows {
                        let each = (PIECE as u64 / width).max(1);
                        for first in (rows.start..rows.end).step_by(each as usize) {
                            let last = rows.end.min(first + each);
                            let elements = (first * width) as usize..(last * width) as usize;
                            let mut block: Vec<D::Real> = Vec::with_capacity(elements.len());
                            self.read(copied, elements, |piece| block.extend_from_slice(piece))?;
                            tables::write((ranks, devices), &field, first, &block);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Hands elements to `take`, piece by piece; all must be finite, and squares not below 0.
    fn read<T: Real>(
        &self,
        copied: &Copied,
        range: Range<usize>,
        mut take: impl FnMut(&[T]),
    ) -> Result<(), Error> {
        let (file, info) = (&self.file, &copied.info);
        let (mut bytes, mut single, mut double) = (Vec::new(), Vec::<f32>::new(), Vec::<f64>::new());
        let mut values: Vec<T> = Vec::with_capacity(PIECE.min(range.len()));
        for start in range.clone().step_by(PIECE) {
            let n = PIECE.min(range.end - start);
            values.clear();
            if info.dtype == Dtype::F32 {
                single.clear();
                file.read(info, start, n, &mut bytes, &mut single)?;
                values.extend(single.iter().map(|x| T::from_f64(f64::from(*x))));
            } else {
                double.clear();
                file.read(info, start, n, &mut bytes, &mut double)?;
                values.extend(double.iter().map(|x| T::from_f64(*x)));
            }
            let bad = |x: &T| !x.to_f64().is_finite() || (copied.entry.squares && x.to_f64() < 0.0);
            if let Some(i) = values.iter().position(bad) {
                let what = if values[i].to_f64() < 0.0 { "below 0" } else { "not a finite number" };
                let reason = format!("element {} of `{}` is {what}", start + i, copied.name);
                return Err(DataError::Content { path: file.path().into(), reason }.into());
            }
            take(&values);
        }
        Ok(())
    }
}

/// What a file says of itself, if it does.
fn about(file: &TensorFile) -> Result<Option<About>, Error> {
    let content = |reason: String| Error::from(DataError::Content { path: file.path().into(), reason });
    let Some(text) = file.metadata(KEY) else { return Ok(None) };
    let about: About = serde_json::from_str(text)
        .map_err(|e| content(format!("what it says of itself cannot be read: {e}")))?;
    if about.version > VERSION {
        let (found, by) = (about.version, &about.program);
        let reason =
            format!("its format has version {found}, this program reads up to {VERSION}: {by} wrote it");
        return Err(content(reason));
    }
    if about.step > MOST_STEPS {
        return Err(content(format!("it says that it was trained for {} steps", about.step)));
    }
    Ok(Some(about))
}

/// The file's vocabulary, if it says that tables have one.
fn vocabulary(file: &TensorFile, about: &About) -> Result<Option<Vocabulary>, Error> {
    let content = |reason: String| Error::from(DataError::Content { path: file.path().into(), reason });
    let names: BTreeSet<&String> = about.vocabulary.values().collect();
    let Some(name) = names.first() else { return Ok(None) };
    if names.len() > 1 {
        return Err(content("its tables have several vocabularies, of which this program reads one".into()));
    }
    let tensors = vocabulary_names(name);
    let offsets = file.expect::<i64>(&tensors[0], "[ids + 1]")?;
    let text = file.expect::<u8>(&tensors[1], "[bytes]")?;
    for (info, name) in [(offsets, &tensors[0]), (text, &tensors[1])] {
        if info.shape.len() != 1 {
            return Err(file.mismatch(name, info, &format!("{:?}, one row of numbers", info.dtype)).into());
        }
    }
    // An id has a row, so there are not more of them; and what is read must have room, whatever the file says.
    let tables = about.vocabulary.keys().filter_map(|t| file.get(&table_name(t)));
    let rows = tables.filter_map(|info| info.shape.first().copied()).min();
    let ids = offsets.len().saturating_sub(1);
    if let Some(rows) = rows.filter(|rows| ids > *rows) {
        return Err(content(format!("its vocabulary has {ids} ids for {rows} rows")));
    }
    let needed = (text.len() as u64).saturating_add(offsets.len() as u64 * 16);
    if memory::available().is_some_and(|available| needed > available) {
        return Err(content(format!("its vocabulary takes {needed} bytes, more than there are")));
    }
    let mut bytes = Vec::new();
    let mut numbers: Vec<i64> = Vec::with_capacity(offsets.len());
    for start in (0..offsets.len()).step_by(PIECE) {
        file.read(offsets, start, PIECE.min(offsets.len() - start), &mut bytes, &mut numbers)?;
    }
    let mut texts: Vec<u8> = Vec::with_capacity(text.len());
    for start in (0..text.len()).step_by(PIECE) {
        file.read(text, start, PIECE.min(text.len() - start), &mut bytes, &mut texts)?;
    }
    let read = Vocabulary::from_parts(texts, numbers);
    read.map(Some).map_err(|e| content(format!("its vocabulary `{name}` is damaged: {e}")))
}

/// How ids came to their rows, how many are known if by id, and a vocabulary that is only kept.
type Adopted = (Ids, Option<Known>, Option<Arc<Vocabulary>>);

/// Gives the data's ids the rows that a file's vocabulary says.
fn adopt(vocabulary: Option<Vocabulary>, source: &mut dyn Source) -> Result<Adopted, Error> {
    let (vocabulary, own) = match (vocabulary, source.vocabulary()) {
        (None, None) => return Ok((Ids::RowNumbers, None, None)),
        (None, Some(own)) => return Ok((Ids::ByNumber { ids: own.len() }, None, None)),
        (Some(known), None) => {
            return Ok((Ids::Kept { ids: known.len() }, None, Some(Arc::new(known))));
        }
        (Some(known), Some(own)) => (known, own),
    };
    let file = vocabulary.len();
    let text = |v: &Vocabulary, n: u32| cut(&String::from_utf8_lossy(v.id(n)));
    let absent_ids = (0..file as u32).filter(|n| own.number(vocabulary.id(*n)).is_none());
    let shared = (0..own.len() as u32).filter(|n| vocabulary.number(own.id(*n)).is_some()).count();
    let absent = file - shared;
    let some_absent =
        if absent == 0 { Vec::new() } else { absent_ids.take(NAMED).map(|n| text(&vocabulary, n)).collect() };
    source.adopt(vocabulary)?;
    let all = source.vocabulary().map_or(file, |v| v.len());
    let some_new = source
        .vocabulary()
        .map(|v| (file..all).take(NAMED).map(|n| text(&v, n as u32)).collect())
        .unwrap_or_default();
    let ids = Ids::Matched { shared, new: all - file, absent, some_new, some_absent };
    Ok((ids, Some(Known { file: file as u64, all: all as u64 }), None))
}

/// Checks a tensor's type and shape, and finds the rows that are taken of it.
fn fit(
    file: &TensorFile,
    (entry, name, info): (SavedTensor, String, TensorInfo),
    known: Option<Known>,
) -> Result<Copied, Error> {
    let expected = || {
        let shape: Vec<String> = entry.shape.iter().map(ToString::to_string).collect();
        format!("F32 [{}]", shape.join(", "))
    };
    if !matches!(info.dtype, Dtype::F32 | Dtype::F64) {
        return Err(file.mismatch(&name, &info, &expected()).into());
    }
    let What::Table(field) = entry.what else {
        if info.shape != entry.shape {
            return Err(file.mismatch(&name, &info, &expected()).into());
        }
        return Ok(Copied { entry, name, info, rows: [0..0, 0..0] });
    };
    // All but the number of rows must be the same, and that where rows are matched by number.
    let rows = info.shape.first().copied().unwrap_or(0) as u64;
    let row_fits = info.shape.len() == entry.shape.len() && info.shape[1..] == entry.shape[1..];
    if !row_fits || !known.map_or(rows == field.rows, |k| k.file <= rows) {
        return Err(file.mismatch(&name, &info, &expected()).into());
    }
    let both = rows.min(field.rows);
    let taken = match known {
        None => [0..both, both..both],
        // Rows that new ids have now are not taken: they belonged to nobody.
        Some(k) => [0..k.file.min(both), k.all.min(both)..both],
    };
    Ok(Copied { entry, name, info, rows: taken })
}
