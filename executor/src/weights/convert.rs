//! A checkpoint to one file of values and back, and either without the states of optimizers.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use fs_schedule::file::write_atomically_with;
use fs_schedule::terminal::shown;
use serde::Serialize;

use super::checkpoint::folder::{Folder, whole, within};
use super::checkpoint::manifest::{BLOCK, FORMAT, Manifest, Tensor};
use super::checkpoint::shard::Shard;
use super::checkpoint::write::make;
use super::header::{Planned, head};
use super::layout::{About, Run, is_state};
use super::load::about;
use super::ordered::Ordered;
use super::origin::Origin;
use crate::error::Error;

/// Bytes moved at once.
const PIECE: usize = 4 << 20;
/// The one file of a checkpoint that is made from a file.
const FILE: &str = "values.safetensors";

/// What [`convert`] has written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Converted {
    /// Where it is.
    #[serde(serialize_with = "crate::report::lossy")]
    pub path: PathBuf,
    /// Number of tensors.
    pub tensors: usize,
    /// States of optimizers that were left out.
    pub dropped: usize,
}

/// Writes a checkpoint or a file of values to a file, if the target's name ends in `.safetensors` (in capitals or not), or as a
/// checkpoint into a folder. A checkpoint's bytes are held against its digests first.
pub fn convert(from: &Path, to: &Path, weights_only: bool) -> Result<Converted, Error> {
    let file = to.extension().is_some_and(|e| e.eq_ignore_ascii_case("safetensors"));
    if file && to.exists() {
        return Err(Error::Weights(format!("{} is there already; give --to another name", shown(to))));
    }
    // A checkpoint takes in nothing.
    if let Some(within) = within(to) {
        let within = shown(&within);
        return Err(Error::Weights(format!(
            "{} would lie in the checkpoint {within}; give --to another place",
            shown(to)
        )));
    }
    let origin = Origin::open(from)?;
    if let Origin::Checkpoint(checkpoint) = &origin {
        checkpoint.verify()?;
    }
    let about = about(&origin)?.ok_or_else(|| {
        Error::Weights(format!("{} does not say what it is; fsx has not written it", shown(from)))
    })?;
    let run = match &origin {
        Origin::File(_) => about.run.clone().unwrap_or_default(),
        Origin::Checkpoint(checkpoint) => checkpoint.manifest.run.clone(),
    };
    let all: BTreeSet<String> = origin.names().into_iter().collect();
    let order = match &origin {
        Origin::File(file) => file.in_order(),
        Origin::Checkpoint(checkpoint) => checkpoint.manifest.order.clone(),
    };
    let names: Vec<String> =
        order.iter().filter(|name| !(weights_only && is_state(name, &all))).cloned().collect();
    let dropped = order.len() - names.len();
    let tensors = names.iter().filter_map(|name| Ordered::new(&origin, name).transpose());
    let tensors: Vec<Ordered<'_>> = tensors.collect::<Result<_, _>>()?;
    let said: BTreeSet<&String> = order.iter().collect();
    if order.len() != all.len() || !said.into_iter().eq(&all) {
        return Err(Error::Weights(format!("{} does not say in which order its tensors are", shown(from))));
    }
    let whole: Vec<(&String, &Ordered<'_>)> = names.iter().zip(&tensors).collect();
    let path = if file {
        to_file(to, &whole, &About { run: Some(run), ..about })?;
        to.to_path_buf()
    } else {
        to_checkpoint(to, &whole, About { run: None, ..about }, run)?
    };
    Ok(Converted { path, tensors: names.len(), dropped })
}

/// Hands the bytes of a tensor to `take`, in order.
fn bytes_of(tensor: &Ordered<'_>, mut take: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let mut bytes = Vec::new();
    tensor.blocks(PIECE).try_for_each(|rows| {
        tensor.read(&rows, &mut bytes).map_err(io::Error::other)?;
        take(&bytes)
    })
}

fn planned(tensors: &[(&String, &Ordered<'_>)]) -> Vec<Planned> {
    let one = |(name, tensor): &(&String, &Ordered<'_>)| {
        ((*name).clone(), tensor.info().dtype, tensor.info().shape.clone())
    };
    tensors.iter().map(one).collect()
}

fn to_file(to: &Path, tensors: &[(&String, &Ordered<'_>)], about: &About) -> Result<(), Error> {
    let failed = |source| Error::Write { what: "the values", path: to.into(), source };
    write_atomically_with(to, |out| {
        out.write_all(&head(&planned(tensors), Some(about))?)?;
        tensors.iter().try_for_each(|(_, tensor)| bytes_of(tensor, |bytes| out.write_all(bytes)))
    })
    .map_err(failed)
}

fn to_checkpoint(
    to: &Path,
    tensors: &[(&String, &Ordered<'_>)],
    about: About,
    run: Run,
) -> Result<PathBuf, Error> {
    let failed = |source| Error::Write { what: "the checkpoint", path: to.into(), source };
    let (folder, step) = (Folder::open(to, true)?, about.step);
    let there = folder.named(step);
    // Another one's run may be another.
    if let Some((_, other)) = whole(to).map_err(failed)?.first() {
        let there = shown(other);
        return Err(Error::Weights(format!("{there} is there already; give --to another folder")));
    }
    let write = || -> io::Result<()> {
        let part = folder.part(step);
        make(&part)?;
        let planned = planned(tensors);
        let mut shard = Shard::create(&part.join(FILE), &planned)?;
        for (n, (_, tensor)) in tensors.iter().enumerate() {
            bytes_of(tensor, |bytes| shard.append(n, bytes))?;
        }
        let manifest = Manifest {
            digest: String::new(),
            format: FORMAT,
            about,
            run,
            order: tensors.iter().map(|(name, _)| (*name).clone()).collect(),
            block: BLOCK,
            tensors: planned.iter().map(|of| (of.0.clone(), Tensor::whole(FILE, of))).collect(),
            files: BTreeMap::from([(FILE.to_owned(), shard.finish()?)]),
        };
        folder.seal(step, manifest)
    };
    if let Err(source) = write() {
        let _ = std::fs::remove_dir_all(folder.part(step));
        return Err(failed(source));
    }
    Ok(there)
}
