//! Writing a model.

use std::io::{self, Write};
use std::path::Path;

use fs_kernels::Real;
use fs_schedule::Schedule;
use fs_schedule::file::write_atomically_with;
use safetensors::tensor::Dtype;

use super::header::{Planned, head};
use super::layout::{About, ITEMS, PIECE, What, check, entries, vocabulary_names};
use crate::data::Vocabulary;
use crate::device::{Device, Stored};
use crate::error::Error;
use crate::runtime::tables::Field;

/// Hands out the numbers of all of a table's rows, in order.
pub(crate) type InOrder<'a, T> = &'a dyn Fn(&Field, &mut dyn FnMut(&[T]) -> io::Result<()>) -> io::Result<()>;

/// The parts of tables that [`save`] asks for, in its order.
pub(crate) fn fields(schedule: &Schedule) -> Vec<Field> {
    let fields = entries(schedule).into_iter().filter_map(|entry| match entry.what {
        What::Table(field) => Some(field),
        What::Parameter(..) => None,
    });
    fields.collect()
}

/// Writes a model, whole or not at all. `rows` has what all ranks hold of tables, `device` the parameters.
pub(crate) fn save<D: Device>(
    schedule: &Schedule,
    device: &D,
    path: &Path,
    (about, vocabulary): (&About, Option<&Vocabulary>),
    rows: InOrder<'_, D::Real>,
) -> Result<(), Error> {
    check(schedule)?;
    let failed = |source| Error::Write { what: "the values", path: path.into(), source };
    let write = |out: &mut dyn Write| write(schedule, device, (about, vocabulary), rows, out);
    write_atomically_with(path, write).map_err(failed)
}

fn write<D: Device>(
    schedule: &Schedule,
    device: &D,
    (about, vocabulary): (&About, Option<&Vocabulary>),
    rows: InOrder<'_, D::Real>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let entries = entries(schedule);
    let [offsets, text] = vocabulary_names(ITEMS);
    let real = if size_of::<D::Real>() == 8 { Dtype::F64 } else { Dtype::F32 };
    let mut planned: Vec<Planned> = Vec::new();
    // Wide numbers first, bytes last: all lie where readers may use them in place.
    if let Some(v) = vocabulary {
        planned.push((offsets, Dtype::I64, vec![v.offsets().len()]));
    }
    planned.extend(entries.iter().map(|entry| (entry.name.clone(), real, entry.shape.clone())));
    if let Some(v) = vocabulary {
        planned.push((text, Dtype::U8, vec![v.text().len()]));
    }
    out.write_all(&head(&planned, Some(about))?)?;
    let mut bytes = Vec::new();
    if let Some(v) = vocabulary {
        for piece in v.offsets().chunks(PIECE) {
            bytes.clear();
            bytes.extend(piece.iter().flat_map(|n| n.to_le_bytes()));
            out.write_all(&bytes)?;
        }
    }
    let mut put = |values: &[D::Real]| {
        values.chunks(PIECE).try_for_each(|piece| {
            bytes.clear();
            D::Real::write_le(piece, &mut bytes);
            out.write_all(&bytes)
        })
    };
    for entry in &entries {
        match &entry.what {
            What::Table(field) => rows(field, &mut put)?,
            What::Parameter(p, values) => put(&device.all(Stored::Parameter(*p, *values)))?,
        }
    }
    device.check().map_err(io::Error::other)?;
    vocabulary.map_or(Ok(()), |v| out.write_all(v.text()))
}
