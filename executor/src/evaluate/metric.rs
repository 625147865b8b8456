//! The numbers of an evaluation that models can be chosen by.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Scores;

/// A number of an [`Evaluation`](crate::report::Evaluation) that grows with the model's worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Metric {
    /// Held-out items among the first 10 that the user has not seen.
    #[serde(rename = "hr@10")]
    Hr10,
    /// Among the first 50.
    #[serde(rename = "hr@50")]
    Hr50,
    /// Among the first 10, discounted by rank.
    #[serde(rename = "ndcg@10")]
    Ndcg10,
}

/// It is none of the metrics.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("give hr@10, hr@50 or ndcg@10")]
pub struct BadMetric;

impl FromStr for Metric {
    type Err = BadMetric;

    fn from_str(text: &str) -> Result<Self, BadMetric> {
        match text.to_ascii_lowercase().as_str() {
            "hr@10" => Ok(Self::Hr10),
            "hr@50" => Ok(Self::Hr50),
            "ndcg@10" => Ok(Self::Ndcg10),
            _ => Err(BadMetric),
        }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hr10 => "HR@10",
            Self::Hr50 => "HR@50",
            Self::Ndcg10 => "NDCG@10",
        })
    }
}

impl Metric {
    /// Over the items that users have not seen.
    pub(crate) fn of(self, scores: &Scores) -> f64 {
        let unseen = &scores.unseen;
        match self {
            Self::Hr10 => unseen.hr_10,
            Self::Hr50 => unseen.hr_50,
            Self::Ndcg10 => unseen.ndcg_10,
        }
    }
}
