//! What is known of a model's data before it runs: counted in the file that the model names, or taken from the cache.
//!
//! What is read is bounded by bytes and batches, never by time, so the same file gives the same counts on any machine. A
//! file that is not there, or of which more would have to be read, is no error: its laws are then assumed as if nobody had
//! looked. A file that is there but cannot be trained on is one, the same as of a run.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fs_schedule::counts::Counts;
use fs_schedule::digest::sha256;
use fs_schedule::terminal::shown;
use fs_schedule::{Data, Schedule};
use serde_json::json;

use super::cache::Cache;
use super::count::{CountError, Counter, origins};
use super::digest::Digest;
use super::error::DataError;
use super::tensorfile::TensorFile;
use super::units::human;

/// Bytes of the largest file of interactions that is read to plan with: all of it has to be.
const MOST_BYTES: u64 = 1 << 28;
/// Stands for what counts mean: raise it when they are counted otherwise.
const VERSION: u32 = 2;

/// What became of looking.
#[derive(Debug)]
pub enum Found {
    /// The model names no file.
    Nothing,
    /// Lengths and ids.
    Counts {
        /// They.
        counts: Box<Counts>,
        /// The file that they are of.
        file: PathBuf,
        /// They were counted before.
        cached: bool,
    },
    /// There is a name of a file, but nothing was counted in it.
    NotCounted {
        /// The file.
        file: PathBuf,
        /// Why.
        why: String,
    },
}

/// What the data that a schedule names hold. The schedule need not be ordered, but its operations must be known.
///
/// Fails if the file is there but the model cannot be trained on it.
pub fn look(schedule: &Arc<Schedule>, cache: bool) -> Result<Found, CountError> {
    let file = match &schedule.data {
        Some(Data::Csv { path, .. } | Data::Safetensors { path }) => PathBuf::from(path),
        Some(Data::Generate { .. }) | None => return Ok(Found::Nothing),
    };
    let not = |why: String| Ok(Found::NotCounted { file: file.clone(), why });
    let io = |source| DataError::Io { path: file.clone(), source };
    let metadata = match fs::metadata(&file) {
        Ok(metadata) => metadata,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return not("is not there".into()),
        Err(e) => return Err(io(e).into()),
    };
    let whole = matches!(schedule.data, Some(Data::Csv { .. }));
    // What is no plain file may give its data only once.
    if !metadata.is_file() && !metadata.is_dir() {
        return not("is no plain file".into());
    }
    if whole && metadata.len() > MOST_BYTES {
        return not(format!(
            "holds {}, more than the {} that are read to plan with",
            human(metadata.len()),
            human(MOST_BYTES)
        ));
    }
    let key = if metadata.is_dir() { String::new() } else { key(schedule, &file, whole)? };
    let cache = Cache::of(&file).filter(|_| cache && !key.is_empty());
    let groups = schedule.lengths.len();
    let microbatches = schedule.settings.microbatches.max(1);
    if let Some(counts) = cache.as_ref().and_then(|cache| cache.find(&key))
        && counts.are_whole(groups, schedule.ranks, microbatches)
    {
        return Ok(Found::Counts { counts: Box::new(counts), file, cached: true });
    }
    let seed = schedule.settings.seed;
    let mut source = super::open(schedule, None, None, seed)?;
    let digest = source.digest()?;
    let mut counter = Counter::new(schedule, source.as_mut(), seed, schedule.ranks as usize);
    let Some(counts) = counter.counts(digest)? else {
        return not("has batches that are too large to be counted before a run".into());
    };
    if let Some(cache) = cache {
        cache.keep(&key, &counts);
    }
    Ok(Found::Counts { counts: Box::new(counts), file, cached: false })
}

/// For people: what was found.
impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Nothing => f.write_str("the model names no data file"),
            Self::Counts { counts, file, cached } => {
                let (n, first) = (counts.of.batches, counts.of.first);
                let (s, cached) = (if n == 1 { "" } else { "es" }, if *cached { " (cached)" } else { "" });
                write!(
                    f,
                    "lengths and ids: counted in {n} batch{s} of {}, from step {first}{cached}",
                    shown(file)
                )
            }
            Self::NotCounted { file, why } => {
                write!(f, "{} {why}: nothing was counted in it, lengths and ids are assumed", shown(file))
            }
        }
    }
}

/// Of everything that counts depend on.
fn key(schedule: &Schedule, file: &Path, whole: bool) -> Result<String, DataError> {
    let content = if whole { digest(file)? } else { TensorFile::open(file)?.digest()? };
    let data = match &schedule.data {
        Some(Data::Csv { user, item, time, rating, min_interactions, .. }) => {
            json!([user, item, time, rating, min_interactions])
        }
        _ => json!("safetensors"),
    };
    let tables: Vec<_> = schedule.tables.iter().map(|t| json!([t.name, t.rows])).collect();
    let exchanges: Vec<_> = (0u32..)
        .zip(&schedule.exchanges)
        .map(|(e, x)| json!([x.table, x.part, x.entries, format!("{:?}", origins(schedule, e))]))
        .collect();
    let settings = &schedule.settings;
    let all = json!([
        [VERSION, env!("CARGO_PKG_VERSION"), content, data],
        [schedule.lengths, schedule.inputs, tables, exchanges, schedule.evaluate],
        [schedule.ranks, settings.node, settings.batch, settings.seed, settings.microbatches.max(1)],
    ]);
    Ok(sha256(all.to_string().as_bytes()))
}

/// Of all of a file.
fn digest(path: &Path) -> Result<String, DataError> {
    let io = |source| DataError::Io { path: path.into(), source };
    let mut file = File::open(path).map_err(io)?;
    let (mut digest, mut part) = (Digest::new(), vec![0; 1 << 16]);
    loop {
        // Whole parts, so that the digest depends on the bytes only.
        let mut n = 0;
        while n < part.len() {
            match file.read(&mut part[n..]) {
                Ok(0) => break,
                Ok(more) => n += more,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(io(e)),
            }
        }
        if n == 0 {
            return Ok(digest.text());
        }
        digest.bytes(&part[..n]);
    }
}
