//! What lies in a folder of checkpoints, for people and scripts.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::folder::{amiss, bad, is_whole, settled, step_of};
use super::read::Checkpoint;
use crate::error::Error;
use crate::evaluate::Scores;

/// A checkpoint of a folder.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Listed {
    /// Where it is.
    #[serde(serialize_with = "crate::report::lossy")]
    pub path: PathBuf,
    /// Steps that the model was trained for; `None` if its manifest cannot be read.
    pub step: Option<u64>,
    /// Name of the model.
    pub model: Option<String>,
    /// Ranks that trained it; `None` also where it was made from a file, which does not say.
    pub ranks: Option<usize>,
    /// Seed of everything random.
    pub seed: Option<u64>,
    /// Bytes of its files.
    pub bytes: Option<u64>,
    /// What wrote it.
    pub program: Option<String>,
    /// Scores of its evaluation, if it was evaluated.
    pub scores: Option<Scores>,
    /// What is in it, if it was asked for alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tensors: Vec<Held>,
    /// Why it cannot be used.
    pub damaged: Option<String>,
}

/// A tensor of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Held {
    /// Its name.
    pub name: String,
    /// Its type and shape.
    pub shape: String,
    /// Number of files that have a part of it.
    pub pieces: usize,
}

/// The checkpoint that a path is, or those of the folder that it is, newest first. Their bytes are held against their digests if
/// `verify`.
pub fn checkpoints(path: &Path, verify: bool) -> Result<Vec<Listed>, Error> {
    if is_whole(path) {
        return Ok(vec![listed(path, verify, true)]);
    }
    if path.is_file() {
        let at = fs_schedule::terminal::shown(path);
        return Err(Error::Weights(format!(
            "{at} is a file and no folder of checkpoints; --to and --compare take files"
        )));
    }
    let paths: Vec<PathBuf> = {
        let failed = |source| {
            let at = fs_schedule::terminal::shown(path);
            Error::Weights(format!("cannot read the checkpoints {at}: {source}"))
        };
        settled(path).map_err(failed)?.into_iter().map(|(_, path)| path).collect()
    };
    // One that has lost its manifest.
    if paths.is_empty()
        && step_of(path).is_some()
        && let Some(reason) = amiss(path)
    {
        return Err(bad(path, &reason));
    }
    let all = paths.iter().map(|path| listed(path, verify, false));
    // What a run has removed meanwhile is not damaged.
    Ok(all.filter(|of| of.damaged.is_none() || of.path.symlink_metadata().is_ok()).collect())
}

fn listed(path: &Path, verify: bool, tensors: bool) -> Listed {
    let empty = Listed {
        path: path.into(),
        step: None,
        model: None,
        ranks: None,
        seed: None,
        bytes: None,
        program: None,
        scores: None,
        tensors: Vec::new(),
        damaged: None,
    };
    if let Some(reason) = amiss(path) {
        return Listed { damaged: Some(bad(path, &reason).to_string()), ..empty };
    }
    let checkpoint = match Checkpoint::open(path) {
        Ok(checkpoint) => checkpoint,
        Err(error) => return Listed { damaged: Some(error.to_string()), ..empty },
    };
    let found = if verify { checkpoint.verify().err() } else { None };
    let held = |name: &String| {
        let pieces = checkpoint.pieces(name).len();
        Some(Held { name: name.clone(), shape: checkpoint.get(name)?.describe(), pieces })
    };
    let order = &checkpoint.manifest.order;
    let tensors = order.iter().filter(|_| tensors).filter_map(held).collect();
    let manifest = checkpoint.manifest;
    Listed {
        step: Some(manifest.about.step),
        model: Some(manifest.about.model),
        ranks: Some(manifest.run.ranks).filter(|ranks| *ranks > 0),
        seed: Some(manifest.about.seed),
        bytes: Some(manifest.files.values().map(|file| file.bytes).sum()),
        program: Some(manifest.about.program),
        scores: manifest.run.scores,
        tensors,
        damaged: found.map(|error| error.to_string()),
        ..empty
    }
}
