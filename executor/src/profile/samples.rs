//! What working on a sample takes, by the times of all ranks: see [`fs_workload::balance::Fit`].

use std::collections::BTreeMap;

use fs_schedule::{CostModel, GroupCost, Symbol};
use fs_workload::balance::{Fit, Fitted};

use super::typical::Instance;

/// Seconds of a sample, by what ranks worked on and for how long, in nanoseconds; none of too few.
pub(super) fn cost(
    groups: usize,
    sizes: &BTreeMap<Instance, BTreeMap<Symbol, f64>>,
    worked: &BTreeMap<Instance, u64>,
) -> Option<CostModel> {
    let mut fit = Fit::new(groups, sizes.len());
    for (instance, sizes) in sizes {
        let size = |symbol| sizes.get(&symbol).copied().unwrap_or(0.0);
        let of = (0..groups as u32).flat_map(|g| [Symbol::Tokens(g), Symbol::Squares(g)]);
        let work: Vec<f64> = std::iter::once(Symbol::Samples).chain(of).map(size).collect();
        fit.push(&work, worked.get(instance).map_or(0.0, |ns| *ns as f64));
    }
    let mut fitted = Fitted { step: 0.0, cost: CostModel::default() };
    fit.fit(&mut fitted).then(|| CostModel {
        constant: fitted.cost.constant * 1e-9,
        groups: fitted
            .cost
            .groups
            .iter()
            .map(|g| GroupCost { linear: g.linear * 1e-9, square: g.square * 1e-9 })
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two ranks over 40 steps with known costs; every seventh time is disturbed.
    #[test]
    fn known_costs_come_back() {
        let (mut sizes, mut worked) = (BTreeMap::new(), BTreeMap::new());
        for step in 0..40u64 {
            for rank in 0..2usize {
                let lengths: Vec<f64> =
                    (0..8).map(|i| ((step * 31 + rank as u64 * 17 + i * i * 13) % 90) as f64).collect();
                let (tokens, squares) =
                    (lengths.iter().sum::<f64>(), lengths.iter().map(|l| l * l).sum::<f64>());
                let own =
                    [(Symbol::Samples, 8.0), (Symbol::Tokens(0), tokens), (Symbol::Squares(0), squares)];
                sizes.insert((step, rank), BTreeMap::from(own));
                let time = 70_000.0 + 300.0 * tokens + 4.0 * squares;
                let factor = if (2 * step + rank as u64) % 7 == 3 { 2.5 } else { 1.0 };
                worked.insert((step, rank), (time * factor) as u64);
            }
        }
        let cost = cost(1, &sizes, &worked).expect("enough times");
        assert!((cost.groups[0].linear / 300e-9 - 1.0).abs() < 1e-2, "{cost:?}");
        assert!((cost.groups[0].square / 4e-9 - 1.0).abs() < 1e-2, "{cost:?}");
        let few = sizes.into_iter().take(20).collect();
        assert_eq!(super::cost(1, &few, &worked), None);
    }
}
