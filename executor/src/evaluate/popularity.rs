//! The baseline that recommends the most frequent items of all histories to everyone.

use super::Outcome;
use crate::data::Histories;

/// Outcome of each user when items are scored by how often all histories hold them, out of `items` items.
pub(crate) fn outcomes(histories: &Histories) -> Vec<Outcome> {
    let items = histories.distinct_items();
    let mut counts = vec![0u64; items];
    for user in 0..histories.users() {
        for &item in histories.history(user) {
            counts[item as usize] += 1;
        }
    }
    let mut by_rank: Vec<u32> = (0..items as u32).collect();
    by_rank.sort_by_key(|&item| (std::cmp::Reverse(counts[item as usize]), item));
    let mut rank = vec![0u64; items];
    for (r, &item) in by_rank.iter().enumerate() {
        rank[item as usize] = r as u64;
    }
    let mut seen = Vec::new();
    let mut outcomes = Vec::with_capacity(histories.users());
    for user in 0..histories.users() {
        let Some(target) = histories.target(user) else { continue };
        let all = rank[target as usize];
        histories.seen(user, &mut seen);
        let better = seen.iter().filter(|&&item| rank[item as usize] < all).count() as u64;
        outcomes.push(Outcome { user, all, unseen: all - better });
    }
    outcomes
}
