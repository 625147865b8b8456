//! Which checkpoint is the best by its evaluation.

use std::path::{Path, PathBuf};

use fs_schedule::file::read_some;
use serde::{Deserialize, Serialize};

use super::manifest::{LONGEST, MANIFEST};
use crate::evaluate::Scores;
use crate::evaluate::metric::Metric;

/// The best of a folder's checkpoints.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Best {
    /// By what.
    pub metric: Metric,
    /// Its step.
    pub step: u64,
    /// What it scored.
    pub score: f64,
    /// Where it is.
    #[serde(serialize_with = "crate::report::lossy")]
    pub path: PathBuf,
}

/// What a manifest says of an evaluation.
#[derive(Default, Deserialize)]
pub(crate) struct Scored {
    #[serde(default)]
    pub scores: Option<Scores>,
    /// By what its run keeps the best one.
    #[serde(default)]
    pub kept_by: Option<Metric>,
}

/// Scores of a checkpoint, if it has any; one that cannot be read has none.
pub(crate) fn scored(path: &Path) -> Scored {
    let text = read_some(&path.join(MANIFEST), LONGEST);
    text.ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}

/// The best one; of equal ones the earliest.
pub(crate) fn best(found: &[(u64, PathBuf)], metric: Metric) -> Option<Best> {
    let scored = found.iter().filter_map(|(step, path)| {
        let score = metric.of(&scored(path).scores?);
        Some(Best { metric, step: *step, score, path: path.clone() })
    });
    scored.max_by(|a, b| a.score.total_cmp(&b.score).then(b.step.cmp(&a.step)))
}
