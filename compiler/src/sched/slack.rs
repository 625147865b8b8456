//! Room of operations around the longest cycle, and what follows from it for transfers.

use fs_schedule::Engine;

use super::bounds::{self, Window};
use super::candidate::Tiers;
use super::graph::{Edge, Graph};
use super::problem::Problem;

/// Share of a step below which slack is urgent.
const URGENT: f64 = 0.15;
/// Steps this close to a bound are not worth another search.
pub(super) const ENOUGH: f64 = 1.005;

/// Priority of sums over ranks. A sum is many hops, and its queue stands still while its data are under way, so rows must not stand
/// behind it there.
const SUMS: i32 = -1;
/// Priority of other transfers with little slack.
const URGENT_ROWS: i32 = 1;

/// Room of every operation around the longest cycle if steps take `step`.
pub(super) fn windows(p: &Problem<'_>, graph: &Graph, hub: usize, step: f64) -> Window {
    bounds::window(graph, &p.time, step * (1.0 + 1e-9), hub)
}

/// Slack of every operation.
pub(super) fn slacks(window: &Window) -> Vec<f64> {
    (0..window.early.len()).map(|i| window.slack(i)).collect()
}

/// An operation of the longest cycle; without one, the load.
pub(super) fn hub(p: &Problem<'_>, cycle: &[Edge]) -> usize {
    cycle.first().map_or(p.load.unwrap_or(0), |e| e.to as usize)
}

/// Transfers with little slack pass the others, sums over ranks none.
pub(super) fn tiers(p: &Problem<'_>, slack: &[f64], step: f64) -> Tiers {
    let n = p.time.len();
    let transfer = |i: usize| matches!(p.engine[i], Engine::CopyOut | Engine::NicSend);
    let sum = |i: usize| p.op(i).action.facts().sums_over_ranks();
    let urgent = |i: usize| slack[i] < URGENT * step;
    let mixed = (0..n).any(|i| transfer(i) && urgent(i)) && (0..n).any(|i| transfer(i) && !urgent(i));
    let mut tiers = Tiers::flat(n);
    let bytes = p.costs.chunk(step / 1e9);
    for i in (0..n).filter(|i| transfer(*i)) {
        if sum(i) {
            tiers.priority[i] = SUMS;
        } else if mixed && urgent(i) {
            tiers.priority[i] = URGENT_ROWS;
        }
        if mixed && tiers.priority[i] != URGENT_ROWS && p.wire[i] > bytes as f64 {
            tiers.chunk[i] = Some(bytes);
            tiers.chunk_time[i] = ((p.time[i] as f64 * bytes as f64 / p.wire[i]) as u64).max(1);
        }
    }
    tiers
}
