//! Values of tables and dense parameters in safetensors files.
//!
//! Reading and writing go in pieces, so that a large table needs no second copy in memory.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::Path;

use fs_kernels::Real;
use fs_schedule::file::write_atomically_with;
use fs_schedule::{Parameter, Schedule};
use safetensors::tensor::{Metadata, TensorInfo as Info};

use crate::data::DataError;
use crate::data::tensorfile::{Dtype, TensorFile, TensorInfo};
use crate::device::{Device, Env, Stored, Values};
use crate::error::Error;
use crate::runtime::tables;

/// Values moved at once.
const PIECE: usize = 1 << 18;

/// What a file of values and a model do not share.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unmatched {
    /// Tensors of the file that belong to no table and no parameter.
    pub in_file: Vec<String>,
    /// Tables (`table.NAME`) and parameters that the file has no values for: they start as the model says.
    pub in_model: Vec<String>,
}

/// Takes dense parameters from tensors `NAME` and tables from `table.NAME`, where the file has them. A file that holds
/// a whole run marks what training started from with `init.`: then only `init.NAME` and `init.table.NAME` are taken.
/// Shapes must fit; a file with none of them is an error. What else has no counterpart is returned.
pub fn load<D: Device>(
    schedule: &Schedule,
    (ranks, devices): (&[Env], &[D]),
    path: &Path,
) -> Result<Unmatched, Error> {
    let file = TensorFile::open(path)?;
    let whole_run = file.names().iter().any(|n| n.starts_with("init."));
    let tensor = |name: &str| if whole_run { format!("init.{name}") } else { name.to_owned() };
    // Of a whole run only the start could have been taken; the rest is not left over.
    let offered = file.names().into_iter().filter(|n| !whole_run || n.starts_with("init."));
    let mut left: BTreeSet<String> = offered.collect();
    let mut in_model = Vec::new();
    let mut found = 0;
    for (i, parameter) in schedule.parameters.iter().enumerate() {
        let name = tensor(&parameter.name);
        let Some(info) = file.get(&name) else {
            in_model.push(parameter.name.clone());
            continue;
        };
        left.remove(&name);
        let shape = shape(parameter);
        if info.shape != shape {
            return Err(file.mismatch(&name, info, &format!("F32 {shape:?}")).into());
        }
        let mut values: Vec<D::Real> = Vec::with_capacity(info.len());
        read(&file, &name, info, 0..info.len(), |piece| values.extend_from_slice(piece))?;
        for device in devices {
            device.write(Stored::Parameter(i, Values::Weights), 0, &values);
        }
        found += 1;
    }
    for (i, table) in schedule.tables.iter().enumerate() {
        let name = tensor(&format!("table.{}", table.name));
        let Some(info) = file.get(&name) else {
            in_model.push(format!("table.{}", table.name));
            continue;
        };
        left.remove(&name);
        let shape = [table.rows as usize, table.dim as usize];
        if info.shape != shape {
            return Err(file.mismatch(&name, info, &format!("F32 {shape:?}")).into());
        }
        let mut at = 0;
        read(&file, &name, info, 0..info.len(), |piece| {
            tables::scatter((ranks, devices), i, at, piece);
            at += piece.len();
        })?;
        found += 1;
    }
    if found > 0 {
        return Ok(Unmatched { in_file: left.into_iter().collect(), in_model });
    }
    Err(Error::Weights(format!(
        "{} has values for none of the model's tables and parameters; it holds: {}",
        path.display(),
        file.names().join(", ")
    )))
}

fn shape(parameter: &Parameter) -> Vec<usize> {
    if parameter.vector {
        vec![parameter.columns as usize]
    } else {
        vec![parameter.rows as usize, parameter.columns as usize]
    }
}

/// Hands elements of an f32 or f64 tensor to `take`, piece by piece; all must be finite.
fn read<T: Real>(
    file: &TensorFile,
    name: &str,
    info: &TensorInfo,
    range: std::ops::Range<usize>,
    mut take: impl FnMut(&[T]),
) -> Result<(), Error> {
    let (mut bytes, mut single, mut double) = (Vec::new(), Vec::<f32>::new(), Vec::<f64>::new());
    let mut values: Vec<T> = Vec::with_capacity(PIECE.min(range.len()));
    for start in range.clone().step_by(PIECE) {
        let n = PIECE.min(range.end - start);
        values.clear();
        match info.dtype {
            Dtype::F32 => {
                single.clear();
                file.read(info, start, n, &mut bytes, &mut single)?;
                values.extend(single.iter().map(|x| T::from_f64(f64::from(*x))));
            }
            Dtype::F64 => {
                double.clear();
                file.read(info, start, n, &mut bytes, &mut double)?;
                values.extend(double.iter().map(|x| T::from_f64(*x)));
            }
            _ => return Err(file.mismatch(name, info, "F32").into()),
        }
        if let Some(i) = values.iter().position(|x| !x.to_f64().is_finite()) {
            let reason = format!("element {} of `{name}` is not a finite number", start + i);
            return Err(DataError::Content { path: file.path().into(), reason }.into());
        }
        take(&values);
    }
    Ok(())
}

/// Hands out the values of a table, in order.
pub type InOrder<'a, T> = &'a dyn Fn(usize, &mut dyn FnMut(&[T]) -> io::Result<()>) -> io::Result<()>;

/// Writes tables as `table.NAME` and dense parameters as `NAME`, in f32; whole or not at all. `tables` has the values
/// of all ranks, `device` those of parameters.
pub fn save<D: Device>(
    schedule: &Schedule,
    device: &D,
    path: &Path,
    tables: InOrder<'_, D::Real>,
) -> Result<(), Error> {
    let failed = |source| Error::Write { what: "the values", path: path.into(), source };
    write_atomically_with(path, |out| write(schedule, device, tables, out)).map_err(failed)
}

fn write<D: Device>(
    schedule: &Schedule,
    device: &D,
    tables: InOrder<'_, D::Real>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut infos = Vec::new();
    let mut at = 0;
    let mut place = |name: String, shape: Vec<usize>| {
        let end = at + shape.iter().product::<usize>() * 4;
        infos.push((name, Info { dtype: Dtype::F32, shape, data_offsets: (at, end) }));
        at = end;
    };
    for table in &schedule.tables {
        place(format!("table.{}", table.name), vec![table.rows as usize, table.dim as usize]);
    }
    for parameter in &schedule.parameters {
        place(parameter.name.clone(), shape(parameter));
    }
    let header = Metadata::new(None, infos).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    for t in 0..schedule.tables.len() {
        tables(t, &mut |values| put(out, values))?;
    }
    for p in 0..schedule.parameters.len() {
        put(out, &device.all(Stored::Parameter(p, Values::Weights)))?;
    }
    Ok(())
}

/// Values in f32, many at once.
fn put<T: Real>(out: &mut dyn Write, values: &[T]) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(4 * PIECE.min(values.len()));
    for piece in values.chunks(PIECE) {
        bytes.clear();
        bytes.extend(piece.iter().flat_map(|x| (x.to_f64() as f32).to_le_bytes()));
        out.write_all(&bytes)?;
    }
    Ok(())
}
