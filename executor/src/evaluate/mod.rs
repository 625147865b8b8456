//! Evaluation: how high the held-out item of each user ranks among all items.
//!
//! The rank of an item is the number of items with greater scores, plus those with equal scores and lower ids,
//! from 0. HR@k is the share of users whose item ranks below k; NDCG@k counts such a hit as 1 / log2(rank + 2).
//! Both are given over all items, and over those that the user's history does not contain.

pub mod metric;
pub(crate) mod popularity;

use serde::{Deserialize, Serialize};

/// Where a user's held-out item ranks, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Position of the user.
    pub user: usize,
    /// Among all items.
    pub all: u64,
    /// Among the items that the history does not contain.
    pub unseen: u64,
}

/// Averages over users.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// Share of users whose item is among the first 10.
    pub hr_10: f64,
    /// Share of users whose item is among the first 50.
    pub hr_50: f64,
    /// Hits among the first 10, discounted by rank.
    pub ndcg_10: f64,
}

/// Metrics with and without the items of the user's history.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// Over all items.
    pub all: Metrics,
    /// Over the items that the user's history does not contain.
    pub unseen: Metrics,
}

/// Averages of outcomes.
pub(crate) fn scores(outcomes: &[Outcome]) -> Scores {
    let metrics = |rank: fn(&Outcome) -> u64| {
        let n = outcomes.len().max(1) as f64;
        let hits = |k: u64| outcomes.iter().filter(|o| rank(o) < k).count() as f64 / n;
        let gain = |o: &Outcome| if rank(o) < 10 { 1.0 / (rank(o) as f64 + 2.0).log2() } else { 0.0 };
        Metrics { hr_10: hits(10), hr_50: hits(50), ndcg_10: outcomes.iter().map(gain).sum::<f64>() / n }
    };
    Scores { all: metrics(|o| o.all), unseen: metrics(|o| o.unseen) }
}
