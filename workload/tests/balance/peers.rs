//! Ways to give samples to ranks that others use, to hold the planner against: none looks at where a sample is.

use fs_workload::random::{RandomKey, uniform_index};

/// Any rank, as many samples each.
pub(crate) fn random(costs: &[u64], ranks: usize, seed: u64) -> Vec<u32> {
    let n = costs.len();
    let mut to: Vec<u32> = (0..n).map(|i| (i * ranks / n) as u32).collect();
    for i in (1..n).rev() {
        let key = RandomKey { seed, step: i as u64, stream: 7 };
        to.swap(i, uniform_index(key, 0, i as u64 + 1) as usize);
    }
    to
}

/// Dearest first, each to the rank with the least to do.
pub(crate) fn largest_first(costs: &[u64], ranks: usize) -> Vec<u32> {
    let mut order: Vec<usize> = (0..costs.len()).collect();
    order.sort_by_key(|i| (std::cmp::Reverse(costs[*i]), *i));
    let mut heap: std::collections::BinaryHeap<_> =
        (0..ranks).map(|r| std::cmp::Reverse((0u64, r))).collect();
    let mut to = vec![0; costs.len()];
    for i in order {
        let Some(std::cmp::Reverse((load, r))) = heap.pop() else { break };
        to[i] = r as u32;
        heap.push(std::cmp::Reverse((load + costs[i], r)));
    }
    to
}

/// Karmarkar and Karp's differencing of sets (1982), for several ranks: the two partitions of greatest difference are
/// joined, the greatest part of one with the least of the other, until one is left.
pub(crate) fn karmarkar_karp(costs: &[u64], ranks: usize) -> Vec<u32> {
    struct Partition {
        /// Sums and samples, greatest first; parts that are not there are empty.
        parts: Vec<(u64, Vec<u32>)>,
    }
    impl Partition {
        fn part(&self, i: usize) -> u64 {
            self.parts.get(i).map_or(0, |p| p.0)
        }
    }
    let mut heap = std::collections::BinaryHeap::new();
    let mut all: Vec<Option<Partition>> = Vec::new();
    for (i, cost) in costs.iter().enumerate() {
        heap.push((*cost, std::cmp::Reverse(all.len())));
        all.push(Some(Partition { parts: vec![(*cost, vec![i as u32])] }));
    }
    while heap.len() > 1 {
        let (Some((_, a)), Some((_, b))) = (heap.pop(), heap.pop()) else { break };
        let (Some(mut a), Some(b)) = (all[a.0].take(), all[b.0].take()) else { break };
        a.parts.resize_with(ranks.min(a.parts.len() + b.parts.len()), Default::default);
        // The greatest of `b` joins the last of all ranks' parts of `a`, those that are empty first.
        let last = a.parts.len();
        for (k, (sum, samples)) in b.parts.into_iter().enumerate() {
            let part = &mut a.parts[last - 1 - k];
            part.0 += sum;
            part.1.extend(samples);
        }
        a.parts.sort_by(|x, y| y.0.cmp(&x.0).then(x.1.cmp(&y.1)));
        heap.push((a.part(0) - a.part(ranks - 1), std::cmp::Reverse(all.len())));
        all.push(Some(a));
    }
    let mut to = vec![0; costs.len()];
    for partition in all.into_iter().flatten() {
        for (rank, (_, samples)) in partition.parts.into_iter().enumerate() {
            for i in samples {
                to[i as usize] = rank as u32;
            }
        }
    }
    to
}
