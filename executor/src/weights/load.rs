//! Starting from a saved model.
//!
//! First a file is held against the model and the data ([`Loading::prepare`]): what of it can be used, and which rows
//! the data's ids have. Then, once devices are there, its values are copied into them ([`Loading::fill`]).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use fs_kernels::Real;
use fs_schedule::terminal::shown;
use fs_schedule::{CostModel, Schedule};
use parking_lot::Mutex;

use super::checkpoint::blocks::Blocks;
use super::checkpoint::lying::{Lying, Which};
use super::checkpoint::read::{Checkpoint, find};
use super::layout::{
    About, MOST_STEPS, PIECE, SavedTensor, VERSION, What, entries, table_name, vocabulary_names,
};
use super::origin::Origin;
use super::taken::{Ids, Taken};
use crate::data::error::{cut, some};
use crate::data::tensorfile::{Dtype, TensorInfo};
use crate::data::{DataError, Source, Vocabulary};
use crate::device::{Device, Env, Stored};
use crate::error::Error;
use crate::memory;
use crate::runtime::tables::{self, Field, Holding};

/// Most threads that read.
const THREADS: usize = 8;
/// Ids that are named in messages.
const NAMED: usize = 8;

/// A file that fits the model, before its values are read.
#[derive(Debug)]
pub(crate) struct Loading {
    origin: Origin,
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

/// Until it is known which are taken.
const NO_ROWS: [Range<u64>; 2] = [0..0, 0..0];

impl Loading {
    /// Holds a file against the model, and gives the data's ids the rows that it says.
    ///
    /// Dense parameters are tensors `NAME`, tables `table.NAME`, their states follow after a `/`. A file that holds a
    /// whole run marks what training started from with `init.`: then only `init.NAME` and `init.table.NAME` are taken.
    /// Shapes must fit; a file with no values of the model is an error. For a run that `goes_on` (with data of this digest) all
    /// must be there, and the data be those of the run that left it: that is looked at before ids are joined, which with other
    /// data may be too many.
    pub(crate) fn prepare(
        schedule: &Schedule,
        path: &Path,
        source: &mut dyn Source,
        goes_on: Option<&str>,
    ) -> Result<Self, Error> {
        if path.is_dir() {
            // Of a run that goes on this was looked at before.
            find(path).map_err(|e| Error::Weights(format!("no initial values can be had: {e}")))?;
        }
        let origin = Origin::open(path)?;
        let about = about(&origin)?;
        let whole_run = origin.names().iter().any(|n| n.starts_with("init."));
        let tensor = |name: &str| if whole_run { format!("init.{name}") } else { name.to_owned() };
        // Ids of tables that are not taken count for nothing.
        let taken_too = |table: &str| {
            schedule.tables.iter().any(|own| own.name == *table)
                && origin.get(&tensor(&table_name(table))).is_some()
        };
        let says: BTreeMap<&str, &str> = about
            .iter()
            .flat_map(|about| &about.vocabulary)
            .map(|(table, name)| (table.as_str(), name.as_str()))
            .filter(|(table, _)| taken_too(table))
            .collect();
        let others = says.is_empty() && about.as_ref().is_some_and(|about| !about.vocabulary.is_empty());
        let vocabulary = vocabulary(&origin, &says).map_err(|error| origin.blame(error))?;
        let joined = vocabulary.as_ref().filter(|_| source.vocabulary().is_some()).map(Vocabulary::ids);
        let known = |table: usize| {
            joined.filter(|_| says.contains_key(schedule.tables[table].name.as_str())).map(|ids| ids as u64)
        };
        // Of a whole run only the start could have been taken; the rest is not left over. Vocabularies are no values.
        let offered = origin
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
            other_model: origin.run().is_some_and(|run| run.model != schedule.reference.digest),
            ids: Ids::RowNumbers,
        };
        let mut copies = Vec::new();
        let mut misfits = Vec::new();
        let mut values = 0;
        for entry in entries(schedule) {
            let name = tensor(&entry.name);
            let Some(info) = origin.get(&name) else {
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
            let of_file = match entry.what {
                What::Table(field) => known(field.table),
                What::Parameter(..) => None,
            };
            let table = entry.name.clone();
            let copied = match fit(&origin, (entry, name, info), of_file) {
                Ok(copied) => copied,
                Err(error) => {
                    misfits.push((table, error));
                    continue;
                }
            };
            let other_rows =
                matches!(copied.entry.what, What::Table(f) if copied.info.shape[0] as u64 != f.rows);
            if other_rows && !copied.entry.state {
                taken.resized.push(copied.entry.name.clone());
            }
            taken.used.push(copied.name.clone());
            copies.push(copied);
        }
        let mut misfits = misfits.into_iter();
        if let Some((_, error)) = misfits.next() {
            let others: Vec<String> = misfits.map(|(name, _)| name).collect();
            return Err(if others.is_empty() {
                error
            } else {
                Error::Weights(format!("{error}; nor do these fit: {}", some(&others)))
            });
        }
        if values == 0 {
            return Err(Error::Weights(format!(
                "{} has values for none of the model's tables and parameters; it holds: {}",
                shown(path),
                some(&origin.names())
            )));
        }
        taken.in_file = left.into_iter().collect();
        if let Some(data) = goes_on {
            resumes(&origin, &taken, data)?;
        }
        let (ids, all, kept) = adopt(vocabulary, source)?;
        taken.ids = if others { Ids::NotTaken } else { ids };
        for copied in &mut copies {
            if let What::Table(field) = copied.entry.what {
                copied.rows = rows(copied.info.shape[0] as u64, field.rows, known(field.table).zip(all));
            }
        }
        // What is not whole is no run to go on with: corrections for young moments must begin again.
        if let Some(about) = about.filter(|_| taken.in_model.is_empty() && taken.no_state.is_empty()) {
            taken.step = about.step;
        }
        Ok(Self { origin, copies, taken, kept })
    }

    /// The file or checkpoint.
    pub(crate) fn path(&self) -> &Path {
        self.origin.path()
    }

    /// What tells it from others.
    pub(crate) fn digest(&self) -> Result<String, Error> {
        self.origin.digest()
    }

    /// Costs of samples that the run had fitted.
    pub(crate) fn fitted(&self) -> Option<&(f64, CostModel)> {
        self.origin.run()?.fitted.as_ref()
    }

    /// Copies the values to whoever holds them, piece by piece, and of a checkpoint only what this process holds. Bytes are held
    /// against their digests on the way.
    pub(crate) fn fill<D: Device>(&self, held: (&[Env], &[D])) -> Result<(), Error> {
        let mut jobs = Vec::new();
        for copied in &self.copies {
            let lying = self.origin.lying(&copied.name);
            match &copied.entry.what {
                What::Parameter(..) => jobs.push((copied, lying)),
                What::Table(_) => jobs.extend(lying.into_iter().map(|lying| (copied, vec![lying]))),
            }
        }
        let next = AtomicUsize::new(0);
        // Of several failures the one that is said does not depend on threads.
        let failed: Mutex<Option<(usize, Error)>> = Mutex::new(None);
        let work = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some((copied, lying)) = jobs.get(at) else { return };
                if let Err(error) = copied.fill(lying, held) {
                    let mut first = failed.lock();
                    if first.as_ref().is_none_or(|(other, _)| *other > at) {
                        *first = Some((at, error));
                    }
                    next.store(jobs.len(), Ordering::Relaxed);
                }
            }
        };
        let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS).min(jobs.len());
        thread::scope(|scope| {
            for _ in 1..threads {
                // Where there is no thread to be had the others do its work.
                let _ = thread::Builder::new().name("rank-values".into()).spawn_scoped(scope, work);
            }
            work();
        });
        failed.into_inner().map_or(Ok(()), |(_, error)| Err(self.origin.blame(error)))
    }
}

impl Copied {
    /// Copies what lies in some files to whoever holds it.
    fn fill<D: Device>(&self, lying: &[Lying<'_>], (ranks, devices): (&[Env], &[D])) -> Result<(), Error> {
        match self.entry.what {
            What::Parameter(p, of) => {
                let mut values: Vec<D::Real> = Vec::with_capacity(self.info.elements());
                let [lying] = lying else {
                    let reason = format!("`{}` is in {} pieces; only tables may be", self.name, lying.len());
                    let path = lying.first().map(|lying| lying.values().path().into()).unwrap_or_default();
                    return Err(DataError::Content { path, reason }.into());
                };
                let mut blocks = lying.values();
                let all = 0..blocks.info().elements();
                self.read(&mut blocks, all, |piece| values.extend_from_slice(piece))?;
                for device in devices {
                    device.write(Stored::Parameter(p, of), 0, &values);
                }
                Ok(())
            }
            What::Table(field) => {
                lying.iter().try_for_each(|lying| self.fill_rows(lying, &field, (ranks, devices)))
            }
        }
    }

    /// Copies the rows that one file has of a table to whoever holds them.
    fn fill_rows<D: Device>(
        &self,
        lying: &Lying<'_>,
        field: &Field,
        (ranks, devices): (&[Env], &[D]),
    ) -> Result<(), Error> {
        // Of tensors without columns a row is a number.
        let width = lying.columns.max(1);
        let columns = lying.column..lying.column + width;
        let own = Holding::new(ranks, field, &columns);
        let each = (PIECE / width).max(1) as u64;
        let (mut values, mut numbers) = (lying.values(), lying.numbers());
        let (mut block, mut which): (Vec<D::Real>, Vec<i64>) = Default::default();
        for first in (0..lying.rows).step_by(each as usize) {
            let last = lying.rows.min(first + each);
            let elements = first as usize * width..last as usize * width;
            block.clear();
            if let (Which::From(offset), None) = (lying.which, &mut numbers) {
                let parts = self.rows.iter().filter_map(|wanted| {
                    let (from, to) = (wanted.start.max(offset + first), wanted.end.min(offset + last));
                    (from < to && own.some(&(from..to))).then_some(from..to)
                });
                for part in parts {
                    if block.is_empty() {
                        self.read(&mut values, elements.clone(), |piece| block.extend_from_slice(piece))?;
                    }
                    let at = |row: u64| (row - offset - first) as usize * width;
                    let own = &block[at(part.start)..at(part.end)];
                    tables::write((ranks, devices), field, (part.start, &columns), own);
                }
            } else if let Some(numbers) = &mut numbers {
                which.clear();
                numbers.elements(first as usize..last as usize, &mut which)?;
                let row = |n: &i64| u64::try_from(*n).ok().filter(|row| *row < field.rows);
                if which.iter().any(|n| row(n).is_none()) {
                    let reason = format!("it numbers a row of `{}` that the table has not", self.name);
                    return Err(DataError::Content { path: values.path().into(), reason }.into());
                }
                if !which.iter().filter_map(row).any(|row| own.has(row)) {
                    continue;
                }
                self.read(&mut values, elements, |piece| block.extend_from_slice(piece))?;
                for (row, values) in which.iter().filter_map(row).zip(block.chunks_exact(width)) {
                    if self.rows.iter().any(|wanted| wanted.contains(&row)) {
                        tables::write((ranks, devices), field, (row, &columns), values);
                    }
                }
            }
        }
        Ok(())
    }

    /// Hands elements to `take`, piece by piece; all must be finite, and squares not below 0.
    fn read<T: Real>(
        &self,
        blocks: &mut Blocks<'_>,
        range: Range<usize>,
        mut take: impl FnMut(&[T]),
    ) -> Result<(), Error> {
        let (mut single, mut double) = (Vec::<f32>::new(), Vec::<f64>::new());
        let mut values: Vec<T> = Vec::with_capacity(PIECE.min(range.len()));
        for start in range.clone().step_by(PIECE) {
            let part = start..range.end.min(start + PIECE);
            values.clear();
            if blocks.info().dtype == Dtype::F32 {
                single.clear();
                blocks.elements(part, &mut single)?;
                values.extend(single.iter().map(|x| T::from_f64(f64::from(*x))));
            } else {
                double.clear();
                blocks.elements(part, &mut double)?;
                values.extend(double.iter().map(|x| T::from_f64(*x)));
            }
            let bad = |x: &T| !x.to_f64().is_finite() || (self.entry.squares && x.to_f64() < 0.0);
            if let Some(i) = values.iter().position(bad) {
                let what = if values[i].to_f64() < 0.0 { "below 0" } else { "not a finite number" };
                let reason = format!("element {} of `{}` is {what}", start + i, self.name);
                return Err(DataError::Content { path: blocks.path().into(), reason }.into());
            }
            take(&values);
        }
        Ok(())
    }
}

/// The seed of the run that left a checkpoint.
pub(crate) fn seed(path: &Path) -> Result<u64, Error> {
    Ok(Checkpoint::open(&find(path)?)?.manifest.about.seed)
}

/// What a file says of itself, if it does.
pub(super) fn about(origin: &Origin) -> Result<Option<About>, Error> {
    let content = |reason: String| Error::from(DataError::Content { path: origin.path().into(), reason });
    let about = origin.about().map_err(|e| content(format!("what it says of itself cannot be read: {e}")))?;
    let Some(about) = about else { return Ok(None) };
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

/// Whether a run can go on as if it had never stopped: all of the model is there, and the data, whose digest is given, is that.
fn resumes(origin: &Origin, taken: &Taken, data: &str) -> Result<(), Error> {
    let at = shown(origin.path());
    let other = |reason: String| {
        Error::Weights(format!(
            "no run can go on from {at}: {reason}; --init starts another run from it, with what fits"
        ))
    };
    let Some(run) = origin.run() else {
        return Err(other("it is a file of values, and no checkpoint".into()));
    };
    let Taken { in_model, in_file, no_state, resized, .. } = taken;
    for (names, what) in [
        (in_model, "it has no values for"),
        (in_file, "the model lacks"),
        (no_state, "it has no optimizer state"),
        (resized, "of other numbers of rows are"),
    ] {
        if !names.is_empty() {
            return Err(other(format!("{what} {}", some(names))));
        }
    }
    let (said, digest) = &run.data;
    if digest.is_empty() {
        return Err(other("it does not say what data it was trained on".into()));
    }
    if digest != data {
        return Err(other(format!("it was trained on other data ({})", cut(said))));
    }
    Ok(())
}

/// The file's vocabulary, of these tables with the name of each one's; none without tables.
fn vocabulary(origin: &Origin, says: &BTreeMap<&str, &str>) -> Result<Option<Vocabulary>, Error> {
    let content = |reason: String| Error::from(DataError::Content { path: origin.path().into(), reason });
    let names: BTreeSet<&str> = says.values().copied().collect();
    let Some(name) = names.first() else { return Ok(None) };
    if names.len() > 1 {
        return Err(content("its tables have several vocabularies, of which this program reads one".into()));
    }
    let tensors = vocabulary_names(name);
    let mut offsets = origin.expect::<i64>(&tensors[0], "[ids + 1]")?;
    let mut text = origin.expect::<u8>(&tensors[1], "[bytes]")?;
    for (own, name) in [(&offsets, &tensors[0]), (&text, &tensors[1])] {
        if own.info().shape.len() != 1 {
            let expected = format!("{:?}, one row of numbers", own.info().dtype);
            return Err(origin.mismatch(name, own.info(), &expected).into());
        }
    }
    let (ids_and_one, bytes) = (offsets.info().elements(), text.info().elements());
    // An id has a row, so there are not more of them; and what is read must have room, whatever the file says.
    let tables = says.keys().filter_map(|t| origin.get(&table_name(t)));
    let rows = tables.filter_map(|info| info.shape.first().copied()).min();
    let ids = ids_and_one.saturating_sub(1);
    if let Some(rows) = rows.filter(|rows| ids > *rows) {
        return Err(content(format!("its vocabulary has {ids} ids for {rows} rows")));
    }
    let needed = (bytes as u64).saturating_add(ids_and_one as u64 * 16);
    if memory::available().is_some_and(|available| needed > available) {
        return Err(content(format!("its vocabulary takes {needed} bytes, more than there are")));
    }
    let mut numbers: Vec<i64> = Vec::with_capacity(ids_and_one);
    for start in (0..ids_and_one).step_by(PIECE) {
        offsets.elements(start..ids_and_one.min(start + PIECE), &mut numbers)?;
    }
    let mut texts: Vec<u8> = Vec::with_capacity(bytes);
    for start in (0..bytes).step_by(PIECE) {
        text.elements(start..bytes.min(start + PIECE), &mut texts)?;
    }
    let read = Vocabulary::from_parts(texts, numbers);
    read.map(Some).map_err(|e| content(format!("its vocabulary `{name}` is damaged: {e}")))
}

/// How ids came to their rows, how many there are together if by id, and a vocabulary that is only kept.
type Adopted = (Ids, Option<u64>, Option<Arc<Vocabulary>>);

/// Gives the data's ids the rows that a file's vocabulary says.
fn adopt(vocabulary: Option<Vocabulary>, source: &mut dyn Source) -> Result<Adopted, Error> {
    let (vocabulary, own) = match (vocabulary, source.vocabulary()) {
        (None, None) => return Ok((Ids::RowNumbers, None, None)),
        (None, Some(own)) => return Ok((Ids::ByNumber { ids: own.ids() }, None, None)),
        (Some(known), None) => {
            return Ok((Ids::Kept { ids: known.ids() }, None, Some(Arc::new(known))));
        }
        (Some(known), Some(own)) => (known, own),
    };
    let file = vocabulary.ids();
    let text = |v: &Vocabulary, n: u32| cut(&String::from_utf8_lossy(v.id(n)));
    let absent_ids = (0..file as u32).filter(|n| own.number(vocabulary.id(*n)).is_none());
    let shared = (0..own.ids() as u32).filter(|n| vocabulary.number(own.id(*n)).is_some()).count();
    let absent = file - shared;
    let some_absent =
        if absent == 0 { Vec::new() } else { absent_ids.take(NAMED).map(|n| text(&vocabulary, n)).collect() };
    source.adopt(vocabulary)?;
    let all = source.vocabulary().map_or(file, |v| v.ids());
    let some_new = source
        .vocabulary()
        .map(|v| (file..all).take(NAMED).map(|n| text(&v, n as u32)).collect())
        .unwrap_or_default();
    let ids = Ids::Matched { shared, new: all - file, absent, some_new, some_absent };
    Ok((ids, Some(all as u64), None))
}

/// Checks a tensor's type and shape; of tables whose rows are taken by id, the file has so many ids.
fn fit(
    origin: &Origin,
    (entry, name, info): (SavedTensor, String, TensorInfo),
    ids: Option<u64>,
) -> Result<Copied, Error> {
    let expected = || {
        let shape: Vec<String> = entry.shape.iter().map(ToString::to_string).collect();
        format!("F32 [{}]", shape.join(", "))
    };
    if !matches!(info.dtype, Dtype::F32 | Dtype::F64) {
        return Err(origin.mismatch(&name, &info, &expected()).into());
    }
    let What::Table(field) = entry.what else {
        if info.shape != entry.shape {
            return Err(origin.mismatch(&name, &info, &expected()).into());
        }
        return Ok(Copied { entry, name, info, rows: NO_ROWS });
    };
    // All but the number of rows must be the same, and that where rows are matched by number.
    let rows = info.shape.first().copied().unwrap_or(0) as u64;
    let row_fits = info.shape.len() == entry.shape.len() && info.shape[1..] == entry.shape[1..];
    if !row_fits || !ids.map_or(rows == field.rows, |ids| ids <= rows) {
        return Err(origin.mismatch(&name, &info, &expected()).into());
    }
    Ok(Copied { entry, name, info, rows: NO_ROWS })
}

/// Which rows are taken of a file's, into a table of so many; by id: how many ids the file has, and it and the data together.
fn rows(file: u64, table: u64, by_id: Option<(u64, u64)>) -> [Range<u64>; 2] {
    let both = file.min(table);
    match by_id {
        None => [0..both, both..both],
        // Rows that new ids have now are not taken: they belonged to nobody.
        Some((known, all)) => [0..known.min(both), all.min(both)..both],
    }
}
